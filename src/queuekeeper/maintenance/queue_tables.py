"""Reads what the server knows of the tables that hold queues: statistics, old snapshots, sequences, indexes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from queuekeeper.maintenance.partitions.broker import broker_policies
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, rows_of
from queuekeeper.schema_migrations import schema_version


class Holder(NamedTuple):
    """Who holds back VACUUM in this database.

    :param name: process id, id of a prepared transaction, or name of a slot.
    :param who: user, application and address of a session, owner of a transaction, plugin and database of a slot.
    :param held_s: seconds; none where the server does not tell it.
    :param age: in transactions.
    """

    kind: str
    name: str
    who: str
    held_s: float | None
    age: int
    is_active: bool


class TableStatistics(NamedTuple):
    """Statistics of a table or partition.

    :param table_name: the partitioned table of a partition, otherwise the table itself.
    :param is_ours: whether this role may read the table as its owner.
    :param vacuum_at_rows: dead rows that autovacuum waits for.
    :param is_off: where autovacuum is switched off, for the ``table`` or on the ``server``; none where it is on.
    :param xid_limit: age of a transaction id at which autovacuum freezes at the latest.
    :param xid_end: age at which VACUUM leaves out all other work.
    """

    oid: int
    root_oid: int
    name: str
    table_name: str
    is_default: bool
    is_ours: bool
    live_rows: int
    dead_rows: int
    vacuum_at_rows: int
    is_off: str | None
    is_running: bool
    vacuumed_s: float | None
    xid_age: int
    xid_limit: int
    xid_end: int
    multixact_age: int
    multixact_limit: int
    multixact_end: int

    @property
    def vacuum_share(self) -> float:
        """Dead rows, as a share of those that autovacuum waits for."""
        return self.dead_rows / max(1, self.vacuum_at_rows)

    @property
    def xid_share(self) -> float:
        """Age of the oldest transaction id, as a share of the age at which autovacuum freezes it."""
        return self.xid_age / self.xid_limit

    @property
    def multixact_share(self) -> float:
        """The same of the oldest multixact."""
        return self.multixact_age / self.multixact_limit


class Sequence(NamedTuple):
    """How far a sequence has come that numbers rows.

    :param last: none where it was never used, or this role may not read it.
    :param final: the lower of the sequence's end and the column's.
    :param role: this role, as SQL writes its name.
    """

    name: str
    table_name: str
    column_name: str
    column_type: str
    first: int
    last: int | None
    final: int
    may_read: bool
    role: str

    @property
    def used_share(self) -> float | None:
        """Share of its numbers that are used; none where that is not known."""
        return None if self.last is None else (self.last - self.first + 1) / (self.final - self.first + 1)


class Index(NamedTuple):
    """Size of a B-tree index, and what a new one would need, by an estimate."""

    name: str
    table_name: str
    row_count: int
    size_bytes: int
    needed_bytes: int

    @property
    def spare_bytes(self) -> int:
        """Bytes that a new index would not need."""
        return self.size_bytes - self.needed_bytes


def known_policies(connection: Connection) -> list[PartitionPolicy]:
    """Return the policies of this database, also where schema ``queuekeeper`` is not there.

    :raises RefusedError: when this role may not read them.
    """
    return load_policies(connection) if schema_version(connection) else broker_policies(connection)


def read_tables(connection: Connection, policies: Iterable[PartitionPolicy]) -> list[TableStatistics]:
    """Return the tables of the event broker, of sessions and of policies, one for each partition."""
    given = {"tables": [each.table for each in policies]}
    return [TableStatistics(*row) for row in rows_of(connection, "queue_tables/tables", given)]


def read_holders(connection: Connection) -> list[Holder]:
    """Return who holds back VACUUM, the oldest first."""
    return [Holder(*row) for row in rows_of(connection, "queue_tables/old_snapshots")]


def read_sequences(connection: Connection, tables: Iterable[TableStatistics]) -> list[Sequence]:
    """Return the sequences that number rows of the tables."""
    return [Sequence(*row) for row in rows_of(connection, "queue_tables/sequences", {"oids": _oids(tables)})]


def read_indexes(connection: Connection, tables: Iterable[TableStatistics], *, least_bytes: int) -> list[Index]:
    """Return the B-tree indexes of the tables that are not smaller than a size, the largest first."""
    given = {"oids": _oids(tables), "least_bytes": least_bytes}
    return [Index(*row) for row in rows_of(connection, "queue_tables/indexes", given)]


def _oids(tables: Iterable[TableStatistics]) -> list[int]:
    return sorted({oid for each in tables for oid in (each.oid, each.root_oid)})
