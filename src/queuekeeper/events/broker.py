"""The event broker on one connection, blocking or asyncio: carries out steps and translates errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, TypeAlias, cast

import psycopg
from psycopg import errors as postgres_errors
from psycopg.rows import RowMaker, namedtuple_row, tuple_row

from queuekeeper.checks import checked
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.events.model import LockTimeout, StatementTimeout, TransientRefusal
from queuekeeper.events.operations import Copy, EventOperations, Query, Rows, Statements
from queuekeeper.events.schema import INSTALL
from queuekeeper.operation import Awaiting, Blocking, Both
from queuekeeper.postgres import AsyncConnection, Connection, address, server_words, translated_errors, undisturbed
from queuekeeper.sql_statements import statement
from queuekeeper.text_form import shows

Step: TypeAlias = Query | Statements | Copy

_TRANSIENT_CLASSES = {"40", "53"}
"""Classes of SQLSTATE that a repeat may cure: transaction rollback (40) and insufficient resources (53)."""

_Ops = EventOperations


@shows(server=lambda broker: address(broker._connection))
class _Methods:
    """Methods of both classes."""

    publish, publish_many = Both(_Ops.publish), Both(_Ops.publish_many)
    send, schedule = Both(_Ops.send), Both(_Ops.schedule)
    subscribe, unsubscribe, mark_active = Both(_Ops.subscribe), Both(_Ops.unsubscribe), Both(_Ops.mark_active)
    read, has_group = Both(_Ops.read), Both(_Ops.has_group)
    set_cursor, release_group = Both(_Ops.set_cursor), Both(_Ops.release_group)
    replay, latest_event_id = Both(_Ops.replay), Both(_Ops.latest_event_id)
    poll, find, retry, fail = Both(_Ops.poll), Both(_Ops.find), Both(_Ops.retry), Both(_Ops.fail)
    dead_letters, replay_dead_letters = Both(_Ops.dead_letters), Both(_Ops.replay_dead_letters)
    subscriptions, release_subscription = Both(_Ops.subscriptions), Both(_Ops.release_subscription)
    conditions, check_condition = Both(_Ops.conditions), Both(_Ops.check_condition)
    quarantine_condition = Both(_Ops.quarantine_condition)


class EventBroker(_Methods, Blocking):
    """Publishes, subscribes, reads and dispatches, for blocking callers; threads may share it.

    If the connection is in a transaction, each call is part of it: an event is published if and only if the transaction
    commits.

    :param connection: connection to a database in which the broker is installed.
    """

    @checked
    def __init__(self, connection: Connection) -> None:
        self.operations = EventOperations()
        self._connection = connection
        # A transaction has several statements, and must not include those of another thread.
        self._busy = threading.Lock()
        self._busy_for: int | None = None

    def answer(self, step: Step) -> Any:
        """Carry out a step.

        :returns: the answer that the class of the step describes.
        :raises UsageError: when an argument is not valid.
        :raises RefusedError: when the server refuses the step; nothing was stored.
        """
        if self._busy_for == threading.get_ident():
            raise UsageError(
                "the events to publish are read by the broker that is publishing them: read them by another broker"
            )
        with self._busy:
            self._busy_for = threading.get_ident()
            try:
                return self._answer(step)
            finally:
                self._busy_for = None

    def _answer(self, step: Step) -> Any:
        with broker_errors(self._connection):
            if isinstance(step, Query):
                return self._execute(step)
            with self._connection.transaction():
                if isinstance(step, Statements):
                    return [self._execute(query) for query in step.queries]
                with self._connection.cursor() as cursor:
                    with cursor.copy(statement(f"events/queries/{step.name}")) as copy:
                        for row in step.rows:
                            copy.write_row(row)
                    copied = cursor.rowcount
                self._execute(step.after)
                return copied

    def _execute(self, query: Query) -> Rows:
        cursor = self._connection.cursor(row_factory=_named_row)
        cursor.execute(statement(f"events/queries/{query.name}"), query.parameters)
        # rownumber is cheap; description is made anew for every column.
        return [] if cursor.rownumber is None else cursor.fetchall()


class AsyncEventBroker(_Methods, Awaiting):
    """:class:`EventBroker` for asyncio; tasks may share it.

    :param connection: connection to a database in which the broker is installed.
    """

    @checked
    def __init__(self, connection: AsyncConnection) -> None:
        self.operations = EventOperations()
        self._connection = connection
        self._busy = asyncio.Lock()

    async def answer(self, step: Step) -> Any:
        """Carry out a step, as :meth:`EventBroker.answer` does."""
        async with self._busy:
            with broker_errors(self._connection):
                return await undisturbed(self._connection, self._answer(step))

    async def _answer(self, step: Step) -> Any:
        if isinstance(step, Query):
            return await self._execute(step)
        async with self._connection.transaction():
            if isinstance(step, Statements):
                return [await self._execute(query) for query in step.queries]
            async with self._connection.cursor() as cursor:
                async with cursor.copy(statement(f"events/queries/{step.name}")) as copy:
                    for row in step.rows:
                        await copy.write_row(row)
                copied = cursor.rowcount
            await self._execute(step.after)
            return copied

    async def _execute(self, query: Query) -> Rows:
        cursor = self._connection.cursor(row_factory=_named_row)
        await cursor.execute(statement(f"events/queries/{query.name}"), query.parameters)
        return [] if cursor.rownumber is None else await cursor.fetchall()


def _named_row(cursor: psycopg.Cursor[Any] | psycopg.AsyncCursor[Any]) -> RowMaker[Any]:
    """Make rows with named columns like psycopg's ``namedtuple_row``, but without calling a Python function per row.

    A row of one column is a plain tuple.
    """
    if cursor.pgresult is not None and cursor.pgresult.nfields == 1:
        return tuple_row(cursor)
    make = namedtuple_row(cursor)
    return partial(tuple.__new__, cast(Any, make.__self__)) if isinstance(make, MethodType) else make


@contextmanager
def broker_errors(connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
    """Translate errors of the server into errors that say what to do."""
    try:
        with translated_errors(connection, missing=INSTALL):
            yield
    except RefusedError as error:
        if isinstance(error.__cause__, postgres_errors.DiskFull):
            raise TransientRefusal(str(error)) from error.__cause__
        raise
    except postgres_errors.QueryCanceled as error:
        raise StatementTimeout(
            f"PostgreSQL at {address(connection)} ended a statement: {server_words(error)}"
        ) from error
    except postgres_errors.LockNotAvailable as error:
        raise LockTimeout(f"PostgreSQL at {address(connection)} ended a statement: {server_words(error)}") from error
    except (postgres_errors.AdminShutdown, postgres_errors.CrashShutdown, postgres_errors.CannotConnectNow) as error:
        raise ServerUnavailable(
            f"PostgreSQL at {address(connection)} broke the connection: {server_words(error)}; try again when it is up"
        ) from error
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UsageError(f"text holds half a character, {half!a}: it was decoded wrongly") from None
    except (postgres_errors.DataError, postgres_errors.RaiseException) as error:
        raise UsageError(server_words(error)) from error
    except psycopg.Error as error:
        kind = TransientRefusal if (error.sqlstate or "")[:2] in _TRANSIENT_CLASSES else RefusedError
        raise kind(f"PostgreSQL at {address(connection)} refuses: {server_words(error)}") from error
