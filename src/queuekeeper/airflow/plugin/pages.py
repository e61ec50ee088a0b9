"""Pages of the plugin: all reports, one report, the report of a run, and forms of DAGs that a link fills in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
from airflow.sdk.configuration import conf
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from queuekeeper.airflow.defaults import Tag
from queuekeeper.airflow.plugin import forms
from queuekeeper.airflow.plugin.rest import RestApi, detail
from queuekeeper.airflow.plugin.security import may_read_runs
from queuekeeper.airflow.run_index import PREFIX, base_path, report_of
from queuekeeper.config import Settings

_NAME = re.compile(r"(?P<about>migration|quality)-(?P<subject>[0-9a-f]{16})-[0-9A-Za-z]+\.(?P<kind>html|json)")
_MEDIA = {"html": "text/html; charset=utf-8", "json": "application/json"}
_LISTED = 200

_HEADERS = {
    # Reports hold their own style and pictures and no script: nothing else may run or be fetched.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}


_FORM_HEADERS = _HEADERS | {
    "Content-Security-Policy": _HEADERS["Content-Security-Policy"].replace("form-action 'none'", "form-action 'self'"),
    # With no referrer at all the browser would not say where the form comes from.
    "Referrer-Policy": "same-origin",
}
_FIELDS = 1_000
_UNPAUSE = "unpause-dag"  # no parameter can have this name: it is no identifier


@dataclass(frozen=True, kw_only=True)
class ReportFile:
    """A report in the folder of reports.

    :param subject_id: plan of a migration, or run of a judgement of quality.
    """

    name: str
    about: str
    subject_id: str
    kind: str
    path: Path
    written_at: datetime


def list_reports(directory: Path) -> list[ReportFile]:
    """Return the reports of a folder, latest first; links and files of other names are none."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    written_at = datetime.fromtimestamp(entry.stat(follow_symlinks=False).st_mtime, UTC)
                    found.append(
                        ReportFile(
                            name=entry.name,
                            about=match["about"],
                            subject_id=match["subject"],
                            kind=match["kind"],
                            path=Path(entry.path),
                            written_at=written_at,
                        )
                    )
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda report: (report.written_at, report.name), reverse=True)


