"""Handlers: functions that work on the messages of a compacted queue, one at a time, with the rules for failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from queuekeeper.checks import check_integer, check_seconds, checked
from queuekeeper.clock import HANDLER_BACKOFF, SERVER_BACKOFF, Backoff
from queuekeeper.compacted.consumer import AsyncCompactedConsumer
from queuekeeper.compacted.consumption import ConsumerRules
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.errors import QueueBusy, RefusedError, ServerUnavailable, StaleEpoch
from queuekeeper.operation import is_coroutine_function
from queuekeeper.service import handlers as service
from queuekeeper.service.aio import stopped_by_signals
from queuekeeper.text_form import shows

Work: TypeAlias = Callable[[CompactedMessage], Any]
"""Function that works on a message. A coroutine function runs in the event loop, any other function in a thread; an
awaitable that it returns is awaited. An exception means that the work has failed."""

_log = logging.getLogger(__name__)


GRACE_S = 30.0


class _GraceIsOver(Exception):
    """A handler has not ended in time after a stop."""


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Delays and time limit of a handler. After a failure, the handler gets the same message again before later ones.

    :param first_delay_ms: delay before the second attempt, 100 by default; each further delay is twice as long.
    :param max_delay_ms: longest delay between two attempts, 60,000 by default.
    :param time_limit_ms: time that a handler may take for a message; longer work fails with
        :class:`~queuekeeper.errors.TimeLimitExceeded`. None, the default, for no limit. The limit stops a thread only
        while it runs Python code, not during a query or a sleep.
    :raises UsageError: naming parameter, value and rule.
    """

    first_delay_ms: int = int(HANDLER_BACKOFF.first_s * 1_000)
    max_delay_ms: int = int(HANDLER_BACKOFF.longest_s * 1_000)
    time_limit_ms: int | None = None

    def __post_init__(self) -> None:
        check_integer("first_delay_ms", self.first_delay_ms, 0, service.LONGEST_MS)
        check_integer("max_delay_ms", self.max_delay_ms, self.first_delay_ms, service.LONGEST_MS)
        service.check_time_limit(self)

    def is_final(self, message: CompactedMessage, error: BaseException) -> bool:
        """Return false: a compacted queue has no dead letters."""
        del message, error
        return False

    def delay_s(self, attempt: int) -> float:
        """Return how long to wait after a failed attempt, in seconds.

        :param attempt: number of the failed attempt, from 1.
        """
        return Backoff(first_s=self.first_delay_ms / 1_000, longest_s=self.max_delay_ms / 1_000).after(attempt - 1)


@dataclass(frozen=True, kw_only=True)
class Handler(service.Handler[CompactedMessage]):
    """A function for compacted queues with the rules for its failures.

    :param work: a coroutine function runs in the event loop, any other function in a thread.
    """

    of = "compacted queues"
    store = "compacted"

    work: Work
    rules: RetryRules = field(default_factory=RetryRules)


handler = service.with_rules(RetryRules, Handler, example="first_delay_ms=500, time_limit_ms=30_000")


class Middleware(service.Middleware[CompactedMessage]):
    """Observes or wraps attempts; a failure is never final, since the handler gets the message again."""


