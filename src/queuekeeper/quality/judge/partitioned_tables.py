"""Reads partitioned tables for their suite, from the catalog and by the tables' policies."""

from __future__ import annotations

from typing import Any

import psycopg

from queuekeeper.errors import QueuekeeperError
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.policies import load_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement


def read_partitioned_tables(connection: Connection, *, now_ms: int) -> tuple[dict[str, Any], ...]:
    """Return a row of numbers per table that is partitioned by range; only a table with a policy has all of them.

    :param connection: connection with ``autocommit``.
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
    """Return 1 when a DEFAULT partition holds rows, 0 when it holds none, and ``None`` without the right to read it."""
    try:
        # The name was written by format('%I.%I'), which quotes it where needed.
        found = connection.execute(f"SELECT EXISTS (SELECT FROM {name})".encode()).fetchone()  # noqa: S608
    except psycopg.errors.InsufficientPrivilege:
        return None
    return int(found == (True,))


def _covered(connection: Connection, policy: PartitionPolicy, *, now_ms: int) -> dict[str, Any]:
    try:
        found = coverage(connection, policy=policy, now_ms=now_ms, only_read=True)
    except QueuekeeperError:
        # The table was dropped, is no longer partitioned, or may not be read; the maintenance plan says which.
        return {"unreadable": 1}
    fails_in_s = found.inserts_fail_in_s
    return {
        "unreadable": 0,
        "intervals_ahead": None
        if fails_in_s is None or not found.interval_s
        else max(0.0, fails_in_s) / found.interval_s,
        "head_room_met": int(found.head_room_met),
        "gaps": sum(finding.kind is FindingKind.GAP for finding in found.findings),
        "overflow_rows": int(found.overflow_rows),
    }
