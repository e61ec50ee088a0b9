"""The event broker's client, blocking and asyncio, behind one face: tests are written once, as coroutines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Any, Literal, Self

import pytest

from queuekeeper import postgres
from queuekeeper.events.broker import AsyncEventBroker, EventBroker
from queuekeeper.events.consumer import AsyncEventConsumer, EventConsumer
from queuekeeper.events.dispatcher import AsyncDispatcher, Dispatcher, DispatchReport, DispatchRules
from queuekeeper.events.handlers import AsyncListener, Handler, Listener, Middleware, Work
from queuekeeper.events.model import Delivery, Interest, ReadRules
from queuekeeper.events.sse import StreamRules, open_stream, open_stream_async
from tests.conftest import nightly
from tests.patience import PATIENCE_S

Kind = Literal["blocking", "asyncio"]
KINDS: tuple[Kind, ...] = ("blocking", "asyncio")


async def until(condition: Callable[[], bool], *, what: str) -> None:
    """Wait for something that can only be asked for."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"in vain waited for: {what}"
        await asyncio.sleep(0.01)


TRANSIENT = {
    "40P01": "deadlock detected",
    "53100": "no room left",
    "53200": "out of memory",
    "55P03": "lock timeout",
    "57014": "canceled on request",
}
"""SQLSTATEs of refusals that may be over the next time, with words of each."""


def refuse(world: World, table: str, state: str) -> None:
    """Have the server refuse every write to a table, for a reason that may be over the next time."""
    world.sql.execute(
        "CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{TRANSIENT[state]}' USING ERRCODE = '{state}'; END $$"
    )
    world.sql.execute(
        f"CREATE TRIGGER refused BEFORE INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()"
    )


def allow(world: World, table: str) -> None:
    """Have the server write again."""
    world.sql.execute(f"DROP TRIGGER refused ON {table}")


class Threaded:
    """A blocking object whose methods are called in threads."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._target, name))


class HeardBlocking:
    """A blocking listener, read in threads."""

    def __init__(self, listener: Listener) -> None:
        self.subscription_id = listener.subscription_id
        self.close = listener.close
        self._listener = listener

    @property
    def ended(self) -> bool:
        return self._listener.ended

    async def get(self, *, timeout_s: float | None = None) -> Delivery | None:
        return await asyncio.to_thread(self._listener.get, timeout_s=timeout_s)


Heard = HeardBlocking | AsyncListener


class BlockingConsumer:
    """A blocking consumer; its handlers are coroutine functions that run in the test's loop."""

    def __init__(self, url: str, *, group_id: str, **options: Any) -> None:
        self.consumer = EventConsumer(url, group_id=group_id, **options)
        self._loop = asyncio.get_running_loop()

    async def handle(self, work: Handler | Callable[[Delivery], Awaitable[Any]], **options: Any) -> None:
        function = work.work if isinstance(work, Handler) else work

        async def call(delivery: Delivery) -> None:
            await function(delivery)

        def blocking(delivery: Delivery) -> None:
            asyncio.run_coroutine_threadsafe(call(delivery), self._loop).result()

        await self.handle_as_it_is(
            Handler(work=blocking, rules=work.rules) if isinstance(work, Handler) else blocking, **options
        )

    async def handle_as_it_is(self, work: Handler | Work, **options: Any) -> None:
        """Have a function work in a thread."""
        await asyncio.to_thread(partial(self.consumer.handle, work, **options))

    async def listen(self, interest: Interest) -> Heard:
        return HeardBlocking(await asyncio.to_thread(self.consumer.listen, interest))

    async def unsubscribe(self, subscription_id: str) -> bool:
        return await asyncio.to_thread(self.consumer.unsubscribe, subscription_id)

    @asynccontextmanager
    async def stream(
        self, interest: Interest, *, last_event_id: str | None = None, rules: StreamRules | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        stream = await asyncio.to_thread(
            partial(open_stream, self.consumer, interest, last_event_id=last_event_id, rules=rules)
        )

        async def chunks() -> AsyncIterator[bytes]:
            reading = iter(stream)
            while (chunk := await asyncio.to_thread(next, reading, None)) is not None:
                yield chunk

        try:
            yield chunks()
        finally:
            stream.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.consumer.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.consumer.__exit__)


