"""What a collection of compacted queues planned, did and left, as lines for a person and as a report of two files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from queuekeeper.jobs.report import write_run_report
from queuekeeper.maintenance.compacted_gc_model import CollectionCounts, CollectionOutcome, CollectionParameters
from queuekeeper.report.figures import duration, instant, number, size
from queuekeeper.report.files import ReportFiles, ReportKind

TEMPLATE = "compacted_gc.html.j2"


def rule_words(parameters: CollectionParameters) -> str:
    """Return the rules of a collection in a sentence."""
    policy = {
        "delete": "every message, acknowledged or not,",
        "acked_only": "what has been acknowledged",
        "compact": "tombstones alone",
    }[parameters.policy]
    whom = "all queues, whatever their own rules" if parameters.override else "queues without rules of their own"
    words = f"{policy} goes after {duration(parameters.retention_s)}, for {whom}; "
    words += f"acknowledged tombstones after {duration(parameters.tombstone_s)}"
    for what, pattern in (("clients", parameters.client_filter), ("keys", parameters.key_filter)):
        if pattern:
            words += f"; only {what} like {pattern}"
    return words


def count_rows(counts: CollectionCounts) -> list[tuple[str, str]]:
    """Return counts as names and texts."""
    return [
        ("Queues looked at", f"{number(counts.queues)}, {number(counts.due_queues)} with something due"),
        ("Messages", number(counts.messages)),
        ("Acknowledged", number(counts.acked)),
        ("Not acknowledged", number(counts.unacked)),
        ("Tombstones", number(counts.tombstones)),
        ("Keys and values", size(counts.freed_bytes)),
        ("Newer by then, left alone", number(counts.kept)),
        ("Queues that cannot be collected", number(counts.broken_queues)),
        ("Parts left to another collector", number(counts.held_parts)),
    ]


def verdict(outcome: CollectionOutcome) -> str:
    """Return what a run came to, in a sentence."""
    if outcome.dry_run:
        return f"{number(outcome.plan.counts.messages)} messages are due, nothing was removed"
    if outcome.open_shares:
        return f"not done: {', '.join(outcome.open_shares)}"
    if outcome.broken_queues:
        return f"{number(outcome.broken_queues)} queues cannot be collected"
    if outcome.clean:
        return "clean: a second look finds nothing that was due" + (
            "" if outcome.proved else ", in a part of the queues"
        )
    assert outcome.left is not None
    return f"{number(outcome.left.messages)} messages have become due since"


def last_finished(finished_ms: int | None) -> str:
    """Return when the collector had last gone through the whole registry."""
    return "never" if finished_ms is None else instant(finished_ms)


def write_report(outcome: CollectionOutcome, directory: Path) -> ReportFiles:
    """Write the report as JSON and as one HTML page.

    :param directory: made when it is not there.
    :raises RefusedError: when it cannot be written to.
    """
    second = outcome.left or CollectionCounts()
    return write_run_report(
        directory,
        kind=ReportKind.COMPACTED,
        template=TEMPLATE,
        facts=asdict(outcome) | {"clean": outcome.clean, "moved_on": outcome.moved_on, "verdict": verdict(outcome)},
        columns=[count_rows(each) for each in (outcome.plan.counts, outcome.counts, second)],
        rules=rule_words(outcome.plan.parameters),
        finished=last_finished(outcome.finished_ms),
    )
