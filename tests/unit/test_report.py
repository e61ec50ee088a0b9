"""The report as a record and as text: verdicts, figures, escaping; no server and no browser."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from queuekeeper.errors import RefusedError
from queuekeeper.migration.ledger.model import CohortState
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.ledger.status import speeds
from queuekeeper.migration.ledger.throughput import ThroughputSample
from queuekeeper.migration.report.gather import (
    GUIDE,
    client_label,
    compose_report,
    guide,
    replay_command,
    summarise_throughput,
    write_report,
)
from queuekeeper.migration.report.memory import KeySample, scale
from queuekeeper.migration.report.model import MigrationReport, Verdict
from queuekeeper.migration.report.page import FATE_MEANINGS, render
from queuekeeper.report.figures import duration, heading, instant, percent, size, words
from queuekeeper.sessions.judge import Reason
from tests import report_samples as samples
from tests.pages import check_harmless, text_of

pytestmark = pytest.mark.unit


def page(report: MigrationReport) -> str:
    return render(report, json_name="report.json", json_sha256="0" * 64)


def test_a_ledger_that_sums_to_zero_is_balanced() -> None:
    report = compose_report(samples.balanced(), now_ms=samples.NOW_MS)

    assert report.verdict is Verdict.BALANCED
    assert report.totals.unaccounted == 0
    assert "✓ Balanced" in text_of(page(report))
    assert f"All {report.totals.rows_seen:,} messages of the source are accounted for" in report.explanation


def test_errors_that_cancel_each_other_out_are_not_balanced() -> None:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS)

    assert report.verdict is Verdict.NOT_BALANCED
    assert report.totals.unaccounted == 6
    assert report.explanation.startswith("6 messages unaccounted for and 3 differences found.")
    assert "✗ Not balanced" in text_of(page(report))


def test_a_difference_alone_is_not_balanced() -> None:
    evidence = replace(samples.balanced(), difference_counts={"missing": 1})

    assert compose_report(evidence, now_ms=samples.NOW_MS).verdict is Verdict.NOT_BALANCED


def test_a_cohort_copied_again_after_its_verification_leaves_the_report_incomplete() -> None:
    evidence = samples.balanced()
    evidence = replace(evidence, states=evidence.states | {5: CohortState.COPIED})
    report = compose_report(evidence, now_ms=samples.NOW_MS)

    assert report.verdict is Verdict.INCOMPLETE
    assert report.cohorts_missing == (5,)
    assert "1 of 96 chosen cohorts are not verified as they now stand" in report.explanation


def test_a_plan_that_nobody_carried_out_is_not_verified() -> None:
    report = compose_report(samples.unverified(), now_ms=samples.NOW_MS)
    text = text_of(page(report))

    assert report.verdict is Verdict.NOT_VERIFIED
    assert "Not verified yet" in text
    assert "No approval is on record" in text
    assert "messages unaccounted for" not in text


def test_a_hostile_client_id_does_no_harm_when_ids_are_shown() -> None:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS, show_client_ids=True)
    html = page(report)

    check_harmless(html, text=samples.HOSTILE)
    assert "<b>0</b>" not in html


def test_client_ids_are_hashed_unless_asked_for() -> None:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS)

    assert "meter/17" not in page(report) + report.to_json()
    assert client_label("meter/17") == "2bfc9f6ac73b"
    assert "2bfc9f6ac73b" in page(report)


def test_json_and_page_show_the_same_figures() -> None:
    report = compose_report(samples.unbalanced(), now_ms=samples.NOW_MS)
    facts = json.loads(report.to_json())
    text = text_of(page(report))

    for name in ("copied", "expired", "trimmed", "superseded", "quarantined", "unaccounted"):
        assert f"{name.capitalize()} {FATE_MEANINGS[name]} {facts['totals'][name]:,} " in text
    assert f"Rows seen in PostgreSQL {facts['totals']['rows_seen']:,}" in text
    for cohort in facts["cohorts"]:
        line = cohort["ledger"]
        figures = " ".join(
            f"{line[name]:,}" for name in ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined")
        )
        assert f"{figures} {line['unaccounted']:,} {line['differences']:,}" in text
    assert facts["verdict"] == "not balanced"
    assert facts["digest"] in text
    assert size(facts["memory"]["estimate"]["bytes"]) in text


def test_differences_are_counted_by_kind_beyond_those_that_are_shown() -> None:
    counts = {"missing": 1_999_998, "expiry": 2}
    report = compose_report(replace(samples.unbalanced(), difference_counts=counts), now_ms=samples.NOW_MS)
    text = text_of(page(report))

    assert report.differences.total == 2_000_000
    assert "Missing The message is not in Redis. 1,999,998 Expiry The message ends at another instant. 2" in text
    assert "The first 3 of 2,000,000. Payloads are shown as hashes. All of them are listed in queuekeeper." in text


def test_the_page_names_no_other_host_and_runs_no_script() -> None:
    html = page(compose_report(samples.balanced(), now_ms=samples.NOW_MS))

    assert not re.search(r"(?:https?:)?//[a-z0-9]", html, flags=re.IGNORECASE)
    assert not re.search(r"<(?:script|link[^>]+stylesheet|iframe|object|embed|form)\b", html)
    assert not re.search(r"\son[a-z]+=", html)
    assert "default-src 'none'" in html


def test_the_page_follows_the_reader_in_colour_and_paper() -> None:
    html = page(compose_report(samples.balanced(), now_ms=samples.NOW_MS))

    assert "@media (prefers-color-scheme: dark)" in html
    assert "@media print" in html
    light, dark = (
        set(re.findall(r"(--[a-z-]+):", block)) for block in re.findall(r":root \{(.*?)\}", html, re.DOTALL)[:2]
    )
    assert light == dark
    assert set(re.findall(r"var\((--[a-z-]+)\)", html)) <= light


def test_every_reason_says_what_it_means_and_how_to_replay() -> None:
    assert set(GUIDE) == set(Reason)
    assert (
        replay_command("0123456789abcdef", Reason.PACKET_ID_DUPLICATE, mode=Mode.OFFLINE)
        == "queuekeeper migrate replay 0123456789abcdef --reason packet_id_duplicate --assign-packet-ids"
    )
    unknown = replay_command("0123456789abcdef", "of a newer release", mode=Mode.OFFLINE)
    assert unknown.endswith("--reason of a newer release")


def test_rows_of_a_plan_with_devices_connected_come_back_from_where_they_are_set_aside() -> None:
    commands = {reason: replay_command("0123456789abcdef", reason, mode=Mode.ONLINE) for reason in Reason}
    assert commands[Reason.PACKET_ID_DUPLICATE] == "queuekeeper sessions replay --reason packet_id_duplicate"
    assert {command.partition(" --reason")[0] for command in commands.values()} == {"queuekeeper sessions replay"}
    repairs = " ".join(guide(reason, mode=Mode.ONLINE)[1] for reason in Reason)
    assert "queuekeeper.session_quarantine" in repairs
    assert "queuekeeper.quarantine" not in repairs


def test_a_pause_begins_a_new_run_and_costs_no_speed() -> None:
    steps = [(0, 0), (1_000, 500), (2_000, 1_000), (600_000, 1_000), (601_000, 2_000), (602_000, 0), (603_000, 700)]
    result = summarise_throughput("copy", [ThroughputSample(at_ms=at, done=done) for at, done in steps])

    assert result is not None
    assert [(point.run, point.elapsed_s, point.messages_per_s) for point in result.points] == [
        (1, 1.0, 500.0),
        (1, 2.0, 500.0),
        (2, 3.0, 1_000.0),
        (3, 4.0, 700.0),
    ]
    assert (result.runs, result.messages, result.seconds, result.peak_messages_per_s) == (3, 2_700, 4.0, 1_000.0)


def test_speed_of_now_leaves_out_the_time_between_two_tasks() -> None:
    steps = [(0, 0), (1_000, 500), (2_000, 1_000), (22_000, 1_000), (23_000, 1_500)]

    assert speeds([ThroughputSample(at_ms=at, done=done) for at, done in steps])[0] == 500.0


def test_a_long_copy_is_thinned_without_losing_messages() -> None:
    every = [ThroughputSample(at_ms=second * 1_000, done=second * 10) for second in range(9_001)]
    thinned = summarise_throughput("copy", every)

    assert thinned is not None
    assert len(thinned.points) <= 400
    assert {point.messages_per_s for point in thinned.points} == {10.0}
    assert thinned.points[-1].elapsed_s == 9_000.0


def test_too_few_samples_are_no_curve() -> None:
    assert summarise_throughput("copy", []) is None
    assert summarise_throughput("copy", [ThroughputSample(at_ms=1, done=1)]) is None


def test_a_memory_sample_is_scaled_by_messages_and_sessions() -> None:
    sample = KeySample(
        payloads=(100, 300), references=((1_000, 10), (200, 2)), last_packet_ids=(50,), sessions=(150, 250),
        table_bytes=10.0, drawn=9,
    )  # fmt: skip
    estimate = scale(sample, messages=1_000, sessions=100)

    assert estimate is not None
    assert estimate.keys_measured == 7
    assert estimate.bytes_per_message == 310.0  # 200 payload, 100 reference, 10 table
    assert estimate.low_bytes < estimate.bytes < estimate.high_bytes
    assert scale(KeySample(drawn=9), messages=1, sessions=1) is None


def test_files_are_whole_and_the_page_names_the_hash_of_the_json(tmp_path: Path) -> None:
    files = write_report(compose_report(samples.balanced(), now_ms=samples.NOW_MS), tmp_path / "new" / "folder")

    assert sorted(path.name for path in files.html.parent.iterdir()) == sorted([files.html.name, files.json.name])
    assert files.html.name == "migration-0123456789abcdef-20251009T085820Z.html"
    assert files.sha256 == hashlib.sha256(files.html.read_bytes()).hexdigest()
    assert hashlib.sha256(files.json.read_bytes()).hexdigest() in files.html.read_text("utf-8")
    assert json.loads(files.json.read_bytes())["format"] == 1


def test_a_folder_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(RefusedError, match=r"the report cannot be written to .*file/reports: .*name another folder"):
        write_report(compose_report(samples.unverified(), now_ms=samples.NOW_MS), tmp_path / "file" / "reports")


def test_figures_carry_units() -> None:
    assert size(0) == "0 B"
    assert size(1_536) == "1.5 KiB"
    assert size(5 * 1_024**4) == "5.0 TiB"
    assert duration(59.04) == "59.0 s"
    assert duration(125) == "2 min 05 s"
    assert duration(3_720) == "1 h 02 min"
    assert duration(47 * 3_600) == "47 h 00 min"
    assert duration(7 * 86_400) == "7 days"
    assert duration(177 * 3_600 + 3_540) == "7 days 9 h"
    assert words("qos_out_of_range") == "QoS out of range"
    assert heading("without_ttl") == "Without TTL"
    assert percent(0.00001) == "under 0.1 %"
    assert percent(0.99999) == "over 99.9 %"
    assert instant(samples.NOW_MS) == "2025-10-09 08:58:20 UTC"
    assert instant(2**62) == f"{2**62:,} ms"
