"""Runs a service and its work in an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Generic, Self, TypeVar

from queuekeeper.errors import RefusedError
from queuekeeper.service.signals import taken_signals
from queuekeeper.service.steps import END_S, Begin, Cut, Ended, Happened, Stop, Wait

R = TypeVar("R")


class AsyncService(Generic[R]):
    """Carries out the steps of an operation in an event loop, in which ``tell`` and ``stop`` must be called.

    ``run`` works until ``stop`` is called; ``async with service:`` runs it in a task until the end of the block.
    Work that is still running when the operation ends is cancelled; work that ignores its cancellation is abandoned.

    :param noun: word for the service in messages.
    """

    operations: Any
    _serve: Callable[[], Awaitable[R]]

    def __init__(self, *, noun: str) -> None:
        self._noun = noun
        self._told: deque[Any] = deque()
        self._bell = asyncio.Event()
        self._begins = asyncio.Event()
        self._tasks: dict[asyncio.Future[Any], Any] = {}
        self._runs = self._over = self._stopped = False
        self._task: asyncio.Task[R] | None = None

    def tell(self, message: Any) -> None:
        """Wake the operation with a message."""
        self._told.append(message)
        self._bell.set()

    async def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Wait):
            return await self._wait(step)
        if isinstance(step, Begin):
            task = asyncio.ensure_future(step.work())
            self._tasks[task] = step.token
            task.add_done_callback(self._tell_end)
            return None
        if isinstance(step, Cut):
            for task, token in self._tasks.items():
                if token is not None:
                    task.cancel()
            return True
        return await self._ask_server(step)

    async def _ask_server(self, step: Any) -> Any:
        raise AssertionError(f"a {self._noun} cannot carry out {step!r}")

    def _tell_end(self, task: asyncio.Future[Any]) -> None:
        # A task that is cancelled before its first step does not run its own code.
        token = self._tasks.pop(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.tell(Ended(token=token, error=error, result=None if error is not None else task.result()))

    async def _wait(self, step: Wait) -> Happened:
        notified = step.notifiable and await self._notified()
        if not self._told and not notified:
            watched = self._watched() if step.notifiable else None
            loop = asyncio.get_running_loop()
            # psycopg also watches this socket, but never while the operation waits here.
            if watched is not None:
                loop.add_reader(watched, self._bell.set)
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(step.timeout_s):
                        await self._bell.wait()
            finally:
                if watched is not None:
                    loop.remove_reader(watched)
            notified = step.notifiable and await self._notified()
        self._bell.clear()
        told = tuple(self._told)
        self._told.clear()
        return Happened(told=told, notified=notified)

    def _watched(self) -> int | None:
        """Return the file descriptor on which the server's notifications arrive, if there is one."""
        return None

    async def _notified(self) -> bool:
        """Take the server's notifications; return whether there were any."""
        return False

    async def run(self) -> R:
        """Serve until :meth:`stop` or, in the main thread, the first SIGTERM or Ctrl-C; a cancellation ends it at once.

        :raises ServerUnavailable: when the server cannot be reached at the start; later, the service waits for it.
        :raises RefusedError: when the service has run before.
        """
        with stopped_by_signals(self.stop):
            return await self._run()

    async def _run(self) -> R:
        if self._runs:
            raise RefusedError(f"a {self._noun} runs once: make another one")
        self._runs = True
        error: BaseException | None = None
        try:
            return await self._serve()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._stopped = self._over = True
            self._end(error)
            await self.close()

    def _end(self, error: BaseException | None) -> None:
        """Tell all waiters that nothing more will come."""

    async def close(self) -> None:
        """Release everything; work that still runs is cancelled."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=END_S)

    def stop(self) -> None:
        """Stop the service in good order."""
        self._stopped = True
        self.tell(Stop())

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(lambda _: self._begins.set())
        try:
            await self._begins.wait()
        except BaseException:
            # A caller that gives up the start has no service to stop.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise
        if self._task.done():
            await self._task
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self.stop()
        await self._task


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make the first SIGTERM or SIGINT in the block call a function, in the event loop, which it wakes."""
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:

        def end() -> None:
            stack.close()
            stop()

        for number in taken_signals(stack):
            loop.add_signal_handler(number, end)
            stack.callback(loop.remove_signal_handler, number)
        yield
