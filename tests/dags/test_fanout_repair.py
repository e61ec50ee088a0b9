"""The repair of fan-out queues through Airflow: its form, its wiring, and whole runs by ``dag.test()``."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuekeeper import schema_migrations
from queuekeeper.airflow.operators.jobs import PlanJobOperator
from queuekeeper.errors import UsageError
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.fanout.model import FanoutRepairParameters
from tests.dags.runs import FakeRun, check_report_is_red, check_unfinished_share_fails, states
from tests.fanout_repair_world import World

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from tests.dags.conftest import Stores

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

LONG_AGO_MS = 1_600_000_000_000
FOR_EVER_MS = 3_650 * 86_400_000


@pytest.fixture
def repair(dag_bag: DagBag) -> DAG:
    """The DAG, as a copy of the test's own."""
    return copy.deepcopy(dag_bag.dags["fanout_repair"])


@pytest.fixture
def world(stores: Stores) -> World:
    """Queues with two consumers each, of which one took a message long ago and died; Airflow's connections to them."""
    client, connection = stores
    found = World(client=client, connection=connection, now_ms=LONG_AGO_MS)
    for number in range(10):
        queue = f"orders of {number}"
        found.register(queue, "billing", "shipping")
        found.publish(queue, ttl_ms=FOR_EVER_MS)
        found.kill(queue, "billing")
    return found


def test_run_repairs_every_share_and_the_next_one_changes_nothing_and_says_so(
    repair: DAG, world: World, tmp_path: Path
) -> None:
    run = repair.test(run_conf={"shares": 2})
    assert run.state == "success"
    assert {state for found in states(run).values() for state in found} == {"success"}
    assert len([task for task in run.get_task_instances() if task.task_id == "repair"]) == 2
    run_id = world.runs.latest_id("fanout_repair")
    assert run_id is not None
    stored = world.runs.load(run_id)
    assert stored.state is RunState.DONE
    assert stored.report is not None
    assert (stored.report["clean"], stored.report["proved"]) == (True, True)
    assert (stored.report["counts"]["queues"], stored.report["counts"]["overdue_leases"]) == (10, 10)
    [page] = (tmp_path / "reports").glob("fanout-*.html")
    assert "clean: a second look finds nothing that was to be done" in page.read_text("utf-8")

    before = world.contents()
    again = repair.test(run_conf={"shares": 2})
    assert (again.state, states(again)) == (
        "success", {"plan": {"success"}, "repair": {"skipped"}, "report": {"success"}, "repaired": {"success"}},
    )  # fmt: skip
    assert world.contents() == before
    [healthy] = set((tmp_path / "reports").glob("fanout-*.html")) - {page}
    assert "healthy: there was nothing to do, and nothing was changed" in healthy.read_text("utf-8")


def test_dry_run_of_named_queues_reports_and_changes_nothing(repair: DAG, world: World, tmp_path: Path) -> None:
    before = world.contents()
    run = repair.test(run_conf={"dry_run": True, "queues": ["orders of 1", "orders of 2"], "unregister": True})
    assert run.state == "success"
    assert states(run)["repair"] == {"skipped"}
    assert world.contents() == before
    [page] = (tmp_path / "reports").glob("fanout-*.html")
    assert "2 repairs to be made, nothing was changed" in page.read_text("utf-8")


def test_unknown_parameter_is_named(repair: DAG, world: World) -> None:
    plan = PlanJobOperator(job="fanout_repair", task_id="plan")
    with pytest.raises(UsageError, match=r"unknown parameter 'queue' \(did you mean 'queues'\?\)"):
        plan.execute({"dag_run": FakeRun({"queue": "a"}), "dag": repair})  # type: ignore[typeddict-item]


def test_share_that_is_not_done_fails_its_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_migrations.migrate(world.connection)
    run_id, [share] = world.planned()
    check_unfinished_share_fails(
        "fanout_repair", world.repair(run_id, share), task_id="repair", monkeypatch=monkeypatch
    )


def test_queue_that_cannot_be_repaired_turns_the_report_red_once_it_is_written(world: World, tmp_path: Path) -> None:
    schema_migrations.migrate(world.connection)
    client: Any = world.client
    client.hset(world.keys("orders of 1").options, "billing", "of another kind")
    run_id, [share] = world.planned()
    world.repair(run_id, share)
    words = "1 queue cannot be repaired: the log of the plan says why"
    check_report_is_red("fanout_repair", run_id, words=words, pages=tmp_path / "reports")


def test_defaults_are_those_of_the_repair_itself(repair: DAG) -> None:
    params, defaults = repair.params.dump(), FanoutRepairParameters()
    for name in ("unregister", "idle_expiry_s", "max_stalls", "max_operations_per_s", "max_run_minutes", "shares"):
        assert params[name] == getattr(defaults, name)


def test_it_is_wired_as_it_is_drawn(repair: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in repair.tasks} == {
        "plan": set(),
        "repair": {"plan"},
        "report": {"plan", "repair"},
        "repaired": {"repair", "report"},
    }
