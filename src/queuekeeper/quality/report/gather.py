"""Gathers the results of a quality run in one record and writes it as files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from math import ceil, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar, cast

from queuekeeper import __version__
from queuekeeper.clock import DAY_MS, HOUR_MS
from queuekeeper.jobs.checks import CHECKS, Check, Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.quality.judge.incidents import Incident, Incidents, State
from queuekeeper.quality.judge.known_issues import KnownIssue, KnownIssues
from queuekeeper.quality.judge.store import (
    RUNS_SHOWN,
    DepthBucket,
    ExpiryHour,
    Profile,
    QualityRun,
    QualityStore,
    TrendCell,
    TrendRun,
    Verdict,
    WorstQueue,
)
from queuekeeper.quality.report.model import (
    FORMAT,
    CohortLine,
    Depths,
    ExpiryPoint,
    ExpiryTimeline,
    HeatCell,
    HeatMap,
    HeatRow,
    HeatRun,
    KnownIssueLine,
    MemoryForecast,
    MemoryPoint,
    NotRun,
    ProfileLine,
    PublishedReport,
    QuarantineCount,
    QueueLine,
)
from queuekeeper.quality.report.page import render
from queuekeeper.report.figures import SCORE_95
from queuekeeper.report.files import RUN_ID, ReportFiles, ReportKind, write_rendered
from queuekeeper.report.servers import ServerMemory
from queuekeeper.sql_statements import statement

T = TypeVar("T")

QUEUES_SHOWN = 20
CLOSED_SHOWN = 20
POINTS_SHOWN = 170
"""Largest number of points of a timeline: a week by the hour. In a longer timeline, a point spans several hours."""

FORMS_PATH = "/queuekeeper/trigger"
"""Path of the plugin's forms of DAGs, below the address of Airflow."""


REFERENCE_BYTES = 100
"""Approximate memory of one reference in a large sorted set; see ``docs/performance.md``."""

HORIZON_DAYS = 7.0
FULL_WITHIN_DAYS = 365.0
POINTS_NEEDED = 5
"""Least number of measurements for a forecast; with fewer, its margin of error is too large."""

