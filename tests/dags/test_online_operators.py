"""Tasks of a migration while devices are connected, on real servers: there, back, and what each of them refuses."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from queuekeeper.airflow.operators.migration import CopySessionsOperator, PlanMigrationOperator
from queuekeeper.airflow.operators.online import (
    ArmCohortsOperator,
    CatchUpOperator,
    CommitOperator,
    CutOverOperator,
    LookAtCohortsOperator,
    MirrorOperator,
    OnlineOperator,
    RehearseOperator,
    RollBackOperator,
    SoakOperator,
)
from queuekeeper.airflow.plugin.migration import online_texts
from queuekeeper.airflow.waits import LOOK_S
from queuekeeper.errors import CheckFailed, RefusedError, UsageError
from queuekeeper.jobs.parameters import describe
from queuekeeper.migration.ledger.parameters import MigrationParameters, Mode, OnlineWish, Source, steps_of
from queuekeeper.migration.online.mover import SessionMover
from queuekeeper.migration.online.status import online_status
from queuekeeper.sessions.model import SessionSave
from queuekeeper.sessions.pages import Layout
from tests.conformance.online_worlds import PLAN_ID, OnlineWorld, message, unhurried_fences

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.triggers.base import TriggerEvent

pytestmark = pytest.mark.dags

CLIENTS = tuple(f"meter-{number}" for number in range(10))
YES = {"chosen_options": ["Approve"], "responded_by_user": {"id": "1", "name": "alice"}}
NO = {"chosen_options": ["Reject"], "responded_by_user": {"id": "1", "name": "alice"}}


@pytest.fixture
def world(
    postgres_url: str,
    valkey_url: str,
    control_schema: None,
    connections: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[OnlineWorld]:
    """Some clients in PostgreSQL, a plan of three cohorts, and the connections of the tasks."""
    unhurried_fences(monkeypatch)
    connections(queuekeeper_postgres=postgres_url, queuekeeper_redis=valkey_url)
    world = OnlineWorld(postgres_url, valkey_url)
    for client_id in CLIENTS:
        world.at_postgres.save_messages([SessionSave(client_id=client_id, messages=(message(b"secret"),))])
    world.plan(count=3)
    yield world
    world.close()


def context(triggered_by: str | None = "bob") -> Any:
    """Return the context of a task of a run that somebody has triggered."""
    return {
        "dag_run": SimpleNamespace(run_id="run-1", triggering_user_name=triggered_by, conf={}),
        "dag": SimpleNamespace(params={}),
        "params": {},
    }


def run(operator: type[OnlineOperator], *, triggered_by: str | None = "bob", **arguments: Any) -> Any:
    """Carry a task out as a run that somebody has triggered."""
    values = {"plan_id": PLAN_ID, "lease_ms": "1000"} | arguments
    if operator not in (LookAtCohortsOperator, RollBackOperator):
        values = {"mode": "online"} | values
    if operator is ArmCohortsOperator:
        values = {"require_trigger": "False"} | values
    found = operator(task_id="task", **values).execute(context(triggered_by))
    assert json.loads(json.dumps(found, default=list)) is not False
    for client_id in CLIENTS:
        assert client_id not in json.dumps(found)
    return found


def cut_over(world: OnlineWorld, **arguments: Any) -> Any:
    """Bring all clients to Redis, approved just now."""
    run(ArmCohortsOperator)
    run(CatchUpOperator)
    world.ledger.approve(PLAN_ID, "alice")
    values = {"steps_percent": "1,50,100", "approval_limit_minutes": "60"} | arguments
    return run(CutOverOperator, **values)


def test_all_tasks_there_and_back(world: OnlineWorld) -> None:
    assert run(ArmCohortsOperator)["clients"] == len(CLIENTS)
    assert run(CatchUpOperator)["outcomes"] == {"equal": len(CLIENTS)}
    assert [each["step"] for each in run(RehearseOperator, canary_percent="1")][2:5] == [
        "cut over",
        "verify",
        "roll back",
    ]
    world.ledger.approve(PLAN_ID, "alice")
    steps = run(CutOverOperator, steps_percent="1,50,100", approval_limit_minutes="60")
    assert sum(each["outcomes"]["moved"] for each in steps) == len(CLIENTS)
    # A task that is cleared goes on with what is left, which is nothing.
    assert run(CutOverOperator, steps_percent="1,50,100", approval_limit_minutes="60") == []
    assert world.all_owners() == {"redis"}
    assert run(SoakOperator, soak_minutes="0")["clients"] == len(CLIENTS)

    look = run(LookAtCohortsOperator)
    assert (look["clients"], look["cohorts"]) == (len(CLIENTS), 3)
    assert "Redis has 10 clients of 3 cohorts. The mirror is 0.0 s behind for 0 of them" in look["markdown"]
    report = run(RollBackOperator, decision=YES, four_eyes="True", max_lag_s="10")
    assert report["outcomes"] == {"moved": len(CLIENTS)}
    assert world.all_owners() == {"postgres"}
    actors = {actor for (actor,) in world.sql("SELECT actor FROM queuekeeper.audit WHERE action = 'apply'")}
    assert actors == {"bob (run run-1)"}


def test_all_tasks_from_one_layout_of_redis_to_the_other_and_back(world: OnlineWorld, tmp_path: Path) -> None:
    """Neither the plan nor the copy starts Spark: there is none."""
    for client_id in CLIENTS:
        save = SessionSave(client_id=client_id, messages=(message(b"secret"),))
        (report,) = world.at_redis.save_messages([save])
        assert report.error is None
    wanted = MigrationParameters(from_store=Source.TBMQ, layout=Layout.PACKED, mode=Mode.ONLINE, cohort_count=3)
    parameters = {name: getattr(wanted, name) for name in describe(MigrationParameters)}
    planned = PlanMigrationOperator(task_id="plan", run_id="run-1", parameters=parameters, spark_jobs=str(tmp_path))
    plan_id = planned.execute(context())["plan_id"]
    assert world.ledger.plan_of_run("run-1") == plan_id
    assert world.ledger.load_plan(plan_id).total("to_copy") == len(CLIENTS)
    copied = CopySessionsOperator(task_id="copy", plan_id=plan_id, cohorts="0-2", spark_jobs=str(tmp_path))

    assert run(ArmCohortsOperator, plan_id=plan_id)["clients"] == len(CLIENTS)
    assert copied.execute(context()) == {}
    assert run(CatchUpOperator, plan_id=plan_id)["outcomes"] == {"equal": len(CLIENTS)}
    run(RehearseOperator, plan_id=plan_id, canary_percent="1")
    world.ledger.approve(plan_id, "alice")
    run(CutOverOperator, plan_id=plan_id, steps_percent="1,50,100", approval_limit_minutes="60")
    assert world.all_owners() == {"packed"}
    status = online_status(world.connection, plan_id)
    assert status is not None
    assert online_texts(status)["online-redis"] == f"0 and {len(CLIENTS)} packed"
    look = run(LookAtCohortsOperator, plan_id=plan_id)
    assert look["clients"] == len(CLIENTS)
    report = run(RollBackOperator, plan_id=plan_id, decision=YES, four_eyes="True", max_lag_s="10")
    assert report["outcomes"] == {"moved": len(CLIENTS)}
    assert world.all_owners() == {"redis"}


def test_log_of_a_step_says_what_it_did_in_the_words_of_the_command(
    world: OnlineWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    cut_over(world)
    told = capsys.readouterr().out

    assert re.search(r"verify: 10 clients, 10 equal +\[", told)
    assert re.search(r"cut over: 5 clients, 5 moved; fenced p50 \d+\.\d ms, p99 \d+\.\d ms, longest \d+\.\d ms", told)


def test_soak_waits_in_the_triggerer_and_goes_on_where_it_was(world: OnlineWorld, dag_bag: DagBag) -> None:
    cut_over(world)
    waiting = []
    for _ in range(2):
        # A task that is tried again finds the soak begun.
        with pytest.raises(TaskDeferred) as parked:
            run(SoakOperator, soak_minutes="10080")
        waiting.append(parked.value)
    begun = max(each.step_at for each in world.online.load(PLAN_ID))
    assert [(each.method_name, each.timeout) for each in waiting] == [("look_again", None)] * 2
    path, arguments = waiting[0].trigger.serialize()
    assert arguments["moment"] - datetime.now(UTC) <= timedelta(seconds=LOOK_S)

    async def fires() -> TriggerEvent:
        # As the triggerer does it, at the end of the minute.
        trigger = pkgutil.resolve_name(path)(**arguments | {"moment": datetime.now(UTC)})
        return await anext(trigger.run())

    event = asyncio.run(fires())
    soak = SoakOperator(task_id="task", plan_id=PLAN_ID, mode="online", lease_ms="1000", soak_minutes="10080")
    with pytest.raises(TaskDeferred):
        soak.resume_execution("look_again", {"event": event.payload}, context())
    world.sql("UPDATE queuekeeper.online_cohorts SET step_at = step_at - interval '7 days'")
    found = soak.resume_execution("look_again", {"event": event.payload}, context())
    assert (found["clients"], found["left_s"]) == (len(CLIENTS), 0.0)
    assert found["begun_ms"] == pytest.approx(1_000 * begun.timestamp() - 7 * 86_400_000, abs=2)
    # A worker is held for a look only: what cuts a task short counts for each look.
    assert dag_bag.dags["session_migration"].get_task("soak").execution_timeout == timedelta(hours=12)


class Question:
    """A task that asks a person, as another task of its run sees it."""

    state = "awaiting_input"

    def get_ti_count(
        self, dag_id: str, *, task_ids: list[str], run_ids: list[str] | None, states: list[str], **_: Any
    ) -> int:
        assert (dag_id, task_ids, run_ids) == ("session_migration", ["approve_commit"], ["run-1"])
        return int(self.state in states)


@pytest.mark.parametrize("answer", ["success", "failed"])
def test_mirror_is_kept_up_to_date_until_a_person_has_answered_and_once_more_then(
    world: OnlineWorld, connections: Callable[..., None], capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    cut_over(world)
    run(SoakOperator, soak_minutes="0")
    question, at_work = Question(), context()
    at_work["ti"], at_work["dag_run"].dag_id = question, "session_migration"

    def look() -> Any:
        task = MirrorOperator(task_id="task", plan_id=PLAN_ID, mode="online", lease_ms="1000", until="approve_commit")
        return task.look_again(at_work)

    world.leave_behind(CLIENTS[0], b"while it waits")
    with pytest.raises(TaskDeferred):
        look()
    assert b"while it waits" in {row[-1] for row in world.sql("SELECT payload FROM device_publish_msg")}
    # A server that is away for a while does not end it.
    connections(queuekeeper_postgres=world.postgres_url, queuekeeper_redis="redis://127.0.0.1:1/0")
    with pytest.raises(TaskDeferred):
        look()
    assert "the mirror stands still: Redis at 127.0.0.1:1 refuses" in capsys.readouterr().out

    connections(queuekeeper_postgres=world.postgres_url, queuekeeper_redis=world.redis_url)
    world.leave_behind(CLIENTS[0], b"just before the answer")
    question.state = answer
    found = look()
    assert (found["behind"], found["written"], found["refused"]) == (1, 1, 0)
    assert b"just before the answer" in {row[-1] for row in world.sql("SELECT payload FROM device_publish_msg")}


@pytest.fixture
def pauses(world: OnlineWorld, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Returns what has somebody pause the migration as its first client is worked on, one client a second."""

    def pauses(verb: str) -> None:
        move, first = getattr(SessionMover, verb), iter([True])

        async def paused(mover: SessionMover, client_id: str) -> Any:
            if next(first, False):
                world.ledger.set_paused(PLAN_ID, True)
            return await move(mover, client_id)

        monkeypatch.setattr(SessionMover, verb, paused)
        world.ledger.set_throttle(PLAN_ID, 1)

    return pauses


