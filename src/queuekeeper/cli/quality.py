"""``queuekeeper quality``: profile the queues, judge them, look at what was found, and answer for what is known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper import places
from queuekeeper.cli import context, incidents
from queuekeeper.cli.command import OnPostgres, OnServers, Plain, command, group
from queuekeeper.cli.incidents import issues_table, priority, toned
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Columns, Shown, cell, copied, instant, listing, pairs, record, screen, table
from queuekeeper.cli.run_control import RunIdOrNewest
from queuekeeper.clock import system_clock
from queuekeeper.errors import UsageError
from queuekeeper.facts import plain
from queuekeeper.jobs.checks import CHECKS, Check, check
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.quality.judge.store import RUNS_SHOWN, QualityRun, QualityStore, TrendRun, Verdict
from queuekeeper.quality.judge.suites import load
from queuekeeper.quality.profile.model import (
    PROFILED,
    READ,
    SNAPSHOT,
    JudgeWish,
    ProfileReport,
    ProfileWish,
    RunWish,
    profile_folder,
)
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.quality.judge.run import QualityReport

app = group()
app.add_typer(incidents.known, name="known")
app.add_typer(incidents.app, name="incidents")

ShowClientIds = Annotated[
    bool, typer.Option("--show-client-ids", help="Show client ids in examples. Without it, only their hashes.")
]
_STORE = {"stores": ["--store"]}
_MARKS = {"passed": "·", "known": "k", "failed": "✗", "broken": "!"}
_NOTHING_TO_SEE = "Nothing was judged: without messages' contents no suite of this run has anything to look at."


def _profiles(
    call: OnServers,
    wish: ProfileWish,
    *,
    stores: Sequence[str],
    now_ms: int,
    spark_master: str | None,
) -> list[ProfileReport]:
    """Read the stores with Spark, once nothing is known that keeps any of them from being read."""
    from queuekeeper.quality.profile.preflight import check_profiled, check_profiled_source

    parameters = wish.at(_moment(now_ms))
    folder = _shared(wish.parquet_directory) if wish.parquet_directory else None
    source, target = context.postgres_address(call.postgres_url), ""
    with call.anew() as asked:
        connection = asked.connection
        if "postgres" in stores:
            check_profiled_source(connection, contents=parameters.contents)
        if "redis" in stores and not wish.rdb:
            target = context.redis_address(call.redis_url)
            check_profiled(asked.client, parameters=parameters)
    read: dict[str, Any] = {
        "postgres_url": source, "parameters": parameters, "now_ms": now_ms, "parquet_dir": folder
    }  # fmt: skip
    reports = []
    with context.spark("queuekeeper quality profile", spark_master, *filter(None, (source, target))) as spark:
        from queuekeeper.quality.profile.stores import profile as profile_of

        for store in stores:
            with screen(stderr=True).status(f"Reading {store}"):
                reports.append(profile_of(spark, store=store, snapshot=wish, redis_url=target, **read))
    return reports


def _check_files(call: OnServers, wish: ProfileWish) -> None:
    """Refuse RDB files that cannot be read, or not together.

    :raises UsageError: also for files beside a server.
    """
    if not wish.rdb:
        return
    if call.redis_url is not None:
        raise UsageError("rdb is read instead of a server: leave out --redis-url, or rdb")
    from queuekeeper.rdb.files import files_at

    files_at([Path(path) for path in wish.rdb])


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1_000, UTC)


def _shared(text: str) -> str:
    """Return the name of a folder of Parquet that Spark knows, too, once something opens it."""
    return str(place.absolute()) if places.on_disk(place := profile_folder(text)) else text


def _folder(text: str, *, name: str) -> Path | None:
    return places.folder(text, name=name).absolute() if text else None


@command(app, asks=takes(lambda: ProfileWish, names=_STORE))
def profile(
    call: OnServers,
    *,
    parameters: ProfileWish,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Read the queues, and keep a row of numbers for each.

    The store is only read.

    Example: `queuekeeper quality profile --store both`
    """
    stores = PROFILED[parameters.stores]
    _check_files(call, parameters)
    reports = _profiles(call, parameters, stores=stores, now_ms=system_clock(), spark_master=spark_master)
    named = " --profile ".join(report.profile_id for report in reports)
    return Shown(
        reports,
        lambda: (record(f"Profile of {report.store}", report) for report in reports),
        then=f"Next: queuekeeper quality run --profile {named}",
    )


