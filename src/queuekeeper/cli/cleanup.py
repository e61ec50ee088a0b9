"""``queuekeeper cleanup``: plan, apply, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from queuekeeper.cli import jobs
from queuekeeper.cli.command import CONFIRMS, OnServers, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, cell, table
from queuekeeper.cli.run_control import RunId, agree

if TYPE_CHECKING:
    from queuekeeper.jobs.model import AnyJob, AnyOutcome
    from queuekeeper.jobs.parameters import Parameters

KIND = "expired_reference_cleanup"

app = group("Clean Redis of what has expired, in sessions in use.")


def _cleanup() -> type[AnyJob]:
    from queuekeeper.jobs.registry import job_of

    return job_of(KIND)


@command(app, asks=takes(lambda: jobs.model_of(KIND)))
def plan(call: OnServers, *, parameters: Parameters) -> Shown:
    """Count what a cleanup would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper cleanup plan --idle-days 90`
    """
    from queuekeeper.postgres import migrate

    job = _cleanup()
    engine = jobs.engine_for(job, call.client)
    migrate(call.connection)
    made = engine.plan(parameters)
    run_id = engine.save(call.runs, made).maintenance_run_id

    facts = {"maintenance_run_id": run_id, "empty": made.empty, "to_do": made.counts.to_do} | made.facts()
    return Shown(
        facts,
        lambda: jobs.plan_parts(f"Cleanup {run_id}", job, made),
        then="Nothing to do." if made.empty else f"Next: queuekeeper cleanup apply {run_id}",
    )


@command(app, also=CONFIRMS)
def apply(
    call: OnServers, run_id: RunId, *, shard: str | None = None, undo_directory: jobs.UndoDirectory = None
) -> Shown:
    """Clean as planned, then look again. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it. Exit code 1 when a shard is not done.

    Example: `queuekeeper cleanup apply 0123456789abcdef`

    :param shard: Clean only this shard of the plan. Without it, all shards.
    """
    from queuekeeper.jobs.report import facts_of

    job, runs = _cleanup(), call.runs
    engine = jobs.engine_for(job, call.client, undo_directory)
    planned = engine.load(runs, run_id)
    agree(call, runs, run_id, job.question(run_id, planned))
    reports = [engine.apply(runs, run_id, each) for each in ([shard] if shard else planned.share_names())]
    outcome = engine.report(runs, run_id, dry_run=False)
    files = [each.undo_file for each in reports if each.undo_file]
    return Shown(
        facts_of(job, outcome) | {"undo_files": files},
        lambda: [*(cell(f"Undo file: {file}") for file in files), *_outcome(outcome)],
        failed="; ".join(f"{each.share}: {each.stopped}" for each in reports if not each.done) or None,
    )


jobs.add_aliases(app, KIND, {name: name for name in ("status", "report", "pause", "resume", "throttle", "undo")})


def _outcome(outcome: AnyOutcome) -> Iterator[Any]:
    from queuekeeper.jobs.report import columns_of

    if outcome.clean:
        yield cell("✓ Clean: a second look finds nothing to do", style="bold green")
    elif outcome.open_shares:
        yield cell(f"✗ Not done: {', '.join(outcome.open_shares)}", style="bold red")
    else:
        left = outcome.left.to_do if outcome.left is not None else 0
        yield cell(f"✓ Done; {left:,} more to clean by now", style="bold green")
    lines = columns_of(outcome)
    yield table(f"Cleanup {outcome.maintenance_run_id}", ("", "planned", "done", "left")[: len(lines[0])], lines)
