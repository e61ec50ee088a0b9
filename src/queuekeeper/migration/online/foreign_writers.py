"""Has the database itself refuse writers that do not ask who owns a session; our own stores ask without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import psycopg

from queuekeeper.errors import RefusedError
from queuekeeper.postgres import Connection, address, statement, translated_errors

_QUERIES = "queuekeeper/queries/"
_MISSING = "apply the migrations (queuekeeper database migrate), and name the database of TBMQ 1.x"

INSTALL = ("install_session_trigger", "always_session_trigger", "install_message_trigger", "always_message_trigger")
REMOVE = ("remove_session_trigger", "remove_message_trigger")
"""Statements, the tables in the order of all writers."""

PATIENCE_MS = 2_000
"""Writers that come later wait as long as the change of the tables does."""


@dataclass(frozen=True, kw_only=True)
class TriggerState:
    """Whether one table refuses writers that do not ask.

    :param installed: the trigger is there.
    :param enabled: it fires, also in a session that plays a replica.
    """

    table: str
    installed: bool
    enabled: bool


@dataclass(frozen=True, kw_only=True)
class TriggersReport:
    """What guards sessions against writers that do not ask.

    :param statements: what a call did, or in a dry run would do; nothing when it only looked.
    :param triggers: one per table, as they are afterwards.
    :param moved: sessions that are Redis's.
    :param dry_run: nothing was changed.
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
    """Have the vendor's tables refuse changes of sessions that are another store's; may be repeated.

    A session on its way to the other store is refused as a serialization failure (40001), upon which a transaction is
    repeated, one that has moved with QK001. TRUNCATE asks nobody.

    :param patience_ms: how long to wait for writers in progress.
    :raises RefusedError: when the tables are busy for longer, or a privilege is missing.
    """
    return _change(connection, INSTALL, dry_run=dry_run, patience_ms=patience_ms)


def remove(connection: Connection, *, dry_run: bool = False, patience_ms: int = PATIENCE_MS) -> TriggersReport:
    """Have the vendor's tables ask nobody any more; may be repeated.

    :param patience_ms: see :func:`install`.
    :raises RefusedError: see :func:`install`.
    """
    return _change(connection, REMOVE, dry_run=dry_run, patience_ms=patience_ms)


def state(connection: Connection) -> TriggersReport:
    """Tell which tables are guarded."""
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
