"""Ends a handler that takes too long: by a cancellation in an event loop, by an exception in a thread."""

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
    """Raised in a thread; no ``Exception``, so that a handler does not take it for a failure of its own."""


class _Watch:
    """One thread that raises in others when their time is up."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends_s: dict[object, tuple[float, int]] = {}
        self._wakes_s = math.inf
        self._thread: threading.Thread | None = None

    def begin(self, limit_s: float) -> object:
        entry = object()
        end_s = time.monotonic() + limit_s
        with self._changed:
            self._ends_s[entry] = (end_s, threading.get_ident())
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="queuekeeper-limits", daemon=True)
                self._thread.start()
            if end_s < self._wakes_s:
                self._wakes_s = end_s
                self._changed.notify()
        return entry

    def end(self, entry: object) -> None:
        with self._changed:
            self._ends_s.pop(entry, None)
            # It may have been raised and not have come yet.
            _raise_in(threading.get_ident(), None)

    def _run(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for entry, (end_s, thread_id) in list(self._ends_s.items()):
                    if end_s <= now_s:
                        del self._ends_s[entry]
                        _raise_in(thread_id, _TimeIsUp)
                self._wakes_s = min((end_s for end_s, _ in self._ends_s.values()), default=math.inf)
                self._changed.wait(None if self._wakes_s == math.inf else self._wakes_s - now_s)


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
