"""From a finding to its remedy as a person goes: a real Airflow, a browser, the report's link, the form, the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from queuekeeper import postgres, redis_client, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.embedded import AirflowServer, PostgresServer, RedisServer
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.quality.report.gather import compose_report, write_report
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests import quality_samples as samples
from tests.integration.airflow_pages import signed_in
from tests.integration.airflow_runs import asked, decide, log, states
from tests.patience import PATIENCE_S
from tests.quality_rows import hash_of, queue, save_profile

# By day: the demo looks at queues by this DAG; tests/dags has what a form starts, who may, and both answers.
pytestmark = [pytest.mark.integration, pytest.mark.nightly]

DATABASE = "integration_quality"
expect.set_options(timeout=PATIENCE_S * 1_000)
CONNECTIONS = {"postgres_conn_id": "queuekeeper_postgres", "redis_conn_id": "queuekeeper_redis"}


@pytest.fixture(scope="module")
def reports(server_home: Path) -> Path:
    return server_home / "quality-reports"


@pytest.fixture(scope="module")
def airflow(
    postgres_server: PostgresServer, server_home: Path, reports: Path, redis_servers: Callable[[str], RedisServer]
) -> Iterator[AirflowServer]:
    """Airflow on a database of its own; the folder of reports holds one with findings."""
    source = postgres_server.create_database(DATABASE)
    with postgres.connect(source, autocommit=True) as connection:
        schema_migrations.migrate(connection)
    server = AirflowServer(
        server_home / "quality-airflow",
        metadata_url=postgres_server.create_database(f"{DATABASE}_airflow"),
        postgres_url=source,
        redis_url=redis_servers("valkey").url,
        environment={
            "QUEUEKEEPER_HOME": str(server_home / "quality-home"),
            "QUEUEKEEPER_REPORTS_DIR": str(reports),
        },
        die_with_parent=True,
    )
    server.start()
    with server.client() as client:
        for dag_id in ("session_repair", "expired_reference_cleanup"):
            client.wait_for_dag(dag_id)
        # As an operator finds it.
        client.call("PATCH", "/dags/session_repair", body={"is_paused": True})
    forms_url = f"{server.url}/queuekeeper/trigger"
    report = compose_report(samples.failed(), now_ms=samples.NOW_MS, forms_url=forms_url, form_values=CONNECTIONS)
    write_report(report, reports)
    yield server
    server.stop()
    postgres_server.drop_database(f"{DATABASE}_airflow")
    postgres_server.drop_database(DATABASE)


def remedy_form(page: Page, airflow: AirflowServer) -> FrameLocator:
    """Go from the page in the navigation to the report and on to the form of a remedy, inside Airflow's own frame."""
    page.goto(f"{airflow.url}/plugin/queuekeeper")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="Reports", exact=True).click()
    frame.get_by_role("link", name="Report of quality").first.click()
    frame.get_by_role("link", name="Open session_repair (repair counter) with its form filled in").click()
    expect(frame.get_by_role("heading", name="session_repair")).to_be_visible()
    return frame


def test_operator_goes_from_a_finding_to_a_started_remedy(browser: Browser, airflow: AirflowServer) -> None:
    page = signed_in(browser, airflow, "operator")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))

    frame = remedy_form(page, airflow)

    expect(frame.locator("[name=remedy]")).to_have_value('"repair_counter"')
    expect(frame.locator("[name=quality_run_id]")).to_have_value(samples.RUN_ID)
    expect(frame.locator("[name=cohorts]")).to_have_value("0-3,7")
    expect(frame.locator("[name=dry_run]")).to_be_checked()
    frame.locator("[name=cohorts]").fill("5")
    frame.get_by_role("button", name="Start the run").click()
    expect(frame.get_by_role("status")).to_contain_text("Run manual__")

    with airflow.client() as client:
        (run,) = client.call("GET", "/dags/session_repair/dagRuns")["dag_runs"]
        assert client.call("GET", "/dags/session_repair")["is_paused"] is False
    assert run["triggering_user_name"] == "operator"
    conf = run["conf"]
    assert (conf["remedy"], conf["cohorts"], conf["dry_run"]) == ("repair_counter", "5", True)
    assert conf["quality_run_id"] == samples.RUN_ID
    assert {name: conf[name] for name in CONNECTIONS} == CONNECTIONS
    assert [url for url in requests if not url.startswith((airflow.url, "data:", "blob:"))] == []
    page.close()


