"""The work of a consumer of a fan-out queue, as one operation: claim, begin handlers, renew leases, settle, wait."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from queuekeeper.checks import check_integer, check_seconds
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.errors import MembershipChanged, ServerUnavailable, StoreFull
from queuekeeper.fanout.handlers import Failed, Handler, Middleware, Work
from queuekeeper.fanout.model import (
    DEFAULT_LEASE_MS,
    DEFAULT_MAX_STALLS,
    DEFAULT_WORKERS,
    MAX_CLAIM,
    MAX_MS,
    SUSPECT_STALLS,
    ConsumerOptions,
    Start,
    check_consumer,
    check_queue,
)
from queuekeeper.fanout.operations import FanoutOperations
from queuekeeper.fanout.reports import FanoutMessage, Outcome, Registration
from queuekeeper.operation import Operation
from queuekeeper.service.handlers import AsyncCalls, BlockingCalls, handler_of
from queuekeeper.service.steps import END_S, Begin, Cut, Stop, Wait
from queuekeeper.wording import number_of

DEAF_S = 1.0
"""Seconds from the loss of the listening connection until the consumer listens again."""

TOUCH_S = 30.0
"""Longest time in seconds between two signs of life of a consumer that claims nothing."""

LEAST_TOUCH_S = 0.1
"""Shortest time in seconds between two signs of life, however short ``idle_expiry_ms`` is."""

REGISTER_S = 5.0
"""Seconds between two tries to register while the server is full."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WorkRules:
    """How a consumer works.

    :param workers: number of messages that are worked on at once, 8 by default.
    :param prefetch: number of messages that are claimed beyond ``workers``, 0 by default. It saves calls; other workers
        of the consumer cannot work on these messages meanwhile.
    :param lease_ms: time in ms after which another worker gets the messages of a worker that has died, 30,000 by
        default. A lease is renewed at its half while the worker lives, however long a handler takes.
    :param max_stalls: number of stalls, 3 by default, above which a message becomes a dead letter; a stall is a lease
        that has run out. A message with two stalls or more is worked on alone, so that no other handler is stopped
        if it ends the process.
    :param look_s: longest time in seconds between two claims while there is room, 5 by default; a lost wake-up delays a
        message by no more.
    :param grace_s: time in seconds that a stop waits for running handlers, 30 by default.
    :raises UsageError: naming parameter, value and rule.
    """

    workers: int = DEFAULT_WORKERS
    prefetch: int = 0
    lease_ms: int = DEFAULT_LEASE_MS
    max_stalls: int = DEFAULT_MAX_STALLS
    look_s: float = 5.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        check_integer("workers", self.workers, 1, MAX_CLAIM)
        check_integer("prefetch", self.prefetch, 0, MAX_CLAIM)
        check_integer("lease_ms", self.lease_ms, 2, MAX_MS)
        check_integer("max_stalls", self.max_stalls, 0, 1_000_000)
        check_seconds("look_s", self.look_s, least=0.01)
        check_seconds("grace_s", self.grace_s, least=0)


@dataclass(eq=False, kw_only=True, slots=True)
class _Held:
    """A message under lease.

    :param renew_at_s: time at which half of the lease is over.
    """

    message: FanoutMessage
    token: str
    renew_at_s: float


