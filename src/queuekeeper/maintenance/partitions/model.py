"""Plans, outcomes and reports of the maintenance of partitions.

Plans and reports can be converted to JSON (:func:`queuekeeper.facts.plain`) and back (:func:`plan_of`,
:func:`report_of`), so that Airflow can keep a plan, show it to a person and apply it in another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import TypeAdapter

from queuekeeper.jobs.findings import Finding
from queuekeeper.maintenance.partitions.catalog import Blocker
from queuekeeper.maintenance.partitions.findings import FindingKind
from queuekeeper.maintenance.partitions.policy import PartitionPolicy

KIND = "partition_maintenance"
"""Subject of entries in the audit on partitions."""


class Purpose(StrEnum):
    """Purpose of a plan; plans of different purposes do not wait for each other."""

    CREATION = "creation"
    RETIREMENT = "retirement"
    DROP = "drop"
    REATTACHMENT = "reattachment"


class StepKind(StrEnum):
    """Kind of a step."""

    CREATE = "create"  # a new, empty partition
    ADVANCE = "advance"  # for the event broker: create partitions in the overflow's range, and move it behind them
    DRAIN = "drain"  # move rows from DEFAULT to new partitions
    CLEAR = "clear"  # remove what an interrupted drain has left
    FINALIZE = "finalize"  # end an interrupted DETACH ... CONCURRENTLY
    DETACH = "detach"  # detach and move to the quarantine schema
    QUARANTINE = "quarantine"  # move a partition that was detached before an interruption to the quarantine schema
    REATTACH = "reattach"  # attach again from the quarantine schema
    DROP = "drop"


@dataclass(frozen=True, kw_only=True)
class Lock:
    """A lock that a statement takes.

    :param mode: PostgreSQL's name of the lock mode, such as ``ACCESS EXCLUSIVE``.
    :param blocks: which statements wait while the lock is held.
    """

    mode: str
    relation: str
    blocks: str


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One statement exactly as it will be sent, and the locks it takes."""

    sql: str
    locks: tuple[Lock, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A new partition of a step that makes several at once; without bounds it is the new DEFAULT."""

    relation_name: str
    lower: str | None
    upper: str | None


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step, done whole or not at all, and safe to repeat.

    :param schema_name: schema of the partition, or of the new partition.
    :param oid: OID of an existing partition, by which an apply finds it.
    :param lower: lower bound as SQL text; none for MINVALUE.
    :param upper: upper bound as SQL text; none for MAXVALUE.
    :param statements: exact SQL, in order; statements of one transaction stand between BEGIN and COMMIT.
    :param rows: the planner's estimate; none without statistics.
    :param pieces: new partitions of a drain, or of a bound that moves.
    :param retired_id: number of the retired partition's record.
    :param quarantine_schema: schema from which a partition is attached again.
    :param renames: names of the partition and its indexes that exist in the quarantine already, with their new names.
    """

    kind: StepKind
    schema_name: str
    relation_name: str
    oid: int | None
    lower: str | None
    upper: str | None
    statements: tuple[Statement, ...] = ()
    rows: int | None = None
    bytes: int
    reason: str
    pieces: tuple[Piece, ...] = ()
    retired_id: int | None = None
    quarantine_schema: str | None = None
    renames: tuple[tuple[str, str], ...] = ()

    @property
    def partition(self) -> str:
        """Name of the partition for people."""
        return f"{self.schema_name}.{self.relation_name}"


@dataclass(frozen=True, kw_only=True)
class HeldPartition:
    """A partition that stays although its retention is over.

    :param consumer: whether only a consumer holds it, so that an override would retire it.
    """

    partition: str
    oid: int
    lower: str | None
    upper: str | None
    rows: int | None
    bytes: int
    reason: str
    consumer: bool


@dataclass(frozen=True, kw_only=True)
class PartitionPlan:
    """What would be done with one table for one purpose; nothing was written.

    :param table: ``schema.name``.
    :param limit: for a retirement: keys below the limit are beyond their retention; none for no limit.
    :param lowest_needed: for a retirement: lowest key that a consumer still needs; none when no consumer waits.
    :param overrides_consumers: for a retirement: whether it retires partitions that a consumer still needs.
    :param blockers: sessions that the plan would have to wait for now.
    """

    purpose: Purpose
    table: str
    table_oid: int
    policy: PartitionPolicy
    as_of_ms: int
    steps: tuple[PlannedStep, ...]
    held: tuple[HeldPartition, ...] = ()
    findings: tuple[Finding, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    limit: str | None = None
    lowest_needed: str | None = None
    overrides_consumers: bool = False
    worked_out: ClassVar[tuple[str, ...]] = ("bytes", "empty")

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.steps

    @property
    def passes_consumers(self) -> bool:
        """Whether it retires partitions that a consumer still needs, which a person has to approve."""
        return self.overrides_consumers and bool(self.steps)

    @property
    def bytes(self) -> int:
        """Bytes of all partitions that the plan changes."""
        return sum(each.bytes for each in self.steps)


class StepState(StrEnum):
    """State of a step."""

    DONE = "done"
    ALREADY = "already"  # it was done by an earlier apply
    PAUSED = "paused"  # the run is paused; apply again
    BLOCKED = "blocked"  # others held a lock until the deadline; apply again
    STALE = "stale"  # the table has changed since the plan; make a new plan
    FAILED = "failed"  # the server refused


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """Outcome of one step.

    :param attempts: tries, each of which waited for locks no longer than the policy allows.
    :param waited_s: seconds spent in tries that did not get their lock, and between tries.
    :param words: why the step was not done; empty when it was.
    :param blockers: sessions that held the lock at the last try.
    :param rows: rows that a drain moved, or that were counted at a retirement.
    """

    kind: StepKind
    partition: str
    state: StepState
    attempts: int = 0
    waited_s: float = 0.0
    seconds: float = 0.0
    words: str = ""
    blockers: tuple[Blocker, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, kw_only=True)
class ApplyReport:
    """What an apply did, step by step, including steps that were not done."""

    purpose: Purpose
    table: str
    outcomes: tuple[StepOutcome, ...]
    seconds: float
    worked_out: ClassVar[tuple[str, ...]] = ("done",)

    @property
    def done(self) -> bool:
        """Whether every step is done."""
        return all(each.state in {StepState.DONE, StepState.ALREADY} for each in self.outcomes)

    @property
    def paused(self) -> bool:
        """Whether a step was not done because the run is paused."""
        return any(each.state is StepState.PAUSED for each in self.outcomes)

    @property
    def stale(self) -> bool:
        """Whether a step no longer fits the table, so that a new plan is due."""
        return any(each.state is StepState.STALE for each in self.outcomes)


class RetiredState(StrEnum):
    """State of a retired partition."""

    DETACHING = "detaching"  # being detached; after an interruption the next retirement continues here
    QUARANTINED = "quarantined"
    REATTACHED = "reattached"
    DROPPED = "dropped"
    RESTORING = "restoring"  # recreated empty, to be loaded from its archive


@dataclass(frozen=True, kw_only=True)
class RetiredPartition:
    """Record of a retired partition.

    :param table: table that it was a partition of, ``schema.name``.
    :param schema_name: schema in which it was, and to which it returns.
    :param partition_name: name of the partition; in quarantine it has another one where that name was taken.
    :param quarantine_schema: schema in which it is while in quarantine.
    :param retired_at: when it came to the quarantine.
    :param lower: lower bound as SQL text; none for MINVALUE. A drained DEFAULT has neither bound.
    :param drained_default: whether it was a DEFAULT partition whose rows were copied to other partitions.
    :param archive: manifest of the verified archive; none before it is archived.
    """

    retired_id: int
    table: str
    table_oid: int
    partition_oid: int
    schema_name: str
    partition_name: str
    quarantine_schema: str
    lower: str | None
    upper: str | None
    drained_default: bool
    state: RetiredState
    bytes: int
    reason: str
    retired_at: datetime
    drop_after: datetime
    archived_at: datetime | None
    archive: dict[str, Any] | None
    ended_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """State of a table: which inserts succeed, for how long, and what is wrong.

    :param covered_until: end of the partitions that cover the present without a gap; none for no end.
    :param inserts_fail_in_s: seconds until new keys have no partition, for integers at the recent rate; none for never
        or unknown.
    :param head_room_s: seconds until new keys leave the partitions made ahead, for DEFAULT, the overflow or none
        at all; none for never or unknown.
    :param interval_s: seconds of a step, or half of the head-room where that is shorter; none when unknown.
    :param keys_per_hour: integer keys used per hour between the last observations; none when unknown.
    :param head_room_met: whether partitions reach as far ahead as the policy asks; less than a step short of it, or
        half of it where that is shorter, counts as met, since maintenance makes the next one when it runs again.
    :param overflow_rows: whether the partition up to MAXVALUE holds rows, since maintenance did not run in time.
    :param pending_detaches: partitions whose detach was interrupted.
    :param quarantined: retired partitions that are not dropped yet.
    :param observed_at_ms: when an apply last succeeded as a whole; none for never.
    """

    table: str
    table_oid: int
    key_kind: str
    key_column: str
    as_of_ms: int
    partitions: int
    bytes: int
    lowest: str | None
    covered_until: str | None
    inserts_fail_in_s: float | None
    head_room_s: float | None
    interval_s: float | None
    keys_per_hour: float | None
    head_room_met: bool
    has_overflow: bool
    overflow_rows: bool
    has_default: bool
    default_rows: bool
    pending_detaches: tuple[str, ...]
    quarantined: int
    quarantined_bytes: int
    observed_at_ms: int | None
    findings: tuple[Finding, ...]

    def with_forms(self, values: Mapping[str, Any], forms_url: str) -> Coverage:
        """Return the coverage with the address of a form in each finding, see :meth:`Finding.with_form`."""
        return replace(self, findings=tuple(each.with_form(values, forms_url=forms_url) for each in self.findings))

    @property
    def healthy(self) -> bool:
        """Whether inserts succeed now and until maintenance is due again."""
        bad = {FindingKind.GAP, FindingKind.SHORT, FindingKind.PENDING_DETACH}
        return not any(each.kind in bad for each in self.findings)


def plan_of(told: Mapping[str, Any]) -> PartitionPlan:
    """Return the plan that somebody has told.

    Findings of an earlier release, which lack fields, are left out; carrying out a plan does not need them.
    """
    findings = [each for each in told["findings"] if "description" in each]
    return TypeAdapter(PartitionPlan).validate_python({**told, "findings": findings})


def report_of(told: Mapping[str, Any]) -> ApplyReport:
    """Return the report that somebody has told."""
    return TypeAdapter(ApplyReport).validate_python(told)
