"""Reports what a run planned, did and left: as a verdict, as JSON and as a page, for every job."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from queuekeeper import __version__
from queuekeeper.approvals import milliseconds
from queuekeeper.jobs.engine import outcome_facts
from queuekeeper.jobs.kinds import Table, Told
from queuekeeper.jobs.model import INEXACT, AnyJob, AnyOutcome, AnyPlan, Words
from queuekeeper.jobs.store import MaintenanceRun
from queuekeeper.report.files import ReportFiles, ReportKind, write_files
from queuekeeper.wording import sentence

FORMAT = 1
TEMPLATE = "report.html.j2"


def verdict(job: type[AnyJob], outcome: AnyOutcome) -> str:
    """Return the verdict on a run in a sentence."""
    words = job.words
    in_part = "" if outcome.proved else f", in a part of the {words.units}"
    if outcome.broken:
        return sentence(words.broken, count=outcome.broken)
    if outcome.trouble:
        return f"must not wait: {outcome.trouble}"
    if outcome.left is None and outcome.plan.empty:
        return words.nothing + in_part
    if outcome.dry_run:
        planned = sentence(words.planned, count=outcome.plan.counts.changes)
        return planned if outcome.plan.exact else f"{planned}; not exact: {INEXACT}"
    if outcome.open_shares:
        return f"parts not done: {', '.join(outcome.open_shares)}"
    if outcome.clean:
        return words.clean + in_part
    assert outcome.left is not None
    return sentence(words.left, count=outcome.left.changes)


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """Facts of a stored plan for commands and tasks; the short form leaves out shares and findings."""

    job: type[AnyJob]
    maintenance_run_id: str
    plan: AnyPlan

    @property
    def at_length(self) -> Collection[str]:
        """Names of the facts that the short form leaves out."""
        return self.plan.facts().keys() - self._in_short().keys()

    def facts(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return self.plan.facts() | self._in_short()

    def _in_short(self) -> dict[str, Any]:
        counts = self.plan.counts
        told = {"maintenance_run_id": self.maintenance_run_id, "kind": self.job.kind, "empty": self.plan.empty}
        asked = {"to_do": counts.changes, "question": self.job.question(self.maintenance_run_id, self.plan)}
        return told | asked | {"counts": asdict(counts)} | self.job.planned(self.plan)


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """Facts of a finished run for commands, tasks and reports; the short form leaves out the plan."""

    job: type[AnyJob]
    outcome: AnyOutcome
    at_length: ClassVar[tuple[str, ...]] = ("plan",)

    def facts(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        told = {"verdict": verdict(self.job, self.outcome), "planned": asdict(self.outcome.plan.counts)}
        return outcome_facts(self.outcome) | told | self.job.told(self.outcome)


def columns_of(outcome: AnyOutcome) -> list[tuple[str, ...]]:
    """Return a line per count: its name, planned, and after a second look done and left."""
    sides = [outcome.plan.counts] if outcome.left is None else [outcome.plan.counts, outcome.counts, outcome.left]
    texts = [dict(each.rows()) for each in sides]
    names = dict.fromkeys(name for column in texts for name in column)
    return [(name, *(column.get(name, "0") for column in texts)) for name in names]


def write_report(job: type[AnyJob], outcome: AnyOutcome, directory: Path) -> ReportFiles:
    """Write a report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: folder of the report; made when it does not exist.
    :raises RefusedError: when the folder cannot be written to.
    """
    plan, words, facts = outcome.plan, job.words, FinishedRun(job=job, outcome=outcome).facts()
    changes = (plan.counts if outcome.dry_run else outcome.counts).changes
    is_bad = outcome.broken or outcome.trouble or outcome.open_shares
    return _write(
        facts,
        directory,
        kind=job.report,
        at_ms=outcome.generated_at_ms,
        title=words.title,
        about=words.about,
        healthy=not is_bad and (outcome.clean or None),
        rules=job.rule_words(plan.parameters),
        changes=sentence(words.to_do if outcome.dry_run else words.done, count=changes).split(" ", 1),
        planned_ms=plan.as_of_ms,
        figures=job.figures(outcome),
        second_look=_second_look(words, outcome),
        lines=[(*line, "–", "–")[:4] for line in columns_of(outcome)],
        tables=job.shown(outcome),
        footer=words.footer,
    )


def _second_look(words: Words, outcome: AnyOutcome) -> str:
    if outcome.left is None:
        if outcome.plan.empty:
            return "There was nothing to do, so nothing was changed."
        return "Nothing was to be changed, so there was no second look."
    return f"The second look took in {f'every {words.unit}' if outcome.proved else f'a part of the {words.units}'}."


def run_told(
    run: MaintenanceRun, verdict: str, *, now_ms: int, rules: str, healthy: bool | None, tables: Sequence[Table]
) -> Told:
    """Return the result of a run outside the engine, from its record.

    :param rules: what the run was asked to do, in a sentence.
    :param healthy: whether the result is good; none where it is not known yet.
    """
    facts = {
        "maintenance_run_id": run.maintenance_run_id,
        "kind": run.kind,
        "state": run.state.value,
        "verdict": verdict,
        "report": run.report,
    }
    about = run.kind.replace("_", " ")
    kept = {"parameters": run.parameters, "plan": run.plan, "approved_by": run.approved_by, "dry_run": False}
    return Told(
        verdict=verdict,
        facts=facts,
        tables=tuple(tables),
        write=lambda directory: _write(
            facts | kept | {"generated_at_ms": now_ms},
            directory,
            kind=ReportKind(run.kind, f"Report of the {about}"),
            at_ms=now_ms,
            title=about.capitalize(),
            about=f"run {run.maintenance_run_id}",
            healthy=healthy,
            rules=rules,
            changes=None,
            planned_ms=milliseconds(run.created_at),
            figures=[],
            second_look="",
            lines=[],
            tables=tables,
            footer=Words.footer,
        ),
    )


def _write(facts: dict[str, Any], directory: Path, *, kind: ReportKind, at_ms: int, **shown: Any) -> ReportFiles:
    from queuekeeper.report.page import render_page  # noqa: PLC0415 - its extra is for who writes pages

    facts = facts | {"generated_by": f"queuekeeper {__version__}", "format": FORMAT}
    return write_files(
        directory,
        kind=kind,
        subject_id=facts["maintenance_run_id"],
        at_ms=at_ms,
        text=json.dumps(facts, ensure_ascii=False, indent=1),
        page=lambda name, digest: render_page(
            "queuekeeper.jobs", template=TEMPLATE, report=facts, json_name=name, json_sha256=digest, **shown
        ),
    )
