"""Looks at the event broker: polls, conditions, ages and bloat, and what of it a person should look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuekeeper.jobs.parameters import Parameters, Section, percent, seconds
from queuekeeper.maintenance.events.broker import read_event_broker
from queuekeeper.postgres import Connection, statement, translated_errors
from queuekeeper.report.figures import duration, number

FEWEST_DEAD_ROWS = 10_000
"""A table with fewer dead rows than this is not bloated, whatever their share: autovacuum leaves small tables alone."""


class UpkeepLimits(Parameters):
    """What is too much."""

    max_stall_s: int = seconds(
        60,
        title="Longest pause between polls",
        help="The run fails when the last poll is more than so many seconds ago, while anybody subscribes.",
        most=86_400,
        examples=[10, 60, 600],
    )
    max_freeze_percent: int = percent(
        150,
        title="Wraparound age",
        help="The run fails when a table is older than this percent of the age at which autovacuum freezes it at last.",
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


@dataclass(frozen=True, kw_only=True)
class UpkeepFinding:
    """Something that a person should look at.

    :param subject: table, condition by its key, or part of the broker; never the text of a condition.
    :param words: what it is, and what to do.
    :param urgent: whether events are held up, or the database is in danger.
    """

    subject: str
    words: str
    urgent: bool


@dataclass(frozen=True, kw_only=True)
class BrokerTable:
    """A table of the broker, with all its partitions.

    :param freeze_percent: age of its oldest row, of that at which autovacuum freezes it at the latest.
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
    """How the broker stands.

    :param stalled_s: since the last poll; none while nobody subscribes.
    :param failing_conditions: keys of those that fail on the latest events, or take too long; never their text.
    """

    stalled_s: float | None
    subscriptions: int
    failing_conditions: tuple[str, ...]
    quarantined_subscriptions: int
    undispatched: int
    scheduled: int
    overdue: int
    reenqueued: int
    dead_letters: int
    tables: tuple[BrokerTable, ...]
    findings: tuple[UpkeepFinding, ...]

    @property
    def urgent(self) -> tuple[UpkeepFinding, ...]:
        """What must not wait."""
        return tuple(each for each in self.findings if each.urgent)


def watch_broker(connection: Connection, *, limits: UpkeepLimits) -> BrokerWatch:
    """Look at polls, conditions, ages and bloat; nothing is written.

    :param connection: one that commits by itself, to the database of the broker.
    :raises RefusedError: when there is no broker.
    """
    rows = read_event_broker(connection)
    with translated_errors(connection, missing="run `queuekeeper events install`"):
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
            UpkeepFinding(
                subject=f"condition {row['name']}",
                words=f"it fails on the latest events, or takes too long, and a poll still evaluates it for "
                f"{number(row['subscriptions'] - row['quarantined'])} subscriptions: run the remedy "
                "quarantine_subscription, mend the condition and release them",
                urgent=False,
            )
            for row in failing
            if row["quarantined"] < row["subscriptions"]
        ),
        *(
            UpkeepFinding(
                subject=table,
                words=f"its oldest row is at {percent:,.0f} % of the age at which autovacuum freezes it: autovacuum "
                "does not do its work there; run the remedy freeze_partition, and look for what holds old rows",
                urgent=True,
            )
            for table, percent in ages.items()
            if percent > limits.max_freeze_percent
        ),
        *(
            UpkeepFinding(
                subject=each.table,
                words=f"{number(each.dead_rows)} of its rows are dead, {each.dead_percent:.0f} %: look for a long "
                "transaction or a replication slot that holds them, then VACUUM it",
                urgent=False,
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
) -> list[UpkeepFinding]:
    found = []
    if broker["is_foreign"]:
        words = (
            "the record of what is dispatched comes from another server, so polls refuse to work: after a restore run "
            "SELECT pgmb.resynchronize_dispatch()"
        )
        found.append(UpkeepFinding(subject="dispatching", words=words, urgent=True))
    stalled_s = broker["stalled_s"]
    if stalled_s is not None and stalled_s > limits.max_stall_s:
        words = f"the last poll was {duration(stalled_s)} ago: start `queuekeeper events dispatch`, or see why it fails"
        found.append(UpkeepFinding(subject="dispatching", words=words, urgent=True))
    if broker["never_dispatched"]:
        words = f"{number(broker['never_dispatched'])} stored events were never dispatched: the next run repeats them"
        found.append(UpkeepFinding(subject="dispatching", words=words, urgent=False))
    if overdue and stalled_s is not None and stalled_s <= limits.max_stall_s:
        words = f"{number(overdue)} scheduled events are due and wait for a poll"
        found.append(UpkeepFinding(subject="dispatching", words=words, urgent=False))
    if quarantined:
        words = f"{number(quarantined)} subscriptions get nothing since their condition failed: mend and release them"
        found.append(UpkeepFinding(subject="subscriptions", words=words, urgent=False))
    if overflow_in_use:
        words = "events are written to the overflow, as no partition was made in time: run partition_maintenance"
        found.append(UpkeepFinding(subject="pgmb.events", words=words, urgent=True))
    return found
