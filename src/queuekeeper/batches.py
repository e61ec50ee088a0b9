"""Gathers what many tasks store into batches, each call with its own result; storing a batch is somebody else's job.

Nothing waits for company. What has arrived leaves at the next turn of the event loop, and while it is under way the
next batch of its queue gathers, so batches grow with the load.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from copy import copy
from typing import Generic, TypeAlias, TypeVar

from queuekeeper.errors import RefusedError

Q = TypeVar("Q", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

_Waiting: TypeAlias = "deque[tuple[T, asyncio.Future[R]]]"


class Batches(Generic[Q, T, R]):
    """Batches of many queues; each has one under way, and is stored in the order of the calls.

    :param store: stores a batch and returns a result, or the exception in its place, for each part of it. What it
        raises is the result of all.
    :param size: of what is to be stored.
    :param most: parts of a batch.
    :param most_bytes: of a batch; a larger part goes alone.
    :param max_pending: parts accepted and not yet stored; further calls wait until there is room.
    :param max_queues: queues with a batch under way at once; the others wait for their turn.
    """

    def __init__(
        self,
        store: Callable[[Q, Sequence[T]], Awaitable[Sequence[R | Exception]]],
        *,
        size: Callable[[T], int],
        most: int,
        most_bytes: int,
        max_pending: int,
        max_queues: int,
    ) -> None:
        self._store = store
        self._size = size
        self._most = most
        self._most_bytes = most_bytes
        self._room = asyncio.Semaphore(max_pending)
        self._turns = asyncio.Semaphore(max_queues)
        self._waiting: dict[Q, _Waiting[T, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._entered = 0
        self._closed = False

    async def put(self, queue: Q, part: T) -> R:
        """Store something and return when it is stored; what is wrong with others does not touch it.

        A call that is cancelled takes its part back if it has not been sent yet.

        :raises RefusedError: when it is closed.
        """
        self.check_open()
        self._entered += 1
        try:
            async with self._room:
                future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
                waiting = self._waiting.get(queue)
                if waiting is None:
                    self._waiting[queue] = deque([(part, future)])
                    task = asyncio.get_running_loop().create_task(self._empty(queue))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    waiting.append((part, future))
                return await future
        finally:
            self._entered -= 1

    def check_open(self) -> None:
        """Refuse what comes too late."""
        if self._closed:
            raise RefusedError("the producer is closed: it takes nothing more")

    async def close(self) -> None:
        """Take nothing more, and return when every call has its result; those that wait for room still get in."""
        self._closed = True
        while self._entered or self._tasks:
            if self._tasks:
                await asyncio.wait(self._tasks)
            await asyncio.sleep(0)

    async def _empty(self, queue: Q) -> None:
        """Store what waits for a queue, batch by batch, until nothing does."""
        waiting = self._waiting[queue]
        try:
            while True:
                # What the same turn of the event loop brings comes along.
                await asyncio.sleep(0)
                async with self._turns:
                    batch = self._take(waiting)
                    if batch:
                        await self._send(queue, batch)
                if not waiting:
                    return
        finally:
            del self._waiting[queue]
            for _, future in waiting:
                future.cancel()

    def _take(self, waiting: _Waiting[T, R]) -> list[tuple[T, asyncio.Future[R]]]:
        """Take the next batch; calls that were cancelled are left out."""
        batch: list[tuple[T, asyncio.Future[R]]] = []
        size = 0
        while waiting and len(batch) < self._most:
            part, future = waiting[0]
            if not future.done():
                size += self._size(part)
                if batch and size > self._most_bytes:
                    break
                batch.append((part, future))
            waiting.popleft()
        return batch

    async def _send(self, queue: Q, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        results: Sequence[R | Exception]
        try:
            results = await self._store(queue, [part for part, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for result, (_, future) in zip(results, batch, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                # Each call raises its own, with its own traceback.
                future.set_exception(copy(result))
            else:
                future.set_result(result)
