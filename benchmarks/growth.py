"""Measure how the work grows with the number of messages, and how far a line through two sizes can be trusted.

``python benchmarks/growth.py --messages 100000 1000000 10000000``

For each size a PostgreSQL and a Redis of their own are filled; then the commands do one after the other, each in a
process of its own: plan, copy, verify, profile, a quality run, cleanup with a hundredth of all messages expired, and
the survey of a partitioned table with as many rows. Of each are kept the time, the processor time of every party, the
most memory, and the most connections that it held.

A line through the smallest two sizes, a fixed part and a part per message, is held against the largest: it was not
used to draw the line.

``--migration-only`` ends each size after the verification.

``--executors 1 2 4`` copies with so many executors of one core besides, each number on data of its own,
``--per-executor`` messages for each executor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, LiteralString

import bench
from psycopg import sql
from rich.console import Console
from watch import Watch, peak_mib

from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.errors import QueuekeeperError
from queuekeeper.java import java_home
from queuekeeper.keyspace import payload_key
from queuekeeper.postgres import Connection, connect
from queuekeeper.sql_statements import statement

PARTIES = ("client", "redis", "postgres")
_QUEUE = 50
_PAGE = 10_000
_DAYS = 30

_FILL_MESSAGES = """
    INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, retain)
    SELECT 'device-' || lpad((n / {queue})::text, 9, '0'), n % {queue} + 1, 'floor/' || n % 40,
        {now_ms} - {queue} + n % {queue}, n % {queue} + 1, 'PUBLISH', 1,
        substr(decode(repeat(md5(n::text), {payload_bytes} / 16 + 1), 'hex'), 1, {payload_bytes}), false
    FROM generate_series(0::bigint, {messages} - 1) AS n
"""
_FILL_SESSIONS = """
    INSERT INTO device_session_ctx (client_id, last_updated_time, last_serial_number, last_packet_id)
    SELECT client_id, max(time), max(serial_number), max(packet_id) FROM device_publish_msg GROUP BY client_id
"""
_FILL_READINGS = """
    INSERT INTO readings (at, reading)
    SELECT now() - make_interval(secs => 86400::double precision * {days} * n / {messages}),
        repeat('x', {payload_bytes})
    FROM generate_series(0::bigint, {messages} - 1) AS n
"""
_CONTROL_TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'queuekeeper'::regnamespace"
_CONTROL_BYTES = """
    SELECT sum(pg_total_relation_size(oid)) FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'queuekeeper'::regnamespace
