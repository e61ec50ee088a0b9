"""Every script of compacted queues runs as a user that may touch the declared keys only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from limited_user import called_with_its_keys, limited
from lua_compacted import NOW_MS, PLENTY, Entry, Fence, Queue, appended
from lua_sessions import served_by

from queuekeeper import lua
from queuekeeper.keyspace import compacted_registry_key
from queuekeeper.lua import ScriptCaller, scripts
from queuekeeper.redis_client import RedisClient
from tests.conftest import REDIS_FLAVOURS

pytestmark = pytest.mark.lua


@dataclass(frozen=True, kw_only=True)
class LimitedQueue(Queue):
    """A compacted queue whose every call is made by a user that may touch the declared keys only."""

    def run(self, call: lua.Call) -> Any:
        return called_with_its_keys(self.client, call)


OPERATIONS: dict[str, tuple[Callable[[Queue, Fence], Any], Any]] = {
    "append": (
        lambda queue, _: queue.append(
            Entry(b"a"), Entry(b"z", b"", 1), max_keys=2, policy="drop_oldest", producer="p", number=1
        ),
        appended(first_sequence=5, live=2, evicted=3, evicted_unacked=3, is_consumed=1, replaced=[1, 0]),
    ),
    "subscribe": (
        lambda queue, _: queue.subscribe("t", start="seq:2").pick(
            "acked", "sent", "sequence", "lag", "in_flight", "previous_session"
        ),
        (1, 1, 4, 3, 0, b"s"),
    ),
    "subscribe to no queue": (
        lambda queue, _: [
            queue.call("drop", incarnation="", dry_run=0).existed,
            queue.subscribe("t").pick("acked", "sent", "sequence"),
        ],
        [1, (0, 0, 0)],
    ),
    "fetch": (lambda queue, fence: queue.fetch(fence, 1, 2).sequences, [3, 4]),
    "fetch again": (lambda queue, fence: queue.fetch(fence, 1, redeliver=1).sequences, [2]),
    "ack": (lambda queue, fence: queue.ack(fence, 1), {"acked_now": 1, "unknown": 0, "acked": 1, "in_flight": 1}),
    "ack up to": (
        lambda queue, fence: queue.ack(fence, 2, mode="up_to"),
        {"acked_now": 2, "unknown": 0, "acked": 2, "in_flight": 0},
    ),
    "heartbeat": (
        lambda queue, fence: queue.call(
            "heartbeat", incarnation=fence.incarnation, epoch=fence.epoch, lease_ms=9, now=""
        ),
        {"lag": 2, "in_flight": 2},
    ),
    "release": (lambda queue, fence: queue.call("release", incarnation=fence.incarnation, epoch=fence.epoch), 1),
    "release of a stale fence": (lambda queue, fence: queue.call("release", incarnation=1, epoch=1), 0),
    "rewind": (
        lambda queue, fence: queue.call("rewind", **fence._asdict(), to=f"ms:{NOW_MS}").pick(
            "old_acked", "new_acked", "to_deliver"
        ),
        (0, 0, 4),
    ),
    "skip": (
        lambda queue, _: queue.call("skip", sequence=1, now=""),
        {"acked_now": 1, "unknown": 0, "acked": 1, "in_flight": 1},
    ),
    "get": (lambda queue, _: queue.call("get", key=b"a"), {"ms": NOW_MS, "sequence": 1, "value": b"1 0 value of a"}),
    "peek": (lambda queue, _: len(queue.call("peek", after_sequence=0, limit=9, max_bytes=PLENTY).messages), 4),
    "inspect": (
        lambda queue, _: queue.call("inspect", samples=5, now="").pick("live", "tombstones", "lag", "in_flight"),
        (4, 0, 2, 2),
    ),
    "configure": (lambda queue, _: queue.call("configure", policy="compact", retention_ms=1, tombstone_ms=1), 1),
    "purge": (
        lambda queue, _: queue.call("purge", what="up_to", up_to_sequence=3, after_sequence=0, limit=9, dry_run=0).pick(
            "deleted", "unacked"
        ),
        (3, 3),
    ),
    "drop": (lambda queue, _: queue.call("drop", incarnation="", dry_run=0).pick("existed", "live"), (1, 4)),
    "find_due": (lambda queue, _: queue.find_due(retention_ms=0, now=NOW_MS + 1).sequences, [1, 2, 3, 4]),
    "collect": (
        lambda queue, _: queue.collect((b"a", 1), retention_ms=0, producer_ms=0, now=NOW_MS + 1).pick(
            "deleted", "unacked"
        ),
        (1, 1),
    ),
    "restore": (
        lambda queue, _: [
            queue.call("purge", what="up_to", up_to_sequence=1, after_sequence=0, limit=1, dry_run=0).deleted,
            queue.call("restore", incarnation="", rows=[b"a", 1, NOW_MS, b"1 1 value"]),
        ],
        [1, {"restored": 1, "present": 0, "refused": 0, "to_deliver": 0}],
    ),
    "verify": (lambda queue, _: queue.violations(), []),
    "repair": (
        lambda queue, _: queue.call("repair", wrong_bytes="1", bytes="2", violations=["key", b"a", "in_flight", b"x"]),
        {"indexed": 1, "dropped": 0, "strays": 0, "numbers": 0},
    ),
}


def test_every_script_of_compacted_queues_is_tried_here() -> None:
    scripts = {name.removeprefix("compacted/") for name in lua.names() if name.startswith("compacted/")}
    assert scripts == {*(name.split()[0] for name in OPERATIONS), "register"}


@pytest.mark.parametrize("client", [*REDIS_FLAVOURS, "cluster"], indirect=True)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_script_of_a_compacted_queue_touches_its_declared_keys_only(client: RedisClient, operation: str) -> None:
    run, reply = OPERATIONS[operation]
    for client_id in served_by(client)[:2]:
        queue = Queue(client=client, client_id=client_id)
        queue.fill(b"a", b"b", b"c", b"d")
        fence = queue.fence()
        queue.fetch(fence, limit=2, window=2)
        assert run(LimitedQueue(client=client, client_id=client_id), fence) == reply, client_id


def test_registry_of_compacted_queues_is_the_only_key_of_its_script(client: RedisClient) -> None:
    registry = compacted_registry_key("meter-7")
    with limited(client, [registry]) as user:
        call = scripts.compacted.register(registry=registry, now=NOW_MS, which="new", client_ids=["meter-7"])
        assert ScriptCaller(user).call(*call) == 1
