"""Measure fan-out queues beside the commands of the original and beside Redis Streams.

``python benchmarks/fanout.py --rounds 3``

Everything happens on a private server and in one run, the ways taking turns, each on an empty server; so a busy machine
slows all of them, and ratios are formed within a round. All three go through the same connection code: publishing
through one connection, and every consumer through its own. After every way it is checked that each consumer got every
message once and in order.

fanout      AsyncFanoutQueues: publish, claim, ack, and await_wake when there is nothing to claim
naive       the commands of RedisQ, each sent when the one before is answered: INCR, HSET, EXPIRE, SMEMBERS, HSET,
            EXPIRE and an RPUSH per consumer; a consumer does BLPOP and HGETALL
streams     XADD, a group per consumer, XREADGROUP BLOCK and XACK; a stream frees nothing, so whenever a hundred
            messages more are done, XINFO GROUPS and XPENDING tell what all groups have, and XTRIM removes it

publish     1 message, or up to 100 at once (streams: as many XADD in one write), while nobody consumes; per message
consume     what is there, 1 message or up to 100 at once, and ack; all consumers together; per message and consumer
end to end  a message is published when all consumers wait, and the next when all have it; from the beginning of the
            publish to the message at the consumer; processor time is that of publishing and consuming, per consumer

On a busy machine the server's processor time says most. With many consumers the clients' processor, one for all of
them, has a share in speed and latency. Then memory per message, stored and left when all consumers have had it, and
what script calls cost the server.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import bench
import redis
from compacted import Stand, Stopwatch, is_no_error, speed_and_cost
from online import Sample, client_us, median, packed, pipe_into, ratio, server_us, speed
from rich.console import Console

from queuekeeper import lua, redis_async, redis_client
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.fanout.model import MAX_CLAIM, NewMessage
from queuekeeper.fanout.operations import FanoutOperations
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.fanout.reports import Claimed
from queuekeeper.operation import Operation
from queuekeeper.redis_connection import Connection, Limits, endpoint

QUEUE = "benchmark"
OWNER = "benchmark"
BATCH = 100
CALLS = 200
LEAST_MESSAGES = 20
LEAST_STORED = 100
LEAST_ROWS = 1_000
DAY_S = 86_400
WAIT_S = 1.0
"""How long one blocking command waits; the original's does so too."""

_NUMBER_BYTES = 8

GUARANTEES = (
    "These do not promise the same. naive: a message is off its list before work on it begins, so a crash loses it; a "
    "publish that ends half-way leaves some consumers without it; a payload stays until its time is over, whoever has "
    "read it. streams: at least once, but no life, delay or dead letters of a message, and what is trimmed, when, and "
    "for whom, is up to the caller. fanout: one publish is for all consumers or for none, at least once by leases, "
    "attempts and dead letters per consumer, and the last ack frees the payload."
)


# --- what is measured ------------------------------------------------------------------------------------------


def name(number: int) -> str:
    """Return the name of a consumer."""
    return f"consumer-{number:03d}"


def bodies(count: int, size: int) -> list[bytes]:
    """Return numbered payloads."""
    return [number.to_bytes(_NUMBER_BYTES, "big").ljust(size, b"x") for number in range(count)]


def number_of(body: bytes) -> int:
    """Return the number of a payload."""
    return int.from_bytes(body[:_NUMBER_BYTES], "big")


