"""What processes have written down of one client, as a trace that ``proofs/TraceOwner.tla`` replays.

A line here is a request to one server, with the moments between which it was carried out. What the model does not have
is left out: what was sent and released, clients that purge or come late, moves between layouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from queuekeeper.keyspace import client_slot, cohorts
from scripts import prove
from tests.chaos.trace_checker import Line, Stuck, Trace, check
from tests.chaos.trace_lines import LATE_S, Asked, lanes_of, line_of, read_steps, several
from tests.chaos.trace_recorder import LOST, read_journal

_WRITES = {"save_messages", "ack", "mark_delivered", "mark_released"}
_MOVED = {"NotOwner", "StaleEpoch", "SessionFenced"}
_BOUNDS = ("Messages", "Crashes", "Lapses", "Takes", "Backs")
_NOTHING = {"driver": 0, "epoch": 0}


class OwnerTraces:
    """All traces of a folder.

    :param folder: of the files that :mod:`trace_recorder` and the brokers have written.
    :param cohort_count: cohorts of the plan.
    """

    def __init__(self, folder: Path, *, cohort_count: int) -> None:
        self._cohorts = cohorts(count=cohort_count, shards=[(0, 16_383, "redis")])
        paths = sorted(folder.glob("steps-*.jsonl"))
        self._drivers = [read_steps(path) for path in paths if path.name.startswith("steps-driver-")]
        self._brokers = {
            path: read_steps(path)
            for path in paths
            if not path.name.startswith("steps-driver-") and path.stat().st_size
        }
        self._notes: dict[str, dict[str, list[dict[str, Any]]]] = {}
        for path in sorted(folder.glob("*.jsonl")):
            if not path.name.startswith("steps-"):
                by_client = self._notes.setdefault(path.stem, {})
                for note in read_journal(path):
                    by_client.setdefault(note["client_id"], []).append(note)

        # A message that was expired when it came has a number and no serial.
        self._serials: dict[str, dict[int, int]] = {}
        for by_client in self._notes.values():
            for client_id, notes in by_client.items():
                known = self._serials.setdefault(client_id, {})
                for note in notes:
                    if note["event"] == "sent":
                        known |= {serial: number for number, serial, *_ in note["messages"] if number >= 0}

    def clients(self) -> list[str]:
        """Return the clients that PostgreSQL has owned first, and that never begin anew."""
        return sorted(
            client_id
            for client_id in {each for notes in self._notes.values() for each in notes}
            if client_id and not client_id.startswith(("late-", "clean-"))
        )

    def of_client(self, client_id: str) -> Trace:
        """Return the trace of a client."""
        processes: list[list[Line]] = []
        for number, steps in enumerate(self._drivers, start=1):
            processes.append(list(self._of_driver(client_id, steps, number)))
        for name, notes in self._notes.items():
            lives = [
                list(_operations(client_id, steps)) for path, steps in self._brokers.items() if _broker(path) == name
            ]
            # One process goes on with what the one before it has begun.
            every = sorted((each for life in lives for each in life), key=lambda each: each.from_s)
            known = self._serials.get(client_id, {})
            processes += [list(_of_broker(life, every, notes.get(client_id, []), known)) for life in lives]
        lines = [line for process in processes for line in process]
        first = min(each.facts["epoch"] for each in lines if each.facts["epoch"])
        for line in lines:
            if line.facts["epoch"]:
                line.facts["epoch"] -= first - 1
        return [lane for process in processes for lane in lanes_of(process)]

    def replay(self, traces: Mapping[str, Trace]) -> list[Stuck]:
        """Replay traces; return those that the model does not allow."""
        drivers = ", ".join(map(str, range(1, len(self._drivers) + 1)))
        constants = {"Drivers": f"{{{drivers}}}", "Odd": "{}"} | dict.fromkeys(_BOUNDS, "1000000")
        return check("Owner", traces, constants=constants, invariants=prove.models()["Owner"]["invariants"])

    # Drivers and mirrors.

    def _of_driver(self, client_id: str, steps: Sequence[Asked], driver: int) -> Iterator[Line]:
        mine = [each for each in steps if self._is_about(client_id, each)]
        held: Asked | None = None
        for place, each in enumerate(mine):
            after = mine[place + 1] if place + 1 < len(mine) else None
            if each.what == "hold":
                held = each
            elif each.what in ("fence", "trim_outbox", "set_owner"):
                held = None
            facts = self._done_by_driver(client_id, each, after, held)
            if facts is None:
                continue
            from_s, until_s = each.from_s, each.until_s
            if facts["do"] in ("return", "mirror"):
                # Several statements of one transaction, which has ended before the next request.
                assert held is not None
                from_s, until_s = held.from_s, (each.until_s + LATE_S if facts.get("lost") else after.from_s)  # type: ignore[union-attr]
            yield _line(from_s, until_s, facts | {"driver": driver}, lost=each.is_lost or facts.get("lost", False))

    def _is_about(self, client_id: str, asked: Asked) -> bool:
        facts = asked.facts
        if asked.what == "take":
            slot = client_slot(client_id)
            return any(
                each.slot_first <= slot <= each.slot_last for each in self._cohorts if each.cohort in facts["cohorts"]
            )
        named = [
            facts.get("client_id"),
            *facts.get("client_ids", ()),
            *(call["client_id"] for call in facts.get("calls", ())),
        ]
        return client_id in named

    def _done_by_driver(
        self, client_id: str, asked: Asked, after: Asked | None, held: Asked | None
    ) -> dict[str, Any] | None:
        facts, reply, error = asked.facts, asked.reply, asked.error
        in_return = held is not None and held.facts.get("driver") is not None and not held.error
        match asked.what:
            case "take" if not error or asked.is_lost:
                return {"do": "take"}
            case "look" if not error:
                return _looked(reply.get(client_id))
            case "read_rows" if not error and not in_return:
                return {"do": "read rows", "numbers": _numbers(reply, self._serials.get(client_id, {}))}
            case "read_snapshot" | "read_copy" if not error and not facts["is_part"]:
                return {"do": "read keys", "numbers": _numbers(reply, self._serials.get(client_id, {}))}
            case "read_outbox" if not error:
                known = self._serials.get(client_id, {})
                serials = reply[0] if reply else ()
                return {
                    "do": "read notes",
                    "some": reply is not None,
                    # Nobody knows which message a serial was that no client and no driver has ever got.
                    "named": bool(reply) and all(serial in known for serial in serials),
                    "numbers": {known[serial] for serial in serials if serial in known},
                }
            case "apply_snapshot" if error != "NotOwner":
                return {"do": "copy", "epoch": facts["epoch"], "ok": error in ("", LOST)}
            case "fence" if asked.is_lost or isinstance(reply, list):
                return {"do": "fence", "owner": _store(facts["owner"]), "epoch": 0 if error else reply[1]}
            case "set_owner":
                told = {True: "set", False: "unchanged"}
                return _told(facts, LOST if asked.is_lost else "stale" if error else told[reply])
            case "told":
                place = next(n for n, call in enumerate(facts["calls"]) if call["client_id"] == client_id)
                return _told(facts["calls"][place], LOST if asked.is_lost else _said(reply[place]))
            case "flip" if facts["to"] == "postgres":
                if reply is None and not asked.is_lost:
                    return {"do": "return", "ok": False, "lost": after is None}
                is_done = after is not None and after.what == "set_owner" and after.facts["owner"] == "postgres"
                return {"do": "return", "ok": True, "epoch": 0 if error else reply[1], "lost": not is_done}
            case "flip":
                return {
                    "do": "hand over",
                    "ok": asked.is_lost or reply is not None,
                    "epoch": reply[1] if reply and not error else 0,
                }
            case "unfence":
                return {
                    "do": "leave",
                    "ok": asked.is_lost or reply is not None,
                    "epoch": reply[1] if reply and not error else 0,
                }
            case "write_rows" if facts["is_part"] and held is not None and (asked.is_lost or not error):
                is_done = after is not None and after.what == "trim_outbox"
                return {
                    "do": "mirror",
                    "lost": not is_done,
                    "trimmed": is_done and after is not None and after.reply is True,
                }
            case "trim_outbox" if not error or asked.is_lost:
                return {"do": "trim", "ok": asked.is_lost or reply}
            case "end_mirror" if asked.is_lost or reply is not None:
                return {"do": "commit", "epoch": 0 if error else reply[1]}
        return None


# Brokers.


def _broker(path: Path) -> str:
    return path.stem.split("-")[1]


def _of_broker(
    life: Sequence[Asked], every: Sequence[Asked], notes: Sequence[dict[str, Any]], serials: Mapping[int, int]
) -> Iterator[Line]:
    """Yield what one process of a broker has done.

    :param every: of all its processes.
    :param serials: serial -> number, of what was sent.
    """
    batches = _batches(every, notes)
    answers = _answers(every, notes)
    for asked in life:
        script, store = asked.facts["script"], asked.facts["store"]
        facts: dict[str, Any] = {"do": "note", "store": store, "epoch": asked.facts["claimed"] or 0}
        if script == "look":
            if not asked.error and (looked := _looked(asked.reply)) is not None:
                yield _line(asked.from_s, asked.until_s, looked)
        elif script == "set_owner":
            reply = LOST if asked.is_lost else _said(asked.reply)
            yield _line(asked.from_s, asked.until_s, _told(asked.facts, reply), lost=asked.is_lost)
        elif script == "fetch":
            if not asked.error and asked.reply["all"]:
                read = {"do": "fetch", "numbers": _numbers(asked.reply["messages"], serials)}
                yield _line(asked.from_s, asked.until_s, read)
        elif script not in _WRITES:
            continue
        elif asked.error in _MOVED:
            yield _line(asked.from_s, asked.until_s, facts | {"do": "refused"})
        elif script == "save_messages":
            if found := batches.get(id(asked)):
                yield from _several(asked, facts | {"do": found.do}, found.numbers, lost=not found.is_told)
        elif script == "ack":
            yield from _several(asked, facts | {"do": "ack"}, answers.get(id(asked), []), lost=asked.is_lost)
        else:
            yield _line(asked.from_s, asked.until_s, facts, lost=asked.is_lost)


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """What a request to save has been.

    :param is_told: whether its publisher was told of it; others may have been carried out, or not.
    """

    do: str
    numbers: Sequence[int]
    is_told: bool


def _batches(every: Sequence[Asked], notes: Sequence[dict[str, Any]]) -> dict[int, _Batch]:
    """Return by request which batch it was for."""
    found: dict[int, _Batch] = {}
    saves = [each for each in every if each.facts["script"] == "save_messages" and each.error not in _MOVED]
    told = {note["offset"]: note for note in notes if note["event"] == "saved"}
    for offer, ends_s in _windows(notes, "offered"):
        tries = [each for each in saves if offer["at_s"] <= each.from_s < ends_s]
        saved = told.get(offer["offset"])
        done = [each for each in tries if saved and each.until_s <= saved["at_s"]]
        numbers = range(*offer["numbers"])
        for each in tries:
            if done and each is done[-1]:
                replayed = saved is not None and saved["replayed"]
                found[id(each)] = _Batch(
                    do="saved" if replayed else "save", numbers=numbers[-1:] if replayed else numbers, is_told=True
                )
            elif each.is_lost or _was_stored(each):
                found[id(each)] = _Batch(do="save", numbers=numbers, is_told=False)
    return found


def _answers(every: Sequence[Asked], notes: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Return by request which messages it acknowledges."""
    return {
        id(each): [number for number in wish["numbers"] if number >= 0]
        for wish, ends_s in _windows(notes, "acking")
        for each in every
        if each.facts["script"] == "ack" and wish["at_s"] <= each.from_s < ends_s
    }


