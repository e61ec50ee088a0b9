"""The event broker of Queuekeeper, one group."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

from peer_workers import work

from queuekeeper.events import App, Delivery, EventBroker, Interest, NewEvent, ReadRules, handler
from queuekeeper.events.schema import dispatch_status, install
from queuekeeper.postgres import connect

GROUP = "worker"
_interest = Interest.topics(work.QUEUE)


def make_tables() -> None:
    """Install the broker, with the worker's subscription."""
    with connect(work.URL, autocommit=True) as connection:
        install(connection)
        EventBroker(connection).subscribe(GROUP, _interest)


def publish(pages: list[list[str]]) -> None:
    """Publish, then wait until everything is dispatched."""
    with connect(work.URL, autocommit=True) as connection:
        broker = EventBroker(connection)
        for page in pages:
            broker.publish([NewEvent(topic=work.QUEUE, payload=body) for body in page])
        while dispatch_status(connection).undispatched:
            time.sleep(0.02)


def each(delivery: Delivery) -> Iterator[Delivery]:
    """Give each event of a delivery attempts of its own."""
    return (replace(delivery, events=(event,)) for event in delivery.events)


app = App(group_id=GROUP, rules=ReadRules(page=int(os.environ.get("PEERS_PAGE", "1000"))))


@app.handler(name="handle", interest=_interest, split=each)
@handler(retries_s=(0.1,) * work.TRIES)
def handle(delivery: Delivery) -> None:
    """Handle an event."""
    for event in delivery.events:
        work.handle(event.payload)
