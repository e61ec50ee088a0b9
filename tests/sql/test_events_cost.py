"""A poll and a subscription cost what there is to do, however much waits, subscribes or is stored beside it.

Cost is counted in pages and lookups, which no other program on the machine changes.
"""

from __future__ import annotations

import pytest

from queuekeeper.postgres import Connection
from tests.event_samples import delivered, poll, publish, subscribe

pytestmark = pytest.mark.sql

POLL = "SELECT pgmb.poll_for_events()"


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


@pytest.fixture
def broker(connection: Connection) -> Connection:
    """Connection to a broker with one subscription to everything."""
    subscribe(connection, "all")
    poll(connection)
    return connection


def pages(connection: Connection, statement: str) -> int:
    """Execute a statement and return the pages that it, and whatever it called, looked at."""
    connection.execute(statement.encode())  # reads catalogs, makes plans
    return looked_at(connection, statement)


def looked_at(connection: Connection, statement: str) -> int:
    """Execute a statement once and return the pages that it, and whatever it called, looked at."""
    ((plan,),) = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()).fetchall()
    return sum(int(plan[0]["Plan"][name]) for name in ("Shared Hit Blocks", "Shared Read Blocks"))


def schedule(connection: Connection, count: int, due: str) -> None:
    connection.execute(
        "INSERT INTO pgmb.scheduled_events (id, due_at, topic, payload) SELECT pgmb.create_event_id(d.due, n), d.due, "
        "'topic', '1' FROM generate_series(1, %s) AS n CROSS JOIN (SELECT now() + %s::interval AS due) AS d",
        (count, due),
    )


def set_config(connection: Connection, name: str, text: str) -> None:
    connection.execute("UPDATE pgmb.config SET value = %s WHERE id = %s::pgmb.config_type", (text, name))


def make_partitions_ahead(connection: Connection) -> None:
    set_config(connection, "partition_interval", "1 minute")
    set_config(connection, "future_intervals_to_create", "6 hours")
    connection.execute("CALL pgmb.maintain_events_table()")
    assert len(connection.execute("SELECT FROM pgmb.partition_bounds('pgmb.events')").fetchall()) > 100


def test_poll_does_not_look_at_what_is_due_later(broker: Connection) -> None:
    alone = pages(broker, POLL)
    schedule(broker, 30_000, "30 days")
    broker.execute(
        "INSERT INTO pgmb.due_events (event_id, due_at) "
        "SELECT pgmb.create_event_id(now(), n), now() + interval '30 days' FROM generate_series(1, 30000) AS n"
    )

    # Two index roots more have to be passed.
    assert pages(broker, POLL) <= alone + 10


def test_what_is_due_is_taken_in_steps_that_cost_the_same_whatever_waits_behind(broker: Connection) -> None:
    set_config(broker, "poll_chunk_size", "100")

    def cost(*, due: int, later: int) -> int:
        broker.execute("TRUNCATE pgmb.scheduled_events")
        schedule(broker, later, "30 days")
        schedule(broker, due, "-1 second")
        found = pages(broker, POLL)
        left = broker.execute("SELECT count(*) FROM pgmb.scheduled_events").fetchone()
        assert left == (max(0, due - 100) + later,)
        return found

    assert cost(due=20_000, later=0) <= 1.2 * cost(due=2_000, later=0)
    assert cost(due=60, later=20_000) <= 1.2 * cost(due=60, later=0)


def test_trial_of_a_condition_costs_the_same_with_hundreds_of_partitions(broker: Connection) -> None:
    def cost() -> int:
        publish(broker, *range(200))
        poll(broker)
        return pages(broker, "SELECT pgmb.check_condition('TRUE')")

    few = cost()
    make_partitions_ahead(broker)

    assert cost() <= 1.2 * few + 10


def test_read_costs_the_same_with_hundreds_of_partitions_ahead(broker: Connection) -> None:
    def cost() -> int:
        publish(broker, *range(10))
        broker.execute(POLL.encode())
        return pages(broker, "SELECT * FROM pgmb.read_next_events('group', peek => true, chunk_size => 10)")

    few = cost()
    make_partitions_ahead(broker)
    cost()

    assert cost() <= few + 5


def test_poll_costs_the_same_however_many_events_are_stored(broker: Connection) -> None:
    publish(broker, 1)
    poll(broker)
    few = pages(broker, POLL)
    broker.execute("INSERT INTO pgmb.events (topic, payload) SELECT 'topic', '1' FROM generate_series(1, 20000)")
    poll(broker)

    assert pages(broker, POLL) <= few + 10


def test_trial_of_a_condition_costs_the_same_however_many_events_are_stored(broker: Connection) -> None:
    def cost() -> int:
        return pages(broker, "SELECT pgmb.check_condition('TRUE')")

    publish(broker, *range(200))
    few = cost()
    broker.execute("INSERT INTO pgmb.events (topic, payload) SELECT 'topic', '1' FROM generate_series(1, 20000)")

    assert cost() <= 1.2 * few + 10


def test_event_is_looked_up_among_hundreds_of_subscriptions(connection: Connection) -> None:
    condition = "s.params @> jsonb_build_object('topics', ARRAY[e.topic])"
    for number in range(200):
        subscribe(connection, f"s{number}", condition=condition, params={"topics": [f"t{number}"]})
    published = publish(connection, *range(500), topic="t7")

    with connection.transaction():
        connection.execute(POLL)
        looked_up = connection.execute(
            "SELECT idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'pgmb.subscriptions'::regclass"
        ).fetchone()

    assert delivered(connection, "s7") == published
    assert looked_up is not None
    assert looked_up[0] >= len(published)


def test_round_of_subscribing_publishing_and_polling_costs_the_same_after_hundreds(connection: Connection) -> None:
    """With 200 partitions, and with events that wait: for their time, for a poll and for a reader."""
    for name, text in (("partition_interval", "2 minutes"), ("future_intervals_to_create", "10 hours")):
        set_config(connection, name, text)
    for _ in range(4):  # they come in portions
        connection.execute("CALL pgmb.maintain_events_table()")
    assert len(connection.execute("SELECT FROM pgmb.partition_bounds('pgmb.events')").fetchall()) > 190
    schedule(connection, 30_000, "30 days")
    subscribe(connection, "reader", condition="e.topic = 'unread'", group="idle")
    connection.execute("INSERT INTO pgmb.events (topic, payload) SELECT 'unread', '1' FROM generate_series(1, 5000)")
    poll(connection)
    condition = "s.params @> jsonb_build_object(''topics'', ARRAY[e.topic])"

    def round_of(number: int) -> int:
        named = f"jsonb_build_object('topics', ARRAY['t{number}'])"
        values = f"('s{number}', 'group', '{condition}', {named})"
        statements = (
            f"INSERT INTO pgmb.subscriptions (id, group_id, conditions_sql, params) VALUES {values}",
            f"INSERT INTO pgmb.events (topic, payload) SELECT 't{number}', '1' FROM generate_series(1, 50)",
            POLL,
        )
        return sum(looked_at(connection, statement) for statement in statements)

    connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('group')")
    costs = [round_of(number) for number in range(303)]

    assert (len(delivered(connection, "s0")), poll(connection)) == (50, 0)
    # The middle one of three, as pages fill up. Each of the 50 events is looked up among 300 subscriptions instead of
    # ten, which takes seven pages more; to pass all partitions would take three times as many as the first rounds took.
    assert sorted(costs[300:])[1] <= 2 * sorted(costs[8:11])[1]
