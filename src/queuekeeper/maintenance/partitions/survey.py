"""Reads one table under its policy: positions of clock and data, missing partitions, findings."""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from psycopg import sql

from queuekeeper.errors import KeyFromFuture, UsageError
from queuekeeper.jobs.findings import Finding
from queuekeeper.maintenance.partitions import systems
from queuekeeper.maintenance.partitions.broker import LOWEST_NEEDED, NEVER_PASSED, TABLES
from queuekeeper.maintenance.partitions.catalog import (
    PartitionedTable,
    foreign_keys,
    has_rows,
    highest_key,
    last_given_key,
    reached_key,
    read_table,
    row_shape,
    schema_rights,
    steps_with_rows,
    taken_names,
)
from queuekeeper.maintenance.partitions.findings import FindingKind, finding
from queuekeeper.maintenance.partitions.keys import Key
from queuekeeper.maintenance.partitions.names import cut_name
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, Spans, spans
from queuekeeper.maintenance.partitions.ranges import Range, gaps
from queuekeeper.maintenance.partitions.statements import drain_schema
from queuekeeper.postgres import Connection, server_words, translated_errors
from queuekeeper.wording import number_of

_GUARD_TIMEOUT_MS = 10_000


@dataclass(frozen=True, kw_only=True)
class Survey:
    """State of a table at an instant.

    :param now: position of the clock; none for integers.
    :param highest: highest key outside DEFAULT, or that the key's sequence has given out; none when there is neither.
    :param base: position that partitions have to be ahead of: the clock, or data not too far ahead of it.
    :param cap: position beyond which no partitions are created for data.
    :param end: position that partitions have to reach.
    :param limit: keys below the limit are beyond their retention; none for no limit.
    :param default_steps: steps in which DEFAULT holds rows.
    :param columns: writable columns of DEFAULT; empty without a DEFAULT partition.
    :param key_columns: columns of its primary key.
    :param drain_left: whether the copy and the trigger of a drain of DEFAULT exist.
    :param overflow_rows: whether the partition up to MAXVALUE holds rows.
    :param live: whether its rows are still to be worked on by another system: no partition leaves with one in it.
    """

    table: PartitionedTable
    policy: PartitionPolicy
    spans: Spans
    as_of_ms: int
    now: int | None
    highest: int | None
    base: int
    cap: int
    end: int
    limit: int | None
    default_steps: tuple[Range, ...]
    columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    drain_left: bool
    overflow_rows: bool
    foreign_keys: tuple[tuple[str, bool], ...]
    live: bool

    @property
    def is_broker(self) -> bool:
        """Whether the table belongs to the event broker, whose own function extends it."""
        return self.table.name in TABLES

    @property
    def undrainable(self) -> str:
        """Why DEFAULT cannot be drained while it is in use; empty when it can."""
        if self.live:
            return "they leave it as they are worked on"
        if self.table.default and self.table.default.relkind != "r":
            return "it is not a plain table: move its rows by hand"
        if not self.key_columns:
            return "without a primary key changes cannot be followed: move its rows by hand"
        if any(refers_here for _, refers_here in self.foreign_keys):
            return "foreign keys refer to the table: move its rows by hand"
        return ""

    @property
    def start(self) -> int:
        """Position from which partitions are needed; keys beyond their retention need none."""
        rows = [each for each in self.default_steps if each.end <= self.cap]
        first = min((each.start for each in [*self.table.ranges, *rows]), default=self.base)
        floor = self.table.key.edge_before(self.spans.step, self.base)
        start = min(first, floor)
        return start if self.limit is None else max(start, min(self.spans.step.floor(self.limit), floor))

    def reaches(self, position: int) -> bool:
        """Return whether partitions cover the keys from the base to a position without a gap."""
        until = self.covered(self.base)
        return until is None or until >= position

    def covered(self, position: int) -> int | None:
        """Return the end of the partitions that cover a position, see :meth:`PartitionedTable.covered`."""
        return self.table.covered(position)


