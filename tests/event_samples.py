"""Short ways for tests to subscribe, publish, poll and see what was delivered."""

from __future__ import annotations

from typing import Any

from psycopg.types.json import Jsonb

from queuekeeper.postgres import Connection

GROUP = "group"


def subscribe(
    connection: Connection,
    subscription: str,
    *,
    condition: str = "TRUE",
    params: dict[str, Any] | None = None,
    group: str = GROUP,
) -> None:
    """Make a subscription, and its group when it is the first."""
    connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s) ON CONFLICT DO NOTHING", (group,))
    connection.execute(
        "INSERT INTO pgmb.subscriptions (id, group_id, conditions_sql, params) VALUES (%s, %s, %s, %s)",
        (subscription, group, condition, Jsonb(params or {})),
    )


def publish(connection: Connection, *payloads: Any, topic: str = "topic", metadata: Any = None) -> list[str]:
    """Publish one event for each payload and return their ids."""
    rows = connection.execute(
        "SELECT pgmb.publish(%s::text[], %s::jsonb[], %s::jsonb[])",
        ([topic] * len(payloads), [Jsonb(payload) for payload in payloads], [Jsonb(metadata)] * len(payloads)),
    ).fetchall()
    return [event_id for (event_id,) in rows]


def poll(connection: Connection) -> int:
    """Dispatch what there is and return how many matches that made."""
    total = 0
    while made := int(connection.execute("SELECT pgmb.poll_for_events()").fetchall()[0][0]):
        total += made
    return total


def dispatch_in_the_future(connection: Connection, ahead: str) -> None:
    """Dispatch one event, 1, as if the clock had been so far ahead at that time; it is right again afterwards."""
    publish(connection, 1)
    poll(connection)
    connection.execute(
        "UPDATE pgmb.dispatch_state SET last_dispatch_id = pgmb.create_event_id(now() + %s::interval, 0)", (ahead,)
    )


def delivered(connection: Connection, subscription: str, *, group: str = GROUP) -> list[str]:
    """Return the ids of the unread events of one subscription, in the order in which they will be read."""
    rows = connection.execute(
        "SELECT id FROM pgmb.read_next_events(%s, peek => TRUE) WHERE %s = ANY(subscription_ids)",
        (group, subscription),
    ).fetchall()
    return [event_id for (event_id,) in rows]


def value(connection: Connection, statement: str, *parameters: Any) -> Any:
    """Return the first column of the first row."""
    row = connection.execute(statement.encode(), parameters or None).fetchone()
    assert row is not None
    return row[0]
