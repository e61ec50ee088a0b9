"""Measure compacted queues: appending, reading with acknowledgements, both at once, memory, and how long calls block.

``python benchmarks/compacted.py --rounds 3``

Everything happens on a private server and in one run, the ways taking turns, each on an empty server; so a busy machine
slows all of them, and ratios are formed within a round. ``new``: every message has a key of its own. ``reused``: 1,000
keys per client, all of which are there already, drawn by lot, so that every append replaces a value.

producer    AsyncCompactedProducer in one process, which makes the batches itself
append      the asyncio store in one process, 1 or 100 messages per call, all clients at once
consumer    AsyncCompactedConsumer in one process, one for each client, with a window of 100, which acknowledges with
            its next call what was handled
fetch       the asyncio store in one process, 5 (the original's batch) or 100 messages per call, which also carries the
            acknowledgements of those before
mixed       the producer and the consumers in one process; what was appended counts, and what was received
piped       our scripts' very calls, made beforehand and piped into the server over one connection
plain       the limit, piped in the same way: HSET of the value, ZADD of its sequence number and ZADD of its time; for
            reading ZRANGE, HMGET, ZADD to what is in flight and ZREM from it. They check nothing, count nothing and
            answer no sequence number

On a busy machine the server's processor time per message says most: a core of it does a million divided by that in a
second. Then a message's memory, and how long each operation's calls keep the server from others on long queues.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import bench
import hiredis
import redis
from online import Sample, client_us, median, packed, pipe_into, process_cpu_s, quantile, ratio, server_us, speed
from rich.console import Console
from rich.table import Table
from watch import empty_redis

from queuekeeper import lua, redis_async, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.compacted.consumer import AsyncCompactedConsumer
from queuekeeper.compacted.consumption import ConsumerRules
from queuekeeper.compacted.model import Append, Fence, Position, Purge, Retention
from queuekeeper.compacted.producer import AsyncCompactedProducer
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.keyspace import compacted_keys
from queuekeeper.operation import Operation

BATCH = 100
ORIGINAL_BATCH = 5
SESSION = "benchmark"
LONG_QUEUE_BYTES = 64
TOUCHED = 20_000
STORED = (100, 1_000, 20_000)
WEEK_MS = 604_800_000
SEED = 1
_PIPED_AT_ONCE = 50_000

# What the README of emqx-plugin-ecq 0.1.2 says of three nodes of 8 cores each.
ORIGINAL = (
    {"what": "appends", "payload_bytes": 1_024, "messages_per_s": 2_000, "load": 0.4},
    {"what": "appends", "payload_bytes": 256, "messages_per_s": 8_000, "load": 0.8},
    {"what": "reads", "payload_bytes": 1_024, "messages_per_s": 3_000, "load": None},
)
ORIGINAL_CORES = 24
GUARANTEES = (
    "These do not compare like with like. The original's are of a broker cluster, three AWS c8g.2xlarge, with clients "
    "on MQTT and messages on these nodes' disks; duration, latency and how many nodes had a message are not published, "
    "and with 1,000 keys for each of a million clients hardly any append replaced a value. There a failed append is "
    "logged while the publisher sees success, a replaced value stays until its age retires it, and acknowledgements "
    "move one number per batch. Ours are calls of a store on one server, without MQTT and without a replica, kept in "
    "memory and in the append-only file as named above. Each append is answered with its sequence number or an error, "
    "a replaced value is gone, every acknowledgement is kept by itself, and what is in flight survives its consumer."
)


# --- what clients do -------------------------------------------------------------------------------------------


def name(number: int) -> str:
    """Return the client id of a queue."""
    return f"device-{number:06d}"


def key(number: int) -> bytes:
    """Return the key of a message."""
    return b"sensors/%08d" % number


def slices(appends: Sequence[Append], size: int) -> Iterator[Sequence[Append]]:
    """Cut messages into batches."""
    return (appends[start : start + size] for start in range(0, len(appends), size))


@dataclass(frozen=True, kw_only=True)
class Load:
    """Messages for every client, the same in each round.

    :param messages: of each client.
    :param keys: that are there already, if keys are reused.
    """

    clients: int
    messages: int
    payload_bytes: int
    keys: int
    reused: bool

    @property
    def total(self) -> int:
        """Messages of all clients."""
        return self.clients * self.messages

    def before(self) -> list[Append]:
        """Return what each queue holds before anything is measured."""
        return [self._append(number) for number in range(self.keys)] if self.reused else []

    def appends(self, client: int) -> list[Append]:
        """Return the messages of a client."""
        if not self.reused:
            return [self._append(number) for number in range(self.messages)]
        dice = random.Random(f"{SEED} {client}")
        return [self._append(dice.randrange(self.keys)) for _ in range(self.messages)]

    def _append(self, number: int) -> Append:
        return Append(key=key(number), value=b"x" * self.payload_bytes)


class Stopwatch:
    """Measures what clients do, from entering it to leaving it."""

    def __init__(self, server_cpu_s: Callable[[], float]) -> None:
        self.calls_ms = array("d")
        self._server_cpu_s = server_cpu_s

    @contextmanager
    def call(self) -> Iterator[None]:
        """Measure one call."""
        called = time.perf_counter()
        yield
        self.calls_ms.append((time.perf_counter() - called) * 1e3)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure all of it."""
        before_s = self._server_cpu_s()
        started, used_s = time.perf_counter(), time.process_time()
        yield
        self.seconds = time.perf_counter() - started
        self.cpu_s = time.process_time() - used_s
        self.server_cpu_s = self._server_cpu_s() - before_s

    def sample(self, messages: int) -> Sample:
        """Return what was measured."""
        calls_ms = sorted(self.calls_ms)
        return Sample(
            messages=messages,
            seconds=self.seconds,
            # What is piped was made beforehand, and its calls are not timed one by one.
            client_cpu_s=self.cpu_s if calls_ms else None,
            server_cpu_s=self.server_cpu_s,
            p50_ms=quantile(calls_ms, 0.50),
            p99_ms=quantile(calls_ms, 0.99),
        )


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[AsyncCompactedQueues]:
    """Open the asyncio store."""
    async with await redis_async.connect(url) as caller:
        yield AsyncCompactedQueues(caller)


