"""Talks to Airflow's REST API as a signed-in user: trigger, watch, approve, read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from queuekeeper.closing import Closing
from queuekeeper.errors import QueuekeeperError, RefusedError, ServerUnavailable, UsageError

FINISHED = frozenset({"success", "failed"})
_PARKED = frozenset({"awaiting_input", "deferred"})
_SETTLE_S = 6.0
"""Seconds to wait before an answer: Airflow 3.3 fails a task that is answered before the asking process has ended."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """State of one task instance of a run.

    :param map_index: number of a mapped instance, ``-1`` for a task that is not mapped.
    :param state: Airflow's state, ``None`` before the scheduler has seen the task.
    """

    task_id: str
    map_index: int
    state: str | None
    try_number: int


class AirflowClient(Closing):
    """Client of Airflow's REST API for one user; use it in a ``with`` block.

    :param base_url: address without ``/api/v2``.
    """

    def __init__(self, base_url: str, *, user: str, password: str, timeout_s: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._user = user
        self._password = password
        self._http = httpx.Client(base_url=self.base_url, timeout=timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(self, method: str, path: str, *, body: Any = None, query: Mapping[str, str | int] | None = None) -> Any:
        """Send one request to ``/api/v2`` and return the decoded answer; signs in first, and again when refused.

        :raises UsageError: when the request is wrong (400, 422).
        :raises RefusedError: when the user may not do this, or what the path names does not exist or does not allow it.
        """
        if "Authorization" not in self._http.headers:
            self._sign_in()
        answer = self._send(method, f"/api/v2{path}", body=body, query=query)
        if answer.status_code == 401:
            self._sign_in()
            answer = self._send(method, f"/api/v2{path}", body=body, query=query)
        if answer.is_success:
            return answer.json() if answer.content else None
        message = f"Airflow answered {answer.status_code} to {method} {path}: {_detail(answer)}"
        if answer.status_code in (400, 422):
            raise UsageError(message)
        raise RefusedError(message) if answer.status_code < 500 else QueuekeeperError(message)

    def health(self) -> dict[str, str]:
        """Return the health of each component; empty when the API does not answer."""
        try:
            answer = self._http.get("/api/v2/monitor/health", timeout=5.0)
        except httpx.HTTPError:
            return {}
        if not answer.is_success:
            return {}
        return {name: str((facts or {}).get("status")) for name, facts in answer.json().items()}

    def import_errors(self) -> list[str]:
        """Return the DAG files that Airflow could not read, each with its reason."""
        found = self.call("GET", "/importErrors", query={"limit": 50})
        return [f"{error['filename']}: {error['stack_trace'].strip()}" for error in found["import_errors"]]

    def wait_for_dag(self, dag_id: str, *, timeout_s: float = 120.0) -> None:
        """Wait until Airflow has read the DAG, then unpause it.

        :raises ServerUnavailable: when the DAG does not appear; lists the import errors.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.call("PATCH", f"/dags/{dag_id}", body={"is_paused": False})
                return
            except RefusedError as error:
                if time.monotonic() > deadline:
                    reasons = "\n".join(self.import_errors()) or "it reported no import errors"
                    raise ServerUnavailable(f"Airflow has not found the DAG {dag_id}: {reasons}") from error
            time.sleep(0.5)

    def pause(self, dag_id: str) -> None:
        """Pause the DAG, so that its schedule starts no more runs."""
        self.call("PATCH", f"/dags/{dag_id}", body={"is_paused": True})

    def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, note: str | None = None) -> str:
        """Start a run with these parameters and return its run id.

        :param note: words that Airflow shows beside the run.
        """
        body = {"logical_date": None, "conf": dict(conf or {}), "note": note}
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", body=body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: queued, running, success or failed."""
        return str(self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def wait_for_run(self, dag_id: str, run_id: str, *, timeout_s: float) -> str:
        """Wait until a run has ended and return its state.

        :raises ServerUnavailable: when it has not ended in time.
        """
        deadline = time.monotonic() + timeout_s
        while (state := self.run_state(dag_id, run_id)) not in FINISHED:
            if time.monotonic() > deadline:
                raise ServerUnavailable(f"run {run_id} of {dag_id} is still {state} after {timeout_s:.0f} s")
            time.sleep(0.5)
        return state

    def tasks(self, dag_id: str, run_id: str) -> list[TaskState]:
        """Return the state of each task instance of a run, in Airflow's order."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
        found: list[TaskState] = []
        while True:
            page = self.call("GET", path, query={"limit": 100, "offset": len(found)})
            found += [
                TaskState(
                    task_id=task["task_id"],
                    map_index=task["map_index"],
                    state=task["state"],
                    try_number=task["try_number"],
                )
                for task in page["task_instances"]
            ]
            if not page["task_instances"] or len(found) >= page["total_entries"]:
                return found

    def question(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any] | None:
        """Return the question of a human-in-the-loop task, or ``None`` before it has asked."""
        try:
            found = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails")
        except RefusedError:
            return None
        return dict(found)

    def answer(self, dag_id: str, run_id: str, task_id: str, *, options: list[str]) -> None:
        """Answer a human-in-the-loop task with the chosen options, once it has been waiting for a few seconds.

        :raises RefusedError: when the task has no open question, or this user may not answer.
        """
        self._let_settle(dag_id, run_id, task_id)
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        self.call("PATCH", path, body={"chosen_options": options, "params_input": {}})

    def returned(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> Any:
        """Return what a task returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", path, query={"map_index": map_index, "deserialize": "true"})["value"]

    def log(self, dag_id: str, run_id: str, task: TaskState) -> list[str]:
        """Return the log lines of a task instance's latest try."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task_id}/logs/{max(task.try_number, 1)}"
        found = self.call("GET", path, query={"map_index": task.map_index, "full_content": "true"})["content"]
        lines: list[str] = []
        for entry in found:
            if isinstance(entry, str):
                lines.append(entry)
                continue
            lines.append(str(entry.get("event", "")))
            # The event of a failure does not say why; the error stands in a field beside it.
            lines += [f"{error.get('exc_type')}: {error.get('exc_value')}" for error in entry.get("error_detail") or []]
        return lines

    def ensure_pool(self, name: str, *, slots: int, description: str) -> None:
        """Create a pool; an existing pool keeps its size."""
        try:
            self.call("GET", f"/pools/{name}")
        except RefusedError:
            body = {"name": name, "slots": slots, "description": description, "include_deferred": False}
            self.call("POST", "/pools", body=body)

    def _let_settle(self, dag_id: str, run_id: str, task_id: str) -> None:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        parked_since: float | None = None
        while (state := self.call("GET", path)["state"]) in (*_PARKED, "running"):
            parked_since = (parked_since or time.monotonic()) if state in _PARKED else None
            if parked_since is not None and time.monotonic() - parked_since >= _SETTLE_S:
                return
            time.sleep(0.5)

    def _sign_in(self) -> None:
        self._http.headers.pop("Authorization", None)
        answer = self._send("POST", "/auth/token", body={"username": self._user, "password": self._password})
        if not answer.is_success:
            raise RefusedError(f"Airflow at {self.base_url} does not let {self._user} sign in: {_detail(answer)}")
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def _send(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str | int] | None = None
    ) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body, params=query, headers={"Accept": "application/json"})
        except httpx.HTTPError as error:
            raise ServerUnavailable(f"Airflow at {self.base_url} does not answer: {error}") from error


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json().get("detail", answer.text))
    except (ValueError, AttributeError):
        return answer.text[:500]
