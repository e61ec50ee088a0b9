"""Runs of ``queue_quality`` inside this process, by ``dag.test()``: Spark, Great Expectations and Redis are real."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.models.asset import AssetEvent
from airflow.utils.session import create_session
from sqlalchemy import select

from queuekeeper import postgres, redis_client, schema_migrations
from queuekeeper.airflow.assets import SESSION_QUALITY
from queuekeeper.airflow.run_index import report_of
from queuekeeper.clock import system_clock
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.events.schema import install
from queuekeeper.fanout.model import NewMessage as FanoutMessage
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.keyspace import compacted_keys, fanout_keys, session_keys
from queuekeeper.quality.judge.store import QualityStore
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

CLIENTS = [f"meter/{number}" for number in range(40)]
FULL = {"suite": "full", "cohort_count": 4}


@pytest.fixture
def queue_quality(dag_bag: DagBag) -> DAG:
    """The DAG under test, as a copy of the test's own."""
    return copy.deepcopy(dag_bag.dags["queue_quality"])


@pytest.fixture
def redis(
    postgres_url: str,
    valkey_url: str,
    tmp_path: Path,
    local_spark: None,
    connections: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[RedisClient]:
    """Healthy queues, a control schema and Airflow's own database."""
    monkeypatch.setenv("QUEUEKEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow.example.org/ops")
    connections(queuekeeper_postgres=postgres_url, queuekeeper_redis=valkey_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
    with redis_client.connect(valkey_url) as client:
        store = RedisSessionStore(client)
        message = NewMessage(topic="meters", payload=b"17", qos=1, time_ms=system_clock())
        store.save_messages([SessionSave(client_id=client_id, messages=(message,) * 3) for client_id in CLIENTS])
        yield client


def run(dag: DAG, **conf: Any) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Run the DAG and return the run's state, its tasks' states, and what its tasks returned."""
    done = dag.test(run_conf=FULL | conf)
    tasks = done.get_task_instances()
    returned = {task.task_id: task.xcom_pull(task_ids=task.task_id) for task in tasks}
    return done.run_id, {task.task_id: str(task.state) for task in tasks}, returned


def asset_events() -> list[dict[str, Any]]:
    """Return what dependents were told, oldest first."""
    with create_session() as session:
        events = session.scalars(select(AssetEvent).order_by(AssetEvent.id))
        return [event.extra for event in events if event.asset.uri == SESSION_QUALITY.uri]


def test_critical_finding_is_reported_and_keeps_dependents_waiting(
    queue_quality: DAG, redis: RedisClient, tmp_path: Path
) -> None:
    redis.set(session_keys(CLIENTS[7]).last_packet_id, 1)
    docs = tmp_path / "docs"

    run_id, states, returned = run(queue_quality, data_docs=str(docs))

    assert 'href="sessions_redis.html"' in (docs / "index.html").read_text("utf-8")
    assert "Failed" in (docs / "sessions_redis.html").read_text("utf-8")

    assert states == {
        "profile_redis": "success",
        "profile_postgres": "skipped",
        "check": "success",
        "report": "success",
        "publish": "failed",
    }
    found = {finding["check"]: finding for finding in returned["check"]["findings"]}
    assert found["Q11"]["priority"] == "P0"
    assert found["Q11"]["unexpected"] == 1
    assert asset_events() == []
    written = json.loads(Path(returned["report"]["json"]).read_text("utf-8"))
    assert written["verdict"] == "failed"
    (finding,) = [line for line in written["results"] if line["check_id"] == "Q11" and line["status"] == "failed"]
    assert finding["remedy_conf"] == {
        "remedy": "repair_counter",
        "quality_run_id": returned["check"]["quality_run_id"],
        "cohorts": "all",
        "dry_run": True,
        "postgres_conn_id": "queuekeeper_postgres",
        "redis_conn_id": "queuekeeper_redis",
    }
    sent = found["Q11"]
    assert set(finding) <= set(sent)
    # What stands as text has the order in which the database keeps it.
    assert {name for name in finding if sent[name] != finding[name]} <= {"trigger", "remedy_url"}
    assert sent["remedy_url"].startswith("http://airflow.example.org/ops/queuekeeper/trigger/session_repair?")
    assert finding["remedy_url"].startswith("http://airflow.example.org/ops/queuekeeper/trigger/session_repair?")
    page = Path(returned["report"]["html"]).read_text("utf-8")
    assert CLIENTS[7] not in page + json.dumps([written, returned])
    note = report_of(tmp_path / "home" / "reports", dag_id="queue_quality", run_id=run_id)
    assert note is not None
    assert note.html == Path(returned["report"]["html"]).name


# By day: tests/integration/test_demo.py, in a real Airflow.
@pytest.mark.nightly
def test_dependents_are_told_once_what_was_found_is_mended(
    queue_quality: DAG, redis: RedisClient, dag_bag: DagBag
) -> None:
    redis.set(session_keys(CLIENTS[7]).last_packet_id, 1)
    assert run(queue_quality)[1]["publish"] == "failed"

    redis.set(session_keys(CLIENTS[7]).last_packet_id, 3)
    _, states, returned = run(copy.deepcopy(dag_bag.dags["queue_quality"]), contents=True)

    assert states["publish"] == "success"
    (told,) = asset_events()
    assert told == returned["publish"]
    assert told["quality_run_id"] == returned["check"]["quality_run_id"]
    assert told["verdict"] in ("passed", "warned")


def damaged_compacted(client: RedisClient, _: str) -> None:
    CompactedQueues(client).append("meter/1", [Append(key=key, value=b"1") for key in (b"a", b"b")])
    client.hdel(compacted_keys("meter/1").values, "a")


def damaged_fanout(client: RedisClient, _: str) -> None:
    queues = FanoutQueues(client)
    queues.register("orders", consumer="billing")
    queues.publish("orders", [FanoutMessage(body=b"1")])
    client.delete(fanout_keys("orders").messages)


def installed_events(_: RedisClient, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        install(connection)


@pytest.mark.parametrize(
    ("stores", "prepare", "found", "publish"),
    [
        ("compacted", damaged_compacted, {("Q23", "P1")}, "skipped"),
        ("fanout", damaged_fanout, {("Q25", "P0")}, "failed"),
        ("events", installed_events, set(), "skipped"),
    ],
)
def test_run_about_other_queues_reads_them_without_spark_and_tells_nobody_of_sessions(
    queue_quality: DAG,
    redis: RedisClient,
    postgres_url: str,
    stores: str,
    prepare: Callable[[RedisClient, str], None],
    found: set[tuple[str, str]],
    publish: str,
) -> None:
    prepare(redis, postgres_url)
    told = asset_events()

    _, states, returned = run(queue_quality, stores=stores)

    assert states == {
        "profile_redis": "skipped",
        "profile_postgres": "skipped",
        "check": "success",
        "report": "success",
        "publish": publish,
    }
    assert {(each["check"], each["priority"]) for each in returned["check"]["findings"]} >= found
    written = json.loads(Path(returned["report"]["json"]).read_text("utf-8"))
    shown = {line["check_id"]: line for line in written["results"] if line["status"] == "failed"}
    for number, _ in found:
        remedy, url = shown[number]["remedy"], shown[number]["remedy_url"]
        assert url.startswith("http://airflow.example.org/ops/queuekeeper/trigger/") or remedy == url == ""
    assert asset_events() == told


def test_one_run_reads_all_queues_in_redis_so_that_depth_and_lag_stand_in_one_report(
    queue_quality: DAG, redis: RedisClient, postgres_url: str
) -> None:
    CompactedQueues(redis).append("meter/1", [Append(key=key, value=b"1") for key in (b"a", b"b")])
    queues = FanoutQueues(redis)
    queues.register("orders", consumer="billing")
    queues.publish("orders", [FanoutMessage(body=b"%d" % number) for number in range(3)])

    _, states, returned = run(queue_quality, stores="all_redis")

    assert states == dict.fromkeys(states, "success") | {"profile_postgres": "skipped"}
    with postgres.connect(postgres_url) as connection:
        [judged] = QualityStore(connection).runs(limit=1, finished=True)
    assert judged.quality_run_id == returned["check"]["quality_run_id"]
    assert {"sessions_redis", "compacted", "fanout"} <= set(judged.suites)
    assert judged.numbers["queues"] == len(CLIENTS) + 2
    assert judged.numbers["waiting"] == 2 + 3