async def append(url: str, load: Load, watch: Stopwatch, *, batch: int) -> int:
    """Append with the store."""
    appends = [load.appends(client) for client in range(load.clients)]
    async with opened(url) as queues:

        async def work(client: int) -> None:
            for part in slices(appends[client], batch):
                with watch.call():
                    await queues.append(name(client), part)

        with watch.running():
            await asyncio.gather(*map(work, range(load.clients)))
    return load.total


async def fetch(url: str, load: Load, watch: Stopwatch, *, batch: int) -> int:
    """Fetch with the store until every queue is at its end, each call acknowledging what the one before has brought."""
    received = 0
    async with opened(url) as queues:
        fences = [(await queues.subscribe(name(client), session=SESSION)).fence for client in range(load.clients)]

        async def work(client: int) -> None:
            nonlocal received
            acks: tuple[int, ...] | None = None
            while acks is None or acks:
                with watch.call():
                    fetched = await queues.fetch(
                        name(client), fence=fences[client], limit=batch, window=batch, acks=acks or ()
                    )
                acks = tuple(message.sequence for message in fetched.messages)
                received += len(acks)

        with watch.running():
            await asyncio.gather(*map(work, range(load.clients)))
    return received


async def produce(url: str, load: Load, watch: Stopwatch) -> int:
    """Append with a producer; a call is one message, and as many are under way as a batch has."""
    async with opened(url) as queues, AsyncCompactedProducer(queues) as producer:
        with watch.running():
            await _produced(producer, load, watch)
    return load.total


async def _produced(producer: AsyncCompactedProducer, load: Load, watch: Stopwatch) -> None:
    async def one(client: int, new: Append) -> None:
        with watch.call():
            await producer.append(name(client), new)

    async def work(client: int) -> None:
        for part in slices(load.appends(client), BATCH):
            await asyncio.gather(*(one(client, new) for new in part))

    await asyncio.gather(*map(work, range(load.clients)))


async def consume(url: str, load: Load, watch: Stopwatch) -> int:
    """Receive with consumers; a call is the wait for a message."""
    async with opened(url) as queues:
        with watch.running():
            return await _consumed(queues, load, watch)


