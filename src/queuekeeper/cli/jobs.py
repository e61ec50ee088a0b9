"""Commands of jobs: plan, question, work, second look; and ``queuekeeper run`` for runs of every job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from queuekeeper.approvals import milliseconds
from queuekeeper.cli import context
from queuekeeper.cli.command import PLANS, Call, OnPostgres, OnServers, command, group, with_call
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, cell, instant, listing, pairs, picked, record, table, told_tables
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, agree, say, take_back
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_namer
from queuekeeper.jobs.control import chosen, no_undo, rate_of, rate_words, set_pace, set_waiting
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import AnyJob, AnyPlan, Table
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.registry import check_kind, fact_names, job_of, told_of
from queuekeeper.jobs.store import MIGRATIONS, MaintenanceRuns, UnrecordedRuns, unit_of
from queuekeeper.jobs.undo import read_undo_file, undo_paths
from queuekeeper.redis_client import RedisClient

Kind = Annotated[str | None, typer.Option(help="Only runs of this job, such as fanout_repair.")]
GoOn = Annotated[
    str | None, typer.Option("--go-on", metavar="RUN", help="Go on with a run that was stopped or killed.")
]
ReportDirectory = Annotated[
    Path | None, typer.Option("--report-directory", help="Folder for a report as HTML and JSON, too.")
]
UndoDirectory = Annotated[
    Path | None,
    typer.Option(
        "--undo-directory",
        metavar="FOLDER",
        parser=context.undo_place,
        help="Folder of the undo files, or its URL in an object store; else QUEUEKEEPER_UNDO_DIR.",
    ),
]

ALONE = {"shares": 1}
"""A command works on all there is by itself."""

app = group()


def store_of(call: Call, job: type[AnyJob]) -> RedisClient | None:
    """Return the connection to Redis, for a job that works there."""
    return call.client if job.on_redis else None


def engine_for(
    job: type[AnyJob], client: RedisClient | None, undo_directory: Path | None = None, **rest: Any
) -> Engine:
    """Return the engine, at work on a store for a command.

    :param rest: what else it is given, see :class:`~queuekeeper.jobs.engine.Engine`.
    """
    settings = context.settings()
    return Engine(
        job=job,
        client=client,
        undo_directory=undo_directory or settings.undo,
        name_client=client_namer(settings),
        say=say,
        **rest,
    )


def carry_out(
    call: Call,
    kind: str,
    parameters: Parameters,
    *,
    go_on: str | None,
    report_directory: Path | None = None,
    undo_directory: Path | None = None,
    undo_file: Path | None = None,
    given: Any = None,
) -> Shown:
    """Plan, ask, work on all shares, and look again.

    :param parameters: of the job.
    :param go_on: run to go on with; then there is no new plan.
    :param undo_file: where to note what is changed, in place of a file in the folder.
    :param given: what the job is told and no record may hold.
    :returns: what came of it; failed when it was stopped, or there was something that could not be worked on.
    """
    job = job_of(kind)
    runs = call.runs_if_any(needed=not job.on_redis)
    if runs.connection is None:
        say("No PostgreSQL is named: this run is not on record, so no other command can pause it or go on with it.")
    store = store_of(call, job)
    engine = engine_for(job, store, undo_directory, undo_file=undo_file, database=runs.connection, given=given)
    if go_on is None:
        plan = engine.plan(parameters)
        run_id = engine.save(runs, plan).maintenance_run_id
    else:
        run_id, plan = go_on, engine.load(runs, go_on)
    if not call.dry_run and (not plan.empty or job.works_when_empty):
        if not plan.empty:
            call.say(lambda: plan_parts(f"Plan {run_id}", job, plan))
            agree(call, runs, run_id, job.question(run_id, plan))
        work_on(plan.share_names(), engine, runs, run_id)
    return looked_again(engine, runs, run_id, dry_run=call.dry_run, report_directory=report_directory)


def work_on(shares: Sequence[str], engine: Engine, runs: MaintenanceRuns, run_id: str) -> None:
    """Work on shares of a run; whoever looks on reads why one was stopped."""
    for share in shares:
        if why := engine.apply(runs, run_id, share).stopped:
            say(f"{share}: {why}")


def command_of(
    kind: str,
    help_text: str,
    *,
    argument: str = "",
    on: type[Call] = OnServers,
    fixed: Mapping[str, Any] = MappingProxyType(ALONE),
) -> Callable[..., None]:
    """Return the command that plans and carries out a job; its model says which options it has.

    :param argument: the parameter that is given by position.
    :param on: kind of its calls, which says what servers it works on.
    :param fixed: values of parameters that are no options.
    """

    def job(
        call: Call, *, parameters: Parameters, go_on: GoOn = None, report_directory: ReportDirectory = None
    ) -> Shown:
        return carry_out(call, kind, parameters, go_on=go_on, report_directory=report_directory)

    job.__doc__, job.__annotations__["call"] = help_text, on
    return takes(lambda: model_of(kind), argument=argument, fixed=fixed)(with_call(job, also=PLANS))


def model_of(kind: str) -> type[Parameters]:
    """Return the model of a job's parameters."""
    model: type[Parameters] = job_of(kind).Parameters
    return model


