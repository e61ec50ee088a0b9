"""Puts rows of the source together and in order, as DataFrame functions without I/O."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

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
