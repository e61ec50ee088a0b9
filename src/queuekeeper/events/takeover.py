"""Takes over an installed PGMB: replaces its schema by the event broker's, with its content, in one transaction.

PGMB's schema is renamed to ``pgmb_original``, the broker's is created, and the content is copied. A dry run does the
same without locking PGMB's tables, and rolls back. The statements are in ``sql/events/takeover``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from queuekeeper.errors import CheckFailed, RefusedError
from queuekeeper.events import schema
from queuekeeper.events.broker import broker_errors
from queuekeeper.events.operations import TRIAL_TIMEOUT_S
from queuekeeper.postgres import Connection, address, outside_dependants, server_words
from queuekeeper.schema_migrations import lock_holders
from queuekeeper.sql_statements import statement
from queuekeeper.wording import named

SET_ASIDE = "pgmb_original"
"""Name of PGMB's schema after the takeover."""

LOCK_TIMEOUT = "5s"
"""Longest wait for each lock; publishers wait behind it."""

OURS = frozenset({"plugin_version", "use_pg_cron"})
"""Settings of which the broker keeps its own value."""

_SHAPE = {
    "config": {"id": "config_type", "value": "text"},
    "events": {
        "id": "event_id",
        "topic": "varchar",
        "payload": "jsonb",
        "metadata": "jsonb",
        "subscription_id": "subscription_id",
    },
    "unread_events": {"event_id": "event_id"},
    "subscription_groups": {"id": "group_id", "created_at": "timestamptz", "last_read_event_id": "event_id"},
    "subscriptions": {
        "id": "subscription_id",
        "group_id": "group_id",
        "conditions_sql": "text",
        "params": "jsonb",
        "identity": "int8",
        "last_active_at": "timestamptz",
        "expiry_interval": "interval",
    },
    "subscription_events": {
        "id": "event_id",
        "group_id": "group_id",
        "event_id": "event_id",
        "subscription_id": "subscription_id",
    },
}
"""Tables of PGMB, the same in 0.2.0 to 0.2.22; ``plugin_version`` is 0.2.0 in all of these."""

_BEFORE_0_2 = frozenset({"exchanges", "queues"})
_RELATIONS = (*_SHAPE, "subscription_cond_sqls")
_TYPES = ("config_type", "event_id", "group_id", "subscription_id")
_ROUTINES = (
    "add_interval_imm",
    "create_event_id",
    "create_event_id_default",
    "create_random_bigint",
    "create_subscription_id",
    "create_topic",
    "extract_date_from_event_id",
    "get_config_value",
    "get_current_partition",
    "get_partitions_and_bounds",
    "get_time_partition_name",
    "jsonb_diff",
    "maintain_append_only_table",
    "maintain_events_table",
    "maintain_time_partitions_using_event_id",
    "manage_cron_jobs_trigger_fn",
    "mark_events_as_unread",
    "poll_for_events",
    "poll_for_events_tmpl",
    "prepare_poll_for_events_fn",
    "push_table_event",
    "push_table_mutations",
    "read_events",
    "read_next_events",
    "refresh_subscription_read_statements",
    "release_group_lock",
    "replay_events",
    "serialise_record_for_event",
    "set_group_cursor",
    "stop_table_mutations_push",
    "validate_subscription_conditions_sql",
)
_SUBJECTS = ("events", "unread events", "subscriptions", "groups", "deliveries", "settings", "watched tables")
_SEEN = "seen"
_SHOWN_CHARACTERS = 80

Row = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class TakeoverLine:
    """One line of the ledger.

    :param subject: kind of the rows.
    :param seen: number of rows that PGMB had.
    :param fates: number of rows by fate. Rows with a fate that begins with ``left`` are only in the renamed schema.
    """

    subject: str
    seen: int
    fates: Mapping[str, int]

    @property
    def unaccounted(self) -> int:
        """Number of seen rows that have no fate; less than 0 when there are more fates than seen rows."""
        return self.seen - sum(self.fates.values())


@dataclass(frozen=True, kw_only=True)
class TakeoverReport:
    """Result of a takeover; in a dry run, what it would do.

    :param lines: the ledger, in which no row is unaccounted for.
    :param unmatched: number of events that PGMB neither lists as unread nor has dispatched to a subscription: no
        condition held for them, or a crash emptied the list. They are dispatched again only with
        ``redispatch_unmatched``.
    :param to_stop: sessions and jobs that must be stopped before a takeover; empty after one.
    :param roles: roles that had rights on PGMB's tables and have none on the broker's yet.
    :param set_aside: name of the schema in which PGMB is kept.
    """

    dry_run: bool
    lines: tuple[TakeoverLine, ...]
    unmatched: int
    to_stop: tuple[str, ...]
    roles: tuple[str, ...]
    set_aside: str = SET_ASIDE


