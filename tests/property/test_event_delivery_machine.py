"""The event broker delivers what a model of it says, whatever the order of commits, polls, reads and crashes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queuekeeper.embedded import PostgresServer
from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect
from tests.conftest import nightly
from tests.property.event_model import BrokerModel, Event, Group, Transaction
from tests.property.run_machine import run_machine

pytestmark = pytest.mark.property

TOPICS = ("door", "lamp", "100%")
CHUNK = 5
PUBLISHERS = 3
READERS = 2

CONDITIONS: dict[str, tuple[str, str, Any]] = {
    "all": ("TRUE", "{}", lambda event: True),
    "lamps": (
        "s.params @> jsonb_build_object('topic', e.topic)",
        '{"topic": "lamp"}',
        lambda event: event.topic == "lamp",
    ),
    "even": ("(e.payload ->> 'n')::int % 2 = 0", "{}", lambda event: event.number % 2 == 0),
    "percent": ("e.topic LIKE '100%'", "{}", lambda event: event.topic == "100%"),
    "late": ("e.topic IN ('door', 'lamp')", "{}", lambda event: event.topic in {"door", "lamp"}),
}

topics = st.sampled_from(TOPICS)
publishers = st.integers(0, PUBLISHERS - 1)
readers = st.integers(0, READERS - 1)
groups = st.sampled_from(sorted(CONDITIONS))


class EventDeliveryMachine(RuleBasedStateMachine):
    """Publishers with transactions that stay open, two readers, a poller, and the model."""

    server: PostgresServer
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.model = BrokerModel(chunk=CHUNK)
        self.numbers = 0
        self.opened: dict[int, Transaction] = {}
        self.last_read: dict[tuple[int, str], tuple[int, str]] = {}
        self.connections: dict[str, Connection] = {}
        self.subscriptions: dict[str, str] = {}

    @initialize()
    def start(self) -> None:
        with connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS pgmb CASCADE")
            install(connection)
            connection.execute("UPDATE pgmb.config SET value = %s WHERE id = 'poll_chunk_size'", (str(CHUNK),))
        for name in sorted(CONDITIONS):
            if name != "late":
                self._subscribe(name)

    def teardown(self) -> None:
        if self.subscriptions:
            self._settle()
        for connection in self.connections.values():
            connection.close()

    # Rules

    @rule(publisher=publishers, topic=topics, count=st.integers(1, 4), by_function=st.booleans())
    def publish(self, publisher: int, topic: str, count: int, by_function: bool) -> None:
        """Publish in the publisher's open transaction, or in one that begins here."""
        self._begin(publisher)
        events = [self._event(topic) for _ in range(count)]
        rows = [f'{{"n": {event.number}}}' for event in events]
        connection = self._connection(f"publisher-{publisher}")
        if by_function:
            connection.execute(
                "SELECT count(*) FROM pgmb.publish(%s::text[], %s::jsonb[], NULL::jsonb[])", ([topic] * count, rows)
            )
        else:
            values = ",".join(["(%s,%s)"] * count)
            parameters = [value for row in rows for value in (topic, row)]
            connection.execute(f"INSERT INTO pgmb.events (topic, payload) VALUES {values}".encode(), parameters)
        self.opened[publisher].events += events

    @rule(publisher=publishers, group=groups, topic=topics)
    def send(self, publisher: int, group: str, topic: str) -> None:
        """Send to one subscription, whatever its condition."""
        if group not in self.subscriptions:
            return
        self._begin(publisher)
        event = self._event(topic, sent_to=group)
        self._connection(f"publisher-{publisher}").execute(
            "INSERT INTO pgmb.events (topic, payload, subscription_id) VALUES (%s, %s, %s)",
            (topic, f'{{"n": {event.number}}}', self.subscriptions[group]),
        )
        self.opened[publisher].events.append(event)

    @precondition(lambda self: self.opened)
    @rule(place=st.integers(0, PUBLISHERS - 1))
    def commit(self, place: int) -> None:
        """Commit one of the open transactions; not the oldest first."""
        publisher = sorted(self.opened)[place % len(self.opened)]
        self._connection(f"publisher-{publisher}").execute("COMMIT")
        self.model.commit(self.opened.pop(publisher))

    @precondition(lambda self: self.opened)
    @rule(place=st.integers(0, PUBLISHERS - 1), lost=st.booleans())
    def roll_back(self, place: int, lost: bool) -> None:
        """Give a transaction up, or lose its connection."""
        publisher = sorted(self.opened)[place % len(self.opened)]
        if lost:
            self._lose(f"publisher-{publisher}")
        else:
            self._connection(f"publisher-{publisher}").execute("ROLLBACK")
        del self.opened[publisher]

    @rule(times=st.integers(1, 3))
    def poll(self, times: int) -> None:
        for _ in range(times):
            [[matches]] = self._connection("poller").execute("SELECT pgmb.poll_for_events()").fetchall()
            assert matches == self.model.poll()

    @rule()
    def poll_and_roll_back(self) -> None:
        """A poll that is given up has dispatched nothing."""
        with suppress(ZeroDivisionError), self._connection("poller").transaction():
            self._connection("poller").execute("SELECT pgmb.poll_for_events()")
            raise ZeroDivisionError

    @rule(reader=readers, group=groups, chunk=st.integers(1, 7), goes_on=st.booleans())
    def read(self, reader: int, group: str, chunk: int, goes_on: bool) -> None:
        """Read what is not confirmed, or go on after what this reader has read before."""
        if group not in self.subscriptions:
            return
        known = self.model.groups[group]
        last = self.last_read.get((reader, group)) if goes_on else None
        begin, cursor = last if last is not None else (known.confirmed, None)
        found = self._read(reader, group, cursor=cursor, chunk=chunk)
        if any(who != reader and owned == group for who, owned in self.last_read):
            assert found == []
            return
        expected = known.deliveries[begin:]
        numbers = [number for number, _, _ in found]
        assert numbers == [event.number for event in expected[: len(found)]]
        assert bool(found) == bool(expected)
        assert len(found) <= chunk
        assert all(subscriptions == [self.subscriptions[group]] for _, subscriptions, _ in found)
        assert len({next_cursor for _, _, next_cursor in found}) <= 1
        if found:
            self.last_read[reader, group] = begin + len(found), found[-1][2]
        else:
            self.last_read.setdefault((reader, group), (begin, ""))
            if not self.last_read[reader, group][1]:
                # Nothing was read, but the group is this reader's from now on.
                self._release(reader, group)

    @rule(group=groups, chunk=st.integers(1, 7))
    def peek(self, group: str, chunk: int) -> None:
        """Look without taking a lock or changing anything, whoever reads."""
        if group not in self.subscriptions:
            return
        found = self._read(None, group, cursor=None, chunk=chunk)
        expected = self.model.groups[group].waiting
        assert [number for number, _, _ in found] == [event.number for event in expected[: len(found)]]
        assert bool(found) == bool(expected)

    @precondition(lambda self: self.last_read)
    @rule(place=st.integers(0, 9), release=st.booleans())
    def confirm(self, place: int, release: bool) -> None:
        reader, group = sorted(self.last_read)[place % len(self.last_read)]
        confirmed, cursor = self.last_read[reader, group]
        self._connection(f"reader-{reader}").execute(
            "SELECT pgmb.set_group_cursor(%s, %s, %s)", (group, cursor, release)
        )
        self.model.groups[group].confirmed = confirmed
        if release:
            del self.last_read[reader, group]

    @precondition(lambda self: self.last_read)
    @rule(place=st.integers(0, 9))
    def release(self, place: int) -> None:
        reader, group = sorted(self.last_read)[place % len(self.last_read)]
        self._release(reader, group)

    @rule(reader=readers)
    def lose_reader(self, reader: int) -> None:
        """What it has not confirmed comes again, to anybody."""
        self._lose(f"reader-{reader}")
        self.last_read = {key: value for key, value in self.last_read.items() if key[0] != reader}

    @precondition(lambda self: "late" not in self.subscriptions)
    @rule()
    def subscribe_late(self) -> None:
        """It gets what is dispatched from now on."""
        self._subscribe("late")

    @rule(mercy=st.integers(0, 9))
    def crash(self, mercy: int) -> None:
        """Kill the server, one time in ten."""
        if mercy:
            return
        self.server.kill()
        self.server.start()
        for connection in self.connections.values():
            connection.close()
        self.connections.clear()
        self.opened.clear()
        self.last_read.clear()

    @invariant()
    def no_connection_holds_what_it_should_not(self) -> None:
        for name, connection in self.connections.items():
            if name.startswith("publisher") or name == "poller":
                continue
            held = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
            ).fetchall()
            owned = sum(f"reader-{reader}" == name for reader, _ in self.last_read)
            assert held == [(owned,)]

    # What the rules share

    def _connection(self, name: str) -> Connection:
        if name not in self.connections:
            self.connections[name] = connect(self.url, autocommit=True)
        return self.connections[name]

    def _lose(self, name: str) -> None:
        connection = self.connections.pop(name, None)
        if connection is None:
            return
        pid = connection.info.backend_pid
        with connect(self.url, autocommit=True) as other:
            # It has gone when this answers, and its locks with it.
            assert other.execute("SELECT pg_terminate_backend(%s, 60000)", (pid,)).fetchall() == [(True,)]
        with suppress(psycopg.Error):
            connection.close()

    def _subscribe(self, name: str) -> None:
        condition, params, wants = CONDITIONS[name]
        connection = self._connection("poller")
        connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", (name,))
        [[subscription_id]] = connection.execute(
            "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) VALUES (%s, %s, %s) RETURNING id",
            (name, condition, params),
        ).fetchall()
        self.subscriptions[name] = subscription_id
        self.model.groups[name] = Group(name=name, wants=wants)

    def _begin(self, publisher: int) -> None:
        if publisher not in self.opened:
            connection = self._connection(f"publisher-{publisher}")
            connection.execute("BEGIN")
            [[transaction_id]] = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
            self.opened[publisher] = Transaction(transaction_id=transaction_id)

    def _event(self, topic: str, *, sent_to: str | None = None) -> Event:
        self.numbers += 1
        return Event(number=self.numbers, topic=topic, sent_to=sent_to)

    def _read(
        self, reader: int | None, group: str, *, cursor: str | None, chunk: int
    ) -> list[tuple[int, list[str], str]]:
        name = "poller" if reader is None else f"reader-{reader}"
        return (
            self._connection(name)
            .execute(
                "SELECT (payload ->> 'n')::int, subscription_ids::text[], next_cursor"
                " FROM pgmb.read_next_events(%s, %s, %s, %s)",
                (group, cursor or None, chunk, reader is None),
            )
            .fetchall()
        )

    def _release(self, reader: int, group: str) -> None:
        self._connection(f"reader-{reader}").execute("SELECT pgmb.release_group_lock(%s)", (group,))
        del self.last_read[reader, group]

    def _settle(self) -> None:
        """Commit, dispatch and deliver everything that is left."""
        for publisher in sorted(self.opened):
            self.commit(place=publisher)
        while self.model.committed or self.model.window:
            self.poll(times=1)
        for reader, group in list(self.last_read):
            self._release(reader, group)
        for name, known in self.model.groups.items():
            while known.waiting:
                self.read(reader=0, group=name, chunk=7, goes_on=True)
                self.confirm(place=0, release=True)
            assert self._read(0, name, cursor=None, chunk=1) == []


@pytest.mark.parametrize("examples", [12, *nightly(25)])
def test_every_matching_event_is_delivered_in_order_whatever_happens(
    postgres_server: PostgresServer, postgres_url: str, examples: int
) -> None:
    run_machine(EventDeliveryMachine, examples=examples, server=postgres_server, url=postgres_url)
