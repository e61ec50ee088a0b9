"""A job of some thirty lines has form, command, operators, plan, question, pace, undo, audit and report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing import dagbag
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import ParamValidationError, TaskDeferred
from typer.testing import CliRunner, Result

from queuekeeper import audit, postgres, schema_migrations
from queuekeeper.airflow.defaults import Pool, connections
from queuekeeper.airflow.forms import form
from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, PlanJobOperator, ReportJobOperator, plan_do_report
from queuekeeper.cli import app
from queuekeeper.errors import RefusedError
from queuekeeper.jobs import pace
from queuekeeper.jobs.common import Approval, Connections, DryRun
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.keys import KeyCounts
from queuekeeper.jobs.pace import RunPaused
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.jobs.writer import Writer
from queuekeeper.redis_client import connect
from queuekeeper.report.files import report_name
from tests.dags.runs import states
from tests.sample_job import Renaming, RenamingParameters

pytestmark = pytest.mark.dags

RENAME = ("run", "start", "rename_keys")


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


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--json"])


def command(*arguments: str, code: int = 0) -> Any:
    result = called(*arguments)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refused(*arguments: str) -> str:
    result = called(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


def approved(engine: Engine, runs: MaintenanceRuns) -> tuple[str, str]:
    """Return a run that somebody has agreed to, and its one share."""
    plan = engine.plan(RenamingParameters())
    run_id = engine.save(runs, plan).maintenance_run_id
    runs.approve(run_id, "ada")
    [share] = plan.share_names()
    return run_id, share


def acts_of(connection: Any, run_id: str) -> list[str]:
    """What the audit tells of a run, in its order."""
    return [each.action for each in reversed(audit.latest(connection, wanted=audit.AuditFilter(subject=run_id)))]


def test_command_plans_does_and_takes_back_and_the_audit_tells(client: Any, postgres_url: str) -> None:
    planned = command(*RENAME, "--dry-run", "--old", "old:")
    assert planned["plan"]["counts"] == {"keys": 50, "changed": 49}
    assert len(client.keys("old:*")) == 50

    done = command(*RENAME, "--yes")
    assert (done["counts"]["changed"], done["clean"], client.keys("old:*")) == (49, True, [b"old:7"])
    run_id = done["maintenance_run_id"]
    assert command("run", "status", run_id)["state"] == "done"
    assert {each["job"] for each in command("run", "list")} == {"rename_keys"}

    assert command("run", "undo", run_id, "--dry-run")["taken_back"] == 49
    assert len(client.keys("old:*")) == 1
    assert command("run", "undo", run_id, "--yes")["taken_back"] == 49
    assert (len(client.keys("old:*")), client.get("new:7")) == (50, b"taken")
    with postgres.connect(postgres_url, autocommit=True) as connection:
        assert acts_of(connection, run_id) == ["approve", "apply", "approve", "undo"]


def test_report_that_is_written_again_or_of_a_plan_alone_is_no_work_in_the_audit(
    client: Any, postgres_url: str
) -> None:
    planned = command(*RENAME, "--dry-run", "--new", "other:")["maintenance_run_id"]
    command("run", "report", planned, code=1)
    done = command(*RENAME, "--yes")["maintenance_run_id"]
    for _ in range(2):
        command("run", "report", done)

    with postgres.connect(postgres_url, autocommit=True) as connection:
        assert acts_of(connection, planned) == []
        assert acts_of(connection, done) == ["approve", "apply"]


def test_undo_leaves_a_key_alone_that_the_run_did_not_make(client: Any) -> None:
    run_id = command(*RENAME, "--yes")["maintenance_run_id"]
    client.delete("old:7")  # whose new name was taken, so the run left it

    told = command("run", "undo", run_id, "--yes")

    assert (told["noted"], told["taken_back"]) == (49, 49)
    assert (client.get("new:7"), client.exists("old:7")) == (b"taken", 0)


def test_undo_leaves_a_key_alone_that_came_between_the_note_and_the_change(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Writer.note

    def noted(writer: Writer, lines: Any) -> None:
        note(writer, lines)
        client.set("new:3", "came between")

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "note", noted)
        done = command(*RENAME, "--yes")
    assert done["counts"]["changed"] == 48
    client.delete("old:3")

    told = command("run", "undo", done["maintenance_run_id"], "--yes")

    assert (told["noted"], told["taken_back"]) == (48, 48)
    assert (client.get("new:3"), client.exists("old:3")) == (b"came between", 0)


def test_keys_of_another_prefix_are_left_alone(client: Any) -> None:
    client.set("mine:old:1", "1")

    done = command(*RENAME, "--yes", "--key-prefix", "mine:")

    assert done["counts"] == {"keys": 1, "changed": 1}
    assert (client.get("mine:new:1"), len(client.keys("old:*"))) == (b"1", 50)


def test_run_that_goes_on_takes_neither_a_dry_run_nor_parameters(client: Any) -> None:
    run_id = command(*RENAME, "--yes")["maintenance_run_id"]

    for words, said in {
        (
            "--dry-run",
        ): f"run {run_id} would go on with what is left of its plan, which `queuekeeper run status {run_id}`",
        ("--old", "zzz", "--max-operations-per-s", "5"): "as it was planned: leave out --old, --max-operations-per-s",
    }.items():
        assert said in " ".join(refused(*RENAME, "--go-on", run_id, "--yes", *words).split())
    assert command("run", "report", run_id)["dry_run"] is False


def test_command_controls_a_run_and_the_audit_tells(client: Any, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        run_id, _ = approved(Engine(job=Renaming, client=client), MaintenanceRuns(connection))
        assert command("run", "pause", run_id)["paused"] is True
        assert command("run", "throttle", run_id, "100")["throttle_operations_per_s"] == 100
        assert command("run", "resume", run_id)["paused"] is False
        assert acts_of(connection, run_id) == ["approve", "pause", "throttle", "resume"]


def test_form_is_made_of_the_model() -> None:
    fields = form(DryRun, RenamingParameters, Connections)
    assert fields["old"].value == "old:"
    with pytest.raises(ParamValidationError):
        fields["max_run_minutes"].resolve(0)


@pytest.fixture
def dag(airflow_database: None, client: Any) -> DAG:
    """The job's DAG, as its author writes it: its tasks may be a group among others."""
    with (
        DAG(
            "rename_keys",
            schedule=None,
            params=form(DryRun, RenamingParameters, Approval, Connections),
            default_args=connections("postgres", "redis"),
        ) as found,
        TaskGroup("upkeep"),
    ):
        plan_do_report("rename_keys", do="rename", done="renamed")
    # A run is made of what Airflow has stored.
    DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    bag = dagbag.DagBag(os.devnull)
    bag.bag_dag(found)
    dagbag.sync_bag_to_db(bag, "dags-folder", None)
    return found


