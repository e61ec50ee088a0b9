"""``queuekeeper quality``: profile the queues, judge them, look at what was found, and answer for what is known."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import cell, instant, pairs, plain, printable, record, screen, show, table
from queuekeeper.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from queuekeeper.quality.checks import Check
    from queuekeeper.quality.findings import Finding
    from queuekeeper.quality.incidents import Incident
    from queuekeeper.quality.known_issues import KnownIssue
    from queuekeeper.quality.profile_model import ProfileParameters, ProfileReport, ProfileWish
    from queuekeeper.quality.run import QualityReport
    from queuekeeper.quality.store import QualityRun, QualityStore, TrendRun

app = typer.Typer(no_args_is_help=True, help="Find every way in which a queue can be wrong.")
known = typer.Typer(no_args_is_help=True, help="Failures that somebody answers for until a day.")
app.add_typer(known, name="known")
incidents = typer.Typer(no_args_is_help=True, help="Say since when a finding stands, and who answers for it.")
app.add_typer(incidents, name="incidents")


class Stores(StrEnum):
    """Which stores to profile."""

    REDIS = "redis"
    POSTGRES = "postgres"
    BOTH = "both"

    @property
    def names(self) -> tuple[str, ...]:
        """Each of them."""
        return ("redis", "postgres") if self is Stores.BOTH else (self.value,)


class Subject(StrEnum):
    """What to judge."""

    REDIS = "redis"
    POSTGRES = "postgres"
    BOTH = "both"
    EVENTS = "events"
    COMPACTED = "compacted"
    FANOUT = "fanout"

    @property
    def stores(self) -> tuple[str, ...]:
        """Return the stores that are profiled for it: all but sessions need none."""
        return Stores(self.value).names if self.value in set(Stores) else ()


RunIdOrNewest = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id of the run; the newest if left out.")]
StoreChoice = Annotated[Stores, typer.Option("--store", help="Which store to read.")]
SubjectChoice = Annotated[
    Subject,
    typer.Option(
        "--store",
        help="Which store to read; events: event broker and partitioned tables; compacted, fanout: queues of that "
        "kind.",
    ),
]
ParquetDirectory = Annotated[
    Path | None, typer.Option("--parquet-directory", help="Folder for the rows of queues as Parquet, too.")
]
ShowClientIds = Annotated[
    bool, typer.Option("--show-client-ids", help="Name clients in examples as they are, not only by hash.")
]
Owner = Annotated[str, typer.Option(help="Who answers for it.")]
Reason = Annotated[str, typer.Option(help="Why it may be so until then.")]
Until = Annotated[str, typer.Option(help="Last day on which it is excused, such as 2026-12-31.", metavar="DATE")]
DataDocs = Annotated[
    Path | None,
    typer.Option(
        "--data-docs", help="Folder for Great Expectations' own pages of each suite and what it found; none by default."
    ),
]
_TONES = {
    "passed": "green", "warned": "yellow", "failed": "red", "broken": "red", "known": "blue",
    "P0": "bold red", "P1": "yellow",
}  # fmt: skip
_MARKS = {"passed": "·", "known": "k", "failed": "✗", "broken": "!"}
RUNS_SHOWN = 30
_NOTHING_TO_SEE = "Nothing was judged: without messages' contents no suite of this run has anything to look at."


@app.callback()
def _group() -> None:
    """Find every way in which a queue can be wrong."""


@known.callback()
def _known_group() -> None:
    """Failures that somebody answers for until a day."""


@dataclass(frozen=True, kw_only=True)
class _Wishes:
    """What a profile is asked for on the command line."""

    stores: tuple[str, ...]
    parameters: ProfileParameters
    parquet: Path | None
    postgres_url: str | None
    redis_url: str | None
    spark_master: str | None
    now_ms: int

    def make(self) -> list[ProfileReport]:
        """Read the stores with Spark, once nothing is known that keeps any of them from being read."""
        from queuekeeper.quality.profile_preflight import check_profiled, check_profiled_source

        source, target = context.postgres_address(self.postgres_url), ""
        with context.postgres_connection(source) as connection:
            if "postgres" in self.stores:
                check_profiled_source(connection, contents=self.parameters.contents)
        if "redis" in self.stores:
            target = context.redis_address(self.redis_url)
            with context.redis_connection(target) as client:
                check_profiled(client, parameters=self.parameters)
        parquet = None if self.parquet is None else str(self.parquet.absolute())
        with context.spark("queuekeeper quality profile", self.spark_master, *filter(None, (source, target))) as spark:
            from queuekeeper.quality.profile import profile_postgres, profile_redis

            reports = []
            for store in self.stores:
                with screen(stderr=True).status(f"Reading {store}"):
                    if store == "redis":
                        report = profile_redis(
                            spark,
                            redis_url=target,
                            postgres_url=source,
                            parameters=self.parameters,
                            now_ms=self.now_ms,
                            parquet_dir=parquet,
                        )
                    else:
                        report = profile_postgres(
                            spark,
                            postgres_url=source,
                            parameters=self.parameters,
                            now_ms=self.now_ms,
                            parquet_dir=parquet,
                        )
                    reports.append(report)
            return reports


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1_000, UTC)


def _model() -> type[ProfileWish]:
    from queuekeeper.quality.profile_model import ProfileWish

    return ProfileWish


@app.command(cls=JobCommand)
@takes(_model)
def profile(
    *,
    parameters: ProfileWish,
    store: StoreChoice = Stores.REDIS,
    parquet_directory: ParquetDirectory = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    spark_master: context.SparkMaster = None,
    as_json: context.AsJson = False,
) -> None:
    """Put a row of numbers for each queue on record.

    The store is only read.

    Example: `queuekeeper quality profile --store both`
    """
    from queuekeeper.clock import system_clock

    now_ms = system_clock()
    reports = _Wishes(
        stores=store.names,
        parameters=parameters.at(_moment(now_ms)),
        parquet=parquet_directory,
        postgres_url=postgres_url,
        redis_url=redis_url,
        spark_master=spark_master,
        now_ms=now_ms,
    ).make()

    def pretty(out: Console) -> None:
        for report in reports:
            out.print(record(f"Profile of {report.store}", report))
        named = " ".join(f"--profile {report.profile_id}" for report in reports)
        out.print(f"\nNext: queuekeeper quality run {named}")

    show(reports, as_json=as_json, pretty=pretty)


@app.command("run", cls=JobCommand)
@takes(_model)
def run_command(
    *,
    parameters: ProfileWish,
    store: SubjectChoice = Subject.REDIS,
    profiles: Annotated[
        list[str] | None, typer.Option("--profile", help="Judge this profile instead of reading the store; repeatable.")
    ] = None,
    suites: Annotated[
        list[str] | None, typer.Option("--suite", help="Judge by this suite; all that fit if left out; repeatable.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare source and target, too: after a migration, with both stores.")
    ] = False,
    run_id: Annotated[str | None, typer.Option(help="Name of the run; one of this name is replaced.")] = None,
    parquet_directory: ParquetDirectory = None,
    show_client_ids: ShowClientIds = False,
    data_docs: DataDocs = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    spark_master: context.SparkMaster = None,
    as_json: context.AsJson = False,
) -> None:
    """Read the queues and judge them. Exit code 1 when something critical is wrong.

    Example: `queuekeeper quality run --contents`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.quality.run import (
        COMPARISON_SUITE,
        EVENT_SUITES,
        QUEUE_SUITES,
        check_suites,
        run_quality,
        suites_for,
    )
    from queuekeeper.quality.store import QualityStore, Verdict

    now_ms = system_clock()
    stores = store.stores
    if profiles:
        with context.postgres_connection(postgres_url) as connection:
            stores = tuple(each.store for each in QualityStore(connection).profiles(profiles))
    elif suites and set(suites) <= {*EVENT_SUITES, *QUEUE_SUITES}:
        stores = ()
    on_queues = not QUEUE_SUITES.keys().isdisjoint([store.value, *(suites or ())])
    on_redis = "redis" in stores or on_queues
    asked = (store.value,) if store.value in QUEUE_SUITES else stores
    chosen = list(suites or suites_for(asked, servers=on_redis, compare=compare))
    if compare and COMPARISON_SUITE not in chosen:
        chosen.append(COMPARISON_SUITE)
    check_suites(chosen, stores=stores, servers=on_redis)
    if profiles:
        profile_ids = list(profiles)
    elif not stores:
        profile_ids = []
    else:
        made = _Wishes(
            stores=stores,
            parameters=parameters.at(_moment(now_ms)),
            parquet=parquet_directory,
            postgres_url=postgres_url,
            redis_url=redis_url,
            spark_master=spark_master,
            now_ms=now_ms,
        ).make()
        profile_ids = [report.profile_id for report in made]
    now = _moment(now_ms)
    with screen(stderr=True).status("Judging"):
        report = run_quality(
            postgres_url=context.postgres_address(postgres_url),
            profile_ids=profile_ids,
            suites=chosen,
            quality_run_id=run_id or hashlib.sha256(f"{now_ms} {profile_ids}".encode()).hexdigest()[:16],
            now=now,
            redis_url=context.redis_address(redis_url) if on_redis else None,
            key_prefix=parameters.key_prefix,
            turn=parameters.at(now).turn if on_queues and parameters.mode == "fast" else None,
            throttle_references_per_s=parameters.throttle_references_per_s,
            show_client_ids=show_client_ids,
            data_docs=data_docs,
        )
    show(_report_facts(report), as_json=as_json, pretty=lambda out: _report(out, report))
    if report.verdict is Verdict.FAILED:
        raise CheckFailed(
            f"quality run {report.quality_run_id} has failed: `queuekeeper quality results {report.quality_run_id}` "
            "says what is wrong and what mends it"
        )


