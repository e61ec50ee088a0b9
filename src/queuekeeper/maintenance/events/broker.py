"""Reads the figures that the suite of the event broker judges: cursors, dispatching, conditions and ages."""

from __future__ import annotations

from typing import Any

import psycopg

from queuekeeper.errors import RefusedError
from queuekeeper.events.operations import TRIALS
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement

COUNTED_EVENTS = 10_000
"""Events that were never dispatched are counted up to this many."""

CANARY_TIMEOUT_MS = 1_000
"""Longest time of a condition on the latest events, in milliseconds; a slower condition would hold up every poll."""


def read_event_broker(connection: Connection) -> tuple[dict[str, Any], ...]:
    """Return a row of numbers per group, condition, table and replication slot, and one for the broker.

    Groups and tables appear by name; a condition appears by its key, since its text may hold anything.

    :param connection: connection to the broker's database, with ``autocommit``.
    :raises RefusedError: when there is no broker.
    """
    with translated_errors(connection):
        if connection.execute("SELECT to_regclass('pgmb.dispatch_state')").fetchone() == (None,):
            raise RefusedError(
                "there is no event broker in this database: run `queuekeeper events install`, or leave suite events out"
            )
        return (
            *_rows(connection, "broker", "read_event_broker", first="", more=_undispatched(connection)),
            *_rows(connection, "group", "read_event_groups"),
            *_conditions(connection),
            *_rows(connection, "table", "read_frozen_ages"),
            *_rows(connection, "slot", "read_replication_slots"),
        )


def undispatched_events(connection: Connection) -> list[str]:
    """Return the ids of stored events that were never dispatched and that no poll will find, oldest first."""
    rows = connection.execute(statement("quality/read_undispatched_events"), {"maximum": COUNTED_EVENTS})
    return [event_id for (event_id,) in rows]


def failing_conditions(connection: Connection) -> frozenset[str]:
    """Evaluate each condition on the latest events; return the keys of those that fail or take too long.

    PostgreSQL's error may quote an event, so it is not returned.
    """
    # A broker of an earlier release has only the function that reads events with the caller's rights.
    has_verdict = connection.execute("SELECT to_regprocedure('pgmb.condition_fails(uuid)') IS NOT NULL").fetchone()
    failing = set()
    for key, condition, *_ in connection.execute(statement("quality/read_event_conditions")).fetchall():
        for _ in range(TRIALS):
            try:
                with connection.transaction():
                    connection.execute("SELECT set_config('statement_timeout', %s, true)", (str(CANARY_TIMEOUT_MS),))
                    if has_verdict == (True,):
                        trial = connection.execute("SELECT NOT pgmb.condition_fails(%s::uuid)", (key,))
                    else:
                        trial = connection.execute("SELECT failure IS NULL FROM pgmb.check_condition(%s)", (condition,))
                    # No row, or null: the condition's subscriptions are gone.
                    passed = trial.fetchone() in ((True,), (None,))
            except psycopg.errors.QueryCanceled:
                passed = False
            else:
                break
        if not passed:
            failing.add(key)
    return frozenset(failing)


def _undispatched(connection: Connection) -> dict[str, Any]:
    return {"never_dispatched": len(undispatched_events(connection))}


def _conditions(connection: Connection) -> list[dict[str, Any]]:
    failing = failing_conditions(connection)
    rows = connection.execute(statement("quality/read_event_conditions")).fetchall()
    return [
        {
            "kind": "condition",
            "name": key,
            "subscriptions": subscriptions,
            "quarantined": quarantined,
            "fails": int(key in failing),
        }
        for key, _, subscriptions, quarantined in rows
    ]


def _rows(
    connection: Connection, kind: str, name: str, *, first: str | None = None, more: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a statement; the first column is the name of a row, unless a name is given."""
    cursor = connection.execute(statement(f"quality/{name}"))
    columns = [column.name for column in cursor.description or ()]
    found = [dict(zip(columns, row, strict=True)) for row in cursor]
    return [
        {"kind": kind, "name": row[columns[0]] if first is None else first or "dispatching", **row, **(more or {})}
        for row in found
    ]
