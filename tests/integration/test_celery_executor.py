"""Airflow's Celery executor: two workers that share no folder, of which one is killed in the middle of a copy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from queuekeeper import postgres, redis_client, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.embedded import AirflowClient, AirflowServer, PostgresServer, RedisServer
from queuekeeper.embedded.process import ManagedProcess
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests.integration.airflow_pages import token
from tests.integration.airflow_runs import asked, decide, log, states
from tests.object_store import ObjectStore
from tests.patience import PATIENCE_S

# By day: tests/dags/test_workers.py and test_spark_operator.py have what a worker that is killed leaves behind,
# tests/dags/test_object_store.py reports and undo files in an object store.
pytestmark = [pytest.mark.integration, pytest.mark.nightly]

DATABASE = "integration_celery"
WORKERS = ("worker-1", "worker-2")


class Worker:
    """A Celery worker with folders of its own.

    :param home: of everything that it or its tasks write.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process = ManagedProcess("worker", home, die_with_parent=True, stop_timeout_s=60)

    def start(self, airflow: AirflowServer) -> None:
        """Start it as the guide says, with what the other components were started with and none of their folders."""
        folders = {"AIRFLOW_HOME": "airflow", "HOME": "user", "TMPDIR": "tmp", "QUEUEKEEPER_HOME": "queuekeeper"}
        own = {name: self.home / folder for name, folder in folders.items()}
        for folder in own.values():
            folder.mkdir(parents=True, exist_ok=True)
        # A worker needs neither Airflow's database nor the passwords of its users.
        kept = {
            name: value
            for name, value in airflow.environment().items()
            if not name.startswith(("AIRFLOW__DATABASE__", "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_"))
        }
        self.process.start(
            [
                *(sys.executable, "-m", "airflow", "celery", "worker"),
                *("--celery-hostname", self.home.name, "--skip-serve-logs"),
            ],
            environment={**kept, **{name: str(folder) for name, folder in own.items()}},
            working_directory=own["HOME"],
        )

    def wait_ready(self) -> None:
        """Wait until it takes tasks."""
        words = f"celery@{self.home.name} ready"
        self.process.wait_ready(lambda: words in self.process.log_path.read_text("utf-8"), timeout_s=PATIENCE_S)

    def kill(self) -> None:
        """Kill its process group, as the end of its machine would; what tasks have started has to end by itself."""
        record = self.process.running()
        assert record is not None
        os.killpg(record.pid, signal.SIGKILL)


