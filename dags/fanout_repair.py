"""Repair fan-out queues: what ran out, drifted or was left is set right in bounded steps, then a second look.

Leases of workers that died go back in line, expired messages and old dead letters go, and what does not fit together
is mended: messages that nobody owes an acknowledgement for, acknowledgements owed for messages that are gone, counts
that drifted, leases that nobody can end. Each is judged by a script that sees all places of a message at once, so what
is under way is never touched. On healthy queues nothing is changed, and the report says so. Consumers that were unseen
for as long as their own options say are removed; others that may be dead are shown.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server. Nothing was changed. Clear the task.
- **repair**: it has retried what a retry can mend. Do what the log says, then clear the failed task with its
  downstream tasks: it goes on where it stopped. The same after its time limit.
- **report**: queues that cannot be repaired are counted in the report; the log of the plan says what is wrong with
  each. Otherwise clear the task: it only reads.

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
    description="Set right what ran out, drifted or was left in fan-out queues: plan, repair, look again.",
    schedule="5,35 * * * *",
    params=form(DryRun, FanoutRepairParameters, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ON_SCHEDULE,
):
    plan_do_report("fanout_repair", do="repair", done="repaired")
