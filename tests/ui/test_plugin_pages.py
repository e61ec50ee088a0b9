"""The pages in a real browser: anybody can read them. Who may see them, and a migration played in Airflow's own UI from
form to report, are in ``tests/integration/test_session_migration.py``.

What there is to see stands in ``tests/page_views.py``. Each walk leaves its pictures in ``var/pictures``, and
``make pictures`` takes those of README and ``docs/`` from there.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect

from queuekeeper import postgres, schema_migrations
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.postgres import Connection
from tests import report_samples
from tests.browser import CONTRASTS
from tests.conftest import nightly
from tests.page_looks import (
    ALONE,
    BLANK,
    BROKEN,
    LEFTOVERS,
    LOOKS,
    MANY,
    OUTSIDE,
    STILL,
    TOLD,
    faults_of,
    seen,
    watched,
)
from tests.page_views import DAGS, EMPTY, NO_PAGES, VIEWS, WAITS, View, fill
from tests.patience import PATIENCE_S
from tests.pictures import OF_DOCUMENTS, PICTURE_PX, PICTURES, png_size
from tests.plugin_world import fill_migration, open_guards
from tests.run_kinds import planned

pytestmark = pytest.mark.ui

DATABASE = "ui_pages"
REPORT = "GET /reports/{name}"
# By day tests of their own look at reports, which are long.
ROUTES = [*(route for route in VIEWS if route != REPORT), *nightly(REPORT)]
FIRST = {
    route: views[0]
    for route, views in VIEWS.items()
    # A report is a file of its own: test_report_page.py and test_quality_page.py look at it.
    if views[0].status == 200 and route != REPORT
}
"""What most tests look at: the first view of each route."""

# Numbers what can be pressed, written in or scrolled, in its order on the page; one cell of the board stands for all.
REACHABLE = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
)].filter((each) => each.checkVisibility() && each.tabIndex === 0)
  .map((each, at) => each.setAttribute("data-at", at)).length"""
FOCUSED = """() => {
  const found = document.activeElement;
  return [Number(found.dataset.at), getComputedStyle(found).outlineStyle !== "none"];
}"""


# Sends a form as a page of the site would; what is sent stands in no address.
SEND = """({path, fields}) => {
  const form = Object.assign(document.createElement("form"), {method: "post", action: path});
  for (const [name, value] of Object.entries(fields)) {
    form.append(Object.assign(document.createElement("input"), {type: "hidden", name, value}));
  }
  document.body.append(form);
  form.submit();
}"""


@dataclass(frozen=True, kw_only=True)
class World:
    """Stores, the application over them, and where it is served.

    :param places: what addresses of views name.
    """

    connection: Connection
    app: Any
    site: str
    places: Mapping[str, str]

    def open(self, page: Page, view: View) -> Response:
        """Open a page as a view says."""
        path = f"{self.site}{view.path.format_map(self.places)}"
        if view.form is None:
            answer = page.goto(path)
        else:
            page.goto(f"{self.site}/search")
            fields = {name: text.format_map(self.places) for name, text in view.form.items()}
            with page.expect_navigation() as sent:
                page.evaluate(SEND, {"path": path, "fields": fields})
            answer = sent.value
        assert answer is not None
        return answer


@pytest.fixture(scope="module")
def world(
    postgres_server: PostgresServer, server_home: Path, redis_servers: Callable[[str], RedisServer]
) -> Iterator[World]:
    """A small source to migrate, and a history of migrations, runs and checks."""
    home, target = server_home / "ui-home", redis_servers("valkey")
    address = target.url
    with served(postgres_server, address, home=home, database=DATABASE) as found, target.client() as client:
        client.flushall()
        places = fill(found.connection, client, home)
        # The first look starts what draws charts, once in the life of a server.
        httpx.get(f"{found.site}/", timeout=PATIENCE_S).raise_for_status()
        yield replace(found, places=places)


@pytest.fixture(scope="module")
def nothing_yet(
    postgres_server: PostgresServer, server_home: Path, redis_servers: Callable[[str], RedisServer]
) -> Iterator[World]:
    """Servers on which nothing has happened."""
    home = server_home / "ui-empty"
    address = redis_servers("valkey").database_url(1)
    with served(postgres_server, address, home=home, database=f"{DATABASE}_empty") as found:
        schema_migrations.migrate(found.connection)
        yield found


@pytest.fixture(scope="module")
def site(world: World) -> str:
    """Address of the pages."""
    return world.site


