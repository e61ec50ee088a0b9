"""Runs of a real Airflow over stores with planted payloads and passwords: nothing of them comes to light anywhere.

Logs of tasks and components, XComs and rendered fields in Airflow's database, reports on disk, records, pages and task
metrics are searched; what holds content on purpose is left out by name: undo files and archives.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import psycopg
import pytest
from psycopg import sql

from queuekeeper import postgres, redis_client, schema_migrations, sql_statements
from queuekeeper.clock import system_clock
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.embedded import AirflowServer, PostgresServer, RedisServer
from queuekeeper.events import schema
from queuekeeper.fanout.model import NewMessage as Published
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.maintenance.partitions.policies import save_policy
from queuekeeper.maintenance.partitions.policy import PartitionPolicy
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import planted
from tests.event_samples import publish, subscribe
from tests.integration.airflow_runs import log, states
from tests.integration.otlp import Collector, collector
from tests.patience import PATIENCE_S
from tests.postgres_roles import role_url

# By day test_demo.py searches what a run leaves for passwords, and tests/dags/test_planted_pages.py the pages for all.
pytestmark = [pytest.mark.integration, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
DATABASE = "integration_planted"
ROLE = "planted"
DAY_MS = 86_400_000
RUNS: dict[str, dict[str, Any]] = {
    "compacted_queue_gc": {"retention_s": 0, "override": True},
    "fanout_repair": {"shares": 1},
    "event_upkeep": {"max_stall_s": 3_600},
    "partition_maintenance": {"tables": ["public.readings"]},
    "queue_quality": {"suite": "full", "stores": "both", "cohort_count": 8},
}
SECTIONS = ("", "migration", "queue", "partitions", "quality", "audit", "reports")
RECORDS = (
    "audit", "maintenance_runs", "maintenance_progress", "quality_runs", "quality_results", "profiles",
    "cohort_profiles", "retired_partitions",
)  # fmt: skip
"""What Queuekeeper writes down of runs, and what people read of them; rows of queues name their clients on purpose."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What has run.

    :param ends: state of each run by its DAG.
    :param runs: name of each run by its DAG.
    :param metadata_url: Airflow's database.
    """

    airflow: AirflowServer
    collected: Collector
    home: Path
    metadata_url: str
    postgres_url: str
    ends: dict[str, str]
    runs: dict[str, str]


@pytest.fixture(scope="module")
def world(
    postgres_server: PostgresServer, redis_servers: Callable[[str], RedisServer], server_home: Path
) -> Iterator[World]:
    postgres_server.start()
    home = server_home / "planted-home"
    with ExitStack() as opened:
        collected = opened.enter_context(collector())
        opened.enter_context(_known_to_postgres(postgres_server))
        source = postgres_server.create_database(DATABASE)
        opened.callback(postgres_server.drop_database, DATABASE)
        metadata_url = postgres_server.create_database(f"{DATABASE}_airflow")
        opened.callback(postgres_server.drop_database, f"{DATABASE}_airflow")
        redis = redis_servers("valkey")
        opened.enter_context(_known_to_redis(redis))
        place = urlsplit(redis.url)
        postgres_url = role_url(source, ROLE, word=quote(planted.POSTGRES_PASSWORD, safe=""))
        redis_url = f"redis://{ROLE}:{quote(planted.REDIS_PASSWORD, safe='')}@{place.hostname}:{place.port}"
        _fill(postgres_url, redis_url)
        airflow = AirflowServer(
            server_home / "planted-airflow",
            metadata_url=metadata_url,
            postgres_url=postgres_url,
            redis_url=redis_url,
            dags=_dags(server_home / "planted-checkout"),
            environment={
                "QUEUEKEEPER_HOME": str(home),
                # As docs/deploying.md says.
                "AIRFLOW__METRICS__OTEL_ON": "True",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_METRIC_EXPORT_INTERVAL": "1000",
            },
            die_with_parent=True,
        )
        opened.callback(airflow.stop)
        airflow.start()
        ends, runs = {}, {}
        with airflow.client() as client:
            for dag_id, conf in RUNS.items():
                client.wait_for_dag(dag_id)
                runs[dag_id] = client.trigger(dag_id, conf=conf)
            for dag_id, run_id in runs.items():
                ends[dag_id] = client.wait_for_run(dag_id, run_id, timeout_s=1_200)
        yield World(
            airflow=airflow, collected=collected, home=home, metadata_url=metadata_url, postgres_url=postgres_url,
            ends=ends, runs=runs,
        )  # fmt: skip


@contextmanager
def _known_to_postgres(server: PostgresServer) -> Iterator[None]:
    """Have a superuser with the planted password."""
    role = sql.Identifier(ROLE)
    with psycopg.connect(server.url, autocommit=True) as connection:
        word = sql.Literal(planted.POSTGRES_PASSWORD)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, word))
    yield
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@contextmanager
def _known_to_redis(server: RedisServer) -> Iterator[None]:
    """Have a user with the planted password, on an empty server."""
    with redis_client.connect(server.url) as client:
        anything: Any = client
        anything.flushall()
        anything.execute_command("ACL", "SETUSER", ROLE, "on", f">{planted.REDIS_PASSWORD}", "~*", "&*", "+@all")
        yield
        anything.execute_command("ACL", "DELUSER", ROLE)


def _dags(folder: Path) -> Path:
    """Copy the DAGs that run, without their schedules: nothing but what the test asks for runs beside it."""
    for name in ("dags", "spark_jobs"):
        shutil.copytree(ROOT / name, folder / name)
    for path in (folder / "dags").glob("*.py"):
        if path.stem in RUNS:
            text, replaced = re.subn(r'schedule="[^"]+"', "schedule=None", path.read_text("utf-8"))
            assert replaced == 1, path
            path.write_text(text, "utf-8")
        else:
            path.unlink()
    return folder / "dags"


def _fill(postgres_url: str, redis_url: str) -> None:
    """Plant payloads in every kind of queue, each with something to do about it."""
    now_ms = system_clock()
    messages = tuple(
        NewMessage(topic=f"t/{planted.PAYLOAD.decode()}", payload=planted.PAYLOAD, qos=1, time_ms=now_ms)
        for _ in range(3)
    )
    saves = [SessionSave(client_id=planted.CLIENT, messages=messages)]
    with redis_client.connect(redis_url) as client, postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        schema_migrations.migrate(connection)
        schema.install(connection)
        for store in (PostgresSessionStore(connection), RedisSessionStore(client)):
            (report,) = store.save_messages(saves)
            assert report.error is None
        # Something to find: a record that nobody can read, and a counter that is behind.
        client.set("{" + planted.CLIENT + "}_messages_2", planted.PAYLOAD, keepttl=True)
        client.set("{" + planted.CLIENT + "}_last_packet_id", 1)
        connection.execute("UPDATE device_publish_msg SET packet_type = 'planted' WHERE serial_number = 1")
        compacted = CompactedQueues(client, clock=lambda: now_ms - 30 * DAY_MS)
        compacted.append(planted.CLIENT, [Append(key=b"%d" % n, value=planted.PAYLOAD) for n in range(5)])
        fanout = FanoutQueues(client, clock=lambda: now_ms - DAY_MS)
        fanout.register("planted-queue", consumer="billing")
        fanout.publish("planted-queue", [Published(body=planted.PAYLOAD)] * 3)
        fanout.claim("planted-queue", consumer="billing", count=2, lease_ms=1_000)
        # A condition whose failure quotes what it fails on.
        subscribe(connection, "broken", condition="(e.payload ->> 'text')::int > 7")
        subscribe(connection, "expired", group="other")
        connection.execute(
            "UPDATE pgmb.subscriptions SET expiry_interval = '1 s', last_active_at = now() - interval '1 hour'"
            " WHERE id = 'expired'"
        )
        publish(connection, {"text": planted.PAYLOAD.decode()})
        connection.execute("CREATE TABLE readings (at timestamptz NOT NULL, text text) PARTITION BY RANGE (at)")
        connection.execute(
            "CREATE TABLE readings_1 PARTITION OF readings FOR VALUES FROM ('2026-01-01+00') TO ('2026-01-02+00')"
        )
        connection.execute("INSERT INTO readings VALUES ('2026-01-01 12:00+00', %s)", (planted.PAYLOAD.decode(),))
        save_policy(
            connection,
            PartitionPolicy(table="public.readings", step="1 day", ahead="2 days", retention="30 days", archive=True),
        )


def test_each_run_has_done_its_work(world: World) -> None:
    with world.airflow.client() as client:
        found = {dag_id: states(dag_id, client, run_id) for dag_id, run_id in world.runs.items()}
        # What was planted is critical to quality, and nobody mends it.
        assert found["queue_quality"]["report"] == "success", found
        others = {dag_id: end for dag_id, end in world.ends.items() if dag_id != "queue_quality"}
        failed = {
            dag_id: log(dag_id, client, world.runs[dag_id], "report")
            for dag_id, end in others.items()
            if end != "success"
        }
    assert failed == {}, found
    with postgres.connect(world.postgres_url) as connection:
        (archived,) = connection.execute(
            "SELECT count(*) FROM queuekeeper.retired_partitions WHERE archived_at IS NOT NULL"
        ).fetchall()[0]
        assert archived == 1
    assert list((world.home / "reports").glob("*.html"))


def test_it_is_found_where_it_belongs(world: World) -> None:
    payload = ["the payload in public.device_publish_msg"]
    stored = planted.found_in_database(world.postgres_url, wanted=planted.SECRETS, tables=["device_publish_msg"])
    assert stored == payload
    # A collection notes what it takes away before it does.
    assert planted.found_in_files(world.home / "undo", wanted=planted.SECRETS) != []


def test_nothing_of_it_is_in_logs_and_reports(world: World) -> None:
    logs = list(world.airflow.directory.rglob("*.log"))
    assert {path.stem for path in logs} >= {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert len(logs) > 20
    kept = [world.home / "undo", world.home / "archives"]
    folders = (world.airflow.directory, world.home)
    assert planted.found_in_files(*folders, wanted=planted.SECRETS, leaving_out=kept) == []
    assert planted.found_in_files(*folders, wanted=planted.CLIENTS, leaving_out=kept) == []


def test_nothing_of_it_is_in_airflows_database_and_in_the_records(world: World) -> None:
    everything = planted.EVERYTHING
    with psycopg.connect(world.metadata_url) as connection:
        for table in ("xcom", "rendered_task_instance_fields", "task_instance", "log"):
            counted = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
            assert counted != (0,), table
    assert planted.found_in_database(world.metadata_url, wanted=everything) == []
    assert planted.found_in_database(world.postgres_url, wanted=everything, schema="queuekeeper", tables=RECORDS) == []


def test_nothing_of_it_is_on_pages(world: World) -> None:
    user = world.airflow.user()
    paths = [f"/{section}" for section in SECTIONS]
    for dag_id, run_id in world.runs.items():
        paths += [f"/{page}?dag_id={dag_id}&run_id={quote(run_id)}" for page in ("run", "run/progress")]
        paths.append(f"/task?dag_id={dag_id}&run_id={quote(run_id)}&task_id=report")
    paths += [f"/reports/{report.name}" for report in (world.home / "reports").glob("*.*")]
    with httpx.Client(base_url=world.airflow.url, timeout=PATIENCE_S, follow_redirects=True) as client:
        token = client.post("/auth/token", json={"username": user.name, "password": user.password}).json()
        client.headers["Authorization"] = f"Bearer {token['access_token']}"
        client.headers["Accept"] = "text/html"
        for path in paths:
            answer = client.get(f"/queuekeeper{path}")
            assert answer.status_code in (200, 404), path
            assert planted.found_in(answer.content) == [], path
            assert planted.found_in(answer.content, planted.CLIENTS) == [], path


def test_task_metrics_arrive_at_a_collector_and_hold_none_of_it(world: World) -> None:
    def arrived() -> set[tuple[str, str]]:
        return {
            (attributes.get("dag_id", ""), attributes.get("task_id", ""))
            for attributes, _ in world.collected.points().get("airflow.task.duration", [])
        }

    wanted = {("event_upkeep", "watch"), ("queue_quality", "check"), ("compacted_queue_gc", "plan")}
    deadline = time.monotonic() + PATIENCE_S
    while not wanted <= arrived():
        assert time.monotonic() < deadline, sorted(world.collected.points())
        time.sleep(0.5)
    points = world.collected.points()
    assert {"airflow.dagrun.duration.success", "airflow.ti.finish", "airflow.scheduler_heartbeat"} <= set(points)
    durations = [value for _, value in points["airflow.task.duration"]]
    assert min(durations) >= 0
    assert [name for body in world.collected.bodies for name in planted.found_in(body, planted.EVERYTHING)] == []