class Consumption:
    """The work of a consumer, as an operation.

    :ivar registration: result of the registration; ``None`` before it and without ``register``.
    :param calls: how it calls its handler.
    :param listen: waits for a wake-up, for at most the seconds that it is given, and returns whether one came.
    :param began: called when the consumer is registered.
    :param now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        operations: FanoutOperations,
        queue: str,
        work: Handler | Work,
        *,
        consumer: str,
        rules: WorkRules | None,
        options: ConsumerOptions | None,
        start: Start,
        register: bool,
        middleware: Sequence[Middleware],
        draw: Callable[[], float],
        calls: type[BlockingCalls[FanoutMessage] | AsyncCalls[FanoutMessage]],
        listen: Callable[[float], Any],
        began: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        check_queue(queue)
        check_consumer(consumer)
        self.queue = queue
        self.consumer = consumer
        self.rules = rules or WorkRules()
        self.registration: Registration | None = None
        self._operations = operations
        handler = handler_of(Handler, work)
        self._options = options
        self._start_from = start
        self._registers = register
        self._retry_rules = handler.rules
        self._calls = calls(handler.work, handler.rules, middleware=tuple(middleware), now_s=now_s)
        self._draw = draw
        self._listen = listen
        self._began = began
        self._now_s = now_s
        # Each message under lease is in one of these.
        self._waiting: deque[_Held] = deque()
        self._busy: set[_Held] = set()
        self._ended: dict[_Held, Failed | None] = {}
        # _woken: a wake-up came, and no claim since then. It came to all workers that wait.
        self._woken = self._listening = False
        self._look_at_s = self._listen_at_s = self._touch_at_s = now_s()
        self._touch_s = TOUCH_S
        self._register_at_s = float("inf")
        self._stop_at_s: float | None = None
        self._failure: Exception | None = None
        self._give_up_at_s = 0.0
        self._has_cut = self._over = False

    @property
    def late(self) -> bool:
        """Whether handlers are still running."""
        return bool(self._busy)

    def run(self) -> Operation[None]:
        """Serve until a stop. An error that a repeat does not cure stops the consumer, too, and is raised at the end.

        :raises ServerUnavailable: when the server cannot be reached at the start; later the consumer waits for it.
        :raises UnknownConsumer: when the consumer has been unregistered.
        """
        yield from self._take_place()
        self._began()
        attempt = 0
        while not self._over:
            try:
                yield from self._turn()
            except Exception as error:
                if not isinstance(error, ServerUnavailable | MembershipChanged):
                    if self._failure is None:
                        self._fail_with(error)
                        continue
                    self._over = not self._busy
                # Messages that were leased by a lost reply come again when the lease is over.
                until_s = self._now_s() + SERVER_BACKOFF.after(attempt)
                attempt += 1
                _log.warning("consumer %r of %r: %s; the consumer tries again", self.consumer, self.queue, error)
                while not self._over and not self._is_late() and self._now_s() < until_s:
                    yield from self._hear(until_s)
            else:
                attempt = 0
                yield from self._hear(self._wake_at_s())
            if self._is_late():
                self._over = True
        left = len(self._waiting) + len(self._busy) + len(self._ended)
        if left:
            _log.warning(
                "consumer %r of %r ended with %d messages, which are handed out again when their leases are over",
                *(self.consumer, self.queue, left),
            )
        if self._failure is not None:
            raise self._failure

    def _fail_with(self, error: Exception) -> None:
        """Begin to stop because of an error."""
        _log.error("consumer %r of %r ends: %s", self.consumer, self.queue, error)
        self._failure = error
        self._give_up_at_s = self._now_s() + END_S
        if self._stop_at_s is None:
            self._stop_at_s = self._now_s() + self.rules.grace_s

    def _take_place(self) -> Operation[None]:
        """Register the consumer, or check that it is registered and finish its registration."""
        if self._registers:
            yield from self._register()
        if self.registration is None:
            yield from self._operations.touch(self.queue, consumer=self.consumer)
        if not self._registers:
            yield from self._register()

    def _register(self) -> Operation[None]:
        """Register the consumer, or finish an interrupted registration; if the server is full, plan another try.

        A full server accepts neither, but it accepts acks, which free memory. So a consumer that is registered goes on.
        It gets nothing while its registration lacks some of the earlier messages.
        """
        try:
            if self._registers:
                self.registration = yield from self._operations.register(
                    self.queue, consumer=self.consumer, options=self._options, start=self._start_from
                )
            else:
                yield from self._operations.adopt(self.queue, consumer=self.consumer)
        except StoreFull as error:
            self._register_at_s = self._now_s() + REGISTER_S
            _log.warning("consumer %r of %r is not wholly registered yet: %s", self.consumer, self.queue, error)
        else:
            self._register_at_s = float("inf")
            self._look_at_s = self._now_s()
            idle_expiry_ms = None if self.registration is None else self.registration.options.idle_expiry_ms
            if idle_expiry_ms is not None:
                self._touch_s = min(TOUCH_S, max(LEAST_TOUCH_S, idle_expiry_ms / 3_000))

    def _is_late(self) -> bool:
        return self._stop_at_s is not None and self._now_s() >= self._end_at_s(self._stop_at_s)

    def _end_at_s(self, stop_at_s: float) -> float:
        """Return the time at which the consumer ends, even if calls have no answer."""
        return stop_at_s + END_S if self._busy else self._give_up_at_s

    def _turn(self) -> Operation[None]:
        yield from self._settle()
        yield from self._renew()
        if self._stop_at_s is not None:
            yield from self._wind_up(self._stop_at_s)
            return
        yield from self._start_work()
        if self._now_s() >= self._register_at_s:
            # Fails if the consumer was unregistered meanwhile, and so does not register it again.
            yield from self._operations.touch(self.queue, consumer=self.consumer)
            yield from self._register()
        if self._room > 0 and (self._woken or self._now_s() >= self._look_at_s):
            yield from self._claim()
        if self._now_s() >= self._touch_at_s:
            yield from self._operations.touch(self.queue, consumer=self.consumer)
            self._touch_at_s = self._now_s() + self._touch_s
        yield from self._start_work()
        quiet_s = self._look_at_s - self._now_s()
        if self._room > 0 and quiet_s > 0 and not self._listening and self._now_s() >= self._listen_at_s:
            self._listening = True
            yield Begin(work=partial(self._listen, quiet_s), token=None)

    def _start_work(self) -> Operation[None]:
        while self._waiting and len(self._busy) < self.rules.workers:
            if self._busy and self._is_suspect(self._waiting[0]):
                break
            held = self._waiting.popleft()
            self._busy.add(held)
            yield Begin(work=partial(self._calls.answer, held.message), token=held)

    def _is_suspect(self, held: _Held) -> bool:
        """Return whether a message may be the reason why its workers died; the server hands it out alone."""
        return held.message.stalls >= max(1, min(SUSPECT_STALLS, self.rules.max_stalls))

    @property
    def _room(self) -> int:
        if any(map(self._is_suspect, (*self._waiting, *self._busy))):
            return 0
        return self.rules.workers + self.rules.prefetch - len(self._waiting) - len(self._busy)

    def _wake_at_s(self) -> float:
        """Return the time of the next thing to do if no message comes."""
        instants = [held.renew_at_s for held in (*self._busy, *self._waiting)]
        if self._stop_at_s is not None:
            is_grace = self._busy and self._now_s() < self._stop_at_s
            instants.append(self._stop_at_s if is_grace else self._end_at_s(self._stop_at_s))
        elif self._room > 0:
            instants.append(self._look_at_s)
            if not self._listening:
                instants.append(max(self._listen_at_s, self._now_s()))
        if self._stop_at_s is None:
            instants += [self._touch_at_s, self._register_at_s]
        return min(instants)

    def _hear(self, until_s: float) -> Operation[None]:
        """Wait for messages, and note what they say."""
        if self._over:
            return
        told = (yield Wait(timeout_s=max(0.0, until_s - self._now_s()), notifiable=False)).told
        if told:
            self._give_up_at_s = self._now_s() + END_S
        for message in told:
            if isinstance(message, Stop):
                if self._stop_at_s is None:
                    self._stop_at_s = self._now_s() + self.rules.grace_s
            elif message.token is None:
                self._listening = False
                if message.error is not None:
                    # A wake-up may be lost with the connection.
                    self._listen_at_s = self._now_s() + DEAF_S
                self._woken = self._woken or message.error is not None or message.result
            else:
                self._note_end(message.token, message.error)

    def _note_end(self, held: _Held, error: BaseException | None) -> None:
        self._busy.discard(held)
        # Without a cut the handler itself has raised CancelledError, and would do so again: that is a failure.
        if self._has_cut and isinstance(error, asyncio.CancelledError):
            self._waiting.append(held)
            return
        failed = None
        if error is not None:
            failed = self._retry_rules.judge(held.message, error, draw=self._draw)
            _log.warning(
                "message %d of %r for %r: attempt %d failed%s",
                *(held.message.id, self.queue, self.consumer, held.message.attempt),
                " for good" if failed.is_final(held.message) else "",
                exc_info=error,
            )
        self._ended[held] = failed

    # Messages.

    def _claim(self) -> Operation[None]:
        asked = min(self._room, MAX_CLAIM)
        sent_s = self._now_s()
        claimed = yield from self._operations.claim(
            self.queue,
            consumer=self.consumer,
            count=asked,
            lease_ms=self.rules.lease_ms,
            max_stalls=self.rules.max_stalls,
        )
        self._woken = False
        self._touch_at_s = sent_s + self._touch_s
        renew_at_s = sent_s + self.rules.lease_ms / 2_000
        self._waiting.extend(
            _Held(message=message, token=claimed.token, renew_at_s=renew_at_s) for message in claimed.messages
        )
        quiet_s = self.rules.look_s
        if claimed.more or len(claimed.messages) == asked:
            quiet_s = 0.0
        elif claimed.wait_until_ms is not None:
            # The server's clock now shows the deadline less the lease.
            due_ms = claimed.wait_until_ms - (claimed.deadline_ms - self.rules.lease_ms)
            quiet_s = min(quiet_s, max(0.001, due_ms / 1_000))
        self._look_at_s = self._now_s() + quiet_s

    def _settle(self) -> Operation[None]:
        """Report the outcomes of messages; after a call without an answer the next turn repeats it."""
        done: dict[str, list[_Held]] = {}
        for held, failed in self._ended.items():
            if failed is None:
                done.setdefault(held.token, []).append(held)
        for token, group in done.items():
            report = yield from self._operations.ack(
                self.queue, consumer=self.consumer, token=token, ids=[held.message.id for held in group]
            )
            if report.stale:
                self._note_lost(report.stale)
            for held in group:
                del self._ended[held]
            # An ordered consumer can claim the next message of the lane.
            self._look_at_s = self._now_s()
        for held, failed in list(self._ended.items()):
            if failed is not None:
                yield from self._fail(held, failed)
                del self._ended[held]

    def _fail(self, held: _Held, failed: Failed) -> Operation[None]:
        report = yield from self._operations.nack(
            self.queue,
            consumer=self.consumer,
            token=held.token,
            message_id=held.message.id,
            delay_ms=failed.delay_ms,
            max_attempts=failed.max_attempts,
            reason=failed.reason,
        )
        if report.outcome is Outcome.STALE:
            self._note_lost(1)
        delay_s = 0.0 if report.due_ms is None else failed.delay_ms / 1_000
        self._look_at_s = min(self._look_at_s, self._now_s() + delay_s)

    def _renew(self) -> Operation[None]:
        now_s = self._now_s()
        due = {held.token for held in (*self._waiting, *self._busy) if now_s >= held.renew_at_s}
        for token in due:
            group = [held for held in (*self._waiting, *self._busy) if held.token == token]
            sent_s = self._now_s()
            report = yield from self._operations.extend(
                self.queue,
                consumer=self.consumer,
                token=token,
                ids=[held.message.id for held in group],
                lease_ms=self.rules.lease_ms,
            )
            stale = set(report.stale)
            if stale:
                self._note_lost(len(stale))
                # Another worker may have them now. A handler that is running cannot know; its ack will be refused.
                self._waiting = deque(
                    held for held in self._waiting if held.token != token or held.message.id not in stale
                )
            for held in group:
                is_lost = held.message.id in stale
                held.renew_at_s = float("inf") if is_lost else sent_s + self.rules.lease_ms / 2_000

    def _wind_up(self, stop_at_s: float) -> Operation[None]:
        """Give back messages that no handler has begun, and end when the running handlers have ended."""
        if self._waiting:
            yield from self._return(list(self._waiting))
            self._waiting.clear()
        if self._busy and self._now_s() >= stop_at_s:
            self._has_cut = yield Cut()
            self._over = not self._has_cut
        elif not self._busy and not self._ended and (not self._listening or self._failure is not None):
            self._over = True

    def _return(self, helds: Iterable[_Held]) -> Operation[None]:
        ids: dict[str, list[int]] = {}
        for held in helds:
            ids.setdefault(held.token, []).append(held.message.id)
        for token in reversed(ids):
            yield from self._operations.return_claimed(self.queue, consumer=self.consumer, token=token, ids=ids[token])

    def _note_lost(self, count: int) -> None:
        _log.warning(
            "consumer %r of %r has lost the leases of %s; other workers get or have got them",
            *(self.consumer, self.queue, number_of(count, "message")),
        )
