"""The pages in a real browser: anybody can read them. Who may see them, and a migration played in Airflow's own UI from
form to report, are in ``tests/integration/test_session_migration.py``.

Pictures of every page are taken where ``QUEUEKEEPER_SCREENSHOTS`` names a folder for them.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
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
from tests.conftest import nightly
from tests.patience import PATIENCE_S
from tests.plugin_world import fill_all, fill_migration, open_guards
from tests.run_kinds import planned

pytestmark = pytest.mark.ui

DATABASE = "ui_pages"
DAGS = Path(__file__).parents[2] / "dags"
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
    "started": "/started?dag_id=queue_quality&run_id=manual__1",
    "search": "/search",
    "nothing": "/nothing",
}
SIZES = {"phone": (390, 844), "tablet": (820, 1_180), "desk": (1_280, 900)}
DAY = ["desk-dark", "phone-light"]
NIGHT = ["desk-light", "phone-dark", "tablet-dark", "tablet-light"]

# What a template leaves where a value was forgotten, and what a Markdown text is before it is rendered.
LEFTOVERS = re.compile(
    r"\bundefined\b|\bNone\b|\bnull\b|\bNaN\b|\[object |\{\{|\}\}|\{%|\| ?---|\bTraceback\b|<[a-z]+[ >]"
)
BLANK = """() => [...document.querySelectorAll("main, section, figure, table, ul, ol, dl, h1, h2, h3, p, svg, canvas")]
  .filter((each) => !each.closest("[hidden], .sr, details:not([open]), template") && each.checkVisibility())
  .filter((each) => {
    const {width, height} = each.getBoundingClientRect();
    const drawn = each.matches("svg, canvas") || each.querySelector("svg, canvas, input, select, textarea, button");
    return width < 1 || height < 1 || (!drawn && !each.textContent.trim());
  }).map((each) => each.outerHTML.slice(0, 200))"""
# Tables scroll sideways: in them no hash, number or instant goes on in another line.
BROKEN = """() => [...document.querySelectorAll(".scroll :is(code, time)")]
  .filter((each) => each.matches("time") || !/[\\s/-]/.test(each.textContent))
  .filter((each) => each.checkVisibility() && each.getClientRects().length > 1).map((each) => each.outerHTML)"""


FORMS = {f"form-{file.stem}": f"/trigger/{file.stem}" for file in sorted(DAGS.glob("*.py"))}

# Numbers what can be pressed, written in or scrolled, in its order on the page; one cell of the board stands for all.
REACHABLE = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
)].filter((each) => each.checkVisibility() && each.tabIndex === 0)
  .map((each, at) => each.setAttribute("data-at", at)).length"""
FOCUSED = """() => {
  const found = document.activeElement;
  return [Number(found.dataset.at), getComputedStyle(found).outlineStyle !== "none"];
}"""


@dataclass(frozen=True, kw_only=True)
class World:
    """Stores with a history, and where pictures go, if anybody wants them."""

    connection: Connection
    target: RedisServer
    source_url: str
    home: Path
    pictures: Path | None
    run_id: str

    def keep_picture(self, page: Page, name: str) -> None:
        """Keep a picture of a page; nothing else looks at it."""
        if self.pictures is not None:
            pictured(page, self.pictures / f"{name}.png")


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
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
    with postgres.connect(source, autocommit=True) as connection:
        fill_all(connection, messages=500, sessions=50)
        for about in ("migration", "quality", "fanout"):
            for suffix in ("html", "json"):
                report = server_home / "ui-home" / "reports" / f"{about}-0123456789abcdef-20260301T080000Z.{suffix}"
                report.parent.mkdir(parents=True, exist_ok=True)
                report.touch()
        yield World(
            connection=connection,
            target=target,
            source_url=source,
            home=server_home / "ui-home",
            pictures=Path(kept) if kept else None,
            run_id=planned(connection, "fanout_repair", tmp_path_factory.mktemp("undo"), has_work=True),
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
    app.mount(
        "/queuekeeper",
        pages(settings=Settings(home=world.home), guards=open_guards(), stores=stores, api=airflow_api()),
    )
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


def airflow_api() -> Any:
    """Return what answers as Airflow's own API does: details of our DAGs, read from their files, and states of runs."""
    from airflow.dag_processing.dagbag import DagBag

    from queuekeeper.airflow.plugin.rest import RestApi

    details = {
        f"/{dag_id}/details": {
            "params": {name: dag.params.get_param(name).serialize() for name in dag.params},
            "tags": [{"name": tag} for tag in dag.tags],
            "description": dag.description,
            "is_paused": False,
        }
        for dag_id, dag in DagBag(DAGS).dags.items()
    }

    def answer(request: httpx.Request) -> httpx.Response:
        run = {"state": "queued" if request.url.path.endswith("waits") else "success"}
        found = next((known for path, known in details.items() if path in request.url.path), run)
        return httpx.Response(200, json=found)

    return RestApi(lambda: httpx.MockTransport(answer))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


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
            opened[-1].add_init_script("if (self.origin !== 'null') localStorage.setItem('queuekeeper.still', 'yes')")
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


def arrived(page: Page, heading: str) -> None:
    """Wait for the page that a key or a link leads to: until then, what is asked is answered by the page before."""
    expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    # The script of the page listens from then on.
    page.wait_for_load_state("load")


def stop_clock(page: Page) -> None:
    """Let the time of the page's script stand still, but for ``page.clock.fast_forward``."""
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(seconds=1))