def take_over(
    connection: Connection, *, dry_run: bool = False, redispatch_unmatched: bool = False, directory: Path | None = None
) -> TakeoverReport:
    """Replace an installed PGMB by the event broker, with its events, subscriptions, groups, cursors and settings.

    :param connection: connection of PGMB's owner, outside a transaction.
    :param dry_run: whether to roll back at the end; PGMB can be used meanwhile.
    :param redispatch_unmatched: whether to dispatch unmatched events again, to the present subscriptions.
    :param directory: directory of the broker's migrations; ``sql/events/migrations`` when absent.
    :raises RefusedError: naming what cannot be taken over, and what to do; nothing was changed.
    :raises CheckFailed: when rows are unaccounted for; nothing was changed.
    """
    schema.check_server(connection)
    with broker_errors(connection), connection.transaction(force_rollback=dry_run):
        if dry_run:
            # PGMB is used meanwhile: all counts must be of one instant.
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        schema.lock(connection)
        _check_source(connection)
        connection.execute("SELECT set_config('lock_timeout', %s, TRUE)", (LOCK_TIMEOUT,))
        to_stop = tuple(_at_work(connection))
        if not dry_run:
            if to_stop:
                raise RefusedError(
                    f"PGMB at {address(connection)} is at work; stop first: {named(to_stop)}. "
                    "Publishers may go on: they wait for the takeover"
                )
            _shut(connection)
        _run(connection, "move_schema")
        schema.create(connection, directory=directory)
        return _copied(connection, dry_run=dry_run, redispatch_unmatched=redispatch_unmatched, to_stop=to_stop)


def _copied(
    connection: Connection, *, dry_run: bool, redispatch_unmatched: bool, to_stop: tuple[str, ...]
) -> TakeoverReport:
    problems = [
        f"{table} has {number:,} ids that hold no instant, such as {example[:40]!r}: delete those rows"
        for table, number, example in _rows(connection, "odd_ids")
    ]
    problems += _copy_settings(connection)
    _refuse(problems)
    _run(connection, "extend_partitions")
    _run(connection, "add_partitions")
    ((now_id,),) = connection.execute(statement("events/queries/latest_event_id")).fetchall()
    ((begin_id,),) = _rows(connection, "begin_dispatches")
    _run(connection, "copy_groups", begin_id=begin_id)
    _run(connection, "copy_scheduled_events", now_id=now_id)
    _run(connection, "copy_events", redispatch_unmatched=redispatch_unmatched)
    _refuse(_copy_subscriptions(connection))
    _run(connection, "match_table", begin_id=begin_id)
    _run(connection, "copy_dispatches")
    _run(connection, "copy_matches")
    _run(connection, "end_dispatches")
    triggers = _rows(connection, "table_triggers")
    if not dry_run:
        for commands in triggers:
            for command in commands:
                connection.execute(sql.SQL(command))
    for (command,) in _rows(connection, "own_serialiser"):
        connection.execute(sql.SQL(command))
    lines = _ledger(connection, begin_id, watched=len(triggers))
    wrong = [f"{line.subject} {line.unaccounted:+,}" for line in lines if line.unaccounted]
    if wrong:
        raise CheckFailed(f"rows of PGMB are unaccounted for ({', '.join(wrong)}): nothing was changed")
    ((unmatched,),) = _rows(connection, "unmatched", now_id=now_id)
    roles = tuple(f"{role} ({rights})" for role, rights in _rows(connection, "grantees"))
    _run(connection, "close_original")
    _run(connection, "analyze")
    return TakeoverReport(dry_run=dry_run, lines=lines, unmatched=unmatched, to_stop=to_stop, roles=roles)


def _check_source(connection: Connection) -> None:
    """Refuse a schema that is not a known PGMB, holds other objects, or has another owner."""
    where = address(connection)
    shape: dict[str, dict[str, str]] = {}
    for table, column, kind in _rows(connection, "shape"):
        shape.setdefault(table, {})[column] = kind
    if not shape:
        raise RefusedError(f"there is no PGMB at {where}: install the event broker without --from-pgmb")
    if "migrations" in shape:
        raise RefusedError(f"schema pgmb at {where} is Queuekeeper's already: there is nothing to take over")
    if shape.keys() >= _BEFORE_0_2:
        raise RefusedError(
            f"schema pgmb at {where} is a PGMB before 0.2, with queues and exchanges: upgrade it by its own scripts "
            "to 0.2 first, and drop the old tables that they leave"
        )
    differing = [
        table for table, columns in _SHAPE.items() if table not in shape or shape[table].items() ^ columns.items()
    ]
    if differing:
        raise RefusedError(
            f"schema pgmb at {where} is no PGMB 0.2.0 to 0.2.22: its tables {named(differing)} are missing or "
            "have other columns; take it over with a release of Queuekeeper that knows it"
        )
    foreign = _rows(connection, "strangers", relations=list(_RELATIONS), routines=list(_ROUTINES), types=list(_TYPES))
    _refuse(
        [
            *(
                f"{description} belongs to {owner}: connect as its owner"
                for description, owner in _rows(connection, "owners")
            ),
            *(f"{name} in schema pgmb is not PGMB's: move it to another schema" for (name,) in foreign),
            *(
                f"{name} is not PGMB's, and would stay with the tables that are set aside: drop it, and create it anew "
                "afterwards"
                for (name,) in _rows(connection, "additions")
            ),
        ]
    )
    # An extension in the schema goes on working when the schema is renamed.
    outside = [name for name in outside_dependants(connection, ["pgmb"]) if not name.startswith("extension ")]
    if outside:
        raise RefusedError(
            f"schema pgmb is used from outside by {named(outside)}: drop that, and create it anew afterwards"
        )
    if connection.execute("SELECT to_regnamespace(%s) IS NOT NULL", (SET_ASIDE,)).fetchone() == (True,):
        raise RefusedError(
            f"there is a schema {SET_ASIDE} at {where} already, which is the name that PGMB's schema gets: rename it, "
            "or drop it if an earlier takeover left it"
        )


