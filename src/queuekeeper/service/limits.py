"""Ends a handler that exceeds its time limit: by cancellation in an event loop, by an exception in a thread."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from queuekeeper.errors import TimeLimitExceeded

T = TypeVar("T")


class _TimeIsUp(BaseException):
    """Raised in a thread; it is not an ``Exception``, so that the handler does not catch it as its own failure."""


class _Limit:
    """The time limit of one call; the thread that removes it from the watch decides the outcome.

    :ivar was_raised: whether the time was up, so that the exception has come or will come.
    """

    __slots__ = ("end_s", "thread_id", "was_raised")

    def __init__(self, limit_s: float) -> None:
        self.end_s = time.monotonic() + limit_s
        self.thread_id = threading.get_ident()
        self.was_raised = False


class _Watch:
    """A thread that raises an exception in other threads when their time is up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._limits: set[_Limit] = set()
        self._wakes_s = math.inf
        self._thread: threading.Thread | None = None

    def begin(self, limit: _Limit) -> None:
        with self._changed:
            self._limits.add(limit)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="queuekeeper-limits", daemon=True)
                self._thread.start()
            if limit.end_s < self._wakes_s:
                self._wakes_s = limit.end_s
                self._changed.notify()

    def end(self, limit: _Limit) -> None:
        # Without the lock: an exception while the thread takes the lock would leave it taken for ever.
        if self._take_off(limit):
            return
        while not limit.was_raised:
            time.sleep(0.001)
        # The exception may not have come yet.
        _raise_in(limit.thread_id, None)

    def _take_off(self, limit: _Limit) -> bool:
        """Remove a limit; return whether no other thread has removed it."""
        try:
            self._limits.remove(limit)
        except KeyError:
            return False
        return True

    def _run(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for limit in list(self._limits):
                    if limit.end_s <= now_s and self._take_off(limit):
                        _raise_in(limit.thread_id, _TimeIsUp)
                        limit.was_raised = True
                self._wakes_s = min((limit.end_s for limit in list(self._limits)), default=math.inf)
                self._changed.wait(None if self._wakes_s == math.inf else self._wakes_s - now_s)


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )


_watch = _Watch()


def limited(work: Callable[..., T], *given: Any, limit_s: float) -> T:
    """Call a function, and raise an exception in it when its time is up.

    A call into C, such as a query or a sleep, is not interrupted: the exception comes when it returns.

    :raises TimeLimitExceeded: when the function took too long.
    """
    limit = _Limit(limit_s)
    try:
        _watch.begin(limit)
        try:
            return work(*given)
        finally:
            _watch.end(limit)
    except _TimeIsUp:
        raise time_is_up(limit_s) from None


def time_is_up(limit_s: float) -> TimeLimitExceeded:
    """Return the error of a handler that has exceeded its time limit."""
    return TimeLimitExceeded(f"the handler took longer than its {limit_s:g} s")
