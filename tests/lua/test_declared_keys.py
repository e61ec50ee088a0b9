"""Every script runs as a user that may touch the declared keys only: none makes the name of a key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
import redis
from limited_user import called_with_its_keys, limited
from lua_sessions import Message, Session, messages, now_ms, readable, served_by, stored

from queuekeeper import lua
from queuekeeper.errors import RefusedError, ScriptError
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient, connect
from tests.conftest import REDIS_FLAVOURS

pytestmark = pytest.mark.lua


@dataclass(frozen=True, kw_only=True)
class LimitedSession(Session):
    """A session whose every call is made by a user that may touch the declared keys only."""

    def _call(self, call: lua.Call) -> Any:
        return called_with_its_keys(self.client, call)


Act = Callable[[Session], Any]

FAR_MS = 4_000_000_000_000
SAVED = messages(3, expires_at_ms=FAR_MS)


def save(session: Session) -> None:
    session.save_messages(SAVED)


def save_with_dead_reference(session: Session) -> None:
    save(session)
    session.client.delete(session.payload(2))


def save_readable(session: Session) -> None:
    session.save_messages([readable(session.client_id, 1), readable(session.client_id, 2)])


def quarantine_readable(session: Session) -> None:
    save_readable(session)
    session.quarantine_message(2, 2)


def save_delivered(session: Session) -> None:
    save(session)
    session.mark_delivered(2)


def save_orphan(session: Session) -> None:
    save(session)
    session.client.set(session.payload(9), "{}", pxat=FAR_MS)


def mirror(session: Session) -> None:
    save(session)
    session.set_owner("redis", mirror=1)


def unlink_orphan(session: Session) -> None:
    save_orphan(session)
    session.unlink_orphan(9)


OPERATIONS: dict[str, tuple[Act, Act, Any]] = {
    "import_session": (
        lambda session: session.import_session(messages(3), last=False),
        lambda session: session.import_session(messages(3), last_packet_id=3),
        {"word": "imported", "written": 3, "expired": 0},
    ),
    "import_session with expired messages": (
        lambda session: session.import_session(messages(3), last=False),
        lambda session: session.import_session(messages(3, expires_at_ms=1)),
        {"word": "imported", "written": 0, "expired": 3},
    ),
    "drop_import for a page": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.drop_import([1, 2]),
        {"removed": 2, "remaining": 1},
    ),
    "drop_import for everything": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.drop_import([1, 2, 3]),
        {"removed": 3, "remaining": 0},
    ),
    "export_messages": (
        lambda session: session.import_session([Message(1, 1, FAR_MS, "{}")]),
        lambda session: session.export_messages([1, 2]).records,
        ((b"{}", FAR_MS), (b"", -2)),
    ),
    "replay_message": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: (
            session.replay_message(Message(4, 1, now_ms() + 60_000, "{}"), expected=3, last_packet_id=4).word
        ),
        "replayed",
    ),
    "read_session": (
        save,
        lambda session: session.read_session().pick("last_packet_id", "references", "highest"),
        (b"3", 3, b"3"),
    ),
    "list_references": (
        save,
        lambda session: [serial for _, serial in session.list_references("serial", 1)],
        [2, 3],
    ),
    "fetch_messages": (
        save,
        lambda session: session.fetch_messages([1, 9]).records,
        ((SAVED[0].json.encode(), FAR_MS), (b"", -2)),
    ),
    "save_messages into no session": (
        lambda session: None,
        lambda session: session.save_messages(SAVED),
        stored(first_serial=1, references=3),
    ),
    "save_messages of a source": (
        save,
        lambda session: session.save_messages(
            messages(2, first=4, expires_at_ms=FAR_MS), expected=3, source="a", packet_ids="4-5", refused=1
        ),
        stored(first_serial=4, references=5),
    ),
    "save_messages behind an import": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.save_messages([Message(4, 0, FAR_MS, "{}")], expected=3, session_expiry_ms=""),
        stored(first_serial=1_004, references=4),
    ),
    "remove_dead_references": (
        save_with_dead_reference,
        lambda session: session.remove_dead_references([1, 2, 3], complete_for=3),
        {"removed": 1, "earliest_expiry_ms": str(FAR_MS).encode()},
    ),
    "trim_messages": (
        save_with_dead_reference,
        lambda session: session.trim_messages([(1, 1), (2, 2), (3, 3)], limit=1),
        {"trimmed": 1, "dead": 1, "references": 1},
    ),
    "ack": (save, lambda session: session.ack((1, 1), (2, ""), (3, 9), (4, "")).removed, (1, 1, 0, 0)),
    "mark_released": (
        lambda session: session.save_messages([Message(1, 0, FAR_MS, '{"packetType":"PUBLISH"}')]),
        lambda session: session.mark_released(1),
        b"released",
    ),
    "mark_delivered": (save, lambda session: session.mark_delivered(2), 1),
    "mark_delivered in a session without fields": (
        lambda session: session.client.zadd(session.keys.messages, {session.payload(1): 1}),
        lambda session: session.mark_delivered(2, keep_ms=60_000),
        1,
    ),
    "purge_session for a page": (
        save,
        lambda session: session.purge_session([1, 2], up_to_serial=9, members=["other"]),
        {"removed": 2, "remaining": 1},
    ),
    "purge_session for everything": (
        save,
        lambda session: session.purge_session([1, 2, 3], up_to_serial=9),
        {"removed": 3, "remaining": 0},
    ),
    "reserve_packet_ids": (save, lambda session: session.reserve_packet_ids([4, 5], expected=3).word, "reserved"),
    "set_last_packet_id": (save, lambda session: session.set_last_packet_id(9, expected=3, keep_ms=60_000), 1),
    "quarantine_message": (save, lambda session: session.quarantine_message(2, 2, client_id=session.client_id), 1),
    "judge_messages": (
        save_readable,
        lambda session: [each.verdict for each in session.judge_messages([1, 9])],
        [b"publish", b"missing"],
    ),
    "set_expiry": (
        save,
        lambda session: session.set_expiry((1, 1, FAR_MS, FAR_MS - 9), (2, 2, 0, -1), may_lengthen=1).done,
        (1, 0),
    ),
    "set_expiry for ever": (
        save,
        lambda session: session.set_expiry((1, 1, FAR_MS, -1), may_lengthen=1).done,
        (1,),
    ),
    "reorder_messages": (
        save_delivered,
        lambda session: session.reorder_messages(
            (1, 1, 8), (2, 2, 7), highest=8, delivered_serial=8, references=3, last_score=3
        ),
        {"done": (1, 1)},
    ),
    "find_orphans": (
        save_orphan,
        lambda session: session.find_orphans([1, 9]).expiries,
        (-2, FAR_MS),
    ),
    "find_missing": (save_orphan, lambda session: session.find_missing([1, 8, 9, 7]).positions, (1, 3)),
    "unlink_orphan": (save_orphan, lambda session: session.unlink_orphan(9), 1),
    "quarantine_duplicate": (
        save_readable,
        lambda session: session.quarantine_duplicate((1, 1), (2, 2)),
        1,
    ),
    "restore_message into its place": (
        quarantine_readable,
        lambda session: session.restore_message(session.quarantined(2), 2, serial=2, client_id=session.client_id),
        b"restored",
    ),
    "restore_message without a place": (
        unlink_orphan,
        lambda session: session.restore_message(session.orphan(9), 9, expires_at_ms=-1),
        b"restored",
    ),
    "set_owner": (save, lambda session: session.set_owner("redis", mirror=1), b"set"),
    "set_owner for a session that is PostgreSQL's": (
        lambda session: session.sync_session(messages(1, expires_at_ms=FAR_MS), last_packet_id=1),
        lambda session: session.set_owner("redis", epoch=2),
        b"set",
    ),
    "sync_session": (
        lambda session: session.sync_session(messages(3, expires_at_ms=FAR_MS), last_packet_id=3, last_serial=1_003),
        lambda session: session.sync_session(
            messages(2, first=3, expires_at_ms=FAR_MS), removed=[1], sources=[("a", 7), ("b", "")], delivered_serial=9
        ),
        {"written": 2, "removed": 1},
    ),
    "trim_outbox": (
        mirror,
        lambda session: session.trim_outbox(1),
        1,
    ),
    "ack in a session with a mirror": (mirror, lambda session: session.ack((1, 1)).removed, (1,)),
    "save_messages in a session with a mirror": (
        mirror,
        lambda session: session.save_messages(messages(1, first=4, expires_at_ms=FAR_MS), expected=3),
        stored(first_serial=4, references=4),
    ),
    "purge_session in a session with a mirror": (
        mirror,
        lambda session: session.purge_session([1, 2, 3], up_to_serial=9),
        {"removed": 3, "remaining": 0},
    ),
    "rekey_messages": (
        lambda session: None,
        lambda session: session.rekey_messages(
            [Message(1, 5, FAR_MS, "{}"), Message(2, 6, -1, "{}")], last_packet_id=2
        ),
        {"written": 2, "present": 0, "expired": 0},
    ),
    "finish_rekey": (
        lambda session: session.rekey_messages([Message(1, 5, FAR_MS, "{}")]),
        lambda session: session.finish_rekey(),
        1,
    ),
    "unlink_copied": (
        save,
        lambda session: session.unlink_copied(session.payload(1), sha1(SAVED[0].json.encode()).hexdigest()),
        1,
    ),
    "remove_references": (
        save,
        lambda session: session.remove_references((session.payload(1), 1), (session.payload(2), 9)),
        1,
    ),
}


def test_every_script_is_tried_here() -> None:
    scripts = {name.removeprefix("sessions/") for name in lua.names() if name.startswith("sessions/")}
    assert scripts == {name.split()[0] for name in OPERATIONS}


@pytest.mark.parametrize("client", [*REDIS_FLAVOURS, "cluster"], indirect=True)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_script_touches_its_declared_keys_only(client: RedisClient, operation: str) -> None:
    prepare, run, reply = OPERATIONS[operation]
    for client_id in served_by(client):
        prepare(Session(client=client, client_id=client_id))
        assert run(LimitedSession(client=client, client_id=client_id)) == reply, client_id


def test_script_that_makes_the_name_of_a_key_is_found_out(client: RedisClient, tmp_path: Path) -> None:
    header = "#!lua\n--[[\nPurpose\n x\nKEYS\n [1] a b\nARGV\n none\nReturns\n x\nErrors\n none\nCost\n x\n]]\n"
    (tmp_path / "maker.lua").write_text(f"{header}return redis.call('GET', KEYS[1] .. '_1')\n", "utf-8")
    with limited(client, ["{a}"]) as user, pytest.raises((ScriptError, RefusedError), match=r"access|permissions"):
        ScriptCaller(user).call(lua.load_from(tmp_path, "maker"), ["{a}"])


@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_user_that_lacks_one_of_the_keys_is_refused(client: RedisClient, missing: int) -> None:
    session = Session(client=client)
    keys = [*session.keys, session.payload(1)]
    with (
        limited(client, keys[:missing] + keys[missing + 1 :]) as user,
        pytest.raises(RefusedError, match="does not allow this user to do that"),
    ):
        replace(session, client=user).import_session(messages(1))


def test_pattern_matches_one_key_only(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        assert isinstance(client, redis.Redis)
        with limited(client, ["{glob*?[a-z]^\\}_messages"]) as user:
            assert user.get("{glob*?[a-z]^\\}_messages") is None
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.get("{globxxa^\\}_messages")
