"""Restores a dropped partition from its archive with the same rows; another plan attaches it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql
from pyarrow import csv

from queuekeeper import audit
from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.maintenance.partitions.catalog import read_table
from queuekeeper.maintenance.partitions.manifest import (
    ROWS,
    Manifest,
    TableContent,
    check_files,
    describe_table,
    pin_texts,
    read_manifest,
    reading,
    table_content,
)
from queuekeeper.maintenance.partitions.model import KIND, RetiredPartition, RetiredState
from queuekeeper.maintenance.partitions.policies import load_policy
from queuekeeper.maintenance.partitions.retired import (
    abandon_restore,
    archive_folder,
    bounds_text,
    finish_restore,
    load_retired,
    recreate_retired,
)
from queuekeeper.postgres import Connection, server_words, translated_errors
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

__all__ = ["RestoreReport", "archive_folder", "load_archive", "restore_partition", "retired_name"]

_BATCH_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class RestoreReport:
    """Result of loading an archive into a table.

    :param path: folder of the archive.
    :param is_new: false when the table held all rows already.
    """

    table: str
    path: str
    is_new: bool
    content: TableContent


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Rows of one archived partition.

    :param place: where they come from, for people.
    :param check: raises :class:`CheckFailed` when they are not as they were archived, as far as that shows beforehand.
    :param batches: yields the rows, with the named columns alone.
    """

    place: str
    manifest: Manifest
    check: Callable[[], None]
    batches: Callable[[list[str]], Iterator[pa.RecordBatch]]


def restore_partition(
    connection: Connection,
    *,
    retired_id: int,
    now_ms: int,
    path: Path | None = None,
    source: Callable[[RetiredPartition], RowSource] | None = None,
    actor: str | None = None,
) -> RestoreReport:
    """Create a dropped partition again in the quarantine schema with the rows of its archive; may be repeated.

    The partition's days in quarantine begin anew. A plan of reattachment makes it a partition again.

    :param path: folder of the archive; by default the folder in the partition's record.
    :param source: opens another source of the rows; the folder is not read then.
    :param actor: person who asks for it, for the audit; none for the user of the database.
    :raises RefusedError: when the partition was not dropped, has no archive, or the archive is another partition's.
    """
    record = load_retired(connection, retired_id)
    if source is None:
        folder = path or archive_folder(record)
        rows = rows_of_archive(folder)
        _check_own(record, rows.manifest, folder)
    else:
        rows = source(record)
    if record.state is not RetiredState.RESTORING:
        # The new table has the columns that its parent has now.
        parent = read_table(connection, record.table)
        found = connection.execute(statement("maintenance/archived_columns"), {"table_oid": parent.oid}).fetchall()
        _check_columns(rows, parent.name, [name for name, *_ in found])
        record = recreate_retired(connection, retired_id=retired_id)
    try:
        report = load_rows(connection, rows, table=retired_name(connection, record))
    except Exception:
        # A table without its rows would be no more than in the way, and have the columns of today for ever.
        if not connection.closed:
            abandon_restore(connection, record, now_ms=now_ms)
        raise
    policy = load_policy(connection, record.table)
    finish_restore(connection, retired_id=retired_id, quarantine_days=policy.quarantine_days, now_ms=now_ms)
    effect = {"purpose": "restore", "partitions": [record.partition_name], "rows": report.content.rows}
    audit.record(
        connection,
        actor=actor,
        action=audit.Action.UNDO,
        subject=record.table,
        effect={"kind": KIND, **effect},
    )
    return report


def _check_own(record: RetiredPartition, manifest: Manifest, folder: Path) -> None:
    what = f"retired partition {record.retired_id} ({record.partition_name} of {record.table})"
    if (manifest.parent, manifest.bounds) != (record.table, bounds_text(record)):
        raise RefusedError(
            f"the archive in {folder} is of {manifest.parent} {manifest.bounds}, not of {what} {bounds_text(record)}: "
            "name its own folder"
        )
    if record.archive and asdict(manifest.content) != record.archive["content"]:
        raise RefusedError(f"the archive in {folder} has other rows than that of {what}: name its own folder")