async def _consumed(queues: AsyncCompactedQueues, load: Load, watch: Stopwatch) -> int:
    last = len(load.before()) + load.messages
    rules = ConsumerRules(window=BATCH)

    async def work(client: int) -> int:
        received, sequence = 0, 0
        async with AsyncCompactedConsumer(queues, name(client), rules=rules, auto_ack=True) as consumer:
            while sequence < last:
                with watch.call():
                    sequence = (await anext(consumer)).sequence
                received += 1
        return received

    return sum(await asyncio.gather(*map(work, range(load.clients))))


async def mix(url: str, load: Load, watch: Stopwatch) -> int:
    """Append and receive at the same time."""
    async with opened(url) as queues, AsyncCompactedProducer(queues) as producer:
        with watch.running():
            received, _ = await asyncio.gather(_consumed(queues, load, watch), _produced(producer, load, watch))
    return load.total + received


# --- calls made beforehand -------------------------------------------------------------------------------------

Command: TypeAlias = tuple[Any, ...]


def calls_of(queues: CompactedQueues, operation: Operation[Any], script: str) -> list[Command]:
    """Return an operation's calls of a script without sending them; what has to be done before is done."""
    step: list[lua.Call] = next(operation)
    while step[0].script.name != script:
        step = operation.send(queues.answer(step))
    operation.close()
    return [call.command for call in step]


def append_calls(url: str, load: Load, client: int, queues: CompactedQueues, *, batch: int) -> list[Command]:
    """Return calls of the append script."""
    return [
        call
        for part in slices(load.appends(client), batch)
        for call in calls_of(queues, queues.operations.append(name(client), part), "compacted/append")
    ]


def fetch_calls(url: str, load: Load, client: int, queues: CompactedQueues, *, batch: int) -> list[Command]:
    """Return calls of the fetch script, each with the acknowledgements of those that the call before brings."""
    fence = queues.subscribe(name(client), session=SESSION).fence
    calls: list[Command] = []
    acks: tuple[int, ...] = ()
    for start in range(0, load.messages + batch, batch):
        operation = queues.operations.fetch(name(client), fence=fence, limit=batch, window=batch, acks=acks)
        calls += calls_of(queues, operation, "compacted/fetch")
        acks = tuple(range(start + 1, min(start + batch, load.messages) + 1))
    return calls


def plain_keys(client: int) -> tuple[str, str, str, str]:
    """Return the keys of values, order, times and what is in flight."""
    stem = f"plain:{{{name(client)}}}"
    return f"{stem}:values", f"{stem}:order", f"{stem}:times", f"{stem}:in_flight"


def plain_commands(client: int, appends: Sequence[Append], *, batch: int) -> list[Command]:
    """Return the commands that store messages and do nothing else."""
    values, order, times, _ = plain_keys(client)
    now_ms = system_clock()
    commands: list[Command] = []
    for start in range(0, len(appends), batch):
        part = list(enumerate(appends[start : start + batch], start=start + 1))
        commands += [
            ("HSET", values, *(word for number, one in part for word in (one.key, b"%d 0 =" % number + one.value))),
            ("ZADD", order, *(word for number, one in part for word in (number, one.key))),
            ("ZADD", times, *(word for _, one in part for word in (now_ms, one.key))),
        ]
    return commands


def plain_append_calls(url: str, load: Load, client: int, queues: CompactedQueues, *, batch: int) -> list[Command]:
    """Return plain commands that store as much, into queues that hold as much."""
    before = plain_commands(client, load.before(), batch=BATCH)
    pipe_into(url, packed(before), len(before), is_right=is_no_error)
    return plain_commands(client, load.appends(client), batch=batch)


def plain_fetch_calls(url: str, load: Load, client: int, queues: CompactedQueues, *, batch: int) -> list[Command]:
    """Return plain commands that read as much and note what is in flight."""
    appends = load.appends(client)
    before = plain_commands(client, appends, batch=BATCH)
    pipe_into(url, packed(before), len(before), is_right=is_no_error)
    values, order, _, in_flight = plain_keys(client)
    commands: list[Command] = []
    for start in range(0, load.messages, batch):
        numbers = range(start + 1, min(start + batch, load.messages) + 1)
        commands += [
            ("ZRANGE", order, f"({start}", "+inf", "BYSCORE", "LIMIT", 0, batch, "WITHSCORES"),
            ("HMGET", values, *(one.key for one in appends[start : start + batch])),
            ("ZADD", in_flight, *(word for number in numbers for word in (number, number))),
            ("ZREM", in_flight, *numbers),
        ]
    return commands


