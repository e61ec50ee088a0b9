"""A clock that is put back hides nothing from a group that began before it was."""

from __future__ import annotations

from datetime import timedelta

import pytest

from queuekeeper.postgres import Connection
from tests.event_clock import install_with_clock, move_clock
from tests.event_samples import GROUP, delivered, poll, publish, subscribe, value

pytestmark = pytest.mark.sql


@pytest.fixture
def broker(connection: Connection) -> Connection:
    """Connection to a broker whose clock can be moved."""
    install_with_clock(connection)
    return connection


def test_a_group_that_began_before_the_clock_was_put_back_gets_what_follows(broker: Connection) -> None:
    move_clock(broker, timedelta(seconds=30))
    subscribe(broker, "all")
    move_clock(broker, timedelta(0))
    published = publish(broker, 1, 2)
    poll(broker)
    published += publish(broker, 3)
    poll(broker)

    assert delivered(broker, "all") == published
    move_clock(broker, timedelta(seconds=60))
    published += publish(broker, 4)
    poll(broker)
    assert delivered(broker, "all") == published


def test_a_cursor_that_was_set_before_the_clock_was_put_back_hides_nothing(broker: Connection) -> None:
    subscribe(broker, "all")
    subscribe(broker, "other", group="other")
    publish(broker, "read already")
    poll(broker)
    move_clock(broker, timedelta(hours=1))
    cursor = value(broker, "SELECT pgmb.create_event_id(clock_timestamp() + interval '1 hour', 7)")
    broker.execute("SELECT pgmb.set_group_cursor(%s, %s, TRUE)", (GROUP, cursor))
    move_clock(broker, timedelta(0))
    published = publish(broker, 1)
    poll(broker)

    assert delivered(broker, "all") == published
    assert delivered(broker, "other", group="other")[1:] == published


def test_a_cursor_that_no_clock_has_made_does_not_stop_dispatching(broker: Connection) -> None:
    subscribe(broker, "all")
    broker.execute(
        "INSERT INTO pgmb.subscription_groups (id, last_read_event_id) VALUES ('odd', 'odd'), ('end', %s)",
        ("pm" + "f" * 22,),
    )
    published = publish(broker, 1)

    assert poll(broker) == 1
    assert delivered(broker, "all") == published
