"""What commands show of a migration's plan: its counts and its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from queuekeeper.cli.output import cell, instant, pairs, picked, table
from queuekeeper.migration.ledger.model import LedgerRow, MigrationPlan, unaccounted

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


def verdict_words(*, balanced: bool) -> Text:
    """Return the line that says whether a ledger balances."""
    return cell("✓ Balanced", style="bold green") if balanced else cell("✗ Not balanced", style="bold red")


def ledger_table(rows: tuple[LedgerRow, ...]) -> Table:
    """Return where the rows of all cohorts went."""
    names = ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined")
    totals = [sum(getattr(row, name) for row in rows) for name in names]
    differences = sum(row.differences for row in rows)
    columns = (*(name.replace("_", " ") for name in names), "unaccounted", "differences")
    return table(f"Ledger of {len(rows):,} cohorts", columns, [(*totals, unaccounted(rows), differences)])
