"""Compares what Redis should hold with what it holds, as DataFrame functions."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.migration.offline.source import MESSAGE_COLUMNS, SESSION_COLUMNS, Source, Wanted

# PostgreSQL hashes the long columns itself, so their content never leaves it.
HASHED_COLUMNS = MESSAGE_COLUMNS | {"payload_bytes": "int", "correlation_data_bytes": "int"}
# Columns that an operator may have mended in the quarantine before a message was replayed, beside its place.
MENDABLE = tuple(name for name in MESSAGE_COLUMNS if name not in ("client_id", "serial_number"))
HASHED_EXPRESSIONS = {
    "payload": "sha256(payload)",
    "correlation_data": "sha256(correlation_data)",
    # The rules judge by these whether a value is missing.
    "payload_bytes": "octet_length(payload)",
    "correlation_data_bytes": "octet_length(correlation_data)",
}

# Schema by which stored messages in TBMQ's format are read.
_STORED = (
    "clientId string, topicName string, time bigint, qos int, packetId int, packetType string, payload string, "
    "retained boolean, userProperties struct<props: array<struct<k: string, v: string>>>, msgExpiryInterval bigint, "
    "payloadFormatIndicator int, contentType string, responseTopic string, correlationData string"
)

MOVED_LATE_MS = 60_000
"""MIGRATE tells another master what is left of a life, not when it ends: each move makes it longer by its own time."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Quarantined messages that were mended and imported.

    :param mended: messages under the client id and serial of their source row.
    :param moved: messages that got another client id or serial, so that no source row has their place; none if there
        are no such messages.
    :param counters: last packet ids that a replay has moved.
    """

    mended: DataFrame
    moved: DataFrame | None
    counters: DataFrame


def expected_rows(source: Source, *, plan: MigrationPlan, clustered: bool, replayed: Replayed) -> DataFrame:
    """Return what Redis should hold: every row of the source with its fate and comparable values.

    Messages that got another place before they were replayed are added with ``is_moved``. A client whose messages have
    no session row gets one, since the copy writes a counter for it.
    """
    judging = Judging(default_ttl_s=plan.parameters.default_ttl_s, clustered=clustered)
    classified = source.fates(
        messages=Wanted(columns=HASHED_COLUMNS, step=judging.messages(HASHED_COLUMNS), expressions=HASHED_EXPRESSIONS),
        sessions=Wanted(columns=SESSION_COLUMNS, step=judging.sessions(SESSION_COLUMNS)),
        limit=plan.parameters.limit,
        as_of_ms=plan.as_of_ms,
    )
    storable = classified.where(transforms.may_be_stored() | (F.col("kind") == transforms.MESSAGE))
    joined = storable.join(F.broadcast(replayed.mended), ["client_id", "serial_number"], "left").join(
        F.broadcast(replayed.counters), "client_id", "left"
    )
    was_replayed = (F.col("fate") == "quarantined") & F.col("replayed_packet_id").isNotNull()
    placed = joined.withColumns(
        {
            name: F.when(was_replayed, F.col(f"replayed_{name}")).otherwise(F.col(name))
            for name in (*MENDABLE, "expires_at_ms")
        }
        | {"fate": F.when(was_replayed, "copied").otherwise(F.col("fate")), "is_moved": F.lit(False)}
    )
    if replayed.moved is not None:
        fixed = {"kind": transforms.MESSAGE, "fate": "copied", "is_moved": True}
        moved = replayed.moved.withColumns({name: F.lit(value) for name, value in fixed.items()})
        placed = placed.unionByName(moved, allowMissingColumns=True)
    repaired = placed.withColumn("last_packet_id", F.coalesce("moved_last_packet_id", "last_packet_id"))
    # A replay passes the packet ids in use by the same rule as the copy.
    complete = _with_sessions(transforms.with_safe_counters(repaired))
    return complete.select(
        "task",
        "cohort",
        "client_id",
        "kind",
        "serial_number",
        "fate",
        "is_moved",
        "expires_at_ms",
        "last_packet_id",
        F.col("packet_id").cast("string").alias("packet_id"),
        F.lower(F.hex("payload")).alias("payload_hash"),
        _properties(
            topic=F.col("topic"),
            time=F.col("time"),
            qos=F.col("qos"),
            packet_type=F.col("packet_type"),
            retained=F.coalesce("retain", F.lit(False)),
            # The copy uses another parser than from_json, so that a fault of one parser shows as a difference.
            pairs=F.from_json("user_properties", "props array<struct<k: string, v: string>>")["props"],
            interval_s=F.when(F.col("msg_expiry_interval") < 0, 2**31 - 1).otherwise(F.col("msg_expiry_interval")),
            payload_format_indicator=F.col("payload_format_indicator"),
            content_type=F.col("content_type"),
            response_topic=F.col("response_topic"),
            correlation_hash=F.lower(F.hex("correlation_data")),
        ).alias("properties"),
    )


def _with_sessions(classified: DataFrame) -> DataFrame:
    """Add a session row for each client that has none but messages to copy."""
    client = Window.partitionBy("task", "client_id")
    numbered = classified.withColumn(
        "copied_rank", F.row_number().over(client.orderBy(F.col("fate") != "copied", F.desc("serial_number")))
    ).withColumn("has_session", F.max((F.col("kind") == transforms.SESSION).cast("int")).over(client))
    lacking = (F.col("copied_rank") == 1) & (F.col("fate") == "copied") & (F.col("has_session") == 0)
    kinds = F.when(lacking, F.array(F.lit(transforms.MESSAGE), F.lit(transforms.SESSION))).otherwise(F.array("kind"))
    added = (F.col("kind") == transforms.MESSAGE) & (F.col("as_kind") == transforms.SESSION)
    return (
        numbered.withColumn("kinds", kinds)
        .withColumn("as_kind", F.explode("kinds"))
        .withColumn("fate", F.when(added, transforms.SESSION).otherwise(F.col("fate")))
        .withColumn("serial_number", F.when(~added, F.col("serial_number")))
        .withColumn("kind", F.col("as_kind"))
    )


def _properties(*, pairs: Column, **values: Column) -> Column:
    """Return a message's metadata as one text; equal messages of both stores have the same text."""
    texts = [F.coalesce(value.cast("string"), F.lit("\x00")) for value in values.values()]
    flat = F.when(F.size(pairs) > 0, F.to_json(pairs)).otherwise(F.lit("\x00"))
    return F.concat_ws("\x1f", *texts, flat)


