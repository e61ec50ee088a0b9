"""What the servers of a migration must be like, whatever is planned for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from queuekeeper.errors import RefusedError, SchemaMismatch
from queuekeeper.postgres import Connection, address, translated_errors
from queuekeeper.redis_client import ServerFacts, unfit
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

MEMORY_SHARE = 0.9
"""Share of a server's memory that forecast and present use may take together; the rest is for clients and buffers."""


class Column(NamedTuple):
    """What a column of the source must be like.

    :param type: as the vendor has it; ``text`` does for ``character varying``.
    :param since: release of the vendor that added it.
    """

    type: str
    since: str = "1.0"


_TEXT = "character varying"
WRONG_SOURCE = "name the database of TBMQ 1.4"
MESSAGES = "device_publish_msg"
SESSIONS = "device_session_ctx"
SOURCE_TABLES: Mapping[str, Mapping[str, Column]] = {
    MESSAGES: {
        "client_id": Column(_TEXT),
        "serial_number": Column("bigint"),
        "topic": Column(_TEXT),
        "time": Column("bigint"),
        "packet_id": Column("integer"),
        "packet_type": Column(_TEXT),
        "qos": Column("integer"),
        "payload": Column("bytea"),
        "user_properties": Column(_TEXT),
        "retain": Column("boolean"),
        "msg_expiry_interval": Column("integer", since="1.1"),
        "payload_format_indicator": Column("integer", since="1.2.1"),
        "content_type": Column(_TEXT, since="1.2.1"),
        "response_topic": Column(_TEXT, since="1.3"),
        "correlation_data": Column("bytea", since="1.3"),
    },
    SESSIONS: {
        "client_id": Column(_TEXT),
        "last_updated_time": Column("bigint"),
        "last_serial_number": Column("bigint"),
        "last_packet_id": Column("integer"),
    },
}
"""Tables of the vendor that a migration reads, with their columns."""

_FILLED = {MESSAGES: ("client_id", "serial_number", "payload"), SESSIONS: ("client_id",)}
"""Columns that every row has. Without a key no row can be read in order, and without a payload none is compared."""

_KEYS = {MESSAGES: "client_id, serial_number", SESSIONS: "client_id"}


def check_source(connection: Connection, *, payloads: bool = True) -> None:
    """Check that the database holds the two tables of TBMQ 1.4 and that all of their rows can be read.

    :param payloads: false: messages need not be readable themselves; whoever asks has another way to their facts.
    :raises SchemaMismatch: naming everything that is missing or different, and how to get it.
    :raises RefusedError: when rows are kept from us by privileges or row security.
    """
    with translated_errors(connection, missing=WRONG_SOURCE):
        tables = {
            name: (kind, readable, filtered, keys)
            for name, kind, readable, filtered, keys in connection.execute(statement("sessions/source_tables"))
        }
        columns: dict[str, dict[str, str]] = {name: {} for name in SOURCE_TABLES}
        may_lack = False
        for table, column, type_name, may_be_absent in connection.execute(statement("sessions/source_columns")):
            columns[table][column] = type_name
            may_lack |= may_be_absent and column in _FILLED[table]
        row = connection.execute(statement("sessions/source_encoding")).fetchone()
    where = address(connection)
    missing = [name for name in SOURCE_TABLES if name not in tables]
    if missing:
        raise SchemaMismatch(
            f"the database at {where} lacks {' and '.join(missing)}: name the database of TBMQ 1.x "
            "(TBMQ 2.0.0 and 2.0.1 drop these tables when they upgrade: restore the backup made before); "
            "to try with made-up sessions: `queuekeeper sample`"
        )
    problems = [problem for name in SOURCE_TABLES for problem in _differences(name, columns[name])]
    for name, (kind, _, _, keys) in tables.items():
        if kind not in ("r", "p"):
            problems.append(f"{name} is not a table: name the database that holds the table itself")
        elif _KEYS[name] not in keys:
            problems.append(
                f"{name} has no unique key over ({_KEYS[name]}), so rows could be duplicates: "
                f"ALTER TABLE {name} ADD PRIMARY KEY ({_KEYS[name]})"
            )
    if row is not None and row[0] == "SQL_ASCII":
        problems.append("the database's encoding is SQL_ASCII, so text may be anything: restore it as UTF8")
    if problems:
        raise SchemaMismatch(f"the database at {where} does not look like TBMQ 1.4: {'; '.join(problems)}")
    for name, (_, readable, filtered, _) in tables.items():
        if not payloads and name == MESSAGES:
            continue
        if not readable:
            raise RefusedError(
                f"user {connection.info.user} may not read {name} at {where}: "
                f"GRANT SELECT ON {name} TO {connection.info.user}"
            )
        if filtered:
            raise RefusedError(
                f"row security hides rows of {name} at {where} from user {connection.info.user}: "
                f"use the table's owner, or ALTER ROLE {connection.info.user} BYPASSRLS"
            )
    if may_lack and payloads:
        _check_filled(connection, where)


def _check_filled(connection: Connection, where: str) -> None:
    """Check that no row of the source lacks what only another program than TBMQ leaves out.

    :raises RefusedError: with the statement that helps.
    """
    with translated_errors(connection, missing=WRONG_SOURCE), connection.transaction():
        connection.execute(statement("queuekeeper/queries/allow_long_statements"))
        gaps = connection.execute(statement("sessions/source_gaps")).fetchall()
    if gaps:
        problems = [
            f"{number_of(count, 'row')} of {table} without {column}, which TBMQ never writes ({remedy})"
            for table, column, remedy, count in gaps
        ]
        raise RefusedError(f"the source at {where} has {', '.join(problems)}: mend these rows first")


def _differences(table: str, found: dict[str, str]) -> list[str]:
    problems: list[str] = []
    for name, column in SOURCE_TABLES[table].items():
        kind = found.get(name)
        if kind is None and column.since == "1.0":
            problems.append(f"{table} lacks column {name} ({column.type}), which every release has: check the database")
        elif kind is None:
            problems.append(
                f"{table} lacks column {name}, which TBMQ {column.since} added: upgrade TBMQ to 1.4 first, "
                f"or ALTER TABLE {table} ADD COLUMN {name} {column.type}"
            )
        elif kind != column.type and (kind, column.type) != ("text", _TEXT):
            problems.append(f"{table}.{name} is {kind}: it must be {column.type}")
    return problems


def server_warnings(server: ServerFacts) -> list[str]:
    """Return what makes a server a risky target, each with its remedy."""
    warnings = []
    if not server.aof_enabled:
        warnings.append(
            f"Redis at {server.address} keeps no append-only file, so a crash loses what was copied: "
            "CONFIG SET appendonly yes"
        )
    return warnings


def server_problems(server: ServerFacts) -> list[str]:
    """Return what keeps a server from being a target at all, each with its remedy."""
    problems = unfit(server)
    if server.maxmemory_policy != "noeviction":
        problems.append(
            f"Redis at {server.address} may evict messages (maxmemory-policy {server.maxmemory_policy}): "
            "CONFIG SET maxmemory-policy noeviction"
        )
    return problems
