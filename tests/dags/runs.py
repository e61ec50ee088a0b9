"""What tests ask of a run of a DAG or of one operator."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.airflow.operators.jobs import ApplyJobShareOperator, ReportJobOperator
from queuekeeper.errors import CheckFailed
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import ShareReport


class FakeRun:
    """A run of a DAG with these parameters, as operators find it in their context."""

    dag_id, run_id = "dag of a test", "by hand"

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf


def check_unfinished_share_fails(
    job: str, done: ShareReport[Any], *, task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a task fails, and says why, when the time of its share is over.

    :param done: what the share came to when it was done.
    """
    run_id, share = done.maintenance_run_id, done.share
    stopped = replace(done, done=False, stopped="its 5 minutes are over")
    monkeypatch.setattr(Engine, "apply", lambda *_, **__: stopped)
    task = ApplyJobShareOperator(job=job, task_id=task_id, maintenance_run_id=run_id, share=share)
    with pytest.raises(CheckFailed, match=f"^{share} is not finished: its 5 minutes are over$"):
        task.execute({})


def check_report_is_red(job: str, run_id: str, *, words: str, pages: Path) -> None:
    """Check that the task of the report fails once it has written the page.

    :param words: with which, as a pattern.
    :param pages: folder of the pages.
    """
    report = ReportJobOperator(job=job, task_id="report", maintenance_run_id=run_id, plan_only="False")
    with pytest.raises(CheckFailed, match=words):
        report.execute({"dag_run": FakeRun({})})  # type: ignore[typeddict-item]
    assert len(list(pages.glob("*.html"))) == 1


def states(run: Any) -> dict[str, set[str]]:
    """Return the states of each task; a mapped one has several."""
    found: dict[str, set[str]] = {}
    for task in run.get_task_instances():
        found.setdefault(task.task_id, set()).add(task.state)
    return found


def returned(operator: Any, *, secret: str) -> dict[str, Any]:
    """Run an operator by itself, and return what it keeps: JSON without any content."""
    result: dict[str, Any] = operator.execute({})
    assert json.loads(json.dumps(result)) == result, "it is kept as JSON"
    assert secret not in json.dumps(result)
    return result
