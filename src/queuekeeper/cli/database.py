"""``queuekeeper database``: the control schema."""

from __future__ import annotations

from queuekeeper.cli.command import OnPostgres, command, group
from queuekeeper.cli.output import Shown

app = group("Keep the control schema `queuekeeper` in PostgreSQL.")


@command(app)
def migrate(call: OnPostgres) -> Shown:
    """Bring the control schema to this release's state. Safe to repeat.

    Example: `queuekeeper database migrate`
    """
    from queuekeeper.postgres import migrate as apply_migrations

    report = apply_migrations(call.connection)
    state = f"Schema queuekeeper is at version {report.version}."
    return Shown(report, lambda: [*(f"applied {name}" for name in report.applied), state])
