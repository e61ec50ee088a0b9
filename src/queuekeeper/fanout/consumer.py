"""Consumers of fan-out queues, which call handlers.

The work of a consumer is one operation (:class:`~queuekeeper.fanout.consumption.Consumption`). :class:`FanoutConsumer`
runs it in a thread and handlers in other threads, :class:`AsyncFanoutConsumer` runs all in the event loop. Any number
of objects, in any number of processes, may share a consumer's name: only one of them has a message at a time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from queuekeeper.checks import checked
from queuekeeper.fanout.consumption import Consumption, WorkRules
from queuekeeper.fanout.handlers import Handler, Middleware, Work
from queuekeeper.fanout.model import ConsumerOptions, Start
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.fanout.reports import FanoutMessage, Registration
from queuekeeper.operation import awaited, blocking
from queuekeeper.service.aio import AsyncService
from queuekeeper.service.blocking import BlockingService
from queuekeeper.service.handlers import (
    AsyncCalls,
    BlockingCalls,
    check_middleware,
    handler_of,
    refuse_coroutine_function,
)
from queuekeeper.text_form import shows

LISTEN_S = 0.5
"""Seconds that a thread listens before it checks whether the consumer stops."""


class _Registered:
    """Properties of both classes of consumers."""

    operations: Consumption

    @property
    def registration(self) -> Registration | None:
        """Result of the registration; ``None`` before it and without ``register``."""
        return self.operations.registration


@shows(queues="_queues", queue="operations.queue", consumer="operations.consumer")
class FanoutConsumer(_Registered, BlockingService[None]):
    """Works on a consumer's messages in threads.

    ::

        consumer = FanoutConsumer(queues, "orders", bill, consumer="billing")
        consumer.run()  # until stop() is called, in another thread or by a signal

    Or ``with consumer:``, which runs the consumer in a thread until the block ends. Every message is worked on at least
    once; it is done when its handler returns. A stop waits for running handlers and gives back all other messages. A
    handler that takes longer than ``rules.grace_s`` is abandoned, and does not keep the process from ending.

    :param work: function that gets each message; a plain function has the default :class:`RetryRules`, a
        :class:`Handler` its own.
    :param rules: how the consumer works; defaults when absent.
    :param options: options of the registration, defaults when absent; a registered consumer keeps its own.
    :param start: earlier messages that the consumer gets when it is registered, none by default.
    :param register: whether it registers the consumer; if false, it only finishes a registration that was interrupted.
    :param middleware: observes or wraps each attempt; see :class:`~queuekeeper.fanout.handlers.Middleware`.
    :param draw: random number from 0 to 1, which spreads retries.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: FanoutQueues,
        queue: str,
        work: Handler | Work,
        *,
        consumer: str,
        rules: WorkRules | None = None,
        options: ConsumerOptions | None = None,
        start: Start = Start.NEW,
        register: bool = True,
        middleware: Sequence[Middleware] = (),
        draw: Callable[[], float] = random.random,
    ) -> None:
        work = handler_of(Handler, work)
        refuse_coroutine_function(work, take="AsyncFanoutConsumer")
        check_middleware(middleware)
        rules = rules or WorkRules()
        # One more thread, which listens.
        super().__init__(noun="consumer", threads=rules.workers + 1)
        self.operations: Consumption = Consumption(
            queues.operations, queue, work, consumer=consumer, rules=rules, options=options, start=start,
            register=register, middleware=middleware, draw=draw,
            calls=BlockingCalls, listen=self._listen, began=self._begins.set,
        )  # fmt: skip
        self._queues = queues

    _serve = blocking(Consumption.run)

    def _ask_server(self, step: Any) -> Any:
        return self._queues.answer(step)

    def _listen(self, timeout_s: float) -> bool:
        give_up_at_s = time.monotonic() + timeout_s
        state = self.operations
        while not self._stopped and (left_s := give_up_at_s - time.monotonic()) > 0:
            if self._queues.await_wake(state.queue, consumer=state.consumer, timeout_s=min(LISTEN_S, left_s)):
                return True
        return False


@shows(queues="_queues", queue="operations.queue", consumer="operations.consumer")
class AsyncFanoutConsumer(_Registered, AsyncService[None]):
    """:class:`FanoutConsumer` for asyncio: the handler is a coroutine function, and all runs in one event loop.

    A handler that still runs ``rules.grace_s`` after a stop is cancelled, and its message is given back. A handler that
    does not end then is abandoned.
    """

    @checked
    def __init__(
        self,
        queues: AsyncFanoutQueues,
        queue: str,
        work: Handler | Callable[[FanoutMessage], Awaitable[Any]],
        *,
        consumer: str,
        rules: WorkRules | None = None,
        options: ConsumerOptions | None = None,
        start: Start = Start.NEW,
        register: bool = True,
        middleware: Sequence[Middleware] = (),
        draw: Callable[[], float] = random.random,
    ) -> None:
        check_middleware(middleware)
        super().__init__(noun="consumer")
        self.operations: Consumption = Consumption(
            queues.operations, queue, work, consumer=consumer, rules=rules, options=options, start=start,
            register=register, middleware=middleware, draw=draw,
            calls=AsyncCalls, listen=self._listen, began=self._begins.set,
        )  # fmt: skip
        self._queues = queues

    _serve = awaited(Consumption.run)

    async def _ask_server(self, step: Any) -> Any:
        return await self._queues.answer(step)

    async def _listen(self, timeout_s: float) -> bool:
        if self._stopped:
            return False
        state = self.operations
        return await self._queues.await_wake(state.queue, consumer=state.consumer, timeout_s=timeout_s)

    def stop(self) -> None:
        """Stop the consumer in good order."""
        super().stop()
        for task, token in self._tasks.items():
            if token is None:
                task.cancel()
