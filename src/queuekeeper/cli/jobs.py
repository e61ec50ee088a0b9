"""Commands of jobs: plan, question, work, second look; and ``queuekeeper run`` for runs of every job."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import cell, instant, pairs, plain, record, screen, show, show_tables, table
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, agree, say, take_back
from queuekeeper.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.jobs.engine import Engine
    from queuekeeper.jobs.model import AnyJob, AnyOutcome, AnyPlan, Table
    from queuekeeper.jobs.parameters import Parameters
    from queuekeeper.jobs.store import Runs
    from queuekeeper.redis_client import RedisClient

Kind = Annotated[str | None, typer.Option(help="Only runs of this job, such as fanout_repair.")]
GoOn = Annotated[
    str | None, typer.Option("--go-on", metavar="RUN", help="Go on with a run that was stopped or killed.")
]
ReportDirectory = Annotated[
    Path | None, typer.Option("--report-directory", help="Folder for a report as HTML and JSON, too.")
]
UndoDirectory = Annotated[
    Path | None, typer.Option("--undo-directory", help="Folder of the undo files; else QUEUEKEEPER_UNDO_DIR.")
]

ALONE = {"shares": 1}
"""A command works on all there is by itself."""

app = typer.Typer(
    cls=context.CommandGroup,
    no_args_is_help=True,
    help="List runs of all jobs, steer them, take them back.",
)


def store_of(job: type[AnyJob], url: str | None) -> AbstractContextManager[RedisClient | None]:
    """Open Redis for the block, for a job that works there."""
    return context.redis_connection(url) if job.on_redis else nullcontext()


def engine_for(
    job: type[AnyJob], client: RedisClient | None, undo_directory: Path | None = None, **rest: Any
) -> Engine:
    """Return the engine, at work on a store for a command.

    :param rest: what else it is given, see :class:`~queuekeeper.jobs.engine.Engine`.
    """
    from queuekeeper.identity import client_namer
    from queuekeeper.jobs.engine import Engine

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
    kind: str,
    parameters: Parameters,
    *,
    dry_run: bool,
    go_on: str | None,
    report_directory: Path | None,
    undo_directory: Path | None = None,
    undo_file: Path | None = None,
    given: Any = None,
    postgres_url: str | None,
    redis_url: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Plan, ask, work on all shares, and look again.

    :param parameters: of the job.
    :param go_on: run to go on with; then there is no new plan.
    :param undo_file: where to note what is changed, in place of a file in the folder.
    :param given: what the job is told and no record may hold.
    :raises CheckFailed: when it was stopped, or there was something that could not be worked on.
    """
    from queuekeeper.jobs.registry import job_of
    from queuekeeper.jobs.report import write_report

    job = job_of(kind)
    records = context.runs_if_any(postgres_url, needed=not job.on_redis)
    with records as runs, store_of(job, redis_url) as client:
        if runs.connection is None:
            say("No PostgreSQL is named: this run is not on record, so no other command can pause it or go on with it.")
        engine = engine_for(job, client, undo_directory, undo_file=undo_file, database=runs.connection, given=given)
        if go_on is None:
            plan = engine.plan(parameters)
            run_id = engine.save(runs, plan).maintenance_run_id
        else:
            run_id, plan = go_on, engine.load(runs, go_on)
        if not dry_run and (not plan.empty or job.works_when_empty):
            if not plan.empty:
                if not as_json:
                    _show_plan(screen(stderr=True), job, run_id, plan)
                agree(runs, run_id, job.question(run_id, plan), yes=yes, as_json=as_json)
            for share in plan.share_names():
                engine.apply(runs, run_id, share)
        outcome = engine.report(runs, run_id, dry_run=dry_run)
    if report_directory is not None:
        say(f"Report: {write_report(job, outcome, report_directory.absolute()).html}")
    _show_outcome(job, outcome, as_json=as_json, is_recorded=runs.connection is not None)


def command_of(kind: str, help_text: str, *, argument: str = "") -> Callable[..., None]:
    """Return the command that plans and carries out a job; its model says which options it has.

    :param argument: the parameter that is given by position.
    """

    def command(
        *,
        parameters: Parameters,
        dry_run: context.DryRun = False,
        go_on: GoOn = None,
        report_directory: ReportDirectory = None,
        postgres_url: context.PostgresUrl = None,
        redis_url: context.RedisUrl = None,
        yes: context.Yes = False,
        as_json: context.AsJson = False,
    ) -> None:
        carry_out(
            kind,
            parameters,
            dry_run=dry_run,
            go_on=go_on,
            report_directory=report_directory,
            postgres_url=postgres_url,
            redis_url=redis_url,
            yes=yes,
            as_json=as_json,
        )

    command.__doc__ = help_text
    return takes(lambda: model_of(kind), argument=argument, fixed=ALONE)(command)


