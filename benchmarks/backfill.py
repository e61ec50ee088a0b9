"""Measure the copy against what the servers can do at most, and against the loop that one would write first.

``python benchmarks/backfill.py --messages 1_000_000 --sessions 20_000 --rounds 3``

Everything happens on private servers and in one run, the ways taking turns, so that a busy machine slows all of them:

reading limit   ``COPY ... TO STDOUT`` of the same rows, thrown away
writing limit   the very bytes that the copy sends, piped into an empty server
naive           a Python loop: one row, one round trip
pipeline        the same loop with pipelines of 1,000 rows
foreach         rows of Spark, written one by one from foreachPartition in pipelines, as connectors of Spark to Redis do
copy            the whole copy, with Spark already up
packed copy     the same into packed sessions
verify          the whole verification of a copy that was made just before
packed verify   the same of packed sessions
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import bench
from psycopg import sql
from pyspark.sql import Row, SparkSession
from rich.console import Console
from watch import Watch, empty_redis, memory_of

from queuekeeper import lua
from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.config import POSTGRES_VARIABLE, REDIS_VARIABLE
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.errors import QueuekeeperError
from queuekeeper.java import java_home
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CohortState, MigrationPlan, PlanState
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.offline.source import MESSAGE_COLUMNS, SESSION_COLUMNS, layout, open_source
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.migration.servers import MESSAGES, SESSIONS
from queuekeeper.migration.spark.session import build_session
from queuekeeper.postgres import connect
from queuekeeper.redis_client import connect as connect_redis
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.sample import fill
from queuekeeper.sessions.sample_parameters import SampleParameters

READING, WRITING, NAIVE, COPY, PACKED_COPY = "reading limit", "writing limit", "naive", "copy", "packed copy"
VERIFY, PACKED_VERIFY = "verify", "packed verify"
PIPELINE, FOREACH = "pipeline of redis-py", "foreachPartition"
_PIPELINE_ROWS = 1_000
_BLOCK_BYTES = 1024 * 1024


# --- measuring -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way, measured once.

    :param cpu_s: seconds of processor time of each party: ``client`` (Spark's JVM and workers included), ``postgres``
        and ``redis``.
    """

    messages: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def messages_per_s(self) -> float:
        """Speed by the clock on the wall."""
        return self.messages / self.seconds


# --- the stand -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What a copy sent over one connection.

    :param begin: where the calls begin; before them the client introduces itself.
    """

    path: Path
    begin: int


@dataclass(kw_only=True)
class Stand:
    """Servers, Spark and a planned sample.

    :param packed_plan: the plan of the same sample for packed sessions.
    """

    postgres: PostgresServer
    redis: RedisServer
    postgres_url: str
    spark: SparkSession
    plan: MigrationPlan
    packed_plan: MigrationPlan
    folder: Path
    naive_messages: int
    streams: list[Stream] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Messages in the source."""
        return self.plan.total("messages")

    def plan_id(self, packed: bool) -> str:
        """Return the id of the plan for TBMQ's layout, or for packed sessions."""
        return (self.packed_plan if packed else self.plan).plan_id

    def empty_target(self) -> None:
        """Give every measurement the same empty server, which knows the script."""
        with self.redis.client(timeout_s=600) as client:
            empty_redis(client)
            for name in ("sessions/import_session", "packed/import_session"):
                client.script_load(lua.load(name).source)

    def reset_plans(self) -> None:
        """Put the plans back to where they were approved."""
        with connect(self.postgres_url, autocommit=True) as connection:
            ledger = MigrationLedger(connection)
            for plan in (self.plan, self.packed_plan):
                ledger.set_plan_state(plan.plan_id, PlanState.APPROVED)
                ledger.set_cohort_state(plan.plan_id, plan.chosen, CohortState.PLANNED)

    def measured(self, way: Callable[[Stand], int], before: Callable[[Stand], int] | None = None) -> Sample:
        """Run one way on an empty target.

        :param way: returns how many messages it has dealt with.
        :param before: what fills the target first, unmeasured.
        """
        self.empty_target()
        self.reset_plans()
        if before is not None:
            before(self)
        postgres_pid, redis_pid = self.postgres.pid, self.redis.pid
        assert postgres_pid is not None
        assert redis_pid is not None
        with Watch({"client": os.getpid(), "postgres": postgres_pid, "redis": redis_pid}) as watch:
            started = time.perf_counter()
            messages = way(self)
            seconds = time.perf_counter() - started
        return Sample(messages=messages, seconds=round(seconds, 4), cpu_s=watch.cpu_s())


