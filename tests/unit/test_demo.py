"""The demo reads its wishes from the environment, refuses what it does not understand, and ends when it is told to."""

from __future__ import annotations

import signal
import time
from io import StringIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from queuekeeper import demo, embedded
from queuekeeper.config import Settings
from queuekeeper.demo import DemoOptions
from queuekeeper.embedded import TaskState
from queuekeeper.errors import ServerUnavailable, UsageError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.unit


def test_without_wishes_it_approves_by_itself_and_stays() -> None:
    assert DemoOptions.read({"DEMO_APPROVE": ""}) == DemoOptions(approval="auto", leave=False, messages=200_000)


def test_wishes_are_read() -> None:
    wishes = {"DEMO_APPROVE": "ui", "DEMO_EXIT": "1", "DEMO_MESSAGES": "5000"}
    assert DemoOptions.read(wishes) == DemoOptions(approval="ui", leave=True, messages=5_000)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"DEMO_APPROVE": "no"}, "DEMO_APPROVE is 'no': it may be 'auto' or 'ui'"),
        ({"DEMO_MESSAGES": "many"}, "DEMO_MESSAGES is 'many': it must be a number from 5000 to 100000000"),
        ({"DEMO_MESSAGES": "999"}, "DEMO_MESSAGES is '999': it must be a number from 5000 to 100000000"),
    ],
)
def test_what_is_not_understood_is_refused(wishes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DemoOptions.read(wishes)


class SlowAirflow:
    """An Airflow that is not up before it is stopped."""

    def __init__(self) -> None:
        self.told = Event()

    def start(self) -> None:
        self.told.wait(PATIENCE_S)
        raise ServerUnavailable("scheduler ended while it was starting")

    def stop(self) -> None:
        self.told.set()


def test_who_interrupts_while_airflow_starts_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = SlowAirflow()

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "up", lambda *_: None)
    monkeypatch.setattr(embedded, "private_airflow", lambda *_: airflow)
    monkeypatch.setattr(demo, "_begin_anew", lambda *_: "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(demo, "connect", interrupted)

    with pytest.raises(KeyboardInterrupt):
        demo.run(Settings(home=tmp_path, postgres_url=None, redis_url=None), DemoOptions(), Console(quiet=True))

    assert airflow.told.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_demo_that_is_told_to_end_says_so_by_its_exit_code(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*_: object) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr(demo, "run", told)
    before = signal.getsignal(signal.SIGHUP)
    try:
        assert demo.main() == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert capsys.readouterr().out == "Interrupted.\n"


class AskingAirflow:
    """An Airflow whose run asks, until somebody else has answered."""

    base_url = "http://airflow.example.org"

    def __init__(self) -> None:
        self._states = iter(["running", "running", "failed"])

    def run_state(self, *_: str) -> str:
        return next(self._states)

    def tasks(self, *_: str) -> list[TaskState]:
        return [TaskState(task_id="approve", state="awaiting_input", map_index=-1, try_number=1)]

    def question(self, *_: str) -> dict[str, Any]:
        return {"subject": "Copy 9 messages to Redis?", "body": "A **plan**.", "response_received": False}

    def answer(self, *_: str, **__: object) -> None:
        pytest.fail("a person was to answer")


def test_demo_that_is_to_wait_for_a_person_shows_what_is_asked_and_where_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "_plan_of", lambda *_: None)
    said = StringIO()
    client, connection = cast("Any", AskingAirflow()), cast("Any", SimpleNamespace(autocommit=True))

    state = demo.follow(
        client, connection, demo.DAG_ID, "run-1", DemoOptions(approval="ui"), Console(file=said, width=200),
        began=time.monotonic(),
    )  # fmt: skip

    assert state == "failed"
    assert "Copy 9 messages to Redis?" in said.getvalue()
    page = "http://airflow.example.org/dags/session_migration/runs/run-1/tasks/approve/required_actions"
    assert said.getvalue().count(f"Waiting for you to approve or reject: {page}") == 1
