"""Make a migration plan: ``spark-submit spark_jobs/plan_migration.py --run-id nightly --cohorts all``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from queuekeeper.migration.ledger.model import MigrationParameters, PlanRequest
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.spark.job import Environment, run


def _plan(environment: Environment, request: PlanRequest, parameters: MigrationParameters) -> dict[str, Any]:
    plan = plan_migration(
        environment.spark("queuekeeper plan_migration"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        parameters=parameters,
        run_id=request.run_id,
    )
    report = asdict(plan)
    # The counts of each cohort are on record; a log line need not repeat them.
    del report["cohorts"]
    names = ("sessions", "clients", "messages", "to_copy", "expired", "trimmed", "quarantined", "forecast_bytes")
    return report | {name: plan.total(name) for name in names}


if __name__ == "__main__":
    sys.exit(run(__doc__, _plan, PlanRequest, MigrationParameters))
