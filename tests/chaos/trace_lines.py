"""Makes lines of a trace out of what a process has written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from tests.chaos.trace_checker import Line
from tests.chaos.trace_recorder import LOST, read_journal

LATE_S = 5.0
"""Within this time a server has carried out what a killed process has asked for, or never will."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request of a process, and what came of it.

    :param until_s: when its answer came; infinite when none has come.
    """

    what: str
    from_s: float
    until_s: float
    facts: dict[str, Any] = field(repr=False)
    reply: Any = None

    @property
    def error(self) -> str:
        """Kind of its error; empty without one."""
        if self.until_s == inf:
            return LOST
        return str(self.reply["error"]) if isinstance(self.reply, dict) and "error" in self.reply else ""

    @property
    def is_lost(self) -> bool:
        """Whether nobody was told what has come of it."""
        return self.error == LOST


def read_steps(path: Path) -> list[Asked]:
    """Return the requests of a process, in the order in which it has begun them."""
    found: dict[int, Asked] = {}
    for note in read_journal(path):
        if "over_s" in note:
            for number, each in found.items():
                if each.until_s == inf:
                    found[number] = replace(each, until_s=note["over_s"], reply={"error": LOST})
        elif "asked" in note:
            found[note["number"]] = Asked(what=note["asked"], from_s=note["at_s"], until_s=inf, facts=note)
        else:
            found[note["number"]] = replace(found[note["number"]], until_s=note["at_s"], reply=note["told"])
    return list(found.values())


def read_calls(path: Path) -> Iterator[Asked]:
    """Yield the calls of scripts of a process, as :func:`trace_recorder.record_scripts` has written them down."""
    for step in read_steps(path):
        for place, call in enumerate(step.facts["calls"]):
            reply = step.reply[place] if isinstance(step.reply, list) else step.reply
            yield replace(step, what=call["script"], facts=call, reply=reply)


def several(asked: Asked, parts: Sequence[Mapping[str, Any]], *, lost: bool) -> Iterator[Line]:
    """Cut a request into lines, between which nothing else happens."""
    for place, facts in enumerate(parts, start=1):
        yield line_of(asked.from_s, asked.until_s, {**facts, "more": place < len(parts), "size": len(parts)}, lost=lost)


def line_of(from_s: float, until_s: float, facts: Mapping[str, Any], *, lost: bool = False) -> Line:
    """Return a line; one of a request of its own, unless its facts say that more belongs to it."""
    return Line(
        from_s=from_s,
        until_s=from_s + LATE_S if until_s == inf else until_s,
        facts={"more": False, "size": 1, **facts, "lost": lost},
    )


def lanes_of(lines: Sequence[Line]) -> list[list[Line]]:
    """Put what one process has done at the same time beside each other."""
    found: list[list[Line]] = []
    last: Line | None = None
    into: list[Line] = []
    for each in sorted(lines, key=lambda each: each.from_s):
        if last is None or not last.facts["more"]:
            free = next((lane for lane in found if lane[-1].until_s <= each.from_s), None)
            if free is None:
                found.append(free := [])
            into = free
        into.append(each)
        last = each
    return found