def is_no_error(reply: object) -> bool:
    """Tell whether a command was carried out."""
    return not isinstance(reply, hiredis.ReplyError)


# --- the stand -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stand:
    """The server, and how much there is to do.

    :param messages: of all clients, of each way.
    :param keys: that are reused, of each client.
    """

    server: RedisServer
    client: redis.Redis
    clients: int
    messages: int
    keys: int

    @property
    def url(self) -> str:
        """The server's address."""
        return self.server.url

    def empty(self) -> None:
        """Give every measurement the same empty server, and its append-only file no more than that."""
        empty_redis(self.client)
        if self.facts("persistence")["aof_enabled"]:
            self.client.bgrewriteaof()
            while self.rewriting():
                time.sleep(0.01)

    def rewriting(self) -> bool:
        """Tell whether the append-only file is being written anew."""
        found = self.facts("persistence")
        return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])

    def facts(self, section: str) -> dict[str, Any]:
        """Return what the server says about itself."""
        found: dict[str, Any] = self.client.info(section)
        return found

    def server_cpu_s(self) -> float:
        """Return the processor time that the server has used."""
        assert self.server.pid is not None
        return process_cpu_s(self.server.pid)

    def measured(self, way: Way) -> Sample:
        """Measure a way once, and check that queues have counted what it says it has done.

        :raises QueuekeeperError: when they have not.
        """
        load = Load(
            clients=self.clients,
            messages=max(1, self.messages // self.clients),
            payload_bytes=way.payload_bytes,
            keys=self.keys,
            reused=way.reused,
        )
        self.empty()
        watch = Stopwatch(self.server_cpu_s)
        with closing(redis_client.connect(self.server.url)) as connection, self.fsync(way.fsync):
            queues = CompactedQueues(connection)
            for client in range(load.clients):
                for part in slices(load.before() + (load.appends(client) if way.fills else []), BATCH):
                    queues.append(name(client), part)
            messages = way.work(self.server.url, load, watch, queues)
            if not way.plain:
                self._check(load, queues, all_acked=way.reads)
        return watch.sample(messages)

    def _check(self, load: Load, queues: CompactedQueues, *, all_acked: bool) -> None:
        for client in range(load.clients):
            view = queues.inspect(name(client))
            expected = load.messages + len(load.before())
            if view.sequence != expected or (all_acked and view.acked != expected):
                raise QueuekeeperError(f"{expected} messages were to be stored and received: {view}")

    @contextmanager
    def fsync(self, setting: str | None) -> Iterator[None]:
        """Have the append-only file flushed in another way."""
        before = cast(dict[str, str], self.client.config_get("appendfsync"))
        if setting is not None:
            self.client.config_set("appendfsync", setting)
        yield
        self.client.config_set("appendfsync", before["appendfsync"])


# --- the ways --------------------------------------------------------------------------------------------------

Work: TypeAlias = Callable[[str, Load, Stopwatch, CompactedQueues], int]
"""Works, and returns how many messages were appended or received."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the table.

    :param limit: label of the plain way that does as much.
    :param fills: whether the messages are there before, to be read.
    :param reads: whether all of them have been acknowledged in the end.
    :param fsync: how the append-only file is flushed, if not as for all others.
    """

    label: str
    payload_bytes: int
    work: Work
    limit: str
    reused: bool = False
    fills: bool = False
    reads: bool = False
    plain: bool = False
    fsync: str | None = None

    @property
    def key(self) -> str:
        """Name in the result."""
        return f"{self.label}, {self.payload_bytes} B"

    @property
    def limit_key(self) -> str:
        """Name of the limit in the result."""
        return f"{self.limit}, {self.payload_bytes} B"


def by_clients(work: Callable[..., Coroutine[Any, Any, int]], **options: int) -> Work:
    """Return what clients do in an event loop of its own."""
    return lambda url, load, watch, _: asyncio.run(work(url, load, watch, **options))


def beforehand(calls: Callable[..., list[Command]], *, batch: int) -> Work:
    """Return what pipes calls that were made beforehand."""

    def work(url: str, load: Load, watch: Stopwatch, queues: CompactedQueues) -> int:
        by_client = [calls(url, load, client, queues, batch=batch) for client in range(load.clients)]
        commands = [command for turn in zip(*by_client, strict=True) for command in turn]
        written = packed(commands)
        with watch.running():
            pipe_into(url, written, len(commands), is_right=is_no_error)
        return load.total

    return work


def ways(arguments: argparse.Namespace) -> list[Way]:
    """Return all ways."""
    found: list[Way] = []
    for size in arguments.payload_bytes:
        way = partial(Way, payload_bytes=size)
        for keys in ("new", "reused"):
            append_way = partial(way, reused=keys == "reused")
            for batch in (1, BATCH):
                limit = f"plain append x {batch}, {keys}"
                found += [
                    append_way(label=f"append x {batch}, {keys}", work=by_clients(append, batch=batch), limit=limit),
                    append_way(
                        label=f"piped append x {batch}, {keys}", work=beforehand(append_calls, batch=batch), limit=limit
                    ),
                    append_way(label=limit, work=beforehand(plain_append_calls, batch=batch), limit=limit, plain=True),
                ]
            limit = f"plain append x {BATCH}, {keys}"
            found.append(append_way(label=f"producer, {keys}", work=by_clients(produce), limit=limit))
            found.append(append_way(label=f"mixed, {keys}", work=by_clients(mix), limit=limit, reads=True))
        if arguments.append_only == "everysec":
            found.append(
                way(
                    label=f"append x {BATCH}, reused, flushed always", reused=True, fsync="always",
                    work=by_clients(append, batch=BATCH), limit=f"plain append x {BATCH}, reused",
                )
            )  # fmt: skip
        limit = f"plain fetch x {BATCH}"
        reading = partial(way, fills=True, reads=True, limit=limit)
        for batch in (ORIGINAL_BATCH, BATCH):
            found.append(reading(label=f"fetch x {batch}", work=by_clients(fetch, batch=batch)))
        found += [
            reading(label="consumer", work=by_clients(consume)),
            reading(label=f"piped fetch x {BATCH}", work=beforehand(fetch_calls, batch=BATCH)),
            way(label=limit, work=beforehand(plain_fetch_calls, batch=BATCH), limit=limit, plain=True),
        ]
    return [way for way in found if re.search(arguments.only, way.key)]


# --- memory, and how long calls block --------------------------------------------------------------------------


def bytes_per_message(stand: Stand, payload_bytes: int) -> dict[str, float]:
    """Return the memory of a queue's keys per message, for queues of several lengths."""
    found = {}
    for messages in STORED:
        stand.empty()
        load = Load(clients=1, messages=messages, payload_bytes=payload_bytes, keys=0, reused=False)
        with closing(redis_client.connect(stand.server.url)) as connection:
            queues = CompactedQueues(connection)
            for part in slices(load.appends(0), BATCH):
                queues.append(name(0), part)
        sizes = [stand.client.memory_usage(each, samples=0) or 0 for each in compacted_keys(name(0))]
        found[str(messages)] = round(sum(map(int, sizes)) / messages, 1)
    return found


def blocking(stand: Stand, rows: int) -> dict[str, bench.Blocking]:
    """Do on a long queue what may take the server long, and read the server's own log of how long each call took."""
    stand.empty()
    found: dict[str, bench.Blocking] = {}
    touched = min(rows, TOUCHED)
    queue = name(0)
    watched = partial(bench.watched, stand.client, stand.server_cpu_s, found)
    with closing(redis_client.connect(stand.server.url)) as connection:
        queues = CompactedQueues(connection)
        with watched("append, 100 new keys"):
            fill(stand, queues, queue, rows)
        load = Load(clients=1, messages=touched, payload_bytes=LONG_QUEUE_BYTES, keys=rows, reused=True)
        with watched("append, 100 reused keys"):
            for part in slices(load.appends(0), BATCH):
                queues.append(queue, part)
        with watched("subscribe, heartbeat"):
            for _ in range(BATCH):
                fence = queues.subscribe(queue, session=SESSION).fence
                queues.heartbeat(queue, fence=fence)
        with watched("fetch, a window of 500"):
            read(queues, queue, fence, messages=touched // 2, limit=500)
        with watched("fetch, a window of 100"):
            read(queues, queue, fence, messages=touched // 2, limit=BATCH)
        now_ms = system_clock()
        with watched("rewind"):
            for middle in range(rows // 2, rows // 2 + BATCH // 2):
                for to in (Position.latest(), Position.sequence(middle), Position.time_ms(now_ms), Position.earliest()):
                    queues.rewind(queue, to=to)
        with watched("get, peek, inspect"):
            for middle in range(rows // 2, rows // 2 + BATCH // 2):
                queues.get(queue, key=key(middle))
                queues.peek(queue, after_sequence=middle, limit=BATCH)
                queues.inspect(queue)
        with watched("verify"):
            report = queues.verify(queue)
        if report.found or queues.inspect(queue).live != rows:
            raise QueuekeeperError(f"a queue of {rows} messages is not in order: {report}")
        due_ms = now_ms + 2 * WEEK_MS
        with watched("find what is due, 100 at once"):
            for _ in range(BATCH):
                queues.find_due(queue, retention=Retention(), now_ms=due_ms)
        with watched("collect, 100 at once"):
            collected = 0
            while collected < touched // 2:
                page = queues.find_due(queue, retention=Retention(), now_ms=due_ms)
                collected += queues.collect(queue, retention=Retention(), rows=page.rows, now_ms=due_ms).collected
        with watched("purge"):
            oldest = queues.peek(queue, limit=1)[0].sequence
            queues.purge(queue, what=Purge.up_to(oldest + touched // 4))
        with watched("drop"):
            queues.drop(queue)
    return found


def fill(stand: Stand, queues: CompactedQueues, client_id: str, rows: int) -> None:
    """Append by the script, its calls piped in, so that a million is there in a minute."""
    for start in range(0, rows, _PIPED_AT_ONCE):
        numbers = range(start, min(start + _PIPED_AT_ONCE, rows))
        appends = [Append(key=key(number), value=b"x" * LONG_QUEUE_BYTES) for number in numbers]
        calls = [
            call
            for part in slices(appends, BATCH)
            for call in calls_of(queues, queues.operations.append(client_id, part), "compacted/append")
        ]
        pipe_into(stand.server.url, packed(calls), len(calls), is_right=is_no_error)


def read(queues: CompactedQueues, client_id: str, fence: Fence, *, messages: int, limit: int) -> None:
    """Fetch and acknowledge."""
    acks: tuple[int, ...] = ()
    received = 0
    while received < messages:
        page = queues.fetch(client_id, fence=fence, limit=limit, window=limit, acks=acks).messages
        if not page:
            break
        acks = tuple(message.sequence for message in page)
        received += len(page)
    queues.ack(client_id, fence=fence, sequences=acks)


# --- the result ------------------------------------------------------------------------------------------------


def summary(table: Sequence[Way], rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds, and ratios within them."""
    lines: dict[str, Any] = {}
    for way in table:
        samples = rounds[way.key]
        used_us = statistics.median(map(server_us, samples))
        lines[way.key] = {
            "messages_per_s": round(statistics.median(map(speed, samples))),
            "per_server_cpu_s": round(1e6 / used_us),
            "p50_ms": median([sample.p50_ms for sample in samples], 2),
            "p99_ms": median([sample.p99_ms for sample in samples], 2),
            "client_cpu_us": median(client_us(samples), 2),
            "server_cpu_us": round(used_us, 2),
            "of_limit": ratio(rounds, way.key, way.limit_key, speed),
            "server_cpu_of_limit": ratio(rounds, way.key, way.limit_key, server_us),
        }
    return lines


def beside_the_original(lines: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the original has published, with what we measured at the same size."""
    found = []
    for figures in ORIGINAL:
        ours = "append x 1, reused" if figures["what"] == "appends" else f"fetch x {ORIGINAL_BATCH}"
        measured = lines.get(f"{ours}, {figures['payload_bytes']} B")
        if measured is not None:
            found.append({**figures, "cores": ORIGINAL_CORES, "ours": ours, **{
                f"ours_{column}": measured[column] for column in ("messages_per_s", "per_server_cpu_s")
            }})  # fmt: skip
    return found


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    bench.show_ways(
        console, "Compacted queues", result["summary"], [
            ("msgs/s", "messages_per_s", ","), ("per server CPU s", "per_server_cpu_s", ","),
            ("of plain", "of_limit", ".0%"), ("p50 ms", "p50_ms", ".2f"), ("p99 ms", "p99_ms", ".2f"),
            ("client µs", "client_cpu_us", ".1f"), ("server µs", "server_cpu_us", ".1f"),
            ("× plain", "server_cpu_of_limit", ".2f"),
        ],
        "ms: of a call; µs: processor time per message, of all clients and of the server; of plain, × plain: speed and "
        "processor time of the server, beside plain commands with as many messages each.",
    )  # fmt: skip
    stored = bench.table_of(
        "Bytes of memory per message", "payload", *(f"queue of {messages:,}" for messages in STORED), texts=0
    )
    for size, lengths in result["bytes_per_message"].items():
        stored.add_row(f"{size} B", *(f"{lengths[str(messages)]:,.0f}" for messages in STORED))
    console.print(stored)
    for rows, operations in result["blocking"].items():
        long = bench.table_of(
            f"Blocking, a queue of {int(rows):,} keys",
            *("operation", "calls", "p10 ms", "p50 ms", "p99 ms", "longest ms", "CPU ms"),
        )
        for operation, found in operations.items():
            figures = (
                bench.shown(found[column], ".2f") for column in ("p10_ms", "p50_ms", "p99_ms", "longest_ms", "cpu_ms")
            )
            long.add_row(operation, str(found["calls"]), *figures)
        console.print(long)
    theirs = Table(title="Beside the original's published figures", title_justify="left")
    for title in ("what", "original, 24 cores/s", "their load", "ours", "msgs/s", "per server CPU s"):
        theirs.add_column(title, justify="left" if title in {"what", "ours"} else "right")
    for figures in result["original"]:
        theirs.add_row(
            f"{figures['what']}, {figures['payload_bytes']:,} B",
            f"{figures['messages_per_s']:,}",
            bench.shown(figures["load"], ".0%") or "not said",
            figures["ours"],
            f"{figures['ours_messages_per_s']:,}",
            f"{figures['ours_per_server_cpu_s']:,}",
        )
    console.print(theirs)
    console.print(f"Append-only file: {result['append_only']}. {GUARANTEES}")


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with bench.measured_redis(arguments) as (server, client):
        # What is piped is not sent again when its script is not known yet; and a call that fails for want of its
        # script would count as work.
        for script in lua.names():
            if script.startswith("compacted/"):
                client.script_load(lua.load(script).source)
        stand = Stand(
            server=server, client=client, clients=arguments.clients, messages=arguments.messages, keys=arguments.keys
        )
        table = ways(arguments)
        rounds = bench.in_turns(
            {way.key: partial(stand.measured, way) for way in table},
            rounds=arguments.rounds,
            console=console,
            told=speed_and_cost,
        )
        lines = summary(table, rounds)
        return {
            "machine": bench.facts(None, client),
            "server": arguments.server,
            "append_only": arguments.append_only,
            "clients": arguments.clients,
            "messages": arguments.messages,
            "keys": arguments.keys,
            "rounds": bench.in_words(rounds),
            "summary": lines,
            "bytes_per_message": {str(size): bytes_per_message(stand, size) for size in arguments.payload_bytes},
            "blocking": {
                str(rows): {operation: asdict(one) for operation, one in blocking(stand, rows).items()}
                for rows in arguments.rows
            },
            "original": beside_the_original(lines),
        }


def speed_and_cost(sample: Sample) -> str:
    """Return a sample in words."""
    return f"{sample.messages_per_s:,.0f} messages/s, {server_us(sample):.1f} µs of the server"


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = bench.options(__doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=40_000, help="of all clients, for each way")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--keys", type=int, default=1_000, help="of each client, that are reused")
    parser.add_argument("--payload-bytes", type=int, nargs="+", default=[256, 1_024])
    parser.add_argument("--rows", type=int, nargs="*", default=[200_000, 1_000_000], help="lengths of long queues")
    bench.add_server(parser)
    bench.add_append_only(parser)
    bench.add_only(parser)
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    counts = [arguments.rounds, arguments.messages, arguments.clients, arguments.keys]
    bench.refuse_less_than_one(parser, *counts, *arguments.payload_bytes, *arguments.rows)
    durable = "" if arguments.append_only == "everysec" else f"-{arguments.append_only}"
    path = arguments.json or bench.RESULTS / f"compacted-{arguments.server}{durable}.json"
    return bench.finish(partial(run, arguments), show, path=path, width=140)


if __name__ == "__main__":
    sys.exit(main())
