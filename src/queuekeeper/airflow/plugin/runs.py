"""Shows tabs on a run and on a task: its report, its progress, and its entries in the audit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from queuekeeper import audit
from queuekeeper.airflow.plugin.rest import RestApi, detail
from queuekeeper.airflow.plugin.security import MIGRATION_DAG, Guards
from queuekeeper.airflow.plugin.site import PLAIN_HEADERS, Site
from queuekeeper.airflow.plugin.stores import Stores, panel
from queuekeeper.airflow.run_index import report_of
from queuekeeper.errors import UsageError
from queuekeeper.jobs.registry import overview_of
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.postgres import Connection
from queuekeeper.report.files import report_name

_ENTRIES = 50
_PAGES = {"queue_quality": "quality"}
"""DAG whose runs are of no kind in the registry -> page that shows what they have led to."""


def routes(site: Site, stores: Stores, guards: Guards, airflow: RestApi, reports: Callable[[], Path]) -> APIRouter:
    """Return the routes of runs.

    :param reports: opens the folder of the reports.
    """
    router = APIRouter()

    def leads_to(path: str) -> Response:
        return RedirectResponse(f"{site.base}/{path}", headers=PLAIN_HEADERS)

    def report_of_run(dag_id: str, run_id: str) -> str | None:
        found = report_of(reports(), dag_id=dag_id, run_id=run_id)
        return None if found is None or report_name(found.html) is None else found.html

    def plan_of(run_id: str) -> str | None:
        def look(connection: Connection) -> str | None:
            try:
                return MigrationLedger(connection).plan_of_run(run_id)
            except UsageError:
                return None

        return stores.from_postgres(look).value

    @router.get("/run")
    def run(dag_id: str, run_id: str) -> Response:
        name = report_of_run(dag_id, run_id)
        if name is None:
            return site.page("no_report.html.j2", http_status=404, dag_id=dag_id, run_id=run_id)
        return leads_to(f"reports/{name}")

    @router.get("/run/progress")
    def progress(dag_id: str, run_id: str) -> Response:
        if dag_id == MIGRATION_DAG:
            plan_id = plan_of(run_id)
            if plan_id is not None:
                return leads_to(f"migration/{plan_id}")
            return site.page("no_plan.html.j2", http_status=404, dag_id=dag_id, run_id=run_id)
        return leads_to(_overview(dag_id) or f"started?{urlencode({'dag_id': dag_id, 'run_id': run_id})}")

    @router.get("/task", dependencies=[Depends(guards.audit)])
    async def task(request: Request, dag_id: str, run_id: str, task_id: str, map_index: str = "") -> Response:
        answer = await airflow.run(request, dag_id, run_id)
        if not answer.is_success:
            raise HTTPException(answer.status_code, detail(answer))
        plan_id = await asyncio.to_thread(plan_of, run_id) if dag_id == MIGRATION_DAG else None
        run = audit.AirflowRun(dag_id=dag_id, run_id=run_id)
        found = await asyncio.to_thread(stores.from_postgres, lambda connection: _on_record(connection, run, plan_id))
        return site.page(
            "task.html.j2",
            dag_id=dag_id,
            run_id=run_id,
            task_id=task_id,
            map_index="" if map_index in ("", "-1") else map_index,
            state=answer.json()["state"],
            plan_id=plan_id,
            report=await asyncio.to_thread(panel, lambda: report_of_run(dag_id, run_id)),
            found=found,
            entries=[(entry, entry.effect_words) for entry in found.value or []],
            page=await asyncio.to_thread(_overview, dag_id),
        )

    return router


def _overview(dag_id: str) -> str:
    return _PAGES.get(dag_id) or overview_of(dag_id)


def _on_record(connection: Connection, run: audit.AirflowRun, plan_id: str | None) -> list[audit.AuditEntry]:
    if plan_id is None:
        return audit.of_run(connection, run, limit=_ENTRIES)
    # A migration's plan may be older than the run that shows it, and programs outside Airflow may copy it.
    return audit.latest(connection, wanted=audit.AuditFilter(subject=plan_id), limit=_ENTRIES)
