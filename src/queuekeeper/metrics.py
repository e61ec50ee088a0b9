"""What is known of servers, queues and runs, as Prometheus reads it; nothing is scanned for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, LiteralString

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from queuekeeper.clock import system_clock
from queuekeeper.errors import QueuekeeperError, RefusedError, UsageError
from queuekeeper.maintenance.partitions.head_room import head_room_s
from queuekeeper.maintenance.queue_tables import known_policies, read_holders, read_sequences, read_tables
from queuekeeper.postgres import Connection, connect, translated_errors
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.redis_client import nodes, redis_errors
from queuekeeper.schema_migrations import schema_version
from queuekeeper.sql_statements import statement

NAMESPACE = "queuekeeper"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One gauge.

    :param name: without the namespace; its unit is the last word.
    :param help: what it says.
    """

    name: str
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What was gathered.

    :param text: in Prometheus' exposition format.
    :param failures: sources that could not be asked, with what to do; their ``up`` is 0.
    """

    text: str
    failures: tuple[str, ...]


Value = float | int | None
Sample = tuple[str, tuple[str, ...], Value]
"""Metric, values of its labels, value; a sample without a value is left out."""


def _metric(name: str, text: str, *labels: str) -> tuple[str, Metric]:
    return name, Metric(name=name, help=text, labels=labels)


METRICS: Mapping[str, Metric] = dict(
    (
        _metric("up", "1 when the server answered.", "server"),
        _metric("schema_version", "Version of the control schema; 0 when there is none."),
        # Redis
        _metric("redis_used_memory_bytes", "Memory in use.", "server"),
        _metric("redis_maxmemory_bytes", "Limit of memory; 0 for none.", "server"),
        _metric("redis_keys", "Keys.", "server"),
        _metric("redis_evicted_keys", "Keys evicted since the server started: anything but 0 is loss.", "server"),
        _metric("redis_connected_clients", "Connections of clients.", "server"),
        _metric("redis_blocked_clients", "Connections that wait for a message.", "server"),
        _metric("redis_replicas", "Connected replicas.", "server"),
        _metric("redis_append_only_file", "1 when what is written is kept in a file.", "server"),
        # PostgreSQL
        _metric("postgres_database_bytes", "Size of the control database."),
        _metric("postgres_connections", "Connections of clients."),
        _metric("postgres_max_connections", "Most connections that the server takes."),
        _metric("postgres_frozen_ratio", "Oldest transaction id, as a part of autovacuum_freeze_max_age."),
        _metric("postgres_snapshot_age_transactions", "Age of the oldest snapshot that holds back VACUUM.", "kind"),
        _metric("postgres_snapshot_held_seconds", "For how long a snapshot is held, at most.", "kind"),
        # Tables that hold queues
        _metric("queue_table_live_rows", "Rows, by the statistics.", "table"),
        _metric("queue_table_dead_rows", "Dead rows, by the statistics.", "table"),
        _metric("queue_table_vacuum_ratio", "Dead rows, as a part of those that autovacuum waits for.", "table"),
        _metric("queue_table_frozen_ratio", "Oldest transaction id or multixact, as for the server.", "table"),
        _metric("queue_table_head_room_seconds", "For how long partitions are made ahead of the clock.", "table"),
        _metric("queue_sequence_used_ratio", "Numbers of a sequence that are used.", "sequence"),
        # Sessions
        _metric("session_queues", "Sessions with messages, at the last full profile.", "store", "target"),
        _metric("session_messages", "References to messages, at the last full profile.", "store", "target"),
        _metric("session_dead_references", "References to expired messages.", "store", "target"),
        _metric("session_payload_bytes", "Bytes of stored messages.", "store", "target"),
        _metric("session_faulty_queues", "Queues in which something is wrong.", "store", "target"),
        _metric("session_profile_finished_seconds", "Instant of the last full profile.", "store", "target"),
        # Compacted and fan-out queues
        _metric("compacted_queues", "Compacted queues, at the last full judgement."),
        _metric("compacted_keys", "Keys with a value or a tombstone."),
        _metric("compacted_tombstones", "Tombstones."),
        _metric("compacted_lag_messages", "Messages not delivered yet."),
        _metric("compacted_size_bytes", "Bytes of keys and values."),
        _metric("compacted_oldest_undelivered_seconds", "Age of the oldest message that was not delivered."),
        _metric("compacted_overdue_seconds", "For how long the collector has been late, at most."),
        _metric("fanout_queues", "Fan-out queues, at the last full judgement."),
        _metric("fanout_consumers", "Registered consumers."),
        _metric("fanout_stored_messages", "Stored messages."),
        _metric("fanout_waiting_messages", "Messages that wait for consumers or are under leases, counted for each."),
        _metric("fanout_dead_letters", "Dead letters."),
        _metric("fanout_forsaken_seconds", "For how long a consumer has not been seen that something waits for."),
        # Migration
        _metric("migration_state", "1 for the state of the newest plan.", "plan", "state"),
        _metric("migration_messages", "Messages of the newest plan by what becomes of them.", "plan", "fate"),
        _metric("migration_cohorts", "Cohorts of the newest plan by state.", "plan", "state"),
        _metric("migration_done_messages", "How far a step of the newest plan has come.", "plan", "step"),
        _metric("migration_total_messages", "How far a step of the newest plan has to come.", "plan", "step"),
        _metric("migration_unaccounted_rows", "Rows that the ledger does not account for.", "plan"),
        _metric("migration_differences", "Differences that the verification has found.", "plan"),
        _metric("migration_throttle_messages_per_second", "Limit of the copy; absent for none.", "plan"),
        _metric("quarantined_rows", "Rows that wait for repair and replay.", "origin", "reason"),
        _metric("quarantine_oldest_seconds", "Instant since which the oldest of them waits.", "origin", "reason"),
        # Upkeep and quality
        _metric("maintenance_runs", "Runs of upkeep.", "kind", "state"),
        _metric("maintenance_paused_runs", "Runs that somebody has paused.", "kind", "state"),
        _metric("maintenance_changed_seconds", "Instant at which a run last came to this state.", "kind", "state"),
        _metric(
            "quality_unexpected_queues",
            "Queues that break a check, at the suite's last full judgement.",
            "suite",
            "check",
            "severity",
            "status",
        ),
        _metric("quality_finished_seconds", "Instant of a suite's last judgement.", "suite"),
        # Events and partitions
        _metric("events_undispatched", "Events that no poll has dispatched yet; counting stops at 100,000."),
        _metric("events_scheduled", "Events that are to be published later."),
        _metric("events_overdue", "Scheduled events whose time has passed."),
        _metric("events_dead_letters", "Events that handlers have given up."),
        _metric("events_quarantined_subscriptions", "Subscriptions whose condition fails."),
        _metric("events_polled_seconds", "Instant of the last poll."),
        _metric("events_head_room_seconds", "For how long there are partitions."),
        _metric("events_overflow_in_use", "1 when events are stored for want of a partition."),
        _metric("events_unread_hours", "Age of the oldest event that a group has not read.", "group"),
        _metric("retired_partitions", "Partitions that were taken out of their tables.", "table", "state"),
        _metric("retired_partitions_bytes", "Their size.", "table", "state"),
    )
)
"""Every gauge by its name without the namespace."""


def gather(*, postgres_url: str | None, redis_url: str | None) -> Gathered:
    """Ask servers and records, and return what they say; a server that is down is a figure, too.

    :param postgres_url: control database; none to leave it out.
    :param redis_url: any node; none to leave it out.
    """
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    failures: list[str] = []

    def put(sample: Sample) -> None:
        name, labels, value = sample
        if value is None:
            return
        if name not in gauges:
            metric = METRICS[name]
            gauges[name] = Gauge(name, metric.help, metric.labels, namespace=NAMESPACE, registry=registry)
        gauge = gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    for server, samples in (
        ("postgres", None if postgres_url is None else lambda: _of_postgres(postgres_url)),
        ("redis", None if redis_url is None else lambda: _of_redis(redis_url)),
    ):
        if samples is None:
            continue
        try:
            for sample in samples():
                put(sample)
        except QueuekeeperError as error:
            failures.append(str(error))
            put(("up", (server,), 0))
        else:
            put(("up", (server,), 1))
    return Gathered(text=generate_latest(registry).decode(), failures=tuple(failures))


def _of_redis(url: str) -> Iterator[Sample]:
    with connect_redis(url) as client:
        for address, node in nodes(client):
            with redis_errors(address):
                facts: dict[str, Any] = node.info("everything")
                keys = node.dbsize()
            label = (address,)
            yield "redis_used_memory_bytes", label, facts["used_memory"]
            yield "redis_maxmemory_bytes", label, facts["maxmemory"]
            yield "redis_keys", label, keys
            yield "redis_evicted_keys", label, facts["evicted_keys"]
            yield "redis_connected_clients", label, facts["connected_clients"]
            yield "redis_blocked_clients", label, facts["blocked_clients"]
            yield "redis_replicas", label, facts["connected_slaves"]
            yield "redis_append_only_file", label, facts["aof_enabled"]


def _of_postgres(url: str) -> Iterator[Sample]:
    with connect(url, autocommit=True) as connection:
        yield from _rows(connection, statement("metrics/server"), _SERVER)
        version = schema_version(connection)
        yield "schema_version", (), version or 0
        if version is not None:
            for query, read in _QUERIES.items():
                yield from _rows(connection, statement(query), read)
        yield from _of_queue_tables(connection)
        with translated_errors(connection):
            (present,) = connection.execute(statement("maintenance/partitions/has_broker")).fetchone() or (False,)
        if present:
            for query, read in _BROKER_QUERIES.items():
                yield from _rows(connection, statement(query), read)


def _of_queue_tables(connection: Connection) -> Iterator[Sample]:
    policies = known_policies(connection)
    tables = read_tables(connection, policies)
    for name, parts in groupby(tables, lambda each: each.table_name):
        partitions = list(parts)
        yield "queue_table_live_rows", (name,), sum(each.live_rows for each in partitions)
        yield "queue_table_dead_rows", (name,), sum(each.dead_rows for each in partitions)
        yield "queue_table_vacuum_ratio", (name,), max(each.vacuum_share for each in partitions)
        frozen = max(max(each.xid_share, each.multixact_share) for each in partitions)
        yield "queue_table_frozen_ratio", (name,), frozen
    for policy in policies:
        # A table that is gone, or may not be looked at, has no figure; the doctor says why.
        with suppress(RefusedError, UsageError):
            yield (
                "queue_table_head_room_seconds",
                (policy.table,),
                head_room_s(connection, table=policy.table, now_ms=system_clock()),
            )
    for sequence in read_sequences(connection, tables):
        yield "queue_sequence_used_ratio", (sequence.name,), sequence.used_share
    holders = read_holders(connection)
    for kind in {each.kind for each in holders}:
        ages = [(each.age, each.held_s or 0.0) for each in holders if each.kind == kind]
        yield "postgres_snapshot_age_transactions", (kind,), max(age for age, _ in ages)
        yield "postgres_snapshot_held_seconds", (kind,), max(held_s for _, held_s in ages)


Row = Sequence[Any]
Read = Callable[[Row], Iterator[Sample]]


def _rows(connection: Connection, query: LiteralString, read: Read) -> Iterator[Sample]:
    with translated_errors(connection):
        rows = connection.execute(query).fetchall()
    for row in rows:
        yield from read(row)


def _reader(labels: int, *names: str) -> Read:
    """Return what reads rows that begin with labels and go on with a value for each metric."""

    def read(row: Row) -> Iterator[Sample]:
        known = tuple(str(label) for label in row[:labels])
        for name, value in zip(names, row[labels:], strict=True):
            yield name, known, value

    return read


_SERVER = _reader(
    0, "postgres_database_bytes", "postgres_connections", "postgres_max_connections", "postgres_frozen_ratio"
)


def _migration(row: Row) -> Iterator[Sample]:
    plan, state, to_copy, expired, trimmed, quarantined, unaccounted, differences, throttle = row
    yield "migration_state", (plan, state), 1
    fates = {"to_copy": to_copy, "expired": expired, "trimmed": trimmed, "quarantined": quarantined}
    for fate, messages in fates.items():
        yield "migration_messages", (plan, fate), messages
    yield "migration_unaccounted_rows", (plan,), unaccounted
    yield "migration_differences", (plan,), differences
    yield "migration_throttle_messages_per_second", (plan,), throttle


def _quality(row: Row) -> Iterator[Sample]:
    suite, check, severity, status, queues, finished_s = row
    if check is not None:
        yield "quality_unexpected_queues", (suite, check, severity, status), queues
    yield "quality_finished_seconds", (suite,), finished_s


def _quarantine(row: Row) -> Iterator[Sample]:
    origin, reason, waiting, _, oldest_ms = row
    yield "quarantined_rows", (origin, reason), waiting
    yield "quarantine_oldest_seconds", (origin, reason), None if oldest_ms is None else oldest_ms / 1_000


def _dispatching(row: Row) -> Iterator[Sample]:
    polled_at, _, undispatched, _, scheduled, overdue, _, quarantined, _, head_room_s, overflow_in_use = row
    yield "events_undispatched", (), undispatched
    yield "events_scheduled", (), scheduled
    yield "events_overdue", (), overdue
    yield "events_quarantined_subscriptions", (), quarantined
    yield "events_polled_seconds", (), None if polled_at is None else polled_at.timestamp()
    yield "events_head_room_seconds", (), head_room_s
    yield "events_overflow_in_use", (), bool(overflow_in_use)


def _dead_letters(row: Row) -> Iterator[Sample]:
    yield "events_dead_letters", (), row[-1]


def _group(row: Row) -> Iterator[Sample]:
    group, _, _, unread_h = row
    yield "events_unread_hours", (group,), unread_h or 0.0


_QUERIES: Mapping[str, Read] = {
    "metrics/session_queues": _reader(
        2,
        "session_queues",
        "session_messages",
        "session_dead_references",
        "session_payload_bytes",
        "session_faulty_queues",
        "session_profile_finished_seconds",
    ),
    "metrics/compacted_queues": _reader(
        0,
        "compacted_queues",
        "compacted_keys",
        "compacted_tombstones",
        "compacted_lag_messages",
        "compacted_size_bytes",
        "compacted_oldest_undelivered_seconds",
        "compacted_overdue_seconds",
    ),
    "metrics/fanout_queues": _reader(
        0,
        "fanout_queues",
        "fanout_consumers",
        "fanout_stored_messages",
        "fanout_waiting_messages",
        "fanout_dead_letters",
        "fanout_forsaken_seconds",
    ),
    "metrics/migration": _migration,
    "metrics/migration_cohorts": _reader(2, "migration_cohorts"),
    "metrics/migration_progress": _reader(2, "migration_done_messages", "migration_total_messages"),
    "quality/quarantine_sums": _quarantine,
    "metrics/maintenance_runs": _reader(
        2, "maintenance_runs", "maintenance_paused_runs", "maintenance_changed_seconds"
    ),
    "metrics/quality_results": _quality,
    "metrics/retired_partitions": _reader(2, "retired_partitions", "retired_partitions_bytes"),
}

_BROKER_QUERIES: Mapping[str, Read] = {
    "events/queries/dispatch_status": _dispatching,
    "maintenance/broker_status": _dead_letters,
    "quality/read_event_groups": _group,
}