class System(ABC):
    """One way to bring each message to every consumer; used with ``async with``."""

    label: ClassVar[str]

    def __init__(self, url: str, consumers: int) -> None:
        self.consumers = consumers
        self._url = url
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> System:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def connection(self) -> Connection:
        """Return a connection that is closed in the end; it is opened by its first command."""
        connection = Connection(endpoint(self._url), limits=Limits())
        self._stack.push_async_callback(connection.close)
        return connection

    @abstractmethod
    async def open(self) -> None:
        """Connect everybody."""

    @abstractmethod
    async def register(self) -> None:
        """Register the consumers."""

    @abstractmethod
    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish to all consumers."""

    @abstractmethod
    async def receive(self, consumer: int, count: int, waiting: Callable[[], None]) -> list[bytes]:
        """Take the next messages, waiting until there are any.

        :param waiting: called once, if it may have to wait.
        """

    @abstractmethod
    async def done(self, consumer: int) -> None:
        """Say that what was received is done."""

    @abstractmethod
    async def settle(self) -> None:
        """Remove what all have, if that was not done yet."""

    @abstractmethod
    async def payloads(self) -> int:
        """Return how many messages the server has."""


class Fanout(System):
    """Our fan-out queues."""

    label = "fanout"

    async def open(self) -> None:
        """Connect everybody."""
        self._publisher = await self._queues()
        self._consumers = [await self._queues() for _ in range(self.consumers)]
        for queues in self._consumers:
            # They are one process here: it reads once who is registered.
            queues.operations = self._publisher.operations
        self._claimed: list[Claimed | None] = [None] * self.consumers

    async def register(self) -> None:
        """Register the consumers."""
        for number in range(self.consumers):
            await self._publisher.register(QUEUE, consumer=name(number))

    async def _queues(self) -> AsyncFanoutQueues:
        return AsyncFanoutQueues(await self._stack.enter_async_context(await redis_async.connect(self._url)))

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish to all consumers."""
        await self._publisher.publish(QUEUE, [NewMessage(body=body) for body in messages])

    async def receive(self, consumer: int, count: int, waiting: Callable[[], None]) -> list[bytes]:
        """Claim, and wait where the claim before has left nothing."""
        queues, last = self._consumers[consumer], self._claimed[consumer]
        is_told = False
        while True:
            if last is not None and not last.more:
                if not is_told:
                    waiting()
                is_told = True
                await queues.await_wake(QUEUE, consumer=name(consumer), timeout_s=WAIT_S)
            last = self._claimed[consumer] = await queues.claim(QUEUE, consumer=name(consumer), count=count)
            if last.messages:
                return [message.body for message in last.messages]

    async def done(self, consumer: int) -> None:
        """Acknowledge."""
        claimed = self._claimed[consumer]
        assert claimed is not None
        ids = [message.id for message in claimed.messages]
        await self._consumers[consumer].ack(QUEUE, consumer=name(consumer), token=claimed.token, ids=ids)

    async def settle(self) -> None:
        """Do nothing: the last acknowledgement has removed it."""

    async def payloads(self) -> int:
        """Return how many messages the server has."""
        return await self._publisher.size(QUEUE)


