"""``queuekeeper audit``: read the record of who did what, and prove that it is whole."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from queuekeeper.audit import AuditFilter, latest, read_chain, verify_chain
from queuekeeper.audit import export as lines
from queuekeeper.cli.command import OnPostgres, OutOfPostgres, command, group
from queuekeeper.cli.output import Columns, Shown, cell, listing
from queuekeeper.wording import number_of

app = group()


@command(app, "list")
def list_entries(
    call: OnPostgres,
    *,
    actor: str | None = None,
    subject: str | None = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
) -> Shown:
    """List entries, the latest first.

    Example: `queuekeeper audit list --actor admin`

    :param actor: Show only what this person did.
    :param subject: Show only entries about this plan, run or client hash.
    :param limit: Number of entries to show, newest first.
    """
    entries = latest(call.connection, wanted=AuditFilter(actor=actor, subject=subject), limit=limit)
    columns: Columns = {"entry": "seq", "when": "at", "who": "actor", "what": "action", "about": "subject"}
    columns = {**columns, "effect": lambda entry: "; ".join(f"{name}: {value}" for name, value in entry.effect_words)}
    return Shown({"entries": entries}, lambda: [listing("Audit", entries, columns)])


@command(app)
def verify(call: OnPostgres) -> Shown:
    """Check that no entry was changed, removed or put in between. The exit code is 1 when one was.

    Keep the hash of the last entry elsewhere: then nobody can cut the end off unseen.

    Example: `queuekeeper audit verify --json`
    """
    report = verify_chain(read_chain(call.connection))
    if report.is_whole:
        words = f"{number_of(report.entries, 'entry')}, and none was changed. Last hash: {report.head}"
    else:
        words = f"Entry {report.broken_at:,} does not fit: {report.problem}"
    return Shown(report, lambda: [cell(words)], failed=None if report.is_whole else "")


@command(app)
def export(call: OutOfPostgres) -> None:
    """Write all entries to stdout as JSON Lines, in order.

    Example: `queuekeeper audit export > audit.jsonl`
    """
    sys.stdout.writelines(lines(call.connection))
