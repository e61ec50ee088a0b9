"""Decides the fate of every source row and builds what Redis will hold, as DataFrame functions without I/O.

A *row* is a message of ``device_publish_msg`` or a session of ``device_session_ctx`` (``kind`` tells which); sessions
sort behind the messages of their client. The rules, in order of precedence (``docs/adr``, 0004):

============  ================================================================================
quarantined   a column breaks a rule; the row is kept aside with its reason
expired       its life was over at the plan's instant
quarantined   a newer live message of the client has the same packet id (``packet_id_duplicate``)
trimmed       more than ``limit`` newer live messages of the client exist
copied        everything else
============  ================================================================================
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.sessions import judge
from queuekeeper.sessions.judge import MAX_SERIAL, MAX_TIME_MS, Reason
from queuekeeper.sessions.wire import MAX_INTERVAL_S

_PAIRS = "array<struct<k: string, v: string>>"

MESSAGE = "message"
SESSION = "session"


def rows(messages: DataFrame, sessions: DataFrame) -> DataFrame:
    """Return messages and sessions as one frame, told apart by ``kind``.

    :param messages: columns of ``device_publish_msg`` with slot, cohort and task.
    :param sessions: ``client_id``, ``last_serial_number``, ``last_packet_id`` with slot, cohort and task.
    """
    return messages.withColumn("kind", F.lit(MESSAGE)).unionByName(
        sessions.withColumn("kind", F.lit(SESSION)), allowMissingColumns=True
    )


def classify(
    source: DataFrame,
    *,
    parameters: MigrationParameters,
    as_of_ms: int,
    clustered: bool,
    duplicates: bool = True,
) -> DataFrame:
    """Add each row's fate and the values that the import needs.

    The rows must be partitioned by ``task``. They stay so, sorted by client, newest message first.

    :param source: see :func:`rows`.
    :param as_of_ms: instant of the plan, at which messages are judged live or expired.
    :param clustered: whether the target is a cluster, which cannot serve an id that begins with a closing brace.
    :param duplicates: look for packet ids that a client has twice; false saves a sort where the plan has found none.
    :returns: the rows with ``fate`` (``copied``, ``expired``, ``trimmed``, ``quarantined``; ``session`` for session
        rows), ``reason`` (also of a session row), ``expires_at_ms``, ``pairs`` (the user properties) and
        ``last_packet_id``: on a session row the packet id given out last, on a message row the same if the client has
        no session row. The import passes those that wait, see :func:`with_safe_counters`.
    """
    judged = (
        with_user_properties(_with_sizes(source))
        .withColumn("reason", _reason(clustered=clustered))
        .withColumn("expires_at_ms", expires_at_ms(default_ttl_s=parameters.default_ttl_s))
        .drop("parsed", "payload_size", "correlation_size")
    )
    live = (
        (F.col("kind") == MESSAGE)
        & F.col("reason").isNull()
        & F.coalesce(F.col("expires_at_ms") > as_of_ms, F.lit(False))
    )
    judged = judged.withColumn("live", live)
    if duplicates:
        same_id = Window.partitionBy("task", "client_id", "packet_id", "live").orderBy(F.desc("serial_number"))
        newer = F.col("live") & (F.row_number().over(same_id) > 1)
        judged = judged.withColumn(
            "reason", F.when(newer, F.lit(Reason.PACKET_ID_DUPLICATE.value)).otherwise(F.col("reason"))
        )
    newest_first = (
        Window.partitionBy("task", "client_id")
        .orderBy(F.desc_nulls_last("serial_number"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    valid = (F.col("kind") == MESSAGE) & (
        F.col("reason").isNull() | (F.col("reason") == Reason.PACKET_ID_DUPLICATE.value)
    )
    kept = F.col("live") & F.col("reason").isNull()
    judged = judged.select(
        "*",
        F.sum(F.when(kept, 1).otherwise(0)).over(newest_first).alias("rank"),
        F.first(F.when(valid, F.struct("serial_number", "packet_id")), ignorenulls=True)
        .over(newest_first)
        .alias("newest"),
    )
    fate = (
        F.when(F.col("kind") == SESSION, "session")
        .when(F.col("reason").isNotNull(), "quarantined")
        .when(~F.col("live"), "expired")
        .when(F.col("rank") > parameters.limit, "trimmed")
        .otherwise("copied")
    )
    return (
        judged.withColumn("fate", fate)
        .withColumns({"last_packet_id": _last_packet_id(), "last_serial": _last_serial()})
        .drop("live", "rank", "newest")
    )


def with_safe_counters(classified: DataFrame) -> DataFrame:
    """Set each client's ``last_packet_id`` to the value that the import writes, by ``keyspace.safe_counter``.

    The import collects packet ids as it reads rows; this sorts the rows instead and gives the same value.

    :param classified: see :func:`classify`; its order is not kept.
    :returns: the rows, with the same ``last_packet_id`` on all rows of a client that are sent.
    """
    client = Window.partitionBy("task", "client_id")
    copied = F.col("fate") == "copied"
    is_session = F.col("kind") == SESSION
    known = classified.withColumns(
        {
            "counter": F.coalesce(
                F.max(F.when(is_session, F.col("last_packet_id"))).over(client),
                F.max(F.when(copied, F.col("last_packet_id"))).over(client),
            ),
            "newest": F.max_by("packet_id", F.when(copied, F.col("serial_number"))).over(client),
        }
    )
    is_behind = F.pmod(F.col("newest") - F.col("counter"), F.lit(MAX_PACKET_ID)).between(1, HALF_ROUND)
    start = F.when(F.coalesce(is_behind, F.lit(False)), F.col("newest")).otherwise(F.col("counter"))
    # Distance of a message's packet id from the next one to give out: ids in use at 0, 1, 2 and so on, without a gap,
    # are skipped.
    ahead = F.when(copied, F.pmod(F.col("packet_id") - F.col("start") - 1, F.lit(MAX_PACKET_ID)))
    placed = known.withColumn("start", start).withColumn("ahead", ahead)
    rank = F.row_number().over(client.orderBy(F.asc_nulls_last("ahead"))) - 1
    passed = F.sum(F.when(F.col("ahead") == F.col("rank"), 1).otherwise(0)).over(client)
    moved = F.pmod(F.col("start") + F.col("passed") - 1, F.lit(MAX_PACKET_ID)) + 1
    safe = F.when(F.col("passed") < MAX_PACKET_ID, moved).otherwise(F.col("counter"))
    return (
        placed.withColumn("rank", rank)
        .withColumn("passed", passed)
        .withColumn("last_packet_id", safe.cast("int"))
        .drop("counter", "newest", "start", "ahead", "rank", "passed")
    )


def with_user_properties(source: DataFrame) -> DataFrame:
    """Add ``parsed``, the text of the user properties read as JSON, and ``pairs``, the list in it."""
    # Separate columns, since parsing these texts is expensive and the result is used several times.
    return source.withColumn("parsed", F.try_parse_json(F.col("user_properties"))).withColumn(
        "pairs", F.try_variant_get("parsed", "$.props", _PAIRS)
    )


def _with_sizes(source: DataFrame) -> DataFrame:
    """Add the sizes that the rules need; they come from the source where it sends no payloads."""
    sizes = {"payload": "payload_size", "correlation_data": "correlation_size"}
    found = {
        size: F.col(f"{name}_bytes") if f"{name}_bytes" in source.columns else F.octet_length(name)
        for name, size in sizes.items()
    }
    return source.withColumns(found)


def client_reason(*, clustered: bool) -> Column:
    """Return the reason why no row of a client can be stored, for further ``when`` clauses."""
    empty = F.when(F.length("client_id") == 0, Reason.CLIENT_ID_EMPTY.value)
    # The same rule as keyspace.is_scattered.
    return empty.when(F.col("client_id").startswith("}"), Reason.CLIENT_ID_SCATTERED.value) if clustered else empty


def may_be_stored() -> Column:
    """Return whether a classified row's client can have a session in the target."""
    unfit = (Reason.CLIENT_ID_EMPTY.value, Reason.CLIENT_ID_SCATTERED.value)
    return F.col("reason").isNull() | ~F.col("reason").isin(*unfit)