_COHORT = ("cohort", "queues", "messages", "dead", "payload_bytes", "faulty_queues")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Records from the control schema of which a report is composed.

    :param trend: the latest finished runs on the same servers, oldest first.
    :param incidents: all incidents, those that have closed, too.
    :param queues: profile id -> its worst queues.
    :param depths: profile id -> its histogram of queue lengths.
    :param expiry: profile id -> its messages by the hour in which they expire.
    :param cohorts: profile id -> sums of its cohorts.
    """

    run: QualityRun
    profiles: tuple[Profile, ...]
    results: tuple[Finding, ...]
    known_issues: tuple[KnownIssue, ...] = ()
    incidents: tuple[Incident, ...] = ()
    trend: tuple[TrendRun, ...] = ()
    queues: Mapping[str, tuple[WorstQueue, ...]] = field(default_factory=dict)
    depths: Mapping[str, tuple[DepthBucket, ...]] = field(default_factory=dict)
    expiry: Mapping[str, tuple[ExpiryHour, ...]] = field(default_factory=dict)
    cohorts: Mapping[str, tuple[CohortLine, ...]] = field(default_factory=dict)


def build_report(
    connection: Connection,
    *,
    quality_run_id: str,
    now_ms: int,
    forms_url: str = "",
    form_values: Mapping[str, Any] | None = None,
) -> PublishedReport:
    """Compose the report of a quality run; only reads, and only from the control schema.

    :param now_ms: instant of the report.
    :param forms_url: base address of the forms of DAGs; empty for a report without links.
    :param form_values: connections to fill in where the form of a remedy has them.
    :raises UsageError: when no run has this id.
    """
    store = QualityStore(connection)
    run = store.run(quality_run_id)
    profiles = store.profiles(run.profile_ids)
    ids = [profile.profile_id for profile in profiles]
    with translated_errors(connection):
        sums = {
            profile.profile_id: tuple(
                CohortLine(store=profile.store, **dict(zip(_COHORT, row, strict=True)))
                for row in connection.execute(
                    statement("quality/cohort_sums"), {"profile_id": profile.profile_id}
                ).fetchall()
            )
            for profile in profiles
        }
    evidence = Evidence(
        run=run,
        profiles=profiles,
        results=store.results(quality_run_id),
        known_issues=KnownIssues(connection).all(),
        incidents=Incidents(connection).all(today=datetime.fromtimestamp(now_ms / 1_000, UTC).date(), closed=True),
        trend=store.trend(runs=RUNS_SHOWN, same_servers_as=quality_run_id),
        queues={profile_id: store.worst_queues(profile_id, n=QUEUES_SHOWN) for profile_id in ids},
        depths={profile_id: store.depth_histogram(profile_id) for profile_id in ids},
        expiry={profile_id: store.expiry_hours(profile_id) for profile_id in ids},
        cohorts=sums,
    )
    return compose_report(evidence, now_ms=now_ms, forms_url=forms_url, form_values=form_values)


def compose_report(
    evidence: Evidence, *, now_ms: int, forms_url: str = "", form_values: Mapping[str, Any] | None = None
) -> PublishedReport:
    """Compose a report of the evidence; parameters are those of :func:`build_report`."""
    run, profiles = evidence.run, evidence.profiles
    today = datetime.fromtimestamp(now_ms / 1_000, UTC).date()
    known = tuple(_known_line(issue, today=today) for issue in evidence.known_issues)
    results = tuple(
        # Examples must not disclose a client id.
        result.without_client_ids().with_form(form_values or {}, forms_url=forms_url)
        for result in sorted(evidence.results, key=lambda result: (*result.urgency, -result.unexpected_count))
    )
    cohorts = tuple(line for profile in profiles for line in evidence.cohorts.get(profile.profile_id, ()))
    return PublishedReport(
        format=FORMAT,
        generated_at_ms=now_ms,
        generated_by=f"queuekeeper {__version__}",
        quality_run_id=run.quality_run_id,
        verdict=run.verdict,
        explanation=explain(run.verdict, results=results),
        mode=run.mode,
        suites=run.suites,
        started_at_ms=_ms(run.started_at),
        finished_at_ms=None if run.finished_at is None else _ms(run.finished_at),
        profiles=tuple(_line(ProfileLine, profile, cohorts=len(profile.cohorts)) for profile in profiles),
        queues=sum(profile.queues or 0 for profile in profiles),
        messages=sum(profile.messages or 0 for profile in profiles),
        faulty_queues=sum(line.faulty_queues for line in cohorts),
        results=results,
        not_run=_not_run(
            results,
            not_judged=run.numbers.get("not_judged", ()),
            senseless=dict(each.split(" ", 1) for each in run.numbers.get("senseless", ())),
        ),
        known_issues=known,
        incidents=tuple(each for each in evidence.incidents if each.state is not State.CLOSED),
        closed_by_hand=tuple(each for each in evidence.incidents if each.closed_by)[:CLOSED_SHOWN],
        heat=heat_map(evidence.trend),
        worst_queues=_worst(evidence),
        depths=tuple(
            Depths(store=profile.store, buckets=evidence.depths.get(profile.profile_id, ())) for profile in profiles
        ),
        expiry=tuple(
            timeline(
                profile,
                hours=evidence.expiry.get(profile.profile_id, ()),
                dead=sum(line.dead for line in evidence.cohorts.get(profile.profile_id, ())),
            )
            for profile in profiles
        ),
        memory=forecast_memory(evidence.trend, run=run),
        quarantine=tuple(QuarantineCount(**line) for line in run.numbers.get("quarantine", ())),
        cohorts=cohorts,
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


def _line(made: type[T], source: object, **others: Any) -> T:
    """Return a line of the report, made of the source's fields of the same names and of the others given."""
    names = {each.name for each in fields(cast(Any, made))} - others.keys()
    return made(**{name: getattr(source, name) for name in names}, **others)


def _worst(evidence: Evidence) -> tuple[QueueLine, ...]:
    lines = [
        _line(QueueLine, queue, store=profile.store)
        for profile in evidence.profiles
        for queue in evidence.queues.get(profile.profile_id, ())
    ]
    return tuple(sorted(lines, key=lambda line: -sum(line.faults.values()))[:QUEUES_SHOWN])


def _checks(lines: Iterable[Finding]) -> int:
    """Return the number of checks in findings; one check may have several."""
    return len({line.check_id for line in lines})


