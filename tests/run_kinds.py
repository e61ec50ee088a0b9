"""A run of each kind on record, for tests of what people can tell one."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from queuekeeper import __version__
from queuekeeper.audit import Action, Answer
from queuekeeper.clock import system_clock
from queuekeeper.events import schema
from queuekeeper.jobs.engine import save_plan
from queuekeeper.jobs.model import AnyJob, Plan, SharePlan
from queuekeeper.jobs.registry import job_of, kind_of, kinds
from queuekeeper.jobs.store import MaintenanceRuns, Runs
from queuekeeper.jobs.undo import UndoFile, undo_path
from queuekeeper.maintenance.partitions.adoption.model import Act
from queuekeeper.maintenance.partitions.model import Purpose
from queuekeeper.maintenance.partitions.runs import kind_name
from queuekeeper.migration.ledger.ledger import MIGRATIONS, MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.postgres import Connection
from tests import report_samples

PARTITIONS = [kind_name(purpose) for purpose in Purpose]
KINDS = [name for name in kinds() if name != "rename_keys"]  # which tests have made known
JOBS = [name for name in KINDS if kind_of(name).report is None]
NEEDED: dict[str, dict[str, Any]] = {"partition_adoption": {"table": "public.readings", "act": Act.COMMIT}}
"""What jobs need that have parameters without a default."""
STEP = {"schema_name": "public", "relation_name": "readings_p1", "reason": "its day is over"}


def parameters_of(job: type[AnyJob]) -> Any:
    """Return parameters of a job: its defaults, and what it needs."""
    return job.Parameters(**NEEDED.get(job.kind, {}))


def planned(connection: Connection, kind: str, folder: Path, *, drains: bool = False, has_work: bool = False) -> str:
    """Return a run of a kind, with an undo file of one share where it has a way back.

    :param has_work: whether the plan of a job has found something to do.
    """
    if kind in MIGRATIONS:
        plan = report_samples.balanced(count=4).plan
        mode = Mode.ONLINE if kind == "online_migration" else Mode.OFFLINE
        plan = replace(plan, parameters=replace(plan.parameters, mode=mode))
        plan = MigrationLedger(connection).save_plan(plan, run_id="run")
        if mode is Mode.ONLINE:
            OnlineCohorts(connection).arm(plan, [0], actor="somebody")
        return plan.plan_id
    runs = MaintenanceRuns(connection)
    if kind in PARTITIONS:
        facts = {
            "purpose": kind.removeprefix("partition_"), "table": "public.readings", "as_of_ms": system_clock(),
            "code_version": __version__, "steps": [STEP | {"kind": "drain" if drains else "detach"}],
        }  # fmt: skip
        return runs.save_plan(kind=kind, parameters={}, plan=facts).maintenance_run_id
    job = job_of(kind)
    if not job.on_redis:
        schema.install(connection)  # the event broker, of which the job reports
    counts = job.Counts()
    if has_work:
        each = {name: {"removed": 1} if isinstance(count, dict) else 1 for name, count in asdict(counts).items()}
        counts = job.Counts(**each)
    found: Any = Plan(
        parameters=parameters_of(job),
        code_version=__version__,
        as_of_ms=system_clock(),
        shares=(SharePlan(share="all", counts=counts),),
        counts=counts,
        found=job.Found(),
        steps=(),
        seconds=0.0,
    )
    run_id = save_plan(job, runs, found).maintenance_run_id
    with UndoFile(undo_path(folder / "undo", run_id=run_id, shard="all"), {"kind": kind, "values": True}):
        return run_id


def rejected(connection: Connection, kind: str, folder: Path) -> str:
    """Return a run of a kind whose plan a person did not agree to."""
    run_id = planned(connection, kind, folder)
    if kind in MIGRATIONS:
        MigrationLedger(connection).set_plan_state(run_id, PlanState.PLANNED)
    Runs(connection).note_answer(run_id, Answer(action=Action.REJECT, actor="ada"))
    return run_id
