"""Samples of a step's running count: the time at work that they cover, and which two become one when there are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

MOST_SAMPLES = 500
"""Samples that are kept of a step, however long it works."""

RECENT_MS = 60_000
"""Time over which the present speed is measured; samples in it are not merged."""

PAUSE_MS = 30_000
"""Longest time between two samples of a step at work; a longer silence is a pause between two runs."""


@dataclass(frozen=True, kw_only=True)
class ThroughputSample:
    """Messages done at an instant.

    :param worked_ms: time at work since the sample before; none where it follows from the instants of both.
    :param messages: messages done in that time; none where they follow from both counts.
    """

    at_ms: int
    done: int
    worked_ms: int | None = None
    messages: int | None = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """Work between two samples; none, where a run begins.

    :param sample: the one at its end.
    """

    sample: ThroughputSample
    worked_ms: int = 0
    messages: int = 0

    @property
    def messages_per_s(self) -> float:
        """Speed; 0 where a run begins."""
        return self.messages * 1_000 / self.worked_ms if self.worked_ms else 0.0


def spans(samples: Sequence[ThroughputSample]) -> list[Span]:
    """Return the work that ends with each sample, without the times in which nothing was at work.

    A count is recorded when it changes and when a task begins. A new run begins with the first sample, with a task that
    begins after another has ended, with a count that starts again, and after a long silence.
    """
    found: list[Span] = []
    for before, sample in zip([None, *samples], samples, strict=False):
        if sample.worked_ms is not None and sample.messages is not None:
            found.append(Span(sample=sample, worked_ms=sample.worked_ms, messages=sample.messages))
            continue
        gap_ms = 0 if before is None else sample.at_ms - before.at_ms
        messages = 0 if before is None else sample.done - before.done
        at_work = messages > 0 and gap_ms <= PAUSE_MS
        found.append(Span(sample=sample, worked_ms=gap_ms, messages=messages) if at_work else Span(sample=sample))
    return found


def to_merge(samples: Sequence[ThroughputSample]) -> tuple[ThroughputSample, ThroughputSample] | None:
    """Return a sample to leave out, and the next one as it takes over its time and messages; none if all are needed.

    The first sample stays, the fastest span, and what the present speed is measured by. The shortest two spans of a run
    become one; where no run has two, a run goes on with the next.
    """
    found = spans(samples)
    fastest = max(found, key=lambda span: span.messages_per_s, default=None)
    pairs = [
        (first, second)
        for first, second in pairwise(found[1:])
        if fastest not in (first, second)
        and second.sample.at_ms < samples[-1].at_ms - RECENT_MS
        and (second.worked_ms or not first.worked_ms)
    ]

    def cost(pair: tuple[Span, Span]) -> tuple[bool, int]:
        first, second = pair
        return bool(first.worked_ms) != bool(second.worked_ms), first.worked_ms + second.worked_ms

    if not pairs:
        return None
    first, second = min(pairs, key=cost)
    worked_ms, messages = first.worked_ms + second.worked_ms, first.messages + second.messages
    return first.sample, replace(second.sample, worked_ms=worked_ms, messages=messages)
