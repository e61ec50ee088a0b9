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
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from queuekeeper.places import make_folder, names, remove_folder, told, write_whole

SUFFIX = ".parquet"

_FILE_BYTES = 128 * 1024 * 1024
"""So much of a task's rows, as Arrow holds them, goes into one file: it is made and read in memory."""

_BATCH_ROWS = 10_000


_ADVICE = "let Spark's tasks write there"


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
    columns = rows.columns

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        place = folder()
        context = TaskContext.get()
        part = context.partitionId() if context else 0
        for number, table in enumerate(_tables(batches)):
            sink = pa.BufferOutputStream()
            pq.write_table(table.rename_columns(columns), sink, compression="zstd")
            content = sink.getvalue().to_pybytes()
            name = f"part-{part:05}-{number:03}-{token_hex(8)}{SUFFIX}"
            with told(f"Parquet cannot be written to {place}", place, _ADVICE):
                write_whole(place / name, content)
            file = WrittenFile(name, table.num_rows, len(content), hashlib.sha256(content).hexdigest())
            yield pa.RecordBatch.from_pylist([file._asdict()])

    # Spark looks each column up by its name, which may hold a dot.
    plain = rows.toDF(*(f"column_{number}" for number in range(len(columns))))
    found = plain.mapInArrow(write, "name string, rows long, size_bytes long, sha256 string").collect()
    return sorted(WrittenFile(**row.asDict()) for row in found)


def replace_parquet(rows: DataFrame, folder: Callable[[], Path], *, what: str) -> None:
    """Write rows in place of all that a folder holds; without rows, a file that names their columns.

    :param folder: opens the folder, also in a task; it need not be there.
    :param what: is kept there, in the plural.
    :raises RefusedError: when it cannot be written to.
    """
    place = folder()
    with told(f"Parquet cannot be written to {place}", place, _ADVICE):
        remove_folder(place, what=what)
        make_folder(place)
    if not write_parquet(rows, folder):
        sink = pa.BufferOutputStream()
        pq.write_table(to_arrow_schema(rows.schema).empty_table(), sink)
        with told(f"Parquet cannot be written to {place}", place, _ADVICE):
            write_whole(place / f"part-00000{SUFFIX}", sink.getvalue().to_pybytes())


def parquet_of(spark: SparkSession, folder: Callable[[], Path], *, what: str) -> DataFrame | None:
    """Return the rows of a folder's files, or none where it has no Parquet.

    :param folder: opens the folder, also in a task.
    :param what: is kept there, in the plural.
    """
    place = folder()
    files = [name for name in names(place, what=what) if name.endswith(SUFFIX)]
    if not files:
        return None
    schema = from_arrow_schema(pq.read_schema(pa.BufferReader((place / files[0]).read_bytes())))
    return read_parquet(spark, files, schema, lambda name: (folder() / name).read_bytes())


def read_parquet(
    spark: SparkSession, files: Sequence[str], schema: StructType, read: Callable[[str], bytes]
) -> DataFrame:
    """Return the rows of files, a partition for each.

    :param read: returns, in a task, what the file of a name holds.
    """

    def read_files(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                file = pq.ParquetFile(pa.BufferReader(read(files[number])))
                for rows in file.iter_batches(batch_size=_BATCH_ROWS):
                    # Spark was told that it has no metadata and no "not null".
                    yield pa.RecordBatch.from_arrays(rows.columns, names=rows.schema.names)

    return spark.range(0, len(files), 1, max(1, len(files))).mapInArrow(read_files, schema)


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