@app.command()
def judge(
    parquet: Annotated[Path, typer.Argument(help="Folder that a profile has written: `parquet` in its report.")],
    *,
    suite: Annotated[str, typer.Option("--suite", help="Suite of one store's sessions.")] = "sessions_redis",
    contents: Annotated[bool, typer.Option("--contents", help="The profile has read messages' contents.")] = False,
    clustered: Annotated[
        bool, typer.Option("--clustered", help="The queues are on a Redis cluster, where a bad hash tag is worse.")
    ] = False,
    show_client_ids: ShowClientIds = False,
    data_docs: DataDocs = None,
    spark_master: context.SparkMaster = None,
    as_json: context.AsJson = False,
) -> None:
    """Judge a profile's Parquet with Spark, far from any database. Exit code 1 when something critical is wrong.

    Nothing is put on record; `queuekeeper quality run` does that.

    Example: `queuekeeper quality judge profiles/redis-0123456789abcdef --suite sessions_redis`
    """
    with context.spark("queuekeeper quality judge", spark_master) as spark:
        from queuekeeper.quality.parquet import judge_parquet

        report = judge_parquet(
            spark,
            path=str(parquet.absolute()),
            suite=suite,
            contents=contents,
            is_clustered=clustered,
            show_client_ids=show_client_ids,
            data_docs=data_docs,
        )

    def pretty(out: Console) -> None:
        rows = []
        for each in report.results:
            status = "broken" if each.broken else "passed" if each.passed else "failed"
            rows.append(
                (
                    each.expectation.check,
                    cell(status, style=_TONES[status]),
                    each.expectation.description,
                    each.broken or each.observed,
                    ", ".join(_evidence(example) for example in each.examples[:3]),
                )
            )
        columns = ("check", "status", "what should hold", "found", "for example")
        out.print(table(f"{suite}, judged by Spark", columns, rows))

    show(report, as_json=as_json, pretty=pretty)
    if not report.passed:
        raise CheckFailed(f"{suite}: something critical is wrong with the queues in {parquet}")


