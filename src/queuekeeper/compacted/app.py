"""An app of compacted queues: the handlers of several queues, which one process runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from queuekeeper.checks import check_seconds, checked
from queuekeeper.compacted.consumption import ConsumerRules
from queuekeeper.compacted.handlers import GRACE_S, CompactedWorker, Handler, Middleware
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.service import app as service
from queuekeeper.text_form import shows


@shows(handlers=lambda app: len(app._posts))
class App(service.App):
    """Handlers of queues, which ``queuekeeper compacted work MODULE:NAME`` runs together.

    :param rules: rules of the consumers of handlers that are given none.
    :param middleware: called around the work of all handlers.
    :param grace_s: time in seconds that a stop waits for running handlers, 30 by default; see :class:`CompactedWorker`.
    :raises UsageError: naming parameter, value and rule.
    """

    kind = Handler
    place = ("client_id",)

    @checked
    def __init__(
        self, *, rules: ConsumerRules | None = None, middleware: Sequence[Middleware] = (), grace_s: float = GRACE_S
    ) -> None:
        super().__init__(middleware=middleware)
        check_seconds("grace_s", grace_s, least=0)
        self._rules, self._grace_s = rules, grace_s

    @checked
    def handler(self, client_id: str, *, rules: ConsumerRules | None = None) -> Callable[[service.W], service.W]:
        """Decorate a function as the handler of a client's queue; parameters as for :class:`CompactedWorker`."""
        return self._takes(
            client_id=client_id, rules=rules or self._rules, middleware=self._middleware, grace_s=self._grace_s
        )

    def services(self, queues: AsyncCompactedQueues) -> list[service.Service]:
        """Return a worker for each handler."""
        return [CompactedWorker(queues, work=post.handler, **post.given) for post in self._posts]
