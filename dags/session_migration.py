"""Move persistent sessions and their pending messages from PostgreSQL to Redis, in order and without loss.

Spark reads the source once and plans; a person approves the plan; Spark copies it cohort by cohort. With the broker
stopped (mode offline) Spark then reads both stores again and compares. With devices connected (mode online) each client
is brought up to date, fenced for milliseconds, compared and moved to Redis, a canary first; every change is mirrored to
PostgreSQL until a person commits. A report shows the ledger. Every step can be repeated. With another source, sessions
move from one layout of Redis to the other in the same way, without Spark.

**Before**, offline: stop TBMQ and everything else that writes to its tables or to Redis. Online: every writer is a
SessionRouter, or the trigger for other writers is installed. Start with a dry run.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server, a missing column, too many bad rows.
  Nothing was written to Redis. Trigger the DAG again.
- **check_approval**: the plan was rejected, not answered in time, or the source changed afterwards. Nothing was
  written to Redis. Check that the broker is stopped, then trigger the DAG again.
- **copy**: it has retried what a retry can solve. Do what the log says (room in Redis, a server that is down), then
  clear the failed copy task with its downstream tasks: the copy continues where it stopped.
- **arm**: a writer that began before has not ended, or the clocks differ: the log names it. Clear the task.
- **catch_up**, **rehearse**, **cut_over**: clients that could not be moved stay where they are. Clear the task: it
  continues with the clients that are left. To move all back, trigger `session_rollback`. *Deferred*: the migration is
  paused.
- **soak**: a client differs, or a server failed over. Trigger `session_rollback`, or solve the problem and clear the
  task: it continues where it was. While it waits it is *deferred*, which needs a triggerer.
- **mirror**: while a person is asked, it writes changes to PostgreSQL once a minute; in between it is *deferred*. It
  ends within a minute of the answer.
- **commit**: nobody approved. Clients stay on Redis, and Redis keeps their changes. Run `queuekeeper online mirror PLAN
  --follow`, then clear `approve_commit` and `mirror` to be asked again, or trigger `session_rollback`.
- **verify**: source and target differ, or rows are unaccounted for. Leave the broker stopped and open the report,
  which lists every difference.
- **report**: clear the task; it only reads.

Step by step, with commands: `docs/runbooks/session_migration.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Pool, Tag, connections, default_args, of_file, spark_jobs, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.airflow.operators.migration import (
    CopySessionsOperator,
    PlanMigrationOperator,
    VerifyMigrationOperator,
)
from queuekeeper.airflow.operators.migration_approval import CheckApprovalOperator, SummarisePlanOperator
from queuekeeper.airflow.operators.online import (
    ArmCohortsOperator,
    CatchUpOperator,
    CommitOperator,
    CutOverOperator,
    MirrorOperator,
    RehearseOperator,
    SoakOperator,
)
from queuekeeper.airflow.operators.report import ReportMigrationOperator
from queuekeeper.jobs.common import Approval, Connections, DryRun, SparkConnection
from queuekeeper.migration.ledger.parameters import CopyGroups, MigrationParameters, OnlineWish

SPARK: dict[str, Any] = {"pool": Pool.SPARK.value, "execution_timeout": timedelta(hours=12)}
ONLINE: dict[str, Any] = {"pool": Pool.REDIS.value, "execution_timeout": timedelta(hours=12)}
SUMMARY = "ti.xcom_pull(task_ids='summarise_plan')"
PLAN_ID = f"{{{{ {SUMMARY}['plan_id'] }}}}"

with DAG(
    **of_file(__file__, __doc__),
    description="Move persistent sessions from PostgreSQL to Redis: plan, approve, copy, verify or cut over, report.",
    schedule=None,
    params=form(DryRun, MigrationParameters, CopyGroups, OnlineWish, Approval, Connections, SparkConnection),
    default_args={**default_args(), **connections("postgres", "redis", "spark"), "spark_jobs": spark_jobs(__file__)},
    tags=tags(Tag.MIGRATION, Tag.POSTGRES, Tag.REDIS, Tag.SPARK),
    **ONE_AT_A_TIME,
):
    plan = PlanMigrationOperator(task_id="plan", **SPARK)
    summarise = SummarisePlanOperator(task_id="summarise_plan", pool=Pool.POSTGRES)
    approve = ApprovePlanOperator(
        task_id="approve",
        subject=f"{{{{ {SUMMARY}['question'] }}}}",
        body=f"{{{{ {SUMMARY}['markdown'] }}}}",
        retry_delay=timedelta(seconds=1),
    )
    check = CheckApprovalOperator(
        task_id="check_approval", plan_id=PLAN_ID, decision=approve.output, pool=Pool.POSTGRES
    )
    arm = ArmCohortsOperator(task_id="arm", plan_id=PLAN_ID, cohorts="{{ params.cohorts }}", pool=Pool.POSTGRES)
    copy = CopySessionsOperator.partial(
        task_id="copy", plan_id=PLAN_ID, map_index_template="cohorts {{ task.cohorts }}", **SPARK
    ).expand(cohorts=check.output)
    verify = VerifyMigrationOperator(task_id="verify", plan_id=PLAN_ID, **SPARK)

    # With devices connected.
    catch_up = CatchUpOperator(task_id="catch_up", plan_id=PLAN_ID, **ONLINE)
    rehearse = RehearseOperator(task_id="rehearse", plan_id=PLAN_ID, **ONLINE)
    cut_over = CutOverOperator(task_id="cut_over", plan_id=PLAN_ID, **ONLINE)
    soak = SoakOperator(task_id="soak", plan_id=PLAN_ID, **ONLINE)
    approve_commit = ApprovePlanOperator(
        task_id="approve_commit",
        subject="End the mirror? After this there is no way back but a new migration.",
        body=f"Plan {PLAN_ID}: clients that can move are on Redis, and each was equal in PostgreSQL after the soak. "
        "Unless the plan leaves them, messages of clients that no cluster can hold go into quarantine. Copies of "
        "a source in Redis are removed.",
        plan_only=False,
        retry_delay=timedelta(seconds=1),
    )
    mirror = MirrorOperator(task_id="mirror", plan_id=PLAN_ID, until=approve_commit.task_id, **ONLINE)
    commit = CommitOperator(task_id="commit", plan_id=PLAN_ID, decision=approve_commit.output, **ONLINE)

    # Both modes meet again here.
    moved = EmptyOperator(task_id="moved", trigger_rule=TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS)
    # The report is needed most when the verification has failed; without an approval there is nothing to report.
    report = ReportMigrationOperator(
        task_id="report", plan_id=PLAN_ID, pool=Pool.POSTGRES, trigger_rule=TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
    )
    # This task decides the run's state: the report must not hide a failed verification.
    migrated = EmptyOperator(task_id="migrated")

    plan >> summarise >> approve >> check >> arm >> copy >> [verify, catch_up]
    catch_up >> rehearse >> cut_over >> soak >> [approve_commit, mirror]
    approve_commit >> commit
    [verify, commit, mirror] >> moved
    [check, moved] >> report
    [moved, report] >> migrated
