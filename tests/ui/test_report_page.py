"""The report's page in a real browser: it asks nobody for anything, and can be read on any screen and on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from queuekeeper.migration.report import compose_report, write_report
from tests import report_samples as samples

pytestmark = pytest.mark.ui

CHROMIUM = os.environ.get("QUEUEKEEPER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

# As the guidelines on accessible content compute it: relative luminance of two opaque colours.
CONTRASTS = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }).reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  const paper = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = channels(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("body"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest("svg, .sr")) continue;
    const [one, other] = [luminance(channels(getComputedStyle(element).color)), luminance(paper(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push([walker.currentNode.data.trim(), Math.round(ratio * 100) / 100]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "no Chromium was found: install it (apt-get install chromium) or name it in QUEUEKEEPER_CHROMIUM"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
                "--disable-component-update", "--disable-sync",
            ],
        )  # fmt: skip
        yield started
        started.close()


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS, show_client_ids=True)
    return write_report(report, tmp_path_factory.mktemp("report")).html


def opened(browser: Browser, path: Path, **options: Any) -> tuple[Page, list[str], list[str]]:
    """Return the page, the addresses it asked for, and what it complained of."""
    page = browser.new_page(**options)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    return page, requests, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_can_be_read(browser: Browser, report_file: Path, tmp_path: Path, scheme: Any, width: int) -> None:
    page, requests, complaints = opened(
        browser, report_file, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    picture = page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)

    assert [url for url in requests if not url.startswith("data:")] == [report_file.as_uri()]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRASTS) == []
    assert picture.startswith(b"\x89PNG")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark is (scheme == "dark")
    shown = page.locator("figure svg:visible")
    assert shown.count() == 2
    assert all(shown.nth(at).get_attribute("class") == ("wide" if width == 1280 else "narrow") for at in range(2))
    page.close()


def test_the_verdict_is_seen_first(browser: Browser, report_file: Path) -> None:
    page, _, _ = opened(browser, report_file, viewport={"width": 1280, "height": 720})
    verdict = page.get_by_role("status")

    assert "Not balanced" in verdict.inner_text()
    box = verdict.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 720
    page.close()


def test_hostile_ids_stay_text(browser: Browser, report_file: Path) -> None:
    page, _, complaints = opened(browser, report_file)

    assert page.get_by_text(samples.HOSTILE, exact=True).count() == 2
    assert page.locator("script, img").count() == 0
    assert complaints == []
    page.close()


def test_the_page_is_built_for_screen_readers_and_keyboards(browser: Browser, report_file: Path) -> None:
    page, _, _ = opened(browser, report_file, viewport={"width": 400, "height": 800})

    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title().startswith("Not balanced: session migration")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("figure svg:not([role=img][aria-label])").count() == 0
    duplicates = page.evaluate(
        "(() => { const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);"
        " return ids.length - new Set(ids).size; })()"
    )
    assert duplicates == 0
    # What can be scrolled can be reached by Tab, and has a name.
    unreachable = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((each) => each.tabIndex !== 0 || !each.ariaLabel).length"
    )
    assert unreachable == 0
    board = page.get_by_role("link", name="failed").first
    board.click()
    assert page.url.endswith("#cohort-7")
    page.close()


def test_the_page_prints_in_black_on_white(browser: Browser, report_file: Path) -> None:
    page, _, _ = opened(browser, report_file, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")

    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


def test_a_board_of_ten_thousand_cohorts_opens_at_once(browser: Browser, tmp_path: Path) -> None:
    report = compose_report(samples.balanced(count=10_000), now_ms=samples.NOW_MS)
    cohorts = len(report.cohorts)
    path = write_report(report, tmp_path).html
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    # Time of the thread, not of the clock: tests share their machine.
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())

    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    assert page.locator(".board li").count() == cohorts
    assert 0 < metrics["TaskDuration"] < 5
    page.close()
