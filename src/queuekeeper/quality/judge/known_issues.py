"""Failures that somebody answers for until a day: adding, listing and removing them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import check
from queuekeeper.postgres import Connection, statement, translated_errors

_HASH = re.compile(r"[0-9a-f]{16}")
_MISSING = "run `queuekeeper database migrate` first"


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """A failure that fails no run until its day has passed.

    :param client_hash: the one queue that it is about; none for all.
    :param place: servers and prefix of keys that it is about; none for all.
    :param ends_on: last day on which it excuses, in UTC.
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
        """Return whether its last day has passed."""
        return self.ends_on < today

    def covers(self, check_id: str, place: str) -> bool:
        """Return whether it is about a check at a place."""
        return self.check_id == check_id and self.place in {None, place}


class KnownIssues:
    """Reads and writes known issues; every method is one statement."""

    def __init__(self, connection: Connection) -> None:
        """Use a connection of the caller's."""
        self._connection = connection

    def add(
        self,
        *,
        check_id: str,
        owner: str,
        reason: str,
        ends_on: date,
        today: date,
        client_hash: str | None = None,
        place: str | None = None,
    ) -> KnownIssue:
        """Note that somebody answers for the failures of a check.

        :param client_hash: as reports show it; none for all queues.
        :param place: as incidents show it; none for all places.
        :raises UsageError: when there is no such check, nobody is named, no reason is given or the day has passed.
        """
        check(check_id)
        if not owner.strip() or not reason.strip():
            raise UsageError("a known issue needs an owner and a reason: somebody has to answer for it")
        if ends_on < today:
            raise UsageError(f"the issue would end on {ends_on}, which has passed: name a day to come")
        if client_hash is not None and _HASH.fullmatch(client_hash) is None:
            raise UsageError(f"client hash {client_hash!r} is not one: copy the 16 hex digits from a result")
        given = {
            "check_id": check_id,
            "client_hash": client_hash,
            "place": place,
            "owner": owner.strip(),
            "reason": reason.strip(),
            "ends_on": ends_on,
        }
        ((number,),) = self._rows("add_known_issue", given)
        return next(issue for issue in self.all() if issue.known_issue_id == number)

    def all(self) -> tuple[KnownIssue, ...]:
        """Return all of them, the earliest end first."""
        names = ("known_issue_id", "check_id", "client_hash", "place", "owner", "reason", "ends_on", "created_at")
        return tuple(KnownIssue(**dict(zip(names, row, strict=True))) for row in self._rows("known_issues", {}))

    def remove(self, known_issue_id: int) -> None:
        """Forget one.

        :raises UsageError: when there is none of this number.
        """
        if not self._rows("remove_known_issue", {"known_issue_id": known_issue_id}):
            raise UsageError(f"there is no known issue {known_issue_id}: `queuekeeper quality known list` shows them")

    def _rows(self, name: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
        with translated_errors(self._connection, missing=_MISSING):
            return self._connection.execute(statement(f"quality/{name}"), parameters).fetchall()