def model_of(kind: str) -> type[Parameters]:
    """Return the model of a job's parameters."""
    from queuekeeper.jobs.registry import job_of

    model: type[Parameters] = job_of(kind).Parameters
    return model


def _show_plan(out: Console, job: type[AnyJob], run_id: str, plan: AnyPlan) -> None:
    """Show what is about to be asked about."""
    out.print(pairs(f"Plan {run_id}", dict(job.plan_rows(plan))))
    _show_tables(out, job.tables(plan))


def _show_tables(out: Console, tables: Sequence[Table]) -> None:
    for each in tables:
        if each.rows:
            out.print(table(each.heading, each.heads, each.rows))


def _show_outcome(job: type[AnyJob], outcome: AnyOutcome, *, as_json: bool, is_recorded: bool = True) -> None:
    from queuekeeper.jobs.report import columns_of, facts_of, verdict

    run_id, words = outcome.maintenance_run_id, verdict(job, outcome)

    def pretty(out: Console) -> None:
        is_bad = outcome.open_shares or outcome.broken or outcome.trouble
        tone = "red" if is_bad else "green" if outcome.clean else "yellow"
        out.print(cell(words, style=f"bold {tone}"))
        lines = columns_of(outcome)
        heads = ("", "planned", "done", "second look")[: len(lines[0])]
        out.print(table(f"{job.words.title} {run_id}", heads, lines))
        _show_tables(out, job.shown(outcome))
        facts = {name.lower(): text for name, text, _ in job.figures(outcome)}
        asked = {"what": job.rule_words(outcome.plan.parameters), "as of": instant(outcome.plan.as_of_ms)}
        out.print(pairs("Asked for", asked | facts))
        for path in outcome.undo_files:
            out.print(cell(f"Undo file: {path}"), soft_wrap=True)

    show(facts_of(job, outcome), as_json=as_json, pretty=pretty)
    if outcome.open_shares:
        go_on = job.words.go_on.format(command=job.words.command, run_id=run_id)
        again = f"{go_on}` goes on" if is_recorded else f"{job.words.command}` begins again, and finds what is left"
        raise CheckFailed(f"not done: {', '.join(outcome.open_shares)}; `queuekeeper {again}")
    if outcome.broken:
        raise CheckFailed(f"{words}: the lines above say why; {job.words.hint}")
    if outcome.trouble:
        raise CheckFailed(words)


# --- runs ------------------------------------------------------------------------------------------------------------


def chosen(runs: Runs, run_id: str | None, kind: str | None = None) -> str:
    """Return the run that a command is about: the one named, else the newest.

    :param kind: of this job, or of migrations, only.
    :raises UsageError: when there is none, or it is of another job.
    """
    from queuekeeper.jobs.registry import job_of
    from queuekeeper.jobs.store import MIGRATIONS

    if kind in MIGRATIONS:
        noun, command, kinds = "plan", "migrate plan", MIGRATIONS
        found = run_id or runs.latest_id()
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


