"""Chromium for tests of pages: starting it, opening a page while noting what it asks for, pictures, contrasts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser for the length of a ``with`` block."""
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


def pictured(page: Page, path: Path) -> bytes:
    """Return a picture of the whole page, and keep it in a file.

    Chromium on a busy machine now and then refuses a picture ("Unable to capture screenshot") and takes the same one
    when asked again. Whatever else it says is a failure, and so is a third refusal.
    """
    for _ in range(2):
        try:
            return page.screenshot(path=path, full_page=True)
        except Error as error:
            if "Unable to capture screenshot" not in error.message:
                raise
            page.wait_for_timeout(1_000)
    return page.screenshot(path=path, full_page=True)


def seconds_at_work(browser: Browser, path: Path) -> float:
    """Open a page and return the time of its thread, not of the clock: tests share their machine."""
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    metrics = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    page.close()
    return float(metrics["TaskDuration"])


def check_structure(page: Page, *, title: str) -> None:
    """Check that a page is built for screen readers, and that what scrolls can be reached by Tab and has a name.

    :param title: its beginning.
    """
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.title().startswith(title)
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
    unreachable = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((each) => each.tabIndex !== 0 || !each.ariaLabel).length"
    )
    assert unreachable == 0


EACH_LOOK = pytest.mark.parametrize(("scheme", "width"), list(product(("light", "dark"), (1280, 400))))
"""Colours and widths in which a page has to be readable."""


def check_readable(browser: Browser, path: Path, picture: Path, *, scheme: Any, width: int, figures: int) -> None:
    """Check that a page can be read in a colour scheme and at a width: nothing is cut off, too pale, or fetched.

    :param picture: where its picture is written.
    :param figures: how many drawings are shown.
    """
    page, requests, complaints = opened(browser, path, color_scheme=scheme, viewport={"width": width, "height": 900})

    assert pictured(page, picture).startswith(b"\x89PNG")
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert complaints == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CONTRASTS) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark is (scheme == "dark")
    shown = page.locator("figure svg:visible")
    kind = "wide" if width == 1280 else "narrow"
    assert [shown.nth(at).get_attribute("class") for at in range(shown.count())] == [kind] * figures
    page.close()


def verdict_first(browser: Browser, path: Path, verdict: str) -> Page:
    """Return a page of which the first screen shows the verdict."""
    page, _, _ = opened(browser, path, viewport={"width": 1280, "height": 720})
    status = page.get_by_role("status")
    box = status.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < 720
    assert verdict in status.inner_text()
    return page


def check_print(browser: Browser, path: Path) -> None:
    """Check that a page is printed in black on white, also for people who have chosen dark colours."""
    page, _, _ = opened(browser, path, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")

    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.close()
