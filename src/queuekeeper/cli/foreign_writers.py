"""``queuekeeper migrate trigger``: have the database refuse writers that do not ask who owns a session."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import plain, show, table

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.migration.foreign_writers import TriggersReport

app = typer.Typer(no_args_is_help=True, help="Refuse writers that do not ask who owns a session.")


@app.callback()
def _group() -> None:
    """Refuse writers that do not ask who owns a session."""


@app.command()
def install(
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Put triggers on the vendor's tables. Needed when writers other than Queuekeeper's stores are at work.

    Example: `queuekeeper migrate trigger install --dry-run`
    """
    from queuekeeper.migration import foreign_writers

    with context.postgres_connection(postgres_url) as connection:
        if not dry_run:
            context.confirm(
                "Triggers will be put on device_publish_msg and device_session_ctx; writers wait for that moment.",
                yes=yes,
                as_json=as_json,
            )
        _show(foreign_writers.install(connection, dry_run=dry_run), as_json=as_json)


@app.command()
def remove(
    *,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Take the triggers off the vendor's tables again.

    Example: `queuekeeper migrate trigger remove --yes`
    """
    from queuekeeper.migration import foreign_writers

    with context.postgres_connection(postgres_url) as connection:
        if not dry_run:
            moved = foreign_writers.state(connection).moved
            context.confirm(
                "Triggers will be taken off device_publish_msg and device_session_ctx: other writers may then change "
                f"the copies of {moved:,} sessions that are Redis's.",
                yes=yes,
                as_json=as_json,
            )
        _show(foreign_writers.remove(connection, dry_run=dry_run), as_json=as_json)


@app.command()
def status(*, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Tell whether the triggers are there.

    Example: `queuekeeper migrate trigger status --json`
    """
    from queuekeeper.migration import foreign_writers

    with context.postgres_connection(postgres_url) as connection:
        _show(foreign_writers.state(connection), as_json=as_json)


def _show(report: TriggersReport, *, as_json: bool) -> None:
    def pretty(out: Console) -> None:
        if report.dry_run:
            for each in report.statements:
                out.print(f"{each};", soft_wrap=True, markup=False, highlight=False)
            out.print()
        title = "Triggers, nothing was changed" if report.dry_run else "Triggers"
        rows = [(each.table, each.installed, each.enabled) for each in report.triggers]
        out.print(table(title, ("table", "installed", "fires"), rows))
        out.print(f"\n{report.moved:,} sessions are Redis's.")

    show(plain(report) | {"complete": report.complete}, as_json=as_json, pretty=pretty)