@app.command("list")
def list_runs(
    *,
    kind: Kind = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most, newest first.")] = 20,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """List the newest runs of all jobs.

    Example: `queuekeeper run list --kind fanout_repair`
    """
    with context.open_maintenance_runs(postgres_url) as runs:
        found = runs.newest(kind=kind, limit=limit)
    heads = ("run", "job", "state", "paused", "approved by", "planned")
    lines = [
        (one.maintenance_run_id, one.kind, one.state.value, one.paused, one.approved_by, str(one.created_at))
        for one in found
    ]
    names = [head.replace(" ", "_") for head in heads]
    show(
        [dict(zip(names, line, strict=True)) for line in lines],
        as_json=as_json,
        pretty=lambda out: out.print(table("Runs", heads, lines)),
    )


def status(
    run_id: RunIdOrNewest = None,
    *,
    kind: Kind = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Say how far a run is, share by share.

    Example: `queuekeeper run status`
    """
    from queuekeeper.jobs.registry import fact_names

    with context.open_maintenance_runs(postgres_url) as runs:
        run = runs.load(chosen(runs, run_id, kind))
        progress = runs.progress(run.maintenance_run_id)

    names = fact_names(run.kind)
    facts_told = {name: (run.report or {}).get(name) for name in names}

    def pretty(out: Console) -> None:
        facts = {
            "job": run.kind,
            "run": run.state.value,
            "paused": run.paused,
            "approved by": run.approved_by,
            "throttle": _rate_words(run.throttle_operations_per_s, run.unit),
        }
        notes = {names[name]: instant(at_ms) or "never" for name, at_ms in facts_told.items()}
        out.print(pairs(f"Run {run.maintenance_run_id}", facts | notes))
        heads = ("share", "where it is", "looked at", "removed", "repaired", "done")
        lines = [(one.shard, one.cursor, one.scanned, one.removed, one.repaired, one.done) for one in progress]
        out.print(table("Shares", heads, lines))

    told = {
        "maintenance_run_id": run.maintenance_run_id,
        "kind": run.kind,
        "state": run.state.value,
        "paused": run.paused,
        "approved_by": run.approved_by,
        "throttle_operations_per_s": run.throttle_operations_per_s,
        "progress": [plain(each) for each in progress],
        "report": run.report,
    }
    show(told | facts_told, as_json=as_json, pretty=pretty)


def set_paused(run_id: str, *, paused: bool, kind: str | None, postgres_url: str | None, as_json: bool) -> None:
    """Let a run wait, or go on, and say so."""
    with context.open_maintenance_runs(postgres_url) as runs:
        runs.set_paused(chosen(runs, run_id, kind), paused, actor=context.person())
    show(
        {"maintenance_run_id": run_id, "paused": paused},
        as_json=as_json,
        pretty=lambda out: out.print(f"Run {run_id}: {'paused' if paused else 'goes on'}."),
    )


def pause(
    run_id: RunId, *, kind: Kind = None, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Let a run wait. It notices within seconds.

    Example: `queuekeeper run pause 0123456789abcdef`
    """
    set_paused(run_id, paused=True, kind=kind, postgres_url=postgres_url, as_json=as_json)


def resume(
    run_id: RunId, *, kind: Kind = None, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Let a paused run go on.

    Example: `queuekeeper run resume 0123456789abcdef`
    """
    set_paused(run_id, paused=False, kind=kind, postgres_url=postgres_url, as_json=as_json)


def throttle(
    run_id: RunId,
    rate: Rate,
    *,
    kind: Kind = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Slow a run down or let it go. It follows within seconds.

    Of runs of partitions only those have a pace that move rows out of DEFAULT; it counts those rows.

    Example: `queuekeeper run throttle 0123456789abcdef 5000`
    """
    from queuekeeper.jobs.store import unit_of

    per_s = context.rate_of(rate, unit_of(kind))
    with context.open_maintenance_runs(postgres_url) as runs:
        runs.set_throttle(chosen(runs, run_id, kind), per_s, actor=context.person())
        unit = runs.load(run_id).unit
    words = f"at most {_rate_words(per_s, unit)}" if per_s else "no throttle"
    # Of a migration also by the names that its own commands had for it.
    names = ["throttle_operations_per_s", f"throttle_{unit}_per_s", f"{unit}_per_s"]
    show(
        {"maintenance_run_id": run_id, **dict.fromkeys(names[:1] if unit == "operations" else names, per_s)},
        as_json=as_json,
        pretty=lambda out: out.print(f"Run {run_id}: {words}."),
    )


def _rate_words(per_s: int | None, unit: str) -> str:
    return "none" if per_s is None else f"{per_s:,} {unit}/s"


def undo(
    run_id: RunId,
    *,
    kind: Kind = None,
    dry_run: context.DryRun = False,
    undo_directory: UndoDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Take back what a run has changed.

    Run it on the machine that has the undo files of the run. Where somebody has gone on from a change, it stays. What a
    job cannot bring back, its page in the docs says.

    Example: `queuekeeper run undo 0123456789abcdef --dry-run`
    """
    take_run_back(
        run_id,
        kind=kind,
        dry_run=dry_run,
        undo_directory=undo_directory,
        postgres_url=postgres_url,
        redis_url=redis_url,
        yes=yes,
        as_json=as_json,
    )


def take_run_back(
    run_id: str = "",
    *,
    kind: str | None = None,
    dry_run: bool,
    undo_directory: Path | None = None,
    undo_file: Path | None = None,
    max_operations_per_s: int | None = None,
    postgres_url: str | None,
    redis_url: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Take a run back: of its record, or of the one file that is named.

    :param undo_file: says by its first line which run it is of.
    :param max_operations_per_s: how fast; none for as fast as the run was.
    """
    from queuekeeper.cli import migrate
    from queuekeeper.jobs.registry import job_of, way_back_of
    from queuekeeper.jobs.store import MIGRATIONS, UnrecordedRuns
    from queuekeeper.jobs.undo import read_undo_file, undo_paths

    # Counting what a file tells of needs no record.
    records = nullcontext(UnrecordedRuns()) if undo_file and dry_run else context.runs_if_any(postgres_url)
    with ExitStack() as opened:
        runs = opened.enter_context(records)
        if runs.connection is not None and not undo_file:
            recorded = runs.load(chosen(runs, run_id, kind))
            if recorded.kind == "online_migration":
                raise UsageError(
                    f"run {run_id} moves clients while devices are connected: `queuekeeper online roll-back {run_id}` "
                    f"gives them back, `queuekeeper migrate undo {run_id}` takes out what was only copied"
                )
            if recorded.kind in MIGRATIONS:
                migrate.undo(
                    run_id, dry_run=dry_run, yes=yes, as_json=as_json, postgres_url=postgres_url, redis_url=redis_url
                )
                return
            if way := way_back_of(recorded):
                raise UsageError(f"run {run_id} is a {recorded.kind}, which has no undo: {way}")
            job, asked = job_of(recorded.kind), recorded.parameters
        else:
            # The first line of an undo file says what a run without a record was; remedies called it otherwise once.
            path = undo_file or undo_paths(undo_directory or context.settings().undo, run_id=run_id)[0]
            header, _ = read_undo_file(path, kind=kind)
            job = job_of(str(header.get("kind")))
            asked = header.get("parameters") or {"key_prefix": header.get("key_prefix", "")}
            run_id = run_id or str(header.get("maintenance_run_id") or header.get("run_id") or path.name)
        client = opened.enter_context(store_of(job, redis_url))
        engine = engine_for(job, client, undo_directory, undo_file=undo_file, database=runs.connection)
        parameters = job.Parameters(**asked)
        if max_operations_per_s is not None:
            parameters = replace(parameters, max_operations_per_s=max_operations_per_s)
        found = take_back(
            lambda only_count: engine.undo(run_id=run_id, parameters=parameters, dry_run=only_count),
            lambda counted: f"{job.undo_words(counted)} Take run {run_id} back?",
            subject=run_id,
            kind=job.kind,
            connection=runs.connection,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )

    def pretty(out: Console) -> None:
        out.print(record("Undo", found))
        left = getattr(found, "left", None)
        if isinstance(left, Mapping) and left:
            out.print(table("Left as they are", ("reason", "changes"), left.items()))

    show(found, as_json=as_json, pretty=pretty)


def report(
    run_id: RunIdOrNewest = None,
    *,
    kind: Kind = None,
    report_directory: ReportDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Look again, and say what a run planned, did and left. Exit code 1 when a share is not done.

    Example: `queuekeeper run report --report-directory reports`
    """
    from queuekeeper.cli import migrate
    from queuekeeper.jobs.registry import job_of, told_of
    from queuekeeper.jobs.report import write_report
    from queuekeeper.jobs.store import MIGRATIONS

    with context.open_maintenance_runs(postgres_url) as runs:
        run = runs.load(chosen(runs, run_id, kind))
    if run.kind in MIGRATIONS:
        migrate.report(
            run.maintenance_run_id,
            directory=report_directory,
            postgres_url=postgres_url,
            redis_url=redis_url,
            as_json=as_json,
        )
        return
    if (tell := told_of(run.kind)) is not None:
        if report_directory is not None:
            raise UsageError(
                f"a {run.kind} has no report as a file: leave --report-directory out; Airflow's "
                "`partition_maintenance` writes one about all tables"
            )
        words, tables = tell(run)
        facts = {"maintenance_run_id": run.maintenance_run_id, "kind": run.kind, "state": run.state.value}
        told = facts | {"verdict": words, "report": run.report}
        show(told, as_json=as_json, pretty=lambda out: show_tables(out, tables, heading=words))
        return
    found, job = run.maintenance_run_id, job_of(run.kind)
    with context.open_maintenance_runs(postgres_url) as runs, store_of(job, redis_url) as client:
        outcome = engine_for(job, client, database=runs.connection).report(runs, found, dry_run=False)
    if report_directory is not None:
        say(f"Report: {write_report(job, outcome, report_directory.absolute()).html}")
    _show_outcome(job, outcome, as_json=as_json)


_CONTROLS: dict[str, Callable[..., None]] = {
    "status": status,
    "pause": pause,
    "resume": resume,
    "throttle": throttle,
    "undo": undo,
    "report": report,
}
for _name, _command in _CONTROLS.items():
    app.command(_name)(_command)


def add_aliases(group: typer.Typer, kind: str, names: dict[str, str]) -> None:
    """Let commands of earlier releases do what ``queuekeeper run`` does, for runs of one job; help does not show them.

    :param names: of the commands, each with its name in ``queuekeeper run``.
    """
    for name, control in names.items():
        group.command(name, hidden=True)(_of_kind(_CONTROLS[control], kind))


def _of_kind(command: Callable[..., None], kind: str) -> Callable[..., None]:
    @wraps(command)
    def alias(**given: Any) -> None:
        command(kind=kind, **given)

    signature = inspect.signature(command, eval_str=True)
    kept = [each for each in signature.parameters.values() if each.name != "kind"]
    vars(alias)["__signature__"] = signature.replace(parameters=kept)
    return alias
