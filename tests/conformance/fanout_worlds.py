"""Fan-out queues on a real server, blocking or asyncio, with a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import Any, TypeAlias

from queuekeeper import redis_client
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.keyspace import FanoutConsumerKeys, FanoutKeys, fanout_consumer_keys, fanout_keys
from queuekeeper.redis_async import connect as connect_async
from tests.conformance.store_worlds import AtStep, AwaitedStore

Queues: TypeAlias = Any
"""Has the methods of ``FanoutQueues``, each of which returns its result."""

START_MS = 1_800_000_000_000
PREFIX = "test:"


class FanoutWorld:
    """A server without queues.

    :param awaited: whether :meth:`queues` are the asyncio ones.
    :ivar now_ms: time by the clock of all queues.
    :ivar client: for looking into keys, and breaking them.
    """

    def __init__(self, url: str, *, awaited: bool) -> None:
        self.url = url
        self.now_ms = START_MS
        self.client: Any = redis_client.connect(url)
        self.awaited = awaited
        self._runner = asyncio.Runner() if awaited else None
        self._opened = ExitStack()
        self._opened_async = AsyncExitStack()

    def queues(self, *, url: str | None = None, **options: Any) -> Queues:
        """Return another object for the same server, with a connection of its own."""
        options = {"clock": lambda: self.now_ms, **options}
        if self._runner is None:
            return self._open(url or self.url, options)
        return AwaitedStore(self._runner.run(self._open_async(url or self.url, options)), self._runner)

    def neighbour(self) -> FanoutQueues:
        """Return a blocking object, which can be called in the midst of another one's operation."""
        return self._open(self.url, {"clock": lambda: self.now_ms})

    def _open(self, url: str, options: dict[str, Any]) -> FanoutQueues:
        client = self._opened.enter_context(redis_client.connect(url))
        return FanoutQueues(client, PREFIX, **options)

    async def _open_async(self, url: str, options: dict[str, Any]) -> AsyncFanoutQueues:
        caller = await self._opened_async.enter_async_context(await connect_async(url))
        return AsyncFanoutQueues(caller, PREFIX, **options)

    def pass_ms(self, milliseconds: int) -> None:
        """Let time pass."""
        self.now_ms += milliseconds

    @staticmethod
    def keys(queue: str) -> FanoutKeys:
        """Return the keys of a queue."""
        return fanout_keys(queue, prefix=PREFIX)

    @staticmethod
    def consumer_keys(queue: str, consumer: str, *, lanes: int = 1) -> FanoutConsumerKeys:
        """Return the keys of a consumer."""
        return fanout_consumer_keys(queue, consumer, lanes=lanes, prefix=PREFIX)

    def all_keys(self) -> dict[Any, Any]:
        """Return the names of all keys, with the text of what they hold."""
        return {key: node.dump(key) for _, node in redis_client.nodes(self.client) for key in node.keys("*")}

    def erase(self) -> None:
        """Forget all queues, and close what :meth:`queues` has opened."""
        if self._runner is not None:
            self._runner.run(self._opened_async.aclose())
        self._opened.close()
        for _, node in redis_client.nodes(self.client):
            node.flushall()

    def close(self) -> None:
        """End for good."""
        self.erase()
        if self._runner is not None:
            self._runner.close()
        self.client.close()

    @contextmanager
    def before_step(self, queues: Queues, number: int, act: Callable[[], Any]) -> Iterator[None]:
        """Do something once before a step of the block is sent.

        :param number: of the step, counted from 1.
        """
        target = queues.store if isinstance(queues, AwaitedStore) else queues
        original = target.answer
        at_step = AtStep(number, act)

        def answer(step: Any) -> Any:
            at_step.count()
            return original(step)

        target.answer = answer
        yield
        target.answer = original
        assert at_step.was_reached()
