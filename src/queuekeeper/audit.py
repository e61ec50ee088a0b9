"""Who did what, to what, with which effect: entries that are only ever added, each chained to the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from queuekeeper.clock import EPOCH, MICROSECOND
from queuekeeper.errors import UsageError
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

_PAGE = 5_000


class Action(StrEnum):
    """What somebody did."""

    APPROVE = "approve"  # agreed to what was asked
    REJECT = "reject"  # did not agree
    UNANSWERED = "unanswered"  # nobody answered in time, which means no
    APPLY = "apply"  # a run has changed something; the effect says how much of it
    UNDO = "undo"  # took back what a run had changed
    REPORT = "report"  # a report was written, with its hash
    THROTTLE = "throttle"  # changed how fast a run may work
    PAUSE = "pause"  # let a run wait
    RESUME = "resume"  # let it go on
    CLOSE = "close"  # closed an incident, for a reason
    EXCUSE = "excuse"  # answers for a failure until a day, for a reason
    REMOVE = "remove"  # removed a known issue: its failure is excused no longer
    REVEAL = "reveal"  # saw a payload, for a reason


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """One entry.

    :param seq: number, from 1 and without gaps.
    :param subject: plan, run, incident, known issue, or keyed hash of a client id; never the id itself.
    :param report_hash: SHA-256 of the report that it is about.
    :param effect: JSON text, as it was written; without payloads.
    :param previous_hash: of the entry before; empty in the first one.
    """

    seq: int
    at: datetime
    actor: str
    action: str
    subject: str
    report_hash: str | None
    effect: str
    previous_hash: str
    hash: str

    def expected_hash(self) -> str:
        """Work the hash out from the other fields, as the database did when the entry was added."""
        fields = (
            str(self.seq),
            str((self.at - EPOCH) // MICROSECOND),
            self.actor,
            self.action,
            self.subject,
            self.report_hash or "",
            self.effect,
            self.previous_hash,
        )
        content = b"".join(b"%d:%b" % (len(each), each) for each in (field.encode() for field in fields))
        return hashlib.sha256(content).hexdigest()

    @property
    def effect_words(self) -> tuple[tuple[str, str], ...]:
        """The effect as names and values; numbers of 0 and what is empty are left out."""
        try:
            found = json.loads(self.effect)
        except ValueError:
            return (("effect", self.effect),)
        if not isinstance(found, dict):
            return (("effect", self.effect),)
        return tuple((name.replace("_", " "), value) for name, value in _flat(found, ""))

    def to_json(self) -> str:
        """Return the entry as one line of JSON; the effect stays a text, to which its hash applies."""
        found = {
            "seq": self.seq,
            "at": self.at.astimezone(UTC).isoformat(timespec="microseconds"),
            "actor": self.actor,
            "action": self.action,
            "subject": self.subject,
            "report_hash": self.report_hash,
            "effect": self.effect,
            "previous_hash": self.previous_hash,
            "hash": self.hash,
        }
        return json.dumps(found, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> AuditEntry:
        """Return the entry of a line of an export.

        :raises UsageError: when it is none.
        """
        try:
            found = json.loads(line)
            return cls(**found | {"at": datetime.fromisoformat(found["at"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError("this line is no entry of an audit: export it again") from error


@dataclass(frozen=True, kw_only=True)
class ChainReport:
    """Whether a chain holds.

    :param entries: that were looked at, up to the first that does not fit.
    :param head: hash of the last one that fits: keep it elsewhere, and the end of the chain cannot be cut off unseen.
    :param broken_at: number of the first entry that does not fit; none when all do.
    :param problem: what is wrong with it, in words; empty when nothing is.
    """

    entries: int
    head: str
    broken_at: int | None = None
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether every entry fits the one before."""
        return self.broken_at is None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a question whether something may be done.

    :param action: ``APPROVE``, ``REJECT`` or ``UNANSWERED``.
    :param actor: who answered.
    :param at: when; the answer is noted once, however often it is read. None for now.
    :param facts: where it was given, such as the run of Airflow.
    """

    action: Action
    actor: str
    at: datetime | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AirflowRun:
    """A run of Airflow."""

    dag_id: str
    run_id: str


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Which entries are asked for; none stands for any.

    :param since: this instant and later.
    :param until: earlier than this instant.
    """

    actor: str | None = None
    action: str | None = None
    subject: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def record(
    connection: Connection,
    *,
    actor: str | None,
    action: Action,
    subject: str,
    effect: Mapping[str, Any],
    report_hash: str | None = None,
) -> None:
    """Add an entry, in the caller's transaction where there is one: what is rolled back was not done.

    :param actor: person; none for the user of the database, where no person is known.
    :param subject: plan, run, incident, known issue, or keyed hash of a client id.
    :param effect: what JSON can hold; without payloads and client ids.
    """
    note_subject(connection, subject)
    entry = {
        "actor": actor or connection.info.user,
        "action": str(action),
        "subject": subject,
        "report_hash": report_hash,
        "effect": json.dumps(effect, sort_keys=True, ensure_ascii=False, default=str),
    }
    with translated_errors(connection):
        connection.execute(statement("audit/record"), entry)


