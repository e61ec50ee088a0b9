"""``set_owner``: Redis follows PostgreSQL's word on who owns a session, and never goes back."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import FAR_MS, HOSTILE_IDS, Session, contents, messages, now_ms, unchanged

from queuekeeper.errors import NotOwner, StaleEpoch, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of three messages that nobody has moved."""
    found = Session(client=client)
    found.save_messages(messages(3, expires_at_ms=FAR_MS))
    return found


@pytest.mark.parametrize("owner", ["redis", "postgres", "fenced"])
@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_session_that_redis_does_not_know_gets_an_owner(client: RedisClient, client_id: str, owner: str) -> None:
    session = Session(client=client, client_id=client_id)
    assert session.set_owner(owner, epoch=7, mirror=1) == b"set"
    expected = {"owner": owner, "epoch": "7", "import": "done"} | ({"mirror": "7"} if owner == "redis" else {})
    assert session.state() == expected
    assert list(contents(client)) == [session.keys.session]


@pytest.mark.parametrize("mirror", [0, 1])
@pytest.mark.parametrize("owner", ["redis", "postgres", "fenced"])
def test_repeated_call_changes_nothing(session: Session, owner: str, mirror: int) -> None:
    session.set_owner(owner, epoch=2, mirror=mirror)
    before = contents(session.client)
    assert session.set_owner(owner, epoch=2, mirror=mirror) == b"unchanged"
    assert contents(session.client) == before


@pytest.mark.parametrize(
    ("owner", "epoch"), [("redis", 1), ("postgres", 4), ("fenced", 4), ("redis", 4), ("postgres", 5), ("fenced", 5)]
)
def test_earlier_word_is_refused_and_so_is_another_owner_under_the_same_epoch(
    session: Session, owner: str, epoch: int
) -> None:
    session.set_owner("redis", epoch=5, mirror=1)
    with unchanged(session.client), pytest.raises(StaleEpoch, match=r"^epoch 5 owns the session: ask for its owner$"):
        session.set_owner(owner, epoch=epoch)


@pytest.mark.parametrize("owner", ["postgres", "fenced"])
def test_session_that_is_taken_from_redis_forgets_its_last_save_and_stays(session: Session, owner: str) -> None:
    messages_until_ms = session.client.pexpiretime(session.keys.messages)
    session.set_owner(owner, epoch=2)
    state = session.state()
    assert "saved_last_packet_id" not in state
    assert (state["owner"], state["epoch"], state["last_serial"]) == (owner, "2", "3")
    assert ("until_ms" in state) == (owner == "fenced")
    assert session.client.pexpiretime(session.keys.session) == -1
    assert session.client.pexpiretime(session.keys.last_packet_id) == -1
    assert session.client.pexpiretime(session.keys.messages) == messages_until_ms
    assert len(session.references()) == 3


def test_fence_keeps_what_the_mirror_does_not_know_and_the_owner_after_it_too(session: Session) -> None:
    session.set_owner("redis", epoch=2, mirror=1)
    session.trim_outbox(1, epoch=2)
    session.ack((1, 1))
    session.set_owner("fenced", epoch=3, mirror=0)
    fenced = session.state()
    assert (fenced["outbox"], fenced["outbox_version"], fenced["mirror"]) == ("1", "2", "3")
    assert session.trim_outbox(1, epoch=3) == 0
    session.set_owner("redis", epoch=4, mirror=1)
    back = session.state()
    assert (back["outbox"], back["outbox_version"], back["mirror"]) == ("1", "2", "4")


def test_postgres_takes_the_mirror_off(session: Session) -> None:
    session.set_owner("redis", epoch=2, mirror=1)
    session.ack((1, 1))
    session.set_owner("fenced", epoch=3)
    session.set_owner("postgres", epoch=4)
    assert not {"mirror", "outbox", "outbox_version", "outbox_ms", "until_ms"} & set(session.state())


@pytest.mark.parametrize("before", ["nobody", "redis", "fenced"])
def test_mirror_of_a_session_that_redis_has_used_knows_nothing_of_it(session: Session, before: str) -> None:
    if before != "nobody":
        session.set_owner(before, epoch=1)
    session.set_owner("redis", epoch=2, mirror=1)
    assert (session.state()["outbox"], session.state()["outbox_version"]) == ("*", "1")


def test_mirror_of_a_session_from_postgres_knows_all_of_it(client: RedisClient) -> None:
    session = Session(client=client)
    session.sync_session(messages(2), last_packet_id=2, last_serial=1_002)
    session.set_owner("redis", epoch=2, mirror=1)
    assert not [name for name in session.state() if name.startswith("outbox")]


def test_mirror_is_taken_off_under_the_same_epoch_and_stays_off(session: Session) -> None:
    until_ms = session.client.pexpiretime(session.keys.session)
    session.set_owner("redis", epoch=2, mirror=1)
    assert session.client.pexpiretime(session.keys.session) == -1
    assert session.set_owner("redis", epoch=2, mirror=0) == b"set"
    state = session.state()
    assert not [name for name in state if name.startswith(("outbox", "mirror"))]
    assert [session.client.pexpiretime(key) for key in session.keys] == [until_ms] * 3
    # An earlier word that arrives late.
    assert session.set_owner("redis", epoch=2, mirror=1) == b"unchanged"
    assert session.state() == state


@pytest.mark.parametrize("until_ms", [None, "never", "past"])
def test_session_without_an_instant_in_the_future_gets_no_expiry(session: Session, until_ms: str | None) -> None:
    session.set_owner("redis", epoch=2, mirror=1)
    if until_ms is None:
        session.client.hdel(session.keys.session, "until_ms")
    else:
        value = str(now_ms() - 1) if until_ms == "past" else until_ms
        session.client.hset(session.keys.session, "until_ms", value)
    session.set_owner("redis", epoch=3)
    assert session.client.pexpiretime(session.keys.session) == -1
    assert session.client.pexpiretime(session.keys.last_packet_id) == -1


def test_import_that_is_not_complete_stays_so(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last=False)
    session.set_owner("redis", epoch=2)
    assert (session.state()["plan"], session.state()["import"]) == ("plan-a", "1")
    with pytest.raises(NotOwner):
        session.save_messages(messages(1, first=3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epoch": "x"}, "an epoch of 0 or more, an owner and a mark of the mirror are expected"),
        ({"epoch": -1}, "an epoch of 0 or more, an owner and a mark of the mirror are expected"),
        ({"epoch": ""}, "an epoch of 0 or more, an owner and a mark of the mirror are expected"),
        ({"owner": "nobody"}, "owner is neither redis nor postgres nor fenced"),
        ({"mirror": "yes"}, "the mark of the mirror is neither 0 nor 1"),
    ],
)
def test_bad_argument_is_refused(session: Session, options: dict[str, Any], message: str) -> None:
    before = contents(session.client)
    with pytest.raises(UsageError) as caught:
        session.set_owner(**{"owner": "redis", "epoch": 2, **options})
    assert str(caught.value) == message
    with pytest.raises(UsageError):
        ScriptCaller(session.client).call(load("sessions/set_owner"), [session.keys.session], [2, "redis", 0])
    assert contents(session.client) == before


def test_full_server_follows(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 1)
        client.config_set("maxmemory", 1)
        for epoch, owner in enumerate(("redis", "fenced", "postgres"), start=1):
            assert session.set_owner(owner, epoch=epoch, mirror=1) == b"set"
        assert session.state()["owner"] == "postgres"