@contextmanager
def served(server: PostgresServer, redis_url: str, *, home: Path, database: str) -> Iterator[World]:
    """Serve the pages over an empty database, where nobody is asked: starting Airflow takes a minute."""
    os.environ.setdefault("AIRFLOW_HOME", str(home))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import uvicorn
        from fastapi import FastAPI

        from queuekeeper.airflow.plugin.pages import pages
        from queuekeeper.airflow.plugin.stores import Stores

    source, app = server.create_database(database), FastAPI()
    stores = Stores(postgres_url=lambda: source, redis_url=lambda: redis_url)
    shown = pages(settings=Settings(home=home), guards=open_guards(), stores=stores, api=airflow_api())
    app.mount("/queuekeeper", shown)
    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    while not web.started:
        assert thread.is_alive(), "the server of the pages has ended"
        thread.join(0.05)
    port = web.servers[0].sockets[0].getsockname()[1]
    with postgres.connect(source, autocommit=True) as connection:
        yield World(connection=connection, app=shown, site=f"http://127.0.0.1:{port}/queuekeeper", places={})
    web.should_exit = True
    thread.join(PATIENCE_S)
    server.drop_database(database)


@cache
def airflow_api() -> Any:
    """Return what answers as Airflow's own API does: details of our DAGs, read from their files, and states of runs."""
    from airflow.dag_processing.dagbag import DagBag

    from queuekeeper.airflow.plugin.rest import RestApi
    from queuekeeper.airflow.summary import summarise

    details = {
        f"/{dag_id}/details": {
            "params": {name: dag.params.get_param(name).serialize() for name in dag.params},
            "tags": [{"name": tag} for tag in dag.tags],
            "description": dag.description,
            "is_paused": False,
        }
        for dag_id, dag in DagBag(DAGS).dags.items()
    }
    plan = report_samples.unverified().plan
    question = {
        "subject": f"Copy {plan.total('to_copy'):,} messages to Redis?",
        "body": summarise(plan, ()),
        "response_received": False,
    }

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if WAITS in path and "/taskInstances/" in path:
            return httpx.Response(200, json=question if path.endswith("/hitlDetails") else {"state": "awaiting_input"})
        run = {"state": "queued" if path.endswith("waits") else "success"}
        return httpx.Response(200, json=next((known for at, known in details.items() if at in path), run))

    return RestApi(lambda: httpx.MockTransport(answer))


@pytest.fixture
def contexts(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Return a function that opens a fresh profile: ``contexts(color_scheme="dark")``.

    Pages in it are made anew only if ``refreshes``: on a busy machine a page is looked at for longer than a minute.
    """
    opened: list[BrowserContext] = []

    def profile(*, refreshes: bool = False, **options: Any) -> BrowserContext:
        opened.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options))
        opened[-1].set_default_timeout(PATIENCE_S * 1_000)
        if not refreshes:
            opened[-1].add_init_script(STILL)
        return opened[-1]

    yield profile
    for context in opened:
        context.close()


def arrived(page: Page, heading: str) -> None:
    """Wait for the page that a key or a link leads to: until then, what is asked is answered by the page before."""
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    # The script of the page listens from then on.
    page.wait_for_load_state("load")


def stop_clock(page: Page) -> None:
    """Let the time of the page's script stand still, but for ``page.clock.fast_forward``."""
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=1))


def test_every_route_has_its_views_or_shows_nothing(world: World) -> None:
    """A new page is walked from the day on which it is there."""
    methods = ("GET", "POST")
    routes = {f"{method} {each.path}" for each in world.app.routes for method in methods if method in each.methods}
    # Whatever else is asked for is answered by this one.
    routes.discard("POST /{path:path}")
    assert routes == VIEWS.keys() | NO_PAGES.keys()
    names = [view.name for views in VIEWS.values() for view in views]
    assert len(names) == len(set(names))
    assert set(EMPTY) <= set(names)