def record_answer(connection: Connection, answer: Answer, *, subject: str, kind: str) -> None:
    """Add an entry for an answer; one that was given at a known instant has one entry, however often it is read.

    :param subject: plan or run that was asked about.
    :param kind: of that plan or run.
    """
    known = {"subject": subject, "answered_at": answer.at, "action": str(answer.action), "actor": answer.actor}
    effect = {"kind": kind, **answer.facts}
    with translated_errors(connection), connection.transaction():
        if answer.at is not None:
            if not connection.execute(statement("audit/note_answer"), known).rowcount:
                return
            effect["answered_at"] = answer.at.astimezone(UTC).isoformat(timespec="milliseconds")
        record(connection, actor=answer.actor, action=answer.action, subject=subject, effect=effect)


def record_undo(
    connection: Connection, *, subject: str, kind: str, report: Mapping[str, Any], actor: str | None = None
) -> None:
    """Add an entry for what was taken back of a plan or run.

    :param report: how much of it; what is no number is left out.
    :param actor: person who wanted it; none for the user of the database.
    """
    record(connection, actor=actor, action=Action.UNDO, subject=subject, effect={"kind": kind} | figures(report))


def find_runs_by(find: Callable[[], AirflowRun | None]) -> None:
    """Say how the run of Airflow is found in which this process works.

    :param find: returns none outside of a task.
    """
    global _current_run  # noqa: PLW0603 - Airflow keeps one current task per process
    _current_run = find


def current_run() -> AirflowRun | None:
    """Return the run of Airflow in which this process works; none outside of a task."""
    return _current_run()


def note_subject(connection: Connection, subject: str) -> None:
    """Note that the current run of Airflow works on something; outside of one nothing is noted.

    :param subject: plan or run that entries will be about.
    """
    run = _current_run()
    if run is not None:
        values = {"dag_id": run.dag_id, "run_id": run.run_id, "subject": subject}
        with translated_errors(connection):
            connection.execute(statement("audit/note_run"), values)


def _no_run() -> AirflowRun | None:
    return None


_current_run: Callable[[], AirflowRun | None] = _no_run


def of_run(connection: Connection, run: AirflowRun, *, limit: int = 200) -> list[AuditEntry]:
    """Return the entries about what a run of Airflow has worked on, since it does, the latest first."""
    values = {"dag_id": run.dag_id, "run_id": run.run_id, "maximum": limit}
    return [_entry(row) for row in rows_of(connection, "audit/of_run", values)]


def latest_run_of(connection: Connection, subject: str) -> AirflowRun | None:
    """Return the run of Airflow that has worked on a plan or run last; none where commands alone have."""
    rows = rows_of(connection, "audit/latest_run_of", {"subject": subject})
    return next((AirflowRun(dag_id=dag_id, run_id=run_id) for dag_id, run_id in rows), None)


