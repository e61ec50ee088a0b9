"""``queuekeeper quality report``: the files that a judgement is shown in, without Airflow."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from upath import UPath

from queuekeeper.cli import app
from queuekeeper.postgres import connect
from queuekeeper.quality.judge.run import run_quality
from queuekeeper.quality.report.gather import FORMS_PATH
from queuekeeper.schema_migrations import migrate
from tests.quality_rows import NOW, queue, save_profile

pytestmark = pytest.mark.integration


def judge(url: str, quality_run_id: str) -> None:
    """Judge a profile in which the counter of one queue is behind."""
    with connect(url, autocommit=True) as connection:
        migrate(connection)
    save_profile(url, queue("device-1"), queue("meter-17", counter_behind=1))
    run_quality(
        postgres_url=url, profile_ids=["redis-1"], suites=["sessions_redis"], quality_run_id=quality_run_id, now=NOW
    )


def test_report_of_the_newest_run_is_written_and_ends_with_1_when_it_failed(postgres_url: str, tmp_path: Path) -> None:
    where = ("--postgres-url", postgres_url)
    judge(postgres_url, "../q 1")

    written = ("quality", "report", "--directory", str(tmp_path), *where)
    plain = CliRunner().invoke(app, (*written, "--json"))

    assert plain.exit_code == 1
    assert "quality run ../q 1 failed: open" in " ".join(plain.stderr.split())
    facts = json.loads(plain.stdout)
    assert (facts["quality_run_id"], facts["verdict"]) == ("../q 1", "failed")
    page = Path(facts["html"])
    # Whatever a run is called, its files stay in the folder.
    assert page.parent == tmp_path
    assert "<a " not in page.read_text("utf-8")
    assert "meter-17" not in page.read_text("utf-8") + Path(facts["json"]).read_text("utf-8")

    linked = CliRunner().invoke(app, (*written, "--airflow-url", "http://airflow.example.org/", "../q 1"))

    assert linked.exit_code == 1
    pages = "".join(path.read_text("utf-8") for path in tmp_path.glob("*.html"))
    assert f"http://airflow.example.org{FORMS_PATH}/session_repair?conf=" in pages


def test_report_may_be_in_an_object_store(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge(postgres_url, "q-1")
    place = f"memory://{tmp_path.name}"
    monkeypatch.setenv("QUEUEKEEPER_REPORTS_DIR", place)
    call = ("quality", "report", "q-1", "--postgres-url", postgres_url)

    facts = json.loads(CliRunner().invoke(app, (*call, "--json")).stdout)

    assert facts["html"].startswith(f"{place}/quality-")
    assert facts["sha256"] == hashlib.sha256(UPath(facts["html"]).read_bytes()).hexdigest()
    assert f"{place}/quality-" in CliRunner().invoke(app, call, env={"COLUMNS": "200"}).stdout


def test_a_finding_is_the_same_record_on_every_surface(postgres_url: str, tmp_path: Path) -> None:
    judge(postgres_url, "q-1")

    def as_json(*words: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(CliRunner().invoke(app, ("quality", *words, "--json")).stdout)
        return answer

    shown = as_json("results", "q-1", "--postgres-url", postgres_url)["results"]
    written = as_json("report", "q-1", "--directory", str(tmp_path), "--postgres-url", postgres_url)
    report = json.loads(Path(written["json"]).read_text("utf-8"))

    assert report["format"] == 2
    assert sorted(report["results"], key=lambda each: each["expectation"]) == sorted(
        shown, key=lambda each: each["expectation"]
    )
    finding = shown[0]
    assert (finding["check_id"], finding["title"], finding["priority"]) == ("Q11", "Last packet id", "P0")
    assert finding["command"] == ("queuekeeper repair repair_counter --quality-run q-1 --cohorts all --dry-run")
    assert finding["trigger"].startswith("airflow dags trigger session_repair --conf")


def test_report_without_a_run_says_how_to_make_one(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)

    result = CliRunner().invoke(
        app, ["quality", "report", "--directory", str(tmp_path), "--postgres-url", postgres_url]
    )

    assert result.exit_code == 2
    assert "there is no quality run yet" in " ".join(result.stderr.split())
