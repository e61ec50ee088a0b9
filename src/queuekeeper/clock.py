"""Where time comes from: one clock that callers pass in, so that tests can stop it, and a pace to keep by it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

Clock = Callable[[], int]
"""Answers the current time as milliseconds since 1970-01-01 UTC."""


def system_clock() -> int:
    """Return this machine's time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


INSTANT_RULE = (
    "it must be date and time with a time zone; write it like 2100-01-31T18:30:00+01:00, or 2100-01-31T17:30Z"
)


def read_instant(text: str) -> datetime:
    """Return the instant that a text names.

    :raises ValueError: when the text breaks :data:`INSTANT_RULE`.
    """
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return found


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait before something is tried again: longer each time.

    :param first_s: before it is tried again for the first time.
    :param longest_s: bound of a single wait.
    :param factor: by which each wait is longer than the one before, 1 or more.
    """

    first_s: float
    longest_s: float
    factor: float = 2.0

    def after(self, attempt: int) -> float:
        """Return how many seconds to wait.

        :param attempt: how often it was tried again before.
        """
        return min(self.longest_s, self.first_s * math.exp2(min(attempt * math.log2(self.factor), 64.0)))


SERVER_BACKOFF = Backoff(first_s=0.05, longest_s=2.0)
"""For a server that refuses for now or does not answer."""

HANDLER_BACKOFF = Backoff(first_s=0.1, longest_s=60.0)
"""For a handler that keeps the order and gets again what it has failed on."""


class Bucket(Protocol):
    """Holds all that share a rate to it together, however many they are."""

    @property
    def ahead_s(self) -> float:
        """How much a caller takes at least, in seconds of the whole rate, so that it need not ask for every step."""

    def take(self, amount: float, *, rate: float) -> float:
        """Take so much work, and return how much the rate has to release before it may be done; 0 or less for none."""


@dataclass
class OwnBucket:
    """A bucket of one process.

    Unused time is worth half a second's work at most.
    """

    now_s: Callable[[], float] = time.monotonic
    ahead_s: float = 0.0
    _debt: float = field(default=0.0, init=False)
    _rate: float = field(default=0.0, init=False)
    _at_s: float = field(default=0.0, init=False)

    def take(self, amount: float, *, rate: float) -> float:
        """Take so much work, and return how much the rate has to release before it may be done; 0 or less for none."""
        now = self.now_s()
        # A bucket begins empty: without a rate, time releases nothing.
        left = self._debt - (now - self._at_s) * self._rate
        self._debt = max(left, -UNUSED_S * rate) + amount
        self._rate, self._at_s = rate, now
        return self._debt


UNUSED_S = 0.5
"""Seconds of unused time that may be caught up with."""


@dataclass
class Pace:
    """Holds work to a rate that may change while it goes on, and has it report about once a second.

    :param report: called about once a second; returns how much may be done per second, or none for no limit.
    :param bucket: is shared by all that the rate counts for; by default this is the only one.
    """

    report: Callable[[], float | None]
    bucket: Bucket | None = None
    now_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _rate: float | None = field(default=None, init=False)
    _reported_s: float = field(default=float("-inf"), init=False)
    _taken: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._bucket: Bucket = self.bucket or OwnBucket(self.now_s)

    def __call__(self, amount: float) -> None:
        """Wait until so much may be done; a chunk is never cut, so one may go on top of what is released."""
        self._look()
        if self._rate is None:
            return
        if amount > self._taken:
            more = max(amount - self._taken, self._bucket.ahead_s * self._rate)
            self._wait(self._bucket.take(more, rate=self._rate))
            self._taken += more
        self._taken -= amount

    def _wait(self, debt: float) -> None:
        waited_from_s = self.now_s()
        while self._rate is not None and debt > 0:
            rate = self._rate
            self.sleep(min(1.0, debt / rate))
            now = self.now_s()
            debt -= (now - waited_from_s) * rate
            waited_from_s = now
            self._look()

    def _look(self) -> None:
        now = self.now_s()
        if now - self._reported_s >= 1.0:
            self._reported_s = now
            self._rate = self.report()
