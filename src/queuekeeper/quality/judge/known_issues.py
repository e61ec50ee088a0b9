"""Adds, lists and removes known issues: failures that have an owner until a day."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime

from queuekeeper import audit
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import check
from queuekeeper.postgres import Connection, rows_of, translated_errors

_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """A failure of a check that does not fail a run until its last day has passed.

    :param client_hash: the one queue that the issue covers; ``None`` covers all.
    :param place: servers and prefix of keys that the issue covers; ``None`` covers all.
    :param ends_on: last day on which the issue excuses the failure, in UTC.
    """

    known_issue_id: int
    check_id: str
    client_hash: str | None
    place: str | None = None
    owner: str
    reason: str
    ends_on: date
    created_at: datetime

    def is_overdue(self, today: date) -> bool:
        """Return whether the last day has passed."""
        return self.ends_on < today

    def covers(self, check_id: str, place: str) -> bool:
        """Return whether the issue covers a check at a place."""
        return self.check_id == check_id and self.place in {None, place}


class KnownIssues:
    """Reads and writes known issues; the audit has who adds and who removes one."""

    def __init__(self, connection: Connection) -> None:
        """Use the caller's connection."""
        self._connection = connection

    def add(
        self,
        *,
        check_id: str,
        owner: str,
        reason: str,
        ends_on: date,
        person: str,
        today: date,
        client_hash: str | None = None,
        place: str | None = None,
        incident_id: int | None = None,
    ) -> KnownIssue:
        """Record an owner for the failures of a check.

        :param person: person who adds it, on behalf of the owner.
        :param client_hash: hash of one client, as reports show it; ``None`` covers all queues.
        :param place: place, as incidents show it; ``None`` covers all places.
        :param incident_id: incident that gets an owner by it; the entry of the audit is about that incident.
        :raises UsageError: when the check does not exist, no owner or no reason is given, or the day has passed.
        """
        check(check_id)
        if not owner.strip() or not reason.strip():
            raise UsageError("a known issue needs an owner and a reason: give both")
        if ends_on < today:
            raise UsageError(f"the issue would end on {ends_on}, which has passed: give a later day")
        if client_hash is not None and _HASH.fullmatch(client_hash) is None:
            raise UsageError(f"{client_hash!r} is not a client hash: copy the 16 hex digits from a result")
        given = {
            "client_hash": client_hash,
            "place": place,
            "owner": owner.strip(),
            "reason": reason.strip(),
            "ends_on": ends_on,
        }
        with translated_errors(self._connection), self._connection.transaction():
            ((number,),) = rows_of(self._connection, "quality/add_known_issue", given | {"check_id": check_id})
            audit.record(
                self._connection,
                actor=person,
                action=audit.Action.EXCUSE,
                subject=f"known issue {number}" if incident_id is None else f"incident {incident_id}",
                effect=given | {"check": check_id, "known_issue": number},
            )
        return next(issue for issue in self.all() if issue.known_issue_id == number)

    def all(self) -> tuple[KnownIssue, ...]:
        """Return all known issues, the one that ends first first."""
        names = ("known_issue_id", "check_id", "client_hash", "place", "owner", "reason", "ends_on", "created_at")
        return tuple(
            KnownIssue(**dict(zip(names, row, strict=True)))
            for row in rows_of(self._connection, "quality/known_issues")
        )

    def remove(self, known_issue_id: int, *, person: str) -> None:
        """Remove a known issue.

        :param person: person who removes it.
        :raises UsageError: when no issue has this number.
        """
        with translated_errors(self._connection), self._connection.transaction():
            removed = rows_of(self._connection, "quality/remove_known_issue", {"known_issue_id": known_issue_id})
            if not removed:
                raise UsageError(
                    f"there is no known issue {known_issue_id}: `queuekeeper quality known list` shows them"
                )
            names = ("check", "client_hash", "place", "owner")
            audit.record(
                self._connection,
                actor=person,
                action=audit.Action.REMOVE,
                subject=f"known issue {known_issue_id}",
                effect=dict(zip(names, removed[0], strict=True)),
            )
