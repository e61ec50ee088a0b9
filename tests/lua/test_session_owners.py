"""Who may write to a session that moves while its client is connected, and what is noted of it for the other store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lua_sessions import FAR_MS, Session, contents, messages, now_ms, readable, stored, unchanged
from script_replies import reply_of

from queuekeeper.access import redis_users
from queuekeeper.errors import MovedOn, NotOwner, StaleEpoch
from queuekeeper.lua import ScriptCaller, scripts
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

Write = Callable[[Session], Any]

WRITES: dict[str, Write] = {
    "save_messages": lambda session: session.save_messages(saved(session, 1, first=5), expected=4),
    "save_messages of a source": lambda session: session.save_messages(
        saved(session, 1, first=5), expected=4, source="a", offset=8, packet_ids="5"
    ),
    "save_messages of a stored batch": lambda session: session.save_messages(
        saved(session, 4), source="a", offset=7, packet_ids="1-4"
    ),
    "save_messages after the life of all": lambda session: session.save_messages(
        expired(session, first=5),
        expected=4,
        source="a",
        offset=8,
        packet_ids="5",
    ),
    "ack": lambda session: session.ack((1, 1), (2, "")),
    "ack of nothing": lambda session: session.ack((9, "")),
    "mark_released": lambda session: session.mark_released(1, 1),
    "mark_delivered": lambda session: session.mark_delivered(3),
    "purge_session": lambda session: session.purge_session([1, 2, 3, 4], up_to_serial=4),
    "set_last_packet_id": lambda session: session.set_last_packet_id(9, expected=4),
    "reserve_packet_ids": lambda session: session.reserve_packet_ids([5, 6], expected=4),
    "trim_messages": lambda session: session.trim_messages([(1, 1), (2, 2)], limit=2),
    "quarantine_message": lambda session: session.quarantine_message(1, 1),
    "remove_dead_references": lambda session: session.remove_dead_references([1, 2, 3, 4], complete_for=4),
}
"""Calls of every script of the store that writes, on a session of four messages whose packet ids are their serials."""


def saved(session: Session, count: int, *, first: int = 1) -> list[Any]:
    return [readable(session.client_id, packet_id) for packet_id in range(first, first + count)]


def expired(session: Session, *, first: int) -> list[Any]:
    return [readable(session.client_id, first, expires_at_ms=1)]


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of four messages, the last of which has expired."""
    found = Session(client=client)
    found.save_messages(saved(found, 4), source="a", offset=7, packet_ids="1-4")
    client.delete(found.payload(4))
    return found


def mirrored(session: Session, *, epoch: int = 5) -> Session:
    """Return a session with a mirror that knows all of it."""
    session.set_owner("redis", epoch=epoch, mirror=1)
    session.trim_outbox(session.state()["outbox_version"], epoch=epoch)
    return session


def test_every_writing_script_of_the_store_is_tried_here() -> None:
    tried = {name.split()[0] for name in WRITES}
    reading = {"fetch_messages", "find_missing", "list_references", "read_session"}
    # They make or take back a session as a whole, and have rules of their own.
    own_rules = {"import_session", "set_owner", "sync_session", "trim_outbox"}
    scripts = {
        name.removeprefix("sessions/") for name in redis_users()["sessions"].scripts if name.startswith("sessions/")
    }
    assert scripts - reading - own_rules == tried


# Who may write.


@pytest.mark.parametrize("claims", ["", 2, 3])
@pytest.mark.parametrize("owner", ["postgres", "fenced"])
@pytest.mark.parametrize("write", WRITES)
def test_session_that_is_not_of_redis_refuses_every_write(
    session: Session, write: str, owner: str, claims: int | str
) -> None:
    session.set_owner(owner, epoch=2)
    before = contents(session.client)
    sentence = (
        "the other store owns the session"
        if owner == "postgres"
        else "the session is on its way to the other store: repeat"
    )
    with pytest.raises(NotOwner, match=f"^{sentence}"):
        WRITES[write](replace(session, claims=claims))
    assert contents(session.client) == before


@pytest.mark.parametrize("last_save_was_ours", [False, True])
@pytest.mark.parametrize("claims", [4, 6])
@pytest.mark.parametrize("write", WRITES)
def test_session_with_a_mirror_refuses_every_write_under_another_epoch(
    session: Session, write: str, claims: int, last_save_was_ours: bool
) -> None:
    mirrored(session)
    if last_save_was_ours:
        session.client.hset(session.keys.session, "saved_last_packet_id", 4)
    with unchanged(session.client), pytest.raises(StaleEpoch, match=r"^epoch 5 owns the session: ask for its owner$"):
        WRITES[write](replace(session, claims=claims))


