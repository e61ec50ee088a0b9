"""``queuekeeper cleanup``: plan, apply, and what goes with them."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context, jobs
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import pairs, printable, show, show_tables, table
from queuekeeper.cli.run_control import RunId, agree
from queuekeeper.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.cleanup.expired_references import CleanupOutcome
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
        out.print(pairs(f"Cleanup {run_id}", dict(Cleanup.plan_rows(made))))
        show_tables(out, [each for each in Cleanup.tables(made) if each.rows])
        if made.empty:
            out.print("\nNothing to do.")
        else:
            out.print(f"\nNext: queuekeeper cleanup apply {run_id}")

    facts = {"maintenance_run_id": run_id, "empty": made.empty, "to_do": made.counts.to_do} | made.facts()
    show(facts, as_json=as_json, pretty=pretty)


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


jobs.add_aliases(app, KIND, {name: name for name in ("status", "report", "pause", "resume", "throttle", "undo")})


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
