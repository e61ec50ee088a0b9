"""``queuekeeper cleanup``: find expired and orphaned references, and remove them."""

from __future__ import annotations

from typing import Annotated

import typer

from queuekeeper.cli import jobs, runs
from queuekeeper.cli.command import CONFIRMS, OnServers, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown
from queuekeeper.cli.run_control import RunId
from queuekeeper.jobs.parameters import Parameters

KIND = "expired_reference_cleanup"

app = group()


@command(app, asks=takes(lambda: jobs.model_of(KIND)))
def plan(call: OnServers, *, parameters: Parameters) -> Shown:
    """Count what a cleanup would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper cleanup plan --idle-days 90`
    """
    return jobs.planned(call, KIND, parameters, then="queuekeeper cleanup apply {run_id}")


@command(app, also=CONFIRMS)
def apply(
    call: OnServers,
    run_id: RunId,
    *,
    share: str | None = None,
    shard: Annotated[str | None, typer.Option(hidden=True)] = None,
    undo_directory: jobs.UndoDirectory = None,
) -> Shown:
    """Clean as planned, then look again. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it. Exit code 1 when a share is not done.

    Example: `queuekeeper cleanup apply 0123456789abcdef`

    :param share: Clean only this share of the plan. Without it, all shares.
    :param shard: Its name in earlier builds.
    """
    return jobs.carry_out(call, KIND, go_on=run_id, only=share or shard, undo_directory=undo_directory)


runs.add_aliases(app, KIND, {name: name for name in ("status", "report", "pause", "resume", "throttle", "undo")})
