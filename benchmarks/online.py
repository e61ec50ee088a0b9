"""Measure what a broker asks for while its clients are away: saving messages, beside what the server can do at most.

``python benchmarks/online.py --rounds 5 --seconds 0.6``

Everything happens on private servers and in one run, the ways taking turns, so that a busy machine slows all of them:

naive            redis-py, a thread per publisher, one call per message, with a script of TBMQ's design
writer           SessionWriter on the asyncio store, every publisher waiting for each of its messages
batch            the blocking store's save_messages with 100 messages: 100 clients with 1, or 10 clients with 10
overlap          the same batches and the asyncio store, two under way: one is made while the server has the other
limit            our script's very calls, made beforehand and piped into the server over one connection
packed           the same for the packed layout; "packed batch" is its blocking store
tbmq             the same for the script of TBMQ's design
redis-benchmark  a script with the same commands as ours under redis-benchmark, where that is installed
postgres         batch, on the tables of TBMQ 1.x

Then what a stored message takes, the longest time for which one call keeps the server from all others, and what a
reconnecting client with a long queue costs its process in memory. "ours" is our store in the layout of TBMQ.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import multiprocessing
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Protocol, Self, cast
from urllib.parse import urlsplit

import bench
import hiredis
import psutil
import redis
from rich.console import Console
from watch import empty_redis

from queuekeeper import lua, redis_async, redis_client
from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.keyspace import session_keys
from queuekeeper.postgres import Connection, connect
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.schema_migrations import migrate
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.packed_operations import PackedSessionOperations
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_operations import RedisSessionOperations
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.reports import PendingPage, SaveReport
from queuekeeper.sessions.writer import SessionWriter
from queuekeeper.sql_statements import statement

TOPIC = "sensors/temperature"
TTL_S = 604_800
LIMIT = 10_000
# What has no publishers of its own is compared with the naive client where that is fastest.
NAIVE_THREADS = 64
BATCH = 100
UNDER_WAY = 2
STORED_PER_SESSION = 100
LONG_QUEUE_BYTES = 1_024
PAGE = 500
_BLOCK_BYTES = 1024 * 1024
_MEBIBYTE = 1024 * 1024

# From the description of what TBMQ 2.x does, step by step: the ids, the scores, one SET and one ZADD per message.
TBMQ_DESIGN = """
local messages_key, last_packet_id_key = KEYS[1], KEYS[2]
local before = tonumber(redis.call('GET', last_packet_id_key)) or 0
local highest = redis.call('ZRANGE', messages_key, 0, 0, 'REV', 'WITHSCORES')[2]
local score = tonumber(highest) or before
local packet_id = before
for _, message in ipairs(cjson.decode(ARGV[2])) do
    packet_id = packet_id % 65535 + 1
    score = score + 1
    message.packetId = packet_id
    local key = messages_key .. '_' .. packet_id
    redis.call('SET', key, cjson.encode(message), 'EX', message.msgExpiryInterval or ARGV[3])
    redis.call('ZADD', messages_key, score, key)
end
redis.call('SET', last_packet_id_key, packet_id)
local over = redis.call('ZCARD', messages_key) - tonumber(ARGV[1])
if over > 0 then
    for _, key in ipairs(redis.call('ZRANGE', messages_key, 0, over - 1)) do
        redis.call('DEL', key)
        redis.call('ZREM', messages_key, key)
    end
