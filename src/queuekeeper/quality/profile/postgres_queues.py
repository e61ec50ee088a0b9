"""Computes a row per queue of TBMQ's tables, as DataFrame functions."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from queuekeeper.clock import HOUR_MS
from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID
from queuekeeper.migration.offline import judging, transforms
from queuekeeper.migration.offline.source import SESSION_COLUMNS, Source
from queuekeeper.migration.servers import MESSAGES, SESSIONS
from queuekeeper.quality.profile.model import ProfileParameters, in_sample
from queuekeeper.quality.profile.tables import ODD_CHARACTERS, SPARK_COLUMNS
from queuekeeper.sessions.judge import MAX_SERIAL, Reason
from queuekeeper.sessions.pages import Layout

# The server returns sizes and hashes: no payload leaves it.
_COLUMNS = {
    "client_id": "string", "serial_number": "bigint", "time": "bigint", "packet_id": "int", "packet_type": "string",
    "qos": "int", "payload": "int", "msg_expiry_interval": "int",
}  # fmt: skip
_EXPRESSIONS = {"payload": "octet_length(payload)"}
# A user who may not read payloads gets their sizes from a function, which `queuekeeper acl postgres` creates.
_FACTS, _FACTS_EXPRESSIONS = "queuekeeper.message_facts", {"payload": "payload_bytes", "time": "time_ms"}
_CONTENT_COLUMNS = {"topic": "string", "user_properties": "string", "fingerprint": "bigint"}
_CONTENT_EXPRESSIONS = {"fingerprint": 'hash_record_extended(row(topic, "time", payload), 0)'}
_TEXTS = ("topic", "user_properties")
_UNREADABLE = (Reason.TOPIC_EMPTY, Reason.USER_PROPERTIES_INVALID)
_TIMES = ("client_id", "time", "payload", "msg_expiry_interval")
# Sessions of our own store, which skips packet ids in use and reserves some without a message.
_STATES, _STATE = "queuekeeper.session_states", "state"


def queues(
    source: Source, *, parameters: ProfileParameters, as_of_ms: int, shards: Sequence[str], facts_only: bool = False
) -> DataFrame:
    """Return a row per client with the columns of ``queue_profiles``, partitioned by task; the hash is still null.

    :param as_of_ms: instant at which a message is live or expired.
    :param shards: address of the server of each cohort.
    :param facts_only: whether the user may not read payloads, so that contents cannot be judged.
    """
    ttl_s = parameters.default_ttl_s
    if facts_only:
        messages = source.read(
            MESSAGES, _COLUMNS, expressions=_FACTS_EXPRESSIONS, function=_FACTS,
            step=judging.facts(columns=_COLUMNS, default_ttl_s=ttl_s),
        )  # fmt: skip
    elif parameters.contents:
        columns = _COLUMNS | _CONTENT_COLUMNS
        messages = source.read(
            MESSAGES, columns, expressions=_EXPRESSIONS | _CONTENT_EXPRESSIONS,
            step=judging.facts(columns=columns, default_ttl_s=ttl_s, left_out=_TEXTS, bad=_UNREADABLE),
        )  # fmt: skip
    else:
        step = judging.facts(columns=_COLUMNS, default_ttl_s=ttl_s)
        messages = source.read(MESSAGES, _COLUMNS, expressions=_EXPRESSIONS, step=step)
    states = source.read(_STATES, {"client_id": "string"}).withColumn("kind", F.lit(_STATE))
    rows = source.partitioned(
        transforms.rows(messages, source.read(SESSIONS, SESSION_COLUMNS))
        .unionByName(states, allowMissingColumns=True)
        .where(in_sample(F.col("slot"), percent=parameters.sample_percent))
    )
    judged = _judged(rows, parameters=parameters, as_of_ms=as_of_ms)
    return _completed(_summed(judged, parameters=parameters), shards=shards, parameters=parameters)


def hours(source: Source, *, parameters: ProfileParameters, as_of_ms: int, facts_only: bool = False) -> DataFrame:
    """Return how much expires in each hour: ``hour_ms``, ``messages``, ``payload_bytes``.

    :param facts_only: see :func:`queues`.
    """
    columns = {name: _COLUMNS[name] for name in _TIMES}
    step = judging.facts(columns=columns, default_ttl_s=parameters.default_ttl_s)
    if facts_only:
        messages = source.read(MESSAGES, columns, expressions=_FACTS_EXPRESSIONS, function=_FACTS, step=step)
    else:
        messages = source.read(MESSAGES, columns, expressions=_EXPRESSIONS, step=step)
    ends = F.col("ends")
    return (
        messages.where(in_sample(F.col("slot"), percent=parameters.sample_percent))
        .where(F.coalesce(ends > as_of_ms, F.lit(True)))
        .select(F.coalesce(F.floor(ends / HOUR_MS) * HOUR_MS, F.lit(0)).alias("hour_ms"), "payload")
        .groupBy("hour_ms")
        .agg(F.count("*").alias("messages"), F.sum("payload").alias("payload_bytes"))
    )


def _judged(rows: DataFrame, *, parameters: ProfileParameters, as_of_ms: int) -> DataFrame:
    """Add columns to each message that compare it with its neighbours in the queue."""
    is_message = F.col("kind") == transforms.MESSAGE
    queue = Window.partitionBy("task", "client_id", "kind")
    by_serial = queue.orderBy("serial_number")
    by_packet_id = Window.partitionBy("task", "client_id", "kind", "packet_id")
    judged = rows.withColumns(
        {
            "live": is_message & F.coalesce(F.col("ends") > as_of_ms, F.lit(True)),
            "same_packet_id": F.count("*").over(by_packet_id),
            "valid": F.coalesce(F.col("packet_id").between(1, MAX_PACKET_ID), F.lit(False)),
            "counter": F.max(F.when(F.col("kind") == transforms.SESSION, F.col("last_packet_id"))).over(
                Window.partitionBy("task", "client_id")
            ),
        }
    )
    if parameters.contents:
        same = Window.partitionBy("task", "client_id", "kind", "fingerprint")
        judged = judged.withColumn("same_contents", F.count("*").over(same))
    before_serial, before_id = (F.lag(name).over(by_serial) for name in ("serial_number", "packet_id"))
    return judged.withColumns(
        {
            "step": F.col("serial_number") - before_serial,
            "surplus": F.when(
                F.col("valid") & before_id.between(1, MAX_PACKET_ID),
                F.pmod(F.col("packet_id") - before_id - (F.col("serial_number") - before_serial), F.lit(MAX_PACKET_ID)),
            ),
        }
    )


def _summed(judged: DataFrame, *, parameters: ProfileParameters) -> DataFrame:
    def rows(condition: Column) -> Column:
        return F.count_if(is_message & condition)

    is_message = F.col("kind") == transforms.MESSAGE
    is_session = F.col("kind") == transforms.SESSION
    live, size = F.col("live"), F.col("payload")
    qos, packet_type = F.col("qos"), F.col("packet_type")
    bad_serial = ~F.col("serial_number").between(0, MAX_SERIAL)
    known_type = F.coalesce(packet_type.isin("PUBLISH", "PUBREL"), F.lit(False))
    measures = {
        "messages": rows(F.lit(True)),
        "live": rows(live),
        "lowest_serial": F.min(F.when(is_message & ~bad_serial, F.col("serial_number"))),
        "highest_serial": F.max(F.when(is_message & ~bad_serial, F.col("serial_number"))),
        "tied_serials": rows(F.col("step") == 0),
        "bad_serials": rows(bad_serial),
        # Which of the two counts is known when all rows of the client are.
        "step_errors": rows((F.col("step") != 0) & (F.col("surplus") != 0)),
        "backward_steps": rows((F.col("step") != 0) & (F.col("surplus") > HALF_ROUND)),
        "bad_packet_ids": rows(~F.col("valid")),
        "duplicate_packet_ids": rows(F.col("valid") & (F.col("same_packet_id") > 1)),
        "newest_packet_id": F.max_by("packet_id", F.when(is_message & F.col("valid"), F.col("serial_number"))),
        "newest_live_packet_id": F.max_by("packet_id", F.when(live & F.col("valid"), F.col("serial_number"))),
        "ids_in_use": rows(
            live & F.col("valid") & (F.pmod(F.col("packet_id") - F.col("counter"), F.lit(MAX_PACKET_ID)) == 1)
        ),
        "last_packet_id": F.max(F.when(is_session, F.col("last_packet_id"))),
        "sessions": F.count_if(is_session),
        "states": F.count_if(F.col("kind") == _STATE),
        "payload_bytes": F.coalesce(F.sum(F.when(live, size)), F.lit(0)),
        "largest_bytes": F.coalesce(F.max(F.when(live, size)), F.lit(0)),
        "oversized": rows(live & (size > parameters.max_payload_bytes)),
        "bad_qos": rows(F.coalesce(~qos.between(0, 2), F.lit(True))),
        "qos_0": rows(qos == 0),
        "bad_packet_types": rows(~known_type | ((packet_type == "PUBREL") & (qos != 2))),
        "earliest_expires_at_ms": F.min(F.when(live, F.col("ends"))),
        "latest_expires_at_ms": F.max(F.when(live, F.col("ends"))),
    }
    if parameters.contents:
        measures["duplicate_messages"] = rows(F.col("same_contents") > 1)
        measures["unreadable"] = rows(F.col("unreadable"))
    return judged.groupBy("task", "cohort", "slot", "client_id").agg(
        *(measure.alias(name) for name, measure in measures.items())
    )


def _completed(summed: DataFrame, *, shards: Sequence[str], parameters: ProfileParameters) -> DataFrame:
    """Return the columns of a queue's row in order; a column that this store does not have is null."""
    limit = parameters.limit
    flag = {name: F.coalesce(condition, F.lit(False)).cast("int") for name, condition in _flags(limit).items()}
    first = F.substring("client_id", 1, 1)
    values = flag | {
        "shard": F.element_at(F.array(*(F.lit(shard) for shard in shards)), F.col("cohort") + 1),
        "dead": F.col("messages") - F.col("live"),
        "over_limit": F.greatest(F.lit(0), F.col("live") - limit),
        "step_errors": F.when(F.col("states") > 0, F.col("backward_steps")).otherwise(F.col("step_errors")),
        "serial_gaps": F.coalesce(
            F.col("highest_serial")
            - F.col("lowest_serial")
            + 1
            - (F.col("messages") - F.col("bad_serials") - F.col("tied_serials")),
            F.lit(0),
        ),
        "bad_tag": ((F.length("client_id") == 0) | (first == "}")).cast("int"),
        "odd_characters": F.col("client_id").rlike(ODD_CHARACTERS).cast("int"),
        "layout": F.lit(Layout.TBMQ.value),
    }
    found = set(summed.columns)
    # A client without session and messages may still have a session state.
    return summed.where(F.col("messages") + F.col("sessions") > 0).select(
        *(
            values.get(name, F.col(name) if name in found else F.lit(None)).cast(kind).alias(name)
            for name, kind in SPARK_COLUMNS.items()
        )
    )


def _flags(limit: int) -> dict[str, Column]:
    live, last = F.col("live"), F.col("last_packet_id")
    valid = last.between(0, MAX_PACKET_ID)
    is_ahead = [
        F.coalesce(F.pmod(F.col(newest) - last, F.lit(MAX_PACKET_ID)).between(1, HALF_ROUND), F.lit(False))
        for newest in ("newest_packet_id", "newest_live_packet_id")
    ]
    in_use = (F.col("ids_in_use") > 0) & (F.col("states") == 0)
    return {
        "dead_crowding": (F.col("messages") > live) & (10 * F.col("messages") >= 9 * limit),
        "counter_missing": (live > 0) & last.isNull(),
        "counter_invalid": ~valid,
        "counter_behind": valid & (is_ahead[0] | is_ahead[1] | in_use),
        "missing_session": (F.col("messages") > 0) & (F.col("sessions") == 0),
        "next_in_use": F.col("ids_in_use") > 0,
    }
