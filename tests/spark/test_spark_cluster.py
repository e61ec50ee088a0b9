"""A standalone Spark whose workers are hosts of their own that have neither Queuekeeper nor a file of the driver's.

By day there is one worker, and one driver does all; at night there are three, which commands and Airflow use, and
executors, workers and drivers are killed.
"""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import redis
from pyspark.sql import SparkSession

from queuekeeper import schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.maintenance.partitions.apply import apply_plan
from queuekeeper.maintenance.partitions.archive import archive_partition
from queuekeeper.maintenance.partitions.plan import plan_retirement
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.maintenance.partitions.retired import retired_partitions
from queuekeeper.migration.ledger.model import VerifyReport
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.stores import profile_redis
from tests.chaos.conftest import SEED
from tests.chaos.support import contents, differing, until
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conftest import nightly
from tests.object_store import ObjectStore
from tests.spark.cluster import ROOT, Cluster, pack_environment, result_of
from tests.spark.hosts import WITHOUT_NAMESPACES
from tests.spark.world import World

COHORTS = 12
THROTTLE = 150
WISHES = ("--cohort-count", str(COHORTS), "--quarantine-cap-percent", "50")

ONE_DRIVER = f"""
import json, os, sys
from queuekeeper.facts import plain
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.migration.spark.session import build_session

stores = {{name: os.environ[f"QUEUEKEEPER_{{name}}".upper()] for name in ("postgres_url", "redis_url")}}
spark = build_session("one driver", master=sys.argv[1], stores=list(stores.values()))
parameters = MigrationParameters(cohort_count={COHORTS}, quarantine_cap_percent=50)
plan_id = plan_migration(spark, **stores, parameters=parameters, run_id=None).plan_id
copy_sessions(spark, **stores, plan_id=plan_id)
report = verify_migration(spark, **stores, plan_id=plan_id)
spark.stop()
print(json.dumps(plain(report)))
"""

RUNS_OF_AIRFLOW = f"""
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.utils.db import initdb
from queuekeeper.airflow.operators.partitions import ArchivePartitionsOperator

root, retired_id, directory = sys.argv[1:]
answer = {{"chosen_options": ["Approve"], "responded_by_user": {{"id": "1", "name": "ada"}}}}
HITLOperator.execute = lambda operator, context: answer
initdb()

def run(name, **conf):
    dag = DagBag(f"{{root}}/dags/{{name}}.py").dags[name]
    for task in dag.tasks:
        task.retries, task.retry_policy = 0, None
    tasks = dag.test(run_conf=conf).get_task_instances()
    return {{task.task_id: [str(task.state), task.xcom_pull(task_ids=task.task_id)] for task in tasks}}

moved = run("session_migration", cohort_count={COHORTS}, quarantine_cap_percent=50, copy_groups=1)
judged = run("queue_quality", suite="full", stores="redis")
archive = ArchivePartitionsOperator(
    task_id="archive",
    retired={{"to_archive": [retired_id], "table": "public.visits"}},
    directory=directory,
    spark_jobs=f"{{root}}/spark_jobs",
)
archived = archive.execute({{}})
print(json.dumps({{"moved": moved, "judged": judged, "archived": archived}}, default=str))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return pack_environment(tmp_path_factory.mktemp("archive"), compiled=request.config.getoption("--nightly"))


@pytest.fixture(scope="module")
def cluster(
    archive: Path,
    server_home: Path,
    object_store: ObjectStore,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Cluster]:
    count = 3 if request.config.getoption("--nightly") else 1
    folder, hidden = tmp_path_factory.mktemp("cluster"), [server_home, ROOT]
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", "hosts") == "addresses":
            patch.setenv(WITHOUT_NAMESPACES, "yes")
        with Cluster.started(count=count, archive=archive, folder=folder, hidden=hidden, store=object_store) as started:
            yield started


@dataclass(frozen=True, kw_only=True)
class Served:
    """A migration's servers at addresses that all hosts reach; a local Spark looks at them from here.

    :param source: the way to PostgreSQL.
    :param target: the way to Redis.
    """

    here: World
    source: CuttingProxy
    target: CuttingProxy

    @property
    def variables(self) -> dict[str, str]:
        """The addresses, for the environment of a driver."""
        return {"QUEUEKEEPER_POSTGRES_URL": self.source.url, "QUEUEKEEPER_REDIS_URL": self.target.url}

    @property
    def secrets(self) -> list[str]:
        """The passwords of both."""
        return [str(urlsplit(url).password) for url in self.variables.values()]

    def keys(self) -> dict[bytes, Any]:
        """Return all that the target holds."""
        return found_in(self.here)


def found_in(world: World) -> dict[bytes, Any]:
    """Return what a target holds, without the name of the plan by which it came there."""
    found = contents(cast("redis.Redis", world.client))
    return {
        name: (kind, tuple(each for each in content if each[0] != b"plan") if kind == b"hash" else content, end)
        for name, (kind, content, end) in found.items()
    }


@pytest.fixture
def served(
    cluster: Cluster, spark: SparkSession, clone: Callable[[str], str], hostile_template: str, own_redis: Any
) -> Iterator[Served]:
    address = cluster.network.here
    with (
        CuttingProxy(clone(hostile_template), host=address) as source,
        CuttingProxy(own_redis(), host=address) as target,
        World.opened(spark, postgres_url=source.url, redis_url=target.url) as here,
    ):
        yield Served(here=here, source=source, target=target)
    cluster.tidy()


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a local Spark makes of the same source in one go."""

    report: VerifyReport
    keys: dict[bytes, Any]

    @property
    def sessions(self) -> int:
        """How many sessions there are in the target."""
        return len({name for name in self.keys if name.endswith(b"_session")})


