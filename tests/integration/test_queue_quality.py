"""From a finding to its remedy as a person goes: a real Airflow, a browser, the report's link, the filled-in form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FrameLocator, Page, expect

from queuekeeper import postgres
from queuekeeper.embedded import AirflowServer, PostgresServer, RedisServer
from queuekeeper.quality.report import compose_report, write_report
from tests import quality_samples as samples
from tests.browser import chromium

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

DATABASE = "integration_quality"
PATIENCE_MS = 120_000
expect.set_options(timeout=PATIENCE_MS)
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
        postgres.migrate(connection)
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
        client.wait_for_dag("session_repair")
        # As an operator finds it.
        client.call("PATCH", "/dags/session_repair", body={"is_paused": True})
    forms_url = f"{server.url}/queuekeeper/trigger"
    report = compose_report(samples.failed(), now_ms=samples.NOW_MS, forms_url=forms_url, form_values=CONNECTIONS)
    write_report(report, reports)
    yield server
    server.stop()
    postgres_server.drop_database(f"{DATABASE}_airflow")
    postgres_server.drop_database(DATABASE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def signed_in(browser: Browser, airflow: AirflowServer, name: str) -> Page:
    user = airflow.user(name)
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    # Airflow's pages are megabytes of script, and tests share their machine.
    page.set_default_timeout(PATIENCE_MS)
    page.goto(airflow.url)
    page.get_by_label("Username").fill(user.name)
    page.locator("input[type=password]").fill(user.password)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"{airflow.url}/(?!auth).*"))
    return page


def remedy_form(page: Page, airflow: AirflowServer) -> FrameLocator:
    """Go from the page in the navigation to the report and on to the form of a remedy, inside Airflow's own frame."""
    page.goto(f"{airflow.url}/plugin/queuekeeper")
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="open").first.click()
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
    page.close()
