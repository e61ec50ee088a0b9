"""Handlers and listeners of a consumer, and the progress of handlers, which decides where the cursor may stand."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

from queuekeeper.checks import check_fields, check_integer, check_seconds, check_text
from queuekeeper.clock import HANDLER_BACKOFF
from queuekeeper.closing import Closing
from queuekeeper.errors import Rejected, UsageError
from queuekeeper.events.model import (
    MAX_RETRIES,
    Delivery,
    FellBehind,
    Interest,
    Splitter,
)
from queuekeeper.operation import Operation, awaited, blocking, keeps
from queuekeeper.service import handlers as service
from queuekeeper.text_form import shows
from queuekeeper.wording import number_of

Work: TypeAlias = Callable[[Delivery], Any]
"""Function, for asyncio a coroutine function, that works on a delivery. It fails by raising an exception."""


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Rules for a delivery on which a handler has failed.

    :param retries_s: seconds before each retry; later events do not wait for a retry, and after the last failure the
        events become dead letters. With ``None``, the default, the order is kept: later events wait, and the delivery
        comes again until it is done.
    :param dead_on: exceptions that no retry will cure, by default :class:`~queuekeeper.errors.Rejected`: the events
        become dead letters at once, also where the order is kept. A group of exceptions, as of a ``TaskGroup``, counts
        as one if it holds one.
    :param time_limit_ms: time in ms that a handler may take for a delivery; then it has failed with
        :class:`~queuekeeper.errors.TimeLimitExceeded`. ``None``, the default, sets no limit. In a thread the error is
        raised once the handler runs Python code rather than a query or a sleep.
    :raises UsageError: naming parameter, value and rule.
    """

    retries_s: Sequence[float] | None = None
    dead_on: tuple[type[Exception], ...] = (Rejected,)
    time_limit_ms: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "retries_s")
        if self.retries_s is not None:
            object.__setattr__(self, "retries_s", tuple(self.retries_s))
            check_integer("retries", len(self.retries_s) + 1, 1, MAX_RETRIES + 1)
            for pause_s in self.retries_s:
                check_seconds("a pause before a retry", pause_s)
        service.check_time_limit(self)
        service.check_dead_on(self)

    def is_final(self, delivery: Delivery, error: BaseException) -> bool:
        """Whether the events of a delivery become dead letters."""
        is_last = self.retries_s is not None and delivery.attempt > len(self.retries_s)
        return is_last or service.is_one_of(error, self.dead_on)


@dataclass(frozen=True, kw_only=True)
class Handler(service.Handler[Delivery]):
    """A function for events with the rules for its failures."""

    of = "events"
    store = "events"

    work: Work
    rules: RetryRules = field(default_factory=RetryRules)


handler = service.with_rules(RetryRules, Handler, example="retries_s=(1, 10, 60), dead_on=(ValueError,)")


class Middleware(service.Middleware[Delivery]):
    """Observes or wraps attempts; its methods are called in the thread or task of the handler.

    If a handler splits deliveries, its middleware gets each part.
    """


@dataclass(eq=False, slots=True)
class Checkpoint:
    """A page that was read.

    :param next_cursor: cursor to store when the page is finished.
    :param unfinished: number of its deliveries that handlers have not finished.
    :param void: whether the connection that read the page was lost, so that another consumer may have read it.
    """

    next_cursor: str
    unfinished: int = 0
    void: bool = False


