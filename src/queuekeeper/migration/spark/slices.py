"""Reads a table into Spark as Arrow batches of one snapshot, slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, LiteralString

import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from queuekeeper.errors import ServerUnavailable
from queuekeeper.hosts import without_secret
from queuekeeper.postgres import Connection, connect
from queuekeeper.sql_statements import statement

_SLICE_BYTES = 32 * 1024 * 1024
_LAST_BLOCK = 0xFFFFFFFF
"""The number that no block has: all are before it."""

PIN: LiteralString = "SET LOCAL timezone = 'UTC'"


@dataclass(frozen=True, kw_only=True)
class _Slice:
    """Blocks of a table.

    :param first: the first block; none for the table's own.
    :param last: the first block that is not part of it; none for all that follow.
    """

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, kw_only=True)
class SliceReader:
    """Reads one table in slices of its physical blocks: one pass over the table in all, whatever its indexes.

    It travels to the workers as a value, and with it the URL, which so appears in no option, plan or log.

    :param url: address of the database.
    :param table: name, quoted already.
    :param expressions: what is selected, as SQL.
    :param snapshot: name under which somebody shares the view of a transaction.
    :param function: likewise quoted: where there is one, it is asked for the rows from one place to another, in place
        of the table.
    """

    pin: ClassVar[LiteralString] = PIN
    """Statement that makes each reading transaction independent of the server's settings."""

    url: str = field(repr=False)
    table: str
    expressions: tuple[str, ...]
    snapshot: str
    function: str = ""

    def rows(self, spark: SparkSession, schema: StructType | str) -> DataFrame:
        """Return the table's rows as Spark reads them, a partition per slice."""
        slices = self._slices()
        return spark.range(0, len(slices), 1, len(slices)).mapInArrow(self._reading(slices), schema)

    def _slices(self) -> list[_Slice]:
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
            return [_Slice()]
        count = max(1, min(int(blocks), int(size_bytes) // _SLICE_BYTES + 1))
        edges = [int(blocks) * index // count for index in range(count)]
        # The last slice has no end: blocks may be added until the snapshot is taken up.
        return [
            _Slice(first=edge, last=edges[index + 1] if index + 1 < count else None) for index, edge in enumerate(edges)
        ]

    def _reading(self, slices: list[_Slice]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        def read_slices(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from self.read(slices[number])

        return read_slices

    def read(self, slice_: _Slice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice."""
        query = f"SELECT {', '.join(self.expressions)} FROM {self._place(slice_)}"  # noqa: S608 - quoted by callers
        with reading(self.url, snapshot=self.snapshot, pin=self.pin) as cursor:
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield self.shape(batch)

    def _place(self, slice_: _Slice) -> str:
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
def reading(url: str, *, snapshot: str, pin: LiteralString = PIN) -> Iterator[Any]:
    """Return a cursor that fetches Arrow batches, in a transaction that shares a snapshot.

    :param pin: statement that makes the transaction independent of the server's settings.
    """
    import adbc_driver_postgresql.dbapi  # noqa: PLC0415 - only executors need the driver

    with (
        _told_in_words(url),
        adbc_driver_postgresql.dbapi.connect(url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        cursor.execute(statement("queuekeeper/queries/allow_long_statements"))
        cursor.fetchall()
        cursor.execute(pin)
        yield cursor


@contextmanager
def _told_in_words(url: str) -> Iterator[None]:
    """Say what to do when the server goes away while it is read, as connections of :mod:`queuekeeper.postgres` do."""
    import adbc_driver_postgresql.dbapi  # noqa: PLC0415 - only executors need the driver

    try:
        yield
    except (OSError, adbc_driver_postgresql.dbapi.OperationalError) as error:  # a broken fetch is an OSError
        parameters = conninfo_to_dict(url)
        text = without_secret(" ".join(str(error).split()), str(parameters.get("password") or ""))
        raise ServerUnavailable(
            f"PostgreSQL at {parameters.get('host') or 'localhost'}:{parameters.get('port') or 5432} broke the "
            f"connection while it was read: {text}; try again when it is up"
        ) from None


def export_snapshot(connection: Connection) -> str:
    """Begin a read-only transaction and return the name under which others can share its view."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    # The transaction stays open and idle as long as other connections read.
    connection.execute(statement("queuekeeper/queries/allow_long_statements"))
    row = connection.execute("SELECT pg_export_snapshot()").fetchone()
    assert row is not None
    return str(row[0])
