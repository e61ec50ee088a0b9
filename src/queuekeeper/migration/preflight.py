"""What must hold before a migration: a source that can be read whole, and a target that keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from queuekeeper.approvals import check_release
from queuekeeper.errors import RefusedError, ServerUnavailable, StalePlan
from queuekeeper.keyspace import client_slot, format_cohorts
from queuekeeper.migration.ledger.model import CohortPlan, MigrationPlan, TaskMemory
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.servers import MEMORY_SHARE, MESSAGES, WRONG_SOURCE, server_problems, server_warnings
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.redis_client import RedisClient, ServerFacts, facts, is_cluster, shards, value_bounds
from queuekeeper.report.figures import size
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import row_defect, user_properties
from queuekeeper.sql_statements import statement

HEAP_PER_PAYLOAD = 16
"""Bytes of heap for a byte of payload that is copied: 256 MB went through 4 GiB and not through 2.8."""

HEAP_PER_QUEUED = 4
"""Bytes of heap for a byte of payload that waits there until its client's queue is judged: 134 MB in messages of 2 MB,
with a packet id that came twice, went through 600 MiB."""

QUEUED_ROWS = 4_096
"""Messages of a client that Spark holds in the heap while it judges a queue; what is beyond goes to disk
(``spark.sql.windowExec.buffer.in.memory.threshold``)."""

_LARGEST_PER_PAGE = 100

REINDEX = (
    "an index does not match its table, as after a change of the system's collation. REINDEX TABLE device_publish_msg "
    "and REINDEX TABLE device_session_ctx, then make a new plan"
)


def check_same_source(connection: Connection, plan: MigrationPlan) -> None:
    """Refuse a plan that was made for another source, or by another release.

    How long a plan counts is for :mod:`queuekeeper.approvals`.

    :raises StalePlan: saying what has changed.
    """
    check_release(f"plan {plan.plan_id}", plan.code_version, command="migrate plan")
    # With devices connected the source changes, and each client is compared for itself.
    if plan.parameters.mode is Mode.OFFLINE and source_fingerprint(connection) != plan.source_fingerprint:
        raise StalePlan(
            f"the source has changed since plan {plan.plan_id} was made: make sure that nobody writes to it, stop the "
            "broker, then plan again by `queuekeeper migrate plan`"
        )


def check_same_target(client: RedisClient, plan: MigrationPlan) -> None:
    """Refuse a plan that was made for another kind of target, by which some clients are treated differently.

    :raises StalePlan: saying for which kind it was made, and what to do.
    """
    if plan.target_clustered not in (None, is_cluster(client)):
        made_for, here = ("a cluster", "a single server") if plan.target_clustered else ("a single server", "a cluster")
        raise StalePlan(
            f"plan {plan.plan_id} was made for {made_for}, and this Redis is {here}, where clients whose ids begin "
            "with } are treated differently: plan again for this Redis, or name the one that the plan was made for"
        )


def source_fingerprint(connection: Connection) -> str:
    """Return what changes when any row of the source does, or when it is another database.

    Reads both tables whole. VACUUM, CLUSTER and a restore of the same rows in another order change nothing, as long as
    server and database stay the same.
    """
    with translated_errors(connection, missing=WRONG_SOURCE), connection.transaction():
        connection.execute(statement("queuekeeper/queries/allow_long_statements"))
        row = connection.execute(statement("sessions/source_fingerprint")).fetchone()
    assert row is not None  # an aggregate always gives a row
    system_identifier, database, messages, messages_hash, sessions, sessions_hash = row
    mask = 2**64 - 1
    return (
        f"{system_identifier}/{database}"
        f"/messages-{messages}-{messages_hash & mask:016x}"
        f"/sessions-{sessions}-{sessions_hash & mask:016x}"
    )


def check_all_read(fingerprint: str, *, messages: int, sessions: int) -> None:
    """Check that as many rows were read, in the order of the keys, as the fingerprint has counted without an index.

    :raises RefusedError: when an index hides rows.
    """
    counted = [int(part.split("-")[1]) for part in fingerprint.split("/")[-2:]]
    if [messages, sessions] != counted:
        raise RefusedError(
            f"in the order of their keys the source's tables have {messages:,} messages and {sessions:,} sessions, but "
            f"{counted[0]:,} and {counted[1]:,} without an index: {REINDEX}"
        )


def check_cohorts_read(plan: MigrationPlan, read: Mapping[int, int], *, words: str, then: str) -> None:
    """Check that a step has read every row that the plan has counted in the same source.

    :param read: cohort -> rows that were read.
    :param words: what has read them, as a person calls it.
    :param then: what that means for the cohorts.
    :raises RefusedError: when it has not.
    """
    counted = {cohort: plan.cohorts[cohort].messages + plan.cohorts[cohort].sessions for cohort in read}
    if wrong := [cohort for cohort in sorted(read) if read[cohort] != counted[cohort]]:
        found, planned = (sum(rows[cohort] for cohort in wrong) for rows in (read, counted))
        raise RefusedError(
            f"{words} has read {found:,} rows of cohorts {format_cohorts(wrong)}, where the plan has counted "
            f"{planned:,} in the same source, so {then}: {REINDEX}"
        )


def check_target(client: RedisClient, *, forecast_bytes: Mapping[str, int] | None = None) -> tuple[str, ...]:
    """Check that every master keeps what it is given and has room for it.

    :param forecast_bytes: memory that the copy will take of each master, by its ``host:port``; see
        :func:`forecast_by_master`. None leaves memory unchecked.
    :returns: warnings, for things that are risky but not wrong.
    :raises RefusedError: naming every problem and the command that mends it.
    :raises ServerUnavailable: when a master of the forecast is none any more.
    """
    servers = facts(client)
    problems = [problem for server in servers for problem in server_problems(server)]
    warnings = [warning for server in servers for warning in server_warnings(server)]
    if forecast_bytes is not None and not problems:
        problems = _memory_problems(servers, forecast_bytes)
        warnings += [
            f"Redis at {server.address} has no maxmemory and does not say how much memory its host has: "
            f"make sure that {size(forecast_bytes.get(server.address, 0))} more fit"
            for server in servers
            if not server.maxmemory_bytes and not server.total_system_memory_bytes
        ]
    if problems:
        raise RefusedError("; ".join(problems))
    return tuple(warnings)


def check_payloads(connection: Connection, memory: TaskMemory) -> int:
    """Check that Spark's tasks have the memory for the largest payloads of the source, whatever becomes of their rows.

    :param connection: the source, in the snapshot that is copied.
    :returns: how many bytes of the heap they need.
    :raises RefusedError: naming sizes, the memory that carries them, and how to find the rows.
    """
    with translated_errors(connection, missing=WRONG_SOURCE):
        rows = connection.execute(statement("migration/largest_payloads"), {"limit": memory.tasks}).fetchall()
    sizes = [int(size or 0) for (size,) in rows]
    # Each of them may be in a task of its own, at the same time.
    needed_bytes = HEAP_PER_PAYLOAD * sum(sizes)
    if not sizes or needed_bytes <= memory.heap_bytes:
        return needed_bytes
    carried_bytes = memory.heap_bytes // HEAP_PER_PAYLOAD
    together = "" if len(sizes) == 1 else f", and the {len(sizes)} that may be copied at once have {sum(sizes):,}"
    raise RefusedError(
        f"the largest payload has {sizes[0]:,} bytes{together}: the {size(memory.heap_bytes)} of Spark's heap carry "
        f"{carried_bytes:,}. Set {memory.setting} to {memory.setting_for(needed_bytes)} (docs/migration.md, 4), or "
        f"take rows of {MESSAGES} with octet_length(payload) > {carried_bytes // len(sizes)} out of the source"
    )


def check_queues(connection: Connection, memory: TaskMemory, *, payloads_need_bytes: int) -> None:
    """Check that Spark's tasks have the memory for the largest queues, whose payloads they hold while they judge them.

    :param connection: the source, in the snapshot that is copied.
    :param payloads_need_bytes: what :func:`check_payloads` has returned.
    :raises RefusedError: naming sizes, the memory that carries them, and how to find the queues.
    """
    parameters = {"rows": QUEUED_ROWS, "limit": memory.tasks}
    with translated_errors(connection, missing=WRONG_SOURCE):
        rows = connection.execute(statement("migration/largest_queues"), parameters).fetchall()
    sizes = [int(size or 0) for (size,) in rows]
    # Each of them may be in a task of its own, at the same time.
    needed_bytes = payloads_need_bytes + HEAP_PER_QUEUED * sum(sizes)
    if not sizes or needed_bytes <= memory.heap_bytes:
        return
    carried_bytes = (memory.heap_bytes - payloads_need_bytes) // HEAP_PER_QUEUED
    together = "" if len(sizes) == 1 else f", and the {len(sizes)} that may be copied at once have {sum(sizes):,}"
    raise RefusedError(
        f"the largest queue of a client has {sizes[0]:,} bytes of payloads beside its largest{together}: the "
        f"{size(memory.heap_bytes)} of Spark's heap carry {carried_bytes:,}. Set {memory.setting} to "
        f"{memory.setting_for(needed_bytes)} (docs/migration.md, 4), or take messages of the clients with the greatest "
        f"sum(octet_length(payload)) in {MESSAGES} out of the source"
    )


def check_heap(connection: Connection, memory: TaskMemory) -> None:
    """Check that Spark's tasks have the memory for the largest payloads and the largest queues of the source.

    :param connection: the source, in the snapshot that is copied.
    :raises RefusedError: naming sizes, the memory that carries them, and how to find the rows.
    """
    check_queues(connection, memory, payloads_need_bytes=check_payloads(connection, memory))


def check_values(client: RedisClient, *, largest_bytes: int) -> None:
    """Check that every master takes the largest value that a copy would send.

    :raises RefusedError: naming the setting that is too low and what it must be.
    """
    problems = [
        f"the largest message makes a value of {largest_bytes:,} bytes, and Redis at {address} takes {bound:,} "
        f"({setting}): CONFIG SET {setting} {largest_bytes + 2}, or take rows of {MESSAGES} with "
        f"octet_length(payload) > {bound // 4 * 3} out of the source"
        for address, setting, bound in value_bounds(client)
        # The end of the line is read with the value.
        if bound < largest_bytes + 2
    ]
    if problems:
        raise RefusedError("; ".join(problems))


def largest_value(connection: Connection, plan: MigrationPlan, cohorts: Iterable[int], *, now_ms: int) -> int:
    """Return the bytes of the largest value that a living message of these cohorts makes in Redis, as a plan counts it.

    Rows that nobody can deliver are not sent, so they do not count.

    :param now_ms: instant at which a message is living or expired.
    """
    wanted = set(cohorts)
    slots = [range(each.slot_first, each.slot_last + 1) for each in plan.cohorts if each.cohort in wanted]
    offset = 0
    while True:
        parameters = {"limit": _LARGEST_PER_PAGE, "offset": offset}
        with translated_errors(connection, missing=WRONG_SOURCE):
            cursor = connection.execute(statement("migration/largest_messages"), parameters)
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            slot = client_slot(row["client_id"]) if row["client_id"] else -1
            if any(slot in each for each in slots) and _is_sent(row, plan, now_ms=now_ms):
                return _value_bytes(row)
        if len(rows) < _LARGEST_PER_PAGE:
            return 0
        offset += len(rows)


def _is_sent(row: dict[str, Any], plan: MigrationPlan, *, now_ms: int) -> bool:
    correlation_data = row["correlation_data"]
    sizes = {
        "payload": row["payload_bytes"],
        "correlation_data": None if correlation_data is None else len(correlation_data),
    }
    if row_defect(row | sizes) is not None:
        return False
    ends_ms = wire.expires_at_ms(
        time_ms=row["time"],
        msg_expiry_interval=row["msg_expiry_interval"],
        default_ttl_s=plan.parameters.default_ttl_s,
    )
    return ends_ms > now_ms


def _value_bytes(row: dict[str, Any]) -> int:
    """Return the size of a message as TBMQ stores it; base64 makes four bytes of three."""
    names = ("client_id", "topic", "qos", "packet_id", "packet_type", "retain", "msg_expiry_interval")
    optional = ("payload_format_indicator", "content_type", "response_topic", "correlation_data")
    rest = wire.message_json(
        **{name: row[name] for name in (*names, *optional)},
        time_ms=row["time"],
        payload=b"",
        user_property_pairs=user_properties(row["user_properties"]),
    )
    payload_bytes: int = row["payload_bytes"]
    return len(rest) + 4 * -(-payload_bytes // 3)


def forecast_by_master(client: RedisClient, cohorts: Iterable[CohortPlan]) -> dict[str, int]:
    """Share the forecast out over the masters that hold the cohorts' hash slots now.

    :param cohorts: those that are yet to be copied: what an earlier run has copied is in use already.
    :returns: ``host:port`` -> bytes. A cohort whose slots have been spread since its plan counts where its slots are.
    """
    forecast: dict[str, int] = {}
    waiting = list(cohorts)
    for first, last, where in shards(client):
        for cohort in waiting:
            here = min(last, cohort.slot_last) - max(first, cohort.slot_first) + 1
            if here > 0:
                share = -(-cohort.forecast_bytes * here // (cohort.slot_last - cohort.slot_first + 1))
                forecast[where] = forecast.get(where, 0) + share
    return forecast


def left_to_copy(cohorts: Iterable[CohortPlan], copied: Mapping[int, int]) -> list[CohortPlan]:
    """Return cohorts with the forecast of what is yet to be copied: the rest is in the memory that is in use.

    :param copied: cohort -> messages that are there.
    """
    found = []
    for each in cohorts:
        left = max(0, each.to_copy - copied.get(each.cohort, 0))
        is_begun = left < each.to_copy
        forecast_bytes = -(-each.forecast_bytes * left // each.to_copy) if is_begun else each.forecast_bytes
        found.append(replace(each, forecast_bytes=forecast_bytes))
    return found


def _memory_problems(servers: list[ServerFacts], forecast: Mapping[str, int]) -> list[str]:
    """Compare each master with its limit; masters without one share the memory of their host.

    :raises ServerUnavailable: when the forecast was made for other masters.
    """
    if gone := sorted(set(forecast) - {server.address for server in servers}):
        # Two looks at a cluster; the next try sees one state of it.
        raise ServerUnavailable(f"{', '.join(gone)} ceased to be a master while this Redis was checked: try again")
    problems: list[str] = []
    hosts: dict[str, list[ServerFacts]] = {}
    for server in servers:
        if server.maxmemory_bytes:
            needed = server.used_memory_bytes + forecast.get(server.address, 0)
            if needed > MEMORY_SHARE * server.maxmemory_bytes:
                problems.append(
                    f"Redis at {server.address} has too little memory: {_use(server, forecast)} are over "
                    f"{MEMORY_SHARE:.0%} of maxmemory {size(server.maxmemory_bytes)}: "
                    f"CONFIG SET maxmemory {int(needed / MEMORY_SHARE) + 1}, where the host has the memory"
                )
        elif server.total_system_memory_bytes:
            hosts.setdefault(server.address.rpartition(":")[0], []).append(server)
    for host, neighbours in hosts.items():
        memory = neighbours[0].total_system_memory_bytes
        needed = sum(server.used_memory_bytes + forecast.get(server.address, 0) for server in neighbours)
        if needed > MEMORY_SHARE * memory:
            used = " and ".join(f"{server.address} ({_use(server, forecast)})" for server in neighbours)
            problems.append(
                f"the host {host} has too little memory for Redis: {used} are over {MEMORY_SHARE:.0%} of its "
                f"{size(memory)}: add memory, or spread the data over more masters"
            )
    return problems


def _use(server: ServerFacts, forecast: Mapping[str, int]) -> str:
    return f"{size(server.used_memory_bytes)} in use and a forecast of {size(forecast.get(server.address, 0))}"
