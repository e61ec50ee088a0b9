"""Mends what quality finds in the event broker: events never dispatched, conditions that fail, tables too old.

Each remedy says first what it would do. What concerns partitions is ``maintenance.partitions``' business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from psycopg import sql

from queuekeeper import audit
from queuekeeper.errors import UsageError
from queuekeeper.maintenance.events.broker import failing_conditions, undispatched_events
from queuekeeper.postgres import Connection, schema_version, statement, translated_errors

REMEDIES: Mapping[str, str] = {
    "reenqueue_events": "Have stored events dispatched again that were never dispatched and that no poll would find.",
    "quarantine_subscription": "Put subscriptions into quarantine whose condition fails on the latest events, or takes "
    "longer than a second.",
    "freeze_partition": "Freeze tables that are half as old again as autovacuum should let them become.",
}
"""Name of a remedy -> what it does."""

KIND = "event_upkeep"
"""Under this name the audit has what is done to the broker."""

FREEZE_SHARE = 1.5
"""Of ``autovacuum_freeze_max_age``: beyond it autovacuum does not do its work."""

_REASON = "its condition fails on the latest events, or takes longer than a second: see pgmb.check_condition"
_EXAMPLES = 20


@dataclass(frozen=True, kw_only=True)
class EventRemedyPlan:
    """What a remedy would do now; nothing was written.

    :param subjects: ids of events or subscriptions, or names of tables.
    """

    remedy: str
    subjects: tuple[str, ...]

    @property
    def examples(self) -> tuple[str, ...]:
        """The first of them."""
        return self.subjects[:_EXAMPLES]


@dataclass(frozen=True, kw_only=True)
class EventRemedyReport:
    """What a remedy did.

    :param done: what it changed; the rest had been changed meanwhile.
    """

    remedy: str
    planned: int
    done: int


def plan_event_remedy(connection: Connection, *, remedy: str) -> EventRemedyPlan:
    """Look for what a remedy would do.

    :param connection: one that commits by itself, to the database of the broker.
    :raises UsageError: when there is no such remedy.
    """
    if remedy not in REMEDIES:
        raise UsageError(f"there is no remedy {remedy!r} for events: one of {', '.join(REMEDIES)}")
    with translated_errors(connection):
        return EventRemedyPlan(remedy=remedy, subjects=tuple(_subjects(connection, remedy)))


def apply_event_remedy(connection: Connection, plan: EventRemedyPlan) -> EventRemedyReport:
    """Do what a plan says; done twice, it changes nothing the second time.

    :param connection: one that commits by itself: ``VACUUM`` runs in no transaction.
    """
    with translated_errors(connection):
        return EventRemedyReport(
            remedy=plan.remedy, planned=len(plan.subjects), done=_do(connection, plan.remedy, plan.subjects)
        )


def mend_events(connection: Connection, *, remedy: str, count_only: bool) -> EventRemedyReport:
    """Look for what a remedy would do, and do it unless it is only to be counted."""
    plan = plan_event_remedy(connection, remedy=remedy)
    if count_only or not plan.subjects:
        return EventRemedyReport(remedy=remedy, planned=len(plan.subjects), done=0)
    return apply_event_remedy(connection, plan)


def note_upkeep(connection: Connection, *, subject: str, done: int, actor: str | None = None) -> None:
    """Put on record what was changed in the broker; where nothing was, and where there is no audit, nothing is noted.

    A broker may be installed without schema ``queuekeeper``.

    :param subject: remedy, or ``expire_subscriptions``.
    :param done: how many events, subscriptions or tables.
    :param actor: person who wanted it; none for the user of the database.
    """
    if done and schema_version(connection) is not None:
        effect = {"kind": KIND, "done": done}
        audit.record(connection, actor=actor, action=audit.Action.APPLY, subject=subject, effect=effect)


def _subjects(connection: Connection, remedy: str) -> list[str]:
    if remedy == "reenqueue_events":
        return undispatched_events(connection)
    if remedy == "quarantine_subscription":
        keys = [UUID(key) for key in failing_conditions(connection)]
        rows = connection.execute(statement("maintenance/failing_subscriptions"), {"condition_keys": keys})
    else:
        rows = connection.execute(statement("maintenance/tables_to_freeze"), {"freeze_share": FREEZE_SHARE})
    return [subject for subject, _ in rows]


def _do(connection: Connection, remedy: str, subjects: tuple[str, ...]) -> int:
    if remedy == "reenqueue_events":
        query = "SELECT pgmb.reenqueue_events(%s::varchar[]::pgmb.event_id[])"
        return int(connection.execute(query, (list(subjects),)).fetchall()[0][0])
    if remedy == "quarantine_subscription":
        query = "SELECT count(*) FILTER (WHERE pgmb.quarantine_subscription(u.id, %s)) FROM unnest(%s::text[]) AS u(id)"
        return int(connection.execute(query, (_REASON, list(subjects))).fetchall()[0][0])
    for name in subjects:
        # As format('%I.%I') has written it: quoted where it must be.
        connection.execute(sql.SQL("VACUUM (FREEZE) ") + sql.SQL(name))
    return len(subjects)
