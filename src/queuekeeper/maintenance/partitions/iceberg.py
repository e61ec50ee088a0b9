"""Registers archives of retired partitions in an Iceberg catalog, in which any engine reads them as one table.

The Parquet files stay where they are, as they are: Iceberg's table names them, and ``pyiceberg`` writes nothing but
metadata. What is registered follows the records of retired partitions: archives of those that are not in their table
any more. Each partition is a commit of its own; what was interrupted is completed by the next call.

A catalog named ``queuekeeper`` of pyiceberg's own configuration is used where there is one, else tables in schema
:data:`SCHEMA` of the control database, with metadata beside the archives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.config import Config

from queuekeeper.errors import CheckFailed, RefusedError, ServerUnavailable, UsageError
from queuekeeper.jobs.locks import session_lock
from queuekeeper.maintenance.partitions.catalog import read_table
from queuekeeper.maintenance.partitions.key_range import KeyRange
from queuekeeper.maintenance.partitions.manifest import ROWS, Manifest
from queuekeeper.maintenance.partitions.model import RetiredPartition, RetiredState
from queuekeeper.maintenance.partitions.restore import RowSource
from queuekeeper.maintenance.partitions.retired import FORMER, retired_partitions
from queuekeeper.postgres import Connection, connect, translated_errors
from queuekeeper.sql_statements import statement

CATALOG = "queuekeeper"
"""Name of the catalog in pyiceberg's configuration."""

SCHEMA = "queuekeeper_iceberg"
"""Schema of the control database with the catalog's tables, where no other catalog is configured."""

_SOURCE = "queuekeeper.source"
_PARTITION = "queuekeeper.partition"
_OUTSIDE = (RetiredState.QUARANTINED, RetiredState.RESTORING, RetiredState.DROPPED)

_TYPES: Mapping[str, IcebergType] = {
    "boolean": BooleanType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "string": StringType(),
}
"""Iceberg's type of each type in archives."""


@dataclass(frozen=True, kw_only=True)
class RegisterReport:
    """What a table's registration came to, or would.

    :param iceberg_table: its name in the catalog.
    :param metadata: address of Iceberg's metadata, by which engines without the catalog read it; empty without a table.
    :param added: partitions whose archives are registered now.
    :param removed: partitions that are back in their table, and no longer registered.
    :param rows: rows of all files that are registered then.
    :param expired_snapshots: earlier snapshots that were removed.
    """

    table: str
    iceberg_table: str
    metadata: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    files: int
    rows: int
    expired_snapshots: int


@dataclass(frozen=True, kw_only=True)
class Registration:
    """An Iceberg table beside the records of a table's retired partitions.

    :param iceberg_table: none before anything is registered.
    :param files: registered files by their addresses.
    :param missing: files to register, each with its partition.
    :param returned: registered files of partitions that are in their table again, or have been archived anew.
    """

    table: str
    name: tuple[str, str]
    source: str
    iceberg_table: Table | None
    files: Mapping[str, DataFile]
    missing: Mapping[str, RetiredPartition]
    returned: Mapping[str, RetiredPartition]


def rows_of_catalog(
    connection: Connection, record: RetiredPartition, *, postgres_url: str, directory: Path | str
) -> RowSource:
    """Return the rows of an archived partition as the Iceberg table has them, whatever its files are by now.

    Others may have rewritten these. A load compares the rows with those that were archived.

    :raises RefusedError: when the partition has no archive, or the catalog no such table.
    :raises ServerUnavailable: when the catalog does not answer, and of the rows, when a file cannot be read.
    """
    if not record.archive:
        raise RefusedError(f"retired partition {record.retired_id} ({record.partition_name}) has no archive")
    manifest = Manifest.of({name: value for name, value in record.archive.items() if name not in {"path", FORMER}})
    with catalog_of(connection, postgres_url=postgres_url, directory=directory) as catalog:
        found = find_iceberg_table(connection, catalog, table=record.table)
    if found is None:
        raise RefusedError(f"there is no table {record.table} in the catalog: restore it from its archive")
    # Nothing is asked of the connection while rows are copied on it.
    iceberg_table, within = found, _within(connection, record)

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        if within is not None:
            with _reached():
                yield from within.rows(iceberg_table, columns=names)

    return RowSource(
        place=f"catalog {CATALOG}, table {record.table}", manifest=manifest, check=lambda: None, batches=batches
    )


