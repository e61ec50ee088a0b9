"""Puts rows of the source together and in order, as DataFrame functions without I/O."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID
from queuekeeper.sessions.judge import Reason

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


def ordered(rows: DataFrame) -> DataFrame:
    """Return rows in the order of their queues: of each client its newest message first, and its session last.

    :param rows: see :func:`rows`, partitioned by ``task``.
    """
    return rows.sortWithinPartitions("client_id", F.desc_nulls_last("serial_number"))


def with_safe_counters(classified: DataFrame) -> DataFrame:
    """Set each client's ``last_packet_id`` to the value that the import writes, by ``keyspace.safe_counter``.

    The import collects packet ids as it reads rows; this sorts the rows instead and gives the same value.

    :param classified: see :meth:`queuekeeper.migration.offline.source.Source.fates`; its order is not kept.
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
