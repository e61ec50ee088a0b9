"""The clock is moved under the event broker: ids stay unique, dispatches keep rising, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count, pairwise

import psycopg
import pytest

from queuekeeper.postgres import Connection, connect
from tests.chaos.event_load import publish, read, subscribe
from tests.event_clock import install_with_clock, move_clock

pytestmark = pytest.mark.chaos

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


class Broker:
    """A scratch installation that asks a function of the test's for the time, with one publisher and one reader."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._numbers = count()
        self.found: list[int] = []
        install_with_clock(connection)
        subscribe(connection)

    def move(self, ahead: timedelta) -> None:
        """Set the clock so far ahead of the true time."""
        move_clock(self.connection, ahead)

    def publish(self, *, times: int = 5) -> None:
        """Publish numbered events, a transaction each."""
        for _ in range(times):
            publish(self.connection, 0, [next(self._numbers)])

    def poll(self) -> None:
        """Poll until there is nothing left."""
        while self.connection.execute("SELECT pgmb.poll_for_events()").fetchall() != [(0,)]:
            pass

    def read(self, *, chunk: int = 3) -> None:
        """Read and confirm what waits."""
        while True:
            found, cursor = read(self.connection, "all", chunk=chunk)
            if cursor is None:
                return
            self.found += [number for _, number in found]
            self.connection.execute("SELECT pgmb.set_group_cursor('all', %s, false)", (cursor,))

    @property
    def published(self) -> list[int]:
        """The numbers that were published."""
        return list(range(len(self.column("SELECT id FROM pgmb.events"))))

    def column(self, query: str) -> list[str]:
        """Return the first column of a query."""
        return [row[0] for row in self.connection.execute(query.encode())]


@pytest.fixture
def broker(postgres_url: str) -> Iterator[Broker]:
    """A broker whose clock can be moved."""
    with connect(postgres_url, autocommit=True) as connection:
        yield Broker(connection)


def test_clock_that_is_moved_to_and_fro_disturbs_neither_ids_nor_order(broker: Broker) -> None:
    for ahead in (0 * HOUR, -10 * MINUTE, 1 * HOUR, -20 * MINUTE, 30 * DAY, 0 * HOUR, -5 * MINUTE, HOUR):
        broker.move(ahead)
        for _ in range(2):
            broker.publish()
            broker.poll()
            broker.read()
    assert broker.found == broker.published == list(range(80))
    dispatches = broker.column("SELECT id FROM pgmb.dispatches ORDER BY dispatched_at, id")
    assert len(dispatches) >= 16
    last = broker.column("SELECT last_dispatch_id FROM pgmb.dispatch_state")
    assert last == [max(dispatches)]
    ids = broker.column("SELECT id FROM pgmb.events")
    assert len(set(ids)) == len(ids)


def test_dispatches_rise_while_the_clock_falls(broker: Broker) -> None:
    last: list[str] = []
    for step in range(10):
        broker.move(-2 * step * MINUTE)
        broker.publish(times=1)
        broker.poll()
        last += broker.column("SELECT last_dispatch_id FROM pgmb.dispatch_state")
    assert all(one < other for one, other in pairwise(last))
    broker.read()
    assert broker.found == list(range(10))


def test_clock_that_goes_back_behind_all_partitions_stops_publishing_with_words_and_loses_nothing(
    broker: Broker,
) -> None:
    broker.publish()
    broker.move(-30 * DAY)
    with pytest.raises(psycopg.errors.CheckViolation, match="no partition of relation"):
        broker.publish(times=1)
    broker.poll()
    broker.read()
    broker.move(0 * HOUR)
    broker.poll()
    broker.read()
    assert broker.found == [0, 1, 2, 3, 4]


def test_group_that_begins_after_the_clock_went_back_gets_what_is_dispatched_from_then_on(broker: Broker) -> None:
    broker.move(DAY)
    broker.publish()
    broker.poll()
    broker.move(0 * HOUR)
    broker.connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('late')")
    broker.connection.execute("INSERT INTO pgmb.subscriptions (group_id) VALUES ('late')")
    broker.publish()
    broker.poll()
    assert [number for _, number in read(broker.connection, "late", chunk=100)[0]] == [5, 6, 7, 8, 9]


def test_events_that_a_clock_has_left_in_the_future_wait_for_their_time_and_hold_nobody_up(broker: Broker) -> None:
    broker.move(HOUR)
    broker.publish()
    broker.move(0 * HOUR)
    broker.poll()
    broker.publish()
    broker.poll()
    broker.read()
    assert broker.found == [5, 6, 7, 8, 9]
    broker.move(2 * HOUR)
    broker.poll()
    broker.read()
    assert broker.found == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


def test_clock_that_jumps_beyond_all_partitions_loses_nothing_before_and_after_maintenance(broker: Broker) -> None:
    for days in (0, 40, 80):
        broker.move(days * DAY)
        broker.publish()
        broker.poll()
        broker.publish()
        broker.connection.execute("CALL pgmb.maintain_events_table()")
        broker.publish()
        broker.poll()
        broker.read()
    assert broker.found == list(range(45))
