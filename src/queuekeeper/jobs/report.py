"""Says what a run planned, did and left: a verdict, JSON, and one page whose template serves every job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.jobs.engine import outcome_facts
from queuekeeper.jobs.model import AnyJob, AnyOutcome
from queuekeeper.report.figures import number
from queuekeeper.report.files import ReportFiles, write_files
from queuekeeper.report.page import render_page

FORMAT = 1
TEMPLATE = "report.html.j2"


def verdict(job: type[AnyJob], outcome: AnyOutcome) -> str:
    """Return what a run came to, in a sentence."""
    words = job.words
    if outcome.broken:
        return words.broken.format(count=number(outcome.broken))
    if outcome.trouble:
        return f"must not wait: {outcome.trouble}"
    if outcome.left is None and outcome.plan.empty:
        return words.nothing
    if outcome.dry_run:
        return words.planned.format(count=number(outcome.plan.counts.changes))
    if outcome.open_shares:
        return f"not done: {', '.join(outcome.open_shares)}"
    if outcome.clean:
        return words.clean + ("" if outcome.proved else f", in a part of the {words.units}")
    assert outcome.left is not None
    return words.left.format(count=number(outcome.left.changes))


def facts_of(job: type[AnyJob], outcome: AnyOutcome) -> dict[str, Any]:
    """Return what there is to say of a run as JSON can hold it."""
    return outcome_facts(outcome) | {"verdict": verdict(job, outcome)} | job.told(outcome)


def columns_of(outcome: AnyOutcome) -> list[tuple[str, ...]]:
    """Return a line per count: its name, what was planned, and after a second look what was done and left."""
    sides = [outcome.plan.counts] if outcome.left is None else [outcome.plan.counts, outcome.counts, outcome.left]
    texts = [dict(each.rows()) for each in sides]
    names = dict.fromkeys(name for column in texts for name in column)
    return [(name, *(column.get(name, "0") for column in texts)) for name in names]


def write_report(job: type[AnyJob], outcome: AnyOutcome, directory: Path) -> ReportFiles:
    """Write a report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: made when it is not there.
    :raises RefusedError: when it cannot be written to.
    """
    facts = facts_of(job, outcome) | {"generated_by": f"queuekeeper {__version__}", "format": FORMAT}
    plan = outcome.plan
    return write_files(
        directory,
        kind=job.report,
        subject_id=outcome.maintenance_run_id,
        at_ms=outcome.generated_at_ms,
        text=json.dumps(facts, ensure_ascii=False, indent=1),
        page=lambda name, digest: render_page(
            "queuekeeper.jobs",
            template=TEMPLATE,
            report=facts,
            json_name=name,
            json_sha256=digest,
            words=job.words,
            rules=job.rule_words(plan.parameters),
            changes=(plan.counts if outcome.dry_run else outcome.counts).changes,
            healthy=plan.empty,
            broken=bool(outcome.broken or outcome.trouble),
            figures=job.figures(outcome),
            lines=[(*line, "–", "–")[:4] for line in columns_of(outcome)],
            tables=job.shown(outcome),
        ),
    )
