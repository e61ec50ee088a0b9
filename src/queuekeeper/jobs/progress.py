"""How fast work goes, and how people are told."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
"""A rate is that of so many seconds: long enough to be steady, short enough to show a change."""


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


def line(step: str, *, done: int, total: int | None, rate: float, unit: str = "messages") -> str:
    """Return one line of progress.

    :param total: how much there is to do; none where nobody knows.
    :param rate: units per second.
    """
    share = "" if total is None else f" ({100 * done // total if total else 100} %)"
    text = f"{step} {done:,}{'' if total is None else f'/{total:,}'} {unit}{share}, {rate:,.0f}/s"
    left = 0 if total is None else total - done
    return f"{text}, {left / rate:,.0f} s left" if rate > 0 and left > 0 else text
