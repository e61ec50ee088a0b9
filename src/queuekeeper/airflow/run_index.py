"""Records which report belongs to which run, in small files beside the reports, and where the plugin shows them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.sdk.configuration import conf

from queuekeeper.places import make_folder, write_whole
from queuekeeper.report.files import ReportFiles, read_in, writing

if TYPE_CHECKING:
    from airflow.sdk import Context

PREFIX = "/queuekeeper"
"""Path of the plugin's pages below Airflow's own base address."""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Report of one run.

    :param html: file name, without folders.
    """

    dag_id: str
    run_id: str
    html: str


def base_path() -> str:
    """Return the path below which Airflow is served, empty for a server of its own."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def forms_url() -> str:
    """Return the base address of the plugin's forms of DAGs.

    It is a full address if Airflow's configuration has one, since a report may be read anywhere. Otherwise it is a
    path, which works in Airflow alone.
    """
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}{PREFIX}/trigger"


def remember(directory: Path, *, dag_id: str, run_id: str, files: ReportFiles) -> None:
    """Record these files as the report of a run.

    :param directory: folder of the reports.
    """
    entry = RunReport(dag_id=dag_id, run_id=run_id, html=files.html.name)
    path = _path(directory, dag_id=dag_id, run_id=run_id)
    with writing(directory):
        make_folder(path.parent)
        write_whole(path, json.dumps(asdict(entry)).encode())


def publish(files: ReportFiles, context: Context) -> dict[str, str]:
    """Record these files as the report of a run, and return their places and the hash of the page."""
    run = context["dag_run"]
    remember(files.html.parent, dag_id=run.dag_id, run_id=run.run_id, files=files)
    return {"html": str(files.html), "json": str(files.json), "sha256": files.sha256}


def report_of(directory: Path, *, dag_id: str, run_id: str) -> RunReport | None:
    """Return the report of a run, if it has one.

    :raises RefusedError: when the folder cannot be read.
    """
    noted = read_in(directory, _path(directory, dag_id=dag_id, run_id=run_id).read_bytes)
    if noted is None:
        return None
    try:
        entry = json.loads(noted)
        return RunReport(dag_id=entry["dag_id"], run_id=entry["run_id"], html=entry["html"])
    except (ValueError, TypeError, KeyError):
        return None


def _path(directory: Path, *, dag_id: str, run_id: str) -> Path:
    # A run id may hold any character; its hash is a safe file name.
    return directory / "runs" / f"{sha256(json.dumps([dag_id, run_id]).encode()).hexdigest()}.json"
