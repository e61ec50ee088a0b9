"""Any notifier of Airflow can be told of a question that waits, of a failed quality gate, and of a failed task."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import TaskAwaitingInput
from airflow.serialization.serialized_objects import DagSerialization

from queuekeeper.airflow.notifiers import Event, notifiers
from queuekeeper.airflow.operators.approval import ApprovePlanOperator
from queuekeeper.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from airflow.sdk import Context

pytestmark = [pytest.mark.dags, pytest.mark.usefixtures("airflow_database")]

ROOT = Path(__file__).resolve().parents[2]
TOLD: list[tuple[str, str]] = []
SOUND = {"quality_run_id": "q", "verdict": "passed"}


class Recorder(BaseNotifier):
    """Notes whom it would tell and what."""

    template_fields = ("to", "text")

    def __init__(self, *, to: str, text: str = "{{ ti.task_id }}") -> None:
        super().__init__()
        self.to = to
        self.text = text

    def notify(self, context: Context) -> None:
        if self.to == "nobody@example.org":
            raise ConnectionError("the mail server is down")
        TOLD.append((self.to, self.text))


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    TOLD.clear()
    monkeypatch.setitem(sys.modules, "recording", sys.modules[__name__])


def configure(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> None:
    told = [{"class": "recording.Recorder", **entry} for entry in entries]
    monkeypatch.setenv("AIRFLOW__QUEUEKEEPER__NOTIFIERS", json.dumps(told))


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Questions that were put to people; Airflow's own part is to keep them and to park the task."""
    asked: list[str] = []
    monkeypatch.setattr(
        "airflow.providers.standard.operators.hitl.upsert_hitl_detail", lambda **given: asked.append(given["subject"])
    )
    return asked


def ask(**arguments: Any) -> None:
    """Ask a person; the task is then parked."""
    approve = ApprovePlanOperator(
        task_id="approve", subject="Copy?", body="", timeout_minutes=5, plan_only=False, **arguments
    )
    ti = SimpleNamespace(id="1", task_id="approve")
    with pytest.raises(TaskAwaitingInput):
        approve.execute({"task_instance": ti, "ti": ti, "task": approve})  # type: ignore[typeddict-item]


def test_a_waiting_question_goes_to_the_configured_notifiers(
    monkeypatch: pytest.MonkeyPatch, questions: list[str]
) -> None:
    text = "{{ task.subject }} {{ ti.task_id }}"
    configure(
        monkeypatch,
        {"arguments": {"to": "a@example.org", "text": text}, "events": ["approval"]},
        {"arguments": {"to": "b@example.org"}, "events": ["quality_gate"]},
    )
    ask()
    assert (TOLD, questions) == ([("a@example.org", "Copy? approve")], ["Copy?"])
    # A DAG of one's own may name others.
    ask(notifiers=Recorder(to="c@example.org", text="mine"))
    assert TOLD[1:] == [("c@example.org", "mine")]


def test_a_notifier_that_cannot_be_told_keeps_nobody_from_being_asked(
    monkeypatch: pytest.MonkeyPatch, questions: list[str]
) -> None:
    configure(monkeypatch, *({"arguments": {"to": f"{name}@example.org"}} for name in ("nobody", "a")))
    ask()
    assert (TOLD, questions) == ([("a@example.org", "approve")], ["Copy?"])


@pytest.mark.parametrize(
    ("failing", "told"), [("publish", [("all", "two queues differ"), ("gate", "publish")]),
                          ("report", [("all", "two queues differ")])],
)  # fmt: skip
def test_a_failure_is_told_once_to_whom_it_concerns(
    monkeypatch: pytest.MonkeyPatch, failing: str, told: list[tuple[str, str]]
) -> None:
    configure(
        monkeypatch,
        {"arguments": {"to": "gate"}, "events": ["quality_gate"]},
        {"arguments": {"to": "all", "text": "{{ exception }}"}},
    )

    def fail(**_: Context) -> None:
        raise CheckFailed("two queues differ")

    dag = DagBag(str(ROOT / "dags" / "queue_quality.py")).dags["queue_quality"]
    for task in dag.tasks:
        monkeypatch.setattr(task, "execute", fail if task.task_id == failing else lambda **_: dict(SOUND))
    assert dag.test().state == "failed"
    assert sorted(TOLD) == told


def test_a_configuration_changes_nothing_in_a_dag_between_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, {"arguments": {"to": "ops@example.org"}})
    read = [DagBag(str(ROOT / "dags" / "queue_quality.py")) for _ in range(2)]
    assert [each.import_errors for each in read] == [{}, {}]
    first, second = (DagSerialization.to_dict(each.dags["queue_quality"]) for each in read)
    assert first == second
    assert "ops@example.org" not in json.dumps(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not a JSON list of notifiers: the text: Invalid JSON"),
        ('[{"class": "recording.Recorder", "event": ["approval"]}]', r"0\.event: Extra inputs are not permitted"),
        ('[{"class": "recording.Recorder", "events": ["panic"]}]', "should be 'approval', 'quality_gate' or 'failure'"),
        ('[{"class": "recording.Missing"}]', "names 'recording.Missing', which cannot be imported"),
        ('[{"class": "recording.configure"}]', "names 'recording.configure', which is not a notifier of Airflow"),
        ('[{"class": "recording.Recorder"}]', "recording.Recorder does not take these arguments: .*'to'"),
    ],
)
def test_a_wrong_configuration_is_refused_where_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setenv("AIRFLOW__QUEUEKEEPER__NOTIFIERS", text)
    with pytest.raises(UsageError, match=rf"^option notifiers of section \[queuekeeper\].*{words}"):
        notifiers(Event.APPROVAL)


def test_the_example_of_the_documents_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "deploying.md").read_text("utf-8")
    (text,) = re.findall(r"^AIRFLOW__QUEUEKEEPER__NOTIFIERS='(.*?)'$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("AIRFLOW__QUEUEKEEPER__NOTIFIERS", text)
    assert {event: len(notifiers(event)) for event in Event} == {
        Event.APPROVAL: 1, Event.QUALITY_GATE: 1, Event.FAILURE: 0,
    }  # fmt: skip