@pytest.fixture(scope="module")
def undisturbed(make_world: Callable[..., World], hostile_template: str) -> Undisturbed:
    world = make_world(template=hostile_template)
    plan_id = world.plan(MigrationParameters(cohort_count=COHORTS, quarantine_cap_percent=50)).plan_id
    world.copy(plan_id)
    return Undisturbed(report=world.verify(plan_id), keys=found_in(world))


def assert_as_undisturbed(served: Served, report: Any, undisturbed: Undisturbed) -> None:
    expected = undisturbed.report
    assert (report["balanced"], report["digest"]) == (True, expected.digest)
    assert tuple(served.here.ledger.ledger(report["plan_id"])) == expected.ledger
    assert differing(served.keys(), undisturbed.keys) == []


@pytest.mark.parametrize("cluster", ["hosts", *nightly("addresses")], indirect=True)
def test_a_host_without_a_file_of_the_drivers_moves_all_as_one_machine_does_and_shows_no_secret(
    cluster: Cluster, served: Served, undisturbed: Undisturbed
) -> None:
    with cluster.search(served.secrets) as search:
        with cluster.program("python", "-c", ONE_DRIVER, cluster.master, **served.variables) as driver:
            report = result_of(driver, search)
        assert_as_undisturbed(served, report, undisturbed)

    if cluster.network.is_real:
        for name in ("settings", "events"):
            here, there = cluster.folder / name, Path(f"/proc/{cluster.workers[0].pid}/root{cluster.folder / name}")
            assert (any(here.iterdir()), any(there.iterdir())) == (True, False)
    read = "\n".join(search.read)
    for what in (
        "CoarseGrainedExecutorBackend",
        "/environment/bin/python -m pyspark.daemon",
        "/stderr",
        "/app/?appId=",
    ):
        assert what in read
    assert any("spark.archives" in path.read_text() for path in (cluster.folder / "events").rglob("events*"))
    assert search.found == set()