@pytest.mark.parametrize(("answer", "state"), [("Approve", "success"), ("Reject", "failed")])
def test_dag_asks_a_person_and_only_a_yes_renames(
    dag: DAG, client: Any, monkeypatch: pytest.MonkeyPatch, answer: str, state: str
) -> None:
    asked: list[Any] = []

    def answered(question: Any, _: Any) -> dict[str, Any]:
        asked.append((question.subject, question.body))
        return {"chosen_options": [answer], "responded_by_user": {"id": "1", "name": "ada"}}

    monkeypatch.setattr(HITLOperator, "execute", answered)
    run = dag.test()
    assert run.state == state
    [(subject, body)] = asked
    assert subject == "49 changes to be made. Go on?"
    assert "| Keys | 50 |" in body
    if answer == "Reject":
        assert states(run)["upkeep.check_approval"] == {"failed"}
        assert len(client.keys("old:*")) == 50
        return
    assert client.keys("old:*") == [b"old:7"]
    report = next(task for task in run.get_task_instances() if task.task_id == "upkeep.report")
    told = report.xcom_pull(task_ids="upkeep.report")
    assert told["verdict"] == "clean: a second look finds nothing that was to be done"
    assert told["planned"] == told["counts"] == {"keys": 50, "changed": 49}
    page = Path(told["html"])
    assert report_name(page.name) is not None
    assert "Renaming <code>" in page.read_text("utf-8")