def _reason(*, clustered: bool) -> Column:
    """Return why a row cannot be copied, or null."""
    message = client_reason(clustered=clustered)
    for rule in judge.RULES:
        message = message.when(_breaks(rule), rule.reason.value)
    session = client_reason(clustered=clustered).when(
        ~F.col("last_packet_id").between(0, MAX_PACKET_ID), Reason.LAST_PACKET_ID_OUT_OF_RANGE.value
    )
    return F.when(F.col("kind") == SESSION, session).otherwise(message)


def _breaks(rule: judge.Rule) -> Column:
    """Return one of the rules as a condition on a row."""
    match rule:
        case judge.NotEmpty():
            return F.length(rule.column) == 0
        case judge.OneOf():
            return ~F.coalesce(F.col(rule.column).isin(*rule.allowed), F.lit(False))
        case judge.Bounds():
            # PostgreSQL's texts hold neither a zero character nor half a surrogate pair.
            size = {
                "number": F.col(rule.column),
                "text": F.octet_length(rule.column),
                "bytes": F.col("correlation_size"),
            }[rule.measure]
            return ~F.coalesce(size.between(rule.least, rule.most), F.lit(rule.optional))
        case judge.Pairs():
            return ~user_properties_valid()
        case judge.Packet():
            fixed = F.lit(judge.PACKET_FIXED_BYTES).cast("bigint")
            texts = [F.coalesce(F.octet_length(name), F.lit(0)) for name in judge.PACKET_TEXTS]
            pairs = F.aggregate(
                F.coalesce("pairs", F.array().cast(_PAIRS)),
                F.lit(0).cast("bigint"),
                lambda total, pair: (
                    total + F.octet_length(pair["k"]) + F.octet_length(pair["v"]) + judge.PAIR_FIXED_BYTES
                ),
            )
            sizes = [F.col("payload_size"), F.coalesce(F.col("correlation_size"), F.lit(0)), *texts, pairs]
            return sum(sizes, fixed) > rule.most_bytes


