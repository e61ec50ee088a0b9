"""``queuekeeper migrate trigger``: have the database refuse writers that do not ask who owns a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from queuekeeper.cli.command import PLANS, OnPostgres, command, group
from queuekeeper.cli.output import Shown, copied, listing
from queuekeeper.migration.online import foreign_writers
from queuekeeper.migration.online.foreign_writers import TriggersReport
from queuekeeper.wording import number_of

app = group("Refuse writers that do not ask who owns a session.")


@command(app, also=PLANS)
def install(call: OnPostgres) -> Shown:
    """Put triggers on TBMQ's tables. Needed when writers other than Queuekeeper's stores are at work.

    Example: `queuekeeper migrate trigger install --dry-run`
    """
    connection = call.connection
    if not call.dry_run:
        call.confirm("Triggers will be put on device_publish_msg and device_session_ctx; writers wait for that moment.")
    return _shown(foreign_writers.install(connection, dry_run=call.dry_run))


@command(app, also=PLANS)
def remove(call: OnPostgres) -> Shown:
    """Take the triggers off TBMQ's tables again.

    Example: `queuekeeper migrate trigger remove --yes`
    """
    connection = call.connection
    if not call.dry_run:
        moved = foreign_writers.state(connection).moved
        call.confirm(
            "Triggers will be taken off device_publish_msg and device_session_ctx: other writers may then change the "
            f"copies of {number_of(moved, 'session')} that Redis owns."
        )
    return _shown(foreign_writers.remove(connection, dry_run=call.dry_run))


@command(app)
def status(call: OnPostgres) -> Shown:
    """Tell whether the triggers are there.

    Example: `queuekeeper migrate trigger status --json`
    """
    return _shown(foreign_writers.state(call.connection))


def _shown(report: TriggersReport) -> Shown:
    def pretty() -> Iterator[Any]:
        if report.dry_run:
            yield from (copied(line) for each in report.statements for line in f"{each};".splitlines())
            yield ""
        title = "Triggers, nothing was changed" if report.dry_run else "Triggers"
        yield listing(title, report.triggers, {"table": "table", "installed": "installed", "fires": "enabled"})
        yield f"\nRedis owns {number_of(report.moved, 'session')}."

    return Shown(report, pretty)
