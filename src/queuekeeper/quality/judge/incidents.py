"""Keeps incidents: findings of one cause, from the first run that finds them to the run that finds them no longer.

The cause is a check at a place. An incident has an owner while a known issue of that check covers that place: there is
no second list of owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any

from queuekeeper import audit
from queuekeeper.errors import UsageError
from queuekeeper.jobs.checks import Priority, Severity, check
from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.quality.judge.known_issues import KnownIssue, KnownIssues
from queuekeeper.sql_statements import statement


class State(StrEnum):
    """State of an incident."""

    OPEN = "open"
    KNOWN = "known"  # it has an owner until a day
    CLOSED = "closed"  # later runs found everything in order, its suite has the check no more, or a person closed it


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a suite has read.

    :param place: servers and prefix of keys.
    :param cohorts: cohorts that were read, of ``cohort_count``.
    :param sample_percent: percent of their hash slots that were read.
    """

    place: str
    cohorts: tuple[int, ...] = (0,)
    cohort_count: int = 1
    sample_percent: int = 100


@dataclass(frozen=True, kw_only=True)
class Incident:
    """Findings of one cause over runs.

    :param severity: severity of the last finding; ``unexpected_count`` is the number of queues in it.
    :param owner: person who answers for the incident; empty if there is none.
    :param known_until: last day of the known issue that names the owner.
    :param cohorts_left: number of cohorts in which it was found and which no later run has found in order.
    :param closed_by: person who closed it, or run whose suite has the check no more; empty where runs found everything
        in order. ``closed_reason`` says why.
    """

    incident_id: int
    check_id: str
    title: str
    priority: Priority
    severity: Severity
    place: str
    state: State
    owner: str
    known_until: date | None
    unexpected_count: int
    first_seen_at: datetime
    first_run_id: str
    last_seen_at: datetime
    last_run_id: str
    cohorts_left: int
    closed_at: datetime | None
    closed_by: str
    closed_reason: str

    def days(self, now_ms: int) -> int:
        """Return the number of whole days that the incident has lasted."""
        return ((self.closed_at or datetime.fromtimestamp(now_ms / 1_000, UTC)) - self.first_seen_at).days


