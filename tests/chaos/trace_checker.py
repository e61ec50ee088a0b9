"""Has TLC replay traces against a model, many in one run."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from scripts import prove

LIMIT_S = 900.0
"""Longest time in seconds that one replay may take: far more than any has needed, on a machine with other work too."""

_REACHED = re.compile(r'^"<<\\?"reached\\?", (\d+), <<([\d, ]*)>>>>"', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A request to one server, with its reply.

    :param from_s: when it was begun.
    :param until_s: when its reply had come.
    :param facts: as the module of the trace names them.
    """

    from_s: float
    until_s: float
    facts: dict[str, Any]


Trace: TypeAlias = Sequence[Sequence[Line]]
"""Lanes of lines, in each of which one line follows the other; lines of several may have happened in any order."""


@dataclass(frozen=True, kw_only=True)
class Stuck:
    """A trace that the model does not allow, as far as it comes.

    :param due: the line that would have to happen next, since it had ended before all others that are left.
    """

    name: str
    lines: int
    reached: int
    due: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name!r}: the model allows {self.reached} of {self.lines} lines, and not {self.due}"


def check(
    model: str, traces: Mapping[str, Trace], *, constants: Mapping[str, str], invariants: Sequence[str]
) -> list[Stuck]:
    """Replay traces; return those that are not the model's.

    :raises prove.Unproved: when TLC cannot read them, has not ended within :data:`LIMIT_S`, or an invariant of the
        model does not hold.
    """
    with tempfile.TemporaryDirectory(prefix="queuekeeper-traces-") as folder:
        place = Path(folder)
        for name in (f"Trace{model}", "Replay", model):
            shutil.copy(prove.PROOFS / f"{name}.tla", place)
        (place / "Traces.tla").write_text(_module(list(traces.values())), "utf-8")
        words = ["INIT TraceInit", "NEXT TraceNext", "CONSTRAINT Progress", "VIEW View"]
        words += [f"CONSTANT {name} = {value}" for name, value in constants.items()]
        words += [f"INVARIANT {name}" for name in invariants]
        (place / f"Trace{model}.cfg").write_text("\n".join(words) + "\n", "utf-8")
        said = prove.run_tlc(place, f"Trace{model}", size="small", limit_s=LIMIT_S)
    if "No error has been found" not in said:
        raise prove.Unproved(f"TLC could not replay traces of {model}: {said[-3_000:]}")
    reached: dict[int, list[int]] = {}
    for number, taken in _REACHED.findall(said):
        reached[int(number)] = [int(each) for each in taken.split(",")]
    stuck: list[Stuck] = []
    for number, (name, lanes) in enumerate(traces.items(), start=1):
        found = reached.get(number, [0] * len(lanes))
        left = [lane[at] for lane, at in zip(lanes, found, strict=True) if at < len(lane)]
        if left:
            due = min(left, key=lambda line: line.until_s).facts
            stuck.append(Stuck(name=name, lines=sum(map(len, lanes)), reached=sum(found), due=due))
    return stuck


def _module(traces: Sequence[Trace]) -> str:
    # What is the same in many traces is read once.
    names: dict[str, str] = {}

    def name_of(text: str) -> str:
        return names.setdefault(text, f"L{len(names) + 1}")

    texts = [
        "<<" + ", ".join(name_of(_lane(lanes, number, name_of)) for number in range(len(lanes))) + ">>"
        for lanes in traces
    ]
    lines = "\n".join(f"{name} == {text}" for text, name in names.items())
    body = "\n".join(f"T{number} == {text}" for number, text in enumerate(texts, start=1))
    every = ", ".join(f"T{number}" for number in range(1, len(texts) + 1))
    return f"---- MODULE Traces ----\n{lines}\n\n{body}\n\nTraces == <<{every}>>\n====\n"


def _lane(lanes: Trace, number: int, name_of: Callable[[str], str]) -> str:
    """Return a lane in TLA+; a line needs what had ended before it began, and its lane's earlier lines needed less."""
    needed = [0] * len(lanes)
    names = []
    for line in lanes[number]:
        needs: set[tuple[int, int]] = set()
        for other, lane in enumerate(lanes):
            at = needed[other]
            while other != number and at < len(lane) and lane[at].until_s < line.from_s:
                at += 1
            if at > needed[other]:
                needed[other] = at
                needs.add((other + 1, at))
        names.append(name_of(_tla(line.facts | {"needs": needs})))
    return "<<" + ", ".join(names) + ">>"


def _tla(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case str():
            return f'"{value}"'
        case dict():
            return "[" + ", ".join(f"{name} |-> {_tla(each)}" for name, each in value.items()) + "]"
        case set():
            return "{" + ", ".join(map(_tla, sorted(value))) + "}"
        case tuple():
            return "<<" + ", ".join(map(_tla, value)) + ">>"
        case int() if value < 0:
            # The models know no minus sign of one number.
            return f"(0 - {-value})"
    return str(value)
