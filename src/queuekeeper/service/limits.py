"""Ends a handler that takes too long: by a cancellation in an event loop, by an exception in a thread."""

from __future__ import annotations

import ctypes
import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, TypeVar

from queuekeeper.errors import TimeLimitExceeded

T = TypeVar("T")


class _TimeIsUp(BaseException):
    """Raised in a thread; no ``Exception``, so that a handler does not take it for a failure of its own."""


class _Entry:
    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.is_over = False


class _Watch:
    """One thread that raises in others when their time is up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: list[tuple[float, int, _Entry]] = []
        self._numbers = count()
        self._thread: threading.Thread | None = None

    def begin(self, limit_s: float) -> _Entry:
        entry = _Entry()
        with self._changed:
            heapq.heappush(self._entries, (time.monotonic() + limit_s, next(self._numbers), entry))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="queuekeeper-limits", daemon=True)
                self._thread.start()
            self._changed.notify()
        return entry

    def end(self, entry: _Entry) -> None:
        with self._changed:
            entry.is_over = True
            # It may have been raised and not have come yet.
            _raise_in(entry.thread_id, None)

    def _run(self) -> None:
        with self._changed:
            while True:
                while self._entries and self._entries[0][2].is_over:
                    heapq.heappop(self._entries)
                left_s = self._entries[0][0] - time.monotonic() if self._entries else None
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                    continue
                _, _, entry = heapq.heappop(self._entries)
                _raise_in(entry.thread_id, _TimeIsUp)


def _raise_in(thread_id: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )


_watch = _Watch()


def limited(work: Callable[..., T], *given: Any, limit_s: float) -> T:
    """Call a function, and raise in it when its time is up.

    A call into C, such as a query or a sleep, is not interrupted: the exception comes when it returns.

    :raises TimeLimitExceeded: when the function took too long.
    """
    entry = _watch.begin(limit_s)
    try:
        try:
            return work(*given)
        finally:
            _watch.end(entry)
    except _TimeIsUp:
        raise time_is_up(limit_s) from None


def time_is_up(limit_s: float) -> TimeLimitExceeded:
    """Return the error of a handler that took too long."""
    return TimeLimitExceeded(f"the handler took longer than its {limit_s:g} s")