class ReadAhead:
    """Pages that were read and have not been passed by the stored cursor.

    :param limit: largest number of pages.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._checkpoints: deque[Checkpoint] = deque()

    def __len__(self) -> int:
        return len(self._checkpoints)

    @property
    def full(self) -> bool:
        """Whether no further page may be read."""
        return len(self._checkpoints) >= self._limit

    def add(self, next_cursor: str) -> Checkpoint:
        """Add a page; the caller then counts its deliveries as ``unfinished``."""
        self._checkpoints.append(Checkpoint(next_cursor))
        return self._checkpoints[-1]

    def take_finished(self) -> str | None:
        """Remove the finished pages before the first unfinished one; return the cursor to store, if any."""
        cursor = None
        while self._checkpoints and not self._checkpoints[0].unfinished:
            cursor = self._checkpoints.popleft().next_cursor
        return cursor

    def abandon(self) -> None:
        """Remove all pages, and mark them as void."""
        for checkpoint in self._checkpoints:
            checkpoint.void = True
        self._checkpoints.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A delivery on which a handler has failed, and the error."""

    delivery: Delivery
    error: BaseException


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of an attempt.

    :param failures: parts of the delivery that failed.
    :param left: parts that were not begun after a failure, since the order is kept.
    """

    failures: tuple[Failure, ...] = ()
    left: tuple[Delivery, ...] = ()


@dataclass(eq=False, slots=True)
class Assignment:
    """A delivery that waits for its handler.

    :param checkpoint: page of the delivery.
    :param parts: parts that remain after a failure; ``None`` before the delivery has been split.
    """

    handler: ReliableHandler
    delivery: Delivery
    checkpoint: Checkpoint
    parts: tuple[Delivery, ...] | None = None

    def attempt(self) -> Operation[Outcome]:
        """Work on the delivery: each step is a part for the handler."""
        handler = self.handler
        parts = self.parts
        if parts is None:
            parts = handler.parts_of(self.delivery)
        failures: list[Failure] = []
        for place, part in enumerate(parts):
            try:
                yield part
            except Exception as error:
                failures.append(Failure(delivery=part, error=error))
                if handler.rules.retries_s is None:
                    return Outcome(failures=tuple(failures), left=parts[place + 1 :])
        return Outcome(failures=tuple(failures))


@dataclass(eq=False, kw_only=True, slots=True)
class ReliableHandler:
    """A handler that gets every event of a subscription at least once, one delivery after the other.

    :param name: name by which a retry finds the handler; unique in its consumer.
    :param split: cuts a delivery into parts that are retried separately.
    :param resume_at_s: time before which it begins nothing, after a failure.
    """

    work: Work
    name: str
    interest: Interest
    rules: RetryRules = field(default_factory=RetryRules)
    split: Splitter | None = None
    subscription_id: str = ""
    queue: deque[Assignment] = field(default_factory=deque)
    busy: Assignment | None = None
    resume_at_s: float = 0.0

    def __post_init__(self) -> None:
        check_text("name of the handler", self.name, most_characters=255, filled=True)

    def parts_of(self, delivery: Delivery) -> tuple[Delivery, ...]:
        """Cut a delivery into its parts.

        :raises UsageError: when an event is in none of them: it would count as handled.
        """
        if self.split is None:
            return (delivery,)
        parts = tuple(self.split(delivery))
        left_out = {event.id for event in delivery.events}.difference(
            event.id for part in parts for event in part.events
        )
        if left_out:
            raise UsageError(
                f"the splitter of handler {self.name!r} left out {number_of(len(left_out), 'event')}, such as "
                f"{min(left_out)}: put each event into a part"
            )
        return parts

    def next_assignment(self, now_s: float) -> Assignment | None:
        """Return the assignment to begin now, if any, and mark the handler as busy."""
        if self.busy is None and self.queue and now_s >= self.resume_at_s:
            self.busy = self.queue.popleft()
            return self.busy
        return None

    def put_back(
        self, assignment: Assignment, failures: Sequence[Failure], left: Sequence[Delivery], *, now_s: float
    ) -> None:
        """Put the rest of a delivery back to the head of the queue, and pause the handler after a failure."""
        again = tuple(replace(one.delivery, attempt=one.delivery.attempt + 1) for one in failures)
        if again:
            self.resume_at_s = now_s + HANDLER_BACKOFF.after(again[0].attempt - 2)
        if assignment.parts is None and again and again[0].events == assignment.delivery.events:
            # The delivery was not split, or the splitter has failed: split it at the next attempt.
            assignment.delivery = again[0]
        else:
            assignment.parts = again + tuple(left)
        self.queue.appendleft(assignment)


class _Attempt(service.BlockingCalls[Delivery]):
    """Makes an attempt in a thread."""

    def __init__(self, assignment: Assignment, middleware: Sequence[Middleware]) -> None:
        super().__init__(assignment.handler.work, assignment.handler.rules, middleware=middleware)
        self.operations = assignment

    run = blocking(Assignment.attempt)


class _AsyncAttempt(service.AsyncCalls[Delivery]):
    """Makes an attempt in the event loop."""

    def __init__(self, assignment: Assignment, middleware: Sequence[Middleware]) -> None:
        super().__init__(assignment.handler.work, assignment.handler.rules, middleware=middleware)
        self.operations = assignment

    run = awaited(Assignment.attempt)


def blocking_attempt(assignment: Assignment, middleware: Sequence[Middleware] = ()) -> Callable[[], Outcome]:
    """Return a function that makes an attempt in the thread that calls it."""
    return _Attempt(assignment, middleware).run


def awaited_attempt(assignment: Assignment, middleware: Sequence[Middleware] = ()) -> Callable[[], Awaitable[Outcome]]:
    """Return a coroutine function that makes an attempt."""
    return _AsyncAttempt(assignment, middleware).run


class BufferedListener:
    """Deliveries that wait for the reader of a listener; ``_ring`` wakes the reader.

    :param subscription_id: id of the subscription whose events it gets.
    :param limit: largest number of events that may wait.
    :param forget: called with the listener when it is closed or its reader is too slow.
    """

    def __init__(self, subscription_id: str, *, limit: int, forget: Callable[[Any], None]) -> None:
        self.subscription_id = subscription_id
        self._limit = limit
        self._forget = forget
        self._waiting: deque[Delivery] = deque()
        self._waiting_events = 0
        self._ended = False
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        """Whether the listener has ended and all its deliveries were read."""
        return self._ended and not self._waiting

    def put(self, delivery: Delivery) -> None:
        """Add a delivery; if the reader is too slow, end with an error that it gets after the deliveries that wait."""
        if self._ended:
            return
        if self._waiting_events + len(delivery.events) > self._limit and self._waiting:
            self.end(
                FellBehind(
                    f"the reader of subscription {self.subscription_id} is too slow: {self._waiting_events:,} events "
                    "wait for it; open another listener, and replay the events after the last one that was read"
                ).about(subscription_id=self.subscription_id)
            )
            self._forget(self)
            return
        self._waiting.append(delivery)
        self._waiting_events += len(delivery.events)
        self._ring()

    def end(self, error: Exception | None = None) -> None:
        """End the listener; its reader gets the deliveries that wait, then the error."""
        if not self._ended:
            self._ended, self._error = True, error
            self._ring()

    def close(self) -> None:
        """Stop listening."""
        self.end()
        self._forget(self)

    def _take(self) -> Delivery | None:
        if self._waiting:
            delivery = self._waiting.popleft()
            self._waiting_events -= len(delivery.events)
            return delivery
        if self._error is not None:
            raise self._error
        return None

    def _ring(self) -> None:
        raise AssertionError("each kind of listener has its own way to wake its reader")


@shows(subscription="subscription_id")
class Listener(BufferedListener, Closing):
    """Deliveries as they come, for one thread that reads: ``for delivery in listener``."""

    def __init__(self, subscription_id: str, *, limit: int, forget: Callable[[Any], None]) -> None:
        super().__init__(subscription_id, limit=limit, forget=forget)
        self._changed = threading.Condition(threading.RLock())

    @keeps(BufferedListener.put)
    def put(self, delivery: Delivery) -> None:
        with self._changed:
            super().put(delivery)

    @keeps(BufferedListener.end)
    def end(self, error: Exception | None = None) -> None:
        with self._changed:
            super().end(error)

    def _ring(self) -> None:
        self._changed.notify_all()

    def get(self, *, timeout_s: float | None = None) -> Delivery | None:
        """Return the next delivery; ``None`` after the time-out, or when the listener has ended.

        :param timeout_s: longest time to wait in seconds; ``None``, the default, sets no limit.
        :raises FellBehind: when the reader was too slow.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended, timeout_s)
            return self._take()

    def __iter__(self) -> Iterator[Delivery]:
        while (delivery := self.get()) is not None:
            yield delivery


@shows(subscription="subscription_id")
class AsyncListener(BufferedListener):
    """Deliveries as they come, for one task that reads: ``async for delivery in listener``."""

    def __init__(self, subscription_id: str, *, limit: int, forget: Callable[[Any], None]) -> None:
        super().__init__(subscription_id, limit=limit, forget=forget)
        self._changed = asyncio.Event()

    def _ring(self) -> None:
        self._changed.set()

    async def get(self, *, timeout_s: float | None = None) -> Delivery | None:
        """Return the next delivery, as :meth:`Listener.get` does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._waiting and not self._ended:
                    self._changed.clear()
                    await self._changed.wait()
        return self._take()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while (delivery := await self.get()) is not None:
            yield delivery

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
