"""``queuekeeper fanout repair-all`` and what goes with it: set fan-out queues right, and look how far that is."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import cell, duration, instant, pairs, show, table
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, RunKind, agree, say, show_status
from queuekeeper.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.fanout_repair_model import (
        FanoutRepairOutcome,
        FanoutRepairParameters,
        FanoutRepairPlan,
    )


def _parameters() -> type[FanoutRepairParameters]:
    from queuekeeper.maintenance.fanout_repair_model import FanoutRepairParameters

    return FanoutRepairParameters


@takes(_parameters, argument="queues", fixed={"shares": 1})
def repair_all(
    *,
    parameters: FanoutRepairParameters,
    dry_run: context.DryRun = False,
    go_on: Annotated[
        str | None, typer.Option("--go-on", metavar="RUN", help="Go on with a run that was stopped or killed.")
    ] = None,
    report_directory: Annotated[
        Path | None, typer.Option("--report-directory", help="Folder for a report as HTML and JSON, too.")
    ] = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Set right what is wrong in fan-out queues.

    What ran out, drifted or was left; then it looks again. Asks before anything changes. Exit code 1 when it was
    stopped or a queue cannot be repaired; --go-on goes on.

    Example: `queuekeeper fanout repair-all --dry-run`
    """
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.fanout_repair import (
        load_fanout_repair_plan,
        plan_fanout_repair,
        repair_share,
        report_fanout_repair,
        save_fanout_repair_plan,
    )
    from queuekeeper.maintenance.fanout_repair_report import write_report
    from queuekeeper.postgres import migrate

    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        migrate(connection)
        runs = MaintenanceRuns(connection)
        if go_on is None:
            plan = plan_fanout_repair(client, parameters=parameters, say=say)
            run_id = save_fanout_repair_plan(runs, plan).maintenance_run_id
        else:
            run_id = _kind().chosen(runs, go_on)
            plan = load_fanout_repair_plan(runs, run_id)
        if not dry_run and not plan.empty:
            agree(runs, run_id, _question(plan), yes=yes, as_json=as_json)
            for share in plan.parameters.share_names():
                repair_share(client, runs=runs, run_id=run_id, share=share, say=say)
        outcome = report_fanout_repair(client, runs=runs, run_id=run_id, dry_run=dry_run, say=say)
    if report_directory is not None:
        say(f"Report: {write_report(outcome, report_directory.absolute()).html}")
    _show_outcome(outcome, as_json=as_json)


def _question(plan: FanoutRepairPlan) -> str:
    counts = plan.counts
    removed = counts.expired_messages + counts.expired_dead + counts.unreferenced_payload
    words = f"{counts.changes:,} repairs will be made in {counts.changed_queues:,} queues"
    if removed:
        words += f"; {removed:,} messages go that have expired or that nobody owes an ack for"
    if counts.idle_consumers:
        words += f"; {counts.idle_consumers:,} consumers go with what waits for them alone"
    return f"{words}. Repair?"


def _show_outcome(outcome: FanoutRepairOutcome, *, as_json: bool) -> None:
    from queuekeeper.maintenance.fanout_repair_report import count_rows, facts_of, rule_words, verdict

    plan = outcome.plan

    def pretty(out: Console) -> None:
        tone = "red" if outcome.open_shares or outcome.broken_queues else "green" if outcome.clean else "yellow"
        out.print(cell(verdict(outcome), style=f"bold {tone}"))
        columns = [dict(count_rows(plan.counts))]
        if outcome.left is not None:
            columns += [dict(count_rows(outcome.counts)), dict(count_rows(outcome.left))]
        out.print(
            table(
                f"Repair {outcome.maintenance_run_id}",
                ("", "planned", "done", "second look")[: len(columns) + 1],
                [(name, *(each[name] for each in columns)) for name in columns[0]],
            )
        )
        if plan.unseen:
            heads = ("queue", "consumer", "not seen for", "messages")
            rows = [(each.queue, each.consumer, duration(1_000 * each.unseen_s), each.waiting) for each in plan.unseen]
            out.print(table("Consumers that may be dead", heads, rows))
        out.print(pairs("Asked for", {"what": rule_words(plan.parameters), "as of": instant(plan.as_of_ms)}))

    show(facts_of(outcome), as_json=as_json, pretty=pretty)
    if outcome.open_shares:
        raise CheckFailed(f"not done: `queuekeeper fanout repair-all --go-on {outcome.maintenance_run_id}` goes on")
    if outcome.broken_queues:
        raise CheckFailed(f"{verdict(outcome)}: the lines above say why")


def repair_status(
    run_id: RunIdOrNewest = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Say how far a repair is.

    Example: `queuekeeper fanout repair-status`
    """
    with context.open_maintenance_runs(postgres_url) as runs:
        run = runs.load(_kind().chosen(runs, run_id))
        progress = runs.progress(run.maintenance_run_id)
    show_status(
        run,
        progress,
        title="Repair",
        heads=("share", "last queue", "queues", "repairs", "done"),
        row=lambda each: (each.shard, each.cursor, each.scanned, each.repaired, each.done),
        as_json=as_json,
    )


def repair_pause(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a running repair wait. It notices within seconds.

    Example: `queuekeeper fanout repair-pause 0123456789abcdef`
    """
    _kind().set_paused(run_id, True, postgres_url, as_json)


def repair_resume(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a paused repair go on.

    Example: `queuekeeper fanout repair-resume 0123456789abcdef`
    """
    _kind().set_paused(run_id, False, postgres_url, as_json)


def repair_throttle(
    run_id: RunId, rate: Rate, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Slow a repair down or let it go. A running one follows within seconds.

    Example: `queuekeeper fanout repair-throttle 0123456789abcdef 5000`
    """
    _kind().set_throttle(run_id, rate, postgres_url, as_json)


COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("repair-all", repair_all),
    ("repair-status", repair_status),
    ("repair-pause", repair_pause),
    ("repair-resume", repair_resume),
    ("repair-throttle", repair_throttle),
)
"""Commands that the group ``fanout`` takes in."""


def _kind() -> RunKind:
    from queuekeeper.maintenance.fanout_repair_model import KIND

    return RunKind(kind=KIND, noun="repair of fan-out queues", command="fanout repair-all")
