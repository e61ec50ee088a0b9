"""Wrong steps of a fan-out queue."""

from __future__ import annotations

from collections.abc import Sequence

from tests.chaos.fanout_load import FIFO, ORDERED
from tests.chaos.trace_checker import Trace
from tests.chaos.wrong_steps import Facts, WrongStep, changed, left_out, moved, twice, wrong_traces


def _next_one_too(facts: Facts) -> Sequence[Facts]:
    return [{}, {"number": facts["number"] + 1, "worker": 0}]


def _lease_ends_first(_: Facts) -> Sequence[Facts]:
    return [{"do": "end", "first": True}, {}]


def _without_one(facts: Facts) -> Sequence[Facts]:
    return [{"members": set(sorted(facts["members"])[1:])}]


_CLAIM = {"do": "claim", "consumer": FIFO}
_ACK = {"do": "ack", "ok": True}
_PUBLISH = {"do": "publish", "more": False}
_KINDS = {
    "a message is given out under two leases": WrongStep(wanted=_CLAIM, change=twice),
    "a message is passed over": WrongStep(wanted=_CLAIM, change=moved(number=1)),
    "an ordered consumer gets a message before the one before it is done": WrongStep(
        wanted=_CLAIM | {"consumer": ORDERED}, change=_next_one_too
    ),
    "an acknowledgement ends no lease": WrongStep(wanted=_ACK | {"consumer": ORDERED}, change=left_out),
    "an acknowledgement is refused while the lease lasts": WrongStep(wanted=_ACK, change=changed(ok=False)),
    "a payload goes while somebody owes an acknowledgement": WrongStep(
        wanted={"do": "acked", "freed": 0}, alone=True, change=moved(freed=1)
    ),
    "a payload stays for which nobody owes an acknowledgement": WrongStep(
        wanted={"do": "acked", "freed": 1}, alone=True, change=moved(freed=-1)
    ),
    "a message that was answered is not stored": WrongStep(wanted=_PUBLISH, once=True, change=left_out),
    "two messages have one number": WrongStep(wanted=_PUBLISH, after="publish", change=moved(number=-1)),
    "a message is counted for a consumer too many": WrongStep(wanted=_PUBLISH, alone=True, change=moved(consumers=1)),
    "a lease ends before its time": WrongStep(wanted=_CLAIM, change=_lease_ends_first),
    "a lease that has run out does not end": WrongStep(wanted={"do": "end"}, change=left_out),
    "a lease is not extended that lasts": WrongStep(wanted={"do": "extend", "ok": True}, change=changed(ok=False)),
    "a message that is given back is gone": WrongStep(wanted={"do": "return", "ok": True}, change=left_out),
    "a consumer begins behind the next message": WrongStep(
        wanted={"do": "register", "new": True}, change=moved(next=1)
    ),
    "a consumer that has left is still there": WrongStep(wanted={"do": "unregister", "new": True}, change=left_out),
    "a consumer that has left has released too little": WrongStep(
        wanted={"do": "unregister", "new": True}, change=moved(released=-1)
    ),
    "a claim does not see the last message": WrongStep(wanted={"do": "claimed"}, alone=True, change=moved(logged=-1)),
    "a claim says that nothing waits, and something does": WrongStep(
        wanted={"do": "claimed", "consumer": FIFO, "is_last": False}, alone=True, change=changed(is_last=True)
    ),
    "more waits for a consumer than it is owed": WrongStep(
        wanted={"do": "inspect"}, alone=True, change=moved(unread=1)
    ),
    "a payload is stored that nobody has published": WrongStep(
        wanted={"do": "count"}, alone=True, change=moved(stored=1)
    ),
    "a publisher does not hear of a consumer": WrongStep(wanted={"do": "members"}, alone=True, change=_without_one),
}


def wrong_fanout_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return wrong_traces(trace, _KINDS)
