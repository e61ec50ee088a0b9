"""Measure the event broker: publishing, polling, reading and all of it together, beside what PostgreSQL can do at most.

``python benchmarks/events.py --rounds 3``

Everything happens on a private server and in one run, the ways taking turns, each in a database of its own that has
just been made; so a busy machine slows all of them, and ratios are formed within a round.

publish          the client's own statement: pgmb.publish with arrays
insert, copy     multi-row INSERT and COPY into pgmb.events
limit            multi-row INSERT into a plain table of the same columns, partitioned by half hours, and COPY into it
queue            multi-row INSERT into the table of a queue that is read with FOR UPDATE SKIP LOCKED
poll, read       dispatching, then reading, what was published before; for the queue taking it out
end to end       a producer, the dispatching service and consumers at once, each a process; every consumer gets every
                 event, at least once, and is woken by a notification. The queue needs a table per consumer for that
conditions       a poll of the same events against more and more distinct conditions, and against more and more
                 subscriptions that share one
waiting          polls of nothing while nothing or a million events are scheduled for later; and the steps of a
                 consumer that comes (subscribe, publish 50, poll, read) after few and many others, in 200 partitions

Beside speed it is checked that each consumer got each event once and in order; a broker that loses some is not fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, pairwise
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

import bench
from online import family_cpu_s, median, quantile
from psycopg import sql
from rich.console import Console

from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.events.broker import EventBroker
from queuekeeper.events.dispatcher import Dispatcher
from queuekeeper.events.model import Interest, NewEvent
from queuekeeper.events.schema import install
from queuekeeper.postgres import Connection, connect
from queuekeeper.sql_statements import statement

TOPIC = "sensors/temperature"
TEMPLATE = "template_events"
LIMIT = "limit"
QUEUE = "queue"
PATIENCE_S = 600.0
_IDLE_S = 1.0
_databases = count(1)

PLAIN = """
CREATE TABLE plain_events (
    id bigint GENERATED ALWAYS AS IDENTITY,
    ts timestamptz NOT NULL DEFAULT clock_timestamp(),
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb,
    PRIMARY KEY (ts, id)
) PARTITION BY RANGE (ts);
DO $$
BEGIN
    FOR number IN 0..12 LOOP
        EXECUTE format(
            'CREATE TABLE plain_events_%s PARTITION OF plain_events FOR VALUES FROM (%L) TO (%L)', number,
            date_bin('30 minutes', now(), 'epoch') + (number - 1) * interval '30 minutes',
            date_bin('30 minutes', now(), 'epoch') + number * interval '30 minutes'
        );
    END LOOP;
END $$;
"""

QUEUE_TABLE = """
CREATE TABLE queue_{consumer} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic varchar(255) NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb
);
CREATE FUNCTION wake_{consumer}() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('queue_{consumer}', ''); RETURN NULL; END $$;
CREATE TRIGGER wake AFTER INSERT ON queue_{consumer} FOR EACH STATEMENT EXECUTE FUNCTION wake_{consumer}();
"""

TAKE = """
DELETE FROM queue_{consumer} WHERE id IN (
    SELECT id FROM queue_{consumer} ORDER BY id LIMIT %(chunk)s FOR UPDATE SKIP LOCKED
) RETURNING id, topic, payload, metadata
"""


# --- events ----------------------------------------------------------------------------------------------------


def payloads(numbers: range, *, payload_bytes: int) -> list[str]:
    """Return numbered payloads of this size that say when they were made."""
    told_us = time.monotonic_ns() // 1_000
    heads = [f'{{"n":{number},"at_us":{told_us},"rest":"' for number in numbers]
    return [f'{head}{"x" * max(0, payload_bytes - len(head) - 2)}"}}' for head in heads]


def batches(events: int, batch: int) -> Iterator[range]:
    """Cut events into batches."""
    return (range(start, min(start + batch, events)) for start in range(0, events, batch))


def multi_row(table: str, rows: int) -> bytes:
    """Return an INSERT of so many rows."""
    values = ",".join(["(%s,%s)"] * rows)
    return f"INSERT INTO {table} (topic, payload) VALUES {values}".encode()  # noqa: S608 - a name of our own


def insert(table: str, connection: Connection, rows: Sequence[str]) -> None:
    """Write a batch by one INSERT."""
    connection.execute(multi_row(table, len(rows)), [value for row in rows for value in (TOPIC, row)], prepare=True)


def copy(table: str, connection: Connection, rows: Sequence[str]) -> None:
    """Write a batch by COPY."""
    statement = sql.SQL("COPY {} (topic, payload) FROM STDIN").format(sql.SQL(table))
    with connection.cursor() as cursor, cursor.copy(statement) as writer:
        for row in rows:
            writer.write_row((TOPIC, row))


def publish(connection: Connection, rows: Sequence[str], topic: str = TOPIC) -> None:
    """Write a batch as the broker's client does."""
    connection.execute(
        statement("events/queries/publish"),
        {"topics": [topic] * len(rows), "payloads": list(rows), "metadatas": [None] * len(rows)},
        prepare=True,
    )


