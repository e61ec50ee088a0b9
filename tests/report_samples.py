"""Evidence of migrations made up for tests of the report: realistic in size and shape, without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from queuekeeper.jobs.store import Approval
from queuekeeper.keyspace import Cohort, cohorts
from queuekeeper.migration.ledger import model
from queuekeeper.migration.ledger.ledger import QuarantineCount, Step
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.ledger.throughput import ThroughputSample
from queuekeeper.migration.report.gather import Evidence
from queuekeeper.migration.report.memory import KeySample, scale
from queuekeeper.migration.report.model import MemoryFacts
from queuekeeper.report.servers import ServerMemory
from queuekeeper.sessions.judge import Reason

PLAN_ID = "0123456789abcdef"
NOW_MS = 1_760_000_300_000
HOSTILE = "<script>alert('client')</script>\"><img src=//attacker.example/x onerror=alert(1)>"


def _cohort_plan(cut: Cohort) -> model.CohortPlan:
    number = cut.cohort
    quarantined = number % 3
    messages = 2_083 + number * 7 % 61
    expired, trimmed = messages // 40, messages // 90
    return model.CohortPlan(
        cohort=cut.cohort,
        slot_first=cut.slot_first,
        slot_last=cut.slot_last,
        shard=cut.shard,
        sessions=208 + number % 5,
        clients=150 + number % 7,
        messages=messages,
        payload_bytes=messages * 217,
        to_copy=messages - expired - trimmed - quarantined,
        expired=expired,
        trimmed=trimmed,
        quarantined=quarantined,
        quarantined_by_reason={Reason.PACKET_ID_DUPLICATE: quarantined},
        forecast_bytes=messages * 803,
        longest_queue=10 + number * 97 % 9_000,
    )


def _ledger_row(cohort: model.CohortPlan) -> model.LedgerRow:
    return model.LedgerRow(
        cohort=cohort.cohort,
        rows_seen=cohort.messages,
        copied=cohort.to_copy,
        expired=cohort.expired,
        trimmed=cohort.trimmed,
        superseded=0,
        quarantined=cohort.quarantined,
        sessions_seen=cohort.sessions,
        sessions_copied=cohort.sessions,
        differences=0,
        digest=f"{cohort.cohort:016x}",
    )


def _samples(*, start_ms: int, messages: int) -> tuple[ThroughputSample, ...]:
    """Return running counts of a copy that was killed half-way and taken up again ten minutes later."""
    samples, done = [], 0
    for second in range(12):
        samples.append(ThroughputSample(at_ms=start_ms + second * 1_000, done=done))
        done = min(messages, done + 9_000 + second * 7_919 % 2_300)
    for second in range(14):
        samples.append(ThroughputSample(at_ms=start_ms + 600_000 + second * 1_000, done=done))
        done = min(messages, done + 6_000 + second * 3_571 % 2_900)
    return tuple(samples)


def balanced(*, count: int = 96) -> Evidence:
    """Return the evidence of a migration that went well."""
    plans = tuple(_cohort_plan(cut) for cut in cohorts(count=count, shards=[(0, 16_383, "127.0.0.1:6379")]))
    plan = model.MigrationPlan(
        plan_id=PLAN_ID,
        parameters=MigrationParameters(cohort_count=count, throttle_messages_per_s=50_000),
        source_fingerprint="9f86d081884c7d65",
        code_version="0.1.0",
        as_of_ms=NOW_MS - 1_500_000,
        cohorts=plans,
        chosen=tuple(range(len(plans))),
        state=model.PlanState.VERIFIED,
    )
    copied = plan.total("to_copy")
    steps: dict[Step, tuple[ThroughputSample, ...]] = {
        "copy": _samples(start_ms=NOW_MS - 1_300_000, messages=copied),
        "verify": (),
    }
    estimate = scale(
        KeySample(
            payloads=tuple(500 + number * 37 % 400 for number in range(2_500)),
            references=tuple((90 + 96 * members, members) for members in range(1, 120)),
            last_packet_ids=(72,) * 250,
            sessions=(240,) * 260,
            table_bytes=48.0,
            drawn=4_000,
        ),
        messages=copied,
        sessions=plan.total("sessions"),
    )
    assert estimate is not None
    forecast = plan.total("forecast_bytes")
    return Evidence(
        plan=plan,
        states=dict.fromkeys(plan.chosen, model.CohortState.VERIFIED),
        throttle=50_000,
        approval=Approval(approved_by="admin", approved_at=datetime.fromtimestamp((NOW_MS - 1_400_000) / 1_000, UTC)),
        rows=tuple(_ledger_row(cohort) for cohort in plans),
        verified_at_ms=NOW_MS - 100_000,
        found=(),
        difference_counts={},
        quarantine=(
            QuarantineCount(reason=Reason.PACKET_ID_DUPLICATE, kind="message", open=72, replayed=12),
            QuarantineCount(reason=Reason.USER_PROPERTIES_INVALID, kind="message", open=9, replayed=0),
            QuarantineCount(reason=Reason.LAST_PACKET_ID_OUT_OF_RANGE, kind="session", open=3, replayed=0),
        ),
        samples=steps,
        copy_reports=(
            model.CopyReport(
                plan_id=PLAN_ID,
                cohorts=plan.chosen,
                messages_written=copied,
                messages_expired=4,
                sessions_written=plan.total("sessions"),
                sessions_unchanged=31,
                sessions_moved_on=0,
                script_calls=20_412,
                seconds=26.4,
            ),
        ),
        memory=MemoryFacts(
            forecast_bytes=forecast,
            estimate=estimate,
            error_ratio=estimate.bytes / forecast - 1,
            servers=(
                ServerMemory(
                    address="127.0.0.1:6379",
                    product="Valkey",
                    version="9.1.2",
                    used_memory_bytes=212_000_000,
                    maxmemory_bytes=1_073_741_824,
                    maxmemory_policy="noeviction",
                ),
            ),
            remark="",
        ),
    )


def unbalanced() -> Evidence:
    """Return the evidence of a migration that lost messages, among clients with hostile ids."""
    evidence = balanced()
    rows = list(evidence.rows)
    # Two errors that would cancel each other out in a sum.
    rows[7] = replace(rows[7], copied=rows[7].copied - 3, differences=3)
    rows[8] = replace(rows[8], copied=rows[8].copied + 3)
    found = tuple(
        model.Difference(
            cohort=7, client_id=client, serial_number=4_711 + at, kind=kind, expected=f"<b>{at}</b>", found="nothing"
        )
        for at, (client, kind) in enumerate([(HOSTILE, "missing"), (HOSTILE, "missing"), ("meter/17", "expiry")])
    )
    return replace(
        evidence,
        plan=replace(evidence.plan, state=model.PlanState.FAILED, state_reason="3 differences"),
        states=evidence.states | {7: model.CohortState.FAILED, 8: model.CohortState.FAILED},
        rows=tuple(rows),
        found=found,
        difference_counts={"missing": 2, "expiry": 1},
    )


def unverified() -> Evidence:
    """Return the evidence of a plan that nobody has carried out."""
    evidence = balanced()
    return replace(
        evidence,
        plan=replace(evidence.plan, state=model.PlanState.PLANNED),
        states=dict.fromkeys(evidence.plan.chosen, model.CohortState.PLANNED),
        approval=None,
        rows=(),
        verified_at_ms=None,
        quarantine=(),
        samples={},
        copy_reports=(),
        memory=replace(evidence.memory, estimate=None, error_ratio=None, remark="Nothing has been copied yet."),
    )


def with_lost_message(rows: tuple[model.LedgerRow, ...]) -> tuple[model.LedgerRow, ...]:
    """Return a ledger in which one message of the first cohort went nowhere."""
    return (replace(rows[0], copied=rows[0].copied - 1), *rows[1:])
