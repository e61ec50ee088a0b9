"""Keeps a run to its pauses and its throttle, and makes its steps smaller while the server is slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from queuekeeper.clock import Pace
from queuekeeper.jobs.store import MaintenanceRuns, RunControl, Runs

SLOW_S = 1.0
"""Seconds after which an answer counts as slow; steps are sized to take milliseconds."""

_SLOW_IN_A_ROW = 3
_QUICK_IN_A_ROW = 20
_MOST_HALVINGS = 6


class TimeIsUp(Exception):
    """The longest time of the call is over."""


class RunPaused(Exception):
    """The run is paused, and its caller does not wait; a later call continues."""


def control_of(
    runs: Runs,
    run_id: str,
    *,
    paused: Callable[[], None],
    check: Callable[[], None] = lambda: None,
    stays: bool = True,
) -> RunControl:
    """Return what a person has set for a run, once the run is not paused.

    :param paused: called once when the run is paused.
    :param check: called each second while the run is paused; may raise.
    :param stays: whether to wait for the end of a pause.
    :raises RunPaused: when the run is paused and ``stays`` is false.
    """
    control = runs.control(run_id)
    if control.paused:
        paused()
    while control.paused:
        if not stays:
            raise RunPaused(f"run {run_id} is paused")
        check()
        time.sleep(1.0)
        control = runs.control(run_id)
    return control


def run_pace(
    runs: MaintenanceRuns,
    *,
    run_id: str,
    shard: str,
    max_run_minutes: int | None,
    say: Callable[[str], None],
    stays: bool = True,
) -> Pace:
    """Return a pace that waits while a run is paused, and holds its shards together to its throttle.

    The pace raises :class:`TimeIsUp` when ``max_run_minutes`` are over.

    :param max_run_minutes: longest time that this call may work; none for no limit.
    :param say: prints that the run is paused.
    :param stays: whether to wait while the run is paused; otherwise :func:`run_rest` ends the call.
    """
    deadline_s = None if max_run_minutes is None else time.monotonic() + 60 * max_run_minutes

    def check_time() -> None:
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise TimeIsUp(f"its {max_run_minutes} minutes are over: apply again, and it goes on from here")

    def allowed() -> float | None:
        paused = partial(say, f"{shard}: run {run_id} is paused")
        control = control_of(runs, run_id, paused=paused, check=check_time) if stays else runs.control(run_id)
        check_time()
        return control.operations_per_s

    return Pace(allowed, runs.bucket(run_id))


def run_rest(runs: MaintenanceRuns, run_id: str) -> Callable[[], None]:
    """Return a function to call where work can be interrupted; it raises :class:`RunPaused` while the run is paused.

    The function asks the database about once a second.
    """
    asked_s = float("-inf")

    def rest() -> None:
        nonlocal asked_s
        if time.monotonic() - asked_s >= 1.0:
            asked_s = time.monotonic()
            control_of(runs, run_id, paused=lambda: None, stays=False)

    return rest


@dataclass
class Breaker:
    """Halves the steps of a job after three slow answers in a row, and doubles them again after twenty quick ones.

    :param say: prints that steps get smaller, and that they have their full size again.
    """

    say: Callable[[str], None]
    now_s: Callable[[], float] = time.perf_counter
    _halvings: int = field(default=0, init=False)
    _slow: int = field(default=0, init=False)
    _quick: int = field(default=0, init=False)
    _sent_s: float | None = field(default=None, init=False)

    def size(self, full: int) -> int:
        """Return the present size of a step.

        :param full: size of a step while answers are quick.
        """
        return max(1, full >> self._halvings)

    def sent(self) -> None:
        """Note that a call is sent now."""
        self._sent_s = self.now_s()

    def answered(self) -> None:
        """Note that the last call was answered now."""
        if self._sent_s is None:
            return
        took_s, self._sent_s = self.now_s() - self._sent_s, None
        if took_s > SLOW_S:
            self._slow, self._quick = self._slow + 1, 0
        else:
            self._slow, self._quick = 0, self._quick + 1
        if self._slow == _SLOW_IN_A_ROW and self._halvings < _MOST_HALVINGS:
            self._halvings += 1
            self.say(f"three answers in a row took longer than {SLOW_S:g} s: steps are 1/{2**self._halvings} from now")
        elif self._quick == _QUICK_IN_A_ROW and self._halvings:
            self._halvings -= 1
            if not self._halvings:
                self.say("answers are quick again: steps have their full size")
        if self._slow == _SLOW_IN_A_ROW or self._quick == _QUICK_IN_A_ROW:
            self._slow = self._quick = 0
