"""``queuekeeper events install``, ``uninstall`` and ``status``: the event broker's schema."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import pairs, plain, show, table
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def install(
    *,
    print_script: Annotated[
        bool, typer.Option("--print", help="Write the SQL of a new installation to stdout instead, for psql -f.")
    ] = False,
    from_pgmb: Annotated[
        bool,
        typer.Option(
            "--from-pgmb",
            help="Take over the PGMB that is installed in this database, with everything in it; it is kept as schema "
            "pgmb_original. Stop its clients that poll or read first.",
        ),
    ] = False,
    redispatch_unmatched: Annotated[
        bool,
        typer.Option(
            "--redispatch-unmatched",
            help="With --from-pgmb: dispatch events again that PGMB has dispatched to nobody. After a crash of the "
            "server its list of undispatched events is empty, and these are among them.",
        ),
    ] = False,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Create schema pgmb, or bring it to this release's state. Safe to repeat, also while others use it.

    Example: `queuekeeper events install --from-pgmb --dry-run`
    """
    from queuekeeper.events import schema

    if not from_pgmb and (dry_run or redispatch_unmatched):
        raise UsageError("--dry-run and --redispatch-unmatched go with --from-pgmb")
    if print_script:
        if as_json or from_pgmb:
            raise UsageError("--print writes SQL: leave out --json and --from-pgmb")
        sys.stdout.write(schema.script())
        return
    if from_pgmb:
        _take_over(postgres_url, dry_run=dry_run, redispatch_unmatched=redispatch_unmatched, yes=yes, as_json=as_json)
        return
    with context.postgres_connection(postgres_url) as connection:
        report = schema.install(connection)

    def pretty(out: Console) -> None:
        for name in report.applied:
            out.print(f"applied {name}")
        out.print(f"Schema pgmb is {'created' if report.created else 'there'}, at version {report.version}.")

    show(report, as_json=as_json, pretty=pretty)


def _take_over(
    postgres_url: str | None, *, dry_run: bool, redispatch_unmatched: bool, yes: bool, as_json: bool
) -> None:
    from queuekeeper.events.takeover import take_over

    with context.postgres_connection(postgres_url) as connection:
        if not dry_run:
            context.confirm(
                "PGMB will be put aside as schema pgmb_original and its content taken over; publishers wait meanwhile. "
                "Take it over?",
                yes=yes,
                as_json=as_json,
            )
        report = take_over(connection, dry_run=dry_run, redispatch_unmatched=redispatch_unmatched)

    def pretty(out: Console) -> None:
        rows = [
            (
                line.subject,
                f"{line.seen:,}",
                ", ".join(f"{number:,} {fate}" for fate, number in line.fates.items()) or "none",
                f"{line.unaccounted:,}",
            )
            for line in report.lines
        ]
        title = "Dry run" if report.dry_run else "Taken over"
        out.print(table(title, ("what", "seen", "what becomes of it", "unaccounted"), rows))
        if report.unmatched and not redispatch_unmatched:
            out.print(
                f"\n{report.unmatched:,} events went to nobody: no condition held, or a crash emptied PGMB's list. "
                "--redispatch-unmatched dispatches them again."
            )
        for role in report.roles:
            out.print(f"\nRole {role} had rights that it needs anew: docs/events.md, Who may do what.")
        for work in report.to_stop:
            out.print(f"\nStop before: {work}.")
        if report.dry_run:
            out.print("\nNothing was changed. Next: queuekeeper events install --from-pgmb")
        else:
            out.print(f"\nPGMB is kept as schema {report.set_aside}. Next: queuekeeper events dispatch")

    show(
        plain(report) | {"unaccounted": sum(abs(line.unaccounted) for line in report.lines)},
        as_json=as_json,
        pretty=pretty,
    )


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
