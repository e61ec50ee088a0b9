"""Clients of the event broker are killed or lose all their connections: every handler gets every event all the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from queuekeeper import postgres
from queuekeeper.errors import QueuekeeperError
from queuekeeper.events import schema
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.consumer import EventConsumer
from queuekeeper.events.dispatcher import Dispatcher
from queuekeeper.events.model import Delivery, Interest, NewEvent, ReadRules
from queuekeeper.postgres import Connection
from tests.chaos.support import until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos

# A consumer as a service runs it: it notes what it has handled, in the order in which it did.
CONSUMER = """
import sys
from queuekeeper.events.consumer import (EventConsumer)
from queuekeeper.events.model import ReadRules

url, log = sys.argv[1:]
with open(log, "a", buffering=1) as file:
    consumer = EventConsumer(url, group_id="group", rules=ReadRules(page=20, pages_ahead=3, poll_interval_s=0.1))
    consumer.handle(lambda delivery: file.writelines(f"{one.payload}\\n" for one in delivery.events), name="note")
    consumer.run()
"""


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    """A connection to a database with a new broker, in which the group and its subscription are."""
    with postgres.connect(postgres_url, autocommit=True) as opened:
        schema.install(opened)
        EventBroker(opened).subscribe("group", Interest())
        yield opened


class Service:
    """A process of its own that is killed again and again."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text("utf-8")
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)


@contextmanager
def service(command: list[str], log: Path) -> Iterator[Service]:
    found = Service(command, log)
    found.start()
    try:
        yield found
    finally:
        if found._process is not None and found._process.poll() is None:
            found._process.kill()
            found._process.wait()


def numbers(path: Path) -> list[int]:
    # The last line of a killed process may be half a line.
    with suppress(FileNotFoundError):
        return [int(line) for line in path.read_text("utf-8").splitlines() if line.isdecimal()]
    return []


def read_up_to(connection: Connection) -> str:
    """Return the group's stored cursor; what stands behind it comes again when its consumer is lost."""
    row = connection.execute("SELECT last_read_event_id FROM pgmb.subscription_groups").fetchone()
    assert row is not None
    return str(row[0])