end
return before
"""

# The same for a client that comes back: all its messages in one call, references to expired ones removed.
TBMQ_FETCH = """
local messages_key = KEYS[1]
local messages = {}
for _, key in ipairs(redis.call('ZRANGE', messages_key, 0, tonumber(ARGV[1]) - 1)) do
    if redis.call('EXISTS', key) == 1 then
        messages[#messages + 1] = redis.call('GET', key)
    else
        redis.call('ZREM', messages_key, key)
    end
end
return messages
"""

LAYOUTS = {"ours": Layout.TBMQ, "packed": Layout.PACKED}

# redis-benchmark can put one random number into a call, so the script makes the names and the packet id itself. It has
# the commands of save_messages for one message of a session that exists.
SAME_COMMANDS = """
local client = '{session-' .. ARGV[1] .. '}'
local messages_key, session_key = client .. '_messages', client .. '_session'
local fields = redis.call(
    'HMGET', session_key, 'last_serial', 'saved_last_packet_id', 'until_ms', 'earliest_expiry_ms'
)
redis.call('PEXPIRETIME', client .. '_last_packet_id')
local packet_id = string.format('%d', (fields[2] or 0) % 65535 + 1)
local serial = string.format('%d', (fields[1] or 0) + 1)
local key = messages_key .. '_' .. packet_id
redis.call('SET', client .. '_last_packet_id', packet_id, 'KEEPTTL', 'GET')
redis.call('SET', key, ARGV[3], 'NX', 'PXAT', ARGV[2])
redis.call('ZADD', messages_key, serial, key)
redis.call('ZCARD', messages_key)
redis.call('HSET', session_key, 'last_serial', serial, 'saved_last_packet_id', packet_id)
return serial .. ':1:'
"""


# --- what a client process does --------------------------------------------------------------------------------


class Work(NamedTuple):
    """What one client process is to do.

    :param way: key of ``WAYS_OF_WORKING``.
    :param publishers: tasks or threads.
    :param per_client: messages for each client of a batch.
    :param sessions: numbers of the sessions to save to.
    :param profiled: note in which modules asyncio clients spend their time, which makes them a little slower.
    """

    way: str
    url: str
    publishers: int
    payload_bytes: int
    per_client: int
    sessions: range
    seconds: float
    profiled: bool = False


class Part(NamedTuple):
    """What one client process has done.

    :param calls_ms: how long each call took.
    :param modules: samples of the process, by the module that it was in.
    """

    messages: int
    seconds: float
    cpu_s: float
    calls_ms: array[float]
    grown_mib: float = 0.0
    modules: Counter[str] | None = None


class Store(Protocol):
    """As much of a blocking store as is measured."""

    def save_messages(self, saves: Sequence[SessionSave], /) -> list[SaveReport]:
        """Save."""


Meet = Callable[[], None]
"""Waits for the benchmark: when everything is prepared, and again when the work is done and nothing closed yet."""

Publish = Callable[[Iterator[int]], Awaitable[None]]
"""Saves to the next sessions, of which it is given the numbers."""


def name(number: int) -> str:
    """Return the client id of a session."""
    return f"device-{number:06d}"


def message(payload: bytes, *, life_s: int | None = None) -> NewMessage:
    """Return a message as a broker would have it now."""
    return NewMessage(topic=TOPIC, payload=payload, qos=1, time_ms=system_clock(), expiry_interval_s=life_s)


def save(number: int, new: NewMessage, count: int = 1) -> SessionSave:
    """Return a batch for one session."""
    return SessionSave(client_id=name(number), messages=(new,) * count)


def batch(payload: bytes, numbers: Iterator[int], per_client: int) -> list[SessionSave]:
    """Return a batch for the next sessions."""
    new = tuple(message(payload) for _ in range(per_client))
    return [SessionSave(client_id=name(number), messages=new) for number in islice(numbers, BATCH // per_client)]


def raise_failures(reports: Sequence[SaveReport]) -> None:
    """Stop at the first save that has failed: it must not count as work."""
    for report in reports:
        if report.error is not None:
            raise report.error


def slices(sessions: range) -> Iterator[range]:
    """Cut sessions so that each part fits one call."""
    return (sessions[start : start + 500] for start in range(0, len(sessions), 500))


def tbmq_arguments(client_id: str, payload: bytes, count: int) -> tuple[list[str], list[str | int]]:
    """Return keys and arguments for the script of TBMQ's design, made as one would make them."""
    keys = session_keys(client_id)
    fields = {
        "clientId": client_id,
        "topicName": TOPIC,
        "time": system_clock(),
        "qos": 1,
        "packetId": 0,
        "packetType": "PUBLISH",
        "payload": base64.b64encode(payload).decode(),
        "retained": False,
    }
    return [keys.messages, keys.last_packet_id], [LIMIT, json.dumps([fields] * count), TTL_S]


def work_naively(work: Work, meet: Meet) -> Part:
    """Save with threads that share a redis-py client, a round trip for each message."""
    payload = bytes(work.payload_bytes)
    calls_ms = array("d")
    with redis.Redis.from_url(work.url, max_connections=work.publishers) as client, ExitStack() as stack:
        script = client.register_script(TBMQ_DESIGN)
        with client.pipeline(transaction=False) as pipeline:
            for number in work.sessions:
                keys, arguments = tbmq_arguments(name(number), payload, 1)
                script(keys, arguments, client=pipeline)
            pipeline.execute()
        # A connection for each thread, opened before anything is measured.
        pool = client.connection_pool
        for connection in [pool.get_connection() for _ in range(work.publishers)]:
            pool.release(connection)
        begun = threading.Event()
        deadline = 0.0

        def publish(own: range) -> None:
            begun.wait()
            for number in cycle(own):
                called = time.perf_counter()
                if called > deadline:
                    return
                script(*tbmq_arguments(name(number), payload, 1))
                calls_ms.append((time.perf_counter() - called) * 1e3)

        threads = [threading.Thread(target=publish, args=(own,)) for own in shares(work)]
        for thread in threads:
            thread.start()
        stack.callback(begun.set)
        meet()
        started, used_s = time.perf_counter(), time.process_time()
        deadline = started + work.seconds
        begun.set()
        for thread in threads:
            thread.join()
        done = Part(len(calls_ms), time.perf_counter() - started, time.process_time() - used_s, calls_ms)
        meet()
        return done


def shares(work: Work) -> list[range]:
    """Return the sessions of each publisher; more publishers than sessions share one."""
    return [work.sessions[first % len(work.sessions) :: work.publishers] for first in range(work.publishers)]


def work_with_writer(work: Work, meet: Meet) -> Part:
    """Save with tasks that share a writer, each waiting for its message."""
    return asyncio.run(work_with_tasks(work, meet, through_a_writer))


def work_with_overlap(work: Work, meet: Meet) -> Part:
    """Save batches with the asyncio store, so many at once as there are publishers."""
    done = asyncio.run(work_with_tasks(work, meet, as_batches))
    return done._replace(messages=BATCH * done.messages)


@asynccontextmanager
async def through_a_writer(store: AsyncRedisSessionStore, work: Work) -> AsyncIterator[Publish]:
    """Save a message."""
    payload = bytes(work.payload_bytes)
    async with SessionWriter(store) as writer:

        async def publish(numbers: Iterator[int]) -> None:
            await writer.save(name(next(numbers)), message(payload))

        yield publish


@asynccontextmanager
async def as_batches(store: AsyncRedisSessionStore, work: Work) -> AsyncIterator[Publish]:
    """Save a batch."""
    payload = bytes(work.payload_bytes)

    async def publish(numbers: Iterator[int]) -> None:
        raise_failures(await store.save_messages(batch(payload, numbers, work.per_client)))

    yield publish


async def work_with_tasks(
    work: Work,
    meet: Meet,
    publishing: Callable[[AsyncRedisSessionStore, Work], AbstractAsyncContextManager[Publish]],
    connecting: Callable[[str], AbstractAsyncContextManager[AsyncScriptCaller]] = redis_async.connect,
) -> Part:
    """Let tasks publish until the time is over."""
    calls_ms = array("d")
    async with connecting(work.url) as caller:
        store = AsyncRedisSessionStore(caller)
        for part in slices(work.sessions):
            first = [save(number, message(bytes(work.payload_bytes))) for number in part]
            raise_failures(await store.save_messages(first))
        async with publishing(store, work) as publish:

            async def keep_publishing(own: range) -> None:
                numbers = cycle(own)
                while (called := time.perf_counter()) <= deadline:
                    await publish(numbers)
                    calls_ms.append((time.perf_counter() - called) * 1e3)

            meet()
            started, used_s = time.perf_counter(), time.process_time()
            deadline = started + work.seconds
            modules = Counter[str]()
            with bench.sampled(modules) if work.profiled else nullcontext():
                await asyncio.gather(*map(keep_publishing, shares(work)))
            spent_s, used_s = time.perf_counter() - started, time.process_time() - used_s
            done = Part(len(calls_ms), spent_s, used_s, calls_ms, modules=modules)
            meet()
            return done


def work_in_batches(work: Work, meet: Meet, layout: Layout = Layout.TBMQ) -> Part:
    """Save with the blocking store."""
    with closing(redis_client.connect(work.url)) as client:
        return _work_in_batches(RedisSessionStore(client, layout=layout), work, meet)


def work_in_postgres(work: Work, meet: Meet) -> Part:
    """Save with the store of PostgreSQL."""
    with connect(work.url, autocommit=True) as connection:
        return _work_in_batches(PostgresSessionStore(connection), work, meet)


def _work_in_batches(store: Store, work: Work, meet: Meet) -> Part:
    payload = bytes(work.payload_bytes)
    calls_ms = array("d")
    for part in slices(work.sessions):
        raise_failures(store.save_messages([save(number, message(payload)) for number in part]))
    numbers = cycle(work.sessions)
    meet()
    started, used_s = time.perf_counter(), time.process_time()
    while (called := time.perf_counter()) < started + work.seconds:
        raise_failures(store.save_messages(batch(payload, numbers, work.per_client)))
        calls_ms.append((time.perf_counter() - called) * 1e3)
    done = Part(BATCH * len(calls_ms), time.perf_counter() - started, time.process_time() - used_s, calls_ms)
    meet()
    return done


def work_through_a_queue(work: Work, meet: Meet, layout: Layout) -> Part:
    """Fetch all messages of a session page by page, and watch how much the process grows."""
    me = psutil.Process()
    calls_ms = array("d")
    client_id = name(work.sessions[0])
    with closing(redis_client.connect(work.url)) as client:
        store = RedisSessionStore(client, layout=layout)
        # What the first fetch of any size imports and sets up is not the page's.
        store.fetch_pending(client_id, limit=1)
        meet()
        before = largest = me.memory_info().rss
        started, used_s = time.perf_counter(), time.process_time()
        messages = 0
        after_serial, more = -1, True
        backlog_serial: int | None = None
        while more:
            called = time.perf_counter()
            page: PendingPage = store.fetch_pending(
                client_id, after_serial=after_serial, backlog_serial=backlog_serial, limit=work.per_client
            )
            calls_ms.append((time.perf_counter() - called) * 1e3)
            messages += len(page.messages)
            largest = max(largest, me.memory_info().rss)
            after_serial, backlog_serial, more = page.after_serial, page.backlog_serial, page.more
        seconds = time.perf_counter() - started
    meet()
    return Part(messages, seconds, time.process_time() - used_s, calls_ms, (largest - before) / _MEBIBYTE)


WAYS_OF_WORKING: dict[str, Callable[[Work, Meet], Part]] = {
    "naive": work_naively,
    "writer": work_with_writer,
    "batch": work_in_batches,
    "packed batch": partial(work_in_batches, layout=Layout.PACKED),
    "overlap": work_with_overlap,
    "postgres": work_in_postgres,
    **{f"fetch {name}": partial(work_through_a_queue, layout=layout) for name, layout in LAYOUTS.items()},
}


def serve(pipe: Pipe) -> None:
    """Do what comes through a pipe until it is closed."""

    def meet() -> None:
        pipe.send("here")
        pipe.recv()

    with suppress(EOFError, KeyboardInterrupt):
        while True:
            work: Work = pipe.recv()
            try:
                done: Part | str = WAYS_OF_WORKING[work.way](work, meet)
            except Exception as error:
                done = f"{type(error).__name__}: {error}"
            pipe.send(done)


class Client:
    """A process that works for the benchmark."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def tell(self, word: Work | str) -> None:
        """Send work, or the word to begin."""
        self._pipe.send(word)

    def hear(self) -> Any:
        """Return what the process says next.

        :raises QueuekeeperError: when its work has failed.
        """
        said = self._pipe.recv()
        if isinstance(said, str) and said != "here":
            raise QueuekeeperError(f"a client process failed: {said}")
        return said


# --- the stand -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way, measured once.

    :param client_cpu_s: processor time of the client processes, without what they prepared.
    :param server_cpu_s: processor time of the server process.
    :param p50_ms: of a call: one message, or a batch; none where calls are not timed one by one.
    :param modules: samples of the client processes, by module, where they were asked for.
    """

    messages: int
    seconds: float
    client_cpu_s: float | None
    server_cpu_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    modules: Mapping[str, int] = field(default_factory=dict)

    @property
    def messages_per_s(self) -> float:
        """Speed by the clock on the wall."""
        return self.messages / self.seconds


@dataclass(kw_only=True)
class Stand:
    """Servers, client processes and what is made beforehand.

    :param postgres_url: empty where PostgreSQL is not measured.
    """

    redis: RedisServer
    postgres: PostgresServer
    postgres_url: str
    clients: list[Client]
    sessions: int
    seconds: float
    messages: int
    prepared: dict[tuple[str, int, int], tuple[bytes, int, bytes, int]]
    profiled: bool = False

    def empty(self) -> None:
        """Give every measurement the same empty servers."""
        with self.redis.client(timeout_s=600) as client:
            empty_redis(client)
        if not self.postgres_url:
            return
        with connect(self.postgres_url, autocommit=True) as connection:
            connection.execute("TRUNCATE device_session_ctx, device_publish_msg, queuekeeper.session_states CASCADE")

    def server_cpu_s(self, way: str) -> float:
        """Return the processor time that a server has used."""
        if way == "postgres":
            assert self.postgres.pid is not None
            return family_cpu_s(self.postgres.pid)
        assert self.redis.pid is not None
        return process_cpu_s(self.redis.pid)

    def measured(
        self, way: str, *, publishers: int = 1, payload_bytes: int, per_client: int = 1, processes: int = 1
    ) -> Sample:
        """Let client processes work at the same time, each with sessions of its own."""
        self.empty()
        url = self.postgres_url if way == "postgres" else self.redis.url
        workers = self.clients[:processes]
        for index, worker in enumerate(workers):
            share = self.sessions // processes
            sessions = range(index * share, (index + 1) * share)
            each = publishers // processes or 1
            worker.tell(Work(way, url, each, payload_bytes, per_client, sessions, self.seconds, self.profiled))
        for worker in workers:
            worker.hear()
        before_s = self.server_cpu_s(way)
        for worker in workers:
            worker.tell("begin")
        for worker in workers:
            worker.hear()
        used_s = self.server_cpu_s(way) - before_s
        for worker in workers:
            worker.tell("end")
        parts: list[Part] = [worker.hear() for worker in workers]
        calls_ms = sorted(call for part in parts for call in part.calls_ms)
        return Sample(
            messages=sum(part.messages for part in parts),
            seconds=max(part.seconds for part in parts),
            client_cpu_s=sum(part.cpu_s for part in parts),
            server_cpu_s=used_s,
            p50_ms=quantile(calls_ms, 0.50),
            p99_ms=quantile(calls_ms, 0.99),
            modules=sum((part.modules or Counter() for part in parts), Counter[str]()),
        )

    def piped(self, way: str, *, payload_bytes: int, per_client: int) -> Sample:
        """Pipe calls that were made beforehand."""
        self.empty()
        key = way, payload_bytes, per_client
        if key not in self.prepared:
            self.prepared[key] = made_beforehand(
                way, sessions=self.sessions, messages=self.messages, payload_bytes=payload_bytes, per_client=per_client
            )
        known, known_calls, calls, count = self.prepared[key]
        with self.redis.client() as client:
            for source in SAVING.values():
                client.script_load(source)
        pipe_into(self.redis.url, known, known_calls)
        before_s, started = self.server_cpu_s(way), time.perf_counter()
        pipe_into(self.redis.url, calls, count)
        seconds = time.perf_counter() - started
        return Sample(
            messages=count * per_client,
            seconds=seconds,
            client_cpu_s=None,
            server_cpu_s=self.server_cpu_s(way) - before_s,
        )

    def benchmarked(self, *, binary: str, payload_bytes: int) -> Sample:
        """Run redis-benchmark with 50 connections and 16 calls under way on each."""
        self.empty()
        address = urlsplit(self.redis.url)
        word = token_hex(16)
        with self.redis.client() as client:
            sha1 = str(client.script_load(SAME_COMMANDS))
            # Its password is seen by every account of the machine, so it may do nothing but this.
            commands = [f"+{verb}" for verb in ("evalsha", "hmget", "hset", "pexpiretime", "set", "zadd", "zcard")]
            client.acl_setuser("benchmark", enabled=True, passwords=[f"+{word}"], commands=commands, keys=["*"])
        [call] = save_calls(RedisSessionOperations(), [save(0, message(bytes(payload_bytes)))])
        expires_at_ms, record = call.args[-2:]
        command = [
            *(binary, "-h", str(address.hostname), "-p", str(address.port), "--user", "benchmark", "-a", word),
            *("-c", "50", "-P", "16", "-r", str(self.sessions), "--csv"),
        ]
        words = ["EVALSHA", sha1, "0", "__rand_int__", str(expires_at_ms), cast(bytes, record).decode()]
        run_redis_benchmark([*command, "-n", str(self.sessions * 3), *words])
        before_s, started = self.server_cpu_s("redis-benchmark"), time.perf_counter()
        p50_ms, p99_ms = run_redis_benchmark([*command, "-n", str(self.messages), *words])
        seconds = time.perf_counter() - started
        used_s = self.server_cpu_s("redis-benchmark") - before_s
        return Sample(
            messages=self.messages, seconds=seconds, client_cpu_s=None, server_cpu_s=used_s,
            p50_ms=p50_ms, p99_ms=p99_ms,
        )  # fmt: skip


def run_redis_benchmark(command: list[str]) -> tuple[float, float]:
    """Return the median and the 99th percentile of a call in milliseconds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # The name of the test is the call itself, whose own quotes it does not escape.
    rows = [line.rsplit(",", 7)[1:] for line in done.stdout.splitlines() if line.startswith('"')]
    if done.returncode or len(rows) != 2:
        raise QueuekeeperError(f"redis-benchmark failed: {done.stdout}{done.stderr}")
    found = dict(zip(*rows, strict=True))
    return float(found['"p50_latency_ms"'].strip('"')), float(found['"p99_latency_ms"'].strip('"'))


def process_cpu_s(pid: int) -> float:
    """Return the processor time of all threads of a process, to the nanosecond where the kernel tells it."""
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def family_cpu_s(pid: int) -> float:
    """Return the processor time of a process and all that it has started, those included that have ended."""
    leader = psutil.Process(pid)
    times = leader.cpu_times()
    used_s = times.user + times.system + times.children_user + times.children_system
    for child in leader.children(recursive=True):
        with suppress(psutil.Error):
            own = child.cpu_times()
            used_s += own.user + own.system
    return float(used_s)


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """Return a quantile of what is in order."""
    return round(ordered[int(share * (len(ordered) - 1))], 3) if ordered else None


# --- calls made beforehand -------------------------------------------------------------------------------------


SAVING = {
    "limit": lua.load("sessions/save_messages").source,
    "packed": lua.load("packed/save_messages").source,
    "tbmq": TBMQ_DESIGN,
}
"""Scripts that save, by the ways that pipe them."""


def save_calls(
    operations: RedisSessionOperations | PackedSessionOperations, saves: Sequence[SessionSave]
) -> list[lua.Call]:
    """Return the calls that a store would make, answered as an empty server would."""
    operation = operations.save_messages(saves)
    calls: list[lua.Call] = []
    step: list[lua.Call] = next(operation)
    while True:
        replies: list[object] = []
        for call in step:
            if call.script.name == "sessions/read_session":
                replies.append([b"", 0, b"", system_clock()])
            else:
                calls.append(call)
                replies.append(saved_reply(call))
        try:
            step = operation.send(replies)
        except StopIteration:
            return calls


def saved_reply(call: lua.Call) -> bytes | int:
    """Return the reply to a save, with the packet ids that the caller expects."""
    if call.script.name != "packed/save_messages":
        return b"1:1:"
    *_, expected, _ = struct.unpack(">7d", cast(bytes, call.args[0]))
    return 0 if expected else b"0:1:1:0:0:"


def packed(calls: Sequence[tuple[Any, ...]]) -> bytes:
    """Return commands as they are written."""
    return b"".join(hiredis.pack_command(call) for call in calls)


def made_beforehand(
    way: str, *, sessions: int, messages: int, payload_bytes: int, per_client: int
) -> tuple[bytes, int, bytes, int]:
    """Return packed calls that put a message into each session and how many, then the same for what is measured."""
    payload = bytes(payload_bytes)
    count = max(1, messages // per_client)
    numbers = [*range(sessions), *islice(cycle(range(sessions)), count)]
    sizes = [1] * sessions + [per_client] * count
    if way == "tbmq":
        sha1 = hashlib.sha1(TBMQ_DESIGN.encode(), usedforsecurity=False).hexdigest()
        commands: list[tuple[Any, ...]] = []
        for number, size in zip(numbers, sizes, strict=True):
            keys, arguments = tbmq_arguments(name(number), payload, size)
            commands.append(("EVALSHA", sha1, 2, *keys, *arguments))
    else:
        operations = PackedSessionOperations() if way == "packed" else RedisSessionOperations()
        commands = [
            call.command
            for number, size in zip(numbers, sizes, strict=True)
            for call in save_calls(operations, [save(number, message(payload), size)])
        ]
    return packed(commands[:sessions]), sessions, packed(commands[sessions:]), count


def is_saved(reply: object) -> bool:
    """Tell whether a reply is that of a save that was stored; other replies of scripts that save are lists."""
    return type(reply) in (int, bytes)


def pipe_into(url: str, commands: bytes, count: int, *, is_right: Callable[[object], bool] = is_saved) -> None:
    """Write commands without waiting, and return when all are answered.

    :raises QueuekeeperError: when a reply is not right.
    """
    address = urlsplit(url)
    reader = hiredis.Reader()
    with socket.create_connection((address.hostname, address.port)) as connection:
        login = packed([("AUTH", address.password)])
        sender = threading.Thread(target=connection.sendall, args=(login + commands,))
        sender.start()
        answered = -1
        while answered < count:
            block = connection.recv(_BLOCK_BYTES)
            if not block:
                raise QueuekeeperError("the server has closed the connection")
            reader.feed(block)
            while (reply := reader.gets()) is not False:
                if answered >= 0 and not is_right(reply):
                    raise QueuekeeperError(f"a call that was made beforehand was not carried out: {reply}")
                answered += 1
        sender.join()


# --- bytes, blocking and long queues ---------------------------------------------------------------------------


def bytes_per_message(stand: Stand, payload_bytes: int) -> dict[str, float]:
    """Return what a message takes in each store, a hundred per session: memory in Redis, files in PostgreSQL."""
    payload = bytes(payload_bytes)
    sessions = range(max(1, stand.messages // STORED_PER_SESSION))
    count = len(sessions) * STORED_PER_SESSION
    saves = [save(number, message(payload), STORED_PER_SESSION) for number in sessions]
    found: dict[str, float] = {}
    with stand.redis.client() as client, closing(redis_client.connect(stand.redis.url)) as ours:
        # The script itself is no part of a message.
        script = client.register_script(TBMQ_DESIGN)
        for way in (*LAYOUTS, "tbmq"):
            stand.empty()
            before = used_memory(client)
            if way in LAYOUTS:
                raise_failures(RedisSessionStore(ours, layout=LAYOUTS[way]).save_messages(saves))
            else:
                for number in sessions:
                    script(*tbmq_arguments(name(number), payload, STORED_PER_SESSION))
            found[way] = round((used_memory(client) - before) / count, 1)
    with connect(stand.postgres_url, autocommit=True) as connection:
        before = table_bytes(connection)
        raise_failures(PostgresSessionStore(connection).save_messages(saves))
        found["postgres"] = round((table_bytes(connection) - before) / count, 1)
    return found


def table_bytes(connection: Connection) -> int:
    """Return the size of TBMQ's tables with their indexes."""
    rows = connection.execute(
        "SELECT pg_total_relation_size('device_publish_msg') + pg_total_relation_size('device_session_ctx')"
    )
    return int(rows.fetchall()[0][0])


def used_memory(client: redis.Redis) -> int:
    """Return the memory that a server has in use."""
    memory: Any = client.info("memory")
    return int(memory["used_memory"])


def blocking_fetch_of_tbmq(stand: Stand, messages: int) -> dict[str, bench.Blocking]:
    """Fetch a long session as TBMQ does, in one call."""
    stand.empty()
    found: dict[str, bench.Blocking] = {}
    keys, _ = tbmq_arguments(name(0), b"", 1)
    with stand.redis.client() as client:
        save_all, fetch_all = client.register_script(TBMQ_DESIGN), client.register_script(TBMQ_FETCH)
        for start in range(0, messages, 250):
            count = min(250, messages - start)
            save_all(*tbmq_arguments(name(0), bytes(LONG_QUEUE_BYTES), count))
        # A call of a script that has to be loaded first fails at once.
        client.script_load(TBMQ_FETCH)
        with bench.watched(client, partial(stand.server_cpu_s, "blocking"), found, "fetch"):
            fetched_all: Any = fetch_all(keys[:1], [messages])
    if len(fetched_all) != messages:
        raise QueuekeeperError(f"{len(fetched_all)} of {messages} messages were fetched")
    return found


def blocking(stand: Stand, messages: int, layout: Layout) -> dict[str, bench.Blocking]:
    """Do on a long session what may take the server long, and read the server's statistics of how long calls took."""
    stand.empty()
    found: dict[str, bench.Blocking] = {}
    payload = bytes(LONG_QUEUE_BYTES)
    half = StoreRules(limit=max(1, messages // 2))
    with stand.redis.client() as client, closing(redis_client.connect(stand.redis.url)) as connection:
        store = RedisSessionStore(connection, layout=layout)
        smaller = RedisSessionStore(connection, rules=half, layout=layout)

        def filled(number: int, *, life_s: int | None = None) -> None:
            for start in range(0, messages, 2_500):
                new = (message(payload, life_s=life_s),) * min(2_500, messages - start)
                raise_failures(store.save_messages([SessionSave(client_id=name(number), messages=new)]))

        watched = partial(bench.watched, client, partial(stand.server_cpu_s, "blocking"), found)
        # A call of a script that has to be loaded first fails at once, and would count as a quick one.
        for script in lua.names():
            client.script_load(lua.load(script).source)
        with watched("save"):
            filled(0)
        pages: list[PendingPage] = []
        with watched("fetch", beside="hmget" if layout is Layout.PACKED else None):
            while not pages or pages[-1].more:
                after = pages[-1].after_serial if pages else -1
                pages.append(store.fetch_pending(name(0), after_serial=after, limit=PAGE, mark_delivered=True))
        with watched("ack"):
            store.ack(name(0), [Ack(packet_id=one.packet_id, serial=one.serial) for one in pages[0].messages])
        filled(1)
        with watched("trim"):
            raise_failures(smaller.save_messages([save(1, message(payload))]))
        filled(2)
        with watched("purge"):
            store.purge_session(name(2))
        life_s = 2 + messages // 2_500
        filled(3, life_s=life_s)
        time.sleep(life_s + 0.1)
        with watched("sweep"):
            raise_failures(smaller.save_messages([save(3, message(payload))]))
    return found


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """A client process that reads a long queue.

    :param way: ``ours`` or ``packed``.
    :param grown_mib: by how much its resident set was larger at most than before the first page.
    """

    way: str
    page: int
    messages: int
    messages_per_s: int
    page_p50_ms: float | None
    grown_mib: float


def fetched(stand: Stand, messages: int, page: int, way: str) -> Fetch:
    """Fetch a long queue in a fresh process, whose memory no other work has stretched."""
    stand.empty()
    with closing(redis_client.connect(stand.redis.url)) as connection:
        store = RedisSessionStore(connection, layout=LAYOUTS[way])
        for start in range(0, messages, 2_500):
            new = (message(bytes(LONG_QUEUE_BYTES)),) * min(2_500, messages - start)
            raise_failures(store.save_messages([SessionSave(client_id=name(0), messages=new)]))
    with Client() as client:
        client.tell(Work(f"fetch {way}", stand.redis.url, 1, LONG_QUEUE_BYTES, page, range(1), 0.0))
        client.hear()
        client.tell("begin")
        client.hear()
        client.tell("end")
        part: Part = client.hear()
    if part.messages != messages:
        raise QueuekeeperError(f"{part.messages} of {messages} messages were fetched")
    return Fetch(
        way=way,
        page=page,
        messages=messages,
        messages_per_s=round(part.messages / part.seconds),
        page_p50_ms=quantile(sorted(part.calls_ms), 0.5),
        grown_mib=round(part.grown_mib, 1),
    )


# --- the ways --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Way:
    """One line of the table.

    :param per_client: messages of a script call.
    :param processes: that work as clients; 0 where the calls were made beforehand.
    :param publishers: tasks or threads that each wait for their message; it is compared with as many naive ones.
    """

    label: str
    payload_bytes: int
    per_client: int
    processes: int
    publishers: int
    measure: Callable[[Stand], Sample]

    @property
    def key(self) -> str:
        """Name in the result."""
        return f"{self.label}, {self.payload_bytes} B"


def naive_key(payload_bytes: int, publishers: int) -> str:
    """Return the key of the naive client with so many publishers."""
    return f"naive, {publishers} publishers, {payload_bytes} B"


def limit_key(payload_bytes: int, per_client: int) -> str:
    """Return the key of the way that is the server's limit."""
    return f"limit x {per_client}, {payload_bytes} B"


def ways(arguments: argparse.Namespace) -> list[Way]:
    """Return all ways; what does not depend on the payload much is measured with one size only."""
    found: list[Way] = []
    sizes: list[int] = arguments.payload_bytes
    middle = sizes[len(sizes) // 2]

    def add(
        label: str,
        measure: Callable[[Stand], Sample],
        *,
        size: int,
        per_client: int = 1,
        processes: int = 1,
        publishers: int | None = None,
    ) -> None:
        found.append(
            Way(
                label=label, payload_bytes=size, per_client=per_client, processes=processes,
                publishers=publishers or NAIVE_THREADS, measure=measure,
            )
        )  # fmt: skip

    def clients(
        label: str,
        way: str,
        size: int,
        *,
        publishers: int | None = None,
        per_client: int = 1,
        processes: int = 1,
        under_way: int = 1,
    ) -> None:
        def measure(stand: Stand) -> Sample:
            return stand.measured(
                way, publishers=publishers or processes * under_way, payload_bytes=size, per_client=per_client,
                processes=processes,
            )  # fmt: skip

        add(label, measure, size=size, per_client=per_client, processes=processes, publishers=publishers)

    def calls(way: str, *, size: int, per_client: int) -> None:
        def measure(stand: Stand) -> Sample:
            return stand.piped(way, payload_bytes=size, per_client=per_client)

        add(f"{way} x {per_client}", measure, size=size, per_client=per_client, processes=0)

    binary = shutil.which("redis-benchmark") or shutil.which("valkey-benchmark")
    for size in sizes:
        for publishers in sorted({NAIVE_THREADS, *arguments.publishers}):
            clients(f"naive, {publishers} publishers", "naive", size, publishers=publishers)
        for publishers in arguments.publishers:
            for processes in (1, 2)[: min(2, publishers)]:
                label = f"writer, {publishers} publishers, {processes}p"
                clients(label, "writer", size, publishers=publishers, processes=processes)
        if size != middle:
            calls("limit", size=size, per_client=1)
            continue
        # What is compared comes close together, as the machine's speed may differ from minute to minute.
        for per_client in (1, 10, 100):
            for way in SAVING:
                calls(way, size=size, per_client=per_client)
            if per_client == BATCH:
                continue
            for processes in (1, 2):
                for way, under_way in (("batch", 1), ("overlap", UNDER_WAY)):
                    label = f"{way}, {BATCH // per_client} x {per_client}, {processes}p"
                    clients(label, way, size, per_client=per_client, processes=processes, under_way=under_way)
            clients(
                f"packed batch, {BATCH // per_client} x {per_client}, 1p", "packed batch", size, per_client=per_client
            )
        if binary is not None:
            add(
                Path(binary).name, partial(Stand.benchmarked, binary=binary, payload_bytes=size), size=size, processes=0
            )
        for per_client in (1, 10):
            clients(f"postgres, {BATCH // per_client} x {per_client}", "postgres", size, per_client=per_client)
    return [way for way in found if re.search(arguments.only, way.key)]


# --- the result ------------------------------------------------------------------------------------------------


def ratio(rounds: dict[str, list[Sample]], above: str, below: str, of: Callable[[Sample], float]) -> float | None:
    """Return the median over the rounds of a ratio within each: what slows a round slows both sides."""
    if above not in rounds or below not in rounds:
        return None
    pairs = zip(rounds[above], rounds[below], strict=True)
    return round(statistics.median(of(one) / of(other) for one, other in pairs), 3)


def speed(sample: Sample) -> float:
    """Return messages per second."""
    return sample.messages_per_s


def server_us(sample: Sample) -> float:
    """Return the server's processor time per message."""
    return 1e6 * sample.server_cpu_s / sample.messages


def client_us(samples: Sequence[Sample]) -> list[float | None]:
    """Return the clients' processor time per message in each round; none where it was not measured."""
    return [None if one.client_cpu_s is None else 1e6 * one.client_cpu_s / one.messages for one in samples]


def median(values: Sequence[float | None], digits: int) -> float | None:
    """Return the median of what was measured."""
    present = [value for value in values if value is not None]
    return round(statistics.median(present), digits) if present else None


def summary(table: Sequence[Way], rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds, and ratios within them."""
    lines: dict[str, Any] = {}
    for way in table:
        samples = rounds[way.key]
        lines[way.key] = {
            "messages_per_s": round(statistics.median(map(speed, samples))),
            "p50_ms": median([sample.p50_ms for sample in samples], 2),
            "p99_ms": median([sample.p99_ms for sample in samples], 2),
            "client_cpu_us": median(client_us(samples), 2),
            "server_cpu_us": round(statistics.median(map(server_us, samples)), 2),
            "times_naive": ratio(rounds, way.key, naive_key(way.payload_bytes, way.publishers), speed),
            "of_limit": ratio(rounds, way.key, limit_key(way.payload_bytes, way.per_client), speed),
        }
    server = {
        name: {
            f"{way.per_client} per call": ratio(
                rounds, f"{piped} x {way.per_client}, {way.payload_bytes} B",
                f"tbmq x {way.per_client}, {way.payload_bytes} B", server_us,
            )
            for way in table
            if way.label.startswith("tbmq")
        }
        for name, piped in (("ours", "limit"), ("packed", "packed"))
    }  # fmt: skip
    profile = {
        way.key: shares_of(sum((Counter(sample.modules) for sample in rounds[way.key]), Counter())) for way in table
    }
    return {
        "ways": lines,
        "server_cpu_to_tbmq": server,
        "client_time_by_module": {way: found for way, found in profile.items() if found},
    }


def shares_of(samples: Counter[str]) -> dict[str, float]:
    """Return the share of each module's samples, the largest first; what has less than 1 % is one line."""
    total = samples.total()
    found = {name: count for name, count in samples.most_common() if count >= total / 100}
    rest = total - sum(found.values())
    return {name: round(count / total, 3) for name, count in {**found, "all others": rest}.items() if count}


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    bench.show_ways(
        console, "Saving messages", result["summary"]["ways"], [
            ("msgs/s", "messages_per_s", ","), ("× naive", "times_naive", ".1f"), ("of limit", "of_limit", ".0%"),
            ("p50 ms", "p50_ms", ".2f"), ("p99 ms", "p99_ms", ".2f"),
            ("client µs", "client_cpu_us", ".1f"), ("server µs", "server_cpu_us", ".1f"),
        ],
        "1p, 2p: client processes; µs: processor time per message, of all clients and of the server; of limit: "
        "share of the limit with as many messages per call.",
    )  # fmt: skip
    for way, shares in result["summary"]["server_cpu_to_tbmq"].items():
        for calls, share in shares.items():
            told = bench.shown(share, ".2f")
            console.print(f"server's processor time of {way} to that of TBMQ's design, {calls}: {told}")
    for way, modules in result["summary"]["client_time_by_module"].items():
        spent = bench.table_of(f"Clients' processor time: {way}", "module", "share")
        for name, share in modules.items():
            spent.add_row(name, f"{share:.1%}")
        console.print(spent)
    stored = bench.table_of(
        "Bytes per stored message", *("payload", "ours", "packed", "TBMQ's design", "PostgreSQL"), texts=0
    )
    for size, found in result["bytes_per_message"].items():
        stored.add_row(f"{size} B", *(f"{found[way]:,.0f}" for way in (*LAYOUTS, "tbmq", "postgres")))
    console.print(stored)
    long = bench.table_of(
        f"Blocking, {result['long_queue']:,} messages of 1 KB",
        *("way", "operation", "calls", "all ms", "p10 ms", "p50 ms", "p99 ms", "longest ms", "server µs"), texts=2,
    )  # fmt: skip
    for way, operations in result["blocking"].items():
        for operation, found in operations.items():
            columns = ("total_ms", "p10_ms", "p50_ms", "p99_ms", "longest_ms")
            long.add_row(
                way,
                operation,
                f"{found['calls']:,}",
                *(bench.shown(found[column], ".2f") for column in columns),
                bench.shown(1e3 * found["cpu_ms"], ".0f"),
            )
    console.print(long)
    for fetch in result["fetch"]:
        console.print(
            f"{fetch['way']}: fetch of {fetch['messages']:,} messages in pages of {fetch['page']:,}: "
            f"{fetch['messages_per_s']:,} messages/s, the process grew by {fetch['grown_mib']} MiB"
        )


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result; PostgreSQL is durable, Redis is so when asked for."""
    config: dict[str, str | int] = {} if arguments.append_only else {"appendonly": "no"}
    with (
        bench.private_folder() as home,
        bench.private_postgres(home) as postgres,
        bench.private_redis(home, arguments.server, config) as target,
        ExitStack() as stack,
    ):
        url = postgres.create_database("benchmark")
        with connect(url, autocommit=True) as connection, target.client() as client:
            connection.execute(statement("sessions/vendor_schema"))
            migrate(connection)
            about = bench.facts(connection, client)
        stand = Stand(
            redis=target, postgres=postgres, postgres_url=url,
            clients=[stack.enter_context(Client()) for _ in range(2)],
            sessions=arguments.sessions, seconds=arguments.seconds, messages=arguments.messages, prepared={},
            profiled=arguments.profile,
        )  # fmt: skip
        table = ways(arguments)
        rounds = bench.in_turns(
            {way.key: partial(way.measure, stand) for way in table},
            rounds=arguments.rounds,
            console=console,
            told=lambda sample: f"{sample.messages_per_s:,.0f} messages/s",
        )
        longest: list[dict[str, dict[str, bench.Blocking]]] = [
            {
                **{name: blocking(stand, arguments.long_queue, layout) for name, layout in LAYOUTS.items()},
                "tbmq": blocking_fetch_of_tbmq(stand, arguments.long_queue),
            }
            for _ in range(arguments.rounds)
        ]
        return {
            "machine": about,
            "server": arguments.server,
            "append_only": arguments.append_only,
            "sessions": arguments.sessions,
            "long_queue": arguments.long_queue,
            "rounds": bench.in_words(rounds),
            "summary": summary(table, rounds),
            "bytes_per_message": {size: bytes_per_message(stand, size) for size in arguments.payload_bytes},
            # The round in the middle: one that was interrupted by other programs says nothing.
            "blocking": {
                way: {
                    operation: asdict(sorted(
                        (each[way][operation] for each in longest), key=lambda one: one.longest_ms
                    )[(len(longest) - 1) // 2])
                    for operation in operations
                }
                for way, operations in longest[0].items()
            },
            "fetch": [
                asdict(fetched(stand, arguments.long_queue, page, way))
                for way in LAYOUTS
                for page in (PAGE, arguments.long_queue)
            ],
        }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = bench.options(__doc__, rounds=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="how long client processes work each time")
    parser.add_argument("--messages", type=int, default=40_000, help="for what is piped, and for bytes per message")
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--payload-bytes", type=int, nargs="+", default=[64, 256, 1_024])
    parser.add_argument("--publishers", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--long-queue", type=int, default=LIMIT, help="messages of the session that is fetched")
    bench.add_server(parser)
    parser.add_argument("--append-only", action="store_true", help="let Redis write its append-only file")
    about = "show in which modules the clients of writer and overlap spend their time; without a file unless --json"
    parser.add_argument("--profile", action="store_true", help=about)
    bench.add_only(parser)
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    counts = [arguments.rounds, arguments.messages, arguments.sessions, arguments.long_queue]
    bench.refuse_less_than_one(parser, *counts, *arguments.payload_bytes, *arguments.publishers)
    if arguments.seconds <= 0:
        parser.error("--seconds must be more than 0")
    if arguments.long_queue > LIMIT:
        parser.error(f"a session holds at most {LIMIT} messages")
    known = bench.RESULTS / f"online-{arguments.server}{'-append-only' * arguments.append_only}.json"
    path = arguments.json or (None if arguments.profile else known)
    return bench.finish(partial(run, arguments), show, path=path)


if __name__ == "__main__":
    sys.exit(main())