def _within(connection: Connection, record: RetiredPartition) -> KeyRange | None:
    """Return the range of the keys of an archived partition; none without rows."""
    content = _archive(record)["content"]
    if not content["rows"]:
        return None
    key = read_table(connection, record.table, only_read=True).key
    return KeyRange(key=key, first=content["key_first"], last=content["key_last"])


@contextmanager
def catalog_of(connection: Connection, *, postgres_url: str, directory: Path | str) -> Iterator[Catalog | None]:
    """Yield the catalog; nothing where none is configured and the control database has none yet.

    :param directory: folder of archives; metadata come into its folder ``iceberg``.
    :raises ServerUnavailable: when the catalog does not answer, or a file that it names cannot be read.
    :raises RefusedError: when the catalog refuses.
    """
    with _reached(), _opened(connection, postgres_url=postgres_url, directory=directory) as catalog:
        yield catalog


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except _away() as error:
        raise ServerUnavailable(
            f"the Iceberg catalog {CATALOG}, or a file that it names, cannot be reached: {_told(error)}; no archive "
            "was changed: repeat it once the catalog answers"
        ) from error
    except RESTError as error:
        raise RefusedError(f"the Iceberg catalog {CATALOG} refuses: {_told(error)}") from error


def _away() -> tuple[type[Exception], ...]:
    """Return what the clients of catalogs, and of the stores of their files, raise when nobody answers."""
    from sqlalchemy.exc import InterfaceError, OperationalError

    of_rest = (ServerError, ServiceUnavailableError, TooManyRequestsError, CommitStateUnknownException)
    return (OSError, OperationalError, InterfaceError, *of_rest)


def _told(error: Exception) -> str:
    """Return an error's words on one line; SQLAlchemy's are around those of the server."""
    return " ".join(str(getattr(error, "orig", None) or error).split()) or type(error).__name__


def _has_schema(connection: Connection) -> bool:
    found = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (SCHEMA,)).fetchone()
    return found is not None and bool(found[0])


@contextmanager
def _opened(connection: Connection, *, postgres_url: str, directory: Path | str) -> Iterator[Catalog | None]:
    configured: Any = Config().get_catalog_config(CATALOG)
    if configured is not None:
        # Given, since pyiceberg would load what was configured when it was imported.
        yield load_catalog(CATALOG, **configured)
        return
    if not _has_schema(connection):
        yield None
        return
    from sqlalchemy import make_url

    address = make_url(postgres_url).set(drivername="postgresql+psycopg")
    options = " ".join([*_texts(address.query.get("options")), f"-csearch_path={SCHEMA}"])
    catalog: Any = load_catalog(
        CATALOG,
        type="sql",
        uri=address.update_query_dict({"options": options}).render_as_string(hide_password=False),
        warehouse=_address(f"{directory}/iceberg"),
        # As all other files are opened (docs/adr/0023).
        **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"},
    )
    try:
        yield catalog
    finally:
        catalog.close()


def _texts(value: str | tuple[str, ...] | None) -> Iterable[str]:
    return () if value is None else (value,) if isinstance(value, str) else value


def _address(place: str) -> str:
    return place if "://" in place else f"file://{place}"


def find_iceberg_table(connection: Connection, catalog: Catalog | None, *, table: str) -> Table | None:
    """Return the Iceberg table of a table as it is now; nothing before anything is registered.

    :param table: as its policy names it.
    :raises UsageError: when there is no such table.
    :raises RefusedError: when the catalog has a table of this name with another source.
    """
    name, source = _names(connection, table)
    try:
        found = None if catalog is None else catalog.load_table(name)
    except NoSuchTableError:
        return None
    if found is not None and (other := found.properties.get(_SOURCE)) != source:
        raise RefusedError(
            f"the catalog has a table {'.'.join(name)} of {other or 'somebody else'}, not of {source}: give each "
            f"database a catalog of its own (pyiceberg's configuration, catalog {CATALOG})"
        )
    return found


def _names(connection: Connection, table: str) -> tuple[tuple[str, str], str]:
    """Return a table's name in the catalog, and of what it is the Iceberg table."""
    with translated_errors(connection):
        row = connection.execute(statement("maintenance/archived_table"), {"table_name": table}).fetchone()
    if row is None:
        raise UsageError(f"there is no table {table} in database {connection.info.dbname}")
    _, whole_name, schema, bare_name, _, _, system, database, _ = row
    return (str(schema), str(bare_name)), f"{system}/{database}/{whole_name}"


