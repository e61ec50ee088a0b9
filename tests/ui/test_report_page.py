"""The report's page in a real browser: it asks nobody for anything, and can be read on any screen and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from queuekeeper.migration.report.gather import compose_report, write_report
from tests import report_samples as samples
from tests.browser import (
    EACH_LOOK,
    check_print,
    check_readable,
    check_structure,
    opened,
    seconds_at_work,
    verdict_first,
)

pytestmark = pytest.mark.ui


@pytest.fixture(scope="module")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS, show_client_ids=True)
    return write_report(report, tmp_path_factory.mktemp("report")).html


@EACH_LOOK
def test_the_page_can_be_read(browser: Browser, report_file: Path, tmp_path: Path, scheme: Any, width: int) -> None:
    check_readable(browser, report_file, tmp_path / "page.png", scheme=scheme, width=width, figures=2)


def test_the_verdict_is_seen_first(browser: Browser, report_file: Path) -> None:
    verdict_first(browser, report_file, "Not balanced").close()


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
    check_print(browser, report_file)


def test_a_board_of_ten_thousand_cohorts_opens_at_once(browser: Browser, tmp_path: Path) -> None:
    report = compose_report(samples.balanced(count=10_000), now_ms=samples.NOW_MS)
    cohorts = len(report.cohorts)
    path = write_report(report, tmp_path).html

    assert 0 < seconds_at_work(browser, path) < 5
    page, _, _ = opened(browser, path)
    assert page.locator(".board li").count() == cohorts
    page.close()
