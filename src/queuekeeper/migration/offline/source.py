"""Reads a TBMQ 1.x database into Spark as Arrow batches of one snapshot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

from queuekeeper.keyspace import Cohort, client_slot
from queuekeeper.migration.offline.judging import Step
from queuekeeper.migration.preflight import MESSAGES, SESSIONS, SOURCE_TABLES
from queuekeeper.migration.spark.slices import SliceReader, export_snapshot
from queuekeeper.postgres import Connection, connect

# `packet_id` and friends stay 32 bit here and are widened where arithmetic needs it.
_SPARK_TYPES = {
    "bigint": "bigint",
    "boolean": "boolean",
    "bytea": "binary",
    "character varying": "string",
    "integer": "int",
}


def _columns(table: str, *left_out: str) -> dict[str, str]:
    return {name: _SPARK_TYPES[column.type] for name, column in SOURCE_TABLES[table].items() if name not in left_out}


MESSAGE_COLUMNS = _columns(MESSAGES)
SESSION_COLUMNS = _columns(SESSIONS, "last_updated_time")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How clients are spread over cohorts and Spark tasks.

    A client's slot determines its cohort, and the cohort its task. Spark's hash partitioning sends each task's label to
    a partition of its own, so that rows partitioned by label stay partitioned by client for windows and joins, and a
    task talks to one shard.

    :param slot_firsts: first slot of each cohort, ascending.
    :param labels: task label of each cohort; -1 for a cohort that is not wanted, whose rows are dropped on reading.
    :param groups: cohorts of each task, in the order of Spark's partitions.
    """

    slot_firsts: tuple[int, ...]
    labels: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def tasks(self) -> int:
        """Number of tasks, each with one partition."""
        return len(self.groups)

    @property
    def names(self) -> list[str]:
        """Names of the tasks in the record of progress."""
        return [f"{group[0]:05d}-{group[-1]:05d}" for group in self.groups]

    def place(self, client_id: str) -> tuple[int, int]:
        """Return cohort and task label of a client."""
        cohort = bisect_right(self.slot_firsts, client_slot(client_id)) - 1
        return cohort, self.labels[cohort]


def layout(spark: SparkSession, *, cohorts: Sequence[Cohort], wanted: Sequence[int], tasks: int) -> Layout:
    """Group the wanted cohorts into tasks, each within one shard.

    :param cohorts: all cohorts in order.
    :param wanted: numbers of the cohorts to read.
    :param tasks: how many tasks to aim for; at least one per shard is made.
    """
    chosen = [cohort for cohort in cohorts if cohort.cohort in set(wanted)]
    shards: dict[str, list[Cohort]] = {}
    for cohort in chosen:
        shards.setdefault(cohort.shard, []).append(cohort)
    groups: list[list[int]] = []
    for members in shards.values():
        pieces = min(len(members), max(1, round(tasks * len(members) / len(chosen))))
        for piece in range(pieces):
            part = members[len(members) * piece // pieces : len(members) * (piece + 1) // pieces]
            groups.append([cohort.cohort for cohort in part])
    labels = _labels(spark, len(groups))
    label_of = {number: labels[index] for index, group in enumerate(groups) for number in group}
    return Layout(
        slot_firsts=tuple(cohort.slot_first for cohort in cohorts),
        labels=tuple(label_of.get(cohort.cohort, -1) for cohort in cohorts),
        groups=tuple(tuple(group) for group in groups),
    )


def _labels(spark: SparkSession, count: int) -> list[int]:
    """Return, for each partition, a number that Spark's hash partitioning sends there."""
    found: dict[int, int] = {}
    start = 0
    while len(found) < count:
        span = spark.range(start, start + 16 * count + 64).select(
            F.col("id").cast(IntegerType()).alias("label"),
            F.expr(f"pmod(hash(cast(id as int)), {count})").alias("part"),
        )
        for row in span.groupBy("part").agg(F.min("label").alias("label")).collect():
            found.setdefault(row["part"], row["label"])
        start += 16 * count + 64
    return [found[part] for part in range(count)]


@dataclass(frozen=True, kw_only=True)
class _Reader(SliceReader):
    """Adds to each row where its client belongs, and leaves out the rows of cohorts that are not wanted."""

    layout: Layout
    step: Step | None = None

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add slot, cohort and task to a batch, drop the rows of cohorts that are not wanted, and take the step."""
        encoded = batch.column("client_id").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        slots = np.fromiter((client_slot(name) if name else 0 for name in names), np.int32, len(names))
        cohorts = (np.searchsorted(np.asarray(self.layout.slot_firsts), slots, side="right") - 1).astype(np.int32)
        tasks = np.asarray(self.layout.labels, np.int32)[cohorts]
        index = encoded.indices.to_numpy(zero_copy_only=False)
        placed = batch
        for name, values in (("slot", slots), ("cohort", cohorts), ("task", tasks)):
            placed = placed.append_column(name, pa.array(values[index]))
        keep = tasks[index] >= 0
        if not keep.all():
            placed = placed.filter(pa.array(keep))
        if self.step is not None:
            placed = self.step.work(placed).select([*self.step.columns, "slot", "cohort", "task"])
        return super().shape(placed)


@dataclass(frozen=True, kw_only=True)
class Source:
    """One consistent view of the source database.

    :param connection: the transaction that holds the view; statements on it see the same rows as Spark.
    :param postgres_url: address of the database, for Spark's workers.
    :param snapshot: name of the exported snapshot; it lives as long as :func:`open_source`'s block.
    """

    spark: SparkSession
    connection: Connection
    postgres_url: str = field(repr=False)
    snapshot: str
    layout: Layout

    def read(
        self,
        table: str,
        columns: dict[str, str],
        *,
        expressions: dict[str, str] | None = None,
        function: str = "",
        step: Step | None = None,
    ) -> DataFrame:
        """Return a table's rows with their ``slot``, ``cohort`` and ``task``.

        :param columns: column name -> Spark type.
        :param expressions: SQL that PostgreSQL evaluates in place of some of the columns.
        :param function: a function of PostgreSQL that returns the table's rows between two places, for a user who may
            not read the table itself.
        :param step: what becomes of each batch in the worker that has read it, before Spark has rows of it.
        """
        replaced = expressions or {}
        returned = columns if step is None else step.columns
        schema = ", ".join(f"{name} {kind}" for name, kind in returned.items())
        reader = _Reader(
            url=self.postgres_url,
            table=table,
            expressions=tuple(f"{replaced[name]} AS {name}" if name in replaced else name for name in columns),
            snapshot=self.snapshot,
            function=function,
            layout=self.layout,
            step=step,
        )
        return reader.rows(self.spark, f"{schema}, slot int, cohort int, task int")

    def partitioned(self, rows: DataFrame) -> DataFrame:
        """Return the rows partitioned by task: one partition per task, in hash slot order."""
        return rows.repartition(self.layout.tasks, "task")


@contextmanager
def open_source(spark: SparkSession, *, postgres_url: str, placement: Layout) -> Iterator[Source]:
    """Hold one snapshot of the source open while Spark reads it.

    :param placement: see :func:`layout`.
    """
    with connect(postgres_url) as connection:
        yield Source(
            spark=spark,
            connection=connection,
            postgres_url=postgres_url,
            snapshot=export_snapshot(connection),
            layout=placement,
        )


def task_count(spark: SparkSession, *, rows: int) -> int:
    """Return the number of tasks for a job: enough for all cores, with at most some 100,000 rows each."""
    return max(spark.sparkContext.defaultParallelism, -(-rows // 100_000))