def serious_faults(page: Page) -> list[str]:
    """Return what axe finds that keeps somebody from using the page."""
    return [
        f"{fault['impact']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("view", [*DAY, *nightly(*NIGHT)])
def test_every_page_can_be_read_in_every_size_in_the_light_and_in_the_dark_and_asks_no_other_host(
    world: World, site: str, contexts: Callable[..., BrowserContext], view: str
) -> None:
    size, scheme = view.split("-")
    width, height = SIZES[size]
    page, requests, complaints = watched(contexts(color_scheme=scheme, viewport={"width": width, "height": height}))
    faults: list[tuple[str, object]] = []
    for name, path in {**PAGES, **FORMS, "run": f"/runs/fanout_repair/{world.run_id}"}.items():
        answer = page.goto(f"{site}{path}")
        assert answer is not None
        assert answer.status == (404 if name == "nothing" else 200), (name, page.locator("body").inner_text())
        world.keep_picture(page, f"{name}-{scheme}{'' if size == 'desk' else f'-{size}'}")
        text = page.locator("body").inner_text()
        faults += [(name, fault) for fault in serious_faults(page)]
        faults += [(name, contrast) for contrast in page.evaluate(CONTRASTS)]
        faults += [(name, f"blank: {blank}") for blank in page.evaluate(BLANK)]
        faults += [(name, f"broken: {broken}") for broken in page.evaluate(BROKEN)]
        faults += [(name, f"left over: {text[at.start() - 30 : at.end() + 30]!r}") for at in LEFTOVERS.finditer(text)]
        if name != "nothing":
            faults += [(name, f"error: {alert}") for alert in page.get_by_role("alert").all_inner_texts()]
        if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
            faults.append((name, f"{wide} pixels wide"))
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark is (scheme == "dark"), name
    assert faults == []
    assert [url for url in requests if not url.startswith((site, "data:"))] == []
    # The page that does not exist is told as such, and nothing else.
    assert [text for text in complaints if "404" not in text] == []


def test_walk_finds_what_is_blank_and_what_a_template_has_left_over(contexts: Callable[..., BrowserContext]) -> None:
    page = contexts().new_page()
    page.set_content("<main><p>all is well</p><section></section><ul hidden></ul><figure><svg width=9 height=9></svg>")
    assert page.evaluate(BLANK) == ["<section></section>"]
    for text in ("rate undefined/s", "None left", "| a | b |\n| --- | --- |", "{{ count }}", "NaN %", "a <b>word</b>"):
        assert LEFTOVERS.search(text), text
    assert not LEFTOVERS.search("nonexistent | a–b < c, 5 % of none")


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
    for name, path in {**PAGES, "run": f"/runs/fanout_repair/{world.run_id}"}.items():
        page.emulate_media(media="screen")
        page.goto(f"{site}{path}")
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
    world.keep_picture(page, "found")
    assert serious_faults(page) == []
    page.get_by_role("button", name=client).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("One queue explained")
    assert [url for url in requests if client in url] == []
    assert complaints == []


def test_tab_reaches_everything_that_can_be_pressed_and_shows_where_it_is(
    world: World, site: str, contexts: Callable[..., BrowserContext]
) -> None:
    page = contexts().new_page()
    for name, path in {**PAGES, "run": f"/runs/fanout_repair/{world.run_id}"}.items():
        page.goto(f"{site}{path}")
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
        assert page.evaluate(CONTRASTS) == []
        assert serious_faults(page) == []
    world.keep_picture(page, "point-dark")
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
        (PAGES["migration"], "Speed of the copy"), ("/partitions", "Partitions of"),
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
