"""Migrations: what brings schema ``queuekeeper`` to the state that this release needs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psycopg
from psycopg import sql

from queuekeeper import assets, schema_files
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.postgres import MIGRATE, Connection, address, server_words, translated_errors
from queuekeeper.sql_statements import statement
from queuekeeper.wording import named

MIGRATIONS = "migrations"
_MIGRATION_LOCK = int.from_bytes(hashlib.sha256(b"queuekeeper.schema_migrations").digest()[:8], "big", signed=True)
_MIGRATION_NAME = re.compile(r"(\d{4})_[a-z0-9]+(?:_[a-z0-9]+)*\.sql")
_TABLES = "tables"
_CODE = ("functions", "views")
# Lines within a migration: what follows is of these tables; these are made, or replaced, at this point.
_DIRECTIVE = re.compile(r"^-- (changes|makes): (.+)$", re.MULTILINE)
LOCK_TIMEOUT = "5s"
"""Longest wait for one table in use: whoever wants it meanwhile waits behind."""
_ALTERS = re.compile(r"^ALTER TABLE queuekeeper\.(\w+)", re.MULTILINE)
_MAKES = re.compile(r"^CREATE TABLE queuekeeper\.(\w+)|^ALTER TABLE .* RENAME TO (\w+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One file of the path from an empty database to the present schema.

    :param version: number at the start of its name.
    :param checksum: SHA-256 of its text, with line ends normalised.
    """

    version: int
    name: str
    checksum: str
    text: str


@dataclass(frozen=True, kw_only=True)
class MigrationsReport:
    """What a call of :func:`migrate` did.

    :param applied: names of the files applied by this call, in order.
    :param version: version of the schema afterwards.
    """

    applied: tuple[str, ...]
    version: int


def migrations(directory: Path | None = None) -> list[Migration]:
    """Return all migrations in order.

    Those of ``released.sha256`` keep the checksum under which databases have applied them, whatever is left of them.

    :param directory: where they are; ``sql/migrations`` when absent.
    :raises UsageError: when a name is not ``NNNN_words.sql`` or a number is missing or given twice.
    """
    folder = directory or assets.directory("sql") / MIGRATIONS
    texts = {path.name: schema_files.read(path) for path in folder.glob("*.sql")}
    released = "".join(schema_files.read(path) for path in folder.glob("released.sha256"))
    checksums = {name: checksum for checksum, name in re.findall(r"^(\w+)  (.+)$", released, re.MULTILINE)}
    found: list[Migration] = []
    for name in sorted({*texts, *checksums}):
        match = _MIGRATION_NAME.fullmatch(name)
        if match is None:
            raise UsageError(f"migration {name} is misnamed: it must look like 0002_some_words.sql")
        text = texts.get(name, "")
        checksum = checksums.get(name) or schema_files.checksum(text)
        found.append(Migration(version=int(match[1]), name=name, checksum=checksum, text=text))
        if found[-1].version != len(found):
            raise UsageError(f"migration {name} is out of order: number {len(found):04d} is expected here")
    return found


def migrate(connection: Connection, *, directory: Path | None = None) -> MigrationsReport:
    """Bring schema ``queuekeeper`` to the state this release needs; two processes at once do no harm.

    A database without it gets the schema as the files of ``sql/queuekeeper`` have it. In one of an earlier release the
    tables that are missing are made from their files, migrations change those that were there, and functions and views
    whose files have changed are replaced. All of it happens in one transaction under an advisory lock, or nothing.

    :param directory: where the migrations are; ``sql/migrations`` when absent.
    :raises RefusedError: when an applied file was changed, the database is newer than this release, the schema has
        objects without a history, a table is in use for too long, or a privilege is missing.
    """
    known = migrations(directory)
    is_there = False
    try:
        with translated_errors(connection), connection.transaction():
            connection.execute(statement("queuekeeper/queries/allow_long_statements"))
            connection.execute(sql.SQL("SET LOCAL lock_timeout TO 0"))
            connection.execute(statement("queuekeeper/queries/lock_migrations"), {"key": _MIGRATION_LOCK})
            connection.execute(sql.SQL("SET LOCAL lock_timeout TO {}").format(LOCK_TIMEOUT))
            # Functions may name what comes later.
            connection.execute(sql.SQL("SET LOCAL check_function_bodies TO off"))
            is_there = _holds(connection, "has_schema")
            applied = _applied(connection)
            check_history("queuekeeper", known, applied)
            pending = known[len(applied) :]
            if applied:
                _upgrade(connection, pending)
            else:
                _begin(connection, is_there=is_there)
            for migration in pending:
                connection.execute(
                    statement("queuekeeper/queries/record_migration"),
                    {"version": migration.version, "name": migration.name, "checksum": migration.checksum},
                )
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        holders = named(lock_holders(connection, "queuekeeper")) or "sessions that have left meanwhile"
        raise RefusedError(
            f"tables of schema queuekeeper at {address(connection)} were in use for longer than {LOCK_TIMEOUT}: end "
            f"the transactions of {holders}, then repeat; nothing was changed"
        ) from error
    except RefusedError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            user, database = connection.info.user, connection.info.dbname
            raise RefusedError(
                f"user {user} may not change schema queuekeeper in database {database}: have its owner {MIGRATE} "
                f"({server_words(error.__cause__)})"
                if is_there
                else f"user {user} may not create schema queuekeeper in database {database}: "
                f"GRANT CREATE ON DATABASE {database} TO {user}, or name another user ({server_words(error.__cause__)})"
            ) from error.__cause__
        raise
    return MigrationsReport(applied=tuple(migration.name for migration in pending), version=len(known))