"""
_COUNT = "SELECT count(*) FROM {}"
_CONNECTIONS = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One command, measured once.

    :param cpu_s: seconds of processor time: ``client`` (Spark's JVMs and workers), ``postgres`` and ``redis``.
    :param memory_mib: the most that was resident: ``jvm``, ``executors``, ``python``.
    :param connections: the most that were open at ``postgres`` and ``redis`` at once.
    """

    messages: int
    seconds: float
    cpu_s: dict[str, float]
    memory_mib: dict[str, int]
    connections: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Servers with data of one size.

    :param master: where Spark runs.
    """

    folder: Path  # of both servers
    postgres: PostgresServer
    redis: RedisServer
    postgres_url: str
    messages: int
    master: str

    def run(self, *words: str) -> tuple[Sample, dict[str, Any]]:
        """Have a command do its work as a person would start it; return what it took and what it tells.

        :raises QueuekeeperError: with what it said last, when it failed.
        """
        parties = {"client": os.getpid(), "postgres": self.postgres.pid or 0, "redis": self.redis.pid or 0}
        most = {"postgres": 0, "redis": 0}
        told, said = self.folder / "told.json", self.folder / "said.log"
        environment = os.environ | {
            "QUEUEKEEPER_HOME": str(self.folder / "home"),
            "QUEUEKEEPER_POSTGRES_URL": self.postgres_url,
            "QUEUEKEEPER_REDIS_URL": self.redis.url,
            "QUEUEKEEPER_SPARK_MASTER": self.master,
        }
        with (
            connect(self.postgres_url, autocommit=True) as connection,
            self.redis.client() as client,
            told.open("w") as out,
            said.open("w") as log,
            Watch(parties) as watch,
        ):

            def look() -> None:
                most["postgres"] = max(most["postgres"], _number(connection, sql.SQL(_CONNECTIONS)))
                clients: Any = client.info("clients")
                most["redis"] = max(most["redis"], clients["connected_clients"] - 1)

            started = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "queuekeeper", *words, "--json"], env=environment, stdout=out, stderr=log
            )
            memory_mib = peak_mib(process, look=look)
            seconds = time.perf_counter() - started
        if process.returncode:
            raise QueuekeeperError(f"queuekeeper {' '.join(words)} failed:\n{said.read_text('utf-8')[-3_000:]}")
        sample = Sample(
            messages=self.messages,
            seconds=round(seconds, 2),
            cpu_s=watch.cpu_s(),
            memory_mib=memory_mib,
            connections=most,
        )
        return sample, json.loads(told.read_text("utf-8"))


def _number(connection: Connection, query: sql.Composed | sql.SQL) -> int:
    row = connection.execute(query).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


@contextmanager
def stand(arguments: argparse.Namespace, messages: int, master: str) -> Iterator[Stand]:
    """Run servers and fill the source; the target, which holds a copy of everything, writes nothing to disk."""
    with (
        bench.private_folder() as folder,
        bench.private_postgres(folder, durable=False) as postgres,
        bench.private_redis(folder, arguments.server, bench.durability("no")) as redis,
    ):
        url = postgres.create_database("benchmark")
        numbers = _numbers(arguments, messages)
        with connect(url, autocommit=True) as connection:
            connection.execute(statement("sessions/vendor_schema"))
            for query in (_FILL_MESSAGES, _FILL_SESSIONS):
                _execute(connection, query, numbers)
            connection.execute("VACUUM ANALYZE")
        yield Stand(folder=folder, postgres=postgres, redis=redis, postgres_url=url, messages=messages, master=master)


def _numbers(arguments: argparse.Namespace, messages: int) -> dict[str, Any]:
    return {
        "messages": messages,
        "queue": _QUEUE,
        "payload_bytes": arguments.payload_bytes,
        "days": _DAYS,
        "now_ms": system_clock(),
    }


def copied(at: Stand, keep: Callable[[str, Sample], None]) -> str:
    """Plan and copy; return the plan's id."""
    sample, plan = at.run("migrate", "plan")
    keep("plan", sample)
    sample, report = at.run("migrate", "copy", plan["plan_id"], "--yes")
    keep("copy", sample)
    if report["messages_written"] != at.messages:
        raise QueuekeeperError(f"the copy wrote {report['messages_written']} of {at.messages} messages")
    return str(plan["plan_id"])


def maintained(at: Stand, keep: Callable[[str, Sample], None]) -> None:
    """Profile, judge and clean up what was copied."""
    keep("profile", at.run("quality", "profile")[0])
    keep("quality", at.run("quality", "run", "--contents")[0])
    expire(at)
    sample, plan = at.run("cleanup", "plan")
    keep("cleanup: plan", sample)
    sample, _ = at.run("cleanup", "apply", plan["maintenance_run_id"], "--yes")
    keep("cleanup: apply", sample)


def expire(at: Stand) -> None:
    """Remove the first message of every other queue as Redis does when its time is over: its reference stays."""
    with at.redis.client() as client:
        pipeline: Any = client.pipeline(transaction=False)
        for number in range(0, at.messages // _QUEUE, 2):
            pipeline.unlink(payload_key(f"device-{number:09d}", 1))
            if len(pipeline) >= _PAGE:
                pipeline.execute()
        pipeline.execute()


def fill_readings(at: Stand, numbers: dict[str, Any]) -> None:
    """Fill a table that is partitioned by day, under a policy, with as many rows as there are messages."""
    with connect(at.postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE readings (at timestamptz NOT NULL, reading text) PARTITION BY RANGE (at)")
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        for days in range(-1, _DAYS + 1):
            begin = today - timedelta(days=days)
            connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF readings FOR VALUES FROM ({}) TO ({})").format(
                    sql.Identifier(f"readings_{begin:%Y%m%d}"),
                    sql.Literal(begin.isoformat()),
                    sql.Literal((begin + timedelta(days=1)).isoformat()),
                )
            )
        _execute(connection, _FILL_READINGS, numbers)
        connection.execute("VACUUM ANALYZE readings")
    at.run("partitions", "set", "public.readings", "--step", "1 day", "--ahead", "7 days", "--no-archive")


