"""The report's page in a real browser: it asks nobody for anything, and can be read on any screen and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from queuekeeper.migration.report.gather import compose_report, write_report
from tests import report_samples as samples
from tests.browser import CONTRASTS, check_structure, chromium, opened, pictured, seconds_at_work

pytestmark = pytest.mark.ui


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS, show_client_ids=True)
    return write_report(report, tmp_path_factory.mktemp("report")).html


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_can_be_read(browser: Browser, report_file: Path, tmp_path: Path, scheme: Any, width: int) -> None:
    page, requests, complaints = opened(
        browser, report_file, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    picture = pictured(page, tmp_path / f"{scheme}-{width}.png")

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
    check_structure(page, title="Not balanced: session migration")
    board = page.get_by_role("link", name="failed").first
    board.click()
    page.wait_for_url("**#cohort-7")
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

    assert 0 < seconds_at_work(browser, path) < 5
    page, _, _ = opened(browser, path)
    assert page.locator(".board li").count() == cohorts
    page.close()
