"""``session_migration`` as a user runs it: REST API, scheduler, tasks, Spark, PostgreSQL and Redis, all real."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from playwright.sync_api import FrameLocator, expect
from rich.console import Console

from queuekeeper import postgres, redis_client, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.demo.day import Day, DemoOptions, Waiting, side_by_side
from queuekeeper.demo.follow import follow
from queuekeeper.embedded import AirflowClient, AirflowServer, PostgresServer, RedisServer
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests import planted
from tests.browser import chromium, pictured
from tests.integration import airflow_runs
from tests.integration.airflow_pages import signed_in
from tests.patience import PATIENCE_S

# By day the demo (test_demo.py) is a migration by the same DAG, Airflow and Spark. What a form refuses, a question, a
# rejection, a failed verification and what pages start are in tests/dags.
pytestmark = [pytest.mark.integration, pytest.mark.nightly]

DAG = "session_migration"
DATABASE = "integration_migration"
SMALL = {"cohort_count": 8, "quarantine_cap_percent": 50}

asked = partial(airflow_runs.asked, DAG)
decide = partial(airflow_runs.decide, DAG)
states = partial(airflow_runs.states, DAG)
log = partial(airflow_runs.log, DAG)


class World:
    """Servers of this module, with a sample loaded and Redis empty."""

    def __init__(self, airflow: AirflowServer, connection: postgres.Connection, redis: RedisServer) -> None:
        self.airflow = airflow
        self.connection = connection
        self.redis = redis
        self.connection = connection
        self.ledger = MigrationLedger(connection)

    def keys(self) -> int:
        """Return how many keys Redis holds."""
        with redis_client.connect(self.redis.url) as client:
            return int(client.dbsize())


@pytest.fixture(scope="module")
def servers(
    postgres_server: PostgresServer, server_home: Path, redis_servers: Callable[[str], RedisServer]
) -> Iterator[tuple[AirflowServer, str, RedisServer]]:
    """Airflow on a database of its own, connected to a source and a target."""
    source = postgres_server.create_database(DATABASE)
    target = redis_servers("valkey")
    airflow = AirflowServer(
        server_home / "migration-airflow",
        metadata_url=postgres_server.create_database(f"{DATABASE}_airflow"),
        postgres_url=source,
        redis_url=target.url,
        environment={
            "QUEUEKEEPER_HOME": str(server_home / "migration-home"),
            "QUEUEKEEPER_REPORTS_DIR": str(server_home / "migration-reports"),
            # A worker that was killed is noticed within seconds instead of minutes.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        },
        die_with_parent=True,
    )
    airflow.start()
    with airflow.client() as client:
        client.wait_for_dag(DAG)
    yield airflow, source, target
    airflow.stop()
    postgres_server.drop_database(f"{DATABASE}_airflow")
    postgres_server.drop_database(DATABASE)


@pytest.fixture
def world(servers: tuple[AirflowServer, str, RedisServer]) -> Iterator[World]:
    """A sample with hostile rows in the source, no plans, and an empty Redis."""
    airflow, source, target = servers
    target.start()
    with redis_client.connect(target.url) as client:
        client.flushall()
    with postgres.connect(source, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS queuekeeper CASCADE")
        schema_migrations.migrate(connection)
        fill(
            connection,
            SampleParameters(
                messages=4_000,
                sessions=400,
                long_queues=1,
                long_queue_messages=500,
                now_ms=system_clock(),
                hostile=True,
                replace=True,
                create_schema=True,
            ),
        )
        connection.execute(
            "UPDATE device_publish_msg SET payload = %s WHERE ctid IN (SELECT ctid FROM device_publish_msg LIMIT 200)",
            [planted.PAYLOAD],
        )
        yield World(airflow, connection, target)


@pytest.fixture
def client(world: World) -> Iterator[AirflowClient]:
    """REST client of somebody who may trigger and approve; runs that a test leaves behind are ended."""
    with world.airflow.client("operator") as opened:
        yield opened
    with world.airflow.client() as admin:
        for run in admin.call("GET", f"/dags/{DAG}/dagRuns", query={"state": "running"})["dag_runs"]:
            admin.call("PATCH", f"/dags/{DAG}/dagRuns/{run['dag_run_id']}", body={"state": "failed"})


def finished(client: AirflowClient, run_id: str) -> str:
    """Wait until a run has ended."""
    return client.wait_for_run(DAG, run_id, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("layout", [Layout.TBMQ, pytest.param(Layout.PACKED, marks=pytest.mark.nightly)])
def test_user_triggers_approves_and_gets_a_balanced_ledger_and_a_report(
    world: World, client: AirflowClient, layout: Layout
) -> None:
    run_id = client.trigger(DAG, conf=SMALL | {"layout": layout.value})
    question = asked(client, run_id)
    plan = world.ledger.load_plan(world.ledger.plan_of_run(run_id))

    assert question["subject"] == f"Copy {plan.total('to_copy'):,} messages to Redis?"
    assert plan.plan_id in question["body"]
    assert question["options"] == ["Approve", "Reject"]
    assert question["defaults"] == ["Reject"]
    assert world.keys() == 0
    with world.airflow.client("viewer") as viewer, pytest.raises(RefusedError, match="Airflow answered 403"):
        viewer.answer(DAG, run_id, "approve", options=["Approve"])

    decide(client, run_id, "Approve")
    state = finished(client, run_id)

    assert state == "success", {
        task: log(client, run_id, task) for task, s in states(client, run_id).items() if s == "failed"
    }
    found = states(client, run_id)
    # The broker is stopped: no client has to change its owner.
    online = {"catch_up", "rehearse", "cut_over", "soak", "approve_commit", "mirror", "commit"}
    assert {task for task, each in found.items() if each == "skipped"} == online
    assert {each for task, each in found.items() if task not in online} == {"success"}
    assert [task.map_index for task in client.tasks(DAG, run_id) if task.task_id == "copy"] == [0]
    rows = world.ledger.ledger(plan.plan_id)
    assert len(rows) == 8
    assert sum(row.rows_seen for row in rows) == plan.total("messages")
    assert sum(row.unaccounted for row in rows) == 0
    assert sum(row.differences for row in rows) == 0
    assert world.ledger.load_plan(plan.plan_id).state is PlanState.VERIFIED
    with redis_client.connect(world.redis.url) as target:
        names = list(target.scan_iter(count=1_000))
    packed = [name for name in names if name.endswith(b"}_packed")]
    assert len(packed) == (len(names) if layout is Layout.PACKED else 0)
    approval = world.ledger.approval(plan.plan_id)
    assert approval is not None
    assert approval.approved_by == "operator"
    assert client.returned(DAG, run_id, "verify")["plan_id"] == plan.plan_id
    report = client.returned(DAG, run_id, "report")
    assert report["verdict"] == "balanced"
    assert Path(report["html"]).is_file()
    assert " messages (" in log(client, run_id, "copy")
    links = client.call("GET", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/report/links")["extra_links"]
    assert links["Migration report"].startswith("/queuekeeper/run?dag_id=session_migration&run_id=manual__")


def test_rejected_plan_ends_the_run_and_writes_nothing(world: World, client: AirflowClient) -> None:
    """Also: a demo that is to wait for a person shows what is asked, says where to answer, and leaves it to them."""
    run_id = client.trigger(DAG, conf=SMALL)
    said = StringIO()
    with (
        ThreadPoolExecutor(1) as threads,
        world.airflow.client() as admin,
        redis_client.connect(world.redis.url) as redis,
    ):
        day = Day(
            settings=Settings(postgres_url=None, redis_url=None),
            options=DemoOptions(approval="ui"),
            console=Console(file=said, width=200),
            began=time.monotonic(),
            client=admin,
            connection=world.connection,
            redis=redis,
        )
        states = []

        def watch() -> Waiting[None]:
            states.append((yield from follow(day, DAG, run_id, shows_tasks=True, asks=True)))

        demo = threads.submit(side_by_side, [watch()])
        question = asked(client, run_id)
        until_said(said, "Waiting for you to approve or reject: ")
        assert (client.question(DAG, run_id, "approve") or {})["response_received"] is False

        decide(client, run_id, "Reject")
        demo.result(timeout=PATIENCE_S)

    assert states == ["failed"]
    assert question["subject"] in said.getvalue()
    assert f"{world.airflow.url}/dags/{DAG}/runs/{run_id}/tasks/approve/required_actions" in said.getvalue()
    assert "check_approval: failed" in said.getvalue()
    assert "was rejected by operator: nothing was written to Redis" in log(client, run_id, "check_approval")
    _nothing_was_copied(world, client, run_id)


def until_said(said: StringIO, words: str) -> None:
    """Wait until a console has shown some words."""
    deadline = time.monotonic() + PATIENCE_S
    while words not in said.getvalue():
        assert time.monotonic() < deadline, said.getvalue()
        time.sleep(0.1)


def test_question_that_nobody_answers_in_time_counts_as_rejected(world: World, client: AirflowClient) -> None:
    run_id = client.trigger(DAG, conf={**SMALL, "approval_timeout_minutes": 1})
    asked(client, run_id)

    state = finished(client, run_id)

    assert state == "failed"
    reason = "was rejected, as nobody answered in time: nothing was written to Redis; trigger the DAG again"
    assert reason in log(client, run_id, "check_approval")
    _nothing_was_copied(world, client, run_id)


def _nothing_was_copied(world: World, client: AirflowClient, run_id: str) -> None:
    found = states(client, run_id)
    assert found["approve"] == "success"
    assert found["check_approval"] == "failed"
    assert {found[task] for task in ("copy", "verify", "report", "migrated")} == {"upstream_failed"}
    assert world.ledger.approval(world.ledger.plan_of_run(run_id)) is None
    assert world.keys() == 0


def test_unknown_parameter_fails_the_first_task_before_spark_starts(world: World, client: AirflowClient) -> None:
    run_id = client.trigger(DAG, conf={"limt": 5})

    assert finished(client, run_id) == "failed"
    text = log(client, run_id, "plan")
    assert "unknown parameter 'limt' (did you mean 'limit'?)" in text
    assert "Spark-Submit cmd" not in text
    (plan,) = [task for task in client.tasks(DAG, run_id) if task.task_id == "plan"]
    assert plan.try_number == 1


def test_form_refuses_a_value_beyond_its_limits(client: AirflowClient) -> None:
    with pytest.raises(UsageError, match="param limit: limit is 0: it must be an integer from 1 to 65,535"):
        client.trigger(DAG, conf={"limit": 0})


def in_state(client: AirflowClient, run_id: str, task_id: str, wanted: str) -> None:
    """Wait until a task has reached a state."""
    deadline = time.monotonic() + PATIENCE_S
    while (state := states(client, run_id)[task_id]) != wanted:
        assert time.monotonic() < deadline, f"{task_id} stays {state}"
        assert client.run_state(DAG, run_id) == "running", log(client, run_id, task_id)
        time.sleep(0.3)


def copy_driver(client: AirflowClient, run_id: str, *, timeout_s: float = PATIENCE_S) -> psutil.Process:
    """Wait for the Python driver of a run's copy and return it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and client.run_state(DAG, run_id) == "running":
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = process.cmdline()
                if (
                    len(command) > 1
                    and "python" in command[0]
                    and command[1].endswith("spark_jobs/copy_sessions.py")
                    and DATABASE in process.environ().get("QUEUEKEEPER_POSTGRES_URL", "")
                ):
                    return process
        time.sleep(0.1)
    failed = {task: log(client, run_id, task) for task, state in states(client, run_id).items() if state == "failed"}
    raise AssertionError(f"no copy was started: {states(client, run_id)} {failed}")