def test_viewer_sees_the_form_and_may_not_start_the_run(browser: Browser, airflow: AirflowServer) -> None:
    page = signed_in(browser, airflow, "viewer")

    frame = remedy_form(page, airflow)
    frame.get_by_role("button", name="Start the run").click()

    expect(frame.locator("body")).to_contain_text("Forbidden")
    expect(frame.locator("body")).to_contain_text("You may not start runs of session_repair.")
    with airflow.client() as client:
        runs = client.call("GET", "/dags/session_repair/dagRuns")["dag_runs"]
    assert "viewer" not in [run["triggering_user_name"] for run in runs]
    page.close()


def test_cleanup_and_repair_do_what_a_person_approves_and_nothing_that_one_rejects(
    airflow: AirflowServer, postgres_server: PostgresServer, redis_servers: Callable[[str], RedisServer]
) -> None:
    keys = session_keys("meter-1")
    repair = {
        "remedy": "repair_counter", "quality_run_id": "quality-1", "client_hashes": [hash_of("meter-1")],
        "dry_run": False,
    }  # fmt: skip
    wishes: dict[str, dict[str, Any]] = {"expired_reference_cleanup": {"default_ttl_s": 60}, "session_repair": repair}
    database = postgres_server.database_url(DATABASE)
    save_profile(database, queue("meter-1", counter_behind=1))
    with (
        redis_client.connect(redis_servers("valkey").url) as redis,
        postgres.connect(database, autocommit=True) as connection,
        airflow.client("operator") as client,
    ):
        redis.flushall()
        message = NewMessage(topic="t", payload=b"1", qos=1, time_ms=system_clock(), expiry_interval_s=3_600)
        RedisSessionStore(redis).save_messages([SessionSave(client_id="meter-1", messages=(message,) * 3)])
        # Written by a broker that counted wrongly, and one message has expired.
        redis.delete(payload_key("meter-1", 1), keys.session)
        redis.set(keys.last_packet_id, 2)
        connection.execute(
            "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
            " VALUES ('quality-1', 'full', '{sessions_redis}', '{redis-1}')"
        )
        with airflow.client() as admin:
            admin.wait_for_dag("session_repair")
        found = {}
        for option in ("Reject", "Approve"):
            runs = {dag_id: client.trigger(dag_id, conf=conf) for dag_id, conf in wishes.items()}
            subjects = {dag_id: asked(dag_id, client, run_id)["subject"] for dag_id, run_id in runs.items()}
            assert subjects == {
                "expired_reference_cleanup": (
                    "References and messages to be removed: 1; keys to be given an expiry: 0. Clean?"
                ),
                "session_repair": "repair_counter: 1 change to be made in Redis. Go on?",
            }
            assert (redis.zcard(keys.messages), redis.get(keys.last_packet_id)) == (3, b"2")
            for dag_id, run_id in runs.items():
                decide(dag_id, client, run_id, option)
            ends = {
                dag_id: client.wait_for_run(dag_id, run_id, timeout_s=PATIENCE_S) for dag_id, run_id in runs.items()
            }
            found[option] = ends, runs

        ends, runs = found["Reject"]
        assert set(ends.values()) == {"failed"}
        refusals = {"expired_reference_cleanup": "check_approval", "session_repair": "apply"}
        for dag_id, task_id in refusals.items():
            refusal = log(dag_id, client, runs[dag_id], task_id)
            assert "was rejected by operator: nothing was written to Redis" in refusal
        ends, runs = found["Approve"]
        assert set(ends.values()) == {"success"}, {dag_id: states(dag_id, client, runs[dag_id]) for dag_id in runs}
        assert (redis.zrange(keys.messages, 0, -1), redis.get(keys.last_packet_id)) == (
            [payload_key("meter-1", n).encode() for n in (2, 3)],
            b"3",
        )
        records = MaintenanceRuns(connection)
        for kind in ("expired_reference_cleanup", "repair_counter"):
            newest = records.latest_id(kind)
            assert newest is not None
            record = records.load(newest)
            assert (record.state, record.approved_by) == (RunState.DONE, "operator")
