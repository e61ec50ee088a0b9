"""Checks the tables that hold queues: who holds back VACUUM, partitions, dead rows, ages, sequences, indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from shlex import quote

import psycopg
from psycopg import sql

from queuekeeper.clock import Clock, system_clock
from queuekeeper.doctor.findings import Finding, Notes, State
from queuekeeper.errors import QueuekeeperError, UnknownTable
from queuekeeper.maintenance.bloat import FEWEST_DEAD_ROWS
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.head_room import LOOK_LOCK_TIMEOUT_MS
from queuekeeper.maintenance.partitions.model import Coverage
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.session import pinned
from queuekeeper.maintenance.queue_tables import (
    Holder,
    Index,
    Sequence,
    TableStatistics,
    known_policies,
    read_holders,
    read_indexes,
    read_sequences,
    read_tables,
)
from queuekeeper.postgres import Connection, rows_of, server_words
from queuekeeper.report.figures import duration, number, size
from queuekeeper.wording import number_of

_HOUR_S = 3_600.0
_MOST = 5
PRINT_ROLE = ("let a superuser grant what this role needs", "queuekeeper acl postgres --job monitor")
"""What to do, and by which command, where a role may not look."""

FROZEN_SHARE_WARNING = 2.0
"""Age of the oldest transaction id, as a share of ``autovacuum_freeze_max_age``, from which a warning is due.

Autovacuum freezes a table from a share of 1 on; at 2, something keeps it from doing so.
"""

_STARVED = 2
"""Autovacuum is due at its threshold; at this many times that, it does not come."""

_STARVED_LONG = 10
_LARGEST_HIDDEN = 2**53
"""A sequence that ends later is not used up in anybody's time: whoever may not read it misses nothing."""