# --- systems that deliver --------------------------------------------------------------------------------------


class Delivery(Protocol):
    """What delivers events to consumers; made anew in every process."""

    def prepare(self, connection: Connection, consumers: int) -> None:
        """Set up so many consumers, each of which gets every event."""

    def publish(self, connection: Connection, rows: Sequence[str]) -> None:
        """Write a batch and wake consumers."""

    def channel(self, consumer: int) -> str:
        """Return where a consumer is notified."""

    def take(self, connection: Connection, consumer: int, chunk: int) -> list[dict[str, Any]]:
        """Read what comes next for a consumer, in order, and confirm it."""


class Broker:
    """The event broker."""

    def prepare(self, connection: Connection, consumers: int) -> None:
        """Make a group with a subscription for each."""
        for consumer in range(consumers):
            group = f"group-{consumer}"
            connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES (%s)", (group,))
            connection.execute("INSERT INTO pgmb.subscriptions (group_id) VALUES (%s)", (group,))

    def publish(self, connection: Connection, rows: Sequence[str]) -> None:
        """Publish, which wakes the dispatcher, and that one consumers."""
        publish(connection, rows)

    def channel(self, consumer: int) -> str:
        """Return the channel of the dispatcher, who tells all."""
        return "pgmb_dispatched"

    def take(self, connection: Connection, consumer: int, chunk: int) -> list[dict[str, Any]]:
        """Read and set the cursor."""
        group = f"group-{consumer}"
        found = connection.execute(
            "SELECT payload, next_cursor FROM pgmb.read_next_events(%s, NULL, %s)", (group, chunk), prepare=True
        ).fetchall()
        if found:
            connection.execute("SELECT pgmb.set_group_cursor(%s, %s, false)", (group, found[-1][1]), prepare=True)
        return [payload for payload, _ in found]


class SkipLocked:
    """A table per consumer, from which rows are deleted under FOR UPDATE SKIP LOCKED."""

    def __init__(self, consumers: int) -> None:
        self._consumers = consumers

    def prepare(self, connection: Connection, consumers: int) -> None:
        """Make the tables."""
        for consumer in range(consumers):
            connection.execute(QUEUE_TABLE.format(consumer=consumer).encode())

    def publish(self, connection: Connection, rows: Sequence[str]) -> None:
        """Write a batch to every table, in one transaction; triggers wake consumers."""
        with connection.transaction():
            for consumer in range(self._consumers):
                insert(f"queue_{consumer}", connection, rows)

    def channel(self, consumer: int) -> str:
        """Return the channel of the consumer's table."""
        return f"queue_{consumer}"

    def take(self, connection: Connection, consumer: int, chunk: int) -> list[dict[str, Any]]:
        """Take rows out: they are gone once they are here, in order, as the broker's cursor moves on only then."""
        query = TAKE.format(consumer=consumer).encode()
        with connection.transaction():
            rows = connection.execute(query, {"chunk": chunk}, prepare=True).fetchall()
            # RETURNING has no order.
            return [payload for _, _, payload, _ in sorted(rows, key=lambda row: int(row[0]))]


