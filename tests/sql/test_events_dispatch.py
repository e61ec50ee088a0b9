"""Events reach every subscription they are for: once in order, whoever commits late, crashes the clock or peeks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import psycopg
import pytest

from queuekeeper.postgres import Connection
from tests.event_samples import GROUP, delivered, dispatch_in_the_future, poll, publish, subscribe, value

pytestmark = pytest.mark.sql

Connect = Callable[[], Connection]


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


def publish_numbers(connection: Connection, count: int, *, topic: str = "topic") -> None:
    connection.execute(
        "INSERT INTO pgmb.events (topic, payload) SELECT %s, to_jsonb(i) FROM generate_series(1, %s) AS i",
        (topic, count),
    )


def read(
    connection: Connection, *, cursor: str | None = None, chunk: int = 1000, group: str = GROUP, peek: bool = False
) -> tuple[list[tuple[str, Any, list[str]]], str | None]:
    """Return what one read gives, and the cursor behind it."""
    rows = connection.execute(
        "SELECT id, payload, subscription_ids::text[], next_cursor FROM pgmb.read_next_events(%s, %s, %s, %s)",
        (group, cursor, chunk, peek),
    ).fetchall()
    assert len({row[3] for row in rows}) <= 1
    return [(row[0], row[1], row[2]) for row in rows], rows[0][3] if rows else None


def drain(connection: Connection, *, chunk: int = 1000, group: str = GROUP) -> list[tuple[str, Any, list[str]]]:
    """Read all there is, noting the cursor after each chunk."""
    found: list[tuple[str, Any, list[str]]] = []
    while True:
        events, cursor = read(connection, chunk=chunk, group=group)
        if cursor is None:
            connection.execute("SELECT pgmb.release_group_lock(%s)", (group,))
            return found
        found += events
        connection.execute("SELECT pgmb.set_group_cursor(%s, %s, FALSE)", (group, cursor))


def payloads(events: list[tuple[str, Any, list[str]]]) -> list[Any]:
    return [payload for _, payload, _ in events]


def set_config(connection: Connection, name: str, text: str) -> None:
    connection.execute("UPDATE pgmb.config SET value = %s WHERE id = %s::pgmb.config_type", (text, name))


def advisory_locks(connection: Connection) -> int:
    return int(value(connection, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))


# The original takes LIMIT without ORDER BY and MAX(id) as the cursor: 4 to 13 % of such a backlog never arrive.
@pytest.mark.parametrize(("count", "chunk"), [(2500, 1000), (7000, 999), (30, 1)])
def test_a_backlog_larger_than_a_chunk_is_read_whole_and_in_order_without_statistics(
    broker: Connection, count: int, chunk: int
) -> None:
    publish_numbers(broker, count)
    poll(broker)

    found = drain(broker, chunk=chunk)

    assert payloads(found) == list(range(1, count + 1))
    assert [event_id for event_id, _, _ in found] == sorted(event_id for event_id, _, _ in found)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_a_window_larger_than_a_poll_is_dispatched_in_several_without_gap_or_repeat(
    broker: Connection, connect: Connect, chunk: int
) -> None:
    set_config(broker, "poll_chunk_size", str(chunk))
    late = connect()
    late.execute("BEGIN")
    publish_numbers(late, 60, topic="late")
    for _ in range(5):
        publish_numbers(broker, 20, topic="early")
    broker.execute("SELECT pgmb.poll_for_events()")
    late.execute("COMMIT")
    publish_numbers(broker, 20, topic="after")

    total = poll(broker)
    found = drain(broker, chunk=33)

    assert len(found) == 180
    assert len({event_id for event_id, _, _ in found}) == 180
    assert total == 180 - min(chunk, 100)
    sizes = [size for (size,) in broker.execute("SELECT event_count FROM pgmb.dispatches")]
    assert max(sizes) <= chunk


@pytest.mark.slow
@pytest.mark.parametrize(("storage", "count", "at_most"), [("EXTERNAL", 120, 40), ("EXTENDED", 400, 300)])
def test_a_backlog_of_large_events_is_dispatched_in_portions_whatever_conditions_there_are(
    broker: Connection, storage: str, count: int, at_most: int
) -> None:
    """1,150 events of a megabyte together would be more than the server can keep in one value."""
    subscribe(broker, "topical", condition="e.topic = 'topic'")
    for (partition,) in broker.execute("SELECT partition::text FROM pgmb.partition_bounds('pgmb.events')").fetchall():
        broker.execute(f"ALTER TABLE {partition} ALTER COLUMN payload SET STORAGE {storage}".encode())
    broker.execute(
        "INSERT INTO pgmb.events (topic, payload) "
        "SELECT 'topic', to_jsonb(repeat('x', 1000000)) FROM generate_series(1, %s) AS i",
        (count,),
    )
    broker.execute("SELECT pgmb.quarantine_subscription('topical', 'a trial')")

    assert poll(broker) == count
    assert value(broker, "SELECT redelivered FROM pgmb.release_subscription('topical')") == count
    broker.execute("SELECT pgmb.reenqueue_events(ARRAY(SELECT id::text FROM pgmb.events))")
    assert poll(broker) == 2 * count
    sizes = [size for (size,) in broker.execute("SELECT event_count FROM pgmb.dispatches ORDER BY id")]
    assert sum(sizes) == 3 * count
    assert max(sizes) <= at_most


def test_a_single_event_above_every_bound_is_dispatched(broker: Connection) -> None:
    subscribe(broker, "topical", condition="e.topic = 'topic'")
    broker.execute(
        "INSERT INTO pgmb.events (topic, payload) "
        "SELECT 'topic', to_jsonb(repeat(md5(i::text), 1100000)) FROM generate_series(1, 2) AS i"
    )
    publish(broker, "small")

    assert poll(broker) == 6
    assert (
        broker.execute("SELECT subscription_ids::text[] FROM pgmb.read_next_events(%s)", (GROUP,)).fetchall()
        == [(["all", "topical"],)] * 3
    )


def test_an_event_is_invisible_until_its_transaction_commits_and_then_it_arrives(
    broker: Connection, connect: Connect
) -> None:
    early, late = connect(), connect()
    early.execute("BEGIN")
    first = publish(early, "first to publish, last to commit")
    late.execute("BEGIN")
    publish(late, "rolled back")
    second = publish(broker, "second")
    poll(broker)
    assert delivered(broker, "all") == second
    events, cursor = read(broker)
    broker.execute("SELECT pgmb.set_group_cursor(%s, %s, FALSE)", (GROUP, cursor))

    late.execute("ROLLBACK")
    poll(broker)
    assert read(broker)[0] == []
    early.execute("COMMIT")
    poll(broker)

    assert [event_id for event_id, _, _ in events] == second
    assert [event_id for event_id, _, _ in read(broker)[0]] == first


def test_what_was_published_behind_savepoints_arrives_with_its_transaction(
    broker: Connection, connect: Connect
) -> None:
    other = connect()
    other.execute("BEGIN")
    other.execute("SAVEPOINT one")
    publish(other, 1)
    other.execute("SAVEPOINT two")
    publish(other, 2)
    other.execute("ROLLBACK TO two")
    publish(broker, 3)
    poll(broker)
    other.execute("COMMIT")
    publish(broker, 4)
    poll(broker)

    assert payloads(drain(broker)) == [3, 1, 4]


def test_writers_with_random_transactions_lose_nothing_and_repeat_nothing(broker: Connection, connect: Connect) -> None:
    """Ten writers of 300 events, some transactions long, one dispatcher and one reader beside them."""
    writers = 10

    def write(number: int) -> None:
        random, connection = Random(number), connections[number]
        open_transaction = False
        for i in range(300):
            if not open_transaction and random.random() < 0.1:
                connection.execute("BEGIN")
                open_transaction = True
            publish(connection, [number, i])
            if open_transaction and random.random() < 0.1:
                connection.execute("COMMIT")
                open_transaction = False
        if open_transaction:
            connection.execute("COMMIT")

    connections = [connect() for _ in range(writers)]
    dispatcher = connect()
    found: list[Any] = []
    with ThreadPoolExecutor(writers) as pool:
        tasks = [pool.submit(write, number) for number in range(writers)]
        while not all(task.done() for task in tasks):
            poll(dispatcher)
            found += payloads(drain(broker, chunk=100))
        for task in tasks:
            task.result()
    poll(dispatcher)
    found += payloads(drain(broker, chunk=100))

    assert len(found) == 300 * writers
    for number in range(writers):
        assert [i for writer, i in found if writer == number] == list(range(300))


def test_one_session_polls_at_a_time_and_a_second_one_returns_at_once(broker: Connection, connect: Connect) -> None:
    first, second = connect(), connect()
    publish(broker, 1)
    first.execute("BEGIN")
    assert value(first, "SELECT pgmb.poll_for_events()") == 1

    assert value(second, "SELECT pgmb.poll_for_events()") == 0

    first.execute("ROLLBACK")
    assert poll(second) == 1
    assert payloads(drain(broker)) == [1]


def test_a_poll_that_is_rolled_back_has_done_nothing(broker: Connection) -> None:
    publish(broker, 1)
    broker.execute("BEGIN")
    broker.execute("SELECT pgmb.poll_for_events()")
    broker.execute("ROLLBACK")

    assert delivered(broker, "all") == []
    assert poll(broker) == 1
    assert len(delivered(broker, "all")) == 1


def test_a_poll_in_a_transaction_with_an_old_snapshot_repeats_nothing(broker: Connection, connect: Connect) -> None:
    old = connect()
    publish(broker, 1)
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    value(old, "SELECT count(*) FROM pgmb.events")
    poll(broker)

    with pytest.raises(psycopg.errors.SerializationFailure):
        old.execute("SELECT pgmb.poll_for_events()")
    old.execute("ROLLBACK")

    assert payloads(drain(broker)) == [1]


@pytest.mark.parametrize("others", [0, 1, 5])
def test_what_a_transaction_publishes_before_and_after_its_own_poll_arrives_once(
    broker: Connection, connect: Connect, others: int
) -> None:
    """Transactions of others that begin later and end earlier raise the snapshot above the caller's own id."""
    other = connect()
    with broker.transaction():
        publish(broker, "before")
        for number in range(others):
            publish(other, f"other {number}")
        broker.execute("SELECT pgmb.poll_for_events()")
        publish(broker, "after")
        publish(other, "last")
    poll(broker)

    found = payloads(drain(broker))
    assert sorted(found) == sorted(["before", "after", "last", *(f"other {number}" for number in range(others))])
    assert found.index("before") < found.index("after")


