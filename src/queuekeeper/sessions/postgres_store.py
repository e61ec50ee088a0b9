"""DEVICE sessions in the tables of TBMQ 1.x: connections, transactions and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import Any, TypeAlias

import psycopg
from psycopg import errors as postgres_errors
from psycopg.pq import PipelineStatus, TransactionStatus

from queuekeeper.checks import checked
from queuekeeper.errors import RefusedError, SchemaMismatch
from queuekeeper.operation import Awaiting, Blocking, Both
from queuekeeper.postgres import (
    MIGRATE,
    AsyncConnection,
    Connection,
    address,
    server_words,
    translated_errors,
    undisturbed,
)
from queuekeeper.sessions.model import EpochOf, StoreRules
from queuekeeper.sessions.postgres_operations import REFUSALS, PostgresSessionOperations, Query, Step
from queuekeeper.sql_statements import statement
from queuekeeper.text_form import shows

Rows: TypeAlias = list[tuple[Any, ...]]


class PostgresAnswers(Blocking):
    """Answers the steps of operations for blocking callers; threads may share it.

    Calls inside an open transaction of the connection are part of that transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: tuple[object, AbstractContextManager[psycopg.Transaction]] | None = None
        # A transaction takes several steps; the lock keeps steps of other threads out of it.
        self._busy = threading.Lock()

    def answer(self, step: Step) -> list[Rows]:
        """Carry out a step.

        :returns: rows of each statement.
        :raises SchemaMismatch: when the tables are not TBMQ's.
        :raises RefusedError: when the server refuses a statement; the transaction is rolled back.
        """
        with _session_errors(self._connection):
            if _stands_alone(step, self._connection):
                with self._busy:
                    return self._execute(step.queries)
            if step.begin:
                self._begin(step.transaction)
            elif step.undo:
                # The operation gets the error and cannot know whether its transaction was rolled back.
                if self._open is not None and self._open[0] is step.transaction:
                    self._finish(_Undone())
                return []
            try:
                rows = self._execute(step.queries)
            except BaseException as error:
                self._finish(error)
                raise
            if step.end:
                self._finish(None)
            return rows

    def _begin(self, transaction: object) -> None:
        self._busy.acquire()
        try:
            opened = self._connection.transaction()
            opened.__enter__()
        except BaseException:
            self._busy.release()
            raise
        self._open = (transaction, opened)

    def _finish(self, error: BaseException | None) -> None:
        assert self._open is not None
        (_, opened), self._open = self._open, None
        try:
            opened.__exit__(type(error) if error else None, error, None)
        finally:
            self._busy.release()

    def _execute(self, queries: Sequence[Query]) -> list[Rows]:
        cursors = [self._connection.cursor(binary=True) for _ in queries]
        if len(queries) == 1:
            cursors[0].execute(statement(f"sessions/{queries[0].name}"), queries[0].parameters)
        elif queries:
            errors: list[psycopg.Error] = []
            try:
                with self._connection.pipeline():
                    try:
                        for cursor, query in zip(cursors, queries, strict=True):
                            cursor.execute(statement(f"sessions/{query.name}"), query.parameters)
                    except psycopg.Error as error:
                        # The pipeline itself would log that the statements after it were not executed.
                        errors.append(error)
            except psycopg.Error as error:
                errors.append(error)
            finally:
                if _is_stuck(self._connection):
                    self._connection.close()
            if errors:
                if _believes_too_much(self._connection):
                    with suppress(psycopg.Error), self._connection.transaction(force_rollback=True):
                        pass
                raise errors[0]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


_Ops = PostgresSessionOperations


@shows(server=lambda store: address(store._connection))
class _Methods:
    """Methods of the blocking and the asyncio class."""

    save_messages, fetch_pending = Both(_Ops.save_messages), Both(_Ops.fetch_pending)
    mark_delivered, ack, mark_released = Both(_Ops.mark_delivered), Both(_Ops.ack), Both(_Ops.mark_released)
    get_last_packet_id, set_last_packet_id = Both(_Ops.get_last_packet_id), Both(_Ops.set_last_packet_id)
    has_saved = Both(_Ops.has_saved)
    reserve_packet_ids, inspect, peek = Both(_Ops.reserve_packet_ids), Both(_Ops.inspect), Both(_Ops.peek)
    export_session, import_session = Both(_Ops.export_session), Both(_Ops.import_session)
    purge_session = Both(_Ops.purge_session)
    remove_expired, trim_sessions = Both(_Ops.remove_expired), Both(_Ops.trim_sessions)
    find_unreadable, set_aside_unreadable = Both(_Ops.find_unreadable), Both(_Ops.set_aside_unreadable)
    read_snapshot, read_left_out = Both(_Ops.read_snapshot), Both(_Ops.read_left_out)
    apply_snapshot = Both(_Ops.apply_snapshot)


class PostgresSessionStore(_Methods, PostgresAnswers):
    """Sessions in ``device_session_ctx`` and ``device_publish_msg``, for blocking callers; threads may share it.

    Calls inside an open transaction of the connection are part of that transaction.

    :param connection: connection to the database that TBMQ 1.x used, with schema ``queuekeeper``; only ``inspect``
        works without the schema.
    :param rules: limits that the store applies.
    :param epoch_of: returns the epoch in which the caller knows a session; see ``sessions.owners``.
    """

    @checked
    def __init__(
        self, connection: Connection, *, rules: StoreRules | None = None, epoch_of: EpochOf | None = None
    ) -> None:
        super().__init__(connection)
        self.operations = PostgresSessionOperations(rules or StoreRules(), epoch_of=epoch_of)


