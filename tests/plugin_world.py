"""Stores with a history for tests of the plugin's pages: a migration, queues with a profile, checks over some runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from queuekeeper.clock import system_clock
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.report.gather import Evidence
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.incidents import Incidents, Look
from queuekeeper.quality.judge.store import QualityStore, Verdict
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests import report_samples

RUN_ID = "manual__2026-01-31T12:00:00+00:00"
GIB = 1_073_741_824


def open_guards() -> Any:
    """Return guards of pages that let everybody do everything."""
    from queuekeeper.airflow.plugin.security import Guards

    return Guards(
        read=lambda: None,
        audit=lambda: None,
        start=lambda: None,
        run_migrations=lambda: None,
        steer=lambda: None,
        reveal=lambda: None,
        user=lambda: "operator",
    )


def fill_all(connection: Connection, *, messages: int, sessions: int) -> None:
    """Put into an empty database a source with so many messages, a history, and a partitioned table with a policy."""
    migrate(connection)
    now_ms = system_clock()
    fill(
        connection,
        SampleParameters(messages=messages, sessions=sessions, now_ms=now_ms, create_schema=True, long_queues=0),
    )
    fill_migration(connection, report_samples.unbalanced(), now_ms=now_ms)
    fill_quality(connection, now_ms=now_ms)
    connection.execute("CREATE TABLE readings (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at)")
    connection.execute(
        "CREATE TABLE readings_1 PARTITION OF readings FOR VALUES FROM ('2026-01-01+00') TO ('2026-01-02+00')"
    )
    save_policy(connection, PartitionPolicy(table="public.readings", step="1 day", ahead="3 days"))


def fill_migration(connection: Connection, evidence: Evidence, *, now_ms: int, run_id: str = RUN_ID) -> str:
    """Put a migration on record as its own steps would have, and return the plan's id."""
    ledger, plan = MigrationLedger(connection), evidence.plan
    ledger.save_plan(plan, run_id=run_id)
    if evidence.approval is not None:
        ledger.approve(plan.plan_id, evidence.approval.approved_by)
    for state in set(evidence.states.values()):
        ledger.set_cohort_state(plan.plan_id, [at for at, each in evidence.states.items() if each is state], state)
    ledger.replace_ledger(plan.plan_id, evidence.rows, now_ms)
    ledger.replace_differences(
        plan.plan_id,
        sorted({each.cohort for each in evidence.found}),
        evidence.found,
        counts={(each.cohort, each.kind): 1 for each in evidence.found},
    )
    for step, samples in evidence.samples.items():
        last = samples[-1].at_ms if samples else 0
        for sample in samples:
            ledger.record_throughput(
                plan_id=plan.plan_id, step=step, at_ms=sample.at_ms - last + now_ms, done=sample.done
            )
        if samples:
            ledger.record_progress(
                plan_id=plan.plan_id, step=step, part="0", done=samples[-1].done, total=samples[-1].done, at_ms=now_ms
            )
    row = QuarantinedRow(
        cohort=3,
        kind="message",
        reason="packet_id_duplicate",
        detail="packet id 7",
        client_id=report_samples.HOSTILE,
        serial_number=7,
        payload=b"planted payload",
    )
    ledger.replace_quarantine(plan.plan_id, [3], [row])
    ledger.set_plan_state(plan.plan_id, plan.state, plan.state_reason)
    return plan.plan_id


def fill_quality(connection: Connection, *, now_ms: int, queues: int = 50, runs: int = 5) -> None:
    """Put profiles of both stores and some judgements on record."""
    required = [
        name
        for (name,) in connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'queuekeeper'"
            " AND table_name = 'queue_profiles' AND is_nullable = 'NO' AND data_type IN ('bigint', 'integer')"
        )
    ]
    for store in ("redis", "postgres"):
        connection.execute(
            "INSERT INTO queuekeeper.profiles (profile_id, store, target, mode, contents, cohort_count, cohorts,"
            " sample_percent, session_limit, default_ttl_s, max_payload_bytes, as_of_ms, queues, messages, finished_at)"
            " VALUES (%s, %s, '127.0.0.1', 'full', false, 1, '{0}', 100, 10000, 604800, 1048576, %s, %s, %s, now())",
            (store, store, now_ms, queues, queues * 3),
        )
        zeros = json.dumps(dict.fromkeys(required, 0))
        connection.execute(
            "INSERT INTO queuekeeper.queue_profiles SELECT queue.* FROM generate_series(1, %s) AS n,"
            " jsonb_populate_record(NULL::queuekeeper.queue_profiles, %s::jsonb || jsonb_build_object("
            "'profile_id', %s::text, 'client_id', 'meter-' || n, 'shard', 's', 'client_hash', lpad(to_hex(n), 16, '0'),"
            " 'layout', 'tbmq', 'messages', n %% 97, 'live', n %% 97, 'without_ttl', n %% 7)) AS queue",
            (queues, zeros, store),
        )
        connection.execute(
            "INSERT INTO queuekeeper.expiry_hours SELECT %s, %s + n * 3600000, 10 + 37 * n %% 91, 1000"
            " FROM generate_series(1, 48) AS n",
            (store, now_ms // 3_600_000 * 3_600_000),
        )
    quality = QualityStore(connection)
    for number in range(runs):
        at = datetime.fromtimestamp((now_ms - (runs - number) * 86_400_000) / 1_000, UTC)
        failed = number % 2 == 1
        numbers: dict[str, Any] = {
            "queues": queues,
            "messages": queues * 6 + number * 25,
            "waiting": 1_200 - number * 90,
            "servers": [
                {
                    "address": "127.0.0.1:6379",
                    "is_valkey": True,
                    "version": "9.1.2",
                    "used_memory_bytes": GIB // 2 + number * 10_000_000,
                    "maxmemory_bytes": GIB,
                    "maxmemory_policy": "noeviction",
                }
            ],
        }
        name = f"{number:016x}"
        quality.begin(
            quality_run_id=name,
            mode="full",
            suites=["sessions"],
            profile_ids=["redis", "postgres"],
            numbers=numbers,
            started_at=at,
        )
        results = [
            Finding(
                suite="sessions",
                expectation=at_,
                check_id=check,
                severity=Severity.CRITICAL if at_ == 1 else Severity.WARNING,
                status=Status.FAILED if failed and at_ < 3 else Status.PASSED,
                description="As it should be.",
                unexpected_count=1_234 if failed and at_ < 3 else 0,
            )
            for at_, check in enumerate(("Q1", "Q2", "Q3", "Q11"), start=1)
        ]
        if failed:
            Incidents(connection).note(
                Look(place="127.0.0.1:6379/0"), results, quality_run_id=name, at=at, not_judged=()
            )
        quality.finish(
            quality_run_id=name, verdict=Verdict.FAILED if failed else Verdict.PASSED, results=results, numbers=numbers
        )
