"""Shows runs of every job with their progress, and forms that pause, resume or throttle them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from queuekeeper import audit
from queuekeeper.airflow.plugin.forms import read_body
from queuekeeper.airflow.plugin.security import Guards, check_origin
from queuekeeper.airflow.plugin.site import PLAIN_HEADERS, Site, check_id
from queuekeeper.airflow.plugin.stores import Stores, panel, together
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs.common import UndoRetention
from queuekeeper.jobs.control import chosen, rate_words, set_pace, set_waiting
from queuekeeper.jobs.registry import check_kind, kind_of, kinds
from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, RunProgress, Runs, RunState
from queuekeeper.jobs.undo import kept_undo_files
from queuekeeper.postgres import Connection
from queuekeeper.report.figures import number

_LISTED = 50


def routes(
    site: Site, stores: Stores, guards: Guards, report_of: Callable[[str], str | None], undo: Callable[[], Path]
) -> APIRouter:
    """Return the routes of runs that can be paused, resumed and throttled.

    :param report_of: returns the name of the latest report of a run, if there is one.
    :param undo: opens the folder of undo files.
    """
    router = APIRouter()

    @router.get("/runs")
    def listed(kind: str = "", state: str = "") -> Response:
        if kind:
            _check_kind(kind)
        wanted = _state(state)
        found, counts = together(
            lambda: stores.from_postgres(lambda connection: _newest(connection, kind or None, wanted)),
            lambda: stores.from_postgres(lambda connection: Runs(connection).count_by_state(kind=kind or None)),
        )
        return site.page(
            "runs.html.j2",
            section="runs",
            kinds=kinds(),
            asked={"kind": kind, "state": state},
            counts=counts.value or {},
            listed=_LISTED,
            found=found,
            rates={run.maintenance_run_id: rate_words(run) for run, _ in found.value or ()},
        )

    @router.get("/runs/{kind}/{run_id}")
    def one(kind: str, run_id: str) -> Response:
        _check_kind(kind)
        if kind_of(kind).page:
            return RedirectResponse(_address(kind, run_id), headers=PLAIN_HEADERS)
        with stores.postgres() as connection:
            run = _named(connection, kind, run_id)
            runs = MaintenanceRuns(connection)
            progress, whole = runs.progress(run_id), runs.progress_of([run_id]).get(run_id)
            airflow_run = audit.latest_run_of(connection, run_id)
        return site.page(
            "run.html.j2",
            section="runs",
            run=run,
            airflow_run=airflow_run,
            progress=progress,
            progress_words=progress_words(run, whole),
            rate=rate_words(run),
            report=panel(lambda: report_of(run_id)),
            undo_files=panel(lambda: kept_undo_files(undo(), run_id=run_id)),
            undo_days=UndoRetention().undo_retention_days,
        )

    @router.post("/runs/{kind}/{run_id}/throttle", dependencies=[Depends(guards.steer)])
    async def throttle(request: Request, kind: str, run_id: str, actor: str = Depends(guards.user)) -> Response:
        check_origin(request)
        per_s = (await read_body(request)).get("per_s")
        if per_s is None:
            raise HTTPException(422, "Give the rate in the field per_s; an empty field lifts the throttle.")
        return await _told(kind, run_id, lambda runs: set_pace(runs, run_id, per_s.strip() or "none", actor=actor))

    @router.post("/runs/{kind}/{run_id}/pause", dependencies=[Depends(guards.steer)])
    async def pause(request: Request, kind: str, run_id: str, actor: str = Depends(guards.user)) -> Response:
        check_origin(request)
        paused = (await read_body(request)).get("paused", "")
        if paused not in ("yes", "no"):
            raise HTTPException(422, "Say whether the run is to be paused: yes or no.")
        return await _told(kind, run_id, lambda runs: set_waiting(runs, run_id, paused == "yes", actor=actor))

    async def _told(kind: str, run_id: str, tell: Callable[[Runs], object]) -> Response:
        def work() -> None:
            with stores.postgres() as connection:
                _named(connection, kind, run_id)
                try:
                    tell(Runs(connection))
                except RefusedError as error:
                    # The run has ended since its page was loaded.
                    raise HTTPException(409, str(error)) from None
                except UsageError as error:
                    # The run exists: the order is not valid.
                    raise HTTPException(422, str(error)) from None

        await asyncio.to_thread(work)
        return RedirectResponse(_address(kind, run_id), status_code=303, headers=PLAIN_HEADERS)

    def _address(kind: str, run_id: str) -> str:
        return f"{site.base}/{kind_of(kind).page.format(run_id=run_id) or f'runs/{kind}/{run_id}'}"

    return router


def progress_words(run: MaintenanceRun, progress: RunProgress | None) -> str:
    """Return the progress of a run, as a sentence.

    :param progress: ``None`` when no part of the run has begun.
    """
    if progress is None:
        return "No share has begun."
    planned = run.plan.get("shares")
    shares = len(planned) if isinstance(planned, list) else progress.shares
    return f"Shares done: {number(progress.done)} of {number(shares)}. Entries looked at: {number(progress.scanned)}."


def _newest(connection: Connection, kind: str | None, state: RunState | None) -> list[tuple[MaintenanceRun, str]]:
    runs = Runs(connection)
    found = runs.newest(kind=kind, state=state, limit=_LISTED)
    told = runs.progress_of([run.maintenance_run_id for run in found if not run.of.page])
    return [
        (run, "On its page." if run.of.page else progress_words(run, told.get(run.maintenance_run_id))) for run in found
    ]


def _state(name: str) -> RunState | None:
    try:
        return RunState(name) if name else None
    except ValueError:
        raise HTTPException(404, f"A run is {', '.join(RunState)}, never {name!r}.") from None


def _check_kind(kind: str) -> None:
    try:
        check_kind(kind)
    except UsageError as error:
        raise HTTPException(404, str(error)) from None


def _named(connection: Connection, kind: str, run_id: str) -> MaintenanceRun:
    """Return the run of an address, if it is of the kind for which the user's rights were checked."""
    check_id("run", run_id)
    try:
        return Runs(connection).load(chosen(Runs(connection), run_id, kind))
    except UsageError as error:
        raise HTTPException(404, str(error)) from None