class AsyncioConsumer:
    """An asyncio consumer, in the test's loop."""

    def __init__(self, url: str, *, group_id: str, **options: Any) -> None:
        self.consumer = AsyncEventConsumer(url, group_id=group_id, **options)
        self.handle = self.handle_as_it_is = self.consumer.handle
        self.unsubscribe = self.consumer.unsubscribe

    async def listen(self, interest: Interest) -> Heard:
        return await self.consumer.listen(interest)

    @asynccontextmanager
    async def stream(
        self, interest: Interest, *, last_event_id: str | None = None, rules: StreamRules | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        stream = await open_stream_async(self.consumer, interest, last_event_id=last_event_id, rules=rules)
        try:
            yield aiter(stream)
        finally:
            stream.close()

    async def __aenter__(self) -> Self:
        await self.consumer.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.consumer.__aexit__()


Consumer = BlockingConsumer | AsyncioConsumer


class World:
    """A database with the broker in it, and clients of one kind.

    :ivar broker: on a connection that commits by itself.
    """

    broker: Any

    def __init__(self, kind: Kind, url: str) -> None:
        self.kind = kind
        self.url = url
        self.sql = postgres.connect(url, autocommit=True)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self._stack.callback(self.sql.close)
        self.broker = await self.another_broker()
        return self

    async def __aexit__(self, *details: Any) -> None:
        await self._stack.__aexit__(*details)

    async def another_broker(self, *, autocommit: bool = True) -> Any:
        """Return a broker on a connection of its own, which is its attribute ``connection``."""
        if self.kind == "blocking":
            connection = postgres.connect(self.url, autocommit=autocommit)
            self._stack.callback(connection.close)
            broker: Any = Threaded(EventBroker(connection))
            broker.connection = Threaded(connection)
            broker.connection_pid = connection.info.backend_pid
            return broker
        opened = await postgres.connect_async(self.url, autocommit=autocommit)
        self._stack.push_async_callback(opened.close)
        broker = AsyncEventBroker(opened)
        broker.connection = opened
        broker.connection_pid = opened.info.backend_pid
        return broker

    def consumer(self, group_id: str = "group", *, middleware: Sequence[Middleware] = (), **rules: Any) -> Consumer:
        """Return a consumer that does not run yet."""
        kind = BlockingConsumer if self.kind == "blocking" else AsyncioConsumer
        return kind(self.url, group_id=group_id, rules=ReadRules(**rules), middleware=middleware)

    def dispatcher(self, *, once: bool = False, **rules: Any) -> Dispatcher | AsyncDispatcher:
        """Return a dispatcher that does not run yet."""
        kind = Dispatcher if self.kind == "blocking" else AsyncDispatcher
        return kind(self.url, rules=DispatchRules(**rules), once=once)

    async def run(self, dispatcher: Dispatcher | AsyncDispatcher) -> DispatchReport:
        """Run a dispatcher to its end."""
        if isinstance(dispatcher, Dispatcher):
            return await asyncio.to_thread(dispatcher.run)
        return await dispatcher.run()

    async def dispatch(self) -> DispatchReport:
        """Dispatch what was published."""
        return await self.run(self.dispatcher(once=True))

    @asynccontextmanager
    async def dispatching(self, **rules: Any) -> AsyncIterator[None]:
        """Dispatch during the block."""
        dispatcher = self.dispatcher(**rules)
        running = asyncio.create_task(self.run(dispatcher))
        try:
            yield
        finally:
            dispatcher.stop()
            await running

    def rows(self, query: Any, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return what a statement answers."""
        return self.sql.execute(query, parameters or None).fetchall()

    def cursor(self, group_id: str = "group") -> str:
        """Return the stored cursor of a group."""
        found = self.rows("SELECT last_read_event_id FROM pgmb.subscription_groups WHERE id = %s", group_id)
        return str(found[0][0])

    def readers(self) -> int:
        """Return how many sessions own a group."""
        return int(self.rows("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")[0][0])


def both(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the test that runs in a world of each kind, given as ``world``; other arguments are fixtures."""
    return _played(test, KINDS)


def either(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Return the test that runs in a world of one kind, and at night of the other, which sends the same steps."""
    return _played(test, ["asyncio", *nightly("blocking")])


def _played(test: Callable[..., Awaitable[None]], kinds: Sequence[object]) -> Callable[..., None]:
    @wraps(test)
    def played(broker_url: str, kind: Kind, **given: Any) -> None:
        async def run() -> None:
            async with World(kind, broker_url) as world:
                await test(world=world, **given)

        asyncio.run(run())

    # Where pytest reads what a test asks for.
    asked = ("broker_url", "kind", *(name for name in signature(test).parameters if name != "world"))
    vars(played)["__signature__"] = Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in asked])
    found: Callable[..., None] = pytest.mark.parametrize("kind", kinds)(played)
    return found
