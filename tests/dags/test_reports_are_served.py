"""Every kind of report, from the task that writes it by its link to the page, through the plugin's own application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest
from airflow.sdk import ObjectStoragePath
from fastapi import FastAPI

from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.jobs import ReportJobOperator
from queuekeeper.airflow.plugin.pages import pages
from queuekeeper.airflow.run_index import PREFIX, remember
from queuekeeper.airflow.settings import AirflowSettings
from queuekeeper.errors import UsageError
from queuekeeper.jobs.model import AnyJob, AnyOutcome, AnyPlan, Outcome, Plan
from queuekeeper.jobs.registry import job_of
from queuekeeper.jobs.report import write_report
from queuekeeper.jobs.unrecorded import UnrecordedRuns
from queuekeeper.maintenance.partitions import report as partitions_report
from queuekeeper.migration.report import gather as migration_report
from queuekeeper.quality.report import gather as quality_report
from queuekeeper.report.files import ReportFiles, ReportKind, write_files
from tests import quality_samples, report_samples
from tests.dags.test_plugin_pages import OPEN
from tests.run_kinds import JOBS, PARTITIONS, STEP, parameters_of
from tests.sample_job import Renaming

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.types import TaskInstanceKey

pytestmark = pytest.mark.dags

RUN_ID = "scheduled__2026-03-01T12:00:00+00:00"
RUN = "0011223344556677"
NOW_MS = report_samples.NOW_MS


def _migration(directory: Path) -> ReportFiles:
    made = migration_report.compose_report(report_samples.balanced(count=4), now_ms=NOW_MS)
    return migration_report.write_report(made, directory)


def _quality(directory: Path) -> ReportFiles:
    made = quality_report.compose_report(quality_samples.failed(), now_ms=quality_samples.NOW_MS)
    return quality_report.write_report(made, directory)


def _partitions(directory: Path) -> ReportFiles:
    made = partitions_report.PartitionsReport(run_name="a run", dry_run=False, tables=(), generated_at_ms=NOW_MS)
    return made.write(directory)


def _job(job: type[AnyJob], directory: Path) -> ReportFiles:
    plan: AnyPlan = Plan(
        parameters=parameters_of(job),
        code_version="1",
        as_of_ms=NOW_MS,
        shares=(),
        counts=job.Counts(),
        found=job.Found(),
        steps=(),
        seconds=0.0,
    )
    made: AnyOutcome = Outcome(
        maintenance_run_id=RUN,
        dry_run=True,
        plan=plan,
        counts=job.Counts(),
        left=None,
        proved=False,
        open_shares=(),
        facts=dict.fromkeys(job.fact_names),
        generated_at_ms=NOW_MS,
    )
    return write_report(job, made, directory)


WRITERS: dict[ReportKind, Callable[[Path], ReportFiles]] = {
    ReportKind.MIGRATION: _migration,
    ReportKind.QUALITY: _quality,
    ReportKind.PARTITIONS: _partitions,
    **{job.report: partial(_job, job) for job in map(job_of, [*JOBS, Renaming.kind])},
}


@pytest.fixture
def linked(dag_bag: DagBag) -> dict[ReportKind, list[tuple[Any, ReportLink]]]:
    """Return the tasks of all DAGs that have a link to a report, by what it is about."""
    found: dict[ReportKind, list[tuple[Any, ReportLink]]] = {kind: [] for kind in WRITERS}
    for dag in dag_bag.dags.values():
        for task in dag.tasks:
            for link in getattr(task, "operator_extra_links", ()):
                if isinstance(link, ReportLink):
                    found[link.kind].append((task, link))
    report = ReportJobOperator(task_id="report", job=Renaming.kind, maintenance_run_id=RUN)
    stand_in = SimpleNamespace(dag_id=Renaming.kind, task_id=report.task_id)
    found[Renaming.report] += [(stand_in, ReportLink(Renaming.report))]
    assert [link.name for link in report.operator_extra_links] == ["Report of the renaming of keys"]
    return found


def get(app: FastAPI, address: str) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://airflow", follow_redirects=True) as client:
            return await client.get(address)

    return asyncio.run(send())


@pytest.mark.parametrize("place", ["a disk", "an object store"])
@pytest.mark.parametrize("kind", list(WRITERS), ids=lambda kind: kind.name)
def test_link_of_a_task_leads_to_the_page_that_it_has_written(
    kind: ReportKind, place: str, linked: dict[ReportKind, list[tuple[Any, ReportLink]]], tmp_path: Path
) -> None:
    # Of fsspec: whatever Airflow has a provider for takes the same calls.
    folder = tmp_path / "reports" if place == "a disk" else f"memory://bucket/{tmp_path.name}/{kind.name}"
    settings = AirflowSettings(home=tmp_path / "home", reports_dir=folder)
    reports = settings.reports
    assert isinstance(reports, Path if place == "a disk" else ObjectStoragePath)
    app = FastAPI()
    app.mount(PREFIX, pages(settings=settings, guards=OPEN))
    assert get(app, f"{PREFIX}/reports").status_code == 200
    files = WRITERS[kind](reports)
    assert linked[kind], f"no DAG links to a report about {kind.name}"

    for task, link in linked[kind]:
        remember(reports, dag_id=task.dag_id, run_id=RUN_ID, files=files)
        key = SimpleNamespace(dag_id=task.dag_id, run_id=RUN_ID, task_id=task.task_id)
        answer = get(app, link.get_link(task, ti_key=cast("TaskInstanceKey", key)))

        assert link.name == kind.words
        assert (answer.status_code, answer.content) == (200, files.html.read_bytes())
    listed = get(app, f"{PREFIX}/reports").text
    assert f"{PREFIX}/reports/{files.html.name}" in listed
    assert f"{PREFIX}/reports/{files.json.name}" in listed
    assert str(folder) in listed


@pytest.mark.parametrize("kind", PARTITIONS)
def test_report_of_a_run_of_partitions_is_listed_and_served(kind: str, tmp_path: Path) -> None:
    settings = AirflowSettings(home=tmp_path / "home", reports_dir=tmp_path)
    run = UnrecordedRuns().save_plan(
        kind=kind,
        parameters={},
        plan={"purpose": kind, "table": "public.readings", "steps": [{"kind": "detach"} | STEP]},
    )
    tell = run.of.report
    assert tell is not None
    files = tell(SimpleNamespace(), run, now_ms=NOW_MS).write(settings.reports)
    app = FastAPI()
    app.mount(PREFIX, pages(settings=settings, guards=OPEN))

    served = get(app, f"{PREFIX}/reports/{files.html.name}")

    assert (served.status_code, served.content) == (200, files.html.read_bytes())
    assert get(app, f"{PREFIX}/reports/{files.json.name}").json()["kind"] == kind
    assert f"{PREFIX}/reports/{files.html.name}" in get(app, f"{PREFIX}/reports").text


def test_report_under_a_name_that_no_page_would_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a report cannot be about 'night'"):
        write_files(
            tmp_path, kind=ReportKind.QUALITY, subject_id="night", at_ms=NOW_MS, text="{}", page=lambda name, digest: ""
        )
