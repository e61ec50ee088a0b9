"""Middleware that looks on, the same for the consumers of every store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

INSIDE: ContextVar[Any] = ContextVar("inside", default=None)
"""What a handler is called for, while it is called."""


class Watching:
    """Notes what it is told and what it puts around, and fails where that changes nothing.

    A test puts it before its store's class of middleware.
    """

    def __init__(self) -> None:
        self.told: list[Any] = []

    def name_of(self, message: Any) -> Any:
        """Return by what the notes name a message."""
        return message.attempt

    @contextmanager
    def around(self, message: Any, /) -> Iterator[None]:
        inside = INSIDE.set(self.name_of(message))
        try:
            yield
        except KeyError:
            self.told.append("ended")
        finally:
            INSIDE.reset(inside)

    def before(self, message: Any, /) -> None:
        self.told.append(("before", self.name_of(message)))
        raise ValueError("middleware")

    def after(self, message: Any, /, *, duration_s: float) -> None:
        assert duration_s >= 0
        assert INSIDE.get() is None, "what it has put around is over"
        self.told.append(("after", self.name_of(message)))

    def error(self, message: Any, error: Exception, /, *, duration_s: float, is_final: bool) -> None:
        assert duration_s >= 0
        self.told.append((repr(error), self.name_of(message), is_final))
