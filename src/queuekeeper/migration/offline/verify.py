"""Verifies a copy: reads both stores again by other code, compares message by message and writes the ledger."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel
from pyspark.taskcontext import TaskContext

from queuekeeper.clock import Clock, system_clock
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.model import (
    CohortState,
    Difference,
    LedgerRow,
    MigrationPlan,
    PlanState,
    VerifyReport,
)
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.ledger.progress import reported
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.compare import MENDABLE, Replayed, compare, expected_rows, found_rows
from queuekeeper.migration.offline.judging import LIFE_COLUMNS, expires_at_ms
from queuekeeper.migration.offline.source import (
    ARROW_TYPES,
    MESSAGE_COLUMNS,
    Source,
    layout,
    open_source,
    schema_of,
    task_count,
)
from queuekeeper.migration.offline.target import SPARK_SCHEMA, reader_of
from queuekeeper.migration.preflight import MESSAGES, SESSIONS
from queuekeeper.migration.spark.session import our_errors
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.postgres import statement
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_client import is_cluster
from queuekeeper.sessions.judge import client_defect
from queuekeeper.sessions.model import Layout
from queuekeeper.sessions.quarantine import readable


def verify_migration(
    spark: SparkSession,
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    cohorts: str = "",
    clock: Clock = system_clock,
) -> VerifyReport:
    """Compare source and target and put the ledger and the differences on record.

    :param cohorts: some of the plan's cohorts; all of them when empty.
    :raises StalePlan: when the source or the code has changed since the plan was made.
    """
    started = time.monotonic()
    with ExitStack() as stack:
        connection = stack.enter_context(connect_postgres(postgres_url, autocommit=True))
        ledger = MigrationLedger(connection)
        plan = ledger.load_plan(plan_id)
        wanted = plan.choose(cohorts)
        with connect_redis(redis_url) as client:
            preflight.check_same_target(client, plan)
            clustered = is_cluster(client)
        total = plan.total_of(wanted, "to_copy")
        tasks = task_count(spark, rows=plan.total_of(wanted, "messages"))
        placement = layout(cohorts=plan.cohorts, wanted=wanted, tasks=tasks)
        names, totals = placement.names, [plan.total_of(group, "to_copy") for group in placement.groups]
        ranges = tasks if plan.parameters.mode is Mode.OFFLINE else None
        source = stack.enter_context(open_source(spark, postgres_url=postgres_url, placement=placement, ranges=ranges))
        # Checked in the snapshot that is compared.
        preflight.check_same_source(source.connection, plan)
        ledger.clear_progress(plan_id, "verify")
        prefix, target_layout = plan.parameters.key_prefix, plan.parameters.layout

        def read_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            part = context.partitionId()
            return _read_target(
                batches, postgres_url=postgres_url, redis_url=redis_url, plan_id=plan_id, prefix=prefix,
                part=names[part], total=totals[part], clustered=clustered, target_layout=target_layout,
            )  # fmt: skip

        with (
            reported(postgres_url, plan_id=plan_id, step="verify", parts=names, total=total, clock=clock),
            our_errors(),
        ):
            replayed = _replayed(source, ledger, plan)
            expected = expected_rows(source, plan=plan, clustered=clustered, replayed=replayed)
            # Cached, since sessions and messages are joined separately.
            read = _clients(source).mapInArrow(read_task, SPARK_SCHEMA)
            found = found_rows(read).persist(StorageLevel.DISK_ONLY)
            compared = compare(expected, found, plan_id=plan_id, clustered=clustered).persist(StorageLevel.DISK_ONLY)
            try:
                rows = [_ledger_row(row.asDict()) for row in _balance(compared).collect()]
                differing = compared.where(F.size("differences") > 0).select(
                    "cohort", "client_id", "serial_number", F.explode("differences").alias("difference")
                )
                differences = (
                    Difference(
                        cohort=row["cohort"],
                        client_id=row["client_id"],
                        serial_number=row["serial_number"],
                        kind=row["difference"]["kind"],
                        expected=row["difference"]["expected"],
                        found=row["difference"]["found"],
                    )
                    for row in differing.toLocalIterator()
                )
                ledger.replace_differences(plan_id, wanted, differences, counts=_counts(differing))
            finally:
                compared.unpersist()
                found.unpersist()
        rows = _with_empty_cohorts(rows, wanted)
        ledger.replace_ledger(plan_id, rows, clock())
        report = VerifyReport(
            plan_id=plan_id,
            ledger=tuple(rows),
            differences=sum(row.differences for row in rows),
            digest=_digest_of(rows),
            seconds=round(time.monotonic() - started, 3),
        )
        for row in rows:
            clean = row.unaccounted == 0 and row.differences == 0
            ledger.set_cohort_state(plan_id, [row.cohort], CohortState.VERIFIED if clean else CohortState.FAILED)
        states = ledger.cohort_states(plan_id)
        if not report.balanced:
            ledger.set_plan_state(plan_id, PlanState.FAILED, report.wrong)
        elif all(states[cohort] is CohortState.VERIFIED for cohort in plan.chosen):
            ledger.set_plan_state(plan_id, PlanState.VERIFIED)
        return report


def _clients(source: Source) -> DataFrame:
    """Return each client of the source once, partitioned by task."""
    only_id = {"client_id": "string"}
    clients = source.read(MESSAGES, only_id).unionByName(source.read(SESSIONS, only_id))
    return source.partitioned(clients).dropDuplicates(["task", "client_id"]).select("task", "cohort", "client_id")


def _replayed(source: Source, ledger: MigrationLedger, plan: MigrationPlan) -> Replayed:
    rows = sorted(
        (
            row
            for row in ledger.quarantined(plan.plan_id, status="replayed", limit=None)
            if row.kind == transforms.MESSAGE
        ),
        key=lambda row: (str(row.replayed_at), row.quarantine_id or 0),
    )
    keys = {"client_ids": [row.client_id for row in rows], "serial_numbers": [row.serial_number for row in rows]}
    moved = set(source.connection.execute(statement("migration/moved_keys"), keys).fetchall())
    counters = {row.client_id: row.assigned_packet_id for row in rows if row.assigned_packet_id is not None}
    known = MESSAGE_COLUMNS | {"expires_at_ms": "bigint"}

    def columns_of(rows: list[QuarantinedRow]) -> dict[str, list[Any]]:
        values = {name: [getattr(row, name) for row in rows] for name in MESSAGE_COLUMNS}
        times = {name: pa.array(values[name], ARROW_TYPES[MESSAGE_COLUMNS[name]]) for name in LIFE_COLUMNS}
        ends = expires_at_ms(pa.record_batch(times), default_ttl_s=plan.parameters.default_ttl_s)
        return {**values, "expires_at_ms": ends.to_pylist()}

    mended = columns_of([_mended(row) for row in rows])
    placed = [
        (cohort, task, counters.get(row.client_id), row)
        for row in map(_mended, rows)
        if (row.client_id, row.serial_number) in moved
        for cohort, task in [source.layout.place(row.client_id)]
        if task >= 0
    ]
    elsewhere: dict[str, list[Any]] = {
        "cohort": [cohort for cohort, _, _, _ in placed],
        "task": [task for _, task, _, _ in placed],
        "moved_last_packet_id": [counter for _, _, counter, _ in placed],
        **columns_of([row for _, _, _, row in placed]),
    }
    places = {"cohort": "int", "task": "int", "moved_last_packet_id": "int"}
    return Replayed(
        mended=_given(source.spark, mended, known).withColumnsRenamed(
            {name: f"replayed_{name}" for name in (*MENDABLE, "expires_at_ms")}
        ),
        moved=_given(source.spark, elsewhere, places | known) if placed else None,
        counters=_given(
            source.spark,
            {"client_id": list(counters), "moved_last_packet_id": list(counters.values())},
            {"client_id": "string", "moved_last_packet_id": "int"},
        ),
    )


def _mended(row: QuarantinedRow) -> QuarantinedRow:
    """Return a replayed row as it was written, in the form in which PostgreSQL returns the others."""
    return replace(
        row,
        packet_id=row.assigned_packet_id or row.packet_id,
        # The quarantine keeps the user properties as found, but the row was replayed without them.
        user_properties=row.user_properties if readable(row.user_properties) else None,
        payload=hashlib.sha256(row.payload or b"").digest(),
        correlation_data=None if row.correlation_data is None else hashlib.sha256(row.correlation_data).digest(),
    )


def _given(spark: SparkSession, values: Mapping[str, list[Any]], columns: Mapping[str, str]) -> DataFrame:
    """Return rows of the driver as a DataFrame without ``createDataFrame``, which would start other Python workers.

    :param values: column name -> values.
    :param columns: column name -> Spark type.
    """
    arrays = {name: pa.array(values[name], ARROW_TYPES[kind]) for name, kind in columns.items()}
    batches = pa.table(arrays).to_batches()
    return spark.range(0, 1, 1, 1).mapInArrow(lambda _: iter(batches), schema_of(columns))


def _balance(compared: DataFrame) -> DataFrame:
    """Return the counts of each cohort's ledger row."""
    outcome = F.col("outcome")
    is_session = F.col("kind") == transforms.SESSION
    return compared.groupBy("cohort").agg(
        F.count_if(outcome.isNotNull()).alias("rows_seen"),
        *(
            F.count_if(outcome == name).alias(name)
            for name in ("copied", "expired", "trimmed", "superseded", "quarantined")
        ),
        F.count_if(is_session).alias("sessions_seen"),
        F.count_if(is_session & ~F.col("moved_on") & (F.size("differences") == 0)).alias("sessions_copied"),
        F.sum(F.size("differences")).alias("differences"),
        F.hex(F.bit_xor("hash")).alias("digest"),
    )


