"""``queuekeeper events install``, ``uninstall`` and ``status``: the event broker's schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from queuekeeper.cli import events, work
from queuekeeper.cli.command import CONFIRMS, PLANS, OnPostgres, command
from queuekeeper.cli.output import Shown, parts, table
from queuekeeper.errors import UsageError
from queuekeeper.events import schema
from queuekeeper.events.takeover import TakeoverReport, take_over
from queuekeeper.facts import plain
from queuekeeper.wording import number_of

app = events.app


@command(app, also=PLANS)
def install(
    call: OnPostgres,
    *,
    print_script: Annotated[bool, typer.Option("--print")] = False,
    from_pgmb: bool = False,
    redispatch_unmatched: bool = False,
) -> Shown | None:
    """Create schema pgmb, or bring it to this release's state. Safe to repeat, also while others use it.

    Example: `queuekeeper events install --from-pgmb --dry-run`

    :param print_script: Write the SQL of a new installation to stdout instead, for psql -f.
    :param from_pgmb: Take over the PGMB that is installed in this database, with everything in it; it is kept as schema
        pgmb_original. Stop its clients that poll or read first.
    :param redispatch_unmatched: With --from-pgmb: dispatch events again that PGMB has dispatched to nobody. After a
        crash of the server its list of undispatched events is empty, and these are among them.
    """
    if not from_pgmb and (call.dry_run or redispatch_unmatched):
        raise UsageError("--dry-run and --redispatch-unmatched go with --from-pgmb")
    if print_script:
        if call.as_json or from_pgmb:
            raise UsageError("--print writes SQL: leave out --json and --from-pgmb")
        sys.stdout.write(schema.script())
        return None
    if from_pgmb:
        return _take_over(call, redispatch_unmatched=redispatch_unmatched)
    report = schema.install(call.connection)
    state = f"Schema pgmb is {'created' if report.created else 'there'}, at version {report.version}."
    return Shown(report, lambda: [*(f"applied {name}" for name in report.applied), state])


def _take_over(call: OnPostgres, *, redispatch_unmatched: bool) -> Shown:
    connection = call.connection
    if not call.dry_run:
        call.confirm(
            "PGMB will be put aside as schema pgmb_original and its content taken over; publishers wait meanwhile. "
            "Take it over?"
        )
    report = take_over(connection, dry_run=call.dry_run, redispatch_unmatched=redispatch_unmatched)
    facts = plain(report) | {"unaccounted": sum(abs(line.unaccounted) for line in report.lines)}
    return Shown(facts, lambda: _taken_over(report, redispatch_unmatched=redispatch_unmatched))


def _taken_over(report: TakeoverReport, *, redispatch_unmatched: bool) -> Iterator[Any]:
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
    yield table(title, ("what", "seen", "what becomes of it", "unaccounted"), rows)
    if report.unmatched and not redispatch_unmatched:
        yield (
            f"\n{number_of(report.unmatched, 'event')} went to nobody: no condition held, or a crash emptied PGMB's "
            "list. --redispatch-unmatched dispatches them again."
        )
    for role in report.roles:
        yield f"\nRole {role} had rights that it needs anew: docs/events.md, Who may do what."
    for each in report.to_stop:
        yield f"\nStop before: {each}."
    if report.dry_run:
        yield "\nNothing was changed. Next: queuekeeper events install --from-pgmb"
    else:
        yield f"\nPGMB is kept as schema {report.set_aside}. Next: queuekeeper events dispatch"


@command(app, also=CONFIRMS)
def uninstall(call: OnPostgres) -> Shown:
    """Remove schema pgmb with everything in it.

    Example: `queuekeeper events uninstall --yes`
    """
    found = schema.status(call.connection).installed
    if found:
        call.confirm("Schema pgmb will be removed with all events, subscriptions and dead letters. Remove it?")
        found = schema.uninstall(call.connection)
    return Shown({"removed": found}, lambda: ["Schema pgmb is removed." if found else "Schema pgmb was not there."])


@command(app)
def status(call: OnPostgres) -> Shown:
    """Tell what is installed, and how dispatching stands.

    Example: `queuekeeper events status`
    """
    found = schema.status(call.connection)
    facts = plain(found) | {"dispatching": schema.dispatch_status(call.connection) if found.installed else None}
    if not found.installed:
        return Shown(facts, lambda: ["Schema pgmb is not installed: queuekeeper events install"])
    return Shown(facts, lambda: parts("Event broker", facts | {"pending": ", ".join(found.pending) or None}))


command(app, "work")(work.events_work)
