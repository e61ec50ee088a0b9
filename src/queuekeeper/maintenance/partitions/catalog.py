"""Reads partitioned tables from the catalog: key, owner, bounds, pending detaches, data.

Bounds come from ``pg_get_expr``, and partitions are identified by OID; their names have no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import sql

from queuekeeper.errors import ForeignOwner, NotPartitioned, UnknownTable, UsageError
from queuekeeper.maintenance.partitions.keys import Key, Span
from queuekeeper.maintenance.partitions.names import cut_name
from queuekeeper.maintenance.partitions.ranges import Range, covered_until
from queuekeeper.postgres import Connection
from queuekeeper.sql_statements import statement

_QUERIES = "maintenance/partitions/"
_BOUND = re.compile(r"FOR VALUES FROM \((.+)\) TO \((.+)\)")
_OPEN = {"MINVALUE", "MAXVALUE"}


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition in the catalog.

    :param name: ``schema.name``, quoted where SQL needs it.
    :param relkind: ``r`` for a table, ``p`` for a partitioned table, ``f`` for a foreign table.
    :param lower: lower bound as SQL text; none for MINVALUE and for DEFAULT.
    :param upper: upper bound as SQL text; none for MAXVALUE and for DEFAULT.
    :param range: the bounds as positions; none for DEFAULT, and when they cannot be read.
    :param pending: whether its detach is under way or was interrupted: it takes no inserts and shows no rows.
    :param rows: the planner's estimate; none without statistics.
    """

    oid: int
    name: str
    schema_name: str
    relation_name: str
    owner: str
    relkind: str
    lower: str | None
    upper: str | None
    range: Range | None
    pending: bool
    rows: int | None
    bytes: int

    @property
    def is_foreign(self) -> bool:
        """Whether its rows are on another server."""
        return self.relkind == "f"