@contextmanager
def private_servers(folder: Path, flavour: Flavour) -> Iterator[tuple[PostgresServer, RedisServer]]:
    """Run both servers with the settings that an installation would have: durable, and an append-only file."""
    # DEBUG DIGEST sums up all keys and values.
    with (
        bench.private_postgres(folder) as postgres,
        bench.private_redis(folder, flavour, {"enable-debug-command": "local"}) as target,
    ):
        yield postgres, target


def fill_and_plan(
    spark: SparkSession, *, postgres_url: str, redis_url: str, messages: int, sessions: int
) -> list[MigrationPlan]:
    """Make a sample and its plan for each layout; what lives now outlives the benchmark."""
    tomorrow_ms = system_clock() + DAY_MS
    with connect(postgres_url) as connection:
        fill(
            connection,
            SampleParameters(
                messages=messages,
                sessions=sessions,
                now_ms=tomorrow_ms,
                long_queue_messages=max(1, min(12_000, messages // 10)),
                create_schema=True,
            ),
        )
    return [
        plan_migration(
            spark,
            postgres_url=postgres_url,
            redis_url=redis_url,
            parameters=MigrationParameters(layout=layout),
            run_id=f"benchmark {layout}",
            now_ms=tomorrow_ms,
        )
        for layout in Layout
    ]


# --- the ways ---------------------------------------------------------------------------------------------


def copy(stand: Stand, *, packed: bool = False) -> int:
    """Copy with Spark already up; reading the source twice for its fingerprint is part of it."""
    with redirect_stdout(StringIO()):  # its progress, a line each second
        report = copy_sessions(
            stand.spark, postgres_url=stand.postgres_url, redis_url=stand.redis.url, plan_id=stand.plan_id(packed)
        )
    if report.messages_written != stand.plan.total("to_copy"):
        raise QueuekeeperError(f"the copy wrote {report.messages_written} of {stand.plan.total('to_copy')} messages")
    return stand.messages


def verify(stand: Stand, *, packed: bool = False) -> int:
    """Compare a copy with its source."""
    with redirect_stdout(StringIO()):  # its progress, a line each second
        report = verify_migration(
            stand.spark, postgres_url=stand.postgres_url, redis_url=stand.redis.url, plan_id=stand.plan_id(packed)
        )
    if not report.balanced:
        raise QueuekeeperError(f"the verification of the copy has found {report.differences} differences")
    return stand.messages


def read(stand: Stand) -> int:
    """Let PostgreSQL send all that the copy reads, and do nothing with it."""
    tables = {MESSAGES: MESSAGE_COLUMNS, SESSIONS: SESSION_COLUMNS}
    with connect(stand.postgres_url) as connection, connection.cursor() as cursor:
        for table, columns in tables.items():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT binary)")
            with cursor.copy(statement.format(names, sql.Identifier(table))) as stream:
                for _ in stream:
                    pass
    return stand.messages


def write(stand: Stand) -> int:
    """Pipe the bytes of a recorded copy into the server."""
    if (binary := shutil.which("redis-cli")) is not None:
        _pipe_by_redis_cli(stand, binary)
    else:
        for stream in stand.streams:
            _pipe_by_socket(stand.redis.url, stream)
    return stand.messages


def _pipe_by_redis_cli(stand: Stand, binary: str) -> None:
    address = urlsplit(stand.redis.url)
    command = [binary, "-h", str(address.hostname), "-p", str(address.port), "--pipe", "--pipe-timeout", "0"]
    for stream in stand.streams:
        with stream.path.open("rb", buffering=0) as file:
            file.seek(stream.begin)
            done = subprocess.run(
                command,
                stdin=file,
                env=os.environ | {"REDISCLI_AUTH": str(address.password)},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode or "errors: 0," not in done.stdout:
            raise QueuekeeperError(f"redis-cli --pipe failed: {done.stdout}{done.stderr}")


def _pipe_by_socket(url: str, stream: Stream) -> None:
    """Do what ``redis-cli --pipe`` does: send without waiting, read and drop, end at an echo."""
    address = urlsplit(url)
    mark = b"the-end-of-this-stream"
    password = str(address.password).encode()
    with socket.create_connection((address.hostname, address.port)) as connection, stream.path.open("rb") as file:
        connection.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(password), password))

        def drain() -> None:
            tail = b""
            while mark not in tail:
                block = connection.recv(_BLOCK_BYTES)
                if not block:
                    raise QueuekeeperError("the server closed the connection before it had answered everything")
                tail = (tail + block)[-len(mark) - len(block) :]

        with ThreadPoolExecutor(1) as threads:
            drained = threads.submit(drain)
            connection.sendfile(file, offset=stream.begin)
            connection.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(mark), mark))
            drained.result()