def latest(
    connection: Connection, *, wanted: AuditFilter | None = None, before_seq: int | None = None, limit: int = 200
) -> list[AuditEntry]:
    """Return entries, the latest first.

    :param before_seq: only those before this number, for the next page.
    """
    chosen = wanted or AuditFilter()
    values = {
        "actor": chosen.actor,
        "action": chosen.action,
        "subject": chosen.subject,
        "since": chosen.since,
        "until": chosen.until,
        "before_seq": before_seq,
        "maximum": limit,
    }
    return [_entry(row) for row in rows_of(connection, "audit/latest", values)]


def read_chain(connection: Connection) -> Iterator[AuditEntry]:
    """Yield all entries from the first to the last, some thousands at a time."""
    after_seq = 0
    while True:
        rows = rows_of(connection, "audit/chain", {"after_seq": after_seq, "maximum": _PAGE})
        for row in rows:
            yield _entry(row)
        if len(rows) < _PAGE:
            return
        after_seq = rows[-1][0]


def verify_chain(entries: Iterable[AuditEntry], *, known: Mapping[int, str] | None = None) -> ChainReport:
    """Check that no entry was changed, left out or put in between; of an export as of the table.

    :param entries: from the first on.
    :param known: number -> hash of entries that were noted elsewhere; they must be there, as they were.
    """
    count, head = 0, ""
    noted = dict(known or {})

    def broken(seq: int, problem: str) -> ChainReport:
        return ChainReport(entries=count, head=head, broken_at=seq, problem=problem)

    for entry in entries:
        if entry.seq != count + 1:
            return broken(count + 1, f"entry {count + 1} is missing: entry {entry.seq} stands in its place")
        if entry.previous_hash != head:
            return broken(entry.seq, f"entry {entry.seq} does not follow entry {count}: one of them was replaced")
        if entry.hash != entry.expected_hash():
            return broken(entry.seq, f"entry {entry.seq} was changed after it was written")
        if noted.pop(entry.seq, entry.hash) != entry.hash:
            return broken(entry.seq, f"entry {entry.seq} is not the one that was noted elsewhere")
        count, head = entry.seq, entry.hash
    if noted:
        first = min(noted)
        return broken(first, f"entry {first} was noted elsewhere and is not there: the end of the chain was cut off")
    return ChainReport(entries=count, head=head)


def export(connection: Connection) -> Iterator[str]:
    """Yield all entries as JSON Lines, in the order of the chain, so that it can be verified elsewhere."""
    for entry in read_chain(connection):
        yield entry.to_json() + "\n"


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a report, those one level below too: lists and texts may name clients."""
    found: dict[str, Any] = {}
    for name, value in report.items():
        if isinstance(value, int | float):
            found[name] = value
        elif isinstance(value, Mapping):
            found[name] = {key: each for key, each in value.items() if isinstance(each, int | float)}
    return found


def _entry(row: tuple[Any, ...]) -> AuditEntry:
    seq, at, actor, action, subject, report_hash, effect, previous_hash, own_hash = row
    return AuditEntry(
        seq=seq,
        at=at,
        actor=actor,
        action=action,
        subject=subject,
        report_hash=report_hash,
        effect=effect,
        previous_hash=previous_hash,
        hash=own_hash,
    )


_INSTANT_MS = 1_000_000_000_000
"""A number of milliseconds above this is an instant since 2001, and no span of time."""


def _flat(found: Mapping[str, Any], before: str) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        elif isinstance(value, bool):
            yield f"{before}{name}", "yes" if value else "no"
        elif isinstance(value, int) and name.endswith("_ms") and value > _INSTANT_MS:
            moment = datetime.fromtimestamp(value / 1_000, UTC)
            yield f"{before}{name.removesuffix('_ms')}", f"{moment:%Y-%m-%d %H:%M:%S} UTC"
        elif isinstance(value, int | float):
            if value:
                yield f"{before}{name}", f"{value:,}"
        elif isinstance(value, list):
            yield f"{before}{name}", number_of(len(value), "item") if len(value) > 5 else ", ".join(map(str, value))
        else:
            yield f"{before}{name}", "none" if value is None else str(value)
