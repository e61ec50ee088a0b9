"""Wrong steps of a compacted queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.chaos.trace_checker import Trace
from tests.chaos.wrong_steps import Change, Facts, WrongStep, changed, left_out, moved, wrong_traces

# What was asked for before may have been carried out then, so that no reply to the repeated call is wrong.
_APPEND = {"do": "append", "stored": True, "repeated": False}
_FETCH = {"do": "fetch", "redeliver": False}


def _has(name: str, *, least: int = 1) -> Callable[[Facts], bool]:
    """Return whether a number, or how many a line has of something, is at least so much."""
    return lambda facts: (facts[name] if isinstance(facts[name], int) else len(facts[name])) >= least


def _row(
    name: str, wanted: Callable[[Facts], bool], change: Callable[[Facts], Facts]
) -> tuple[Callable[..., bool], Change]:
    """Return where a row is wanted, and how the first such row of a line is changed."""

    def changed_row(facts: Facts) -> Sequence[Facts]:
        rows = list(facts[name])
        at = next(place for place, row in enumerate(rows) if wanted(row))
        rows[at] = rows[at] | change(rows[at])
        return [{name: tuple(rows)}]

    return lambda facts: any(map(wanted, facts[name])), changed_row


def _kinds(trace: Trace) -> dict[str, WrongStep]:
    appended = {
        line.facts["number"]: line.facts
        for lane in trace
        for line in lane
        if line.facts["do"] == "append" and line.facts["stored"]
    }

    lines = [line for lane in trace for line in lane]
    told = [line for line in lines if line.facts["do"] in {"subscribe", "rewind"} and not line.facts["lost"]]
    # A later epoch had been told before these were asked for.
    late = {
        id(line.facts)
        for line in lines
        if line.facts["do"] in {"refused", "release"}
        and any(each.until_s < line.from_s and each.facts["epoch"] > line.facts["epoch"] for each in told)
    }

    def is_late(facts: Facts) -> bool:
        return id(facts) in late

    def is_value(row: Facts) -> bool:
        return not row["tombstone"]

    def has_older(row: Facts) -> bool:
        return row["number"] in appended and appended[row["number"]]["replaced"] in appended

    def older(row: Facts) -> Facts:
        """Return the row that the key had before."""
        number = appended[row["number"]]["replaced"]
        value = appended[number]
        return {"number": number, "at": value["now"], "tombstone": value["tombstone"]}

    def too_young(facts: Facts) -> Sequence[Facts]:
        newest = max((each for each in appended.values() if each["now"] < facts["now"]), key=lambda each: each["now"])
        row = (newest["key"], newest["number"], newest["now"], newest["tombstone"])
        return [{"rows": facts["rows"] | {row}}]

    old_where, old_value = _row("new", has_older, older)
    peeked_where, peeked_old = _row("rows", has_older, older)
    another_where, another_value = _row("new", is_value, lambda row: {"place": row["place"] + 1})
    gone_where, gone_mark = _row("new", lambda row: row["tombstone"], lambda _: {"tombstone": False})
    kept_where, kept_mark = _row("rows", lambda row: row["tombstone"], lambda _: {"tombstone": False})
    return {
        "an append that was answered is not stored": WrongStep(wanted=_APPEND, change=left_out),
        "two appends have one number": WrongStep(wanted=_APPEND, after="append", change=moved(number=-1)),
        "an append has no number, and is stored once more": WrongStep(
            wanted=_APPEND,
            change=lambda facts: [{}, {"number": facts["number"] + 1, "replaced": facts["number"]}],
        ),
        "an append is taken for one that was stored before": WrongStep(wanted=_APPEND, change=changed(stored=False)),
        "the value before stays beside the new one": WrongStep(
            wanted=_APPEND, where=_has("replaced"), change=changed(replaced=0)
        ),
        "an append leaves a key too many": WrongStep(wanted={"do": "appended"}, alone=True, change=moved(live=1)),
        "an old value of a key is delivered": WrongStep(wanted=_FETCH, where=old_where, change=old_value),
        "another value is delivered than its number's": WrongStep(
            wanted=_FETCH, where=another_where, change=another_value
        ),
        "a message is passed over": WrongStep(
            wanted=_FETCH, where=_has("new"), change=lambda facts: [{"new": facts["new"][1:]}]
        ),
        "messages come in another order": WrongStep(
            wanted=_FETCH, where=_has("new", least=2), change=lambda facts: [{"new": facts["new"][::-1]}]
        ),
        "a tombstone is delivered as a value": WrongStep(wanted=_FETCH, where=gone_where, change=gone_mark),
        "a tombstone is lost": WrongStep(
            wanted=_FETCH,
            where=gone_where,
            change=lambda facts: [{"new": tuple(row for row in facts["new"] if not row["tombstone"])}],
        ),
        "what was in flight does not come to the next consumer": WrongStep(
            wanted=_FETCH, where=_has("again"), change=changed(again=())
        ),
        "what comes again has no mark of it": WrongStep(
            wanted=_FETCH,
            where=_has("again"),
            change=lambda facts: [{"again": facts["again"][:-1], "new": facts["again"][-1:] + facts["new"]}],
        ),
        "an acknowledgement is not kept": WrongStep(
            wanted={"do": "acked"}, where=_has("heard"), change=moved(in_flight=1)
        ),
        "the cursor goes back": WrongStep(wanted={"do": "acked"}, where=_has("acked"), change=moved(acked=-1)),
        "the cursor passes what is in flight": WrongStep(
            wanted={"do": "acked"}, where=_has("in_flight"), change=moved(acked=1)
        ),
        "an acknowledgement is counted that was there before": WrongStep(wanted={"do": "acked"}, change=moved(heard=1)),
        "an acknowledgement of a consumer that was replaced counts": WrongStep(
            wanted={"do": "refused"}, where=is_late, change=lambda _: [{"do": "ack", "number": 1, "first": True}]
        ),
        "the consumer that has the queue is refused": WrongStep(
            wanted={"do": "heartbeat"}, alone=True, change=changed(do="refused")
        ),
        "a consumer that was replaced ends the lease of the next one": WrongStep(
            wanted={"do": "release", "ok": False}, where=is_late, change=changed(ok=True)
        ),
        "a subscription has the epoch of the one before": WrongStep(
            wanted={"do": "subscribe"}, where=_has("epoch", least=2), change=moved(epoch=-1)
        ),
        "a subscription forgets what is in flight": WrongStep(
            wanted={"do": "subscribe"}, where=_has("in_flight"), change=moved(in_flight=-1)
        ),
        "a heartbeat does not see the last message": WrongStep(
            wanted={"do": "heartbeat"}, where=_has("lag"), alone=True, change=moved(lag=-1)
        ),
        "a rewind that was answered is none": WrongStep(wanted={"do": "rewind"}, change=left_out),
        "a rewind passes the oldest message": WrongStep(wanted={"do": "rewind"}, change=moved(acked=1)),
        "a value is due before its time": WrongStep(wanted={"do": "find"}, alone=True, change=too_young),
        "what is due is not found": WrongStep(
            wanted={"do": "find"}, where=_has("rows"), alone=True, change=changed(rows=set())
        ),
        "what was collected is still there": WrongStep(
            wanted={"do": "collect"}, where=_has("removed"), change=moved(removed=-1, live=1)
        ),
        "a value goes that nobody has collected": WrongStep(
            wanted={"do": "collect"}, where=_has("removed"), change=left_out
        ),
        "a newer value goes than the one that was found": WrongStep(
            wanted={"do": "collect"},
            where=_has("stayed"),
            change=lambda facts: [{"removed": facts["removed"] + 1, "live": facts["live"] - 1, "stayed": set()}],
        ),
        "a stored value is lost": WrongStep(
            wanted={"do": "peek"}, where=_has("rows"), alone=True, change=lambda facts: [{"rows": facts["rows"][1:]}]
        ),
        "a key has its old value": WrongStep(wanted={"do": "peek"}, where=peeked_where, alone=True, change=peeked_old),
        "a stored tombstone is a value": WrongStep(wanted={"do": "peek"}, where=kept_where, change=kept_mark),
        "a tombstone is not counted": WrongStep(
            wanted={"do": "inspect"}, where=_has("tombstones"), alone=True, change=moved(tombstones=-1)
        ),
    }


def wrong_compacted_traces(trace: Trace) -> dict[str, Trace]:
    """Return a trace with a wrong step, for each kind of it.

    :raises LookupError: when the trace has no place for one.
    """
    return wrong_traces(trace, _kinds(trace))
