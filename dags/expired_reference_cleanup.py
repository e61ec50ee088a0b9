"""Remove expired entries from sessions in Redis, while the broker runs.

References whose message is gone and messages without a reference are removed; messages without expiry and the keys of
idle sessions get an expiry. A first pass counts; a person approves; a task per master cleans; a second look shows what
is left. No live message is touched: the script that removes an entry checks it again first.

**Before**: nothing has to be stopped. Start with a dry run.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server, a right that the Redis user lacks, with the
  command that grants it. Nothing was written to Redis. Trigger the DAG again.
- **check_approval**: the plan was rejected, not answered in time, or is too old. Nothing was written to Redis. Trigger
  the DAG again.
- **apply**: it has retried what a retry can solve. Do what the log says, then clear the failed task with its downstream
  tasks: it continues where it stopped. Do the same after its time limit.
- **report**: clear the task; it only reads.

Step by step, with commands: `docs/runbooks/expired_reference_cleanup.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import plan_do_report
from queuekeeper.jobs.common import Approval, Connections, DryRun, UndoRetention
from queuekeeper.maintenance.cleanup.model import CleanupParameters

with DAG(
    **of_file(__file__, __doc__),
    description="Remove expired entries from sessions in Redis: plan, approve, clean, check again.",
    schedule=None,
    params=form(DryRun, CleanupParameters, UndoRetention, Approval, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ONE_AT_A_TIME,
):
    plan_do_report("expired_reference_cleanup", do="apply", done="cleaned")
