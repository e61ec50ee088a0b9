"""What processes have written down of a session, as a trace that ``proofs/TraceSave.tla`` replays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from queuekeeper.sessions.steps import read_runs
from scripts import prove
from tests.chaos.trace_checker import Line, Stuck, Trace, check
from tests.chaos.trace_lines import Asked, lanes_of, line_of, read_calls, several
from tests.chaos.traced_saves import BATCH, IDS, LIMIT, WRITERS

_MANY = "1000000"
_PAIR = 2
_NAME = re.compile(r"steps-(?P<unheard>unheard-)?(?P<by>[a-z]+)-[0-9]+\.jsonl")
_OWN = {"LimitIsKept"}
"""Invariants that the module of the trace has otherwise."""


class SaveTrace:
    """The trace of the one session that the processes of a folder have used.

    :param folder: of the files that :mod:`trace_recorder` has written.
    """

    def __init__(self, folder: Path) -> None:
        self._processes: list[list[Line]] = []
        for path in sorted(folder.glob("steps-*.jsonl")):
            name = _NAME.fullmatch(path.name)
            assert name is not None, path
            calls = list(read_calls(path)) if path.stat().st_size else []
            lines = [line for each in calls for line in _lines(each, name["by"], heard=not name["unheard"])]
            read: dict[str, Any] = {"sent": 0, "highest": 0}
            for line in lines:
                if line.facts["do"] == "read" and line.facts["heard"]:
                    read = {name: line.facts[name] for name in read}
                elif line.facts["do"] == "trim":
                    line.facts.update(read)
            self._processes.append(lines)

    def lanes(self) -> Trace:
        """Return the trace."""
        return [lane for lines in self._processes for lane in lanes_of(lines)]

    def replay(self, traces: Mapping[str, Trace]) -> list[Stuck]:
        """Replay traces; return those that the model does not allow."""
        constants = {
            "Writers": "{" + ", ".join(f'"{name}"' for name in WRITERS) + "}",
            "Batches": _MANY,
            "Calls": str(BATCH),
            "Ids": str(IDS),
            "Limit": str(LIMIT),
            "Theirs": _MANY,
            "Losses": _MANY,
        }
        invariants = [name for name in prove.models()["Save"]["invariants"] if name not in _OWN]
        return check("Save", traces, constants=constants, invariants=invariants)


def _lines(asked: Asked, by: str, *, heard: bool) -> Iterator[Line]:
    parts = list(_READ[asked.what](asked)) if asked.what in _READ else []
    facts = {"by": by, "heard": heard}
    yield from several(asked, [facts | part for part in parts], lost=asked.is_lost)
    if asked.is_lost and heard and by in WRITERS:
        # Its writer knows no more than that, and begins anew.
        yield line_of(asked.until_s, asked.until_s, facts | {"do": "give up"})


def _save(asked: Asked) -> Iterator[dict[str, Any]]:
    _, expected, *_, batch = asked.facts["heading"].split(":", 5)
    chunk = int(batch.split(":")[3])
    unknown: dict[str, Any] = {"word": "", "first_serial": 0, "references": 0}
    reply = unknown if asked.is_lost else asked.reply
    messages = [_message(text) for text in asked.facts["messages"][1::_PAIR]]
    ids, numbers = tuple(packet_id for packet_id, _, _ in messages), tuple(number for *_, number in messages)
    facts = {"numbers": set(numbers), "chunk": chunk}
    match reply["word"]:
        case "conflict":
            in_use = {ids[place] for place in reply["positions"]}
            yield facts | {
                "do": "conflict",
                "expected": int(expected or 0),
                "last": int(reply["last_packet_id"] or 0),
                "ids": set(ids),
                "in_use": in_use,
            }
        case "forgotten":
            yield facts | {"do": "forgotten"}
        case "replayed":
            stored = read_runs(reply["packet_ids"].encode())
            for place, (number, packet_id) in enumerate(zip(numbers, stored, strict=True)):
                yield {
                    "do": "replay",
                    "number": number,
                    "id": packet_id,
                    "serial": reply["first_serial"] + place,
                }
        case _:
            before = int(expected or 0)
            for place, (packet_id, _, number) in enumerate(messages):
                yield {
                    "do": "save",
                    "number": number,
                    "expected": before,
                    "id": packet_id,
                    "serial": int(reply["first_serial"]) + place,
                    "references": int(reply["references"]),
                }
                before = packet_id


def _read_session(asked: Asked) -> Iterator[dict[str, Any]]:
    if asked.is_lost:
        return
    fields = {each["field"]: each["value"] for each in asked.reply["fields"]}
    until = fields.get("until_ms", "new")
    yield {
        "do": "read",
        "last": int(asked.reply["last_packet_id"] or 0),
        "references": asked.reply["references"],
        "highest": int(asked.reply["highest"] or 0),
        "sent": max(0, int(fields.get("sent_up_to", 0))),
        "serial": int(fields.get("last_serial", 0)),
        "packet_id": int(fields.get("saved_last_packet_id", 0)),
        "lasts": until if until in ("new", "never") else "ends",
    }


def _list(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.is_lost:
        found = tuple((_id_of(each["member"]), int(each["score"])) for each in asked.reply["references"])
        yield {
            "do": "list",
            "after": max(0, int(asked.facts["start"])),
            "most": int(asked.facts["limit"]),
            "found": found,
        }


def _fetch(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.is_lost:
        records = [each["json"] for each in asked.reply["records"]]
        yield {
            "do": "fetch",
            "ids": {_id_of(key) for key in asked.facts["keys"][: len(records)]},
            "found": {_message(text) for text in records if text},
        }


def _missing(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.is_lost:
        ids = [_id_of(key) for key in asked.facts["keys"]]
        yield {"do": "look", "ids": set(ids), "free": {ids[place] for place in asked.reply["positions"]}}


def _trim(asked: Asked) -> Iterator[dict[str, Any]]:
    ids = [_id_of(key) for key in asked.facts["keys"][2:]]
    serials = [int(serial) for serial in asked.facts["serials"]]
    reply = {"trimmed": 0, "dead": 0, "references": 0} if asked.is_lost else asked.reply
    yield {
        "do": "trim",
        "most": int(asked.facts["limit"]),
        "wanted": tuple(zip(ids, serials, strict=True)),
        "after": serials[0] - 1,
        "trimmed": reply["trimmed"] + reply["dead"],
        "references": reply["references"],
    }


def _mark(asked: Asked) -> Iterator[dict[str, Any]]:
    yield {"do": "deliver", "upto": int(asked.facts["serial"]), "moved": not asked.is_lost and asked.reply == 1}


def _ack(asked: Asked) -> Iterator[dict[str, Any]]:
    ids = [_id_of(key) for key in asked.facts["keys"][2:]]
    for place, (packet_id, serial) in enumerate(zip(ids, asked.facts["serials"], strict=True)):
        removed = not asked.is_lost and asked.reply["removed"][place] == 1
        yield {"do": "ack", "id": packet_id, "serial": int(serial), "removed": removed}


def _add(asked: Asked) -> Iterator[dict[str, Any]]:
    # It stays away where its message would overwrite one that waits.
    if asked.is_lost or asked.reply:
        yield {"do": "add", "number": asked.facts["number"], "id": 0 if asked.is_lost else asked.reply}


def _dead(asked: Asked) -> Iterator[dict[str, Any]]:
    if not asked.is_lost:
        yield {"do": "sweep", "removed": asked.reply["removed"]}


def _give_up(_: Asked) -> Iterator[dict[str, Any]]:
    yield {"do": "give up"}


_READ = {
    "save_messages": _save,
    "read_session": _read_session,
    "list_references": _list,
    "fetch_messages": _fetch,
    "find_missing": _missing,
    "trim_messages": _trim,
    "mark_delivered": _mark,
    "ack": _ack,
    "add": _add,
    "remove_dead_references": _dead,
    "give_up": _give_up,
}


def _id_of(key: str) -> int:
    return int(key.rpartition("_")[2])


def _message(text: str) -> tuple[int, str, int]:
    """Return packet id, writer and number of a message; its topic says who has written it."""
    fields = orjson.loads(text)
    by, _, number = fields["topicName"].partition(" ")
    return fields["packetId"], by, int(number)
