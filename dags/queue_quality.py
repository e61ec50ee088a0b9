"""Find every way in which a queue can be wrong, say what mends it, and let dependents wait while messages are lost.

Spark reads the stores by scripts that answer numbers only; Great Expectations judges the numbers; a report shows what
was found, with a link to the DAG that mends it. Nothing is written to a store, and no payload is read out of one. The
event broker and partitioned tables are asked about themselves, without Spark.

The asset `queuekeeper_session_quality` is updated when nothing critical (P0) stands: a DAG that is scheduled on it
waits for that. Lesser findings (P1 to P3) are warnings in log, result and report. The schedule reads a turn of the
cohorts every quarter of an hour, all of them in a day; switch it on by unpausing the DAG.

### If it fails

- **profile_redis**, **profile_postgres**: the log's last line says what to mend: a parameter, a suite, a server, or the
  ACL rule that the user lacks. Nothing was written to the store. Clear the task.
- **check**: a suite was changed meanwhile, or a profile is not complete; the log names it. Clear the task.
- **report**: the folder cannot be written to. Make room or set `QUEUEKEEPER_REPORTS_DIR`, then clear the task.
- **publish**: something critical was found. Open the report of the run: each finding leads to the DAG that mends it,
  with its form filled in. Mend it, then run `queue_quality` again with suite full. Somebody who answers for a finding
  until a day can say so: `queuekeeper quality known add`.

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
    description="Profile the queues, check them, report what is wrong and what mends it, block dependents if it must.",
    schedule="*/15 * * * *",
    params=form(QualityWish, ProfileRules, Connections, SparkConnection),
    default_args={**default_args(), **connections("postgres", "redis", "spark"), "spark_jobs": spark_jobs(__file__)},
    tags=tags(Tag.QUALITY, Tag.POSTGRES, Tag.REDIS, Tag.SPARK),
    **ON_SCHEDULE,
):
    profile_redis = ProfileQueuesOperator(task_id="profile_redis", store="redis", **SPARK)
    profile_postgres = ProfileQueuesOperator(task_id="profile_postgres", store="postgres", **SPARK)
    # A store that the run is not about is skipped; for events and partitions that is both of them.
    check = RunQualityOperator(
        task_id="check",
        profiles=[profile_redis.output, profile_postgres.output],
        pool=Pool.POSTGRES,
        trigger_rule=TriggerRule.NONE_FAILED,
    )
    report = ReportQualityOperator(
        task_id="report", quality_run_id="{{ ti.xcom_pull(task_ids='check')['quality_run_id'] }}", pool=Pool.POSTGRES
    )
    # People need the report most when something is wrong, so the verdict comes last.
    publish = PublishQualityOperator(task_id="publish", judgement=check.output, pool=Pool.POSTGRES)

    check >> report >> publish