@pytest.mark.parametrize(("job", "pool"), [("rename_keys", Pool.REDIS), ("event_upkeep", Pool.POSTGRES)])
def test_tasks_of_a_job_wait_for_the_store_that_it_loads(job: str, pool: Pool) -> None:
    with DAG("a_job", schedule=None, default_args=connections("postgres", "redis")) as dag:
        plan_do_report(job, do="work", done="worked")
    assert {dag.get_task(name).pool for name in ("plan", "work", "report")} == {pool.value}


def test_command_takes_back_what_a_task_has_noted_in_an_object_store(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"memory://bucket/{tmp_path.name}/undo"
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", place)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        run_id, share = approved(Engine(job=Renaming, client=client), MaintenanceRuns(connection))
    task = ApplyJobShareOperator(task_id="apply", job="rename_keys", maintenance_run_id=run_id, share=share)
    run: Any = {"dag_run": SimpleNamespace(dag_id="rename_keys", run_id="by hand")}
    done = task.execute(run)
    name = f"{run_id}.{share.replace(':', '_')}.undo.jsonl"
    assert (done["undo_file"], len(client.keys("old:*"))) == (f"{place}/{name}", 1)

    assert command("run", "undo", run_id, "--yes")["taken_back"] == 49
    assert len(client.keys("old:*")) == 50


def test_paused_run_holds_no_worker_at_its_work_and_at_its_second_look(client: Any, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client)
        run_id, share = approved(engine, runs)
        runs.set_paused(run_id, True)
        apply = ApplyJobShareOperator(task_id="apply", job="rename_keys", maintenance_run_id=run_id, share=share)
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
        assert apply.look_again(run)["counts"] == {"keys": 50, "changed": 49}
        runs.set_paused(run_id, True)
        with pytest.raises(TaskDeferred):
            report.execute(run)
        runs.set_paused(run_id, False)
        assert report.look_again(run)["clean"]


@contextmanager
def _approved_shares(
    client: Any, url: str, folder: Path, *, shares: int
) -> Iterator[tuple[Engine, MaintenanceRuns, str, list[str]]]:
    """Plan a run of some shares; give its engine, the runs, its id, and the names of its shares."""
    with postgres.connect(url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client, undo_directory=folder)
        plan = engine.plan(RenamingParameters(shares=shares))
        run_id = engine.save(runs, plan).maintenance_run_id
        runs.approve(run_id, "ada")
        yield engine, runs, run_id, list(plan.share_names())


def _fails(job: Renaming, step: Any) -> KeyCounts:
    raise RefusedError("no room")


def test_run_whose_share_failed_is_running_only_while_another_share_works(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _approved_shares(client, postgres_url, tmp_path, shares=3) as (engine, runs, run_id, shares):
        first, second, third = shares
        apply, seen = Renaming.apply, list[RunState]()

        def watched(job: Renaming, step: Any) -> KeyCounts:
            seen.append(runs.load(run_id).state)
            return apply(job, step)

        monkeypatch.setattr(Renaming, "apply", _fails)
        with pytest.raises(RefusedError):
            engine.apply(runs, run_id, first)
        assert runs.load(run_id).state is RunState.FAILED

        monkeypatch.setattr(Renaming, "apply", watched)
        engine.apply(runs, run_id, second)
        assert (set(seen), runs.load(run_id).state) == ({RunState.RUNNING}, RunState.FAILED)
        engine.apply(runs, run_id, first)
        assert runs.load(run_id).state is RunState.RUNNING  # the third has not begun
        engine.apply(runs, run_id, third)
        assert runs.load(run_id).state is RunState.DONE


def test_run_whose_share_failed_is_running_as_long_as_another_share_works(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _approved_shares(client, postgres_url, tmp_path, shares=2) as (engine, runs, run_id, (first, second)):
        apply = Renaming.apply

        def meanwhile(job: Renaming, step: Any) -> KeyCounts:
            monkeypatch.setattr(Renaming, "apply", _fails)
            with postgres.connect(postgres_url, autocommit=True) as other, pytest.raises(RefusedError):
                engine.apply(MaintenanceRuns(other), run_id, first)
            assert runs.load(run_id).state is RunState.RUNNING
            return apply(job, step)

        monkeypatch.setattr(Renaming, "apply", meanwhile)
        with suppress(RefusedError):
            engine.apply(runs, run_id, second)
        assert runs.load(run_id).state is RunState.FAILED


def test_undo_file_of_a_run_that_is_paused_for_long_stays_until_the_run_is_done(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUEKEEPER_UNDO_DIR", str(tmp_path))
    client.mset({f"old:{number}": number for number in range(5_000)})

    def plan_another() -> None:
        asked = RenamingParameters().model_dump()
        plan = PlanJobOperator(
            task_id="plan", job="rename_keys", parameters=asked, plan_only=True, undo_retention_days=1
        )
        run: Any = {"dag_run": SimpleNamespace(conf={}, dag_id="rename_keys", run_id="by hand"), "params": {}}
        plan.execute(run | {"dag": SimpleNamespace(params={}), "ti": SimpleNamespace(xcom_push=lambda **_: None)})

    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client, undo_directory=tmp_path, stays=False)
        run_id, share = approved(engine, runs)
        apply = Renaming.apply

        def paused(job: Renaming, step: Any) -> KeyCounts:
            runs.set_paused(run_id, True)
            return apply(job, step)

        with monkeypatch.context() as patched:
            patched.setattr(Renaming, "apply", paused)
            with pytest.raises(RunPaused):
                engine.apply(runs, run_id, share)
        [path] = tmp_path.glob(f"{run_id}.*")
        os.utime(path, (0, 0))
        plan_another()
        assert path.exists()

        runs.set_paused(run_id, False)
        engine.apply(runs, run_id, share)
        assert engine.undo(run_id=run_id, parameters=RenamingParameters(), dry_run=True).taken_back == 4_999
        os.utime(path, (0, 0))
        plan_another()
        assert not path.exists()


def test_steps_are_halved_while_the_server_is_slow(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client.mset({f"old:{number}": number for number in range(12_000)})
    monkeypatch.setattr(pace, "SLOW_S", -1.0)
    said: list[str] = []

    plan = Engine(job=Renaming, client=client, say=said.append).plan(RenamingParameters())

    assert plan.counts == KeyCounts(keys=12_000, changed=11_999)
    assert said[0].endswith("steps are 1/2 from now")


def test_run_that_was_stopped_goes_on_behind_its_last_step(
    client: Any, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.mset({f"old:{number}": number for number in range(5_000)})
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        runs = MaintenanceRuns(connection)
        engine = Engine(job=Renaming, client=client, undo_directory=tmp_path)
        run_id, share = approved(engine, runs)
        apply = Renaming.apply
        steps: list[str] = []

        def killed(job: Renaming, step: Any) -> KeyCounts:
            steps.append(step.cursor)
            if len(steps) == 3:
                raise KeyboardInterrupt
            return apply(job, step)

        monkeypatch.setattr(Renaming, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            engine.apply(runs, run_id, share)
        assert runs.shard_progress(run_id, share).cursor == steps[1]
        before = runs.shard_progress(run_id, share).scanned
        assert engine.apply(runs, run_id, share).done
        assert 0 < before < 5_000
        assert engine.report(runs, run_id, dry_run=False).clean