def copied(world: World, run_id: str, *, more_than: int, timeout_s: float = PATIENCE_S) -> int:
    """Wait until the copy of a run has written more than some messages."""
    plan_id = world.ledger.plan_of_run(run_id)
    deadline = time.monotonic() + timeout_s
    while (done := world.ledger.progress(plan_id, "copy").done) <= more_than:
        assert time.monotonic() < deadline, f"the copy stays at {done} messages"
        time.sleep(0.1)
    return done


def test_failed_verification_of_a_copy_that_its_retries_have_finished_is_reported_and_fails_the_run(
    world: World, client: AirflowClient
) -> None:
    """Its task is killed, then its Redis; neither leaves a driver behind. Once it is finished, messages are lost."""
    run_id = client.trigger(DAG, conf={**SMALL, "throttle_messages_per_s": 100})
    asked(client, run_id)
    decide(client, run_id, "Approve")
    plan_id = world.ledger.plan_of_run(run_id)

    driver = copy_driver(client, run_id)
    done = copied(world, run_id, more_than=0)
    while not re.search(r"copy [\d,]+/[\d,]+ messages \(\d+ %\), \d+/s, [\d,]+ s left", log(client, run_id, "copy")):
        assert driver.is_running(), "the copy ended and its log has told neither rate nor time left"
        time.sleep(0.3)
    jvm = driver.parent()
    assert jvm is not None
    task = psutil.Process(int(driver.environ()["QUEUEKEEPER_SUPERVISOR_PID"]))
    task.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([driver, jvm], timeout=PATIENCE_S)
    assert alive == []

    copy_driver(client, run_id)
    copied(world, run_id, more_than=done)
    world.redis.kill()
    in_state(client, run_id, "copy", "up_for_retry")
    assert "copy_sessions.py lost a server; it can be repeated: Redis at 127.0.0.1:" in log(client, run_id, "copy")

    world.redis.start()
    world.ledger.set_throttle(plan_id, None)
    in_state(client, run_id, "copy", "success")
    (copy,) = [found for found in client.tasks(DAG, run_id) if found.task_id == "copy"]
    assert copy.try_number == 3
    with redis_client.connect(world.redis.url) as redis:
        lost, changed, *_ = sorted(redis.scan_iter(match="*}_messages_*"))
        redis.delete(lost)
        redis.set(changed, json.dumps(json.loads(redis.get(changed)) | {"topicName": "other"}), keepttl=True)
    assert world.ledger.progress(plan_id, "verify").done == 0

    assert finished(client, run_id) == "failed"
    # All that was copied is there but for what was taken out behind it.
    _failed_verification_is_reported(client, run_id, by_kind={"missing": 1, "properties": 1})


