"""The private servers together: up, status and down, and an Airflow that a user can work with."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from pydantic import SecretStr

from queuekeeper import embedded
from queuekeeper.config import Settings
from queuekeeper.embedded import AirflowClient, AirflowServer
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration
# By day test_demo.py starts an Airflow, has its runs approved and ends it.
with_airflow = pytest.mark.nightly

DAG = """
import os, subprocess, sys
INHERITED = "queuekeeper.airflow.operators.jobs" in sys.modules
import pendulum
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param, dag, task
from airflow.sdk.bases.hook import BaseHook
from queuekeeper.airflow.forms import form
from queuekeeper.migration.ledger.parameters import OnlineWish

PARAMS = {"sleep_s": Param(0, type="integer", minimum=0), **form(OnlineWish)}

@dag(schedule=None, start_date=pendulum.datetime(2020, 1, 1), params=PARAMS)
def probe():
    @task(pool="queuekeeper_spark")
    def work(params):
        found = {name: BaseHook.get_connection(name).host for name in ("queuekeeper_postgres", "queuekeeper_redis")}
        if params["sleep_s"]:
            child = subprocess.Popen(["sleep", str(params["sleep_s"])], start_new_session=True)
            print(f"started {child.pid}", flush=True)
            child.wait()
        found |= {"java": os.environ["JAVA_HOME"], "home": os.environ["QUEUEKEEPER_HOME"], "inherited": INHERITED}
        return found

    work() >> ApprovalOperator(task_id="approve", subject="Go on?", body="It is a **probe**.", defaults="Reject")

