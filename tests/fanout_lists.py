"""Lists of a fan-out queue's consumers, for tests that write into them."""

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