def poll(connection: Connection) -> int:
    """Dispatch once; answers how much there was to do."""
    return int(connection.execute("SELECT pgmb.poll_for_events()").fetchall()[0][0])


def delivery(system: str, consumers: int) -> Delivery:
    """Return a system by its name."""
    return SkipLocked(consumers) if system == QUEUE else Broker()


# --- processes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process is to do.

    :param role: ``produce``, ``dispatch`` or ``consume``.
    :param consumer: number of the consumer.
    :param chunk: most events of a read.
    :param per_s: events per second that are published; none is as fast as it goes.
    """

    role: str
    system: str
    url: str
    consumers: int
    consumer: int
    events: int
    payload_bytes: int
    batch: int
    chunk: int
    per_s: int | None


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one process has done.

    :param ended: when it was done, by the machine's steady clock.
    :param numbers: of the events in the order in which they came.
    :param instants: at which they came, by the machine's steady clock.
    :param waits_ms: from the making of an event to its arrival.
    """

    ended: float
    numbers: list[int] = field(default_factory=list)
    instants: list[float] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)


def work(task: Task, pipe: Pipe) -> None:
    """Do a task between two words through a pipe, and answer what was done or what went wrong."""
    try:
        system = delivery(task.system, task.consumers)
        with connect(task.url, autocommit=True) as connection:
            pipe.send("ready")
            pipe.recv()
            if task.role == "produce":
                part = produce(task, system, connection)
            elif task.role == "consume":
                part = consume(task, system, connection)
            else:
                part = dispatch(task, pipe)
        pipe.send(part)
    except Exception as error:
        pipe.send(f"{task.role}: {type(error).__name__}: {error}")


def produce(task: Task, system: Delivery, connection: Connection) -> Part:
    """Publish everything in batches."""
    began = time.monotonic()
    for numbers in batches(task.events, task.batch):
        if task.per_s is not None:
            time.sleep(max(0.0, began + numbers.start / task.per_s - time.monotonic()))
        system.publish(connection, payloads(numbers, payload_bytes=task.payload_bytes))
    return Part(ended=time.monotonic())


def dispatch(task: Task, pipe: Pipe) -> Part:
    """Run the dispatching service until told to stop."""
    dispatcher = Dispatcher(task.url)
    with ThreadPoolExecutor(max_workers=1) as threads:
        running = threads.submit(dispatcher.run)
        pipe.recv()
        dispatcher.stop()
        running.result()
    return Part(ended=time.monotonic())


def consume(task: Task, system: Delivery, connection: Connection) -> Part:
    """Read until everything has come, or nothing came for long."""
    numbers: list[int] = []
    instants: list[float] = []
    waits_ms: list[float] = []
    last = time.monotonic()
    connection.execute(f"LISTEN {system.channel(task.consumer)}".encode())
    while len(numbers) < task.events and time.monotonic() < last + PATIENCE_S / 10:
        found = system.take(connection, task.consumer, task.chunk)
        if not found:
            for _ in connection.notifies(timeout=_IDLE_S, stop_after=1):
                pass
            continue
        last = time.monotonic()
        numbers += [payload["n"] for payload in found]
        instants += [last] * len(found)
        waits_ms += [1e3 * last - payload["at_us"] / 1e3 for payload in found]
    return Part(ended=time.monotonic(), numbers=numbers, instants=instants, waits_ms=waits_ms)


