"""What becomes of events when PostgreSQL, its clients or the clock fail: nothing acknowledged is lost or disordered."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe

import pytest

from queuekeeper.embedded import PostgresServer
from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect
from tests.chaos.event_load import Load, publish, read, subscribe
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos


@pytest.fixture
def broker_url(postgres_url: str) -> str:
    """A database with the broker, small polls and the shortest partitions, so that windows and partitions end often."""
    with connect(postgres_url, autocommit=True) as connection:
        install(connection)
        for name, value in (
            ("poll_chunk_size", "40"),
            ("partition_interval", "1 minute"),
            ("future_intervals_to_create", "3 minutes"),
            ("partition_retention_period", "1 minute"),
        ):
            connection.execute("UPDATE pgmb.config SET value = %s WHERE id = %s", (value, name))
        subscribe(connection)
    return postgres_url


class Watch:
    """Waits until the server is at work on something."""

    def __init__(self, url: str) -> None:
        self._connection = connect(url, autocommit=True)

    def wait_for(self, words: str) -> None:
        """Return when a session executes a statement with these words."""
        found = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE state = 'active' AND pid <> pg_backend_pid() AND position(%s in query) > 0"
        )
        deadline = time.monotonic() + PATIENCE_S
        while self._connection.execute(found, (words,)).fetchall() == [(0,)]:
            assert time.monotonic() < deadline, f"nobody is at {words}"

    def close(self) -> None:
        """Forget the connection, which the server's death has broken."""
        self._connection.close()


@pytest.mark.parametrize("at", ["pgmb.publish", "poll_for_events", "read_next_events", "maintain_events_table"])
def test_killed_server_loses_nothing_that_was_acknowledged(
    postgres_server: PostgresServer, broker_url: str, at: str, dice: random.Random
) -> None:
    load = Load(url=broker_url, dice=dice, maintains=True)
    with load.running():
        for _ in range(3):
            load.proceeds()
            watch = Watch(broker_url)
            watch.wait_for(at)
            postgres_server.kill()
            watch.close()
            postgres_server.start()
        load.proceeds()
    load.outcome().check()


def test_lost_connections_lose_nothing_and_hold_nobody_up(broker_url: str, dice: random.Random) -> None:
    load = Load(url=broker_url, dice=dice)
    with load.running(), connect(broker_url, autocommit=True) as killer:
        for _ in range(10):
            load.proceeds(by=5)
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.6"
            )
        load.proceeds()
    load.outcome().check()


# Clients that die


def _reads_and_waits(url: str, pipe: Pipe) -> None:
    with connect(url, autocommit=True) as connection:
        found, _ = read(connection, "all", chunk=3)
        pipe.send(found)
        pipe.recv()


def _publishes_and_waits(url: str, pipe: Pipe) -> None:
    with connect(url, autocommit=True) as connection, connection.transaction():
        publish(connection, 7, range(5))
        pipe.send("published")
        pipe.recv()


KilledClient = Callable[[Callable[[str, Pipe], None]], object]


@pytest.fixture
def killed_client(broker_url: str) -> Iterator[KilledClient]:
    """Start a process that works until it has something to say, then kill it; answers what it said."""
    context = multiprocessing.get_context("spawn")
    started = []

    def client(work: Callable[[str, Pipe], None]) -> object:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(broker_url, theirs), daemon=True)
        process.start()
        started.append(process)
        assert ours.poll(120)
        said: object = ours.recv()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        return said

    yield client
    for process in started:
        process.kill()


def test_group_of_a_killed_reader_goes_on_where_it_had_confirmed(broker_url: str, killed_client: KilledClient) -> None:
    with connect(broker_url, autocommit=True) as connection:
        publish(connection, 0, range(9))
        connection.execute("SELECT pgmb.poll_for_events()")
        assert killed_client(_reads_and_waits) == [(0, 0), (0, 1), (0, 2)]
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + PATIENCE_S
        # The server notices when it next hears of the socket.
        while not found:
            assert time.monotonic() < deadline
            found, cursor = read(connection, "all", chunk=100)
        assert found == [(0, number) for number in range(9)]
        connection.execute("SELECT pgmb.set_group_cursor('all', %s, true)", (cursor,))
        assert read(connection, "all", chunk=100) == ([], None)


def test_events_of_a_killed_publisher_were_never_there(broker_url: str, killed_client: KilledClient) -> None:
    with connect(broker_url, autocommit=True) as connection:
        publish(connection, 0, range(2))
        assert killed_client(_publishes_and_waits) == "published"
        publish(connection, 1, range(2))
        _polled_dry(connection)
        assert read(connection, "all", chunk=100)[0] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def _polled_dry(connection: Connection) -> None:
    while connection.execute("SELECT pgmb.poll_for_events()").fetchall() != [(0,)]:
        pass
