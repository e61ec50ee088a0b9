"""``queuekeeper run``: start and list the runs of all jobs, steer them, tell what they did, and undo them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from queuekeeper.cli import context, start
from queuekeeper.cli.command import PLANS, OnPostgres, OnServers, command, group, with_call
from queuekeeper.cli.jobs import ReportDirectory, UndoDirectory, engine_for, looked_again, store_of
from queuekeeper.cli.output import Shown, headed, instant, listing, pairs, picked, record, table
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, run_taken_back, run_told, take_back
from queuekeeper.jobs.control import chosen, rate_of, rate_words, set_pace, set_waiting
from queuekeeper.jobs.registry import check_kind, job_of, kind_of
from queuekeeper.jobs.undo import read_undo_file, undo_paths

Kind = Annotated[str | None, typer.Option(help="Only runs of this job, such as fanout_repair.")]

app = group()
app.add_typer(start.app, name="start")


@command(app, "list")
def list_runs(
    call: OnPostgres,
    *,
    kind: Kind = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000)] = 20,
    ids: bool = False,
) -> Shown:
    """List the newest runs of all jobs.

    Example: `queuekeeper run list --kind fanout_repair`

    :param limit: Number of runs to show, the newest ones.
    :param ids: Show only the ids, one a line, for scripts.
    """
    told = [
        picked(one, "maintenance_run_id", "kind", "state", "paused", "approved_by")
        | {"run": one.maintenance_run_id, "job": one.kind, "planned": one.created_at, "dry_run": one.dry_run}
        for one in call.runs.newest(kind=kind, limit=limit)
    ]
    if kind is not None and not told:
        # Runs of kinds that only early builds knew are listed.
        check_kind(kind)
    columns: dict[str, Any] = headed("run", "job", "state", "paused", "approved_by", "planned")
    columns["state"] = lambda each: f"{each['state']}, dry run" if each["dry_run"] else each["state"]
    return Shown(told, lambda: [str(each["run"]) for each in told] if ids else [listing("Runs", told, columns)])


def status(call: OnPostgres, run_id: RunIdOrNewest = None, *, kind: Kind = None) -> Shown:
    """Say how far a run is, share by share.

    Example: `queuekeeper run status`
    """
    run = call.runs.load(chosen(call.runs, run_id, kind))
    progress = call.runs.progress(run.maintenance_run_id)
    names = run.of.fact_names
    facts_told = {name: (run.report or {}).get(name) for name in names}

    def pretty() -> Iterator[Any]:
        facts = {
            "job": run.kind,
            "run": run.state.value,
            "what next": run.what_next or None,
            "paused": run.paused,
            "approved by": run.approved_by,
            "throttle": rate_words(run),
        }
        notes = {names[name]: instant(at_ms) or "never" for name, at_ms in facts_told.items()}
        yield pairs(f"Run {run.maintenance_run_id}", facts | notes)
        columns = {"share": "shard", "where it is": "cursor", "looked at": "scanned", "removed": "removed"}
        yield listing("Shares", progress, columns | {"repaired": "repaired", "done": "done"})

    told = ("maintenance_run_id", "kind", "state", "paused", "approved_by", "throttle_operations_per_s", "report")
    return Shown(picked(run, *told) | {"progress": progress} | facts_told, pretty)


def _paused(call: OnPostgres, run_id: str, kind: str | None, *, paused: bool) -> Shown:
    run = set_waiting(call.runs, chosen(call.runs, run_id, kind), paused, actor=context.person())
    still = run.refuses("pause")
    words = "paused." if paused else f"no longer paused. {still}" if still else "goes on."
    return Shown({"maintenance_run_id": run_id, "paused": paused}, lambda: [f"Run {run_id}: {words}"])


def pause(call: OnPostgres, run_id: RunId, *, kind: Kind = None) -> Shown:
    """Pause a run. It notices within seconds.

    Example: `queuekeeper run pause 0123456789abcdef`
    """
    return _paused(call, run_id, kind, paused=True)


def resume(call: OnPostgres, run_id: RunId, *, kind: Kind = None) -> Shown:
    """Resume a paused run.

    Example: `queuekeeper run resume 0123456789abcdef`
    """
    return _paused(call, run_id, kind, paused=False)


def throttle(call: OnPostgres, run_id: RunId, rate: Rate, *, kind: Kind = None) -> Shown:
    """Limit the rate of a run, or lift the limit. It follows within seconds.

    Of the runs of partitions only those that move rows out of DEFAULT can be slowed down; the number counts rows.

    Example: `queuekeeper run throttle 0123456789abcdef 5000`
    """
    # What is no rate is refused before a server is asked about the run.
    rate_of(rate, kind_of(kind).unit if kind else "operations")
    run = set_pace(call.runs, chosen(call.runs, run_id, kind), rate, actor=context.person())
    per_s, unit = run.throttle_operations_per_s, run.unit
    words = f"at most {rate_words(run)}" if per_s else "no throttle"
    # Of a migration also by the names that its own commands had for it.
    names = ["throttle_operations_per_s", f"throttle_{unit}_per_s", f"{unit}_per_s"]
    facts = dict.fromkeys(names[:1] if unit == "operations" else names, per_s)
    return Shown({"maintenance_run_id": run_id, **facts}, lambda: [f"Run {run_id}: {words}."])


def undo(call: OnServers, run_id: RunId, *, kind: Kind = None, undo_directory: UndoDirectory = None) -> Shown:
    """Undo what a run has changed.

    Run it on the machine that has the undo files of the run, or anywhere when they are in an object store. A change
    stays where a key or queue was changed since. The job's page in the docs says what it cannot bring back.

    Example: `queuekeeper run undo 0123456789abcdef --dry-run`
    """
    return take_run_back(call, run_id, kind=kind, undo_directory=undo_directory)


def take_run_back(
    call: OnServers,
    run_id: str = "",
    *,
    kind: str | None = None,
    undo_directory: Path | None = None,
    undo_file: Path | None = None,
    max_operations_per_s: int | None = None,
) -> Shown:
    """Take a run back: of its record, or of the one file that is named.

    :param undo_file: says by its first line which run it is of.
    :param max_operations_per_s: how fast; none for as fast as the run was.
    """
    # Counting what a file tells of needs no record.
    from queuekeeper.jobs.unrecorded import UnrecordedRuns

    runs = UnrecordedRuns() if undo_file and call.dry_run else call.runs_if_any()
    if runs.connection is not None and not undo_file:
        recorded = runs.load(chosen(runs, run_id, kind))
        recorded.check_takes("undo")
        if recorded.of.undo is not None:
            return run_taken_back(call, recorded)
        job, asked = job_of(recorded.kind), recorded.parameters
    else:
        # The first line of an undo file says what a run without a record was; remedies called it otherwise once.
        path = undo_file or undo_paths(undo_directory or context.settings().undo, run_id=run_id)[0]
        header, _ = read_undo_file(path, kind=kind)
        job = job_of(str(header.get("kind")))
        asked = header.get("parameters") or {"key_prefix": header.get("key_prefix", "")}
        run_id = run_id or str(header.get("maintenance_run_id") or header.get("run_id") or path.name)
    engine = engine_for(job, store_of(call, job), undo_directory, undo_file=undo_file, database=runs.connection)
    parameters = job.Parameters(**asked)
    if max_operations_per_s is not None:
        parameters = replace(parameters, max_operations_per_s=max_operations_per_s)
    found = take_back(
        call,
        lambda only_count: engine.undo(run_id=run_id, parameters=parameters, dry_run=only_count),
        lambda counted: f"{job.undo_words(counted)} Take run {run_id} back?",
        subject=run_id,
        kind=job.kind,
        connection=runs.connection,
    )

    def pretty() -> Iterator[Any]:
        yield record("Undo", found)
        left = getattr(found, "left", None)
        if isinstance(left, Mapping) and left:
            yield table("Left as they are", ("reason", "changes"), left.items())

    return Shown(found, pretty)


def report(
    call: OnServers, run_id: RunIdOrNewest = None, *, kind: Kind = None, report_directory: ReportDirectory = None
) -> Shown:
    """Look again, and say what a run planned, did and left. Exit code 1 when a share is not done.

    Example: `queuekeeper run report --report-directory reports`
    """
    run = call.runs.load(chosen(call.runs, run_id, kind))
    if run.of.report is not None:
        return run_told(call, run, directory=report_directory)
    job = job_of(run.kind)
    engine = engine_for(job, store_of(call, job), database=call.connection)
    return looked_again(engine, call.runs, run.maintenance_run_id, report_directory=report_directory)


_CONTROLS: dict[str, tuple[Callable[..., Shown], tuple[str, ...]]] = {
    "status": (status, ()),
    "pause": (pause, ()),
    "resume": (resume, ()),
    "throttle": (throttle, ()),
    "undo": (undo, PLANS),
    "report": (report, ()),
}
for _name, (_written, _also) in _CONTROLS.items():
    command(app, _name, also=_also)(_written)


STEERED = ("status", "pause", "resume", "throttle")
"""Controls that commands of earlier releases have for every run of a job that goes on by itself."""


def add_aliases(group: typer.Typer, kind: str, names: dict[str, str]) -> None:
    """Let commands of earlier releases do what ``queuekeeper run`` does, for runs of one job; help does not show them.

    :param names: of the commands, each with its name in ``queuekeeper run``.
    """
    for name, control in names.items():
        written, also = _CONTROLS[control]
        group.command(name, hidden=True)(with_call(written, also=also, fixed={"kind": kind}))
