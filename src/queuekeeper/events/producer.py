"""Producers: ``enqueue`` takes one event at a time, and batches of them are sent; ``flush`` waits until all are stored.

The module ``batches`` makes the batches, and the brokers publish them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from queuekeeper.batches import MAX_PENDING, Batches, ThreadBatches
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
from queuekeeper.wording import number_of

MAX_BATCH = 2_500

_OF_ROWS = frozenset({"22", "23", "54", "P0"})
"""Classes of SQLSTATE that one row may cause: data, constraints, limits, and errors that triggers raise."""

_Part: TypeAlias = tuple[NewEvent, int]
F = TypeVar("F", bound="concurrent.futures.Future[str] | asyncio.Future[str]")


class NotPublished(RefusedError):
    """Events that were enqueued have not been stored.

    :ivar events: these events, in the order of ``enqueue``. If the connection broke, some may be stored.
    """

    def __init__(self, events: Sequence[NewEvent], error: BaseException) -> None:
        super().__init__(f"{number_of(len(events), 'event')} enqueued and not published: {error}")
        self.events = tuple(events)


class _Enqueued(Generic[F]):
    """The events that were enqueued and have not been stored; it reports every failure once.

    :param most: largest number of failures that are kept until the next ``flush``.
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
        """Report the failures if there are too many to keep."""
        if self._failed >= self._most:
            self.report()

    @property
    def under_way(self) -> list[F]:
        with self._lock:
            return [future for future in self._events if not future.done()]

    def report(self) -> None:
        """Raise ``NotPublished`` for the failures since the last report, if there are any."""
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
    """Return the error of a future; ``None`` for one that was cancelled, which is no failure."""
    return None if future.cancelled() else future.exception()


def _weighed(event: NewEvent) -> _Part:
    """Check an event and return it with its size in bytes."""
    check_event(event, 1)
    metadata = "" if event.metadata is None else json_of("metadata", event.metadata)
    return event, len(json_of("payload", event.payload)) + len(metadata)


def _size(part: _Part) -> int:
    return part[1]


def _bounds(max_batch: int, max_pending: int, linger_s: float) -> dict[str, Any]:
    """Check the limits of batches and return them as their arguments."""
    check_integer("max_batch", max_batch, 1, MAX_EVENTS_PER_CALL)
    check_integer("max_pending", max_pending, 1, 10_000_000)
    check_seconds("linger_s", linger_s, least=0)
    sizes = {"size": _size, "most": max_batch, "most_bytes": BYTES_PER_COPY}
    return {**sizes, "max_pending": max_pending, "linger_s": linger_s}


def _is_of_one(error: QueuekeeperError) -> bool:
    """Return whether one event may be the reason of an error, so that the others may be stored without it."""
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return isinstance(error, UsageError) or state[:2] in _OF_ROWS


@shows(broker="_broker")
class EventProducer(Closing):
    """Publishes events of many threads in batches, in the order of ``enqueue``; best with ``with``.

    A thread of its own sends them on the broker's connection, which must not be in a transaction meanwhile.

    :param max_batch: largest number of events in a batch, 2,500 by default, at most 10,000.
    :param max_pending: largest number of events that are accepted and not yet stored, 10,000 by default; further calls
        wait for room.
    :param linger_s: seconds that a batch waits for more events. With 0, the default, the first event is sent at once,
        and events that come meanwhile are the next batch.
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
        """Accept an event; wait only while ``max_pending`` events are pending.

        :returns: future of the event's id. The next ``flush`` or ``close`` reports a failure, too.
        :raises UsageError: when it is not an event, or PostgreSQL cannot store its JSON.
        :raises NotPublished: when ``max_pending`` events have failed since the last ``flush``.
        :raises RefusedError: when the producer is closed.
        """
        self._enqueued.check_room()
        future = self._batches.add(_weighed(event))
        self._enqueued.note(event, future)
        return future

    def flush(self) -> None:
        """Return when all events that were enqueued so far are stored.

        :raises NotPublished: with the events that were not stored since the last report.
        """
        self._batches.hurry()
        concurrent.futures.wait(self._enqueued.under_way)
        self._enqueued.report()

    def close(self) -> None:
        """Refuse new events, and return when all enqueued events are stored.

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
        # One event is the reason: each is sent by itself, so that the others are stored.
        return [self._store([part])[0] for part in parts]


@shows(broker="_broker")
class AsyncEventProducer(AsyncClosing):
    """:class:`EventProducer` for the tasks of one event loop; best with ``async with``.

    :param max_batch: as for :class:`EventProducer`, like ``max_pending`` and ``linger_s``.
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
        """Accept an event, as :meth:`EventProducer.enqueue` does; wait while ``max_pending`` events are pending."""
        self._enqueued.check_room()
        future = await self._batches.add(None, _weighed(event))
        self._enqueued.note(event, future)
        return future

    async def flush(self) -> None:
        """Return when all events that were enqueued so far are stored, as :meth:`EventProducer.flush` does."""
        self._batches.hurry()
        under_way = self._enqueued.under_way
        if under_way:
            await asyncio.wait(under_way)
        self._enqueued.report()

    async def close(self) -> None:
        """Refuse new events, and return when all enqueued ones are stored, as :meth:`EventProducer.close` does."""
        await self._batches.close()
        self._enqueued.report()

    async def _store(self, _: None, parts: Sequence[_Part]) -> list[str | Exception]:
        try:
            return list(await self._broker.publish([event for event, _ in parts]))
        except QueuekeeperError as error:
            if len(parts) == 1 or not _is_of_one(error):
                return [error] * len(parts)
        return [(await self._store(None, [part]))[0] for part in parts]
