"""The event broker under load in processes that write down what they do, and are killed, as their server is.

A transaction of a publisher begins, publishes and ends by requests of its own. So does one of a dispatcher: what
``poll_for_events`` has done is asked for in its own transaction. Everything else is as the clients of the broker do it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.events.broker import EventBroker, broker_errors
from queuekeeper.events.consumer import EventConsumer
from queuekeeper.events.dispatcher import Dispatcher, DispatchRules
from queuekeeper.events.model import Delivery, Interest, NewEvent, ReadRules
from queuekeeper.events.operations import Query
from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect
from tests.chaos.online_load import Child
from tests.chaos.support import until
from tests.chaos.trace_recorder import Recorder, record_end
from tests.chaos.traced_processes import READY, TracedProcesses, stop_by_signal

GROUPS = ("one", "other")
CHUNK = 5
"""Most events of a poll, so that windows are longer than a poll now and then."""

PUBLISHERS = 3
_NO_SERVER_S = 0.05
_RULES = DispatchRules(poll_interval_s=0.2, pause_s=0.02)
_READ_RULES = ReadRules(page=4, pages_ahead=3, poll_interval_s=0.2)

_BEGUN = "SELECT pg_postmaster_start_time()::text, pg_current_xact_id()::text::bigint"
_POLLED = """
SELECT
    pg_postmaster_start_time()::text AS life,
    EXISTS (
        SELECT FROM pg_locks AS l WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.granted
    ) AS is_mine,
    coalesce(st.xmin::text = pg_current_xact_id_if_assigned()::xid::text, FALSE) AS is_written,
    coalesce(st.open_window, st.dispatched)::text AS snapshot,
    st.open_window IS NOT NULL AS is_cut,
    coalesce((
        SELECT d.event_ids::text[] FROM pgmb.dispatches AS d
        WHERE d.id = st.last_dispatch_id AND d.xmin::text = pg_current_xact_id_if_assigned()::xid::text
    ), '{}') AS ids
FROM pgmb.dispatch_state AS st
"""


class Transaction:
    """A transaction of a publisher.

    :param of: which one of its process.
    """

    def __init__(self, connection: Connection, of: int) -> None:
        self.of = of
        self._connection = connection

    def begin(self) -> Any:
        """Begin it; return the server's life and the transaction's id."""
        with broker_errors(self._connection):
            self._connection.execute("BEGIN")
            return self._connection.execute(_BEGUN).fetchall()[0]

    def publish(self, number: int) -> Any:
        """Publish so many events; return their ids."""
        return EventBroker(self._connection).publish([NewEvent(topic="orders", payload=self.of)] * number)

    def end(self, how: str) -> None:
        """Commit or abort it."""
        with broker_errors(self._connection):
            self._connection.execute("COMMIT" if how == "commit" else "ROLLBACK")


class Poll:
    """A poll of a dispatcher as a transaction of several requests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, poll: Any) -> tuple[Any, Any]:
        """Begin it and poll; return what the poll has said, and what it has done."""
        with broker_errors(self._connection):
            self._connection.execute("BEGIN")
            return poll(), self._connection.execute(_POLLED).fetchall()[0]

    def end(self) -> None:
        """Commit it."""
        with broker_errors(self._connection):
            self._connection.execute("COMMIT")


def publish(url: str, folder: Path, seed: int) -> None:
    """Publish in transactions that end soon or late, or are taken back, until a signal ends the process."""
    recorder = Recorder(folder, "publisher")
    recorder.watch(Transaction, "begin", lambda one: ("begin", {"of": one.of}))
    recorder.watch(Transaction, "publish", lambda one, number: ("publish", {"of": one.of, "count": number}))
    recorder.watch(Transaction, "end", lambda one, how: ("end", {"of": one.of, "how": how}))
    stopped, numbers = stop_by_signal(), count(1)
    threads = [
        threading.Thread(target=_publish, args=(url, random.Random(seed + place), stopped, numbers))
        for place in range(PUBLISHERS)
    ]
    for each in threads:
        each.start()
    print(READY, flush=True)
    for each in threads:
        each.join()