def explain(verdict: Verdict, *, results: Sequence[Finding]) -> str:
    """Return the verdict in a sentence or two, with what to do next."""
    failed = [line for line in results if line.status is Status.FAILED]
    wrong = _count(_checks(failed), "check", "checks")
    broken = _checks(line for line in results if line.status is Status.BROKEN)
    known = sum(line.status is Status.KNOWN for line in results)
    excused = f" {_count(known, 'known issue is', 'known issues are')} left out of the verdict." if known else ""
    match verdict:
        case Verdict.PASSED:
            ran = f"{_count(_checks(results), 'check', 'checks')} ran"
            if not failed:
                return f"{ran}, and nothing has to be done.{excused}"
            return (
                f"{ran}, and no message is in danger. What did not pass ({wrong}) is for information: look at it below "
                f"when there is time.{excused}"
            )
        case Verdict.WARNED:
            return (
                f"No message is in danger now, but {wrong} did not pass. Look at them below. DAGs that depend on the "
                f"quality of the queues go on.{excused}"
            )
        case Verdict.FAILED:
            worst = _checks(line for line in failed if line.severity == Severity.CRITICAL)
            parts = [f"{_count(worst, 'critical check', 'critical checks')} failed"] if worst else []
            parts += [f"{_count(broken, 'check', 'checks')} could not be made"] if broken else []
            return (
                f"{' and '.join(parts) or 'The run failed'}. Messages are lost or delivered in the wrong order, or the "
                f"run could not tell. DAGs that depend on the quality of the queues wait.{excused}"
            )
        case Verdict.RUNNING:
            return "The run has not finished. Run queue_quality again if its tasks have ended."


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _known_line(issue: KnownIssue, *, today: date) -> KnownIssueLine:
    return KnownIssueLine(
        check_id=issue.check_id,
        client_hash=issue.client_hash,
        place=issue.place,
        owner=issue.owner,
        reason=issue.reason,
        ends_on=issue.ends_on.isoformat(),
        overdue=issue.is_overdue(today),
    )


def _not_run(
    results: Sequence[Finding], *, not_judged: Sequence[str], senseless: Mapping[str, str]
) -> tuple[NotRun, ...]:
    """Return the checks that did not run, or not for all sessions.

    :param senseless: number of a check -> for which sessions it makes no sense, and why.
    """
    ran = {line.check_id for line in results}

    def why(check: Check) -> str:
        if check.id in senseless:
            return senseless[check.id]
        if check.id in not_judged:
            return "needs the messages' contents, at least in part: run queue_quality with contents"
        return "not part of the suites that were chosen"

    return tuple(
        NotRun(check_id=check.id, title=check.title, priority=str(check.priority), why=why(check))
        for check in CHECKS.values()
        if check.id not in ran or check.id in not_judged or check.id in senseless
    )


def heat_map(trend: Sequence[TrendRun]) -> HeatMap:
    """Return the results of the latest runs by check; a check that ran in none of them has no row."""
    shown = trend[-RUNS_SHOWN:]
    return HeatMap(
        runs=tuple(
            HeatRun(
                quality_run_id=each.run.quality_run_id,
                at_ms=_ms(each.run.started_at),
                mode=each.run.mode,
                verdict=str(each.run.verdict),
            )
            for each in shown
        ),
        rows=tuple(
            HeatRow(check_id=number, title=check.title, cells=tuple(_cell(each.cells.get(number)) for each in shown))
            for number, check in CHECKS.items()
            if any(number in each.cells for each in shown)
        ),
    )


def _cell(cell: TrendCell | None) -> HeatCell:
    if cell is None:
        return HeatCell(state="not run", unexpected=0)
    state = cell.severity if cell.status is Status.FAILED else cell.status
    return HeatCell(state=str(state), unexpected=cell.unexpected_count)