class AsyncPostgresAnswers(Awaiting):
    """:class:`PostgresAnswers` for asyncio; tasks may share it, and a cancelled task leaves no transaction open."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._open: tuple[object, AbstractAsyncContextManager[psycopg.AsyncTransaction]] | None = None
        self._busy = asyncio.Lock()

    async def answer(self, step: Step) -> list[Rows]:
        """Carry out a step, as :meth:`PostgresSessionStore.answer` does."""
        with _session_errors(self._connection):
            if step.undo:
                # The operation gets the error and cannot know whether its transaction was rolled back.
                if self._open is not None and self._open[0] is step.transaction:
                    await undisturbed(self._connection, self._finish(_Undone()))
                return []
            if step.begin:
                await self._busy.acquire()
            try:
                return await undisturbed(self._connection, self._carry_out(step))
            except asyncio.CancelledError as error:
                if self._open is not None:
                    await undisturbed(self._connection, self._finish(error))
                raise

    async def _carry_out(self, step: Step) -> list[Rows]:
        try:
            if step.begin and not _stands_alone(step, self._connection):
                opened = self._connection.transaction()
                await opened.__aenter__()
                self._open = (step.transaction, opened)
            rows = await self._execute(step.queries)
        except BaseException as error:
            await self._finish(error)
            raise
        if step.end:
            await self._finish(None)
        return rows

    async def _finish(self, error: BaseException | None) -> None:
        opened, self._open = self._open, None
        try:
            if opened is not None:
                await opened[1].__aexit__(type(error) if error else None, error, None)
        finally:
            self._busy.release()

    async def _execute(self, queries: Sequence[Query]) -> list[Rows]:
        cursors = [self._connection.cursor(binary=True) for _ in queries]
        if len(queries) == 1:
            await cursors[0].execute(statement(f"sessions/{queries[0].name}"), queries[0].parameters)
        elif queries:
            errors: list[psycopg.Error] = []
            try:
                async with self._connection.pipeline():
                    try:
                        for cursor, query in zip(cursors, queries, strict=True):
                            await cursor.execute(statement(f"sessions/{query.name}"), query.parameters)
                    except psycopg.Error as error:
                        # The pipeline itself would log that the statements after it were not executed.
                        errors.append(error)
            except psycopg.Error as error:
                errors.append(error)
            finally:
                if _is_stuck(self._connection):
                    await self._connection.close()
            if errors:
                if _believes_too_much(self._connection):
                    with suppress(psycopg.Error):
                        async with self._connection.transaction(force_rollback=True):
                            pass
                raise errors[0]
        return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


class AsyncPostgresSessionStore(_Methods, AsyncPostgresAnswers):
    """:class:`PostgresSessionStore` for asyncio; tasks may share it, and a cancelled task leaves no transaction open.

    :param connection: see :class:`PostgresSessionStore`.
    :param rules: limits that the store applies.
    :param epoch_of: see :class:`PostgresSessionStore`.
    """

    @checked
    def __init__(
        self, connection: AsyncConnection, *, rules: StoreRules | None = None, epoch_of: EpochOf | None = None
    ) -> None:
        super().__init__(connection)
        self.operations = PostgresSessionOperations(rules or StoreRules(), epoch_of=epoch_of)


class _Undone(Exception):
    """Makes psycopg roll the transaction back."""


def _stands_alone(step: Step, connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a step needs no explicit transaction, since statements sent together are one transaction.

    Each statement still has its own snapshot, so that it sees the commits that the statement before it waited for.
    """
    return (
        step.begin
        and step.end
        and connection.autocommit
        and connection.info.transaction_status == TransactionStatus.IDLE
    )


def _is_stuck(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether the connection is stuck in a pipeline that is over.

    That happens when the server has announced that it ends the connection, and the end itself has not arrived yet, and
    when psycopg is interrupted between two results.
    """
    return not connection.closed and connection.info.pipeline_status != PipelineStatus.OFF


def _believes_too_much(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether psycopg may take statements for prepared that a failed pipeline did not reach.

    It forgets them when it rolls a transaction back; where the pipeline had none, an empty one is rolled back.
    """
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


@contextmanager
def _session_errors(connection: psycopg.BaseConnection[Any]) -> Iterator[None]:
    """Turn the server's errors into errors of this package."""
    try:
        with translated_errors(connection):
            try:
                yield
            except (
                postgres_errors.UndefinedTable,
                postgres_errors.UndefinedColumn,
                postgres_errors.UndefinedFunction,
                postgres_errors.InvalidSchemaName,
            ) as error:
                if "queuekeeper" in (error.diag.message_primary or ""):
                    raise RefusedError(
                        f"PostgreSQL at {address(connection)} lacks a part of schema queuekeeper: "
                        f"{server_words(error)}; {MIGRATE}"
                    ) from error
                if not isinstance(error, (postgres_errors.UndefinedTable, postgres_errors.UndefinedColumn)):
                    raise
                raise SchemaMismatch(
                    f"{address(connection)} does not hold TBMQ 1.4's tables: {server_words(error)}. "
                    "Name the database of TBMQ 1.x"
                ) from error
    except psycopg.Error as error:
        refusal = REFUSALS.get(error.sqlstate or "")
        if refusal is not None:
            # The first word of the message is meant for the server's log.
            raise refusal((error.diag.message_primary or "").partition(" ")[2]) from error
        raise RefusedError(f"PostgreSQL at {address(connection)} refuses: {server_words(error)}") from error
