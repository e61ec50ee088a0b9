"""What a repair of fan-out queues planned, did and left, as lines for a person and as a report of two files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from queuekeeper.jobs.report import write_run_report
from queuekeeper.maintenance.fanout_repair_model import (
    FanoutRepairCounts,
    FanoutRepairOutcome,
    FanoutRepairParameters,
)
from queuekeeper.report.figures import duration, number
from queuekeeper.report.files import ReportFiles, ReportKind

TEMPLATE = "fanout_repair.html.j2"


def rule_words(parameters: FanoutRepairParameters) -> str:
    """Return what a repair was asked to do in a sentence."""
    whom = f"{number(len(parameters.queues))} queues by name" if parameters.queues else "all queues"
    words = f"{whom}; a message whose lease ran out more than {number(parameters.max_stalls)} times is a dead letter; "
    if not parameters.unregister:
        return f"{words}no consumer is removed"
    words += "consumers are removed that were unseen for as long as their options say"
    if parameters.idle_expiry_s is not None:
        words += f", or {duration(parameters.idle_expiry_s)} where they do not"
    return words


def count_rows(counts: FanoutRepairCounts) -> list[tuple[str, str]]:
    """Return counts as names and texts."""
    return [
        ("Queues looked at", f"{number(counts.queues)}, {number(counts.changed_queues)} with something to do"),
        ("Leases that had run out", number(counts.overdue_leases)),
        ("Messages whose life was over", number(counts.expired_messages)),
        ("Dead letters past their retention", number(counts.expired_dead)),
        ("Ids that waited for expired messages", number(counts.expired_references)),
        ("References without payload", number(counts.missing_payload)),
        ("Payloads without reference", number(counts.unreferenced_payload)),
        ("Reference counts that had drifted", number(counts.wrong_count)),
        ("Lives without an end, or the other way round", number(counts.wrong_expiry)),
        ("Leases that nobody could end", number(counts.lost_lease)),
        ("Messages that a consumer had twice", number(counts.doubled)),
        ("Notes on messages that are gone", number(counts.left_notes)),
        ("Consumers half removed", number(counts.half_removed)),
        ("Consumers half registered", number(counts.half_registered)),
        ("Consumers unseen for too long", number(counts.idle_consumers)),
        ("Queues that cannot be repaired", number(counts.broken_queues)),
    ]


def verdict(outcome: FanoutRepairOutcome) -> str:
    """Return what a run came to, in a sentence."""
    if outcome.broken_queues:
        return f"{number(outcome.broken_queues)} queues cannot be repaired"
    if outcome.plan.empty:
        return "healthy: there was nothing to do, and nothing was changed"
    if outcome.dry_run:
        return f"{number(outcome.plan.counts.changes)} repairs are to be made, nothing was changed"
    if outcome.open_shares:
        return f"not done: {', '.join(outcome.open_shares)}"
    if outcome.clean:
        return "clean: a second look finds nothing that was to be done" + (
            "" if outcome.proved else ", in a part of the queues"
        )
    assert outcome.left is not None
    return f"{number(outcome.left.changes)} repairs are left to be made"


def facts_of(outcome: FanoutRepairOutcome) -> dict[str, Any]:
    """Return what there is to say of a run as JSON can hold it; the plan's queues are its own."""
    found = asdict(outcome) | {"clean": outcome.clean, "moved_on": outcome.moved_on, "verdict": verdict(outcome)}
    del found["plan"]["queues"]
    return found


def write_report(outcome: FanoutRepairOutcome, directory: Path) -> ReportFiles:
    """Write the report as JSON and as one HTML page.

    :param directory: made when it is not there.
    :raises RefusedError: when it cannot be written to.
    """
    second = outcome.left or FanoutRepairCounts()
    return write_run_report(
        directory,
        kind=ReportKind.FANOUT,
        template=TEMPLATE,
        facts=facts_of(outcome),
        columns=[count_rows(each) for each in (outcome.plan.counts, outcome.counts, second)],
        rules=rule_words(outcome.plan.parameters),
        changes=(outcome.plan.counts if outcome.dry_run else outcome.counts).changes,
        healthy=outcome.plan.empty,
        broken=bool(outcome.broken_queues),
    )
