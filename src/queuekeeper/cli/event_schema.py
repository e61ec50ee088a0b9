"""``queuekeeper events install``, ``uninstall`` and ``status``: the event broker's schema."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import pairs, plain, show
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def install(
    *,
    print_script: Annotated[
        bool, typer.Option("--print", help="Write the SQL of a new installation to stdout instead, for psql -f.")
    ] = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Create schema pgmb, or bring it to this release's state. Safe to repeat, also while others use it.

    Example: `queuekeeper events install --print > pgmb.sql`
    """
    from queuekeeper.events import schema

    if print_script:
        if as_json:
            raise UsageError("--print writes SQL: leave out --json")
        sys.stdout.write(schema.script())
        return
    with context.postgres_connection(postgres_url) as connection:
        report = schema.install(connection)

    def pretty(out: Console) -> None:
        for name in report.applied:
            out.print(f"applied {name}")
        out.print(f"Schema pgmb is {'created' if report.created else 'there'}, at version {report.version}.")

    show(report, as_json=as_json, pretty=pretty)


def uninstall(
    *, postgres_url: context.PostgresUrl = None, yes: context.Yes = False, as_json: context.AsJson = False
) -> None:
    """Remove schema pgmb with everything in it.

    Example: `queuekeeper events uninstall --yes`
    """
    from queuekeeper.events import schema

    with context.postgres_connection(postgres_url) as connection:
        found = schema.status(connection).installed
        if found:
            context.confirm(
                "Schema pgmb will be removed with all events, subscriptions and dead letters. Remove it?",
                yes=yes,
                as_json=as_json,
            )
            found = schema.uninstall(connection)
    show(
        {"removed": found},
        as_json=as_json,
        pretty=lambda out: out.print("Schema pgmb is removed." if found else "Schema pgmb was not there."),
    )


def status(*, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Tell what is installed, and how dispatching stands.

    Example: `queuekeeper events status`
    """
    from queuekeeper.events import schema

    with context.postgres_connection(postgres_url) as connection:
        found = schema.status(connection)
        dispatching = schema.dispatch_status(connection) if found.installed else None

    def pretty(out: Console) -> None:
        if not found.installed:
            out.print("Schema pgmb is not installed: queuekeeper events install")
            return
        out.print(pairs("Event broker", {"version": found.version, "pending": ", ".join(found.pending) or None}))
        if dispatching:
            rows = {name.replace("_", " "): value for name, value in plain(dispatching).items()}
            out.print(pairs("Dispatching", rows))

    show(
        plain(found) | {"dispatching": None if dispatching is None else plain(dispatching)},
        as_json=as_json,
        pretty=pretty,
    )
