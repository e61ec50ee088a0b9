"""Return clients from Redis to PostgreSQL, with all that Redis holds of them, while devices are connected.

The mirror is brought up to date; a person approves; then each client is fenced for milliseconds, its messages in Redis
are written to PostgreSQL and compared while its writers wait, and PostgreSQL owns the client again.

**Before**: the migration has cut over and was not committed; `queuekeeper online status PLAN` says so.

### If it fails

- **look**: no client on Redis could be returned, or the migration was committed. Nothing was changed.
- **roll_back**: nobody approved, and nothing was changed; or clients could not be moved. These stay on Redis,
  which keeps their changes: do what the log says, then clear the task, and it continues with the clients that are left.
  *Deferred*: the mirror is too far behind, and the log says by how much; or the migration is paused.

Step by step, with commands: `docs/runbooks/session_rollback.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.airflow.operators.online import LookAtCohortsOperator, RollBackOperator
from queuekeeper.jobs.common import Approval, Connections, DryRun
from queuekeeper.migration.ledger.parameters import PlanChoice, RollbackWish

ONLINE: dict[str, Any] = {"pool": Pool.REDIS.value, "execution_timeout": timedelta(hours=12)}
STEP = {"plan_id": "{{ params.plan_id }}", "cohorts": "{{ params.cohorts }}"}
LOOK = "ti.xcom_pull(task_ids='look')"

with DAG(
    **of_file(__file__, __doc__),
    description="Return clients from Redis to PostgreSQL: look, approve, roll back.",
    schedule=None,
    params=form(PlanChoice, RollbackWish, DryRun, Approval, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MIGRATION, Tag.POSTGRES, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    look = LookAtCohortsOperator(task_id="look", **STEP, **ONLINE)
    approve = ApprovePlanOperator(
        task_id="approve",
        subject=f"{{{{ {LOOK}['question'] }}}}",
        body=f"{{{{ {LOOK}['markdown'] }}}}",
        store="either store",
        retry_delay=timedelta(seconds=1),
    )
    roll_back = RollBackOperator(
        task_id="roll_back",
        decision=approve.output,
        mirror_wait_minutes="{{ params.mirror_wait_minutes }}",
        **STEP,
        **ONLINE,
    )

    look >> approve >> roll_back
