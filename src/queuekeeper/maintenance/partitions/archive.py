"""Archives a retired partition as Parquet with Spark, and proves that the files hold its rows.

The table is read twice, each time in one snapshot, and the files once. An archive gets its manifest only if counts and
hashes agree: those of PostgreSQL before and after the files were written, and those of Spark for the files and for the
table afterwards.

The manifest is written last, since an object store cannot rename a folder at once; without it a folder is no archive.
Spark's tasks write and read the files by fsspec paths, as all other code does (docs/adr/0023).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex

from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.jobs.locks import session_lock
from queuekeeper.maintenance.partitions.catalog import read_table
from queuekeeper.maintenance.partitions.manifest import (
    FORMAT,
    MANIFEST,
    ROWS,
    WHAT,
    ArchivedColumn,
    ArchivedFile,
    Manifest,
    TableContent,
    TableShape,
    archive_exists,
    archive_name,
    archive_place,
    describe_table,
    hash_text,
    parent_name,
    pin_texts,
    read_file,
    read_manifest,
    table_content,
    write_manifest,
)
from queuekeeper.maintenance.partitions.restore import retired_name
from queuekeeper.maintenance.partitions.retired import bounds_text, load_retired, record_archive
from queuekeeper.migration.ledger.model import code_version
from queuekeeper.migration.spark.parquet import read_parquet, write_parquet
from queuekeeper.migration.spark.session import check_shared, our_errors
from queuekeeper.migration.spark.slices import SliceReader, export_snapshot
from queuekeeper.places import make_folder, names, on_disk, remove_folder, sync, told, write_whole
from queuekeeper.postgres import connect
from queuekeeper.sql_statements import statement


class _Reader(SliceReader):
    """Reads a table with settings by which every session writes values as the same text."""

    pin = statement("maintenance/pin_texts")


@dataclass(frozen=True, kw_only=True)
class ArchiveReport:
    """Result of archiving one partition.

    :param path: folder of the archive, or its URL.
    :param is_new: false when the archive existed already and was only compared again.
    """

    path: str
    is_new: bool
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The table in one snapshot.

    :param rows: rows as Spark reads them while the snapshot is held.
    """

    shape: TableShape
    content: TableContent
    rows: DataFrame


def archive_partition(
    spark: SparkSession, *, postgres_url: str, retired_id: int, directory: Path | str, now_ms: int
) -> ArchiveReport:
    """Archive a partition in quarantine and record the archive; the partition may then be dropped when its days are up.

    :param retired_id: number of the partition's record.
    :param directory: folder of archives that driver and executors share, or its URL in an object store.
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
    directory: Path | str,
    now_ms: int,
) -> ArchiveReport:
    """Archive a detached partition, or compare it with its existing archive; a second call changes nothing.

    :param table: the partition, as ``schema.name``, quoted where SQL needs it.
    :param parent: the table that it was a partition of, as ``schema.name``.
    :param key: column that the parent is partitioned by.
    :param bounds: bounds of the partition, as ``FOR VALUES ...``.
    :param directory: folder of archives that driver and executors share, or its URL in an object store.
    :raises UsageError: when no installed package opens that object store.
    :raises RefusedError: when the table is still attached or cannot be archived, or the folder cannot be written to.
    :raises CheckFailed: when table, files and manifest do not agree; the partition must not be dropped then.
    """
    session = _session(spark)
    place = _Place.of(directory, parent_name(parent))
    with our_errors(), _only_archiver(postgres_url, table):
        _try(session, place)
        with _looking(session, postgres_url=postgres_url, table=table, key=key) as look:
            archive = place / archive_name(look.shape, look.content)
            path = archive.path
            is_new = not archive_exists(path)
            files = _write(look.rows, archive) if is_new else read_manifest(path).files
        shape, content = look.shape, look.content
        in_files, files_hash = _sum_rows(_read(session, archive, files, shape.columns), shape.columns)
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
                files=files,
                ddl=shape.ddl,
                archived_at_ms=now_ms,
                generated_by=f"queuekeeper {code_version()}",
            )
        else:
            manifest = read_manifest(path)
        # The table is read again after the files were written.
        with _looking(session, postgres_url=postgres_url, table=table, key=key) as again:
            is_same = (again.shape.columns, again.content) == (shape.columns, content)
            in_table, table_hash = _sum_rows(again.rows, again.shape.columns)
        _check(is_same, table, "it has changed while it was archived")
        _check(manifest.content == content, table, f"{path / MANIFEST} counts other rows")
        in_manifest = sum(each.rows for each in manifest.files)
        _check(
            in_table == in_files == in_manifest == content.rows,
            table,
            f"{content.rows:,} rows are in the table, {in_table:,} as Spark reads it, {in_files:,} in the files and "
            f"{in_manifest:,} as they were written",
        )
        _check(files_hash == table_hash, table, "the rows of the files are not those of the table")
        _check(files_hash == manifest.files_hash, table, f"the rows of the files are not those of {path / MANIFEST}")
        if is_new:
            write_manifest(path, manifest)
            _check(read_manifest(path) == manifest, table, f"{path / MANIFEST} is not what was written")
    return ArchiveReport(path=archive.address, is_new=is_new, manifest=manifest)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """A folder, on a disk or in an object store.

    :param path: the folder as a path.
    :param address: path or URL of the folder, for people. The path alone does not suffice: it lacks Azure's account.
    """

    path: Path
    address: str

    @classmethod
    def of(cls, directory: Path | str, name: str) -> _Place:
        """Return a folder within the folder of archives."""
        path = archive_place(directory)
        return cls(path=path, address=str(path if on_disk(path) else directory).rstrip("/")) / name

    def __truediv__(self, name: str) -> _Place:
        return _Place(path=self.path / name, address=f"{self.address}/{name}")


def _session(spark: SparkSession) -> SparkSession:
    """Return a separate session, in which column names may differ in case only and times are not converted."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@contextmanager
