"""What a migration is made of: plan, ledger and reports as frozen records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from queuekeeper import __version__
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import Cohort, parse_cohorts
from queuekeeper.migration.ledger.parameters import MigrationParameters


class PlanState(StrEnum):
    """Where a plan stands."""

    PLANNED = "planned"  # read and counted; waits for approval
    REFUSED = "refused"  # a limit was exceeded; state_reason says which
    STOPPED = "stopped"  # nobody agreed when asked; it may be asked about again
    APPROVED = "approved"  # a person agreed
    COPYING = "copying"  # rows are being written
    COPIED = "copied"  # every chosen cohort was written
    VERIFIED = "verified"  # the ledger balances and nothing differs
    FAILED = "failed"  # the verification found differences


class CohortState(StrEnum):
    """Where a cohort stands."""

    PLANNED = "planned"
    COPYING = "copying"
    COPIED = "copied"
    VERIFIED = "verified"
    FAILED = "failed"


HEAP_USABLE = 8 / 9
"""Share of a heap that objects may take: the collector that copies are given keeps a ninth free to move them."""


@dataclass(frozen=True, kw_only=True)
class TaskMemory:
    """What Spark's tasks share.

    :param heap_bytes: what objects may take of the heap of the JVM in which they run.
    :param tasks: how many run in it at once.
    :param setting: Spark's name for the size of that heap.
    """

    heap_bytes: int
    tasks: int
    setting: str

    def setting_for(self, needed_bytes: int) -> str:
        """Return what the setting must be for a heap in which so many bytes fit."""
        return f"{-(-needed_bytes // (2**20 * HEAP_USABLE)):.0f}m"


EPOCH = "1"
"""Of sessions that a copy writes, the first one: nobody has changed their owner yet."""

_TOTALS = (
    "sessions", "clients", "messages", "payload_bytes", "to_copy", "expired", "trimmed", "quarantined",
    "forecast_bytes",
)  # fmt: skip
"""Counts of a cohort that add up."""


@dataclass(frozen=True, kw_only=True)
class CohortPlan(Cohort):
    """What the plan found in one cohort.

    :param sessions: rows of ``device_session_ctx``.
    :param clients: clients with messages, with or without a session row.
    :param messages: rows of ``device_publish_msg``; the sum of the four fates below.
    :param payload_bytes: bytes of the payloads of all rows.
    :param to_copy: rows that will be in Redis.
    :param expired: rows whose life was over at ``as_of_ms``.
    :param trimmed: live rows beyond the limit, oldest first.
    :param quarantined: rows that cannot be copied as they are.
    :param quarantined_by_reason: the same by reason; holds session rows too, which are not in ``quarantined``.
    :param forecast_bytes: Redis memory that the cohort will take.
    :param longest_queue: most rows of one client.
    """

    sessions: int
    clients: int = 0
    messages: int = 0
    payload_bytes: int = 0
    to_copy: int = 0
    expired: int = 0
    trimmed: int = 0
    quarantined: int = 0
    quarantined_by_reason: dict[str, int] = field(default_factory=dict)
    forecast_bytes: int = 0
    longest_queue: int = 0


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """What a migration will do, and the state of the world it was made in.

    :param plan_id: 16 hex digits over parameters, source and code.
    :param source_fingerprint: changes with any row of the source.
    :param as_of_ms: instant at which rows were judged live or expired.
    :param cohorts: all cohorts, chosen or not, in order.
    :param chosen: numbers of the cohorts to copy.
    :param state: where it stands.
    :param state_reason: why it was refused or failed, else empty.
    :param target_clustered: whether it was made for a cluster, which cannot serve every client id; none when an earlier
        release has made it.
    """

    plan_id: str
    parameters: MigrationParameters
    source_fingerprint: str
    code_version: str
    as_of_ms: int
    cohorts: tuple[CohortPlan, ...]
    chosen: tuple[int, ...]
    state: PlanState = PlanState.PLANNED
    state_reason: str = ""
    target_clustered: bool | None = None

    @property
    def chosen_cohorts(self) -> tuple[CohortPlan, ...]:
        """The cohorts that will be copied."""
        wanted = set(self.chosen)
        return tuple(cohort for cohort in self.cohorts if cohort.cohort in wanted)

    def total(self, name: str) -> int:
        """Return the sum of one count over the chosen cohorts, for example ``total("messages")``."""
        return self.total_of(self.chosen, name)

    def totals(self) -> dict[str, int]:
        """Return the sums of all counts over the chosen cohorts, as reports, commands and tasks tell them."""
        return {name: self.total(name) for name in _TOTALS}

    def facts(self) -> dict[str, Any]:
        """Return the plan as commands, tasks and reports tell it; the counts of each cohort are on record."""
        totals = self.totals()
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "cohorts": len(self.cohorts),
            **totals,
            "totals": totals,
            "quarantined_by_reason": self.quarantined_by_reason(),
            "longest_queue": max((cohort.longest_queue for cohort in self.chosen_cohorts), default=0),
        }

    def total_of(self, cohorts: Iterable[int], name: str) -> int:
        """Return the sum of one count over some cohorts."""
        wanted = set(cohorts)
        return sum(getattr(cohort, name) for cohort in self.cohorts if cohort.cohort in wanted)

    def choose(self, cohorts: str = "") -> list[int]:
        """Return the numbers of the cohorts to work on.

        :param cohorts: such as ``0-3,7``; all chosen cohorts when empty.
        :raises UsageError: when one does not exist or is not part of the plan's choice.
        """
        if not cohorts:
            return list(self.chosen)
        wanted = parse_cohorts(cohorts, count=len(self.cohorts))
        strangers = sorted(set(wanted) - set(self.chosen)) if cohorts.strip() != "all" else []
        if strangers:
            raise UsageError(f"cohort {strangers[0]} was not chosen when plan {self.plan_id} was made")
        return [cohort for cohort in wanted if cohort in set(self.chosen)]

    def quarantined_by_reason(self) -> dict[str, int]:
        """Return the quarantined rows of the chosen cohorts by reason, most frequent first."""
        counts: dict[str, int] = {}
        for cohort in self.chosen_cohorts:
            for reason, count in cohort.quarantined_by_reason.items():
                counts[reason] = counts.get(reason, 0) + count
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def code_version() -> str:
    """Return what the plan id knows of the code: a plan made by another release is stale."""
    return __version__


def plan_id(
    *, parameters: MigrationParameters, source_fingerprint: str, version: str, target_clustered: bool = False
) -> str:
    """Return the plan's id: the same world and wishes give the same id."""
    identity = {"parameters": parameters.identity(), "source": source_fingerprint, "version": version}
    if target_clustered:
        identity["target"] = "cluster"
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """What one run of the copy did.

    :param messages_written: messages written by this run.
    :param messages_expired: messages whose life ended between plan and copy; not written.
    :param sessions_written: sessions imported to the end by this run.
    :param sessions_unchanged: sessions that an earlier run of this plan, or this run before a pause, had imported.
    :param sessions_moved_on: sessions left alone because somebody else has used or created them in Redis.
    :param script_calls: calls of ``import_session``.
    :param seconds: wall clock time, Spark's start excluded.
    :param paused: whether it ended because the migration is paused; a later copy of what is missing goes on.
    """

    plan_id: str
    cohorts: tuple[int, ...]
    messages_written: int
    messages_expired: int
    sessions_written: int
    sessions_unchanged: int
    sessions_moved_on: int
    script_calls: int
    seconds: float
    paused: bool = False

    def with_rest(self, rest: CopyReport) -> CopyReport:
        """Return it with what was done after a pause; that itself takes no time."""
        counts = {
            each.name: getattr(self, each.name) + getattr(rest, each.name)
            for each in fields(self)
            if each.name not in ("plan_id", "cohorts", "paused")
        }
        return replace(self, paused=rest.paused, **counts)


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """Where every row of one cohort went, as found by reading both stores again.

    With devices connected it counts the live messages of each client at the instant at which it was compared, without
    messages that had expired, were over the limit or could not be read.

    :param rows_seen: rows of ``device_publish_msg``.
    :param copied: rows found in Redis, equal in every respect.
    :param expired: rows whose life is over.
    :param trimmed: live rows beyond the limit.
    :param superseded: rows of sessions that had moved on in Redis and were left alone.
    :param quarantined: rows in the quarantine.
    :param sessions_seen: sessions with a session row, a message, or both.
    :param sessions_copied: sessions whose last packet id is right in Redis.
    :param differences: differences found, not all of which need be in ``queuekeeper.differences``.
    :param digest: order-free hash over all sessions' ordered messages and expiry instants as found in Redis.
    """

    cohort: int
    rows_seen: int
    copied: int
    expired: int
    trimmed: int
    superseded: int
    quarantined: int
    sessions_seen: int
    sessions_copied: int
    differences: int
    digest: str
    worked_out: ClassVar[tuple[str, ...]] = ("unaccounted",)

    @property
    def unaccounted(self) -> int:
        """Rows that went nowhere we know of; anything but 0 is a failed migration."""
        return self.rows_seen - (self.copied + self.expired + self.trimmed + self.superseded + self.quarantined)


