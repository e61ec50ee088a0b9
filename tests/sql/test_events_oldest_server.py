"""The broker on the PostgreSQL of the system, where there is one: the private server is the newest that it promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.events import schema
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.model import Interest, NewEvent
from queuekeeper.postgres import Connection

pytestmark = pytest.mark.sql


@pytest.fixture
def system_connection(system_postgres: PostgresServer) -> Iterator[Connection]:
    """Connection to an empty database of the system's PostgreSQL."""
    with postgres.connect(system_postgres.url, autocommit=True) as connection:
        yield connection


def test_events_reach_their_subscriptions_in_order_on_the_systems_server(system_connection: Connection) -> None:
    schema.install(system_connection)
    broker = EventBroker(system_connection)
    texts = ['"quoted" {},\\ é', "plain"]
    broker.subscribe("all", Interest())
    broker.subscribe("all", Interest(condition="1 = 1"))
    broker.subscribe("few", Interest(condition="e.payload->>'n' LIKE '%7'"))
    broken = broker.subscribe("few", Interest(condition="1 / ((e.payload->>'n')::int - 50) > 5"))
    for start in range(0, 100, 20):
        events = [NewEvent(topic="t", payload={"n": n, "text": texts[n % 2]}) for n in range(start, start + 20)]
        if start == 40:
            assert broker.publish_many(events) == 20
        else:
            assert len(broker.publish(events)) == 20
        broker.poll()

    for group, expected in (("all", list(range(100))), ("few", [n for n in range(100) if n % 10 == 7])):
        read = []
        while (page := broker.read(group, limit=33)).next_cursor is not None:
            assert {len(item.subscription_ids) for item in page.items} == {2 if group == "all" else 1}
            read += [item.event.payload for item in page.items]
            broker.set_cursor(group, page.next_cursor, release=False)
        assert read == [{"n": n, "text": texts[n % 2]} for n in expected]
    (view,) = [one for one in broker.subscriptions(group_id="few") if one.subscription_id == broken.subscription_id]
    assert view.quarantine_reason is not None
    assert view.quarantine_reason.endswith("division by zero")

    system_connection.execute("CALL pgmb.maintain_events_table(now() + interval '2 hours')")
    system_connection.execute("CREATE TABLE watched (id int PRIMARY KEY, word text)")
    system_connection.execute("SELECT pgmb.push_table_mutations('watched')")
    system_connection.execute("INSERT INTO watched VALUES (1, 'one')")
    broker.poll()
    (item,) = broker.read("all", limit=10).items
    assert (item.event.topic, item.event.payload) == ("public.watched.insert", {"id": 1, "word": "one"})
