"""Where time comes from: one clock that callers pass in, so that tests can stop it, and a pace to keep by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], int]
"""Answers the current time as milliseconds since 1970-01-01 UTC."""


def system_clock() -> int:
    """Return this machine's time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait before something is tried again: twice as long each time.

    :param first_s: before it is tried again for the first time.
    :param longest_s: bound of a single wait.
    """

    first_s: float
    longest_s: float

    def after(self, attempt: int) -> float:
        """Return how many seconds to wait.

        :param attempt: how often it was tried again before.
        """
        return min(self.longest_s, self.first_s * 2.0 ** min(attempt, 64))


SERVER_BACKOFF = Backoff(first_s=0.05, longest_s=2.0)
"""For a server that refuses for now or does not answer."""

HANDLER_BACKOFF = Backoff(first_s=0.1, longest_s=60.0)
"""For a handler that keeps the order and gets again what it has failed on."""


@dataclass
class Pace:
    """Holds work to a rate that may change while it goes on, and has it report about once a second.

    Unused time is worth half a second's work at most; a chunk is never cut, so one may go on top of that.

    :param report: called about once a second; returns how much may be done per second, or none for no limit.
    """

    report: Callable[[], float | None]
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _rate: float | None = field(default=None, init=False)
    _reported_s: float = field(default=float("-inf"), init=False)
    _debt: float = field(default=0.0, init=False)
    _paid_s: float = field(default=0.0, init=False)

    def __call__(self, amount: float) -> None:
        """Wait until so much may be done."""
        self._look()
        self._debt += amount
        while self._rate is not None:
            now = self.now_s()
            # Half a second's worth may be done at once; unused time is not saved up.
            self._debt = max(self._debt - (now - self._paid_s) * self._rate, -0.5 * self._rate)
            self._paid_s = now
            if self._debt <= 0:
                return
            self.sleep(min(1.0, self._debt / self._rate))
            self._look()
        self._debt = 0.0

    def _look(self) -> None:
        now = self.now_s()
        if now - self._reported_s >= 1.0:
            self._reported_s = now
            rate = self.report()
            if rate is not None and self._rate is None:
                self._paid_s = now
            self._rate = rate
