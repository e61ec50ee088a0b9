"""Kinds of runs for partitions, one for each purpose of a plan."""

from __future__ import annotations

from shlex import quote
from typing import Any

from queuekeeper.jobs.kinds import RunKind, Stores, Table, Told
from queuekeeper.jobs.report import run_told
from queuekeeper.jobs.store import MaintenanceRun
from queuekeeper.maintenance.partitions.model import Purpose, report_of
from queuekeeper.maintenance.partitions.runs import DONE, kind_name, outcomes_table

_VERBS = {Purpose.CREATION: "create", Purpose.RETIREMENT: "retire", Purpose.DROP: "drop"}


def _told(_: Stores, run: MaintenanceRun, *, now_ms: int) -> Told:
    """Return the result of a run."""
    steps: list[dict[str, Any]] = run.plan["steps"]
    what = f"{run.plan['purpose']} of {run.plan['table']}"
    if run.report is None:
        verdict, healthy = f"{what}: 0 of {len(steps):,} steps are done", None
        rows = tuple((each["kind"], f"{each['schema_name']}.{each['relation_name']}", each["reason"]) for each in steps)
        shown = Table(heading="Planned", heads=("step", "partition", "why"), rows=rows, empty="Nothing.")
    else:
        report = report_of(run.report)
        done = sum(each.state in DONE for each in report.outcomes)
        verdict, healthy = f"{what}: {done:,} of {len(steps):,} steps are done", report.done
        shown = outcomes_table(report)
    return run_told(run, verdict, now_ms=now_ms, rules=what, healthy=healthy, tables=(shown,))


def _kind(purpose: Purpose, way_back: str, **others: Any) -> RunKind:
    noun = f"{purpose} of partitions"
    return RunKind(
        name=kind_name(purpose),
        dag="partition_maintenance",
        overview="partitions",
        noun=noun,
        command=f"partitions {_VERBS.get(purpose, 'reattach')}",
        go_on=_again,
        no_pace=_no_pace,
        no_undo=lambda _: f"The {noun} has no undo: {way_back}.",
        report=_told,
        **others,
    )


def _again(run: MaintenanceRun) -> str:
    """Return the command that plans anew and does what is left."""
    verb = _VERBS.get(run.plan["purpose"], "")
    return verb and f"partitions {verb} {quote(run.plan['table'])}"


def _no_pace(run: MaintenanceRun) -> str:
    if any(each["kind"] == "drain" for each in run.plan.get("steps", ())):
        return ""
    return (
        f"The {run.of.noun} changes one partition after the other and moves no rows, so there is nothing to slow down. "
        f"`queuekeeper run pause {run.maintenance_run_id}` stops it before the next partition."
    )


CREATION = _kind(
    Purpose.CREATION, "the new partitions stay until their policy retires them",
    unit="rows",  # rows that are moved out of DEFAULT
)  # fmt: skip
RETIREMENT = _kind(
    Purpose.RETIREMENT,
    "`queuekeeper partitions retired` lists the retired partitions, `queuekeeper partitions reattach ID` puts one back",
)
DROP = _kind(Purpose.DROP, "`queuekeeper partitions restore ID` loads a dropped partition from its archive")
REATTACHMENT = _kind(Purpose.REATTACHMENT, "`queuekeeper partitions retire TABLE` retires the partition again")