def plan_parts(title: str, job: type[AnyJob], plan: AnyPlan) -> Iterator[Any]:
    """Yield what a person sees of a plan."""
    yield pairs(title, dict(job.plan_rows(plan)))
    yield from _filled(job.tables(plan))


def _filled(tables: Iterable[Table]) -> Iterator[Any]:
    yield from (table(each.heading, each.heads, each.rows) for each in tables if each.rows)


def looked_again(
    engine: Engine,
    runs: MaintenanceRuns,
    run_id: str,
    *,
    dry_run: bool = False,
    report_directory: Path | None = None,
    shares: Collection[str] = (),
) -> Shown:
    """Look again, and return what was planned, done and left; as a report, too, where there is a folder for it.

    :param shares: those that have to be done; all when none is named.
    """
    from queuekeeper.jobs.report import columns_of, facts_of, verdict, write_report

    job, outcome = engine.job, engine.report(runs, run_id, dry_run=dry_run)
    if report_directory is not None:
        say(f"Report: {write_report(job, outcome, context.report_folder(report_directory)).html}")
    words = verdict(job, outcome)

    def pretty() -> Iterator[Any]:
        is_bad = outcome.open_shares or outcome.broken or outcome.trouble
        tone = "red" if is_bad else "green" if outcome.clean else "yellow"
        yield cell(words, style=f"bold {tone}")
        lines = columns_of(outcome)
        yield table(f"{job.words.title} {run_id}", ("", "planned", "done", "second look")[: len(lines[0])], lines)
        yield from _filled(job.shown(outcome))
        facts = {name.lower(): text for name, text, _ in job.figures(outcome)}
        asked = {"what": job.rule_words(outcome.plan.parameters), "as of": instant(outcome.plan.as_of_ms)}
        yield pairs("Asked for", asked | facts)
        yield from (cell(f"Undo file: {path}") for path in outcome.undo_files)

    failed = None
    if open_shares := [share for share in outcome.open_shares if not shares or share in shares]:
        go_on = job.words.go_on.format(command=job.words.command, run_id=run_id)
        again = f"{job.words.command}` begins again, and finds what is left"
        again = again if runs.connection is None else f"{go_on}` goes on"
        failed = f"not done: {', '.join(open_shares)}; `queuekeeper {again}"
    elif outcome.broken:
        failed = f"{words}: the lines above say why; {job.words.hint}"
    elif outcome.trouble:
        failed = words
    return Shown(facts_of(job, outcome), pretty, failed=failed)


# --- runs ------------------------------------------------------------------------------------------------------------


@command(app, "list")
def list_runs(
    call: OnPostgres, *, kind: Kind = None, limit: Annotated[int, typer.Option(min=1, max=1_000)] = 20
) -> Shown:
    """List the newest runs of all jobs.

    Example: `queuekeeper run list --kind fanout_repair`

    :param limit: How many at most, newest first.
    """
    if kind is not None:
        check_kind(kind)
    heads = ("run", "job", "state", "paused", "approved by", "planned")
    runs = call.runs.newest(kind=kind, limit=limit)
    lines = [(one.maintenance_run_id, one.kind, one.state.value, one.paused, one.approved_by) for one in runs]
    names = [head.replace(" ", "_") for head in heads]
    told = [dict(zip(names, (*line, str(one.created_at)), strict=True)) for line, one in zip(lines, runs, strict=True)]
    rows = [(*line, instant(milliseconds(one.created_at))) for line, one in zip(lines, runs, strict=True)]
    return Shown(told, lambda: [table("Runs", heads, rows)])


