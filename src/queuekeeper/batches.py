"""Gathers what many tasks or threads store into batches, each part with its own result.

Nothing waits for company unless it is told to linger. What has arrived leaves at once, and while it is under way the
next batch of its queue gathers, so batches grow with the load.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from queuekeeper.closing import Users
from queuekeeper.errors import RefusedError

Q = TypeVar("Q", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class Promise(Protocol):
    """A future, of asyncio or of a thread."""

    def done(self) -> bool:
        """Tell whether it has its result, or nobody wants it."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Give it its result."""
        ...

    def set_exception(self, exception: Exception, /) -> None:
        """Give it an error in place of a result."""
        ...


MAX_PENDING = 10_000
"""Parts that may wait to be stored, unless a program says otherwise."""

P = TypeVar("P", bound=Promise)
_Waiting: TypeAlias = "deque[tuple[T, asyncio.Future[R], int]]"


def take_batch(waiting: deque[tuple[T, P, int]], *, most: int, most_bytes: int) -> list[tuple[T, P, int]]:
    """Take the next batch of what waits; parts whose callers were cancelled are left out.

    :param waiting: parts, each with the promise of its result and its size in bytes, which was counted once.
    :param most_bytes: of a batch; a larger part goes alone.
    """
    batch: list[tuple[T, P, int]] = []
    filled = 0
    while waiting and len(batch) < most:
        entry = waiting[0]
        if not entry[1].done():
            filled += entry[2]
            if batch and filled > most_bytes:
                break
            batch.append(entry)
        waiting.popleft()
    return batch


def settle_batch(promises: Iterable[P], results: Sequence[R | Exception]) -> None:
    """Give each part of a batch its result, or an exception of its own with its own traceback."""
    for result, promise in zip(results, promises, strict=True):
        if promise.done():
            continue
        if isinstance(result, Exception):
            promise.set_exception(copy(result))
        else:
            promise.set_result(result)


class _Bounded(Generic[T]):
    """What batches of both kinds share: what one holds, and when it leaves."""

    def __init__(self, *, size: Callable[[T], int], most: int, most_bytes: int, linger_s: float) -> None:
        self._size, self._most, self._most_bytes = size, most, most_bytes
        self._linger_s = linger_s
        self._hurries = self._closed = False

    def check_open(self) -> None:
        """Refuse what comes too late."""
        if self._closed:
            raise RefusedError("the producer is closed: it takes nothing more")

    def _take(self, waiting: deque[tuple[T, P, int]]) -> list[tuple[T, P, int]]:
        return take_batch(waiting, most=self._most, most_bytes=self._most_bytes)

    def _lingers(self, waiting: deque[tuple[T, P, int]]) -> bool:
        """Tell whether what waits may wait for company."""
        return not (self._closed or self._hurries or len(waiting) >= self._most)


