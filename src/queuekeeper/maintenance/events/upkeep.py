"""Jobs that find faults of the event broker in PostgreSQL and mend them in bounded steps."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from queuekeeper.errors import UsageError
from queuekeeper.events.schema import INSTALL
from queuekeeper.jobs.common import Pacing
from queuekeeper.jobs.counts import Counts
from queuekeeper.jobs.kinds import Table
from queuekeeper.jobs.model import Job, Outcome, Plan, Step, Words, World
from queuekeeper.maintenance.events.remedies import REMEDIES
from queuekeeper.maintenance.events.watch import UpkeepLimits, watch_broker
from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.report.figures import duration, number, size
from queuekeeper.report.files import ReportKind

REPORT = ReportKind("events", "Event report")

_EXAMPLES = 20
_FOOTER = "Conditions are evaluated on recent events, read-only. No event leaves the server."


class UpkeepParameters(UpkeepLimits, Pacing):
    """Parameters of the upkeep."""


@dataclass(kw_only=True)
class UpkeepCounts(Counts):
    """Counts of what the upkeep found, or did."""

    expired_subscriptions: int = 0
    reenqueued_events: int = 0

    @property
    def scanned(self) -> int:
        """Number of everything that was found."""
        return self.changes

    @property
    def removed(self) -> int:
        """Number of subscriptions that had expired."""
        return self.expired_subscriptions


@dataclass(kw_only=True)
class MendCounts(Counts):
    """Counts of what a remedy found, or mended."""

    mended: int = 0


@dataclass(frozen=True, kw_only=True)
class EventFound:
    """Findings of a plan besides its counts.

    :param examples: ids of events and subscriptions, or names of tables: the first of each remedy.
    """

    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class BrokerJob(Job[Any, Any, EventFound]):
    """Work on the event broker; each share is a remedy.

    :cvar remedies: names of the remedies, each with the field of the counts for its changes.
    """

    on_redis = False
    dag = "event_upkeep"
    remedies: ClassVar[Mapping[str, str]]

    def __init__(self, world: World[Any]) -> None:
        super().__init__(world)
        self._examples: dict[str, tuple[str, ...]] = {}

    @property
    def database(self) -> Connection:
        """The database of the broker."""
        if self.world.database is None:
            raise UsageError("the event broker is in PostgreSQL: name its database by --postgres-url")
        return self.world.database

    def shares(self) -> list[str]:
        """Return the remedies."""
        return list(self.remedies)

    def find(self, share: str, after: str = "") -> Generator[Step, None, None]:
        """Yield what is to be mended; a continued run does not find again what is mended already."""
        remedy = REMEDIES[share]
        self.world.pace(0)
        with translated_errors(self.database, missing=INSTALL):
            subjects = remedy.find(self.database)
        self.world.breaker.answered()
        self._examples[share] = tuple(subjects[:_EXAMPLES])
        for batch in self.world.batches(subjects, remedy.at_once):
            yield Step(cursor=batch[-1], work=(share, batch))

    def apply(self, step: Step) -> Any:
        """Mend the items that still need it, or only count them."""
        share, subjects = step.work
        done = len(subjects)
        if not self.world.counts_only:
            self.world.pace(done)
            with translated_errors(self.database):
                done = REMEDIES[share].mend(self.database, subjects)
        return self.Counts(**{self.remedies[share]: done})

    def found(self) -> EventFound:
        """Return examples of what is to be mended."""
        return EventFound(examples=self._examples)

    # --- words ---------------------------------------------------------------------------------------------------

    @classmethod
    def plan_rows(cls, plan: Plan[Any, Any, EventFound]) -> list[tuple[str, str]]:
        """Return the plan as pairs of name and text, with the undo of each remedy."""
        undo = [(f"Undo of {name}", REMEDIES[name].way_back) for name in cls.remedies]
        return [*super().plan_rows(plan), *undo]

    @classmethod
    def tables(cls, plan: Plan[Any, Any, EventFound]) -> list[Table]:
        """Return some of what is to be mended."""
        rows = tuple((each, name) for name, examples in plan.found.examples.items() for each in examples)
        return [Table(heading="Some of what is to be mended", heads=("what", "remedy"), rows=rows, empty="Nothing.")]


class EventMend(BrokerJob):
    """One remedy as a job."""

    Parameters, Counts = Pacing, MendCounts

    def __init_subclass__(cls) -> None:
        """Set the job's remedy and words; the reports of all remedies are of one kind."""
        cls.report, cls.remedies = REPORT, {cls.kind: "mended"}
        cls.words = Words.of_remedy(
            cls.kind,
            about="the event broker",
            command=f"events mend {cls.kind}",
            unit="place",
            units="places",
            to_do="{count:,} to be mended",
            done="{count:,} mended",
            question=f"{cls.kind}: {{count:place}} to be mended. Go on?",
            planned="{count:place} to be mended, nothing was changed",
            left="done; {count:more place} to be mended by now: plan again",
            footer=_FOOTER,
        )

    @classmethod
    def rule_words(cls, parameters: Pacing) -> str:
        """Return what the remedy does."""
        return REMEDIES[cls.kind].purpose

    @classmethod
    def figures(cls, outcome: Outcome[Any, Any, EventFound]) -> list[tuple[str, str, str]]:
        """Return how much was found."""
        return [("To mend", number(outcome.plan.counts.changes), "when it was planned")]

    @classmethod
    def told(cls, outcome: Outcome[Any, Any, EventFound]) -> dict[str, Any]:
        """Return what was planned and done, under the names of earlier releases."""
        subjects = outcome.plan.found.examples.get(cls.kind, ())
        planned, done = outcome.plan.counts.mended, outcome.counts.mended
        return {"remedy": cls.kind, "subjects": subjects, "planned": planned, "done": done}


