"""The pages in a real browser: anybody can read them. Who may see them, and a migration played in Airflow's own UI from
form to report, are in ``tests/integration/test_session_migration.py``.

Pictures of every page are kept in the folder that ``QUEUEKEEPER_SCREENSHOTS`` names, or with the test's other output.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from queuekeeper import postgres
from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.postgres import Connection
from tests import report_samples
from tests.browser import CONTRASTS, chromium, pictured
from tests.patience import PATIENCE_S
from tests.plugin_world import fill_all, fill_migration, open_guards
from tests.run_kinds import planned

pytestmark = pytest.mark.ui

DATABASE = "ui_pages"
PAGES = {
    "overview": "/",
    "migrations": "/migration",
    "migration": f"/migration/{report_samples.PLAN_ID}",
    "cohort": f"/migration/{report_samples.PLAN_ID}/cohorts/7",
    "runs": "/runs",
    "queue": "/queue/0000000000000001",
    "partitions": "/partitions",
    "quality": "/quality",
    "audit": "/audit?verify=true",
    "reports": "/reports",
    "nothing": "/nothing",
}


@dataclass(frozen=True, kw_only=True)
class World:
    """Stores with a history, and where pictures go."""

    connection: Connection
    target: RedisServer
    source_url: str
    home: Path
    pictures: Path
    run_id: str


@pytest.fixture(scope="module")
def world(
    postgres_server: PostgresServer,
    server_home: Path,
    redis_servers: Callable[[str], RedisServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    """A small source to migrate, and a history of a migration and of checks."""
    source, target = postgres_server.create_database(DATABASE), redis_servers("valkey")
    with target.client() as client:
        client.flushall()
    kept = os.environ.get("QUEUEKEEPER_SCREENSHOTS")
    pictures = Path(kept) if kept else tmp_path_factory.mktemp("pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    with postgres.connect(source, autocommit=True) as connection:
        fill_all(connection, messages=500, sessions=50)
        yield World(
            connection=connection,
            target=target,
            source_url=source,
            home=server_home / "ui-home",
            pictures=pictures,
            run_id=planned(connection, "fanout_repair", tmp_path_factory.mktemp("undo")),
        )
    postgres_server.drop_database(DATABASE)


@pytest.fixture(scope="module")
def site(world: World) -> Iterator[str]:
    """Address of the pages as a server of their own, where nobody is asked: starting Airflow takes a minute."""
    os.environ.setdefault("AIRFLOW_HOME", str(world.home))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import uvicorn
        from fastapi import FastAPI

        from queuekeeper.airflow.plugin.pages import pages
        from queuekeeper.airflow.plugin.stores import Stores
        from queuekeeper.config import Settings

    app = FastAPI()
    stores = Stores(postgres_url=lambda: world.source_url, redis_url=lambda: world.target.url)
    app.mount("/queuekeeper", pages(settings=Settings(home=world.home), guards=open_guards(), stores=stores))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server of the pages has ended"
        thread.join(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    address = f"http://127.0.0.1:{port}/queuekeeper"
    # The first look loads the library of charts, once in the life of a server.
    httpx.get(f"{address}/", timeout=PATIENCE_S).raise_for_status()
    yield address
    server.should_exit = True
    thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture
def contexts(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that opens a fresh profile: ``contexts(color_scheme="dark")``."""
    opened: list[BrowserContext] = []

    def profile(**options: Any) -> BrowserContext:
        opened.append(browser.new_context(viewport={"width": 1280, "height": 900}, **options))
        opened[-1].set_default_timeout(PATIENCE_S * 1_000)
        return opened[-1]

    yield profile
    for context in opened:
        context.close()


def watched(context: BrowserContext) -> tuple[Page, list[str], list[str]]:
    """Return a page, the addresses that it asks for, and what it complains of."""
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, requests, complaints


def serious_faults(page: Page) -> list[str]:
    """Return what axe finds that keeps somebody from using the page."""
    return [
        f"{fault['impact']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


def test_every_page_can_be_read_in_the_light_and_in_the_dark_and_asks_no_other_host(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page, requests, complaints = watched(contexts(color_scheme="dark"))
    for name, path in {**PAGES, "run": f"/runs/fanout_repair/{world.run_id}"}.items():
        page.emulate_media(color_scheme="dark")
        page.goto(f"{site}{path}")
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            pictured(page, world.pictures / f"{name}-{scheme}.png")
            assert serious_faults(page) == [], (name, scheme)
            assert page.evaluate(CONTRASTS) == [], (name, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280, name
            dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            assert dark is (scheme == "dark"), name
    assert [url for url in requests if not url.startswith((site, "data:"))] == []
    # The page that does not exist is told as such, and nothing else.
    assert [text for text in complaints if "404" not in text] == []


def test_ten_thousand_cohorts_are_drawn_in_under_a_second(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    evidence = report_samples.balanced(count=10_000)
    evidence = replace(evidence, plan=replace(evidence.plan, plan_id="ab" * 8))
    plan_id = fill_migration(world.connection, evidence, now_ms=system_clock())
    page = contexts().new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    answer = page.goto(f"{site}/migration/{plan_id}")
    assert answer is not None
    assert answer.status == 200, answer.text()[:2_000]
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}

    assert page.locator(".board li").count() == len(evidence.plan.cohorts)
    # Time of the page's own thread: tests share their machine.
    assert 0 < metrics["TaskDuration"] < 1.0


def test_board_is_walked_by_arrow_keys_and_tab_leaves_it(site: str, contexts: Callable[..., BrowserContext]) -> None:
    page = contexts().new_page()
    page.goto(f"{site}/migration/{report_samples.PLAN_ID}")
    cells = page.locator(".board a")
    cells.first.focus()
    page.keyboard.press("ArrowRight")
    expect(cells.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(cells.last).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.board')") is None
    page.goto(f"{site}/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