class Batches(_Bounded[T], Generic[Q, T, R]):
    """Batches of many queues; each has one under way, and is stored in the order of the calls.

    :param store: stores a batch and returns a result, or the exception in its place, for each part of it. What it
        raises is the result of all.
    :param size: of what is to be stored.
    :param most: parts of a batch.
    :param most_bytes: of a batch; a larger part goes alone.
    :param max_pending: parts accepted and not yet stored; further calls wait until there is room.
    :param max_queues: most queues to which batches are sent at once; other queues wait.
    :param linger_s: how long the first part of a batch that is not full waits for others.
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
        linger_s: float = 0.0,
    ) -> None:
        super().__init__(size=size, most=most, most_bytes=most_bytes, linger_s=linger_s)
        self._store = store
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(max_pending)
        self._turns = asyncio.Semaphore(max_queues)
        self._waiting: dict[Q, _Waiting[T, R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Callers, until their parts have their results, and tasks.
        self._users = Users()

    async def put(self, queue: Q, part: T) -> R:
        """Store something and return when it is stored; what is wrong with others does not touch it.

        A call that is cancelled takes its part back if it has not been sent yet.

        :raises RefusedError: when it is closed.
        """
        self.check_open()
        self._users.enter()
        try:
            await self._room.acquire()
            try:
                return await self._accepted(queue, part)
            finally:
                self._room.release()
        finally:
            self._users.leave()

    async def add(self, queue: Q, part: T) -> asyncio.Future[R]:
        """Accept something and return the future of its result; waits only for room.

        :raises RefusedError: when it is closed.
        """
        self.check_open()
        self._users.enter()
        try:
            await self._room.acquire()
        except BaseException:
            self._users.leave()
            raise
        future = self._accepted(queue, part)
        future.add_done_callback(self._leave)
        return future

    def _accepted(self, queue: Q, part: T) -> asyncio.Future[R]:
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(queue)
        if waiting is None:
            self._waiting[queue] = deque([(part, future, self._size(part))])
            task = asyncio.get_running_loop().create_task(self._empty(queue))
            self._tasks.add(task)
            self._users.enter()
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._users.leave)
        else:
            waiting.append((part, future, self._size(part)))
            if len(waiting) >= self._most:
                self._wake.set()
        return future

    def _leave(self, _: asyncio.Future[R]) -> None:
        self._users.leave()
        self._room.release()

    def hurry(self) -> None:
        """Let all that waits leave without lingering."""
        self._hurries = bool(self._waiting)
        self._wake.set()

    async def close(self) -> None:
        """Refuse further calls, and return when all earlier calls have their results."""
        self._closed = True
        self.hurry()
        await self._users.gone()

    async def _empty(self, queue: Q) -> None:
        """Store what waits for a queue, batch by batch, until nothing does."""
        waiting = self._waiting[queue]
        try:
            while True:
                # What the same turn of the event loop brings comes along.
                await asyncio.sleep(0)
                await self._linger(waiting)
                async with self._turns:
                    batch = self._take(waiting)
                    if batch:
                        await self._send(queue, batch)
                if not waiting:
                    return
        finally:
            del self._waiting[queue]
            self._hurries = self._hurries and bool(self._waiting)
            for _, future, _ in waiting:
                future.cancel()

    async def _linger(self, waiting: _Waiting[T, R]) -> None:
        if not self._linger_s:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger_s):
                while self._lingers(waiting):
                    self._wake.clear()
                    await self._wake.wait()

    async def _send(self, queue: Q, batch: list[tuple[T, asyncio.Future[R], int]]) -> None:
        results: Sequence[R | Exception]
        try:
            results = await self._store(queue, [part for part, _, _ in batch])
        except Exception as error:
            results = [error] * len(batch)
        except BaseException:
            for _, future, _ in batch:
                future.cancel()
            raise
        settle_batch((future for _, future, _ in batch), results)


class ThreadBatches(_Bounded[T], Generic[T, R]):
    """The same for threads: one queue, whose batches a thread of its own stores.

    :param store: as of :class:`Batches`.
    :param size: of what is to be stored.
    :param most: parts of a batch.
    :param most_bytes: of a batch; a larger part goes alone.
    :param max_pending: parts accepted and not yet stored; further calls wait until there is room.
    :param linger_s: how long the first part of a batch that is not full waits for others.
    :param name: of the thread.
    """

    def __init__(
        self,
        store: Callable[[Sequence[T]], Sequence[R | Exception]],
        *,
        size: Callable[[T], int],
        most: int,
        most_bytes: int,
        max_pending: int,
        linger_s: float,
        name: str,
    ) -> None:
        super().__init__(size=size, most=most, most_bytes=most_bytes, linger_s=linger_s)
        self._store = store
        self._max_pending = max_pending
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T, concurrent.futures.Future[R], int]] = deque()
        self._pending = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, part: T) -> concurrent.futures.Future[R]:
        """Accept something and return the future of its result; waits only for room.

        :raises RefusedError: when it is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._pending < self._max_pending)
            self.check_open()
            future: concurrent.futures.Future[R] = concurrent.futures.Future()
            self._waiting.append((part, future, self._size(part)))
            self._pending += 1
            self._changed.notify_all()
        return future

    def hurry(self) -> None:
        """Let all that waits leave without lingering."""
        with self._changed:
            self._hurries = bool(self._waiting)
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more, and return when everything has its result."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                deadline = time.monotonic() + self._linger_s
                while self._lingers(self._waiting):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or not self._changed.wait(left_s):
                        break
                before = len(self._waiting)
                # From here on nobody can take a part back.
                batch = [entry for entry in self._take(self._waiting) if entry[1].set_running_or_notify_cancel()]
                taken = before - len(self._waiting)
                self._hurries = self._hurries and bool(self._waiting)
            results: Sequence[R | Exception]
            try:
                results = self._store([part for part, _, _ in batch]) if batch else []
            except Exception as error:
                results = [error] * len(batch)
            settle_batch((future for _, future, _ in batch), results)
            with self._changed:
                self._pending -= taken
                self._changed.notify_all()