def _only_archiver(postgres_url: str, table: str) -> Iterator[None]:
    """Keep other processes from archiving the same table."""
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
    return StructType([StructField(column.name, DataType.fromDDL(column.parquet_type)) for column in columns])


def _sum_rows(rows: DataFrame, columns: Sequence[ArchivedColumn]) -> tuple[int, str]:
    """Return count and hash of rows; their order does not change the hash."""
    values = [F.col("`" + column.name.replace("`", "``") + "`") for column in columns]
    # The hash ignores NULLs, so their places are hashed separately.
    nulls = F.concat(*(F.when(value.isNull(), "1").otherwise("0") for value in values))
    row = (
        rows.select(F.xxhash64(nulls, *values).alias("hash"))
        .agg(F.count("*"), F.bit_xor("hash"), F.sum(F.col("hash").cast("decimal(20, 0)")))
        .first()
    )
    assert row is not None
    counted, exclusive, total = row
    return counted, hash_text(exclusive, total)


def _read(
    session: SparkSession, archive: _Place, files: Sequence[ArchivedFile], columns: Sequence[ArchivedColumn]
) -> DataFrame:
    by_name = {each.name: each for each in files}
    address = archive.address
    return read_parquet(
        session, list(by_name), _schema(columns), lambda name: read_file(archive_place(address), by_name[name])
    )


def _try(session: SparkSession, place: _Place) -> None:
    """Write a file to a folder and remove it, so that a missing right shows before hours of work.

    :raises RefusedError: when that fails; says what to install or to allow.
    """
    folder = place.path
    if on_disk(folder):
        with _writing(folder):
            make_folder(folder)
            with tempfile.TemporaryFile(dir=folder):
                check_shared(session, folder)
        return
    probe = place / f"probe-{token_hex(8)}"
    # This process first: it knows soonest, and says what it lacks itself.
    with _writing(folder):
        write_whole(probe.path / MANIFEST, b"{}")
    try:
        written = _write_rows(session.range(1), probe)
    finally:
        with _writing(folder):
            found = names(probe.path / ROWS, what=WHAT)
            remove_folder(probe.path, what=WHAT)
    if found != [each.name for each in written]:
        raise RefusedError(
            f"what tasks of Spark write to {probe.address} is not found there by this process: give all of them the "
            "same endpoint (docs/deploying.md)"
        )


def _writing(folder: Path) -> AbstractContextManager[None]:
    advice = "let this user write there, or name another folder"
    return told(f"the archive cannot be written to {folder}", folder, advice)


def _write(rows: DataFrame, archive: _Place) -> tuple[ArchivedFile, ...]:
    with _writing(archive.path):
        # A killed process may have left files.
        remove_folder(archive.path, what=WHAT)
        if on_disk(archive.path):
            archive.path.mkdir(mode=0o700, parents=True)
            (archive.path / ROWS).mkdir()
    files = _write_rows(rows, archive)
    with _writing(archive.path):
        folder = archive.path / ROWS
        # What a task has left that was repeated.
        for name in set(names(folder, what=WHAT)) - {each.name for each in files}:
            (folder / name).unlink(missing_ok=True)
        for written in (folder, folder.parent, folder.parent.parent):
            sync(written)
    return files


def _write_rows(rows: DataFrame, archive: _Place) -> tuple[ArchivedFile, ...]:
    address = (archive / ROWS).address
    return tuple(ArchivedFile(**each._asdict()) for each in write_parquet(rows, lambda: archive_place(address)))


def _check(holds: bool, table: str, words: str) -> None:
    if not holds:
        raise CheckFailed(f"{table} is not archived, and must not be dropped: {words}")
