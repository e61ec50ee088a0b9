"""Repairs through Airflow: the form, whole runs by ``dag.test()``, and what never leaves the store."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk.exceptions import ParamValidationError, TaskDeferred
from jinja2 import Template

from queuekeeper import postgres
from queuekeeper.airflow.operators.repair import ApplyRepairOperator, PlanRepairOperator
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import RefusedError, StalePlan, UsageError
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.store import MaintenanceRuns, RunState
from queuekeeper.jobs.undo import UndoFile
from queuekeeper.keyspace import payload_key
from queuekeeper.maintenance.remedies.model import REMEDY_NAMES
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.quality_rows import queue, save_profile

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.dags.conftest import Stores

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

ANSWER = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "ada"}}
DEVICES = ("secret-device-1", "secret-device-2")
GIVEN = {"life given where there was no end": 3}


class World:
    """Two sessions whose messages never expire, and a quality run that says so."""

    def __init__(self, client: Any, connection: postgres.Connection, postgres_url: str) -> None:
        self.client = client
        self.connection = connection
        self.runs = MaintenanceRuns(connection)
        self.key = hash_key(Settings())
        message = NewMessage(
            topic="t", payload=b"secret-content", qos=1, time_ms=system_clock(), expiry_interval_s=3_600
        )
        for client_id in DEVICES:
            RedisSessionStore(client).save_messages([SessionSave(client_id=client_id, messages=(message,) * 3)])
            for packet_id in (1, 2, 3):
                client.persist(payload_key(client_id, packet_id))
        save_profile(
            postgres_url, *(queue(name, client_hash=client_hash(name, key=self.key), without_ttl=3) for name in DEVICES)
        )
        connection.execute(
            "INSERT INTO queuekeeper.quality_runs (quality_run_id, mode, suites, profile_ids)"
            " VALUES ('quality-1', 'full', '{sessions_redis}', '{redis-1}')"
        )

    def lasting(self, client_id: str) -> int:
        """Return how many messages of a session never expire."""
        return sum(self.client.pexpiretime(payload_key(client_id, n)) == -1 for n in (1, 2, 3))


@pytest.fixture
def repair() -> DAG:
    """The DAG, read anew: a run leaves its parameters' values behind in the tasks, and copies share them."""
    return DagBag(str(Path(__file__).resolve().parents[2] / "dags" / "session_repair.py")).dags["session_repair"]


@pytest.fixture
def world(stores: Stores, postgres_url: str, control_schema: None) -> World:
    client, connection = stores
    return World(client, connection, postgres_url)


def states(run: Any) -> dict[str, str]:
    return {task.task_id: task.state for task in run.get_task_instances()}


def returned(run: Any, task_id: str) -> Any:
    (task,) = [task for task in run.get_task_instances() if task.task_id == task_id]
    return task.xcom_pull(task_ids=task_id)


def planned(world: World, **arguments: Any) -> str:
    """Plan the repair of one session, by its operator, and return the run's id."""
    operator = PlanRepairOperator(
        task_id="plan",
        undo_retention_days="",
        parameters={
            "remedy": "repair_ttl",
            "quality_run_id": "quality-1",
            "cohorts": "all",
            "client_hashes": client_hash(DEVICES[0], key=world.key),
            "key_prefix": "",
            "max_operations_per_s": "",
        },
    )
    run_id: str = operator.execute(_context(**arguments))["maintenance_run_id"]
    return run_id


def _context(**conf: Any) -> Any:
    return {"dag_run": SimpleNamespace(conf=conf), "dag": SimpleNamespace(params={})}


def test_dry_run_ends_with_the_plan(repair: DAG, world: World) -> None:
    run = repair.test(run_conf={"remedy": "repair_ttl"})

    assert run.state == "success"
    assert states(run) == {
        "plan": "success", "summarise": "success", "approve": "skipped", "apply": "skipped", "report": "skipped",
    }  # fmt: skip
    assert world.lasting(DEVICES[0]) == world.lasting(DEVICES[1]) == 3
    plan = returned(run, "plan")
    assert plan["effects"] == {"life given where there was no end": 6}
    assert returned(run, "summarise") == plan | {"markdown": returned(run, "summarise")["markdown"]}