def survey(connection: Connection, *, policy: PartitionPolicy, now_ms: int, only_read: bool = False) -> Survey:
    """Read the state of a table; the session must be pinned.

    :param only_read: accept a table that this role may not alter but whose key it may read. The rows of a DEFAULT
        partition are then read only if the table belongs to this role.
    :raises UnknownTable: when there is no such table.
    :raises NotPartitioned: when it is not partitioned by ranges of one column.
    :raises ForeignOwner: when this role may not alter it.
    :raises RefusedError: when pg_partman or another system makes its partitions.
    :raises InvalidPolicy: when the policy does not suit it.
    """
    table = read_table(connection, policy.table, only_read=only_read)
    theirs = of_others(connection, table)
    if not only_read:
        refuse_others(connection, table, theirs)
    live = theirs is not None and theirs.layout.live
    if not table.is_ours:
        with translated_errors(connection):
            return _surveyed(connection, table, policy, now_ms, live=live)
    return _surveyed(connection, table, policy, now_ms, live=live)


def of_others(connection: Connection, table: PartitionedTable) -> systems.TheirLayout | None:
    """Return the system that a table belongs to; none for the broker's and for those of nobody else."""
    if table.name in TABLES:
        return None
    return systems.layout_of(connection, schema_name=table.schema_name, relation_name=table.relation_name)


def refuse_others(connection: Connection, table: PartitionedTable, theirs: systems.TheirLayout | None) -> None:
    """Refuse a table whose partitions pg_partman or another system makes.

    :raises RefusedError: with who does, and what to do.
    """
    parent = f"{table.schema_name}.{table.relation_name}"
    systems.refuse_to_keep(connection, theirs, parent=parent, name=table.name)


def _surveyed(
    connection: Connection, table: PartitionedTable, policy: PartitionPolicy, now_ms: int, *, live: bool
) -> Survey:
    found = spans(policy, table.key)
    now = table.key.clock(now_ms)
    highest = highest_key(connection, table)
    default_steps = (
        steps_with_rows(connection, table, table.default, step=found.step, at_most=policy.at_most)
        if table.default and table.is_ours
        else []
    )
    columns, key_columns = row_shape(connection, table.default) if table.default else ((), ())
    bounded_end = max((each.end for each in table.ranges if each.upper is not None), default=0)
    cap = found.far_future.after(now if now is not None else bounded_end)
    given = last_given_key(connection, table) if now is None else None
    if given is not None and given <= cap:
        highest = given if highest is None else max(given, highest)
    data = [each.end - 1 for each in default_steps] + ([] if highest is None else [highest])
    # The broker stores later events elsewhere, and its overflow takes all keys: no partitions are created for its data.
    near = [] if table.name in TABLES else [each for each in data if each <= cap]
    first = min((each.start for each in table.ranges if each.lower is not None), default=0)
    base = max([*near, *([] if now is None else [now])], default=first)
    last_edge = table.key.last_edge()
    end = found.step.ceiling(found.ahead.after(base))
    of_retention = now
    if now is None and found.retention is not None:
        # Nothing may leave early: neither for a wrong key far ahead, nor for keys that a partition may not have yet.
        of_retention = reached_key(connection, table, at_most=cap if last_edge is None else min(cap, last_edge))
    return Survey(
        table=table,
        policy=policy,
        spans=found,
        as_of_ms=now_ms,
        now=now,
        highest=highest,
        base=base,
        cap=cap,
        end=end if last_edge is None else min(end, last_edge),
        limit=None if found.retention is None or of_retention is None else found.retention.before(of_retention),
        default_steps=tuple(default_steps),
        columns=columns,
        key_columns=key_columns,
        drain_left=bool(table.default and schema_rights(connection, drain_schema(table.default.oid))[0]),
        overflow_rows=bool(table.overflow and has_rows(connection, table, table.overflow)),
        foreign_keys=tuple(foreign_keys(connection, table)),
        live=live,
    )


