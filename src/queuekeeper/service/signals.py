"""Makes SIGTERM and Ctrl-C stop a service in good order; a second signal has its usual effect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_taken: dict[signal.Signals, Any] = {}
"""Signals that a service handles, each with the handler that it had before."""


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make the first SIGTERM or SIGINT in the block call a function.

    Outside the main thread, and for a signal that the program handles itself, nothing is changed.
    """
    with ExitStack() as stack:

        def end(*_: object) -> None:
            stack.close()
            stop()

        for number in taken_signals(stack):
            signal.signal(number, end)
        yield


def taken_signals(stack: ExitStack) -> Iterator[signal.Signals]:
    """Yield those of SIGTERM and SIGINT that a service may handle: in the main thread, those without a handler.

    :param stack: gives them their handlers back.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if _is_free(before):
            _taken[number] = before
            stack.callback(_give_back, number, before)
            yield number


def _give_back(number: signal.Signals, before: Any) -> None:
    _taken.pop(number, None)
    signal.signal(number, before)


_forking = threading.local()


def _hold_back() -> None:
    """Hold signals back until a forked process has its own handlers: one that came earlier would reach its parent."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, list(_taken))


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _give_back_in_child() -> None:
    """Let signals end a process that a handler has forked; they would stop the service of its parent instead.

    The event loop of both is woken through the same socket.
    """
    if _taken:
        signal.set_wakeup_fd(-1)
    for number, before in list(_taken.items()):
        # A handler of asyncio.run cancels a task, which does not run here.
        _give_back(number, before if before is signal.SIG_DFL else signal.default_int_handler)
    _let_through()


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_give_back_in_child)


def _is_free(handler: Any) -> bool:
    # asyncio.run has its own handler, which cancels the task.
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or type(owner).__module__ == "asyncio.runners"