@shows(queues="_queues", client_id="_client_id")
class CompactedWorker:
    """Calls a handler with the messages of a queue, in order, until it is stopped.

    ::

        await CompactedWorker(queues, "device-1", show).run()

    After a failure the handler gets the same message again, after a growing delay, before any later message. This ends
    when the message is skipped or the queue is lost. While another consumer holds the queue, the worker waits. So of
    several workers of a queue one works; when it ends, another one continues behind the last acknowledged message.

    :param work: function that is called with each message, see :data:`Work`, or a :class:`Handler` with rules for its
        failures. A plain function has the default rules.
    :param rules: rules of the consumer, without ``takeover`` unless they name it. ``takeover`` and ``start`` apply only
        to the first subscription of the worker: two workers do not take the queue from each other again and again.
    :param middleware: called around the work, see :class:`~queuekeeper.compacted.handlers.Middleware`.
    :param grace_s: time in seconds that a stop waits for a running handler, 30 by default. Then a coroutine is
        cancelled, and a thread is left to itself, which does not keep the process from ending; the message is not
        acknowledged, and comes again.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncCompactedQueues,
        client_id: str,
        work: Handler | Work,
        *,
        rules: ConsumerRules | None = None,
        middleware: Sequence[Middleware] = (),
        grace_s: float = GRACE_S,
    ) -> None:
        check_seconds("grace_s", grace_s, least=0)
        service.check_middleware(middleware)
        self._grace_s = grace_s
        self._running: asyncio.Timeout | None = None
        self._queues = queues
        self._client_id = client_id
        found = service.handler_of(Handler, work)
        self._retry_rules = found.rules
        given = (found.work, found.rules)
        self._in_thread: service.LoopThreadCalls[CompactedMessage] | None = None
        if is_coroutine_function(found.work):
            self._do = service.AsyncCalls(*given, middleware=tuple(middleware)).answer
        else:
            self._in_thread = service.LoopThreadCalls(*given, middleware=tuple(middleware))
            self._do = self._in_thread.answer_in_thread
        self._rules = rules or ConsumerRules()
        if self._rules.takeover is None:
            self._rules = replace(self._rules, takeover=False)
        self._stopped = asyncio.Event()
        self._has_answered = self._runs = False

    def stop(self) -> None:
        """End after the work on the present message, or when its time of grace is up; call it in the event loop."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._limit_work()

    def _limit_work(self) -> None:
        if self._running is not None:
            self._running.reschedule(asyncio.get_running_loop().time() + self._grace_s)

    async def run(self) -> None:
        """Work until :meth:`stop` or, in the main thread, the first SIGTERM or Ctrl-C.

        :raises ServerUnavailable: when the server is unavailable at the start; later on the worker waits for it.
        :raises UnreadableRecord: when a message's record is damaged and the rules say ``stop``.
        :raises RefusedError: when the worker has run before.
        """
        if self._runs:
            raise RefusedError("a worker runs once: make another one")
        self._runs = True
        with stopped_by_signals(self.stop):
            try:
                await self._work()
            finally:
                if self._in_thread is not None:
                    self._in_thread.end()

    async def _work(self) -> None:
        attempt = 0
        while not self._stopped.is_set():
            try:
                await self._consume()
            except (QueueBusy, StaleEpoch) as error:
                self._has_answered = True
                _log.info("the worker waits for the queue: %s", error)
            except ServerUnavailable as error:
                if not self._has_answered:
                    raise
                _log.warning("the worker waits for the server: %s", error)
            else:
                attempt = 0
                continue
            await self._pause(SERVER_BACKOFF.after(attempt))
            attempt += 1

    async def _consume(self) -> None:
        consumer = AsyncCompactedConsumer(self._queues, self._client_id, rules=self._rules)
        async with consumer:
            self._has_answered = True
            # Later subscriptions wait for their turn, and continue behind the last acknowledged message.
            self._rules = replace(self._rules, takeover=False, start=None)
            ending = asyncio.ensure_future(self._stopped.wait())
            ending.add_done_callback(lambda _: consumer.stop())
            try:
                async for message in consumer:
                    if await self._is_done(message, consumer.operations.holds):
                        await consumer.ack(message)
                    elif self._stopped.is_set():
                        break
            finally:
                ending.cancel()

    async def _is_done(self, message: CompactedMessage, is_held: Callable[[CompactedMessage], bool]) -> bool:
        """Call the handler with a message until it succeeds.

        :returns: false when the worker was stopped first, or the message can no longer be acknowledged: it was skipped,
            or the queue was lost.
        """
        attempt = 0
        while True:
            try:
                await self._attempt(message)
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                if isinstance(error, _GraceIsOver):
                    _log.warning(
                        "message %d of the queue of %r: its handler has not ended within %g s after the stop",
                        *(message.sequence, self._client_id, self._grace_s),
                    )
                    return False
                attempt += 1
                pause_s = self._retry_rules.delay_s(attempt)
                _log.warning(
                    "message %d of the queue of %r: attempt %d failed; the next one begins in %g s",
                    *(message.sequence, self._client_id, attempt, pause_s),
                    exc_info=True,
                )
                await self._pause(pause_s)
                if self._stopped.is_set() or not is_held(message):
                    return False
            else:
                return True

    async def _attempt(self, message: CompactedMessage) -> None:
        """Call the handler, within the time of grace once the worker is stopped."""
        running = asyncio.timeout(None)
        try:
            async with running:
                self._running = running
                if self._stopped.is_set():
                    self._limit_work()
                await self._do(message)
        except TimeoutError as error:
            if running.expired():
                raise _GraceIsOver from error
            raise
        finally:
            self._running = None

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