probe()
"""


@pytest.fixture(scope="module")
def settings(server_home: Path) -> Iterator[Settings]:
    home = server_home / "stack"
    made = Settings(home=home, spark_master="local[2]", postgres_url=None, redis_url=None)
    yield made
    embedded.erase(made)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def airflow(settings: Settings, server_home: Path) -> Iterator[AirflowServer]:
    embedded.up(settings, die_with_parent=True)
    dags = server_home / "probe-dags"
    dags.mkdir()
    (dags / "probe.py").write_text(DAG, "utf-8")
    (server_home / "probe-plugins").mkdir()
    urls = embedded.server_urls(settings)
    private = embedded.PostgresServer(settings.home / "postgres")
    server = AirflowServer(
        settings.home / "airflow",
        metadata_url=private.create_database("airflow"),
        postgres_url=urls.postgres.get_secret_value(),
        redis_url=urls.redis.get_secret_value(),
        dags=dags,
        plugins=server_home / "probe-plugins",
        environment={"QUEUEKEEPER_HOME": str(settings.home)},
        die_with_parent=True,
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def admin(airflow: AirflowServer) -> Iterator[AirflowClient]:
    with airflow.client() as client:
        client.wait_for_dag("probe")
        yield client


def test_up_twice_changes_nothing_and_keeps_the_processes(settings: Settings) -> None:
    first = embedded.up(settings, die_with_parent=True)
    begun = [psutil.Process(server.pid).create_time() for server in first.servers if server.pid is not None]
    assert len(begun) >= 2
    assert embedded.up(settings, die_with_parent=True) == first
    assert [psutil.Process(server.pid).create_time() for server in first.servers if server.pid is not None] == begun
    assert [(server.name, server.state) for server in first.servers][:2] == [
        ("postgres", "running"),
        ("redis", "running"),
    ]
    assert first.server("redis").version is not None
    urls = embedded.server_urls(settings)
    with psycopg.connect(urls.postgres.get_secret_value()) as connection:
        assert connection.info.dbname == "queuekeeper"
    with redis.Redis.from_url(urls.redis.get_secret_value()) as client:
        assert client.ping()


def test_what_is_shown_holds_no_password(settings: Settings) -> None:
    shown = repr(embedded.up(settings, die_with_parent=True))
    for name in ("postgres", "redis"):
        assert (settings.home / name / "password").read_text("utf-8").strip() not in shown


def test_servers_named_in_the_settings_are_neither_started_nor_stopped(settings: Settings, server_home: Path) -> None:
    home = server_home / "elsewhere"
    embedded.up(settings, die_with_parent=True)
    urls = embedded.server_urls(settings)
    other = Settings(
        home=home, postgres_url=urls.postgres, redis_url=SecretStr(urls.redis.get_secret_value() + "?password=hidden")
    )
    status = embedded.up(other, die_with_parent=True)
    assert [server.state for server in status.servers[:2]] == ["external", "external"]
    assert "hidden" not in repr(status)
    assert urls.postgres.get_secret_value().split(":")[2].split("@")[0] not in repr(status)
    assert embedded.server_urls(other).postgres == urls.postgres
    assert embedded.down(other).names == ()
    assert embedded.status(settings).server("postgres").state == "running"
    assert not (home / "postgres").exists()


def test_addresses_of_servers_that_are_down_say_what_to_do(server_home: Path) -> None:
    cold = Settings(home=server_home / "cold", postgres_url=None, redis_url=None)
    with pytest.raises(ServerUnavailable, match="is not running: start it by `queuekeeper up`"):
        embedded.server_urls(cold)
    assert {server.state for server in embedded.status(cold).servers} == {"stopped"}
    assert embedded.down(cold).names == ()
    assert not cold.home.exists()


@with_airflow
def test_a_user_triggers_approves_and_reads_the_result(admin: AirflowClient, settings: Settings) -> None:
    assert admin.import_errors() == []
    run = admin.trigger("probe")
    deadline = time.monotonic() + PATIENCE_S
    while (question := admin.question("probe", run, "approve")) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert question is not None
    assert question["subject"] == "Go on?"
    admin.answer("probe", run, "approve", options=["Approve"])
    assert admin.wait_for_run("probe", run, timeout_s=PATIENCE_S) == "success"
    assert {task.task_id: task.state for task in admin.tasks("probe", run)} == {"work": "success", "approve": "success"}
    found = admin.returned("probe", run, "work")
    assert found["queuekeeper_postgres"] == found["queuekeeper_redis"] == "127.0.0.1"
    assert found["home"] == str(settings.home)
    assert (Path(found["java"]) / "bin" / "java").exists()
    # A task is forked from a process that has imported what DAGs need.
    assert found["inherited"] is True


@with_airflow
def test_wrong_parameters_and_missing_rights_are_told_apart(airflow: AirflowServer, admin: AirflowClient) -> None:
    with pytest.raises(UsageError, match=r"Airflow answered 400 .*minimum of 0"):
        admin.trigger("probe", conf={"sleep_s": -1})
    # Airflow's own server carries out the check of a parameter, which JSON schema cannot tell.
    with pytest.raises(UsageError, match=r"canary_steps_percent is '10,5,100': it must be rising percentages"):
        admin.trigger("probe", conf={"canary_steps_percent": "10,5,100"})
    with pytest.raises(RefusedError, match="Airflow answered 403"), airflow.client("viewer") as viewer:
        viewer.trigger("probe")
    guest = AirflowClient(airflow.url, user="admin", password="guess")
    with pytest.raises(RefusedError, match="does not let admin sign in"), guest:
        guest.trigger("probe")
    with pytest.raises(ServerUnavailable, match="has not found the DAG absent"):
        admin.wait_for_dag("absent", timeout_s=0)


@with_airflow
def test_button_of_a_connection_says_which_server_answers(admin: AirflowClient, settings: Settings) -> None:
    urls = embedded.server_urls(settings)
    for kind, url, says in (
        ("queuekeeper_postgres", urls.postgres, "PostgreSQL 127.0.0.1"),
        ("queuekeeper_redis", urls.redis, "Valkey"),
    ):
        address = urlsplit(url.get_secret_value())
        form = {
            "connection_id": "typed", "conn_type": kind, "host": address.hostname, "port": address.port,
            "login": address.username, "password": address.password, "schema": address.path.strip("/"),
        }  # fmt: skip
        tested = admin.call("POST", "/connections/test", body=form)
        assert tested["status"] is True
        assert says in tested["message"]
        refused = admin.call("POST", "/connections/test", body={**form, "password": "guess"})
        assert refused["status"] is False
        assert "password" in refused["message"]


@with_airflow
def test_only_the_api_port_is_open_and_only_on_loopback(airflow: AirflowServer) -> None:
    ports = set()
    for component in airflow.components.values():
        record = component.running()
        assert record is not None
        for process in (psutil.Process(record.pid), *psutil.Process(record.pid).children(recursive=True)):
            ports |= {c.laddr for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert {(address.ip, address.port) for address in ports} == {("127.0.0.1", airflow.port)}


@with_airflow
def test_starting_a_running_airflow_keeps_its_processes_users_and_pools(
    airflow: AirflowServer, admin: AirflowClient
) -> None:
    resized = {"pool": "queuekeeper_spark", "slots": 2, "include_deferred": False}
    admin.call("PATCH", "/pools/queuekeeper_spark", body=resized)
    user = airflow.user()
    before = airflow.start()
    records = {name: component.running() for name, component in airflow.components.items()}
    assert None not in records.values()
    assert airflow.start() == before
    assert {name: component.running() for name, component in airflow.components.items()} == records
    assert airflow.user() == user
    assert admin.call("GET", "/pools/queuekeeper_spark")["slots"] == 2
    assert (airflow.directory / "passwords.json").stat().st_mode & 0o777 == 0o600
    assert json.loads((airflow.directory / "passwords.json").read_text("utf-8"))["admin"] == user.password


@with_airflow
def test_down_ends_airflow_together_with_what_its_tasks_started(
    airflow: AirflowServer, admin: AirflowClient, settings: Settings
) -> None:
    run = admin.trigger("probe", conf={"sleep_s": 600})
    sleeper: psutil.Process | None = None
    deadline = time.monotonic() + PATIENCE_S
    while sleeper is None and time.monotonic() < deadline:
        time.sleep(0.2)
        for task in admin.tasks("probe", run):
            lines = admin.log("probe", run, task) if task.task_id == "work" and task.state == "running" else []
            started = [line.split()[1] for line in lines if line.startswith("started ")]
            sleeper = psutil.Process(int(started[0])) if started else sleeper
    assert sleeper is not None
    components = [process.running() for process in airflow.components.values()]
    stopped = embedded.down(settings)
    assert stopped.names == ("api-server", "scheduler", "dag-processor", "triggerer", "redis", "postgres")
    left = [sleeper, *(psutil.Process(r.pid) for r in components if r is not None and psutil.pid_exists(r.pid))]
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert embedded.down(settings).names == ()
