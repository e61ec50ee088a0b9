"""Fan-out queues of Queuekeeper, one consumer."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from peer_workers import work

from queuekeeper import redis_client
from queuekeeper.fanout import App, FanoutProducer, FanoutQueues, NewMessage, WorkRules, handler
from queuekeeper.fanout.reports import FanoutMessage

CONSUMER = "worker"


def publish(pages: list[list[str]]) -> None:
    """Publish with a deduplication id per message, as producers do."""
    with closing(redis_client.connect(work.URL)) as connection:
        queues = FanoutQueues(connection)
        queues.register(work.QUEUE, consumer=CONSUMER)
        producer = FanoutProducer(queues)
        for page in pages:
            producer.publish_many(work.QUEUE, [NewMessage(body=body.encode()) for body in page])


def handle(message: FanoutMessage) -> None:
    """Handle a message in a thread."""
    work.handle(message.body.decode())


async def handle_async(message: FanoutMessage) -> None:
    """Handle a message in an event loop."""
    await work.handle_async(message.body.decode())


_rules = WorkRules(workers=work.AT_ONCE, lease_ms=work.LEASE_MS, look_s=1) if work.IS_KILLED else WorkRules()
_tried = partial(handler, max_attempts=work.TRIES, first_delay_ms=100)
threads, tasks = App(rules=_rules), App(rules=_rules)
threads.handler(work.QUEUE, consumer=CONSUMER)(_tried()(handle))
tasks.handler(work.QUEUE, consumer=CONSUMER)(_tried()(handle_async))
