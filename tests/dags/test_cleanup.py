"""The cleanup through Airflow: its form, its wiring, its operators, and whole runs by ``dag.test()``."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.providers.standard.operators.hitl import HITLOperator

from queuekeeper import schema_migrations
from queuekeeper.airflow.operators.jobs import CheckJobApprovalOperator, PlanJobOperator
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.cleanup.model import KIND, CleanupParameters
from tests.cleanup_world import World
from tests.dags.runs import FakeRun, check_unfinished_share_fails, states

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from tests.dags.conftest import Stores

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

ANSWER = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}


@pytest.fixture
def cleanup(dag_bag: DagBag) -> DAG:
    """The DAG, as a copy of the test's own."""
    return copy.deepcopy(dag_bag.dags["expired_reference_cleanup"])


@pytest.fixture
def world(stores: Stores, tmp_path: Path) -> World:
    """A store with dead references, and Airflow's connections to it."""
    client, connection = stores
    found = World(client, connection, tmp_path / "undo")
    for number in range(20):
        device = found.device(f"secret-device-{number}")
        device.add(3)
        device.expire(1)
    return found


def test_dry_run_ends_with_the_plan(cleanup: DAG, world: World) -> None:
    before = world.contents()
    run = cleanup.test(run_conf={"dry_run": True})
    assert run.state == "success"
    assert states(run) == {
        "plan": {"success"},
        "summarise_plan": {"success"},
        **{name: {"skipped"} for name in ("approve", "check_approval", "apply", "report", "cleaned")},
    }
    assert world.contents() == before


def test_approved_run_cleans_every_share_and_reports(
    cleanup: DAG, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(HITLOperator, "execute", lambda *_: ANSWER)
    run = cleanup.test(run_conf={"shares": 2})
    log = "".join(capfd.readouterr())
    assert run.state == "success"
    assert {state for found in states(run).values() for state in found} == {"success"}
    assert len([task for task in run.get_task_instances() if task.task_id == "apply"]) == 2
    run_id = world.runs.latest_id("expired_reference_cleanup")
    assert run_id is not None
    stored = world.runs.load(run_id)
    assert (stored.state, stored.approved_by) == (RunState.DONE, "ada")
    assert stored.report is not None
    assert (stored.report["clean"], stored.report["counts"]["dead_references"]) == (True, 20)
    assert world.device("secret-device-0").references() == [2, 3]
    assert "secret-device" not in log + json.dumps([stored.plan, stored.report])
    assert len(list(world.undo.iterdir())) == 2


def test_run_with_nothing_to_do_asks_nobody(cleanup: DAG, world: World) -> None:
    world.client.flushall()
    run = cleanup.test()
    assert run.state == "success"
    assert states(run)["approve"] == {"skipped"}


def test_unknown_parameter_is_named(cleanup: DAG, world: World) -> None:
    plan = PlanJobOperator(job=KIND, task_id="plan")
    with pytest.raises(UsageError, match=r"unknown parameter 'idle_day' \(did you mean 'idle_days'\?\)"):
        plan.execute({"dag_run": FakeRun({"idle_day": 3}), "dag": cleanup})  # type: ignore[typeddict-item]


def test_rejection_writes_nothing(world: World) -> None:
    schema_migrations.migrate(world.connection)
    run_id, _ = world.approved()
    with pytest.raises(
        RefusedError, match=f"plan {run_id} was rejected, as nobody answered in time: nothing was written"
    ):
        CheckJobApprovalOperator(
            job=KIND,
            task_id="check",
            maintenance_run_id=run_id,
            decision={"chosen_options": ["Reject"], "responded_by_user": None},
            four_eyes="False",
        ).execute({})


def test_shard_that_is_not_done_fails_its_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_migrations.migrate(world.connection)
    run_id, (shard,) = world.approved()
    check_unfinished_share_fails(KIND, world.apply(run_id, shard), task_id="apply", monkeypatch=monkeypatch)


def test_defaults_are_those_of_the_cleanup_itself(cleanup: DAG) -> None:
    params, defaults = cleanup.params.dump(), CleanupParameters()
    for name in ("default_ttl_s", "grace_s", "idle_days", "max_operations_per_s", "max_run_minutes", "shares"):
        assert params[name] == getattr(defaults, name)
    assert params["limit"] == defaults.limit


def test_it_is_wired_as_it_is_drawn(cleanup: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in cleanup.tasks} == {
        "plan": set(),
        "summarise_plan": {"plan"},
        "approve": {"summarise_plan"},
        "check_approval": {"approve"},
        "apply": {"check_approval"},
        "report": {"check_approval", "apply"},
        "cleaned": {"apply", "report"},
    }