def registration_of(connection: Connection, found: Table | None, *, table: str) -> Registration:
    """Compare the catalog with the records of a table's retired partitions.

    :param found: the table's Iceberg table, by :func:`find_iceberg_table`.
    :param table: as its policy names it.
    :raises UsageError: when there is no such table.
    :raises RefusedError: when another engine has written files anew, of a partition that is in its table again.
    """
    name, source = _names(connection, table)
    files = {} if found is None else {task.file.file_path: task.file for task in found.scan().plan_files()}
    # Rows of a drained DEFAULT partition are in other partitions.
    archived = [
        each for each in retired_partitions(connection, table=table) if each.archive and not each.drained_default
    ]
    outside = _files_of(each for each in archived if each.state in _OUTSIDE)
    inside = _files_of(each for each in archived if each.state not in _OUTSIDE)
    former = _files_of(archived, former=True)
    rewritten: set[int] = set()
    if found is not None and files.keys() - outside.keys() - inside.keys() - former.keys():
        # Another engine has written rows anew: its files are known by no archive, so the rows are counted.
        unseen = {record.retired_id: record for path, record in (outside | inside).items() if path not in files}
        for record in (each for path, each in former.items() if path in files):
            unseen.pop(record.retired_id, None)
        rewritten = {number for number, record in unseen.items() if _holds(connection, found, record)}
        back = [
            record.partition_name
            for number, record in unseen.items()
            if number in rewritten and record.state not in _OUTSIDE
        ]
        if back:
            raise RefusedError(
                f"{', '.join(back)} of {table} is in its table again, and another engine has written its rows in the "
                f"catalog anew: delete them from {'.'.join(name)} with that engine"
            )
    return Registration(
        table=table,
        name=name,
        source=source,
        iceberg_table=found,
        files=files,
        missing={
            path: record for path, record in outside.items() if path not in files and record.retired_id not in rewritten
        },
        returned={path: record for path, record in (former | inside).items() if path in files and path not in outside},
    )


def _holds(connection: Connection, table: Table, record: RetiredPartition) -> bool:
    """Whether an Iceberg table has as many rows in the range of an archived partition's keys as the archive."""
    within = _within(connection, record)
    return within is not None and within.count(table) == _archive(record)["content"]["rows"]


def _files_of(records: Iterable[RetiredPartition], *, former: bool = False) -> dict[str, RetiredPartition]:
    """Return the files of archives by their addresses.

    :param former: those of earlier archives of the same partitions.
    """
    return {
        _address(f"{archive['path']}/{ROWS}/{file['name']}"): record
        for record in records
        for archive in (_archive(record).get(FORMER, ()) if former else [_archive(record)])
        for file in archive["files"]
    }


def register(
    connection: Connection,
    *,
    postgres_url: str,
    table: str,
    directory: Path | str,
    now_ms: int,
    kept_snapshots_ms: int,
    dry_run: bool = False,
) -> RegisterReport:
    """Have an Iceberg table name the files of all archives of a table's partitions that are not in it any more.

    The schema of the Iceberg table follows: columns that came are added, types are widened, and columns that went stay
    for the files that have them. A call after which nothing has changed changes nothing.

    :param table: as its policy names it.
    :param directory: folder of archives, in which metadata are put where no catalog is configured.
    :param kept_snapshots_ms: time in ms for which earlier snapshots are kept; archives are never removed with them.
    :param dry_run: only say what would be registered.
    :raises UsageError: when there is no such table.
    :raises RefusedError: when a column's type cannot follow, or another process registers the same table.
    :raises ServerUnavailable: when the catalog is away.
    :raises CheckFailed: when a file is not as long as its archive says.
    """
    if not dry_run and Config().get_catalog_config(CATALOG) is None:
        with translated_errors(connection):
            # IF NOT EXISTS asks for the right to create one, whether it is there or not.
            if not _has_schema(connection):
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    with (
        connect(postgres_url, autocommit=True) as locked,
        session_lock(locked, f"queuekeeper.register {table}") as is_held,
        catalog_of(connection, postgres_url=postgres_url, directory=directory) as catalog,
    ):
        if not is_held:
            raise RefusedError(f"another process registers archives of {table}: wait for it, or end it first")
        before = registration_of(connection, find_iceberg_table(connection, catalog, table=table), table=table)
        expired = 0
        found = before.iceberg_table
        if not dry_run and catalog is not None:
            try:
                # Removed first: what has been archived anew must not be there twice.
                if found is not None and before.returned:
                    _remove(found, [before.files[path] for path in before.returned])
                for record, paths in _by_partition(before.missing):
                    found = _add(catalog, before, found, record, paths)
                if found is not None:
                    expired = _expire(found, before_ms=now_ms - kept_snapshots_ms)
            except CommitFailedException as error:
                raise RefusedError(f"the catalog was changed meanwhile, repeat the command: {error}") from error
    kept = [each.record_count for path, each in before.files.items() if path not in before.returned]
    added = [file["rows"] for record, _ in _by_partition(before.missing) for file in _archive(record)["files"]]
    return RegisterReport(
        table=table,
        iceberg_table=".".join(before.name),
        metadata="" if found is None else found.metadata_location,
        added=tuple(record.partition_name for record, _ in _by_partition(before.missing)),
        removed=tuple(record.partition_name for record, _ in _by_partition(before.returned)),
        files=len(kept) + len(added),
        rows=sum(kept) + sum(added),
        expired_snapshots=expired,
    )


