"""``queuekeeper cleanup``: find expired and orphaned references, and remove them."""

from __future__ import annotations

from queuekeeper.cli import jobs, runs
from queuekeeper.cli.command import CONFIRMS, OnServers, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown
from queuekeeper.cli.run_control import RunId, agree
from queuekeeper.jobs.model import AnyJob
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.registry import job_of
from queuekeeper.postgres import migrate

KIND = "expired_reference_cleanup"

app = group()


def _cleanup() -> type[AnyJob]:
    return job_of(KIND)


@command(app, asks=takes(lambda: jobs.model_of(KIND)))
def plan(call: OnServers, *, parameters: Parameters) -> Shown:
    """Count what a cleanup would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper cleanup plan --idle-days 90`
    """
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
    job, runs = _cleanup(), call.runs
    engine = jobs.engine_for(job, call.client, undo_directory)
    planned = engine.load(runs, run_id)
    agree(call, runs, run_id, job.question(run_id, planned))
    shares = [shard] if shard else planned.share_names()
    jobs.work_on(shares, engine, runs, run_id)
    return jobs.looked_again(engine, runs, run_id, shares=shares)


runs.add_aliases(app, KIND, {name: name for name in ("status", "report", "pause", "resume", "throttle", "undo")})
