"""Checks the tables that hold queues: old snapshots, partitions ahead, rows in DEFAULT; each finding has its remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from shlex import quote
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from queuekeeper.clock import Clock, system_clock
from queuekeeper.doctor.findings import Finding, Notes, State
from queuekeeper.errors import QueuekeeperError, UnknownTable
from queuekeeper.maintenance.partitions.broker import broker_policies
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.model import Coverage
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.session import pinned
from queuekeeper.postgres import Connection, server_words, translated_errors
from queuekeeper.report.figures import duration, number
from queuekeeper.schema_migrations import schema_version
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

_HOUR_S = 3_600.0
_LOCK_TIMEOUT_MS = 1_000
_MOST_HOLDERS = 5
_BY_HAND = "no command mends it: do as found says"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits beyond which a finding is due.

    :param held_s: seconds for which a session or prepared transaction may hold a snapshot.
    :param unread_s: seconds for which a replication slot may have no reader.
    :param held_transactions: age of a snapshot, in transactions, that is a warning whatever its time.
    :param dangerous_transactions: age of a snapshot, in transactions, that fails the check.
    """

    held_s: float = 300.0
    unread_s: float = 3_600.0
    held_transactions: int = 1_000_000
    dangerous_transactions: int = 100_000_000


class Holder(NamedTuple):
    """Who holds back VACUUM: the row of ``queue_tables/old_snapshots``."""

    kind: str
    name: str
    who: str
    held_s: float | None
    age: int
    is_active: bool


class TableStatistics(NamedTuple):
    """Statistics of a table or partition: the row of ``queue_tables/tables``."""

    oid: int
    root_oid: int
    name: str
    table_name: str
    is_default: bool
    is_ours: bool
    live_rows: int
    dead_rows: int
    vacuum_at_rows: int
    is_enabled: bool
    is_running: bool
    vacuumed_s: float | None
    freeze_share: float
    multixact_share: float


def examine_queue_tables(
    connection: Connection, *, server: str, clock: Clock = system_clock, limits: Limits | None = None
) -> list[Finding]:
    """Check the tables of the event broker, of sessions, and those that have a policy; nothing is written.

    Tables that are in order have no finding. What this role may not see is noted as unknown.

    :param connection: connection with ``autocommit``.
    :param server: subject of findings that are about no table.
    """
    return list(_examined(connection, server, clock(), limits or Limits()))


def _examined(connection: Connection, server: str, now_ms: int, limits: Limits) -> Iterator[Finding]:
    policies: list[PartitionPolicy] = []
    tables: list[TableStatistics] = []
    notes = Notes(server)
    with pinned(connection, lock_timeout_ms=_LOCK_TIMEOUT_MS):
        with _noted(notes, "policies of partitions"):
            policies = load_policies(connection) if schema_version(connection) else broker_policies(connection)
        with _noted(notes, "queue tables"):
            names = [each.table for each in policies]
            tables = [TableStatistics(*row) for row in _rows(connection, "queue_tables/tables", {"tables": names})]
        with _noted(notes, "old snapshots"):
            holders = [Holder(*row) for row in _rows(connection, "queue_tables/old_snapshots")]
            notes.findings += _of_holders(holders, server, limits)
            notes.findings += _of_hidden_sessions(connection, server)
        for policy in policies:
            with _noted(notes, "partitions", subject=policy.table):
                found = coverage(connection, policy=policy, now_ms=now_ms, only_read=True)
                defaults = [each for each in tables if each.table_name == policy.table and each.is_default]
                notes.findings += _of_partitions(found, policy, defaults)
    yield from notes.findings


@contextmanager
def _noted(notes: Notes, check: str, *, subject: str | None = None) -> Iterator[None]:
    """Turn an error of the block into a finding, so that the other checks are made."""
    try:
        yield
    except UnknownTable as error:
        remedy = f"queuekeeper partitions forget {quote(str(subject))}"
        notes.findings.append(_finding(str(subject), check, State.WARNING, str(error), remedy))
    except (QueuekeeperError, psycopg.Error) as error:
        words, remedy = server_words(error), "see the message; other checks were made"
        if isinstance(error.__cause__ or error, psycopg.errors.InsufficientPrivilege):
            remedy = "queuekeeper acl postgres --job monitor prints what this role needs: let a superuser run it"
        notes.findings.append(_finding(subject or notes.subject, check, State.UNKNOWN, words, remedy))


def _rows(
    connection: Connection, name: LiteralString, parameters: dict[str, Any] | None = None
) -> list[tuple[Any, ...]]:
    with translated_errors(connection):
        return connection.execute(statement(name), parameters).fetchall()


