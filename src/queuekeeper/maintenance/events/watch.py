"""Checks the event broker: polls, conditions, ages and bloat; what a person should look at becomes a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from queuekeeper.events.schema import INSTALL
from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Finding
from queuekeeper.jobs.parameters import Parameters, Section, percent, seconds
from queuekeeper.maintenance.bloat import FEWEST_DEAD_ROWS
from queuekeeper.maintenance.events.broker import read_event_broker
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.report.figures import duration, number
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of


class UpkeepLimits(Parameters):
    """Limits above which the upkeep reports a finding."""

    max_stall_s: int = seconds(
        60,
        title="Longest pause between polls",
        help="Seconds since the last poll after which the run fails, if there is a subscription.",
        most=86_400,
        examples=[10, 60, 600],
    )
    max_freeze_percent: int = percent(
        150,
        title="Wraparound age",
        help="The run fails when the age of a table exceeds this percent of the age at which autovacuum has to freeze "
        "it.",
        section=Section.RULES,
        most=1_000,
        examples=[100, 150],
    )
    max_bloat_percent: int = percent(
        50,
        title="Bloat",
        help="A table is reported when more than this percent of its rows are dead. Tables with few dead rows do not "
        "count.",
        section=Section.RULES,
        examples=[20, 50],
    )


class FindingKind(StrEnum):
    """Kinds of findings on the event broker."""

    FOREIGN_RECORD = "foreign_record"  # the record of what is dispatched came with a restore
    STALLED = "stalled"  # polls have stopped
    NEVER_DISPATCHED = "never_dispatched"
    OVERDUE = "overdue"
    QUARANTINED = "quarantined"
    OVERFLOW = "overflow"  # events are written to the overflow
    FAILING_CONDITION = "failing_condition"
    OLD_ROWS = "old_rows"  # autovacuum does not freeze them
    BLOAT = "bloat"


_CHECKS: Mapping[FindingKind, tuple[str, Severity]] = {
    FindingKind.FOREIGN_RECORD: ("", Severity.CRITICAL),
    FindingKind.STALLED: ("", Severity.CRITICAL),
    FindingKind.NEVER_DISPATCHED: ("Q31", Severity.WARNING),
    FindingKind.OVERFLOW: ("Q28", Severity.CRITICAL),
    FindingKind.FAILING_CONDITION: ("Q32", Severity.WARNING),
    FindingKind.OLD_ROWS: ("Q33", Severity.CRITICAL),
}
"""Check and severity of each kind: critical where events are held up or a database is in danger."""


def finding(kind: FindingKind, subject: str, words: str) -> Finding:
    """Return a finding, with a filled-in form where a DAG mends it.

    :param subject: table, key of a condition, or part of the broker; never the text of a condition.
    :param words: what is wrong, and what to do.
    """
    found = Finding.of_kind(kind, _CHECKS, subject=subject, words=words)
    return found.with_remedy(besides={"tables": [subject]} if kind is FindingKind.OVERFLOW else None)


@dataclass(frozen=True, kw_only=True)
class BrokerTable:
    """A table of the broker, with all its partitions.

    :param freeze_percent: age of its oldest row, in percent of the age at which autovacuum freezes it at the latest.
    """

    table: str
    live_rows: int
    dead_rows: int
    size_bytes: int
    freeze_percent: float

    @property
    def dead_percent(self) -> float:
        """Share of its rows that are dead."""
        return 100 * self.dead_rows / max(1, self.live_rows + self.dead_rows)


@dataclass(frozen=True, kw_only=True)
class BrokerWatch:
    """State of the broker.

    :param stalled_s: seconds since the last poll; none while there is no subscription.
    :param failing_conditions: keys of conditions that fail on the latest events, or take too long; never their text.
    """

    stalled_s: float | None
    subscriptions: int
    failing_conditions: tuple[str, ...]
    quarantined_subscriptions: int
    undispatched: int
    scheduled: int
    overdue: int  # scheduled events whose time has come
    reenqueued: int
    dead_letters: int
    tables: tuple[BrokerTable, ...]
    findings: tuple[Finding, ...]

    @property
    def urgent(self) -> tuple[Finding, ...]:
        """Findings that must not wait."""
        return tuple(each for each in self.findings if each.urgent)

    def facts(self, *, form_values: Mapping[str, Any] | None = None, forms_url: str = "") -> dict[str, Any]:
        """Return the state and its findings as JSON values.

        :param form_values: connections, for forms that name connections.
        :param forms_url: address below which Airflow opens the forms of DAGs; empty for none.
        """
        found = (each.with_form(form_values or {}, forms_url=forms_url) for each in self.findings)
        return asdict(self) | {"findings": [each.facts() for each in found]}


def watch_broker(connection: Connection, *, limits: UpkeepLimits) -> BrokerWatch:
    """Check polls, conditions, ages and bloat; nothing is written.

    :param connection: connection to the broker's database, with ``autocommit``.
    :raises RefusedError: when there is no broker.
    """
    rows = read_event_broker(connection)
    with translated_errors(connection, missing=INSTALL):
        (status,) = connection.execute(statement("maintenance/broker_status")).fetchall()
        bloat = connection.execute(statement("maintenance/broker_bloat")).fetchall()
    undispatched, scheduled, overdue, reenqueued, quarantined, overflow_in_use, subscriptions, dead_letters = status
    (broker,) = (row for row in rows if row["kind"] == "broker")
    ages = {row["name"]: 100 * float(row["freeze_share"]) for row in rows if row["kind"] == "table"}
    failing = [row for row in rows if row["kind"] == "condition" and row["fails"]]
    tables = tuple(
        BrokerTable(
            table=table,
            live_rows=live_rows,
            dead_rows=dead_rows,
            size_bytes=size_bytes,
            freeze_percent=ages.get(table, 0.0),
        )
        for table, live_rows, dead_rows, size_bytes in bloat
    )
    findings = [
        *_of_dispatching(broker, limits, overdue=overdue, quarantined=quarantined, overflow_in_use=overflow_in_use),
        *(
            finding(
                FindingKind.FAILING_CONDITION,
                f"condition {row['name']}",
                f"it fails on the latest events, or takes too long, and a poll still evaluates it for "
                f"{number_of(row['subscriptions'] - row['quarantined'], 'subscription')}: run the remedy "
                "quarantine_subscription, mend the condition and release them",
            )
            for row in failing
            if row["quarantined"] < row["subscriptions"]
        ),
        *(
            finding(
                FindingKind.OLD_ROWS,
                table,
                f"its oldest row is at {percent:,.0f} % of the age at which autovacuum freezes it: autovacuum "
                "does not do its work there; run the remedy freeze_partition, and look for what holds old rows",
            )
            for table, percent in ages.items()
            if percent > limits.max_freeze_percent
        ),
        *(
            finding(
                FindingKind.BLOAT,
                each.table,
                f"{number(each.dead_rows)} of its rows are dead, {each.dead_percent:.0f} %: look for a long "
                "transaction or a replication slot that holds them, then VACUUM it",
            )
            for each in tables
            if each.dead_rows >= FEWEST_DEAD_ROWS and each.dead_percent > limits.max_bloat_percent
        ),
    ]
    return BrokerWatch(
        stalled_s=broker["stalled_s"],
        subscriptions=subscriptions,
        failing_conditions=tuple(row["name"] for row in failing),
        quarantined_subscriptions=quarantined,
        undispatched=undispatched,
        scheduled=scheduled,
        overdue=overdue,
        reenqueued=reenqueued,
        dead_letters=dead_letters,
        tables=tables,
        findings=tuple(findings),
    )


def _of_dispatching(
    broker: dict[str, Any], limits: UpkeepLimits, *, overdue: int, quarantined: int, overflow_in_use: bool
) -> list[Finding]:
    found = []
    if broker["is_foreign"]:
        words = (
            "the record of what is dispatched comes from another server, so polls refuse to work: after a restore run "
            "SELECT pgmb.resynchronize_dispatch()"
        )
        found.append(finding(FindingKind.FOREIGN_RECORD, "dispatching", words))
    stalled_s = broker["stalled_s"]
    if stalled_s is not None and stalled_s > limits.max_stall_s:
        words = f"the last poll was {duration(stalled_s)} ago: start `queuekeeper events dispatch`, or see why it fails"
        found.append(finding(FindingKind.STALLED, "dispatching", words))
    if broker["never_dispatched"]:
        words = f"{number_of(broker['never_dispatched'], 'stored event')} never dispatched: the next run does it"
        found.append(finding(FindingKind.NEVER_DISPATCHED, "dispatching", words))
    if overdue and stalled_s is not None and stalled_s <= limits.max_stall_s:
        words = f"{number_of(overdue, 'scheduled event')} due, and no poll has taken what is due"
        found.append(finding(FindingKind.OVERDUE, "dispatching", words))
    if quarantined:
        words = (
            f"nothing goes to {number_of(quarantined, 'subscription')} whose condition failed: mend and release them"
        )
        found.append(finding(FindingKind.QUARANTINED, "subscriptions", words))
    if overflow_in_use:
        words = "events are written to the overflow, as no partition was made in time: run partition_maintenance"
        found.append(finding(FindingKind.OVERFLOW, "pgmb.events", words))
    return found
