"""A job that another distribution brings is known to commands and pages as soon as that is installed."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queuekeeper import postgres, schema_migrations
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.plugin.security import may_steer
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.cli import app
from queuekeeper.config import Settings
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.redis_client import connect
from tests.dags.test_plugin_pages import FORM, OPEN, Browser

pytestmark = pytest.mark.dags

KIND = "rename_elsewhere"
SAMPLE = Path(__file__).parents[1] / "sample_job.py"


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the path with a distribution that is installed there, as an installer leaves it."""
    folder = tmp_path / "site-packages"
    facts = folder / "renaming-1.0.dist-info"
    facts.mkdir(parents=True)
    text = SAMPLE.read_text("utf-8").replace("rename_keys", KIND).replace("@add_job\n", "").replace(" add_job,", "")
    (folder / "renaming_elsewhere.py").write_text(text, "utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: renaming\nVersion: 1.0\n", "utf-8")
    (facts / "entry_points.txt").write_text(f"[queuekeeper.jobs]\n{KIND} = renaming_elsewhere:Renaming\n", "utf-8")
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    yield folder
    sys.modules.pop("renaming_elsewhere", None)


def called(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["run", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_its_runs_are_listed_steered_reported_and_taken_back_by_command_and_page(
    site_packages: Path,
    named_postgres: str,
    named_redis: str,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", str(tmp_path / "undo"))
    stores = Stores(postgres_url=lambda: named_postgres, redis_url=lambda: named_redis)
    browser = Browser(pages(settings=Settings(home=tmp_path), guards=OPEN, stores=stores))
    with postgres.connect(named_postgres, autocommit=True) as connection, connect(named_redis) as opened:
        client: Any = opened
        client.mset({f"old:{number}": number for number in range(20)})
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        planned = called("start", KIND, "--dry-run", "--new", "elsewhere:")
        assert planned["plan"]["counts"] == {"keys": 20, "changed": 20}
        run_id = planned["maintenance_run_id"]

        assert [each["run"] for each in called("list", "--kind", KIND)] == [run_id]
        assert called("pause", run_id)["paused"] is True
        assert called("throttle", run_id, "100")["throttle_operations_per_s"] == 100
        address = f"/runs/{KIND}/{run_id}"
        assert f'href="/queuekeeper{address}"' in browser.get("/runs", params={"kind": KIND}, page=True).text
        assert "It is <strong>paused</strong>." in browser.get(address, page=True).text
        assert browser.send("POST", f"{address}/pause", data={"paused": "no"}, headers=FORM).status_code == 303
        assert not runs.control(run_id).paused

        assert called("start", KIND, "--go-on", run_id, "--yes")["clean"] is True
        assert (client.keys("old:*"), len(client.keys("elsewhere:*"))) == ([], 20)
        assert called("report", run_id)["clean"] is True
        assert called("undo", run_id, "--yes")["taken_back"] == 20
        assert len(client.keys("old:*")) == 20


def test_who_may_start_runs_of_its_dag_may_steer_its_runs(site_packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Manager:
        def is_authorized_dag(self, *, details: Any, **_: Any) -> bool:
            asked.append(details.id)
            return True

    monkeypatch.setattr("queuekeeper.airflow.plugin.security.get_auth_manager", Manager)
    user: Any = None

    may_steer(KIND, user)

    assert asked == [KIND]


@pytest.mark.parametrize("trouble", ["it is gone", "it is broken"])
def test_run_of_a_job_that_cannot_be_loaded_is_still_listed_and_says_so(
    site_packages: Path, named_postgres: str, named_redis: str, own_home: Path, tmp_path: Path, trouble: str
) -> None:
    with postgres.connect(named_postgres, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        run_id = MaintenanceRuns(connection).save_plan(kind=KIND, parameters={}, plan={}).maintenance_run_id
    if trouble == "it is gone":
        sys.path.remove(str(site_packages))
    else:
        (site_packages / "renaming_elsewhere.py").write_text("import nothing_of_this_name\n", "utf-8")
        importlib.invalidate_caches()
    stores = Stores(postgres_url=lambda: named_postgres, redis_url=lambda: named_redis)
    browser = Browser(pages(settings=Settings(home=tmp_path), guards=OPEN, stores=stores))

    assert [(each["run"], each["job"]) for each in called("list")] == [(run_id, KIND)]
    assert run_id in browser.get("/runs", page=True).text
    refused = CliRunner().invoke(app, ["run", "undo", run_id, "--yes"], env={"COLUMNS": "10000"})

    assert refused.exit_code == 2
    why = f"there is no job '{KIND}'" if trouble == "it is gone" else "No module named 'nothing_of_this_name'"
    assert f"is of the job {KIND}, which cannot be loaded here: " in refused.stderr
    assert why in refused.stderr


def test_process_of_its_own_knows_it_by_its_installation_alone(
    site_packages: Path, named_postgres: str, own_home: Path
) -> None:
    with postgres.connect(named_postgres, autocommit=True) as connection:
        schema_migrations.migrate(connection)

    def listed(**environment: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "queuekeeper", "run", "list", "--kind", KIND, "--json"]
        return subprocess.run(program, env=os.environ | environment, capture_output=True, text=True, check=False)

    known, unknown = listed(PYTHONPATH=str(site_packages)), listed(PYTHONPATH="")

    assert (known.returncode, known.stdout.strip()) == (0, "[]"), known.stderr
    assert unknown.returncode == 2
    assert f"there is no job '{KIND}'" in " ".join(unknown.stderr.split())
