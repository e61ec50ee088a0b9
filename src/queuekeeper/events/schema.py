"""Installs, upgrades and removes the event broker's schema ``pgmb``."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path

from psycopg import sql

from queuekeeper import assets, schema_files
from queuekeeper.errors import RefusedError
from queuekeeper.postgres import Connection, address, outside_dependants, translated_errors
from queuekeeper.schema_migrations import Migration, check_history, migrations
from queuekeeper.sql_statements import statement
from queuekeeper.wording import named

MINIMUM_SERVER_VERSION = 150_000
"""PostgreSQL 15, the first version with ``max(xid8)``."""

INSTALL = "run `queuekeeper events install`"
"""What to do when a database lacks the event broker, or a part of it."""

_LOCK = int.from_bytes(hashlib.sha256(b"queuekeeper.pgmb").digest()[:8], "big", signed=True)

_BASELINE = ("schema", "role", "types", "tables")
_CODE = ("views", "functions", "triggers")
_OWNER = re.compile(r"^-- owner: (\w+)$", re.MULTILINE)
# An upgrade does not replace these functions, which an operator may have replaced; a migration would.
_KEPT = re.compile(r"^-- kept by upgrades$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class InstallReport:
    """Result of :func:`install`.

    :param created: whether the call created the schema.
    :param applied: names of the migrations that the call applied.
    :param version: version of the tables now, which is the number of migrations of this release.
    """

    created: bool
    applied: tuple[str, ...]
    version: int


@dataclass(frozen=True, kw_only=True)
class SchemaStatus:
    """State of the schema.

    :param installed: whether the schema exists.
    :param version: version of its tables; ``None`` when it does not exist.
    :param pending: names of the migrations that :func:`install` of this release would apply.
    """

    installed: bool
    version: int | None
    pending: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DispatchStatus:
    """State of dispatching. Counts of events stop at 100,000.

    :param polled_at: instant of the last poll, to the second.
    :param last_dispatch_id: id of the last dispatch.
    :param undispatched: number of committed events that no poll has dispatched yet.
    :param oldest_undispatched_id: id of the oldest of them; ``None`` when there is none.
    :param scheduled: number of scheduled events, with those that are overdue.
    :param overdue: number of scheduled events that are due and not dispatched yet.
    :param reenqueued: number of events that will be dispatched again.
    :param quarantined_subscriptions: number of subscriptions in quarantine.
    :param retention_limit: id below which no group needs any event, so that retention may drop older partitions.
    :param head_room_s: seconds until the newest partition of events ends. Then events go to the overflow partition,
        unless maintenance has created partitions. ``None`` without an overflow partition.
    :param overflow_in_use: whether that time is over, since maintenance has not run; ``None`` without an overflow
        partition.
    """

    polled_at: datetime
    last_dispatch_id: str
    undispatched: int
    oldest_undispatched_id: str | None
    scheduled: int
    overdue: int
    reenqueued: int
    quarantined_subscriptions: int
    retention_limit: str
    head_room_s: float | None
    overflow_in_use: bool | None


def _folder() -> Path:
    return assets.directory("sql") / "events"


def _files(*names: str) -> Iterator[Path]:
    for name in names:
        folder = _folder() / name
        yield from sorted(folder.glob("*.sql")) if folder.is_dir() else [folder.with_suffix(".sql")]


def _ordered(*names: str) -> list[Path]:
    """Return the files of some folders in order, each after the files that its header names."""
    return schema_files.ordered(_files(*names), known=_files(*_BASELINE, *_CODE))


def _text(path: Path, *, replace: bool) -> str:
    """Return the statement of a file; with ``replace`` it replaces an object that exists."""
    text = path.read_text("utf-8").strip()
    owner, created = _OWNER.search(text), schema_files.code(text)
    if replace:
        text = schema_files.replacing(text)
    if owner and created:
        kind, name = created
        # ALTER OWNER needs a new owner that may create objects in the schema.
        text += (
            f"\n\nGRANT CREATE ON SCHEMA pgmb TO {owner[1]};\n"
            f"ALTER {kind} pgmb.{name} OWNER TO {owner[1]};\n"
            f"REVOKE CREATE ON SCHEMA pgmb FROM {owner[1]};"
        )
    return text


def _baseline_checksum() -> str:
    return schema_files.checksum("".join(schema_files.read(path) for path in _files(*_BASELINE)))


def _migrations(directory: Path | None) -> list[Migration]:
    return migrations(directory or _folder() / "migrations")


def _ledger(known: list[Migration]) -> str:
    rows = [(0, "baseline", _baseline_checksum()), *((each.version, each.name, each.checksum) for each in known)]
    values = ",\n".join(f"({version}, '{name}', '{checksum}')" for version, name, checksum in rows)
    return f"INSERT INTO pgmb.migrations (version, name, checksum)\nVALUES\n{values};"


def script(*, directory: Path | None = None) -> str:
    """Return one file that installs the broker in a database without it, for ``psql -f``.

    :param directory: directory of the migrations; ``sql/events/migrations`` when absent.
    """
    parts = [
        "-- Event broker of Queuekeeper, schema pgmb, for PostgreSQL 15 or later. All of it or nothing.",
        "BEGIN;",
        # Functions may name objects that are created later.
        "SET LOCAL check_function_bodies TO off;",
        *(_text(path, replace=False) for path in _ordered(*_BASELINE, *_CODE)),
        *(_text(path, replace=False) for path in _files("grants", "defaults", "begin")),
        _ledger(_migrations(directory)),
        "COMMIT;",
    ]
    return "\n\n".join(part if part.endswith(";") or part.startswith("--") else f"{part};" for part in parts) + "\n"


def install(connection: Connection, *, directory: Path | None = None) -> InstallReport:
    """Create schema ``pgmb``, or upgrade it to this release.

    The work is one transaction under an advisory lock, so a failure changes nothing, and two processes may call it.

    :param directory: directory of the migrations; ``sql/events/migrations`` when absent.
    :raises RefusedError: when the server is too old, a schema ``pgmb`` of another program exists, an applied migration
        was changed, the database is newer than this release, or a privilege is missing.
    """
    check_server(connection)
    known = _migrations(directory)
    with translated_errors(connection), connection.transaction():
        lock(connection)
        installed = _installed(connection)
        if installed is None:
            create(connection, directory=directory)
            return InstallReport(created=True, applied=(), version=len(known))
        pending = _pending(known, installed)
        connection.execute(sql.SQL("SET LOCAL check_function_bodies TO off"))
        for migration in pending:
            connection.execute(sql.SQL(migration.text))
            connection.execute(
                statement("events/queries/record_migration"),
                {"version": migration.version, "name": migration.name, "checksum": migration.checksum},
            )
        for path in (*_files(*_CODE), *_files("grants", "defaults")):
            if not _KEPT.search(path.read_text("utf-8")):
                connection.execute(sql.SQL(_text(path, replace=True)))
    return InstallReport(created=False, applied=tuple(each.name for each in pending), version=len(known))


def lock(connection: Connection) -> None:
    """Lock the schema until the transaction ends: one process at a time installs, takes over or removes it."""
    connection.execute(statement("events/queries/lock_schema"), {"key": _LOCK})


def create(connection: Connection, *, directory: Path | None = None) -> None:
    """Create schema ``pgmb`` in the caller's transaction.

    :param directory: directory of the migrations; ``sql/events/migrations`` when absent.
    """
    # The script without its own BEGIN and COMMIT.
    body = script(directory=directory).removesuffix("COMMIT;\n").partition("BEGIN;")[2]
    connection.execute(sql.SQL(body))


def uninstall(connection: Connection) -> bool:
    """Remove schema ``pgmb`` with all events; return whether it existed. The role ``pgmb_reader`` stays.

    :raises RefusedError: when another program owns the schema, a privilege is missing, or objects elsewhere depend on
        it.
    """
    with translated_errors(connection), connection.transaction():
        lock(connection)
        if _installed(connection) is None:
            return False
        outside = outside_dependants(connection, ["pgmb"])
        if outside:
            raise RefusedError(
                f"schema pgmb is used from outside, and removing it would destroy {named(outside)}: "
                "drop or change that first; nothing was removed"
            )
        for (command,) in connection.execute(statement("events/queries/foreign_triggers")).fetchall():
            connection.execute(sql.SQL(command))
        connection.execute(statement("events/queries/drop_schema"))
    return True


def status(connection: Connection, *, directory: Path | None = None) -> SchemaStatus:
    """Return the state of the schema.

    :raises RefusedError: as :func:`install`.
    """
    known = _migrations(directory)
    with translated_errors(connection):
        installed = _installed(connection)
    if installed is None:
        return SchemaStatus(installed=False, version=None, pending=())
    pending = _pending(known, installed)
    return SchemaStatus(installed=True, version=len(known) - len(pending), pending=tuple(each.name for each in pending))


def dispatch_status(connection: Connection) -> DispatchStatus:
    """Return the state of dispatching.

    :raises RefusedError: when the broker is not installed, or a privilege is missing.
    """
    with translated_errors(connection, missing=INSTALL):
        row = connection.execute(statement("events/queries/dispatch_status")).fetchone()
    assert row is not None
    return DispatchStatus(**dict(zip((each.name for each in fields(DispatchStatus)), row, strict=True)))


def check_server(connection: Connection) -> None:
    """Refuse a server that is too old."""
    version = connection.info.server_version
    if version < MINIMUM_SERVER_VERSION:
        raise RefusedError(
            f"PostgreSQL at {address(connection)} is version {version // 10_000}: the event broker needs "
            f"{MINIMUM_SERVER_VERSION // 10_000} or later; upgrade the server"
        )


def _installed(connection: Connection) -> list[tuple[int, str, str]] | None:
    row = connection.execute(statement("events/queries/has_schema")).fetchone()
    assert row is not None
    has_schema, has_ledger = row
    if not has_schema:
        return None
    if not has_ledger:
        raise RefusedError(
            f"schema pgmb at {address(connection)} was not installed by Queuekeeper: it is left alone; if it is "
            "PGMB's, take it over (queuekeeper events install --from-pgmb --dry-run), else use another database, or "
            "rename the schema once nothing uses it any more"
        )
    return connection.execute(statement("events/queries/applied_migrations")).fetchall()


def _pending(known: list[Migration], installed: list[tuple[int, str, str]]) -> list[Migration]:
    applied = [row for row in installed if row[0] > 0]
    check_history("pgmb", known, applied)
    return known[len(applied) :]


if __name__ == "__main__":
    sys.stdout.write(script())
