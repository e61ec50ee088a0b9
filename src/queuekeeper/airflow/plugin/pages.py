"""Makes the plugin's application: pages of stores, migrations and quality, reports, and forms that a link fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from queuekeeper.airflow.defaults import Tag
from queuekeeper.airflow.plugin import (
    audit,
    forms,
    migration,
    overview,
    partitions,
    quality,
    queue,
    runs,
    search,
    steering,
)
from queuekeeper.airflow.plugin.rest import RestApi, detail
from queuekeeper.airflow.plugin.security import Guards, check_address, check_origin
from queuekeeper.airflow.plugin.site import PLAIN_HEADERS, Site
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.airflow.settings import AirflowSettings
from queuekeeper.config import Settings
from queuekeeper.identity import hash_key
from queuekeeper.places import names, on_disk
from queuekeeper.report.files import read_in, report_name

_MEDIA = {"html": "text/html; charset=utf-8", "json": "application/json"}
_LISTED = 200
_UNPAUSE = "unpause-dag"  # no parameter can have this name: it is not an identifier
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True, kw_only=True)
class ReportFile:
    """A report in the folder of reports.

    :param subject_id: id of a migration's plan, or of another run.
    """

    name: str
    about: str
    subject_id: str
    kind: str
    path: Path
    written_at: datetime


def list_reports(directory: Path) -> list[ReportFile]:
    """Return the reports of a folder, latest first; links and files of other names are left out.

    :raises RefusedError: when the folder cannot be read.
    """

    def read() -> list[ReportFile]:
        return [
            ReportFile(
                name=name,
                about=known.about,
                subject_id=known.subject_id,
                kind=known.suffix,
                path=directory / name,
                written_at=known.at,
            )
            for name in names(directory, what="reports")
            if (known := report_name(name)) is not None
            # An object store has neither links nor folders, and each check would be a request.
            and (not on_disk(directory) or ((path := directory / name).is_file() and not path.is_symlink()))
        ]

    found = read_in(directory, read) or []
    return sorted(found, key=lambda report: (report.written_at, report.name), reverse=True)


def pages(
    *,
    settings: Settings | None = None,
    guards: Guards | None = None,
    api: RestApi | None = None,
    stores: Stores | None = None,
    site: Site | None = None,
) -> FastAPI:
    """Return the plugin's application.

    :param settings: settings with the folder of reports and the key of client hashes; by default those of the process.
    :param guards: checks of rights before a route answers.
    :param api: Airflow's own API, which decides about DAGs and runs.
    :param stores: stores that the pages show.
    """
    airflow, chosen = api or RestApi(), settings or AirflowSettings()
    asked, opened, shown = guards or Guards(), stores or Stores(), site or Site()

    @cache
    def key() -> bytes:
        # Created on first use: if the home cannot be written to, only the pages that name clients fail.
        return hash_key(chosen)

    def folder() -> Path:
        # Opened for each page, because this process cannot read Airflow's connections while it starts, and because a
        # connection may be added or corrected later.
        return chosen.reports

    def report_of(run_id: str) -> str | None:
        found = list_reports(folder())
        return next((each.name for each in found if (each.subject_id, each.kind) == (run_id, "html")), None)

    app = FastAPI(
        dependencies=[Depends(asked.read), Depends(check_address)], docs_url=None, redoc_url=None, openapi_url=None
    )
    shown.explain_errors(app)
    app.include_router(overview.routes(shown, opened))
    app.include_router(migration.routes(shown, opened, asked, airflow, key))
    app.include_router(steering.routes(shown, opened, asked, report_of, lambda: chosen.undo))
    app.include_router(queue.routes(shown, opened, asked, key, chosen.key_prefix))
    app.include_router(search.routes(shown, opened, chosen.key_prefix))
    app.include_router(partitions.routes(shown, opened))
    app.include_router(quality.routes(shown, opened))
    app.include_router(audit.routes(shown, opened, asked))
    app.include_router(_reports(shown, folder))
    app.include_router(runs.routes(shown, opened, asked, airflow, folder))
    app.include_router(_forms(shown, airflow, asked))

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        return shown.static(name)

    # Without this route, an unknown address or a wrong method would be answered without a check of rights.
    @app.api_route("/{path:path}", methods=_METHODS)
    def nothing(path: str) -> Response:
        raise HTTPException(404, "There is no such page.")

    return app


def _reports(site: Site, folder: Callable[[], Path]) -> APIRouter:
    router = APIRouter()

    @router.get("/reports")
    def reports() -> Response:
        directory = folder()
        found = list_reports(directory)
        shown = [report for report in found if report.kind == "html"][:_LISTED]
        data = {report.name for report in found if report.kind == "json"}
        return site.page("reports.html.j2", section="reports", reports=shown, data=data, directory=str(directory))

    @router.get("/reports/{name}")
    def report(name: str) -> Response:
        # Only files in the list are served, so no name can lead out of the folder.
        for found in list_reports(folder()):
            if found.name == name and (content := read_in(found.path.parent, found.path.read_bytes)) is not None:
                return Response(content, media_type=_MEDIA[found.kind], headers=PLAIN_HEADERS)
        raise HTTPException(404, "There is no such report.")

    return router


def _forms(site: Site, airflow: RestApi, guards: Guards) -> APIRouter:
    router = APIRouter()

    def form(
        dag_id: str, dag: Mapping[str, Any], *, given: Mapping[str, Any], problems: Sequence[str] = ()
    ) -> Response:
        return site.page(
            "form.html.j2",
            http_status=422 if problems else 200,
            dag_id=dag_id,
            description=dag["description"] or "",
            fields=forms.fields(dag["params"], given),
            unknown=forms.unknown(dag["params"], given),
            problems=problems,
            paused=dag["is_paused"],
            unpause=_UNPAUSE,
        )

    @router.get("/trigger/{dag_id}")
    async def show_form(request: Request, dag_id: str, conf: str = "{}") -> Response:
        try:
            given = forms.read_json(conf)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise HTTPException(400, "conf must be a JSON object.")
        dag = await _dag(airflow, request, dag_id)
        wrong = forms.misfits(dag["params"], given)
        if wrong:
            # A form with other values than the link's would start a run that nobody asked for.
            raise HTTPException(400, f"conf does not fit the form of {dag_id}: {'; '.join(wrong)}.")
        return form(dag_id, dag, given=given)

    @router.post("/trigger/{dag_id}", dependencies=[Depends(guards.start)])
    async def send_form(request: Request, dag_id: str) -> Response:
        check_origin(request)
        dag = await _dag(airflow, request, dag_id)
        sent = await forms.read_body(request)
        values, problems = forms.read(dag["params"], sent)
        if problems:
            return form(dag_id, dag, given=values, problems=problems)
        # Airflow checks the run first, so that a DAG whose run is refused stays paused.
        answer = await airflow.trigger(request, dag_id, conf=values)
        if answer.status_code in (400, 422):
            return form(dag_id, dag, given=values, problems=[detail(answer)])
        _demand(answer)
        if dag["is_paused"] and _UNPAUSE in sent:
            _demand(await airflow.unpause(request, dag_id))
        query = urlencode({"dag_id": dag_id, "run_id": answer.json()["dag_run_id"]})
        return RedirectResponse(f"{site.base}/started?{query}", status_code=303, headers=PLAIN_HEADERS)

    @router.get("/started")
    async def started(request: Request, dag_id: str, run_id: str) -> Response:
        answer = await airflow.run(request, dag_id, run_id)
        _demand(answer)
        state = answer.json()["state"]
        finished = state in ("success", "failed")
        return site.page("started.html.j2", dag_id=dag_id, run_id=run_id, state=state, finished=finished)

    return router


async def _dag(airflow: RestApi, request: Request, dag_id: str) -> dict[str, Any]:
    """Return one of our DAGs; forms of other DAGs are not shown here."""
    answer = await airflow.dag(request, dag_id)
    _demand(answer)
    found: dict[str, Any] = answer.json()
    if Tag.QUEUEKEEPER not in {tag["name"] for tag in found["tags"]}:
        raise HTTPException(404, f"{dag_id} is not a DAG of Queuekeeper.")
    return found


def _demand(answer: httpx.Response) -> None:
    """Pass on a refusal of Airflow."""
    if not answer.is_success:
        raise HTTPException(answer.status_code, detail(answer))
