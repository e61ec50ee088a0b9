"""Publishing one event at a time, sent in batches: ``enqueue`` buffers, ``flush`` waits until all of it is stored.

How batches gather is decided by ``batches``, and what is published by the brokers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from queuekeeper.batches import Batches, ThreadBatches
from queuekeeper.checks import check_integer, check_seconds, checked
from queuekeeper.closing import AsyncClosing, Closing
from queuekeeper.errors import QueuekeeperError, RefusedError, UsageError
from queuekeeper.events.broker import AsyncEventBroker, EventBroker
from queuekeeper.events.model import (
    MAX_EVENTS_PER_CALL,
    NewEvent,
    check_event,
    json_of,
)
from queuekeeper.events.operations import BYTES_PER_COPY
from queuekeeper.text_form import shows

MAX_BATCH = 2_500
MAX_PENDING = 10_000

_OF_ROWS = frozenset({"22", "23", "54", "P0"})
"""Classes of SQLSTATE that blame what a row holds: data, constraints, limits, and what triggers raise."""

_Part: TypeAlias = tuple[NewEvent, int]
F = TypeVar("F", bound="concurrent.futures.Future[str] | asyncio.Future[str]")


class NotPublished(RefusedError):
    """Events that were enqueued have not been stored.

    :ivar events: which, in the order in which they were enqueued. Where the connection broke, some may be stored.
    """

    def __init__(self, events: Sequence[NewEvent], error: BaseException) -> None:
        super().__init__(f"{len(events):,} events that were enqueued are not published: {error}")
        self.events = tuple(events)


class _Enqueued(Generic[F]):
    """What was enqueued and has not been stored, so that every failure reaches somebody.

    :param most: failures that are kept until somebody flushes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._events: dict[F, NewEvent] = {}
        self._failed = 0
        self._lock = threading.Lock()

    def note(self, event: NewEvent, future: F) -> None:
        with self._lock:
            self._events[future] = event
        future.add_done_callback(lambda _: self._settle(future))

    def check_room(self) -> None:
        """Raise what has failed when it is too much to be kept."""
        if self._failed >= self._most:
            self.report()

    @property
    def under_way(self) -> list[F]:
        with self._lock:
            return [future for future in self._events if not future.done()]

    def report(self) -> None:
        """Raise what has failed, once."""
        with self._lock:
            done = [(future, event) for future, event in self._events.items() if future.done()]
            failed = [(event, error) for future, event in done if (error := _error(future)) is not None]
            for future, _ in done:
                del self._events[future]
            self._failed = 0
        if failed:
            raise NotPublished([event for event, _ in failed], failed[0][1]) from failed[0][1]

    def _settle(self, future: F) -> None:
        with self._lock:
            if _error(future) is None:
                self._events.pop(future, None)
            elif future in self._events:
                self._failed += 1


def _error(future: concurrent.futures.Future[str] | asyncio.Future[str]) -> BaseException | None:
    """Return what a future failed with; one that was cancelled is nobody's any more."""
    return None if future.cancelled() else future.exception()


def _weighed(event: NewEvent) -> _Part:
    """Return an event with its size, once it is known to be one that can be sent."""
    check_event(event, 1)
    metadata = "" if event.metadata is None else json_of("metadata", event.metadata)
    return event, len(json_of("payload", event.payload)) + len(metadata)


def _size(part: _Part) -> int:
    return part[1]


def _bounds(max_batch: int, max_pending: int, linger_s: float) -> dict[str, Any]:
    """Return what batches keep to, once it is known to be in order."""
    check_integer("max_batch", max_batch, 1, MAX_EVENTS_PER_CALL)
    check_integer("max_pending", max_pending, 1, 10_000_000)
    check_seconds("linger_s", linger_s, least=0)
    sizes = {"size": _size, "most": max_batch, "most_bytes": BYTES_PER_COPY}
    return {**sizes, "max_pending": max_pending, "linger_s": linger_s}


def _is_of_one(error: QueuekeeperError) -> bool:
    """Tell whether an error may be one event's alone, so that those sent with it are to be tried without it."""
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return isinstance(error, UsageError) or state[:2] in _OF_ROWS