def lock_holders(connection: Connection, schema: str) -> list[str]:
    """Return which sessions use the tables of a schema, each in words."""
    rows = connection.execute(statement("queuekeeper/queries/lock_holders"), {"schema": schema}).fetchall()
    return [f"pid {pid} ({application}, user {user})" for pid, application, user in rows]


def _begin(connection: Connection, *, is_there: bool) -> None:
    """Make everything; an administrator may have made the empty schema for a role that may make none."""
    if others := sorted(_objects(connection)):
        raise RefusedError(
            f"schema queuekeeper has {named(others)} and no history of "
            "migrations: restore table schema_migrations from a backup, or drop or rename the schema"
        )
    if not is_there:
        connection.execute(statement("queuekeeper/schema"))
    _make(connection, _schema_files())


def _schema_files(*kinds: str) -> list[Path]:
    folder = assets.directory("sql") / "queuekeeper"
    return [path for kind in kinds or (_CODE[0], _TABLES, _CODE[1]) for path in sorted((folder / kind).glob("*.sql"))]


def _upgrade(connection: Connection, pending: list[Migration]) -> None:
    files = {path.stem: path for path in _schema_files()}
    # What migrations make or rename themselves is theirs to make.
    theirs = {found[1] or found[2] for migration in pending for found in _MAKES.finditer(migration.text)}
    made = _make(connection, [path for path in _schema_files(_TABLES) if path.stem not in theirs])
    for migration in pending:
        # Alternately: text, word of a directive, names behind it.
        parts = ["changes", "", *_DIRECTIVE.split(migration.text)]
        for word, names, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            if word == "makes":
                _make(connection, [files[name] for name in names.split(", ")])
            altered = set(_ALTERS.findall(text)) - theirs
            changed = {*altered, *names.split(", ")} if word == "changes" and names else altered
            # A table that was just made has the present shape already.
            if changed.isdisjoint(made) and changed <= _objects(connection).keys():
                connection.execute(sql.SQL(text))
    _make(connection, list(files.values()))


def outdated(connection: Connection) -> list[str]:
    """Return names of the functions and views of the schema that another release has made."""
    with translated_errors(connection):
        there = _objects(connection)
    return [path.stem for path in _schema_files(*_CODE) if there.get(path.stem) != _mark(schema_files.read(path))]


def _mark(text: str) -> str:
    return f"made by a file of Queuekeeper with the SHA-256 {schema_files.checksum(text)}"


def _objects(connection: Connection) -> dict[str, str | None]:
    rows = connection.execute(statement("queuekeeper/queries/schema_objects")).fetchall()
    return {row[0]: row[1] for row in rows}


def _make(connection: Connection, paths: list[Path]) -> set[str]:
    """Make what is missing with what it needs, and replace functions and views that another text has made.

    A function or view tells by its comment which text has made it.

    :return: names of all that was made or replaced.
    """
    there, made = _objects(connection), set[str]()
    for path in schema_files.ordered(paths, known=_schema_files()):
        text = schema_files.read(path)
        created, mark = schema_files.code(text), _mark(text)
        if created and path.parent.name != _TABLES:
            if there.get(path.stem) == mark:
                continue
            text = f"{schema_files.replacing(text)}COMMENT ON {' queuekeeper.'.join(created)} IS '{mark}'"
        elif path.stem in there:
            continue
        connection.execute(sql.SQL(text))
        made.add(path.stem)
    return made


def schema_version(connection: Connection) -> int | None:
    """Return the version of schema ``queuekeeper``; none when it is not there."""
    with translated_errors(connection):
        applied = _applied(connection)
    return applied[-1][0] if applied else None


def _applied(connection: Connection) -> list[tuple[int, str, str]]:
    if not _holds(connection, "has_migrations"):
        return []
    return cast(
        list[tuple[int, str, str]], connection.execute(statement("queuekeeper/queries/applied_migrations")).fetchall()
    )


def _holds(connection: Connection, question: str) -> bool:
    row = connection.execute(statement(f"queuekeeper/queries/{question}")).fetchone()
    return row is not None and bool(row[0])


def check_history(schema: str, known: list[Migration], applied: list[tuple[int, str, str]]) -> None:
    """Check that a schema has been made of these migrations, as far as it goes.

    :param applied: version, name and checksum of each.
    :raises RefusedError: when it is newer than this release, or a file has been changed since.
    """
    if len(applied) > len(known):
        raise RefusedError(
            f"schema {schema} is at version {applied[-1][0]}, newer than this release of Queuekeeper knows "
            f"({len(known)}): upgrade Queuekeeper"
        )
    for migration, (version, name, checksum) in zip(known, applied, strict=False):
        if (migration.version, migration.name, migration.checksum) != (version, name, checksum):
            raise RefusedError(
                f"migration {migration.name} of schema {schema} differs from {name} as it was applied to this "
                "database: restore the file, and put the change into a new migration"
            )
