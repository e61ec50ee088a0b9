"""The manifest of a partition's archive, and the comparison of an archive with its files and its table.

Each archive has its own folder::

    <folder>/<parent>/<partition>-<oid>-<first digits of the hash>/manifest.json
                                                                  rows/part-*.parquet

The hash of the rows is part of the folder's name, so that a table finds its archive, and an archive of other rows never
overwrites it. The folder is on a disk or in an object store. The manifest is written last: a folder without one is no
archive, but was left by a killed process, and the next one removes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from psycopg import sql

from queuekeeper.errors import CheckFailed, RefusedError, UsageError
from queuekeeper.places import names, shared_folder, sync, told, write_whole
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

FORMAT = 1
MANIFEST = "manifest.json"
ROWS = "rows"
WHAT = "archives"
_ADVICE = "let this user read it"
_RESTORE = "restore the file, or archive the partition again while it is in quarantine"

_NATIVE = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "int",
    "bigint": "bigint",
    "real": "float",
    "double precision": "double",
    "bytea": "binary",
}
"""Types that Parquet and PostgreSQL hold alike. Values of other types, such as JSON, numeric, arrays, enums and types
of extensions, are archived as the text that PostgreSQL writes and reads again."""

_INSTANTS = {
    "date": "date",
    "timestamp with time zone": "timestamp",
    "timestamp without time zone": "timestamp_ntz",
}
"""Types that are archived as such if every value is between 1900 and 9999, where Spark, Arrow and PostgreSQL agree on
dates; otherwise, and for infinity, as text."""

_DIGITS = 12
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ArchivedColumn:
    """One column.

    :param type_name: PostgreSQL's name of the type.
    :param parquet_type: Spark's name of the type; ``string`` for values archived as text.
    :param is_generated: whether the table computes the values, so that they are not loaded.
    """

    name: str
    type_name: str
    parquet_type: str
    is_generated: bool = False

    @property
    def expression(self) -> sql.Composable:
        """SQL expression of the archived value."""
        name = sql.Identifier(self.name)
        if self.parquet_type == "string":
            return sql.SQL("{}::text").format(name)
        # A domain is read as its base type, since the driver knows no domains.
        base = next((base for base, kind in {**_NATIVE, **_INSTANTS}.items() if kind == self.parquet_type), "text")
        return sql.SQL("{}::{}").format(name, sql.SQL(base))


@dataclass(frozen=True, kw_only=True)
class ArchivedFile:
    """One Parquet file.

    :param name: name of the file, without folders.
    """

    name: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TableContent:
    """Count and hash of a table's rows, by PostgreSQL in one pass.

    :param rows_hash: hash of all rows, whatever their order: the bitwise XOR and the sum of the first 64 bits of each
        row's MD5.
    :param key_first: lowest key as text; none without rows.
    """

    rows: int
    rows_hash: str
    key_first: str | None
    key_last: str | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Manifest of an archive.

    :param parent: partitioned table that the rows belong to, as ``schema.name``, quoted where SQL needs it.
    :param table: name of the partition when it was archived, as ``schema.name``.
    :param table_oid: OID of the partition; a new name or schema does not change it.
    :param key: column that the parent is partitioned by.
    :param bounds: bounds of the partition, as ``FOR VALUES ...``.
    :param files_hash: hash of the rows as Spark reads them from the files, whatever their order: XOR and sum of
        xxHash64.
    :param ddl: statements that create the table, for people; a restore creates it like its parent.
    """

    format: int
    system_identifier: str
    database: str
    parent: str
    table: str
    table_oid: int  # when it was archived
    key: str
    bounds: str  # as SQL writes them
    content: TableContent
    files_hash: str
    columns: tuple[ArchivedColumn, ...]
    files: tuple[ArchivedFile, ...]
    ddl: tuple[str, ...]
    archived_at_ms: int
    generated_by: str

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Manifest:
        """Return a manifest from its JSON values.

        :raises TypeError: when a value is missing, or is not known.
        """
        return cls(
            **{
                **found,
                "content": TableContent(**found["content"]),
                "columns": tuple(ArchivedColumn(**each) for each in found["columns"]),
                "files": tuple(ArchivedFile(**each) for each in found["files"]),
                "ddl": tuple(found["ddl"]),
            }
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(each.size_bytes for each in self.files)


@dataclass(frozen=True, kw_only=True)
class TableShape:
    """Definition of a table.

    :param name: ``schema.name``, quoted where SQL needs it.
    """

    oid: int
    name: str
    bare_name: str
    is_attached: bool
    system_identifier: str
    database: str
    columns: tuple[ArchivedColumn, ...]
    ddl: tuple[str, ...]


def pin_texts(connection: Connection) -> None:
    """Make the text of values in this transaction independent of the server's settings."""
    connection.execute(statement("maintenance/pin_texts"))


def describe_table(connection: Connection, table: str) -> TableShape:
    """Return the definition of a table; call :func:`pin_texts` first in the same transaction.

    :param table: as ``schema.name``, quoted where SQL needs it.
    :raises UsageError: when there is no such table.
    :raises RefusedError: when it is not an ordinary table, or the database has no known encoding.
    """
    with translated_errors(connection):
        found = connection.execute(statement("maintenance/archived_table"), {"table_name": table}).fetchone()
        if found is None:
            raise UsageError(f"there is no table {table} in database {connection.info.dbname}")
        oid, name, schema, bare_name, kind, is_attached, system, database, encoding = found
        if kind != "r":
            raise RefusedError(f"{table} is not an ordinary table: partitions are archived one by one, the lowest ones")
        if encoding == "SQL_ASCII":
            raise RefusedError(
                f"database {database} has encoding SQL_ASCII, so nobody knows what its text means, and Parquet "
                "holds UTF-8: move it to a database with an encoding"
            )
        columns, lines = _columns(connection, oid=oid, schema=schema, name=bare_name)
        definitions = connection.execute(statement("maintenance/archived_definitions"), {"table_oid": oid}).fetchall()
    create = f"CREATE TABLE {name} (\n" + ",\n".join(lines) + "\n)"
    return TableShape(
        oid=oid,
        name=name,
        bare_name=bare_name,
        is_attached=is_attached,
        system_identifier=str(system),
        database=database,
        columns=columns,
        ddl=(create, *(str(text) for (text,) in definitions)),
    )


def archived_columns(connection: Connection, *, oid: int, schema: str, name: str) -> tuple[ArchivedColumn, ...]:
    """Return the columns of a table, partitioned or not, as they are archived."""
    return _columns(connection, oid=oid, schema=schema, name=name)[0]


def _columns(
    connection: Connection, *, oid: int, schema: str, name: str
) -> tuple[tuple[ArchivedColumn, ...], list[str]]:
    """Return the columns, and the lines of the statement that creates them."""
    rows = connection.execute(statement("maintenance/archived_columns"), {"table_oid": oid}).fetchall()
    instants = _in_range(connection, schema, name, [column for column, _, base, *_ in rows if base in _INSTANTS])
    lines = []
    columns = []
    for column, type_name, base, is_not_null, default_text, generated in rows:
        kind = _NATIVE.get(base) or (_INSTANTS[base] if column in instants else "string")
        columns.append(
            ArchivedColumn(name=column, type_name=type_name, parquet_type=kind, is_generated=bool(generated))
        )
        form = f"GENERATED ALWAYS AS ({default_text}) {generated}" if generated else f"DEFAULT {default_text}"
        lines.append(
            f"    {sql.Identifier(column).as_string(connection)} {type_name}{f' {form}' if default_text else ''}"
            f"{' NOT NULL' if is_not_null else ''}"
        )
    return tuple(columns), lines


def table_content(connection: Connection, table: str, *, columns: Sequence[ArchivedColumn], key: str) -> TableContent:
    """Count and hash the rows of a table; call :func:`pin_texts` first in the same transaction.

    :param table: as ``schema.name``, quoted where SQL needs it.
    :param columns: columns that the hash covers, in this order.
    """
    query = sql.SQL(
        "SELECT count(*), bit_xor(hash), sum(hash), min(key)::text, max(key)::text FROM ("
        "SELECT ('x' || substr(md5(row({columns})::text), 1, 16))::bit(64)::bigint AS hash, {key} AS key FROM {table}"
        ") AS hashed"
    ).format(
        columns=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        key=sql.Identifier(key),
        table=sql.SQL(table),
    )
    with translated_errors(connection):
        row = connection.execute(query).fetchone()
    assert row is not None
    rows, exclusive, total, first, last = row
    return TableContent(rows=rows, rows_hash=hash_text(exclusive, total), key_first=first, key_last=last)


def hash_text(exclusive: int | None, total: Any) -> str:
    """Return the XOR and the sum of 64-bit hashes as text.

    XOR alone would not notice two equal rows.
    """
    mask = (1 << 64) - 1
    return f"{(exclusive or 0) & mask:016x}{int(total or 0) & mask:016x}"


def archive_place(place: Path | str, *, name: str = "the folder of archives") -> Path:
    """Return the folder of archives, or of one archive, as a path.

    :param place: path or URL, the same for Spark, tasks and commands.
    :param name: name of the setting, for the error.
    :raises UsageError: when the path is not absolute, or no installed package opens that object store.
    """
    return shared_folder(place, what=WHAT, name=name)


def parent_name(parent: str) -> str:
    """Return the name of the folder with the archives of a table's partitions."""
    return quote(parent, safe="")


def archive_name(shape: TableShape, content: TableContent) -> str:
    """Return the name of the folder for the archive of a table with this content."""
    return f"{quote(shape.bare_name, safe='')}-{shape.oid}-{content.rows_hash[:_DIGITS]}"


def archive_exists(path: Path) -> bool:
    """Return whether a folder holds an archive, which has a manifest.

    :raises RefusedError: when the folder cannot be read.
    """
    with told(f"archives cannot be looked for in {path}", path, _ADVICE):
        return MANIFEST in names(path, what=WHAT)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of an archive.

    :param path: folder of the archive.
    :raises RefusedError: when there is no manifest, or it cannot be read.
    """
    with told(f"{path / MANIFEST} cannot be read", path, _ADVICE):
        try:
            text = (path / MANIFEST).read_bytes()
        except FileNotFoundError:
            raise RefusedError(f"there is no archive in {path}: it has no {MANIFEST}") from None
    try:
        found = json.loads(text)
        if found["format"] != FORMAT:
            raise RefusedError(
                f"the archive in {path} has format {found['format']}, and this release knows {FORMAT}: use the release "
                f"that wrote it ({found.get('generated_by', 'unknown')})"
            )
        return Manifest.of(found)
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(f"{path / MANIFEST} cannot be read: {error}") from error


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of an archive, whole and durable or not at all.

    :raises RefusedError: when it cannot be written.
    """
    with told(f"{path / MANIFEST} cannot be written", path, "make room, or let this user write"):
        write_whole(path / MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
        sync(path)


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file of an archive.

    :raises CheckFailed: when the file is missing.
    :raises RefusedError: when the file cannot be read.
    """
    with told(f"{path} of the archive cannot be read", path, _ADVICE):
        try:
            with path.open("rb") as file:
                yield file
        except FileNotFoundError as error:
            raise CheckFailed(f"{path} of the archive cannot be read: it is not there; {_RESTORE}") from error


def sum_file(path: Path) -> tuple[int, str]:
    """Return size and SHA-256 of a file."""
    digest = hashlib.sha256()
    size = 0
    with reading(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def check_files(path: Path, manifest: Manifest) -> None:
    """Compare the files of an archive with its manifest, byte by byte.

    :param path: folder of the archive.
    :raises CheckFailed: when a file is missing or differs; names the first one.
    :raises RefusedError: when a file cannot be read.
    """
    for each in manifest.files:
        file = path / ROWS / each.name
        _check_sum(file, each, sum_file(file))


def read_file(path: Path, expected: ArchivedFile) -> bytes:
    """Return what a file of an archive holds; for errors see :func:`check_files`.

    :param path: folder of the archive.
    """
    file = path / ROWS / expected.name
    with reading(file) as opened_file:
        content = opened_file.read()
    _check_sum(file, expected, (len(content), hashlib.sha256(content).hexdigest()))
    return content


def _check_sum(file: Path, expected: ArchivedFile, found: tuple[int, str]) -> None:
    if found != (expected.size_bytes, expected.sha256):
        raise CheckFailed(
            f"{file} differs from the manifest: {found[0]:,} bytes, SHA-256 {found[1]}; "
            f"expected {expected.size_bytes:,} bytes, {expected.sha256}; {_RESTORE}"
        )


def check_archive(connection: Connection, *, table: str, path: Path) -> Manifest:
    """Compare an archive with its manifest byte by byte, and the manifest with the present table, before a drop.

    :param table: as ``schema.name``, quoted where SQL needs it.
    :param path: folder of the archive.
    :raises RefusedError: when there is no such archive.
    :raises CheckFailed: when table, manifest and files do not agree.
    """
    manifest = read_manifest(path)
    with connection.transaction():
        pin_texts(connection)
        shape = describe_table(connection, table)
        content = table_content(connection, shape.name, columns=shape.columns, key=manifest.key)
    # PostgreSQL's names of types differ between roles: a schema in the search path is left out.
    own, archived = ([replace(each, type_name="") for each in columns] for columns in (shape.columns, manifest.columns))
    of_table = (shape.system_identifier, shape.database, shape.oid, own, content)
    of_archive = (manifest.system_identifier, manifest.database, manifest.table_oid, archived, manifest.content)
    if of_table != of_archive:
        raise CheckFailed(
            f"{shape.name} as it is now ({number_of(content.rows, 'row')}, hash {content.rows_hash}) is not what "
            f"is archived in {path} ({number_of(manifest.content.rows, 'row')}, hash {manifest.content.rows_hash}): "
            "archive it again"
        )
    check_files(path, manifest)
    return manifest


def _in_range(connection: Connection, schema: str, name: str, columns: Sequence[str]) -> set[str]:
    """Return the columns of dates and times whose values all lie between 1900 and 9999."""
    if not columns:
        return set()
    tests = [
        sql.SQL("coalesce(bool_and({} BETWEEN '1900-01-01' AND '9999-12-30'), TRUE)").format(sql.Identifier(column))
        for column in columns
    ]
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(tests), sql.Identifier(schema, name))
    row = connection.execute(query).fetchone()
    assert row is not None
    return {column for column, within in zip(columns, row, strict=True) if within}