def retired_name(connection: Connection, record: RetiredPartition) -> str:
    """Return the present name of a retired partition as ``schema.name``, quoted for SQL."""
    return sql.Identifier(record.quarantine_schema, record.partition_name).as_string(connection)


def load_archive(connection: Connection, *, path: Path, table: str) -> RestoreReport:
    """Load an archive into an empty table, as :func:`load_rows` does.

    :param path: folder of the archive.
    """
    return load_rows(connection, rows_of_archive(path), table=table)


def rows_of_archive(path: Path) -> RowSource:
    """Return the rows of an archive's own files.

    :param path: folder of the archive.
    :raises RefusedError: when there is no manifest, or it cannot be read.
    """
    manifest = read_manifest(path)

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        for each in manifest.files:
            with reading(path / ROWS / each.name) as file:
                yield from pq.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS, columns=names)

    return RowSource(place=str(path), manifest=manifest, check=lambda: check_files(path, manifest), batches=batches)


def load_rows(connection: Connection, source: RowSource, *, table: str) -> RestoreReport:
    """Load archived rows into an empty table, and commit only if the table then holds exactly these.

    A repeated call changes nothing. Columns that the archive lacks get their default.

    :param table: as ``schema.name``, quoted where SQL needs it.
    :raises RefusedError: when the table has other rows already, lacks a column, or does not take a value.
    :raises CheckFailed: when files, manifest and loaded rows do not agree; the table stays empty then.
    """
    manifest, place = source.manifest, source.place
    source.check()
    with translated_errors(connection), connection.transaction():
        pin_texts(connection)
        shape = describe_table(connection, table)
        _check_columns(source, shape.name, [column.name for column in shape.columns])
        target = sql.SQL(shape.name)
        content = table_content(connection, shape.name, columns=manifest.columns, key=manifest.key)
        if content.rows:
            if content != manifest.content:
                raise RefusedError(f"{shape.name} has other rows already: an archive is loaded into an empty table")
            return RestoreReport(table=shape.name, path=place, is_new=False, content=content)
        names = [column.name for column in manifest.columns if not column.is_generated]
        copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
            target, sql.SQL(", ").join(sql.Identifier(name) for name in names)
        )
        try:
            with connection.cursor() as cursor, cursor.copy(copy) as stream:
                for batch in source.batches(names):
                    stream.write(_csv(batch))
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise RefusedError(
                f"{shape.name} does not take what the archive in {place} holds: {server_words(error)}"
            ) from error
        content = table_content(connection, shape.name, columns=manifest.columns, key=manifest.key)
        if content != manifest.content:
            raise CheckFailed(
                f"{shape.name} would not hold what was archived: {number_of(content.rows, 'row')}, hash "
                f"{content.rows_hash}; expected {number_of(manifest.content.rows, 'row')}, hash "
                f"{manifest.content.rows_hash}; nothing was loaded"
            )
    return RestoreReport(table=shape.name, path=place, is_new=True, content=content)


def _check_columns(source: RowSource, table: str, names: Iterable[str]) -> None:
    lacking = {column.name for column in source.manifest.columns}.difference(names)
    if lacking:
        raise RefusedError(
            f"{table} lacks {', '.join(sorted(lacking))}, which the archive in {source.place} holds: add it to "
            f"{source.manifest.parent} first, or load the files into a table of the archived form (ddl in its manifest)"
        )


def _csv(batch: pa.RecordBatch) -> bytes:
    """Return rows as CSV, in which NULL is empty and an empty text is quoted."""
    sink = BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(_without_bytes(batch), sink, write_options=options)
    return sink.getvalue()


def _without_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with binary values as PostgreSQL's text, since CSV is text."""
    for number, field in enumerate(batch.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [None if value is None else f"\\x{value.hex()}" for value in batch.column(number).to_pylist()]
            batch = batch.set_column(number, field.name, pa.array(texts, pa.string()))
    return batch
