"""Reads a table into Spark as Arrow batches of one snapshot, slice by slice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import LiteralString

import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from queuekeeper.errors import ServerUnavailable
from queuekeeper.postgres import Connection, connect, statement

_SLICE_BYTES = 32 * 1024 * 1024
_LAST_BLOCK = 0xFFFFFFFF
"""The number that no block has: all are before it."""


class _Slice(InputPartition):
    def __init__(self, first: int | None, last: int | None) -> None:
        super().__init__(None)
        self.first = first
        self.last = last


class SliceReader(DataSourceReader):
    """Reads one table in slices of its physical blocks: one pass over the table in all, whatever its indexes.

    Options of the source: ``table`` and ``expressions`` (JSON), both SQL that is quoted already, ``snapshot``, and
    ``function``, likewise quoted: where there is one, it is asked for the rows from one place to another, in place of
    the table.
    """

    pin: LiteralString = "SET LOCAL timezone = 'UTC'"
    """Statement that makes each reading transaction independent of the server's settings."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.url = url
        self.table = options["table"]
        self.expressions: list[str] = json.loads(options["expressions"])
        self.snapshot = options["snapshot"]
        self.function = options.get("function", "")

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices, each of some 32 MiB."""
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
        """Yield the rows of one slice."""
        import adbc_driver_postgresql.dbapi  # noqa: PLC0415 - only executors need the driver

        assert isinstance(partition, _Slice)
        query = f"SELECT {', '.join(self.expressions)} FROM {self._rows(partition)}"  # noqa: S608 - quoted by callers
        with (
            _told_in_words(self.url),
            adbc_driver_postgresql.dbapi.connect(self.url, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
            cursor.execute(statement("queuekeeper/queries/allow_long_statements"))
            cursor.fetchall()
            cursor.execute(self.pin)
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield self.shape(batch)

    def _rows(self, slice_: _Slice) -> str:
        if self.function:
            end = _LAST_BLOCK if slice_.last is None else slice_.last
            return f"{self.function}('({slice_.first or 0},0)'::tid, '({end},0)'::tid)"
        where = []
        if slice_.first is not None:
            where.append(f"ctid >= '({slice_.first},0)'::tid")
        if slice_.last is not None:
            where.append(f"ctid < '({slice_.last},0)'::tid")
        return f"{self.table} WHERE {' AND '.join(where)}" if where else self.table

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as Spark was told that it looks: its Arrow schema has no metadata and no "not null"."""
        return pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)


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


def register(spark: SparkSession, *, name: str, postgres_url: str, reader_class: type[SliceReader]) -> str:
    """Make a database readable by a Spark session and return the format to read it by.

    :param name: ends the format's name. Spark refuses a name that another session of the same process has taken.
    :param reader_class: reads the slices.
    """
    format_name = f"queuekeeper_{name}"

    class PostgresArrow(DataSource):
        # A class of its own per call: it travels to the workers by value, and with it the URL, which so appears in
        # no option, plan or log.
        url = postgres_url

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType | str:
            raise ValueError("the columns to read must be given")

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return reader_class(type(self).url, dict(self.options))

    spark.dataSource.register(PostgresArrow)
    return format_name


def export_snapshot(connection: Connection) -> str:
    """Begin a read-only transaction and return the name under which others can share its view."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # It stays open, and idle, for as long as others read.
    connection.execute(statement("queuekeeper/queries/allow_long_statements"))
    row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])
