"""Holds the work of a run to what a person has set for it: paused, slower, or over; what the work is, others say."""

from __future__ import annotations

import time
from collections.abc import Callable

from queuekeeper.clock import Pace
from queuekeeper.jobs.store import MaintenanceRuns


class TimeIsUp(Exception):
    """The run has worked for as long as it may."""


def run_pace(
    runs: MaintenanceRuns,
    *,
    run_id: str,
    shard: str,
    shards: int,
    max_run_minutes: int | None,
    say: Callable[[str], None],
) -> Pace:
    """Return a pace that waits while a run is paused, and gives one shard its part of the throttle.

    It raises :class:`TimeIsUp` when the call that it was made for has worked as long as it may.

    :param shards: how many share the throttle with this one.
    :param max_run_minutes: how long this call may work; none for no limit.
    :param say: told when it waits for somebody.
    """
    deadline_s = None if max_run_minutes is None else time.monotonic() + 60 * max_run_minutes

    def check_time() -> None:
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise TimeIsUp(f"its {max_run_minutes} minutes are over: apply again, and it goes on from here")

    def allowed() -> float | None:
        control = runs.control(run_id)
        if control.paused:
            say(f"{shard}: paused")
        while control.paused:
            check_time()
            time.sleep(1.0)
            control = runs.control(run_id)
        check_time()
        if control.operations_per_s is None:
            return None
        done = sum(each.done for each in runs.progress(run_id))
        return control.operations_per_s / max(1, shards - done)

    return Pace(allowed)