class Naive(System):
    """What RedisQ 2.0.0 sends, command by command; keys and fields are its own, payloads bytes."""

    label = "naive"

    async def open(self) -> None:
        """Connect everybody."""
        self._publisher = self.connection()
        self._consumers = [self.connection() for _ in range(self.consumers)]

    async def register(self) -> None:
        """Register the consumers."""
        for number in range(self.consumers):
            await self._publisher.ask("SADD", f"redisq.{QUEUE}.consumers", name(number))

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish to all consumers; of several messages, which fill a queue, the same commands go out together."""
        await asyncio.gather(*map(self._publish, messages))

    async def _publish(self, body: bytes) -> None:
        ask = self._publisher.ask
        number = str(await ask("INCR", f"redisq.{QUEUE}.nextID"))
        key = f"redisq.{QUEUE}.messages.{number}"
        creation = int(time.time() * 1e3)
        fields = ("id", number, "creation", creation, "payload", body, "retries", 0, "ttl", DAY_S)
        await ask("HSET", key, *fields)
        await ask("EXPIRE", key, DAY_S)
        members = await ask("SMEMBERS", f"redisq.{QUEUE}.consumers")
        await ask("HSET", key, *fields)
        await ask("EXPIRE", key, DAY_S)
        for member in members:
            await ask("RPUSH", f"redisq.{QUEUE}.queues.{member.decode()}", number)

    async def receive(self, consumer: int, count: int, waiting: Callable[[], None]) -> list[bytes]:
        """Take one message; it has no way to take more."""
        del count
        ask = self._consumers[consumer].ask
        waiting()
        taken = None
        while taken is None:
            taken = await ask("BLPOP", f"redisq.{QUEUE}.queues.{name(consumer)}", int(WAIT_S))
        flat = await ask("HGETALL", f"redisq.{QUEUE}.messages.{taken[1].decode()}")
        return [dict(zip(flat[::2], flat[1::2], strict=True))[b"payload"]]

    async def done(self, consumer: int) -> None:
        """Do nothing: it was off the list before."""

    async def settle(self) -> None:
        """Do nothing: their time removes them."""

    async def payloads(self) -> int:
        """Return how many messages the server has; all the other keys are counted and left out."""
        ask = self._publisher.ask
        others = [f"redisq.{QUEUE}.queues.{name(number)}" for number in range(self.consumers)]
        others += [f"redisq.{QUEUE}.consumers", f"redisq.{QUEUE}.nextID"]
        return int(await ask("DBSIZE")) - int(await ask("EXISTS", *others))


class Streams(System):
    """A stream with a group per consumer, trimmed by hand."""

    label = "streams"

    async def open(self) -> None:
        """Connect everybody."""
        self._publisher = self.connection()
        self._trimmer = self.connection()
        self._consumers = [self.connection() for _ in range(self.consumers)]
        self._received: list[list[bytes]] = [[] for _ in range(self.consumers)]
        self._done = 0

    async def register(self) -> None:
        """Register the consumers."""
        for number in range(self.consumers):
            await self._publisher.ask("XGROUP", "CREATE", QUEUE, name(number), "$", "MKSTREAM")

    async def publish(self, messages: Sequence[bytes]) -> None:
        """Publish to all consumers."""
        await asyncio.gather(*(self._publisher.ask("XADD", QUEUE, "*", "body", body) for body in messages))

    async def receive(self, consumer: int, count: int, waiting: Callable[[], None]) -> list[bytes]:
        """Take the next messages."""
        ask = self._consumers[consumer].ask
        waiting()
        group = name(consumer)
        found = None
        while found is None:
            found = await ask(
                *("XREADGROUP", "GROUP", group, group, "COUNT", count, "BLOCK", int(WAIT_S * 1e3)),
                *("STREAMS", QUEUE, ">"),
            )
        entries = found[0][1]
        self._received[consumer] = [entry[0] for entry in entries]
        return [entry[1][1] for entry in entries]

    async def done(self, consumer: int) -> None:
        """Acknowledge, and now and then remove what all groups have."""
        ids = self._received[consumer]
        await self._consumers[consumer].ask("XACK", QUEUE, name(consumer), *ids)
        turn = BATCH * self.consumers
        before, self._done = self._done // turn, self._done + len(ids)
        if self._done // turn > before:
            await self.settle()

    async def settle(self) -> None:
        """Remove what all groups have, up to the first message that one of them still has to do."""
        ask = self._trimmer.ask
        lowest: tuple[int, int] | None = None
        for flat in await ask("XINFO", "GROUPS", QUEUE):
            group = dict(zip(flat[::2], flat[1::2], strict=True))
            first, last = 0, group[b"last-delivered-id"]
            if group[b"pending"]:
                _, pending_id, _, _ = await ask("XPENDING", QUEUE, group[b"name"])
                first, last = (0, pending_id) if pending_id is not None else (1, last)
            else:
                first = 1
            milliseconds, number = map(int, last.split(b"-"))
            wanted = (milliseconds, number + first)
            lowest = wanted if lowest is None else min(lowest, wanted)
        if lowest is not None:
            await ask("XTRIM", QUEUE, "MINID", "=", "{}-{}".format(*lowest))

    async def payloads(self) -> int:
        """Return how many messages the server has."""
        return int(await self._publisher.ask("XLEN", QUEUE))


SYSTEMS: tuple[type[System], ...] = (Fanout, Naive, Streams)


# --- the ways --------------------------------------------------------------------------------------------------


class Received:
    """What each consumer got."""

    def __init__(self, consumers: int, total: int) -> None:
        self.numbers = [array("q") for _ in range(consumers)]
        self.total = total

    def add(self, consumer: int, messages: Sequence[bytes]) -> None:
        """Note what has come."""
        self.numbers[consumer].extend(map(number_of, messages))

    def has_all(self, consumer: int) -> bool:
        """Tell whether as many as there are have come to a consumer."""
        return len(self.numbers[consumer]) >= self.total

    def check(self, way: str) -> None:
        """Check completeness and order.

        :raises QueuekeeperError: when a consumer did not get every message once, in order.
        """
        for consumer, numbers in enumerate(self.numbers):
            if list(numbers) != list(range(self.total)):
                raise QueuekeeperError(
                    f"{way}: {name(consumer)} got {len(numbers)} of {self.total} messages, "
                    f"{len(set(numbers))} different ones, in order: {sorted(numbers) == list(numbers)}"
                )


async def drain(system: System, received: Received, watch: Stopwatch | None = None, *, count: int = MAX_CLAIM) -> None:
    """Have all consumers take and finish what is there."""

    async def work(consumer: int) -> None:
        while not received.has_all(consumer):
            called = time.perf_counter()
            received.add(consumer, await system.receive(consumer, count, _nothing))
            await system.done(consumer)
            if watch is not None:
                watch.calls_ms.append((time.perf_counter() - called) * 1e3)

    await asyncio.gather(*map(work, range(system.consumers)))
    await system.settle()


def _nothing() -> None:
    pass


async def publish(system: System, messages: Sequence[bytes], received: Received, watch: Stopwatch, batch: int) -> int:
    """Publish while nobody consumes."""
    with watch.running():
        for part in parts(messages, batch):
            with watch.call():
                await system.publish(part)
    await drain(system, received)
    return len(messages)


async def consume(system: System, messages: Sequence[bytes], received: Received, watch: Stopwatch, batch: int) -> int:
    """Consume what is there."""
    for part in parts(messages, BATCH):
        await system.publish(part)
    with watch.running():
        await drain(system, received, watch, count=batch)
    return len(messages) * system.consumers


async def pass_on(system: System, messages: Sequence[bytes], received: Received, watch: Stopwatch, batch: int) -> int:
    """Publish whenever all consumers wait; the first message opens connections, and is not measured."""
    all_wait = asyncio.Event()
    waiting = 0
    published_s = 0.0

    def waits() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == system.consumers:
            all_wait.set()

    async def work(consumer: int) -> None:
        while not received.has_all(consumer):
            part = await system.receive(consumer, batch, waits)
            watch.calls_ms.append((time.perf_counter() - published_s) * 1e3)
            received.add(consumer, part)
            await system.done(consumer)
        waits()

    async def pass_one(body: bytes) -> None:
        nonlocal waiting, published_s
        waiting = 0
        all_wait.clear()
        published_s = time.perf_counter()
        await system.publish([body])
        await all_wait.wait()

    async with asyncio.TaskGroup() as group:
        for consumer in range(system.consumers):
            group.create_task(work(consumer))
        await all_wait.wait()
        await pass_one(messages[0])
        del watch.calls_ms[:]
        with watch.running():
            for body in messages[1:]:
                await pass_one(body)
            await system.settle()
    return (len(messages) - 1) * system.consumers


def parts(messages: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    """Cut messages into batches."""
    return (messages[start : start + size] for start in range(0, len(messages), size))


WORKS = {"publish": publish, "consume": consume, "end to end": pass_on}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the table.

    :param work: one of :data:`WORKS`.
    """

    system: type[System]
    work: str
    batch: int
    consumers: int
    payload_bytes: int

    @property
    def key(self) -> str:
        """Name in the result."""
        return self.beside(self.system, self.batch)

    def beside(self, system: type[System], batch: int) -> str:
        """Return the name of the line where another system does the same."""
        size = "" if self.work == "end to end" else f" x {batch}"
        return f"{system.label} {self.work}{size}, {self.consumers} consumers, {self.payload_bytes} B"


