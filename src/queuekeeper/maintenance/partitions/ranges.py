"""Arithmetic of ranges: gaps, overlaps, and the ranges that are missing between two positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from queuekeeper.maintenance.partitions.keys import Span

_LOWEST = -(10**40)
_HIGHEST = 10**40


@dataclass(frozen=True, kw_only=True)
class Range:
    """Keys from a lower bound, included, to an upper bound, excluded.

    :param lower: none for MINVALUE.
    :param upper: none for MAXVALUE.
    """

    lower: int | None
    upper: int | None

    @property
    def start(self) -> int:
        """The lower bound as a number, also for MINVALUE."""
        return _LOWEST if self.lower is None else self.lower

    @property
    def end(self) -> int:
        """The upper bound as a number, also for MAXVALUE."""
        return _HIGHEST if self.upper is None else self.upper

    def overlaps(self, other: Range) -> bool:
        """Return whether the ranges share keys."""
        return self.start < other.end and other.start < self.end


def overlaps(ranges: Iterable[Range]) -> list[tuple[Range, Range]]:
    """Return neighbours that share keys."""
    ordered = sorted(ranges, key=lambda each: (each.start, each.end))
    found = []
    for at, one in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other.start >= one.end:
                break
            found.append((one, other))
    return found


def gaps(ranges: Iterable[Range], *, start: int, end: int) -> list[Range]:
    """Return the ranges between two positions that no given range covers."""
    found = []
    covered = start
    for each in sorted(ranges, key=lambda each: each.start):
        if each.start >= end:
            break
        if each.start > covered:
            found.append(Range(lower=covered, upper=each.start))
        covered = max(covered, each.end)
    if covered < end:
        found.append(Range(lower=covered, upper=end))
    return found


def covered_until(ranges: Iterable[Range], position: int) -> int | None:
    """Return the end of the ranges that cover a position without a gap; the position if uncovered, none for no end."""
    end = position
    for each in sorted(ranges, key=lambda each: each.start):
        if each.start <= end < each.end:
            end = each.end
    return None if end == _HIGHEST else end


def missing(ranges: Iterable[Range], *, step: Span, start: int, now: int, end: int, at_most: int) -> list[Range]:
    """Return the ranges that close every gap between two positions, cut along the edges of a step.

    Existing ranges are left as they are, whatever their edges, so that a changed step leaves neither gap nor overlap. A
    gap of the past that would take more ranges than allowed is closed by one range, since it is mostly empty.

    :param now: present position; gaps before it are of the past.
    :param at_most: most ranges to return; the next call returns further ones.
    """
    found: list[Range] = []
    for gap in gaps(ranges, start=start, end=end):
        if len(found) >= at_most:
            return found
        past = Range(lower=gap.start, upper=min(gap.end, step.floor(now)))
        lower = gap.start
        if past.start < past.end and _more_than(past, step, at_most - len(found)):
            found.append(past)
            lower = past.end
        for each in _cut(lower, gap.end, step):
            if len(found) >= at_most:
                return found
            found.append(each)
    return found


def _cut(lower: int, upper: int, step: Span) -> Iterator[Range]:
    while lower < upper:
        edge = min(step.next(lower), upper)
        yield Range(lower=lower, upper=edge)
        lower = edge


def _more_than(gap: Range, step: Span, count: int) -> bool:
    return any(at >= count for at, _ in enumerate(_cut(gap.start, gap.end, step)))
