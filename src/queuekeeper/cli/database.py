"""``queuekeeper database``: keep the control schema in PostgreSQL."""

from __future__ import annotations

from queuekeeper import schema_migrations
from queuekeeper.cli.command import OnPostgres, command, group
from queuekeeper.cli.output import Shown

app = group()


@command(app)
def migrate(call: OnPostgres) -> Shown:
    """Bring the control schema to this release's state. Safe to repeat.

    Example: `queuekeeper database migrate`
    """
    report = schema_migrations.migrate(call.connection)
    state = f"Schema queuekeeper is at version {report.version}."
    return Shown(report, lambda: [*(f"applied {name}" for name in report.applied), state])