def _hash_of(name: str) -> Column:
    """Return the hash of the decoded Base64, or of the text itself where it is not valid Base64."""
    text = F.col(name)
    return F.sha2(F.coalesce(F.try_to_binary(text, F.lit("base64")), text.cast("binary")), 256)


def found_rows(target: DataFrame) -> DataFrame:
    """Return what was read from Redis in the form in which it is compared; content becomes hashes.

    :param target: columns of :data:`queuekeeper.migration.offline.target.SCHEMA`.
    """
    return target.withColumn("stored", F.from_json("json", _STORED)).select(
        "task",
        F.col("cohort").alias("found_cohort"),
        "client_id",
        # Values that are no numbers or no Base64 must not end the comparison.
        F.col("serial_number").try_cast("bigint").alias("serial_number"),
        F.col("serial_number").alias("score"),
        "kind",
        F.col("position").alias("found_position"),
        F.col("expires_at_ms").alias("found_expires_at_ms"),
        "key_packet_id",
        F.col("stored.packetId").cast("string").alias("found_packet_id"),
        F.col("stored.clientId").alias("found_client_id"),
        F.col("json").isNotNull().alias("has_payload"),
        (F.col("json").isNotNull() & F.col("stored.packetId").isNull()).alias("unreadable"),
        F.coalesce("json_hash", F.sha2("json", 256)).alias("json_hash"),
        F.coalesce("payload_hash", _hash_of("stored.payload")).alias("found_payload_hash"),
        _properties(
            topic=F.col("stored.topicName"),
            time=F.col("stored.time"),
            qos=F.col("stored.qos"),
            packet_type=F.col("stored.packetType"),
            retained=F.col("stored.retained"),
            pairs=F.col("stored.userProperties.props"),
            interval_s=F.col("stored.msgExpiryInterval"),
            payload_format_indicator=F.col("stored.payloadFormatIndicator"),
            content_type=F.col("stored.contentType"),
            response_topic=F.col("stored.responseTopic"),
            correlation_hash=_hash_of("stored.correlationData"),
        ).alias("found_properties"),
        F.col("last_packet_id").alias("found_last_packet_id"),
        "plan",
        F.col("import").alias("import_state"),
        "used",
        "read_at_ms",
    )


