"""Verifies a copy: reads both stores again by other code, compares message by message and writes the ledger."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
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
from queuekeeper.migration.ledger.parameters import MigrationParameters, Mode
from queuekeeper.migration.ledger.progress import reported
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.compare import Comparison
from queuekeeper.migration.offline.expected import HASHED_COLUMNS, HASHED_EXPRESSIONS, Replayed, queues_of
from queuekeeper.migration.offline.fates import decided
from queuekeeper.migration.offline.judging import LIFE_COLUMNS, Judging, expires_at_ms
from queuekeeper.migration.offline.source import (
    ARROW_TYPES,
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    Part,
    Source,
    Wanted,
    counting,
    layout,
    open_source,
    schema_of,
)
from queuekeeper.migration.offline.target import reader_of
from queuekeeper.migration.spark.session import our_errors, set_task_count
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_client import is_cluster
from queuekeeper.sessions.quarantine import readable
from queuekeeper.sql_statements import statement

_RESULT_COLUMNS = {
    "cohort": "int", "name": "string", "amount": "bigint", "client_id": "string", "serial_number": "bigint",
    "expected": "string", "found": "string",
}  # fmt: skip
"""Columns of what tasks tell: an amount of what has this name in a cohort, or else a difference of this kind."""

_READ, _DIGEST = "rows_read", "digest"
_COUNTED = (
    "rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined", "sessions_seen", "sessions_copied",
)  # fmt: skip
_NO_KINDS = {_READ, _DIGEST, *_COUNTED}


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
        plan.check_from_postgres(instead=f"queuekeeper online verify {plan_id}")
        wanted = plan.choose(cohorts)
        with connect_redis(redis_url) as client:
            preflight.check_same_target(client, plan)
            clustered = is_cluster(client)
        offline = plan.parameters.mode is Mode.OFFLINE
        tasks = set_task_count(spark, rows=plan.total_of(wanted, "messages"))
        placement = layout(cohorts=plan.cohorts, wanted=wanted, tasks=tasks)
        ranges = tasks if offline else None
        source = stack.enter_context(open_source(spark, postgres_url=postgres_url, placement=placement, ranges=ranges))
        # Checked in the snapshot that is compared.
        preflight.check_same_source(source.connection, plan)
        ledger.clear_progress(plan_id, "verify")
        parts = source.parts(partial(plan.total_of, name="to_copy"))
        replayed = _replayed(source, ledger, plan)
        parameters, as_of_ms = plan.parameters, plan.as_of_ms

        def compare_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            assert context is not None
            return _compared(
                decided(batches, limit=parameters.limit, as_of_ms=as_of_ms), replayed, postgres_url=postgres_url,
                redis_url=redis_url, plan_id=plan_id, parameters=parameters, part=parts[context.partitionId()],
                clustered=clustered,
            )  # fmt: skip

        judging = Judging(default_ttl_s=parameters.default_ttl_s, clustered=clustered)
        compared = source.queues(
            messages=Wanted(
                columns=HASHED_COLUMNS, step=judging.messages(HASHED_COLUMNS), expressions=HASHED_EXPRESSIONS
            ),
            sessions=Wanted(columns=SESSION_COLUMNS, step=judging.sessions(SESSION_COLUMNS)),
            each=compare_task,
            schema=schema_of(_RESULT_COLUMNS),
        )
        with (
            reported(
                postgres_url, plan_id=plan_id, step="verify", parts=[part.name for part in parts],
                total=sum(part.total for part in parts), clock=clock,
            ),
            our_errors(),
        ):  # fmt: skip
            # Kept, since counts are read before differences, of which there may be many.
            compared.persist(StorageLevel.DISK_ONLY)
            try:
                counts = _sums(compared.where(F.col("amount").isNotNull()).collect())
                if offline:
                    preflight.check_cohorts_read(
                        plan, {cohort: counts[cohort, _READ] for cohort in wanted}, words="the verification",
                        then="nothing is known of what it has not read",
                    )  # fmt: skip
                kinds = {(cohort, name): count for (cohort, name), count in counts.items() if name not in _NO_KINDS}
                differences = (
                    Difference(
                        cohort=row["cohort"], client_id=row["client_id"], serial_number=row["serial_number"],
                        kind=row["name"], expected=row["expected"], found=row["found"],
                    )
                    for row in (compared.where(F.col("amount").isNull()).toLocalIterator() if kinds else ())
                )  # fmt: skip
                ledger.replace_differences(plan_id, wanted, differences, counts=kinds)
            finally:
                compared.unpersist()
        rows = [_ledger_row(cohort, counts) for cohort in sorted(wanted)]
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

    def content(rows: list[QuarantinedRow]) -> pa.RecordBatch:
        values = {
            name: pa.array([getattr(row, name) for row in rows], ARROW_TYPES[kind])
            for name, kind in MESSAGE_COLUMNS.items()
        }
        life = pa.RecordBatch.from_pydict({name: values[name] for name in LIFE_COLUMNS})
        ends = expires_at_ms(life, default_ttl_s=plan.parameters.default_ttl_s)
        return pa.RecordBatch.from_pydict(values | {"expires_at_ms": ends})

    mended = [_mended(row) for row in rows]
    return Replayed(
        mended=content(mended),
        moved=content([row for row in mended if (row.client_id, row.serial_number) in moved]),
        counters={row.client_id: row.assigned_packet_id for row in rows if row.assigned_packet_id is not None},
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


def _sums(rows: Iterable[Row]) -> Counter[tuple[int, str]]:
    """Return the sum of what tasks have counted, by cohort and name, and the exclusive or of their hashes."""
    found: Counter[tuple[int, str]] = Counter()
    for row in rows:
        place = row["cohort"], row["name"]
        found[place] = found[place] ^ row["amount"] if row["name"] == _DIGEST else found[place] + row["amount"]
    return found


def _ledger_row(cohort: int, counts: Counter[tuple[int, str]]) -> LedgerRow:
    return LedgerRow(
        cohort=cohort,
        digest=f"{counts[cohort, _DIGEST] % 2**64:016x}",
        differences=sum(count for (place, name), count in counts.items() if place == cohort and name not in _NO_KINDS),
        **{name: counts[cohort, name] for name in _COUNTED},
    )


def _digest_of(rows: list[LedgerRow]) -> str:
    return hashlib.sha256("".join(row.digest for row in rows).encode()).hexdigest()[:16]


def _compared(
    batches: Iterator[pa.RecordBatch],
    replayed: Replayed,
    *,
    postgres_url: str,
    redis_url: str,
    plan_id: str,
    parameters: MigrationParameters,
    part: Part,
    clustered: bool,
) -> Iterator[pa.RecordBatch]:
    """Compare the queues of one Spark partition; yield the differences, and at the end what was counted."""
    read: dict[int, int] = {}
    with ExitStack() as stack:
        ledger = MigrationLedger(stack.enter_context(connect_postgres(postgres_url, autocommit=True)))
        client = connect_redis(redis_url)
        stack.callback(client.close)
        comparison = Comparison(
            reader_of(parameters.layout)(client, prefix=parameters.key_prefix), plan_id=plan_id, clustered=clustered,
            counters=replayed.counters,
        )  # fmt: skip
        reported_s = 0.0

        def report(done: int) -> None:
            ledger.record_progress(
                plan_id=plan_id, step="verify", part=part.name, done=min(done, part.total), total=part.total,
                at_ms=system_clock(),
            )  # fmt: skip

        for queues in queues_of(counting(batches, read), replayed):
            for differences in comparison.compare(queues):
                if differences:
                    yield _results(each._asdict() | {"name": each.kind} for each in differences)
                if time.monotonic() - reported_s >= 1:
                    reported_s = time.monotonic()
                    report(comparison.messages_done)
        report(part.total)
    counts = dict(comparison.counts)
    counts |= {(cohort, _READ): rows for cohort, rows in read.items()}
    counts |= {(cohort, _DIGEST): digest for cohort, digest in comparison.digests.items()}
    yield _results({"cohort": cohort, "name": name, "amount": amount} for (cohort, name), amount in counts.items())


def _results(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    found = list(rows)
    return pa.RecordBatch.from_pydict(
        {name: pa.array([row.get(name) for row in found], ARROW_TYPES[kind]) for name, kind in _RESULT_COLUMNS.items()}
    )