def _failed_verification_is_reported(client: AirflowClient, run_id: str, *, by_kind: dict[str, int]) -> None:
    found = states(client, run_id)
    assert (found["verify"], found["report"], found["migrated"]) == ("failed", "success", "upstream_failed")
    (verify,) = [task for task in client.tasks(DAG, run_id) if task.task_id == "verify"]
    assert verify.try_number == 1
    assert f"source and target differ: {sum(by_kind.values())} differences" in log(client, run_id, "verify")
    report = client.returned(DAG, run_id, "report")
    assert report["verdict"] == "not balanced"
    written = json.loads(Path(report["json"]).read_text("utf-8"))
    assert written["differences"]["by_kind"] == by_kind
    page = Path(report["html"]).read_text("utf-8")
    assert "Not balanced" in page
    for difference in written["differences"]["shown"]:
        assert difference["client"] in page


def started_run(frame: FrameLocator) -> str:
    """Return the run that a form says it has started."""
    expect(frame.get_by_role("status")).to_contain_text("Run manual__")
    found = re.search(r"manual__[0-9T:.+-]+", frame.get_by_role("status").inner_text())
    assert found is not None
    return found[0]


def test_person_plans_approves_watches_and_takes_all_back_in_the_browser(
    world: World, client: AirflowClient, tmp_path: Path
) -> None:
    with chromium() as browser:
        page = signed_in(browser, world.airflow, "operator")
        page.goto(f"{world.airflow.url}/plugin/queuekeeper")
        frame = page.frame_locator("iframe")
        frame.get_by_role("link", name="Migration", exact=True).click()
        frame.get_by_role("link", name=re.compile("^Plan (one|another one)$")).click()
        frame.locator("[name=mode]").select_option('"online"')
        for name, value in {**SMALL, "canary_percent": 20, "soak_minutes": 0}.items():
            frame.locator(f"[name={name}]").fill(str(value))
        frame.locator("[name=canary_steps_percent]").fill("50,100")
        pictured(page, tmp_path / "1-form.png")
        frame.get_by_role("button", name="Start the run").click()
        run = started_run(frame)
        asked(client, run)
        plan = world.ledger.load_plan(world.ledger.plan_of_run(run))

        page.goto(f"{world.airflow.url}/plugin/queuekeeper")
        frame.get_by_role("link", name="Migration", exact=True).click()
        frame.get_by_role("link", name=plan.plan_id).first.click()
        expect(frame.get_by_role("heading", name=f"Copy {plan.total('to_copy'):,} messages to Redis?")).to_be_visible()
        pictured(page, tmp_path / "2-plan.png")
        frame.get_by_role("button", name="Approve").click()
        expect(frame.get_by_role("button", name="Approve")).to_have_count(0)
        # An answer that crosses Airflow's own note that the task waits is lost, and the task asks again.
        with suppress(RefusedError):
            decide(client, run, "Approve")

        # The page follows by itself: state, owners, and the second question once all clients were watched.
        patience_ms = PATIENCE_S * 1_000
        expect(frame.locator("#online-redis")).not_to_have_text("0", timeout=patience_ms)
        pictured(page, tmp_path / "3-progress.png")
        expect(frame.get_by_role("heading", name=re.compile("^End the mirror"))).to_be_visible(
            timeout=PATIENCE_S * 1_000
        )
        clients = int(frame.locator("#online-redis").inner_text().replace(",", ""))
        expect(frame.locator("#online-postgres")).to_have_text("0")
        assert clients >= 400
        pictured(page, tmp_path / "4-on-redis.png")

        frame.get_by_role("link", name="a roll-back").click()
        expect(frame.locator("[name=plan_id]")).to_have_value(plan.plan_id)
        frame.get_by_role("button", name="Start the run").click()
        back = started_run(frame)
        question = airflow_runs.asked("session_rollback", client, back)
        assert question["subject"] == f"Give {clients:,} clients back to PostgreSQL?"
        airflow_runs.decide("session_rollback", client, back, "Approve")
        assert client.wait_for_run("session_rollback", back, timeout_s=PATIENCE_S) == "success"

        # Nobody commits what has gone back; the report is written all the same.
        client.answer(DAG, run, "approve_commit", options=["Reject"])
        assert finished(client, run) == "failed"
        page.goto(f"{world.airflow.url}/plugin/queuekeeper")
        frame.get_by_role("link", name="Migration", exact=True).click()
        frame.get_by_role("link", name=plan.plan_id).first.click()
        expect(frame.locator("#online-postgres")).to_have_text(f"{clients:,}")
        expect(frame.locator("#online-redis")).to_have_text("0")
        pictured(page, tmp_path / "5-back.png")
        frame.get_by_role("link", name="Report", exact=True).first.click()
        expect(frame.locator("body")).to_contain_text("✓ Balanced")
        pictured(page, tmp_path / "6-report.png")


def test_nothing_secret_of_all_these_runs_has_come_to_light(
    servers: tuple[AirflowServer, str, RedisServer], postgres_server: PostgresServer, server_home: Path
) -> None:
    airflow, source, target = servers
    secrets = {
        "the payload": planted.SECRETS["the payload"],
        "the password of PostgreSQL": planted.forms((urlsplit(source).password or "").encode()),
        "the password of Redis": planted.forms((urlsplit(target.url).password or "").encode()),
    }
    logs = list(airflow.directory.rglob("*.log"))
    assert {path.stem for path in logs} >= {"api-server", "scheduler", "dag-processor", "triggerer"}
    assert planted.found_in_files(airflow.directory, server_home / "migration-reports", wanted=secrets) == []
    metadata = postgres_server.database_url(f"{DATABASE}_airflow")
    assert planted.found_in_database(metadata, wanted=secrets) == []
    kept = ("plans", "cohorts", "copy_reports", "ledger", "differences", "reports", "audit")
    assert planted.found_in_database(source, wanted=secrets, schema="queuekeeper", tables=kept) == []
    stored = planted.found_in_database(source, wanted=secrets, tables=["device_publish_msg"])
    assert stored == ["the payload in public.device_publish_msg"]