def _archive(record: RetiredPartition) -> Mapping[str, Any]:
    assert record.archive
    return record.archive


def _by_partition(files: Mapping[str, RetiredPartition]) -> list[tuple[RetiredPartition, list[str]]]:
    paths: dict[int, list[str]] = {}
    for path, record in files.items():
        paths.setdefault(record.retired_id, []).append(path)
    return [(files[each[0]], each) for _, each in sorted(paths.items())]


def _add(
    catalog: Catalog, known: Registration, table: Table | None, record: RetiredPartition, paths: Sequence[str]
) -> Table:
    archive = _archive(record)
    schema = _schema(archive["columns"])
    if table is None:
        catalog.create_namespace_if_not_exists(known.name[0])
        table = catalog.create_table(
            known.name,
            schema=schema,
            properties={
                _SOURCE: known.source,
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "10",
            },
        )
    with table.transaction() as transaction:
        try:
            with transaction.update_schema() as update:
                update.union_by_name(schema)
        except (ValidationError, ValueError) as error:
            raise RefusedError(
                f"the archive of {record.partition_name} has a column of another type than {'.'.join(known.name)} in "
                f"the catalog, and no type holds both: {error}; this archive is left out, and those after it"
            ) from error
        transaction.add_files(
            list(paths),
            snapshot_properties={
                _PARTITION: record.partition_name,
                "queuekeeper.rows-hash": archive["content"]["rows_hash"],
            },
            check_duplicate_files=False,
        )
    wanted = {file["name"]: file for file in archive["files"]}
    for task in table.scan().plan_files():
        file = task.file
        expected = wanted.get(file.file_path.rpartition("/")[2]) if file.file_path in paths else None
        if expected and (file.record_count, file.file_size_in_bytes) != (expected["rows"], expected["size_bytes"]):
            raise CheckFailed(
                f"{file.file_path} has {file.record_count:,} rows in {file.file_size_in_bytes:,} bytes, and its "
                f"archive says {expected['rows']:,} in {expected['size_bytes']:,}: restore the file, and register anew"
            )
    return table


def _schema(columns: Sequence[Mapping[str, Any]]) -> Schema:
    return Schema(
        *(
            NestedField(field_id=number, name=each["name"], field_type=_TYPES[each["parquet_type"]], required=False)
            for number, each in enumerate(columns, start=1)
        )
    )


def _remove(table: Table, files: Sequence[DataFile]) -> None:
    """Have a table no longer name files; they stay."""
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        for file in files:
            overwrite.delete_data_file(file)


def _expire(table: Table, *, before_ms: int) -> int:
    """Remove earlier snapshots with the metadata that only they need; files of archives stay."""
    named = {each.snapshot_id for each in table.metadata.refs.values()}
    old = [each for each in table.snapshots() if each.timestamp_ms < before_ms and each.snapshot_id not in named]
    if not old:
        return 0
    everything = _metadata_files(table)
    table.maintenance.expire_snapshots().by_ids([each.snapshot_id for each in old]).commit()
    table.refresh()
    for path in everything - _metadata_files(table):
        table.io.delete(path)
    return len(old)


def _metadata_files(table: Table) -> set[str]:
    return {
        path
        for snapshot in table.snapshots()
        for path in (snapshot.manifest_list, *(each.manifest_path for each in snapshot.manifests(table.io)))
    }
