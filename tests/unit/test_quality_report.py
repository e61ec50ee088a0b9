"""The report of a judgement of quality as a record and as text: verdicts, trends, forecasts, escaping; no server."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from queuekeeper.jobs.checks import Severity
from queuekeeper.jobs.findings import Status
from queuekeeper.quality.judge.store import ExpiryHour, Verdict
from queuekeeper.quality.report.gather import compose_report, write_report
from queuekeeper.quality.report.model import ExpiryTimeline, PublishedReport
from queuekeeper.quality.report.page import expiry_charts, held_charts, render
from queuekeeper.report.figures import harmless, short
from tests import quality_samples as samples
from tests.pages import check_harmless, text_of

pytestmark = pytest.mark.unit

FORMS = "https://airflow.example.org/queuekeeper/trigger"


@pytest.fixture(scope="module")
def failed() -> PublishedReport:
    return compose_report(samples.failed(), now_ms=samples.NOW_MS, forms_url=FORMS)


@pytest.fixture(scope="module")
def page(failed: PublishedReport) -> str:
    return rendered(failed)


def rendered(report: PublishedReport) -> str:
    return render(report, json_name="report.json", json_sha256="0" * 64)


def test_failed_run_says_what_failed_and_that_dependents_wait(failed: PublishedReport, page: str) -> None:
    assert failed.explanation.startswith("1 critical check failed and 1 check could not be made.")
    assert "DAGs that depend on the quality of the queues wait." in failed.explanation
    assert "✗ Failed" in text_of(page)
    assert [line.check_id for line in failed.findings] == ["Q14", "Q11", "Q9"]
    assert [line.check_id for line in failed.excused] == ["Q20"]


def test_finding_shows_evidence_priority_and_a_link_that_fills_in_the_form(failed: PublishedReport, page: str) -> None:
    (finding,) = [line for line in failed.findings if line.check_id == "Q11"]

    assert (finding.priority, finding.severity, finding.unexpected_count) == ("P0", "critical", 5)
    url = urlsplit(finding.remedy_url)
    assert f"{url.scheme}://{url.netloc}{url.path}" == f"{FORMS}/session_repair"
    filled = json.loads(parse_qs(url.query)["conf"][0])
    assert filled == {
        "remedy": "repair_counter",
        "quality_run_id": samples.RUN_ID,
        "cohorts": "0-3,7",
        "key_prefix": "",
        "dry_run": True,
    }
    words = shlex.split(finding.trigger)
    assert words[:4] == ["airflow", "dags", "trigger", "session_repair"]
    assert json.loads(words[5]) == filled
    assert "Open session_repair (repair counter) with its form filled in" in text_of(page)
    assert "0000000000000003 7 14" in text_of(page)


def test_broken_check_offers_no_remedy_for_what_nobody_knows(failed: PublishedReport) -> None:
    (broken,) = [line for line in failed.findings if line.check_id == "Q14"]

    assert (broken.remedy_url, broken.trigger) == ("", "")
    assert broken.advice.startswith("The check could not be made and proves nothing")


def test_finding_that_no_dag_mends_shows_its_command() -> None:
    evidence = replace(samples.failed(), results=(samples.result("Q32", Status.FAILED, suite="events"),))
    html = rendered(compose_report(evidence, now_ms=samples.NOW_MS, forms_url=FORMS))

    assert "queuekeeper events mend quarantine_subscription --dry-run" in text_of(html)
    assert "airflow dags trigger" not in html


def test_without_an_airflow_there_is_the_command_and_no_link() -> None:
    html = rendered(compose_report(samples.failed(), now_ms=samples.NOW_MS))

    assert "<a " not in html
    assert "airflow dags trigger session_repair" in html


def test_known_issue_names_owner_and_end_and_an_overdue_one_stands_out(failed: PublishedReport, page: str) -> None:
    assert [(issue.check_id, issue.overdue) for issue in failed.known_issues] == [("Q20", False), ("Q13", True)]
    assert "Known until 2026-03-21, platform team answers for it" in text_of(page)
    assert "Q13 00112233445566aa night shift 2026-02-26, overdue kept for an audit" in text_of(page)


def test_incident_says_since_when_it_stands_and_who_answers_for_it(failed: PublishedReport, page: str) -> None:
    assert [(line.incident_id, line.state, line.days(samples.NOW_MS)) for line in failed.incidents] == [(4, "known", 9)]
    assert "4 P0 Q11 Last packet id known until" in text_of(page)
    assert "platform team 9 days" in text_of(page)
    assert [line.incident_id for line in failed.closed_by_hand] == [3]
    assert "2026-02-28" in text_of(page)
    assert "ann the server was switched off redis.example.org:6379/0" in text_of(page)
    assert "Incidents There are none." in text_of(rendered(compose_report(samples.passed(), now_ms=samples.NOW_MS)))


def test_nothing_that_comes_from_outside_does_harm() -> None:
    report = compose_report(samples.hostile(), now_ms=samples.NOW_MS, forms_url=FORMS)
    html = rendered(report)

    check_harmless(html, text=samples.HOSTILE)
    assert not re.search(r"\son[a-z]+=\"", html)
    # Whoever copies a cell into a spreadsheet gets text: a formula would begin with the cell.
    assert samples.FORMULA in text_of(html)
    assert not re.search(r">\s*=", html)
    assert "javascript:" not in html
    assert "meter/17" not in html + report.to_json()


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "|calc", "%0A=1"])
def test_text_that_a_spreadsheet_would_compute_is_told_apart(text: str) -> None:
    assert not harmless(text).lstrip().startswith(("=", "+", "-", "@", "|", "%"))


def test_text_that_hides_or_turns_round_is_named() -> None:
    assert harmless("a\u202eb\x00c") == "a\\u202eb\\u0000c"
    assert harmless("plain client, 17") == "plain client, 17"


def test_heat_map_has_a_row_per_check_and_a_column_per_run(failed: PublishedReport, page: str) -> None:
    heat = failed.heat

    assert len(heat.runs) == 30
    assert heat.runs[-1].quality_run_id == samples.RUN_ID
    row = {each.check_id: each for each in heat.rows}
    assert [cell.state for cell in row["Q11"].cells[-6:]] == ["passed", *["critical"] * 5]
    assert row["Q36"].cells[0].state == "not run"
    assert row["Q14"].cells[14].state == "broken"
    assert row["Q20"].cells[-1].state == "known"
    assert page.count('class="critical"') == 5
    # Never by colour alone.
    assert "failed, critical, 5 queues" in text_of(page)


def test_a_check_that_did_not_run_says_why(failed: PublishedReport) -> None:
    why = {line.check_id: line.why for line in failed.not_run}

    assert why["Q25"] == "not part of the suites that were chosen"
    assert why["Q2"] == "not part of the suites that were chosen"
    assert why["Q21"].startswith("needs the messages' contents")
    assert "Q11" not in why


def test_expiry_is_plotted_in_the_unit_and_over_the_hours_or_days_that_fit_it(failed: PublishedReport) -> None:
    redis = failed.expiry[0]
    first = replace(redis, points=redis.points[:1])
    (point,) = (
        replace(each, messages=2, payload_bytes=300, held_bytes=500, held_after_cleanup_bytes=400)
        for each in first.points
    )

    def titles(timeline: ExpiryTimeline) -> set[str]:
        drawn = [chart for chart in (*expiry_charts(timeline), held_charts(timeline)) if chart]
        found = re.findall(r"<text[^>]*>([^<]+)</text>", "".join(str(wide) for wide, _ in drawn))
        return {text for text in found if re.search("[a-z]", text)} - {"without cleanup", "with cleanup"}

    assert titles(redis) == {"MiB per hour", "messages per hour", "days from the reading", "MiB held"}
    assert titles(replace(first, points=(point,))) == {
        "B per hour", "messages per hour", "hours from the reading", "B held",
    }  # fmt: skip


def test_expiry_adds_up_and_a_cleanup_frees_what_redis_keeps(failed: PublishedReport) -> None:
    redis, postgres = failed.expiry
    hours = samples.failed().expiry[failed.profiles[0].profile_id]

    assert redis.span_ms == 3_600_000
    shown = sum(point.messages for point in redis.points)
    dead = sum(line.dead for line in failed.cohorts if line.store == "redis")
    assert redis.overdue_messages == 900 + dead
    assert shown + redis.endless_messages + redis.later_messages + redis.overdue_messages - dead == sum(
        hour.messages for hour in hours
    )
    held = [point.held_bytes for point in redis.points]
    cleaned = [point.held_after_cleanup_bytes for point in redis.points]
    assert held == sorted(held, reverse=True)
    assert all(less <= more for less, more in zip(cleaned, held, strict=True))
    # What expires later than shown is all that is left.
    assert cleaned[-1] == 2_760 + 12 * 100
    # PostgreSQL frees nothing by itself.
    assert {point.held_bytes for point in postgres.points} == {postgres.held_bytes}


def test_a_message_that_outlives_its_century_makes_no_endless_chart() -> None:
    evidence = samples.failed()
    profile_id = evidence.profiles[0].profile_id
    far = (ExpiryHour(hour_ms=4_102_444_800_000, messages=1, payload_bytes=1),)
    report = compose_report(replace(evidence, expiry={profile_id: far}), now_ms=samples.NOW_MS)

    assert report.expiry[0].points == ()
    assert report.expiry[0].later_messages == 1


def test_memory_is_forecast_with_a_margin_and_the_day_on_which_it_is_full(failed: PublishedReport) -> None:
    memory = failed.memory

    assert memory.bytes_per_day is not None
    assert memory.bytes_per_day == pytest.approx(4 * 12_000_000, rel=0.05)
    assert memory.low_per_day is not None
    assert memory.high_per_day is not None
    assert memory.low_per_day < memory.bytes_per_day < memory.high_per_day
    assert memory.full_in_days == pytest.approx((2_147_483_648 - memory.measured[-1].used_bytes) / memory.bytes_per_day)
    assert [server.product for server in memory.servers] == ["Valkey"]


def test_few_measurements_make_no_forecast_and_say_what_to_do() -> None:
    evidence = samples.failed()
    report = compose_report(replace(evidence, trend=evidence.trend[-3:]), now_ms=samples.NOW_MS)

    assert report.memory.bytes_per_day is None
    assert report.memory.remark.startswith("A forecast needs 5 runs over an hour or more; 3 are on record.")


def test_other_servers_make_no_forecast() -> None:
    evidence = samples.failed()
    elsewhere = [{**evidence.run.numbers["servers"][0], "address": "127.0.0.1:7000"}]
    run = replace(evidence.run, numbers={**evidence.run.numbers, "servers": elsewhere})
    report = compose_report(replace(evidence, run=run), now_ms=samples.NOW_MS)

    assert report.memory.measured == ()
    assert report.memory.bytes_per_day is None


def test_run_whose_queues_were_dropped_does_not_say_that_none_has_a_fault() -> None:
    evidence = samples.failed()
    profiles = tuple(replace(profile, is_forgotten=True) for profile in evidence.profiles)
    text = text_of(rendered(compose_report(replace(evidence, profiles=profiles, queues={}), now_ms=samples.NOW_MS)))

    assert "The rows of queues have been dropped" in text
    assert "No queue has a fault." not in text


def test_sample_says_that_it_is_one() -> None:
    evidence = samples.failed()
    profiles = tuple(replace(profile, sample_percent=10) for profile in evidence.profiles)
    text = text_of(rendered(compose_report(replace(evidence, profiles=profiles), now_ms=samples.NOW_MS)))

    assert "10 % of their slots" in text


def test_passed_run_says_that_nothing_has_to_be_done() -> None:
    report = compose_report(samples.passed(), now_ms=samples.NOW_MS)
    text = text_of(rendered(report))

    assert report.verdict is Verdict.PASSED
    assert "3 checks ran, and nothing has to be done." in text
    assert "None. Every check that ran holds." in text
    assert "No queue has a fault." in text
    assert "No row waits in quarantine." in text


def test_passed_run_names_what_did_not_pass_for_information() -> None:
    evidence = samples.passed()
    # Two findings are of one check, as its line in charts and its incident are.
    told = [
        samples.result("Q13", Status.FAILED, number=number, severity=Severity.INFO, unexpected_count=2)
        for number in (4, 5)
    ]
    report = compose_report(replace(evidence, results=(*evidence.results, *told)), now_ms=samples.NOW_MS)

    assert "4 checks ran, and no message is in danger. What did not pass (1 check) is for" in report.explanation
    assert "nothing has to be done" not in report.explanation


def test_empty_report_explains_the_next_step_everywhere() -> None:
    text = text_of(rendered(compose_report(samples.empty(), now_ms=samples.NOW_MS)))

    for words in (
        "Not finished",
        "No check has run. Trigger queue_quality",
        "There is no finished run yet. Switch on the schedule",
        "No queue has been read yet.",
        "No store has been read yet: run queue_quality",
        "There is no forecast. No Redis was part of this run.",
        "No cohort has been read yet.",
    ):
        assert words in text, words


def test_the_page_names_no_other_host_and_runs_no_script() -> None:
    html = rendered(compose_report(samples.failed(), now_ms=samples.NOW_MS))

    assert not re.search(r"(?:https?:)?//[a-z0-9]", html, flags=re.IGNORECASE)
    assert not re.search(r"<(?:script|link[^>]+stylesheet|iframe|object|embed|form)\b", html)
    assert "default-src 'none'" in html


def test_colours_are_there_in_light_and_in_dark(page: str) -> None:
    light, dark = (
        set(re.findall(r"(--[a-z-]+):", block)) for block in re.findall(r":root \{(.*?)\}", page, re.DOTALL)[:2]
    )
    assert light == dark
    assert set(re.findall(r"var\((--[a-z-]+)\)", page)) <= light


def test_files_are_named_after_the_run(failed: PublishedReport, tmp_path: Path) -> None:
    files = write_report(failed, tmp_path)

    assert files.html.name == "quality-fedcba9876543210-20260301T120000Z.html"
    facts = json.loads(files.json.read_bytes())
    assert facts["verdict"] == "failed"
    assert facts["results"][1]["check_id"] == "Q11"


def test_short_figures_keep_three_digits() -> None:
    assert [short(value) for value in (0, 613, 1_234, 99_999, 2_500_000)] == ["0", "613", "1.23k", "100k", "2.5M"]
