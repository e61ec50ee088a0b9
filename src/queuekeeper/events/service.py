"""Runs one long operation on a connection of its own: opens it, waits on it and starts work beside it.

What is done is the operation's. It is written once, for blocking code and for asyncio.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from queuekeeper.events.broker import AsyncEventBroker, EventBroker, broker_errors
from queuekeeper.postgres import AsyncConnection, Connection, connect, connect_async


@dataclass(frozen=True, slots=True)
class Open:
    """Step: give up the connection, if there is one, and open another; the answer is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Step: wait until somebody tells something, the server notifies, or time is up; the answer is :class:`Happened`.

    :param timeout_s: time to wait at most.
    :param notifiable: whether the server can end it; else it notifies the wait after this one.
    """

    timeout_s: float
    notifiable: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """What ended a wait.

    :param told: what others told, in order.
    :param notified: whether the server notified.
    """

    told: tuple[Any, ...]
    notified: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Step: start work beside the operation; the answer is none, and :class:`Ended` is told when it ends.

    :param work: function, for asyncio a coroutine function, without arguments.
    :param token: by which it is known.
    """

    work: Callable[[], Any]
    token: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """Told when work has ended.

    :param result: what it returned.
    :param error: what it raised instead.
    """

    token: Any
    result: Any = None
    error: BaseException | None = None


class BlockingService:
    """Carries out steps for blocking code; ``tell`` may be called in any thread and in a signal handler.

    :param url: of the database.
    :param threads: pieces of work that run at once.
    """

    def __init__(self, url: str, *, threads: int) -> None:
        self._url = url
        self._threads = threads
        self._told: deque[Any] = deque()
        self._connection: Connection | None = None
        self._broker: EventBroker | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._selector = selectors.DefaultSelector()
        self._bell_selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        for selector in (self._selector, self._bell_selector):
            selector.register(self._bell, selectors.EVENT_READ)

    def tell(self, message: Any) -> None:
        """Wake the operation with a message."""
        self._told.append(message)
        # A bell that is full has been rung; one that is closed has nobody to hear it.
        with suppress(OSError):
            self._ringer.send(b"!")

    def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Wait):
            return self._wait(step)
        if isinstance(step, Start):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="queuekeeper-events")
            self._pool.submit(self._work, step)
            return None
        if isinstance(step, Open):
            self._disconnect()
            self._connection = connect(self._url, autocommit=True)
            self._selector.register(self._connection.fileno(), selectors.EVENT_READ)
            self._broker = EventBroker(self._connection)
            return None
        assert self._broker is not None
        return self._broker.answer(step)

    def _work(self, step: Start) -> None:
        try:
            result = step.work()
        except BaseException as error:
            self.tell(Ended(token=step.token, error=error))
        else:
            self.tell(Ended(token=step.token, result=result))

    def _wait(self, step: Wait) -> Happened:
        notified = step.notifiable and self._notified()
        if not self._told and not notified:
            (self._selector if step.notifiable else self._bell_selector).select(step.timeout_s)
            notified = step.notifiable and self._notified()
        with suppress(BlockingIOError):
            while self._bell.recv(4_096):
                pass
        told = []
        while self._told:
            told.append(self._told.popleft())
        return Happened(told=tuple(told), notified=notified)

    def _notified(self) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        with broker_errors(self._connection):
            return bool(list(self._connection.notifies(timeout=0)))

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection, self._broker = self._connection, None, None
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not self._bell:
                    self._selector.unregister(key.fileobj)
            connection.close()

    def close(self, *, patient: bool) -> None:
        """Give everything back.

        :param patient: wait for work that runs.
        """
        self._disconnect()
        if self._pool is not None:
            self._pool.shutdown(wait=patient, cancel_futures=True)
        self._selector.close()
        self._bell_selector.close()
        self._bell.close()
        self._ringer.close()


class AsyncService:
    """The same for asyncio; ``tell`` is called in the event loop.

    :param url: of the database.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._told: deque[Any] = deque()
        self._connection: AsyncConnection | None = None
        self._broker: AsyncEventBroker | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._bell = asyncio.Event()

    def tell(self, message: Any) -> None:
        """Wake the operation with a message."""
        self._told.append(message)
        self._bell.set()

    async def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Wait):
            return await self._wait(step)
        if isinstance(step, Start):
            task = asyncio.get_running_loop().create_task(self._work(step))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return None
        if isinstance(step, Open):
            await self._disconnect()
            self._connection = await connect_async(self._url, autocommit=True)
            self._broker = AsyncEventBroker(self._connection)
            return None
        assert self._broker is not None
        return await self._broker.answer(step)

    async def _work(self, step: Start) -> None:
        try:
            result = await step.work()
        except BaseException as error:
            self.tell(Ended(token=step.token, error=error))
            if isinstance(error, asyncio.CancelledError):
                raise
        else:
            self.tell(Ended(token=step.token, result=result))

    async def _wait(self, step: Wait) -> Happened:
        notified = step.notifiable and await self._notified()
        if not self._told and not notified:
            loop = asyncio.get_running_loop()
            connection = self._connection
            # psycopg itself watches the socket in the same way, but never while the operation waits here.
            watchable = step.notifiable and connection is not None and not connection.closed
            watched = connection.fileno() if watchable and connection is not None else None
            if watched is not None:
                loop.add_reader(watched, self._bell.set)
            try:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._bell.wait(), step.timeout_s)
            finally:
                if watched is not None:
                    loop.remove_reader(watched)
            notified = step.notifiable and await self._notified()
        self._bell.clear()
        told = tuple(self._told)
        self._told.clear()
        return Happened(told=told, notified=notified)

    async def _notified(self) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        with broker_errors(self._connection):
            return bool([one async for one in self._connection.notifies(timeout=0)])

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection, self._broker = self._connection, None, None
            await connection.close()

    async def close(self) -> None:
        """Give everything back; work that still runs is cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._disconnect()
