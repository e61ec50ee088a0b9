"""Makes SIGTERM and Ctrl-C stop a service in good order; a second signal has its usual effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Make the first SIGTERM or SIGINT in the block call a function.

    Outside the main thread, and for a signal that the program handles itself, nothing is changed.
    """
    with ExitStack() as stack:

        def end(*_: object) -> None:
            stack.close()
            stop()

        for number in free_signals():
            stack.callback(signal.signal, number, signal.signal(number, end))
        yield


def free_signals() -> list[signal.Signals]:
    """Return those of SIGTERM and SIGINT that a service may handle: in the main thread, those without a handler."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in (signal.SIGTERM, signal.SIGINT) if _is_free(signal.getsignal(number))]


def _is_free(handler: Any) -> bool:
    # asyncio.run has its own handler, which cancels the task.
    owner = getattr(getattr(handler, "func", None), "__self__", None)
    return handler in (signal.SIG_DFL, signal.default_int_handler) or type(owner).__module__ == "asyncio.runners"
