"""Handlers of a consumer: what works on messages, what becomes of failures, and who looks on; no I/O here."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeAlias

from queuekeeper.checks import check_fields, check_integer
from queuekeeper.errors import Rejected, UsageError
from queuekeeper.fanout.model import MAX_MS, FanoutMessage
from queuekeeper.operation import Operation, awaited, blocking, finished, refuse_coroutine
from queuekeeper.service.limits import limited, time_is_up

P = ParamSpec("P")

Work: TypeAlias = Callable[[FanoutMessage], Any]
"""Works on a message; a coroutine function for asyncio. When it returns, the message is done; when it raises, not."""

MAX_ATTEMPTS = 1_000_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """What becomes of a message that a handler has failed on.

    :param max_attempts: it becomes a dead letter when it has had so many; none for never.
    :param first_delay_ms: until the second attempt.
    :param factor: how much longer each further delay is.
    :param max_delay_ms: the longest.
    :param jitter: share of a delay that chance takes away, so that what failed together does not come again together.
    :param dead_on: exceptions that no retry will cure: the message becomes a dead letter at once.
    :param time_limit_ms: time that a handler may take for a message; then it has failed with
        :class:`~queuekeeper.errors.TimeLimitExceeded`. None for no limit. A thread is stopped when it is in Python
        code, not in a query or a sleep.
    :raises UsageError: naming parameter, value and rule.
    """

    max_attempts: int | None = 5
    first_delay_ms: int = 1_000
    factor: float = 2.0
    max_delay_ms: int = 300_000
    jitter: float = 0.5
    dead_on: tuple[type[Exception], ...] = (Rejected,)
    time_limit_ms: int | None = None

    def __post_init__(self) -> None:
        if self.max_attempts is not None:
            check_integer("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS)
        check_integer("first_delay_ms", self.first_delay_ms, 0, MAX_MS)
        check_integer("max_delay_ms", self.max_delay_ms, self.first_delay_ms, MAX_MS)
        for name, value, least, most in (("factor", self.factor, 1, 1_000), ("jitter", self.jitter, 0, 1)):
            # What is not a number is not within anything.
            if type(value) not in (int, float) or not least <= value <= most:
                raise UsageError(f"{name} is {value!r}: it must be a number from {least} to {most}")
        if self.time_limit_ms is not None:
            check_integer("time_limit_ms", self.time_limit_ms, 1, MAX_MS)
        check_fields(self, "dead_on")
        for one in self.dead_on:
            if not issubclass(one, Exception):
                raise UsageError(f"dead_on holds {one!r}: it must be a tuple of classes of exceptions")

    def delay_ms(self, attempt: int, *, draw: Callable[[], float]) -> int:
        """Return how long to wait after a failed attempt.

        :param attempt: which it was, from 1.
        :param draw: chance, from 0 to 1.
        """
        longest = float(self.max_delay_ms)
        # A power that is too large for a number is beyond the cap long before.
        delay = longest if attempt > 1_000 else min(longest, self.first_delay_ms * self.factor ** min(attempt - 1, 100))
        return int(delay * (1 - self.jitter * draw()))

    def judge(self, message: FanoutMessage, error: BaseException, *, draw: Callable[[], float]) -> Failed:
        """Return what becomes of a message."""
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, self.dead_on):
            return Failed(delay_ms=0, max_attempts=1, reason=reason)
        delay_ms = self.delay_ms(message.attempt, draw=draw)
        return Failed(delay_ms=delay_ms, max_attempts=self.max_attempts, reason=reason)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """An attempt that failed, in the words of ``nack``."""

    delay_ms: int
    max_attempts: int | None
    reason: str

    def is_final(self, message: FanoutMessage) -> bool:
        """Whether the message becomes a dead letter."""
        return self.max_attempts is not None and message.attempt >= self.max_attempts


@dataclass(frozen=True, kw_only=True)
class Handler:
    """What works on a consumer's messages, with the rules for its failures; it can be called as what it holds.

    :param work: a function, or an object that can be called; for asyncio it returns an awaitable.
    :raises UsageError: naming parameter, value and rule.
    """

    work: Work
    rules: RetryRules = field(default_factory=RetryRules)

    def __post_init__(self) -> None:
        check_fields(self, "work", "rules")

    def __call__(self, message: FanoutMessage) -> Any:
        """Work on a message."""
        return self.work(message)


def _with_rules(rules: Callable[P, RetryRules]) -> Callable[P, Callable[[Work], Handler]]:
    """Return ``handler`` with the signature of the rules, so that editors and type checkers complete them."""

    def handler(*args: P.args, **kwargs: P.kwargs) -> Callable[[Work], Handler]:
        """Make a function a handler: ``@handler(max_attempts=8, dead_on=(ValueError,))``.

        The arguments are those of :class:`RetryRules`.

        :raises UsageError: naming parameter, value and rule; for a name that is no rule, the nearest one.
        """
        known = inspect.signature(rules).parameters
        for name in kwargs:
            if name not in known:
                nearest = get_close_matches(name, known, n=1)
                hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
                raise UsageError(f"handler has no rule {name!r}: {hint}")
        found = rules(*args, **kwargs)
        return lambda work: Handler(work=work, rules=found)

    handler.__signature__ = inspect.signature(rules).replace(  # type: ignore[attr-defined]
        return_annotation=Callable[[Work], Handler]
    )
    return handler


handler = _with_rules(RetryRules)


class Middleware:
    """Looks on while messages are worked on, or wraps the work; called in the thread or task of the handler.

    What ``before``, ``after`` and ``error`` raise is logged and changes nothing.
    """

    def around(self, message: FanoutMessage) -> AbstractContextManager[Any]:
        """Return what the handler runs in, such as a trace, a lock or a database transaction.

        What it raises when it is entered fails the attempt before the handler begins. When the handler has failed, it
        gets the error, and may raise another one, or end it as any context manager may: then the message is done. The
        first middleware is the outermost. The handler's time limit covers the handler alone.
        """
        return nullcontext()

    def before(self, message: FanoutMessage) -> None:
        """Learn that a handler begins."""

    def after(self, message: FanoutMessage, *, duration_s: float) -> None:
        """Learn that a handler has done it."""

    def error(self, message: FanoutMessage, error: Exception, *, duration_s: float, is_final: bool) -> None:
        """Learn that a handler has failed.

        :param is_final: the message becomes a dead letter.
        """


class Attempt:
    """One attempt of a handler, with those who look on.

    :param now_s: a clock that never goes back.
    """

    def __init__(
        self,
        handler: Handler,
        message: FanoutMessage,
        *,
        middleware: Sequence[Middleware],
        draw: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self.operations = self
        self._work = handler.work
        self._rules = handler.rules
        self._message = message
        self._middleware = middleware
        self._draw = draw
        self._now_s = now_s

    def attempt(self) -> Operation[Failed | None]:
        """Work on the message, which is the only step; return the failure, if it is one."""
        message = self._message
        self._tell(lambda one: one.before(message))
        began_s = self._now_s()
        try:
            yield message
        except Exception as error:
            duration_s = self._now_s() - began_s
            # A name of a handler of exceptions does not outlive it.
            raised = error
            failed = self._rules.judge(message, error, draw=self._draw)
            is_final = failed.is_final(message)
            _log.warning(
                "message %d of %r for %r: attempt %d failed%s",
                *(message.id, message.queue, message.consumer, message.attempt, " for good" if is_final else ""),
                exc_info=error,
            )
            self._tell(lambda one: one.error(message, raised, duration_s=duration_s, is_final=is_final))
            return failed
        duration_s = self._now_s() - began_s
        self._tell(lambda one: one.after(message, duration_s=duration_s))
        return None

    def _tell(self, hook: Callable[[Middleware], None]) -> None:
        for one in self._middleware:
            try:
                hook(one)
            except Exception:
                _log.exception("middleware %r failed", one)

    def _around(self) -> ExitStack:
        """Enter what middleware puts around the handler."""
        with ExitStack() as stack:
            for one in self._middleware:
                stack.enter_context(one.around(self._message))
            return stack.pop_all()

    @property
    def _limit_s(self) -> float | None:
        limit_ms = self._rules.time_limit_ms
        return None if limit_ms is None else limit_ms / 1_000


class BlockingAttempt(Attempt):
    """An attempt in the thread that runs it."""

    def answer(self, message: FanoutMessage) -> None:
        """Have the handler work on the message, within its time."""
        with self._around():
            if self._limit_s is None:
                result = self._work(message)
            else:
                result = limited(self._work, message, limit_s=self._limit_s)
            refuse_coroutine(result)

    run = blocking(Attempt.attempt)


class AsyncAttempt(Attempt):
    """An attempt in the event loop."""

    async def answer(self, message: FanoutMessage) -> None:
        """Have the handler work on the message, within its time."""
        with self._around():
            try:
                async with asyncio.timeout(self._limit_s) as limit:
                    await finished(self._work(message))
            except TimeoutError as error:
                if self._limit_s is None or not limit.expired():
                    raise
                raise time_is_up(self._limit_s) from error

    run = awaited(Attempt.attempt)
