"""Partitions are made ahead of time; old ones are retired, archived and dropped, and one of them comes back."""

from __future__ import annotations

from queuekeeper.clock import system_clock
from queuekeeper.demo.day import Day, Outcome, Waiting
from queuekeeper.demo.follow import follow
from queuekeeper.errors import CheckFailed
from queuekeeper.maintenance.partitions.model import PartitionPlan, Purpose, RetiredPartition
from queuekeeper.maintenance.partitions.plan import plan_for, plan_reattachment
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.restore import restore_partition
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.runs import carry_out
from queuekeeper.sql_statements import statement
from queuekeeper.wording import number_of

DAG_ID = "partition_maintenance"
TABLE = "public.readings"
ACTOR = "the demo"
POLICY = PartitionPolicy(table=TABLE, step="1 day", ahead="7 days", retention="2 days", quarantine_days=7)
_QUARANTINE_MS = POLICY.quarantine_days * 86_400_000


def keep_partitions(day: Day) -> Waiting[None]:
    """Make partitions, retire and archive old ones by the DAG; drop these, and restore the oldest."""
    connection = day.connection
    connection.execute(statement("demo/readings"))
    save_policy(connection, POLICY)
    run_id = day.trigger(DAG_ID, note=f"The demo has made {TABLE} with five partitions of the past and none ahead.")
    state = yield from follow(day, DAG_ID, run_id)
    day.client.pause(DAG_ID)
    if state != "success":
        raise CheckFailed(f"the run of {DAG_ID} ended as {state}: see {day.run_page(DAG_ID, run_id)}")
    made = len(day.client.returned(DAG_ID, run_id, "creation.create", map_index=0)["outcomes"])
    archived = [each for each in retired_partitions(connection, table=TABLE) if each.archived_at]
    # Planned as of the end of the quarantine: nobody waits a week for a demo.
    end_ms = system_clock() + _QUARANTINE_MS
    dropped = _carry_out(day, plan_for(connection, policy=POLICY, purpose=Purpose.DROP, now_ms=end_ms))
    rows = _restore(day, min(archived, key=lambda each: each.lower or ""))
    outcome = Outcome(
        step="Partitions",
        line=f"{number_of(made, 'partition')} made ahead, {len(archived)} old ones retired and archived; {dropped} "
        f"dropped as in a week, and the oldest restored with its {number_of(rows, 'row')}",
        page=day.page("/partitions"),
        sound=(made, len(archived), dropped) == (7, 2, 2) and rows > 0,
    )
    day.show(outcome)


def _carry_out(day: Day, plan: PartitionPlan) -> int:
    """Do what a plan says, and return how many partitions that were."""
    report = carry_out(day.connection, plan, actor=ACTOR)
    return len(report.outcomes) if report.done else 0


def _restore(day: Day, dropped: RetiredPartition) -> int:
    """Restore a partition from its archive, put it back into its table, and return how many rows it has."""
    connection, retired_id = day.connection, dropped.retired_id
    found = restore_partition(connection, retired_id=retired_id, now_ms=system_clock(), actor=ACTOR)
    plan = plan_reattachment(connection, policy=POLICY, retired_id=retired_id, now_ms=system_clock())
    return found.content.rows if _carry_out(day, plan) else 0
