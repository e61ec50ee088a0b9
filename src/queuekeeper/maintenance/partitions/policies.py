"""Stores policies in schema ``queuekeeper``; those of the event broker are read from its own settings."""

from __future__ import annotations

from dataclasses import fields
from shlex import quote
from typing import Any

from psycopg.types.json import Jsonb

from queuekeeper.errors import UsageError
from queuekeeper.maintenance.partitions.broker import TABLES, broker_policies
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.sql_statements import statement

NO_POLICY = "no table has a policy: set one by `queuekeeper partitions set TABLE --step '1 day'`"

_QUERIES = "maintenance/partitions/"


def load_policies(connection: Connection) -> list[PartitionPolicy]:
    """Return all policies of this database: the event broker's, then the others by table."""
    rows = rows_of(connection, f"{_QUERIES}load_policies")
    names = [each.name for each in fields(PartitionPolicy)]
    stored = [PartitionPolicy(**dict(zip(names, row, strict=True))) for row in rows]
    return [*broker_policies(connection), *stored]


def load_policy(connection: Connection, table: str) -> PartitionPolicy:
    """Return the policy of one table.

    :raises UsageError: when there is none.
    """
    known = load_policies(connection)
    for each in known:
        if each.table == table:
            return each
    names = f"known: {', '.join(each.table for each in known)}" if known else "there are none yet"
    command = f"queuekeeper partitions set {quote(table)} --step '1 day'"
    raise UsageError(f"no policy for table {table!r}: set one by `{command}`; {names}")


def save_policy(connection: Connection, policy: PartitionPolicy) -> None:
    """Store a policy in place of the table's former one. Check it against the table by ``spans`` first.

    :raises UsageError: for a table of the event broker, which has its own settings.
    """
    _refuse_broker(policy.table)
    values: dict[str, Any] = {each.name: getattr(policy, each.name) for each in fields(policy)}
    with translated_errors(connection):
        connection.execute(
            statement(f"{_QUERIES}save_policy"),
            values | {"storage": Jsonb(dict(each.split("=") for each in policy.storage))},
        )


def delete_policy(connection: Connection, table: str) -> None:
    """Delete a policy; the table stays as it is.

    :raises UsageError: when there is none.
    """
    _refuse_broker(table)
    load_policy(connection, table)
    with translated_errors(connection):
        connection.execute(statement(f"{_QUERIES}delete_policy"), {"table": table})


def _refuse_broker(table: str) -> None:
    if table in TABLES:
        raise UsageError(
            f"{table} belongs to the event broker: change partition_interval, future_intervals_to_create and "
            "partition_retention_period in pgmb.config"
        )