def walk(
    world: World, context: BrowserContext, views: Iterable[View], looks: Sequence[tuple[str, Any]], *, of: str = ""
) -> None:
    """Look at views.

    :param looks: sizes, each in the light or in the dark.
    :param of: what the names of pictures begin with.
    """
    page, requests, complaints = watched(context)
    faults: list[tuple[str, ...]] = []
    for view in views:
        complaints.clear()
        answer = world.open(page, view)
        assert answer.status == view.status, (view.name, page.locator("body").inner_text())
        faults += seen(page, looks, alert=view.alert, name=f"{of}{view.name}")
        # The browser complains of the answer that this page is, and of nothing else.
        expected = [] if view.status == 200 else [f"the server responded with a status of {view.status}"]
        faults += [(view.name, text) for text in complaints if not any(words in text for words in expected)]
    assert not faults, "\n".join(map(str, faults))
    assert [url for url in requests if not url.startswith((world.site, "data:"))] == []


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_page_can_be_read_in_every_size_in_the_light_and_in_the_dark_and_asks_no_other_host(
    world: World, contexts: Callable[..., BrowserContext], route: str, looks: list[tuple[str, Any]]
) -> None:
    walk(world, contexts(), VIEWS[route], looks)


@pytest.mark.parametrize("looks", LOOKS)
def test_pages_of_servers_without_a_history_can_be_read_as_well(
    nothing_yet: World, contexts: Callable[..., BrowserContext], looks: list[tuple[str, Any]]
) -> None:
    views = [view for views in VIEWS.values() for view in views if view.name in EMPTY]
    walk(nothing_yet, contexts(), views, looks, of="empty-")


@pytest.mark.parametrize("name", OF_DOCUMENTS)
def test_picture_of_the_documents_is_taken(world: World, contexts: Callable[..., BrowserContext], name: str) -> None:
    page = contexts(viewport={"width": PICTURE_PX[0], "height": PICTURE_PX[1]}).new_page()
    (view,) = (view for views in VIEWS.values() for view in views if view.name == name)
    world.open(page, view)
    (PICTURES / "docs").mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / "docs" / f"{name}.png")
    assert png_size(PICTURES / "docs" / f"{name}.png") == PICTURE_PX


def test_walk_finds_what_is_blank_and_what_a_template_has_left_over(contexts: Callable[..., BrowserContext]) -> None:
    page = contexts().new_page()
    page.set_content("<main><p>all is well</p><section></section><ul hidden></ul><figure><svg width=9 height=9></svg>")
    assert page.evaluate(BLANK) == ["<section></section>"]
    page.set_content(
        "<section><h2>Held</h2><h2>Archives</h2><h3>of May</h3><p>two</p><h3>of June</h3><p hidden>none</p></section>"
    )
    assert page.evaluate(ALONE) == ["<h2>Held</h2>", "<h3>of June</h3>"]
    for text in ("rate undefined/s", "None left", "| a | b |\n| --- | --- |", "{{ count }}", "NaN %", "a <b>word</b>"):
        assert LEFTOVERS.search(text), text
    assert not LEFTOVERS.search("nonexistent | a–b < c, 5 % of none")


def test_walk_finds_what_is_cut_broken_or_told_as_if_it_were_many(contexts: Callable[..., BrowserContext]) -> None:
    page = contexts().new_page()
    page.set_content(
        "<style>ul { padding: 0 } .wide { padding-left: 2em } .figures dd { width: 5em; word-break: break-all }</style>"
        "<ul><li>outside</ul><ul class=wide><li>inside</ul>"
        "<dl class=figures><dd>127.0.0.1:63790<dd>1 to 4 and more</dl><svg aria-label='1 queues'></svg>"
    )
    assert page.evaluate(OUTSIDE) == ["<li>outside</li>"]
    assert page.evaluate(BROKEN) == ["<dd>127.0.0.1:63790</dd>"]
    assert MANY.findall(page.evaluate(TOLD)) == ["1 queues"]
    for text in ("11 queues", "2,001 queues", "0.1 hours", "0–1 messages", "1 queue"):
        assert not MANY.search(text), text


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
    # Chromium leaves out what it finds far from the screen, in pictures and on paper, too.
    drawn = "(cells) => cells.filter((cell) => cell.checkVisibility({contentVisibilityAuto: true})).length"
    cells = page.locator(".board a")
    assert cells.evaluate_all(drawn) >= 256
    page.emulate_media(media="print")
    assert cells.evaluate_all(drawn) == len(evidence.plan.cohorts)


def test_printed_pages_are_white_and_whole_and_have_nothing_to_press(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page = contexts(color_scheme="dark").new_page()
    controls = ":is(nav, form, button, input, select, textarea, summary):visible"
    for name, view in FIRST.items():
        page.emulate_media(media="screen")
        world.open(page, view)
        assert page.locator(controls).count() > 0, name
        page.emulate_media(media="print")
        assert page.locator(controls).count() == 0, name
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)", name
        assert page.evaluate(CONTRASTS) == [], name
        hidden = "(each) => each.filter((one) => one.scrollHeight > one.clientHeight + 1).length"
        assert page.locator(".board, .plan").evaluate_all(hidden) == 0, name
        assert page.locator("h1").is_visible(), name


