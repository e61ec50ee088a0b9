"""Decides the fate of every source row, as DataFrame functions without I/O.

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
from queuekeeper.sessions.judge import MAX_SERIAL, Reason

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
    limit: int,
    as_of_ms: int,
    duplicates: bool = True,
) -> DataFrame:
    """Add each row's fate and the values that the import needs.

    The rows must be partitioned by ``task``. They stay so, sorted by client, newest message first.

    :param source: see :func:`rows`, judged where they were read (:mod:`queuekeeper.migration.offline.judging`).
    :param limit: messages that a session may keep.
    :param as_of_ms: instant of the plan, at which messages are judged live or expired.
    :param duplicates: look for packet ids that a client has twice; false saves a sort where the plan has found none.
    :returns: the rows with ``fate`` (``copied``, ``expired``, ``trimmed``, ``quarantined``; ``session`` for session
        rows) and ``last_packet_id``: on a session row the packet id given out last, on a message row the same if the
        client has no session row. The import passes those that wait, see :func:`with_safe_counters`.
    """
    live = (
        (F.col("kind") == MESSAGE)
        & F.col("reason").isNull()
        & F.coalesce(F.col("expires_at_ms") > as_of_ms, F.lit(False))
    )
    judged = source.withColumn("live", live)
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
        .when(F.col("rank") > limit, "trimmed")
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


def may_be_stored() -> Column:
    """Return whether a classified row's client can have a session in the target."""
    unfit = (Reason.CLIENT_ID_EMPTY.value, Reason.CLIENT_ID_SCATTERED.value)
    return F.col("reason").isNull() | ~F.col("reason").isin(*unfit)


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


def fragments(classified: DataFrame) -> DataFrame:
    """Return what the import sends: the copied messages and the sessions.

    :param classified: see :func:`classify`, with what :meth:`queuekeeper.migration.offline.judging.Judging.fragments`
        has built; the order is kept.
    :returns: ``client_id``, ``cohort``, ``kind``, ``packet_id`` of a message, ``last_packet_id``, ``last_serial``,
        ``keys_part``, ``args_part``.
    """
    return classified.where(F.col("fate").isin("copied", "session") & may_be_stored()).select(
        "client_id",
        "cohort",
        "kind",
        "packet_id",
        "last_packet_id",
        "last_serial",
        F.coalesce("keys_part", F.lit("")).alias("keys_part"),
        F.coalesce("args_part", F.lit("")).alias("args_part"),
    )
