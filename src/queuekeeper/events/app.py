"""An app of events: handlers of one group, which one consumer runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queuekeeper.checks import checked
from queuekeeper.errors import UsageError
from queuekeeper.events.consumer import THREADS, AsyncEventConsumer, EventConsumer, check_threads
from queuekeeper.events.handlers import Handler, Middleware
from queuekeeper.events.model import Interest, ReadRules, Splitter
from queuekeeper.service import app as service
from queuekeeper.text_form import shows


@shows(group="group_id", handlers=lambda app: len(app._posts))
class App(service.App):
    """Handlers of a group's events, which ``queuekeeper events work MODULE:NAME`` runs together.

    Either all handlers are coroutine functions or none is, since one consumer reads a group.

    :param group_id: id of the group.
    :param rules: how the consumer reads; defaults when absent.
    :param threads: number of handlers that run at once, 8 by default, if they are not coroutine functions; each works
        on one delivery at a time.
    :param middleware: observes or wraps the attempts of all handlers.
    :raises UsageError: naming parameter, value and rule.
    """

    kind = Handler
    place = ("name",)

    @checked
    def __init__(
        self,
        *,
        group_id: str,
        rules: ReadRules | None = None,
        threads: int = THREADS,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        super().__init__(middleware=middleware)
        self.group_id = group_id
        self._rules = rules
        self._threads = check_threads(threads)

    @checked
    def handler(
        self,
        *,
        name: str,
        interest: Interest | None = None,
        retries_s: Sequence[float] | None = None,
        split: Splitter | None = None,
    ) -> Callable[[service.W], service.W]:
        """Add the decorated function as handler; the parameters are those of :meth:`EventConsumer.handle`."""
        return self._takes(name=name, interest=interest, retries_s=retries_s, split=split)

    def check(self) -> None:
        """Refuse an app that has no handlers, or that mixes functions with coroutine functions."""
        super().check()
        if len({post.is_awaited for post in self._posts}) > 1:
            raise UsageError(
                "some of the app's handlers are coroutine functions and others are not, and one consumer of a group "
                "reads: make all of them the same"
            )

    async def services(self, url: str) -> list[service.Service]:
        """Return the consumer that runs the handlers."""
        given: dict[str, Any] = {"group_id": self.group_id, "rules": self._rules, "middleware": self._middleware}
        if not self._posts[0].is_awaited:
            consumer = EventConsumer(url, threads=self._threads, **given)
            for post in self._posts:
                consumer.handle(post.handler, **post.given)
            return [consumer]
        async_consumer = AsyncEventConsumer(url, **given)
        for post in self._posts:
            await async_consumer.handle(post.handler, **post.given)
        return [async_consumer]
