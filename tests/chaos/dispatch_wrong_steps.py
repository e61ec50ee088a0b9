"""Wrong steps of the event broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.chaos.trace_checker import Trace
from tests.chaos.wrong_steps import Change, Facts, WrongStep, changed, left_out, moved, twice, wrong_traces


def _numbers(change: Any) -> Change:
    """Change the numbers of a line."""
    return lambda facts: [{"numbers": type(facts["numbers"])(change(list(facts["numbers"])))}]


def _seen_too_early(facts: Facts) -> Sequence[Facts]:
    return [{"unseen": set(sorted(facts["unseen"])[1:])}]


def _nothing_waits_first(_: Facts) -> Sequence[Facts]:
    return [{"do": "idle"}, {}]


def _dropped_first(facts: Facts) -> Sequence[Facts]:
    return [{"do": "drop", "numbers": {facts["number"]}}, {}]


_POLL = {"do": "poll", "has_several": True}
_READ = {"do": "read", "has_several": True}
_GONE = 0
"""No connection has this number, nor any event."""

_KINDS = {
    "an event is left out of a dispatch": WrongStep(wanted=_POLL, change=_numbers(lambda all_: all_[1:])),
    "the last event of a dispatch is left out": WrongStep(wanted=_POLL, change=_numbers(lambda all_: all_[:-1])),
    "a dispatch has another order": WrongStep(wanted=_POLL, change=_numbers(lambda all_: all_[::-1])),
    "an event is dispatched twice": WrongStep(wanted=_POLL, change=_numbers(lambda all_: [*all_, all_[-1]])),
    "an event is dispatched that nobody has committed": WrongStep(
        wanted=_POLL, change=_numbers(lambda all_: [*all_, _GONE])
    ),
    "a dispatch is lost": WrongStep(wanted=_POLL, change=left_out),
    "a window ends that has a rest": WrongStep(wanted={"do": "poll", "cut": True}, change=changed(cut=False)),
    "a snapshot passes a transaction that commits late": WrongStep(
        wanted={"do": "look", "is_early": True}, change=_seen_too_early
    ),
    "a snapshot begins too far": WrongStep(wanted={"do": "look"}, change=moved(below=1_000)),
    "a poll finds nothing, and something waits": WrongStep(
        wanted={"do": "look", "found": True}, change=_nothing_waits_first
    ),
    "a committed event is not stored": WrongStep(wanted={"do": "end", "how": "commit"}, change=left_out),
    "a committed event is taken back": WrongStep(wanted={"do": "end", "how": "commit"}, change=changed(how="abort")),
    "an event is stored that was taken back": WrongStep(
        wanted={"do": "end", "how": "abort", "is_told": True}, change=changed(how="commit")
    ),
    "a transaction has no number": WrongStep(wanted={"do": "begin"}, change=left_out),
    "a page lacks an event": WrongStep(wanted=_READ, change=_numbers(lambda all_: all_[1:])),
    "a page ends before the last event": WrongStep(
        wanted=_READ | {"full": False}, change=_numbers(lambda all_: all_[:-1])
    ),
    "a page has another order": WrongStep(wanted=_READ, change=_numbers(lambda all_: all_[::-1])),
    "a page has an event that was not dispatched": WrongStep(
        wanted=_READ, change=_numbers(lambda all_: [*all_, _GONE])
    ),
    "a page comes twice": WrongStep(wanted=_READ | {"first": False}, change=twice),
    "a reader goes on that has lost its group": WrongStep(
        wanted=_READ | {"first": False}, change=changed(session=_GONE)
    ),
    "a cursor passes what was not worked on": WrongStep(wanted={"do": "work"}, change=left_out),
    "a cursor is set by a reader that has lost its group": WrongStep(
        wanted={"do": "confirm"}, change=changed(session=_GONE)
    ),
    "a cursor goes back": WrongStep(wanted={"do": "confirm"}, after="confirm", change=twice),
    "an event is dropped before its cursor": WrongStep(wanted={"do": "confirm"}, change=_dropped_first),
    "an event is gone that nobody has dropped": WrongStep(
        wanted={"do": "stored", "has_several": True}, change=_numbers(lambda all_: all_[1:])
    ),
    "an event is there that was dropped": WrongStep(wanted={"do": "drop"}, change=left_out),
}


def wrong_dispatch_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return wrong_traces(trace, _KINDS)
