"""Shows migrations: all plans, one plan with cohorts, question and pace, and the differences of the stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup

from queuekeeper.airflow.plugin.forms import read_body
from queuekeeper.airflow.plugin.rest import RestApi, detail
from queuekeeper.airflow.plugin.security import MIGRATION_DAG, Guards, check_origin
from queuekeeper.airflow.plugin.site import PLAIN_HEADERS, Site, check_id, data
from queuekeeper.airflow.plugin.stores import Stores
from queuekeeper.approvals import APPROVAL_TASK, APPROVE, REJECT
from queuekeeper.errors import UsageError
from queuekeeper.identity import client_hash
from queuekeeper.jobs.store import MaintenanceRun
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantineCount, StoredReport
from queuekeeper.migration.ledger.model import STEP_NOUNS, CohortPlan, Difference, LedgerRow, PlanState
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.ledger.status import (
    MigrationStatus,
    StepStatus,
    TroubledCohort,
    cohort_differences,
    cohorts_to_look_at,
    list_plans,
    migration_status,
)
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.migration.online.status import OnlineStatus, online_status
from queuekeeper.migration.report.gather import guide, replay_command, summarise_throughput, total_line
from queuekeeper.migration.report.model import LedgerLine
from queuekeeper.migration.report.page import DIFFERENCE_MEANINGS, FATE_MEANINGS, FATES, STATE_MARKS, throughput_charts
from queuekeeper.postgres import Connection
from queuekeeper.report.figures import number
from queuekeeper.wording import number_of

T = TypeVar("T")

COMMIT_TASK = "approve_commit"
_LETTERS = {"planned": "p", "copying": "c", "copied": "d", "verified": "v", "failed": "f", "left out": "x"}
_PARKED = ("awaiting_input", "deferred")
_CELLS_PER_LIST = 256
_LEFT_OUT = "left out"
_SHOWN = 200

# Drawing a chart takes a tenth of a second, and past figures are the same for every reader.
_throughput_charts = lru_cache(maxsize=32)(throughput_charts)


@dataclass(frozen=True, kw_only=True)
class PlanPage:
    """Contents of the page of a plan.

    :param online: owners of the clients, when devices are connected; ``None`` with the broker stopped.
    :param throughput: noun of a step -> its chart, wide and narrow.
    """

    run: MaintenanceRun
    status: MigrationStatus
    online: OnlineStatus | None
    rows: int
    totals: LedgerLine | None
    quarantine: list[QuarantineCount]
    differences: Mapping[str, int]
    troubled: list[TroubledCohort]
    reports: list[StoredReport]
    throughput: Sequence[tuple[str, tuple[Markup, Markup]]]


@dataclass(frozen=True, kw_only=True)
class CohortPage:
    """Contents of the page of a cohort.

    :param clients: keyed hash of a client id -> its differences.
    """

    cohort: CohortPlan
    state: str
    ledger: LedgerRow | None
    clients: Mapping[str, list[Difference]]


def routes(site: Site, stores: Stores, guards: Guards, airflow: RestApi, hash_key: Callable[[], bytes]) -> APIRouter:
    """Return the routes of migrations.

    :param hash_key: returns the key of client hashes.
    """
    router = APIRouter()

    @router.get("/migration")
    def plans() -> Response:
        return site.page("plans.html.j2", section="migration", plans=stores.from_postgres(list_plans))

    @router.get("/migration/{plan_id}")
    async def plan(request: Request, plan_id: str) -> Response:
        check_id("plan", plan_id)
        found = await asyncio.to_thread(_opened, stores, lambda connection: _plan_page(connection, plan_id, site))
        question = await _question(airflow, request, found.status, found.online)
        status = found.status
        mode = Mode.OFFLINE if found.online is None else Mode.ONLINE
        return site.page(
            "plan.html.j2",
            section="migration",
            plan_id=plan_id,
            found=found,
            status=status,
            online=found.online,
            held=held_words(status, found.online),
            online_texts={} if found.online is None else online_texts(found.online),
            live=not status.is_final or (found.online is not None and not found.online.is_final),
            question=question,
            options=(APPROVE, REJECT),
            board=board(status),
            letters=letters(status),
            states=STATE_MARKS,
            counts=status.counts(),
            # With devices connected, each client is compared by itself, and the page shows its progress by owners.
            steps=[
                (step, step_words(step)) for step in ((status.copy,) if found.online else (status.copy, status.verify))
            ],
            fates=[] if found.totals is None else [(name, getattr(found.totals, name)) for name in FATES],
            fate_meanings=FATE_MEANINGS,
            difference_meanings=DIFFERENCE_MEANINGS,
            guides={line.reason: guide(line.reason, mode=mode) for line in found.quarantine},
            commands={line.reason: replay_command(plan_id, line.reason, mode=mode) for line in found.quarantine},
            dag_id=MIGRATION_DAG,
        )

    @router.get("/migration/{plan_id}/data")
    async def progress(request: Request, plan_id: str) -> Response:
        check_id("plan", plan_id)
        status, online = await asyncio.to_thread(
            _opened,
            stores,
            lambda connection: (
                migration_status(connection, plan_id, now_ms=site.clock()),
                online_status(connection, plan_id),
            ),
        )
        may_ask = status.state in (PlanState.PLANNED, PlanState.REJECTED) or (
            online is not None and OnlineState.SOAKING in online.states
        )
        asked = may_ask and await _question(airflow, request, status, online) is not None
        return data(live(status, online) | {"asked": asked})

    @router.post("/migration/{plan_id}/answer", dependencies=[Depends(guards.run_migrations)])
    async def answer(request: Request, plan_id: str) -> Response:
        check_origin(request)
        check_id("plan", plan_id)
        form = await read_body(request)
        run_id, task_id, option = form.get("run_id", ""), form.get("task_id", APPROVAL_TASK), form.get("option", "")
        if option not in (APPROVE, REJECT) or task_id not in (APPROVAL_TASK, COMMIT_TASK):
            raise HTTPException(422, f"Answer {APPROVE} or {REJECT}.")
        asked = await asyncio.to_thread(_opened, stores, lambda connection: _plan_of_run(connection, run_id))
        if asked != plan_id:
            # If the run has planned again since the page was made, nobody has seen its question.
            raise HTTPException(
                409, f"The run now asks about another plan than {plan_id}: open the page of its new plan."
            )
        answered = await airflow.answer(request, MIGRATION_DAG, run_id, task_id, options=[option])
        if not answered.is_success:
            raise HTTPException(answered.status_code, detail(answered))
        return _back(site, plan_id)

    @router.get("/migration/{plan_id}/cohorts/{cohort}")
    def cohort_page(plan_id: str, cohort: int) -> Response:
        check_id("plan", plan_id)
        found = _opened(stores, lambda connection: _cohort_page(connection, plan_id, cohort, hash_key()))
        return site.page(
            "cohort.html.j2",
            section="migration",
            plan_id=plan_id,
            found=found,
            mark=STATE_MARKS[found.state],
            fates=[] if found.ledger is None else [(name, getattr(found.ledger, name)) for name in FATES],
            fate_meanings=FATE_MEANINGS,
        )

    @router.get("/migration/{plan_id}/cohorts/{cohort}/clients/{name}")
    def client_page(plan_id: str, cohort: int, name: str) -> Response:
        check_id("plan", plan_id)
        found = _opened(stores, lambda connection: _cohort_page(connection, plan_id, cohort, hash_key()))
        if name not in found.clients:
            raise HTTPException(404, "No difference is on record for a client of this name in this cohort.")
        return site.page(
            "client.html.j2",
            section="migration",
            plan_id=plan_id,
            cohort=found.cohort,
            name=name,
            differences=found.clients[name],
            meanings=DIFFERENCE_MEANINGS,
        )

    return router


def _opened(stores: Stores, load: Callable[[Connection], T]) -> T:
    with stores.postgres() as connection:
        try:
            return load(connection)
        except UsageError as error:
            raise HTTPException(404, str(error)) from None


def _back(site: Site, plan_id: str) -> Response:
    return RedirectResponse(f"{site.base}/migration/{plan_id}", status_code=303, headers=PLAIN_HEADERS)


def _plan_of_run(connection: Connection, run_id: str) -> str:
    return MigrationLedger(connection).plan_of_run(run_id)


async def _question(
    airflow: RestApi, request: Request, status: MigrationStatus, online: OnlineStatus | None
) -> dict[str, Any] | None:
    """Return the question of the plan's run, with its task, while it waits for an answer."""
    task_id = COMMIT_TASK if online is not None and OnlineState.SOAKING in online.states else APPROVAL_TASK
    if status.run_id is None or (status.is_final and task_id == APPROVAL_TASK):
        return None
    task = await airflow.task(request, MIGRATION_DAG, status.run_id, task_id)
    if not task.is_success or task.json().get("state") not in _PARKED:
        return None
    asked = await airflow.question(request, MIGRATION_DAG, status.run_id, task_id)
    if not asked.is_success:
        return None
    found: dict[str, Any] = asked.json() | {"task_id": task_id}
    return None if found.get("response_received") else found