@pytest.mark.parametrize("write", WRITES)
def test_session_without_an_epoch_refuses_whoever_knows_one(session: Session, write: str) -> None:
    session.client.hdel(session.keys.session, "saved_last_packet_id")
    with (
        unchanged(session.client),
        pytest.raises(StaleEpoch, match=r"^epoch none owns the session: ask for its owner$"),
    ):
        WRITES[write](replace(session, claims=1))


@pytest.mark.parametrize("write", [name for name in WRITES if name != "purge_session"])
def test_import_that_is_not_complete_refuses_every_other_write(client: RedisClient, write: str) -> None:
    session = Session(client=client)
    session.import_session(messages(4), last=False)
    with (
        unchanged(client),
        pytest.raises(NotOwner, match=r"^the other store owns the session, or its import is not complete$"),
    ):
        WRITES[write](session)


@pytest.mark.parametrize("claims", ["", 5])
@pytest.mark.parametrize("write", WRITES)
def test_session_of_redis_takes_writes_under_its_epoch_and_of_who_knows_none(
    session: Session, write: str, claims: int | str
) -> None:
    session.set_owner("redis", epoch=5)
    plain = Session(client=session.client, client_id="plain")
    plain.save_messages(saved(plain, 4), source="a", offset=7, packet_ids="1-4")
    session.client.delete(plain.payload(4))
    # Who takes a session from Redis has it forget its last save.
    session.client.hdel(plain.keys.session, "saved_last_packet_id")
    assert WRITES[write](replace(session, claims=claims)) == WRITES[write](plain)


def test_save_looks_at_the_owner_once_a_session_was_taken_from_redis_and_came_back(session: Session) -> None:
    session.set_owner("fenced", epoch=2)
    session.set_owner("redis", epoch=3)
    with pytest.raises(StaleEpoch):
        replace(session, claims=1).save_messages(saved(session, 1, first=5), expected=4)
    assert replace(session, claims=3).save_messages(saved(session, 1, first=5), expected=4) == stored(
        first_serial=5, references=5
    )


# What is noted.


def repair_expiries(session: Session) -> None:
    session.client.persist(session.payload(1))
    call = scripts.maintenance.repair_expiries(
        session.keys,
        payloads=[session.payload(1), session.payload(2)],
        default_ttl_ms=60_000,
        grace_ms=60_000,
        said_ms=now_ms(),
    )
    ScriptCaller(session.client).execute([call]).or_raise()
    assert session.client.pexpiretime(session.payload(1)) > 0