def test_what_a_transaction_publishes_after_it_has_resynchronised_arrives(broker: Connection, connect: Connect) -> None:
    other = connect()
    with broker.transaction():
        publish(broker, "before")
        value(other, "SELECT pg_current_xact_id()")
        broker.execute("SELECT pgmb.resynchronize_dispatch()")
        publish(broker, "after")
    poll(broker)

    assert sorted(payloads(drain(broker))) == ["after", "before"]


def test_dispatches_keep_their_order_when_the_clock_goes_back(broker: Connection) -> None:
    """The next poll finds a state from the future."""
    dispatch_in_the_future(broker, "1 hour")
    cursor = read(broker)[1]
    publish(broker, 2)
    poll(broker)
    publish(broker, 3)
    poll(broker)
    subscribe(broker, "new", group="new")
    publish(broker, 4)
    poll(broker)

    assert payloads(read(broker, cursor=cursor)[0]) == [2, 3, 4]
    assert payloads(drain(broker, group="new")) == [4]


def test_a_new_group_begins_with_what_is_dispatched_from_now_on(broker: Connection) -> None:
    publish(broker, "before")
    poll(broker)
    subscribe(broker, "new", group="new")
    publish(broker, "after")
    poll(broker)

    assert payloads(drain(broker, group="new")) == ["after"]


