"""Remedies of the event broker: each finds what is wrong now and mends it by a statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg import sql

from queuekeeper.maintenance.events.broker import failing_conditions, undispatched_events
from queuekeeper.postgres import Connection
from queuekeeper.sql_statements import statement

FREEZE_SHARE = 1.5
"""Age of a table, in percent of ``autovacuum_freeze_max_age``, above which autovacuum has failed to freeze it."""

_REASON = (
    "its condition fails on the latest events, or takes longer than a second three times in a row: "
    "see pgmb.check_condition"
)


@dataclass(frozen=True, kw_only=True)
class EventRemedy:
    """A remedy of the broker; a second call changes nothing.

    :param purpose: what the remedy does, in a sentence.
    :param way_back: how to undo the remedy, or that it cannot be undone.
    :param find: returns what is to be mended now: ids of events or subscriptions, or names of tables.
    :param mend: mends the given items and returns how many; the others had changed meanwhile.
    :param at_once: items per call, while the database is quick.
    """

    purpose: str
    way_back: str
    find: Callable[[Connection], list[str]]
    mend: Callable[[Connection, Sequence[str]], int]
    at_once: int = 1_000


def _expired(connection: Connection) -> list[str]:
    return _first_of(connection, "expired_subscriptions")


def _expire(connection: Connection, subscription_ids: Sequence[str]) -> int:
    return len(_first_of(connection, "expire_subscriptions", subscription_ids=list(subscription_ids)))


def _reenqueue(connection: Connection, event_ids: Sequence[str]) -> int:
    return _number(connection, "SELECT pgmb.reenqueue_events(%s::varchar[]::pgmb.event_id[])", list(event_ids))


def _failing(connection: Connection) -> list[str]:
    keys = [UUID(key) for key in failing_conditions(connection)]
    return _first_of(connection, "failing_subscriptions", condition_keys=keys)


def _quarantine(connection: Connection, subscription_ids: Sequence[str]) -> int:
    query = "SELECT count(*) FILTER (WHERE pgmb.quarantine_subscription(u.id, %s)) FROM unnest(%s::text[]) AS u(id)"
    return _number(connection, query, _REASON, list(subscription_ids))


def _too_old(connection: Connection) -> list[str]:
    return _first_of(connection, "tables_to_freeze", freeze_share=FREEZE_SHARE)


def _freeze(connection: Connection, tables: Sequence[str]) -> int:
    for name in tables:
        # The name comes from format('%I.%I'), which quotes where necessary. VACUUM cannot run in a transaction.
        connection.execute(sql.SQL("VACUUM (FREEZE) ") + sql.SQL(name))
    return len(tables)


REMEDIES: Mapping[str, EventRemedy] = {
    "expire_subscriptions": EventRemedy(
        purpose="Remove subscriptions whose expiry interval has passed since they were last active.",
        way_back="none: a client that comes back subscribes anew, from that moment on.",
        find=_expired,
        mend=_expire,
    ),
    "reenqueue_events": EventRemedy(
        purpose="Dispatch stored events that were never dispatched and that no poll would find.",
        way_back="none once the events are dispatched, within seconds; before, delete their ids from pgmb.due_events.",
        find=undispatched_events,
        mend=_reenqueue,
    ),
    "quarantine_subscription": EventRemedy(
        purpose="Quarantine subscriptions whose condition fails on the latest events, or takes longer than a second "
        "three times in a row.",
        way_back="queuekeeper events subscriptions --release ID",
        find=_failing,
        mend=_quarantine,
    ),
    "freeze_partition": EventRemedy(
        purpose="Freeze tables older than 150 % of the age at which autovacuum has to freeze them.",
        way_back="none is needed: no row changes its content.",
        find=_too_old,
        mend=_freeze,
        at_once=1,
    ),
}


def _first_of(connection: Connection, name: str, **parameters: object) -> list[str]:
    return [row[0] for row in connection.execute(statement(f"maintenance/{name}"), parameters)]


def _number(connection: Connection, query: str, *values: object) -> int:
    return int(connection.execute(query.encode(), values).fetchall()[0][0])