def compare(expected: DataFrame, found: DataFrame, *, plan_id: str, clustered: bool) -> DataFrame:
    """Return one row per source row or stored message, with its outcome and its differences.

    :param expected: see :func:`expected_rows`.
    :param found: see :func:`found_rows`.
    :param clustered: whether the target is a cluster, where a life may have become longer by the moves of its slot.
    :returns: ``cohort``, ``client_id``, ``serial_number``, ``kind``, ``moved_on``, ``outcome``,
        ``differences``, ``hash``.
    """
    of_session = ("found_last_packet_id", "plan", "import_state", "used", "read_at_ms")
    sessions = found.where(F.col("kind") == transforms.SESSION).select(
        "task", "client_id", *of_session, F.col("found_position").alias("references")
    )
    messages = found.where(F.col("kind") == transforms.MESSAGE).drop(*of_session)
    joined = (
        expected.join(messages, ["task", "client_id", "kind", "serial_number"], "full_outer")
        .withColumn("cohort", F.coalesce("cohort", "found_cohort"))
        .join(sessions, ["task", "client_id"], "left")
    )
    if clustered:
        late_ms = F.col("found_expires_at_ms") - F.col("expires_at_ms")
        kept = F.when(late_ms.between(0, MOVED_LATE_MS), F.col("expires_at_ms")).otherwise(F.col("found_expires_at_ms"))
        joined = joined.withColumn("found_expires_at_ms", kept)
    placed = _with_positions(joined)
    exists = F.col("plan").isNotNull() | (F.col("references") > 0) | F.col("found_last_packet_id").isNotNull()
    # A repeated copy has noted which imports of this plan were used since; other missing messages were lost.
    moved_on = F.coalesce(((F.coalesce(F.col("plan"), F.lit("")) != plan_id) & exists) | F.col("used"), F.lit(False))
    present = F.col("found_position").isNotNull() & F.col("has_payload")
    expired_since = (F.col("fate") == "copied") & ~present & (F.col("expires_at_ms") <= F.col("read_at_ms"))
    is_session = F.col("kind") == transforms.SESSION
    judged = placed.withColumn("moved_on", moved_on).withColumn(
        "expected_here", (F.col("fate") == "copied") & ~expired_since
    )
    checks = F.filter(
        F.array(
            _difference("missing", F.col("expected_here") & ~present, F.lit("a message"), F.lit("nothing")),
            _difference(
                "unexpected",
                present & ~F.coalesce(F.col("fate") == "copied", F.lit(False)),
                F.coalesce(F.col("fate"), F.lit("nothing")),
                F.lit("a message"),
            ),
            _difference("unreadable", present & F.col("unreadable"), F.lit("TBMQ's JSON"), F.lit("something else")),
            *(
                _difference(kind, F.col("expected_here") & present & ~F.col("unreadable") & differs, wanted, got)
                for kind, differs, wanted, got in _message_checks()
            ),
            _difference(
                "last_packet_id",
                is_session
                & (
                    F.coalesce(F.col("last_packet_id"), F.lit(0)).cast("string")
                    != F.coalesce(F.col("found_last_packet_id"), F.lit("0"))
                ),
                F.coalesce(F.col("last_packet_id").cast("string"), F.lit("none")),
                F.coalesce(F.col("found_last_packet_id"), F.lit("none")),
            ),
            _difference(
                "session_missing",
                is_session & ~F.coalesce(F.col("import_state") == "done", F.lit(False)),
                F.lit("done"),
                F.coalesce(F.col("import_state"), F.lit("nothing")),
            ),
        ),
        lambda item: item.isNotNull(),
    )
    differences = F.when(F.col("moved_on"), F.lit(None)).otherwise(checks)
    return judged.withColumn("differences", differences).select(
        "cohort",
        "client_id",
        "serial_number",
        "kind",
        "moved_on",
        F.when(F.col("fate").isNull() | is_session | F.col("is_moved"), None)
        .when(F.col("moved_on") & (F.col("fate") == "copied"), "superseded")
        .when(expired_since, "expired")
        .when((F.col("fate") == "copied") & (~present | (F.size("differences") > 0)), "different")
        .otherwise(F.col("fate"))
        .alias("outcome"),
        F.coalesce("differences", F.array()).cast("array<struct<kind: string, expected: string, found: string>>").alias(
            "differences"
        ),
        F.when(
            present | is_session,
            F.xxhash64(
                "client_id", "kind", "found_place", "serial_number", "key_packet_id", "json_hash",
                "found_expires_at_ms", "found_last_packet_id",
            ),
        ).alias("hash"),
    )  # fmt: skip