def expires_at_ms(*, default_ttl_s: int) -> Column:
    """Return the instant at which a message's life ends.

    The expiry interval counts from the message's own time, so a copy never lengthens a life. It is an unsigned integer
    of four bytes (MQTT 5 section 3.3.2.3.3), which the source keeps in a signed column: a negative value is a very long
    interval. Null where the time is out of range.
    """
    life_ms = 1000 * F.coalesce(interval_s(), F.lit(default_ttl_s)).cast("bigint")
    return F.when(_time_in_range(), F.col("time") + life_ms)


def _time_in_range() -> Column:
    return F.col("time").between(0, MAX_TIME_MS)


def interval_s() -> Column:
    """Return the publisher's expiry interval as MQTT means it, or null when none was set."""
    signed = F.col("msg_expiry_interval").cast("bigint")
    return F.when(signed < 0, signed + 2**32).otherwise(signed)


def _last_packet_id() -> Column:
    """Return the packet id given out last: the session's counter, unless a stored message is newer.

    TBMQ 1.x writes counter and messages in separate transactions, so either may be ahead. Online migrations decide the
    same in ``sessions.snapshot.last_given``; :func:`with_safe_counters` skips packet ids in use.
    """
    counter = F.when(F.col("last_packet_id").between(1, MAX_PACKET_ID), F.col("last_packet_id"))
    behind = F.col("newest.serial_number") > F.coalesce(F.col("last_serial_number"), F.lit(-1))
    newest = F.col("newest.packet_id")
    return F.when(
        (F.col("kind") == SESSION) & ~F.coalesce(behind, F.lit(False)), F.coalesce(counter, newest)
    ).otherwise(newest)


def _last_serial() -> Column:
    """Return the serial given out last, so that serials never start again."""
    known = F.when(
        (F.col("kind") == SESSION) & F.col("last_serial_number").between(0, MAX_SERIAL), F.col("last_serial_number")
    )
    return F.greatest(known, F.col("newest.serial_number"))


# TBMQ writes pairs of texts. Readers of JSON disagree about numbers and about two members of one name, so rows with
# these are quarantined.
_USER_PROPERTIES_TYPES = ("OBJECT<props: ARRAY<OBJECT<k: STRING, v: STRING>>>", "OBJECT<props: ARRAY<VOID>>")


def user_properties_valid() -> Column:
    """Return whether what :func:`with_user_properties` has read is null, or what TBMQ writes and MQTT carries."""
    found = F.schema_of_variant("parsed")
    # The type does not show a missing name or value, or a pair that is null. JSON's null has no pairs.
    complete = F.forall("pairs", lambda pair: _carried(pair["k"]) & _carried(pair["v"]))
    valid = found.isin("VOID", *_USER_PROPERTIES_TYPES) & F.coalesce(complete, F.lit(True))
    return F.col("user_properties").isNull() | F.coalesce(valid, F.lit(False))


