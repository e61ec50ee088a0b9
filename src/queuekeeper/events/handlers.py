"""Handlers, listeners and their progress: which handler works on which event, and how far the cursor may move."""

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
from queuekeeper.errors import Rejected
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

Work: TypeAlias = Callable[[Delivery], Any]
"""Works on a delivery; a coroutine function for asyncio. When it returns, its events are done; when it raises, not."""


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """What becomes of a delivery that a handler has failed on.

    :param retries_s: seconds before each retry, during which others and later events go on; after the last failure the
        events become dead letters. None: the order is kept, and a delivery comes again until the handler has done it.
    :param dead_on: exceptions that no retry will cure: the events become dead letters at once, in order or not.
    :param time_limit_ms: time that a handler may take for a delivery; then it has failed with
        :class:`~queuekeeper.errors.TimeLimitExceeded`. None for no limit. A thread is stopped when it is in Python
        code, not in a query or a sleep.
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
        return is_last or isinstance(error, self.dead_on)


@dataclass(frozen=True, kw_only=True)
class Handler(service.Handler[Delivery]):
    """What works on a group's events, with the rules for its failures; it can be called as what it holds.

    :param work: a function, or an object that can be called; for asyncio it returns an awaitable.
    :raises UsageError: naming parameter, value and rule.
    """

    of = "events"
    store = "events"

    work: Work
    rules: RetryRules = field(default_factory=RetryRules)


def _made(work: Work, rules: RetryRules) -> Handler:
    return Handler(work=work, rules=rules)


handler = service.with_rules(RetryRules, _made, example="retries_s=(1, 10, 60), dead_on=(ValueError,)")


class Middleware(service.Middleware[Delivery]):
    """Looks on while deliveries are worked on, or wraps the work; called in the thread or task of the handler.

    What ``before``, ``after`` and ``error`` raise is logged and changes nothing. Each part of a delivery that is split
    is a delivery here.
    """


@dataclass(eq=False, slots=True)
class Checkpoint:
    """A page that was read.

    :param next_cursor: where the cursor may stand once it is finished.
    :param unfinished: deliveries of the page on which handlers have still to work.
    :param void: it is no business of ours any more: the group may have got another reader meanwhile.
    """

    next_cursor: str
    unfinished: int = 0
    void: bool = False


class ReadAhead:
    """Pages read and not yet stored as read.

    :param limit: how many there may be.
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
        """Record a page; each handler that works on it counts itself in first."""
        self._checkpoints.append(Checkpoint(next_cursor))
        return self._checkpoints[-1]

    def take_finished(self) -> str | None:
        """Forget the pages that are finished up to the first that is not; return the cursor to store, if any."""
        cursor = None
        while self._checkpoints and not self._checkpoints[0].unfinished:
            cursor = self._checkpoints.popleft().next_cursor
        return cursor

    def abandon(self) -> None:
        """Forget all pages, and have those who work on them know."""
        for checkpoint in self._checkpoints:
            checkpoint.void = True
        self._checkpoints.clear()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A delivery that a handler has failed on."""

    delivery: Delivery
    error: BaseException


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt went.

    :param failures: what failed.
    :param left: what was not begun, since the order is kept.
    """

    failures: tuple[Failure, ...] = ()
    left: tuple[Delivery, ...] = ()


@dataclass(eq=False, slots=True)
class Assignment:
    """A delivery that waits for its handler.

    :param parts: what is left of it after a failure; none before the first attempt.
    """

    handler: ReliableHandler
    delivery: Delivery
    checkpoint: Checkpoint
    parts: tuple[Delivery, ...] | None = None

    def attempt(self) -> Operation[Outcome]:
        """Work on it: each step is a delivery for the handler."""
        handler = self.handler
        parts = self.parts
        if parts is None:
            parts = (self.delivery,) if handler.split is None else tuple(handler.split(self.delivery))
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
    """A receiver that gets every event of a subscription at least once, one delivery after the other.

    :param name: by which a retry finds it; unique in its consumer.
    :param split: cuts a delivery into parts that are retried by themselves.
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

    def next_assignment(self, now_s: float) -> Assignment | None:
        """Return what it may begin now, and count it busy with it."""
        if self.busy is None and self.queue and now_s >= self.resume_at_s:
            self.busy = self.queue.popleft()
            return self.busy
        return None

    def put_back(
        self, assignment: Assignment, failures: Sequence[Failure], left: Sequence[Delivery], *, now_s: float
    ) -> None:
        """Put what is left of a delivery back to the head of the queue; after a failure, it waits there."""
        again = tuple(replace(one.delivery, attempt=one.delivery.attempt + 1) for one in failures)
        if again:
            self.resume_at_s = now_s + HANDLER_BACKOFF.after(again[0].attempt - 2)
        if assignment.parts is None and again and again[0].events == assignment.delivery.events:
            # Not cut into parts, or cutting it has failed: it is cut the next time.
            assignment.delivery = again[0]
        else:
            assignment.parts = again + tuple(left)
        self.queue.appendleft(assignment)


class _Attempt(service.BlockingCalls[Delivery]):
    """Puts the steps of an attempt to the handler's function."""

    def __init__(self, assignment: Assignment, middleware: Sequence[Middleware]) -> None:
        super().__init__(assignment.handler.work, assignment.handler.rules, middleware=middleware)
        self.operations = assignment

    run = blocking(Assignment.attempt)


class _AsyncAttempt(service.AsyncCalls[Delivery]):
    """The same in the event loop."""

    def __init__(self, assignment: Assignment, middleware: Sequence[Middleware]) -> None:
        super().__init__(assignment.handler.work, assignment.handler.rules, middleware=middleware)
        self.operations = assignment

    run = awaited(Assignment.attempt)


def blocking_attempt(assignment: Assignment, middleware: Sequence[Middleware] = ()) -> Callable[[], Outcome]:
    """Return the function that makes an attempt in the thread that calls it."""
    return _Attempt(assignment, middleware).run


def awaited_attempt(assignment: Assignment, middleware: Sequence[Middleware] = ()) -> Callable[[], Awaitable[Outcome]]:
    """Return the coroutine function that makes an attempt."""
    return _AsyncAttempt(assignment, middleware).run


class BufferedListener:
    """Deliveries that wait for a reader without acknowledgements; ``ring`` wakes the reader.

    :param subscription_id: whose events these are.
    :param limit: events that may wait.
    :param forget: called with the listener when it is closed.
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
        """Whether nothing comes any more, and all that came was read."""
        return self._ended and not self._waiting

    def put(self, delivery: Delivery) -> None:
        """Add deliveries that the consumer has read; a reader that is too slow gets an error after its last one."""
        if self._ended:
            return
        if self._waiting_events + len(delivery.events) > self._limit and self._waiting:
            self.end(
                FellBehind(
                    f"the reader of subscription {self.subscription_id} is too slow: {self._waiting_events:,} events "
                    "wait for it; open another listener and go on from the last event by a replay"
                ).about(subscription_id=self.subscription_id)
            )
            self._forget(self)
            return
        self._waiting.append(delivery)
        self._waiting_events += len(delivery.events)
        self._ring()

    def end(self, error: Exception | None = None) -> None:
        """Say that nothing comes any more."""
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
        """Return the next delivery; none when time is up or the listener has ended.

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
