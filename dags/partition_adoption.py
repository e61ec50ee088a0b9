"""Turn a plain table into a partitioned one while programs write to it; return to the old table, or commit.

*Act* says what a run does. To **adopt** copies the table into partitions behind a trigger that notes changes, compares
both until the end, and exchanges them under a lock of at most a second. The old table stays. To go **back** returns to
it with all changes made since, also from an adoption that is not finished. To **commit** drops it.

**Before**: start with a dry run. It shows every statement with its lock, and refuses a table that cannot be adopted.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a right, what the table has that a partitioned one
  cannot have. Nothing was written. Trigger the DAG again.
- **check_approval**: the plan was rejected, not answered in time, or is too old. Nothing was written. Trigger the DAG
  again.
- **work**: the table that programs use is as it was. Do what the log says, then clear the task: it continues where it
  stopped. Do the same after its time limit. To give up, trigger the DAG with the act *back*.
- **report**: clear the task; it only reads.

Step by step, with commands: `docs/runbooks/partition_adoption.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ONE_AT_A_TIME, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import plan_do_report
from queuekeeper.jobs.common import Approval, DryRun, PostgresConnection
from queuekeeper.maintenance.partitions.adoption.model import AdoptionParameters

with DAG(
    **of_file(__file__, __doc__),
    description="Turn a plain table into a partitioned one while programs write to it.",
    schedule=None,
    params=form(DryRun, AdoptionParameters, Approval, PostgresConnection),
    default_args={**default_args(), **connections("postgres")},
    tags=tags(Tag.MAINTENANCE, Tag.POSTGRES),
    **ONE_AT_A_TIME,
):
    plan_do_report("partition_adoption", do="work", done="acted")