def _plan_page(connection: Connection, plan_id: str, site: Site) -> PlanPage:
    ledger = MigrationLedger(connection)
    status = migration_status(connection, plan_id, now_ms=site.clock())
    rows = ledger.ledger(plan_id)
    throughput = []
    for step in (status.copy, status.verify):
        summary = summarise_throughput(step.step, ledger.throughput(plan_id, step.step))
        if summary is not None:
            throughput.append((STEP_NOUNS[step.step], _throughput_charts(summary)))
    return PlanPage(
        run=ledger.load(plan_id),
        status=status,
        online=online_status(connection, plan_id),
        rows=len(rows),
        totals=total_line(rows) if rows else None,
        quarantine=ledger.quarantine_counts(plan_id),
        differences=ledger.difference_counts(plan_id),
        troubled=cohorts_to_look_at(connection, plan_id, limit=_SHOWN),
        reports=ledger.reports(plan_id)[:10],
        throughput=throughput,
    )


def _cohort_page(connection: Connection, plan_id: str, cohort: int, hash_key: bytes) -> CohortPage:
    ledger = MigrationLedger(connection)
    plan = ledger.load_plan(plan_id)
    found = next((each for each in plan.cohorts if each.cohort == cohort), None)
    if found is None:
        raise HTTPException(404, f"Plan {plan_id} has no cohort {cohort}: it has {len(plan.cohorts):,}, from 0.")
    clients: dict[str, list[Difference]] = {}
    for each in cohort_differences(connection, plan_id, cohort):
        clients.setdefault(client_hash(each.client_id, key=hash_key), []).append(each)
    chosen = cohort in plan.chosen
    return CohortPage(
        cohort=found,
        state=str(ledger.cohort_states(plan_id)[cohort]) if chosen else _LEFT_OUT,
        ledger=next((row for row in ledger.ledger(plan_id) if row.cohort == cohort), None),
        clients=clients,
    )


