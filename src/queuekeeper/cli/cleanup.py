"""``queuekeeper cleanup``: plan, apply, and what goes with them."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context, jobs
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import cell, pairs, plain, printable, show, table
from queuekeeper.cli.run_control import RunId, RunIdOrNewest, agree
from queuekeeper.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.cleanup.expired_references import CleanupOutcome, CleanupPlan
    from queuekeeper.maintenance.cleanup.model import CleanupParameters

KIND = "expired_reference_cleanup"

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Clean Redis of what has expired, in sessions in use."""


def _parameters() -> type[CleanupParameters]:
    from queuekeeper.maintenance.cleanup.model import CleanupParameters

    return CleanupParameters


@app.command(cls=JobCommand)
@takes(_parameters)
def plan(
    *,
    parameters: CleanupParameters,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Count what a cleanup would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper cleanup plan --idle-days 90`
    """
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.cleanup.expired_references import Cleanup
    from queuekeeper.postgres import migrate

    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        migrate(connection)
        engine = jobs.engine_for(Cleanup, client)
        made = engine.plan(parameters)
        run_id = engine.save(MaintenanceRuns(connection), made).maintenance_run_id

    def pretty(out: Console) -> None:
        _plan(out, run_id, made)
        if made.empty:
            out.print("\nNothing to do.")
        else:
            out.print(f"\nNext: queuekeeper cleanup apply {run_id}")

    show(_plan_facts(run_id, made), as_json=as_json, pretty=pretty)


@app.command()
def apply(
    run_id: RunId,
    *,
    shard: Annotated[str | None, typer.Option(help="Clean one shard of the plan; all of them if left out.")] = None,
    undo_directory: jobs.UndoDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Clean as planned, then look again. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it. Exit code 1 when a shard is not done.

    Example: `queuekeeper cleanup apply 0123456789abcdef`
    """
    from queuekeeper.jobs.report import facts_of
    from queuekeeper.maintenance.cleanup.expired_references import Cleanup

    with context.open_maintenance_runs(postgres_url) as runs, context.redis_connection(redis_url) as client:
        engine = jobs.engine_for(Cleanup, client, undo_directory)
        planned = engine.load(runs, run_id)
        agree(runs, run_id, Cleanup.question(run_id, planned), yes=yes, as_json=as_json)
        reports = [engine.apply(runs, run_id, each) for each in ([shard] if shard else planned.share_names())]
        outcome = engine.report(runs, run_id, dry_run=False)

    def pretty(out: Console) -> None:
        for each in reports:
            if each.undo_file:
                out.print(f"Undo file: {printable(each.undo_file)}", soft_wrap=True)
        _outcome(out, outcome)

    show(
        facts_of(Cleanup, outcome) | {"undo_files": [each.undo_file for each in reports if each.undo_file]},
        as_json=as_json,
        pretty=pretty,
    )
    stopped = [f"{each.share}: {each.stopped}" for each in reports if not each.done]
    if stopped:
        raise CheckFailed("; ".join(stopped))


@app.command()
def status(
    run_id: RunIdOrNewest = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Tell how far a cleanup has come.

    Example: `queuekeeper cleanup status`
    """
    from queuekeeper.jobs.engine import load_plan
    from queuekeeper.maintenance.cleanup.expired_references import Cleanup

    with context.open_maintenance_runs(postgres_url) as runs:
        run_id = jobs.chosen(runs, run_id, KIND)
        made = load_plan(Cleanup, runs, run_id)
        run = runs.load(run_id)
        progress = {each.shard: each for each in runs.progress(run_id)}

    def pretty(out: Console) -> None:
        _plan(out, str(run_id), made)
        throttle = run.throttle_operations_per_s
        out.print(
            pairs(
                "State",
                {
                    "run": cell(
                        run.state.value, style={"done": "green", "failed": "red"}.get(run.state.value, "yellow")
                    ),
                    "paused": run.paused,
                    "approved": run.approved_by,
                    "throttle": "none" if throttle is None else f"{throttle:,} operations/s",
                },
            )
        )
        out.print(
            table(
                "Shards",
                ("shard", "keys", "of", "removed", "repaired", "done"),
                [
                    (each.share, seen.scanned, each.counts.keys, seen.removed, seen.repaired, seen.done)
                    if (seen := progress.get(each.share))
                    else (each.share, 0, each.counts.keys, 0, 0, False)
                    for each in made.shares
                ],
            )
        )

    facts = _plan_facts(run_id, made) | {
        "state": run.state.value,
        "paused": run.paused,
        "approved_by": run.approved_by,
        "throttle_operations_per_s": run.throttle_operations_per_s,
        "progress": [plain(each) for each in progress.values()],
        "report": run.report,
    }
    show(facts, as_json=as_json, pretty=pretty)


@app.command()
def report(
    run_id: RunIdOrNewest = None,
    *,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Look again, and say what was planned, done and left.

    Exit code 1 when a shard is not done.

    Example: `queuekeeper cleanup report`
    """
    from queuekeeper.jobs.report import facts_of
    from queuekeeper.maintenance.cleanup.expired_references import Cleanup

    with context.open_maintenance_runs(postgres_url) as runs, context.redis_connection(redis_url) as client:
        run_id = jobs.chosen(runs, run_id, KIND)
        outcome = jobs.engine_for(Cleanup, client).report(runs, run_id, dry_run=False)
    show(facts_of(Cleanup, outcome), as_json=as_json, pretty=lambda out: _outcome(out, outcome))
    if outcome.open_shares:
        raise CheckFailed(f"not done: {', '.join(outcome.open_shares)}; queuekeeper cleanup apply {run_id}")


jobs.add_aliases(app, KIND, {name: name for name in ("pause", "resume", "throttle", "undo")})


def _plan_facts(run_id: str, made: CleanupPlan) -> dict[str, Any]:
    return {"maintenance_run_id": run_id, "empty": made.empty, "to_do": made.counts.to_do} | made.facts()


def _plan(out: Console, run_id: str, made: CleanupPlan) -> None:
    from queuekeeper.maintenance.cleanup.expired_references import Cleanup

    out.print(pairs(f"Cleanup {run_id}", dict(Cleanup.plan_rows(made))))
    for each in Cleanup.tables(made):
        if each.rows:
            out.print(table(each.heading, each.heads, each.rows))


def _outcome(out: Console, outcome: CleanupOutcome) -> None:
    from queuekeeper.jobs.report import columns_of

    if outcome.clean:
        out.print("✓ Clean: a second look finds nothing to do", style="bold green")
    elif outcome.open_shares:
        out.print(f"✗ Not done: {printable(', '.join(outcome.open_shares))}", style="bold red")
    else:
        left = outcome.left.to_do if outcome.left is not None else 0
        out.print(f"✓ Done; {left:,} more to clean by now", style="bold green")
    lines = columns_of(outcome)
    heads = ("", "planned", "done", "left")[: len(lines[0])]
    out.print(table(f"Cleanup {outcome.maintenance_run_id}", heads, lines))
