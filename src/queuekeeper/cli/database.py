"""``queuekeeper database``: the control schema."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import show

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Keep the control schema `queuekeeper` in PostgreSQL.")


@app.callback()
def _group() -> None:
    """Keep the control schema `queuekeeper` in PostgreSQL."""


@app.command()
def migrate(*, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Bring the control schema to this release's state. Safe to repeat.

    Example: `queuekeeper database migrate`
    """
    from queuekeeper.postgres import migrate as apply_migrations

    with context.postgres_connection(postgres_url) as connection:
        report = apply_migrations(connection)

    def pretty(out: Console) -> None:
        for name in report.applied:
            out.print(f"applied {name}")
        out.print(f"Schema queuekeeper is at version {report.version}.")

    show(report, as_json=as_json, pretty=pretty)