def _report_facts(report: QualityReport) -> Any:
    facts = {each.name: getattr(report, each.name) for each in fields(report)}
    return plain(
        facts
        | {
            "results": [result.facts() for result in report.results],
            "overdue": [_issue_facts(issue) for issue in report.overdue],
        }
    )


def _report(out: Console, report: QualityReport) -> None:
    _results(out, report.results)
    out.print(
        pairs(
            "Quality run",
            {
                "run": report.quality_run_id,
                "verdict": _verdict(report.verdict.value),
                "queues": report.queues,
                "messages": report.messages,
                "not judged": ", ".join(report.not_judged) + ": needs --contents" if report.not_judged else None,
                "seconds": report.seconds,
            },
        )
    )
    if report.overdue:
        out.print(_issues("Known issues whose day has passed", report.overdue))


def _verdict(word: str) -> Text:
    return cell(word, style=_TONES.get(word, ""))


def _results(out: Console, results: Sequence[Finding], *, if_none: str = _NOTHING_TO_SEE) -> None:
    """Show what did not pass, with evidence and remedy."""
    from rich.text import Text

    from queuekeeper.quality.findings import Status

    if not results:
        out.print(cell(if_none, style="yellow"), soft_wrap=True)
        return
    trouble = [result for result in results if result.status is not Status.PASSED]
    if not trouble:
        out.print(cell(f"✓ All {len(results):,} expectations hold.", style="bold green"))
        return
    rows = [
        (
            result.check_id,
            cell(result.priority.value, style=_TONES.get(result.priority.value, "")),
            cell(result.status.value, style=_TONES[result.status.value]),
            result.description,
            result.observed,
            ", ".join(_evidence(example) for example in result.examples[:3]),
        )
        for result in trouble
    ]
    out.print(table("What was found", ("check", "", "status", "what should hold", "found", "for example"), rows))
    worst: dict[str, Finding] = {}
    for result in trouble:
        worst.setdefault(result.check_id, result)
    advice = [(number, result.check.advice) for number, result in worst.items()]
    out.print(table("What to do", ("check", "advice"), advice))
    commands: dict[str, list[str]] = {}
    for number, result in worst.items():
        if command := result.command(shell_prefix=context.settings().key_prefix):
            commands.setdefault(command, []).append(number)
    for command, numbers in commands.items():
        # Outside of the table, which would break it: it is there to be copied.
        out.print(Text(f"\nNext for {', '.join(numbers)}: {printable(command)}"), soft_wrap=True)


