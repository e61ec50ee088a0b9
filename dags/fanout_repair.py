"""Repair fan-out queues in bounded steps, then check them again.

Messages of workers that died are put back in line, and expired messages and old dead letters are removed. Faults are
repaired: messages that no consumer owes an acknowledgement for, acknowledgements owed for messages that are gone, wrong
counts, leases that cannot end. A script judges each message with all its places at once, so current work is never
touched. Healthy queues are not changed, and the report says so. Consumers that were not seen for the time in their
options are removed; the report shows others that may be dead.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server. Nothing was changed. Clear the task.
- **repair**: it has retried what a retry can solve. Do what the log says, then clear the failed task with its
  downstream tasks: it continues where it stopped. Do the same after its time limit.
- **report**: the report counts queues that cannot be repaired; the log of the plan says what is wrong with each.
  Otherwise clear the task: it only reads.

Step by step, with commands: `docs/runbooks/fanout_repair.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ON_SCHEDULE, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import plan_do_report
from queuekeeper.jobs.common import Connections, DryRun
from queuekeeper.maintenance.fanout.model import FanoutRepairParameters

with DAG(
    **of_file(__file__, __doc__),
    description="Repair leases, expired messages and wrong counts in fan-out queues: plan, repair, check again.",
    schedule="5,35 * * * *",
    params=form(DryRun, FanoutRepairParameters, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ON_SCHEDULE,
):
    plan_do_report("fanout_repair", do="repair", done="repaired")
