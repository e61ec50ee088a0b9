"""Commands of jobs: plan, question, work, second look."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import PLANS, Call, OnServers, with_call
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, cell, copied, instant, pairs, table
from queuekeeper.cli.progress import followed, shown
from queuekeeper.cli.run_control import agree, say
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_namer
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.registry import job_of

if TYPE_CHECKING:
    from queuekeeper.jobs.engine import Engine
    from queuekeeper.jobs.kinds import Table
    from queuekeeper.jobs.model import AnyJob, AnyPlan
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.redis_client import RedisClient

GoOn = Annotated[
    str | None, typer.Option("--go-on", metavar="RUN", help="Go on with a run that was stopped or killed.")
]
ReportDirectory = Annotated[
    Path | None,
    typer.Option("--report-directory", help="Folder into which a report is written, too, as HTML and JSON."),
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


def store_of(call: Call, job: type[AnyJob]) -> RedisClient | None:
    """Return the connection to Redis, for a job that works there."""
    return call.client if job.on_redis else None


def engine_for(
    job: type[AnyJob], client: RedisClient | None, undo_directory: Path | None = None, **rest: Any
) -> Engine:
    """Return the engine, at work on a store for a command.

    :param rest: what else it is given, see :class:`~queuekeeper.jobs.engine.Engine`.
    """
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


def planned(call: Call, kind: str, parameters: Parameters, *, then: str) -> Shown:
    """Plan and put the plan on record, for a command of its own that carries it out.

    :param then: that command, with ``{run_id}`` for the run.
    """
    from queuekeeper.jobs.report import PlannedRun

    job, runs = job_of(kind), call.runs_if_any(needed=True)
    engine = engine_for(job, store_of(call, job), database=runs.connection)
    with followed():
        plan = engine.plan(parameters)
    run_id = engine.save(runs, plan).maintenance_run_id
    return Shown(
        PlannedRun(job=job, maintenance_run_id=run_id, plan=plan),
        lambda: plan_parts(f"{job.words.title} {run_id}", job, plan),
        then="Nothing to do." if plan.empty else f"Next: {then.format(run_id=run_id)}",
    )


def carry_out(
    call: Call,
    kind: str,
    parameters: Parameters | None = None,
    *,
    go_on: str | None,
    only: str | None = None,
    report_directory: Path | None = None,
    undo_directory: Path | None = None,
    undo_file: Path | None = None,
    given: Any = None,
) -> Shown:
    """Plan, ask, work on all shares, and look again.

    :param parameters: of the job; none where a run goes on.
    :param go_on: run to go on with; then there is no new plan.
    :param only: the share to work on; all when none is named.
    :param undo_file: where to note what is changed, in place of a file in the folder.
    :param given: what the job is told and no record may hold.
    :returns: what came of it; failed when it was stopped, or there was something that could not be worked on.
    """
    job = job_of(kind)
    if go_on is not None and call.dry_run:
        raise UsageError(
            f"run {go_on} would go on with what is left of its plan, which `queuekeeper run status {go_on}` shows: "
            "leave out --dry-run"
        )
    runs = call.runs_if_any(needed=not job.on_redis)
    if runs.connection is None:
        say("No PostgreSQL is named: this run is not on record, so no other command can pause it or go on with it.")
    store = store_of(call, job)
    engine = engine_for(job, store, undo_directory, undo_file=undo_file, database=runs.connection, given=given)
    if go_on is not None:
        run_id, plan = go_on, engine.load(runs, go_on)
    else:
        with followed():
            plan = engine.plan(parameters)
        run_id = engine.save(runs, plan).maintenance_run_id
    shares = [only] if only else plan.share_names()
    if not call.dry_run and (not plan.empty or job.works_when_empty):
        if not plan.empty:
            call.say(lambda: plan_parts(f"Plan {run_id}", job, plan))
            agree(call, runs, run_id, job.question(run_id, plan))
        total = None if job.keeps_steps else sum(each.counts.scanned for each in plan.shares if each.share in shares)
        with _progress(call, job, runs, run_id, total=total):
            for share in shares:
                if why := engine.apply(runs, run_id, share).stopped:
                    say(f"{share}: {why}")
    return looked_again(engine, runs, run_id, dry_run=call.dry_run, report_directory=report_directory, shares=shares)


def _progress(
    call: Call, job: type[AnyJob], runs: MaintenanceRuns, run_id: str, *, total: int | None
) -> AbstractContextManager[None]:
    """Show how far a run is while a block works on it; one without a record can only be seen from inside."""

    @contextmanager
    def counting() -> Iterator[Callable[[], int]]:
        with call.anew() as own:
            yield lambda: sum(each.scanned for each in own.runs.progress(run_id))

    if runs.connection is None:
        return nullcontext()
    return shown(job.words.title, total=total, unit=job.words.units, counting=counting)


def command_of(
    kind: str,
    help_text: str,
    *,
    argument: str = "",
    on: type[Call] = OnServers,
) -> Callable[..., None]:
    """Return the command that plans and carries out a job; its model says which options it has.

    :param argument: the parameter that is given by position.
    :param on: kind of its calls, which says what servers it works on.
    """

    def job(
        call: Call, *, parameters: Parameters, go_on: GoOn = None, report_directory: ReportDirectory = None
    ) -> Shown:
        return carry_out(call, kind, parameters, go_on=go_on, report_directory=report_directory)

    job.__doc__, job.__annotations__["call"] = help_text, on
    return with_call(job, also=PLANS, asks=takes(lambda: model_of(kind), argument=argument, fixed=ALONE))


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
    from queuekeeper.jobs.report import FinishedRun, columns_of, verdict, write_report

    job = engine.job
    with followed():
        outcome = engine.report(runs, run_id, dry_run=dry_run)
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
        yield from (copied(f"Undo file: {path}") for path in outcome.undo_files)

    failed = None
    if open_shares := [share for share in outcome.open_shares if not shares or share in shares]:
        again = f"{job.words.command}` begins again, and finds what is left"
        again = again if runs.connection is None else f"{job.words.go_on_with(run_id)}` goes on"
        failed = f"parts not done: {', '.join(open_shares)}; `queuekeeper {again}"
    elif outcome.broken:
        failed = f"{words}: the lines above say why; {job.words.hint}"
    elif outcome.trouble:
        failed = words
    return Shown(FinishedRun(job=job, outcome=outcome), pretty, failed=failed)
