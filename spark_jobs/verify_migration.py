"""Compare source and target of a plan: ``spark-submit spark_jobs/verify_migration.py --plan-id 0123456789abcdef``."""

from __future__ import annotations

import sys

from queuekeeper.errors import CheckFailed
from queuekeeper.migration.ledger.model import VerifyReport
from queuekeeper.migration.ledger.parameters import CohortChoice, PlanChoice
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.migration.spark.job import Environment, run


def _verify(environment: Environment, plan: PlanChoice, chosen: CohortChoice) -> VerifyReport:
    report = verify_migration(
        environment.spark("queuekeeper verify_migration"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        plan_id=plan.plan_id,
        cohorts=chosen.cohorts,
    )
    if not report.balanced:
        raise CheckFailed(
            f"source and target differ: {report.wrong}; see the report, or: queuekeeper migrate report {report.plan_id}"
        )
    return report


if __name__ == "__main__":
    sys.exit(run(__doc__, _verify, PlanChoice, CohortChoice))
