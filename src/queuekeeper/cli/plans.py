"""What commands show and do of a migration's plan: its counts, its ledger, its report, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuekeeper.audit import record_answer
from queuekeeper.cli import context
from queuekeeper.cli.command import OnServers
from queuekeeper.cli.output import Shown, cell, instant, pairs, picked, plain, screen, table
from queuekeeper.clock import system_clock
from queuekeeper.migration.ledger.model import LedgerRow, MigrationPlan, unaccounted
from queuekeeper.migration.offline.undo import drop_imports
from queuekeeper.migration.online import clients
from queuekeeper.migration.report.model import Verdict

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def plan_facts(found: MigrationPlan) -> dict[str, Any]:
    """Return what JSON says of a plan."""
    names = ("plan_id", "state", "state_reason", "parameters", "source_fingerprint", "code_version", "as_of_ms")
    return picked(found, *names) | {
        "cohorts": len(found.cohorts),
        "chosen": list(found.chosen),
        "totals": found.totals(),
        "quarantined_by_reason": found.quarantined_by_reason(),
    }


def plan_parts(found: MigrationPlan) -> Iterator[Any]:
    """Yield what a person sees of a plan."""
    totals = found.totals()
    columns = {"sessions": "sessions", "messages": "messages", "to copy": "to_copy", "expired": "expired"}
    columns |= {"over the limit": "trimmed", "quarantined": "quarantined"}
    facts = {
        "source read": instant(found.as_of_ms),
        "cohorts": f"{len(found.chosen):,} of {len(found.cohorts):,} chosen",
        **{words: totals[name] for words, name in columns.items()},
        "memory forecast": f"{totals['forecast_bytes'] / 1_048_576:,.1f} MiB",
    }
    yield pairs(f"Plan {found.plan_id}", facts)
    reasons = found.quarantined_by_reason()
    if reasons:
        yield table("Quarantined rows", ("reason", "rows"), reasons.items())


def verdict_words(*, balanced: bool, words: str | None = None) -> Text:
    """Return the line that says whether a ledger balances."""
    text = words or ("balanced" if balanced else "not balanced")
    return cell(f"{'✓' if balanced else '✗'} {text.capitalize()}", style="bold green" if balanced else "bold red")


def ledger_table(rows: tuple[LedgerRow, ...]) -> Table:
    """Return where the rows of all cohorts went."""
    names = ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined")
    totals = [sum(getattr(row, name) for row in rows) for name in names]
    differences = sum(row.differences for row in rows)
    columns = (*(name.replace("_", " ") for name in names), "unaccounted", "differences")
    return table(f"Ledger of {len(rows):,} cohorts", columns, [(*totals, unaccounted(rows), differences)])


def report_of(call: OnServers, plan_id: str, *, directory: Path | None, show_client_ids: bool = False) -> Shown:
    """Write the report of a migration, note where it is, and return what it says; failed where it does not balance."""
    from queuekeeper.migration.report.gather import build_report, write_report

    built = build_report(
        call.ledger, call.client, plan_id=plan_id, now_ms=system_clock(), show_client_ids=show_client_ids
    )
    files = write_report(built, context.report_folder(directory))
    call.ledger.save_report(plan_id, html_path=str(files.html), json_path=str(files.json), sha256=files.sha256)
    verdict, failed = built.verdict, f"the ledger of plan {plan_id} does not balance: open {files.html}"
    facts = {
        "plan_id": plan_id,
        "verdict": verdict.value,
        "explanation": built.explanation,
        "totals": plain(built.totals),
    }
    return Shown(
        plain(files) | facts,
        lambda: [
            verdict_words(balanced=verdict is Verdict.BALANCED, words=verdict.value),
            cell(built.explanation),
            pairs("Files", {"HTML": files.html, "JSON": files.json, "SHA-256 of the HTML": files.sha256}),
        ],
        failed=failed if verdict is Verdict.NOT_BALANCED else None,
    )


def take_plan_back(call: OnServers, plan_id: str, *, cohorts: str = "") -> Shown:
    """Ask, take what a plan has imported out of Redis, and put answer and deed on record."""
    from queuekeeper.migration.preflight import check_same_target

    missing = "undo finds the sessions by the source's tables: restore them first"
    ledger, client = call.ledger, call.client
    found = ledger.load_plan(plan_id)
    wanted = found.choose(cohorts)
    check_same_target(client, found)
    if not call.dry_run:
        question = f"What plan {plan_id} has imported into {len(wanted):,} cohorts will be removed from Redis."
        # A no to the way back is none to the plan.
        note = partial(record_answer, call.connection, subject=plan_id, kind=ledger.load(plan_id).kind)
        call.confirm(question, note=note)
    with (
        ledger.copy_lock(plan_id, wanted),
        context.postgres_connection(call.postgres_url, autocommit=False) as reader,
        screen(stderr=True).status("Looking at sessions"),
    ):
        imported = clients.clients_of(reader, found, wanted, missing=missing)
        prefix = found.parameters.key_prefix
        dropped = drop_imports(client, imported, plan_id=plan_id, prefix=prefix, dry_run=call.dry_run)
        if not call.dry_run:
            ledger.unwind(plan_id, wanted)
            ledger.note_undo(plan_id, plain(dropped), actor=context.person())
    return Shown(dropped, "Undo, nothing was removed" if call.dry_run else "Undo")