def _carried(text: Column) -> Column:
    """Return whether a text is present and MQTT can carry it."""
    sound = (F.octet_length(text) <= judge.MAX_TEXT_BYTES) & ~F.contains(text, F.lit("\0"))
    return F.coalesce(sound, F.lit(False))


def json_bytes() -> Column:
    """Return the size of a classified message as TBMQ 2.x writes it, from ``payload_bytes`` instead of the payload."""
    # Base64 makes four bytes of three.
    rest = message_json(F.lit(""), F.base64("correlation_data"))
    return F.octet_length(rest) + F.ceil(F.col("payload_bytes") / 3) * 4


def message_json(payload_base64: Column, correlation_base64: Column) -> Column:
    """Return a classified message as TBMQ 2.x writes it: its field names only, absent values left out.

    :param payload_base64: the payload, or a stand-in when only the length of the rest matters.
    :param correlation_base64: the correlation data, or a stand-in.
    """
    before = F.to_json(
        F.struct(
            F.col("client_id").alias("clientId"),
            F.col("topic").alias("topicName"),
            F.col("time"),
            F.col("qos"),
            F.col("packet_id").alias("packetId"),
            F.col("packet_type").alias("packetType"),
        )
    )
    behind = F.to_json(
        F.struct(
            F.coalesce(F.col("retain"), F.lit(False)).alias("retained"),
            F.when(F.size("pairs") > 0, F.struct(F.col("pairs").alias("props"))).alias("userProperties"),
            F.when(interval_s() > MAX_INTERVAL_S, F.lit(MAX_INTERVAL_S))
            .otherwise(interval_s())
            .alias("msgExpiryInterval"),
            F.col("payload_format_indicator").alias("payloadFormatIndicator"),
            F.col("content_type").alias("contentType"),
            F.col("response_topic").alias("responseTopic"),
            correlation_base64.alias("correlationData"),
        )
    )
    # Base64 needs no escapes, and the JSON writer would take ten times the payload's size in memory.
    return F.concat(
        before.substr(F.lit(1), F.length(before) - 1),
        F.lit(',"payload":"'),
        payload_base64,
        F.lit('",'),
        behind.substr(F.lit(2), F.length(behind)),
    )


def key_stem(*, prefix: str) -> Column:
    """Return the part that all keys of a client share, such as ``{C}``; see :func:`queuekeeper.keyspace.key_stem`."""
    return F.concat(F.lit(f"{prefix}{{"), F.col("client_id"), F.lit("}"))


def payload_key(*, prefix: str) -> Column:
    """Return the Redis key of a message's payload."""
    return F.concat(key_stem(prefix=prefix), F.lit("_messages_"), F.col("packet_id").cast("string"))


def _bulk(text: Column) -> Column:
    """Return a text as the Redis protocol's bulk string."""
    return F.concat(F.lit("$"), F.octet_length(text).cast("string"), F.lit("\r\n"), text, F.lit("\r\n"))


def fragments(classified: DataFrame, *, prefix: str) -> DataFrame:
    """Return what the import sends, ready to be concatenated.

    Each copied message carries its part of KEYS and ARGV in the Redis protocol's form. The rows of a client lie one
    behind the other in Arrow's buffers, so a call is a header and two slices, without work in Python per row
    (``docs/adr``, 0003).

    :param classified: see :func:`classify`; the order is kept.
    :returns: ``client_id``, ``cohort``, ``kind``, ``packet_id`` of a message, ``last_packet_id``, ``last_serial``,
        ``keys_part``, ``args_part``.
    """
    json = message_json(F.base64("payload"), F.base64("correlation_data"))
    copied = F.col("kind") == MESSAGE
    built = classified.where(F.col("fate").isin("copied", "session") & may_be_stored()).withColumn(
        "json", F.when(copied, json)
    )
    args = F.concat(
        _bulk(F.col("serial_number").cast("string")), _bulk(F.col("expires_at_ms").cast("string")), _bulk(F.col("json"))
    )
    return built.select(
        "client_id",
        "cohort",
        "kind",
        "packet_id",
        "last_packet_id",
        "last_serial",
        F.when(copied, _bulk(payload_key(prefix=prefix))).otherwise("").alias("keys_part"),
        F.when(copied, args).otherwise("").alias("args_part"),
    )
