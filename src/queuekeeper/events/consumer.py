"""Consumers of a group: they read its events for handlers and listeners.

The work of a consumer is one operation (:class:`~queuekeeper.events.consumption.Consumption`). :class:`EventConsumer`
runs it in a thread and handlers in other threads, :class:`AsyncEventConsumer` runs all in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from queuekeeper.checks import check_integer, checked
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.events.consumption import Asked, Consumption, Left
from queuekeeper.events.handlers import (
    AsyncListener,
    Handler,
    Listener,
    Middleware,
    ReliableHandler,
    RetryRules,
    Work,
    awaited_attempt,
    blocking_attempt,
)
from queuekeeper.events.model import (
    Delivery,
    Interest,
    ReadRules,
    Splitter,
    Subscription,
)
from queuekeeper.events.service import AsyncEventService, EventService
from queuekeeper.operation import Operation, awaited, blocking, keeps
from queuekeeper.postgres import address_of
from queuekeeper.service.handlers import check_middleware, handler_of, refuse_coroutine_function
from queuekeeper.text_form import shows

THREADS = 8


def check_threads(threads: int) -> int:
    """Return the number of threads, which must be from 1 to 1,000."""
    check_integer("threads", threads, 1, 1_000)
    return threads


class _OfGroup:
    operations: Consumption

    @property
    def group_id(self) -> str:
        """Id of the group whose events it reads."""
        return self.operations.group_id


@shows(server=lambda consumer: address_of(consumer._url), group="group_id")
class EventConsumer(_OfGroup, EventService[None]):
    """Reads a group's events and calls handlers in threads of its own.

    ::

        consumer = EventConsumer(url, group_id="billing")
        consumer.handle(bill, name="bill", interest=Interest.topics("order.paid"), retries_s=(1, 10, 60))
        consumer.run()  # until stop() is called, in another thread or by a signal

    Or ``with consumer:``, which runs the consumer in a thread until the block ends. One consumer of a group reads; when
    it ends, another continues from its cursor. Each handler gets every event of its subscription at least once.

    :param url: URL of the database.
    :param group_id: id of the group.
    :param rules: how the consumer reads; defaults when absent.
    :param threads: number of handlers that run at once, 8 by default; each works on one delivery at a time.
    :param middleware: observes or wraps each attempt; see :class:`~queuekeeper.events.handlers.Middleware`.
    :raises UsageError: when a parameter is out of range.
    """

    @checked
    def __init__(
        self,
        url: str,
        *,
        group_id: str,
        rules: ReadRules | None = None,
        threads: int = THREADS,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._rules = rules or ReadRules()
        check_middleware(middleware)
        super().__init__(url, noun="consumer", threads=check_threads(threads))
        self.operations: Consumption = Consumption(
            group_id=group_id,
            rules=self._rules,
            attempt=partial(blocking_attempt, middleware=tuple(middleware)),
            began=self._begins.set,
        )

    @checked
    def handle(
        self,
        work: Handler | Work,
        *,
        name: str,
        interest: Interest | None = None,
        retries_s: Sequence[float] | None = None,
        split: Splitter | None = None,
    ) -> None:
        """Call a function with every event of a subscription, at least once and one delivery after the other.

        Add handlers before the consumer runs: events that are read before a handler is added do not reach it.

        :param work: function that gets each delivery; a :class:`Handler` brings its own rules.
        :param name: name by which a retry finds the handler, also after a restart; unique in the group.
        :param interest: events that the handler gets; every event when absent.
        :param retries_s: for a plain function, seconds before each retry; later events do not wait for a retry, and
            after the last failure the events become dead letters. With ``None``, the default, the order is kept: later
            events wait, and the delivery comes again until it is done. In both cases
            :class:`~queuekeeper.errors.Rejected` makes dead letters at once.
        :param split: cuts a delivery into parts that are retried separately; by default it is retried as a whole.
        :raises UsageError: when the name is in use, or the work is a coroutine function that nobody would await.
        """
        refuse_coroutine_function(handler_of(Handler, work), take="AsyncEventConsumer")
        handler = _handler(work, name, interest, retries_s, split)
        with self._gate:
            if not self._runs:
                self.operations.admit(handler)
                return
        self._ask(lambda: self.operations.add_handler(handler))

    @checked
    def listen(self, interest: Interest | None = None) -> Listener:
        """Return a listener, which gets events from now on and acknowledges none; the consumer must run."""
        return self.listen_to(interest or Interest())[0]

    @checked
    def listen_to(self, interest: Interest) -> tuple[Listener, Subscription]:
        """Return a listener, as :meth:`listen` does, and its subscription."""

        def make(subscription_id: str) -> Listener:
            limit = self._rules.listener_events
            return Listener(subscription_id, limit=limit, forget=lambda one: self.tell(Left(one)))

        found: tuple[Listener, Subscription] = self._ask(lambda: self.operations.add_listener(interest, make))
        return found

    @checked
    def unsubscribe(self, subscription_id: str) -> bool:
        """Remove a subscription with its handlers and listeners; return whether it existed."""
        return bool(self._ask(lambda: self.operations.unsubscribe(subscription_id)))

    def _ask(self, operation: Callable[[], Operation[Any]]) -> Any:
        future: Future[Any] = Future()
        with self._gate:
            if self._over or not self._runs:
                raise RefusedError("the consumer does not run: start it first, by run() or a with block")
            self.tell(Asked(operation=operation, future=future))
        return future.result()

    _serve = blocking(Consumption.run)

    def _end(self, error: BaseException | None) -> None:
        self.operations.end(error, self._told)


@shows(server=lambda consumer: address_of(consumer._url), group="group_id")
class AsyncEventConsumer(_OfGroup, AsyncEventService[None]):
    """:class:`EventConsumer` for asyncio: handlers are coroutine functions, and all runs in one event loop.

    :param url: URL of the database; the other parameters are those of :class:`EventConsumer`.
    """

    @checked
    def __init__(
        self,
        url: str,
        *,
        group_id: str,
        rules: ReadRules | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._rules = rules or ReadRules()
        check_middleware(middleware)
        super().__init__(url, noun="consumer")
        self.operations: Consumption = Consumption(
            group_id=group_id,
            rules=self._rules,
            attempt=partial(awaited_attempt, middleware=tuple(middleware)),
            began=self._begins.set,
        )

    @keeps(EventConsumer.handle)
    @checked
    async def handle(
        self,
        work: Handler | Callable[[Delivery], Awaitable[Any]],
        *,
        name: str,
        interest: Interest | None = None,
        retries_s: Sequence[float] | None = None,
        split: Splitter | None = None,
    ) -> None:
        """The work is a coroutine function."""
        handler = _handler(work, name, interest, retries_s, split)
        if not self._runs:
            self.operations.admit(handler)
        else:
            await self._ask(lambda: self.operations.add_handler(handler))

    @checked
    async def listen(self, interest: Interest | None = None) -> AsyncListener:
        """Return a listener, which gets events from now on and acknowledges none; the consumer must run."""
        return (await self.listen_to(interest or Interest()))[0]

    @checked
    async def listen_to(self, interest: Interest) -> tuple[AsyncListener, Subscription]:
        """Return a listener, as :meth:`listen` does, and its subscription."""
        made: list[AsyncListener] = []
        is_wanted = True

        def make(subscription_id: str) -> AsyncListener:
            limit = self._rules.listener_events
            listener = AsyncListener(subscription_id, limit=limit, forget=lambda one: self.tell(Left(one)))
            made.append(listener)
            if not is_wanted:
                listener.close()
            return listener

        try:
            found: tuple[AsyncListener, Subscription] = await self._ask(
                lambda: self.operations.add_listener(interest, make)
            )
        except BaseException:
            # The consumer may make it before or after a cancellation of the caller, who would never close it.
            is_wanted = False
            for listener in made:
                listener.close()
            raise
        return found

    @checked
    async def unsubscribe(self, subscription_id: str) -> bool:
        """Remove a subscription with its handlers and listeners; return whether it existed."""
        return bool(await self._ask(lambda: self.operations.unsubscribe(subscription_id)))

    async def _ask(self, operation: Callable[[], Operation[Any]]) -> Any:
        if self._over or not self._runs:
            raise RefusedError("the consumer does not run: start it first, by run() or an async with block")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.tell(Asked(operation=operation, future=future))
        return await future

    _serve = awaited(Consumption.run)

    def _end(self, error: BaseException | None) -> None:
        self.operations.end(error, self._told)


def _handler(
    work: Handler | Work,
    name: str,
    interest: Interest | None,
    retries_s: Sequence[float] | None,
    split: Splitter | None,
) -> ReliableHandler:
    if isinstance(work, Handler) and retries_s is not None:
        raise UsageError(
            f"retries_s is {tuple(retries_s)}: the handler has rules of its own, {work.rules}; leave retries_s out"
        )
    found = handler_of(Handler, work)
    rules = found.rules if retries_s is None else RetryRules(retries_s=retries_s)
    return ReliableHandler(work=found.work, name=name, interest=interest or Interest(), rules=rules, split=split)
