"""Reads what the suite of partitions judges, from the catalog and by the policies of tables."""

from __future__ import annotations

from typing import Any

import psycopg

from queuekeeper.errors import QueuekeeperError
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.keys import KeyKind, parse_span
from queuekeeper.maintenance.partitions.model import Coverage
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, statement, translated_errors

_MONTH_S = 30 * 86_400


def read_partitioned_tables(connection: Connection, *, now_ms: int) -> tuple[dict[str, Any], ...]:
    """Return a row of numbers per table that is partitioned by range; those without a policy are not judged by one.

    :param connection: one that commits by itself.
    """
    policies = {policy.table: policy for policy in load_policies(connection)}
    with translated_errors(connection):
        rows = connection.execute(statement("quality/read_partitioned_tables")).fetchall()
        tables = {
            name: {
                "table_name": name,
                "default_rows": None if default_name is None else _default_rows(connection, default_name),
                "pending_detaches": pending,
            }
            for name, default_name, pending in rows
        }
    for name, policy in policies.items():
        tables.setdefault(name, {"table_name": name}).update(_covered(connection, policy, now_ms=now_ms))
    return tuple(tables[name] for name in sorted(tables))


def _default_rows(connection: Connection, name: str) -> int | None:
    """Return 1 when a DEFAULT partition holds rows; none when it is not for us to look."""
    try:
        # As format('%I.%I') has written it: quoted where it must be.
        found = connection.execute(f"SELECT EXISTS (SELECT FROM {name})".encode()).fetchone()  # noqa: S608
    except psycopg.errors.InsufficientPrivilege:
        return None
    return int(found == (True,))


def _covered(connection: Connection, policy: PartitionPolicy, *, now_ms: int) -> dict[str, Any]:
    try:
        found = coverage(connection, policy=policy, now_ms=now_ms, only_read=True)
    except QueuekeeperError:
        # It is gone, not partitioned any more, or not for us to read: the plan of its maintenance says which.
        return {"unreadable": 1}
    step_s, ahead_s = (_seconds(found, text) for text in (policy.step, policy.ahead))
    # Where the head-room is no more than a step, maintenance keeps less than a step ahead most of the time.
    interval_s = None if step_s is None or ahead_s is None else min(step_s, ahead_s / 2)
    fails_in_s = found.inserts_fail_in_s
    return {
        "unreadable": 0,
        "intervals_ahead": None if fails_in_s is None or interval_s is None else max(0.0, fails_in_s) / interval_s,
        "head_room_met": int(found.head_room_met),
        "gaps": sum(finding.kind is FindingKind.GAP for finding in found.findings),
        "overflow_rows": int(found.overflow_rows),
    }


def _seconds(found: Coverage, text: str) -> float | None:
    """Return how long a span of a policy lasts; none for integers whose rate nobody knows yet."""
    span = parse_span(text, kind=KeyKind(found.key_kind), what="span")
    if span.months:
        return span.months * _MONTH_S
    if span.scale:
        return span.size / span.scale / 1e6
    return 3_600 * span.size / found.keys_per_hour if found.keys_per_hour else None
