"""Reads a TBMQ 1.x database into Spark as Arrow batches of one snapshot; what the rows mean is decided elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, StructType

from queuekeeper.errors import ServerUnavailable
from queuekeeper.keyspace import Cohort, client_slot
from queuekeeper.postgres import Connection, connect

MESSAGES = "device_publish_msg"
SESSIONS = "device_session_ctx"

# Types as PostgreSQL has them; `packet_id` and friends stay 32 bit here and are widened where arithmetic needs it.
MESSAGE_COLUMNS = {
    "client_id": "string",
    "serial_number": "bigint",
    "topic": "string",
    "time": "bigint",
    "packet_id": "int",
    "packet_type": "string",
    "qos": "int",
    "payload": "binary",
    "user_properties": "string",
    "retain": "boolean",
    "msg_expiry_interval": "int",
    "payload_format_indicator": "int",
    "content_type": "string",
    "response_topic": "string",
    "correlation_data": "binary",
}
SESSION_COLUMNS = {
    "client_id": "string",
    "last_serial_number": "bigint",
    "last_packet_id": "int",
}
_SLICE_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How clients are spread over cohorts and Spark tasks.

    A client's slot gives its cohort, the cohort its task. A task's label is a number that Spark's own hash
    partitioning sends to a partition of its own, so that rows partitioned by label stay partitioned by client for
    windows and joins, and a task talks to one shard.

    :param slot_firsts: first slot of each cohort, ascending.
    :param labels: task label of each cohort; -1 for a cohort that is not wanted, whose rows are dropped on reading.
    :param groups: cohorts of each task, in the order of Spark's partitions.
    """

    slot_firsts: tuple[int, ...]
    labels: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]

    @property
    def tasks(self) -> int:
        """How many partitions there are."""
        return len(self.groups)


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
    """Return one number per partition that Spark's hash partitioning sends there."""
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


class _Slice(InputPartition):
    def __init__(self, first: int | None, last: int | None) -> None:
        super().__init__(None)
        self.first = first
        self.last = last


class _Reader(DataSourceReader):
    """Reads one table in slices of its physical blocks: one pass over the table in all, whatever its indexes."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url = url
        self.table = options["table"]
        self.expressions: list[str] = json.loads(options["expressions"])
        self.snapshot = options["snapshot"]
        self.slot_firsts: list[int] = json.loads(options["slot_firsts"])
        self.labels: list[int] = json.loads(options["labels"])

    def partitions(self) -> Sequence[InputPartition]:
        with connect(self.url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT relkind = 'r', pg_relation_size(oid) / current_setting('block_size')::int,"
                " pg_table_size(oid) FROM pg_class WHERE oid = %s::regclass",
                (self.table,),
            ).fetchone()
        assert row is not None
        plain, blocks, size_bytes = row
        if not plain:  # a view or a partitioned table has no blocks of its own
            return [_Slice(None, None)]
        count = max(1, min(int(blocks), int(size_bytes) // _SLICE_BYTES + 1))
        edges = [int(blocks) * index // count for index in range(count)]
        # The last slice has no end: blocks may be added until the snapshot is taken up.
        return [_Slice(edge, edges[index + 1] if index + 1 < count else None) for index, edge in enumerate(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import adbc_driver_postgresql.dbapi  # noqa: PLC0415 - only executors need the driver

        assert isinstance(partition, _Slice)
        where = []
        if partition.first is not None:
            where.append(f"ctid >= '({partition.first},0)'::tid")
        if partition.last is not None:
            where.append(f"ctid < '({partition.last},0)'::tid")
        condition = f" WHERE {' AND '.join(where)}" if where else ""
        query = f"SELECT {', '.join(self.expressions)} FROM {self.table}{condition}"  # noqa: S608 - our own constants
        with (
            _told_in_words(self.url),
            adbc_driver_postgresql.dbapi.connect(self.url, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
            cursor.execute("SET LOCAL timezone = 'UTC'")
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield from self._place(batch)

    def _place(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add slot, cohort and task to a batch and drop the rows of cohorts that are not wanted."""
        encoded = batch.column("client_id").dictionary_encode()
        names = encoded.dictionary.to_pylist()
        slots = np.fromiter((client_slot(name) if name else 0 for name in names), np.int32, len(names))
        cohorts = (np.searchsorted(np.asarray(self.slot_firsts), slots, side="right") - 1).astype(np.int32)
        tasks = np.asarray(self.labels, np.int32)[cohorts]
        index = encoded.indices.to_numpy(zero_copy_only=False)
        placed = batch
        for name, values in (("slot", slots), ("cohort", cohorts), ("task", tasks)):
            placed = placed.append_column(name, pa.array(values[index]))
        keep = tasks[index] >= 0
        if not keep.all():
            placed = placed.filter(pa.array(keep))
        # The Arrow schema that Spark declared has no metadata and no "not null".
        yield pa.RecordBatch.from_arrays(placed.columns, names=placed.schema.names)


