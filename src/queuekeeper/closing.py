"""What a ``with`` block closes at its end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])


class Closing(ABC):
    """What has something to close, and is best used with ``with``."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """The same for asyncio: ``async with``."""

    @abstractmethod
    async def close(self) -> None:
        """Close it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Opening(Generic[T]):
    """What is to be opened: ``await`` opens it, and ``async with`` also ends it as a block of its own does.

    :param how: opens it.
    """

    def __init__(self, how: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._how = how
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._how().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._how()
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(self, *error: Any) -> bool | None:
        assert self._opened is not None
        return await self._opened.__aexit__(*error)


class Users:
    """Counts who is at work in something, so that whoever closes it can wait until nobody is; for one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._gone = asyncio.Event()
        self._gone.set()

    def enter(self) -> None:
        """Count one more."""
        if not self._count:
            self._gone.clear()
        self._count += 1

    def leave(self, *_: object) -> None:
        """Count one less; also as a callback of futures and tasks."""
        self._count -= 1
        if not self._count:
            self._gone.set()

    async def gone(self) -> None:
        """Return when nobody is at work."""
        await self._gone.wait()