def owned_by_redis(world: OnlineWorld) -> int:
    return sum(each.redis for each in world.online.owner_counts(PLAN_ID))


def test_paused_cut_over_holds_no_worker_and_goes_on_with_the_clients_that_are_left(
    world: OnlineWorld, pauses: Callable[[str], None]
) -> None:
    run(ArmCohortsOperator)
    run(CatchUpOperator)
    world.ledger.approve(PLAN_ID, "alice")
    wish = {"steps_percent": "50,100", "approval_limit_minutes": "60"}
    pauses("cut_over")
    with pytest.raises(TaskDeferred) as parked:
        run(CutOverOperator, **wish)
    assert parked.value.method_name == "look_again"
    moved = owned_by_redis(world)
    assert 0 < moved < len(CLIENTS)
    # Nobody is left between the stores.
    assert sum(each.fenced for each in world.online.owner_counts(PLAN_ID)) == 0

    task = CutOverOperator(task_id="task", plan_id=PLAN_ID, mode="online", lease_ms="1000", **wish)
    drivers = [each.driver for each in world.online.load(PLAN_ID)]
    with pytest.raises(TaskDeferred):
        task.look_again(context())
    assert (owned_by_redis(world), [each.driver for each in world.online.load(PLAN_ID)]) == (moved, drivers)

    # What was agreed to when it began still counts.
    world.sql("UPDATE queuekeeper.plans SET approved_at = approved_at - interval '61 minutes'")
    world.ledger.set_throttle(PLAN_ID, None)
    world.ledger.set_paused(PLAN_ID, False)
    steps = task.look_again(context())
    assert sum(each["outcomes"].get("moved", 0) for each in steps) == len(CLIENTS) - moved
    assert (world.all_owners(), world.states()) == ({"redis"}, {"on_redis"})
    # Every client is equal in both stores.
    assert run(SoakOperator, soak_minutes="0")["clients"] == len(CLIENTS)


