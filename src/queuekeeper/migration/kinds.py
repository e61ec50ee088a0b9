"""Migrations, offline and online, as kinds of runs: their report, their undo, their throttle."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from queuekeeper.jobs.kinds import RunKind, Stores, Told
from queuekeeper.jobs.store import MaintenanceRun, RunState
from queuekeeper.migration.ledger.ledger import MIGRATIONS, MigrationLedger
from queuekeeper.migration.ledger.model import PlanState
from queuekeeper.report.files import ReportFiles
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.migration.offline.undo import DropReport


def undo(
    stores: Stores, run: MaintenanceRun, *, dry_run: bool, agree: Callable[[str], None], cohorts: str = ""
) -> DropReport:
    """Remove from Redis what a plan has imported; sessions used since stay.

    :param agree: asks a person for agreement before anything is removed.
    :param cohorts: only these cohorts; all of them when empty.
    """
    # A client of Redis takes a while, and who looks at a run needs none.
    from queuekeeper.migration.offline.undo import drop_imports  # noqa: PLC0415
    from queuekeeper.migration.online import clients  # noqa: PLC0415
    from queuekeeper.migration.preflight import check_same_target  # noqa: PLC0415

    ledger, plan_id = MigrationLedger(stores.connection), run.maintenance_run_id
    found = ledger.load_plan(plan_id)
    found.check_from_postgres(instead=f"queuekeeper online roll-back {plan_id}")
    wanted = found.choose(cohorts)
    check_same_target(stores.client, found)
    if not dry_run:
        agree(f"What plan {plan_id} has imported into {number_of(len(wanted), 'cohort')} will be removed from Redis.")
    missing = "undo finds the sessions by the source's tables: restore them first"
    with ledger.copy_lock(plan_id, wanted):
        with stores.connection.transaction():
            imported = clients.clients_of(stores.connection, found, wanted, missing=missing)
            dropped = drop_imports(
                stores.client, imported, plan_id=plan_id, prefix=found.parameters.key_prefix,
                layout=found.parameters.layout, dry_run=dry_run,
            )  # fmt: skip
        if not dry_run:
            ledger.unwind(plan_id, wanted)
    return dropped


def report(stores: Stores, run: MaintenanceRun, *, now_ms: int, show_client_ids: bool = False) -> Told:
    """Gather the result of a migration; the report is put on record when it is written.

    :param show_client_ids: name clients as they are instead of by hash.
    """
    from queuekeeper.migration.report.gather import build_report, write_report  # noqa: PLC0415 - with an extra
    from queuekeeper.migration.report.model import Verdict  # noqa: PLC0415

    ledger, plan_id = MigrationLedger(stores.connection), run.maintenance_run_id
    built = build_report(ledger, stores.client, plan_id=plan_id, now_ms=now_ms, show_client_ids=show_client_ids)

    def write(directory: Path) -> ReportFiles:
        files = write_report(built, directory)
        ledger.save_report(plan_id, html_path=str(files.html), json_path=str(files.json), sha256=files.sha256)
        return files

    verdict = built.verdict
    return Told(
        verdict=verdict.value,
        healthy=verdict is Verdict.BALANCED,
        lines=(built.explanation,),
        facts=built.summary(),
        write=write,
        failed=f"the ledger of plan {plan_id} does not balance" if verdict is Verdict.NOT_BALANCED else "",
    )


def _rolls_back(run: MaintenanceRun) -> str:
    run_id = run.maintenance_run_id
    return (
        f"Run {run_id} moves clients while devices are connected: `queuekeeper online roll-back {run_id}` "
        f"gives them back, `queuekeeper migrate undo {run_id}` removes copies that Redis does not own."
    )


def _goes_on(run: MaintenanceRun) -> str:
    return f"migrate {'verify' if run.plan['state'] == PlanState.COPIED else 'copy'} {run.maintenance_run_id}"


def _goes_on_online(run: MaintenanceRun) -> str:
    has_not_begun = run.state in (RunState.PLANNED, RunState.REJECTED)
    return f"online {'arm' if has_not_begun else 'status'} {run.maintenance_run_id}"


def _waits_for(run: MaintenanceRun, at_work: Collection[str]) -> str:
    is_copied = run.plan["state"] == PlanState.COPIED
    return "is copied and not verified" if is_copied and not any(each.startswith("verify") for each in at_work) else ""


SESSION_MIGRATION = RunKind(
    name="session_migration",
    dag="session_migration",
    noun="plan",
    command="migrate plan",
    go_on=_goes_on,
    waits_for=_waits_for,
    unit="messages",
    alike=MIGRATIONS,
    page="migration/{run_id}",
    looks_again=False,
    undo=undo,
    report=report,
    keeps_files=True,
)
# The throttle of an online migration counts clients per second, that of a copy messages per second.
ONLINE_MIGRATION = replace(
    SESSION_MIGRATION, name="online_migration", unit="clients", no_undo=_rolls_back, go_on=_goes_on_online,
    stands="has changed no cohort for {time}", waits_for=lambda *_: "",
)  # fmt: skip