def _execute(connection: Connection, query: LiteralString, numbers: dict[str, Any]) -> None:
    connection.execute(sql.SQL(query).format(**{name: sql.Literal(each) for name, each in numbers.items()}))


def grown(arguments: argparse.Namespace, messages: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Do all work at one size, and return what it took."""
    samples: dict[str, Sample] = {}

    def keep(name: str, sample: Sample) -> None:
        samples[name] = sample
        say(f"{messages:,} messages: {name}: {sample.seconds:.1f} s")

    say(f"{messages:,} messages: filling")
    with stand(arguments, messages, arguments.master) as at:
        plan_id = copied(at, keep)
        with at.redis.client() as client:
            memory: Any = client.info("memory")
        sample, _ = at.run("migrate", "verify", plan_id)
        keep("verify", sample)
        control = control_size(at)
        if not arguments.migration_only:
            maintained(at, keep)
            fill_readings(at, _numbers(arguments, messages))
            keep("partition survey", at.run("partitions", "plan")[0])
        with connect(at.postgres_url) as connection, at.redis.client() as client:
            about = bench.facts(connection, client) | {"spark": version("pyspark")}
    return {
        "machine": about,
        "messages": messages,
        "sessions": messages // _QUEUE,
        "redis_bytes": memory["used_memory_dataset"],
        "control_after_verify": control,
        "samples": {name: asdict(sample) for name, sample in samples.items()},
    }


def control_size(at: Stand) -> dict[str, int]:
    """Return rows and bytes of all control tables."""
    with connect(at.postgres_url) as connection:
        names = [name for (name,) in connection.execute(_CONTROL_TABLES)]
        rows = sum(_number(connection, sql.SQL(_COUNT).format(sql.Identifier("queuekeeper", name))) for name in names)
        return {"rows": rows, "bytes": _number(connection, sql.SQL(_CONTROL_BYTES))}


def executors(arguments: argparse.Namespace, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Copy with executors of one core, and return what it took."""
    messages = count * arguments.per_executor
    samples: dict[str, Sample] = {}
    with stand(arguments, messages, f"local-cluster[{count},1,{arguments.executor_mib}]") as at:
        copied(at, samples.__setitem__)
    say(f"{count} executors: {messages:,} messages in {samples['copy'].seconds:.1f} s")
    return {"executors": count, **asdict(samples["copy"])}


# --- the result ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds that grow with the number of messages.

    :param fixed_s: whatever their number.
    :param us_per_message: for each of them, in microseconds.
    """

    fixed_s: float
    us_per_message: float

    def seconds(self, messages: int) -> float:
        """Return what so many messages take."""
        return self.fixed_s + messages * self.us_per_message / 1e6


def line(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """Return the line through two sizes, each with its seconds."""
    per_message_s = (large[1] - small[1]) / (large[0] - small[0])
    return Line(fixed_s=small[1] - small[0] * per_message_s, us_per_message=1e6 * per_message_s)


def lines(sizes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each command, time and processor time as lines through the two smallest sizes, and how they hold.

    :returns: ``off``: how far the line lies beside the largest size's processor time; left out where there are but two.
    """
    small, large, *rest = sorted(sizes, key=lambda size: int(size["messages"]))
    found: dict[str, dict[str, Any]] = {}
    for name in small["samples"]:

        def measured(size: dict[str, Any], name: str = name) -> dict[str, float]:
            sample = size["samples"][name]
            return {"seconds": sample["seconds"], **sample["cpu_s"]}

        found[name] = {
            what: asdict(line((small["messages"], value), (large["messages"], measured(large)[what])))
            for what, value in measured(small).items()
        }
        if rest:
            largest = rest[-1]
            told = sum(Line(**found[name][party]).seconds(largest["messages"]) for party in PARTIES)
            was = sum(measured(largest)[party] for party in PARTIES)
            found[name]["off"] = round(told / was - 1, 3)
    return found


def show(console: Console, result: dict[str, Any]) -> None:
    """Print what each size took, the lines, and the executors."""
    for size in result["sizes"]:
        table = bench.table_of(
            f"{size['messages']:,} messages in {size['sessions']:,} sessions",
            *("command", "s", *(f"{party} µs" for party in PARTIES), "JVM MiB", "Python MiB", "PG", "Redis"),
        )
        for name, sample in size["samples"].items():
            memory, connections = sample["memory_mib"], sample["connections"]
            table.add_row(
                name,
                f"{sample['seconds']:.1f}",
                *(f"{1e6 * sample['cpu_s'][party] / size['messages']:.2f}" for party in PARTIES),
                *(f"{memory[kind]:,}" for kind in ("jvm", "python")),
                *(f"{connections[server]}" for server in ("postgres", "redis")),
            )
        console.print(table)
        control = size["control_after_verify"]
        console.print(
            f"Redis holds {size['redis_bytes'] / size['messages']:.0f} bytes a message; the control tables of the "
            f"migration {control['rows']:,} rows, {control['bytes'] / 1024:,.0f} KiB"
        )
    if result["lines"]:
        table = bench.table_of("processor time: fixed, and per message", "command", *PARTIES, "off at the largest")
        for name, found in result["lines"].items():
            table.add_row(
                name,
                *(f"{found[party]['fixed_s']:.1f} s + {found[party]['us_per_message']:.2f} µs" for party in PARTIES),
                f"{found['off']:+.0%}" if "off" in found else "",
            )
        console.print(table)
    if result["executors"]:
        table = bench.table_of(
            "copy by executors of one core",
            "executors",
            "messages",
            "s",
            "client µs",
            "driver MiB",
            "each executor MiB",
        )
        for each in result["executors"]:
            table.add_row(
                f"{each['executors']}",
                f"{each['messages']:,}",
                f"{each['seconds']:.1f}",
                f"{1e6 * each['cpu_s']['client'] / each['messages']:.2f}",
                f"{each['memory_mib']['jvm']:,}",
                f"{each['memory_mib']['executors'] // each['executors']:,}",
            )
        console.print(table)


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything and return the result."""
    with bench.private_folder() as folder:
        os.environ["JAVA_HOME"] = str(java_home(folder))
        sizes = [grown(arguments, messages, console.print) for messages in sorted(arguments.messages)]
        about = [size.pop("machine") for size in sizes]
        found = [executors(arguments, count, console.print) for count in arguments.executors]
    return {
        "machine": about[0],
        "payload_bytes": arguments.payload_bytes,
        "sizes": sizes,
        "lines": lines(sizes) if len(sizes) > 1 else {},
        "executors": found,
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = bench.options(__doc__)
    parser.add_argument("--messages", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--payload-bytes", type=int, default=64)
    parser.add_argument("--migration-only", action="store_true", help="measure plan, copy and verification alone")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    parser.add_argument("--executors", type=int, nargs="*", default=[])
    parser.add_argument("--per-executor", type=int, default=200_000, help="messages for each executor")
    parser.add_argument("--executor-mib", type=int, default=1_024, help="memory of each executor")
    bench.add_server(parser)
    bench.add_json(parser)
    arguments = parser.parse_args(words)
    counts = (arguments.payload_bytes, arguments.per_executor, arguments.executor_mib, *arguments.executors)
    bench.refuse_less_than_one(parser, *counts)
    if min(arguments.messages) < _QUEUE:
        parser.error(f"a size must be {_QUEUE} messages or more: so many are in one queue")
    name = "growth-migration" if arguments.migration_only else "growth"
    path = arguments.json or bench.RESULTS / f"{name}-{arguments.server}-{max(arguments.messages)}.json"
    return bench.finish(partial(run, arguments), show, path=path)


if __name__ == "__main__":
    sys.exit(main())
