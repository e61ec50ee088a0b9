"""Runs of plans for partitions, recorded like runs of every job, and paused between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuekeeper import __version__
from queuekeeper.audit import Action
from queuekeeper.clock import system_clock
from queuekeeper.errors import MaintenanceRunning
from queuekeeper.facts import plain
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.pace import run_pace
from queuekeeper.jobs.progress import Narrator
from queuekeeper.jobs.store import MaintenanceRuns, RunState, ShardProgress
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    PartitionPlan,
    Purpose,
    StepOutcome,
    StepState,
)
from queuekeeper.postgres import Connection

DONE = {StepState.DONE, StepState.ALREADY}


def kind_name(purpose: Purpose) -> str:
    """Return the kind of runs for a purpose."""
    return f"partition_{purpose.value}"


def save_run(runs: MaintenanceRuns, plan: PartitionPlan, *, dag_run_id: str = "") -> str:
    """Store a plan as a run and return the run's id; different plans have different ids.

    :param dag_run_id: Airflow run that has made the plan.
    """
    run = runs.save_plan(
        kind=kind_name(plan.purpose),
        parameters={"table": plan.table, "dag_run_id": dag_run_id, "code_version": __version__},
        plan=plain(plan),
    )
    return run.maintenance_run_id


def carry_out(
    connection: Connection,
    plan: PartitionPlan,
    *,
    run_id: str = "",
    dag_run_id: str = "",
    actor: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ApplyReport:
    """Apply a plan, see :func:`apply_plan`, as a recorded run that can be watched and paused.

    A plan without steps makes no run; only the time of the last successful maintenance is recorded.

    :param run_id: id of the run, if the plan is stored already.
    :param actor: person who asks for it, for the audit; none for the user of the database.
    """
    if plan.empty:
        return apply_plan(connection, plan=plan, now_ms=system_clock(), say=say)
    runs = MaintenanceRuns(connection)
    run = run_id or save_run(runs, plan, dag_run_id=dag_run_id)
    runs.set_state(run, RunState.RUNNING)
    narrator = Narrator(say, f"{plan.table}: {plan.purpose}", total=len(plan.steps), unit="steps")

    def note(outcomes: Sequence[StepOutcome]) -> None:
        runs.save_progress(run, _progress(plan, outcomes))
        narrator.at(len(outcomes))

    try:
        report = apply_plan(
            connection,
            plan=plan,
            now_ms=system_clock(),
            is_paused=lambda: runs.control(run).paused,
            wait=run_pace(runs, run_id=run, shard=plan.table, max_run_minutes=None, say=say, stays=False),
            note=note,
            say=say,
        )
    except Exception as error:
        if not connection.closed:
            runs.set_state(run, RunState.STOPPED if isinstance(error, MaintenanceRunning) else RunState.FAILED)
        raise
    done = [each for each in report.outcomes if each.state is StepState.DONE]
    partitions, rows = [each.partition for each in done], sum(each.rows or 0 for each in done)
    runs.save_report(
        run,
        plain(report),
        actor=actor,
        action=Action.UNDO if plan.purpose is Purpose.REATTACHMENT else Action.APPLY,
        effect={"table": plan.table, "partitions": partitions, "rows": rows} if done else {},
    )
    failed = any(each.state is StepState.FAILED for each in report.outcomes)
    runs.set_state(run, RunState.DONE if report.done else RunState.FAILED if failed else RunState.STOPPED)
    return report


def outcomes_table(report: ApplyReport) -> Table:
    """Return a table with the outcome of each step."""
    return Table(
        heading=f"{report.purpose} of {report.table}",
        heads=("step", "partition", "state", "tries", "waited s", "seconds", "why"),
        rows=tuple(
            (
                each.kind,
                each.partition,
                each.state,
                str(each.attempts),
                f"{each.waited_s:.1f}",
                f"{each.seconds:.1f}",
                each.words,
            )
            for each in report.outcomes
        ),
        empty=f"{report.table}: nothing to do",
    )


def _progress(plan: PartitionPlan, outcomes: Sequence[StepOutcome]) -> ShardProgress:
    done = sum(each.state in DONE for each in outcomes)
    removes = plan.purpose in (Purpose.RETIREMENT, Purpose.DROP)
    return ShardProgress(
        shard=plan.table,
        cursor=outcomes[-1].partition,
        scanned=len(outcomes),
        removed=done if removes else 0,
        repaired=0 if removes else done,
        done=done == len(plan.steps),
    )