def test_approved_run_mends_the_chosen_queue_and_looks_again(
    repair: DAG, world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    def answer(operator: HITLOperator, _: Any) -> Any:
        asked.append((operator.subject, operator.body or ""))
        return ANSWER

    monkeypatch.setattr(HITLOperator, "execute", answer)
    folder = Settings().undo
    for kind, days in (("repair_ttl", 5), ("rekey_clients", 5), ("unlink_orphans", 3), ("compacted_queue_gc", 99)):
        with UndoFile(folder / f"{kind}.queues.undo.jsonl", {"kind": kind}) as file:
            os.utime(file.path, times=(time.time() - days * 86_400,) * 2)
    chosen = client_hash(DEVICES[0], key=world.key)

    run = repair.test(
        run_conf={
            "remedy": "repair_ttl", "quality_run_id": "quality-1", "client_hashes": [chosen], "dry_run": False,
            "max_operations_per_s": 1_000, "undo_retention_days": 4,
        }
    )  # fmt: skip
    log = "".join(capfd.readouterr())

    assert set(states(run).values()) == {"success"}
    assert (world.lasting(DEVICES[0]), world.lasting(DEVICES[1])) == (0, 3)
    ((subject, body),) = asked
    assert subject == "repair_ttl: 3 changes to be made in Redis. Go on?"
    assert chosen in body
    assert "Messages that still exist get their old expiry back" in body
    report = returned(run, "report")
    assert (report["planned"]["effects"], report["done"], report["left"]["effects"]) == (GIVEN, GIVEN, {})
    stored = world.runs.load(report["maintenance_run_id"])
    assert (stored.state, stored.approved_by, stored.throttle_operations_per_s) == (RunState.DONE, "ada", 1_000)
    path = Path(returned(run, "apply")["undo_file"])
    assert DEVICES[0] in path.read_text("utf-8")
    # What is older goes, of whichever remedy; those of other jobs have an age of their own.
    assert {each.name.partition(".")[0] for each in folder.iterdir()} - {stored.maintenance_run_id} == {
        "unlink_orphans",
        "compacted_queue_gc",
    }
    shown = log + json.dumps([returned(run, task) for task in states(run)])
    assert "secret" not in shown.replace(str(path), "")


@pytest.mark.parametrize(("dry_run", "changes", "skips"), [(False, 3, "False"), (False, 0, "True"), (True, 3, "True")])
def test_nobody_is_asked_when_there_is_nothing_to_do(repair: DAG, dry_run: bool, changes: int, skips: str) -> None:
    template: Any = repair.get_task("approve")
    ti = SimpleNamespace(xcom_pull=lambda **_: {"changes": changes})

    assert Template(template.plan_only).render(params={"dry_run": dry_run}, ti=ti) == skips


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (None, "nobody answered"),
        ({"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "ada"}}, "rejected by ada"),
        ({"chosen_options": ["Reject"], "responded_by_user": None}, "rejected, as nobody answered in time"),
    ],
)
def test_without_an_approval_nothing_is_written(world: World, decision: Any, words: str) -> None:
    run_id = planned(world)

    with pytest.raises(RefusedError, match=words):
        ApplyRepairOperator(task_id="apply", run_id=run_id, decision=decision, four_eyes="False").execute({})
    assert world.lasting(DEVICES[0]) == 3


def test_old_plan_is_refused(world: World) -> None:
    run_id = planned(world)
    world.connection.execute("UPDATE queuekeeper.maintenance_runs SET plan = plan || jsonb_build_object('as_of_ms', 0)")

    with pytest.raises(StalePlan, match="and a plan counts for 8 days: plan again"):
        ApplyRepairOperator(task_id="apply", run_id=run_id, decision=ANSWER, four_eyes="False").execute({})
    assert world.lasting(DEVICES[0]) == 3


def test_failed_run_is_marked_and_goes_on_when_it_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = planned(world)
    task = ApplyRepairOperator(task_id="apply", run_id=run_id, decision=ANSWER, four_eyes="False")
    with monkeypatch.context() as patched:
        patched.setenv("QUEUEKEEPER_HOME", "/proc/nowhere")
        with pytest.raises(RefusedError, match="cannot be written"):
            task.execute({})
    assert world.runs.load(run_id).state is RunState.FAILED
    assert world.lasting(DEVICES[0]) == 3

    assert task.execute({})["counts"]["effects"] == GIVEN
    assert world.runs.load(run_id).state is RunState.DONE


def test_paused_run_holds_no_worker_and_goes_on_when_it_is_resumed(world: World) -> None:
    run_id = planned(world)
    world.runs.set_paused(run_id, True, actor="eve")
    task = ApplyRepairOperator(task_id="apply", run_id=run_id, decision=ANSWER, four_eyes="False")
    for look in (task.execute, task.look_again):
        with pytest.raises(TaskDeferred) as parked:
            look({})
        assert parked.value.method_name == "look_again"
        assert world.runs.load(run_id).state is RunState.RUNNING
        assert world.lasting(DEVICES[0]) == 3

    world.runs.set_paused(run_id, False, actor="eve")
    # Each look is a task of its own, on any worker.
    task = ApplyRepairOperator(task_id="apply", run_id=run_id, decision=ANSWER, four_eyes="False")
    assert task.resume_execution("look_again", {"event": "now"}, {})["counts"]["effects"] == GIVEN
    assert world.runs.load(run_id).state is RunState.DONE
    answers = world.connection.execute("SELECT count(*) FROM queuekeeper.audit WHERE action = 'approve'").fetchone()
    assert answers == (1,)
    world.client.persist(payload_key(DEVICES[0], 1))
    assert task.execute({})["counts"]["effects"] == GIVEN, "the report of what was done"
    assert world.lasting(DEVICES[0]) == 1, "what came since is not in the plan"


def test_name_that_the_form_does_not_have_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="unknown parameter 'remedie'"):
        planned(world, remedie="repair_ttl")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("remedy", "magic"), ("cohorts", "1;2"), ("client_hashes", ["x"]), ("client_hashes", "0123456789abcdef"),
        ("dry_run", "yes"), ("max_operations_per_s", 0), ("key_prefix", "{a}"), ("quality_run_id", "a b"),
        ("approval_timeout_minutes", 0),
    ],
)  # fmt: skip
def test_form_refuses_what_makes_no_sense(repair: DAG, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        repair.params[name] = value


def test_form_offers_every_remedy_and_begins_with_a_dry_run(repair: DAG) -> None:
    assert repair.params.get_param("remedy").schema["enum"] == list(REMEDY_NAMES)
    assert repair.params["dry_run"] is True


def test_tasks_follow_each_other(repair: DAG) -> None:
    assert {task.task_id: set(task.upstream_task_ids) for task in repair.tasks} == {
        "plan": set(),
        "summarise": {"plan"},
        "approve": {"summarise"},
        "apply": {"approve"},
        "report": {"apply"},
    }
