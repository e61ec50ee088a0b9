"""Pages of the plugin: what they show, and that no name leads out of the folder of reports.

Who may see them is held on a real Airflow, in ``tests/integration/test_session_migration.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from fastapi import FastAPI

from queuekeeper.airflow.forms import form
from queuekeeper.airflow.plugin import QueuekeeperPlugin
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.rest import RestApi
from queuekeeper.airflow.run_index import remember, report_of
from queuekeeper.config import Settings
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.report.files import ReportFiles
from tests.plugin_world import open_guards

pytestmark = pytest.mark.dags

STEM = "migration-0123456789abcdef-20260131T120000Z"
QUALITY = "quality-00112233445566aa-20260131T120000Z"
OPEN = open_guards()
FORM = {"Origin": "http://airflow", "Content-Type": "application/x-www-form-urlencoded"}


class Browser:
    """Sends requests straight into an application, without a network."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def get(self, path: str, *, params: dict[str, str] | None = None, page: bool = False) -> httpx.Response:
        return self.send("GET", path, params=params, headers={"Accept": "text/html"} if page else None)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())


class Mending(Parameters):
    """What the form asks for."""

    remedy: Literal["repair_ttl", "rekey_clients"] = parameter("repair_ttl", title="Remedy", help="What mends.")
    dry_run: bool = parameter(False, title="Dry run", help="Count only.")
    client_hashes: tuple[str, ...] = parameter((), title="Clients", help="Which clients.")
    limit: int = parameter(1_000, title="Limit", help="Most queues.", least=1, most=65_535)
    key_prefix: str | None = parameter(None, title="Key prefix", help="See `run list` <b>first</b>.")


class Airflow:
    """Stands for Airflow's REST API: one DAG of ours that is paused, one of somebody else."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.seen: list[httpx.Headers] = []
        self.refusal: tuple[int, str] | None = None
        self.params = {name: param.dump() for name, param in form(Mending).items()}
        # A DAG may have fields that no model declares.
        more = {"type": "object", "title": "More"}
        self.params["more"] = {"value": {"a": 1}, "schema": more, "description": None}

    def api(self) -> RestApi:
        return RestApi(lambda: httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/api/v2/dags/")
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, path, body))
        self.seen.append(request.headers)
        if path == "theirs/details":
            return httpx.Response(200, json={"tags": [{"name": "x"}], "params": {}})
        if path == "absent/details":
            return httpx.Response(404, json={"detail": "The Dag with ID: `absent` was not found"})
        if path.endswith("/details"):
            tags = [{"name": "queuekeeper"}]
            dag = {"tags": tags, "params": self.params, "description": "Mends.", "is_paused": True}
            return httpx.Response(200, json=dag)
        if request.method == "POST":
            if self.refusal is not None:
                return httpx.Response(self.refusal[0], json={"detail": self.refusal[1]})
            return httpx.Response(200, json={"dag_run_id": "manual__1"})
        return httpx.Response(200, json={"state": "queued"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with one report, and things beside and inside it that are none of the readers' business."""
    (tmp_path / "secret.html").write_text("secret", "utf-8")
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / f"{STEM}.html").write_text("<h1>The report</h1>", "utf-8")
    (folder / f"{STEM}.json").write_text('{"verdict": "balanced"}', "utf-8")
    (folder / f"{QUALITY}.html").write_text("<h1>Quality</h1>", "utf-8")
    (folder / "notes.html").write_text("secret", "utf-8")
    (folder / "quality-..-20260131T120000Z.html").write_text("secret", "utf-8")
    (folder / "migration-fedcba9876543210-20260131T120000Z.html").symlink_to(tmp_path / "secret.html")
    return folder


def settings(reports: Path) -> Settings:
    return Settings(home=reports.parent / "home", reports_dir=reports)


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


@pytest.fixture
def browser(folder: Path, airflow: Airflow) -> Browser:
    return Browser(pages(settings=settings(folder), guards=OPEN, api=airflow.api()))


