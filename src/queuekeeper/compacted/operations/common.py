"""What the operations of compacted queues share: steps, keys, and telling the collector of a queue."""

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
"""Most rows that a call looks at, removes or brings back: a slow server is kept from all others for about 2 ms."""

BYTES_PER_CALL = 1_000_000
"""Most bytes of values that one call stores or returns; a single larger one goes alone."""

NOTED_QUEUES = 100_000
NOTED_FOR_S = 3_600.0
"""How long it is taken for granted that the collector knows of a queue."""

T = TypeVar("T")

Step: TypeAlias = list[lua.Call]
Steps: TypeAlias = Generator[Step, lua.Replies, T]


class _Noted:
    """Queues that the collector knows of; each is believed for a while only, as a server may lose what it was told."""

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
    """What every kind of operation needs; see ``CompactedOperations``."""

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
        """Return the key that a consumer with nothing to do waits for."""
        return self._keys(client_id).wake

    def _note(self, client_id: str, which: str) -> Steps[bool]:
        """Tell the collector of a queue; before anything is appended to it, so that none is ever missed.

        :returns: whether it was taken for granted that the collector knows of it.
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
        """Return what a script takes as now: empty for the server's time."""
        if given_ms is not None:
            check_integer("now_ms", given_ms, 0, MAX_SEQUENCE, "milliseconds since 1970")
            return given_ms
        return "" if self._clock is None else self._clock()


def ask(call: lua.Call) -> Steps[Any]:
    """Return the reply of one call, by the names in the script's header."""
    return call.script.read((yield [call]).or_raise()[0])


def parts_of(rows: Iterable[tuple[lua.Value, ...]], *, most: int = ENTRIES_PER_CALL) -> Iterator[list[lua.Value]]:
    """Cut rows into the arguments of calls, in the same way whenever it is repeated."""
    for part in portions(rows, size=_bytes_of, most=BYTES_PER_CALL, most_items=most):
        yield list(chain.from_iterable(part))


def _bytes_of(row: tuple[lua.Value, ...]) -> int:
    size = 0
    for text in row:
        if type(text) is bytes:
            size += len(text)
    return size


def or_none(number: int) -> int | None:
    """Return a number of a script, where -1 stands for none."""
    return None if number == -1 else number


def check_retention(retention: Any) -> None:
    """Refuse what is no retention.

    :raises UsageError: saying what it is.
    """
    if type(retention) is not Retention:
        raise UsageError(f"retention is {retention!r}: it must be a Retention")


def retention_of(policy: bytes, retention_ms: Any, tombstone_ms: Any) -> Retention:
    """Return a retention as scripts answer it."""
    return Retention(
        policy=RetentionPolicy(policy.decode()), retention_ms=int(retention_ms), tombstone_ms=int(tombstone_ms)
    )