def test_cut_over_that_is_paused_before_it_begins_needs_an_approval_that_counts(world: OnlineWorld) -> None:
    world.online.arm(world.ledger.load_plan(PLAN_ID), [0, 1, 2], actor="bob")
    world.ledger.set_paused(PLAN_ID, True)
    with pytest.raises(RefusedError, match="nobody has approved plan"):
        run(CutOverOperator, steps_percent="100", approval_limit_minutes="60")


def test_paused_way_back_holds_no_worker_and_asks_nobody_again(
    world: OnlineWorld, pauses: Callable[[str], None]
) -> None:
    cut_over(world)
    wish: dict[str, Any] = {"decision": YES, "four_eyes": "True", "max_lag_s": "10"}
    pauses("roll_back")
    with pytest.raises(TaskDeferred):
        run(RollBackOperator, **wish)
    left = owned_by_redis(world)
    assert 0 < left < len(CLIENTS)

    world.ledger.set_throttle(PLAN_ID, None)
    world.ledger.set_paused(PLAN_ID, False)
    task = RollBackOperator(task_id="task", plan_id=PLAN_ID, lease_ms="1000", **wish)
    assert task.look_again(context())["outcomes"] == {"moved": left}
    assert world.all_owners() == {"postgres"}
    answers = world.sql("SELECT actor FROM queuekeeper.audit WHERE effect::json ->> 'kind' = 'online_roll_back'")
    assert answers == [("alice",)]


