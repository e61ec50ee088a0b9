"""Finds what waits for a person: runs that need an approval or a word, and incidents that nobody answers for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunState
from queuekeeper.migration.ledger.ledger import MIGRATIONS
from queuekeeper.migration.online.status import online_status
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.incidents import Incidents, State
from queuekeeper.report.figures import duration
from queuekeeper.wording import number_of

RUNS_LOOKED_AT = 100
"""Number of newest runs among which the newest one of each kind is looked for."""

QUIET = timedelta(minutes=15)
"""Time without progress after which a run is not said to be at work: a step under the slowest throttle is shorter."""


@dataclass(frozen=True, kw_only=True)
class Matter:
    """Something that a person should know of or decide.

    :param about: run or incidents, such as ``collection 0123456789abcdef``.
    :param words: what it is, such as "is paused".
    :param commands: what to call next.
    :param waits: whether it goes no further without a person.
    :param run: the run that it is about; none for incidents.
    """

    about: str
    words: str
    commands: tuple[str, ...]
    waits: bool = True
    run: MaintenanceRun | None = None


def find_matters(connection: Connection, *, now_ms: int) -> tuple[Matter, ...]:
    """Return what waits for a person, then what is at work; of each kind of runs only the newest one counts.

    :param connection: connection to the control database, with ``autocommit``.
    :raises RefusedError: when schema ``queuekeeper`` is missing; names the command that makes it.
    """
    store, now = MaintenanceRuns(connection), datetime.fromtimestamp(now_ms / 1_000, UTC)
    runs: dict[str, MaintenanceRun] = {}
    for run in store.newest(limit=RUNS_LOOKED_AT):
        runs.setdefault(run.kind, run)
    progress = store.progress_of([run.maintenance_run_id for run in runs.values()])
    found = list[Matter]()
    for run in runs.values():
        told = progress.get(run.maintenance_run_id)
        last = run.updated_at if told is None else max(run.updated_at, told.updated_at)
        if matter := _matter(store, run, now=now, quiet=now - last):
            found.append(matter)
    count = sum(each.state is State.OPEN for each in Incidents(connection).all(today=now.date()))
    if count:
        about = number_of(count, "open incident")
        found.append(Matter(about=about, words="without an owner", commands=("queuekeeper quality incidents list",)))
    return tuple(sorted(found, key=lambda matter: not matter.waits))


def _matter(store: MaintenanceRuns, run: MaintenanceRun, *, now: datetime, quiet: timedelta) -> Matter | None:
    """Return what is to be said of a run, if anything.

    :param quiet: time since the run has last changed.
    """
    run_id = run.maintenance_run_id
    words, verb, waits = "", "status", True
    if run.refused or run.over or (run.state is RunState.PLANNED and not run.waits_for_approval):
        return None
    if run.paused:
        words, verb = "is paused", "resume"
    elif run.state is RunState.PLANNED:
        words = "waits for an approval"
    elif run.state is RunState.REJECTED:
        words = "was rejected and can be planned again, or agreed to after all"
    elif run.state in (RunState.STOPPED, RunState.FAILED):
        words = f"has {'failed' if run.state is RunState.FAILED else 'stopped'} and can go on"
    elif run.state is RunState.APPROVED:
        words, waits = "is approved and has not begun", quiet > QUIET
    else:
        at_work = {each.shard for each in store.progress(run_id) if each.updated_at and now - each.updated_at <= QUIET}
        words, waits = run.of.waits_for(run, at_work), quiet > QUIET
        if not words:
            words = run.of.stands.format(time=duration(quiet.total_seconds())) if waits else "is at work"
            online = online_status(store.connection, run_id) if waits and run.kind in MIGRATIONS else None
            words += f": {online.in_words}" if online else ""
    commands = [f"queuekeeper run {verb} {run_id}"]
    if verb == "status" and words != "is at work" and (go_on := run.of.go_on(run)):
        commands.append(f"queuekeeper {go_on}")
    return Matter(about=f"{run.of.noun} {run_id}", words=words, commands=tuple(commands), waits=waits, run=run)