_CREATE = "create partitions, and see why partition_maintenance has not"
_FIRST = "first end what holds old snapshots"
_BY_HAND = "no command mends it: do as found says"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits beyond which a finding is due.

    :param held_s: seconds for which a session or prepared transaction may hold a snapshot.
    :param unread_s: seconds for which a replication slot may have no reader.
    :param held_transactions: age of a snapshot, in transactions, that is a warning whatever its time.
    :param dangerous_transactions: age of a snapshot, in transactions, that fails the check.
    :param dead_rows: fewest dead rows of a table.
    :param frozen_share: age of a table's oldest row, as a share of the age at which autovacuum freezes it.
    :param used_share: share of a sequence's numbers that are used.
    :param used_up_share: the same, from which the check fails.
    :param bloat_share: share of an index that a new one would not need.
    :param bloat_bytes: fewest such bytes.
    """

    held_s: float = 300.0
    unread_s: float = 3_600.0
    held_transactions: int = 1_000_000
    dangerous_transactions: int = 100_000_000
    dead_rows: int = FEWEST_DEAD_ROWS
    frozen_share: float = FROZEN_SHARE_WARNING
    used_share: float = 0.8
    used_up_share: float = 0.95
    bloat_share: float = 0.5
    bloat_bytes: int = 64 * 1024 * 1024


def examine_queue_tables(
    connection: Connection, *, server: str, clock: Clock = system_clock, limits: Limits | None = None
) -> list[Finding]:
    """Check the tables of the event broker, of sessions, and those that have a policy; nothing is written.

    Tables that are in order have no finding. What this role may not see is noted as unknown.

    :param connection: connection with ``autocommit``.
    :param server: subject of findings that are about no table.
    """
    limits, now_ms = limits or Limits(), clock()
    policies: list[PartitionPolicy] = []
    tables: list[TableStatistics] = []
    late: list[Holder] = []
    notes = Notes(server)
    with pinned(connection, lock_timeout_ms=LOOK_LOCK_TIMEOUT_MS):
        with _noted(notes, "policies of partitions"):
            policies = known_policies(connection)
        with _noted(notes, "queue tables"):
            tables = read_tables(connection, policies)
        with _noted(notes, "old snapshots"):
            late = [each for each in read_holders(connection) if _is_late(each, limits)]
            notes.findings += _first(_of_holders(late, server, limits))
            notes.findings += _of_hidden_sessions(connection, server)
        for policy in policies:
            with _noted(notes, "partitions", subject=policy.table):
                found = coverage(connection, policy=policy, now_ms=now_ms, only_read=True)
                defaults = [each for each in tables if each.table_name == policy.table and each.is_default]
                notes.findings += _of_partitions(found, policy, defaults)
        notes.findings += _first(_of_dead_rows(tables, limits, is_held=bool(late)))
        notes.findings += _first(_of_ages(tables, limits))
        with _noted(notes, "sequences"):
            notes.findings += _of_sequences(read_sequences(connection, tables), server, limits)
        with _noted(notes, "index bloat"):
            indexes = read_indexes(connection, tables, least_bytes=limits.bloat_bytes)
            notes.findings += _first(_of_indexes(indexes, limits))
    return notes.findings


@contextmanager
def _noted(notes: Notes, check: str, *, subject: str | None = None) -> Iterator[None]:
    """Turn an error of the block into a finding, so that the other checks are made."""
    try:
        yield
    except UnknownTable as error:
        forget = f"queuekeeper partitions forget {quote(str(subject))}"
        notes.findings.append(
            _finding(str(subject), check, State.WARNING, str(error), "forget its policy, or restore it", forget)
        )
    except (QueuekeeperError, psycopg.Error) as error:
        words, remedy, command = server_words(error), "see the message; other checks were made", ""
        if isinstance(error.__cause__ or error, psycopg.errors.InsufficientPrivilege):
            remedy, command = PRINT_ROLE
        if isinstance(error, psycopg.errors.LockNotAvailable):
            remedy, command = "another session has it locked: try again, or see which", "queuekeeper partitions plan"
        notes.findings.append(_finding(subject or notes.subject, check, State.UNKNOWN, words, remedy, command))


def _first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first findings; the last of them says how many are left out."""
    found = list(findings)
    if len(found) > _MOST:
        left_out = f"; {number(len(found) - _MOST)} more are not shown"
        found[_MOST - 1] = replace(found[_MOST - 1], found=found[_MOST - 1].found + left_out)
    return found[:_MOST]


def _finding(subject: str, check: str, state: State, found: str, remedy: str, command: str = "") -> Finding:
    return Finding(subject=subject, check=check, state=state, found=found, remedy=remedy, command=command)


# --- old snapshots -------------------------------------------------------------------------------------------------


def _of_holders(holders: list[Holder], server: str, limits: Limits) -> Iterator[Finding]:
    """Name who holds back VACUUM, the oldest first: what has died since then stays in every table of the database."""
    for holder in holders:
        state = State.FAILED if holder.age >= limits.dangerous_transactions else State.WARNING
        found = f"{holder.kind} {holder.name}"
        found += f" ({holder.who})" if holder.who else ""
        found += f" for {duration(holder.held_s)}" if holder.held_s is not None else ""
        found += f", {number_of(holder.age, 'transaction')} old"
        found += ": holds rows of catalogs" if holder.kind == "logical replication slot" else ": holds dead rows"
        yield _finding(server, "old snapshots", state, found, *_end_of(holder))


def _is_late(holder: Holder, limits: Limits) -> bool:
    if holder.age >= limits.held_transactions:
        return True
    longest_s = limits.unread_s if holder.kind.endswith("slot") else limits.held_s
    return holder.held_s is not None and holder.held_s >= longest_s


