"""What a person may tell a run to do: wait, go on, keep to a pace; the same from a command and from a page."""

from __future__ import annotations

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.kinds import RunKind
from queuekeeper.jobs.registry import kind_of
from queuekeeper.jobs.store import MAX_RATE, MaintenanceRun, Runs

_SHOWN = 50


def chosen(runs: Runs, run_id: str | None, kind: str | None = None) -> str:
    """Return the run that is named, or the newest.

    :param kind: of this kind only; of those that these records are about if left out.
    :raises UsageError: when there is none, or it is of another job.
    """
    kinds = kind_of(kind).names if kind else tuple(runs.kinds)
    of = kind_of(kinds[0]) if kinds else RunKind(name="", dag="", noun="run")
    found = run_id or runs.latest_id(*kinds)
    if found is None:
        how = f"make one by `queuekeeper {of.command}`" if of.command else "a job's own command makes one"
        raise UsageError(f"there is no {of.noun} yet: {how}")
    is_of = runs.load(found).kind
    if kinds and is_of not in kinds:
        raise UsageError(f"run {found} is a {is_of}, not a {of.noun}")
    return found


def set_waiting(runs: Runs, run_id: str, waits: bool, *, actor: str) -> None:
    """Let a run wait, or go on.

    :param actor: person who wants it.
    :raises RefusedError: when it is to wait and is over.
    :raises UsageError: when there is no such run.
    """
    if waits:
        _at_work(runs, run_id)
    runs.set_paused(run_id, waits, actor=actor)


def set_pace(runs: Runs, run_id: str, text: str, *, actor: str) -> MaintenanceRun:
    """Change how fast a run may work, as somebody has written it, and return the run.

    :param text: a rate in the run's own unit, or none.
    :param actor: person who wants it.
    :raises RefusedError: when it is over.
    :raises UsageError: when it is no rate, the run has no pace, or there is no such run.
    """
    run = _at_work(runs, run_id)
    runs.set_throttle(run_id, rate_of(text, run.unit), actor=actor)
    return runs.load(run_id)


def _at_work(runs: Runs, run_id: str) -> MaintenanceRun:
    """Return a run that still follows an order; one that has failed or was stopped can go on."""
    run = runs.load(run_id)
    if run.over:
        raise RefusedError(run.over)
    return run


def rate_of(text: str, what: str) -> int | None:
    """Return the rate that somebody names; the word "none" lifts the limit and gives None.

    :param what: is counted, in the plural.
    :raises UsageError: when it is no rate.
    """
    if text == "none":
        return None
    digits = text.replace(",", "").replace("_", "")
    # Python refuses to read thousands of digits.
    if not digits.isdecimal() or len(digits) > _SHOWN or not 1 <= int(digits) <= MAX_RATE:
        raise UsageError(f"the rate is {text[:_SHOWN]!r}: write {what} per second, 1 to {MAX_RATE:,}, or none")
    return int(digits)


def rate_words(run: MaintenanceRun) -> str:
    """Return the throttle of a run."""
    per_s = run.throttle_operations_per_s
    return "none" if per_s is None else f"{per_s:,} {run.unit}/s"