def terminate_all(connection: Connection) -> None:
    """End every connection to this database but this one."""
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_killed_consumers_lose_nothing_and_the_order_is_kept(
    connection: Connection, postgres_url: str, tmp_path: Path, dice: random.Random
) -> None:
    count, log = 600, tmp_path / "handled"
    command = [sys.executable, "-c", CONSUMER, postgres_url, str(log)]
    broker = EventBroker(connection)
    with (
        Dispatcher(postgres_url),
        service(command, tmp_path / "one") as one,
        service(command, tmp_path / "two") as two,
    ):
        published = 0
        for kill in range(4):
            while published < count * (kill + 1) // 4:
                broker.publish([NewEvent(topic="orders", payload=published)])
                published += 1
            until(lambda: len(set(numbers(log))) > published // 2, what="half of the events")  # noqa: B023
            unlucky = dice.choice([one, two])
            unlucky.kill()
            unlucky.start()
        until(lambda: set(numbers(log)) == set(range(count)), what="all events")
        assert one.kill(signal.SIGTERM) == 0, "a signal ends run() in good order"
    handled = numbers(log)
    print(f"{len(handled) - count} events were handled more than once")
    first_seen = list(dict.fromkeys(handled))
    assert first_seen == list(range(count)), "nothing overtakes what was published before"
    assert len(handled) < 2 * count


def test_killed_dispatcher_process_is_replaced_by_the_other_and_nothing_is_dispatched_twice(
    connection: Connection, postgres_url: str, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).parent / "queuekeeper"), "events", "dispatch", "--postgres-url", postgres_url]
    broker = EventBroker(connection)
    with service(command, tmp_path / "one") as one, service(command, tmp_path / "two") as two:

        def dispatched() -> int:
            row = connection.execute("SELECT coalesce(sum(event_count), 0) FROM pgmb.dispatches").fetchone()
            return int(row[0]) if row else 0

        published = 0
        for unlucky in (one, two, one, two):
            for _ in range(100):
                broker.publish([NewEvent(topic="orders", payload=published)])
                published += 1
            until(lambda: dispatched() > published // 2, what="half of the events")  # noqa: B023
            unlucky.kill()
            unlucky.start()
        until(lambda: dispatched() >= published, what="all events")
        assert dispatched() == published
        for each in (one, two):
            until(lambda: sleeping(connection) >= 2, what="both to have started")
            assert each.kill(signal.SIGTERM) == 0
            each.start()
        page = broker.read("group", limit=1_000)
        assert [item.event.payload for item in page.items] == list(range(published))


def sleeping(connection: Connection) -> int:
    """Return how many dispatchers wait for something to do."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle' "
        "AND pid <> pg_backend_pid() AND application_name = 'queuekeeper'"
    ).fetchone()
    return int(row[0]) if row else 0


def test_all_connections_ended_between_two_events_lose_none(
    connection: Connection, postgres_url: str, dice: random.Random
) -> None:
    handled: dict[str, list[int]] = {"in order": [], "with retries": []}
    heard: list[int] = []

    def work(name: str) -> Callable[[Delivery], None]:
        def note(delivery: Delivery) -> None:
            if dice.random() < 0.1:
                raise ConnectionError("a server that this handler needs is away")
            handled[name].extend(event.payload for event in delivery.events)

        return note

    count = 150
    rules = ReadRules(page=7, pages_ahead=3, poll_interval_s=0.1)
    consumer = EventConsumer(postgres_url, group_id="group", rules=rules)
    consumer.handle(work("in order"), name="in order")
    consumer.handle(work("with retries"), name="with retries", retries_s=(0.1, 0.1, 0.1, 0.1, 0.1, 0.1))
    with Dispatcher(postgres_url), consumer:
        listener = consumer.listen(Interest())
        for number in range(count):
            EventBroker(connection).publish([NewEvent(topic="orders", payload=number)])
            if dice.random() < 0.1:
                terminate_all(connection)
        for name, each in handled.items():
            until(lambda: set(each) == set(range(count)), what=f"all events {name}")  # noqa: B023
        while set(heard) != set(range(count)):
            delivery = listener.get(timeout_s=PATIENCE_S)
            assert delivery is not None
            heard += [event.payload for event in delivery.events]
    assert list(dict.fromkeys(handled["in order"])) == list(range(count))
    assert connection.execute("SELECT count(*) FROM pgmb.dead_letters").fetchone() == (0,)
    print(f"repeated: {[len(each) - count for each in handled.values()]}, heard twice: {len(heard) - count}")


def test_publisher_that_loses_its_connection_knows_and_publishes_each_event_once_or_says_it_does_not_know(
    connection: Connection, postgres_url: str, dice: random.Random
) -> None:
    confirmed: list[int] = []
    unknown: list[int] = []
    done = threading.Event()

    def publish() -> None:
        number = 0
        while not done.is_set():
            with suppress(QueuekeeperError), postgres.connect(postgres_url, autocommit=True) as opened:
                broker = EventBroker(opened)
                while not done.is_set():
                    number += 1
                    try:
                        broker.publish([NewEvent(topic="orders", payload=number)])
                        confirmed.append(number)
                    except QueuekeeperError:
                        unknown.append(number)
                        raise

    thread = threading.Thread(target=publish)
    thread.start()
    for _ in range(15):
        time.sleep(dice.random() * 0.1)
        terminate_all(connection)
    done.set()
    thread.join()
    stored = [int(row[0]) for row in connection.execute("SELECT payload::text FROM pgmb.events ORDER BY id")]
    assert len(stored) == len(set(stored))
    assert set(confirmed) <= set(stored) <= set(confirmed) | set(unknown)
    assert stored == sorted(stored)
    assert unknown, "no connection was ended in time"
    print(f"confirmed {len(confirmed)}, unknown {len(unknown)}, of which stored {len(stored) - len(confirmed)}")


def test_consumer_whose_machine_is_frozen_gives_the_group_up_when_its_connection_is_ended(
    connection: Connection, postgres_url: str, tmp_path: Path
) -> None:
    log = tmp_path / "handled"
    command = [sys.executable, "-c", CONSUMER, postgres_url, str(log)]
    broker = EventBroker(connection)
    with Dispatcher(postgres_url), service(command, tmp_path / "one") as frozen:
        (first,) = broker.publish([NewEvent(topic="orders", payload=1)])
        until(lambda: numbers(log) == [1] and read_up_to(connection) >= first, what="the first event's end")
        assert frozen._process is not None
        os.kill(frozen._process.pid, signal.SIGSTOP)
        try:
            with service(command, tmp_path / "two"):
                broker.publish([NewEvent(topic="orders", payload=2)])
                # What keep-alive probes do after half a minute when a machine is gone.
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks "
                    "WHERE locktype = 'advisory' AND granted AND pid <> pg_backend_pid()"
                )
                until(lambda: numbers(log) == [1, 2], what="the second event")
                os.kill(frozen._process.pid, signal.SIGCONT)
                broker.publish([NewEvent(topic="orders", payload=3)])
                until(lambda: 3 in numbers(log), what="the third event")
        finally:
            os.kill(frozen._process.pid, signal.SIGCONT)
    assert numbers(log) == [1, 2, 3]
