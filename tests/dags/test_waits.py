"""What waits in the triggerer leaves nothing open there, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.exceptions import TaskDeferred

from queuekeeper.airflow.waits import LooksAgain

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
