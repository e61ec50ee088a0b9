"""Scheduled events, retries, dead letters and what is dispatched again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import psycopg
import pytest

from queuekeeper.postgres import Connection
from tests.event_samples import delivered, poll, publish, subscribe, value
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


def backend(connection: Connection) -> int:
    return connection.info.backend_pid


def let_time_pass(connection: Connection) -> None:
    """Make due what is scheduled, as if its time had come."""
    connection.execute("UPDATE pgmb.scheduled_events SET due_at = now() - interval '1 second'")


def retries(connection: Connection) -> list[tuple[str, dict[str, Any]]]:
    """Return the retry events that wait for a reader: id and payload."""
    return connection.execute(
        "SELECT id, payload FROM pgmb.read_next_events('group', peek => TRUE) WHERE topic = 'pgmb-retry'"
    ).fetchall()


def dead_letters(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT event_id, topic, payload, metadata, group_id, subscription_id, handler, reason, attempts "
        "FROM pgmb.dead_letters WHERE replayed_at IS NULL ORDER BY id"
    ).fetchall()


def all_letters(connection: Connection) -> list[int]:
    return [number for (number,) in connection.execute("SELECT id FROM pgmb.dead_letters ORDER BY id")]


def test_event_scheduled_a_century_ahead_is_kept_and_arrives_when_due(broker: Connection) -> None:
    scheduled = value(
        broker,
        "SELECT pgmb.schedule_event('2099-01-01', 'topic', %s::jsonb, %s::jsonb)",
        '{"n": 1.10}',
        '{"trace": "t"}',
    )
    assert poll(broker) == 0

    let_time_pass(broker)
    poll(broker)

    (event_id,) = delivered(broker, "all")
    assert value(broker, "SELECT count(*) FROM pgmb.scheduled_events") == 0
    row = broker.execute("SELECT topic, payload::text, metadata FROM pgmb.events WHERE id = %s", (event_id,)).fetchone()
    assert row == ("topic", '{"n": 1.10}', {"trace": "t"})
    assert value(broker, "SELECT extract(year FROM pgmb.extract_date_from_event_id(%s))::int", scheduled) == 2099


def test_event_scheduled_in_the_past_arrives_with_the_next_poll_under_its_id(broker: Connection) -> None:
    scheduled = value(broker, "SELECT pgmb.schedule_event('2020-01-01', 'topic', '{}')")

    poll(broker)

    assert delivered(broker, "all") == [scheduled]


def test_scheduled_event_can_be_for_one_subscription(broker: Connection) -> None:
    subscribe(broker, "one", condition="FALSE")
    scheduled = value(broker, "SELECT pgmb.schedule_event(now(), 'topic', '{}', NULL, 'one')")

    poll(broker)

    assert (delivered(broker, "one"), delivered(broker, "all")) == ([scheduled], [])


def test_any_number_of_events_can_be_due_at_one_instant(broker: Connection) -> None:
    ids = broker.execute(
        "SELECT pgmb.schedule_event('2099-01-01', 'topic', '{}') FROM generate_series(1, 20000)"
    ).fetchall()

    assert len(set(ids)) == 20000


@pytest.mark.parametrize("instant", ["infinity", "2200-01-01", None])
def test_instant_that_no_id_can_hold_is_refused(broker: Connection, instant: str | None) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="an event cannot be due at"):
        broker.execute("SELECT pgmb.schedule_event(%s, 'topic', '{}')", (instant,))


def test_scheduling_is_undone_with_its_transaction(broker: Connection) -> None:
    with broker.transaction(force_rollback=True):
        broker.execute("SELECT pgmb.schedule_event(now(), 'topic', '{}')")

    assert poll(broker) == 0


def test_retry_reaches_its_subscription_alone_with_copies_of_the_events(broker: Connection) -> None:
    subscribe(broker, "other", condition="e.topic IS NOT NULL")
    ids = publish(broker, {"n": 1}, {"n": 2}, metadata={"trace": "t"})
    poll(broker)

    value(broker, "SELECT pgmb.schedule_retry('all', %s, 1, 'mail', '1 hour')", ids[::-1])
    assert poll(broker) == 0
    let_time_pass(broker)
    poll(broker)

    ((retry_id, payload),) = retries(broker)
    assert payload == {
        "ids": ids[::-1],
        "retryNumber": 1,
        "handlerName": "mail",
        "events": [
            {"id": event_id, "topic": "topic", "payload": {"n": n}, "metadata": {"trace": "t"}}
            for event_id, n in ((ids[1], 2), (ids[0], 1))
        ],
    }
    assert retry_id in delivered(broker, "all")
    assert retry_id not in delivered(broker, "other")


def test_retry_of_a_retry_has_its_copies_when_retention_has_taken_the_events(broker: Connection) -> None:
    ids = publish(broker, {"n": 1}, {"n": 2})
    value(broker, "SELECT pgmb.schedule_retry('all', %s, 1, 'mail', '0 s')", ids)
    poll(broker)
    ((retry_id, first),) = retries(broker)
    broker.execute("DELETE FROM pgmb.events WHERE id = ANY(%s)", (ids,))

    value(broker, "SELECT pgmb.schedule_retry('all', %s, 2, 'mail', '0 s', %s)", ids, retry_id)
    poll(broker)

    _, (_, second) = retries(broker)
    assert second == first | {"retryNumber": 2}


def test_retry_of_events_that_are_gone_is_not_scheduled(broker: Connection) -> None:
    (gone,) = publish(broker, 1)
    broker.execute("DELETE FROM pgmb.events")

    assert value(broker, "SELECT pgmb.schedule_retry('all', %s, 1, 'mail', '0 s')", [gone]) is None
    assert value(broker, "SELECT count(*) FROM pgmb.scheduled_events") == 0


def test_nothing_is_scheduled_for_a_subscription_that_there_is_not(broker: Connection) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match="there is no subscription nobody"):
        broker.execute("SELECT pgmb.schedule_event(now(), 'topic', '{}', NULL, 'nobody')")

    ids = publish(broker, 1)
    broker.execute("DELETE FROM pgmb.subscriptions")
    assert value(broker, "SELECT pgmb.schedule_retry('all', %s, 1, 'mail', '0 s')", ids) is None
    assert value(broker, "SELECT count(*) FROM pgmb.scheduled_events") == 0


def test_retry_takes_what_is_left(broker: Connection) -> None:
    gone, left = publish(broker, 1, 2)
    broker.execute("DELETE FROM pgmb.events WHERE id = %s", (gone,))

    value(broker, "SELECT pgmb.schedule_retry('all', %s, 1, 'mail', '0 s')", [gone, left])
    poll(broker)

    ((_, payload),) = retries(broker)
    assert [event["id"] for event in payload["events"]] == [left]


@pytest.mark.parametrize("payload", ["no object", {}, {"ids": None, "events": 3}, {"events": [1, {"id": 2}]}])
def test_retry_that_somebody_forged_brings_nothing(broker: Connection, payload: Any) -> None:
    (forged,) = publish(broker, payload, topic="pgmb-retry")
    (event_id,) = publish(broker, 1)

    assert value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 1, %s)", ["pm", event_id], forged) == 1


def test_retry_whose_copies_somebody_forged_still_makes_dead_letters(broker: Connection) -> None:
    copies = [{"id": "pm1", "topic": "a"}, {"id": "pm2", "topic": "b", "payload": 1}, {"id": "pm2", "topic": "c"}]
    (forged,) = publish(broker, {"events": copies}, topic="pgmb-retry")

    ids = ["pm1", "pm2", "pm2"]
    assert value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 1, %s)", ids, forged) == 2
    assert [row[0] for row in dead_letters(broker)] == ["pm1", "pm2"]
    assert dead_letters(broker)[0][2] is None


def test_failed_events_become_dead_letters_with_their_reason(broker: Connection) -> None:
    first, second = publish(broker, {"n": 1}, {"n": 2}, topic="mail")

    assert value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'mailbox full', 3)", [first, second]) == 2
    broker.execute("DELETE FROM pgmb.events")

    assert dead_letters(broker) == [
        (first, "mail", {"n": 1}, None, "group", "all", "mail", "mailbox full", 3),
        (second, "mail", {"n": 2}, None, "group", "all", "mail", "mailbox full", 3),
    ]


def test_death_that_is_reported_twice_is_written_once(broker: Connection) -> None:
    ids = publish(broker, 1)
    for reason in ("first", "last"):
        value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', %s, 3)", ids + ids, reason)
    value(broker, "SELECT pgmb.fail_events('all', %s, 'archive', 'another handler', 1)", ids)

    assert [(letter[6], letter[7]) for letter in dead_letters(broker)] == [
        ("mail", "last"),
        ("archive", "another handler"),
    ]


def test_dead_letter_outlives_its_subscription(broker: Connection) -> None:
    ids = publish(broker, 1)
    broker.execute("DELETE FROM pgmb.subscriptions")

    assert value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'too late', 1)", ids) == 1


def test_replayed_dead_letters_go_to_their_handlers_as_new_retries(broker: Connection) -> None:
    first, second, third = publish(broker, {"n": 1}, {"n": 2}, {"n": 3})
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", [second, first])
    value(broker, "SELECT pgmb.fail_events('all', %s, 'archive', 'full', 3)", [third])
    broker.execute("DELETE FROM pgmb.events")

    assert value(broker, "SELECT pgmb.replay_dead_letters(%s)", all_letters(broker)) == 3
    poll(broker)

    found = {payload["handlerName"]: payload for _, payload in retries(broker)}
    assert {name: payload["ids"] for name, payload in found.items()} == {"mail": [first, second], "archive": [third]}
    assert [event["payload"] for event in found["mail"]["events"]] == [{"n": 1}, {"n": 2}]
    assert {payload["retryNumber"] for payload in found.values()} == {0}
    assert dead_letters(broker) == []


def test_dead_letter_is_replayed_once_until_it_dies_again(broker: Connection) -> None:
    ids = publish(broker, 1)
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", ids)
    letters = all_letters(broker)

    counts = [value(broker, "SELECT pgmb.replay_dead_letters(%s)", letters) for _ in range(2)]
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full again', 3)", ids)
    counts.append(value(broker, "SELECT pgmb.replay_dead_letters(%s)", letters))

    assert counts == [1, 0, 1]


def test_dead_letters_replayed_by_two_at_once_are_sent_once(
    broker: Connection, connect: Callable[[], Connection]
) -> None:
    ids = publish(broker, 1, 2)
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", ids)
    letters, other, watcher = all_letters(broker), connect(), connect()
    replay = "SELECT pgmb.replay_dead_letters(%s)"
    counts: list[int] = []

    second = threading.Thread(target=lambda: counts.append(value(other, replay, letters)))
    with broker.transaction():
        counts.append(value(broker, replay, letters))
        second.start()
        while value(watcher, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s", backend(other)) == 0:
            pass
    second.join()

    assert counts == [2, 0]


def test_what_can_be_dispatched_at_once_wakes_the_dispatcher(
    broker: Connection, connect: Callable[[], Connection]
) -> None:
    (event_id,) = publish(broker, 1)
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", [event_id])
    listener = connect()
    listener.execute("LISTEN pgmb_events")

    for statement, parameter in (
        ("SELECT pgmb.schedule_event(now(), 'topic', %s::jsonb)", "{}"),
        ("SELECT pgmb.schedule_event(now() + interval '1 hour', 'topic', %s::jsonb)", "{}"),
        ("SELECT pgmb.reenqueue_events(%s::pgmb.event_id[])", [event_id]),
        ("SELECT pgmb.replay_dead_letters(%s)", all_letters(broker)),
    ):
        value(broker, statement, parameter)

    assert len(list(listener.notifies(timeout=PATIENCE_S, stop_after=3))) == 3
    assert list(listener.notifies(timeout=0)) == []


def test_dead_letters_of_an_expired_subscription_go_to_another_one(broker: Connection) -> None:
    ids = publish(broker, 1)
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", ids)
    broker.execute("DELETE FROM pgmb.subscriptions")
    subscribe(broker, "next", condition="FALSE")

    with pytest.raises(psycopg.errors.InvalidParameterValue, match="there is no subscription all"):
        value(broker, "SELECT pgmb.replay_dead_letters(%s)", all_letters(broker))
    assert value(broker, "SELECT pgmb.replay_dead_letters(%s, 'next')", all_letters(broker)) == 1
    poll(broker)
    assert len(delivered(broker, "next")) == 1


def test_thousand_dead_letters_travel_in_parts(broker: Connection) -> None:
    ids = publish(broker, *range(1000))
    value(broker, "SELECT pgmb.fail_events('all', %s, 'mail', 'full', 3)", ids)

    assert value(broker, "SELECT pgmb.replay_dead_letters(%s)", all_letters(broker)) == 1000
    poll(broker)

    parts = [payload["ids"] for _, payload in retries(broker)]
    assert list(chain.from_iterable(parts)) == ids
    assert max(len(part) for part in parts) <= 100


def test_reenqueued_events_are_dispatched_again_in_order(broker: Connection) -> None:
    first, second, third = publish(broker, 1, 2, 3)
    poll(broker)

    reenqueue = "SELECT pgmb.reenqueue_events(%s::pgmb.event_id[])"
    assert value(broker, reenqueue, [third, first, "pm0000000000000000000000"]) == 2
    assert value(broker, reenqueue, [third]) == 0
    poll(broker)

    assert delivered(broker, "all") == [first, second, third, first, third]
