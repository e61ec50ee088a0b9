"""Collect from compacted queues what their retention lets go: what is due goes in bounded steps, then a second look.

Nobody is asked: the rules are the queues' own, or those of the form. A registry says which queues are due, so no names
of keys are looked through. What goes is on disk before it does, with its value, and can be brought back. The queue's
own script decides again in the moment in which it removes: a newer value of a key is never touched. Each part of the
registry notes when its collection was last *finished*; the DAG `queue_quality` finds a collector that stopped.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server. Nothing was removed. Clear the task.
- **collect**: it has retried what a retry can mend. Do what the log says, then clear the failed task with its
  downstream tasks: it goes on where it stopped. The same after its time limit.
- **report**: queues that cannot be collected are counted in the report; `queuekeeper quality run --store compacted`
  names them, `queuekeeper compacted repair` mends them. Otherwise clear the task: it only reads.

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
    description="Collect what compacted queues may lose by their retention: plan, collect, look again.",
    schedule="20 * * * *",
    params=form(DryRun, CollectionParameters, UndoRetention, Connections),
    default_args={**default_args(), **connections("postgres", "redis")},
    tags=tags(Tag.MAINTENANCE, Tag.REDIS),
    **ON_SCHEDULE,
):
    plan_do_report("compacted_queue_gc", do="collect", done="collected")
