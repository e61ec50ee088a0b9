"""``queuekeeper quality``: profile the queues, judge them, look at what was found, and answer for what is known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from queuekeeper.cli import context
from queuekeeper.cli.command import OnPostgres, OnServers, Plain, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, cell, instant, listing, pairs, picked, plain, record, screen, table
from queuekeeper.cli.run_control import RunIdOrNewest
from queuekeeper.clock import system_clock
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import CHECKS, Check, check
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.quality.judge.incidents import Incident, Incidents
from queuekeeper.quality.judge.known_issues import KnownIssue, KnownIssues
from queuekeeper.quality.judge.run import (
    COMPARISON_SUITE,
    EVENT_SUITES,
    QUEUE_SUITES,
    QualityReport,
    check_suites,
    run_quality,
    suites_for,
)
from queuekeeper.quality.judge.store import QualityRun, QualityStore, TrendRun, Verdict
from queuekeeper.quality.judge.suites import load
from queuekeeper.quality.profile.model import JudgeWish, ProfileReport, ProfileWish, RunWish

if TYPE_CHECKING:
    from rich.text import Text

app = group()
known = group("Excuse failures until a day, and say who answers for them.")
app.add_typer(known, name="known")
incidents = group("Show since when a finding stands, and who answers for it.")
app.add_typer(incidents, name="incidents")


REDIS: Final = "redis"
STORES = {"redis": (REDIS,), "postgres": ("postgres",), "both": ("redis", "postgres")}
"""What may be chosen -> stores that are profiled for it; anything but sessions needs none."""

ShowClientIds = Annotated[
    bool, typer.Option("--show-client-ids", help="Show client ids in examples. Without it, only their hashes.")
]
Owner = Annotated[str, typer.Option(help="Person or team that answers for the failure.")]
Reason = Annotated[str, typer.Option(help="Why the failure is excused until then.")]
Until = Annotated[
    str, typer.Option(help="Last day on which the failure is excused, such as 2026-12-31.", metavar="DATE")
]
_TONES = {
    "passed": "green", "warned": "yellow", "failed": "red", "broken": "red", "known": "blue",
    "P0": "bold red", "P1": "yellow",
}  # fmt: skip
_MARKS = {"passed": "·", "known": "k", "failed": "✗", "broken": "!"}
RUNS_SHOWN = 30
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
    source, target = context.postgres_address(call.postgres_url), ""
    with call.anew() as asked:
        connection = asked.connection
        if "postgres" in stores:
            check_profiled_source(connection, contents=parameters.contents)
        if "redis" in stores:
            target = context.redis_address(call.redis_url)
            check_profiled(asked.client, parameters=parameters)
    read: dict[str, Any] = {
        "postgres_url": source,
        "parameters": parameters,
        "now_ms": now_ms,
        "parquet_dir": str(folder.absolute()) if (folder := _folder(wish.parquet_directory)) else None,
    }
    reports = []
    with context.spark("queuekeeper quality profile", spark_master, *filter(None, (source, target))) as spark:
        from queuekeeper.quality.profile.stores import profile_postgres, profile_redis

        for store in stores:
            with screen(stderr=True).status(f"Reading {store}"):
                if store == "redis":
                    reports.append(profile_redis(spark, redis_url=target, **read))
                else:
                    reports.append(profile_postgres(spark, **read))
    return reports


def _moment(now_ms: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1_000, UTC)


def _folder(text: str) -> Path | None:
    return Path(text) if text else None


@command(app, asks=takes(lambda: ProfileWish))
def profile(
    call: OnServers,
    *,
    parameters: ProfileWish,
    store: Literal["redis", "postgres", "both"] = REDIS,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Put a row of numbers for each queue on record.

    The store is only read.

    Example: `queuekeeper quality profile --store both`

    :param store: Which store to read.
    """
    reports = _profiles(call, parameters, stores=STORES[store], now_ms=system_clock(), spark_master=spark_master)
    named = " ".join(f"--profile {report.profile_id}" for report in reports)
    return Shown(
        reports,
        lambda: (record(f"Profile of {report.store}", report) for report in reports),
        then=f"Next: queuekeeper quality run {named}",
    )


