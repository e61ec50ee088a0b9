"""A job of a stranger's, of some seventy lines, has form, command, operators, plan, pace, undo, audit and report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from airflow.sdk.exceptions import ParamValidationError, TaskDeferred
from typer.testing import CliRunner

from queuekeeper import audit, postgres
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator
from queuekeeper.cli import jobs
from queuekeeper.cli.context import CommandGroup
from queuekeeper.cli.options import JobCommand
from queuekeeper.jobs import pace
from queuekeeper.jobs.common import Connections, DryRun
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.redis_client import connect
from queuekeeper.report.files import report_name
from tests.sample_job import Renaming, RenamingCounts, RenamingParameters

pytestmark = pytest.mark.dags


@pytest.fixture
def client(named_redis: str, named_postgres: str, connections: Callable[..., None]) -> Iterator[Any]:
    """A server with keys to rename, whose commands and connections are named by the environment."""
    connections(queuekeeper_postgres=named_postgres, queuekeeper_redis=named_redis)
    with connect(named_redis) as opened:
        server: Any = opened
        server.mset({f"old:{number}": number for number in range(50)} | {"new:7": "taken"})
        yield server


def names(client: Any) -> set[str]:
    return {key.decode().split(":")[0] for key in client.scan_iter()}


def command(*arguments: str, code: int = 0) -> Any:
    app = typer.Typer(cls=CommandGroup)
    app.command("rename", cls=JobCommand)(jobs.command_of("rename_keys", "Rename keys."))
    app.add_typer(jobs.app, name="run")
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_command_plans_does_controls_and_takes_back_and_the_audit_tells(client: Any, postgres_url: str) -> None:
    planned = command("rename", "--dry-run", "--old", "old:")
    assert planned["plan"]["counts"] == {"keys": 50, "renamed": 49}
    assert len(client.keys("old:*")) == 50

    done = command("rename", "--yes")
    assert (done["counts"]["renamed"], done["clean"], client.keys("old:*")) == (49, True, [b"old:7"])
    run_id = done["maintenance_run_id"]
    assert command("run", "status", run_id)["state"] == "done"
    assert command("run", "pause", run_id)["paused"] is True
    assert command("run", "throttle", run_id, "100")["throttle_operations_per_s"] == 100
    assert {each["job"] for each in command("run", "list")} == {"rename_keys"}

    assert command("run", "undo", run_id, "--dry-run")["taken_back"] == 49
    assert len(client.keys("old:*")) == 1
    assert command("run", "undo", run_id, "--yes")["taken_back"] == 49
    assert (len(client.keys("old:*")), client.get("new:7")) == (50, b"taken")
    with postgres.connect(postgres_url, autocommit=True) as connection:
        told = audit.latest(connection, wanted=audit.AuditFilter(subject=run_id))
    assert [each.action for each in reversed(told)] == [
        "approve", "apply", "pause", "throttle", "approve", "undo",
    ]  # fmt: skip


def test_form_and_tasks_are_made_of_the_model(client: Any, tmp_path: Path) -> None:
    fields = form(DryRun, RenamingParameters, Connections)
    assert fields["old"].value == "old:"
    with pytest.raises(ParamValidationError):
        fields["max_run_minutes"].resolve(0)

    pushed: dict[str, str] = {}
    context: Any = {
        "dag_run": SimpleNamespace(conf={}, dag_id="rename_keys", run_id="by hand"),
        "dag": SimpleNamespace(params=fields),
        "ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value})),
        "params": {name: field.value for name, field in fields.items()},
    }
    plan = PlanJobOperator(task_id="plan", job="rename_keys", plan_only=False)
    plan.render_template_fields(context)
    [share] = plan.execute(context)
    done = ApplyJobShareOperator(task_id="apply", job="rename_keys", **share).execute(context)
    assert (done["counts"]["renamed"], done["share"]) == (49, "all")
    report = ReportJobOperator(task_id="report", job="rename_keys", plan_only=False, **pushed)
    told = report.execute(context)

    assert told["verdict"] == "clean: a second look finds nothing that was to be done"
    assert told["planned"] == told["counts"] == {"keys": 50, "renamed": 49}
    page = Path(told["html"])
    assert report_name(page.name) is not None
    assert "Renaming <code>" in page.read_text("utf-8")


def test_command_takes_back_what_a_task_has_noted_in_an_object_store(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"memory://bucket/{tmp_path.name}/undo"
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", place)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        postgres.migrate(connection)
        engine = Engine(job=Renaming, client=client)
        run_id = engine.save(MaintenanceRuns(connection), engine.plan(RenamingParameters())).maintenance_run_id
    task = ApplyJobShareOperator(task_id="apply", job="rename_keys", maintenance_run_id=run_id, share="all")
    run: Any = {"dag_run": SimpleNamespace(dag_id="rename_keys", run_id="by hand")}
    done = task.execute(run)
    assert (done["undo_file"], len(client.keys("old:*"))) == (f"{place}/{run_id}.all.undo.jsonl", 1)

    assert command("run", "undo", run_id, "--yes")["taken_back"] == 49
    assert len(client.keys("old:*")) == 50


def test_paused_run_holds_no_worker_at_its_work_and_at_its_second_look(client: Any, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        postgres.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client)
        run_id = engine.save(runs, engine.plan(RenamingParameters())).maintenance_run_id
        runs.set_paused(run_id, True)
        apply = ApplyJobShareOperator(task_id="apply", job="rename_keys", maintenance_run_id=run_id, share="all")
        report = ReportJobOperator(task_id="report", job="rename_keys", maintenance_run_id=run_id, plan_only=False)
        run: Any = {"dag_run": SimpleNamespace(dag_id="rename_keys", run_id="by hand")}
        for task in (apply, report):
            for look in (task.execute, task.look_again):
                with pytest.raises(TaskDeferred) as parked:
                    look(run)
                assert parked.value.method_name == "look_again"
        assert runs.load(run_id).state is RunState.RUNNING
        assert len(client.keys("old:*")) == 50

        runs.set_paused(run_id, False)
        assert apply.look_again(run)["counts"] == {"keys": 50, "renamed": 49}
        runs.set_paused(run_id, True)
        with pytest.raises(TaskDeferred):
            report.execute(run)
        runs.set_paused(run_id, False)
        assert report.look_again(run)["clean"]


def test_steps_are_halved_while_the_server_is_slow(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.mset({f"old:{number}": number for number in range(12_000)})
    monkeypatch.setattr(pace, "SLOW_S", -1.0)
    said: list[str] = []

    plan = Engine(job=Renaming, client=client, say=said.append).plan(RenamingParameters())

    assert plan.counts == RenamingCounts(keys=12_000, renamed=11_999)
    assert said[0].endswith("steps are 1/2 from now")


def test_run_that_was_stopped_goes_on_behind_its_last_step(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.mset({f"old:{number}": number for number in range(5_000)})
    with postgres.connect(postgres_url, autocommit=True) as connection:
        postgres.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client, undo_directory=tmp_path)
        run_id = engine.save(runs, engine.plan(RenamingParameters())).maintenance_run_id
        apply = Renaming.apply
        steps: list[str] = []

        def killed(job: Renaming, step: Any) -> RenamingCounts:
            steps.append(step.cursor)
            if len(steps) == 3:
                raise KeyboardInterrupt
            return apply(job, step)

        monkeypatch.setattr(Renaming, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.apply(runs, run_id, "all")
        assert runs.shard_progress(run_id, "all").cursor == steps[1]
        before = runs.shard_progress(run_id, "all").scanned
        assert engine.apply(runs, run_id, "all").done
        assert 0 < before < 5_000
        assert engine.report(runs, run_id, dry_run=False).clean