class Incidents:
    """Reads and writes incidents."""

    def __init__(self, connection: Connection) -> None:
        """Use the caller's connection."""
        self._connection = connection

    def note(
        self, look: Look, findings: Iterable[Finding], *, quality_run_id: str, at: datetime, not_judged: Iterable[str]
    ) -> None:
        """Open, continue and close the incidents of a place by the findings of a suite.

        A check that did not run, or ran only in part, closes no incident.

        :param at: start of the run.
        :param not_judged: ids of checks that ran only in part.
        """
        by_check: dict[str, list[Finding]] = {}
        for each in findings:
            by_check.setdefault(each.check_id, []).append(each)
        for check_id, found in by_check.items():
            values = {
                "check_id": check_id,
                "place": look.place,
                "at": at,
                "quality_run_id": quality_run_id,
                "cohort_count": look.cohort_count,
                "cohorts": list(look.cohorts),
                "sample_percent": look.sample_percent,
            }
            failed = [each for each in found if each.status in {Status.FAILED, Status.KNOWN}]
            if failed:
                worst = min(failed, key=lambda each: each.urgency)
                count = max(each.unexpected_count for each in failed)
                last = {"severity": str(worst.severity), "status": str(worst.status), "unexpected_count": count}
                self._execute("note_incident", values | last)
            elif all(each.status is Status.PASSED for each in found) and check_id not in not_judged:
                self._execute("clear_incident", values | {"whole": len(look.cohorts) == look.cohort_count})

    def close_unjudged(
        self, look: Look, *, suite: str, checks: Iterable[str], quality_run_id: str, at: datetime
    ) -> None:
        """Close incidents that a suite has found and whose check was taken out of it; only a look at all closes any.

        :param checks: ids of all checks of the suite, also of those that did not run.
        :param at: start of the run.
        """
        if len(look.cohorts) < look.cohort_count:
            return
        values = {
            "place": look.place,
            "suite": suite,
            "checks": sorted(set(checks)),
            "at": at,
            "quality_run_id": quality_run_id,
            "sample_percent": look.sample_percent,
            "closed_by": f"quality run {quality_run_id}",
            "closed_reason": f"no longer judged by the suite {suite}",
        }
        self._execute("close_unjudged", values)

    def all(self, *, today: date, closed: bool = False) -> tuple[Incident, ...]:
        """Return the open and known incidents, the one seen last first.

        :param closed: return closed incidents, too.
        """
        return self._read(today=today, closed=closed, incident_id=None)

    def own(self, incident_id: int, *, owner: str, reason: str, ends_on: date, person: str, today: date) -> Incident:
        """Give an incident an owner until a day: add a known issue of its check at its place.

        :param person: person who does so; the audit has it with owner, reason and day.
        :raises UsageError: when the incident does not exist or is closed, no owner is named, or the day has passed.
        """
        found = self._one(incident_id, today=today)
        if found.state is State.CLOSED:
            raise UsageError(f"incident {incident_id} is closed: it needs no owner")
        KnownIssues(self._connection).add(
            check_id=found.check_id,
            place=found.place,
            owner=owner,
            reason=reason,
            ends_on=ends_on,
            person=person,
            today=today,
            incident_id=incident_id,
        )
        return self._one(incident_id, today=today)

    def close(self, incident_id: int, *, reason: str, person: str, today: date) -> Incident:
        """Close an incident that no run will find in order, such as one of a server that is gone.

        A run that finds it again opens a new one.

        :param person: person who closes it; the audit has it with the reason.
        :raises UsageError: when the incident does not exist or is closed, or no reason is given.
        """
        if not reason.strip():
            raise UsageError("an incident is closed for a reason: give one")
        values = {"incident_id": incident_id, "closed_by": person, "closed_reason": reason.strip()}
        with translated_errors(self._connection), self._connection.transaction():
            closed = rows_of(self._connection, "quality/close_incident", values)
            found = self._one(incident_id, today=today)
            if not closed:
                how = f"by {found.closed_by}: {found.closed_reason}" if found.closed_by else "by a run"
                raise UsageError(f"incident {incident_id} is closed, since {found.closed_at:%F} {how}")
            audit.record(
                self._connection,
                actor=person,
                action=audit.Action.CLOSE,
                subject=f"incident {incident_id}",
                effect={"check": found.check_id, "place": found.place, "reason": found.closed_reason},
            )
        return found

    def _one(self, incident_id: int, *, today: date) -> Incident:
        found = self._read(today=today, closed=True, incident_id=incident_id)
        if not found:
            raise UsageError(f"there is no incident {incident_id}: `queuekeeper quality incidents list` shows them")
        return found[0]

    def _read(self, *, today: date, closed: bool, incident_id: int | None) -> tuple[Incident, ...]:
        issues = KnownIssues(self._connection).all()
        rows = rows_of(self._connection, "quality/incidents", {"closed": closed, "incident_id": incident_id})
        return tuple(_incident(row, issues=issues, today=today) for row in rows)

    def _execute(self, name: str, values: dict[str, Any]) -> None:
        with translated_errors(self._connection):
            self._connection.execute(statement(f"quality/{name}"), values)


_COLUMNS = (
    "incident_id", "check_id", "place", "severity", "status", "unexpected_count", "first_seen_at", "first_run_id",
    "last_seen_at", "last_run_id", "cohorts_left", "closed_at", "closed_by", "closed_reason",
)  # fmt: skip


def _incident(row: tuple[Any, ...], *, issues: Sequence[KnownIssue], today: date) -> Incident:
    values = dict(zip(_COLUMNS, row, strict=True))
    severity, was_known = Severity(values.pop("severity")), values.pop("status") == Status.KNOWN
    known = check(values["check_id"])
    # A known issue of one queue covers the incident only if the run found no other queue.
    answering = [
        issue
        for issue in issues
        if issue.covers(known.id, values["place"])
        and not issue.is_overdue(today)
        and (issue.client_hash is None or was_known)
    ]
    for name in ("closed_by", "closed_reason"):
        values[name] = values[name] or ""
    state = State.CLOSED if values["closed_at"] else State.KNOWN if answering else State.OPEN
    return Incident(
        **values,
        severity=severity,
        title=known.title,
        priority=known.priority_of(severity),
        state=state,
        owner=", ".join(dict.fromkeys(issue.owner for issue in answering)),
        known_until=max((issue.ends_on for issue in answering), default=None),
    )
