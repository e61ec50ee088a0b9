"""Keep the event broker in order: expire subscriptions, dispatch lost events, watch polls, ages and bloat.

Nobody is asked. A subscription is removed when its expiry interval has passed since it was last active. An event that
was stored and never dispatched is queued for dispatch; a consumer may see it twice. The run fails when trouble must not
wait: polls have stopped, a table nears wraparound, or events are written to the overflow.

### If it fails

- **plan**: the log's last line says what to correct: a parameter, a server, a privilege, a broker that is not
  installed. Nothing was changed. Clear the task.
- **expire_subscriptions**, **reenqueue_events**: do what the log says, then clear the task with its downstream tasks:
  it continues where it stopped. They are skipped in a dry run, and if there is nothing to do.
- **watch**, **report**: clear the task; it only reads.
- **upkept**: there is trouble that must not wait. The message says what it is and what to do; the report has the
  figures.

Step by step, with commands: `docs/runbooks/event_upkeep.md`. Owner: queuekeeper.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, TriggerRule

from queuekeeper.airflow.defaults import ON_SCHEDULE, Pool, Tag, connections, default_args, of_file, tags
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.event_upkeep import WatchBrokerOperator
from queuekeeper.airflow.operators.jobs import plan_do_report
from queuekeeper.jobs.common import DryRun, PostgresConnection
from queuekeeper.maintenance.events.upkeep import UpkeepParameters

LIMIT = timedelta(hours=1)

with DAG(
    **of_file(__file__, __doc__),
    description="Expire subscriptions, dispatch lost events, watch polls, ages and bloat, report.",
    schedule="*/15 * * * *",
    params=form(DryRun, UpkeepParameters, PostgresConnection),
    default_args={**default_args(), **connections("postgres")},
    tags=tags(Tag.MAINTENANCE, Tag.POSTGRES),
    **ON_SCHEDULE,
):
    plan_do_report(
        "event_upkeep",
        do=("expire_subscriptions", "reenqueue_events"),
        done="upkept",
        limit=LIMIT,
        # Findings are needed most when a task above has failed.
        watch=WatchBrokerOperator(
            task_id="watch", pool=Pool.POSTGRES, execution_timeout=LIMIT, trigger_rule=TriggerRule.ALL_DONE
        ),
    )