@command(app, "run", asks=takes(lambda: RunWish))
def run_command(
    call: OnServers,
    *,
    parameters: RunWish,
    store: Literal["redis", "postgres", "both", "events", "compacted", "fanout"] = REDIS,
    profiles: Annotated[list[str] | None, typer.Option("--profile")] = None,
    suites: Annotated[list[str] | None, typer.Option("--suite")] = None,
    run_id: str | None = None,
    show_client_ids: ShowClientIds = False,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Read the queues and judge them. Exit code 1 when something critical is wrong.

    Example: `queuekeeper quality run --contents`

    :param store: Which store to read; events: event broker and partitioned tables; compacted, fanout: queues of that
        kind.
    :param profiles: Judge this profile instead of reading the store. Repeat the option for more.
    :param suites: Judge by this suite. Repeat the option for more. Without it, all that fit.
    :param run_id: Name of the run. A run of the same name is replaced. Without it, a new name.
    """
    now_ms = system_clock()
    stores = STORES.get(store, ())
    if profiles:
        with call.anew() as asked:
            stores = tuple(each.store for each in QualityStore(asked.connection).profiles(profiles))
    elif suites and set(suites) <= {*EVENT_SUITES, *QUEUE_SUITES}:
        stores = ()
    on_queues = not QUEUE_SUITES.keys().isdisjoint([store, *(suites or ())])
    on_redis = "redis" in stores or on_queues
    subjects = (store,) if store in QUEUE_SUITES else stores
    chosen = list(suites or suites_for(subjects, servers=on_redis, compare=parameters.compare))
    if parameters.compare and COMPARISON_SUITE not in chosen:
        chosen.append(COMPARISON_SUITE)
    check_suites(chosen, stores=stores, servers=on_redis)
    profile_ids = list(profiles or ())
    if stores and not profiles:
        made = _profiles(call, parameters, stores=stores, now_ms=now_ms, spark_master=spark_master)
        profile_ids = [each.profile_id for each in made]
    now = _moment(now_ms)
    with screen(stderr=True).status("Judging"):
        report = run_quality(
            postgres_url=context.postgres_address(call.postgres_url),
            profile_ids=profile_ids,
            suites=chosen,
            quality_run_id=run_id or hashlib.sha256(f"{now_ms} {profile_ids}".encode()).hexdigest()[:16],
            now=now,
            redis_url=context.redis_address(call.redis_url) if on_redis else None,
            key_prefix=parameters.key_prefix,
            turn=parameters.at(now).turn if on_queues and parameters.mode == "fast" else None,
            throttle_references_per_s=parameters.throttle_references_per_s,
            show_client_ids=show_client_ids,
            data_docs=_folder(parameters.data_docs),
        )
    words = (
        f"quality run {report.quality_run_id} has failed: `queuekeeper quality results {report.quality_run_id}` "
        "says what is wrong and what mends it"
    )
    failed = words if report.verdict is Verdict.FAILED else None
    return Shown(_report_facts(report), lambda: _report(report), failed=failed)


@command(app, asks=takes(lambda: JudgeWish))
def judge(
    call: Plain,
    parquet: Path,
    *,
    parameters: JudgeWish,
    suite: str = "sessions_redis",
    contents: bool = False,
    clustered: bool = False,
    show_client_ids: ShowClientIds = False,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Judge a profile's Parquet with Spark, without a database. Exit code 1 when something critical is wrong.

    Nothing is put on record; `queuekeeper quality run` does that.

    Example: `queuekeeper quality judge profiles/redis-0123456789abcdef --suite sessions_redis`

    :param parquet: Folder that a profile has written: `parquet` in its report.
    :param suite: Suite of one store's sessions.
    :param contents: Say that the profile has read messages' contents.
    :param clustered: The queues are on a Redis cluster, where a bad hash tag is worse.
    """
    with context.spark("queuekeeper quality judge", spark_master) as spark:
        from queuekeeper.quality.judge.parquet import judge_parquet

        report = judge_parquet(
            spark,
            path=str(parquet.absolute()),
            suite=suite,
            contents=contents,
            is_clustered=clustered,
            show_client_ids=show_client_ids,
            data_docs=_folder(parameters.data_docs),
        )
    expectations = {each.number: each for each in load(suite).expectations}
    facts = [
        each.facts() | {"expectation": expectations[each.expectation], "passed": each.passed, "broken": each.broken}
        for each in report.results
    ]
    columns: dict[str, str | Callable[[Any], Any]] = {
        "check": "check_id",
        "status": lambda each: _verdict(each.status.value),
        "what should hold": "description",
        "found": "observed",
        "for example": _examples,
        "remedy": "remedy_name",
    }
    words = f"{suite}: something critical is wrong with the queues in {parquet}"
    return Shown(
        plain(vars(report) | {"results": facts}),
        lambda: [listing(f"{suite}, judged by Spark", report.results, columns), *_advice(report.results)],
        failed=None if report.passed else words,
    )


def _report_facts(report: QualityReport) -> Any:
    results = [result.facts() for result in report.results]
    return plain(vars(report) | {"results": results, "overdue": [_issue_facts(issue) for issue in report.overdue]})


def _report(report: QualityReport) -> Iterator[Any]:
    yield from _results(report.results)
    facts = {
        "run": report.quality_run_id,
        "verdict": _verdict(report.verdict.value),
        "queues": report.queues,
        "messages": report.messages,
        "not judged": ", ".join(report.not_judged) + ": needs --contents" if report.not_judged else None,
        "seconds": report.seconds,
    }
    yield pairs("Quality run", facts)
    if report.overdue:
        yield _issues("Known issues whose day has passed", report.overdue)


def _verdict(word: str) -> Text:
    return cell(word, style=_TONES.get(word, ""))


def _results(results: Sequence[Finding], *, if_none: str = _NOTHING_TO_SEE) -> Iterator[Any]:
    """Show what did not pass, with evidence and remedy."""
    if not results:
        yield cell(if_none, style="yellow")
        return
    trouble = [result for result in results if result.status is not Status.PASSED]
    if not trouble:
        yield cell(f"✓ All {len(results):,} expectations hold.", style="bold green")
        return
    columns: dict[str, str | Callable[[Any], Any]] = {
        "check": "check_id",
        "": _priority,
        "status": lambda each: _verdict(each.status.value),
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
        yield cell(f"Next for {', '.join(numbers)}: {command}")


def _advice(results: Sequence[Finding]) -> Iterator[Any]:
    """Show what to do about each check that did not pass."""
    advice = {each.check_id: each.check.advice for each in results if each.check and not each.passed}
    if advice:
        yield table("What to do", ("check", "advice"), list(advice.items()))


def _priority(found: Finding | Incident) -> Text:
    return _verdict(found.priority.value)


def _examples(found: Any) -> str:
    return ", ".join(_evidence(example) for example in found.examples[:3])


def _evidence(example: Any) -> str:
    name, *rest = (f"{key} {value}" if key != "client_hash" else str(value) for key, value in example.items())
    return f"{name} ({', '.join(rest)})" if rest else name


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
            "verdict": _verdict(run.verdict.value),
            "began": instant(int(run.started_at.timestamp() * 1_000)),
            "profiles": ", ".join(run.profile_ids),
            "suites": ", ".join(run.suites),
        }
        yield pairs("Quality run", facts)

    return Shown(plain(run) | {"results": plain([result.facts() for result in found])}, pretty)


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


@command(app)
def checks(call: Plain, check_id: Annotated[str | None, typer.Argument(metavar="[CHECK]")] = None) -> Shown:
    """List the checks, or explain one.

    Example: `queuekeeper quality checks Q9`

    :param check_id: One check, such as Q9.
    """
    chosen = list(CHECKS.values()) if check_id is None else [check(check_id)]

    def remedy(each: Check) -> str | None:
        return each.remedy.name if each.remedy else None

    def pretty() -> Iterator[Any]:
        if check_id is None:
            columns: dict[str, str | Callable[[Any], Any]] = {"check": "id", "": _priorities, "title": "title"}
            columns |= {"stores": lambda each: ", ".join(each.stores), "remedy": remedy, "about": "area"}
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
    verdict, paths = built.verdict, {"HTML": files.html, "JSON": files.json, "SHA-256 of the HTML": files.sha256}
    return Shown(
        plain(files) | {"quality_run_id": chosen, "verdict": verdict.value, "explanation": built.explanation},
        lambda: [_verdict(verdict.value), cell(built.explanation), pairs("Files", paths)],
        failed=f"quality run {chosen} failed: open {files.html}" if verdict is Verdict.FAILED else None,
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
    yield table(f"The last {len(found):,} runs", ("check", "title", "runs", "last"), rows)
    yield "· passed   k known   ✗ failed   ! could not be made"


@command(known, "add")
def known_add(
    call: OnPostgres,
    check_id: Annotated[str, typer.Argument(metavar="CHECK")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
    client_hash: str | None = None,
    place: str | None = None,
) -> Shown:
    """Answer for a failure until a day: it is shown, and fails no run. Afterwards it fails again.

    Example: `queuekeeper quality known add Q9 --owner ops --reason "cleanup on Monday" --until 2026-12-31`

    :param check_id: Number of the check, such as Q9.
    :param client_hash: Excuse only this queue, as results name it. Without it, all queues.
    :param place: Excuse it only at this place, as `incidents list` names it. Without it, everywhere.
    """
    issue = KnownIssues(call.connection).add(
        check_id=check_id,
        owner=owner,
        reason=reason,
        ends_on=_day(until),
        today=_today(),
        client_hash=client_hash,
        place=place,
    )
    return Shown(_issue_facts(issue), lambda: [_issues("Known issue", [issue])])


@command(known, "list")
def known_list(call: OnPostgres) -> Shown:
    """List known issues, the earliest end first.

    Example: `queuekeeper quality known list`
    """
    found = KnownIssues(call.connection).all()
    return Shown(
        [_issue_facts(issue) for issue in found],
        lambda: [_issues("Known issues", found) if found else "Nobody answers for anything."],
    )


@command(known, "remove")
def known_remove(call: OnPostgres, known_issue_id: Annotated[int, typer.Argument(metavar="NUMBER")]) -> Shown:
    """Answer for a failure no longer.

    Example: `queuekeeper quality known remove 3`

    :param known_issue_id: Number that `known list` shows.
    """
    KnownIssues(call.connection).remove(known_issue_id)
    return Shown({"removed": known_issue_id}, lambda: [f"Known issue {known_issue_id} is forgotten."])


@command(incidents, "list")
def incidents_list(call: OnPostgres, *, closed: bool = False) -> Shown:
    """List the incidents that stand, the latest seen first.

    Example: `queuekeeper quality incidents list`

    :param closed: Also show incidents that have closed.
    """
    found = Incidents(call.connection).all(today=_today(), closed=closed)
    return Shown(found, lambda: [_incident_table(found) if found else "No incident stands."])


@command(incidents, "own")
def incidents_own(
    call: OnPostgres,
    incident_id: Annotated[int, typer.Argument(metavar="NUMBER")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
) -> Shown:
    """Answer for an incident until a day. Afterwards it fails runs again.

    A known issue of its check at its place is made of it.

    Example: `queuekeeper quality incidents own 4 --owner ops --reason "cleanup on Monday" --until 2026-12-31`

    :param incident_id: Number that `incidents list` shows.
    """
    incident = Incidents(call.connection).own(
        incident_id, owner=owner, reason=reason, ends_on=_day(until), today=_today()
    )
    return Shown(incident, lambda: [_incident_table([incident])])


def _incident_table(found: Sequence[Incident]) -> Any:
    now_ms = system_clock()
    columns: dict[str, str | Callable[[Any], Any]] = {"number": "incident_id", "check": "check_id", "": _priority}
    columns |= {"title": "title", "state": "state", "owner": lambda each: each.owner or "nobody"}
    columns |= {"until": "known_until", "age": lambda each: f"{each.days(now_ms)} d"}
    columns |= {"first seen": "first_seen_at", "last seen": "last_seen_at", "where": "place"}
    return listing("Incidents", found, columns)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"the day is {text!r}: write it as year-month-day, such as 2026-12-31") from None


def _today() -> date:
    return datetime.fromtimestamp(system_clock() / 1_000, UTC).date()


def _issue_facts(issue: KnownIssue) -> dict[str, Any]:
    names = ("known_issue_id", "check_id", "client_hash", "place", "owner", "reason", "ends_on")
    return picked(issue, *names) | {"is_overdue": issue.is_overdue(_today())}


def _issues(title: str, issues: Sequence[KnownIssue]) -> Any:
    today = _today()

    def until(issue: KnownIssue) -> Any:
        return cell(f"{issue.ends_on} (overdue)", style="red") if issue.is_overdue(today) else str(issue.ends_on)

    columns: dict[str, str | Callable[[Any], Any]] = {"number": "known_issue_id", "check": "check_id"}
    columns |= {
        "queue": lambda issue: issue.client_hash or "all",
        "where": lambda issue: issue.place or "everywhere",
        "owner": "owner",
        "reason": "reason",
    }
    return listing(title, issues, columns | {"until": until})
