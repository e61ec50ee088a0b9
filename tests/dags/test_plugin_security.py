"""Who may see and do what on the plugin's pages, decided by Airflow's own auth manager, route by route."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from fastapi import FastAPI
from fastapi.routing import APIRoute

from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.security import REPORTING
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.config import Settings
from queuekeeper.errors import ServerUnavailable
from tests.dags.test_plugin_pages import FORM, Airflow, Browser

pytestmark = pytest.mark.dags

ACTIONS = {
    "/migration/{plan_id}/answer",
    "/queue/reveal",
    "/runs/{kind}/{run_id}/pause",
    "/runs/{kind}/{run_id}/throttle",
}
"""What a viewer may not do, beside starting a run; a queue is looked at only."""

PLAN = "0123456789abcdef"
VALUES = {"plan_id": PLAN, "cohort": "7", "name": PLAN, "dag_id": "session_migration", "path": "x"}
VALUES |= {"kind": "expired_reference_cleanup", "run_id": PLAN}
QUERY = {"dag_id": "session_migration", "run_id": "r", "task_id": "t"}


def down() -> str:
    raise ServerUnavailable("the server is down")


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """The pages behind a real auth manager; the stores are down, which is no business of who may ask for them."""
    from airflow.api_fastapi import app as airflow_app

    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "viewer:viewer,operator:op")
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(tmp_path / "passwords.json"))
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "0" * 64)
    airflow_app.init_auth_manager()
    yield pages(
        settings=Settings(home=tmp_path, reports_dir=tmp_path / "reports"),
        api=Airflow().api(),
        stores=Stores(postgres_url=down, redis_url=down),
    )
    airflow_app.purge_cached_app()


def routes(app: FastAPI) -> list[tuple[str, str, str]]:
    """Return method, pattern and an address of every route there is, static files and what does not exist included."""
    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} asks nobody: only routes have the guard"
        address = re.sub(r"{(\w+)(?::\w+)?}", lambda match: VALUES[match[1]], route.path)
        if route.path == "/static/{name}":
            address = "/static/pages.js"
        found += [(method, route.path, address) for method in sorted(route.methods)]
    return found


def as_user(app: FastAPI, role: str) -> Browser:
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
    from airflow.api_fastapi.core_api.security import get_user

    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username=role, role=role)
    return Browser(app)


def test_nobody_is_answered_without_a_sign_in_whatever_they_ask_for(app: FastAPI) -> None:
    browser = Browser(app)
    asked = routes(app)

    assert len(asked) > 25
    for method, _, address in asked:
        for headers in ({}, {"Authorization": "Bearer x.y.z"}, {"Cookie": "_token=x"}):
            answer = browser.send(method, address, params=QUERY, headers=FORM | headers)
            assert answer.status_code in (401, 403), (method, address, headers)
            assert (answer.status_code == 401) or headers, (method, address)
            assert "pages.css" not in answer.text
    page = browser.get("/migration", page=True)
    assert page.status_code == 401
    assert "Your sign-in to Airflow has expired" in page.text
    assert "session_migration" not in page.text


def test_viewer_may_look_and_is_refused_every_action(app: FastAPI) -> None:
    browser = as_user(app, "viewer")
    refused = set()
    for method, path, address in routes(app):
        answer = browser.send(method, address, params=QUERY, headers=FORM)
        assert answer.status_code != 401, (method, address)
        if answer.status_code == 403:
            refused.add(path)

    assert refused == ACTIONS | {"/trigger/{dag_id}"}
    assert "You may not start runs" in browser.send("POST", "/trigger/session_migration", headers=FORM).text
    assert browser.get("/trigger/session_migration").status_code == 200
    assert "You may not see payloads" in browser.send("POST", "/queue/reveal", headers=FORM).text


def test_who_may_not_read_a_page_gets_nothing_of_it_from_the_search(app: FastAPI) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    browser = as_user(app, "viewer")
    assert browser.send("POST", "/search", data={"text": PLAN}, headers=FORM).status_code == 200
    for denied in REPORTING:

        def allowed(*, details: DagDetails, denied: str = denied, **_: object) -> bool:
            return details.id != denied

        with patch.object(SimpleAuthManager, "is_authorized_dag", side_effect=allowed):
            answer = browser.send("POST", "/search", data={"text": PLAN}, headers=FORM | {"Accept": "text/html"})
        assert answer.status_code == 403, denied
        assert f"You may not see runs of {denied}" in answer.text
        assert PLAN not in answer.text


def test_operator_may_act_and_only_from_airflows_own_pages(app: FastAPI) -> None:
    browser = as_user(app, "op")
    for path in ACTIONS:
        address = path.format(**VALUES)
        assert browser.send("POST", address, headers=FORM).status_code in (422, 503), path
        for origin in ("https://attacker.example", "null", ""):
            answer = browser.send("POST", address, headers=FORM | {"Origin": origin})
            assert answer.status_code == 403, (path, origin)
            assert "was not sent from Airflow" in answer.text


def test_actions_answer_to_no_method_that_a_link_can_cause(app: FastAPI) -> None:
    browser = as_user(app, "op")
    for path in ACTIONS:
        address = path.format(**VALUES)
        assert browser.get(address).status_code == 404, path


def test_error_that_nobody_foresaw_is_a_page_that_leaks_nothing(app: FastAPI) -> None:
    as_user(app, "viewer")

    @app.get("/broken")
    def broken() -> None:
        raise ValueError("postgresql://user:password@host")

    # Before the route that answers all the rest.
    app.router.routes.insert(0, app.router.routes.pop())

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow") as client:
            return await client.get("/broken", headers={"Accept": "text/html"})

    answer = asyncio.run(get())
    assert answer.status_code == 500
    assert "Something went wrong" in answer.text
    assert "password" not in answer.text
    assert "Traceback" not in answer.text
