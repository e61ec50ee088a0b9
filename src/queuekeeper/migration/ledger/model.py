"""Plan, ledger and reports of a migration as frozen records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from queuekeeper import __version__
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.keyspace import Cohort, parse_cohorts
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.wording import number_of


class PlanState(StrEnum):
    """State of a plan."""

    PLANNED = "planned"  # read and counted; waits for approval
    REFUSED = "refused"  # a limit was exceeded; state_reason says which
    REJECTED = "rejected"  # nobody approved it when asked; it may be asked about again
    APPROVED = "approved"  # a person agreed
    COPYING = "copying"  # rows are being written
    COPIED = "copied"  # every chosen cohort was written
    VERIFIED = "verified"  # the ledger balances and nothing differs
    FAILED = "failed"  # the verification found differences


class CohortState(StrEnum):
    """State of a cohort."""

    PLANNED = "planned"
    COPYING = "copying"
    COPIED = "copied"
    VERIFIED = "verified"
    FAILED = "failed"


STEP_NOUNS: Mapping[str, str] = {"copy": "copy", "verify": "verification"}
"""Steps of a migration in sentences, by name."""

HEAP_USABLE = 8 / 9
"""Share of a heap that objects may fill: the garbage collector of a copy keeps a ninth free to move them."""


@dataclass(frozen=True, kw_only=True)
class TaskMemory:
    """Memory that Spark's tasks share.

    :param heap_bytes: bytes that objects may fill in the heap of the JVM in which the tasks run.
    :param tasks: tasks that run in one JVM at once.
    :param setting: Spark setting for the size of that heap.
    """

    heap_bytes: int
    tasks: int
    setting: str

    def setting_for(self, needed_bytes: int) -> str:
        """Return the value of the setting for a heap that holds this many bytes."""
        return f"{-(-needed_bytes // (2**20 * HEAP_USABLE)):.0f}m"


EPOCH = "1"
"""Owner epoch of the sessions that a copy writes."""

_TOTALS = (
    "sessions", "clients", "messages", "payload_bytes", "to_copy", "expired", "trimmed", "quarantined",
    "forecast_bytes",
)  # fmt: skip
"""Counts of a cohort that add up."""


@dataclass(frozen=True, kw_only=True)
class CohortPlan(Cohort):
    """Counts of one cohort in a plan.

    :param sessions: rows of ``device_session_ctx``.
    :param clients: clients with messages, with or without a session row.
    :param messages: rows of ``device_publish_msg``; the sum of the four fates below.
    :param payload_bytes: bytes of the payloads of all rows.
    :param to_copy: rows that will be in Redis.
    :param expired: rows that had expired at ``as_of_ms``.
    :param trimmed: live rows beyond the limit; the oldest are trimmed.
    :param quarantined: rows that cannot be copied as they are.
    :param quarantined_by_reason: rows that cannot be copied, by reason, with the session rows that ``quarantined``
        leaves out.
    :param forecast_bytes: Redis memory that the cohort will need.
    :param longest_queue: rows of the client that has most.
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
    """What a migration will do, and the source and target for which it was planned.

    :param plan_id: hash of 16 hex digits over parameters, source and code.
    :param source_fingerprint: changes with any row of the source.
    :param as_of_ms: instant at which rows were judged live or expired.
    :param cohorts: all cohorts, chosen or not, in order.
    :param chosen: numbers of the cohorts to copy.
    :param state_reason: why the plan was refused or failed, else empty.
    :param target_clustered: whether the plan was made for a cluster, which cannot serve every client id; none for a
        plan of an earlier release.
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

    def check_accepted(self) -> None:
        """Check that the plan was not refused when it was made.

        :raises RefusedError: saying why it was.
        """
        if self.state is PlanState.REFUSED:
            raise RefusedError(f"plan {self.plan_id} was refused: {self.state_reason}")

    def check_from_postgres(self, *, instead: str) -> None:
        """Check that sessions come from PostgreSQL, for a step of Spark, which reads it.

        :param instead: command of the step for sessions that move inside Redis.
        :raises RefusedError: when they do not.
        """
        if self.parameters.inside_redis:
            raise RefusedError(f"sessions of plan {self.plan_id} move inside Redis, client by client: use {instead}")

    @property
    def chosen_cohorts(self) -> tuple[CohortPlan, ...]:
        """The cohorts that will be copied."""
        wanted = set(self.chosen)
        return tuple(cohort for cohort in self.cohorts if cohort.cohort in wanted)

    def total(self, name: str) -> int:
        """Return the sum of one count over the chosen cohorts, for example ``total("messages")``."""
        return self.total_of(self.chosen, name)

    def totals(self) -> dict[str, int]:
        """Return the sums of all counts over the chosen cohorts."""
        return {name: self.total(name) for name in _TOTALS}

    def facts(self) -> dict[str, Any]:
        """Return the plan as commands, tasks and reports show it, without the counts of each cohort."""
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

    def question(self, cohorts: Iterable[int]) -> str:
        """Return what a person is asked before some cohorts are copied."""
        return f"Copy {number_of(self.total_of(cohorts, 'to_copy'), 'message')} to Redis?"

    def choose(self, cohorts: str = "") -> list[int]:
        """Return the numbers of the cohorts to work on.

        :param cohorts: such as ``0-3,7``; all chosen cohorts when empty.
        :raises UsageError: when a cohort does not exist or was not chosen for the plan.
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
    """Return the version of the code that goes into a plan's id; a plan of another version is stale."""
    return __version__


