"""Wrong steps of a session to which several write."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.trace_checker import Trace
from tests.chaos.traced_saves import LIMIT
from tests.chaos.wrong_steps import Facts, WrongStep, changed, left_out, moved, twice, wrong_traces


def _under_the_last_packet_id(facts: Facts) -> Sequence[Facts]:
    return [{"id": facts["expected"]}]


def _stored_again(facts: Facts) -> Sequence[Facts]:
    return [{"do": "save", "expected": facts["id"], "references": 0}]


def _spares_the_oldest(facts: Facts) -> Sequence[Facts]:
    return [
        {"wanted": facts["wanted"][1:], "trimmed": facts["trimmed"] - 1, "references": facts["references"] + 1},
    ]


def _had_been_sent(facts: Facts) -> Sequence[Facts]:
    return [{"sent": facts["wanted"][-1][1]}]


def _without_the_first(facts: Facts) -> Sequence[Facts]:
    return [{"found": facts["found"][1:]}]


def _in_another_order(facts: Facts) -> Sequence[Facts]:
    first, second, *rest = facts["found"]
    return [{"found": (second, first, *rest)}]


def _of_another(facts: Facts) -> Sequence[Facts]:
    (packet_id, by, number), *rest = sorted(facts["found"])
    return [{"found": {(packet_id, by, number + 1), *rest}}]


def _all_free(facts: Facts) -> Sequence[Facts]:
    return [{"free": facts["ids"]}]


def _has_two(facts: Facts) -> bool:
    """Whether what a line has found, if it has looked, is enough to be changed."""
    return len(facts.get("found", "12")) > 1


_SAVE = {"do": "save", "heard": True}
_LAST_OF_CALL = _SAVE | {"more": False}
_TRIM = {"do": "trim", "heard": True, "references": LIMIT}
_ACK = {"do": "ack", "removed": True}
_KINDS = {
    "a message is stored twice": WrongStep(wanted=_SAVE, change=twice),
    "a message is confirmed that is not stored": WrongStep(wanted=_LAST_OF_CALL, change=left_out),
    "a message comes before the one before it": WrongStep(wanted=_SAVE | {"more": True}, change=moved(number=1)),
    "a packet id is given to two messages": WrongStep(wanted=_SAVE, after="save", change=_under_the_last_packet_id),
    "a serial is passed over": WrongStep(wanted=_LAST_OF_CALL, alone=True, change=moved(serial=1)),
    "a save counts a message too few": WrongStep(wanted=_LAST_OF_CALL, alone=True, change=moved(references=-1)),
    "a call that was given up is stored, and is not there": WrongStep(
        wanted={"do": "save", "heard": False}, change=left_out
    ),
    "a repeated batch is stored again": WrongStep(wanted={"do": "replay"}, change=_stored_again),
    "a new batch is taken for a repeated one": WrongStep(wanted=_LAST_OF_CALL, change=changed(do="replay")),
    "a repeated batch is told packet ids of another": WrongStep(wanted={"do": "replay"}, change=moved(id=1)),
    "a repeated batch is told serials of another": WrongStep(wanted={"do": "replay"}, change=moved(serial=1)),
    "a refusal names another last packet id": WrongStep(wanted={"do": "conflict"}, alone=True, change=moved(last=1)),
    "a packet id is called free that a message has": WrongStep(wanted={"do": "look"}, change=_all_free),
    "nobody trims a session that is over its limit": WrongStep(wanted=_TRIM, change=left_out),
    "a trim says that it has removed one more": WrongStep(wanted=_TRIM, change=moved(trimmed=1)),
    "a trim removes a newer message than it has to": WrongStep(wanted=_TRIM, change=_spares_the_oldest),
    "a trim removes what was sent before what was not": WrongStep(wanted=_TRIM, change=_had_been_sent),
    "a sweep removes a message that lives": WrongStep(wanted={"do": "sweep"}, change=moved(removed=1)),
    "what was sent is not noted": WrongStep(wanted={"do": "deliver", "moved": True}, change=left_out),
    "a message is said to be sent that was not": WrongStep(wanted={"do": "read"}, alone=True, change=moved(sent=1)),
    "an acknowledgement removes nothing": WrongStep(wanted=_ACK, change=left_out),
    "an acknowledgement of a message that waits is refused": WrongStep(wanted=_ACK, change=changed(removed=False)),
    "the client does not get a message that waits": WrongStep(
        wanted={"do": "list", "by": "reader"}, alone=True, change=_without_the_first
    ),
    "the client gets messages in another order": WrongStep(
        wanted={"do": "list", "by": "reader"}, alone=True, change=_in_another_order
    ),
    "a packet id leads to another message": WrongStep(wanted={"do": "fetch"}, alone=True, change=_of_another),
    "a session shows a message too many": WrongStep(wanted={"do": "read"}, alone=True, change=moved(references=1)),
    "the record of our last save is another one": WrongStep(
        wanted={"do": "read"}, alone=True, change=moved(packet_id=1)
    ),
    "TBMQ's message gets another packet id": WrongStep(wanted={"do": "add"}, change=moved(id=1)),
    "TBMQ's message is overwritten": WrongStep(wanted={"do": "add"}, change=left_out),
}


def wrong_save_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return wrong_traces(trace, _KINDS, usable=_has_two)
