"""Every script runs as a user that may touch the declared keys only: none makes the name of a key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from lua_sessions import HOSTILE_IDS, Message, Session, command, messages, now_ms

from queuekeeper import lua
from queuekeeper.errors import RefusedError, ScriptError
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient, connect, nodes

pytestmark = pytest.mark.lua

PASSWORD = "limited"


def pattern(key: str) -> str:
    """Return the access pattern of one key; white space, which a pattern may not hold, matches any character."""
    escaped = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in key)
    return "".join("?" if letter.isspace() else letter for letter in escaped)


@contextmanager
def limited(client: RedisClient, keys: list[str]) -> Iterator[RedisClient]:
    """Return a client of a user that may touch these keys only."""
    masters = [node for _, node in nodes(client)]
    for node in masters:
        command(
            node,
            "ACL SETUSER",
            "limited",
            "reset",
            "on",
            f">{PASSWORD}",
            "+@all",
            *[f"~{pattern(key)}" for key in keys],
        )
    options = masters[0].connection_pool.connection_kwargs
    try:
        with connect(f"redis://limited:{PASSWORD}@{options['host']}:{options['port']}") as user:
            yield user
    finally:
        for node in masters:
            command(node, "ACL DELUSER", "limited")


Prepare = Callable[[Session], Any]

OPERATIONS: dict[str, tuple[Prepare, Callable[[Session], Any], tuple[int, ...], Any]] = {
    "import": (
        lambda session: session.import_session(messages(3), last=False),
        lambda session: session.import_session(messages(3), last_packet_id=3),
        (1, 2, 3),
        [b"imported", 3, 0],
    ),
    "import of expired messages": (
        lambda session: session.import_session(messages(3), last=False),
        lambda session: session.import_session(messages(3, expires_at_ms=1)),
        (1, 2, 3),
        [b"imported", 0, 3],
    ),
    "drop of a page": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.drop_import([1, 2]),
        (1, 2),
        [2, 1],
    ),
    "drop of everything": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.drop_import([1, 2, 3]),
        (1, 2, 3),
        [3, 0],
    ),
    "export": (
        lambda session: session.import_session([Message(1, 1, 4_000_000_000_000, "{}")]),
        lambda session: session.export_messages([1, 2]),
        (1, 2),
        [b"{}", 4_000_000_000_000, b"", -2],
    ),
    "replay": (
        lambda session: session.import_session(messages(3), last_packet_id=3),
        lambda session: session.replay_message(Message(4, 1, now_ms() + 60_000, "{}"), expected=3, last_packet_id=4)[0],
        (4,),
        b"replayed",
    ),
}


def test_every_script_is_tried_here() -> None:
    assert {name.split("/")[1].split("_")[0] for name in lua.names() if name.startswith("sessions/")} == {
        name.split()[0] for name in OPERATIONS
    }


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_script_touches_its_declared_keys_only(client: RedisClient, client_id: str, operation: str) -> None:
    prepare, run, packet_ids, reply = OPERATIONS[operation]
    session = Session(client=client, client_id=client_id)
    prepare(session)
    keys = [session.payload(packet_id) for packet_id in packet_ids]
    if operation != "export":
        keys += session.keys
    with limited(client, keys) as user:
        assert run(replace(session, client=user)) == reply


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
