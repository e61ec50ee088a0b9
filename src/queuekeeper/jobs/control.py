"""What a person may tell a run to do: wait, go on, keep to a pace; the same from a command and from a page."""

from __future__ import annotations

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.registry import job_of, way_back_of
from queuekeeper.jobs.store import MAX_RATE, MIGRATIONS, MaintenanceRun, Runs

_SHOWN = 50


def chosen(runs: Runs, run_id: str | None, kind: str | None = None) -> str:
    """Return the run that a person means: the one named, else the newest.

    :param kind: of this job, or of migrations, only.
    :raises UsageError: when there is none, or it is of another job.
    """
    if kind in MIGRATIONS:
        noun, command, kinds = "plan", "migrate plan", MIGRATIONS
        found = run_id or runs.latest_id()
    elif kind and kind.startswith("partition_"):
        noun, command, kinds = kind, "", (kind,)
        found = run_id or runs.latest_id(kind)
    else:
        words = job_of(kind).words if kind else None
        noun, command = (words.noun, words.command) if words else ("run", "")
        kinds = (kind,) if kind else ()
        found = run_id or runs.latest_id(kind)
    if found is None:
        how = f"make one by `queuekeeper {command}`" if command else "a job's own command makes one"
        raise UsageError(f"there is no {noun} yet: {how}")
    is_of = runs.load(found).kind
    if kinds and is_of not in kinds:
        raise UsageError(f"run {found} is a {is_of}, not a {noun}")
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


def no_undo(run: MaintenanceRun) -> str:
    """Return why ``queuekeeper run undo`` does not take a run back, and what does; empty where it does."""
    run_id = run.maintenance_run_id
    if run.kind == "online_migration":
        return (
            f"run {run_id} moves clients while devices are connected: `queuekeeper online roll-back {run_id}` "
            f"gives them back, `queuekeeper migrate undo {run_id}` takes out what was only copied"
        )
    if run.kind in MIGRATIONS:
        return ""
    if way := way_back_of(run):
        return f"run {run_id} is a {run.kind}, which has no undo: {way}"
    return job_of(run.kind).no_way_back()
