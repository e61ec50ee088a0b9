"""Puts steps that a system which keeps its promises does not take into a trace of what has happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.trace_checker import Line, Trace

Facts = dict[str, Any]
Change = Callable[[Facts], Sequence[Facts]]
"""Gives what stands in place of a line: for each new line the facts that differ; nothing when the line is left out."""


@dataclass(frozen=True, kw_only=True)
class WrongStep:
    """A kind of wrong step.

    :param wanted: facts of the line that is changed.
    :param where: what else must be true of it.
    :param after: what a line before it in its lane has done; empty for nothing.
    :param alone: whether nobody else may have asked for anything meanwhile, as that could have made the line true.
    :param once: whether no other line may do the same to its message, as that one would make up for it.
    """

    wanted: Facts
    change: Change
    where: Callable[[Facts], bool] = lambda _: True
    after: str = ""
    alone: bool = False
    once: bool = False


def left_out(_: Facts) -> Sequence[Facts]:
    """Leave a line out."""
    return ()


def twice(_: Facts) -> Sequence[Facts]:
    """Let a line come twice."""
    return ({}, {})


def changed(**facts: Any) -> Change:
    """Let a line say something else."""
    return lambda _: [facts]


def moved(**by: int) -> Change:
    """Add to numbers of a line."""
    return lambda facts: [{name: facts[name] + number for name, number in by.items()}]


def wrong_traces(
    trace: Trace, kinds: Mapping[str, WrongStep], *, usable: Callable[[Facts], bool] = lambda _: True
) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :param usable: whether a line may be the wrong one.
    :raises LookupError: when the trace has no place for one.
    """
    return {what: _with(trace, _first(trace, kind, usable), kind.change) for what, kind in kinds.items()}


def _first(trace: Trace, kind: WrongStep, usable: Callable[[Facts], bool]) -> Line:
    """Return the first line of a lane that says what is wanted, behind the lane's other kind of line.

    One whose reply was lost may not have happened at all, so that no change makes it wrong.
    """
    wanted = kind.wanted | {"lost": False}
    for lane in trace:
        has_come = not kind.after
        for line in lane:
            if (
                has_come
                and wanted.items() <= line.facts.items()
                and kind.where(line.facts)
                and usable(line.facts)
                and not (kind.alone and _had_company(trace, line))
                and not (kind.once and _came_again(trace, line))
            ):
                return line
            has_come = has_come or line.facts["do"] == kind.after
    raise LookupError(f"nothing in the trace says {kind.wanted} behind {kind.after or 'its beginning'}")


def _had_company(trace: Trace, line: Line) -> bool:
    """Whether another request was at work at the same time; lines of one request have its two moments."""
    mine = (line.from_s, line.until_s)
    return any(
        (other.from_s, other.until_s) != mine and other.from_s <= line.until_s and line.from_s <= other.until_s
        for lane in trace
        for other in lane
    )


def _came_again(trace: Trace, line: Line) -> bool:
    same = {"do": line.facts["do"], "number": line.facts["number"]}
    return any(other is not line and same.items() <= other.facts.items() for lane in trace for other in lane)


def _with(trace: Trace, wrong: Line, change: Change) -> Trace:
    new = [replace(wrong, facts=wrong.facts | facts) for facts in change(wrong.facts)]
    lanes = []
    for lane in trace:
        changed_lane: list[Line] = []
        for line in lane:
            if line is not wrong:
                changed_lane.append(line)
            elif new:
                # What belongs to one request still does.
                changed_lane += [replace(each, facts=each.facts | {"more": True}) for each in new[:-1]] + new[-1:]
            elif not wrong.facts["more"] and changed_lane and changed_lane[-1].facts["more"]:
                changed_lane[-1] = replace(changed_lane[-1], facts=changed_lane[-1].facts | {"more": False})
        lanes.append(changed_lane)
    return lanes