def _end_of(holder: Holder) -> tuple[str, str]:
    """Return how to end a holder, in words and as a statement."""
    name = sql.Literal(holder.name).as_string(None)
    if holder.kind == "prepared transaction":
        return "roll it back, or commit it, as its transaction manager says", f"ROLLBACK PREPARED {name};"
    if holder.kind == "standby feedback":
        off = "ALTER SYSTEM SET hot_standby_feedback = off; SELECT pg_reload_conf();"
        return "on the standby: end its oldest query, or switch feedback off", off
    if holder.kind.endswith("slot"):
        if holder.is_active:
            return "its reader is connected and does not confirm what it has read: look at the reader", ""
        return "drop it if nobody will read it again", f"SELECT pg_drop_replication_slot({name});"
    if holder.kind == "long query":
        return "cancel it", f"SELECT pg_cancel_backend({holder.name});"
    return "end the session", f"SELECT pg_terminate_backend({holder.name});"


def _of_hidden_sessions(connection: Connection, server: str) -> Iterator[Finding]:
    ((sees_all, role),) = rows_of(connection, "queue_tables/sees_all_sessions")
    if not sees_all:
        yield _finding(
            server,
            "old snapshots",
            State.UNKNOWN,
            "how long sessions of other roles have held theirs is not shown to this role",
            "let it see them, and with them the text of running statements",
            f"GRANT pg_read_all_stats TO {role};",
        )


# --- partitions ----------------------------------------------------------------------------------------------------


def _of_partitions(found: Coverage, policy: PartitionPolicy, defaults: list[TableStatistics]) -> Iterator[Finding]:
    """Say when partitions that were made ahead run out, and what else is wrong with them."""
    create = f"queuekeeper partitions create {quote(found.table)}"
    head_room_s, interval_s = found.head_room_s, found.interval_s
    if head_room_s is not None and interval_s is not None and head_room_s < interval_s:
        hours = f"partitions reach {max(0.0, head_room_s) / _HOUR_S:,.1f} hours ahead, the step is {policy.step}"
        then = "inserts fail"
        if found.has_default or found.has_overflow:
            then = f"rows go to {'DEFAULT' if found.has_default else 'the overflow'}"
        words = f"{hours}: {then} {'now' if head_room_s <= 0 else 'then'}"
        yield _finding(
            found.table, "head-room", State.FAILED if head_room_s <= 0 else State.WARNING, words, _CREATE, create
        )
    for each in found.findings:
        is_short = each.kind == FindingKind.SHORT
        # The head-room says how short it is, where it can be told; what no check finds is left to `partitions status`.
        if each.check_id and not (is_short and head_room_s is not None):
            state = State.FAILED if each.urgent else State.WARNING
            words = f"{each.subject}: {each.words}" if each.subject != found.table else each.words
            mend = (_CREATE, create) if each.remedy else (_BY_HAND,)
            check = "head-room" if is_short else each.kind.replace("_", " ")
            yield _finding(found.table, check, state, words, *mend)
    # Who may not read DEFAULT knows what the statistics count there.
    for partition in defaults:
        if partition.live_rows and not partition.is_ours:
            words = f"{partition.name}: it holds about {number_of(partition.live_rows, 'row')} by the statistics"
            yield _finding(found.table, "default rows", State.WARNING, words, _CREATE, create)


# --- tables, sequences, indexes ------------------------------------------------------------------------------------


def _of_dead_rows(tables: list[TableStatistics], limits: Limits, *, is_held: bool) -> Iterator[Finding]:
    """Name tables to which autovacuum does not come although it is due, or comes in vain; the worst first.

    :param is_held: whether old snapshots hold dead rows.
    """
    remedy = "vacuum it; if autovacuum does not come again, see autovacuum_max_workers"
    if is_held:
        remedy = f"vacuum it, but {_FIRST}"
    for table in sorted(tables, key=lambda each: -each.dead_rows):
        due = table.vacuum_at_rows * (1 if table.is_off else _STARVED)
        if table.dead_rows < limits.dead_rows or table.dead_rows <= due or table.is_running:
            continue
        where = {None: "it is on", "table": "it is off for this table", "server": "it is off on this server"}
        last = "never vacuumed" if table.vacuumed_s is None else f"last vacuumed {duration(table.vacuumed_s)} ago"
        found = (
            f"{table.name}: {number_of(table.dead_rows, 'dead row')} beside {number(table.live_rows)} live ones; "
            f"autovacuum comes at {number(table.vacuum_at_rows)}, {where[table.is_off]}, {last}"
        )
        mend = {
            None: "",
            "table": f"ALTER TABLE {table.name} RESET (autovacuum_enabled); ",
            "server": "ALTER SYSTEM SET autovacuum = on; ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf(); ",
        }
        state = State.FAILED if table.dead_rows > _STARVED_LONG * table.vacuum_at_rows else State.WARNING
        yield _finding(
            table.table_name, "dead rows", state, found, remedy, f"{mend[table.is_off]}VACUUM (ANALYZE) {table.name};"
        )


