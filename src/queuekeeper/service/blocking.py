"""Runs a service in a thread, and its work in other threads."""

from __future__ import annotations

import queue
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar

from queuekeeper.errors import RefusedError
from queuekeeper.service.signals import stopped_by_signals
from queuekeeper.service.steps import END_S, Begin, Cut, Ended, Happened, Stop, Wait

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Threads:
    """Threads that carry out work and end with the process, even while they work; a pool would wait for them.

    :param most: largest number of threads.
    :param name: name of each thread, followed by its number.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most = most
        self._name = name
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._all: list[threading.Thread] = []
        self._over = False

    def begin(self, work: Callable[[], None]) -> None:
        """Start work in a thread, at once or when one is free."""
        if not self._idle.acquire(blocking=False) and len(self._all) < self._most:
            thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._all)}", daemon=True)
            self._all.append(thread)
            thread.start()
        self._given.put(work)

    def _work(self) -> None:
        while (work := self._given.get()) is not None and not self._over:
            work()
            self._idle.release()

    def end(self, *, wait: bool, longest_s: float | None = None) -> None:
        """Let each thread end after its present work; work that has not begun is dropped.

        :param wait: whether to wait until all threads have ended.
        :param longest_s: longest time in seconds to wait, no limit by default.
        """
        give_up_at_s = None if longest_s is None else time.monotonic() + longest_s
        self._over = True
        for _ in self._all:
            self._given.put(None)
        for thread in self._all if wait else ():
            thread.join(None if give_up_at_s is None else max(0.0, give_up_at_s - time.monotonic()))


class LoopPool(ThreadPoolExecutor):
    """Threads in which coroutines let functions work, as by ``asyncio.to_thread``; they end with the process, too.

    The pool of a loop would keep the process from ending while one works.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ending = Threads(self._max_workers, name="queuekeeper-pool")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let a function work."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._ending.begin(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for present work, but not longer than the end of a service may take."""
        del cancel_futures
        self._ending.end(wait=wait, longest_s=END_S)


class BlockingService(Generic[R]):
    """Carries out the steps of an operation; ``tell`` and ``stop`` may be called in any thread and signal handler.

    ``run`` works until ``stop`` is called; ``with service:`` runs it in a thread until the end of the block. A stop
    lets running work finish within the operation's time of grace; work that takes longer is abandoned and does not keep
    the process from ending. A subclass defines the operation (``_serve``) and carries out its other steps
    (``_ask_server``).

    :param noun: word for the service in messages.
    :param threads: number of pieces of work that run at once.
    """

    operations: Any
    _serve: Callable[[], R]

    def __init__(self, *, noun: str, threads: int) -> None:
        self._noun = noun
        self._threads = Threads(threads, name=f"queuekeeper-{noun}")
        self._told: deque[Any] = deque()
        self._gate = threading.Lock()
        self._begins = threading.Event()
        self._runs = self._over = self._stopped = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._bell_selector = selectors.DefaultSelector()
        for selector in (self._selector, self._bell_selector):
            selector.register(self._bell, selectors.EVENT_READ)

    def tell(self, message: Any) -> None:
        """Wake the operation with a message."""
        self._told.append(message)
        # If the socket is full, the operation has been woken; if it is closed, nobody waits.
        with suppress(OSError):
            self._ringer.send(b"!")

    def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Wait):
            return self._wait(step)
        if isinstance(step, Begin):
            self._threads.begin(partial(self._work, step))
            return None
        if isinstance(step, Cut):
            return False
        return self._ask_server(step)

    def _ask_server(self, step: Any) -> Any:
        raise AssertionError(f"a {self._noun} cannot carry out {step!r}")

    def _work(self, step: Begin) -> None:
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
        """Take the server's notifications; return whether there were any."""
        return False

    def run(self) -> R:
        """Serve until :meth:`stop`; in the main thread the first SIGTERM or Ctrl-C stops it, too.

        :raises ServerUnavailable: when the server cannot be reached at the start; later, the service waits for it.
        :raises RefusedError: when the service has run before.
        """
        self._take_up()
        with stopped_by_signals(self.stop):
            return self._run()

    def _take_up(self) -> None:
        with self._gate:
            if self._runs:
                raise RefusedError(f"a {self._noun} runs once: make another one")
            self._runs = True

    def _run(self) -> R:
        error: BaseException | None = None
        try:
            return self._serve()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._stopped = True
            with self._gate:
                self._over = True
                self._end(error)
            # Work that has exceeded the time of grace may never end.
            self.close(patient=not self.operations.late)

    def _end(self, error: BaseException | None) -> None:
        """Tell all waiters that nothing more will come."""

    def close(self, *, patient: bool) -> None:
        """Release everything.

        :param patient: whether to wait for running work.
        """
        self._threads.end(wait=patient)
        self._selector.close()
        self._bell_selector.close()
        self._bell.close()
        self._ringer.close()

    def stop(self) -> None:
        """Stop the service in good order; may be called in another thread and in a signal handler."""
        self._stopped = True
        self.tell(Stop())

    def _run_in_thread(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error
        finally:
            self._begins.set()

    def __enter__(self) -> Self:
        self._take_up()
        self._thread = threading.Thread(target=self._run_in_thread, name=f"queuekeeper-{self._noun}")
        try:
            self._thread.start()
            self._begins.wait()
        except BaseException:
            # A caller that gives up the start, by Ctrl-C for example, has no service to stop.
            self.stop()
            # A thread that has not begun to run cannot be joined; it will see the stop.
            with suppress(RuntimeError):
                self._thread.join()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self.stop()
        self._thread.join()
        if self._error is not None:
            raise self._error
