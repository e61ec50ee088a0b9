"""Shared by all operations of compacted queues: steps, Redis keys, limits of a call, and the collector's registry."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.clock import Clock
from queuekeeper.compacted.model import MAX_SEQUENCE, QueueRules, Retention, RetentionPolicy
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import (
    CompactedKeys,
    check_client_id,
    check_prefix,
    check_served,
    compacted_keys,
    compacted_registry_key,
)
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.portions import portions

ENTRIES_PER_CALL = 200
ROWS_PER_CALL = 100
"""Most messages that a call reads, removes or restores, so that it blocks a slow server for about 2 ms."""

BYTES_PER_CALL = 1_000_000
"""Most bytes of values that one call stores or returns; a larger value has a call of its own."""

NOTED_QUEUES = 100_000
NOTED_FOR_S = 3_600.0
"""How long an instance does not tell the collector of a queue again."""

T = TypeVar("T")

Step: TypeAlias = list[lua.Call]
Steps: TypeAlias = Generator[Step, lua.Replies, T]


class _Noted:
    """Queues that are in the collector's registry, each for an hour only, since a server may lose its registry."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until_s: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, client_id: str) -> bool:
        with self._lock:
            return self._until_s.get(client_id, 0.0) > time.monotonic()

    def forget(self, client_id: str) -> None:
        with self._lock:
            self._until_s.pop(client_id, None)

    def add(self, client_id: str) -> None:
        with self._lock:
            self._until_s[client_id] = time.monotonic() + NOTED_FOR_S
            self._until_s.move_to_end(client_id)
            if len(self._until_s) > self._most:
                self._until_s.popitem(last=False)


class CommonOperations:
    """Base class of the operations; see ``CompactedOperations``."""

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: QueueRules | None = None,
        clock: Clock | None = None,
        noted_queues: int = NOTED_QUEUES,
        is_cluster: bool = False,
    ) -> None:
        check_integer("noted_queues", noted_queues, 1, 10_000_000, "each takes about 200 bytes")
        self._prefix = check_prefix(prefix)
        self._rules = rules or QueueRules()
        self._clock = clock
        self._is_cluster = is_cluster
        self._noted = _Noted(noted_queues)

    def wake_key(self, client_id: str) -> str:
        """Return the Redis key at which a consumer waits for a wake-up."""
        return self._keys(client_id).wake

    def _note(self, client_id: str, which: str) -> Steps[bool]:
        """Put a queue into the collector's registry, before the first append, so that the collector misses no queue.

        :param which: ``new``, or ``earlier`` to have the collector visit the queue at its next run.
        :returns: whether nothing was sent, because the queue was put there less than an hour ago.
        """
        if which == "new" and client_id in self._noted:
            return True
        registry = compacted_registry_key(client_id, prefix=self._prefix)
        yield from ask(scripts.register(registry=registry, now=self._now(), which=which, client_ids=[client_id]))
        self._noted.add(client_id)
        return False

    def _keys(self, client_id: str) -> CompactedKeys:
        check_client_id(client_id)
        keys = compacted_keys(client_id, prefix=self._prefix)
        if self._is_cluster:
            check_served(keys)
        return keys

    def _now(self, given_ms: int | None = None) -> lua.Value:
        """Return the argument ``now`` of a script; empty for the server's time."""
        if given_ms is not None:
            check_integer("now_ms", given_ms, 0, MAX_SEQUENCE, "milliseconds since 1970")
            return given_ms
        return "" if self._clock is None else self._clock()


def ask(call: lua.Call) -> Steps[Any]:
    """Send one call, and return its reply with the field names of the script's header."""
    return call.script.read((yield [call]).or_raise()[0])


def parts_of(rows: Iterable[tuple[lua.Value, ...]], *, most: int = ENTRIES_PER_CALL) -> Iterator[list[lua.Value]]:
    """Cut rows into the arguments of several calls; the same rows are always cut in the same way."""
    for part in portions(rows, size=_bytes_of, most=BYTES_PER_CALL, most_items=most):
        yield list(chain.from_iterable(part))


def _bytes_of(row: tuple[lua.Value, ...]) -> int:
    size = 0
    for text in row:
        if type(text) is bytes:
            size += len(text)
    return size


def or_none(number: int) -> int | None:
    """Return a number of a script's reply, in which -1 means none."""
    return None if number == -1 else number


def check_retention(retention: Any) -> None:
    """Check that a value is a :class:`Retention`.

    :raises UsageError: naming the value.
    """
    if type(retention) is not Retention:
        raise UsageError(f"retention is {retention!r}: it must be a Retention")


def retention_of(policy: bytes, retention_ms: Any, tombstone_ms: Any) -> Retention:
    """Return a retention from the fields of a script's reply."""
    return Retention(
        policy=RetentionPolicy(policy.decode()), retention_ms=int(retention_ms), tombstone_ms=int(tombstone_ms)
    )
