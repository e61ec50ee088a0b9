"""A judgement's report is gathered from the control schema alone, without a Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuekeeper.errors import UsageError
from queuekeeper.postgres import connect
from queuekeeper.quality.judge.known_issues import KnownIssues
from queuekeeper.quality.judge.run import run_quality
from queuekeeper.quality.judge.store import Verdict
from queuekeeper.quality.report.gather import build_report, write_report
from queuekeeper.schema_migrations import migrate
from tests.quality_rows import AS_OF_MS, NOW, hash_of, queue, save_expiry_hours, save_profile

HOUR_MS = 3_600_000


def test_what_a_run_found_is_on_the_page_and_no_client_id_is(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
    sick = queue("meter <17>", counter_behind=1, dead=5, messages=8)
    profile_id = save_profile(postgres_url, queue("meter 1"), sick)
    save_expiry_hours(postgres_url, profile_id, {0: (1, 100), AS_OF_MS // HOUR_MS * HOUR_MS + HOUR_MS: (5, 500)})
    with connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO queuekeeper.cohort_profiles (profile_id, cohort, shard, queues, messages, live, dead,"
            " payload_bytes, faulty_queues) VALUES (%s, 0, 'a:1', 2, 11, 6, 5, 600, 1)",
            (profile_id,),
        )
        connection.execute(
            "INSERT INTO queuekeeper.session_quarantine (reason, client_id, serial_number, topic, time, qos, payload)"
            " VALUES ('topic_empty', 'meter <17>', 1, '', 1, 1, '')"
        )
        KnownIssues(connection).add(
            check_id="Q9",
            owner="night shift",
            reason="moved on Monday",
            ends_on=NOW.date(),
            person="ann",
            today=NOW.date(),
        )
    run_quality(
        postgres_url=postgres_url,
        profile_ids=[profile_id],
        suites=["sessions_redis", "quarantine"],
        quality_run_id="00112233445566aa",
        now=NOW,
    )

    with connect(postgres_url, autocommit=True) as connection:
        report = build_report(
            connection,
            quality_run_id="00112233445566aa",
            now_ms=AS_OF_MS,
            forms_url="/queuekeeper/trigger",
            form_values={"redis_conn_id": "other"},
        )
        with pytest.raises(UsageError, match="there is no quality run 'absent'"):
            build_report(connection, quality_run_id="absent", now_ms=AS_OF_MS)

    assert report.verdict is Verdict.FAILED
    (finding,) = [line for line in report.findings if line.check_id == "Q11"]
    assert [row["client_hash"] for row in finding.examples] == [hash_of("meter <17>")]
    assert finding.remedy_conf["redis_conn_id"] == "other"
    assert finding.remedy_conf["quality_run_id"] == "00112233445566aa"
    assert [(line.client_hash, line.faults) for line in report.worst_queues] == [
        (hash_of("meter <17>"), {"counter_behind": 1})
    ]
    assert (report.queues, report.messages, report.faulty_queues) == (2, 11, 1)
    assert [(run.quality_run_id, run.verdict) for run in report.heat.runs] == [("00112233445566aa", "failed")]
    (timeline,) = report.expiry
    assert (timeline.endless_messages, timeline.overdue_messages) == (1, 5)
    assert [(line.origin, line.reason, line.open) for line in report.quarantine] == [
        ("session store", "topic_empty", 1)
    ]
    assert [(issue.owner, issue.overdue) for issue in report.known_issues] == [("night shift", False)]
    files = write_report(report, tmp_path)
    assert "meter" not in files.html.read_text("utf-8") + files.json.read_text("utf-8")