@dataclass(frozen=True, kw_only=True)
class PartitionedTable:
    """A table that is partitioned by ranges of one column.

    :param partitions: partitions in the order of their bounds, without DEFAULT.
    :param is_ours: whether this role may alter the table; otherwise it reads a partition's rows through the table.
    """

    oid: int
    name: str
    schema_name: str
    relation_name: str
    owner: str
    key: Key
    partitions: tuple[Partition, ...]
    default: Partition | None
    is_ours: bool = True

    @property
    def ranges(self) -> list[Range]:
        """Ranges that the partitions cover; a pending partition still occupies its range."""
        return [each.range for each in self.partitions if each.range]

    @property
    def overflow(self) -> Partition | None:
        """The partition that reaches to MAXVALUE, if any."""
        return next((each for each in self.partitions if each.range and each.range.upper is None), None)

    def covered(self, position: int) -> int | None:
        """Return the end of the partitions that cover a position without a gap, see :func:`covered_until`."""
        return covered_until((each.range for each in self.partitions if each.range and not each.pending), position)

    def identifier(self) -> sql.Identifier:
        """Return the table's name for a statement."""
        return sql.Identifier(self.schema_name, self.relation_name)


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A table, found by its OID.

    :param is_partition: whether it is a partition of some table now.
    """

    oid: int
    schema_name: str
    relation_name: str
    owner: str
    is_partition: bool
    bytes: int


def relations(connection: Connection, oids: Iterable[int]) -> dict[int, Relation]:
    """Return the relations that still exist, by OID."""
    rows = connection.execute(statement(f"{_QUERIES}relations"), {"oids": list(oids)}).fetchall()
    return {
        oid: Relation(
            oid=oid,
            schema_name=schema_name,
            relation_name=relation_name,
            owner=owner,
            is_partition=is_partition,
            bytes=size_bytes,
        )
        for oid, schema_name, relation_name, owner, is_partition, size_bytes in rows
    }


def read_table(connection: Connection, table: str, *, only_read: bool = False) -> PartitionedTable:
    """Return a table with all its partitions. The session must be pinned to UTC.

    :param table: ``schema.name``.
    :param only_read: accept a table that this role may not alter.
    :raises UnknownTable: when there is none.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises ForeignOwner: when this role may not alter it.
    """
    try:
        row = connection.execute(statement(f"{_QUERIES}read_table"), {"table": table}).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        row = None  # the text is no name, or has too many dots
    if row is None:
        raise UnknownTable(f"there is no table {table} in this database: write schema.name, quoted as SQL asks for it")
    oid, name, schema_name, relation_name, owner, may_alter, strategy, columns, column, type_name, default_oid = row
    if strategy is None:
        raise NotPartitioned(
            f"{name} is not partitioned: `queuekeeper partitions adopt` makes it so, and sets its policy"
        )
    if strategy != "r" or columns != 1 or column is None:
        raise NotPartitioned(f"{name} is not partitioned by ranges of one column: no policy can keep it")
    if not may_alter and not only_read:
        raise ForeignOwner(
            f"{name} belongs to {owner}: connect as that role, or grant it: GRANT {owner} TO {connection.info.user}"
        )
    key = Key(column=column, type_name=type_name)
    try:
        key.kind  # noqa: B018 - raises when the type is not supported
    except UsageError as error:
        raise NotPartitioned(f"{name} cannot be kept: {error}") from None
    rows = connection.execute(statement(f"{_QUERIES}read_partitions"), {"table_oid": oid}).fetchall()
    found = [_partition(key, *each) for each in rows]
    return PartitionedTable(
        oid=oid,
        name=name,
        schema_name=schema_name,
        relation_name=relation_name,
        owner=owner,
        key=key,
        partitions=tuple(
            sorted(
                (each for each in found if each.oid != default_oid),
                key=lambda each: (each.range.start, each.range.end) if each.range else (0, 0),
            )
        ),
        default=next((each for each in found if each.oid == default_oid), None),
        is_ours=may_alter,
    )


def _partition(
    key: Key,
    oid: int,
    name: str,
    schema_name: str,
    relation_name: str,
    owner: str,
    relkind: str,
    bound: str,
    pending: bool,
    rows: int | None,
    size_bytes: int,
) -> Partition:
    lower = upper = found = None
    if match := _BOUND.fullmatch(bound):
        lower, upper = (_unquoted(text) for text in match.groups())
        try:
            found = Range(
                lower=None if lower is None else key.position(lower),
                upper=None if upper is None else key.position(upper),
            )
        except UsageError:
            found = None
    return Partition(
        oid=oid,
        name=name,
        schema_name=schema_name,
        relation_name=relation_name,
        owner=owner,
        relkind=relkind,
        lower=lower,
        upper=upper,
        range=found,
        pending=pending,
        rows=rows,
        bytes=size_bytes,
    )


def _unquoted(text: str) -> str | None:
    if text in _OPEN:
        return None
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def has_rows(connection: Connection, table: PartitionedTable, partition: Partition) -> bool:
    """Return whether a partition holds any row."""
    return any_row(connection, _rows(table, partition))


def any_row(connection: Connection, rows: sql.Composable) -> bool:
    """Return whether there is any row.

    :param rows: FROM clause, or a table.
    """
    row = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(rows)).fetchone()
    return bool(row and row[0])


def _rows(
    table: PartitionedTable, partition: Partition, above: int | None = None, at_most: int | None = None
) -> sql.Composed:
    """Return the FROM clause that reads a partition's rows.

    Rights on a table give none on its partitions, so a role without these reads the range of the table.

    :param above: only rows from this key on.
    :param at_most: only rows up to this key.
    """
    lower = None if table.is_ours or partition.range is None else partition.lower
    upper = None if table.is_ours or partition.range is None else partition.upper
    if above is not None:
        lower = table.key.text(above)
    key = sql.Identifier(table.key.column)
    conditions = [
        sql.SQL("{} {} {}").format(key, sql.SQL(sign), sql.Literal(bound))
        for sign, bound in ((">=", lower), ("<", upper), ("<=", None if at_most is None else table.key.text(at_most)))
        if bound is not None
    ]
    name = (
        sql.Identifier(partition.schema_name, partition.relation_name)
        if table.is_ours or partition.range is None
        else table.identifier()
    )
    where = sql.SQL(" WHERE ") + sql.SQL(" AND ").join(conditions) if conditions else sql.SQL("")
    return sql.SQL("{}{}").format(name, where)


def highest_key(connection: Connection, table: PartitionedTable) -> int | None:
    """Return the highest key outside DEFAULT; none when there are no rows.

    Without an index on the key, it is the upper bound of the last partition with rows. A foreign table counts as full:
    its server may not answer, and partitions for new rows do not wait for that.
    """
    for each in reversed(table.partitions):
        if each.pending or each.range is None:
            continue
        if each.is_foreign and each.range.upper is not None:
            return each.range.upper - 1
        if each.is_foreign or not has_rows(connection, table, each):
            continue
        if each.range.upper is None or _has_key_index(connection, table, each):
            return _extreme(connection, table, each, "max")
        return each.range.upper - 1
    return None


def last_given_key(connection: Connection, table: PartitionedTable) -> int | None:
    """Return the last integer key that the key's own sequence has given out; none without one.

    Rows of a queue come and go: the next key follows this one, also when no row is left.
    """
    row = connection.execute(
        statement(f"{_QUERIES}last_given_key"), {"table_oid": table.oid, "key_column": table.key.column}
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def reached_key(connection: Connection, table: PartitionedTable, *, at_most: int) -> int | None:
    """Return a key that the table has reached for certain; none when there are no rows.

    Without an index on the key, it is the lower bound of the last partition with rows. Foreign tables are not asked.

    :param at_most: a key beyond this one is taken for wrong, and tells nothing.
    """
    for each in reversed(table.partitions):
        if each.pending or each.range is None or each.is_foreign or not has_rows(connection, table, each):
            continue
        if None not in (each.range.lower, each.range.upper) and not _has_key_index(connection, table, each):
            return each.range.lower
        found = _extreme(connection, table, each, "max", at_most=at_most)
        if found is not None:
            return found
    return None


def _has_key_index(connection: Connection, table: PartitionedTable, partition: Partition) -> bool:
    row = connection.execute(
        statement(f"{_QUERIES}has_key_index"), {"partition_oid": partition.oid, "key_column": table.key.column}
    ).fetchone()
    return bool(row and row[0])


def _extreme(
    connection: Connection,
    table: PartitionedTable,
    partition: Partition,
    function: LiteralString,
    above: int | None = None,
    at_most: int | None = None,
) -> int | None:
    # The key's text has to have the form of a bound, whatever type the column has.
    query = sql.SQL("SELECT {}({})::text FROM {}").format(
        sql.SQL(function), sql.Identifier(table.key.column), _rows(table, partition, above, at_most)
    )
    row = connection.execute(query).fetchone()
    return None if row is None or row[0] is None else table.key.position(str(row[0]))


def steps_with_rows(
    connection: Connection, table: PartitionedTable, partition: Partition, *, step: Span, at_most: int
) -> list[Range]:
    """Return the steps in which a partition, mostly DEFAULT, holds rows; only the first ones when there are many."""
    found: list[Range] = []
    above: int | None = None
    while len(found) < at_most:
        lowest = _extreme(connection, table, partition, "min", above)
        if lowest is None:
            break
        found.append(Range(lower=table.key.edge_before(step, lowest), upper=step.next(lowest)))
        above = found[-1].end
    return found


def row_shape(connection: Connection, partition: Partition) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the writable columns of a partition, and the columns of its primary key."""
    row = connection.execute(statement(f"{_QUERIES}row_shape"), {"oid": partition.oid}).fetchone()
    return (tuple(row[0] or ()), tuple(row[1] or ())) if row else ((), ())