class ReenqueueEvents(EventMend):
    """Dispatch events that were never dispatched."""

    kind = "reenqueue_events"


class QuarantineSubscription(EventMend):
    """Quarantine subscriptions that would hold up every poll."""

    kind = "quarantine_subscription"


class FreezePartition(EventMend):
    """Freeze tables that autovacuum has not frozen."""

    kind = "freeze_partition"


class EventUpkeep(BrokerJob):
    """Keep the event broker in order, and say what must not wait."""

    kind = "event_upkeep"
    report = REPORT
    Parameters, Counts = UpkeepParameters, UpkeepCounts
    remedies: ClassVar[Mapping[str, str]] = {
        "expire_subscriptions": "expired_subscriptions",
        "reenqueue_events": "reenqueued_events",
    }
    words = Words(
        noun="upkeep of the event broker",
        title="Event broker",
        about="the event broker",
        command="events upkeep",
        unit="event and subscription",
        units="events and subscriptions",
        nothing="in order: there was nothing to do, and nothing was changed",
        footer=_FOOTER,
    )

    def facts(self) -> dict[str, Any]:
        """Return the state of the broker, as just read or read now."""
        watch = self.world.given or watch_broker(self.database, limits=self.world.parameters).facts()
        urgent = [f"{each['subject']}: {each['words']}" for each in watch["findings"] if each["urgent"]]
        return {"watch": watch, "trouble": "; ".join(urgent)}

    @classmethod
    def figures(cls, outcome: Outcome[Any, Any, EventFound]) -> list[tuple[str, str, str]]:
        """Return the figures of the broker's state."""
        watch = outcome.facts.get("watch")
        if watch is None:
            return []
        stalled_s = watch["stalled_s"]
        polled = ("not needed", "nobody subscribes") if stalled_s is None else (duration(stalled_s), "ago")
        waiting = f"{number(watch['scheduled'])} scheduled, {number(watch['overdue'])} overdue"
        in_quarantine = f"{number(watch['quarantined_subscriptions'])} in quarantine"
        return [
            ("Last poll", *polled),
            ("Subscriptions", number(watch["subscriptions"]), in_quarantine),
            ("Waiting for a poll", number(watch["undispatched"]), waiting),
            ("Dead letters", number(watch["dead_letters"]), "kept until they are replayed"),
        ]

    @classmethod
    def shown(cls, outcome: Outcome[Any, Any, EventFound]) -> list[Table]:
        """Return what needs a look, and the tables of the broker."""
        watch = outcome.facts.get("watch") or {"findings": (), "tables": ()}
        findings = tuple(
            (each["subject"], each["words"] + (" (must not wait)" if each["urgent"] else ""), each.get("remedy") or "–")
            for each in watch["findings"]
        )
        tables = tuple(
            (
                each["table"],
                number(each["live_rows"]),
                number(each["dead_rows"]),
                size(each["size_bytes"]),
                f"{each['freeze_percent']:,.1f} %",
            )
            for each in watch["tables"]
        )
        return [
            Table(
                heading="What needs a look",
                heads=("what", "why", "mended by"),
                rows=findings,
                empty="Nothing.",
                links=tuple(each.get("remedy_url", "") for each in watch["findings"]),
            ),
            *super().shown(outcome),
            Table(
                heading="Tables",
                heads=("table", "rows", "dead", "size", "age"),
                rows=tables,
                empty="None.",
                note="With all partitions. Age is that of the oldest row, in percent of the age at which autovacuum "
                "freezes it at the latest.",
            ),
        ]

    @classmethod
    def told(cls, outcome: Outcome[Any, Any, EventFound]) -> dict[str, Any]:
        """Return what was found and done, under the names of earlier releases."""
        planned, done = outcome.plan.counts, outcome.counts
        expired, reenqueued = done.expired_subscriptions, done.reenqueued_events
        return {
            "expiry": {"found": max(planned.expired_subscriptions, expired), "removed": expired},
            "reenqueued": {
                "remedy": "reenqueue_events",
                "planned": planned.reenqueued_events,
                "done": reenqueued,
            },
        }