@pytest.mark.nightly
def test_commands_do_on_three_hosts_what_they_do_on_one_machine_and_show_no_secret(
    cluster: Cluster, served: Served, undisturbed: Undisturbed, shared_bucket: str
) -> None:
    retired_id = retired_partition(served.here)
    with cluster.search(served.secrets) as search:

        def done(*words: str) -> Any:
            with cluster.command(*words, **served.variables) as process:
                return result_of(process, search)

        plan_id = done("migrate", "plan", *WISHES)["plan_id"]
        assert done("migrate", "copy", plan_id, "--yes")["messages_written"] > 1_000
        assert_as_undisturbed(served, done("migrate", "verify", plan_id), undisturbed)
        (profile,) = done("quality", "profile", "--store", "redis")
        assert profile["queues"] == undisturbed.sessions
        words = ("--directory", f"s3://{shared_bucket}/archives", "--retired-ids", str(retired_id))
        job = str(ROOT / "spark_jobs" / "archive_partition.py")
        variables = {**served.variables, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with cluster.program("spark-submit", "--master", cluster.master, job, *words, **variables) as process:
            (written,) = result_of(process, search)["archives"]
        cluster.history(search)

    assert_archived_as_here(served, written, retired_id=retired_id, bucket=shared_bucket)
    assert any(re.search(r"/history/app-[^/]*/environment/", each) for each in search.read)
    assert any(re.search(r"/api/v1/applications/app-[^/]*/environment", each) for each in search.read)
    assert search.found == set()


@pytest.mark.nightly
def test_runs_of_airflow_do_on_three_hosts_what_they_do_on_one_machine_and_show_no_secret(
    cluster: Cluster, served: Served, undisturbed: Undisturbed, server_home: Path, shared_bucket: str
) -> None:
    """A connection alone names the Spark; somebody approves all that is asked."""
    retired_id = retired_partition(served.here)
    postgres_url, redis_url = served.variables.values()
    variables = {
        "AIRFLOW_HOME": str(server_home / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW_CONN_QUEUEKEEPER_POSTGRES": postgres_url,
        "AIRFLOW_CONN_QUEUEKEEPER_REDIS": redis_url,
        "AIRFLOW_CONN_QUEUEKEEPER_SPARK": f"{cluster.master}?deploy-mode=client",
        "QUEUEKEEPER_HOME": str(server_home / "queuekeeper"),
    }
    words = (RUNS_OF_AIRFLOW, str(ROOT), str(retired_id), f"s3://{shared_bucket}/archives")
    with cluster.search(served.secrets) as search:
        with cluster.program("python", "-c", *words, **variables) as process:
            told = result_of(process, search)
        cluster.history(search)
    assert {name: state for name, (state, _) in told["moved"].items() if state == "failed"} == {}
    assert_as_undisturbed(served, told["moved"]["verify"][1], undisturbed)
    state, profile = told["judged"]["profile_redis"]
    assert (state, profile["queues"]) == ("success", undisturbed.sessions)
    (written,) = told["archived"]["archives"]
    assert_archived_as_here(served, written, retired_id=retired_id, bucket=shared_bucket)
    assert search.found == set()


def assert_archived_as_here(served: Served, written: Any, *, retired_id: int, bucket: str, rows: int = 1_000) -> None:
    """See a local Spark find the archive that is there equal to what it reads again."""
    here, directory = served.here, f"s3://{bucket}/archives"
    again = archive_partition(
        here.spark, postgres_url=here.postgres_url, retired_id=retired_id, directory=directory, now_ms=system_clock()
    )
    assert (again.is_new, again.path, again.manifest.content.rows) == (False, written["path"], rows)
    assert again.manifest.content.rows_hash == written["rows_hash"]


def retired_partition(world: World, *, rows: int = 1_000) -> int:
    """Return the record of a partition that was retired."""
    connection = world.connection
    schema_migrations.migrate(connection)
    connection.execute("CREATE TABLE visits (at timestamptz NOT NULL, n int) PARTITION BY RANGE (at)")
    connection.execute(
        "CREATE TABLE visits_old PARTITION OF visits FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');"
        f"INSERT INTO visits SELECT '2026-01-02', n FROM generate_series(1, {rows}) AS n"
    )
    policy = PartitionPolicy(
        table="public.visits", step="1 month", ahead="1 month", retention="1 month", quarantine_days=0
    )
    save_policy(connection, policy)
    now_ms = system_clock()
    apply_plan(connection, plan=plan_retirement(connection, policy=policy, now_ms=now_ms), now_ms=now_ms)
    (record,) = retired_partitions(connection)
    return record.retired_id


def kill(victim: str, driver: subprocess.Popen[str], *, cluster: Cluster, dice: random.Random) -> None:
    """Kill a driver, a worker or an executor; a worker's place is taken by another one."""
    assert driver.poll() is None, "it ended before it could be hit"
    print(f"kill: {victim}")
    if victim == "driver":
        os.killpg(driver.pid, 9)
        driver.wait()
        until(lambda: not cluster.executors(), what="the end of executors without a driver")
    elif victim == "worker":
        cluster.lose(dice.choice(cluster.workers))
    else:
        dice.choice(cluster.executors()).kill()


@pytest.mark.nightly
@pytest.mark.parametrize("turn", range(2))
def test_migration_whose_executor_worker_and_driver_are_killed_ends_as_an_undisturbed_one(
    cluster: Cluster, served: Served, undisturbed: Undisturbed, turn: int
) -> None:
    dice = random.Random(f"{SEED} {turn}")
    print(f"CHAOS_SEED={SEED}")

    def hit(*words: str) -> Any:
        """Run a command one of whose executors is killed some time after all have come."""
        with cluster.command(*words, **served.variables) as process:
            until(
                lambda: process.poll() is not None or len(cluster.executors()) == len(cluster.workers),
                what="all executors",
            )
            time.sleep(dice.uniform(0, 3))
            kill("executor", process, cluster=cluster, dice=dice)
            return result_of(process)

    def has_come(share: float) -> bool:
        return served.here.client.dbsize() >= share * len(undisturbed.keys)

    plan_id = hit("migrate", "plan", *WISHES)["plan_id"]
    served.here.ledger.set_throttle(plan_id, THROTTLE)
    victims = dice.sample(["executor", "worker", "driver"], 3)
    shares = sorted(dice.uniform(0.05, 0.6) for _ in victims)
    kills = list(zip(shares, victims, strict=True))
    copied = None
    while copied is None:
        with cluster.command("migrate", "copy", plan_id, "--yes", **served.variables) as copy:
            victim = ""
            while kills and victim != "driver":
                share, victim = kills.pop(0)
                until(partial(has_come, share), what=f"{share:.0%} of the copy")
                kill(victim, copy, cluster=cluster, dice=dice)
            if victim != "driver":
                served.here.ledger.set_throttle(plan_id, None)
                copied = result_of(copy)

    assert copied["sessions_moved_on"] == 0
    assert_as_undisturbed(served, hit("migrate", "verify", plan_id), undisturbed)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A command whose tasks read, and what a local Spark reads and tells in its place.

    :param way: by which its tasks read.
    :param reply_bytes: what a local Spark reads by it.
    :param check: holds what the command tells against what the local Spark told.
    """

    words: tuple[str, ...]
    way: CuttingProxy
    reply_bytes: int
    check: Callable[[Any], None]


def verification(served: Served, undisturbed: Undisturbed, _: str) -> Reading:
    plan_id = served.here.plan(MigrationParameters(cohort_count=COHORTS, quarantine_cap_percent=50)).plan_id
    served.here.copy(plan_id)
    before = served.target.passed
    served.here.verify(plan_id)
    return Reading(
        words=("migrate", "verify", plan_id),
        way=served.target,
        reply_bytes=served.target.passed - before,
        check=lambda report: assert_as_undisturbed(served, report, undisturbed),
    )


def profile(served: Served, undisturbed: Undisturbed, _: str) -> Reading:
    here = served.here
    schema_migrations.migrate(here.connection)
    here.copy(here.plan(MigrationParameters(cohort_count=COHORTS, quarantine_cap_percent=50)).plan_id)
    before = served.target.passed
    local = profile_redis(
        here.spark, redis_url=here.redis_url, postgres_url=here.postgres_url, parameters=ProfileParameters(),
        now_ms=system_clock(),
    )  # fmt: skip

    def rows(profile_id: str) -> list[Any]:
        query = "SELECT to_jsonb(each) - 'profile_id' - 'client_hash' FROM queuekeeper.queue_profiles AS each"
        return here.connection.execute(f"{query} WHERE profile_id = %s ORDER BY client_id", (profile_id,)).fetchall()

    def check(told: Any) -> None:
        (report,) = told
        assert (report["queues"], report["messages"]) == (undisturbed.sessions, local.messages)
        assert rows(report["profile_id"]) == rows(local.profile_id)

    return Reading(
        words=("quality", "profile", "--store", "redis"),
        way=served.target,
        reply_bytes=served.target.passed - before,
        check=check,
    )


def archive_of_a_partition(served: Served, _: Undisturbed, bucket: str) -> Reading:
    here, rows = served.here, 300_000
    retired_id = retired_partition(here, rows=rows)
    before = served.source.passed
    local = archive_partition(
        here.spark, postgres_url=here.postgres_url, retired_id=retired_id, directory=f"s3://{bucket}/local",
        now_ms=system_clock(),
    )  # fmt: skip
    reply_bytes = served.source.passed - before
    here.connection.execute("UPDATE queuekeeper.retired_partitions SET archive = NULL, archived_at = NULL")

    def check(told: Any) -> None:
        (report,) = told["archives"]
        content = report["manifest"]["content"]
        assert (content["rows"], content["rows_hash"]) == (rows, local.manifest.content.rows_hash)
        written = {"path": report["path"], "rows_hash": content["rows_hash"]}
        assert_archived_as_here(served, written, retired_id=retired_id, bucket=bucket, rows=rows)

    return Reading(
        words=("partitions", "archive", "public.visits", "--folder", f"s3://{bucket}/archives"),
        way=served.source,
        reply_bytes=reply_bytes,
        check=check,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("prepared", [verification, profile, archive_of_a_partition])
def test_command_whose_executor_worker_and_driver_are_killed_while_it_reads_tells_what_an_undisturbed_one_does(
    cluster: Cluster, served: Served, undisturbed: Undisturbed, shared_bucket: str, prepared: Callable[..., Reading]
) -> None:
    dice = random.Random(f"{SEED} {prepared.__name__}")
    print(f"CHAOS_SEED={SEED}")
    reading = prepared(served, undisturbed, shared_bucket)
    victims = dice.sample(["executor", "worker", "driver"], 3)
    shares = sorted(dice.uniform(0.2, 0.8) for _ in victims)
    kills, told = list(zip(shares, victims, strict=True)), None
    start = reading.way.passed
    while told is None:
        with cluster.command(*reading.words, **served.variables) as process:
            victim = ""
            while kills and victim != "driver":
                share, victim = kills.pop(0)
                reading.way.hold(after=start + share * reading.reply_bytes)
                until(lambda: reading.way.holds or process.poll() is not None, what=f"{share:.0%} of the reading")
                until(lambda: bool(cluster.executors()) or process.poll() is not None, what="an executor")
                kill(victim, process, cluster=cluster, dice=dice)
            reading.way.hold(after=math.inf)
            if victim != "driver":
                told = result_of(process)
            start = reading.way.passed
    reading.check(told)
