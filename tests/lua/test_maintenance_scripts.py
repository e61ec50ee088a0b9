"""Scripts of ``lua/maintenance``: bad arguments change nothing, full servers are cleaned, keys are declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from limited_user import limited
from lua_sessions import HOSTILE_IDS, HOUR_MS, Session, contents, messages, now_ms
from planted_queues import PackedQueue
from script_replies import reply_of

from queuekeeper import lua
from queuekeeper.errors import ScriptError, StaleEpoch, UsageError
from queuekeeper.keyspace import compacted_collector_keys, packed_keys
from queuekeeper.redis_client import RedisClient, connect
from tests.cleanup_world import record

pytestmark = pytest.mark.lua

FAR_MS = now_ms() + 9 * HOUR_MS
REGISTRY = "compacted:due:07"
COLLECTOR = compacted_collector_keys()[7]


def call(client: RedisClient, script: str, keys: Sequence[lua.Value], args: Sequence[lua.Value] = ()) -> Any:
    wanted = lua.Call(lua.load(f"maintenance/{script}"), keys, args)
    return reply_of(wanted, lua.ScriptCaller(client).call(*wanted))


def faulty(client: RedisClient, client_id: str = "meter-7") -> Session:
    """Return a session whose first message is gone, whose second has no expiry, and beside which there is an orphan."""
    session = Session(client=client, client_id=client_id)
    session.save_messages(messages(3, expires_at_ms=FAR_MS))
    anything: Any = client
    anything.delete(session.payload(1))
    anything.set(session.payload(2), record(client_id, time_ms=now_ms(), packet_id=2))
    anything.set(session.payload(9), record(client_id, time_ms=0, packet_id=9))
    # Somebody has put b forward since it was read.
    anything.zadd(REGISTRY, {"a": 5, "b": 4})
    anything.delete(COLLECTOR)
    PackedQueue(client=client, client_id=client_id).fill(1)
    return session


CALLS: dict[str, Callable[[Session], tuple[list[lua.Value], list[lua.Value]]]] = {
    "find_dead_references": lambda session: ([session.keys.messages, *map(session.payload, (1, 2, 3))], []),
    "repair_expiries": lambda session: (
        [session.keys.messages, session.keys.session, *map(session.payload, (1, 2, 3))], [HOUR_MS, 1_000, now_ms()],
    ),
    "unlink_orphans": lambda session: (
        [session.keys.messages, *map(session.payload, (9, 3))], [HOUR_MS, 1_000, now_ms()],
    ),
    "expire_idle_session": lambda session: (list(session.keys), [HOUR_MS, now_ms(), 0]),
    "expire_idle_packed": lambda session: ([packed_keys(session.client_id).session], [HOUR_MS, now_ms(), 0]),
    "restore_references": lambda session: ([session.keys.messages], [9, session.payload(9), 1, session.payload(1)]),
    "persist_keys": lambda session: ([session.payload(3)], [FAR_MS + 2, -1]),
    "refused_commands": lambda session: ([session.keys.messages], ["zrem", "unlink", "memory|usage"]),
    "hold_registry": lambda session: ([COLLECTOR], ["ours", HOUR_MS]),
    "rearm_queues": lambda session: ([REGISTRY, COLLECTOR], ["ours", "a", 5, 70, "b", 5, 70, "gone", 5, 70]),
    "finish_registry": lambda session: ([COLLECTOR], ["ours", "finished_ms", 80, "run", "r"]),
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
    assert replies["find_dead_references"].pick("dead", "lasting") == (b"0", b"1")
    assert [bool(answer) for answer in replies["repair_expiries"].expires_at_ms] == [False, True, False]
    assert [each.outcome for each in replies["unlink_orphans"].outcomes] == [b"unlinked", b"referenced"]
    assert replies["expire_idle_session"].word == replies["expire_idle_packed"].word == "kept"
    assert replies["restore_references"] == 1
    assert replies["persist_keys"] == 1
    assert replies["refused_commands"].refused == ()
    assert (replies["hold_registry"], replies["rearm_queues"], replies["finish_registry"]) == (1, 1, 1)
    anything: Any = client
    assert anything.zrange(REGISTRY, 0, -1, withscores=True) == [(b"b", 4.0), (b"a", 70.0)]
    assert anything.hgetall(COLLECTOR) == {b"finished_ms": b"80", b"run": b"r"}


@pytest.mark.parametrize(
    ("script", "keys", "args", "message"),
    [
        ("find_dead_references", ["{a}"], [], "1 to 1000 payload keys and no argument are expected"),
        ("find_dead_references", ["{a}"] * 1_002, [], "1 to 1000 payload keys and no argument are expected"),
        ("repair_expiries", ["{a}"] * 2, [1, 1, 1], "1 to 100 payload keys and 3 arguments are expected"),
        ("repair_expiries", ["{a}"] * 103, [1, 1, 1], "1 to 100 payload keys and 3 arguments are expected"),
        (
            "repair_expiries",
            ["{a}"] * 3,
            [0, 1, 1],
            "default life and grace are integers of 1 or more, and the instant",
        ),
        ("repair_expiries", ["{a}"] * 3, [1, "x", 1], "default life and grace are integers of 1 or more"),
        ("repair_expiries", ["{a}"] * 3, [1, 1, -2], "default life and grace are integers of 1 or more"),
        ("unlink_orphans", ["{a}"], [1, 1, 1], "1 to 100 payload keys and 3 arguments are expected"),
        ("unlink_orphans", ["{a}"] * 2, [1, 0, 1], "default life and grace are integers of 1 or more"),
        (
            "expire_idle_session",
            ["{a}"] * 2,
            [1, 1, 0],
            "3 keys, a life of 1 ms or more, an instant of 0 or more, and 0 or 1 are expected",
        ),
        (
            "expire_idle_session",
            ["{a}"] * 3,
            [0, 1, 0],
            "3 keys, a life of 1 ms or more, an instant of 0 or more, and 0 or 1 are expected",
        ),
        (
            "expire_idle_session",
            ["{a}"] * 3,
            [1, 1, 2],
            "3 keys, a life of 1 ms or more, an instant of 0 or more, and 0 or 1 are expected",
        ),
        ("expire_idle_packed", ["{a}"] * 2, [1, 1, 0], "1 key, a life of 1 ms or more, an instant of 0 or more, and"),
        ("expire_idle_packed", ["{a}"], [0, 1, 0], "1 key, a life of 1 ms or more, an instant of 0 or more, and"),
        ("expire_idle_packed", ["{a}"], [1, 1, 2], "1 key, a life of 1 ms or more, an instant of 0 or more, and"),
        ("restore_references", ["{a}"], [1], "1 key and 1 to 1000 pairs are expected"),
        ("restore_references", ["{a}"] * 2, [1, "a"], "1 key and 1 to 1000 pairs are expected"),
        ("persist_keys", ["{a}"], [], "1 to 1000 keys and two instants for each are expected"),
        ("refused_commands", ["{a}"], [], "1 key and commands are expected"),
        ("hold_registry", ["{a}"], ["ours"], "1 key and 2 arguments are expected"),
        ("hold_registry", ["{a}"], ["", 1], "token is empty"),
        ("hold_registry", ["{a}"], ["ours", 0], "lease is not an integer of 1 or more"),
        ("rearm_queues", ["{a}"] * 2, ["ours"], "2 keys, a token, and 1 to 200 queues are expected"),
        ("rearm_queues", ["{a}"] * 2, ["ours", "a", 1], "2 keys, a token, and 1 to 200 queues are expected"),
        ("rearm_queues", ["{a}"] * 2, ["ours", "a", 1, -1], "time of a queue is not an integer of 0 or more"),
        ("finish_registry", ["{a}"], ["ours", "x"], "1 key, a token and up to 20 facts are expected"),
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


def test_registry_is_held_by_one_collector_until_it_gives_it_up_or_its_lease_is_over(client: RedisClient) -> None:
    def hold(token: str, lease_ms: int = HOUR_MS) -> Any:
        return call(client, "hold_registry", [COLLECTOR], [token, lease_ms])

    assert [hold("ours"), hold("theirs"), hold("ours")] == [1, 0, 1]
    with pytest.raises(StaleEpoch, match="another collector holds this part"):
        call(client, "rearm_queues", [REGISTRY, COLLECTOR], ["theirs", "a", 5, 70])
    assert call(client, "finish_registry", [COLLECTOR], ["theirs", "finished_ms", 1]) == 0
    assert call(client, "finish_registry", [COLLECTOR], ["ours"]) == 1
    assert hold("theirs") == 1
    anything: Any = client
    assert anything.hget(COLLECTOR, "finished_ms") is None
    anything.hset(COLLECTOR, "lease_until_ms", 1)
    assert hold("ours") == 1


@pytest.mark.parametrize(
    ("script", "asking"),
    [
        ("repair_expiries", [HOUR_MS, 1_000, 0]),
        ("expire_idle_session", [HOUR_MS, 0, 1]),
        ("expire_idle_packed", [HOUR_MS, 0, 1]),
    ],
)
def test_what_is_only_asked_for_is_not_done(client: RedisClient, script: str, asking: list[lua.Value]) -> None:
    session = faulty(client)
    before = contents(client)
    call(client, script, CALLS[script](session)[0], asking)
    assert contents(client) == before


def test_expiry_that_was_announced_is_the_one_that_is_set(client: RedisClient) -> None:
    session = faulty(client)
    anything: Any = client
    # Its life is over: what it gets counts from the present.
    anything.set(session.payload(2), record(session.client_id, time_ms=0, packet_id=2))
    anything.set(session.payload(8), "no record")
    idle = Session(client=client, client_id="idle")
    anything.set(idle.keys.last_packet_id, 7)
    repaired, unlinked, expired = (
        ("repair_expiries", [session.keys.messages, session.keys.session, session.payload(2)], [HOUR_MS, 1_000]),
        ("unlink_orphans", [session.keys.messages, session.payload(8)], [HOUR_MS, 1_000]),
        ("expire_idle_session", list(idle.keys), [HOUR_MS]),
    )
    said = call(client, repaired[0], repaired[1], [*repaired[2], 0])
    limited = call(client, unlinked[0], unlinked[1], [*unlinked[2], 0])
    going = call(client, expired[0], expired[1], [*expired[2], 0, 0])
    limitless = (session.payload(2), session.payload(8), idle.keys.last_packet_id)
    assert [anything.pexpiretime(key) for key in limitless] == [-1, -1, -1]
    while now_ms() <= int(said.as_of_ms):
        pass

    assert call(client, repaired[0], repaired[1], [*repaired[2], said.as_of_ms]) == said
    assert call(client, unlinked[0], unlinked[1], [*unlinked[2], limited.as_of_ms]) == limited
    assert call(client, expired[0], expired[1], [*expired[2], going.as_of_ms, 0]) == going
    assert anything.pexpiretime(session.payload(2)) == int(*said.expires_at_ms) == int(said.as_of_ms) + 1_000
    assert anything.pexpiretime(session.payload(8)) == limited.outcomes[0].number
    assert anything.pexpiretime(idle.keys.last_packet_id) == going.expires_at_ms


def test_instant_of_long_ago_or_of_another_clock_does_not_count(client: RedisClient) -> None:
    session = faulty(client)
    anything: Any = client
    keys = [session.keys.messages, session.keys.session, session.payload(2)]
    for said_ms in (1, now_ms() + HOUR_MS):
        anything.set(session.payload(2), record(session.client_id, time_ms=0, packet_id=2))
        before_ms = now_ms()
        call(client, "repair_expiries", keys, [1, 5_000, said_ms])
        assert before_ms + 5_000 <= anything.pexpiretime(session.payload(2)) <= now_ms() + 5_000


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
            # What brings references back has to find room for them.
            if script != "restore_references":
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
                assert call(user, "refused_commands", ["{a}_messages"], commands).refused == (b"zrem",)
        finally:
            anything.execute_command("ACL", "DELUSER", "half")


@pytest.mark.parametrize("script", sorted(name for name in CALLS if lua.load(f"maintenance/{name}").writes))
def test_who_only_counts_is_told_what_is_then_done(client: RedisClient, script: str) -> None:
    keys, args = CALLS[script](faulty(client))
    if script in ("rearm_queues", "finish_registry"):
        call(client, "hold_registry", [COLLECTOR], ["ours", HOUR_MS])
    before = contents(client)
    wanted = lua.Call(lua.load(f"maintenance/{script}"), keys, args)
    said = reply_of(wanted, lua.ScriptCaller(client, counts_only=True).call(*wanted))
    assert contents(client) == before
    assert said == call(client, script, keys, args)