def test_each_subscription_gets_what_its_condition_holds_for(broker: Connection) -> None:
    above = "(e.payload->>'n')::numeric > (s.params->>'min')::numeric"
    subscribe(broker, "above-half", condition=above, params={"min": 0.5})
    subscribe(broker, "above-none", condition=above, params={"min": 0})
    subscribe(broker, "topical", condition="s.params @> jsonb_build_object('topic', e.topic)", params={"topic": "b"})
    first = publish(broker, {"n": 0.7}, {"n": 0.3}, topic="a")
    second = publish(broker, {"n": 0.1}, topic="b")

    assert poll(broker) == 3 + 1 + 3 + 1
    assert delivered(broker, "above-half") == first[:1]
    assert delivered(broker, "above-none") == first + second
    assert delivered(broker, "topical") == second
    assert [subscribers for _, _, subscribers in read(broker)[0]] == [
        ["above-half", "above-none", "all"], ["above-none", "all"], ["above-none", "all", "topical"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    ["e.topic LIKE 'device.%'", "e.topic = 'device.%s' OR e.topic = 'device.100%'", "e.topic <> 'it''s %I'"],
)
def test_percent_signs_and_quotes_in_conditions_are_what_they_look_like(broker: Connection, condition: str) -> None:
    subscribe(broker, "percent", condition=condition)
    published = publish(broker, 1, topic="device.100%") + publish(broker, 2, topic="device.%s")
    poll(broker)

    assert delivered(broker, "percent") == published


def test_workers_that_share_events_by_hash_get_all_of_them_and_none_twice(broker: Connection) -> None:
    for worker in range(3):
        subscribe(
            broker, f"worker-{worker}", condition="hashtext(e.id) % 3 = (s.params->>'worker')::int",
            params={"worker": worker},
        )  # fmt: skip
    publish_numbers(broker, 6000)
    poll(broker)

    shares = [
        {payload for _, payload, subscribers in drained if f"worker-{worker}" in subscribers}
        for drained in [drain(broker)]
        for worker in range(3)
    ]

    assert sum(map(len, shares)) == len(set.union(*shares)) == 6000
    assert min(map(len, shares)) > 1500


def test_a_direct_event_reaches_its_subscription_alone_whatever_its_condition(broker: Connection) -> None:
    subscribe(broker, "never", condition="e.topic = 'never'")
    subscribe(broker, "some", condition="e.topic = 'topic'")
    broker.execute("SELECT pgmb.send('never', ARRAY['direct'], ARRAY['1']::jsonb[])")
    common = publish(broker, 2)
    direct = value(broker, "SELECT pgmb.send('some', ARRAY['direct'], ARRAY['3']::jsonb[])")

    assert poll(broker) == 2 + 2
    assert delivered(broker, "all") == common
    assert delivered(broker, "some") == [*common, direct]
    assert len(delivered(broker, "never")) == 1


def test_sending_to_nobody_is_refused(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="there is no subscription nobody"):
        broker.execute("SELECT pgmb.send('nobody', ARRAY['direct'], ARRAY['1']::jsonb[])")


def test_arrays_of_different_lengths_are_refused(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.ArraySubscriptError, match=r"differ in length: 2, 1"):
        broker.execute("SELECT pgmb.publish(ARRAY['a', 'b'], ARRAY['1']::jsonb[])")


def test_a_condition_that_fails_on_data_stops_only_the_subscriptions_that_fail(broker: Connection) -> None:
    above = "(e.payload->>'n')::int > (s.params->>'min')::int"
    divides = "CASE WHEN s.params ? 'by' THEN 10 / ((e.payload->>'n')::int - (s.params->>'by')::int) > 0 ELSE TRUE END"
    subscribe(broker, "poison", condition=above, params={"min": 0})
    subscribe(broker, "by-three", condition=divides, params={"by": 3})
    subscribe(broker, "by-none", condition=divides)
    subscribe(broker, "by-four", condition=divides, params={"by": -4})
    good = publish(broker, {"n": 1}, {"n": 3}, {"n": 2})
    poll(broker)
    bad = publish(broker, {"n": "five"})
    poll(broker)

    quarantined: dict[str, str] = dict(
        broker.execute(
            "SELECT id, quarantine_reason FROM pgmb.subscriptions WHERE quarantined_at IS NOT NULL"
        ).fetchall()
    )
    assert quarantined == {
        "by-three": f"event {good[1]}: division by zero",
        "by-four": f'event {bad[0]}: invalid input syntax for type integer: "five"',
        "poison": f'event {bad[0]}: invalid input syntax for type integer: "five"',
    }
    assert delivered(broker, "all") == delivered(broker, "by-none") == good + bad
    assert delivered(broker, "poison") == delivered(broker, "by-four") == good


def test_thousands_that_share_a_failing_condition_are_quarantined_without_trying_each(broker: Connection) -> None:
    broker.execute(
        "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) "
        "SELECT 'group', '(e.payload->>''n'')::int > (s.params->>''min'')::int', jsonb_build_object('min', i) "
        "FROM generate_series(1, 3000) AS i"
    )
    published = publish(broker, {"n": "x"})

    assert poll(broker) == 1
    assert value(broker, "SELECT count(*) FROM pgmb.subscriptions WHERE quarantined_at IS NOT NULL") == 3000
    assert delivered(broker, "all") == published


# The original takes 2.6 ms for one condition and 1,662 for a hundred: it evaluates every one for every subscription.
def test_each_condition_is_evaluated_for_its_own_subscriptions_alone(broker: Connection) -> None:
    for number in range(40):
        only_here = f"10 / CASE (s.params->>'number')::int WHEN {number} THEN 1 ELSE 0 END > 0"
        subscribe(broker, f"s{number}", condition=f"{only_here} AND e.topic = 't{number}'", params={"number": number})
    published = publish(broker, 1, topic="t7")

    assert poll(broker) == 2
    assert delivered(broker, "s7") == published


def test_thousands_of_subscriptions_that_share_one_condition_are_found_by_index(broker: Connection) -> None:
    broker.execute(
        "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) SELECT 'group', "
        "'s.params @> jsonb_build_object(''key'', e.payload)', jsonb_build_object('key', i) "
        "FROM generate_series(1, 4000) AS i"
    )
    publish_numbers(broker, 2000)

    # A join without the index takes two minutes here.
    with broker.transaction():
        broker.execute("SET LOCAL statement_timeout TO '60s'")
        assert value(broker, "SELECT pgmb.poll_for_events()") == 4000


def test_concurrent_new_conditions_all_count(broker: Connection, connect: Connect) -> None:
    """The original forgets one in ten of them, as each session rebuilds the list of conditions that it can see."""
    connections = [connect() for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(
            pool.map(
                lambda n: subscribe(connections[n], f"s{n}", condition=f"e.topic = 'topic' AND {n} = {n}"), range(20)
            )
        )
    publish(broker, 1)

    assert poll(broker) == 21


def test_different_filters_are_never_taken_for_one(broker: Connection) -> None:
    # Among so many some have one hash of 32 bits, by which the original tells them apart.
    broker.execute(
        "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) "
        "SELECT 'group', 'FALSE', unnest(array_agg(jsonb_build_object('user', i))) "
        "FROM generate_series(1, 300000) AS i "
        "GROUP BY jsonb_hash(jsonb_build_object('user', i)) HAVING count(*) > 1"
    )
    alike = value(broker, "SELECT count(*) FROM pgmb.subscriptions")
    subscribe(broker, "one", condition="1=1", group="a")
    subscribe(broker, "two", condition="11=11", group="a")
    upsert = (
        "INSERT INTO pgmb.subscriptions AS s (group_id, conditions_sql, params) VALUES ('a', '1=1', '{}') "
        "ON CONFLICT (identity) DO UPDATE SET last_active_at = now() RETURNING s.id"
    )

    assert alike > 2
    assert value(broker, upsert) == "one"
    assert value(broker, "SELECT count(*) FROM pgmb.subscriptions") == alike + 2


def test_params_that_are_no_object_are_refused(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        broker.execute("INSERT INTO pgmb.subscriptions (group_id, params) VALUES ('group', '[1]')")


def test_a_removed_subscription_gets_nothing_more_and_holds_nobody_up(broker: Connection) -> None:
    subscribe(broker, "gone", condition="e.topic = 'gone'")
    publish_numbers(broker, 50, topic="gone")
    poll(broker)
    broker.execute("SELECT pgmb.set_group_cursor('group', pgmb.create_event_id(now() - interval '1 minute', 0), FALSE)")
    broker.execute("DELETE FROM pgmb.subscriptions")
    subscribe(broker, "new")
    last = publish(broker, "last")
    poll(broker)

    assert [event_id for event_id, _, _ in read(broker, chunk=5)[0]] == last


def test_peeking_changes_nothing_and_owns_nothing(broker: Connection, connect: Connect) -> None:
    publish(broker, 1, 2)
    poll(broker)
    watcher = connect()
    watcher.execute("SET default_transaction_read_only TO on")

    assert payloads(read(watcher, peek=True)[0]) == [1, 2]
    assert advisory_locks(broker) == 0
    assert payloads(read(broker)[0]) == [1, 2]
    assert payloads(read(watcher, peek=True)[0]) == [1, 2]


@pytest.mark.parametrize(
    "release", ["SELECT pgmb.set_group_cursor('group', %s, TRUE)", "SELECT pgmb.release_group_lock('group') -- %s"]
)
def test_one_release_frees_a_group_however_often_it_was_read(
    broker: Connection, connect: Connect, release: str
) -> None:
    publish_numbers(broker, 10)
    poll(broker)
    other = connect()
    cursor = None
    for _ in range(4):
        cursor = read(broker, cursor=cursor, chunk=2)[1]
    assert read(other)[0] == []

    broker.execute(release.replace("%s", f"'{cursor}'").encode())

    assert advisory_locks(broker) == 0
    assert payloads(read(other)[0])[-1] == 10
    assert read(broker)[0] == []


def test_releasing_what_another_session_owns_does_nothing(broker: Connection, connect: Connect) -> None:
    publish(broker, 1)
    poll(broker)
    read(broker)
    other = connect()
    said: list[str | None] = []
    other.add_notice_handler(lambda notice: said.append(notice.message_primary))

    other.execute("SELECT pgmb.release_group_lock('group')")

    assert said == []
    assert read(other)[0] == []


def test_a_lost_connection_frees_its_group(broker: Connection, connect: Connect) -> None:
    publish(broker, 1)
    poll(broker)
    owner = connect()
    read(owner)
    broker.execute("SELECT pg_terminate_backend(%s, 30000)", (owner.info.backend_pid,))

    assert payloads(read(broker)[0]) == [1]


def test_what_was_not_acknowledged_is_read_again(broker: Connection) -> None:
    publish_numbers(broker, 500)
    poll(broker)
    cursor = read(broker, chunk=100)[1]
    broker.execute("SELECT pgmb.set_group_cursor('group', %s, TRUE)", (cursor,))

    assert payloads(drain(broker)) == list(range(101, 501))


def test_reading_and_polling_at_once_deliver_an_event_once(broker: Connection, connect: Connect) -> None:
    poller = connect()
    found: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        for number in range(30):
            publish(broker, number)
            polling = pool.submit(poll, poller)
            found += payloads(drain(broker))
            polling.result()
    found += payloads(drain(broker))

    assert found == list(range(30))


@pytest.mark.parametrize(
    ("cursor", "words"),
    [("pm", "is not one of this broker"), ("x'; DROP", "is not one of"), (None, "lies in the future")],
)
def test_cursors_that_would_pass_over_events_are_refused(broker: Connection, cursor: str | None, words: str) -> None:
    cursor = cursor or value(broker, "SELECT pgmb.create_event_id(now() + interval '1 minute', 0)")

    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        read(broker, cursor=cursor)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        broker.execute("SELECT pgmb.set_group_cursor('group', %s, TRUE)", (cursor,))
    assert advisory_locks(broker) == 0


@pytest.mark.parametrize("other", [None, "other"])
def test_a_cursor_behind_all_that_a_dispatch_can_hold_stands_behind_it(broker: Connection, other: str | None) -> None:
    if other:
        subscribe(broker, other, condition="e.payload <> '2'")
    publish(broker, 1, 2, 3)
    poll(broker)
    cursor = value(broker, "SELECT left(max(id), 15) || 'fffffffff' FROM pgmb.dispatches")
    broker.execute("SELECT pgmb.set_group_cursor('group', %s, FALSE)", (cursor,))
    later = publish(broker, 4)
    poll(broker)

    assert delivered(broker, "all") == later
    assert value(broker, "SELECT pgmb.advance_groups(pgmb.create_event_id(clock_timestamp(), 0))") == 0


def test_a_group_is_never_without_a_cursor(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="cursor NULL is not one of this broker"):
        broker.execute("SELECT pgmb.set_group_cursor('group', NULL, FALSE)")
    with pytest.raises(psycopg.errors.NotNullViolation):
        broker.execute("UPDATE pgmb.subscription_groups SET last_read_event_id = NULL")

    published = publish(broker, 1)
    poll(broker)
    assert delivered(broker, "all") == published


def test_an_unknown_group_has_nothing_to_read(broker: Connection) -> None:
    publish(broker, 1)
    poll(broker)

    assert read(broker, group="unknown") == ([], None)


def test_no_call_leaves_a_setting_behind(broker: Connection) -> None:
    def settings() -> list[tuple[Any, ...]]:
        return broker.execute("SELECT name, setting FROM pg_settings ORDER BY name").fetchall()

    before = settings()
    publish(broker, 1)
    poll(broker)
    drain(broker)
    broker.execute("CALL pgmb.maintain_events_table()")
    broker.execute("CALL pgmb.maintain_events_table(now() + interval '1 day')")

    assert settings() == before
    assert advisory_locks(broker) == 0


def test_an_event_of_the_future_waits_for_its_time_even_a_year(broker: Connection) -> None:
    ids = [
        event_id
        for (event_id,) in broker.execute(
            "INSERT INTO pgmb.events (id, topic, payload) "
            "SELECT pgmb.create_event_id(now() + t.ahead, pgmb.create_random_bigint()), 'topic', '1' "
            "FROM unnest(ARRAY[interval '-1 minute', '10 minutes', '1 year']) AS t (ahead) RETURNING id"
        )
    ]
    poll(broker)
    assert delivered(broker, "all") == ids[:1]

    broker.execute("CALL pgmb.maintain_events_table(now() + interval '1 day')")
    for behind in ids[1:]:
        broker.execute("UPDATE pgmb.scheduled_events SET due_at = now() WHERE id = %s", (behind,))
        poll(broker)

    assert delivered(broker, "all") == ids


def test_many_events_of_one_instant_have_ids_of_their_own(broker: Connection) -> None:
    count = value(
        broker,
        "WITH made AS (INSERT INTO pgmb.events (id, topic, payload) "
        "SELECT pgmb.create_event_id(now(), pgmb.create_random_bigint()), 'topic', '1' "
        "FROM generate_series(1, 20000) RETURNING id) SELECT count(DISTINCT id) FROM made",
    )

    assert count == 20_000


def test_an_id_of_another_form_does_not_stop_dispatching(broker: Connection) -> None:
    lower = value(broker, "SELECT max(lower_bound) FROM pgmb.partition_bounds('pgmb.events')")
    broker.execute("INSERT INTO pgmb.events (id, topic, payload) VALUES ('zebra', 'topic', '1')")
    broker.execute("INSERT INTO pgmb.events (id, topic, payload) VALUES (%s, 'topic', '2')", (lower[:10] + "zz",))
    publish(broker, 3)

    assert poll(broker) == 3
    assert sorted(payloads(drain(broker))) == [1, 2, 3]


def test_dispatching_goes_on_after_a_restore_on_another_server(broker: Connection) -> None:
    """There, transaction ids have not come so far: neither the state's nor those of the rows."""
    publish(broker, "dispatched before the dump")
    poll(broker)
    publish(broker, "not dispatched before the dump")
    broker.execute("UPDATE pgmb.events SET transaction_id = (transaction_id::text::bigint + 1000000)::text::xid8")
    broker.execute("UPDATE pgmb.dispatch_state SET dispatched = '9000000:9000000:'")

    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="comes from another server") as refused:
        broker.execute("SELECT pgmb.poll_for_events()")
    assert "resynchronize_dispatch" in str(refused.value.diag.message_hint)

    assert value(broker, "SELECT pgmb.resynchronize_dispatch()") == 1
    publish(broker, "new")
    poll(broker)
    assert payloads(drain(broker)) == [
        "dispatched before the dump", "not dispatched before the dump", "new",
    ]  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_a_state_of_another_server_is_refused_until_it_is_resynchronised(broker: Connection, known: bool) -> None:
    """Its ids may lie among those of this server: then the server tells them apart, or else how far they have come."""
    foreign = "system_identifier = system_identifier + 1" if known else "system_identifier = NULL"
    publish(broker, "dispatched before the dump")
    poll(broker)
    next_id = int(value(broker, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    state = f"{next_id - 5}:{next_id - 5}:" if known else f"{next_id - 5}:{next_id + 1000}:{next_id - 5}"
    broker.execute(f"UPDATE pgmb.dispatch_state SET dispatched = '{state}', {foreign}".encode())
    publish(broker, "new")

    for _ in range(2):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="comes from another server"):
            broker.execute("SELECT pgmb.poll_for_events()")
        for _ in range(20):
            broker.execute("SELECT pg_current_xact_id()")
    assert value(broker, "SELECT pgmb.resynchronize_dispatch()") == 1

    poll(broker)
    assert payloads(drain(broker)) == ["dispatched before the dump", "new"]


def test_an_upgraded_server_goes_on_when_it_is_told_so(broker: Connection) -> None:
    """pg_upgrade keeps transaction ids, and gives the server another number."""
    publish(broker, 1)
    broker.execute("UPDATE pgmb.dispatch_state SET system_identifier = system_identifier + 1")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
        broker.execute("SELECT pgmb.poll_for_events()")
    hint = str(refused.value.diag.message_hint)
    broker.execute(hint[hint.index("UPDATE") :].rstrip(".").encode())

    assert poll(broker) == 1
    assert value(broker, "SELECT system_identifier = pgmb.server_identifier() FROM pgmb.dispatch_state")


def test_the_status_tells_what_waits(broker: Connection) -> None:
    published = publish(broker, 1, 2)
    broker.execute("SELECT pgmb.schedule_event(now() + interval '1 day', 'topic', '1')")
    status = (
        "SELECT undispatched, oldest_undispatched_id, scheduled, overdue, quarantined_subscriptions, overflow_in_use "
        "FROM pgmb.dispatch_status()"
    )

    assert broker.execute(status.encode()).fetchone() == (2, published[0], 1, 0, 0, False)
    poll(broker)
    assert broker.execute(status.encode()).fetchone() == (0, None, 1, 0, 0, False)
    assert value(broker, "SELECT polled_at > now() - interval '1 minute' FROM pgmb.dispatch_status()")
    assert value(broker, "SELECT head_room > interval '1 hour' FROM pgmb.dispatch_status()")
