"""Copy the sessions of a plan into Redis: ``spark-submit spark_jobs/copy_sessions.py --plan-id 0123456789abcdef``."""

from __future__ import annotations

import sys

from queuekeeper.migration.ledger.model import CopyReport
from queuekeeper.migration.ledger.parameters import CohortChoice, CopyManner, PlanChoice
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.spark.job import Environment, run


def _copy(environment: Environment, plan: PlanChoice, chosen: CohortChoice, manner: CopyManner) -> CopyReport:
    return copy_sessions(
        environment.spark("queuekeeper copy_sessions"),
        postgres_url=environment.postgres_url,
        redis_url=environment.redis_url,
        plan_id=plan.plan_id,
        cohorts=chosen.cohorts,
        manner=manner,
    )


if __name__ == "__main__":
    sys.exit(run(__doc__, _copy, PlanChoice, CohortChoice, CopyManner))
