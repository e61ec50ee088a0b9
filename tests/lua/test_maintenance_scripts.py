"""Scripts of ``lua/maintenance``: bad arguments change nothing, full servers are cleaned, keys are declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, HOUR_MS, Session, contents, messages, now_ms
from test_declared_keys import limited

from queuekeeper import lua
from queuekeeper.errors import ScriptError, UsageError
from queuekeeper.redis_client import RedisClient, connect
from tests.cleanup_world import record

pytestmark = pytest.mark.lua

FAR_MS = now_ms() + 9 * HOUR_MS


def call(client: RedisClient, script: str, keys: Sequence[lua.Value], args: Sequence[lua.Value] = ()) -> Any:
    return lua.ScriptCaller(client).call(lua.load(f"maintenance/{script}"), keys, args)


def faulty(client: RedisClient, client_id: str = "meter-7") -> Session:
    """Return a session whose first message is gone, whose second has no expiry, and beside which there is an orphan."""
    session = Session(client=client, client_id=client_id)
    session.save_messages(messages(3, expires_at_ms=FAR_MS))
    anything: Any = client
    anything.delete(session.payload(1))
    anything.set(session.payload(2), record(client_id, time_ms=now_ms(), packet_id=2))
    anything.set(session.payload(9), record(client_id, time_ms=0, packet_id=9))
    return session


CALLS: dict[str, Callable[[Session], tuple[list[lua.Value], list[lua.Value]]]] = {
    "find_dead_references": lambda session: ([session.keys.messages, *map(session.payload, (1, 2, 3))], []),
    "repair_expiries": lambda session: (
        [session.keys.messages, session.keys.session, *map(session.payload, (1, 2, 3))], [HOUR_MS, 1_000, 1],
    ),
    "unlink_orphans": lambda session: ([session.keys.messages, *map(session.payload, (9, 3))], [HOUR_MS, 1_000, 1]),
    "expire_idle_session": lambda session: (list(session.keys), [HOUR_MS, 1, 0]),
    "persist_keys": lambda session: ([session.payload(3)], [FAR_MS + 2]),
    "refused_commands": lambda session: ([session.keys.messages], ["zrem", "unlink", "memory|usage"]),
}  # fmt: skip


def test_every_script_is_tried_here() -> None:
    assert {name.removeprefix("maintenance/") for name in lua.names() if name.startswith("maintenance/")} == set(CALLS)


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_scripts_touch_their_declared_keys_only(client: RedisClient, client_id: str) -> None:
    session = faulty(client, client_id)
    replies = {}
    for script, arguments in CALLS.items():
        keys, args = arguments(session)
        with limited(client, [str(key) for key in keys]) as user:
            replies[script] = call(user, script, keys, args)
    assert replies["find_dead_references"][:2] == [b"0", b"1"]
    assert [bool(answer) for answer in replies["repair_expiries"]] == [False, True, False]
    assert replies["unlink_orphans"][::2] == [b"unlinked", b"referenced"]
    assert replies["expire_idle_session"] == [b"kept"]
    assert replies["persist_keys"] == 1
    assert replies["refused_commands"] == []


@pytest.mark.parametrize(
    ("script", "keys", "args", "message"),
    [
        ("find_dead_references", ["{a}"], [], "1 key and 1 to 1000 payload keys are expected"),
        ("find_dead_references", ["{a}"] * 1_002, [], "1 key and 1 to 1000 payload keys are expected"),
        ("repair_expiries", ["{a}"] * 2, [1, 1, 1], "2 keys, 1 to 100 payload keys and 3 arguments are expected"),
        ("repair_expiries", ["{a}"] * 103, [1, 1, 1], "2 keys, 1 to 100 payload keys and 3 arguments are expected"),
        ("repair_expiries", ["{a}"] * 3, [0, 1, 1], "default life and grace are integers of 1 or more, and apply is 0"),
        ("repair_expiries", ["{a}"] * 3, [1, "x", 1], "default life and grace are integers of 1 or more"),
        ("repair_expiries", ["{a}"] * 3, [1, 1, 2], "default life and grace are integers of 1 or more"),
        ("unlink_orphans", ["{a}"], [1, 1, 1], "1 key, 1 to 100 payload keys and 3 arguments are expected"),
        ("unlink_orphans", ["{a}"] * 2, [1, 0, 1], "default life and grace are integers of 1 or more"),
        ("unlink_orphans", ["{a}"] * 2, [1, 1, "yes"], "default life and grace are integers of 1 or more"),
        (
            "expire_idle_session",
            ["{a}"] * 2,
            [1, 1, 0],
            "3 keys, a life of 1 ms or more, and 0 or 1 twice are expected",
        ),
        (
            "expire_idle_session",
            ["{a}"] * 3,
            [0, 1, 0],
            "3 keys, a life of 1 ms or more, and 0 or 1 twice are expected",
        ),
        (
            "expire_idle_session",
            ["{a}"] * 3,
            [1, 1, 1],
            "3 keys, a life of 1 ms or more, and 0 or 1 twice are expected",
        ),
        ("persist_keys", ["{a}"], [], "1 to 1000 keys and an instant for each are expected"),
        ("refused_commands", ["{a}"], [], "1 key and commands are expected"),
    ],
)
def test_bad_argument_is_refused(
    valkey_url: str, script: str, keys: list[lua.Value], args: list[lua.Value], message: str
) -> None:
    with connect(valkey_url) as client:
        faulty(client)
        before = contents(client)
        with pytest.raises(UsageError) as caught:
            call(client, script, keys, args)
        assert message in str(caught.value)
        assert contents(client) == before


@pytest.mark.parametrize("script", ["repair_expiries", "unlink_orphans", "expire_idle_session"])
def test_what_is_only_asked_for_is_not_done(client: RedisClient, script: str) -> None:
    session = faulty(client)
    before = contents(client)
    keys, args = CALLS[script](session)
    args[args.index(1)] = 0
    call(client, script, keys, args)
    assert contents(client) == before


def test_session_of_another_type_is_refused_before_an_expiry_is_set(client: RedisClient) -> None:
    session = faulty(client)
    anything: Any = client
    anything.set(session.keys.session, "x")
    before = contents(client)
    keys, args = CALLS["repair_expiries"](session)
    with pytest.raises(ScriptError, match="WRONGTYPE"):
        call(client, "repair_expiries", keys, args)
    assert contents(client) == before


def test_full_server_is_cleaned(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = faulty(client)
        client.config_set("maxmemory", 1)
        for script, arguments in CALLS.items():
            call(client, script, *arguments(session))
        assert not client.exists(session.payload(9))
        assert client.pttl(session.payload(2)) > 0


def test_user_is_told_what_it_may_not_do(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        anything: Any = client
        anything.execute_command("ACL", "SETUSER", "half", "reset", "on", ">half", "+@all", "-zrem", "~{a}*", "%R~{b}*")
        options = client.connection_pool.connection_kwargs
        try:
            with connect(f"redis://half:half@{options['host']}:{options['port']}") as user:
                commands = CALLS["refused_commands"](Session(client=client))[1]
                assert call(user, "refused_commands", ["{a}_messages"], commands) == [b"zrem"]
        finally:
            anything.execute_command("ACL", "DELUSER", "half")