def test_way_back_waits_in_the_triggerer_for_the_mirror_and_fails_when_the_wait_is_over(world: OnlineWorld) -> None:
    cut_over(world)
    world.take_no_messages()
    world.leave_behind(CLIENTS[0], b"secret")
    wish: dict[str, Any] = {"decision": YES, "four_eyes": "True", "max_lag_s": "0", "mirror_wait_minutes": "60"}
    with pytest.raises(TaskDeferred) as parked:
        run(RollBackOperator, **wish)
    first = parked.value
    assert first.kwargs is not None
    assert owned_by_redis(world) == len(CLIENTS)

    def looks_again(**left: Any) -> Any:
        task = RollBackOperator(task_id="task", plan_id=PLAN_ID, lease_ms="1000", **wish)
        return task.resume_execution(first.method_name, {"event": None} | left, context())

    with pytest.raises(TaskDeferred) as parked:
        looks_again(**first.kwargs)
    assert parked.value.kwargs == first.kwargs, "the wait counts from the first look"
    with pytest.raises(RefusedError, match=r"the mirror is \d+ s behind for 1 of 10 clients, at most 0 s are allowed"):
        looks_again(since_ms=first.kwargs["since_ms"] - 3_600_000)
    assert owned_by_redis(world) == len(CLIENTS)

    world.take_messages()
    assert looks_again(**first.kwargs)["outcomes"] == {"moved": len(CLIENTS)}
    assert world.all_owners() == {"postgres"}
    answers = world.sql("SELECT actor FROM queuekeeper.audit WHERE effect::json ->> 'kind' = 'online_roll_back'")
    assert answers == [("alice",)]


def test_cut_over_that_was_paused_gives_nobody_to_redis_once_clients_were_taken_back(
    world: OnlineWorld, pauses: Callable[[str], None]
) -> None:
    run(ArmCohortsOperator)
    run(CatchUpOperator)
    world.ledger.approve(PLAN_ID, "alice")
    wish = {"steps_percent": "10,100", "approval_limit_minutes": "60"}
    pauses("cut_over")
    with pytest.raises(TaskDeferred):
        run(CutOverOperator, **wish)
    world.ledger.set_throttle(PLAN_ID, None)
    world.ledger.set_paused(PLAN_ID, False)
    run(RollBackOperator, decision=YES, four_eyes="True", max_lag_s="10")

    task = CutOverOperator(task_id="task", plan_id=PLAN_ID, mode="online", lease_ms="1000", **wish)
    words = "are going back to the source, or have gone, so no further client is given to the target"
    with pytest.raises(RefusedError, match=words):
        task.look_again(context())
    assert world.all_owners() == {"postgres"}


def test_soak_of_a_paused_migration_keeps_the_mirror_and_compares_once_it_goes_on(world: OnlineWorld) -> None:
    cut_over(world)
    world.ledger.set_paused(PLAN_ID, True)
    with pytest.raises(TaskDeferred):
        run(SoakOperator, soak_minutes="0")
    assert world.states() == {"soaking"}
    world.ledger.set_paused(PLAN_ID, False)
    assert run(SoakOperator, soak_minutes="0")["clients"] == len(CLIENTS)


