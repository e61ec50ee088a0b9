"""What processes have written down of events, as a trace that ``proofs/TraceDispatch.tla`` replays.

A transaction of several events is as many of the model's, which begin and end together. Their numbers are in the order
of the server's, whose count may begin anew at what a killed server has not written: each life is counted by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from scripts import prove
from tests.chaos.trace_checker import Line, Stuck, Trace, check
from tests.chaos.trace_lines import LATE_S, Asked, lanes_of, line_of, read_steps, several
from tests.chaos.trace_recorder import read_journal
from tests.chaos.traced_events import CHUNK, GROUPS

_MANY = "1000000"


@dataclass(kw_only=True)
class _Transaction:
    """A transaction of a publisher.

    :ivar first: its first number in the model.
    """

    begun: Asked
    publishes: list[Asked] = field(default_factory=list)
    end: Asked | None = None
    first: int = 0

    @property
    def place(self) -> tuple[str, int]:
        life, transaction_id = self.begun.reply
        return life, transaction_id

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + sum(each.facts["count"] for each in self.publishes))


class DispatchTrace:
    """The trace of the events that the processes of a folder have published, dispatched and read.

    :param folder: of the files that :mod:`trace_recorder` has written.
    """

    def __init__(self, folder: Path) -> None:
        self._processes = {path: read_steps(path) for path in sorted(folder.glob("steps-*.jsonl"))}
        self._transactions = {path: _transactions(steps) for path, steps in self._processes.items()}
        self._every = sorted(
            (each for found in self._transactions.values() for each in found), key=lambda each: each.place
        )
        self._numbers: dict[str, int] = {}
        number = 1
        for each in self._every:
            each.first = number
            number = each.numbers.stop
            told = [event_id for one in each.publishes if not one.error for event_id in one.reply]
            self._numbers |= dict(zip(told, each.numbers, strict=False))
        self._last = number - 1
        self._first_told = self._lives_of_snapshots()
        self._sessions = 0

    def lanes(self) -> Trace:
        """Return the trace."""
        self._sessions = 0
        lanes: list[list[Line]] = []
        for path, steps in self._processes.items():
            lines = [
                *self._of_publisher(path),
                *self._of_dispatcher(steps),
                *(line for group in GROUPS for line in self._of_consumer(steps, group)),
                *self._of_keeper(steps),
            ]
            lanes += lanes_of(lines)
        return lanes

    def replay(self, traces: Mapping[str, Trace]) -> list[Stuck]:
        """Replay traces; return those that the model does not allow."""
        constants = {
            "Transactions": str(self._last),
            "Groups": "{" + ", ".join(f'"{name}"' for name in GROUPS) + "}",
            "Chunk": str(CHUNK),
            "Crashes": _MANY,
        }
        invariants = prove.models()["Dispatch"]["invariants"]
        return check("Dispatch", traces, constants=constants, invariants=invariants)

    # Publishers

    def _of_publisher(self, path: Path) -> Iterator[Line]:
        over_s = next((note["over_s"] for note in read_journal(path) if "over_s" in note), inf)
        for each in self._transactions[path]:
            begun = [{"do": "begin", "number": number} for number in each.numbers]
            yield from several(each.begun, begun, lost=False)
            how = each.end.facts["how"] if each.end else "abort"
            last = each.end or each.publishes[-1]
            from_s, until_s = last.from_s, last.until_s
            if each.end is None or each.end.error:
                # The server takes it back when it notices that nobody is there any more.
                how = "unknown" if how == "commit" else "abort"
                from_s = each.begun.until_s if each.end is None else from_s
                until_s = min(over_s, (from_s if until_s == inf else until_s) + LATE_S)
            is_told = each.end is not None
            ended = [
                {"do": "end", "number": number, "of": each.first, "how": how, "is_told": is_told}
                for number in each.numbers
            ]
            yield from several(Asked(what="end", from_s=from_s, until_s=until_s, facts={}), ended, lost=False)

    # Dispatchers

    def _lives_of_snapshots(self) -> dict[str, str]:
        """Return in which life of the server each snapshot was taken; later polls go on with it."""
        polls = [each for steps in self._processes.values() for each in steps if each.what == "poll" and not each.error]
        found: dict[str, str] = {}
        for each in sorted(polls, key=lambda each: each.until_s):
            found.setdefault(_Polled(*each.reply).snapshot, _Polled(*each.reply).life)
        return found

    def _of_dispatcher(self, steps: Sequence[Asked]) -> Iterator[Line]:
        polled: tuple[Asked, _Polled] | None = None
        for each in steps:
            if each.what == "poll":
                polled = None if each.error else (each, _Polled(*each.reply))
                if polled and polled[1].is_mine and not polled[1].is_written:
                    yield line_of(each.from_s, each.until_s, {"do": "idle"})
            elif each.what == "end of poll" and polled and polled[1].is_written:
                look, done = polled
                numbers = tuple(self._numbers.get(event_id, 0) for event_id in done.ids)
                seen = self._seen(done.snapshot) | {"found": bool(numbers)}
                yield line_of(look.from_s, look.until_s, {"do": "look", "is_early": bool(seen["unseen"])} | seen)
                poll = {"do": "poll", "numbers": numbers, "cut": done.is_cut, "has_several": len(numbers) > 1}
                yield line_of(each.from_s, each.until_s, poll, lost=each.is_lost)

    def _seen(self, snapshot: str) -> dict[str, Any]:
        """Return the first number that a snapshot does not know, and those that it does not see before it."""
        life = self._first_told[snapshot]
        _, xmax, open_ids = snapshot.split(":")
        known = [each for each in self._every if each.place < (life, int(xmax))]
        at_work = {(life, int(each)) for each in open_ids.split(",") if each}
        unseen = {number for each in known if each.place in at_work for number in each.numbers}
        return {"below": known[-1].numbers.stop if known else 1, "unseen": unseen}

    # Consumers

    def _of_consumer(self, steps: Sequence[Asked], group: str) -> Iterator[Line]:
        ends: dict[str, int] = {}
        session = 0
        read_by: dict[str, list[tuple[float, int]]] = {}
        for each in steps:
            if each.facts.get("group_id") != group:
                continue
            facts: dict[str, Any] = {"group": group}
            if each.what == "read_next_events" and not each.error:
                ids, cursor = each.reply
                is_first = each.facts["cursor"] is None
                if is_first and not ids:
                    # Perhaps another connection owns the group.
                    continue
                if is_first:
                    self._sessions += 1
                    session = self._sessions
                numbers = tuple(self._numbers.get(event_id, 0) for event_id in ids)
                if ids:
                    ends[cursor] = numbers[-1]
                for event_id in ids:
                    read_by.setdefault(event_id, []).append((each.until_s, session))
                facts |= {"do": "read", "session": session, "first": is_first, "numbers": numbers}
                facts |= {"has_several": len(ids) > 1, "full": len(ids) == each.facts["limit"]}
                yield line_of(each.from_s, each.until_s, facts)
            elif each.what == "set_group_cursor" and (each.is_lost or not each.error):
                facts |= {"do": "confirm", "session": session, "number": ends[each.facts["cursor"]]}
                yield line_of(each.from_s, each.until_s, facts, lost=each.is_lost)
            elif each.what == "work" and not each.error:
                # A handler may still be at work on what a lost connection has read.
                of = [
                    max(by for read_s, by in read_by[event_id] if read_s <= each.from_s)
                    for event_id in each.facts["ids"]
                ]
                parts = [
                    facts | {"do": "work", "session": by, "number": self._numbers[event_id]}
                    for event_id, by in zip(each.facts["ids"], of, strict=True)
                ]
                yield from several(each, parts, lost=False)

    # Maintenance

    def _of_keeper(self, steps: Sequence[Asked]) -> Iterator[Line]:
        gone: set[int] = set()
        before: set[int] = set()
        maintained_s = inf
        for each in steps:
            if each.what == "maintain":
                maintained_s = min(maintained_s, each.from_s)
            if each.what != "stored" or each.error:
                continue
            stored = {self._numbers.get(event_id, 0) for event_id in each.reply}
            dropped = (before | self._committed(each.from_s)) - stored - gone
            gone |= dropped
            before = stored
            if dropped:
                yield line_of(maintained_s, each.from_s, {"do": "drop", "numbers": dropped})
            yield line_of(
                each.from_s, each.until_s, {"do": "stored", "numbers": stored, "has_several": len(stored) > 1}
            )
            maintained_s = inf

    def _committed(self, until_s: float) -> set[int]:
        """Return what others have been told that it is stored."""
        told = {
            number
            for each in self._every
            if each.end and each.end.facts["how"] == "commit" and not each.end.error and each.end.until_s < until_s
            for number in each.numbers
        }
        for steps in self._processes.values():
            for each in steps:
                if each.what == "read_next_events" and not each.error and each.until_s < until_s:
                    told |= {self._numbers.get(event_id, 0) for event_id in each.reply[0]}
        return told


@dataclass(frozen=True)
class _Polled:
    """What a poll has done, as :mod:`traced_events` asks for it."""

    life: str
    is_mine: bool
    is_written: bool
    snapshot: str
    is_cut: bool
    ids: Sequence[str]


def _transactions(steps: Sequence[Asked]) -> list[_Transaction]:
    found: dict[int, _Transaction] = {}
    for each in steps:
        of = int(each.facts.get("of", 0))
        if each.what == "begin" and not each.error:
            found[of] = _Transaction(begun=each)
        elif each.what == "publish":
            found[of].publishes.append(each)
        elif each.what == "end":
            found[of].end = each
    return [each for each in found.values() if each.publishes]