def block_count(connection: Connection, oid: int) -> int:
    """Return the number of blocks of a partition."""
    row = connection.execute(statement(f"{_QUERIES}block_count"), {"oid": oid}).fetchone()
    return int(row[0]) if row else 0


def taken_names(
    connection: Connection, *, schema_name: str, quarantine_schema: str, names: Iterable[str]
) -> set[tuple[str, str]]:
    """Return the given names that are taken in a table's schema or in the quarantine, each with its schema."""
    rows = connection.execute(
        statement(f"{_QUERIES}taken_names"),
        {"schema_name": schema_name, "quarantine_schema": quarantine_schema, "names": list(names)},
    ).fetchall()
    return {(str(schema), str(name)) for schema, name in rows}


def schema_rights(connection: Connection, schema_name: str) -> tuple[bool, bool, bool]:
    """Return whether a schema exists, whether this role may create tables in it, and whether it may create schemas."""
    row = connection.execute(statement(f"{_QUERIES}schema_rights"), {"schema_name": schema_name}).fetchone()
    return (bool(row[0]), bool(row[1]), bool(row[2])) if row else (False, False, False)


def clashing_names(connection: Connection, oid: int, *, schema_name: str) -> tuple[tuple[str, str], ...]:
    """Return the names of a table and its indexes that a schema has already, each with a free name."""
    rows = connection.execute(
        statement(f"{_QUERIES}clashing_names"), {"oid": oid, "schema_name": schema_name}
    ).fetchall()
    # The OID makes the name free; it has at most ten digits.
    return tuple((name, f"{cut_name(name, room=11)}_{own_oid}") for own_oid, name in rows)


def foreign_keys(connection: Connection, table: PartitionedTable) -> list[tuple[str, bool]]:
    """Return the tables that foreign keys connect with this one, and whether each refers to it."""
    rows = connection.execute(statement(f"{_QUERIES}referencing_tables"), {"table_oid": table.oid}).fetchall()
    return [(str(relation), bool(refers_here)) for relation, refers_here in rows]


def is_detaching(connection: Connection) -> bool:
    """Return whether another session is detaching a partition now; a pending detach may be its work."""
    row = connection.execute(statement(f"{_QUERIES}detaching_sessions")).fetchone()
    return bool(row and row[0])


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """A session that holds a lock that a plan needs. The text of its query is left out, since it may hold payloads.

    :param relation: table that it has locked.
    :param mode: mode of its lock.
    :param state: state of the session, such as ``idle in transaction``.
    :param query_age_s: seconds since its latest statement began.
    :param transaction_age_s: seconds since its transaction began.
    """

    pid: int
    relation: str
    mode: str
    state: str
    application: str
    query_age_s: float
    transaction_age_s: float


def blockers(connection: Connection, oids: Iterable[int], modes: frozenset[str]) -> tuple[Blocker, ...]:
    """Return the sessions that hold locks of these modes on relations, oldest transaction first."""
    rows = connection.execute(statement(f"{_QUERIES}blockers"), {"oids": list(oids)}).fetchall()
    return tuple(
        Blocker(
            pid=pid,
            relation=relation,
            mode=mode,
            state=state,
            application=application,
            query_age_s=query_age_s,
            transaction_age_s=transaction_age_s,
        )
        for pid, relation, mode, state, application, query_age_s, transaction_age_s in rows
        if mode in modes
    )
