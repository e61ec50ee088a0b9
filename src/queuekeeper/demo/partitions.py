"""Partitions are made ahead of time; old ones are retired, one is archived and dropped, and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from queuekeeper import assets
from queuekeeper.clock import system_clock
from queuekeeper.config import POSTGRES_VARIABLE
from queuekeeper.demo.day import Day, Outcome, Waiting
from queuekeeper.errors import CheckFailed
from queuekeeper.java import java_home
from queuekeeper.maintenance.partitions.model import Purpose, RetiredPartition
from queuekeeper.maintenance.partitions.plan import plan_for, plan_reattachment
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.restore import restore_partition
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.maintenance.partitions.runs import carry_out
from queuekeeper.postgres import statement

TABLE = "public.readings"
ACTOR = "the demo"
POLICY = PartitionPolicy(table=TABLE, step="1 day", ahead="7 days", retention="2 days", quarantine_days=0)


def keep_partitions(day: Day) -> Waiting[None]:
    """Make partitions, retire old ones, archive and drop the oldest of these, and restore it."""
    connection = day.connection
    connection.execute(statement("demo/readings"))
    save_policy(connection, POLICY)
    made, retired = _carry_out(day, Purpose.CREATION), _carry_out(day, Purpose.RETIREMENT)
    yield
    oldest = min(retired_partitions(connection, table=TABLE), key=lambda each: each.lower or "")
    yield from _archive(day, oldest)
    dropped = _carry_out(day, Purpose.DROP)
    rows = _restore(day, oldest)
    outcome = Outcome(
        step="Partitions",
        line=f"{made} partitions made ahead, {retired} old ones retired, {dropped} archived, dropped and restored with "
        f"its {rows:,} rows",
        page=day.page("/partitions"),
        sound=(made, retired, dropped) == (7, 2, 1) and rows > 0,
    )
    day.show(outcome)


def _carry_out(day: Day, purpose: Purpose) -> int:
    """Plan, do what the plan says, and return how many partitions that were."""
    plan = plan_for(day.connection, policy=POLICY, purpose=purpose, now_ms=system_clock())
    report = carry_out(day.connection, plan, actor=ACTOR)
    return len(report.outcomes) if report.done else 0


def _restore(day: Day, dropped: RetiredPartition) -> int:
    """Restore a partition from its archive, put it back into its table, and return how many rows it has."""
    # From now on a partition stays in quarantine for a week: the next retirement leaves the restored one alone.
    policy = replace(POLICY, quarantine_days=7)
    save_policy(day.connection, policy)
    found = restore_partition(day.connection, retired_id=dropped.retired_id, now_ms=system_clock(), actor=ACTOR)
    plan = plan_reattachment(day.connection, policy=policy, retired_id=dropped.retired_id, now_ms=system_clock())
    return found.content.rows if carry_out(day.connection, plan, actor=ACTOR).done else 0


def _archive(day: Day, retired: RetiredPartition) -> Waiting[None]:
    """Archive a partition by the Spark application that the DAG ``partition_maintenance`` submits."""
    variables = {
        "JAVA_HOME": str(java_home(day.settings.home)),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        POSTGRES_VARIABLE: day.postgres_url,
    }
    command = [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", day.settings.spark_master),
        str(assets.directory("spark_jobs") / "archive_partition.py"),
        *("--directory", str(day.settings.archives), "--retired-ids", str(retired.retired_id)),
    ]
    place = day.settings.home / "demo" / "archive_partition.log"
    place.parent.mkdir(exist_ok=True)
    with place.open("w") as log:
        job = subprocess.Popen(command, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT)
        try:
            while job.poll() is None:
                yield
        finally:
            job.kill()
            job.wait()
    if job.returncode:
        raise CheckFailed(f"partition {retired.partition_name} was not archived: see {place}")