def test_list_shows_each_report_with_its_data(browser: Browser) -> None:
    answer = browser.get("/reports")

    assert answer.status_code == 200
    assert f"/queuekeeper/reports/{STEM}.html" in answer.text
    assert f"/queuekeeper/reports/{STEM}.json" in answer.text
    assert f"/queuekeeper/reports/{QUALITY}.html" in answer.text
    assert f"/queuekeeper/reports/{QUALITY}.json" not in answer.text
    assert ">Migration</a>" in answer.text
    assert ">Quality</a>" in answer.text
    assert "notes" not in answer.text
    assert "fedcba" not in answer.text


def test_list_of_no_reports_says_where_they_come_from(tmp_path: Path) -> None:
    answer = Browser(pages(settings=settings(tmp_path / "absent"), guards=OPEN)).get("/reports")

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
        "/reports/quality-..-20260131T120000Z.html",
        "/reports/migration-fedcba9876543210-20260131T120000Z.html",
        "/reports/..%2Fsecret.html",
        "/reports/%2e%2e/secret.html",
        "/reports/..%5Csecret.html",
        "/reports//etc/passwd",
        f"/reports/{STEM}.html%00.json",
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


def test_every_answer_forbids_what_it_does_not_need_and_foreign_frames(browser: Browser) -> None:
    seen = set()
    for path in ("/reports", f"/reports/{STEM}.html", "/run?dag_id=a&run_id=b", "/reports/absent.html", "/anything"):
        answer = browser.get(path, page=True)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src "), path
        assert "frame-ancestors 'self'" in policy, path
        assert "unsafe-eval" not in policy, path
        assert ("script-src" in policy) is ("/static/pages.js" in answer.text), path
        if "script-src" in policy:
            # Its own style and script alone, by a number that is used once.
            (nonce,) = set(re.findall("'nonce-([^']+)'", policy))
            assert answer.text.count(f'nonce="{nonce}"') == 2, path
            assert "unsafe-inline" not in policy, path
            seen.add(nonce)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["cache-control"] == "private, no-store", path
    assert len(seen) == 4


def test_style_and_script_are_files_of_ours_and_name_no_other_host(browser: Browser) -> None:
    for name, kind in (("pages.css", "text/css"), ("pages.js", "text/javascript")):
        answer = browser.get(f"/static/{name}")
        assert answer.headers["content-type"].startswith(kind)
        assert "//" not in re.sub(r"^\s*//.*$|/\*.*?\*/", "", answer.text, flags=re.MULTILINE)
    for name in ("pages.html", "..%2Fsite.py", "../site.py", ""):
        assert browser.get(f"/static/{name}").status_code == 404


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


def test_link_opens_the_form_with_its_values_filled_in(browser: Browser) -> None:
    conf = {"remedy": "rekey_clients", "dry_run": True, "client_hashes": ["0a", "0b"], "limit": 7, "key_prefix": "<b>"}

    answer = browser.get("/trigger/session_repair", params={"conf": json.dumps(conf)})

    assert answer.status_code == 200
    assert '<option value="&#34;rekey_clients&#34;" selected>rekey_clients</option>' in answer.text
    assert 'name="dry_run" value="true" aria-describedby="about-dry_run" checked' in answer.text
    assert ">\n0a\n0b</textarea>" in answer.text
    assert 'name="limit" value="7"' in answer.text
    assert "1 to 65,535." in answer.text
    assert 'value="&lt;b&gt;"' in answer.text
    assert answer.text.count("Filled in by the link.") == 5
    assert "Unpause session_repair" in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]


def test_value_for_a_parameter_that_is_not_there_is_named(browser: Browser) -> None:
    answer = browser.get("/trigger/session_repair", params={"conf": '{"limt": 1, "<i>": 2}'})

    assert "This DAG has no parameter &lt;i&gt;, limt" in answer.text