def states(status: MigrationStatus) -> Iterable[tuple[int, str]]:
    """Return each cohort with its state, without cohorts that the plan does not copy."""
    chosen = set(status.chosen)
    return [(cohort, str(state) if cohort in chosen else _LEFT_OUT) for cohort, state in status.cohorts.items()]


def letters(status: MigrationStatus) -> str:
    """Return the state of every cohort as a letter, which is fast to send and to compare."""
    return "".join(_LETTERS[state] for _, state in states(status))


def board(status: MigrationStatus) -> Markup:
    """Return the cells of the board; a template would take a second for ten thousand."""
    # Only our own numbers and words: nothing to escape. Arrow keys move from cell to cell, so Tab stops at the first.
    cells = [
        Markup(  # noqa: S704
            f'<li><a class="cell {_LETTERS[state]}" href="{status.plan_id}/cohorts/{cohort}"'
            f'{"" if at == 0 else " tabindex=-1"} aria-label="Cohort {cohort}: {state}">{cohort} '
            f"<b>{STATE_MARKS[state]}</b></a></li>"
        )
        for at, (cohort, state) in enumerate(states(status))
    ]
    # Browsers skip the layout of parts out of sight, which is far cheaper to decide for lists than for single cells.
    return Markup("").join(
        Markup("<ol>{}</ol>").format(Markup("").join(cells[start : start + _CELLS_PER_LIST]))
        for start in range(0, len(cells), _CELLS_PER_LIST)
    )


def step_words(step: StepStatus) -> str:
    """Return the progress of a step, in words with units."""
    share = f"{100 * step.done // step.total} %" if step.total else "nothing to do"
    speed = "" if step.messages_per_s is None else f", {number(step.messages_per_s)} messages/s"
    return f"{number(step.done)} of {number_of(step.total, 'message')} ({share}){speed}; {step.left_words()}"


def online_texts(online: OnlineStatus) -> dict[str, str]:
    """Return the owners of the clients as texts, by the id of the element in the page."""
    cohorts = ", ".join(f"{number(count)} {str(state).replace('_', ' ')}" for state, count in online.states.items())
    return {
        "online-cohorts": cohorts,
        "online-postgres": number(online.on_postgres),
        "online-redis": number(online.on_redis) + (f" and {number(online.packed)} packed" if online.packed else ""),
        "online-fenced": number(online.fenced),
        "online-held": online.held_back or "nothing",
    }


def held_words(status: MigrationStatus, online: OnlineStatus | None) -> str:
    """Return what determines the speed; with devices connected, behind the copy, which step comes next."""
    if online is None or (set(online.states) <= {OnlineState.COPYING} and not status.copy.is_done):
        return status.held_back
    return f"Next comes {online.ahead}." if online.ahead else ""


def live(status: MigrationStatus, online: OnlineStatus | None = None) -> dict[str, Any]:
    """Return the values that the page's script shows while a migration runs."""
    counts = status.counts()
    return {
        "texts": {
            "state": str(status.state),
            "held": held_words(status, online),
            "copy-words": step_words(status.copy),
            "verify-words": step_words(status.verify),
            **{f"count-{state}": number(count) for state, count in counts.items()},
            **({} if online is None else online_texts(online)),
        },
        "bars": {
            "copy-bar": [status.copy.done, max(1, status.copy.total)],
            "verify-bar": [status.verify.done, max(1, status.verify.total)],
        },
        "board": letters(status),
        "state": str(status.state),
        "at_ms": status.as_of_ms,
    }
