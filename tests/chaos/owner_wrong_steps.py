"""Wrong steps of a session that changes its owner."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.online_load import is_short
from tests.chaos.trace_checker import Trace
from tests.chaos.wrong_steps import Facts, WrongStep, changed, left_out, moved, wrong_traces


def _without_one(facts: Facts) -> Sequence[Facts]:
    return [{"numbers": facts["numbers"] - {min(number for number in facts["numbers"] if not is_short(number))}}]


def _is_told_apart(facts: Facts) -> bool:
    """Whether a line is about a message that does not go by itself, or about none."""
    numbers = facts.get("numbers", {facts.get("number", 0)})
    return not all(map(is_short, numbers))


_SAVED_IN_REDIS = {"do": "save", "store": "redis"}
# A driver whose lease is over on a busy machine is refused, and tries again.
_HANDED_OVER = {"do": "hand over", "ok": True}
_TOLD = {"do": "tell", "reply": "set"}
_KINDS = {
    "a client is given away without a fence": WrongStep(wanted={"do": "fence", "owner": "postgres"}, change=left_out),
    "Redis is not told of the fence": WrongStep(
        wanted={"do": "tell", "owner": "postgres"}, after="fence", change=left_out
    ),
    "what is read behind the fence lacks a message": WrongStep(
        wanted={"do": "read rows"}, after="fence", change=_without_one
    ),
    "the owner does not change, and is said to have": WrongStep(wanted=_HANDED_OVER, after="fence", change=left_out),
    "the owner changes under another epoch": WrongStep(wanted=_HANDED_OVER, change=moved(epoch=1)),
    "the owner is refused to a driver that has a lease": WrongStep(wanted=_HANDED_OVER, change=changed(ok=False)),
    "Redis says that it knew what it did not": WrongStep(wanted=_TOLD, change=changed(reply="unchanged")),
    "a write under an earlier epoch is taken": WrongStep(wanted=_SAVED_IN_REDIS, change=moved(epoch=-1)),
    "a write is refused that has to be taken": WrongStep(
        wanted={"do": "note", "store": "redis"}, after="tell", alone=True, change=changed(do="refused")
    ),
    "PostgreSQL takes a message of a client of Redis": WrongStep(
        wanted=_SAVED_IN_REDIS, change=changed(store="postgres")
    ),
    "a message is confirmed that was not stored": WrongStep(
        wanted={"do": "save", "more": False}, once=True, change=left_out
    ),
    "a batch is stored twice": WrongStep(wanted={"do": "save", "more": False}, after="save", change=moved(number=-1)),
    "a client does not get a message that waits": WrongStep(wanted={"do": "fetch"}, alone=True, change=_without_one),
    "an acknowledgement removes nothing": WrongStep(
        wanted={"do": "ack", "store": "postgres"}, once=True, change=left_out
    ),
    "a change is not noted for the mirror": WrongStep(
        wanted={"do": "read notes", "some": True}, alone=True, change=changed(some=False)
    ),
    "a note goes that the mirror has not written": WrongStep(wanted={"do": "mirror", "trimmed": True}, change=left_out),
    "what goes back lacks a message": WrongStep(wanted={"do": "read keys"}, after="tell", change=_without_one),
    "a client goes back while Redis takes writes": WrongStep(wanted={"do": "tell", "owner": "fenced"}, change=left_out),
}


def wrong_owner_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return wrong_traces(trace, _KINDS, usable=_is_told_apart)