@pytest.mark.parametrize(
    "conf", ["", "[]", "1", "{", "null", '{"limit": NaN}', '{"limit": 1e999}', '{"more": "\\ud800"}', "[" * 20_000]
)
def test_values_that_are_no_object_are_refused(browser: Browser, conf: str) -> None:
    assert browser.get("/trigger/session_repair", params={"conf": conf}).status_code == 400


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("dry_run", "true", "dry_run is 'true': it must be true or false"),
        ("dry_run", 1, "dry_run is 1: it must be true or false"),
        ("dry_run", None, "dry_run needs a value: it must be true or false"),
        ("limit", "7", "limit is '7': it must be an integer from 1 to 65,535"),
        ("limit", True, "limit is True: it must be an integer from 1 to 65,535"),
        ("key_prefix", 7, "key_prefix is 7: it must be text, or none"),
        ("client_hashes", "0a", "client_hashes is '0a': it must be a list of texts"),
        ("client_hashes", ["0a", 1], "client_hashes is 1: it must be a list of texts"),
        ("more", [], "More: [] is not of type 'object'"),
        ("remedy", "erase", "remedy is 'erase': it must be repair_ttl or rekey_clients"),
    ],
)
def test_link_with_a_value_of_another_type_is_refused_in_words(
    browser: Browser, name: str, value: Any, words: str
) -> None:
    answer = browser.get("/trigger/session_repair", params={"conf": json.dumps({name: value})})

    assert answer.status_code == 400
    assert answer.json()["detail"] == f"conf does not fit the form of session_repair: {words}."


def test_form_shows_commands_in_its_help_as_code(browser: Browser) -> None:
    assert "See <code>run list</code> &lt;b&gt;first&lt;/b&gt;." in browser.get("/trigger/session_repair").text


@pytest.mark.parametrize("dag_id", ["theirs", "absent", "a/b"])
def test_only_dags_of_queuekeeper_have_forms_here(browser: Browser, dag_id: str) -> None:
    assert browser.get(f"/trigger/{dag_id}").status_code == 404
    assert browser.send("POST", f"/trigger/{dag_id}", headers=FORM).status_code in (404, 405)


def test_form_starts_the_run_as_the_user_and_unpauses_the_dag(browser: Browser, airflow: Airflow) -> None:
    form = {
        "remedy": '"rekey_clients"',
        "client_hashes": "0a\r\n\r\n0b\r\n",
        "limit": "7",
        "key_prefix": "",
        "more": '{"b": [2]}',
        "unpause-dag": "true",
    }

    answer = browser.send("POST", "/trigger/session_repair", data=form, headers=FORM | {"Cookie": "_token=of-the-user"})

    assert answer.status_code == 303
    assert answer.headers["location"] == "/queuekeeper/started?dag_id=session_repair&run_id=manual__1"
    conf = {
        "remedy": "rekey_clients",
        "dry_run": False,
        "client_hashes": ["0a", "0b"],
        "limit": 7,
        "key_prefix": None,
        "more": {"b": [2]},
    }
    assert airflow.asked[1:] == [
        ("POST", "session_repair/dagRuns", {"logical_date": None, "conf": conf}),
        ("PATCH", "session_repair", {"is_paused": False}),
    ]
    assert {headers["cookie"] for headers in airflow.seen} == {"_token=of-the-user"}
    started = browser.get("/started", params={"dag_id": "session_repair", "run_id": "manual__1"})
    assert "is <strong>queued</strong>" in started.text
    assert 'href="/dags/session_repair/runs/manual__1"' in started.text


def test_entries_of_a_list_are_sent_as_they_were_filled_in(browser: Browser, airflow: Airflow) -> None:
    names = ["end\u2028", "\u2028begin", "be\u2028tween", "\x85", "with\x0bin", " spaces  "]
    conf = {"remedy": "rekey_clients", "client_hashes": names}
    shown = browser.get("/trigger/session_repair", params={"conf": json.dumps(conf)}).text
    text = unescape(shown.partition('name="client_hashes"')[2].partition(">\n")[2].partition("</textarea>")[0])
    form = {"remedy": '"rekey_clients"', "client_hashes": text.replace("\n", "\r\n"), "limit": "7", "more": "{}"}

    browser.send("POST", "/trigger/session_repair", data=form, headers=FORM)
    assert airflow.asked[-1][2]["conf"]["client_hashes"] == names


