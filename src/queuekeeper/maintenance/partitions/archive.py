"""Reads a retired partition out to Parquet by Spark, and proves that the files hold its rows.

The table is read twice, each time in one snapshot, and the files once. Before an archive gets its name, counts and
hashes have to agree: PostgreSQL's of the table before and after, and Spark's of what it reads from the files with those
of what it reads from the table once the files are there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.jobs.store import session_lock
from queuekeeper.maintenance.partitions.catalog import read_table
from queuekeeper.maintenance.partitions.manifest import (
    FORMAT,
    MANIFEST,
    ROWS,
    ArchivedColumn,
    ArchivedFile,
    Manifest,
    TableContent,
    TableShape,
    archive_path,
    check_files,
    describe_table,
    hash_text,
    pin_texts,
    read_manifest,
    sum_file,
    sync_folder,
    table_content,
    write_manifest,
)
from queuekeeper.maintenance.partitions.restore import retired_name
from queuekeeper.maintenance.partitions.retired import bounds_text, load_retired, record_archive
from queuekeeper.migration.model import code_version
from queuekeeper.migration.slices import SliceReader, export_snapshot
from queuekeeper.migration.spark import check_shared, our_errors
from queuekeeper.postgres import connect, statement

_TYPES: dict[str, DataType] = {
    "boolean": BooleanType(),
    "smallint": ShortType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "string": StringType(),
}


class _Reader(SliceReader):
    """Reads a table whose values are partly written as text, which has to look the same everywhere."""

    pin = statement("maintenance/pin_texts")


@dataclass(frozen=True, kw_only=True)
class ArchiveReport:
    """What became of one archive.

    :param path: folder of the archive.
    :param is_new: false when it was there already, and was only compared again.
    """

    path: str
    is_new: bool
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class _Look:
    """One look at the table, all of it in one snapshot.

    :param rows: as Spark reads them while the snapshot is held.
    """

    shape: TableShape
    content: TableContent
    rows: DataFrame


def archive_partition(
    spark: SparkSession, *, postgres_url: str, retired_id: int, directory: Path, now_ms: int
) -> ArchiveReport:
    """Archive a partition in quarantine and note it in its record: from then on it may be dropped when its days are up.

    :param retired_id: record of the partition.
    :param directory: where archives are kept: a folder that driver and executors share.
    """
    with connect(postgres_url, autocommit=True) as connection:
        record = load_retired(connection, retired_id)
        report = archive_table(
            spark,
            postgres_url=postgres_url,
            table=retired_name(connection, record),
            parent=record.table,
            key=read_table(connection, record.table, only_read=True).key.column,
            bounds=bounds_text(record),
            directory=directory,
            now_ms=now_ms,
        )
        record_archive(connection, retired_id=retired_id, archive=asdict(report.manifest) | {"path": report.path})
    return report


def archive_table(
    spark: SparkSession,
    *,
    postgres_url: str,
    table: str,
    parent: str,
    key: str,
    bounds: str,
    directory: Path,
    now_ms: int,
) -> ArchiveReport:
    """Archive a detached partition, or compare the archive that it has; repeating it changes nothing.

    :param table: the partition, as ``schema.name``, quoted where SQL needs it.
    :param parent: partitioned table that it was part of, in the same way.
    :param key: column that the parent is partitioned by.
    :param bounds: of the partition, as ``FOR VALUES ...``.
    :param directory: where archives are kept: a folder that driver and executors share.
    :raises RefusedError: when the table is still attached, or cannot be archived.
    :raises CheckFailed: when table, files and manifest do not agree; nothing may be dropped then.
    """
    session = _session(spark)
    with our_errors(), _only_archiver(postgres_url, table):
        with _looking(session, postgres_url=postgres_url, table=table, key=key) as look:
            path = archive_path(directory, parent=parent, shape=look.shape, content=look.content)
            is_new = not path.exists()
            folder = path.with_name(f"{path.name}.part") if is_new else path
            if is_new:
                _write(session, look.rows, folder)
        shape, content = look.shape, look.content
        if not is_new:
            check_files(path, read_manifest(path))
        in_files, files_hash = _sum_rows(_read(session, folder, shape.columns), shape.columns)
        if is_new:
            manifest = Manifest(
                format=FORMAT,
                system_identifier=shape.system_identifier,
                database=shape.database,
                parent=parent,
                table=shape.name,
                table_oid=shape.oid,
                key=key,
                bounds=bounds,
                content=content,
                files_hash=files_hash,
                columns=shape.columns,
                files=_files(folder / ROWS),
                ddl=shape.ddl,
                archived_at_ms=now_ms,
                generated_by=f"queuekeeper {code_version()}",
            )
        else:
            manifest = read_manifest(path)
        # The table once more, as it is now that the files are there.
        with _looking(session, postgres_url=postgres_url, table=table, key=key) as again:
            is_same = (again.shape.columns, again.content) == (shape.columns, content)
            in_table, table_hash = _sum_rows(again.rows, again.shape.columns)
        _check(is_same, table, "it has changed while it was archived")
        _check(manifest.content == content, table, f"{path / MANIFEST} counts other rows")
        in_footers = sum(each.rows for each in manifest.files)
        _check(
            in_table == in_files == in_footers == content.rows,
            table,
            f"{content.rows:,} rows are in the table, {in_table:,} as Spark reads it, {in_files:,} in the files and "
            f"{in_footers:,} by their footers",
        )
        _check(files_hash == table_hash, table, "the rows of the files are not those of the table")
        _check(files_hash == manifest.files_hash, table, f"the rows of the files are not those of {path / MANIFEST}")
        if is_new:
            write_manifest(folder, manifest)
            folder.rename(path)
            sync_folder(path.parent)
    return ArchiveReport(path=str(path), is_new=is_new, manifest=manifest)


def _session(spark: SparkSession) -> SparkSession:
    """Return a session of its own: names of columns may differ in case only, and times stay as they are."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    return session


