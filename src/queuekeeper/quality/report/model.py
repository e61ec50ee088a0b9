"""Contents of a quality report, as frozen records that serialise to JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuekeeper.jobs.findings import Finding, Status
from queuekeeper.quality.judge.incidents import Incident
from queuekeeper.quality.judge.store import DepthBucket, FaultyQueue, Verdict
from queuekeeper.report.files import Report
from queuekeeper.report.servers import ServerMemory

FORMAT = 2
"""Version of the JSON file's format; it grows when a field changes its meaning or is removed."""


@dataclass(frozen=True, kw_only=True)
class ProfileLine:
    """One reading of a store.

    :param target: address and prefix of keys.
    :param cohorts: number of cohorts that were read.
    :param sample_percent: percent of their hash slots that were read.
    :param queues: ``None`` if the profile is not complete.
    :param is_forgotten: whether the rows of its queues have been dropped.
    """

    profile_id: str
    store: str
    target: str
    mode: str
    contents: bool
    cohorts: int
    cohort_count: int
    sample_percent: int
    session_limit: int
    default_ttl_s: int
    max_payload_bytes: int
    as_of_ms: int
    queues: int | None
    messages: int | None
    is_forgotten: bool


@dataclass(frozen=True, kw_only=True)
class KnownIssueLine:
    """A failure that has an owner until a day.

    :param client_hash: the one queue that the issue covers; ``None`` covers all.
    :param place: servers and prefix of keys that the issue covers; ``None`` covers all.
    :param overdue: whether the day has passed, so that the issue excuses nothing any more.
    """

    check_id: str
    client_hash: str | None
    place: str | None
    owner: str
    reason: str
    ends_on: str
    overdue: bool


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A check of the catalogue that did not run, and why."""

    check_id: str
    title: str
    priority: str
    why: str


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One check in one run.

    :param state: passed, known, broken, not run, or the severity of the failure.
    :param unexpected: queues that broke it.
    """

    state: str
    unexpected: int


@dataclass(frozen=True, kw_only=True)
class HeatRun:
    """One column of the heat map."""

    quality_run_id: str
    at_ms: int
    mode: str
    verdict: str


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    """One check over the runs."""

    check_id: str
    title: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """Result of each check in each run, oldest run first."""

    runs: tuple[HeatRun, ...]
    rows: tuple[HeatRow, ...]


@dataclass(frozen=True, kw_only=True)
class QueueLine(FaultyQueue):
    """A queue with many faults, in a store."""

    store: str


@dataclass(frozen=True, kw_only=True)
class Depths:
    """Lengths of the queues of one store, counted in live messages."""

    store: str
    buckets: tuple[DepthBucket, ...]


@dataclass(frozen=True, kw_only=True)
class ExpiryPoint:
    """A span of the timeline.

    :param held_bytes: bytes stored at its end without cleanup.
    :param held_after_cleanup_bytes: bytes stored at its end with cleanup.
    """

    at_ms: int
    messages: int
    payload_bytes: int
    held_bytes: int
    held_after_cleanup_bytes: int


@dataclass(frozen=True, kw_only=True)
class ExpiryTimeline:
    """When the messages of one store expire.

    :param span_ms: length of a point's span.
    :param overdue_messages: messages that had expired before the reading and are still stored.
    :param endless_messages: messages that never expire.
    :param later_messages: messages that expire after the last point.
    :param held_bytes: bytes stored at the start, with references.
    """

    store: str
    span_ms: int
    points: tuple[ExpiryPoint, ...]
    overdue_messages: int
    overdue_bytes: int
    endless_messages: int
    endless_bytes: int
    later_messages: int
    later_bytes: int
    held_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryPoint:
    """Memory in use over all servers, as a run measured it."""

    at_ms: int
    used_bytes: int


@dataclass(frozen=True, kw_only=True)
class MemoryForecast:
    """Forecast of the use of memory.

    :param limit_bytes: sum of the servers' limits; ``None`` if a server has no limit.
    :param measured: measurements of earlier runs and of this run, oldest first.
    :param bytes_per_day: slope; ``None`` if there are too few measurements.
    :param low_per_day: lower end of its 95 % interval.
    :param high_per_day: upper end of its 95 % interval.
    :param full_in_days: days until the limit is reached; ``None`` if it is not reached within the horizon.
    :param remark: reason why there is no forecast, else empty.
    """

    servers: tuple[ServerMemory, ...]
    limit_bytes: int | None
    measured: tuple[MemoryPoint, ...]
    bytes_per_day: float | None
    low_per_day: float | None
    high_per_day: float | None
    horizon_days: float
    full_in_days: float | None
    remark: str


@dataclass(frozen=True, kw_only=True)
class QuarantineCount:
    """Rows in quarantine, by reason and origin.

    :param origin: part of Queuekeeper that put them there.
    """

    origin: str
    reason: str
    open: int
    replayed: int
    oldest_ms: int | None


@dataclass(frozen=True, kw_only=True)
class CohortLine:
    """Sums of one cohort."""

    store: str
    cohort: int
    queues: int
    messages: int
    dead: int
    payload_bytes: int
    faulty_queues: int


@dataclass(frozen=True, kw_only=True)
class PublishedReport(Report):
    """Everything that the report says; the HTML page shows nothing else.

    :param explanation: the verdict in a sentence or two, with what to do next.
    :param results: every expectation, worst first.
    :param known_issues: all known issues, with those that have ended.
    :param incidents: all incidents that have not closed, of any run, the one seen last first.
    :param closed_by_hand: the incidents that were last closed for a reason, by persons or with their check, the latest
        first.
    """

    quality_run_id: str
    verdict: Verdict
    explanation: str
    mode: str
    suites: tuple[str, ...]
    started_at_ms: int
    finished_at_ms: int | None
    profiles: tuple[ProfileLine, ...]
    queues: int
    messages: int
    faulty_queues: int
    results: tuple[Finding, ...]
    not_run: tuple[NotRun, ...]
    known_issues: tuple[KnownIssueLine, ...]
    incidents: tuple[Incident, ...]
    closed_by_hand: tuple[Incident, ...]
    heat: HeatMap
    worst_queues: tuple[QueueLine, ...]
    depths: tuple[Depths, ...]
    expiry: tuple[ExpiryTimeline, ...]
    memory: MemoryForecast
    quarantine: tuple[QuarantineCount, ...]
    cohorts: tuple[CohortLine, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all queues were read, not one turn of them, chosen cohorts or a sample."""
        whole = all(each.cohorts == each.cohort_count and each.sample_percent == 100 for each in self.profiles)
        return self.mode == "full" and whole

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings that did not pass and have no owner, worst first."""
        return tuple(line for line in self.results if line.status in (Status.FAILED, Status.BROKEN))

    @property
    def excused(self) -> tuple[Finding, ...]:
        """Findings that did not pass and have an owner."""
        return tuple(line for line in self.results if line.status is Status.KNOWN)

    def summary(self) -> dict[str, Any]:
        """Return the verdict."""
        return {
            "quality_run_id": self.quality_run_id,
            "verdict": self.verdict.value,
            "explanation": self.explanation,
        }

    def known_of(self, finding: Finding) -> tuple[KnownIssueLine, ...]:
        """Return the known issues that cover a finding."""
        return tuple(
            each
            for each in self.known_issues
            if each.check_id == finding.check_id and each.place in {None, finding.place} and not each.overdue
        )
