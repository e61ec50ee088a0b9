"""The collection of compacted queues through Airflow: its form, its wiring, and whole runs by ``dag.test()``."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from queuekeeper import schema_migrations
from queuekeeper.airflow.operators.jobs import PlanJobOperator
from queuekeeper.errors import UsageError
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.compacted.model import CollectionParameters
from tests.compacted_gc_world import World
from tests.dags.runs import FakeRun, check_report_is_red, check_unfinished_share_fails, states

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk import DAG

    from tests.dags.conftest import Stores

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

LONG_AGO_MS = 1_600_000_000_000


@pytest.fixture
def collection(dag_bag: DagBag) -> DAG:
    """The DAG, as a copy of the test's own."""
    return copy.deepcopy(dag_bag.dags["compacted_queue_gc"])


@pytest.fixture
def world(stores: Stores, tmp_path: Path) -> World:
    """Queues with old messages, and Airflow's connections to them."""
    client, connection = stores
    found = World(client=client, connection=connection, undo=tmp_path / "undo", now_ms=LONG_AGO_MS)
    for number in range(20):
        found.append(f"secret-device-{number}", "a", "b")
    return found


def test_run_collects_every_share_and_its_report_finds_nothing_left(
    collection: DAG, world: World, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = collection.test(run_conf={"shares": 2, "max_jitter_s": 0})
    log = "".join(capfd.readouterr())
    assert run.state == "success"
    assert {state for found in states(run).values() for state in found} == {"success"}
    assert len([task for task in run.get_task_instances() if task.task_id == "collect"]) == 2
    run_id = world.runs.latest_id("compacted_queue_gc")
    assert run_id is not None
    stored = world.runs.load(run_id)
    assert stored.state is RunState.DONE
    assert stored.report is not None
    assert (stored.report["clean"], stored.report["proved"], stored.report["counts"]["messages"]) == (True, True, 40)
    assert world.live("secret-device-0") == []
    [page] = (tmp_path / "reports").glob("compacted-*.html")
    assert "clean: a second look finds nothing that was due" in page.read_text("utf-8")
    assert "secret-device" not in log + page.read_text("utf-8") + json.dumps([stored.plan, stored.report])
    assert world.registry.finished_ms() is not None


def test_dry_run_reports_what_is_due_and_removes_nothing(collection: DAG, world: World, tmp_path: Path) -> None:
    run = collection.test(run_conf={"dry_run": True, "key_filter": "a"})
    assert run.state == "success"
    assert states(run) == {
        "plan": {"success"}, "collect": {"skipped"}, "report": {"success"}, "collected": {"success"},
    }  # fmt: skip
    assert len(world.live("secret-device-0")) == 2
    [page] = (tmp_path / "reports").glob("compacted-*.html")
    assert "20 messages due, nothing was removed" in page.read_text("utf-8")


def test_unknown_parameter_is_named(collection: DAG, world: World) -> None:
    plan = PlanJobOperator(job="compacted_queue_gc", task_id="plan")
    with pytest.raises(UsageError, match=r"unknown parameter 'retention' \(did you mean 'retention_s'\?\)"):
        plan.execute({"dag_run": FakeRun({"retention": 3}), "dag": collection})  # type: ignore[typeddict-item]


def test_share_that_is_not_done_fails_its_task(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    schema_migrations.migrate(world.connection)
    run_id, [share] = world.planned()
    check_unfinished_share_fails(
        "compacted_queue_gc", world.collect(run_id, share), task_id="collect", monkeypatch=monkeypatch
    )


def test_queue_that_cannot_be_collected_turns_the_report_red_once_it_is_written(world: World, tmp_path: Path) -> None:
    schema_migrations.migrate(world.connection)
    client: Any = world.client
    client.delete(world.keys("secret-device-0").order)
    client.set(world.keys("secret-device-0").order, "no sorted set")
    world.now_ms += 30 * 86_400_000
    run_id, [share] = world.planned()
    world.collect(run_id, share)
    words = "1 queue cannot be collected: `queuekeeper quality run --store compacted --show-client-ids`"
    check_report_is_red("compacted_queue_gc", run_id, words=words, pages=tmp_path / "reports")


def test_defaults_are_those_of_the_collection_itself(collection: DAG) -> None:
    params, defaults = collection.params.dump(), CollectionParameters()
    for name in ("policy", "retention_s", "tombstone_s", "override", "keep_values", "max_operations_per_s", "shares"):
        assert params[name] == getattr(defaults, name)


def test_it_is_wired_as_it_is_drawn(collection: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in collection.tasks} == {
        "plan": set(),
        "collect": {"plan"},
        "report": {"plan", "collect"},
        "collected": {"collect", "report"},
    }
