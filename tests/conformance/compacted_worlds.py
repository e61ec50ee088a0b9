"""Compacted queues behind one face, so that one test serves blocking and asyncio callers, one server and a cluster."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from queuekeeper import redis_client
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.redis_async import connect as connect_async
from tests.conformance.store_worlds import AwaitedStore


class SteppedClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class QueueWorld:
    """Queues on a real server.

    :param awaited: whether they are the asyncio ones.
    :ivar clock: the time of all queues.
    :ivar client: a connection beside theirs.
    """

    def __init__(self, url: str, *, awaited: bool) -> None:
        self.url = url
        self.clock = SteppedClock()
        self.client: Any = redis_client.connect(url)
        self._runner = asyncio.Runner() if awaited else None
        self._opened = ExitStack()
        self._opened_async = AsyncExitStack()

    def queues(self, *, url: str | None = None, **options: Any) -> Any:
        """Return another object for the same queues, with a connection of its own; its methods return results.

        :param url: of a proxy before the server.
        """
        options.setdefault("clock", self.clock)
        if self._runner is None:
            client = self._opened.enter_context(redis_client.connect(url or self.url))
            return CompactedQueues(client, **options)
        return AwaitedStore(self._runner.run(self._asyncio_queues(url or self.url, options)), self._runner)

    def neighbour(self) -> CompactedQueues:
        """Return blocking queues, for use by another thread than the test's."""
        return CompactedQueues(self.client, clock=self.clock)

    async def _asyncio_queues(self, url: str, options: dict[str, Any]) -> AsyncCompactedQueues:
        caller = await self._opened_async.enter_async_context(await connect_async(url))
        return AsyncCompactedQueues(caller, **options)

    def key_names(self) -> list[bytes]:
        """Return the names of all keys of all servers."""
        return sorted(key for _, node in redis_client.nodes(self.client) for key in node.scan_iter(count=1_000))

    def erase(self) -> None:
        """Forget all queues."""
        for _, node in redis_client.nodes(self.client):
            node.flushall()

    def close(self) -> None:
        """Close what :meth:`queues` has opened, and end for good."""
        if self._runner is not None:
            self._runner.run(self._opened_async.aclose())
            self._runner.close()
        self._opened.close()
        self.client.close()
