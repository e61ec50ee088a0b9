"""Subscriptions that nobody keeps alive are removed, and what one was sent can be asked for again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from queuekeeper.postgres import Connection
from tests.event_samples import poll, publish, subscribe

pytestmark = pytest.mark.sql


@pytest.fixture
def postgres_url(broker_url: str) -> str:
    """Every test has a broker of its own."""
    return broker_url


@pytest.fixture
def broker(connection: Connection) -> Connection:
    """Connection to a broker with a subscription to everything and one to numbers above three."""
    subscribe(connection, "all")
    subscribe(connection, "some", condition="(e.payload->>'n')::int > 3")
    return connection


def age(connection: Connection, subscription: str, *, inactive: str, life: str | None) -> None:
    connection.execute(
        "UPDATE pgmb.subscriptions SET last_active_at = now() - %s::interval, expiry_interval = %s WHERE id = %s",
        (inactive, life, subscription),
    )


def remaining(connection: Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT id FROM pgmb.subscriptions")}


def replayed(connection: Connection, subscription: str, behind: str, *, limit: int = 1000) -> list[str]:
    rows = connection.execute(
        "SELECT id FROM pgmb.replay_events('group', %s, %s, %s)", (subscription, behind, limit)
    ).fetchall()
    return [event_id for (event_id,) in rows]


def test_only_what_has_outlived_its_interval_expires(broker: Connection) -> None:
    for name in ("late", "in-time", "for-ever"):
        subscribe(broker, name, params={"name": name})
    age(broker, "late", inactive="61 minutes", life="1 hour")
    age(broker, "in-time", inactive="59 minutes", life="1 hour")
    age(broker, "for-ever", inactive="10 years", life=None)

    assert broker.execute("SELECT pgmb.expire_subscriptions()").fetchone() == (1,)
    assert remaining(broker) == {"all", "some", "in-time", "for-ever"}


def test_expiry_keeps_to_one_group_and_to_what_is_not_held(broker: Connection) -> None:
    for name, group in (("held", "group"), ("left", "group"), ("elsewhere", "other")):
        subscribe(broker, name, params={"name": name}, group=group)
        age(broker, name, inactive="2 hours", life="1 hour")

    assert broker.execute("SELECT pgmb.expire_subscriptions('group', ARRAY['held'])").fetchone() == (1,)
    assert remaining(broker) == {"all", "some", "held", "elsewhere"}


def test_heartbeat_that_comes_first_saves_its_subscription(
    broker: Connection, connect: Callable[[], Connection]
) -> None:
    age(broker, "some", inactive="2 hours", life="1 hour")
    other, watcher = connect(), connect()
    counts: list[object] = []

    expiry = threading.Thread(
        target=lambda: counts.append(other.execute("SELECT pgmb.expire_subscriptions()").fetchone())
    )
    with broker.transaction():
        broker.execute("UPDATE pgmb.subscriptions SET last_active_at = now() WHERE id = 'some'")
        expiry.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
        while watcher.execute(waiting, (other.info.backend_pid,)).fetchone() == (0,):
            pass
    expiry.join()

    assert counts == [(0,)]
    assert "some" in remaining(broker)


def test_replay_returns_what_followed_an_event_to_that_subscription_alone(broker: Connection) -> None:
    first, _, third, _, fifth = publish(broker, {"n": 4}, {"n": 1}, {"n": 5}, {"n": 2}, {"n": 6})
    poll(broker)
    (sixth,) = publish(broker, {"n": 7})
    poll(broker)

    assert replayed(broker, "some", first) == [third, fifth, sixth]
    assert replayed(broker, "some", sixth) == []
    assert len(replayed(broker, "all", first)) == 5


def test_replay_goes_by_order_of_dispatch_when_a_commit_was_late(
    broker: Connection, connect: Callable[[], Connection]
) -> None:
    late = connect()
    with late.transaction():
        (early_id,) = publish(late, {"n": 4})
        (seen,) = publish(broker, {"n": 5})
        poll(broker)
    poll(broker)

    assert early_id < seen
    assert replayed(broker, "all", seen) == [early_id]
    assert replayed(broker, "all", early_id) == []


def test_replay_from_an_instant_returns_what_was_dispatched_since(broker: Connection) -> None:
    (before,) = publish(broker, {"n": 4})
    poll(broker)
    instant = broker.execute("SELECT pgmb.create_event_id(clock_timestamp(), 0)").fetchall()[0][0]
    (after,) = publish(broker, {"n": 5})
    poll(broker)

    assert before < instant < after
    assert replayed(broker, "some", instant) == [after]
    assert replayed(broker, "some", "pm0000000000000000000000") == [before, after]


def test_replay_from_a_position_that_is_no_event_passes_over_no_late_commit(
    broker: Connection, connect: Callable[[], Connection]
) -> None:
    late = connect()
    with late.transaction():
        (early_id,) = publish(late, {"n": 4})
        position = broker.execute("SELECT pgmb.create_event_id(clock_timestamp(), 0)").fetchall()[0][0]
        (other,) = publish(broker, {"n": 5})
        poll(broker)
    poll(broker)

    assert early_id < position
    assert replayed(broker, "all", position) == [other, early_id]


def test_replay_of_more_than_was_asked_for_is_refused(broker: Connection) -> None:
    ids = publish(broker, *({"n": n} for n in range(5)))
    poll(broker)

    assert replayed(broker, "all", ids[0], limit=4) == ids[1:]
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="more than 3 events follow"):
        replayed(broker, "all", ids[0], limit=3)


def test_replay_of_an_unknown_subscription_or_group_is_empty(broker: Connection) -> None:
    publish(broker, {"n": 1})
    poll(broker)

    assert replayed(broker, "unknown", "pm0000000000000000000000") == []
