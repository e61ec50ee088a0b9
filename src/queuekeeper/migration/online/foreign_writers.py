"""Installs triggers by which PostgreSQL refuses writers that do not ask who owns a session.

The stores of Queuekeeper ask by themselves and need no trigger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import psycopg

from queuekeeper.errors import RefusedError
from queuekeeper.postgres import MIGRATE, Connection, address, translated_errors
from queuekeeper.sql_statements import statement

_QUERIES = "queuekeeper/queries/"
_MISSING = f"{MIGRATE}, and name the database of TBMQ 1.x"

INSTALL = ("install_session_trigger", "always_session_trigger", "install_message_trigger", "always_message_trigger")
REMOVE = ("remove_session_trigger", "remove_message_trigger")
"""Statements; they lock the tables in the order in which all writers do."""

PATIENCE_MS = 2_000
"""Default wait for writers in progress, in milliseconds; writers that come later wait as long."""


@dataclass(frozen=True, kw_only=True)
class TriggerState:
    """Whether one table refuses writers that do not ask.

    :param installed: whether the trigger exists.
    :param enabled: whether it always fires, also where ``session_replication_role`` is ``replica``.
    """

    table: str
    installed: bool
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class TriggersReport:
    """What guards sessions against writers that do not ask.

    :param statements: statements that a call executed, or in a dry run would execute; empty for :func:`state`.
    :param triggers: the state of each table after the call.
    :param moved: sessions that Redis owns.
    :param dry_run: whether nothing was changed.
    """

    statements: tuple[str, ...] = ()
    triggers: tuple[TriggerState, ...]
    moved: int
    dry_run: bool = False
    worked_out: ClassVar[tuple[str, ...]] = ("complete",)

    @property
    def complete(self) -> bool:
        """Whether both tables are guarded."""
        return all(trigger.installed and trigger.enabled for trigger in self.triggers)


def install(connection: Connection, *, dry_run: bool = False, patience_ms: int = PATIENCE_MS) -> TriggersReport:
    """Have TBMQ's tables refuse changes of sessions that PostgreSQL does not own; may be repeated.

    A change of a session on its way to Redis fails with 40001 (serialization failure), so that the writer repeats its
    transaction; a change of a session that Redis owns fails with QK001. TRUNCATE is not refused.

    :param patience_ms: how long to wait for writers in progress, in milliseconds.
    :raises RefusedError: when the tables are busy for longer, or a privilege is missing.
    """
    return _change(connection, INSTALL, dry_run=dry_run, patience_ms=patience_ms)


def remove(connection: Connection, *, dry_run: bool = False, patience_ms: int = PATIENCE_MS) -> TriggersReport:
    """Remove the triggers, so that TBMQ's tables refuse no writer; may be repeated.

    :param patience_ms: see :func:`install`.
    :raises RefusedError: see :func:`install`.
    """
    return _change(connection, REMOVE, dry_run=dry_run, patience_ms=patience_ms)


def state(connection: Connection) -> TriggersReport:
    """Return which tables refuse writers that do not ask."""
    with translated_errors(connection, missing=_MISSING):
        rows = connection.execute(statement(f"{_QUERIES}foreign_writer_triggers")).fetchall()
    return TriggersReport(
        triggers=tuple(
            TriggerState(table=table, installed=installed, enabled=enabled) for table, installed, enabled, _ in rows
        ),
        moved=rows[0][3],
    )


def _change(connection: Connection, names: tuple[str, ...], *, dry_run: bool, patience_ms: int) -> TriggersReport:
    statements = tuple(statement(f"{_QUERIES}{name}") for name in names)
    if not dry_run:
        try:
            with translated_errors(connection, missing=_MISSING), connection.transaction():
                connection.execute(statement("sessions/limit_lock_waits"), {"patience_ms": patience_ms})
                for each in statements:
                    connection.execute(each)
        except psycopg.errors.LockNotAvailable as error:
            raise RefusedError(
                f"the tables of PostgreSQL at {address(connection)} were written to for longer than {patience_ms} ms, "
                "and nothing was changed: try again in a quieter moment"
            ) from error
    found = state(connection)
    return TriggersReport(statements=statements, triggers=found.triggers, moved=found.moved, dry_run=dry_run)
