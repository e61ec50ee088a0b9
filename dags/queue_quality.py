"""Find faults in queues, report how to repair them, and let dependent DAGs wait while messages are lost.

Spark reads the stores by scripts that return only numbers; Great Expectations judges the numbers; a report shows the
findings, each with a link to the DAG that repairs it. Nothing is written to a store, and no payload leaves it. The
event broker and partitioned tables are read directly, without Spark.

The asset `queuekeeper_session_quality` is updated when there is no critical finding (P0): a DAG that is scheduled on it
waits for that. Lesser findings (P1 to P3) are warnings in log, result and report. By its schedule the DAG
reads a 96th of the cohorts every quarter of an hour, and so all of them in a day; unpause it to switch the schedule on.

### If it fails

- **profile_redis**, **profile_postgres**: the log's last line says what to correct: a parameter, a suite, a server, or
  the ACL rule that the user lacks. Nothing was written to the store. Clear the task.
- **check**: a suite was changed meanwhile, or a profile is not complete; the log names it. Clear the task.
- **report**: the folder cannot be written to. Make room or set `QUEUEKEEPER_REPORTS_DIR`, then clear the task.
- **publish**: there is a critical finding. Open the report of the run: each finding links to the DAG that repairs it,
  with its form filled in. Repair it, then run `queue_quality` again with suite full. To accept a finding for a
  time, give it an owner: `queuekeeper quality known add`.

Step by step, with commands: `docs/runbooks/queue_quality.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ON_SCHEDULE, Pool, Tag, connections, default_args, of_file, spark_jobs, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.quality import (
    ProfileQueuesOperator,
    PublishQualityOperator,
    ReportQualityOperator,
    RunQualityOperator,
)
from queuekeeper.jobs.common import Connections, SparkConnection
from queuekeeper.quality.profile.model import ProfileRules, QualityWish

SPARK: dict[str, Any] = {"pool": Pool.SPARK.value, "execution_timeout": timedelta(hours=6)}

with DAG(
    **of_file(__file__, __doc__),
    description="Profile queues, check them, report faults and remedies; stop dependents after a critical finding.",
    schedule="*/15 * * * *",
    params=form(QualityWish, ProfileRules, Connections, SparkConnection),
    default_args={**default_args(), **connections("postgres", "redis", "spark"), "spark_jobs": spark_jobs(__file__)},
    tags=tags(Tag.QUALITY, Tag.POSTGRES, Tag.REDIS, Tag.SPARK),
    **ON_SCHEDULE,
):
    profile_redis = ProfileQueuesOperator(task_id="profile_redis", store="redis", **SPARK)
    profile_postgres = ProfileQueuesOperator(task_id="profile_postgres", store="postgres", **SPARK)
    # A store that the run does not judge is skipped; for events and partitions, both are skipped.
    check = RunQualityOperator(
        task_id="check",
        profiles=[profile_redis.output, profile_postgres.output],
        pool=Pool.POSTGRES,
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    report = ReportQualityOperator(
        task_id="report", quality_run_id="{{ ti.xcom_pull(task_ids='check')['quality_run_id'] }}", pool=Pool.POSTGRES
    )
    # The report is needed most when a check has failed, so the verdict comes last.
    publish = PublishQualityOperator(task_id="publish", judgement=check.output, pool=Pool.POSTGRES)

    check >> report >> publish
