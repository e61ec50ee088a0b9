"""Keep the event broker in order: expire subscriptions, repeat what was never dispatched, watch polls, ages and bloat.

Nobody is asked: a subscription is removed when the time it was given has passed since it was last active, and an event
that was stored and never dispatched is put up for dispatch, which harms no consumer that can bear a repetition. What
must not wait (polls have stopped, a table nears wraparound, events are written to the overflow) turns the run red.

### If it fails

- **plan**: the log's last line says what to mend: a parameter, a server, a privilege, a broker that is not installed.
  Nothing was changed. Clear the task.
- **expire_subscriptions**, **reenqueue_events**: do what the log says, then clear the task with its downstream tasks:
  it goes on where it stopped. They are skipped in a dry run, and where nothing is to be done.
- **watch**, **report**: clear the task; it only reads.
- **upkept**: something must not wait. The message says what and what to do; the report has the figures.

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
    description="Expire subscriptions, repeat what was never dispatched, watch polls, ages and bloat, report.",
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
        # What is wrong is of interest most when something was not done.
        watch=WatchBrokerOperator(
            task_id="watch", pool=Pool.POSTGRES, execution_timeout=LIMIT, trigger_rule=TriggerRule.ALL_DONE
        ),
    )
