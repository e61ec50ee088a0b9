"""Writes rows to Parquet files, and reads them again, in Spark's tasks, through what acts like a path.

So a folder in an object store has one name, one driver and one set of credentials for Spark, commands and tasks of
Airflow. Spark's own writer would go by Hadoop's file systems.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from queuekeeper.places import told, write_whole

SUFFIX = ".parquet"

_FILE_BYTES = 128 * 1024 * 1024
"""So much of a task's rows, as Arrow holds them, goes into one file: it is made and read in memory."""

_BATCH_ROWS = 10_000


class WrittenFile(NamedTuple):
    """One file, named without its folder."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


def write_parquet(rows: DataFrame, folder: Callable[[], Path]) -> list[WrittenFile]:
    """Write rows to files of their own, and return these; none where there are no rows.

    A task that is repeated leaves files that are not returned.

    :param folder: opens the folder, which is there, in a task.
    :raises RefusedError: in a task, when it cannot be written to.
    """
    names = rows.columns

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = folder()
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        for number, table in enumerate(_tables(batches)):
            sink = pa.BufferOutputStream()
            pq.write_table(table.rename_columns(names), sink, compression="zstd")
            content = sink.getvalue().to_pybytes()
            name = f"part-{part:05}-{number:03}-{token_hex(8)}{SUFFIX}"
            with told(f"Parquet cannot be written to {place}", place, "let Spark's tasks write there"):
                write_whole(place / name, content)
            file = WrittenFile(name, table.num_rows, len(content), hashlib.sha256(content).hexdigest())
            yield pa.RecordBatch.from_pylist([file._asdict()])

    # Spark looks each column up by its name, which may hold a dot.
    plain = rows.toDF(*(f"column_{number}" for number in range(len(names))))
    found = plain.mapInArrow(write, "name string, rows long, size_bytes long, sha256 string").collect()
    return sorted(WrittenFile(**row.asDict()) for row in found)


def read_parquet(
    spark: SparkSession, names: Sequence[str], schema: StructType, read: Callable[[str], bytes]
) -> DataFrame:
    """Return the rows of files, a partition for each.

    :param read: returns, in a task, what the file of a name holds.
    """

    def read_files(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                file = pq.ParquetFile(pa.BufferReader(read(names[number])))
                for rows in file.iter_batches(batch_size=_BATCH_ROWS):
                    # Spark was told that it has no metadata and no "not null".
                    yield pa.RecordBatch.from_arrays(rows.columns, names=rows.schema.names)

    return spark.range(0, len(names), 1, max(1, len(names))).mapInArrow(read_files, schema)


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together until they are enough for a file."""
    kept: list[pa.RecordBatch] = []
    kept_bytes = 0
    for batch in batches:
        if batch.num_rows:
            kept.append(batch)
            kept_bytes += batch.nbytes
        if kept_bytes >= _FILE_BYTES:
            yield pa.Table.from_batches(kept)
            kept, kept_bytes = [], 0
    if kept:
        yield pa.Table.from_batches(kept)