def _at_work(connection: Connection) -> Iterator[str]:
    """Yield descriptions of the jobs and sessions that poll or read PGMB."""
    found = connection.execute("SELECT c.value FROM pgmb.config AS c WHERE c.id::text = 'use_pg_cron'").fetchone()
    if found == ("true",):
        yield "pg_cron's jobs (UPDATE pgmb.config SET value = 'false' WHERE id = 'use_pg_cron')"
    for pid, application, user, work in _rows(connection, "clients"):
        yield f"pid {pid} ({application}, user {user}), which {work}"


def _shut(connection: Connection) -> None:
    """Lock PGMB's tables until the transaction ends."""
    try:
        with connection.transaction():
            _run(connection, "lock_tables")
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise RefusedError(
            f"PGMB's tables at {address(connection)} were in use for longer than {LOCK_TIMEOUT}: end the transactions "
            f"of {named(lock_holders(connection, 'pgmb')) or 'sessions that have left meanwhile'}, then repeat"
        ) from error


def _copy_settings(connection: Connection) -> Iterator[str]:
    for key, value in _rows(connection, "settings"):
        if key in OURS:
            continue
        problems: list[str] = []
        with _collected(connection, problems, f"setting {key}"):
            _run(connection, "set_setting", key=key, value=value)
        yield from (f"{problem}; change it in pgmb.config first" for problem in problems)


def _copy_subscriptions(connection: Connection) -> list[str]:
    problems: list[str] = []
    for (condition,) in _rows(connection, "conditions"):
        what = f"subscriptions with the condition {condition[:_SHOWN_CHARACTERS]!r}"
        with _collected(connection, problems, what):
            # Each condition is tried on the latest events, as by a subscribe.
            connection.execute(statement("events/queries/limit_trial"), {"timeout_ms": round(TRIAL_TIMEOUT_S * 1_000)})
            _run(connection, "copy_subscriptions", condition=condition)
            connection.execute(statement("events/queries/end_trial"))
    return [f"{problem}; correct or delete them in pgmb.subscriptions first" for problem in problems]


@contextmanager
def _collected(connection: Connection, problems: list[str], what: str) -> Iterator[None]:
    """Add a refusal of the server to ``problems``, with its subject ``what``, and go on."""
    try:
        with connection.transaction():
            yield
    except (
        psycopg.DataError,
        psycopg.IntegrityError,
        psycopg.errors.RaiseException,
        psycopg.errors.QueryCanceled,
    ) as error:
        problems.append(f"{what}: {server_words(error)}")


def _ledger(connection: Connection, begin_id: str, *, watched: int) -> tuple[TakeoverLine, ...]:
    counted: dict[str, dict[str, int]] = {"watched tables": {_SEEN: watched, "taken over": watched}}
    for subject, fate, number in _rows(connection, "ledger", begin_id=begin_id):
        counted.setdefault(subject, {})[fate] = int(number)
    return tuple(
        TakeoverLine(
            subject=subject,
            seen=counted[subject].get(_SEEN, 0),
            fates={fate: number for fate, number in sorted(counted[subject].items()) if fate != _SEEN and number},
        )
        for subject in _SUBJECTS
    )


def _refuse(problems: list[str]) -> None:
    if problems:
        raise RefusedError(
            f"PGMB cannot be taken over as it is: {'; '.join(problems[:5])}"
            + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        )


def _run(connection: Connection, name: str, **parameters: Any) -> None:
    connection.execute(statement(f"events/takeover/{name}"), parameters or None)


def _rows(connection: Connection, name: str, **parameters: Any) -> list[Row]:
    return connection.execute(statement(f"events/takeover/{name}"), parameters or None).fetchall()