def _finding(subject: str, check: str, state: State, found: str, remedy: str) -> Finding:
    return Finding(subject=subject, check=check, state=state, found=found, remedy=remedy)


# --- old snapshots -------------------------------------------------------------------------------------------------


def _of_holders(holders: Sequence[Holder], server: str, limits: Limits) -> Iterator[Finding]:
    """Name who holds back VACUUM, the oldest first: what has died since then stays in every table of the database."""
    late = [each for each in holders if _is_late(each, limits)]
    for at, holder in enumerate(late[:_MOST_HOLDERS]):
        state = State.FAILED if holder.age >= limits.dangerous_transactions else State.WARNING
        found = f"{holder.kind} {holder.name}"
        found += f" ({holder.who})" if holder.who else ""
        found += f" for {duration(holder.held_s)}" if holder.held_s is not None else ""
        found += f", {number_of(holder.age, 'transaction')} old"
        found += ": holds rows of catalogs" if holder.kind == "logical replication slot" else ": holds dead rows"
        left_out = len(late) - _MOST_HOLDERS
        if at == _MOST_HOLDERS - 1 and left_out > 0:
            found += f"; {number(left_out)} younger are not shown"
        yield _finding(server, "old snapshots", state, found, _end_of(holder))


def _is_late(holder: Holder, limits: Limits) -> bool:
    if holder.age >= limits.held_transactions:
        return True
    longest_s = limits.unread_s if holder.kind.endswith("slot") else limits.held_s
    return holder.held_s is not None and holder.held_s >= longest_s


def _end_of(holder: Holder) -> str:
    """Return the statement that ends a holder."""
    name = sql.Literal(holder.name).as_string(None)
    if holder.kind == "prepared transaction":
        return f"ROLLBACK PREPARED {name}; -- or COMMIT PREPARED, as its transaction manager says"
    if holder.kind == "standby feedback":
        return "on the standby end its oldest query, or: ALTER SYSTEM SET hot_standby_feedback = off"
    if holder.kind.endswith("slot"):
        if holder.is_active:
            return "its reader is connected and does not confirm what it has read: look at the reader"
        return f"SELECT pg_drop_replication_slot({name}); -- if nobody will read it again"
    if holder.kind == "long query":
        return f"SELECT pg_cancel_backend({holder.name});"
    return f"SELECT pg_terminate_backend({holder.name});"


def _of_hidden_sessions(connection: Connection, server: str) -> Iterator[Finding]:
    ((sees_all, role),) = _rows(connection, "queue_tables/sees_all_sessions")
    if not sees_all:
        yield _finding(
            server,
            "old snapshots",
            State.UNKNOWN,
            "how long sessions of other roles have held theirs is not shown to this role",
            f"GRANT pg_read_all_stats TO {role}; -- it also shows the text of running statements",
        )


# --- partitions ----------------------------------------------------------------------------------------------------


def _of_partitions(found: Coverage, policy: PartitionPolicy, defaults: Sequence[TableStatistics]) -> Iterator[Finding]:
    """Say when partitions that were made ahead run out, and what else is wrong with them."""
    create = f"queuekeeper partitions create {quote(found.table)}"
    runway_s, interval_s = found.runway_s, found.interval_s
    if runway_s is not None and interval_s is not None and runway_s < interval_s:
        hours = f"partitions reach {max(0.0, runway_s) / _HOUR_S:,.1f} hours ahead, the step is {policy.step}"
        then = "inserts fail"
        if found.has_default or found.has_overflow:
            then = f"rows go to {'DEFAULT' if found.has_default else 'the overflow'}"
        words = f"{hours}: {then} {'now' if runway_s <= 0 else 'then'}"
        yield _finding(found.table, "runway", State.FAILED if runway_s <= 0 else State.WARNING, words, create)
    for each in found.findings:
        # The runway says how short it is; findings of no check are left to `partitions status`.
        if each.check_id and each.kind != FindingKind.SHORT:
            state = State.FAILED if each.urgent else State.WARNING
            words = f"{each.subject}: {each.words}" if each.subject != found.table else each.words
            yield _finding(found.table, each.kind.replace("_", " "), state, words, create if each.remedy else _BY_HAND)
    # Who may not read DEFAULT knows what the statistics count there.
    for partition in defaults:
        if partition.live_rows and not partition.is_ours:
            words = f"{partition.name}: it holds about {number_of(partition.live_rows, 'row')} by the statistics"
            yield _finding(found.table, "default rows", State.WARNING, words, create)
