"""Finds what waits for a person: runs that need an approval or a word, and incidents that nobody answers for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from queuekeeper.jobs.store import MaintenanceRun, Runs, RunState
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.incidents import Incidents, State

RUNS_LOOKED_AT = 100
"""Number of newest runs among which the newest one of each kind is looked for."""


@dataclass(frozen=True, kw_only=True)
class Matter:
    """Something that a person should know of or decide.

    :param about: run or incidents, such as ``session_migration 0123456789abcdef``.
    :param words: what it is, such as "is paused".
    :param command: what to call next.
    :param waits: whether it goes no further without a person.
    :param run: the run that it is about; none for incidents.
    """

    about: str
    words: str
    command: str
    waits: bool = True
    run: MaintenanceRun | None = None


def find_matters(connection: Connection, *, now_ms: int) -> tuple[Matter, ...]:
    """Return what waits for a person, then what is at work; of each kind of runs only the newest one counts.

    :param connection: connection to the control database, with ``autocommit``.
    :raises RefusedError: when schema ``queuekeeper`` is missing; names the command that makes it.
    """
    runs: dict[str, MaintenanceRun] = {}
    for run in Runs(connection).newest(limit=RUNS_LOOKED_AT):
        runs.setdefault(run.kind, run)
    found = [matter for run in runs.values() if (matter := _matter(run)) is not None]
    today = datetime.fromtimestamp(now_ms / 1_000, UTC).date()
    count = sum(each.state is State.OPEN for each in Incidents(connection).all(today=today))
    if count:
        words = "has no owner" if count == 1 else "have no owner"
        about = "1 open incident" if count == 1 else f"{count:,} open incidents"
        found.append(Matter(about=about, words=words, command="queuekeeper quality incidents list"))
    return tuple(sorted(found, key=lambda matter: not matter.waits))


def _matter(run: MaintenanceRun) -> Matter | None:
    run_id = run.maintenance_run_id
    words, verb, waits = "", "status", True
    is_dry_run = run.state is RunState.PLANNED and run.report is not None
    if run.refused or run.over or is_dry_run:
        return None
    if run.paused:
        words, verb = "is paused", "resume"
    elif run.state is RunState.PLANNED:
        words = "waits for an approval"
    elif run.state in (RunState.STOPPED, RunState.FAILED):
        words = f"has {'failed' if run.state is RunState.FAILED else 'stopped'} and can go on"
    else:
        words, waits = "is at work", False
    return Matter(
        about=f"{run.kind} {run_id}", words=words, command=f"queuekeeper run {verb} {run_id}", waits=waits, run=run
    )
