"""Makes a plan: reads the source once, counts the fates of its rows, and writes nothing to Redis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.storagelevel import StorageLevel

from queuekeeper import keyspace
from queuekeeper.errors import RefusedError
from queuekeeper.migration import preflight
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, PlanState
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.ledger.progress import warn
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.forecast import MemoryModel, memory_model
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.migration.offline.source import (
    MESSAGE_COLUMNS,
    SESSION_COLUMNS,
    Source,
    Wanted,
    layout,
    open_source,
)
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.planning import Target, judged
from queuekeeper.migration.servers import check_source
from queuekeeper.migration.spark.session import our_errors, set_task_count, task_memory
from queuekeeper.postgres import Connection
from queuekeeper.postgres import connect as connect_postgres
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.judge import Reason
from queuekeeper.sql_statements import statement

# Columns that the plan needs of a message: PostgreSQL measures the payload instead of sending it.
PLANNED_COLUMNS = {name: kind for name, kind in MESSAGE_COLUMNS.items() if name != "payload"} | {"payload_bytes": "int"}
PLANNED_EXPRESSIONS = {"payload_bytes": "octet_length(payload)"}

_QUARANTINE_PAGE = 500
# A refused plan quarantines only this many rows, as examples.
_REFUSED_EXAMPLES = 10_000


def plan_migration(
    spark: SparkSession,
    *,
    postgres_url: str,
    redis_url: str,
    parameters: MigrationParameters,
    run_id: str | None,
    now_ms: int | None = None,
) -> MigrationPlan:
    """Count what a migration would do and put the plan and its quarantine on record.

    :param run_id: name of this request, by which a later step finds the plan.
    :param now_ms: instant at which messages are judged live or expired; the target's present time when absent, since a
        clock of this machine that is fast would take living messages for expired ones.
    :returns: the plan; the stored plan when that is being carried out already.
    :raises RefusedError: when the source or the target is not fit, or the plan breaks a limit; a broken limit leaves a
        refused plan on record.
    :raises UsageError: when a cohort does not exist.
    """
    with connect_redis(redis_url) as client, connect_postgres(postgres_url, autocommit=True) as connection:
        check_source(connection)
        preflight.check_target(client)
        target = Target.of(client, parameters)
        as_of_ms = target.now_ms if now_ms is None else now_ms
        migrate(connection)
        ledger = MigrationLedger(connection)
        rows = int(_scalar(connection, "migration/count_messages"))
        print(f"plan: reading {rows:,} messages", flush=True)
        everything = range(len(target.cohorts))
        tasks = set_task_count(spark, rows=rows)
        placement = layout(cohorts=target.cohorts, wanted=everything, tasks=tasks)
        with (
            open_source(spark, postgres_url=postgres_url, placement=placement, ranges=tasks) as source,
            our_errors(),
        ):
            fingerprint = preflight.source_fingerprint(source.connection)
            judging = Judging(
                default_ttl_s=parameters.default_ttl_s, clustered=target.clustered, layout=parameters.layout
            )
            rows_judged = _measured(
                measured_rows(source, judging, prefix=parameters.key_prefix, limit=parameters.limit, as_of_ms=as_of_ms)
            ).persist(StorageLevel.DISK_ONLY)
            try:
                found = {
                    row["cohort"]: row
                    for row in _count(rows_judged, model=memory_model(client, layout=parameters.layout)).collect()
                }
                preflight.check_all_read(
                    fingerprint,
                    **{name: sum(row[name] for row in found.values()) for name in ("messages", "sessions")},
                )
                plan = target.plan(
                    (_cohort_plan(cohort, found.get(cohort.cohort)) for cohort in target.cohorts),
                    source_fingerprint=fingerprint,
                    as_of_ms=as_of_ms,
                )
                too_many = _over_the_cap(plan)

                def check() -> None:
                    if too_many:
                        raise RefusedError(too_many)
                    preflight.check_heap(source.connection, task_memory(spark))
                    preflight.check_values(client, largest_bytes=_largest(found, target.chosen))

                # In one transaction with the verdict, so that nobody can approve half of a plan, or another plan.
                stored = ledger.save_plan(
                    judged(plan, client, check),
                    run_id=run_id,
                    quarantine=_quarantined(source.connection, rows_judged, _REFUSED_EXAMPLES if too_many else None),
                )
            finally:
                rows_judged.unpersist()
        if stored.state is PlanState.REFUSED:
            raise RefusedError(stored.state_reason)
        warn(OnlineCohorts(connection).hindrances(stored))
        return stored


def measured_rows(source: Source, judging: Judging, *, prefix: str, limit: int, as_of_ms: int) -> DataFrame:
    """Return all rows of a source with their fates, with sizes in place of what is measured."""
    return source.fates(
        messages=Wanted(columns=PLANNED_COLUMNS, step=judging.sizes(prefix=prefix), expressions=PLANNED_EXPRESSIONS),
        sessions=Wanted(columns=SESSION_COLUMNS, step=judging.sessions(SESSION_COLUMNS)),
        limit=limit,
        as_of_ms=as_of_ms,
    )


def _scalar(connection: Connection, name: str) -> Any:
    row = connection.execute(statement(name)).fetchone()
    assert row is not None
    return row[0]


def _measured(classified: DataFrame) -> DataFrame:
    """Keep the columns that counts and quarantine need."""
    return classified.select(
        "task",
        "cohort",
        "client_id",
        "kind",
        "serial_number",
        "fate",
        "reason",
        "payload_bytes",
        "key_bytes",
        "value_bytes",
    )


def _reason_column(reason: Reason) -> str:
    return f"reason_{reason.value}"


def _count(judged: DataFrame, *, model: MemoryModel) -> DataFrame:
    """Return all counts of :class:`CohortPlan` by cohort, with the largest value that a copy would send."""
    is_message = F.col("kind") == transforms.MESSAGE
    copied = F.col("fate") == "copied"

    fates = {"to_copy": "copied", "expired": "expired", "trimmed": "trimmed", "quarantined": "quarantined"}
    clients = judged.groupBy("task", "cohort", "client_id").agg(
        F.count_if(is_message).alias("messages"),
        F.count_if(~is_message).alias("sessions"),
        F.sum("payload_bytes").alias("payload_bytes"),
        *(F.count_if(F.col("fate") == fate).alias(name) for name, fate in fates.items()),
        *(F.count_if(F.col("reason") == reason.value).alias(_reason_column(reason)) for reason in Reason),
        F.sum(F.when(copied, model.message(key_bytes=F.col("key_bytes"), value_bytes=F.col("value_bytes")))).alias(
            "message_memory"
        ),
        F.max(F.when(copied, F.col("key_bytes"))).alias("key_bytes"),
        F.max(F.when(copied, F.col("value_bytes"))).alias("largest_bytes"),
    )
    references = model.references(count=F.col("to_copy"), key_bytes=F.coalesce("key_bytes", F.lit(0)))
    imported = (F.col("sessions") > 0) | (F.col("to_copy") > 0)
    memory = F.coalesce("message_memory", F.lit(0)) + references + F.when(imported, model.session_bytes).otherwise(0)
    return clients.groupBy("cohort").agg(
        *(F.sum(name).alias(name) for name in ("messages", "sessions", "payload_bytes", *fates)),
        *(F.sum(_reason_column(reason)).alias(_reason_column(reason)) for reason in Reason),
        F.count_if(F.col("messages") > 0).alias("clients"),
        F.max("messages").alias("longest_queue"),
        F.max("largest_bytes").alias("largest_bytes"),
        F.sum(memory).alias("forecast_bytes"),
    )


def _cohort_plan(cohort: keyspace.Cohort, row: Row | None) -> CohortPlan:
    counts: dict[str, Any] = row.asDict() if row is not None else {}

    def count(name: str) -> int:
        return int(counts.get(name) or 0)

    by_reason = {reason.value: count(_reason_column(reason)) for reason in Reason}
    return CohortPlan(
        cohort=cohort.cohort,
        slot_first=cohort.slot_first,
        slot_last=cohort.slot_last,
        shard=cohort.shard,
        sessions=count("sessions"),
        clients=count("clients"),
        messages=count("messages"),
        payload_bytes=count("payload_bytes"),
        to_copy=count("to_copy"),
        expired=count("expired"),
        trimmed=count("trimmed"),
        quarantined=count("quarantined"),
        quarantined_by_reason={reason: rows for reason, rows in by_reason.items() if rows},
        forecast_bytes=count("forecast_bytes"),
        longest_queue=count("longest_queue"),
    )


def _largest(found: Mapping[int, Row], chosen: Iterable[int]) -> int:
    """Return the bytes of the largest value that a copy of the chosen cohorts would send."""
    return max((int(found[cohort]["largest_bytes"] or 0) for cohort in chosen if cohort in found), default=0)


def _over_the_cap(plan: MigrationPlan) -> str | None:
    """Return why the plan must not be carried out, if too many rows are bad."""
    rows, bad = plan.total("messages"), plan.total("quarantined")
    if not rows or 100 * bad / rows <= plan.parameters.quarantine_cap_percent:
        return None
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in plan.quarantined_by_reason().items())
    return (
        f"{bad:,} of {rows:,} messages ({100 * bad / rows:.2f} %) would be quarantined, more than the cap of "
        f"{plan.parameters.quarantine_cap_percent:g} %: {reasons}. Repair the rows in the source, or raise the "
        "quarantine limit if they may stay behind"
    )


def _quarantined(connection: Connection, frame: DataFrame, most: int | None) -> Iterator[QuarantinedRow]:
    """Fetch whole bad rows, page by page, from the snapshot in which they were judged.

    :param most: most rows to fetch; none for all.
    """
    rows = islice(frame.where(F.col("reason").isNotNull()).toLocalIterator(), most)
    while page := list(islice(rows, _QUARANTINE_PAGE)):
        judged = {(row["kind"], row["client_id"], row["serial_number"]): row for row in page}
        messages = [row for row in page if row["kind"] == transforms.MESSAGE]
        clients = [row["client_id"] for row in page if row["kind"] == transforms.SESSION]
        columns = list(MESSAGE_COLUMNS)
        cursor = connection.execute(
            statement("migration/messages_by_key"),
            {
                "client_ids": [row["client_id"] for row in messages],
                "serial_numbers": [row["serial_number"] for row in messages],
            },
        )
        for values in cursor.fetchall():
            found = dict(zip(columns, values, strict=True))
            row = judged[transforms.MESSAGE, found["client_id"], found["serial_number"]]
            yield QuarantinedRow(
                cohort=row["cohort"], kind="message", reason=row["reason"],
                detail=_detail(Reason(row["reason"]), found), **found,
            )  # fmt: skip
        for client_id, last_packet_id in connection.execute(
            statement("migration/sessions_by_key"), {"client_ids": clients}
        ).fetchall():
            row = judged[transforms.SESSION, client_id, None]
            yield QuarantinedRow(
                cohort=row["cohort"], kind="session", reason=row["reason"], client_id=client_id,
                last_packet_id=last_packet_id,
                detail=_detail(Reason(row["reason"]), {"last_packet_id": last_packet_id}),
            )  # fmt: skip


_SHOWN = {
    Reason.LAST_PACKET_ID_OUT_OF_RANGE: "last_packet_id",
    Reason.PACKET_ID_DUPLICATE: "packet_id",
    Reason.PACKET_ID_OUT_OF_RANGE: "packet_id",
    Reason.PACKET_TYPE_UNKNOWN: "packet_type",
    Reason.QOS_OUT_OF_RANGE: "qos",
    Reason.SERIAL_OUT_OF_RANGE: "serial_number",
    Reason.TIME_OUT_OF_RANGE: "time",
    Reason.PAYLOAD_FORMAT_INVALID: "payload_format_indicator",
}
_MEASURED = {
    Reason.TOPIC_INVALID: "topic",
    Reason.CONTENT_TYPE_INVALID: "content_type",
    Reason.RESPONSE_TOPIC_INVALID: "response_topic",
    Reason.CORRELATION_DATA_TOO_LONG: "correlation_data",
    Reason.PACKET_TOO_LARGE: "payload",
}


def _detail(reason: Reason, row: dict[str, Any]) -> str:
    """Return the offending value in words; never content that a publisher chose freely."""
    if reason in _MEASURED:
        column = _MEASURED[reason]
        content = row[column]
        return f"{column} has {len(content.encode() if isinstance(content, str) else content)} bytes"
    column = _SHOWN.get(reason, "")
    if not column:
        return ""
    value = row[column]
    text = "null" if value is None else re.sub(r"[^\w .:+-]", "?", str(value))[:64]
    return f"{column} is {text}"