def at_once(tasks: Sequence[Task], *, within_s: float = PATIENCE_S) -> tuple[float, list[Part]]:
    """Let processes work at the same time; answer how long it took until the last consumer was done.

    :param within_s: for which an answer of a process is waited for.
    :raises QueuekeeperError: when one of them has failed.
    """
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    processes = []
    for task in tasks:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(task, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)

    def heard(pipe: Pipe) -> Any:
        if not pipe.poll(within_s):
            raise QueuekeeperError("a process does not answer")
        said = pipe.recv()
        if isinstance(said, str) and said != "ready":
            raise QueuekeeperError(f"a process failed: {said}")
        return said

    try:
        for pipe in pipes:
            heard(pipe)
        began = time.monotonic()
        for pipe in pipes:
            pipe.send("begin")
        roles = [task.role for task in tasks]
        parts = {index: heard(pipes[index]) for index, role in enumerate(roles) if role != "dispatch"}
        for index, role in enumerate(roles):
            if role == "dispatch":
                pipes[index].send("stop")
                heard(pipes[index])
        consumed = [part for index, part in parts.items() if roles[index] == "consume"]
        return max(part.ended for part in consumed) - began, consumed
    finally:
        for process in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()


# --- what is measured ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way, measured once.

    :param events: that were published, polled or read; end to end, deliveries to all consumers together.
    :param server_cpu_s: processor time of the server's processes.
    :param p50_ms: end to end, from the making of an event to its arrival.
    :param missing: deliveries that never came.
    :param twice: that came more than once.
    :param out_of_order: that came after a later one.
    """

    events: int
    seconds: float
    server_cpu_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    missing: int = 0
    twice: int = 0
    out_of_order: int = 0

    @property
    def events_per_s(self) -> float:
        """Speed by the clock on the wall."""
        return self.events / self.seconds


@dataclass(frozen=True, kw_only=True)
class Stand:
    """The server, and how much is measured.

    :param events: of a batched way; ways of single events take a twentieth.
    """

    server: PostgresServer
    events: int

    @contextmanager
    def database(self) -> Iterator[str]:
        """Give the address of a database with an empty broker and an empty plain table."""
        name = f"benchmark_{next(_databases)}"
        url = self.server.create_database(name, template=TEMPLATE)
        try:
            yield url
        finally:
            self.server.drop_database(name)

    def cpu_s(self) -> float:
        """Return the processor time that the server has used."""
        assert self.server.pid is not None
        return family_cpu_s(self.server.pid)

    def timed(self, work: Callable[[], int]) -> Sample:
        """Measure something that answers with how many events it was about."""
        before_s, began = self.cpu_s(), time.perf_counter()
        events = work()
        seconds = time.perf_counter() - began
        return Sample(events=events, seconds=seconds, server_cpu_s=self.cpu_s() - before_s)


Write = Callable[[Connection, Sequence[str]], None]


def measure_writing(stand: Stand, *, write: Write, batch: int, payload_bytes: int) -> Sample:
    """Write batches over one connection."""
    events = max(batch, stand.events // (20 if batch == 1 else 1))
    with stand.database() as url, connect(url, autocommit=True) as connection:
        SkipLocked(1).prepare(connection, 1)
        # The first rows open files and fill caches.
        for _ in range(6):
            write(connection, payloads(range(batch), payload_bytes=payload_bytes))
        made = [payloads(numbers, payload_bytes=payload_bytes) for numbers in batches(events, batch)]

        def all_of_them() -> int:
            for rows in made:
                write(connection, rows)
            return events

        return stand.timed(all_of_them)


def measure_polling(stand: Stand, *, payload_bytes: int) -> Sample:
    """Dispatch what one group waits for."""
    with stand.database() as url, connect(url, autocommit=True) as connection:
        filled(stand, Broker(), connection, payload_bytes=payload_bytes)
        sample = stand.timed(lambda: polled(connection, stand.events))
        check_dispatched(connection, stand.events)
        return sample


def measure_reading(stand: Stand, *, system: str, chunk: int, payload_bytes: int) -> Sample:
    """Read what waits for one consumer."""
    found: list[int] = []
    with stand.database() as url, connect(url, autocommit=True) as connection:
        source = delivery(system, 1)
        filled(stand, source, connection, payload_bytes=payload_bytes)
        if system != QUEUE:
            polled(connection, stand.events)

        def drain() -> int:
            while rows := source.take(connection, 0, chunk):
                found.extend(payload["n"] for payload in rows)
            return len(found)

        sample = stand.timed(drain)
    return checked(sample, [found], events=stand.events)


def filled(stand: Stand, system: Delivery, connection: Connection, *, payload_bytes: int) -> None:
    """Publish everything for one consumer."""
    system.prepare(connection, 1)
    for numbers in batches(stand.events, 1_000):
        system.publish(connection, payloads(numbers, payload_bytes=payload_bytes))


def polled(connection: Connection, events: int) -> int:
    """Poll until everything was dispatched, however much a poll takes at a time; answers how much that is."""
    while poll(connection):
        pass
    return events


def check_dispatched(connection: Connection, events: int) -> None:
    """Count what waits for the one group.

    :raises QueuekeeperError: when it is not everything.
    """
    waiting = "SELECT count(*) FROM pgmb.read_next_events('group-0', NULL, %s, peek => true)"
    found = int(connection.execute(waiting, (events + 1,)).fetchall()[0][0])
    if found != events:
        raise QueuekeeperError(f"{found:,} of {events:,} events were dispatched")


def measure_all(
    stand: Stand,
    *,
    system: str,
    consumers: int,
    events: int,
    batch: int,
    chunk: int,
    payload_bytes: int,
    per_s: int | None = None,
) -> Sample:
    """Let a producer, a dispatcher and consumers work at once."""
    # A paced run is about waiting: a few seconds tell enough.
    events = events if per_s is None else min(events, 4 * per_s)
    with stand.database() as url:
        with connect(url, autocommit=True) as connection:
            delivery(system, consumers).prepare(connection, consumers)
        roles = [("produce", 0), *(("consume", number) for number in range(consumers))]
        if system != QUEUE:
            roles.append(("dispatch", 0))
        tasks = [
            Task(
                role=role, system=system, url=url, consumers=consumers, consumer=number, events=events,
                payload_bytes=payload_bytes, batch=batch, chunk=chunk, per_s=per_s,
            )
            for role, number in roles
        ]  # fmt: skip
        before_s = stand.cpu_s()
        seconds, parts = at_once(tasks)
        used_s = stand.cpu_s() - before_s
    waits_ms = sorted(wait for part in parts for wait in part.waits_ms)
    sample = Sample(
        events=sum(len(part.numbers) for part in parts),
        seconds=seconds,
        server_cpu_s=used_s,
        p50_ms=quantile(waits_ms, 0.50),
        p99_ms=quantile(waits_ms, 0.99),
    )
    return checked(sample, [part.numbers for part in parts], events=events)


def checked(sample: Sample, consumers: Sequence[Sequence[int]], *, events: int) -> Sample:
    """Add what was lost, came twice or came out of order."""
    facts_of = asdict(sample)
    facts_of |= {
        "missing": sum(events - len(set(numbers)) for numbers in consumers),
        "twice": sum(len(numbers) - len(set(numbers)) for numbers in consumers),
        "out_of_order": sum(one > other for numbers in consumers for one, other in pairwise(numbers)),
    }
    return Sample(**facts_of)


def measure_matching(stand: Stand, *, subscriptions: int, distinct: bool, payload_bytes: int) -> Sample:
    """Poll a tenth of the events, each of which matches at most one subscription.

    :param distinct: whether each subscription has a condition of its own; else they share one and differ in parameters.
    """
    events = max(1, stand.events // 10)
    with stand.database() as url, connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO pgmb.subscription_groups (id) VALUES ('group-0')")
        if distinct:
            texts = [f"e.topic = 'topic-{number}'" for number in range(subscriptions)]
            rows = [("group-0", text, "{}") for text in texts]
        else:
            text = "s.params @> jsonb_build_object('topic', e.topic)"
            rows = [("group-0", text, json.dumps({"topic": f"topic-{number}"})) for number in range(subscriptions)]
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO pgmb.subscriptions (group_id, conditions_sql, params) VALUES (%s, %s, %s)", rows
            )
        for numbers in batches(events, 1_000):
            made = payloads(numbers, payload_bytes=payload_bytes)
            values = [value for n, row in zip(numbers, made, strict=True) for value in (f"topic-{n % 1_000}", row)]
            connection.execute(multi_row("pgmb.events", len(made)), values)
        return stand.timed(lambda: polled(connection, events))


def measure_idle_polls(stand: Stand, *, waiting: int) -> Sample:
    """Poll while so many events are scheduled for later; an event of the sample is a poll."""
    polls = max(20, stand.events // 20)
    with stand.database() as url, connect(url, autocommit=True) as connection:
        schedule(connection, waiting)
        for _ in range(20):
            poll(connection)

        def idle() -> int:
            for _ in range(polls):
                poll(connection)
            return polls

        return stand.timed(idle)


def measure_steps(stand: Stand, *, done: int, partitions: int, waiting: int) -> Sample:
    """Let 25 consumers come one by one after so many others; an event of the sample is one of them."""
    count = 25
    with stand.database() as url, connect(url, autocommit=True) as connection:
        schedule(connection, waiting)
        make_partitions(connection, partitions)
        broker = EventBroker(connection)

        def step(number: int) -> None:
            group, topic = f"group-{number}", f"topic-{number}"
            broker.subscribe(group, Interest.topics(topic))
            broker.publish([NewEvent(topic=topic, payload=n) for n in range(50)])
            polled(connection, 50)
            page = broker.read(group, limit=100)
            if len(page.items) != 50 or page.next_cursor is None:
                raise QueuekeeperError(f"{len(page.items)} of 50 events were read")
            broker.set_cursor(group, page.next_cursor, release=True)

        for number in range(done):
            step(number)

        def more() -> int:
            for number in range(done, done + count):
                step(number)
            return count

        return stand.timed(more)


def make_partitions(connection: Connection, count: int) -> None:
    """Make so many partitions of a minute each, and some more."""
    # The first hours have partitions already.
    settings = {"partition_interval": "1 minute", "future_intervals_to_create": f"{count + 200} minutes"}
    for name, text in settings.items():
        connection.execute("UPDATE pgmb.config SET value = %s WHERE id::text = %s", (text, name))
    connection.execute("CALL pgmb.maintain_events_table()")


def schedule(connection: Connection, count: int) -> None:
    """Schedule so many events for next month."""
    connection.execute(
        "INSERT INTO pgmb.scheduled_events (id, due_at, topic, payload) "
        "SELECT pgmb.create_event_id(d.due, n), d.due, 'later', '1' "
        "FROM generate_series(1, %s) AS n CROSS JOIN (SELECT now() + interval '30 days' AS due) AS d",
        (count,),
    )
    # Cleaning up after the insert is not to be measured.
    connection.execute("VACUUM ANALYZE pgmb.scheduled_events")
    connection.execute("CHECKPOINT")


# --- ways ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the table.

    :param limit: key of the way that it is compared with, if any.
    """

    key: str
    measure: Callable[[Stand], Sample]
    limit: str | None = None