def naive(stand: Stand) -> int:
    """Copy one row after the other, a round trip each, as far as patience goes."""
    return _loop(stand, rows=1)


def pipeline(stand: Stand) -> int:
    """Copy in pipelines of 1,000 rows, ten times as far."""
    return _loop(stand, rows=_PIPELINE_ROWS)


def _loop(stand: Stand, *, rows: int) -> int:
    """Copy by redis-py, this many rows in a round trip; neither rules nor repetition are seen to."""
    done, most = 0, stand.naive_messages * (10 if rows > 1 else 1)
    ttl_ms = 1000 * stand.plan.parameters.default_ttl_s
    with (
        stand.redis.client() as client,
        connect(stand.postgres_url) as connection,
        connection.cursor(name="naive") as cursor,
    ):
        statement = sql.SQL("SELECT {} FROM {} ORDER BY client_id, serial_number")
        names = sql.SQL(", ").join(map(sql.Identifier, MESSAGE_COLUMNS))
        cursor.execute(statement.format(names, sql.Identifier(MESSAGES)))
        pipe: Any = client.pipeline(transaction=False)
        for row in cursor:
            _queue(pipe, dict(zip(MESSAGE_COLUMNS, row, strict=True)), ttl_ms=ttl_ms)
            done += 1
            if done % rows == 0:
                pipe.execute()
            if done == most:
                break
        pipe.execute()
    return done


def _queue(pipe: Any, message: dict[str, Any], *, ttl_ms: int) -> None:
    interval_s = message["msg_expiry_interval"]
    expires_at_ms = message["time"] + (ttl_ms if interval_s is None else 1000 * (interval_s % 2**32))
    key = payload_key(message["client_id"], message["packet_id"])
    pipe.set(key, _json(message), pxat=expires_at_ms)
    pipe.zadd(session_keys(message["client_id"]).messages, {key: message["serial_number"]})


def foreach(stand: Stand) -> int:
    """Write each row of Spark by commands of its own, in pipelines of 1,000 rows."""
    redis_url, ttl_ms = stand.redis.url, 1000 * stand.plan.parameters.default_ttl_s

    def write_rows(rows: Iterator[Row]) -> None:
        with connect_redis(redis_url) as client:
            pipe: Any = client.pipeline(transaction=False)
            for number, row in enumerate(rows, 1):
                _queue(pipe, row.asDict(), ttl_ms=ttl_ms)
                if number % _PIPELINE_ROWS == 0:
                    pipe.execute()
            pipe.execute()

    placement = layout(cohorts=stand.plan.cohorts, wanted=stand.plan.chosen, tasks=2)
    with open_source(stand.spark, postgres_url=stand.postgres_url, placement=placement) as source:
        source.read(MESSAGES, MESSAGE_COLUMNS).foreachPartition(write_rows)
    return stand.messages


def _json(message: dict[str, Any]) -> str:
    correlation = message["correlation_data"]
    document = {
        "clientId": message["client_id"],
        "topicName": message["topic"],
        "time": message["time"],
        "qos": message["qos"],
        "packetId": message["packet_id"],
        "packetType": message["packet_type"],
        "payload": base64.b64encode(message["payload"]).decode(),
        "retained": bool(message["retain"]),
        "userProperties": json.loads(message["user_properties"]) if message["user_properties"] else None,
        "msgExpiryInterval": message["msg_expiry_interval"],
        "payloadFormatIndicator": message["payload_format_indicator"],
        "contentType": message["content_type"],
        "responseTopic": message["response_topic"],
        "correlationData": None if correlation is None else base64.b64encode(correlation).decode(),
    }
    return json.dumps({name: value for name, value in document.items() if value is not None})


WAYS: dict[str, Callable[[Stand], int]] = {
    READING: read,
    WRITING: write,
    NAIVE: naive,
    PIPELINE: pipeline,
    FOREACH: foreach,
    COPY: copy,
    PACKED_COPY: partial(copy, packed=True),
    VERIFY: verify,
    PACKED_VERIFY: partial(verify, packed=True),
}
BEFORE = {VERIFY: WAYS[COPY], PACKED_VERIFY: WAYS[PACKED_COPY]}


# --- recording -------------------------------------------------------------------------------------------------


