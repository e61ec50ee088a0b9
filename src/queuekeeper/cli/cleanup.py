"""``queuekeeper cleanup``: plan, apply, and what goes with them."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import cell, instant, pairs, plain, printable, record, show, table
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, RunKind, agree, say, take_back
from queuekeeper.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.cleanup_model import CleanupOutcome, CleanupParameters, CleanupPlan

app = typer.Typer(no_args_is_help=True)

UndoDirectory = Annotated[
    Path | None, typer.Option("--undo-directory", help="Folder of the undo files; else QUEUEKEEPER_UNDO_DIR.")
]


@app.callback()
def _group() -> None:
    """Clean Redis of what has expired, in sessions in use."""


def _parameters() -> type[CleanupParameters]:
    from queuekeeper.maintenance.cleanup_model import CleanupParameters

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
    from queuekeeper.clock import system_clock
    from queuekeeper.identity import client_hash, hash_key
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.expired_references import plan_cleanup, save_cleanup_plan
    from queuekeeper.postgres import migrate

    key = hash_key(context.settings())
    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        migrate(connection)
        made = plan_cleanup(
            client,
            parameters=parameters,
            now_ms=system_clock(),
            name_client=lambda client_id: client_hash(client_id, key=key),
            say=say,
        )
        run_id = save_cleanup_plan(MaintenanceRuns(connection), made).maintenance_run_id

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
    undo_directory: UndoDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Clean as planned, then look again. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it. Exit code 1 when a shard is not done.

    Example: `queuekeeper cleanup apply 0123456789abcdef`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.expired_references import apply_cleanup, load_cleanup_plan, report_cleanup

    directory = undo_directory or context.settings().undo
    with context.open_maintenance_runs(postgres_url) as runs, context.redis_connection(redis_url) as client:
        planned = load_cleanup_plan(runs, run_id)
        agree(
            runs,
            run_id,
            f"Run {run_id} is not approved: {planned.counts.removed:,} references and messages will be removed and "
            f"{planned.counts.repaired:,} keys be given an expiry. Approve and clean?",
            yes=yes,
            as_json=as_json,
        )
        reports = [
            apply_cleanup(client, runs=runs, run_id=run_id, shard=each, undo_directory=directory, say=say)
            for each in ([shard] if shard else [each.shard for each in planned.shards])
        ]
        outcome = report_cleanup(client, runs=runs, run_id=run_id, now_ms=system_clock(), say=say)

    def pretty(out: Console) -> None:
        for each in reports:
            if each.undo_file:
                out.print(f"Undo file: {printable(each.undo_file)}", soft_wrap=True)
        _outcome(out, outcome)

    show(
        asdict(outcome)
        | {
            "clean": outcome.clean,
            "moved_on": outcome.moved_on,
            "undo_files": [each.undo_file for each in reports if each.undo_file],
        },
        as_json=as_json,
        pretty=pretty,
    )
    stopped = [f"{each.shard}: {each.stopped}" for each in reports if not each.done]
    if stopped:
        raise CheckFailed("; ".join(stopped))


@app.command()
def status(
    run_id: RunIdOrNewest = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Tell how far a cleanup has come.

    Example: `queuekeeper cleanup status`
    """
    from queuekeeper.maintenance.expired_references import load_cleanup_plan

    with context.open_maintenance_runs(postgres_url) as runs:
        run_id = _kind().chosen(runs, run_id)
        made = load_cleanup_plan(runs, run_id)
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
                    (each.shard, seen.scanned, each.counts.keys, seen.removed, seen.repaired, seen.done)
                    if (seen := progress.get(each.shard))
                    else (each.shard, 0, each.counts.keys, 0, 0, False)
                    for each in made.shards
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
def pause(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a running cleanup wait. It notices within seconds.

    Example: `queuekeeper cleanup pause 0123456789abcdef`
    """
    _kind().set_paused(run_id, True, postgres_url, as_json)


@app.command()
def resume(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a paused cleanup go on.

    Example: `queuekeeper cleanup resume 0123456789abcdef`
    """
    _kind().set_paused(run_id, False, postgres_url, as_json)


@app.command()
def throttle(
    run_id: RunId, rate: Rate, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Slow a cleanup down or let it go. A running one follows within seconds.

    Example: `queuekeeper cleanup throttle 0123456789abcdef 5000`
    """
    _kind().set_throttle(run_id, rate, postgres_url, as_json)


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
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.expired_references import report_cleanup

    with context.open_maintenance_runs(postgres_url) as runs, context.redis_connection(redis_url) as client:
        run_id = _kind().chosen(runs, run_id)
        outcome = report_cleanup(client, runs=runs, run_id=run_id, now_ms=system_clock(), say=say)
    show(
        asdict(outcome) | {"clean": outcome.clean, "moved_on": outcome.moved_on},
        as_json=as_json,
        pretty=lambda out: _outcome(out, outcome),
    )
    if outcome.shards_open:
        raise CheckFailed(f"not done: {', '.join(outcome.shards_open)}; queuekeeper cleanup apply {run_id}")


@app.command()
def undo(
    run_id: RunId,
    *,
    dry_run: context.DryRun = False,
    undo_directory: UndoDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Put dead references back and take expiries off again. Messages that were removed do not come back.

    Example: `queuekeeper cleanup undo 0123456789abcdef --dry-run`
    """
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.cleanup_undo import undo_cleanup

    directory = undo_directory or context.settings().undo
    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        kind = _kind()
        kind.chosen(MaintenanceRuns(connection), run_id)
        found = take_back(
            lambda only_count: undo_cleanup(client, run_id=run_id, directory=directory, dry_run=only_count),
            lambda counted: (
                f"{counted.references:,} dead references will be put back and {counted.expiries:,} expiries be taken "
                f"off, where nobody has written since. Take run {run_id} back?"
            ),
            subject=run_id,
            kind=kind.kind,
            connection=connection,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )
    show(found, as_json=as_json, pretty=lambda out: out.print(record("Undo", found)))


def _kind() -> RunKind:
    from queuekeeper.maintenance.cleanup_model import KIND

    return RunKind(kind=KIND, noun="cleanup", command="cleanup plan")


def _plan_facts(run_id: str, made: CleanupPlan) -> dict[str, Any]:
    return {"maintenance_run_id": run_id, "empty": made.empty, "to_do": made.counts.to_do} | asdict(made)


def _plan(out: Console, run_id: str, made: CleanupPlan) -> None:
    from queuekeeper.maintenance.cleanup_summary import plan_rows

    out.print(pairs(f"Cleanup {run_id}", dict(plan_rows(made)) | {"As of": instant(made.as_of_ms)}))
    if made.worst:
        out.print(
            table(
                "Queues with most dead references",
                ("client", "references", "dead"),
                [(each.client_hash, each.references, each.dead) for each in made.worst],
            )
        )


def _outcome(out: Console, outcome: CleanupOutcome) -> None:
    from queuekeeper.maintenance.cleanup_summary import count_rows

    if outcome.clean:
        out.print("✓ Clean: a second look finds nothing to do", style="bold green")
    elif outcome.shards_open:
        out.print(f"✗ Not done: {printable(', '.join(outcome.shards_open))}", style="bold red")
    else:
        out.print(f"✓ Done; {outcome.left.to_do:,} more to clean by now", style="bold green")
    columns = [dict(count_rows(each)) for each in (outcome.planned, outcome.counts, outcome.left)]
    out.print(
        table(
            f"Cleanup {outcome.maintenance_run_id}",
            ("", "planned", "done", "left"),
            [(name, *(each[name] for each in columns)) for name in columns[0]],
        )
    )