def ways(arguments: argparse.Namespace) -> list[Way]:
    """Return all ways."""
    found: list[Way] = []
    sizes: list[int] = arguments.payload_bytes

    def add(key: str, measure: Callable[..., Sample], *, limit: str | None = None, **words: Any) -> None:
        found.append(Way(key=key, measure=partial(measure, **words), limit=limit))

    for size in sizes:
        writers: dict[str, Write] = {
            "publish": publish,
            "insert": partial(insert, "pgmb.events"),
            "copy": partial(copy, "pgmb.events"),
            LIMIT: partial(insert, "plain_events"),
            f"{LIMIT}, copy": partial(copy, "plain_events"),
            QUEUE: partial(insert, "queue_0"),
        }
        for batch in (1, 100, 1_000):
            kind = "single" if batch == 1 else f"by {batch:,}"
            for name, write in writers.items():
                if batch == 1 and "copy" in name:
                    continue
                limit = f"{LIMIT}, {kind}, {size} B"
                add(
                    f"{name}, {kind}, {size} B", measure_writing, limit=limit, write=write, batch=batch,
                    payload_bytes=size,
                )  # fmt: skip
        add(f"poll, {size} B", measure_polling, payload_bytes=size)
        for system in ("read", QUEUE):
            add(
                f"{system} 1,000 at once, {size} B", measure_reading, limit=f"{QUEUE} 1,000 at once, {size} B",
                system=system, chunk=1_000, payload_bytes=size,
            )  # fmt: skip
        for consumers in arguments.consumers:
            for system in ("broker", QUEUE):
                name = f"end to end, {consumers} consumers, {size} B"
                add(
                    f"{system} {name}", measure_all, limit=f"{QUEUE} {name}", system=system, consumers=consumers,
                    events=arguments.delivered, batch=100, chunk=1_000, payload_bytes=size,
                )  # fmt: skip
    for system in ("broker", QUEUE):
        name = f"at {arguments.per_s:,}/s, 1 consumers, {sizes[0]} B"
        add(
            f"{system} {name}", measure_all, limit=f"{QUEUE} {name}", system=system, consumers=1,
            events=arguments.delivered, batch=10, chunk=1_000, payload_bytes=sizes[0], per_s=arguments.per_s,
        )  # fmt: skip
    for number in arguments.conditions:
        for distinct, name in ((True, "conditions"), (False, "subscriptions of one condition")):
            add(
                f"{number:,} {name}", measure_matching, subscriptions=number, distinct=distinct,
                payload_bytes=sizes[0],
            )  # fmt: skip
    for waiting in (0, arguments.waiting):
        add(f"idle poll, {waiting:,} waiting", measure_idle_polls, waiting=waiting)
    for done in (10, 300):
        add(f"steps after {done}", measure_steps, done=done, partitions=200, waiting=3 * arguments.waiting // 10)
    return [way for way in found if re.search(arguments.only, way.key)]


# --- the result ------------------------------------------------------------------------------------------------


def summary(table: Sequence[Way], rounds: dict[str, list[Sample]], conditions: Sequence[int]) -> dict[str, Any]:
    """Return medians over the rounds, and ratios within them."""
    lines: dict[str, Any] = {}
    for way in table:
        samples = rounds[way.key]
        of_limit = None
        if way.limit in rounds:
            pairs = zip(samples, rounds[way.limit], strict=True)
            of_limit = round(statistics.median(one.events_per_s / other.events_per_s for one, other in pairs), 3)
        lines[way.key] = {
            "events_per_s": round(statistics.median(sample.events_per_s for sample in samples)),
            "of_limit": of_limit,
            "server_cpu_us": round(statistics.median(1e6 * each.server_cpu_s / each.events for each in samples), 2),
            "p50_ms": median([sample.p50_ms for sample in samples], 2),
            "p99_ms": median([sample.p99_ms for sample in samples], 2),
            **{name: sum(getattr(each, name) for each in samples) for name in ("missing", "twice", "out_of_order")},
        }
    per_condition = {}
    for fewer, more in pairwise(conditions):
        pair = f"{fewer:,} conditions", f"{more:,} conditions"
        if all(key in rounds for key in pair):
            # 1.0 is linear: the same time for each condition, however many there are.
            pairs = zip(rounds[pair[0]], rounds[pair[1]], strict=True)
            share = statistics.median(other.seconds / one.seconds for one, other in pairs) * fewer / more
            per_condition[f"{fewer:,} to {more:,}"] = round(share, 3)
    return {"ways": lines, "time_per_condition": per_condition}


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    bench.show_ways(
        console, "Events", result["summary"]["ways"], [
            ("events/s", "events_per_s", ","), ("of limit", "of_limit", ".0%"),
            ("server µs", "server_cpu_us", ".1f"), ("p50 ms", "p50_ms", ".1f"), ("p99 ms", "p99_ms", ".1f"),
            ("lost", "missing", ","), ("twice", "twice", ","), ("disorder", "out_of_order", ","),
        ],
        "of limit: share of the plain multi-row INSERT when writing, and of the SKIP LOCKED queue when reading and end "
        "to end, within a round; end to end, deliveries to all consumers are counted.",
    )  # fmt: skip
    for pair, share in result["summary"]["time_per_condition"].items():
        console.print(f"time per condition, from {pair}: × {share}")


@contextmanager
def private_server(*, durable: bool) -> Iterator[PostgresServer]:
    """Run a server with a template of the databases that are measured."""
    with bench.private_folder() as home, bench.private_postgres(home, durable=durable) as server:
        with connect(server.create_database(TEMPLATE), autocommit=True) as connection:
            install(connection)
            connection.execute(PLAIN.encode())
        yield server


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with private_server(durable=not arguments.not_durable) as server:
        with connect(server.url) as connection:
            about = bench.facts(connection)
        stand = Stand(server=server, events=arguments.events)
        table = ways(arguments)
        rounds = bench.in_turns(
            {way.key: partial(way.measure, stand) for way in table},
            rounds=arguments.rounds,
            console=console,
            told=lambda sample: f"{sample.events_per_s:,.0f} events/s",
        )
        return {
            "machine": about,
            "durable": not arguments.not_durable,
            "events": arguments.events,
            "delivered": arguments.delivered,
            "rounds": bench.in_words(rounds),
            "summary": summary(table, rounds, arguments.conditions),
        }


def fault(result: dict[str, Any]) -> str:
    """Name the ways of the broker in which something was lost, came twice or came out of order."""
    wrong = [
        key
        for key, figures in result["summary"]["ways"].items()
        if not key.startswith(QUEUE) and (figures["missing"] or figures["twice"] or figures["out_of_order"])
    ]
    return f"events were lost, came twice or out of order: {', '.join(wrong)}" if wrong else ""


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result. Exit code 1 when an event was lost, came twice or came out of order."""
    parser = bench.options(__doc__, rounds=3)
    parser.add_argument("--events", type=int, default=20_000, help="of each batched way; single ones take a twentieth")
    parser.add_argument(
        "--delivered", type=int, default=60_000,
        help="events of each way end to end: so many that beginning and end, when not all work, weigh little",
    )  # fmt: skip
    parser.add_argument("--payload-bytes", type=int, nargs="+", default=[256, 1_024])
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--conditions", type=int, nargs="+", default=[1, 10, 100], help="distinct ones, few to many")
    parser.add_argument("--per-s", type=int, default=500, help="events per second of the paced way")
    parser.add_argument(
        "--waiting", type=int, default=1_000_000, help="events scheduled for later; three tenths beside steps"
    )
    parser.add_argument("--not-durable", action="store_true", help="let PostgreSQL leave out fsync")
    bench.add_only(parser)
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    counts = [arguments.rounds, arguments.events, arguments.delivered, arguments.per_s, arguments.waiting]
    bench.refuse_less_than_one(parser, *counts, *arguments.payload_bytes, *arguments.consumers, *arguments.conditions)
    path = arguments.json or bench.RESULTS / f"events{'-not-durable' * arguments.not_durable}.json"
    return bench.finish(partial(run, arguments), show, path=path, width=130, fault=fault)


if __name__ == "__main__":
    sys.exit(main())
