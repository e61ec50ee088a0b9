"""What is looked for on a page of the plugin, in each size, in the light and in the dark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Page

from tests.browser import CONTRASTS, pictured
from tests.pictures import PICTURES

SIZES = {"phone": (390, 844), "tablet": (820, 1_180), "desk": (1_280, 900)}
DAY: list[tuple[str, Any]] = [("desk", "dark"), ("phone", "light")]
NIGHT: list[tuple[str, Any]] = [("desk", "light"), ("phone", "dark"), ("tablet", "dark"), ("tablet", "light")]
LOOKS = [pytest.param(DAY, id="day"), pytest.param(NIGHT, id="night", marks=pytest.mark.nightly)]
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


STILL = "if (self.origin !== 'null') localStorage.setItem('queuekeeper.still', 'yes')"
"""Script of a browser whose pages are not made anew every minute."""


def watched(context: BrowserContext) -> tuple[Page, list[str], list[str]]:
    """Return a page, the addresses that it asks for, and what it complains of."""
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, requests, complaints


def faults_of(page: Page, *, alert: str, width: int, is_dark: bool) -> Iterator[str]:
    """Yield what is wrong with a page as it is seen now.

    :param alert: what its alerts say; empty for a page that has none.
    """
    for fault in Axe().run(page).response["violations"]:
        yield f"axe, {fault['impact']}: {fault['help']}: {fault['nodes'][0]['html'][:200]}"
    yield from (f"contrast: {contrast}" for contrast in page.evaluate(CONTRASTS))
    yield from (f"blank: {blank}" for blank in page.evaluate(BLANK))
    yield from (f"broken: {broken}" for broken in page.evaluate(BROKEN))
    text = page.locator("body").inner_text()
    yield from (f"left over: {text[at.start() - 30 : at.end() + 30]!r}" for at in LEFTOVERS.finditer(text))
    said = page.get_by_role("alert").all_inner_texts()
    yield from (f"alert: {each}" for each in said if not alert or alert not in each)
    if alert and not said:
        yield f"no alert says: {alert}"
    if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
        yield f"{wide} pixels wide"
    if (page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)") is not is_dark:
        yield "the other colours"


def seen(page: Page, looks: Sequence[tuple[str, Any]], *, alert: str, name: str) -> Iterator[tuple[str, ...]]:
    """Yield what is wrong with the page that is open, and leave a picture of each look.

    :param looks: sizes, each in the light or in the dark.
    :param alert: what its alerts say; empty for a page that has none.
    :param name: of the pictures.
    """
    PICTURES.mkdir(parents=True, exist_ok=True)
    for size, scheme in looks:
        width, height = SIZES[size]
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        pictured(page, PICTURES / f"{name}-{size}-{scheme}.png")
        found = faults_of(page, alert=alert, width=width, is_dark=scheme == "dark")
        yield from ((name, size, scheme, fault) for fault in found)
