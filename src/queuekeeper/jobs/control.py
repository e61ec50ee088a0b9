"""Pauses, resumes and throttles a run, for commands and for pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queuekeeper.errors import UsageError
from queuekeeper.jobs.kinds import RunKind
from queuekeeper.jobs.parameters import MAX_RATE_PER_S, digits_of, no_rate
from queuekeeper.jobs.registry import kind_of

if TYPE_CHECKING:
    from queuekeeper.jobs.store import MaintenanceRun, Runs

_SHOWN = 50


def chosen(runs: Runs, run_id: str | None, kind: str | None = None) -> str:
    """Return the id of the named run, or of the newest.

    :param kind: only runs of this kind; by default of all kinds of these records.
    :raises UsageError: when there is no run, or the named run is of another job.
    """
    kinds = kind_of(kind).names if kind else tuple(runs.kinds)
    of = kind_of(kinds[0]) if kinds else RunKind(name="", dag="", noun="run")
    found = run_id or runs.latest_id(*kinds)
    if found is None:
        how = f"make one by `queuekeeper {of.command}`" if of.command else "a job's own command makes one"
        raise UsageError(f"there is no {of.noun} yet: {how}")
    run = runs.load(found)
    if kinds:
        run.check_kind(kinds, of.noun)
    return found


def set_waiting(runs: Runs, run_id: str, waits: bool, *, actor: str) -> MaintenanceRun:
    """Pause or resume a run and return it as it was.

    :param actor: person who asks for it.
    :raises RefusedError: when the run takes no such order now.
    :raises UsageError: when there is no such run.
    """
    run = runs.load(run_id)
    run.check_takes("pause" if waits else "resume")
    runs.set_paused(run_id, waits, actor=actor)
    return run


def set_pace(runs: Runs, run_id: str, text: str, *, actor: str) -> MaintenanceRun:
    """Change the throttle of a run and return the run.

    :param text: a rate in the run's unit per second, or "none".
    :param actor: person who asks for it.
    :raises RefusedError: when the run takes no such order now.
    :raises UsageError: when the text is no rate, the run has no throttle, or there is no such run.
    """
    run = runs.load(run_id)
    per_s = rate_of(text, run.unit)
    run.check_takes("throttle")
    runs.set_throttle(run_id, per_s, actor=actor)
    return runs.load(run_id)


def rate_of(text: str, what: str) -> int | None:
    """Return the rate that a text names; "none" lifts the limit and gives None.

    :param what: what the rate counts, in the plural.
    :raises UsageError: when the text is no rate.
    """
    if text == "none":
        return None
    digits = digits_of(text)
    # Python refuses to read thousands of digits.
    if not digits.isdecimal() or len(digits) > _SHOWN or not 1 <= int(digits) <= MAX_RATE_PER_S:
        raise no_rate(text[:_SHOWN], what)
    return int(digits)


def rate_words(run: MaintenanceRun) -> str:
    """Return the throttle of a run in words."""
    per_s = run.throttle_operations_per_s
    return "none" if per_s is None else f"{per_s:,} {run.unit}/s"