def partition_name(seen: Survey, lower: int) -> str:
    """Return the name of a new partition; names only help people."""
    return name_of_partition(seen.table.relation_name, seen.table.key, lower)


def name_of_partition(relation_name: str, key: Key, lower: int) -> str:
    """Return the name of a table's partition from a position on."""
    # Room for the longer names of indexes.
    return f"{cut_name(relation_name, room=23)}_{key.name_part(lower)}"


def free_names(connection: Connection, seen: Survey, wanted: list[str]) -> list[str]:
    """Return names like the wanted ones that are free in the table's schema and in the quarantine."""
    schemas = {"schema_name": seen.table.schema_name, "quarantine_schema": seen.policy.quarantine_schema}
    return names_free_in(connection, wanted, **schemas)


def names_free_in(connection: Connection, wanted: list[str], **schemas: str) -> list[str]:
    """Return names like the wanted ones that are free in two schemas, see :func:`taken_names`."""
    found: list[str] = []
    for name in wanted:
        candidates = [name, *(f"{name}_{number}" for number in range(2, 100))]
        taken = {each for _, each in taken_names(connection, names=candidates, **schemas)}
        found.append(next(each for each in candidates if each not in taken and each not in found))
    return found


def findings(connection: Connection, seen: Survey, wanted: list[Range]) -> list[Finding]:
    """Return the findings on a table.

    :param wanted: ranges that are to be created.
    """
    table, key = seen.table, seen.table.key
    found: list[Finding] = []

    def add(kind: FindingKind, subject: str, words: str, *, is_mended: bool = True) -> None:
        found.append(finding(kind, table=table.name, subject=subject, words=words, is_mended=is_mended))

    ranges = table.ranges
    if ranges:
        first = max(min(each.start for each in ranges), seen.start)
        last = min(max(each.end for each in ranges), seen.end)
        for gap in gaps(ranges, start=first, end=last):
            add(
                FindingKind.GAP,
                f"{key.text(gap.start)} to {key.text(gap.end)}",
                "no partition takes these keys: inserts fail; a plan of creation fills it",
            )
    for each in table.partitions:
        if each.owner != table.owner:
            add(
                FindingKind.FOREIGN_OWNER,
                each.name,
                f"it belongs to {each.owner}, the table to {table.owner}: it is left alone; "
                f"ALTER TABLE {each.name} OWNER TO {table.owner}",
            )
        if each.range is None:
            add(FindingKind.UNMANAGED, each.name, "its bounds cannot be read as keys of this policy: it is left alone")
        elif each.range.start >= seen.end and each.range.upper is not None and not seen.reaches(each.range.start):
            add(
                FindingKind.UNMANAGED,
                each.name,
                f"it begins at {key.text(each.range.start)}, beyond what the policy asks for: it is left alone",
            )
        elif each.range.upper is None and not seen.is_broker:
            add(
                FindingKind.UNMANAGED,
                each.name,
                "it reaches to MAXVALUE: nothing can be created beyond its lower bound; detach it while it is empty",
            )
        if each.pending:
            add(
                FindingKind.PENDING_DETACH,
                each.name,
                "its detach was interrupted: its rows are hidden and its keys refused; the next plan ends the detach",
            )
    names = {partition_name(seen, each.start): each for each in [*ranges, *wanted] if each.lower is not None}
    ours = {(each.schema_name, each.relation_name) for each in table.partitions}
    taken = taken_names(
        connection, schema_name=table.schema_name, quarantine_schema=table.schema_name, names=list(names)
    )
    for schema, name in sorted(taken - ours):
        add(
            FindingKind.STRANGER,
            f"{schema}.{name}",
            f"it has the name of a partition of {table.name} but is none: new partitions get other names; rename it",
        )
    if table.default and seen.drain_left:
        add(
            FindingKind.DRAIN_LEFT,
            table.default.name,
            "a drain of it is under way, or was interrupted and left its copy and trigger: a plan of creation removes "
            "them",
        )
    beyond = [each for each in seen.default_steps if each.end - 1 > seen.cap]
    near = [each for each in seen.default_steps if each.end - 1 <= seen.cap]
    if table.default and near:
        add(
            FindingKind.DEFAULT_ROWS,
            table.default.name,
            f"it holds rows of {number_of(len(near), 'step')}, from {key.text(near[0].start)}: "
            + (seen.undrainable or "a plan of creation drains it"),
            is_mended=not seen.undrainable,
        )
    if beyond:
        add(
            FindingKind.FAR_FUTURE,
            table.default.name if table.default else table.name,
            f"it holds keys at {key.text(beyond[0].start)} and later, beyond {key.text(seen.cap)}: no "
            "partitions are created for them; correct them, or raise far_future",
        )
    if seen.highest is not None and seen.highest > seen.cap:
        add(
            FindingKind.FAR_FUTURE,
            table.name,
            f"its highest key is {key.text(seen.highest)}, beyond {key.text(seen.cap)}: no partitions "
            "are created for it; correct it, or raise far_future",
        )
    return found


