"""An app of compacted queues: handlers of several queues that one process runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuekeeper.checks import checked
from queuekeeper.compacted.consumption import ConsumerRules
from queuekeeper.compacted.handlers import CompactedWorker, Handler, Middleware
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.service import app as service
from queuekeeper.text_form import shows


@shows(handlers=lambda app: len(app._posts))
class App(service.App):
    """Handlers of queues, which ``queuekeeper compacted work MODULE:NAME`` runs together.

    :param rules: of each worker's consumer that has none of its own.
    :param middleware: looks on or wraps, whichever handler works.
    :raises UsageError: naming parameter, value and rule.
    """

    kind = Handler

    @checked
    def __init__(self, *, rules: ConsumerRules | None = None, middleware: Sequence[Middleware] = ()) -> None:
        super().__init__(middleware=middleware)
        self._rules = rules

    @checked
    def handler(self, client_id: str, *, rules: ConsumerRules | None = None) -> Callable[[service.W], service.W]:
        """Have the function below work on a client's queue; the parameters are those of :class:`CompactedWorker`."""
        return self._takes(client_id=client_id, rules=rules or self._rules, middleware=self._middleware)

    def services(self, queues: AsyncCompactedQueues) -> list[service.Service]:
        """Return a worker for each handler."""
        return [CompactedWorker(queues, work=post.handler, **post.given) for post in self._posts]
