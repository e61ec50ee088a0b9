"""Reports the state of a migration: steps, speed, time left, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from queuekeeper.errors import UsageError
from queuekeeper.migration.ledger.ledger import MigrationLedger, Step
from queuekeeper.migration.ledger.model import STEP_NOUNS, CohortState, Difference, PlanState
from queuekeeper.migration.ledger.throughput import RECENT_MS, Span, ThroughputSample, spans
from queuekeeper.postgres import Connection, records, translated_errors
from queuekeeper.report.figures import duration
from queuekeeper.sql_statements import statement
from queuekeeper.wording import no_such

_QUERIES = "queuekeeper/queries/"

SILENT_MS = 30_000
"""Silence after which a step counts as held up; a step at work reports every second."""

_FINAL = (PlanState.REFUSED, PlanState.VERIFIED, PlanState.FAILED)


@dataclass(frozen=True, kw_only=True)
class StepStatus:
    """How far a step has come.

    :param total: messages to do in the chosen cohorts.
    :param messages_per_s: speed of the last minute; none when nothing moved.
    :param left_low_s: seconds left at the speed of the faster half of the last minute; none when nothing moved.
    :param left_high_s: seconds left at the speed of its slower half.
    :param silent_s: seconds since a part last reported; none before the first report.
    """

    step: Step
    done: int
    total: int
    messages_per_s: float | None
    left_low_s: float | None
    left_high_s: float | None
    silent_s: float | None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.done >= self.total

    def left_words(self) -> str:
        """Return the time left in words; a span where the speed is uneven."""
        if self.is_done:
            return "done"
        if self.left_low_s is None or self.left_high_s is None:
            return "not begun" if self.silent_s is None else "time left: known once it moves"
        low, high = duration(self.left_low_s), duration(self.left_high_s)
        return f"{low} left" if low == high else f"{low} to {high} left"


@dataclass(frozen=True, kw_only=True)
class MigrationStatus:
    """State of a migration.

    :param run_id: Airflow run, or call of the command line, that last asked for the plan.
    :param chosen: cohorts to copy.
    :param cohorts: state of every cohort of the plan.
    :param held_back: what determines the speed; empty when nothing is at work.
    """

    plan_id: str
    state: PlanState
    state_reason: str
    throttle_messages_per_s: int | None
    approved_by: str | None
    approved_at: datetime | None
    planned_at: datetime
    run_id: str | None
    chosen: tuple[int, ...]
    cohorts: Mapping[int, CohortState]
    copy: StepStatus
    verify: StepStatus
    held_back: str
    as_of_ms: int

    @property
    def is_final(self) -> bool:
        """Whether nothing changes any more unless somebody starts a new step."""
        return self.state in _FINAL

    def counts(self) -> dict[str, int]:
        """Return how many of the chosen cohorts are in each state."""
        found = dict.fromkeys((str(state) for state in CohortState), 0)
        for cohort in self.chosen:
            found[str(self.cohorts.get(cohort, CohortState.PLANNED))] += 1
        return found


@dataclass(frozen=True, kw_only=True)
class PlanLine:
    """A plan in a list."""

    plan_id: str
    state: str
    planned_at: datetime
    approved_by: str | None
    chosen: int
    verified: int
    to_copy: int
    copied: int


@dataclass(frozen=True, kw_only=True)
class TroubledCohort:
    """A cohort that failed, differs, or has rows unaccounted for."""

    cohort: int
    state: str
    unaccounted: int
    differences: int


def migration_status(connection: Connection, plan_id: str, *, now_ms: int) -> MigrationStatus:
    """Return the state of a migration.

    :param connection: a connection with ``autocommit``.
    :raises UsageError: when there is no such plan; names those that exist.
    """
    ledger = MigrationLedger(connection)
    with translated_errors(connection):
        row = connection.execute(statement(f"{_QUERIES}migration_status"), {"plan_id": plan_id}).fetchone()
    if row is None:
        newest = [line.plan_id for line in list_plans(connection, limit=5)]
        raise UsageError(no_such(ledger.noun, plan_id, newest=newest, makes=ledger.made_by))
    (state, reason, throttle, paused, approved_by, approved_at, planned_at, run_id, chosen, to_copy, judged) = row
    # A verification counts the same messages as the copy: those that must be in Redis.
    copy = _step(connection, ledger, plan_id, "copy", total=to_copy, now_ms=now_ms)
    # A verification of some cohorts begins its progress anew, and those judged before stay judged.
    verify = _step(connection, ledger, plan_id, "verify", total=to_copy, least=judged, now_ms=now_ms)
    plan_state = PlanState(state)
    return MigrationStatus(
        plan_id=plan_id,
        state=plan_state,
        state_reason=reason,
        throttle_messages_per_s=throttle,
        approved_by=approved_by,
        approved_at=approved_at,
        planned_at=planned_at,
        run_id=run_id,
        chosen=tuple(chosen),
        cohorts=ledger.cohort_states(plan_id),
        copy=copy,
        verify=verify,
        held_back=hold_words(plan_state, copy=copy, verify=verify, throttle=throttle, paused=paused),
        as_of_ms=now_ms,
    )


def _step(
    connection: Connection,
    ledger: MigrationLedger,
    plan_id: str,
    step: Step,
    *,
    total: int,
    now_ms: int,
    least: int = 0,
) -> StepStatus:
    progress = ledger.progress(plan_id, step)
    wanted = {"plan_id": plan_id, "step": step, "since_ms": now_ms - RECENT_MS}
    samples = records(connection, ThroughputSample, f"{_QUERIES}throughput", wanted)
    rate, low, high = speeds(samples)
    done = min(max(progress.done, least), total)
    return StepStatus(
        step=step,
        done=done,
        total=total,
        messages_per_s=rate,
        left_low_s=(total - done) / high if high else None,
        left_high_s=(total - done) / low if low else None,
        silent_s=None if progress.updated_at_ms is None else max(0, now_ms - progress.updated_at_ms) / 1_000,
    )


def speeds(samples: Sequence[ThroughputSample]) -> tuple[float | None, float | None, float | None]:
    """Return messages per second over all samples, and in the slower and the faster half of them.

    Pauses do not count.
    """

    def speed(part: Sequence[Span]) -> float | None:
        worked_ms = sum(span.worked_ms for span in part)
        return sum(span.messages for span in part) * 1_000 / worked_ms if worked_ms else None

    work = spans(samples)
    overall = speed(work)
    if overall is None:
        return None, None, None
    middle = len(work) // 2 + 1
    halves = [each for each in (speed(work[:middle]), speed(work[middle:]), overall) if each]
    return overall, min(halves), max(halves)


def hold_words(
    state: PlanState, *, copy: StepStatus, verify: StepStatus, throttle: int | None, paused: bool = False
) -> str:
    """Return in words what determines the speed."""
    if state in _FINAL:
        return ""
    if state is PlanState.PLANNED:
        return "It waits for somebody to approve the plan."
    if state is PlanState.REJECTED:
        return "Nobody approved the plan when asked: plan again, or copy it by queuekeeper migrate copy."
    step = verify if copy.is_done and (copy.total or verify.done) else copy
    if paused and step is copy:
        return "Paused by a person: queuekeeper run resume lets it go on."
    noun = STEP_NOUNS[step.step]
    if step.silent_s is None:
        return f"The {noun} has not begun: Spark starts, or its task waits for a free slot."
    if step.is_done:
        return ""
    if step.silent_s * 1_000 > SILENT_MS:
        return (
            f"No word from the {noun} for {duration(step.silent_s)}: it waits for a server, is tried again, or "
            "has ended. Look at the run's tasks."
        )
    if step is copy and throttle is not None and step.messages_per_s and step.messages_per_s >= 0.8 * throttle:
        return f"Held to {throttle:,} messages/s by the throttle of the plan."
    return "As fast as the servers allow."


def list_plans(connection: Connection, *, limit: int = 50) -> list[PlanLine]:
    """Return the latest plans, latest first."""
    return records(connection, PlanLine, f"{_QUERIES}plan_lines", {"maximum": limit})


def cohorts_to_look_at(connection: Connection, plan_id: str, *, limit: int = 100) -> list[TroubledCohort]:
    """Return the cohorts that failed, differ or have rows unaccounted for, the worst first."""
    wanted = {"plan_id": plan_id, "maximum": limit}
    return records(connection, TroubledCohort, f"{_QUERIES}cohorts_to_look_at", wanted)


def cohort_differences(connection: Connection, plan_id: str, cohort: int, *, limit: int = 10_000) -> list[Difference]:
    """Return the recorded differences of one cohort, client by client and in the order of its messages."""
    wanted = {"plan_id": plan_id, "cohort": cohort, "maximum": limit}
    return records(connection, partial(Difference, cohort=cohort), f"{_QUERIES}cohort_differences", wanted)
