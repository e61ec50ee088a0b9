"""An app of fan-out queues: handlers of consumers that run in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuekeeper.checks import checked
from queuekeeper.fanout.consumer import AsyncFanoutConsumer, FanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.handlers import Handler, Middleware
from queuekeeper.fanout.model import ConsumerOptions, Start
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.service import app as service
from queuekeeper.text_form import shows


@shows(handlers=lambda app: len(app._posts))
class App(service.App):
    """Handlers of consumers, which ``queuekeeper fanout work MODULE:NAME`` runs together.

    :param rules: rules of the consumers that have none of their own.
    :param middleware: observes or wraps the attempts of all handlers.
    :raises UsageError: naming parameter, value and rule.
    """

    kind = Handler
    place = ("queue", "consumer")

    @checked
    def __init__(self, *, rules: WorkRules | None = None, middleware: Sequence[Middleware] = ()) -> None:
        super().__init__(middleware=middleware)
        self._rules = rules

    @checked
    def handler(
        self,
        queue: str,
        *,
        consumer: str,
        rules: WorkRules | None = None,
        options: ConsumerOptions | None = None,
        start: Start = Start.NEW,
        register: bool = True,
    ) -> Callable[[service.W], service.W]:
        """Add the decorated function as handler of a consumer; the parameters are those of :class:`FanoutConsumer`.

        A coroutine function runs in the event loop, any other function in threads.
        """
        given = {"consumer": consumer, "options": options, "start": start, "register": register}
        return self._takes(queue=queue, rules=rules or self._rules, middleware=self._middleware, **given)

    def services(self, queues: FanoutQueues, async_queues: AsyncFanoutQueues) -> list[service.Service]:
        """Return a consumer for each handler."""
        return [
            AsyncFanoutConsumer(async_queues, work=post.handler, **post.given)
            if post.is_awaited
            else FanoutConsumer(queues, work=post.handler, **post.given)
            for post in self._posts
        ]