@command(app, "run", asks=takes(lambda: RunWish, names=_STORE))
def run_command(
    call: OnServers,
    *,
    parameters: RunWish,
    profiles: Annotated[list[str] | None, typer.Option("--profile")] = None,
    suites: Annotated[list[str] | None, typer.Option("--suite")] = None,
    show_client_ids: ShowClientIds = False,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Read the queues and judge them. Exit code 1 when something critical is wrong.

    Example: `queuekeeper quality run --contents`

    :param profiles: Judge this profile instead of reading the store. Repeat the option for more.
    :param suites: Judge by this suite. Repeat the option for more. Without it, all that fit.
    """
    from queuekeeper.quality.judge.run import EVENT_SUITES, QUEUE_SUITES, judging, run_quality

    now_ms, data_docs = system_clock(), _folder(parameters.data_docs, name="--data-docs")
    stores = PROFILED.get(parameters.stores, ())
    of_server = not parameters.rdb
    if parameters.rdb and profiles:
        raise UsageError("rdb makes a profile and --profile names one: leave out one of them")
    _check_files(call, parameters)
    if profiles:
        with call.anew() as asked:
            known = QualityStore(asked.connection).profiles(profiles)
        stores = tuple(each.store for each in known)
        of_server = not any(each.target.startswith(SNAPSHOT) for each in known)
    elif suites and set(suites) <= {*EVENT_SUITES, *QUEUE_SUITES}:
        stores = ()
    subjects = (*stores, *READ.get(parameters.stores, ()))
    chosen, on_redis = judging(subjects, compare=parameters.compare, named=suites or (), of_server=of_server)
    profile_ids = list(profiles or ())
    if stores and not profiles:
        made = _profiles(call, parameters, stores=stores, now_ms=now_ms, spark_master=spark_master)
        profile_ids = [each.profile_id for each in made]
    now = _moment(now_ms)
    in_turn = parameters.mode == "fast" and not QUEUE_SUITES.keys().isdisjoint(chosen)
    with screen(stderr=True).status("Judging"):
        report = run_quality(
            postgres_url=context.postgres_address(call.postgres_url),
            profile_ids=profile_ids,
            suites=chosen,
            quality_run_id=parameters.run_id or hashlib.sha256(f"{now_ms} {profile_ids}".encode()).hexdigest()[:16],
            now=now,
            redis_url=context.redis_address(call.redis_url) if on_redis else None,
            key_prefix=parameters.key_prefix,
            turn=parameters.at(now).turn if in_turn else None,
            throttle_references_per_s=parameters.throttle_references_per_s,
            show_client_ids=show_client_ids,
            data_docs=data_docs,
        )
    failed = (
        f"quality run {report.quality_run_id} has failed: `queuekeeper quality results {report.quality_run_id}` "
        "says what is wrong and what mends it"
    )
    return Shown(report, lambda: _report(report), failed=failed if report.verdict is Verdict.FAILED else None)


@command(app, asks=takes(lambda: JudgeWish, names={"judged_by": ["--suite"]}))
def judge(
    call: Plain,
    parquet: str,
    *,
    parameters: JudgeWish,
    show_client_ids: ShowClientIds = False,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Judge a profile's Parquet with Spark, without a database. Exit code 1 when something critical is wrong.

    Nothing is put on record; `queuekeeper quality run` does that.

    Example: `queuekeeper quality judge profiles/redis-0123456789abcdef --suite sessions_redis`

    :param parquet: Folder that a profile has written: `parquet` in its report.
    """
    with context.spark("queuekeeper quality judge", spark_master) as spark:
        from queuekeeper.quality.judge.parquet import judge_parquet

        report = judge_parquet(
            spark,
            path=_shared(parquet),
            suite=parameters.judged_by,
            contents=parameters.contents,
            is_clustered=parameters.clustered,
            show_client_ids=show_client_ids,
            data_docs=_folder(parameters.data_docs, name="--data-docs"),
        )
    expectations = {each.number: each for each in load(parameters.judged_by).expectations}
    facts = [
        each.facts() | {"expectation": expectations[each.expectation], "passed": each.passed, "broken": each.broken}
        for each in report.results
    ]
    columns: Columns = {
        "check": "check_id",
        "status": lambda each: toned(each.status.value),
        "what should hold": "description",
        "found": "observed",
        "for example": _examples,
        "remedy": "remedy_name",
    }
    words = f"{parameters.judged_by}: something critical is wrong with the queues in {parquet}"
    return Shown(
        {**vars(report), "results": facts},
        lambda: [
            listing(f"{parameters.judged_by}, judged by Spark", report.results, columns),
            *_advice(report.results),
        ],
        failed=None if report.passed else words,
    )


def _report(report: QualityReport) -> Iterator[Any]:
    yield from _results(report.results)
    facts = {
        "run": report.quality_run_id,
        "verdict": toned(report.verdict.value),
        "queues": report.queues,
        "messages": report.messages,
        "not judged": ", ".join(report.not_judged) + ": needs --contents" if report.not_judged else None,
        "seconds": report.seconds,
    }
    yield pairs("Quality run", facts)
    yield from report.senseless
    if report.overdue:
        yield issues_table("Known issues whose day has passed", report.overdue)


def _results(results: Sequence[Finding], *, if_none: str = _NOTHING_TO_SEE) -> Iterator[Any]:
    """Show what did not pass, with evidence and remedy."""
    if not results:
        yield cell(if_none, style="yellow")
        return
    trouble = [result for result in results if result.status is not Status.PASSED]
    if not trouble:
        yield cell(f"✓ All {len(results):,} expectations hold.", style="bold green")
        return
    columns: Columns = {
        "check": "check_id",
        "": priority,
        "status": lambda each: toned(each.status.value),
        "what should hold": "description",
        "found": "observed",
        "for example": _examples,
    }
    yield listing("What was found", trouble, columns)
    yield from _advice(trouble)
    worst: dict[str, Finding] = {}
    for result in trouble:
        worst.setdefault(result.check_id, result)
    commands: dict[str, list[str]] = {}
    for number, result in worst.items():
        if command := result.command(shell_prefix=context.settings().key_prefix):
            commands.setdefault(command, []).append(number)
    for command, numbers in commands.items():
        # Outside of the table, which would break it: it is there to be copied.
        yield ""
        yield copied(f"Next for {', '.join(numbers)}: {command}")


def _advice(results: Sequence[Finding]) -> Iterator[Any]:
    """Show what to do about each check that did not pass."""
    advice = {each.check_id: each.check.advice for each in results if each.check and not each.passed}
    if advice:
        yield table("What to do", ("check", "advice"), list(advice.items()))


def _examples(found: Finding) -> str:
    return ", ".join(_example(found, values) for values in found.examples[:3])


def _example(found: Finding, values: Mapping[str, Any]) -> str:
    shown = [name for name in found.example_columns if name in values]
    first, *rest = (
        str(values[name]) if name == "client_hash" else f"{name.replace('_', ' ')} {values[name]}" for name in shown
    )
    return f"{first} ({', '.join(rest)})" if rest else first


@command(app)
def results(
    call: OnPostgres,
    quality_run_id: RunIdOrNewest = None,
    *,
    check_id: Annotated[str | None, typer.Option("--check", metavar="Q")] = None,
) -> Shown:
    """Show what a run found, with evidence and remedies.

    Example: `queuekeeper quality results --check Q9`

    :param check_id: Show only this check, such as Q9. Without it, all checks.
    """
    if check_id is not None:
        check(check_id)
    store = QualityStore(call.connection)
    run = store.run(quality_run_id) if quality_run_id else _newest(store)
    found = [each for each in store.results(run.quality_run_id) if check_id in (None, each.check_id)]

    def pretty() -> Iterator[Any]:
        yield from _results(found, if_none=_nothing_judged(run, check_id))
        facts = {
            "run": run.quality_run_id,
            "verdict": toned(run.verdict.value),
            "began": instant(int(run.started_at.timestamp() * 1_000)),
            "profiles": ", ".join(run.profile_ids),
            "suites": ", ".join(run.suites),
        }
        yield pairs("Quality run", facts)

    return Shown(plain(run) | {"results": found}, pretty)


def _newest(store: QualityStore) -> QualityRun:
    """Return the run that began last of those that have finished."""
    runs = store.runs(limit=1, finished=True)
    if not runs:
        raise UsageError("there is no quality run yet that has finished: make one by `queuekeeper quality run`")
    return runs[0]


def _nothing_judged(run: QualityRun, check_id: str | None) -> str:
    """Return why a run has no results to show: no result is not a good one."""
    if run.finished_at is None:
        return "Nothing was judged: the run is at work, or was killed."
    if check_id is None:
        return _NOTHING_TO_SEE
    if check_id in run.numbers.get("not_judged", ()):
        return f"{check_id} was not judged: it needs messages' contents, --contents reads them."
    for words in run.numbers.get("senseless", ()):
        if words.startswith(f"{check_id} "):
            return f"{words}."
    return f"{check_id} was not judged: it is in none of the run's suites, {', '.join(run.suites)}."


@command(app)
def checks(call: Plain, check_id: Annotated[str | None, typer.Argument(metavar="[CHECK]")] = None) -> Shown:
    """List the checks, or explain one.

    Example: `queuekeeper quality checks Q9`

    :param check_id: One check, such as Q9.
    """
    chosen = list(CHECKS.values()) if check_id is None else [check(check_id)]

    def remedy(each: Check) -> str | None:
        by_hand = f"`queuekeeper {each.command}`" if each.command else None
        return each.remedy.name if each.remedy else by_hand

    def pretty() -> Iterator[Any]:
        if check_id is None:
            columns: Columns = {
                "check": "id", "": _priorities, "title": "title", "stores": lambda each: ", ".join(each.stores),
                "remedy": remedy, "about": "area",
            }  # fmt: skip
            yield listing("Checks", chosen, columns)
            return
        (one,) = chosen
        facts = {
            "priority": _priorities(one),
            "stores": ", ".join(one.stores),
            "found by": one.computation,
            "cost": one.cost,
            "what to do": one.advice,
            "remedy": remedy(one),
            "about": one.area,
        }
        yield pairs(f"{one.id}: {one.title}", facts)

    return Shown([plain(each) | {"severity": each.severity.value} for each in chosen], pretty)


def _priorities(check: Check) -> str:
    return check.priority.value if check.milder is None else f"{check.priority.value}, {check.milder.value}"


@command(app)
def report(
    call: OnPostgres,
    quality_run_id: RunIdOrNewest = None,
    *,
    directory: Path | None = None,
    airflow_url: str | None = None,
) -> Shown:
    """Write what a run found as an HTML page and as JSON.

    With trends and forecasts.

    Example: `queuekeeper quality report --directory reports`

    :param directory: Folder for the report. [default: QUEUEKEEPER_REPORTS_DIR]
    :param airflow_url: Address of Airflow: findings then link to the forms of their remedies.
    """
    from queuekeeper.quality.report.gather import FORMS_PATH, build_report, write_report

    chosen = quality_run_id or _newest(QualityStore(call.connection)).quality_run_id
    built = build_report(
        call.connection,
        quality_run_id=chosen,
        now_ms=system_clock(),
        forms_url="" if airflow_url is None else f"{airflow_url.rstrip('/')}{FORMS_PATH}",
    )
    files = write_report(built, context.report_folder(directory))
    return Shown(
        {**plain(files), **built.summary()},
        lambda: [toned(built.verdict.value), cell(built.explanation), pairs("Files", files.named())],
        failed=f"quality run {chosen} failed: open {files.html}" if built.verdict is Verdict.FAILED else None,
    )


@command(app)
def trend(
    call: OnPostgres,
    *,
    runs: Annotated[int, typer.Option(min=1, max=200)] = RUNS_SHOWN,
    like: Annotated[str | None, typer.Option(metavar="RUN")] = None,
) -> Shown:
    """Show how each check came out in the last runs.

    Runs on the same servers; the oldest is to the left.

    Example: `queuekeeper quality trend --runs 10`

    :param runs: Number of finished runs to show, the newest ones.
    :param like: Show runs on the same servers as this run. Without it, as the newest run.
    """
    store = QualityStore(call.connection)
    newest = like or next((run.quality_run_id for run in store.runs(limit=1, finished=True)), None)
    found = store.trend(runs=runs, same_servers_as=newest)
    return Shown(found, lambda: _trend(found))


def _trend(found: Sequence[TrendRun]) -> Iterator[Any]:

    if not found:
        yield "No run has finished yet."
        return
    rows = []
    for number, one in CHECKS.items():
        cells = [each.cells.get(number) for each in found]
        if any(cells):
            marks = "".join(" " if each is None else _MARKS[each.status.value] for each in cells)
            last = cells[-1]
            rows.append((number, one.title, marks, None if last is None else last.unexpected_count))
    yield table(f"The last {number_of(len(found), 'run')}", ("check", "title", "runs", "last"), rows)
    yield "· passed   k known   ✗ failed   ! could not be made"
