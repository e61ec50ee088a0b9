"""Pages of the plugin: what they show, and that no name leads out of the folder of reports.

Who may see them is held on a real Airflow, in ``tests/integration/test_session_migration.py``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from queuekeeper.airflow.plugin import QueuekeeperPlugin
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.run_index import remember, report_of
from queuekeeper.report.files import ReportFiles

pytestmark = pytest.mark.dags

STEM = "migration-0123456789abcdef-20260131T120000Z"


class Browser:
    """Sends requests straight into an application, without a network."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def get(self, path: str, *, params: dict[str, str] | None = None) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.get(path, params=params)

        return asyncio.run(send())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with one report, and things beside and inside it that are none of the readers' business."""
    (tmp_path / "secret.html").write_text("secret", "utf-8")
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / f"{STEM}.html").write_text("<h1>The report</h1>", "utf-8")
    (folder / f"{STEM}.json").write_text('{"verdict": "balanced"}', "utf-8")
    (folder / "notes.html").write_text("secret", "utf-8")
    (folder / "migration-fedcba9876543210-20260131T120000Z.html").symlink_to(tmp_path / "secret.html")
    return folder


@pytest.fixture
def browser(folder: Path) -> Browser:
    return Browser(pages(directory=folder, guard=lambda: None))


def test_list_shows_each_report_with_its_data(browser: Browser) -> None:
    answer = browser.get("/")

    assert answer.status_code == 200
    assert f"/queuekeeper/reports/{STEM}.html" in answer.text
    assert f"/queuekeeper/reports/{STEM}.json" in answer.text
    assert "notes" not in answer.text
    assert "fedcba" not in answer.text


def test_list_of_no_reports_says_where_they_come_from(tmp_path: Path) -> None:
    answer = Browser(pages(directory=tmp_path / "absent", guard=lambda: None)).get("/")

    assert answer.status_code == 200
    assert "There are no reports yet" in answer.text


def test_report_and_data_are_served_as_what_they_are(browser: Browser) -> None:
    page, data = browser.get(f"/reports/{STEM}.html"), browser.get(f"/reports/{STEM}.json")

    assert (page.status_code, page.text) == (200, "<h1>The report</h1>")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert data.json() == {"verdict": "balanced"}
    assert data.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "path",
    [
        "/reports/notes.html",
        "/reports/migration-fedcba9876543210-20260131T120000Z.html",
        "/reports/..%2Fsecret.html",
        "/reports/%2e%2e/secret.html",
        "/reports/..%5Csecret.html",
        "/reports//etc/passwd",
        f"/reports/{STEM}.html%00.json",
        f"/reports/x/../{STEM}.html/..",
        "/reports/",
        "/runs/0.json",
        "/openapi.json",
        "/docs",
        "/anything",
    ],
)
def test_whatever_is_no_report_is_not_found(browser: Browser, path: str) -> None:
    answer = browser.get(path)

    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_every_answer_forbids_scripts_and_foreign_frames(browser: Browser) -> None:
    for path in ("/", f"/reports/{STEM}.html", "/run?dag_id=a&run_id=b", "/reports/absent.html", "/anything"):
        headers = browser.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'"), path
        assert "frame-ancestors 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["cache-control"] == "private, no-store", path


def test_run_leads_to_its_report(browser: Browser, folder: Path) -> None:
    run_id = "manual__2026-01-31T12:00:00+00:00/../x"
    files = ReportFiles(html=folder / f"{STEM}.html", json=folder / f"{STEM}.json", sha256="0")
    remember(folder, dag_id="session_migration", run_id=run_id, files=files)

    answer = browser.get("/run", params={"dag_id": "session_migration", "run_id": run_id})

    assert answer.status_code == 307
    assert answer.headers["location"] == f"/queuekeeper/reports/{STEM}.html"


def test_run_without_a_report_says_why_and_escapes_what_it_was_asked(browser: Browser) -> None:
    answer = browser.get("/run", params={"dag_id": "session_migration", "run_id": "<script>"})

    assert answer.status_code == 404
    assert "&lt;script&gt;" in answer.text
    assert "<script>" not in answer.text


@pytest.mark.parametrize("content", ["", "[]", '{"html": "../secret.html"}', "\0"])
def test_broken_note_of_a_run_counts_as_none(folder: Path, content: str) -> None:
    files = ReportFiles(html=folder / f"{STEM}.html", json=folder / f"{STEM}.json", sha256="0")
    remember(folder, dag_id="d", run_id="r", files=files)
    (note,) = (folder / "runs").iterdir()
    note.write_text(content, "utf-8")

    assert report_of(folder, dag_id="d", run_id="r") is None


def test_guard_stands_before_every_route_also_those_that_do_not_exist(folder: Path) -> None:
    def nobody() -> None:
        raise HTTPException(401)

    app = pages(directory=folder, guard=nobody)
    browser = Browser(app)

    assert {path for route in app.routes if (path := getattr(route, "path", None))} == {
        "/",
        "/reports/{name}",
        "/run",
        "/{path:path}",
    }
    for path in ("/", f"/reports/{STEM}.html", "/run?dag_id=a&run_id=b", "/docs", "/a/b"):
        assert browser.get(path).status_code == 401, path


def test_views_are_below_the_address_that_airflow_is_served_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://ops.example.org/airflow/")

    views = {view["destination"]: view for view in QueuekeeperPlugin().external_views}

    assert views["nav"]["href"] == "/airflow/queuekeeper/"
    assert views["dag_run"]["href"] == "/airflow/queuekeeper/run?dag_id={DAG_ID}&run_id={RUN_ID}"


def test_plugin_mounts_its_pages_behind_airflows_own_sign_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", str(folder))

    (mount,) = QueuekeeperPlugin().fastapi_apps

    assert mount["url_prefix"] == "/queuekeeper"
    assert Browser(mount["app"]).get("/").status_code == 401
