"""What waits in the triggerer leaves nothing open there, however it ends."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.exceptions import TaskDeferred

from queuekeeper import postgres, schema_migrations
from queuekeeper.airflow.operators.migration import CopySessionsOperator
from queuekeeper.airflow.operators.spark import QueuekeeperSparkOperator
from queuekeeper.airflow.waits import LooksAgain
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.parameters import CohortChoice, CopyManner, PlanChoice
from tests.dags.test_approval import make_plan

pytestmark = pytest.mark.dags

WAITS = 200


class Waiting(LooksAgain):
    def execute(self, context: Any) -> None:
        self.park()


@pytest.fixture
def runner() -> TriggerRunner:
    """The triggerer's own runner, without the supervisor that feeds it."""
    return TriggerRunner()  # type: ignore[no-untyped-call]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def parked() -> tuple[str, dict[str, Any]]:
    """Return the trigger that a waiting task leaves behind, as Airflow stores it."""
    with pytest.raises(TaskDeferred) as found:
        Waiting(task_id="wait").execute({})
    path, arguments = found.value.trigger.serialize()
    assert arguments["moment"] - datetime.now(UTC) <= timedelta(minutes=1)
    return path, arguments


def test_paused_copy_starts_no_spark_and_one_that_meets_a_pause_gives_its_worker_back(
    postgres_url: str, connections: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connections(queuekeeper_postgres=postgres_url)
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        ledger = MigrationLedger(connection)
        plan_id = ledger.save_plan(make_plan(), run_id="run").plan_id
        asked: list[CopyManner] = []
        reports = iter([{"paused": True, "messages_written": 7}, {"paused": False, "messages_written": 5}])

        def spark(operator: Any, context: Any) -> Any:
            parser = ArgumentParser()
            for model in (PlanChoice, CohortChoice, CopyManner):
                model.declare(parser)
            asked.append(CopyManner.take(vars(parser.parse_args(operator.arguments(context)))))
            return next(reports)

        monkeypatch.setattr(QueuekeeperSparkOperator, "execute", spark)
        task = CopySessionsOperator(task_id="copy", spark_jobs="", plan_id=plan_id, cohorts="0")
        ledger.set_paused(plan_id, True)
        with pytest.raises(TaskDeferred):
            task.execute({})
        assert asked == []
        ledger.set_paused(plan_id, False)
        with pytest.raises(TaskDeferred) as met:
            task.execute({})
        assert (met.value.method_name, asked) == ("look_again", [CopyManner(gives_way=True)])
        # Airflow makes the task anew for every look.
        later = CopySessionsOperator(task_id="copy", spark_jobs="", plan_id=plan_id, cohorts="0")
        assert later.look_again({})["messages_written"] == 5
        assert asked[1:] == [CopyManner(gives_way=True, only_missing=True)]


@pytest.mark.parametrize(
    ("time", "cancelled", "outcome"),
    [
        (lambda: {"moment": datetime.now(UTC)}, False, type(None)),
        (lambda: {"moment": datetime.now(UTC) + timedelta(days=7)}, True, asyncio.CancelledError),
        (lambda: {"target_time": "no instant"}, False, ValueError),
    ],
    ids=["fires", "is cancelled", "fails"],
)
def test_waits_leave_no_file_open_in_the_triggerer(
    runner: TriggerRunner, time: Callable[[], dict[str, Any]], cancelled: bool, outcome: type[BaseException | None]
) -> None:
    path, arguments = parked()
    del arguments["moment"]
    trigger_class = runner.get_trigger_by_classpath(path)

    async def one(number: int) -> BaseException | None:
        runner.triggers[number] = {"name": str(number), "events": 0}  # type: ignore[typeddict-item]
        task = asyncio.create_task(runner.run_trigger(number, trigger_class(**arguments, **time())))
        if cancelled:
            for _ in range(10):
                await asyncio.sleep(0)
            task.cancel()
        results: list[BaseException | None] = await asyncio.gather(task, return_exceptions=True)
        return results[0]

    async def soak() -> tuple[int, int, list[BaseException | None]]:
        await one(0)
        before = descriptors()
        results = await asyncio.gather(*(one(number) for number in range(1, WAITS + 1)))
        return before, descriptors(), results

    before, after, ended = asyncio.run(soak())
    assert after <= before
    assert len(ended) == WAITS
    assert all(isinstance(each, outcome) for each in ended), ended[:3]
    assert len(runner.events) == (WAITS + 1 if outcome is type(None) else 0)