def _publish(url: str, dice: random.Random, stopped: threading.Event, numbers: Any) -> None:
    while not stopped.is_set():
        try:
            with connect(url, autocommit=True) as connection:
                while not stopped.is_set():
                    one = Transaction(connection, next(numbers))
                    one.begin()
                    one.publish(dice.randint(1, 3))
                    if dice.random() < 0.4:
                        stopped.wait(dice.random() * 0.4)
                        one.publish(1)
                    one.end("abort" if dice.random() < 0.15 else "commit")
                    stopped.wait(dice.random() * 0.8)
        except QueuekeeperError:
            time.sleep(_NO_SERVER_S)


def dispatch(url: str, folder: Path, _: int) -> None:
    """Dispatch until a signal ends the process."""
    recorder, answer = Recorder(folder, "dispatcher"), EventBroker.answer
    recorder.watch(Poll, "look", lambda *_: ("poll", {}), lambda reply, *_: reply[1])
    recorder.watch(Poll, "end", lambda _: ("end of poll", {}))

    def answered(broker: EventBroker, step: Any) -> Any:
        if not isinstance(step, Query) or step.name != "poll_for_events":
            return answer(broker, step)
        poll = Poll(broker._connection)
        rows, _ = poll.look(partial(answer, broker, step))
        poll.end()
        return rows

    EventBroker.answer = answered  # type: ignore[assignment, method-assign]
    stopped = stop_by_signal()
    with Dispatcher(url, rules=_RULES):
        print(READY, flush=True)
        stopped.wait()


def consume(url: str, folder: Path, seed: int) -> None:
    """Work for both groups, until a signal ends the process."""
    recorder, dice, stopped = Recorder(folder, "consumer"), random.Random(seed), stop_by_signal()

    def about(_: Any, step: Any) -> tuple[str, dict[str, Any]] | None:
        if not isinstance(step, Query) or step.name not in {"read_next_events", "set_group_cursor"}:
            return None
        names = {"group_id", "cursor", "limit"} & step.parameters.keys()
        return step.name, {name: step.parameters[name] for name in names}

    def of_page(rows: Sequence[Any], step: Query) -> Any:
        return [[row.event_id for row in rows], rows[0].next_cursor if rows else ""] if step.name[0] == "r" else ""

    recorder.watch(EventBroker, "answer", about, of_page)
    with ExitStack() as stack:
        for group in GROUPS:
            handler = _Handler(group, dice)
            consumer = EventConsumer(url, group_id=group, rules=_READ_RULES)
            consumer.handle(handler.work, name="work")
            stack.enter_context(consumer)
        recorder.watch(_Handler, "done", lambda one, ids: ("work", {"group_id": one.group, "ids": ids}))
        print(READY, flush=True)
        stopped.wait()


class _Handler:
    def __init__(self, group: str, dice: random.Random) -> None:
        self.group = group
        self._dice = dice

    def work(self, delivery: Delivery) -> None:
        self.done([event.id for event in delivery.events])

    def done(self, _: Sequence[str]) -> None:
        time.sleep(self._dice.random() * 0.1)