class Recorder:
    """Stands between a copy and its server and keeps what was sent, a file per connection."""

    def __init__(self, *, url: str, folder: Path) -> None:
        self._target = urlsplit(url)
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._files: list[Path] = []

    def __enter__(self) -> str:
        """Return the address to copy to."""
        self._start(self._accept)
        port = self._listener.getsockname()[1]
        return self._target._replace(netloc=f":{self._target.password}@127.0.0.1:{port}").geturl()

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in list(self._threads):
            thread.join(timeout=10)

    def streams(self, command: bytes) -> list[Stream]:
        """Return the streams in which this command was sent, from its first call on; the others are removed."""
        head = re.compile(rb"\*\d+\r\n\$%d\r\n%s\r\n" % (len(command), command))
        wanted = []
        for path in self._files:
            with path.open("rb") as file:
                found = head.search(file.read(_BLOCK_BYTES))
            if found is None:
                path.unlink()
            else:
                wanted.append(Stream(path=path, begin=found.start()))
        return wanted

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._target.hostname, self._target.port))
            path = self._folder / f"stream-{len(self._files):03d}"
            self._files.append(path)
            self._start(self._relay, client, server, path)
            self._start(self._relay, server, client, None)

    @staticmethod
    def _relay(source: socket.socket, sink: socket.socket, path: Path | None) -> None:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("wb")) if path is not None else None
            while True:
                try:
                    block = source.recv(_BLOCK_BYTES)
                    if block:
                        sink.sendall(block)
                except OSError:
                    block = b""
                if not block:
                    break
                if file is not None:
                    file.write(block)
            with suppress(OSError):
                sink.shutdown(socket.SHUT_WR)


def record(stand: Stand) -> None:
    """Copy once, unmeasured: it warms Spark up and gives the stream for the writing limit."""
    stand.empty_target()
    stand.reset_plans()
    recorder = Recorder(url=stand.redis.url, folder=stand.folder)
    with recorder as url, redirect_stdout(StringIO()):
        copy_sessions(stand.spark, postgres_url=stand.postgres_url, redis_url=url, plan_id=stand.plan.plan_id)
    stand.streams = recorder.streams(b"EVALSHA")
    wanted = contents(stand)
    stand.empty_target()
    write(stand)
    if contents(stand) != wanted:
        raise QueuekeeperError("the recorded commands do not give what the copy gave")


def contents(stand: Stand) -> tuple[int, str]:
    """Return how many keys the target holds, and the server's own digest of all of them."""
    with stand.redis.client(timeout_s=600) as client:
        digest: Any = client.execute_command("DEBUG DIGEST")
        return int(client.dbsize()), bytes(digest).decode() if isinstance(digest, bytes) else str(digest)


# --- memory ----------------------------------------------------------------------------------------------------


def memory(stand: Stand, *, messages: int, sessions: int, plan: MigrationPlan | None) -> dict[str, int]:
    """Return the most memory that a copy took in a fresh Spark.

    :param plan: none: make a sample of this size first.
    """
    database = "memory" if plan is None else "benchmark"
    url = stand.postgres.create_database(database)
    stand.empty_target()
    if plan is None:
        plan, _ = fill_and_plan(
            stand.spark, postgres_url=url, redis_url=stand.redis.url, messages=messages, sessions=sessions
        )
    else:
        stand.reset_plans()
    variables = {POSTGRES_VARIABLE: url, REDIS_VARIABLE: stand.redis.url}
    log = stand.folder / "memory.log"
    taken = memory_of("copy_sessions.py", "--plan-id", plan.plan_id, variables=variables, log=log)
    return {"messages": messages, **taken}


# --- the result ------------------------------------------------------------------------------------------------


def machine(stand: Stand) -> dict[str, Any]:
    """Return what the figures depend on."""
    with connect(stand.postgres_url) as connection, stand.redis.client() as client:
        return bench.facts(connection, client) | {"spark": version("pyspark")}