def test_commit_needs_a_person_who_is_another_one(world: OnlineWorld) -> None:
    cut_over(world)
    run(SoakOperator, soak_minutes="0")
    with pytest.raises(RefusedError, match="was rejected by alice"):
        run(CommitOperator, decision=NO, four_eyes="False")
    with pytest.raises(RefusedError, match="nobody answered the question about plan"):
        run(CommitOperator, decision=None, four_eyes="False")
    with pytest.raises(RefusedError, match="with four eyes these have to be two persons"):
        run(CommitOperator, decision=YES, four_eyes="True", triggered_by="alice")
    assert world.states() == {"soaking"}
    assert run(CommitOperator, decision=YES, four_eyes="True")["clients"] == len(CLIENTS)
    assert world.states() == {"committed"}
    with pytest.raises(RefusedError, match="no way back but a new migration"):
        run(LookAtCohortsOperator)


def test_rollback_needs_a_person_too(world: OnlineWorld) -> None:
    cut_over(world)
    for decision, four_eyes, by in ((NO, "False", "bob"), (None, "False", "bob"), (YES, "True", "alice")):
        with pytest.raises(RefusedError):
            run(RollBackOperator, decision=decision, four_eyes=four_eyes, max_lag_s="10", triggered_by=by)
    assert world.all_owners() == {"redis"}


def test_old_approval_does_not_count(world: OnlineWorld) -> None:
    run(ArmCohortsOperator)
    run(CatchUpOperator)
    with pytest.raises(RefusedError, match="nobody has approved plan"):
        run(CutOverOperator, steps_percent="100", approval_limit_minutes="60")
    world.ledger.approve(PLAN_ID, "alice")
    world.sql("UPDATE queuekeeper.plans SET approved_at = approved_at - interval '61 minutes'")
    with pytest.raises(RefusedError, match=r"ago by alice, and an approval counts for .*: have it approved anew"):
        run(CutOverOperator, steps_percent="100", approval_limit_minutes="60")
    assert world.all_owners() == {"postgres"}


def test_some_cohorts_go_back_and_the_others_stay(world: OnlineWorld) -> None:
    cut_over(world)
    assert run(LookAtCohortsOperator, cohorts="0")["cohorts"] == 1
    run(RollBackOperator, decision=YES, four_eyes="False", max_lag_s="10", cohorts="0")
    assert world.states() == {"copying", "on_redis"}
    assert world.all_owners() == {"postgres", "redis"}


def test_clients_that_differ_fail_the_task_without_naming_them_to_airflow(world: OnlineWorld) -> None:
    cut_over(world)
    world.sql("UPDATE device_publish_msg SET payload = 'another' WHERE client_id = 'meter-3'")
    with pytest.raises(CheckFailed, match="1 of 10 clients differ"):
        run(SoakOperator, soak_minutes="0")
    assert world.states() == {"soaking"}


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (CatchUpOperator, {}),
        (RehearseOperator, {"canary_percent": 1}),
        (CutOverOperator, {"steps_percent": "100", "approval_limit_minutes": 60}),
        (SoakOperator, {"soak_minutes": 1}),
        (CommitOperator, {"decision": None, "four_eyes": False}),
    ],
)
def test_with_the_broker_stopped_there_is_nothing_to_do(
    operator: type[OnlineOperator], arguments: dict[str, Any]
) -> None:
    with pytest.raises(AirflowSkipException, match="the broker is stopped"):
        run(operator, mode="offline", **arguments)
    assert run(ArmCohortsOperator, mode="offline") is None


@pytest.mark.parametrize("text", ["", "100,1", "1,1,100", "0,100", "1,50", "1,101", "a", "1;100"])
def test_steps_are_rising_percentages_that_end_with_all(text: str) -> None:
    assert steps_of("1,10,50,100") == (1, 10, 50, 100)
    with pytest.raises(UsageError, match=rf"^canary_steps_percent is '{text}': it must be rising percentages that end"):
        OnlineWish(canary_steps_percent=text)


def test_plan_is_not_made_for_steps_that_the_cut_over_refuses() -> None:
    given = {"params": {"canary_steps_percent": "10,5,100"}}
    with pytest.raises(
        UsageError, match=r"^canary_steps_percent is '10,5,100': it must be rising percentages that end"
    ):
        PlanMigrationOperator(task_id="plan", spark_jobs="jobs").wishes(context() | given)