def timeline(profile: Profile, *, hours: Sequence[ExpiryHour], dead: int) -> ExpiryTimeline:
    """Sum up what expires over time, and what is still stored at each point, with and without cleanup.

    Redis frees an expired payload and keeps its reference; PostgreSQL frees nothing. A cleanup removes dead references
    and gives messages without expiry the default one.

    :param dead: number of references without payload that the profile found.
    """
    redis = profile.store == "redis"
    reference = REFERENCE_BYTES if redis else 0
    first = profile.as_of_ms // HOUR_MS * HOUR_MS
    until = first + (profile.default_ttl_s * 1_000 // HOUR_MS + 1) * HOUR_MS
    endless = [hour for hour in hours if hour.hour_ms == 0]
    overdue = [hour for hour in hours if 0 < hour.hour_ms < first]
    later = [hour for hour in hours if hour.hour_ms > until]
    ahead = {hour.hour_ms: hour for hour in hours if first <= hour.hour_ms <= until}
    last = until if endless else max(ahead, default=first)
    span = ceil(((last - first) // HOUR_MS + 1) / POINTS_SHOWN) * HOUR_MS
    held = sum(hour.payload_bytes + hour.messages * reference for hour in hours) + dead * reference
    cleaned = held - dead * reference - sum(hour.payload_bytes + hour.messages * reference for hour in overdue)
    without, points = held, []
    for start in range(first, last + HOUR_MS, span) if ahead or endless else ():
        found = [hour for hour_ms, hour in ahead.items() if start <= hour_ms < start + span]
        messages, payload_bytes = sum(hour.messages for hour in found), sum(hour.payload_bytes for hour in found)
        without -= payload_bytes if redis else 0
        cleaned -= payload_bytes + messages * reference
        if start <= until < start + span:
            cleaned -= sum(hour.payload_bytes + hour.messages * reference for hour in endless)
        points.append(
            ExpiryPoint(
                at_ms=start,
                messages=messages,
                payload_bytes=payload_bytes,
                held_bytes=without,
                held_after_cleanup_bytes=cleaned,
            )
        )
    return ExpiryTimeline(
        store=profile.store,
        span_ms=span,
        points=tuple(points),
        overdue_messages=sum(hour.messages for hour in overdue) + dead,
        overdue_bytes=sum(hour.payload_bytes for hour in overdue) + dead * reference,
        endless_messages=sum(hour.messages for hour in endless),
        endless_bytes=sum(hour.payload_bytes for hour in endless),
        later_messages=sum(hour.messages for hour in later),
        later_bytes=sum(hour.payload_bytes for hour in later),
        held_bytes=held,
    )


def forecast_memory(trend: Sequence[TrendRun], *, run: QualityRun) -> MemoryForecast:
    """Fit a straight line to the memory that runs on the same servers measured, and tell when it meets the limit."""
    servers = _servers(run)
    addresses = {server.address for server in servers}
    limits = [server.maxmemory_bytes for server in servers]
    limit = sum(limits) if limits and all(limits) else None
    measured = tuple(
        MemoryPoint(at_ms=_ms(each.run.started_at), used_bytes=sum(server.used_memory_bytes for server in found))
        for each in trend
        if (found := _servers(each.run)) and {server.address for server in found} == addresses
    )
    remark = ""
    slope = low = high = full = None
    if not servers:
        remark = "No Redis was part of this run."
    elif len(measured) < POINTS_NEEDED or measured[-1].at_ms - measured[0].at_ms < HOUR_MS:
        remark = (
            f"A forecast needs {POINTS_NEEDED} runs over an hour or more; {len(measured)} are on record. "
            "Switch on the schedule of queue_quality, or run it again later."
        )
    else:
        slope, margin = _slope([(point.at_ms / DAY_MS, float(point.used_bytes)) for point in measured])
        low, high = slope - margin, slope + margin
        if limit is not None and slope > 0:
            left = max(0.0, (limit - measured[-1].used_bytes) / slope)
            full = left if left <= FULL_WITHIN_DAYS else None
    return MemoryForecast(
        servers=servers,
        limit_bytes=limit,
        measured=measured,
        bytes_per_day=slope,
        low_per_day=low,
        high_per_day=high,
        horizon_days=HORIZON_DAYS,
        full_in_days=full,
        remark=remark,
    )


def _servers(run: QualityRun) -> tuple[ServerMemory, ...]:
    return tuple(
        ServerMemory(
            address=str(server["address"]),
            product="Valkey" if server["is_valkey"] else "Redis",
            version=str(server["version"]),
            used_memory_bytes=int(server["used_memory_bytes"]),
            maxmemory_bytes=int(server["maxmemory_bytes"]),
            maxmemory_policy=str(server["maxmemory_policy"]),
        )
        for server in run.numbers.get("servers", ())
    )


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and half of its 95 % interval, by least squares."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, SCORE_95 * sqrt(rest / (len(points) - 2) / spread)


def write_report(report: PublishedReport, directory: Path) -> ReportFiles:
    """Write the report as JSON and as one HTML page; a reader sees a whole file or none.

    :param directory: folder, which is created if it is missing.
    :raises RefusedError: when the folder cannot be written to.
    """
    return write_rendered(
        report, directory, kind=ReportKind.QUALITY, subject_id=_file_id(report.quality_run_id), render=render
    )


def _file_id(quality_run_id: str) -> str:
    """Return the name of a run in file names: its id, or a hash if a person chose the id."""
    if re.fullmatch(RUN_ID, quality_run_id):
        return quality_run_id
    return hashlib.sha256(quality_run_id.encode()).hexdigest()[:16]