def _windows(notes: Sequence[dict[str, Any]], event: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield each note of an event, and when the next one came."""
    wanted = [note for note in notes if note["event"] == event]
    for note, following in pairwise([*wanted, None]):
        assert note is not None
        yield note, following["at_s"] if following else inf


def _was_stored(asked: Asked) -> bool:
    """Whether a reply says that something was stored."""
    return not (
        isinstance(asked.reply, list) and asked.reply and asked.reply[0] in ("conflict", "replayed", "forgotten")
    )


def _operations(client_id: str, steps: Sequence[Asked]) -> Iterator[Asked]:
    """Yield a router's requests for a client; the statements of a transaction are one."""
    opened: dict[int, list[Asked]] = {}
    for each in steps:
        if each.what == "fetch":
            if each.facts["client_id"] == client_id:
                yield replace(each, facts={"script": "fetch", "store": "", "claimed": None})
            continue
        if each.what == "redis":
            for place, call in enumerate(each.facts["calls"]):
                if call["client_id"] == client_id:
                    reply = each.reply[place] if isinstance(each.reply, list) else each.reply
                    yield replace(each, facts=call | {"store": "redis"}, reply=reply)
            continue
        operation, queries = each.facts["operation"], each.facts["queries"]
        if "look_up_owners" in queries and client_id in each.facts["claimed"]:
            rows = [] if each.error else each.reply[queries.index("look_up_owners")]
            found = next((row for row in rows if row[0] == client_id), None)
            reply = (
                [found[1], found[2], found[3] is not None, found[4]] if found else each.reply if each.error else None
            )
            yield replace(each, facts={"script": "look", "store": "postgres", "claimed": None}, reply=reply)
        if "hold_owners" in queries and client_id in each.facts["claimed"]:
            opened[operation] = []
        if operation in opened:
            opened[operation].append(each)
            if each.facts["ends"] or each.error:
                yield _transaction(client_id, opened.pop(operation))
    for parts in opened.values():
        yield replace(_transaction(client_id, parts), until_s=inf)


def _transaction(client_id: str, parts: Sequence[Asked]) -> Asked:
    names = [name for part in parts for name in part.facts["queries"]]
    script = (
        "save_messages" if "lock_sessions" in names else next((name for name in names if name in _WRITES), names[-1])
    )
    claimed = parts[0].facts["claimed"][client_id]
    reply = parts[-1].reply if parts[-1].error else [["stored"] if "save_messages" in names else ["replayed"]][0]
    facts = {"script": script, "store": "postgres", "claimed": claimed}
    # Only what was sent with the end of a transaction may have been carried out when its reply is lost.
    if parts[-1].is_lost and not parts[-1].facts["ends"]:
        return Asked(what="postgres", from_s=parts[0].from_s, until_s=parts[-1].from_s, facts=facts, reply=["replayed"])
    return Asked(what="postgres", from_s=parts[0].from_s, until_s=parts[-1].until_s, facts=facts, reply=reply)


def _numbers(messages: Sequence[tuple[int, int | None]], serials: Mapping[int, int]) -> set[int]:
    """Return numbers of messages; a released one, which was sent, has no content that says it."""
    return {serials.get(serial, serial) if number is None else number for serial, number in messages}


def _store(owner: str) -> str:
    return "postgres" if owner == "postgres" else "redis"


def _looked(reply: Sequence[Any] | None) -> dict[str, Any] | None:
    if reply is None:
        return None
    owner, epoch, fenced, mirrored = reply
    return {"do": "look", "owner": _store(owner), "epoch": epoch, "fenced": fenced, "mirrored": mirrored}


def _told(facts: Mapping[str, Any], reply: str) -> dict[str, Any]:
    return {"do": "tell", "reply": reply} | {name: facts[name] for name in ("epoch", "owner", "mirrored")}


def _said(reply: Any) -> str:
    return "stale" if isinstance(reply, dict) else str(reply)


def _line(from_s: float, until_s: float, facts: dict[str, Any], *, lost: bool = False) -> Line:
    return line_of(from_s, until_s, _NOTHING | facts, lost=lost)


def _several(asked: Asked, facts: dict[str, Any], numbers: Sequence[int], *, lost: bool) -> Iterator[Line]:
    """Cut a request into lines of a message each."""
    return several(asked, [_NOTHING | facts | {"number": number} for number in numbers], lost=lost)
