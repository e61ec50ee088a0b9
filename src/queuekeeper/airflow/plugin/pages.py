"""Pages of the plugin: the list of reports, one report, the report of a run. They show files and compute nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined

from queuekeeper.airflow.plugin.security import may_read_runs
from queuekeeper.airflow.run_index import PREFIX, base_path, report_of
from queuekeeper.config import Settings

_NAME = re.compile(r"migration-(?P<plan>[0-9a-f]{16})-[0-9A-Za-z]+\.(?P<kind>html|json)")
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


@dataclass(frozen=True, kw_only=True)
class ReportFile:
    """A report in the folder of reports."""

    name: str
    plan_id: str
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
                            plan_id=match["plan"],
                            kind=match["kind"],
                            path=Path(entry.path),
                            written_at=written_at,
                        )
                    )
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda report: (report.written_at, report.name), reverse=True)


def pages(*, directory: Path | None = None, guard: Callable[..., Any] = may_read_runs) -> FastAPI:
    """Return the plugin's application.

    :param directory: folder of the reports; the settings' when absent.
    :param guard: dependency of every route, those that do not exist included.
    """
    reports = directory or Settings().reports
    templates = Environment(
        loader=PackageLoader("queuekeeper.airflow.plugin", "templates"), autoescape=True, undefined=StrictUndefined
    )
    app = FastAPI(dependencies=[Depends(guard)], docs_url=None, redoc_url=None, openapi_url=None)

    def page(name: str, *, status: int = 200, **values: object) -> HTMLResponse:
        text = templates.get_template(name).render(base=f"{base_path()}{PREFIX}", **values)
        return HTMLResponse(text, status_code=status, headers=_HEADERS)

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

    @app.get("/{path:path}")
    def nothing(path: str) -> Response:
        raise HTTPException(404, "There is no such page.", headers=_HEADERS)

    return app