def pages(
    *, directory: Path | None = None, guard: Callable[..., Any] = may_read_runs, api: RestApi | None = None
) -> FastAPI:
    """Return the plugin's application.

    :param directory: folder of the reports; the settings' when absent.
    :param guard: dependency of every route, those that do not exist included.
    :param api: Airflow's own API, which decides about DAGs and runs.
    """
    airflow = api or RestApi()
    reports = directory or Settings().reports
    templates = Environment(
        loader=PackageLoader("queuekeeper.airflow.plugin", "templates"), autoescape=True, undefined=StrictUndefined
    )
    app = FastAPI(dependencies=[Depends(guard)], docs_url=None, redoc_url=None, openapi_url=None)

    def page(name: str, *, status: int = 200, headers: Mapping[str, str] = _HEADERS, **values: object) -> HTMLResponse:
        text = templates.get_template(name).render(base=f"{base_path()}{PREFIX}", airflow=base_path(), **values)
        return HTMLResponse(text, status_code=status, headers=dict(headers))

    @app.get("/")
    def index() -> Response:
        found = list_reports(reports)
        shown = [report for report in found if report.kind == "html"][:_LISTED]
        data = {report.name for report in found if report.kind == "json"}
        return page("reports.html.j2", reports=shown, data=data, directory=str(reports))

    @app.get("/reports/{name}")
    def report(name: str) -> Response:
        # Only what the list shows is served, so no name can lead out of the folder.
        for found in list_reports(reports):
            if found.name == name:
                return Response(found.path.read_bytes(), media_type=_MEDIA[found.kind], headers=_HEADERS)
        raise HTTPException(404, "There is no such report.", headers=_HEADERS)

    @app.get("/run")
    def run(dag_id: str, run_id: str) -> Response:
        found = report_of(reports, dag_id=dag_id, run_id=run_id)
        if found is None or not _NAME.fullmatch(found.html):
            return page("no_report.html.j2", status=404, dag_id=dag_id, run_id=run_id)
        return RedirectResponse(f"{base_path()}{PREFIX}/reports/{found.html}", headers=_HEADERS)

    def form(
        dag_id: str, dag: Mapping[str, Any], *, given: Mapping[str, Any], problems: Sequence[str] = ()
    ) -> Response:
        return page(
            "form.html.j2",
            status=422 if problems else 200,
            headers=_FORM_HEADERS,
            dag_id=dag_id,
            description=dag["description"] or "",
            fields=forms.fields(dag["params"], given),
            unknown=forms.unknown(dag["params"], given),
            problems=problems,
            paused=dag["is_paused"],
            unpause=_UNPAUSE,
        )

    @app.get("/trigger/{dag_id}")
    async def show_form(request: Request, dag_id: str, conf: str = "{}") -> Response:
        try:
            given = json.loads(conf)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise HTTPException(400, "conf has to be a JSON object.", headers=_HEADERS)
        dag = await _dag(airflow, request, dag_id)
        wrong = forms.misfits(dag["params"], given)
        if wrong:
            # A form that showed another value than the link has would start what nobody asked for.
            raise HTTPException(400, f"conf does not fit the form of {dag_id}: {'; '.join(wrong)}.", headers=_HEADERS)
        return form(dag_id, dag, given=given)

    @app.post("/trigger/{dag_id}")
    async def send_form(request: Request, dag_id: str) -> Response:
        _check_origin(request)
        dag = await _dag(airflow, request, dag_id)
        try:
            sent = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=_FIELDS)
        except ValueError:
            raise HTTPException(400, "The form cannot be read.", headers=_HEADERS) from None
        values, problems = forms.read(dag["params"], dict(sent))
        if problems:
            return form(dag_id, dag, given=values, problems=problems)
        # Checked by Airflow first: a DAG whose run is refused stays paused.
        answer = await airflow.trigger(request, dag_id, conf=values)
        if answer.status_code in (400, 422):
            return form(dag_id, dag, given=values, problems=[detail(answer)])
        _demand(answer)
        if dag["is_paused"] and _UNPAUSE in dict(sent):
            _demand(await airflow.unpause(request, dag_id))
        query = urlencode({"dag_id": dag_id, "run_id": answer.json()["dag_run_id"]})
        return RedirectResponse(f"{base_path()}{PREFIX}/started?{query}", status_code=303, headers=_FORM_HEADERS)

    @app.get("/started")
    async def started(request: Request, dag_id: str, run_id: str) -> Response:
        answer = await airflow.run(request, dag_id, run_id)
        _demand(answer)
        state = answer.json()["state"]
        finished = state in ("success", "failed")
        return page("started.html.j2", dag_id=dag_id, run_id=run_id, state=state, finished=finished)

    @app.get("/{path:path}")
    def nothing(path: str) -> Response:
        raise HTTPException(404, "There is no such page.", headers=_HEADERS)

    return app


async def _dag(airflow: RestApi, request: Request, dag_id: str) -> dict[str, Any]:
    """Return a DAG of ours; what else an Airflow runs has forms of its own."""
    answer = await airflow.dag(request, dag_id)
    _demand(answer)
    found: dict[str, Any] = answer.json()
    if Tag.QUEUEKEEPER not in {tag["name"] for tag in found["tags"]}:
        raise HTTPException(404, f"{dag_id} is no DAG of Queuekeeper.", headers=_HEADERS)
    return found


def _demand(answer: httpx.Response) -> None:
    """Pass on what Airflow refuses."""
    if not answer.is_success:
        raise HTTPException(answer.status_code, detail(answer), headers=_HEADERS)


def _check_origin(request: Request) -> None:
    """Refuse a form that another site sends in the name of whoever is signed in here."""
    if "authorization" in request.headers:
        # No browser sends a token by itself.
        return
    own = {request.headers.get("host"), urlsplit(conf.get("api", "base_url", fallback="") or "").netloc}
    if urlsplit(request.headers.get("origin", "")).netloc not in own - {None, ""}:
        raise HTTPException(403, "This form was not sent from Airflow's own pages.", headers=_HEADERS)
