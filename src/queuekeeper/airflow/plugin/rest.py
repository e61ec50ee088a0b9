"""Calls Airflow's own REST API, in this process, as the user of the page, so that Airflow checks their rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import Request

_CREDENTIALS = ("authorization", "cookie")


def airflow_transport() -> httpx.AsyncBaseTransport:
    """Return the transport to the application that serves this page."""
    # Internal to Airflow: its API server was started from this module, so the application exists already.
    from airflow.api_fastapi.main import app  # noqa: PLC0415

    return httpx.ASGITransport(app=app)


class RestApi:
    """Airflow's public REST API.

    :param transport: returns the transport to it.
    """

    def __init__(self, transport: Callable[[], httpx.AsyncBaseTransport] = airflow_transport) -> None:
        self._transport = transport

    async def dag(self, request: Request, dag_id: str) -> httpx.Response:
        """Request a DAG with its parameters."""
        return await self._call(request, "GET", f"/dags/{_part(dag_id)}/details")

    async def unpause(self, request: Request, dag_id: str) -> httpx.Response:
        """Unpause a DAG."""
        return await self._call(request, "PATCH", f"/dags/{_part(dag_id)}", body={"is_paused": False})

    async def trigger(self, request: Request, dag_id: str, *, conf: dict[str, Any]) -> httpx.Response:
        """Start a run."""
        body = {"logical_date": None, "conf": conf}
        return await self._call(request, "POST", f"/dags/{_part(dag_id)}/dagRuns", body=body)

    async def run(self, request: Request, dag_id: str, run_id: str) -> httpx.Response:
        """Request the state of a run."""
        return await self._call(request, "GET", _run(dag_id, run_id))

    async def task(self, request: Request, dag_id: str, run_id: str, task_id: str) -> httpx.Response:
        """Request the state of a task of a run, which must not be mapped."""
        return await self._call(request, "GET", f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}")

    async def question(self, request: Request, dag_id: str, run_id: str, task_id: str) -> httpx.Response:
        """Request the question that a task asks."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}/-1/hitlDetails"
        return await self._call(request, "GET", path)

    async def answer(
        self, request: Request, dag_id: str, run_id: str, task_id: str, *, options: list[str]
    ) -> httpx.Response:
        """Answer the question of a task."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_part(task_id)}/-1/hitlDetails"
        return await self._call(request, "PATCH", path, body={"chosen_options": options, "params_input": {}})

    async def _call(
        self, request: Request, method: str, path: str, *, body: dict[str, Any] | None = None
    ) -> httpx.Response:
        headers = {name: request.headers[name] for name in _CREDENTIALS if name in request.headers}
        async with httpx.AsyncClient(transport=self._transport(), base_url="http://airflow") as client:
            return await client.request(method, f"/api/v2{path}", json=body, headers=headers)


def _part(name: str) -> str:
    return quote(name, safe="")


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{_part(dag_id)}/dagRuns/{_part(run_id)}"


def detail(answer: httpx.Response) -> str:
    """Return Airflow's message about a request that it refused."""
    try:
        found = answer.json().get("detail", answer.text)
    except (ValueError, AttributeError):
        found = answer.text
    return str(found)[:2_000]