class Keeper:
    """Maintains partitions, and looks what is left."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def maintain(self) -> None:
        """Make partitions and drop those that all have read."""
        with broker_errors(self._connection):
            self._connection.execute("CALL pgmb.maintain_events_table()")

    def stored(self) -> list[str]:
        """Return the ids of all events."""
        with broker_errors(self._connection):
            return [row[0] for row in self._connection.execute("SELECT e.id FROM pgmb.events AS e").fetchall()]


def keep(url: str, folder: Path, _: int) -> None:
    """Maintain partitions until a signal ends the process."""
    recorder, stopped = Recorder(folder, "keeper"), stop_by_signal()
    for name in ("maintain", "stored"):
        recorder.watch(Keeper, name, partial(lambda what, _: (what, {}), name))
    print(READY, flush=True)
    while not stopped.is_set():
        try:
            with connect(url, autocommit=True) as connection:
                keeper = Keeper(connection)
                while not stopped.is_set():
                    try:
                        keeper.maintain()
                    finally:
                        keeper.stored()
                    stopped.wait(0.4)
        except QueuekeeperError:
            # The server is away, or a transaction is open for so long that maintenance gives way.
            time.sleep(_NO_SERVER_S)


class TracedEvents(TracedProcesses):
    """A broker with publishers, dispatchers, consumers and maintenance, each in a process of its own."""

    def __init__(self, server: PostgresServer, url: str, folder: Path, seed: int) -> None:
        super().__init__(server, url, folder, seed)
        with connect(url, autocommit=True) as connection:
            install(connection)
            # Partitions of a second, which a user cannot have, are over within the test.
            connection.execute("ALTER TABLE pgmb.config DISABLE TRIGGER USER")
            for name, value in (
                ("poll_chunk_size", str(CHUNK)),
                ("partition_interval", "1 second"),
                ("future_intervals_to_create", "20 seconds"),
                ("partition_retention_period", "0 seconds"),
                ("maintenance_lock_timeout", "50ms"),
                ("maintenance_attempts", "3"),
            ):
                connection.execute("UPDATE pgmb.config SET value = %s WHERE id = %s", (value, name))
            connection.execute("ALTER TABLE pgmb.config ENABLE TRIGGER USER")
            for table in ("events", "dispatches", "subscription_events"):
                bounds = f"SELECT b.partition::text FROM pgmb.partition_bounds('pgmb.{table}') AS b"
                for (partition,) in connection.execute(bounds).fetchall():
                    connection.execute(f"DROP TABLE {partition}")
            connection.execute("CALL pgmb.maintain_events_table()")
            for group in GROUPS:
                EventBroker(connection).subscribe(group, Interest())

    def run(self, strikes: Iterable[str]) -> None:
        """Load the broker, strike one after the other, then let the consumers come to the end."""
        with ExitStack() as stack:
            keeper = self.begin(keep, stack)
            workers: dict[str, list[Child]] = {
                "dispatcher": [self.begin(dispatch, stack) for _ in range(2)],
                "consumer": [self.begin(consume, stack) for _ in range(2)],
                "publisher": [self.begin(publish, stack)],
            }
            begins = {"dispatcher": dispatch, "consumer": consume, "publisher": publish}
            for strike in self.struck(strikes):
                if strike == "connections":
                    self._end_connections()
                else:
                    kind = strike.rpartition(" ")[2]
                    victim = workers[kind].pop(self.dice.randrange(len(workers[kind])))
                    victim.end() if strike.startswith("end") else self.kill(victim)
                    workers[kind].append(self.begin(begins[kind], stack))
            for publisher in workers["publisher"]:
                publisher.end()
            until(self._is_read, what="all events are read")
            for each in (*workers["dispatcher"], *workers["consumer"], keeper):
                each.end()

    def kill(self, victim: Child) -> None:
        """Kill a process, and note when the server has taken back what it had begun."""
        process = psutil.Process(victim.pid)
        process.suspend()
        ports = [each.laddr.port for each in process.net_connections() if each.laddr]
        victim.kill()
        found = "SELECT count(*) FROM pg_stat_activity WHERE client_port = ANY(%s)"
        with connect(self.url, autocommit=True) as connection:
            until(lambda: connection.execute(found, (ports,)).fetchall() == [(0,)], what="the server has noticed")
        record_end(self.folder, victim.pid)

    def _end_connections(self) -> None:
        with connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
            )

    def _is_read(self) -> bool:
        with connect(self.url, autocommit=True) as connection:
            undispatched = connection.execute("SELECT count(*) FROM pgmb.undispatched_events()").fetchall()
            pages = [EventBroker(connection).read(group, peek=True, limit=1) for group in GROUPS]
            return undispatched == [(0,)] and all(page.next_cursor is None for page in pages)