def lowest_needed(connection: Connection, seen: Survey, *, override_consumers: bool) -> int | None:
    """Return the lowest key that a consumer still needs, by the policy's query; none when no consumer waits.

    :param override_consumers: ask only for keys whose loss a person cannot approve.
    :raises KeyFromFuture: when the key lies further in the future than the policy allows.
    :raises UsageError: when the query fails, or returns no such key.
    """
    query = seen.policy.lowest_needed_sql
    if override_consumers:
        query = NEVER_PASSED if query == LOWEST_NEEDED else None
    lowest = [_asked(connection, seen, query)] if query is not None else []
    if seen.live:
        # Nobody's approval passes a row that another system has still to work on.
        lowest.append(_lowest_row(connection, seen))
    return min((each for each in lowest if each is not None), default=None)


def _lowest_row(connection: Connection, seen: Survey) -> int | None:
    """Return the lowest key of a table; none without rows."""
    query = sql.SQL("SELECT min({})::text FROM {}").format(
        sql.Identifier(seen.table.key.column), seen.table.identifier()
    )
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = {_GUARD_TIMEOUT_MS}")
            row = connection.execute(query).fetchone()
    except psycopg.Error as error:
        if connection.closed:
            raise
        raise UsageError(
            f"the lowest row of {seen.table.name} cannot be read: {server_words(error)}; nothing is retired before"
        ) from error
    return None if row is None or row[0] is None else seen.table.key.position(str(row[0]))


def _asked(connection: Connection, seen: Survey, query: str) -> int | None:
    """Return what the query of a policy answers, see :func:`lowest_needed`."""
    key = seen.table.key
    # The query is the operator's own, and runs read-only.
    wrapped = f"SELECT CAST(needed AS {key.type_name})::text FROM ({query.strip().rstrip(';')}\n) AS answer (needed)"  # noqa: S608
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = {_GUARD_TIMEOUT_MS}")
            rows = connection.execute(wrapped.encode()).fetchmany(2)
    except psycopg.Error as error:
        if connection.closed:
            raise
        raise UsageError(
            f"lowest_needed_sql of {seen.table.name} fails: {server_words(error)}; nothing is retired before it answers"
        ) from error
    if len(rows) > 1:
        raise UsageError(f"lowest_needed_sql of {seen.table.name} answers several rows: let it answer the lowest key")
    if not rows or rows[0][0] is None:
        return None
    position = key.position(_digits(str(rows[0][0])))
    if position > max(seen.cap, seen.base):
        raise KeyFromFuture(
            f"a consumer of {seen.table.name} stands at {rows[0][0]}, beyond {key.text(seen.cap)}, where no real key "
            "is: correct the consumer's cursor before anything is retired"
        )
    return position


def _digits(text: str) -> str:
    # A cursor of the broker may be an id with a suffix.
    match = re.match(r"pm[0-9a-f]{13,22}", text)
    return match[0] if match else text