def _counts(differing: DataFrame) -> dict[tuple[int, str], int]:
    counted = differing.groupBy("cohort", F.col("difference.kind").alias("kind")).agg(F.count("*").alias("found"))
    return {(row["cohort"], row["kind"]): row["found"] for row in counted.collect()}


def _ledger_row(row: dict[str, Any]) -> LedgerRow:
    return LedgerRow(**(row | {"digest": (row["digest"] or "0").rjust(16, "0").lower()}))


def _with_empty_cohorts(rows: list[LedgerRow], wanted: list[int]) -> list[LedgerRow]:
    """Return a row for every cohort, also for cohorts without rows in the source."""
    found = {row.cohort: row for row in rows}
    zeros = dict.fromkeys(
        ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined", "sessions_seen", "sessions_copied",
         "differences"), 0,
    )  # fmt: skip
    return [
        found[cohort] if cohort in found else LedgerRow(cohort=cohort, digest="0" * 16, **zeros)
        for cohort in sorted(wanted)
    ]


def _digest_of(rows: list[LedgerRow]) -> str:
    return hashlib.sha256("".join(row.digest for row in rows).encode()).hexdigest()[:16]


def _read_target(
    batches: Iterator[pa.RecordBatch],
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    prefix: str,
    part: str,
    total: int,
    clustered: bool,
    target_layout: Layout,
) -> Iterator[pa.RecordBatch]:
    """Read the sessions of one Spark partition out of Redis, in pages."""
    with ExitStack() as stack:
        ledger = MigrationLedger(stack.enter_context(connect_postgres(postgres_url, autocommit=True)))
        client = connect_redis(redis_url)
        stack.callback(client.close)
        reader = reader_of(target_layout)(client, prefix=prefix)
        done, reported_s = 0, 0.0

        def report() -> None:
            ledger.record_progress(
                plan_id=plan_id, step="verify", part=part, done=min(done, total), total=total, at_ms=system_clock()
            )

        for batch in batches:
            place = zip(batch.column("task").to_pylist(), batch.column("cohort").to_pylist(), strict=True)
            clients = zip(batch.column("client_id").to_pylist(), place, strict=True)
            placed = {
                client_id: where
                for client_id, where in clients
                if client_defect(client_id, clustered=clustered) is None
            }
            for page in reader.read(placed):
                done += page.num_rows
                yield page
                if time.monotonic() - reported_s >= 1:
                    reported_s = time.monotonic()
                    report()
        done = total
        report()