CHANGES: dict[str, tuple[Write, str | None]] = {
    "save_messages": (WRITES["save_messages"], "5"),
    "save_messages of two": (lambda s: s.save_messages(saved(s, 2, first=5), expected=4), "5-6"),
    "save_messages of a source": (WRITES["save_messages of a source"], "5"),
    "save_messages after the life of one": (
        lambda s: s.save_messages([*expired(s, first=5), *saved(s, 2, first=6)], expected=4),
        "5-6",
    ),
    "save_messages of a source after the life of all": (WRITES["save_messages after the life of all"], "-"),
    "save_messages of a stored batch": (WRITES["save_messages of a stored batch"], None),
    "save_messages behind somebody else": (lambda s: s.save_messages(saved(s, 1, first=5), expected=3), None),
    "ack": (WRITES["ack"], "1-2"),
    "ack in another order": (lambda s: s.ack((3, 3), (1, 1)), "3,1"),
    "ack of nothing": (WRITES["ack of nothing"], None),
    "mark_released": (WRITES["mark_released"], "1"),
    "mark_released without a message": (lambda s: s.mark_released(9), None),
    "mark_delivered": (WRITES["mark_delivered"], "-"),
    "mark_delivered backwards": (lambda s: [s.mark_delivered(3), s.mark_delivered(2)], "-"),
    "purge_session": (WRITES["purge_session"], "*"),
    "purge_session for a page": (lambda s: s.purge_session([1], up_to_serial=4), "*"),
    "purge_session of nothing": (lambda s: s.purge_session([9], up_to_serial=4), None),
    "set_last_packet_id": (WRITES["set_last_packet_id"], "-"),
    "set_last_packet_id of another": (lambda s: s.set_last_packet_id(9, expected=3), None),
    "reserve_packet_ids": (WRITES["reserve_packet_ids"], "-"),
    "reserve_packet_ids that are in use": (lambda s: s.reserve_packet_ids([1], expected=4), None),
    "trim_messages": (WRITES["trim_messages"], "1-2"),
    "trim_messages within the limit": (lambda s: s.trim_messages([(1, 1)], limit=4), None),
    "quarantine_message": (WRITES["quarantine_message"], "1"),
    "quarantine_message of another": (lambda s: s.quarantine_message(1, 2), None),
    "remove_dead_references": (WRITES["remove_dead_references"], None),
    "quarantine_duplicate": (lambda s: s.quarantine_duplicate((1, 1), (2, 2)), "*"),
    "set_expiry": (lambda s: s.set_expiry((1, 1, FAR_MS, FAR_MS - 9)), "*"),
    "set_expiry of another": (lambda s: s.set_expiry((1, 2, FAR_MS, FAR_MS - 9)), None),
    "reorder_messages": (lambda s: s.reorder_messages((1, 1, 8), highest=8), "*"),
    "restore_message": (
        lambda s: [s.client.rename(s.payload(3), s.quarantined(9)), s.restore_message(s.quarantined(9), 7, serial=9)],
        "*",
    ),
    "repair_expiries": (repair_expiries, "*"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_change_of_a_session_with_a_mirror_is_noted(session: Session, change: str) -> None:
    mirrored(session)
    version = int(session.state()["outbox_version"])
    before_ms = now_ms()
    make, noted = CHANGES[change]
    make(session)
    state = session.state()
    assert state.get("outbox") == noted
    if noted is None:
        assert int(state["outbox_version"]) == version
        assert "outbox_ms" not in state
    else:
        assert int(state["outbox_version"]) == version + 1
        assert before_ms <= int(state["outbox_ms"]) <= now_ms()


@pytest.mark.parametrize("change", CHANGES)
def test_session_without_a_mirror_notes_nothing(session: Session, change: str) -> None:
    session.set_owner("redis", epoch=5)
    CHANGES[change][0](session)
    assert not [name for name in session.state() if name.startswith("outbox")]


def test_changes_add_up_and_runs_of_saves_grow(session: Session) -> None:
    mirrored(session)
    noted = []
    for packet_id in range(5, 8):
        session.save_messages(saved(session, 1, first=packet_id), expected=packet_id - 1)
        noted.append(session.state()["outbox"])
    session.mark_delivered(5)
    session.ack((1, 1), (5, 5), (6, 6))
    session.save_messages(saved(session, 2, first=8), expected=7)
    session.save_messages(saved(session, 1, first=10), expected=9)
    assert noted == ["5", "5-6", "5-7"]
    assert session.state()["outbox"] == "5-7,1,5-6,8-10"


def test_oldest_change_keeps_its_instant(session: Session) -> None:
    mirrored(session)
    session.mark_delivered(1)
    session.client.hset(session.keys.session, "outbox_ms", 17)
    session.ack((1, 1))
    assert (session.state()["outbox"], session.state()["outbox_ms"]) == ("1", "17")


def test_long_outbox_becomes_all_of_the_session_and_stays_so(client: RedisClient) -> None:
    session = Session(client=client)
    session.save_messages(messages(250, expires_at_ms=FAR_MS))
    client.hset(session.keys.session, "last_serial", 1_000_000_000)
    mirrored(session)
    last = 250
    for _ in range(190):
        # Every other one goes, so that no run grows.
        session.save_messages(messages(2, first=last + 1, expires_at_ms=FAR_MS), expected=last)
        session.ack((last + 2, ""))
        last += 2
        outbox = session.state()["outbox"]
        assert outbox == "*" or len(outbox) <= 4_000
        if outbox == "*":
            break
    assert session.state()["outbox"] == "*"
    version = int(session.state()["outbox_version"])
    session.ack((1, 1))
    session.mark_delivered(2)
    assert (session.state()["outbox"], session.state()["outbox_version"]) == ("*", str(version + 2))


def test_serials_of_other_programs_are_noted_as_all_of_the_session(session: Session) -> None:
    mirrored(session)
    anything: Any = session.client
    anything.zadd(session.keys.messages, {session.payload(1): 0.5})
    session.ack((1, ""))
    assert session.state()["outbox"] == "*"


# What stays.


def test_purge_of_a_session_with_a_mirror_leaves_owner_and_note(session: Session) -> None:
    mirrored(session)
    session.mark_delivered(2)
    version = int(session.state()["outbox_version"])
    assert session.purge_session([1, 2, 3, 4], up_to_serial=4) == {"removed": 4, "remaining": 0}
    state = session.state()
    assert int(state.pop("outbox_ms")) > 0
    assert state == {
        "owner": "redis",
        "epoch": "5",
        "mirror": "5",
        "outbox": "*",
        "outbox_version": str(version + 1),
    }
    assert list(contents(session.client)) == [session.keys.session]
    assert session.client.pexpiretime(session.keys.session) == -1


def test_purged_session_with_a_mirror_begins_anew(session: Session) -> None:
    mirrored(session)
    session.purge_session([1, 2, 3, 4], up_to_serial=4)
    assert replace(session, claims=5).save_messages(saved(session, 1)) == stored(first_serial=1, references=1)
    assert session.state()["outbox"] == "*"


def test_purge_without_a_mirror_leaves_nothing(session: Session) -> None:
    mirrored(session)
    session.set_owner("redis", epoch=6)
    assert session.purge_session([1, 2, 3, 4], up_to_serial=4) == {"removed": 4, "remaining": 0}
    assert contents(session.client) == {}


def test_state_of_a_session_with_a_mirror_does_not_expire(session: Session) -> None:
    assert session.client.pexpiretime(session.keys.session) > 0
    mirrored(session)
    session.save_messages(saved(session, 1, first=5), expected=4)
    session.ack(*((n, "") for n in range(1, 6)))
    # The set begins anew, and gives the keys another expiry.
    session.save_messages([saved(session, 1, first=6)[0]._replace(expires_at_ms=FAR_MS + 9_000_000)], expected=5)
    session.set_last_packet_id(9, expected=6, keep_ms=60_000)
    session.client.delete(session.keys.last_packet_id)
    session.reserve_packet_ids([10], keep_ms=60_000)
    for key in (session.keys.session, session.keys.last_packet_id):
        assert session.client.pexpiretime(key) == -1, key
    session.set_owner("redis", epoch=6)
    until_ms = int(session.state()["until_ms"])
    assert until_ms > FAR_MS + 9_000_000
    for key in session.keys:
        assert session.client.pexpiretime(key) == until_ms, key


def test_idle_session_with_a_mirror_is_not_given_an_expiry(client: RedisClient) -> None:
    session = Session.saved(client, 1)
    session.ack((1, ""))
    mirrored(session)
    call = scripts.maintenance.expire_idle_session(session.keys, keep_ms=60_000, said_ms=0, all_dead=0)
    assert reply_of(call, ScriptCaller(client).call(*call)).word == "held"
    session.set_owner("fenced", epoch=6)
    assert reply_of(call, ScriptCaller(client).call(*call)).word == "held"


def test_session_that_moved_is_no_imports_any_more(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last_packet_id=2)
    session.set_owner("redis", epoch=2, mirror=1)
    assert not {"plan", "references", "imported_last_packet_id"} & set(session.state())
    with pytest.raises(MovedOn, match=r"^the session was not imported$"):
        session.drop_import([1, 2])
    with pytest.raises(NotOwner, match="belongs to Redis and was not imported"):
        replace(session, epoch=9).import_session(messages(2), last_packet_id=2)
    session.purge_session([1, 2], up_to_serial=2_000)
    session.set_owner("postgres", epoch=3)
    with pytest.raises(NotOwner, match=r"^the session moves while its client is connected: leave it to that move$"):
        replace(session, epoch=3).import_session(messages(2), last_packet_id=2)


def test_full_server_confirms_and_notes(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.save_messages(saved(session, 4))
        mirrored(session)
        client.config_set("maxmemory", 1)
        assert session.ack((1, 1)).removed == (1,)
        assert session.mark_released(2) == b"released"
        assert session.mark_delivered(3) == 1
        assert session.trim_messages([(2, 2)], limit=2) == {"trimmed": 1, "dead": 0, "references": 2}
        assert session.state()["outbox"] == "1-2,2"
        assert session.purge_session([3, 4], up_to_serial=9) == {"removed": 2, "remaining": 0}
        assert session.state()["outbox"] == "*"