def status(call: OnPostgres, run_id: RunIdOrNewest = None, *, kind: Kind = None) -> Shown:
    """Say how far a run is, share by share.

    Example: `queuekeeper run status`
    """
    run = call.runs.load(chosen(call.runs, run_id, kind))
    progress = call.runs.progress(run.maintenance_run_id)
    names = fact_names(run.kind)
    facts_told = {name: (run.report or {}).get(name) for name in names}

    def pretty() -> Iterator[Any]:
        facts = {
            "job": run.kind,
            "run": run.state.value,
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
    set_waiting(call.runs, chosen(call.runs, run_id, kind), paused, actor=context.person())
    words = f"Run {run_id}: {'paused' if paused else 'goes on'}."
    return Shown({"maintenance_run_id": run_id, "paused": paused}, lambda: [words])


def pause(call: OnPostgres, run_id: RunId, *, kind: Kind = None) -> Shown:
    """Let a run wait. It notices within seconds.

    Example: `queuekeeper run pause 0123456789abcdef`
    """
    return _paused(call, run_id, kind, paused=True)


def resume(call: OnPostgres, run_id: RunId, *, kind: Kind = None) -> Shown:
    """Let a paused run go on.

    Example: `queuekeeper run resume 0123456789abcdef`
    """
    return _paused(call, run_id, kind, paused=False)


def throttle(call: OnPostgres, run_id: RunId, rate: Rate, *, kind: Kind = None) -> Shown:
    """Slow a run down or let it go. It follows within seconds.

    Of runs of partitions only those have a pace that move rows out of DEFAULT; it counts those rows.

    Example: `queuekeeper run throttle 0123456789abcdef 5000`
    """
    # What is no rate is refused before a server is asked about the run.
    rate_of(rate, unit_of(kind))
    run = set_pace(call.runs, chosen(call.runs, run_id, kind), rate, actor=context.person())
    per_s, unit = run.throttle_operations_per_s, run.unit
    words = f"at most {rate_words(run)}" if per_s else "no throttle"
    # Of a migration also by the names that its own commands had for it.
    names = ["throttle_operations_per_s", f"throttle_{unit}_per_s", f"{unit}_per_s"]
    facts = dict.fromkeys(names[:1] if unit == "operations" else names, per_s)
    return Shown({"maintenance_run_id": run_id, **facts}, lambda: [f"Run {run_id}: {words}."])


def undo(call: OnServers, run_id: RunId, *, kind: Kind = None, undo_directory: UndoDirectory = None) -> Shown:
    """Take back what a run has changed.

    Run it on the machine that has the undo files of the run, or anywhere when they are in an object store. Where
    somebody has gone on from a change, it stays. What a job cannot bring back, its page in the docs says.

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
    from queuekeeper.cli import migrate
    from queuekeeper.migration.ledger.model import CohortChoice

    # Counting what a file tells of needs no record.
    runs = UnrecordedRuns() if undo_file and call.dry_run else call.runs_if_any()
    if runs.connection is not None and not undo_file:
        recorded = runs.load(chosen(runs, run_id, kind))
        if refusal := no_undo(recorded):
            raise UsageError(refusal)
        if recorded.kind in MIGRATIONS:
            return migrate.undo(call, run_id, parameters=CohortChoice())
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
    from queuekeeper.cli import migrate

    run = call.runs.load(chosen(call.runs, run_id, kind))
    if run.kind in MIGRATIONS:
        return migrate.report(call, run.maintenance_run_id, directory=report_directory)
    if (tell := told_of(run.kind)) is not None:
        if report_directory is not None:
            raise UsageError(
                f"a {run.kind} has no report as a file: leave --report-directory out; Airflow's "
                "`partition_maintenance` writes one about all tables"
            )
        words, tables = tell(run)
        facts = {"maintenance_run_id": run.maintenance_run_id, "kind": run.kind, "state": run.state.value}
        told = facts | {"verdict": words, "report": run.report}
        return Shown(told, lambda: [cell(words, style="bold"), *told_tables(tables)])
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
