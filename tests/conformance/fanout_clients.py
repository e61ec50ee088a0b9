"""Producers and consumers of fan-out queues, in threads or in an event loop of its own, behind one face for tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from queuekeeper import redis_client
from queuekeeper.fanout.consumer import AsyncFanoutConsumer, FanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.handlers import Handler
from queuekeeper.fanout.producer import AsyncFanoutProducer, FanoutProducer
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.redis_async import connect as connect_async
from tests.patience import PATIENCE_S


def until(condition: Callable[[], Any], *, what: str) -> None:
    """Wait for something that can only be asked for."""
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at_s, f"in vain waited for: {what}"
        time.sleep(0.01)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def close(self) -> None:
        """End it."""
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited:
    """An asyncio object whose coroutine methods block."""

    def __init__(self, target: Any, loop: Loop) -> None:
        self.target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.target, name)
        return lambda *args, **kwargs: self._loop.run(method(*args, **kwargs))


class Clients:
    """Makes producers and consumers of one kind.

    :param awaited: whether they are the asyncio ones.
    :ivar queues: blocking, for looking.
    """

    def __init__(self, url: str, *, awaited: bool) -> None:
        self.url = url
        self.awaited = awaited
        self._stack = ExitStack()
        self.client: Any = self._stack.enter_context(redis_client.connect(url))
        self.queues = FanoutQueues(self.client)
        self._loop: Loop | None = None
        if awaited:
            self._loop = Loop()
            self._stack.callback(self._loop.close)

    def close(self) -> None:
        """Give everything back."""
        self._stack.close()

    def _queues(self, url: str) -> Any:
        """Return queues with connections of their own."""
        if self._loop is None:
            return FanoutQueues(self._stack.enter_context(redis_client.connect(url)), retry_for_s=1)

        async def opened() -> Any:
            return await connect_async(url, retry_for_s=1)

        caller = self._loop.run(opened())
        self._stack.callback(lambda: self._loop and self._loop.run(caller.close()))
        return AsyncFanoutQueues(caller)

    def producer(self, *, url: str | None = None, **options: Any) -> Any:
        """Return a producer whose methods block."""
        queues = self._queues(url or self.url)
        if self._loop is None:
            return FanoutProducer(queues, **options)
        return Awaited(self._loop.run(_made(AsyncFanoutProducer, queues, **options)), self._loop)

    @contextmanager
    def consuming(
        self,
        queue: str,
        work: Any,
        *,
        url: str | None = None,
        rules: dict[str, Any] | None = None,
        **options: Any,
    ) -> Iterator[Callable[[], Any]]:
        """Run a consumer during the block; the handler is a blocking function either way. Answers what stops it."""
        consumer = self._consumer(queue, work, url=url or self.url, rules=rules or {}, **options)
        if self._loop is None:
            with consumer:
                yield consumer.stop
            return
        loop = self._loop
        loop.run(consumer.__aenter__())
        try:
            yield lambda: loop.loop.call_soon_threadsafe(consumer.stop)
        finally:
            loop.run(consumer.__aexit__(None, None, None))

    def consume(self, queue: str, work: Any, **options: Any) -> None:
        """Run a consumer until it ends by itself."""
        consumer = self._consumer(queue, work, url=self.url, rules=options.pop("rules", {}), **options)
        if self._loop is None:
            consumer.run()
        else:
            self._loop.run(consumer.run())

    def _consumer(self, queue: str, work: Any, *, url: str, rules: dict[str, Any], **options: Any) -> Any:
        queues = self._queues(url)
        options["rules"] = WorkRules(**({"grace_s": PATIENCE_S} | rules))
        if self._loop is None:
            return FanoutConsumer(queues, queue, work, **options)
        return self._loop.run(_made(AsyncFanoutConsumer, queues, queue, _in_thread(work), **options))


async def _made(kind: Any, *args: Any, **options: Any) -> Any:
    return kind(*args, **options)


def _in_thread(work: Any) -> Any:
    function = work.work if isinstance(work, Handler) else work

    @wraps(function)
    async def awaited(message: Any) -> Any:
        return await asyncio.to_thread(function, message)

    return Handler(work=awaited, rules=work.rules) if isinstance(work, Handler) else awaited
