"""Make a migration plan: ``spark-submit spark_jobs/plan_migration.py --run-id nightly --cohorts all``."""

from __future__ import annotations

import sys

from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import MigrationParameters, PlanRequest
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.spark.job import Environment, run


def _plan(environment: Environment, request: PlanRequest, parameters: MigrationParameters) -> MigrationPlan:
    return plan_migration(
        environment.spark("queuekeeper plan_migration"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        parameters=parameters,
        run_id=request.run_id or None,
    )


if __name__ == "__main__":
    sys.exit(run(__doc__, _plan, PlanRequest, MigrationParameters))