def unaccounted(rows: Iterable[LedgerRow]) -> int:
    """Return the rows of all cohorts that went nowhere; without signs, so that two errors cannot cancel each other."""
    return sum(abs(row.unaccounted) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One way in which source and target differ; it never holds a payload.

    :param kind: ``missing``, ``unexpected``, ``order``, ``packet_id``, ``payload``, ``properties``, ``expiry``,
        ``last_packet_id``, ``unreadable``, ``session_missing``.
    :param serial_number: message concerned, if any.
    :param expected: value in the source, shortened; a hash where it would show content.
    :param found: value in the target, likewise.
    """

    cohort: int
    client_id: str
    serial_number: int | None
    kind: str
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Outcome of a verification.

    :param digest: order-free hash over the digests of the cohorts.
    """

    plan_id: str
    ledger: tuple[LedgerRow, ...]
    differences: int
    digest: str
    seconds: float
    worked_out: ClassVar[tuple[str, ...]] = ("balanced", "messages", "unaccounted")
    at_length: ClassVar[tuple[str, ...]] = ("ledger",)

    @property
    def messages(self) -> int:
        """Rows of the source that were compared."""
        return sum(row.rows_seen for row in self.ledger)

    @property
    def unaccounted(self) -> int:
        """Rows that went nowhere we know of."""
        return unaccounted(self.ledger)

    @property
    def wrong(self) -> str:
        """What does not balance, in words."""
        return f"{self.differences:,} differences, {self.unaccounted:,} messages unaccounted for"

    @property
    def balanced(self) -> bool:
        """True when every row is accounted for and nothing differs."""
        return self.differences == 0 and self.unaccounted == 0