def _evidence(example: Any) -> str:
    name, *rest = (f"{key} {value}" if key != "client_hash" else str(value) for key, value in example.items())
    return f"{name} ({', '.join(rest)})" if rest else name


@app.command()
def results(
    quality_run_id: RunIdOrNewest = None,
    *,
    check_id: Annotated[str | None, typer.Option("--check", help="Only this check.", metavar="Q")] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show what a run found, with evidence and remedies.

    Example: `queuekeeper quality results --check Q9`
    """
    from queuekeeper.quality.checks import check
    from queuekeeper.quality.store import QualityStore

    if check_id is not None:
        check(check_id)
    with context.postgres_connection(postgres_url) as connection:
        store = QualityStore(connection)
        run = store.run(quality_run_id) if quality_run_id else _newest(store)
        found = [each for each in store.results(run.quality_run_id) if check_id in (None, each.check_id)]

    def pretty(out: Console) -> None:
        _results(out, found, if_none=_nothing_judged(run, check_id))
        out.print(
            pairs(
                "Quality run",
                {
                    "run": run.quality_run_id,
                    "verdict": _verdict(run.verdict.value),
                    "began": instant(int(run.started_at.timestamp() * 1_000)),
                    "profiles": ", ".join(run.profile_ids),
                    "suites": ", ".join(run.suites),
                },
            )
        )

    facts = plain(run) | {"results": plain([result.facts() for result in found])}
    show(facts, as_json=as_json, pretty=pretty)


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
    return f"{check_id} was not judged: it is in none of the run's suites, {', '.join(run.suites)}."


@app.command()
def checks(
    check_id: Annotated[str | None, typer.Argument(metavar="[CHECK]", help="One check, such as Q9.")] = None,
    *,
    as_json: context.AsJson = False,
) -> None:
    """List the checks, or explain one.

    Example: `queuekeeper quality checks Q9`
    """
    from queuekeeper.quality.checks import CHECKS, check

    chosen = list(CHECKS.values()) if check_id is None else [check(check_id)]

    def pretty(out: Console) -> None:
        if check_id is not None:
            _explain(out, chosen[0])
            return
        rows = [
            (
                each.id,
                _priorities(each),
                each.title,
                ", ".join(each.stores),
                each.remedy.name if each.remedy else None,
                each.area,
            )
            for each in chosen
        ]
        out.print(table("Checks", ("check", "", "title", "stores", "remedy", "about"), rows))

    facts = [plain(each) | {"severity": each.severity.value} for each in chosen]
    show(facts, as_json=as_json, pretty=pretty)


def _priorities(check: Check) -> str:
    return check.priority.value if check.milder is None else f"{check.priority.value}, {check.milder.value}"


def _explain(out: Console, check: Check) -> None:
    out.print(
        pairs(
            f"{check.id}: {check.title}",
            {
                "priority": _priorities(check),
                "stores": ", ".join(check.stores),
                "found by": check.computation,
                "cost": check.cost,
                "what to do": check.advice,
                "remedy": check.remedy.name if check.remedy else None,
                "about": check.area,
            },
        )
    )


@app.command()
def report(
    quality_run_id: RunIdOrNewest = None,
    *,
    directory: Annotated[Path | None, typer.Option(help="Folder; else QUEUEKEEPER_REPORTS_DIR.")] = None,
    airflow_url: Annotated[
        str | None, typer.Option(help="Address of Airflow: findings then link to the forms of their remedies.")
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Write what a run found as an HTML page and as JSON.

    With trends and forecasts.

    Example: `queuekeeper quality report --directory reports`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.quality.report import FORMS_PATH, build_report, write_report
    from queuekeeper.quality.store import QualityStore, Verdict

    with context.postgres_connection(postgres_url) as connection:
        chosen = quality_run_id or _newest(QualityStore(connection)).quality_run_id
        built = build_report(
            connection,
            quality_run_id=chosen,
            now_ms=system_clock(),
            forms_url="" if airflow_url is None else f"{airflow_url.rstrip('/')}{FORMS_PATH}",
        )
    files = write_report(built, (directory or context.settings().reports).absolute())

    def pretty(out: Console) -> None:
        out.print(_verdict(built.verdict.value))
        out.print(built.explanation, soft_wrap=True)
        out.print(pairs("Files", {"HTML": files.html, "JSON": files.json, "SHA-256 of the HTML": files.sha256}))

    facts = plain(files) | {
        "quality_run_id": chosen,
        "verdict": built.verdict.value,
        "explanation": built.explanation,
    }
    show(facts, as_json=as_json, pretty=pretty)
    if built.verdict is Verdict.FAILED:
        raise CheckFailed(f"quality run {chosen} failed: open {files.html}")


@app.command()
def trend(
    *,
    runs: Annotated[int, typer.Option(min=1, max=200, help="Newest finished runs to show.")] = RUNS_SHOWN,
    like: Annotated[
        str | None, typer.Option(metavar="RUN", help="Show runs on the servers of this one; of the newest if left out.")
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show how each check came out in the last runs.

    Runs on the same servers; the oldest is to the left.

    Example: `queuekeeper quality trend --runs 10`
    """
    from queuekeeper.quality.store import QualityStore

    with context.postgres_connection(postgres_url) as connection:
        store = QualityStore(connection)
        newest = like or next((run.quality_run_id for run in store.runs(limit=1, finished=True)), None)
        found = store.trend(runs=runs, same_servers_as=newest)
    show(found, as_json=as_json, pretty=lambda out: _trend(out, found))


def _trend(out: Console, found: Sequence[TrendRun]) -> None:
    from queuekeeper.quality.checks import CHECKS

    if not found:
        out.print("No run has finished yet.")
        return
    rows = []
    for number, check in CHECKS.items():
        cells = [each.cells.get(number) for each in found]
        if any(cells):
            marks = "".join(" " if each is None else _MARKS[each.status.value] for each in cells)
            last = cells[-1]
            rows.append((number, check.title, marks, None if last is None else last.unexpected_count))
    out.print(table(f"The last {len(found):,} runs", ("check", "title", "runs", "last"), rows))
    out.print("· passed   k known   ✗ failed   ! could not be made")


@known.command("add")
def known_add(
    check_id: Annotated[str, typer.Argument(metavar="CHECK", help="Number of the check, such as Q9.")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
    client_hash: Annotated[
        str | None, typer.Option("--client-hash", help="Only this queue, as results name it; all if left out.")
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Answer for a failure until a day: it is shown, and fails no run. Afterwards it fails again.

    Example: `queuekeeper quality known add Q9 --owner ops --reason "cleanup on Monday" --until 2026-12-31`
    """
    from queuekeeper.quality.known_issues import KnownIssues

    with context.postgres_connection(postgres_url) as connection:
        issue = KnownIssues(connection).add(
            check_id=check_id, owner=owner, reason=reason, ends_on=_day(until), today=_today(), client_hash=client_hash
        )
    show(_issue_facts(issue), as_json=as_json, pretty=lambda out: out.print(_issues("Known issue", [issue])))


@known.command("list")
def known_list(*, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """List known issues, those that end first first.

    Example: `queuekeeper quality known list`
    """
    from queuekeeper.quality.known_issues import KnownIssues

    with context.postgres_connection(postgres_url) as connection:
        found = KnownIssues(connection).all()

    def pretty(out: Console) -> None:
        out.print(_issues("Known issues", found) if found else "Nobody answers for anything.")

    show([_issue_facts(issue) for issue in found], as_json=as_json, pretty=pretty)


@known.command("remove")
def known_remove(
    known_issue_id: Annotated[int, typer.Argument(metavar="NUMBER", help="As `known list` shows it.")],
    *,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Answer for a failure no longer.

    Example: `queuekeeper quality known remove 3`
    """
    from queuekeeper.quality.known_issues import KnownIssues

    with context.postgres_connection(postgres_url) as connection:
        KnownIssues(connection).remove(known_issue_id)
    show(
        {"removed": known_issue_id},
        as_json=as_json,
        pretty=lambda out: out.print(f"Known issue {known_issue_id} is forgotten."),
    )


@incidents.callback()
def _incidents_group() -> None:
    """Show findings of one cause over runs: since when, and who answers for them."""


@incidents.command("list")
def incidents_list(
    *,
    closed: Annotated[bool, typer.Option("--closed", help="Those that have closed, too.")] = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """List the incidents that stand, the latest seen first.

    Example: `queuekeeper quality incidents list`
    """
    from queuekeeper.quality.incidents import Incidents

    with context.postgres_connection(postgres_url) as connection:
        found = Incidents(connection).all(today=_today(), closed=closed)
    show(
        found, as_json=as_json, pretty=lambda out: out.print(_incident_table(found) if found else "No incident stands.")
    )


@incidents.command("own")
def incidents_own(
    incident_id: Annotated[int, typer.Argument(metavar="NUMBER", help="As `incidents list` shows it.")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Answer for an incident until a day, by a known issue of its check. Afterwards the check fails runs again.

    Example: `queuekeeper quality incidents own 4 --owner ops --reason "cleanup on Monday" --until 2026-12-31`
    """
    from queuekeeper.quality.incidents import Incidents

    with context.postgres_connection(postgres_url) as connection:
        incident = Incidents(connection).own(
            incident_id, owner=owner, reason=reason, ends_on=_day(until), today=_today()
        )
    show(incident, as_json=as_json, pretty=lambda out: out.print(_incident_table([incident])))


def _incident_table(found: Sequence[Incident]) -> Any:
    from queuekeeper.clock import system_clock

    now_ms = system_clock()
    rows = [
        (
            str(each.incident_id),
            each.check_id,
            cell(each.priority.value, style=_TONES.get(each.priority.value, "")),
            each.title,
            each.state.value,
            each.owner or "nobody",
            None if each.known_until is None else str(each.known_until),
            f"{each.days(now_ms)} d",
            instant(int(each.first_seen_at.timestamp() * 1_000)),
            instant(int(each.last_seen_at.timestamp() * 1_000)),
            each.place,
        )
        for each in found
    ]
    columns = ("number", "check", "", "title", "state", "owner", "until", "age", "first seen", "last seen", "where")
    return table("Incidents", columns, rows)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"the day is {text!r}: write it as year-month-day, such as 2026-12-31") from None


def _today() -> date:
    from queuekeeper.clock import system_clock

    return datetime.fromtimestamp(system_clock() / 1_000, UTC).date()


def _issue_facts(issue: KnownIssue) -> dict[str, Any]:
    return {
        "known_issue_id": issue.known_issue_id,
        "check_id": issue.check_id,
        "client_hash": issue.client_hash,
        "owner": issue.owner,
        "reason": issue.reason,
        "ends_on": issue.ends_on.isoformat(),
        "is_overdue": issue.is_overdue(_today()),
    }


def _issues(title: str, issues: Sequence[KnownIssue]) -> Any:
    today = _today()
    rows = [
        (
            str(issue.known_issue_id),
            issue.check_id,
            issue.client_hash or "all",
            issue.owner,
            issue.reason,
            cell(f"{issue.ends_on} (overdue)", style="red") if issue.is_overdue(today) else str(issue.ends_on),
        )
        for issue in issues
    ]
    return table(title, ("number", "check", "queue", "owner", "reason", "until"), rows)