def plan_id(
    *, parameters: MigrationParameters, source_fingerprint: str, version: str, target_clustered: bool = False
) -> str:
    """Return the plan's id; the same source, parameters and code give the same id."""
    identity = {"parameters": parameters.identity(), "source": source_fingerprint, "version": version}
    if target_clustered:
        identity["target"] = "cluster"
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """What one run of the copy did.

    :param messages_written: messages written by this run.
    :param messages_expired: messages that expired between plan and copy; not written.
    :param sessions_written: sessions imported to the end by this run.
    :param sessions_unchanged: sessions that an earlier run of this plan, or this run before a pause, had imported.
    :param sessions_moved_on: sessions left alone because somebody else has used or created them in Redis.
    :param script_calls: calls of the script ``import_session``.
    :param seconds: wall clock time, Spark's start excluded.
    :param paused: whether the run ended because the migration is paused; a copy of what is missing continues it.
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
        """Return this report and that of the run after a pause as one; the pause does not count as time."""
        counts = {
            each.name: getattr(self, each.name) + getattr(rest, each.name)
            for each in fields(self)
            if each.name not in ("plan_id", "cohorts", "paused")
        }
        return replace(self, paused=rest.paused, **counts)


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """Where every row of one cohort went, as found by reading both stores again.

    The row of an online migration counts the live messages of each client when the client was compared, without
    messages that had expired, were over the limit or could not be read.

    :param rows_seen: rows of ``device_publish_msg``.
    :param copied: rows found in Redis, equal in every respect.
    :param expired: rows that have expired.
    :param trimmed: live rows beyond the limit.
    :param superseded: rows of sessions that somebody had used in Redis and that were left alone.
    :param quarantined: rows in the quarantine.
    :param sessions_seen: sessions with a session row, a message, or both.
    :param sessions_copied: sessions whose last packet id is right in Redis.
    :param differences: differences found; ``queuekeeper.differences`` may hold fewer.
    :param digest: hash over the messages and expiry instants of all sessions as found in Redis; the order of the
        sessions does not change it.
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
        """Rows without a known fate; the migration has failed unless it is 0."""
        return self.rows_seen - (self.copied + self.expired + self.trimmed + self.superseded + self.quarantined)


def unaccounted(rows: Iterable[LedgerRow]) -> int:
    """Return the rows of all cohorts without a known fate, as absolute values, so that no two errors cancel out."""
    return sum(abs(row.unaccounted) for row in rows)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One way in which source and target differ; it never holds a payload.

    :param kind: ``missing``, ``unexpected``, ``order``, ``packet_id``, ``payload``, ``properties``, ``expiry``,
        ``last_packet_id``, ``unreadable``, ``session_missing``.
    :param serial_number: serial number of the message, if one differs.
    :param expected: value in the source, shortened; a hash in place of content.
    :param found: value in the target, shortened; a hash in place of content.
    """

    cohort: int
    client_id: str
    serial_number: int | None
    kind: str
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """Result of a verification.

    :param digest: hash over the digests of the cohorts; their order does not change it.
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
        """Rows without a known fate."""
        return unaccounted(self.ledger)

    @property
    def wrong(self) -> str:
        """Numbers of differences and unaccounted messages, in words."""
        return f"{number_of(self.differences, 'difference')}, {number_of(self.unaccounted, 'message')} unaccounted for"

    @property
    def balanced(self) -> bool:
        """Whether every row is accounted for and nothing differs."""
        return self.differences == 0 and self.unaccounted == 0
