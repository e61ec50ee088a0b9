"""Services with a connection of their own, which they open again when it is lost; the server can notify them."""

from __future__ import annotations

import selectors
from dataclasses import dataclass
from typing import Any, TypeVar

from queuekeeper.events.broker import AsyncEventBroker, EventBroker, broker_errors
from queuekeeper.postgres import AsyncConnection, Connection, connect, connect_async
from queuekeeper.service.aio import AsyncService
from queuekeeper.service.blocking import BlockingService

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Open:
    """Step: close the connection, if there is one, and open another; there is no answer."""


class EventService(BlockingService[R]):
    """A service in a thread.

    :param url: URL of the database.
    """

    def __init__(self, url: str, *, noun: str, threads: int) -> None:
        super().__init__(noun=noun, threads=threads)
        self._url = url
        self._connection: Connection | None = None
        self._broker: EventBroker | None = None

    def _ask_server(self, step: Any) -> Any:
        if isinstance(step, Open):
            self._disconnect()
            self._connection = connect(self._url, autocommit=True)
            self._selector.register(self._connection.fileno(), selectors.EVENT_READ)
            self._broker = EventBroker(self._connection)
            return None
        assert self._broker is not None
        return self._broker.answer(step)

    def _notified(self) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        with broker_errors(self._connection):
            return bool(list(self._connection.notifies(timeout=0)))

    def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection, self._broker = self._connection, None, None
            for key in list(self._selector.get_map().values()):
                if key.fileobj is not self._bell:
                    self._selector.unregister(key.fileobj)
            connection.close()

    def close(self, *, patient: bool) -> None:
        """Release everything, the connection first."""
        self._disconnect()
        super().close(patient=patient)


class AsyncEventService(AsyncService[R]):
    """A service in an event loop.

    :param url: URL of the database.
    """

    def __init__(self, url: str, *, noun: str) -> None:
        super().__init__(noun=noun)
        self._url = url
        self._connection: AsyncConnection | None = None
        self._broker: AsyncEventBroker | None = None

    async def _ask_server(self, step: Any) -> Any:
        if isinstance(step, Open):
            await self._disconnect()
            self._connection = await connect_async(self._url, autocommit=True)
            self._broker = AsyncEventBroker(self._connection)
            return None
        assert self._broker is not None
        return await self._broker.answer(step)

    def _watched(self) -> int | None:
        return None if self._connection is None or self._connection.closed else self._connection.fileno()

    async def _notified(self) -> bool:
        if self._connection is None or self._connection.closed:
            return False
        with broker_errors(self._connection):
            return bool([one async for one in self._connection.notifies(timeout=0)])

    async def _disconnect(self) -> None:
        if self._connection is not None:
            connection, self._connection, self._broker = self._connection, None, None
            await connection.close()

    async def close(self) -> None:
        """Release everything, the connection last."""
        await super().close()
        await self._disconnect()
