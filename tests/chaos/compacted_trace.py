"""What processes have written down of a compacted queue, as a trace that ``proofs/TraceCompacted.tla`` replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts import prove
from tests.chaos.trace_checker import Line, Stuck, Trace, check
from tests.chaos.trace_lines import Asked, lanes_of, read_calls, several
from tests.chaos.traced_compacted import WINDOW

_MANY = "1000000"
_CHANGE = {"append", "subscribe", "fetch", "ack", "rewind", "collect"}
_LOOK = {"heartbeat", "release", "find_due", "peek", "inspect"}
"""Calls that change nothing of the model: without a reply, they say nothing."""

_NO_STEPS = {"", "QueueBusy", "UnknownQueue"}
"""Kinds of errors of a call that nothing has come of, where none is expected but for a stale fence."""


class CompactedTrace:
    """The trace of the one queue that the processes of a folder have used.

    :param folder: of the files that :mod:`trace_recorder` has written.
    """

    def __init__(self, folder: Path) -> None:
        self._processes = [list(read_calls(path)) for path in sorted(folder.glob("steps-*.jsonl"))]
        self._calls = sorted((each for calls in self._processes for each in calls), key=lambda each: each.from_s)
        # TLC's numbers are small.
        self._first_ms = min(each.facts["now"] for each in self._calls if each.what == "append") - 1
        self._epochs = {epoch: place for place, epoch in enumerate(sorted(set(self._told_epochs())), start=1)}
        self._producers: dict[str, None] = {}
        self._written: dict[str, tuple[str, int]] = {}
        self._repeated_from_s: set[float] = set()
        self._note_values()

    def lanes(self) -> Trace:
        """Return the trace."""
        lines = [[line for each in calls for line in self._lines(each)] for calls in self._processes]
        return [lane for process in lines for lane in lanes_of(process)]

    def replay(self, traces: Mapping[str, Trace]) -> list[Stuck]:
        """Replay traces; return those that the model does not allow."""
        keys = {key for each in self._calls if each.what == "append" for key, *_ in _entries(each)}
        constants = {
            "Keys": _set_of(keys),
            "Producers": _set_of(self._producers),
            "Appends": _MANY,
            "Window": str(WINDOW),
            "Troubles": _MANY,
        }
        return check("Compacted", traces, constants=constants, invariants=prove.models()["Compacted"]["invariants"])

    def _told_epochs(self) -> Iterator[int]:
        for each in self._calls:
            if each.what in {"subscribe", "rewind"} and not each.error:
                yield each.reply["epoch"]
            elif each.what == "inspect" and not each.error and each.reply is not None:
                yield int(_fields(each)["epoch"])

    def _note_values(self) -> None:
        """Note who has written each value: each place of a producer's lists is a producer of the model."""
        made: dict[str, int] = {}
        last: dict[str, str] = {}
        for each in self._calls:
            if each.what != "append":
                continue
            name, number = each.facts["producer"], each.facts["number"]
            is_new, last[name] = last.get(name) != number, number
            if not is_new:
                self._repeated_from_s.add(each.from_s)
            for place, (_, record, *_) in enumerate(_entries(each)):
                producer = f"{name} {place}"
                made[producer] = made.get(producer, 0) + is_new
                self._producers[producer] = None
                self._written[record] = (producer, made[producer])

    def _lines(self, asked: Asked) -> Iterator[Line]:
        if asked.what not in _CHANGE | _LOOK or asked.error in _NO_STEPS - {""}:
            return
        if asked.is_lost and asked.what in _LOOK:
            return
        if asked.error == "StaleEpoch":
            parts = [{"do": "refused", "epoch": self._epoch(asked)}]
        elif asked.error and not asked.is_lost:
            raise ValueError(f"a call has failed: {asked.what}, {asked.error}")
        else:
            parts = list(getattr(self, f"_{asked.what}")(asked))
        yield from several(asked, parts, lost=asked.is_lost)

    def _append(self, asked: Asked) -> Iterator[dict[str, Any]]:
        reply: dict[str, Any] = {"word": "replayed", "first_sequence": 0} if asked.is_lost else asked.reply
        is_stored = reply["word"] == ""
        for place, (key, _, tombstone, _) in enumerate(_entries(asked)):
            yield {
                "do": "append",
                "producer": f"{asked.facts['producer']} {place}",
                "key": key,
                "tombstone": tombstone == 1,
                "now": self._at(asked.facts["now"]),
                "stored": is_stored,
                "repeated": asked.from_s in self._repeated_from_s,
                "number": int(reply["first_sequence"]) + place,
                "replaced": int(reply["replaced"][place]) if is_stored else 0,
            }
        if is_stored:
            yield {"do": "appended", "live": int(reply["live"])}

    def _subscribe(self, asked: Asked) -> Iterator[dict[str, Any]]:
        names = ("acked", "sent", "sequence", "lag", "in_flight")
        reply = dict.fromkeys((*names, "epoch"), 0) if asked.is_lost else asked.reply
        yield {"do": "subscribe", "epoch": self._epochs.get(reply["epoch"], 0)} | {each: reply[each] for each in names}

    def _fetch(self, asked: Asked) -> Iterator[dict[str, Any]]:
        acks = list(self._acks(asked))
        yield from acks
        facts = {
            "do": "fetch",
            "epoch": self._epoch(asked),
            "limit": asked.facts["limit"],
            "redeliver": asked.facts["redeliver"] == 1,
        }
        if not asked.is_lost:
            messages = asked.reply["messages"]
            rows, again = [self._row(each) for each in messages], asked.reply["redelivered"]
            facts |= _told_of_acks(asked, first=not acks) | {"lag": asked.reply["lag"]}
            facts |= {"again": tuple(rows[:again]), "new": tuple(rows[again:])}
        yield facts

    def _ack(self, asked: Asked) -> Iterator[dict[str, Any]]:
        yield from self._acks(asked)
        if not asked.is_lost:
            yield {"do": "acked"} | _told_of_acks(asked, first=False)

    def _acks(self, asked: Asked) -> Iterator[dict[str, Any]]:
        epoch = self._epoch(asked)
        for place, number in enumerate(asked.facts["sequences"]):
            yield {"do": "ack", "epoch": epoch, "number": int(number), "first": place == 0}

    def _heartbeat(self, asked: Asked) -> Iterator[dict[str, Any]]:
        told = {"lag": asked.reply["lag"], "in_flight": asked.reply["in_flight"]}
        yield {"do": "heartbeat", "epoch": self._epoch(asked)} | told

    def _release(self, asked: Asked) -> Iterator[dict[str, Any]]:
        yield {"do": "release", "epoch": self._epoch(asked), "ok": asked.reply == 1}

    def _rewind(self, asked: Asked) -> Iterator[dict[str, Any]]:
        facts: dict[str, Any] = {"do": "rewind"}
        if not asked.is_lost:
            reply = asked.reply
            facts |= {"epoch": self._epochs[reply["epoch"]], "before": reply["old_acked"]}
            facts |= {"acked": reply["new_acked"], "lag": reply["to_deliver"]}
        yield facts

    def _find_due(self, asked: Asked) -> Iterator[dict[str, Any]]:
        rows = {
            (row["key"], row["sequence"], self._at(row["ms"]), row["is_tombstone"] == 1) for row in asked.reply["rows"]
        }
        yield {"do": "find", "rows": rows} | self._retained(asked)

    def _collect(self, asked: Asked) -> Iterator[dict[str, Any]]:
        names = asked.facts["rows"]
        rows = set(zip(names[::2], map(int, names[1::2]), strict=True))
        facts: dict[str, Any] = {"do": "collect", "rows": rows} | self._retained(asked)
        if not asked.is_lost:
            reply = asked.reply
            stayed = set(map(int, reply["stayed"]))
            facts |= {"removed": reply["deleted"], "live": reply["live"], "stayed": stayed}
        yield facts

    def _peek(self, asked: Asked) -> Iterator[dict[str, Any]]:
        yield {"do": "peek", "rows": tuple(self._row(each) for each in asked.reply["messages"])}

    def _inspect(self, asked: Asked) -> Iterator[dict[str, Any]]:
        if asked.reply is not None:
            fields = _fields(asked)
            facts = {name: asked.reply[name] for name in ("live", "tombstones", "lag", "in_flight")}
            facts |= {name: int(fields[name]) for name in ("sequence", "acked", "sent")}
            yield {"do": "inspect", "epoch": self._epochs.get(int(fields["epoch"]), 0)} | facts

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        number, flags, record = row["value"].split(" ", 2)
        is_tombstone = flags == "1"
        producer, place = ("", 0) if is_tombstone else self._written[record]
        return {
            "key": row["key"],
            "number": row["sequence"] if row["sequence"] == int(number) else 0,
            "at": self._at(row["ms"]),
            "tombstone": is_tombstone,
            "producer": producer,
            "place": place,
        }

    def _retained(self, asked: Asked) -> dict[str, int]:
        return {"now": self._at(asked.facts["now"]), "keep": asked.facts["retention_ms"]}

    def _epoch(self, asked: Asked) -> int:
        return self._epochs[int(asked.facts["epoch"])]

    def _at(self, instant_ms: int) -> int:
        at: int = instant_ms - self._first_ms
        return at


def _told_of_acks(asked: Asked, *, first: bool) -> dict[str, Any]:
    reply = asked.reply
    return {"heard": reply["acked_now"], "acked": reply["acked"], "in_flight": reply["in_flight"], "first": first}


def _entries(asked: Asked) -> Iterator[tuple[Any, ...]]:
    """Yield key, record, mark of a tombstone, and condition of each entry of an append."""
    values = iter(asked.facts["entries"])
    return zip(values, values, values, values, strict=True)


def _fields(inspected: Asked) -> dict[str, str]:
    return {each["field"]: each["value"] for each in inspected.reply["fields"]}


def _set_of(names: Sequence[str] | Mapping[str, Any] | set[str]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in sorted(names)) + "}"
