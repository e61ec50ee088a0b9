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
# A heading promises something: what is seen next of the same parent is neither its end nor a heading of no lower rank.
ALONE = """() => [...document.querySelectorAll("section > :is(h2, h3, h4)")]
  .filter((each) => each.checkVisibility() && !each.closest(".sr"))
  .filter((each) => {
    let next = each.nextElementSibling;
    while (next && !next.checkVisibility()) next = next.nextElementSibling;
    return !next || (/^H[2-6]$/.test(next.tagName) && next.tagName <= each.tagName);
  }).map((each) => each.outerHTML.slice(0, 200))"""
# Tables scroll sideways, and figures have room: in them no hash, number, address or instant goes on in another line.
BROKEN = """() => {
  const lines = (each) => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size;
  };
  return [...document.querySelectorAll(".scroll :is(code, time), .figures dd")]
    .filter((each) => each.matches("time") || !/[\\s/-]/.test(each.textContent.trim()))
    .filter((each) => each.checkVisibility() && lines(each) > 1).map((each) => each.outerHTML);
}"""
# The mark of an item stands left of it, where there has to be room for it.
OUTSIDE = """() => [...document.querySelectorAll(":is(ul, ol) > li")]
  .filter((each) => each.checkVisibility() && getComputedStyle(each).listStyleType !== "none")
  .filter((each) => parseFloat(getComputedStyle(each.parentElement).paddingLeft) < 16)
  .map((each) => each.outerHTML.slice(0, 200))"""
# Also what pointers and screen readers are told.
TOLD = """() => [document.body.innerText, ...[...document.querySelectorAll("[aria-label], [title]")].flatMap(
  (each) => [each.getAttribute("aria-label"), each.getAttribute("title")]
)].join("\\n")"""
MANY = re.compile(
    r"(?<![\d,.–:-])(?<!\d )1 (?:checks|clients|cohorts|days|differences|entries|hours|incidents|lines|messages|minutes"
    r"|partitions|queues|rows|runs|sessions|shares|tables)\b"
)
"""One of something, told as if it were many."""


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
    yield from (f"heading of nothing: {heading}" for heading in page.evaluate(ALONE))
    yield from (f"broken: {broken}" for broken in page.evaluate(BROKEN))
    yield from (f"mark outside: {item}" for item in page.evaluate(OUTSIDE))
    yield from (f"one as many: {found}" for found in MANY.findall(page.evaluate(TOLD)))
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
