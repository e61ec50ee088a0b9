"""What a ``with`` block closes at its end."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Self


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
