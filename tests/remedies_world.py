"""Remedies as the engine runs them, for tests: what they plan, do and take back in sessions that are named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from queuekeeper import audit, postgres
from queuekeeper.identity import client_hash
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.jobs.unrecorded import UnrecordedRuns
from queuekeeper.maintenance.remedies.job import SHARE
from queuekeeper.maintenance.remedies.job import RemedyPlan as Plan
from queuekeeper.maintenance.remedies.model import Queue, RemedyParameters, UndoReport
from queuekeeper.redis_client import RedisClient


@dataclass(frozen=True, kw_only=True)
class RemedyPlan:
    """What a remedy would do."""

    remedy: str
    plan: Plan

    @property
    def effects(self) -> dict[str, int]:
        return self.plan.counts.effects

    @property
    def refusals(self) -> dict[str, int]:
        return self.plan.counts.refusals

    @property
    def looked_at(self) -> int:
        return self.plan.counts.queues

    @property
    def is_empty(self) -> bool:
        return self.plan.empty

    @property
    def undo(self) -> str:
        return str(vars(job_of(self.remedy))["way_back"])

    def as_record(self) -> dict[str, Any]:
        return self.plan.facts()


@dataclass(frozen=True, kw_only=True)
class RemedyReport:
    """What a remedy did."""

    queues: int
    done: dict[str, int]
    moved_on: dict[str, int]
    changed: int
    not_planned: int
    refusals: Mapping[str, int]
    undo_file: str


def engine_of(
    client: RedisClient,
    remedy: str,
    queues: Sequence[Queue] | None,
    *,
    source: postgres.Connection | None = None,
    key: bytes = b"",
    **options: Any,
) -> Engine:
    return Engine(
        job=job_of(remedy),
        client=client,
        database=source,
        given=queues,
        name_client=lambda client_id: client_hash(client_id, key=key),
        **options,
    )


def plan_remedy(
    client: RedisClient,
    *,
    remedy: str,
    queues: Sequence[Queue],
    parameters: RemedyParameters,
    source: postgres.Connection | None = None,
) -> RemedyPlan:
    """Have a remedy count what it would change."""
    return RemedyPlan(remedy=remedy, plan=engine_of(client, remedy, queues, source=source).plan(parameters))


def apply_remedy(
    client: RedisClient,
    *,
    plan: RemedyPlan,
    queues: Sequence[Queue],
    undo_directory: Path,
    source: postgres.Connection | None = None,
) -> RemedyReport:
    """Do what a plan says, in a run that nobody else knows of."""
    runs = UnrecordedRuns()
    engine = engine_of(client, plan.remedy, queues, source=source, undo_directory=undo_directory)
    run_id = engine.save(runs, plan.plan).maintenance_run_id
    runs.set_approved(run_id, audit.Answer(action=audit.Action.APPROVE, actor="ada"))
    return _done(engine, runs, run_id)


def record_plan(runs: MaintenanceRuns, plan: RemedyPlan) -> str:
    """Keep a plan and return the id of its run."""
    from queuekeeper.jobs.engine import save_plan

    return save_plan(job_of(plan.remedy), runs, plan.plan).maintenance_run_id


def apply_recorded(
    client: RedisClient,
    *,
    runs: MaintenanceRuns,
    run_id: str,
    queues: Sequence[Queue],
    undo_directory: Path,
    say: Callable[[str], None] = lambda _: None,
) -> RemedyReport:
    """Do what an approved plan says, and report it."""
    engine = engine_of(client, runs.load(run_id).kind, queues, undo_directory=undo_directory, say=say)
    report = _done(engine, runs, run_id)
    engine.report(runs, run_id, dry_run=False)
    return report


def undo_remedy(client: RedisClient, *, remedy: str, path: Path, key: bytes, dry_run: bool = False) -> UndoReport:
    """Take back what an undo file tells."""
    engine = engine_of(client, remedy, None, key=key, undo_file=path)
    found: UndoReport = engine.undo(run_id="", parameters=RemedyParameters(), dry_run=dry_run)
    return found


def _done(engine: Engine, runs: MaintenanceRuns, run_id: str) -> RemedyReport:
    report = engine.apply(runs, run_id, SHARE)
    counts, planned = report.counts, engine.load(runs, run_id).counts
    facts = {name: value for name, value in asdict(counts).items() if name in {"changed", "not_planned", "refusals"}}
    return RemedyReport(
        queues=counts.treated,
        done=counts.effects,
        moved_on=planned.moved_on(counts),
        undo_file=report.undo_file,
        **facts,
    )
