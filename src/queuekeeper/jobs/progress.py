"""How fast work goes, and how people are told."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

WINDOW_S = 10.0
"""A rate is that of so many seconds: long enough to be steady, short enough to show a change."""
LINE_S = 10.0
"""Seconds between two lines where there is no bar."""
SHOWN_S = 0.2
"""Seconds between two looks of a bar."""


class Rate:
    """Units per second over the last ten seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now_s: float, done: int) -> float:
        """Note how much is done by now, and return the rate.

        :param now_s: instant in seconds, by any clock that does not go back.
        """
        self._seen.append((now_s, done))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        before_s, before = self._seen[0]
        return (done - before) / (now_s - before_s) if now_s > before_s else 0.0


def line(step: str, *, done: int, total: int | None, rate: float | None, unit: str = "messages") -> str:
    """Return one line of progress.

    :param total: how much there is to do; none where nobody knows.
    :param rate: units per second; none where it is not known.
    """
    share = "" if total is None else f" ({100 * done // total if total else 100} %)"
    text = f"{step} {done:,}{'' if total is None else f'/{total:,}'} {unit}{share}"
    # Before the first and after the last unit, nothing moves, and nothing is wrong.
    if rate is None or (rate == 0 and done in (0, total)):
        return text
    left = 0 if total is None else total - done
    return f"{text}, {rate:,.0f}/s" + (f", {left / rate:,.0f} s left" if rate > 0 and left > 0 else "")


Watch: TypeAlias = Callable[[int, int | None, str], None]
"""Takes how much is done, how much there is to do, and the line that says so."""

_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Let narrators tell this in place of saying lines while the block runs."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


class Narrator:
    """Says every ten seconds how far a step is, or tells it at once where somebody watches.

    :param say: takes a line.
    :param total: how much there is to do; none where nobody knows.
    """

    def __init__(self, say: Callable[[str], None], step: str, *, total: int | None, unit: str) -> None:
        self._say, self._step, self._total, self._unit = say, step, total, unit
        self._rate, self._said_s = Rate(), time.monotonic()

    def at(self, done: int, more: str = "") -> None:
        """Take how much is done by now.

        :param more: what else the line says.
        """
        now_s = time.monotonic()
        rate, watch = self._rate.at(now_s, done), _WATCH.get()
        if now_s - self._said_s < (LINE_S if watch is None else SHOWN_S):
            return
        self._said_s = now_s
        text = line(self._step, done=done, total=self._total, rate=rate, unit=self._unit)
        if watch is None:
            self._say(text + more)
        else:
            watch(done, self._total, text)
