"""The table that is adopted: what it is, why it is refused, and what its copy needs to be the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from queuekeeper.errors import RefusedError, UnknownTable, UsageError
from queuekeeper.maintenance.partitions import systems
from queuekeeper.maintenance.partitions.adoption.model import AdoptionParameters
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.postgres import Connection
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

_QUERIES: LiteralString = "maintenance/adoption/"
_SPARE = 1.1
"""What indexes and the notes of changes may take beside a copy of the same size."""


class State(StrEnum):
    """How far the adoption of a table is; the catalog says it, no record."""

    PLAIN = "plain"  # no adoption is under way
    COPYING = "copying"  # the old table serves and its changes are noted
    EXCHANGED = "exchanged"  # the new table serves and its changes are noted
    LEFT = "left"  # the old table serves; what was copied is still to be dropped


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A sequence of a column.

    :param is_identity: whether it belongs to an identity column, of which each table has its own.
    """

    column: str
    name: str  # of the sequence, quoted where SQL needs it
    is_identity: bool


@dataclass(frozen=True, kw_only=True)
class Table:
    """The table of an adoption as the catalog has it now.

    :param oid: OID of the table that serves.
    :param name: ``schema.name``, quoted where SQL needs it.
    :param keys: columns of the primary key, of types ``key_types``.
    :param key_type: type of the partition key; none where the table has no such column.
    :param room: schema of an adoption under way; its name tells the OID of the plain table.
    :param is_noting: whether a trigger notes changes.
    """

    oid: int
    name: str
    schema_name: str
    relation_name: str
    owner: str  # quoted where SQL needs it
    role: str
    may_alter: bool  # whether the role is the owner, or may be
    keys: tuple[str, ...]
    key_types: tuple[str, ...]
    key_type: str | None
    columns: tuple[str, ...]
    storage: tuple[str, ...]
    bytes: int
    rows: int
    room: str | None
    is_noting: bool

    @property
    def state(self) -> State:
        """How far its adoption is."""
        if self.room is None:
            return State.PLAIN
        if not self.is_noting:
            return State.LEFT
        return State.COPYING if self.room == room_of(self.oid) else State.EXCHANGED


def room_of(oid: int) -> str:
    """Return the schema of a plain table's adoption."""
    return f"queuekeeper_adopt_{oid}"


def read(connection: Connection, asked: AdoptionParameters) -> Table:
    """Return the table that is named.

    :raises UnknownTable: when there is none.
    """
    try:
        row = connection.execute(statement(f"{_QUERIES}table"), {"table": asked.table, "key": asked.key}).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        row = None
    if row is None:
        raise UnknownTable(
            f"there is no table {asked.table} in this database: write schema.name, quoted as SQL asks for it"
        )
    # The columns of the query are the fields, in their order.
    values: Iterator[Any] = (tuple(value) if isinstance(value, list) else value for value in row)
    return Table(**dict(zip((each.name for each in fields(Table)), values, strict=True)))


def refuse(connection: Connection, table: Table, asked: AdoptionParameters) -> None:
    """Refuse a table that cannot be adopted, with all reasons at once.

    :raises RefusedError: with what to do about each reason.
    """
    reasons = [*reasons_against(connection, table.oid, asked)]
    place = {"schema_name": table.schema_name, "relation_name": table.relation_name}
    if words := systems.words_against_adoption(connection, **place):
        reasons.append(words)
    if table.key_type is not None:
        try:
            kind = Key(column=asked.key, type_name=table.key_type).kind
        except UsageError as error:
            reasons.append(str(error))
        else:
            if kind.value == "event_id":
                reasons.append(f"column {asked.key} is text: adopt by a time, a date or an integer")
    need_mib = -(-round(table.bytes * _SPARE) // 2**20)
    if asked.disk_mib is not None and need_mib > asked.disk_mib:
        reasons.append(
            f"it takes {table.bytes / 2**20:,.0f} MiB with its indexes, and a second copy about {need_mib:,} MiB: "
            f"{asked.disk_mib:,} MiB of disk are not enough; free disk and raise --disk-mib, or delete rows"
        )
    if reasons:
        raise RefusedError(f"{table.name} cannot be adopted, and nothing was written: {'; '.join(reasons)}")


def reasons_against(connection: Connection, oid: int, asked: AdoptionParameters) -> dict[str, bool]:
    """Return what the catalog has against an exchange of a table, in words, and whether it refers to the table."""
    values = {"oid": oid, "key": asked.key, "widen": asked.widen_keys}
    return {str(words): refers for words, refers in connection.execute(statement(f"{_QUERIES}refusals"), values)}


def definitions(
    connection: Connection, oid: int, asked: AdoptionParameters, *, place: str, room: str
) -> list[tuple[str, str]]:
    """Return what defines a table besides its storage, see the statement.

    :param place: schema in which the table serves.
    :param room: schema in which the statements create the copy.
    """
    values = {"oid": oid, "key": asked.key, "place": place, "room": room}
    rows = connection.execute(statement(f"{_QUERIES}definitions"), values).fetchall()
    return [(str(moment), str(words)) for moment, words in rows]


def fingerprint(found: list[tuple[str, str]]) -> str:
    """Return a text that changes when a table's definition does."""
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def sequences(connection: Connection, oid: int) -> list[Sequence]:
    """Return the sequences of a table's columns."""
    rows = connection.execute(statement(f"{_QUERIES}sequences"), {"oid": oid}).fetchall()
    return [Sequence(column=column, name=name, is_identity=identity) for column, name, identity in rows]


def extremes(connection: Connection, table: sql.Identifier, key: Key, where: sql.Composable) -> tuple[int, int] | None:
    """Return the positions of the lowest and the highest key; none without rows.

    :raises RefusedError: for a key that no partition can hold.
    """
    query = sql.SQL("SELECT min({0})::text, max({0})::text FROM {1}{2}").format(
        sql.Identifier(key.column), table, where
    )
    row = connection.execute(query).fetchone()
    if row is None or row[0] is None:
        return None
    if any("infinity" in each for each in row):
        raise RefusedError(
            f"column {key.column} holds infinity in some row, for which there is no partition: correct these rows"
        )
    lowest, highest = key.position(row[0]), key.position(row[1])
    # The upper bound of a partition is no key of its own.
    if highest == key.last_edge():
        raise RefusedError(
            f"column {key.column} holds {row[1]} in some row, the highest value of its type, for which there is no "
            "partition: correct these rows"
        )
    return lowest, highest


def too_many(count: int, asked: AdoptionParameters, lowest: str, highest: str) -> RefusedError:
    """Return the refusal of more partitions than a plan may create."""
    return RefusedError(
        f"keys from {lowest} to {highest} need more than {number_of(count, 'partition')} of {asked.step}: take a "
        "longer step, raise --at-most, or correct rows whose key lies far away"
    )
