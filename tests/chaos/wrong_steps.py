"""Steps that a system which keeps its promises does not take, put into a trace of what has happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.chaos.online_load import is_short
from tests.chaos.trace_checker import Line, Trace

Change = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Gives what a line says instead; none when the step is left out."""


def _without_one(facts: dict[str, Any]) -> dict[str, Any]:
    return {"numbers": facts["numbers"] - {min(number for number in facts["numbers"] if not is_short(number))}}


def _is_told_apart(facts: dict[str, Any]) -> bool:
    """Whether a line is about a message that does not go by itself, or about none."""
    numbers = facts.get("numbers", {facts.get("number", 0)})
    return not all(map(is_short, numbers))


def _left_out(_: dict[str, Any]) -> None:
    return None


def _behind(trace: Trace, wanted: dict[str, Any], after: str) -> Line:
    """Return the first line that says this and comes behind another kind of line in its lane."""
    for lane in trace:
        has_come = not after
        for line in lane:
            if has_come and _is_told_apart(line.facts) and wanted.items() <= line.facts.items():
                return line
            has_come = has_come or line.facts["do"] == after
    raise LookupError(f"nothing in the trace says {wanted} behind {after or 'its beginning'}")


_SAVED_IN_REDIS = {"do": "save", "store": "redis"}
_WRONG: dict[str, tuple[dict[str, Any], str, Change]] = {
    "a client is given away without a fence": ({"do": "fence", "owner": "postgres"}, "", _left_out),
    "Redis is not told of the fence": ({"do": "tell", "owner": "postgres"}, "fence", _left_out),
    "what is read behind the fence lacks a message": ({"do": "read rows"}, "fence", _without_one),
    "the owner does not change, and is said to have": ({"do": "hand over"}, "fence", _left_out),
    "the owner changes under another epoch": ({"do": "hand over"}, "", lambda facts: {"epoch": facts["epoch"] + 1}),
    "the owner is refused to a driver that has a lease": ({"do": "hand over"}, "", lambda _: {"ok": False}),
    "Redis says that it knew what it did not": ({"do": "tell", "reply": "set"}, "", lambda _: {"reply": "unchanged"}),
    "a write under an earlier epoch is taken": (_SAVED_IN_REDIS, "", lambda facts: {"epoch": facts["epoch"] - 1}),
    "a write is refused that has to be taken": ({"do": "note", "store": "redis"}, "tell", lambda _: {"do": "refused"}),
    "PostgreSQL takes a message of a client of Redis": (_SAVED_IN_REDIS, "", lambda _: {"store": "postgres"}),
    "a message is confirmed that was not stored": ({"do": "save", "more": False}, "", _left_out),
    "a batch is stored twice": ({"do": "save", "more": False}, "save", lambda facts: {"number": facts["number"] - 1}),
    "a client does not get a message that waits": ({"do": "fetch"}, "", _without_one),
    "an acknowledgement removes nothing": ({"do": "ack", "store": "postgres"}, "", _left_out),
    "a change is not noted for the mirror": ({"do": "read notes", "some": True}, "", lambda _: {"some": False}),
    "a note goes that the mirror has not written": ({"do": "mirror", "trimmed": True}, "", _left_out),
    "what goes back lacks a message": ({"do": "read keys"}, "tell", _without_one),
    "a client goes back while Redis takes writes": ({"do": "tell", "owner": "fenced"}, "", _left_out),
}


def wrong_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return {
        what: _changed(trace, _behind(trace, wanted, after), change) for what, (wanted, after, change) in _WRONG.items()
    }


def _changed(trace: Trace, wrong: Line, change: Change) -> Trace:
    facts = change(wrong.facts)
    put = [] if facts is None else [replace(wrong, facts=wrong.facts | facts)]
    return [[new for line in lane for new in (put if line is wrong else [line])] for lane in trace]
