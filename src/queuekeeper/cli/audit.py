"""``queuekeeper audit``: who did what, on record."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import show, table

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Read the record of approvals, changes and looks at contents.")


@app.callback()
def _group() -> None:
    """Read the record of approvals, changes and looks at contents."""


@app.command("list")
def list_entries(
    *,
    actor: Annotated[str | None, typer.Option(help="Show only what this person did.")] = None,
    subject: Annotated[str | None, typer.Option(help="Show only entries about this plan, run or client hash.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of entries to show, newest first.")] = 50,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """List entries, the latest first.

    Example: `queuekeeper audit list --actor admin`
    """
    from queuekeeper.audit import AuditFilter, latest

    with context.postgres_connection(postgres_url) as connection:
        entries = latest(connection, wanted=AuditFilter(actor=actor, subject=subject), limit=limit)

    def pretty(out: Console) -> None:
        rows = [
            (entry.seq, f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.actor, str(entry.action), entry.subject, entry.effect)
            for entry in entries
        ]
        out.print(table("Audit", ("entry", "UTC", "who", "what", "about", "effect"), rows))

    show({"entries": entries}, as_json=as_json, pretty=pretty)


@app.command()
def verify(
    *,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Check that no entry was changed, removed or put in between. The exit code is 1 when one was.

    Keep the hash of the last entry elsewhere: then nobody can cut the end off unseen.

    Example: `queuekeeper audit verify --json`
    """
    from queuekeeper.audit import read_chain, verify_chain

    with context.postgres_connection(postgres_url) as connection:
        report = verify_chain(read_chain(connection))

    def pretty(out: Console) -> None:
        if report.is_whole:
            out.print(f"{report.entries:,} entries, and none was changed. Last hash: {report.head}", soft_wrap=True)
        else:
            out.print(f"Entry {report.broken_at:,} does not fit: {report.problem}", soft_wrap=True)

    show(report, as_json=as_json, pretty=pretty)
    if not report.is_whole:
        raise typer.Exit(1)


@app.command()
def export(*, postgres_url: context.PostgresUrl = None) -> None:
    """Write all entries to stdout as JSON Lines, in order.

    Example: `queuekeeper audit export > audit.jsonl`
    """
    from queuekeeper.audit import export as lines

    with context.postgres_connection(postgres_url) as connection:
        sys.stdout.writelines(lines(connection))
