"""Checks a PostgreSQL server: settings for durable commits, head-room, schema, clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from queuekeeper.clock import Clock, system_clock
from queuekeeper.doctor.findings import Finding, Notes, State, clock_finding, encryption_finding
from queuekeeper.doctor.machine import room_finding
from queuekeeper.doctor.queue_tables import FROZEN_SHARE_WARNING, PRINT_ROLE, examine_queue_tables
from queuekeeper.errors import QueuekeeperError, RefusedError
from queuekeeper.migration.servers import check_source
from queuekeeper.postgres import Connection, address, connect, is_local, translated_errors
from queuekeeper.schema_migrations import migrations as known_migrations
from queuekeeper.schema_migrations import outdated, schema_version
from queuekeeper.sql_statements import statement

CONNECTION_SHARE_WARNING = 0.8
KEPT_GIB_WARNING = 10.0


class _Facts(NamedTuple):
    is_standby: bool
    wal_level: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    autovacuum: bool
    max_connections: int
    connections: int
    encrypted: bool
    now_ms: int
    frozen_share: float
    data_directory: str | None


def examine_postgres(url: str, *, clock: Clock = system_clock) -> list[Finding]:
    """Check the source and control database; what cannot be checked is noted as unknown.

    :param url: address of the database.
    :param clock: clock of this machine.
    """
    notes = Notes("PostgreSQL")
    try:
        connection = connect(url, autocommit=True)
    except QueuekeeperError as error:
        notes.unreachable(error)
        return notes.findings
    with connection:
        notes.subject = f"PostgreSQL {address(connection)}"
        try:
            _examine(notes, connection, clock)
        except QueuekeeperError as error:
            notes.unreachable(error)
    return notes.findings


def _examine(notes: Notes, connection: Connection, clock: Clock) -> None:
    before_ms = clock()
    with translated_errors(connection):
        row: Any = connection.execute(statement("queuekeeper/queries/examine_server")).fetchone()
    after_ms = clock()
    facts = _Facts(*row)
    local = is_local(connection)
    version = connection.info.server_version
    notes.add("version", State.OK, f"{version // 10_000}.{version % 10_000}")
    notes.add(
        "role",
        State.FAILED if facts.is_standby else State.OK,
        "standby: takes no writes" if facts.is_standby else "primary",
        "name the primary server",
    )
    lasting = facts.fsync and facts.full_page_writes and facts.synchronous_commit != "off"
    notes.add(
        "durability",
        State.OK if lasting else State.FAILED if not facts.fsync else State.WARNING,
        f"fsync {_switch(facts.fsync)}, full_page_writes {_switch(facts.full_page_writes)}, "
        f"synchronous_commit {facts.synchronous_commit}",
        "a crash may lose or damage what was committed: switch all three on (ALTER SYSTEM SET ..., then reload)",
    )
    notes.add("write-ahead log", State.OK, f"wal_level {facts.wal_level}")
    _slots(notes, connection)
    full = facts.connections > CONNECTION_SHARE_WARNING * facts.max_connections
    notes.add(
        "connections",
        State.WARNING if full else State.OK,
        f"{facts.connections:,} of {facts.max_connections:,}",
        "close idle ones, put a pooler before the server, or raise max_connections",
    )
    old = facts.frozen_share > FROZEN_SHARE_WARNING
    notes.add(
        "autovacuum",
        State.FAILED if not facts.autovacuum else State.WARNING if old else State.OK,
        f"{_switch(facts.autovacuum)}; oldest transaction id at {facts.frozen_share:.0%} of autovacuum_freeze_max_age",
        "switch autovacuum on, and end what holds it back: long transactions, forgotten replication slots",
    )
    clock_finding(notes, server_ms=facts.now_ms, before_ms=before_ms, after_ms=after_ms)
    encryption_finding(
        notes, encrypted=facts.encrypted, local=local, how="add sslmode=verify-full and sslrootcert to the URL"
    )
    try:
        _schema(notes, connection)
    except RefusedError as error:
        notes.add("control schema", State.UNKNOWN, str(error), *PRINT_ROLE)
    _source(notes, connection)
    if facts.data_directory is not None and local and Path(facts.data_directory).is_dir():
        room_finding(notes, Path(facts.data_directory), ["its data"])
    else:
        notes.add("free disk for its data", State.UNKNOWN, "cannot be seen from here", "look on the server's machine")
    found = examine_queue_tables(connection, server=notes.subject, clock=clock)
    notes.findings += found
    if not found:
        notes.add("queue tables", State.OK, "nothing is wrong with them")


def _slots(notes: Notes, connection: Connection) -> None:
    with translated_errors(connection):
        rows = connection.execute(statement("quality/read_replication_slots")).fetchall()
    kept = [(str(slot), float(gib or 0.0)) for slot, active, _, gib in rows if not active]
    worst = max((gib for _, gib in kept), default=0.0)
    names = ", ".join(slot for slot, _ in kept)
    notes.add(
        "replication slots",
        State.WARNING if worst > KEPT_GIB_WARNING else State.OK,
        f"{len(rows)}, {len(kept)} without a reader" + (f" ({names}) keep up to {worst:,.1f} GiB" if kept else ""),
        "drop those that nobody will read again",
        " ".join(f"SELECT pg_drop_replication_slot('{slot}');" for slot, gib in kept if gib > KEPT_GIB_WARNING),
    )


def _schema(notes: Notes, connection: Connection) -> None:
    wanted = len(known_migrations())
    version = schema_version(connection)
    remedy = "queuekeeper database migrate"
    if version is None:
        notes.add("control schema", State.WARNING, "not there; the first run makes it", remedy)
    elif version < wanted:
        notes.add("control schema", State.WARNING, f"version {version}, this release needs {wanted}", remedy)
    elif version > wanted:
        found = f"version {version}, and this release knows {wanted}"
        notes.add("control schema", State.FAILED, found, "upgrade Queuekeeper on this machine")
    elif others := outdated(connection):
        notes.add("control schema", State.WARNING, f"another release has made {', '.join(others)}", remedy)
    else:
        notes.add("control schema", State.OK, f"version {version}")


def _source(notes: Notes, connection: Connection) -> None:
    """Check TBMQ's tables, which only a database to migrate from has."""
    try:
        check_source(connection)
    except RefusedError as error:
        notes.add("TBMQ 1.x tables", State.UNKNOWN, str(error), "only a migration from this database needs them")
    else:
        notes.add("TBMQ 1.x tables", State.OK, "there, with all columns and keys")


def _switch(on: bool) -> str:
    return "on" if on else "off"
