"""``queuekeeper quality report``: the files that a judgement is shown in, without Airflow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from queuekeeper.cli import app
from queuekeeper.postgres import connect, migrate
from queuekeeper.quality.report import FORMS_PATH
from queuekeeper.quality.run import run_quality
from tests.quality_rows import NOW, queue, save_profile

pytestmark = pytest.mark.integration


def test_report_of_the_newest_run_is_written_and_ends_with_1_when_it_failed(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)
    save_profile(postgres_url, queue("device-1"), queue("meter-17", counter_behind=1))
    where = ("--postgres-url", postgres_url)
    run_quality(
        postgres_url=postgres_url,
        profile_ids=["redis-1"],
        suites=["sessions_redis"],
        quality_run_id="../q 1",
        now=NOW,
    )

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


def test_report_without_a_run_says_how_to_make_one(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url, autocommit=True) as connection:
        migrate(connection)

    result = CliRunner().invoke(
        app, ["quality", "report", "--directory", str(tmp_path), "--postgres-url", postgres_url]
    )

    assert result.exit_code == 2
    assert "there is no quality run yet" in " ".join(result.stderr.split())
