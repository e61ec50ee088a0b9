"""Remove due messages from compacted queues, by their retention, in bounded steps; then check the queues again.

Nobody is asked: the rules are those of the queues, or those of the form. A registry lists the queues that are due, so
the names of keys are not scanned. Before a message is removed, it is written to disk with its value, from which it can
be restored. The script that removes decides again: a newer value of a key is never touched. Each part of the registry
records when its collection last *finished*; the DAG `queue_quality` finds a collector that has stopped.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server. Nothing was removed. Clear the task.
- **collect**: it has retried what a retry can solve. Do what the log says, then clear the failed task with its
  downstream tasks: it continues where it stopped. Do the same after its time limit.
- **report**: the report counts queues that cannot be collected; `queuekeeper quality run --store compacted` names
  them, and `queuekeeper compacted repair` repairs them. Otherwise clear the task: it only reads.

Step by step, with commands: `docs/runbooks/compacted_queue_gc.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from airflow.sdk import DAG

from queuekeeper.airflow.defaults import ON_SCHEDULE, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import plan_do_report
from queuekeeper.jobs.common import Connections, DryRun, UndoRetention
from queuekeeper.maintenance.compacted.model import CollectionParameters

with DAG(
    **of_file(__file__, __doc__),
    description="Remove due messages of compacted queues by their retention: plan, collect, check again.",
    schedule="20 * * * *",
    params=form(DryRun, CollectionParameters, UndoRetention, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ON_SCHEDULE,
):
    plan_do_report("compacted_queue_gc", do="collect", done="collected")