def summary(rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds, and how the copy compares.

    Ratios are formed within a round and only then their median: what slows a round slows both sides.
    """
    speeds = {way: statistics.median(sample.messages_per_s for sample in samples) for way, samples in rounds.items()}
    ways = {
        way: {
            "messages_per_s": round(speeds[way]),
            "cpu_us_per_message": {
                party: round(1e6 * statistics.median(sample.cpu_s[party] / sample.messages for sample in samples), 2)
                for party in samples[0].cpu_s
            },
        }
        for way, samples in rounds.items()
    }
    together = list(zip(*(rounds[way] for way in (COPY, READING, WRITING, NAIVE)), strict=True))
    limits = [min(reading.messages_per_s, writing.messages_per_s) for _, reading, writing, _ in together]
    return {
        "ways": ways,
        "slower_limit": min((WRITING, READING), key=speeds.__getitem__),
        "share_of_slower_limit": round(
            statistics.median(row[0].messages_per_s / limit for row, limit in zip(together, limits, strict=True)), 3
        ),
        "packed_over_copy": _over(rounds, PACKED_COPY, COPY),
        "verify_over_copy": _over(rounds, VERIFY, COPY),
        "packed_verify_over_copy": _over(rounds, PACKED_VERIFY, PACKED_COPY),
        "factor_over_naive": round(
            statistics.median(row[0].messages_per_s / row[3].messages_per_s for row in together), 1
        ),
    }


def _over(rounds: dict[str, list[Sample]], one: str, other: str) -> float:
    """Return how many times as fast as another way one is."""
    pairs = zip(rounds[one], rounds[other], strict=True)
    return round(statistics.median(first.messages_per_s / second.messages_per_s for first, second in pairs), 2)


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the figures."""
    found = result["summary"]
    limit = found["ways"][found["slower_limit"]]["messages_per_s"]
    slowest = found["ways"][NAIVE]["messages_per_s"]
    table = bench.table_of(
        f"{result['messages']:,} messages, {result['sessions']:,} sessions",
        *("way", "rows/s", "of limit", "× naive", "client µs", "PG µs", "Redis µs"),
    )
    for way, figures in found["ways"].items():
        speed, used = figures["messages_per_s"], figures["cpu_us_per_message"]
        ratio = found["share_of_slower_limit"] if way == COPY else speed / limit
        factor = found["factor_over_naive"] if way == COPY else speed / slowest
        table.add_row(way, f"{speed:,}", f"{ratio:.0%}", f"{factor:.1f}", *(f"{used[party]:.1f}" for party in used))
    console.print(table)
    console.print(
        "of limit: share of the slower limit; µs: processor time per message over all processes of a party. "
        "The client of the copy is Spark."
    )
    for row in result["memory"]:
        console.print(
            f"memory at {row['messages']:,} messages: JVM {row['jvm_mib']} MiB, Python {row['python_mib']} MiB"
        )


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 1g pyspark-shell"
    with (
        bench.private_folder() as home,
        private_servers(home, arguments.server) as (postgres, target),
        ExitStack() as stack,
    ):
        os.environ["JAVA_HOME"] = str(java_home(home))
        spark = build_session("queuekeeper benchmark", master="local[2]")
        stack.callback(spark.stop)
        url = postgres.create_database("benchmark")
        console.print(f"filling {arguments.messages:,} messages, making the plan")
        plan, packed_plan = fill_and_plan(
            spark, postgres_url=url, redis_url=target.url, messages=arguments.messages, sessions=arguments.sessions
        )
        stand = Stand(
            postgres=postgres, redis=target, postgres_url=url, spark=spark, plan=plan, packed_plan=packed_plan,
            folder=home, naive_messages=arguments.naive_messages,
        )  # fmt: skip
        console.print("recording a copy")
        record(stand)
        rounds = bench.in_turns(
            {name: partial(stand.measured, way, BEFORE.get(name)) for name, way in WAYS.items()},
            rounds=arguments.rounds,
            console=console,
            told=lambda sample: f"{sample.messages_per_s:,.0f} messages/s",
        )
        sizes = []
        if arguments.memory:
            for stream in stand.streams:
                stream.path.unlink()
            small = memory(stand, messages=arguments.messages, sessions=arguments.sessions, plan=plan)
            large = memory(stand, messages=4 * arguments.messages, sessions=4 * arguments.sessions, plan=None)
            sizes = [small, large]
        return {
            "machine": machine(stand),
            "messages": stand.messages,
            "sessions": arguments.sessions,
            "copied": plan.total("to_copy"),
            "naive_messages": min(arguments.naive_messages, stand.messages),
            "rounds": bench.in_words(rounds),
            "summary": summary(rounds),
            "memory": sizes,
        }


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = bench.options(__doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=20_000)
    parser.add_argument("--naive-messages", type=int, default=20_000, help="the naive loop stops after so many")
    bench.add_server(parser)
    parser.add_argument("--memory", action="store_true", help="also measure memory at this and four times the size")
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    bench.refuse_less_than_one(
        parser, arguments.messages, arguments.sessions, arguments.rounds, arguments.naive_messages
    )
    path = arguments.json or bench.RESULTS / f"backfill-{arguments.server}-{arguments.messages}.json"
    return bench.finish(partial(run, arguments), show, path=path)


if __name__ == "__main__":
    sys.exit(main())