@shows(broker="_broker")
class EventProducer(Closing):
    """Publishes events of many threads in batches, in the order of ``enqueue``; best with ``with``.

    A thread of its own sends them. It uses the broker's connection, which must not be in a transaction meanwhile.

    :param max_batch: events of a batch, up to 10,000.
    :param max_pending: events accepted and not yet stored; further calls wait until there is room.
    :param linger_s: how long the first event of a batch that is not full waits for others. With 0 it leaves at once,
        and what comes while it is under way is the next batch.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        broker: EventBroker,
        *,
        max_batch: int = MAX_BATCH,
        max_pending: int = MAX_PENDING,
        linger_s: float = 0.0,
    ) -> None:
        bounds = _bounds(max_batch, max_pending, linger_s)
        self._enqueued: _Enqueued[concurrent.futures.Future[str]] = _Enqueued(max_pending)
        self._broker = broker
        self._batches: ThreadBatches[_Part, str] = ThreadBatches(self._store, name="queuekeeper-producer", **bounds)

    def enqueue(self, event: NewEvent) -> concurrent.futures.Future[str]:
        """Accept an event, and wait only if there is no room.

        :returns: future of its id. Whoever does not look at it hears of a failure at the next ``flush`` or ``close``.
        :raises UsageError: when it is no event, or not JSON that PostgreSQL stores.
        :raises NotPublished: when as many events have failed as may be pending, and nobody has flushed.
        :raises RefusedError: when the producer is closed.
        """
        self._enqueued.check_room()
        future = self._batches.add(_weighed(event))
        self._enqueued.note(event, future)
        return future

    def flush(self) -> None:
        """Return when all that was enqueued so far is stored.

        :raises NotPublished: naming the events that are not, since the last time.
        """
        self._batches.hurry()
        concurrent.futures.wait(self._enqueued.under_way)
        self._enqueued.report()

    def close(self) -> None:
        """Take nothing more, and return when all that was enqueued is stored.

        :raises NotPublished: as :meth:`flush`.
        """
        self._batches.close()
        self._enqueued.report()

    def _store(self, parts: Sequence[_Part]) -> list[str | Exception]:
        try:
            return list(self._broker.publish([event for event, _ in parts]))
        except QueuekeeperError as error:
            if len(parts) == 1 or not _is_of_one(error):
                return [error] * len(parts)
        # One of them is the reason. The others have nothing to do with it.
        return [self._store([part])[0] for part in parts]


@shows(broker="_broker")
class AsyncEventProducer(AsyncClosing):
    """The same for tasks of one event loop; best with ``async with``.

    :param max_batch: as of :class:`EventProducer`, and ``max_pending`` and ``linger_s`` too.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        broker: AsyncEventBroker,
        *,
        max_batch: int = MAX_BATCH,
        max_pending: int = MAX_PENDING,
        linger_s: float = 0.0,
    ) -> None:
        self._broker = broker
        self._batches: Batches[None, _Part, str] = Batches(
            self._store, max_queues=1, **_bounds(max_batch, max_pending, linger_s)
        )
        self._enqueued: _Enqueued[asyncio.Future[str]] = _Enqueued(max_pending)

    async def enqueue(self, event: NewEvent) -> asyncio.Future[str]:
        """Accept an event, and wait only if there is no room; otherwise as :meth:`EventProducer.enqueue`."""
        self._enqueued.check_room()
        future = await self._batches.add(None, _weighed(event))
        self._enqueued.note(event, future)
        return future

    async def flush(self) -> None:
        """Return when all that was enqueued so far is stored, as :meth:`EventProducer.flush` does."""
        self._batches.hurry()
        under_way = self._enqueued.under_way
        if under_way:
            await asyncio.wait(under_way)
        self._enqueued.report()

    async def close(self) -> None:
        """Take nothing more, and return when all that was enqueued is stored, as :meth:`EventProducer.close` does."""
        await self._batches.close()
        self._enqueued.report()

    async def _store(self, _: None, parts: Sequence[_Part]) -> list[str | Exception]:
        try:
            return list(await self._broker.publish([event for event, _ in parts]))
        except QueuekeeperError as error:
            if len(parts) == 1 or not _is_of_one(error):
                return [error] * len(parts)
        return [(await self._store(None, [part]))[0] for part in parts]
