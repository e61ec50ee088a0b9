"""The demo reads its wishes from the environment, refuses what it does not understand, and ends when it is told to."""

from __future__ import annotations

import signal
import time
from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from queuekeeper import assets, embedded
from queuekeeper.cli import app
from queuekeeper.config import Settings
from queuekeeper.demo import installed, program
from queuekeeper.demo.day import Day, DemoOptions, Waiting, side_by_side
from queuekeeper.demo.follow import follow
from queuekeeper.embedded import TaskState
from queuekeeper.errors import ServerUnavailable, UsageError
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.unit


def test_without_wishes_it_approves_by_itself_and_stays() -> None:
    assert DemoOptions.read({"DEMO_APPROVE": ""}) == DemoOptions(approval="auto", leave=False, messages=20_000)


def test_wishes_are_read() -> None:
    wishes = {"DEMO_APPROVE": "ui", "DEMO_EXIT": "1", "DEMO_MESSAGES": "5000"}
    assert DemoOptions.read(wishes) == DemoOptions(approval="ui", leave=True, messages=5_000)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"DEMO_APPROVE": "no"}, "DEMO_APPROVE is 'no': it may be 'auto' or 'ui'"),
        ({"DEMO_EXIT": "yes"}, "DEMO_EXIT is 'yes': it may be '0' or '1'"),
        ({"DEMO_MESSAGES": "many"}, "DEMO_MESSAGES is 'many': it must be a number from 5000 to 100000000"),
        ({"DEMO_MESSAGES": "999"}, "DEMO_MESSAGES is '999': it must be a number from 5000 to 100000000"),
    ],
)
def test_what_is_not_understood_is_refused(wishes: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DemoOptions.read(wishes)


def test_who_has_seen_a_demo_is_told_the_command_that_shows_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "checkout", lambda: tmp_path)

    assert program._shows_again(tmp_path / "var") == "make up"
    assert program._shows_again(Path.home() / ".local/state/queuekeeper") == "queuekeeper up --airflow"
    assert program._shows_again(Path("/srv/a demo")) == "QUEUEKEEPER_HOME='/srv/a demo' queuekeeper up --airflow"


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
    monkeypatch.setattr(embedded, "private_airflow", lambda *_, **__: airflow)
    monkeypatch.setattr(program, "_begin_anew", lambda *_: "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(program, "connect", interrupted)

    with pytest.raises(KeyboardInterrupt):
        program.run(Settings(home=tmp_path, postgres_url=None, redis_url=None), DemoOptions(), Console(quiet=True))

    assert airflow.told.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_demo_that_is_told_to_end_says_so_by_its_exit_code(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*_: object) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr(program, "run", told)
    before = signal.getsignal(signal.SIGHUP)
    try:
        assert program.main() == 130
    finally:
        signal.signal(signal.SIGHUP, before)
    assert capsys.readouterr().out == "Interrupted.\n"


def test_works_go_on_side_by_side_until_the_last_has_ended() -> None:
    said = []

    def work(name: str, *, looks: int) -> Waiting[None]:
        for look in range(looks):
            said.append(f"{name}{look}")
            yield

    side_by_side([work("a", looks=1), work("b", looks=2)])

    assert said == ["a0", "b0", "b1"]


def test_works_are_closed_when_another_one_fails() -> None:
    closed = []

    def endless() -> Waiting[None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    def failing() -> Waiting[None]:
        yield
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side([endless(), failing()])

    assert closed == [True]


class BusyAirflow:
    """An Airflow in which an interrupted demo has left a run."""

    def __init__(self) -> None:
        self.changed: list[tuple[str, Any]] = []

    def call(self, method: str, path: str, *, body: Any = None, query: Any = None) -> Any:
        if method == "PATCH":
            self.changed.append((path, body))
            return None
        left = [{"dag_id": "session_migration", "dag_run_id": "old"}] if query["state"] == "running" else []
        return {"dag_runs": left}


def test_runs_that_an_interrupted_demo_has_left_are_ended() -> None:
    airflow = BusyAirflow()

    program._end_leftovers(cast("Any", airflow))

    assert airflow.changed == [("/dags/session_migration/dagRuns/old", {"state": "failed"})]


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


def test_demo_that_is_to_wait_for_a_person_shows_what_is_asked_and_where_to_answer() -> None:
    said = StringIO()
    day = Day(
        settings=Settings(postgres_url=None, redis_url=None),
        options=DemoOptions(approval="ui"),
        console=Console(file=said, width=200),
        began=time.monotonic(),
        client=cast("Any", AskingAirflow()),
        connection=cast("Any", None),
        redis=cast("Any", None),
    )
    states = []

    def watch() -> Waiting[None]:
        states.append((yield from follow(day, "session_migration", "run-1", asks=True)))

    side_by_side([watch()])

    assert states == ["failed"]
    assert "Copy 9 messages to Redis?" in said.getvalue()
    page = "http://airflow.example.org/dags/session_migration/runs/run-1/tasks/approve/required_actions"
    assert said.getvalue().count(f"Waiting for you to approve or reject: {page}") == 1


@pytest.mark.parametrize(
    ("package", "how"),
    [
        ("apache-airflow-core", "pip install 'queuekeeper[all]'"),
        ("apache-airflow-providers-apache-spark", "pip install --no-deps apache-airflow-providers-apache-spark"),
    ],
)
def test_a_package_that_is_missing_is_refused_by_name_before_anything_is_started(
    package: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_is_missing(name: str) -> str:
        if name == package:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(installed, "version", one_is_missing)
    monkeypatch.setattr(program, "run", lambda *_: pytest.fail("something was started"))

    refused = CliRunner().invoke(app, ["demo"])

    assert refused.exit_code == 2
    assert f"the demo needs {package}, which is not installed: {how}" in " ".join(refused.stderr.split())