@contextmanager
def _told_in_words(url: str) -> Iterator[None]:
    """Say what to do when the server goes away while it is read, as connections of :mod:`queuekeeper.postgres` do."""
    import adbc_driver_postgresql.dbapi  # noqa: PLC0415 - only executors need the driver

    try:
        yield
    except (OSError, adbc_driver_postgresql.dbapi.OperationalError) as error:  # a broken fetch is an OSError
        parameters = conninfo_to_dict(url)
        text = " ".join(str(error).split())
        if parameters.get("password"):
            text = text.replace(str(parameters["password"]), "***")
        raise ServerUnavailable(
            f"PostgreSQL at {parameters.get('host') or 'localhost'}:{parameters.get('port') or 5432} broke the "
            f"connection while it was read: {text}; try again when it is up"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Source:
    """One consistent view of the source database.

    :param connection: the transaction that holds the view; statements on it see the same rows as Spark.
    :param snapshot: name of the exported snapshot; it lives as long as :func:`open_source`'s block.
    """

    spark: SparkSession
    connection: Connection
    format: str
    snapshot: str
    layout: Layout

    def read(self, table: str, columns: dict[str, str], *, expressions: dict[str, str] | None = None) -> DataFrame:
        """Return a table's rows with their ``slot``, ``cohort`` and ``task``.

        :param columns: column name -> Spark type.
        :param expressions: SQL to be evaluated by PostgreSQL for some of the columns, instead of their name.
        """
        replaced = expressions or {}
        selected = [f"{replaced[name]} AS {name}" if name in replaced else name for name in columns]
        schema = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        return (
            self.spark.read.format(self.format)
            .schema(f"{schema}, slot int, cohort int, task int")
            .option("table", table)
            .option("expressions", json.dumps(selected))
            .option("snapshot", self.snapshot)
            .option("slot_firsts", json.dumps(self.layout.slot_firsts))
            .option("labels", json.dumps(self.layout.labels))
            .load()
        )

    def partitioned(self, rows: DataFrame) -> DataFrame:
        """Return the rows partitioned by task: one partition per task, in hash slot order."""
        return rows.repartition(self.layout.tasks, "task")


@contextmanager
def open_source(spark: SparkSession, *, postgres_url: str, placement: Layout) -> Iterator[Source]:
    """Hold one snapshot of the source open while Spark reads it.

    :param placement: see :func:`layout`.
    """

    class PostgresArrow(DataSource):
        # A class of its own per call: it travels to the workers by value, and with it the URL, which so appears in
        # no option, plan or log.
        url = postgres_url

        @classmethod
        def name(cls) -> str:
            return "queuekeeper_postgres"

        def schema(self) -> StructType | str:
            raise ValueError("the columns to read must be given")

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return _Reader(type(self).url, dict(self.options))

    spark.dataSource.register(PostgresArrow)
    with connect(postgres_url) as connection:
        yield Source(
            spark=spark,
            connection=connection,
            format=PostgresArrow.name(),
            snapshot=export_snapshot(connection),
            layout=placement,
        )


def export_snapshot(connection: Connection) -> str:
    """Begin a read-only transaction and return the name under which others can share its view."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])


def task_count(spark: SparkSession, *, rows: int) -> int:
    """Return how many tasks to cut a job into: enough for all cores, and some 100,000 rows each at most."""
    return max(spark.sparkContext.defaultParallelism, -(-rows // 100_000))