def _with_positions(joined: DataFrame) -> DataFrame:
    """Add places to the messages that both stores have: by serial number, and in the order in which Redis delivers."""
    both = (F.col("fate") == "copied") & F.col("found_position").isNotNull() & F.col("has_payload")
    by_serial = Window.partitionBy("task", "client_id", "both").orderBy("serial_number")
    by_position = Window.partitionBy("task", "client_id", "both").orderBy("found_position")
    return (
        joined.withColumn("both", F.coalesce(both, F.lit(False)))
        .withColumn("place", F.when(F.col("both"), F.row_number().over(by_serial)))
        .withColumn("found_place", F.when(F.col("both"), F.row_number().over(by_position)))
    )


def _message_checks() -> list[tuple[str, Column, Column, Column]]:
    """Return kind, condition, expected value and found value of each check of a stored message."""
    found_expiry = F.col("found_expires_at_ms")
    return [
        (
            "order",
            # A score that is no serial may keep the order now and break it with the next message.
            (F.col("place") != F.col("found_place")) | (F.col("score") != F.col("serial_number")),
            F.concat_ws(" at place ", "serial_number", "place"),
            F.concat_ws(" at place ", "score", "found_place"),
        ),
        (
            "packet_id",
            ~F.col("packet_id").eqNullSafe(F.col("found_packet_id"))
            | ~F.col("packet_id").eqNullSafe(F.col("key_packet_id"))
            | ~F.col("client_id").eqNullSafe(F.col("found_client_id")),
            F.col("packet_id"),
            F.coalesce("found_packet_id", "key_packet_id"),
        ),
        (
            "payload",
            ~F.col("payload_hash").eqNullSafe(F.col("found_payload_hash")),
            F.substring("payload_hash", 1, 12),
            F.substring("found_payload_hash", 1, 12),
        ),
        (
            "properties",
            ~F.col("properties").eqNullSafe(F.col("found_properties")),
            F.substring(F.sha2("properties", 256), 1, 12),
            F.substring(F.sha2("found_properties", 256), 1, 12),
        ),
        (
            "expiry",
            ~F.col("expires_at_ms").eqNullSafe(found_expiry),
            F.col("expires_at_ms"),
            found_expiry,
        ),
    ]


def _difference(kind: str, condition: Column, expected: Column, found: Column) -> Column:
    return F.when(
        F.coalesce(condition, F.lit(False)),
        F.struct(
            F.lit(kind).alias("kind"),
            F.coalesce(expected.cast("string"), F.lit("none")).alias("expected"),
            F.coalesce(found.cast("string"), F.lit("none")).alias("found"),
        ),
    )
