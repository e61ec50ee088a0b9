"""Following a run of a real Airflow over its REST API, and answering what it asks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from queuekeeper.embedded import AirflowClient
from tests.patience import PATIENCE_S

QUESTION = "approve"
"""Every DAG of ours asks in a task of this name."""


def asked(dag_id: str, client: AirflowClient, run_id: str) -> dict[str, Any]:
    """Wait for the question of a run and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        question = client.question(dag_id, run_id, QUESTION)
        if question is not None and states(dag_id, client, run_id).get(QUESTION) == "awaiting_input":
            return question
        if client.run_state(dag_id, run_id) in ("success", "failed") or time.monotonic() > deadline:
            found = states(dag_id, client, run_id)
            pytest.fail(f"the run asked nothing: {found}\n{log(dag_id, client, run_id, 'plan')}")
        time.sleep(0.3)


def decide(dag_id: str, client: AirflowClient, run_id: str, option: str) -> None:
    """Answer the question of a run, again if Airflow asks again, until the answer has been taken."""
    deadline = time.monotonic() + PATIENCE_S
    while (state := states(dag_id, client, run_id)[QUESTION]) != "success":
        question = client.question(dag_id, run_id, QUESTION)
        if state == "awaiting_input" and question is not None and not question["response_received"]:
            client.answer(dag_id, run_id, QUESTION, options=[option])
        assert time.monotonic() < deadline, f"the answer was not taken: {states(dag_id, client, run_id)}"
        time.sleep(0.3)


def states(dag_id: str, client: AirflowClient, run_id: str) -> dict[str, str | None]:
    """Return the state of each task; of a mapped one, the state of its last instance."""
    return {task.task_id: task.state for task in client.tasks(dag_id, run_id)}


def log(dag_id: str, client: AirflowClient, run_id: str, task_id: str) -> str:
    """Return the log of the latest try of a task's first instance."""
    task = next(task for task in client.tasks(dag_id, run_id) if task.task_id == task_id)
    return "\n".join(client.log(dag_id, run_id, task))
