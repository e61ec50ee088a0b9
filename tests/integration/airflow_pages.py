"""The pages of a real Airflow, for a browser, for those who have signed in, and for those who have not."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Browser, Page

from queuekeeper.embedded import AirflowServer
from tests.patience import PATIENCE_S


def signed_in(browser: Browser, airflow: AirflowServer, name: str) -> Page:
    """Return a page of a user who has signed in."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    sign_in(page, airflow, name)
    return page


def sign_in(page: Page, airflow: AirflowServer, name: str) -> None:
    """Sign a user in."""
    user = airflow.user(name)
    page.set_default_timeout(PATIENCE_S * 1_000)
    page.goto(airflow.url)
    page.get_by_label("Username").fill(user.name)
    page.locator("input[type=password]").fill(user.password)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(rf"{airflow.url}/(?!auth).*"))


def token(airflow: AirflowServer, name: str) -> str:
    """Return what a user gets for name and password."""
    user = airflow.user(name)
    body = {"username": user.name, "password": user.password}
    answer = httpx.post(f"{airflow.url}/auth/token", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 201
    return str(answer.json()["access_token"])


def demand_that_pages_are_for_those_who_have_signed_in(
    airflow: AirflowServer, *, dag_id: str, run_id: str, html: Path
) -> None:
    """See who reads the report of a run: a viewer, and nobody without a token; files beside it are nobody's."""
    base = f"{airflow.url}/queuekeeper"
    run = {"dag_id": dag_id, "run_id": run_id}
    paths = ["/", "/reports", f"/reports/{html.name}", f"/run?{httpx.QueryParams(run)}", "/docs", "/anything"]
    viewer = token(airflow, "viewer")
    for path in paths:
        assert httpx.get(f"{base}{path}", timeout=PATIENCE_S).status_code == 401, path
        wrong = httpx.get(f"{base}{path}", headers={"Authorization": "Bearer x.y.z"}, timeout=PATIENCE_S)
        assert wrong.status_code in (401, 403), path
    with httpx.Client(cookies={"_token": viewer}, timeout=PATIENCE_S) as browser:
        listed = browser.get(f"{base}/reports")
        assert listed.status_code == 200
        assert html.name in listed.text
        page = browser.get(f"{base}/run", params=run, follow_redirects=True)
        assert page.status_code == 200
        assert page.text == html.read_text("utf-8")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert browser.get(f"{base}/run", params={"dag_id": dag_id, "run_id": "none"}).status_code == 404
        assert browser.get(f"{base}/reports/absent.html").status_code == 404
    address = urlsplit(base)
    for path in ("/reports/../../../etc/passwd", "/reports/..%2f..%2fpasswords.json", "/reports/%2e%2e%2fkeys.json"):
        # A client library would tidy the path up before it sends it.
        raw = http.client.HTTPConnection(address.hostname or "", address.port)
        raw.request("GET", f"/queuekeeper{path}", headers={"Authorization": f"Bearer {viewer}"})
        assert raw.getresponse().status == 404, path
        raw.close()
    with airflow.client() as admin:
        assert admin.call("GET", "/plugins/importErrors")["import_errors"] == []


def demand_that_actions_are_for_those_who_may_act(airflow: AirflowServer, *, plan_id: str) -> None:
    """See what pages do for whom: a viewer looks at all of them and changes nothing."""
    seen = [
        "/", "/migration", f"/migration/{plan_id}", f"/migration/{plan_id}/cohorts/7", "/queue/0000000000000001",
        "/partitions", "/quality", "/audit?verify=true", "/audit/export", "/reports", "/nothing",
        "/trigger/session_migration", "/static/pages.css", "/static/pages.js",
    ]  # fmt: skip
    base = f"{airflow.url}/queuekeeper"
    form = {"Origin": airflow.url, "Content-Type": "application/x-www-form-urlencoded"}
    for path in seen:
        assert httpx.get(f"{base}{path}", timeout=PATIENCE_S).status_code == 401, path
    with httpx.Client(base_url=base, cookies={"_token": token(airflow, "viewer")}, timeout=PATIENCE_S) as viewer:
        for path in seen:
            assert viewer.get(path).status_code in (200, 404), path
        assert viewer.get(f"/migration/{plan_id}").status_code == 200
        for path in ("/queue/reveal", f"/runs/session_migration/{plan_id}/throttle"):
            assert viewer.post(path, headers=form).status_code == 403, path
        started = viewer.post("/trigger/session_migration", headers=form, content=b"dry_run=true")
        assert started.status_code == 403
    expired = httpx.get(f"{base}/", headers={"Accept": "text/html"}, cookies={"_token": "x.y.z"}, timeout=PATIENCE_S)
    assert expired.status_code in (401, 403)
    assert plan_id not in expired.text
