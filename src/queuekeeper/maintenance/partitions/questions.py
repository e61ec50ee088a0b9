"""Keeps what a person is asked about a table's partitions: the plan as it was shown, under an id that is its hash."""

from __future__ import annotations

import json

from queuekeeper import __version__
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.partitions.model import PartitionPlan, Purpose, to_json


def kind_of(purpose: Purpose) -> str:
    """Return the kind under which questions of a purpose are kept."""
    return f"partition_{purpose.value}"


def save_question(runs: MaintenanceRuns, *, plan: PartitionPlan, dag_run_id: str) -> str:
    """Keep a plan that a person is asked about, and return the id of the question: another plan has another one.

    :param dag_run_id: run that asks.
    """
    run = runs.save_plan(
        kind=kind_of(plan.purpose),
        parameters={"table": plan.table, "dag_run_id": dag_run_id, "code_version": __version__},
        plan=json.loads(to_json(plan)),
    )
    return run.maintenance_run_id