def test_what_was_typed_wrongly_stays_in_the_form_with_the_reason(browser: Browser, airflow: Airflow) -> None:
    answer = browser.send("POST", "/trigger/session_repair", data={"limit": "many", "more": "{"}, headers=FORM)

    assert answer.status_code == 422
    assert "limit is &#39;many&#39;: it must be an integer from 1 to 65,535" in answer.text
    assert 'name="limit" value="many"' in answer.text
    assert "More: this is not JSON" in answer.text
    assert "remedy needs a value: it must be repair_ttl or rekey_clients" in answer.text
    assert [method for method, _, _ in airflow.asked] == ["GET"]


def test_value_outside_the_bounds_is_refused_before_airflow_is_asked(browser: Browser, airflow: Airflow) -> None:
    form = {"remedy": '"repair_ttl"', "limit": "0", "more": "{}", "unpause-dag": "true"}

    answer = browser.send("POST", "/trigger/session_repair", data=form, headers=FORM)

    assert (answer.status_code, "limit is 0: it must be an integer from 1 to 65,535" in answer.text) == (422, True)
    assert 'name="limit" value="0"' in answer.text
    assert [method for method, _, _ in airflow.asked] == ["GET"]


@pytest.mark.parametrize("limit", ["9" * 5_000, "NaN", "-Infinity", "1e999", "1e3", "1000.0"])
def test_number_that_no_task_could_read_is_refused_in_words(browser: Browser, airflow: Airflow, limit: str) -> None:
    form = {"remedy": '"repair_ttl"', "limit": limit, "more": "{}"}

    answer = browser.send("POST", "/trigger/session_repair", data=form, headers=FORM)

    assert (answer.status_code, ": it must be an integer from 1 to 65,535" in answer.text) == (422, True)
    assert [method for method, _, _ in airflow.asked] == ["GET"]


def test_what_airflow_refuses_is_shown_and_the_dag_stays_paused(browser: Browser, airflow: Airflow) -> None:
    airflow.refusal = (400, "A run of this moment exists")
    form = {"remedy": '"repair_ttl"', "limit": "5", "more": "{}", "unpause-dag": "true"}

    answer = browser.send("POST", "/trigger/session_repair", data=form, headers=FORM)

    assert answer.status_code == 422
    assert "A run of this moment exists" in answer.text
    assert 'name="limit" value="5"' in answer.text
    assert "PATCH" not in [method for method, _, _ in airflow.asked]
    airflow.refusal = (403, "Forbidden")
    assert browser.send("POST", "/trigger/session_repair", data=form, headers=FORM).status_code == 403


@pytest.mark.parametrize("origin", ["https://attacker.example", "null", "", "http://airflow.attacker.example"])
def test_form_that_another_site_sends_is_refused(browser: Browser, airflow: Airflow, origin: str) -> None:
    answer = browser.send("POST", "/trigger/session_repair", data={}, headers=FORM | {"Origin": origin})

    assert answer.status_code == 403
    assert airflow.asked == []


def test_views_are_below_the_address_that_airflow_is_served_under(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://ops.example.org/airflow/")

    tabs = {view["name"]: view for view in QueuekeeperPlugin().external_views}

    assert tabs["Queues"]["destination"] == "nav"
    assert tabs["Queues"]["href"] == "/airflow/queuekeeper/"
    assert tabs["Report"]["href"] == "/airflow/queuekeeper/run?dag_id={DAG_ID}&run_id={RUN_ID}"
    assert tabs["Progress"]["href"] == "/airflow/queuekeeper/run/progress?dag_id={DAG_ID}&run_id={RUN_ID}"
    assert tabs["Progress"]["destination"] == tabs["Report"]["destination"] == "dag_run"
    assert tabs["Evidence"]["destination"] == "task_instance"


def test_plugin_mounts_its_pages_behind_airflows_own_sign_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", str(folder))

    (mount,) = QueuekeeperPlugin().fastapi_apps

    assert mount["url_prefix"] == "/queuekeeper"
    assert Browser(mount["app"]).get("/").status_code == 401
