"""``queuekeeper quality known`` and ``incidents``: since when a finding stands, and who answers for it until when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli.command import OnPostgres, command, group
from queuekeeper.cli.context import person
from queuekeeper.cli.output import Column, Columns, Shown, cell, listing
from queuekeeper.clock import system_clock
from queuekeeper.errors import UsageError
from queuekeeper.facts import plain
from queuekeeper.jobs.findings import Finding
from queuekeeper.quality.judge.incidents import Incident, Incidents
from queuekeeper.quality.judge.known_issues import KnownIssue, KnownIssues

if TYPE_CHECKING:
    from rich.text import Text

app = group("Show since when a finding stands, and who answers for it.")
known = group("Excuse failures until a day, and say who answers for them.")


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"the day is {text!r}: write it as year-month-day, such as 2026-12-31") from None


Owner = Annotated[str, typer.Option(help="Person or team that answers for the failure.")]
Reason = Annotated[str, typer.Option(help="Why the failure is excused until then.")]
Until = Annotated[
    date,
    typer.Option(help="Last day on which the failure is excused, such as 2026-12-31.", metavar="DATE", parser=_day),
]
_TONES = {
    "passed": "green", "warned": "yellow", "failed": "red", "broken": "red", "known": "blue",
    "P0": "bold red", "P1": "yellow",
}  # fmt: skip


@command(known, "add")
def known_add(
    call: OnPostgres,
    check_id: Annotated[str, typer.Argument(metavar="CHECK")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
    client_hash: str | None = None,
    place: str | None = None,
) -> Shown:
    """Give a failure an owner until a day. Until then it fails no run; afterwards it fails runs again.

    Example: `queuekeeper quality known add Q9 --owner ops --reason "cleanup on Monday" --until 2026-12-31`

    :param check_id: Number of the check, such as Q9.
    :param client_hash: Excuse only this queue, as results name it. Without it, all queues.
    :param place: Excuse it only at this place, as `incidents list` names it. Without it, everywhere.
    """
    issue = KnownIssues(call.connection).add(
        check_id=check_id,
        owner=owner,
        reason=reason,
        ends_on=until,
        person=person(),
        today=_today(),
        client_hash=client_hash,
        place=place,
    )
    return Shown(_facts(issue), lambda: [issues_table("Known issue", [issue])])


@command(known, "list")
def known_list(call: OnPostgres) -> Shown:
    """List known issues, the earliest end first.

    Example: `queuekeeper quality known list`
    """
    found = KnownIssues(call.connection).all()
    return Shown(
        [_facts(issue) for issue in found],
        lambda: [issues_table("Known issues", found) if found else "Nobody answers for anything."],
    )


@command(known, "remove")
def known_remove(call: OnPostgres, known_issue_id: Annotated[int, typer.Argument(metavar="NUMBER")]) -> Shown:
    """Remove a known issue. The failure fails runs again.

    Example: `queuekeeper quality known remove 3`

    :param known_issue_id: Number that `known list` shows.
    """
    KnownIssues(call.connection).remove(known_issue_id, person=person())
    return Shown({"removed": known_issue_id}, lambda: [f"Known issue {known_issue_id} is forgotten."])


@command(app, "list")
def incidents_list(call: OnPostgres, *, closed: bool = False) -> Shown:
    """List the incidents that stand, the latest seen first.

    Example: `queuekeeper quality incidents list`

    :param closed: Also show incidents that have closed.
    """
    found = Incidents(call.connection).all(today=_today(), closed=closed)
    return Shown(found, lambda: [_incidents(found) if found else "No incident stands."])


@command(app, "own")
def incidents_own(
    call: OnPostgres,
    incident_id: Annotated[int, typer.Argument(metavar="NUMBER")],
    *,
    owner: Owner,
    reason: Reason,
    until: Until,
) -> Shown:
    """Give an incident an owner until a day. Afterwards it fails runs again.

    This adds a known issue of its check at its place.

    Example: `queuekeeper quality incidents own 4 --owner ops --reason "cleanup on Monday" --until 2026-12-31`

    :param incident_id: Number that `incidents list` shows.
    """
    incident = Incidents(call.connection).own(
        incident_id, owner=owner, reason=reason, ends_on=until, person=person(), today=_today()
    )
    return Shown(incident, lambda: [_incidents([incident])])


@command(app, "close")
def incidents_close(
    call: OnPostgres,
    incident_id: Annotated[int, typer.Argument(metavar="NUMBER")],
    *,
    reason: Annotated[str, typer.Option(help="Why no run will find it in order, such as a server that is gone.")],
) -> Shown:
    """Close an incident that no run will close.

    Its server is gone, or its suite is run no more. The audit records who closed it and why. A run that
    finds it again opens a new one.

    Example: `queuekeeper quality incidents close 4 --reason "the server was switched off"`

    :param incident_id: Number that `incidents list` shows.
    """
    incident = Incidents(call.connection).close(incident_id, reason=reason, person=person(), today=_today())
    return Shown(incident, lambda: [_incidents([incident])])


def _incidents(found: Sequence[Incident]) -> Any:
    now_ms = system_clock()
    columns: dict[str, Column] = {
        "number": "incident_id", "check": "check_id", "": priority, "title": "title", "state": "state",
        "owner": lambda each: each.owner or "nobody", "until": "known_until",
        "age": lambda each: f"{each.days(now_ms)} d", "first seen": "first_seen_at", "last seen": "last_seen_at",
        "where": "place",
    }  # fmt: skip
    if any(each.closed_by for each in found):
        columns |= {"closed by": "closed_by", "reason": "closed_reason"}
    return listing("Incidents", found, columns)


def _today() -> date:
    return datetime.fromtimestamp(system_clock() / 1_000, UTC).date()


def _facts(issue: KnownIssue) -> dict[str, Any]:
    return {**plain(issue), "is_overdue": issue.is_overdue(_today())}


def issues_table(title: str, issues: Sequence[KnownIssue]) -> Any:
    """Return known issues as a table; a day that has passed stands out."""
    today = _today()

    def until(issue: KnownIssue) -> Any:
        return cell(f"{issue.ends_on} (overdue)", style="red") if issue.is_overdue(today) else str(issue.ends_on)

    columns: Columns = {
        "number": "known_issue_id", "check": "check_id", "queue": lambda issue: issue.client_hash or "all",
        "where": lambda issue: issue.place or "everywhere", "owner": "owner", "reason": "reason", "until": until,
    }  # fmt: skip
    return listing(title, issues, columns)


def toned(word: str) -> Text:
    """Return a verdict, a status or a priority in its colour."""
    return cell(word, style=_TONES.get(word, ""))


def priority(found: Finding | Incident) -> Text:
    """Return how urgent something is."""
    return toned(found.priority.value)
