"""Defines apps: handlers of one store that run together, each with its queue and options."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from queuekeeper.errors import UsageError
from queuekeeper.operation import is_coroutine_function
from queuekeeper.service.aio import stopped_by_signals
from queuekeeper.service.blocking import BlockingService
from queuekeeper.service.handlers import Handler, Middleware, check_middleware, handler_of

W = TypeVar("W", bound=Callable[..., Any])


class Post(NamedTuple):
    """A handler of an app.

    :param given: options of the consumer that calls the handler.
    """

    handler: Handler[Any]
    given: Mapping[str, Any]

    @property
    def is_awaited(self) -> bool:
        """Whether the handler runs in an event loop."""
        return is_coroutine_function(self.handler.work)


class App:
    """Handlers that run together; each store has its own subclass.

    :cvar kind: class of its handlers.
    :cvar place: arguments that say where a handler works, which no two handlers share.
    :param middleware: middleware of all handlers, which observes or wraps them.
    """

    kind: ClassVar[type[Handler[Any]]]
    place: ClassVar[tuple[str, ...]]

    def __init__(self, *, middleware: Sequence[Middleware[Any]] = ()) -> None:
        check_middleware(middleware)
        self._middleware = tuple(middleware)
        self._posts: list[Post] = []

    def _takes(self, **given: Any) -> Callable[[W], W]:
        """Return a decorator that adds a function or handler to the app and returns it unchanged.

        It refuses another handler of the same place.
        """

        def add(work: W) -> W:
            if any(all(post.given[name] == given[name] for name in self.place) for post in self._posts):
                where = ", ".join(f"{name} {given[name]!r}" for name in self.place)
                raise UsageError(f"the app has a handler of {where} already: give each its own {self.place[-1]}")
            self._posts.append(Post(handler_of(self.kind, work), given))
            return work

        return add

    def check(self) -> None:
        """Refuse an app without handlers.

        :raises UsageError: when there is none; the message says what to write.
        """
        if not self._posts:
            raise UsageError("the app has no handlers: put @app.handler(...) over a function")


class Service(Protocol):
    """Service that works until it is stopped."""

    def run(self) -> Any:
        """Work until the service is stopped; this is a coroutine method for asyncio."""

    def stop(self) -> None:
        """Stop the service in good order."""


async def run_together(services: Sequence[Service]) -> None:
    """Run services until the first SIGTERM or Ctrl-C; when one ends by itself, stop the others, too.

    Blocking services run in threads. All have ended when the error of the first one is raised.
    """
    with stopped_by_signals(partial(stop_all, services)):
        running = [
            asyncio.ensure_future(_in_thread(service.run) if isinstance(service, BlockingService) else service.run())
            for service in services
        ]
        try:
            first, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop_all(services)
        await asyncio.gather(*running, return_exceptions=True)
        for ended in (*first, *running):
            ended.result()


def stop_all(services: Sequence[Service]) -> None:
    """Stop services in good order; call this in their event loop."""
    for service in services:
        service.stop()


def _in_thread(run: Callable[[], Any]) -> Awaitable[None]:
    """Run a service in a thread that does not keep the process from ending, as a pool's thread would."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not future.done():
            future.set_result(None) if error is None else future.set_exception(error)

    def work() -> None:
        failure: BaseException | None = None
        try:
            run()
        except BaseException as error:
            failure = error
        # If the loop has ended, nobody waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(partial(settle, failure))

    threading.Thread(target=work, name="queuekeeper-app", daemon=True).start()
    return future
