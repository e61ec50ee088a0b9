"""What waits for a fan-out queue's consumers, for tests that read it or write into it."""

from __future__ import annotations

from typing import Any

from queuekeeper.keyspace import fanout_consumer_keys, fanout_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.scripts import fanout as scripts


def line_up(client: Any, queue: str, *consumers: str, prefix: str) -> None:
    """Put all that waits for consumers in the log into their lists."""
    keys = fanout_keys(queue, prefix=prefix)
    for consumer in consumers:
        own = fanout_consumer_keys(queue, consumer, prefix=prefix)
        while ScriptCaller(client).call(*scripts.pull(keys, own, consumer=consumer, limit=1_000)):
            pass


def lanes_of_log(log: list[tuple[bytes, dict[bytes, bytes]]], cursor: float, lanes: int) -> list[list[int]]:
    """Return the ids that a consumer has still to read in the log, by lane."""
    found: list[list[int]] = [[] for _ in range(lanes)]
    for number, fields in log:
        if int(number.split(b"-")[0]) > cursor:
            for word in fields[b"m"].split():
                message_id, _, order_hash = word.partition(b":")
                found[int(order_hash or 0) % lanes].append(int(message_id))
    return found
