"""What a migration is made of: parameters, plan, ledger and reports as frozen records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from queuekeeper import __version__
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, SLOTS, Cohort, check_prefix, parse_cohorts


class Mode(StrEnum):
    """Whether devices are served meanwhile."""

    OFFLINE = "offline"  # the broker is stopped
    ONLINE = "online"  # every writer asks who owns a session


class BadRows(StrEnum):
    """What an online migration does with rows that nobody can deliver."""

    QUARANTINE = "quarantine"  # they go to queuekeeper.session_quarantine, and their client moves
    LEAVE = "leave"  # nothing is touched, and their client stays in PostgreSQL until they are mended


class PlanState(StrEnum):
    """Where a plan stands."""

    PLANNED = "planned"  # read and counted; waits for approval
    REFUSED = "refused"  # a limit was exceeded; state_reason says which
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


@dataclass(frozen=True, kw_only=True)
class MigrationParameters:
    """What the person who starts a migration chooses.

    :param cohorts: cohorts to copy, ``all`` or such as ``0-3,7``; the plan always counts all of them.
    :param cohort_count: how many cohorts the slots are cut into.
    :param limit: newest live messages to keep per session; TBMQ 2.x calls it ``persisted-messages.limit``.
    :param default_ttl_s: life of a message whose publisher set no expiry, counted from the message's own time.
    :param quarantine_cap: share of the rows that may be quarantined before the plan is refused, 0 to 1.
    :param throttle_messages_per_s: rows written per second over all tasks; none means as fast as the servers allow.
    :param key_prefix: put before every Redis key (TBMQ: ``CACHE_PREFIX``).
    :param mode: whether devices are served meanwhile; then the source may change after the plan.
    :param bad_rows: what becomes of rows that nobody can deliver when devices are served meanwhile. By default they
        are put aside in PostgreSQL, whole, and their client moves, as it does offline: the approval of the plan, which
        counts them by reason, covers that. To leave them keeps their client where it is.
    """

    cohorts: str = "all"
    cohort_count: int = 96
    limit: int = 10_000
    default_ttl_s: int = 604_800
    quarantine_cap: float = 0.01
    throttle_messages_per_s: int | None = None
    key_prefix: str = ""
    mode: Mode = Mode.OFFLINE
    bad_rows: BadRows = BadRows.QUARANTINE

    def __post_init__(self) -> None:
        """Refuse what no migration could honour.

        :raises UsageError: naming the parameter, its value and the rule.
        """
        try:
            object.__setattr__(self, "mode", Mode(self.mode))
        except ValueError:
            raise UsageError(f"mode is {self.mode!r}: it must be {' or '.join(Mode)}") from None
        try:
            object.__setattr__(self, "bad_rows", BadRows(self.bad_rows))
        except ValueError:
            raise UsageError(f"bad_rows is {self.bad_rows!r}: it must be {' or '.join(BadRows)}") from None
        if self.bad_rows is BadRows.LEAVE and self.mode is Mode.OFFLINE:
            raise UsageError(
                "bad_rows is 'leave', and the mode is offline: PostgreSQL serves nobody afterwards, so no client can "
                "stay there; choose quarantine, or the mode online"
            )
        if not 1 <= self.cohort_count <= SLOTS:
            raise UsageError(f"cohort_count is {self.cohort_count}: it must be 1 to {SLOTS}")
        if not 1 <= self.limit <= MAX_PACKET_ID:
            raise UsageError(
                f"limit is {self.limit}: it must be 1 to {MAX_PACKET_ID}, since a session has no more packet ids"
            )
        if not 1 <= self.default_ttl_s <= 4_294_967_295:
            raise UsageError(f"default_ttl_s is {self.default_ttl_s}: it must be 1 to 4294967295 seconds")
        if not 0 <= self.quarantine_cap <= 1:
            raise UsageError(f"quarantine_cap is {self.quarantine_cap}: it is a share from 0 to 1")
        if self.throttle_messages_per_s is not None and self.throttle_messages_per_s < 1:
            raise UsageError(
                f"throttle_messages_per_s is {self.throttle_messages_per_s}: it must be 1 or more, or left out"
            )
        check_prefix(self.key_prefix)

    def identity(self) -> dict[str, Any]:
        """Return what two plans must share to be the same plan; the throttle may change while a copy runs."""
        return {name: value for name, value in asdict(self).items() if name != "throttle_messages_per_s"}


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
    clients: int
    messages: int
    payload_bytes: int
    to_copy: int
    expired: int
    trimmed: int
    quarantined: int
    quarantined_by_reason: dict[str, int] = field(default_factory=dict)
    forecast_bytes: int
    longest_queue: int


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

    @property
    def chosen_cohorts(self) -> tuple[CohortPlan, ...]:
        """The cohorts that will be copied."""
        wanted = set(self.chosen)
        return tuple(cohort for cohort in self.cohorts if cohort.cohort in wanted)

    def total(self, name: str) -> int:
        """Return the sum of one count over the chosen cohorts, for example ``total("messages")``."""
        return self.total_of(self.chosen, name)

    def total_of(self, cohorts: Iterable[int], name: str) -> int:
        """Return the sum of one count over some cohorts."""
        wanted = set(cohorts)
        return sum(getattr(cohort, name) for cohort in self.cohorts if cohort.cohort in wanted)

    def choose(self, cohorts: str | None) -> list[int]:
        """Return the numbers of the cohorts to work on.

        :param cohorts: such as ``0-3,7``; all chosen cohorts when absent.
        :raises UsageError: when one does not exist or is not part of the plan's choice.
        """
        if cohorts is None:
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


def plan_id(*, parameters: MigrationParameters, source_fingerprint: str, version: str) -> str:
    """Return the plan's id: the same world and wishes give the same id."""
    identity = {"parameters": parameters.identity(), "source": source_fingerprint, "version": version}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """What one run of the copy did.

    :param messages_written: messages written by this run.
    :param messages_expired: messages whose life ended between plan and copy; not written.
    :param sessions_written: sessions imported to the end by this run.
    :param sessions_unchanged: sessions that an earlier run of this plan had already imported.
    :param sessions_moved_on: sessions left alone because somebody else has used or created them in Redis.
    :param script_calls: calls of ``import_session``.
    :param seconds: wall clock time, Spark's start excluded.
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


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """Where every row of one cohort went, as found by reading both stores again.

    With devices connected these are the live messages of each client at the instant at which it was compared; what had
    expired, was over the limit or could not be read is not among them.

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

    @property
    def unaccounted(self) -> int:
        """Rows that went nowhere we know of; anything but 0 is a failed migration."""
        return self.rows_seen - (self.copied + self.expired + self.trimmed + self.superseded + self.quarantined)


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

    @property
    def balanced(self) -> bool:
        """True when every row is accounted for and nothing differs."""
        return self.differences == 0 and all(row.unaccounted == 0 for row in self.ledger)