def ways(arguments: argparse.Namespace) -> list[Way]:
    """Return all ways."""
    found = [
        Way(system=system, work=work, batch=batch, consumers=consumers, payload_bytes=size)
        for size in arguments.payload_bytes
        for consumers in arguments.consumers
        for work, batch in (("publish", 1), ("publish", BATCH), ("consume", 1), ("consume", BATCH), ("end to end", 1))
        for system in SYSTEMS
        # The original neither publishes nor takes several at once.
        if system is not Naive or batch == 1
    ]
    return [way for way in found if re.search(arguments.only, way.key)]


def messages_for(arguments: argparse.Namespace, consumers: int, *, least: int = LEAST_MESSAGES) -> int:
    """Return how many messages so many consumers get."""
    messages: int = min(arguments.messages, arguments.deliveries // consumers)
    return max(least, messages)


def measured(stand: Stand, way: Way, count: int) -> Sample:
    """Measure a way once.

    :raises QueuekeeperError: when a consumer did not get every message once and in order, or when something is left
        that should be gone.
    """
    stand.empty()
    watch = Stopwatch(stand.server_cpu_s)
    received = Received(way.consumers, count)

    async def work() -> int:
        async with way.system(stand.server.url, way.consumers) as system:
            await system.register()
            done = await WORKS[way.work](system, bodies(count, way.payload_bytes), received, watch, way.batch)
            left = await system.payloads()
            if left != (count if way.system is Naive else 0):
                raise QueuekeeperError(f"{way.key}: {left} messages are left of {count}")
            return done

    done = asyncio.run(work())
    received.check(way.key)
    return watch.sample(done)


# --- memory, and what calls cost -------------------------------------------------------------------------------


def bytes_per_message(
    stand: Stand, system: type[System], *, consumers: int, payload_bytes: int, count: int
) -> dict[str, float]:
    """Return the memory of all keys per message: stored, and left when all consumers have had it."""
    stand.empty()
    received = Received(consumers, count)

    def stored() -> int:
        return sum(int(stand.client.memory_usage(key, samples=0) or 0) for key in stand.client.scan_iter(count=1_000))

    async def work() -> dict[str, float]:
        async with system(stand.server.url, consumers) as one:
            await one.register()
            # Fields and keys that come with the first message are no part of the others.
            await one.publish(bodies(1, payload_bytes))
            await drain(one, Received(consumers, 1))
            before = stored()
            for part in parts(bodies(count, payload_bytes), BATCH):
                await one.publish(part)
            full = stored()
            await drain(one, received)
            return {"stored": round((full - before) / count, 1), "left": round((stored() - before) / count, 1)}

    found = asyncio.run(work())
    received.check(f"{system.label}, memory")
    return found


def call_costs(stand: Stand, arguments: argparse.Namespace) -> dict[str, bench.Blocking]:
    """Pipe the calls of each operation in, and ask the server how long they took."""
    found: dict[str, bench.Blocking] = {}
    new = NewMessage(body=bodies(1, arguments.payload_bytes[0])[0])

    def cost(label: str, operations: Sequence[Operation[Any]]) -> None:
        # Whatever one of them asks first, such as who is registered, is asked beforehand.
        commands = [command for operation in operations for command in calls_of(queues, operation)]
        with bench.watched(stand.client, stand.server_cpu_s, found, label):
            pipe_into(stand.server.url, packed(commands), len(commands), is_right=is_no_error)

    with closing(redis_client.connect(stand.server.url)) as connection:
        queues = FanoutQueues(connection)
        for consumers in arguments.consumers:
            stand.empty()
            ours = FanoutOperations()
            cost(
                f"register, {consumers} consumers",
                [ours.register(QUEUE, consumer=name(one)) for one in range(consumers)],
            )
            cost(f"publish, {consumers} consumers", [ours.publish(QUEUE, [new]) for _ in range(CALLS)])
        stand.empty()
        queues.register(QUEUE, consumer=name(0))
        # Messages count from 1, and all leases are of one token: what is claimed is known beforehand.
        ours = queues.operations = FanoutOperations(new_token=lambda: OWNER)
        cost("publish 100, 1 consumer", [ours.publish(QUEUE, [new] * BATCH) for _ in range(arguments.rows // BATCH)])
        own: dict[str, Any] = {"queue": QUEUE, "consumer": name(0)}
        held = own | {"token": OWNER}
        first = 1
        for size, calls in ((1, CALLS), (BATCH, arguments.rows // BATCH // 5)):
            pages = [range(first + size * call, first + size * (call + 1)) for call in range(calls)]
            first += size * calls
            cost(f"claim {size}", [ours.claim(**own, count=size) for _ in pages])
            cost(f"extend {size}", [ours.extend(**held, ids=page) for page in pages])
            cost(f"ack {size}", [ours.ack(**held, ids=page) for page in pages])
        claimed = [queues.claim(**own, count=BATCH).messages for _ in range(6)]
        *failed, returned = [[message.id for message in messages] for messages in claimed]
        cost("return_claimed 1", [ours.return_claimed(**held, ids=[one]) for one in reversed(returned)])
        cost(
            "nack, to a dead letter",
            [ours.nack(**held, message_id=one, max_attempts=1) for page in failed for one in page],
        )
        cost("list_dead 100", [ours.list_dead(**own, offset=BATCH * page) for page in range(len(failed))])
        cost("retry_dead 50", [ours.retry_dead(**own, ids=page[: BATCH // 2]) for page in failed])
        cost("purge_dead 50", [ours.purge_dead(**own, ids=page[BATCH // 2 :]) for page in failed])
        cost("peek 100", [ours.peek(**own) for _ in range(CALLS // 10)])
        cost("touch", [ours.touch(**own) for _ in range(CALLS)])
        cost("reap, nothing to do", [ours.reap(**own) for _ in range(CALLS)])
        cost("expire, nothing to do", [ours.expire(QUEUE) for _ in range(CALLS)])
    return found


def calls_of(queues: FanoutQueues, operation: Operation[Any]) -> list[Any]:
    """Return the first calls by which an operation does its work, without sending them."""
    step = next(operation)
    while step[0].script.name == "fanout/list_consumers":
        step = operation.send(queues.answer(step))
    operation.close()
    return [call.command for call in step]


# --- the result ------------------------------------------------------------------------------------------------


def summary(table: Sequence[Way], rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds, and ratios of ours to the others within them."""
    lines: dict[str, Any] = {}
    for way in table:
        samples = rounds[way.key]
        lines[way.key] = {
            "messages_per_s": median(list(map(speed, samples)), 0),
            "p50_ms": median([sample.p50_ms for sample in samples], 2),
            "p99_ms": median([sample.p99_ms for sample in samples], 2),
            "client_cpu_us": median(client_us(samples), 2),
            "server_cpu_us": median(list(map(server_us, samples)), 2),
        }
        if way.system is Fanout:
            naive, streams = way.beside(Naive, 1), way.beside(Streams, way.batch)
            lines[way.key] |= {
                "times_naive": ratio(rounds, way.key, naive, speed),
                "server_cpu_of_naive": ratio(rounds, way.key, naive, server_us),
                "times_streams": ratio(rounds, way.key, streams, speed),
                "server_cpu_of_streams": ratio(rounds, way.key, streams, server_us),
            }
    return lines


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    bench.show_ways(
        console, "Fan-out queues", result["summary"], [
            ("msgs/s", "messages_per_s", ",.0f"), ("p50 ms", "p50_ms", ".2f"), ("p99 ms", "p99_ms", ".2f"),
            ("client µs", "client_cpu_us", ".1f"), ("server µs", "server_cpu_us", ".1f"),
            ("× naive", "times_naive", ".2f"), ("CPU", "server_cpu_of_naive", ".2f"),
            ("× streams", "times_streams", ".2f"), ("CPU", "server_cpu_of_streams", ".2f"),
        ],
        "msgs/s, µs: per message published, and per message and consumer where it is consumed; ms: of a publish, of "
        "taking and finishing what was asked for at once, or end to end; ×, CPU: speed, and processor time of the "
        "server, beside the other system; the original's has one message at once in either line.",
    )  # fmt: skip
    stored = bench.table_of(
        "Bytes of memory per message, stored / left when all have it",
        *("payload", "consumers", *(system.label for system in SYSTEMS)),
        texts=0,
    )
    for size, by_consumers in result["bytes_per_message"].items():
        for consumers, by_system in by_consumers.items():
            stored.add_row(
                f"{size} B",
                consumers,
                *(f"{one['stored']:,.0f} / {max(one['left'], 0):,.0f}" for one in by_system.values()),
            )
    console.print(stored)
    calls = bench.table_of(
        "What a call costs the server",
        *("operation", "calls", "p10 µs", "p50 µs", "p99 µs", "longest µs", "CPU µs"),
    )
    for operation, one in result["calls"].items():
        columns = ("p10_ms", "p50_ms", "p99_ms", "longest_ms", "cpu_ms")
        calls.add_row(operation, str(one["calls"]), *(f"{1_000 * one[column]:,.0f}" for column in columns))
    console.print(calls)
    console.print(
        "p10 .. longest: by the server, its waiting for the processor included; CPU: reading and writing included. "
        "These calls are piped in one after the other, which spares the server what a call on its own costs besides."
    )
    console.print(f"Append-only file: {result['append_only']}. {GUARANTEES}")


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with bench.measured_redis(arguments) as (server, client):
        return measure(arguments, console, server, client)


def measure(
    arguments: argparse.Namespace, console: Console, server: RedisServer, client: redis.Redis
) -> dict[str, Any]:
    """Measure everything on a server that is there."""
    stand = Stand(
        server=server, client=client, clients=max(arguments.consumers), messages=arguments.messages, keys=0
    )  # fmt: skip
    for script in lua.names():
        client.script_load(lua.load(script).source)
    table = ways(arguments)
    rounds = bench.in_turns(
        {way.key: partial(measured, stand, way, messages_for(arguments, way.consumers)) for way in table},
        rounds=arguments.rounds,
        console=console,
        told=speed_and_cost,
    )
    return {
        "machine": bench.facts(None, client),
        "server": arguments.server,
        "append_only": arguments.append_only,
        "messages": {
            str(consumers): messages_for(arguments, consumers) for consumers in arguments.consumers
        },
        "rounds": bench.in_words(rounds),
        "summary": summary(table, rounds),
        "bytes_per_message": {
            str(size): {
                str(consumers): {
                    system.label: bytes_per_message(
                        stand, system, consumers=consumers, payload_bytes=size,
                        count=messages_for(arguments, consumers, least=LEAST_STORED),
                    )
                    for system in SYSTEMS
                }
                for consumers in arguments.consumers
            }
            for size in arguments.payload_bytes
        },
        "calls": {operation: asdict(one) for operation, one in call_costs(stand, arguments).items()},
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and write the result where that is asked for."""
    parser = bench.options(__doc__, rounds=3)
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 10, 100, 500])
    parser.add_argument("--messages", type=int, default=1_000, help="at most, for each way")
    parser.add_argument(
        "--deliveries", type=int, default=10_000, help=f"messages x consumers, if {LEAST_MESSAGES} messages are no more"
    )
    parser.add_argument("--payload-bytes", type=int, nargs="+", default=[256, 1_024])
    parser.add_argument("--rows", type=int, default=20_000, help="messages of the queue whose calls are measured")
    bench.add_server(parser)
    bench.add_append_only(parser)
    bench.add_only(parser)
    parser.add_argument(
        "--json", type=Path, nargs="?", const=bench.RESULTS,
        help="write the result, here, or by a name in benchmarks/results",
    )  # fmt: skip
    arguments = parser.parse_args(words)
    counts = [arguments.rounds, arguments.messages, arguments.deliveries]
    bench.refuse_less_than_one(parser, *counts, *arguments.consumers)
    if arguments.rows < LEAST_ROWS:
        parser.error(f"--rows must be {LEAST_ROWS} or more: so many are claimed")
    if min(arguments.payload_bytes) < _NUMBER_BYTES:
        parser.error(f"--payload-bytes must be {_NUMBER_BYTES} or more: each message has a number")
    durable = "" if arguments.append_only == "everysec" else f"-{arguments.append_only}"
    named = bench.RESULTS / f"fanout-{arguments.server}{durable}.json"
    path = named if arguments.json == bench.RESULTS else arguments.json
    return bench.finish(partial(run, arguments), show, path=path, width=140)


if __name__ == "__main__":
    sys.exit(main())