def test_slash_leads_to_the_search_from_any_page_and_a_result_to_its_page(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page, requests, complaints = watched(contexts())
    (client,) = world.connection.execute("SELECT client_id FROM device_session_ctx LIMIT 1").fetchone() or ("",)
    page.goto(f"{site}/runs")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search for a client, queue, run or table")).to_be_focused()
    # In a field it is a character of an id.
    page.keyboard.type("/" + report_samples.PLAN_ID)
    expect(page.get_by_role("searchbox")).to_have_value("/" + report_samples.PLAN_ID)
    page.get_by_role("searchbox").fill(report_samples.PLAN_ID)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=report_samples.PLAN_ID).click()
    arrived(page, f"Migration {report_samples.PLAN_ID}")
    page.keyboard.press("/")
    page.keyboard.type(client)
    page.keyboard.press("Enter")
    arrived(page, "Search")
    page.get_by_role("button", name=client).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("One queue explained")
    assert [url for url in requests if client in url] == []
    assert complaints == []


def test_tab_reaches_everything_that_can_be_pressed_and_shows_where_it_is(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page = contexts().new_page()
    for name, view in FIRST.items():
        world.open(page, view)
        wanted = page.evaluate(REACHABLE)
        assert wanted > 8, name
        for at in range(wanted):
            # Day, month, year and calendar of a date are four stops in one field.
            for _ in range(4):
                page.keyboard.press("Tab")
                focused = page.evaluate(FOCUSED)
                if focused[0] != at - 1:
                    break
            assert focused == [at, True], (name, page.evaluate("document.activeElement.outerHTML"))


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


def test_points_of_plots_are_told_by_pointer_and_arrow_keys_and_a_series_is_switched_off(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    still = contexts(java_script_enabled=False).new_page()
    still.goto(f"{site}/quality")
    name = re.compile("are held now; at the end")
    titles = still.get_by_role("img", name=name).first.locator("title").all_text_contents()
    instants = list(dict.fromkeys(title.partition(": ")[0] for title in titles))
    told = [f"{each}: {', '.join(t.partition(': ')[2] for t in titles if t.startswith(each))}" for each in instants]
    assert still.locator("figure button").count() == 0

    page, _, complaints = watched(contexts())
    page.goto(f"{site}/quality")
    plot, tip = page.get_by_role("slider", name=name).first, page.locator(".tip:visible")
    plot.focus()
    for each in told:
        expect(tip).to_have_text(each)
        expect(plot).to_have_attribute("aria-valuetext", each)
        page.keyboard.press("ArrowRight")
    assert re.fullmatch(r"[\d-]{10} [\d:]{8} UTC: [\d.,]+ \w+ without cleanup, [\d.,]+ \w+ with cleanup", told[-1])
    page.keyboard.press("Escape")
    expect(tip).to_have_count(0)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        plot.hover(position={"x": 80, "y": 80})
        expect(tip).to_contain_text("cleanup")
        assert list(faults_of(page, alert="", width=1_280, is_dark=scheme == "dark")) == []
    line = plot.locator("path[data-series='with cleanup']:not(.at)").first
    expect(line).to_be_visible()
    page.get_by_role("button", name="with cleanup", exact=True).first.click()
    expect(line).to_be_hidden()
    plot.press("End")
    expect(tip).to_have_text(told[-1].partition(", ")[0])
    page.emulate_media(media="print")
    expect(line).to_be_visible()
    expect(tip).to_have_count(0)

    page = contexts(viewport={"width": 390, "height": 844}, has_touch=True).new_page()
    for path, label in (
        ("/quality", "expire over time"), ("/", "Depth over 5 runs"), ("/", "Lengths of"),
        (f"/migration/{report_samples.PLAN_ID}", "Speed of the copy"), ("/partitions", "Partitions of"),
    ):  # fmt: skip
        page.goto(f"{site}{path}")
        plot = page.get_by_role("slider", name=re.compile(label)).first
        plot.tap()
        expect(page.locator(".tip:visible")).to_contain_text(": ")
        plot.press("End")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert complaints == []


def test_overview_is_made_anew_every_minute_unless_it_is_in_use_or_somebody_has_said_no(
    site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page, requests, _ = watched(contexts(refreshes=True))
    stop_clock(page)
    page.goto(f"{site}/")
    with page.expect_navigation():
        page.clock.fast_forward(61_000)
    expect(page.get_by_text("Made just now")).to_be_visible()
    page.get_by_role("searchbox").fill("meter-7")
    page.get_by_role("heading", level=1).click()
    page.clock.fast_forward(180_000)
    expect(page.get_by_text("Made 3 minutes ago")).to_be_visible()
    with page.expect_navigation():
        page.get_by_role("button", name="Refresh").click()
    page.get_by_role("checkbox", name="every minute").uncheck()
    page.goto(f"{site}/runs")
    expect(page.get_by_role("checkbox", name="every minute")).not_to_be_checked()
    page.clock.fast_forward(180_000)
    expect(page.get_by_text("Made 3 minutes ago")).to_be_visible()
    assert [sum(url == f"{site}{path}" for url in requests) for path in ("/", "/runs")] == [3, 1]


def test_overview_stays_and_says_so_while_the_server_does_not_answer(
    site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page = contexts(refreshes=True).new_page()
    stop_clock(page)
    page.goto(f"{site}/")
    page.route("**/*", lambda route: route.abort())
    page.clock.fast_forward(61_000)
    expect(page.get_by_text("No answer: this page is from before.")).to_be_visible()
    page.unroute("**/*")
    with page.expect_navigation():
        page.clock.fast_forward(61_000)


def test_times_say_how_long_ago_they_were(site: str, contexts: Callable[..., BrowserContext]) -> None:
    page = contexts().new_page()
    page.clock.install(time=datetime.now(UTC) + timedelta(hours=5, minutes=30))
    page.goto(f"{site}/")
    expect(page.locator("main .lines time").first).to_contain_text("(5 hours ago")
    page.goto(f"{site}/runs")
    expect(page.locator("table time").first).to_have_attribute("title", "5 hours ago")


@pytest.mark.parametrize("tls", [True, False])
def test_id_and_undo_command_of_a_run_are_copied(
    world: World, site: str, contexts: Callable[..., BrowserContext], tmp_path: Path, tls: bool
) -> None:
    page = contexts(permissions=["clipboard-read", "clipboard-write"]).new_page()
    if not tls:
        # As browsers do where a page comes without TLS from another host than this one.
        page.add_init_script("navigator.clipboard.writeText = undefined")
    run_id = planned(world.connection, "expired_reference_cleanup", tmp_path, has_work=True)
    page.goto(f"{site}/runs/expired_reference_cleanup/{run_id}")
    for text in (run_id, f"queuekeeper run undo {run_id} --dry-run"):
        button = page.get_by_role("button", name=f"Copy {text}", exact=True)
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == text


def test_link_to_the_run_in_airflow_leaves_the_frame_in_which_airflow_shows_pages(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page = contexts().new_page()
    # The rights that Airflow 3.3 gives a page of a plugin: none to lead the window elsewhere.
    frame = '<iframe name="plugin" sandbox="allow-scripts allow-same-origin allow-forms allow-downloads" src="{}">'
    shown = f"{site}/started?dag_id=queue_quality&run_id=done"
    host = site.removesuffix("/queuekeeper")
    page.route(f"{host}/airflow", lambda route: route.fulfill(content_type="text/html", body=frame.format(shown)))
    page.route(f"{host}/dags/**", lambda route: route.fulfill(content_type="text/html", body="<h1>Airflow</h1>"))
    page.goto(f"{host}/airflow")
    page.frame_locator("iframe").get_by_role("link", name="Open the run in Airflow").click()
    page.wait_for_url(f"{host}/dags/queue_quality/runs/done")


def test_page_of_a_run_that_has_been_started_looks_again_until_the_run_is_done(
    site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page, requests, _ = watched(contexts(refreshes=True))
    stop_clock(page)
    page.goto(f"{site}/started?dag_id=queue_quality&run_id=waits")
    with page.expect_navigation():
        page.clock.fast_forward(6_000)
    page.goto(f"{site}/started?dag_id=queue_quality&run_id=done")
    page.clock.fast_forward(6_000)
    expect(page.get_by_role("status")).to_contain_text("success")
    assert [sum(url.endswith(run_id) for url in requests) for run_id in ("waits", "done")] == [2, 1]
