"""Connections of a router to PostgreSQL."""

from __future__ import annotations

import asyncio
import select
import threading
from typing import Any, Generic, NamedTuple, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from queuekeeper import postgres
from queuekeeper.checks import check_integer
from queuekeeper.errors import RefusedError
from queuekeeper.sessions.postgres_store import AsyncPostgresAnswers, PostgresAnswers, Rows
from queuekeeper.sessions.router.steps import AtPostgres

CONNECTIONS = 4
MOST_CONNECTIONS = 100
C = TypeVar("C", bound=psycopg.BaseConnection[Any])
A = TypeVar("A")


class _Held(NamedTuple, Generic[C, A]):
    """A connection, and the object that answers steps on it."""

    connection: C
    answers: A


class _Pool(Generic[C, A]):
    """Idle connections to PostgreSQL, and connections in use.

    An operation in a transaction keeps its connection; other steps take a connection for one step.

    :raises UsageError: for a number of connections that is out of range.
    """

    def __init__(self, url: str, most: int) -> None:
        check_integer("connections", most, 1, MOST_CONNECTIONS, "each is a process of the server")
        self.url = url
        self._idle: list[_Held[C, A]] = []
        self._held: dict[object, _Held[C, A]] = {}
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise RefusedError("the router is closed: open another one")

    def _next_idle(self) -> _Held[C, A] | None:
        # Another thread may take the last connection first.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _keeps(self, held: _Held[C, A]) -> bool:
        """Put a connection back, and return whether it was kept; otherwise close it."""
        if self._closed or not _is_idle(held.connection):
            return False
        self._idle.append(held)
        return True


class Connections(_Pool[postgres.Connection, PostgresAnswers]):
    """A bounded pool of connections to PostgreSQL for threads; connections are opened when they are needed."""

    def __init__(self, url: str, most: int) -> None:
        super().__init__(url, most)
        self._room = threading.Semaphore(most)

    def answer(self, at: AtPostgres) -> list[Rows]:
        """Execute a step on the connection of its operation's transaction."""
        step = at.step
        held = self._held.pop(at.operation, None)
        if held is None:
            if step.undo:
                # The error behind this step has ended the transaction.
                return []
            held = self._take()
        ends = True
        try:
            rows = held.answers.answer(step)
            ends = step.end or step.undo
            return rows
        finally:
            if ends:
                self._give_back(held)
            else:
                self._held[at.operation] = held

    def close(self) -> None:
        """Close idle connections; connections in use are closed when they are given back."""
        self._closed = True
        while (held := self._next_idle()) is not None:
            held.connection.close()

    def _take(self) -> _Held[postgres.Connection, PostgresAnswers]:
        self._check_open()
        self._room.acquire()
        try:
            while (held := self._next_idle()) is not None:
                if _is_usable(held.connection):
                    return held
                held.connection.close()
            connection = postgres.connect(self.url, autocommit=True)
            return _Held(connection, PostgresAnswers(connection))
        except BaseException:
            self._room.release()
            raise

    def _give_back(self, held: _Held[postgres.Connection, PostgresAnswers]) -> None:
        try:
            if not self._keeps(held):
                held.connection.close()
        finally:
            self._room.release()


class AsyncConnections(_Pool[postgres.AsyncConnection, AsyncPostgresAnswers]):
    """The same pool for the tasks of an event loop; a cancelled task leaves its connection usable or closed."""

    def __init__(self, url: str, most: int) -> None:
        super().__init__(url, most)
        self._room = asyncio.Semaphore(most)

    async def answer(self, at: AtPostgres) -> list[Rows]:
        """Execute a step on the connection of its operation's transaction."""
        step = at.step
        held = self._held.pop(at.operation, None)
        if held is None:
            if step.undo:
                # The error behind this step has ended the transaction.
                return []
            held = await self._take()
        ends = True
        try:
            rows = await held.answers.answer(step)
            ends = step.end or step.undo
            return rows
        finally:
            if ends:
                await self._give_back(held)
            else:
                self._held[at.operation] = held

    async def close(self) -> None:
        """Close idle connections; connections in use are closed when they are given back."""
        self._closed = True
        while (held := self._next_idle()) is not None:
            await held.connection.close()

    async def _take(self) -> _Held[postgres.AsyncConnection, AsyncPostgresAnswers]:
        self._check_open()
        await self._room.acquire()
        try:
            while (held := self._next_idle()) is not None:
                if _is_usable(held.connection):
                    return held
                await held.connection.close()
            connection = await postgres.connect_async(self.url, autocommit=True)
            return _Held(connection, AsyncPostgresAnswers(connection))
        except BaseException:
            self._room.release()
            raise

    async def _give_back(self, held: _Held[postgres.AsyncConnection, AsyncPostgresAnswers]) -> None:
        try:
            if not self._keeps(held):
                await held.connection.close()
        finally:
            self._room.release()


def _is_idle(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether a connection may serve the next operation."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def _is_usable(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return whether an idle connection is still usable; a server that ends it sends a message."""
    if not _is_idle(connection):
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
