"""Handlers of a consumer: the function that works on messages, and the rules for its failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from queuekeeper.checks import check_integer
from queuekeeper.clock import Backoff
from queuekeeper.errors import Rejected, UsageError
from queuekeeper.fanout.reports import FanoutMessage
from queuekeeper.service import handlers as service

Work: TypeAlias = Callable[[FanoutMessage], Any]
"""Function, for asyncio a coroutine function, that works on a message. It fails by raising an exception."""

MAX_ATTEMPTS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Rules for a message on which a handler has failed.

    :param max_attempts: number of attempts, 5 by default, after which a message becomes a dead letter; ``None`` means
        never.
    :param first_delay_ms: delay in ms before the second attempt, 1,000 by default.
    :param factor: number by which each further delay is multiplied, 2 by default.
    :param max_delay_ms: longest delay in ms, 300,000 by default.
    :param jitter: largest share of a delay that is left out at random, 0.5 by default, so that messages that failed
        together are not retried together.
    :param dead_on: exceptions that no retry will cure, by default :class:`~queuekeeper.errors.Rejected`: the message
        becomes a dead letter at once. A group of exceptions, as of a ``TaskGroup``, counts as one if it holds one.
    :param time_limit_ms: time in ms that a handler may take for a message; then it has failed with
        :class:`~queuekeeper.errors.TimeLimitExceeded`. ``None``, the default, sets no limit. In a thread the error is
        raised once the handler runs Python code rather than a query or a sleep.
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
        check_integer("first_delay_ms", self.first_delay_ms, 0, service.LONGEST_MS)
        check_integer("max_delay_ms", self.max_delay_ms, self.first_delay_ms, service.LONGEST_MS)
        for name, value, least, most in (("factor", self.factor, 1, 1_000), ("jitter", self.jitter, 0, 1)):
            # NaN is in no range.
            if type(value) not in (int, float) or not least <= value <= most:
                raise UsageError(f"{name} is {value!r}: it must be a number from {least} to {most}")
        service.check_time_limit(self)
        service.check_dead_on(self)

    def delay_ms(self, attempt: int, *, draw: Callable[[], float]) -> int:
        """Return the delay after a failed attempt.

        :param attempt: number of the attempt, from 1.
        :param draw: random number from 0 to 1.
        """
        backoff = Backoff(
            first_s=self.first_delay_ms / 1_000, longest_s=self.max_delay_ms / 1_000, factor=float(self.factor)
        )
        return round(1_000 * backoff.after(attempt - 1) * (1 - self.jitter * draw()))

    def judge(self, message: FanoutMessage, error: BaseException, *, draw: Callable[[], float]) -> Failed:
        """Return what to report for a message whose handler has raised an error."""
        reason = service.reason_of(error)
        if service.is_one_of(error, self.dead_on):
            return Failed(delay_ms=0, max_attempts=1, reason=reason)
        delay_ms = self.delay_ms(message.attempt, draw=draw)
        return Failed(delay_ms=delay_ms, max_attempts=self.max_attempts, reason=reason)

    def is_final(self, message: FanoutMessage, error: BaseException) -> bool:
        """Whether a message becomes a dead letter."""
        return self.judge(message, error, draw=float).is_final(message)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A failed attempt, with the arguments of ``nack``."""

    delay_ms: int
    max_attempts: int | None
    reason: str

    def is_final(self, message: FanoutMessage) -> bool:
        """Whether the message becomes a dead letter."""
        return self.max_attempts is not None and message.attempt >= self.max_attempts


@dataclass(frozen=True, kw_only=True)
class Handler(service.Handler[FanoutMessage]):
    """A function for fan-out queues with the rules for its failures."""

    of = "fan-out queues"
    store = "fanout"

    work: Work
    rules: RetryRules = field(default_factory=RetryRules)


handler = service.with_rules(RetryRules, Handler, example="max_attempts=8, dead_on=(ValueError,)")


class Middleware(service.Middleware[FanoutMessage]):
    """Observes or wraps attempts; its methods are called in the thread or task of the handler."""