@contextmanager
def _only_archiver(postgres_url: str, table: str) -> Iterator[None]:
    """Keep a second archive of the same table away."""
    with (
        connect(postgres_url, autocommit=True) as connection,
        session_lock(connection, json.dumps(["queuekeeper.archive", table])) as is_held,
    ):
        if not is_held:
            raise RefusedError(f"another process archives {table}: wait for it, or end it first")
        yield


@contextmanager
def _looking(session: SparkSession, *, postgres_url: str, table: str, key: str) -> Iterator[_Look]:
    with connect(postgres_url) as connection:
        snapshot = export_snapshot(connection)
        pin_texts(connection)
        shape = describe_table(connection, table)
        if shape.is_attached:
            raise RefusedError(f"{shape.name} is still attached: only a retired partition is archived; retire it first")
        expressions = [
            sql.SQL("{} AS {}").format(column.expression, sql.Identifier(column.name)).as_string(connection)
            for column in shape.columns
        ]
        reader = _Reader(url=postgres_url, table=shape.name, expressions=tuple(expressions), snapshot=snapshot)
        yield _Look(
            shape=shape,
            content=table_content(connection, shape.name, columns=shape.columns, key=key),
            rows=reader.rows(session, _schema(shape.columns)),
        )


def _schema(columns: Sequence[ArchivedColumn]) -> StructType:
    return StructType([StructField(column.name, _TYPES[column.parquet_type]) for column in columns])


def _sum_rows(rows: DataFrame, columns: Sequence[ArchivedColumn]) -> tuple[int, str]:
    """Return count and order-free hash of rows."""
    values = [F.col("`" + column.name.replace("`", "``") + "`") for column in columns]
    # The hash leaves NULLs out, wherever they stand.
    nulls = F.concat(*(F.when(value.isNull(), "1").otherwise("0") for value in values))
    row = (
        rows.select(F.xxhash64(nulls, *values).alias("hash"))
        .agg(F.count("*"), F.bit_xor("hash"), F.sum(F.col("hash").cast("decimal(20, 0)")))
        .first()
    )
    assert row is not None
    counted, exclusive, total = row
    return counted, hash_text(exclusive, total)


def _read(session: SparkSession, folder: Path, columns: Sequence[ArchivedColumn]) -> DataFrame:
    return session.read.schema(_schema(columns)).parquet(_address(folder / ROWS))


def _write(session: SparkSession, rows: DataFrame, folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RefusedError(
            f"the archive cannot be written to {folder}: {error.strerror}; name another folder"
        ) from error
    check_shared(session, folder)
    rows.write.option("compression", "zstd").parquet(_address(folder / ROWS))


def _address(path: Path) -> str:
    # Not `as_uri`: Hadoop does not decode what that escapes.
    return f"file://{path}"


def _files(folder: Path) -> tuple[ArchivedFile, ...]:
    files = []
    for path in sorted(folder.glob("*.parquet")):
        size_bytes, sha256 = sum_file(path)
        rows = pq.read_metadata(path).num_rows
        files.append(ArchivedFile(name=path.name, rows=rows, size_bytes=size_bytes, sha256=sha256))
    sync_folder(folder)
    return tuple(files)


def _check(holds: bool, table: str, words: str) -> None:
    if not holds:
        raise CheckFailed(f"{table} is not archived, and must not be dropped: {words}")
