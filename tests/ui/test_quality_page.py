"""The quality report's page in a real browser: asks nobody for anything, can be read anywhere, opens at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from queuekeeper.quality.report.gather import compose_report, write_report
from queuekeeper.quality.report.model import PublishedReport
from tests import quality_samples as samples
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

FORMS = "/queuekeeper/trigger"


@pytest.fixture(scope="module")
def report() -> PublishedReport:
    return compose_report(samples.failed(), now_ms=samples.NOW_MS, forms_url=FORMS)


@pytest.fixture(scope="module")
def report_file(report: PublishedReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(report, tmp_path_factory.mktemp("report")).html


@EACH_LOOK
def test_the_page_can_be_read(browser: Browser, report_file: Path, tmp_path: Path, scheme: Any, width: int) -> None:
    # Lengths, bytes, messages and what is held, of two stores; memory.
    check_readable(browser, report_file, tmp_path / "page.png", scheme=scheme, width=width, figures=9)


def test_the_verdict_is_seen_first_and_all_runs_of_the_heat_map_fit(browser: Browser, report_file: Path) -> None:
    page = verdict_first(browser, report_file, "Failed")
    overflow = "each => each.scrollWidth - each.clientWidth"
    assert page.get_by_role("group", name="Checks by run").evaluate(overflow) <= 0
    assert page.locator(".heat tbody tr").first.locator("td").count() == 30
    page.close()


def test_hostile_texts_stay_text(browser: Browser, tmp_path: Path) -> None:
    report = compose_report(samples.hostile(), now_ms=samples.NOW_MS, forms_url=FORMS)
    page, requests, complaints = opened(browser, write_report(report, tmp_path).html)

    assert page.get_by_text(samples.HOSTILE).count() > 10
    assert page.locator("script, img").count() == 0
    assert complaints == []
    assert not [url for url in requests if "attacker" in url]
    # What a person copies from a cell begins with an apostrophe, not with the formula.
    cells = page.locator("td, th").all_inner_texts()
    assert [text for text in cells if text.strip().startswith(("=", "+", "@"))] == []
    assert any(text.startswith("'=HYPERLINK") for text in cells)
    page.close()


def test_the_page_is_built_for_screen_readers_and_keyboards(browser: Browser, report_file: Path) -> None:
    page, _, _ = opened(browser, report_file, viewport={"width": 400, "height": 800})
    check_structure(page, title="Failed: queue quality")
    # By keyboard alone: Tab comes to the first remedy.
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "A":
            break
    assert "with its form filled in" in page.evaluate("document.activeElement.innerText")
    page.close()


def test_ten_thousand_cohorts_and_evidence_open_at_once(browser: Browser, tmp_path: Path) -> None:
    evidence = samples.failed()
    redis = evidence.profiles[0].profile_id
    examples = tuple({"client_hash": f"{number:016x}", "last_packet_id": number} for number in range(10_000))
    results = tuple(
        replace(each, examples=examples, unexpected_count=10_000) if each.check_id == "Q11" else each
        for each in evidence.results
    )
    many = replace(
        evidence, results=results, cohorts={redis: samples.cohort_lines("redis", count=10_000)}, expiry={}, depths={}
    )
    path = write_report(compose_report(many, now_ms=samples.NOW_MS), tmp_path).html

    assert 0 < seconds_at_work(browser, path) < 5
    page, _, _ = opened(browser, path)
    assert page.locator(".board li").count() == 10_000
    page.close()


def test_the_page_prints_in_black_on_white(browser: Browser, report_file: Path) -> None:
    check_print(browser, report_file)