def _of_ages(tables: list[TableStatistics], limits: Limits) -> Iterator[Finding]:
    """Name tables that come near the wraparound of transaction ids or of multixacts, the oldest first."""
    ages = [
        (share, age >= end, table, f"{words} is {number(age)} old")
        for table in tables
        for words, age, share, end in (
            ("its oldest transaction id", table.xid_age, table.xid_share, table.xid_end),
            ("its oldest multixact", table.multixact_age, table.multixact_share, table.multixact_end),
        )
    ]
    for share, is_late, table, words in sorted(ages, key=lambda each: -each[0]):
        if share > limits.frozen_share or is_late:
            found = f"{table.name}: {words}, {share:,.0%} of the age at which autovacuum freezes it"
            state = State.FAILED if is_late else State.WARNING
            freeze = f"VACUUM (FREEZE) {table.name};"
            yield _finding(table.table_name, "wraparound age", state, found, f"freeze it, but {_FIRST}", freeze)


def _of_sequences(sequences: list[Sequence], server: str, limits: Limits) -> Iterator[Finding]:
    """Name sequences that come near their end; an insert behind it fails."""
    for each in sequences:
        used = each.used_share
        if each.last is not None and used is not None and used >= limits.used_share:
            found = (
                f"{each.column_name}, numbered by {each.name}, is at {number(each.last)} of {number(each.final)}, "
                f"{used:.1%}: then inserts fail"
            )
            remedy, longer = "raise its end", f"ALTER SEQUENCE {each.name} AS bigint NO MAXVALUE;"
            if each.column_type in ("smallint", "integer"):
                wider = f"ALTER TABLE {each.table_name} ALTER COLUMN {each.column_name} TYPE bigint;"
                remedy, longer = "widen the column: nobody can use the table meanwhile", f"{wider} {longer}"
            state = State.FAILED if used >= limits.used_up_share else State.WARNING
            yield _finding(each.table_name, "sequences", state, found, remedy, longer)
    if hidden := [each for each in sequences if not each.may_read and each.final < _LARGEST_HIDDEN]:
        names = ", ".join(each.name for each in hidden)
        grant = f"GRANT SELECT ON SEQUENCE {names} TO {hidden[0].role};"
        found = f"the position of {number_of(len(hidden), 'sequence')} is not shown to this role"
        yield _finding(server, "sequences", State.UNKNOWN, found, "let it see them", grant)


def _of_indexes(indexes: list[Index], limits: Limits) -> Iterator[Finding]:
    """Name indexes that are much larger than new ones would be, by an estimate; the one with most to gain first."""
    for each in sorted(indexes, key=lambda each: -each.spare_bytes):
        if each.spare_bytes >= limits.bloat_bytes and each.spare_bytes > limits.bloat_share * each.size_bytes:
            found = (
                f"{each.name}: {size(each.size_bytes)}, and its {number_of(each.row_count, 'entry')} need about "
                f"{size(each.needed_bytes)}"
            )
            anew = f"REINDEX INDEX CONCURRENTLY {each.name};"
            yield _finding(each.table_name, "index bloat", State.WARNING, found, "build it anew", anew)