class World:
    """Servers of this module."""

    def __init__(
        self,
        airflow: AirflowServer,
        workers: dict[str, Worker],
        store: ObjectStore,
        bucket: str,
        source: str,
        target: RedisServer,
    ) -> None:
        self.airflow = airflow
        self.workers = workers
        self.store = store
        self.bucket = bucket
        self.source = source
        self.target = target

    def revive(self) -> None:
        """Start a worker again that a test has killed."""
        for worker in self.workers.values():
            if worker.process.running() is None:
                worker.start(self.airflow)
                worker.wait_ready()

    def objects(self, folder: str) -> list[str]:
        """Return the keys of the objects of a folder."""
        return [key for key in self.store.objects(self.bucket) if key.startswith(f"{folder}/")]

    def read(self, key: str) -> bytes:
        """Return an object."""
        content: bytes = self.store.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return content

    def page(self, path: str, **query: str) -> httpx.Response:
        """Return a page of the plugin, as a viewer sees it."""
        cookies = {"_token": token(self.airflow, "viewer")}
        url = f"{self.airflow.url}/queuekeeper{path}"
        return httpx.get(url, params=query, cookies=cookies, follow_redirects=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def world(postgres_server: PostgresServer, object_store: ObjectStore, server_home: Path) -> Iterator[World]:
    """Airflow with the Celery executor and two workers; sessions in the source, nothing in the target."""
    home = server_home / "celery"
    source = postgres_server.create_database(DATABASE)
    metadata = postgres_server.create_database(f"{DATABASE}_airflow")
    bucket = object_store.bucket()
    target, broker = (RedisServer(home / name, die_with_parent=True) for name in ("target", "broker"))
    for server in (target, broker):
        server.start()
    with postgres.connect(source, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        sample = SampleParameters(
            messages=3_000,
            sessions=300,
            long_queues=1,
            long_queue_messages=300,
            now_ms=system_clock(),
            create_schema=True,
        )
        fill(connection, sample)
        # What expires while the test runs would be missed in its counts.
        connection.execute("UPDATE device_publish_msg SET msg_expiry_interval = 30 * 86400")
    airflow = AirflowServer(
        home / "airflow",
        metadata_url=metadata,
        postgres_url=source,
        redis_url=target.url,
        environment={
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": broker.url,
            "AIRFLOW__CELERY__RESULT_BACKEND": metadata.replace("postgresql://", "db+postgresql+psycopg2://", 1),
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            # Longer than the longest task, which may take 12 hours.
            "AIRFLOW__CELERY_BROKER_TRANSPORT_OPTIONS__VISIBILITY_TIMEOUT": "86400",
            # A worker that was killed is noticed within seconds instead of minutes.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
            "AIRFLOW_CONN_OBJECTS": object_store.writer.connection(),
            "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
            "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": f"s3://{bucket}/logs",
            "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": "objects",
            "QUEUEKEEPER_HOME": str(home / "queuekeeper"),
            "QUEUEKEEPER_HASH_KEY": "the same for all of these processes",
            "QUEUEKEEPER_REPORTS_DIR": f"s3://objects@{bucket}/reports",
            "QUEUEKEEPER_UNDO_DIR": f"s3://objects@{bucket}/undo",
        },
        die_with_parent=True,
    )
    workers = {name: Worker(home / name) for name in WORKERS}
    airflow.start()
    for worker in workers.values():
        worker.start(airflow)
    with airflow.client() as client:
        for dag_id in ("session_migration", "queue_quality", "expired_reference_cleanup"):
            client.wait_for_dag(dag_id)
        client.pause("queue_quality")
    for worker in workers.values():
        worker.wait_ready()
    yield World(airflow, workers, object_store, bucket, source, target)
    for worker in workers.values():
        worker.process.stop()
    airflow.stop()
    broker.erase()
    target.erase()
    postgres_server.drop_database(f"{DATABASE}_airflow")
    postgres_server.drop_database(DATABASE)


@pytest.fixture
def client(world: World) -> Iterator[AirflowClient]:
    """REST client of somebody who may trigger and approve."""
    with world.airflow.client("operator") as opened:
        yield opened


def finished(client: AirflowClient, dag_id: str, run_id: str) -> str:
    """Wait until a run has ended; what has failed says why."""
    state = client.wait_for_run(dag_id, run_id, timeout_s=PATIENCE_S)
    if state != "success":
        found = states(dag_id, client, run_id)
        logs = [f"--- {task}\n{log(dag_id, client, run_id, task)}" for task, each in found.items() if each == "failed"]
        return "\n".join([state, str(found), *logs])
    return state


def processes_of(worker: Worker) -> list[psutil.Process]:
    """Return the processes of a worker, with its tasks and what they have started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("QUEUEKEEPER_HOME") == str(worker.home / "queuekeeper"):
                found.append(process)
    return found


def kill(worker: Worker) -> None:
    """Kill a worker and see all that it has started end, though it is not told."""
    started = processes_of(worker)
    worker.kill()
    _, left = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert left == []


def copy_driver(
    world: World, client: AirflowClient, run_id: str, *, among: Iterable[Worker]
) -> tuple[Worker, psutil.Process]:
    """Wait for the Python driver of a copy and return it with the worker whose task has started it."""
    deadline = time.monotonic() + PATIENCE_S
    while client.run_state("session_migration", run_id) == "running" and time.monotonic() < deadline:
        for worker in among:
            for process in processes_of(worker):
                with suppress(psutil.Error):
                    command = process.cmdline()
                    if len(command) > 1 and "python" in command[0] and command[1].endswith("copy_sessions.py"):
                        return worker, process
        time.sleep(0.2)
    found = states("session_migration", client, run_id)
    pytest.fail(f"no worker copies: {found}\n{log('session_migration', client, run_id, 'copy')}")


def test_copy_of_a_worker_that_is_killed_goes_on_with_the_other_one_and_nothing_is_lost_or_twice(
    world: World, client: AirflowClient
) -> None:
    dag_id = "session_migration"
    run_id = client.trigger(dag_id, conf={"cohort_count": 8, "throttle_messages_per_s": 100})
    assert asked(dag_id, client, run_id)["options"] == ["Approve", "Reject"]
    decide(dag_id, client, run_id, "Approve")
    with postgres.connect(world.source, autocommit=True) as connection:
        ledger = MigrationLedger(connection)
        plan = ledger.load_plan(ledger.plan_of_run(run_id))
        dead, driver = copy_driver(world, client, run_id, among=world.workers.values())
        deadline = time.monotonic() + PATIENCE_S
        while not (done := ledger.progress(plan.plan_id, "copy").done):
            assert driver.is_running(), log(dag_id, client, run_id, "copy")
            assert time.monotonic() < deadline, "the copy has written nothing"
            time.sleep(0.1)
        assert done < plan.total("to_copy")
        kill(dead)
        (other,) = [worker for worker in world.workers.values() if worker is not dead]
        copy_driver(world, client, run_id, among=[other])
        ledger.set_throttle(plan.plan_id, None)
        assert finished(client, dag_id, run_id) == "success"

        (copy,) = [task for task in client.tasks(dag_id, run_id) if task.task_id == "copy"]
        assert copy.try_number == 2
        rows = ledger.ledger(plan.plan_id)
        assert sum(row.rows_seen for row in rows) == plan.total("messages")
        assert sum(row.unaccounted for row in rows) == 0
        assert sum(row.differences for row in rows) == 0
        assert ledger.load_plan(plan.plan_id).state is PlanState.VERIFIED
    with redis_client.connect(world.target.url) as redis:
        payloads = sum(1 for _ in redis.scan_iter(match="*}_messages_*", count=1_000))
        assert payloads == len(references(redis)) == plan.total("to_copy")

    report = client.returned(dag_id, run_id, "report")
    assert report["verdict"] == "balanced"
    demand_report(world, dag_id, run_id, report)
    # What the killed worker has logged went with it.
    assert " messages (" in log(dag_id, client, run_id, "copy")
    evidence = httpx.get(
        f"{world.airflow.url}/queuekeeper/task",
        params={"dag_id": dag_id, "run_id": run_id, "task_id": "check_approval"},
        cookies={"_token": token(world.airflow, "admin")},
        timeout=PATIENCE_S,
    )
    assert evidence.status_code == 200
    assert "operator" in evidence.text


def demand_report(world: World, dag_id: str, run_id: str, report: dict[str, Any]) -> None:
    """See that pages show the report of a run, and that it is an object and nothing else."""
    names = {kind: Path(report[kind]).name for kind in ("html", "json")}
    content = world.read(f"reports/{names['html']}")
    assert world.page("/run", dag_id=dag_id, run_id=run_id).content == content
    assert world.page(f"/reports/{names['json']}").content == world.read(f"reports/{names['json']}")
    assert names["html"] in world.page("/reports").text


def test_queues_are_judged_by_workers_that_share_no_folder(world: World, client: AirflowClient) -> None:
    dag_id = "queue_quality"
    world.revive()
    with world.airflow.client() as admin:
        admin.wait_for_dag(dag_id)
        run_id = client.trigger(dag_id, conf={"suite": "full"})
        state = finished(client, dag_id, run_id)
        admin.pause(dag_id)

    assert state == "success"
    demand_report(world, dag_id, run_id, client.returned(dag_id, run_id, "report"))


def test_change_that_a_killed_worker_has_begun_is_finished_by_another_one_and_taken_back_from_a_third_machine(
    world: World, client: AirflowClient, tmp_path: Path
) -> None:
    dag_id = "expired_reference_cleanup"
    world.revive()
    with (
        redis_client.connect(world.target.url) as redis,
        postgres.connect(world.source, autocommit=True) as connection,
    ):
        before = references(redis)
        payloads = sorted(redis.scan_iter(match="*}_messages_*", count=1_000))
        redis.delete(*payloads[::20])
        run_id = client.trigger(dag_id, conf={"max_operations_per_s": 50})
        asked(dag_id, client, run_id)
        decide(dag_id, client, run_id, "Approve")
        runs = MaintenanceRuns(connection)
        cleanup = runs.latest_id(dag_id)
        assert cleanup is not None
        deadline = time.monotonic() + PATIENCE_S
        while not sum(share.removed for share in runs.progress(cleanup)):
            assert client.run_state(dag_id, run_id) == "running", log(dag_id, client, run_id, "apply")
            assert time.monotonic() < deadline, "the cleanup has removed nothing"
            time.sleep(0.1)
        (dead,) = [
            worker
            for worker in world.workers.values()
            if any(worker.home.glob(f"airflow/logs/dag_id={dag_id}/*/task_id=apply/**/attempt=1.log"))
        ]

        kill(dead)
        runs.set_throttle(cleanup, None)
        assert finished(client, dag_id, run_id) == "success"

        (apply,) = [task for task in client.tasks(dag_id, run_id) if task.task_id == "apply"]
        assert apply.try_number == 2
        assert runs.load(cleanup).state is RunState.DONE
        lost = {payload: before[payload] for payload in payloads[::20]}
        assert references(redis) == {name: score for name, score in before.items() if name not in lost}
        demand_report(world, dag_id, run_id, client.returned(dag_id, run_id, "report"))
        kept = {name.split("/")[1] for name in world.objects("undo")}
        page = world.page(f"/runs/{dag_id}/{cleanup}").text
        assert {name for name in kept if f"<code data-copy>{name}</code>" in page} == kept != set()

        undone = subprocess.run(
            [sys.executable, "-m", "queuekeeper", "run", "undo", cleanup, "--yes", "--json"],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("QUEUEKEEPER_")},
                **world.store.writer.environment(),
                "QUEUEKEEPER_HOME": str(tmp_path),
                "QUEUEKEEPER_POSTGRES_URL": world.source,
                "QUEUEKEEPER_REDIS_URL": world.target.url,
                "QUEUEKEEPER_UNDO_DIR": f"s3://{world.bucket}/undo",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert undone.returncode == 0, undone.stderr
        assert references(redis) == before


def references(redis: redis_client.RedisClient) -> dict[bytes, float]:
    """Return every reference of every queue with its place."""
    found: dict[bytes, float] = {}
    for key in redis.scan_iter(match="*}_messages", count=1_000):
        found |= dict(redis.zscan_iter(key))
    return found


def test_no_file_that_others_need_stays_with_a_worker(world: World) -> None:
    assert world.objects("reports")
    kept = {
        path.relative_to(worker.home).as_posix()
        for worker in world.workers.values()
        for path in worker.home.rglob("*")
        if path.is_file() and not path.is_relative_to(worker.home / "airflow" / "logs")
    }
    assert {name for name in kept if re.search(r"report|undo|hash_key|\.html$|\.jsonl$", name)} == set()
