"""What a migration report says, as frozen records that serialise to JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from queuekeeper.migration.ledger.model import CopyReport
from queuekeeper.migration.report.memory import MemoryEstimate
from queuekeeper.report.files import Report
from queuekeeper.report.servers import ServerMemory

FORMAT = 1
"""Version of the JSON file's shape; grows when a field changes its meaning or goes."""


class Verdict(StrEnum):
    """What the report says in one word."""

    BALANCED = "balanced"  # every row of every chosen cohort is accounted for, and nothing differs
    NOT_BALANCED = "not balanced"  # rows are unaccounted for, or source and target differ
    INCOMPLETE = "incomplete"  # what was verified is in order, but chosen cohorts are still to be verified
    NOT_VERIFIED = "not verified"  # no cohort has been verified


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """The plan that was carried out."""

    plan_id: str
    state: str
    state_reason: str
    parameters: dict[str, Any]
    source_fingerprint: str
    code_version: str
    as_of_ms: int
    cohorts: int
    chosen: int
    sessions: int
    clients: int
    messages: int
    payload_bytes: int
    to_copy: int
    expired: int
    trimmed: int
    quarantined: int
    forecast_bytes: int
    longest_queue: int


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    """Where the rows of one cohort, or of all together, went.

    :param unaccounted: rows seen less all their fates; anything but 0 is a failed migration. Of all cohorts together it
        is the sum without signs, so that two errors cannot cancel each other out.
    """

    rows_seen: int
    copied: int
    expired: int
    trimmed: int
    superseded: int
    quarantined: int
    unaccounted: int
    sessions_seen: int
    sessions_copied: int
    differences: int


@dataclass(frozen=True, kw_only=True)
class CohortLine:
    """One cohort: what was planned, and what was found.

    :param chosen: whether it was to be copied.
    :param ledger: none until it is verified.
    """

    cohort: int
    slot_first: int
    slot_last: int
    shard: str
    chosen: bool
    state: str
    sessions: int
    messages: int
    to_copy: int
    payload_bytes: int
    forecast_bytes: int
    longest_queue: int
    ledger: LedgerLine | None
    digest: str | None


@dataclass(frozen=True, kw_only=True)
class DifferenceLine:
    """One difference between source and target; never a payload.

    :param client: first 12 hex digits of the client id's SHA-256, or the id itself when that was asked for.
    """

    cohort: int
    client: str
    serial_number: int | None
    kind: str
    expected: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Where source and target differ.

    :param total: all of them.
    :param by_kind: all of them, most frequent first.
    :param shown: the first ones; table ``queuekeeper.differences`` has them all.
    """

    total: int
    by_kind: dict[str, int]
    shown: tuple[DifferenceLine, ...]


@dataclass(frozen=True, kw_only=True)
class QuarantineLine:
    """Rows that wait for repair, or were repaired, for one reason.

    :param meaning: what is wrong with the rows.
    :param repair: what a person does about it.
    :param command: how the repaired rows are put into Redis.
    """

    reason: str
    kind: str
    open: int
    replayed: int
    meaning: str
    repair: str
    command: str


@dataclass(frozen=True, kw_only=True)
class ThroughputPoint:
    """Speed of a step between two samples.

    :param run: number of the run, from 1; a step that was stopped and resumed has several.
    :param elapsed_s: seconds that the step had been at work, pauses between runs left out.
    """

    run: int
    at_ms: int
    elapsed_s: float
    done: int
    messages_per_s: float


@dataclass(frozen=True, kw_only=True)
class StepThroughput:
    """Speed of a step over time.

    :param messages: messages done between the first and the last sample, over all runs.
    :param seconds: time between the first and the last sample of each run, added up.
    """

    step: str
    runs: int
    first_ms: int
    last_ms: int
    messages: int
    seconds: float
    messages_per_s: float
    peak_messages_per_s: float
    points: tuple[ThroughputPoint, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """Memory as forecast, and as measured.

    :param estimate: none when it could not be measured.
    :param error_ratio: measured over forecast, less 1.
    :param remark: why there is no measurement, else empty.
    """

    forecast_bytes: int
    estimate: MemoryEstimate | None
    error_ratio: float | None
    servers: tuple[ServerMemory, ...]
    remark: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, and when."""

    at_ms: int
    what: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class ApprovalFacts:
    """Who agreed to the plan, and when."""

    approved_by: str
    approved_at_ms: int


@dataclass(frozen=True, kw_only=True)
class MigrationReport(Report):
    """Everything that the report says; the HTML page shows nothing else.

    :param explanation: the verdict in a sentence.
    :param digest: order-free hash over the verified cohorts' digests; none before a verification.
    :param cohorts_missing: chosen cohorts that are not verified as they now stand.
    """

    verdict: Verdict
    explanation: str
    plan: PlanFacts
    approval: ApprovalFacts | None
    verified_at_ms: int | None
    totals: LedgerLine
    digest: str | None
    cohorts_missing: tuple[int, ...]
    cohorts: tuple[CohortLine, ...]
    differences: Differences
    quarantine: tuple[QuarantineLine, ...]
    throughput: tuple[StepThroughput, ...]
    memory: MemoryFacts
    copy_reports: tuple[CopyReport, ...]
    timeline: tuple[Event, ...]

    def summary(self) -> dict[str, Any]:
        """Return verdict and totals."""
        totals = asdict(self.totals)
        return {
            "plan_id": self.plan.plan_id,
            "verdict": self.verdict.value,
            "explanation": self.explanation,
            "totals": totals,
        }
