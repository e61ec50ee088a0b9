"""Measure a profile of Redis: how fast it reads, what that costs the server, and what other clients notice of it.

``python benchmarks/profile_queues.py --queues 20_000 --references 50 --rounds 3``

Everything happens on private servers and in one run, the ways taking turns, so that a busy machine slows all of them:

quiet      nobody but a client that pings and saves messages, a few hundred times a second
profile    the same client beside a profile without contents, with Spark already up
throttled  the same at a given speed, as on a server that others need
contents   the same beside a profile that judges contents, too

Each way is measured twice: with all on the same processors, as they come; and, ``apart``, with Redis and the client at
real-time priority. They have a processor whenever they want one then, as if Spark were on another machine, and what the
client still notices is what Redis makes it wait. Who may not ask the kernel for that is told so and measures the rest.

With ``--memory`` the job is started as an operator would, for a tenth of the queues and for all of them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import bench
from backfill import private_servers
from pyspark.sql import SparkSession
from rich.console import Console
from watch import Watch, memory_of

from queuekeeper import redis_client
from queuekeeper.clock import system_clock
from queuekeeper.config import POSTGRES_VARIABLE, REDIS_VARIABLE
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.java import java_home
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.spark.session import build_session
from queuekeeper.postgres import connect
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.stores import profile_redis
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.wire import message_json

QUIET, PROFILE, THROTTLED, CONTENTS = "quiet", "profile", "throttled", "contents"
APART = " apart"
_PAUSE_S = 0.003
_LIFE_MS = 86_400_000
_MESSAGES_PER_PIPELINE = 20_000
KEY = b"the benchmark's clients are no secret"


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long a client waited for its answers, in milliseconds.

    :param operation: ``ping`` or ``save``.
    """

    operation: str
    count: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way, measured once.

    :param references: read; 0 where nobody profiles.
    :param cpu_s: seconds of processor time: ``client`` (Spark's JVM and workers), ``postgres`` and ``redis``.
    """

    references: int
    seconds: float
    cpu_s: dict[str, float]
    latencies: tuple[Latency, ...]


@dataclass(frozen=True, kw_only=True)
class Stand:
    """Servers and Spark.

    :param throttle_references_per_s: of the throttled way.
    :param quiet_s: how long the client is alone.
    """

    spark: SparkSession
    postgres: PostgresServer
    postgres_url: str
    redis: RedisServer
    throttle_references_per_s: int
    quiet_s: float = 5.0


# --- data ------------------------------------------------------------------------------------------------------


def fill(url: str, *, first: int, queues: int, references: int, payload_bytes: int) -> None:
    """Store queues as a broker leaves them: the older a message, the smaller its serial and packet id."""
    payload = os.urandom(payload_bytes)
    now_ms = system_clock()
    with redis_client.connect(url) as client:
        pipeline: Any = client.pipeline(transaction=False)
        for queue in range(first, first + queues):
            client_id = f"device-{queue:08d}"
            keys = session_keys(client_id)
            members = {}
            for number in range(1, references + 1):
                key = payload_key(client_id, number)
                time_ms = now_ms - references + number
                record = message_json(
                    client_id=client_id, topic=f"floor/{number % 9}", time_ms=time_ms, qos=1, packet_id=number,
                    packet_type="PUBLISH", payload=payload, msg_expiry_interval=_LIFE_MS // 1_000,
                )  # fmt: skip
                pipeline.set(key, record, pxat=time_ms + _LIFE_MS)
                members[key] = number
            pipeline.zadd(keys.messages, members)
            pipeline.set(keys.last_packet_id, references)
            if len(pipeline) >= _MESSAGES_PER_PIPELINE:
                pipeline.execute()
        pipeline.execute()


# --- the client that is not to be disturbed --------------------------------------------------------------------


def disturb(url: str, pipe: Pipe, apart: bool) -> None:
    """Ping and save until told to stop; run in a process of its own."""
    if apart:
        come_first(os.getpid())
    waits_ms: dict[str, list[float]] = {"ping": [], "save": []}
    with redis_client.connect(url) as client:
        store = RedisSessionStore(client)
        any_client: Any = client
        pipe.send("ready")
        turn = 0
        while not pipe.poll():
            turn += 1
            message = NewMessage(topic="t", payload=b"x" * 64, qos=1, time_ms=system_clock(), expiry_interval_s=60)
            save = SessionSave(client_id=f"bystander-{turn % 100}", messages=(message,))
            for name, work in (("ping", any_client.ping), ("save", lambda save=save: store.save_messages([save]))):
                started = time.perf_counter()
                work()
                waits_ms[name].append(1_000 * (time.perf_counter() - started))
            time.sleep(_PAUSE_S)
    pipe.send(waits_ms)


@contextmanager
def bystander(url: str, *, apart: bool) -> Iterator[Callable[[], tuple[Latency, ...]]]:
    """Run the client beside the block; what is yielded ends it and returns what it waited."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=disturb, args=(url, theirs, apart), daemon=True)
    process.start()
    # Ours alone is left, so that a process that fails is heard of.
    theirs.close()
    ours.recv()

    def end() -> tuple[Latency, ...]:
        ours.send("stop")
        waits_ms: dict[str, list[float]] = ours.recv()
        process.join()
        return tuple(_latency(name, waits) for name, waits in waits_ms.items())

    try:
        yield end
    finally:
        if process.is_alive():
            process.terminate()
            process.join()


def _latency(operation: str, waits_ms: list[float]) -> Latency:
    ordered = sorted(waits_ms)
    return Latency(
        operation=operation,
        count=len(ordered),
        p50_ms=round(ordered[len(ordered) // 2], 3),
        p99_ms=round(ordered[len(ordered) * 99 // 100], 3),
        longest_ms=round(ordered[-1], 3),
    )


# --- the ways --------------------------------------------------------------------------------------------------


def quiet(stand: Stand) -> int:
    """Let the client be alone."""
    time.sleep(stand.quiet_s)
    return 0


def profile(stand: Stand, *, contents: bool = False, throttle_references_per_s: int | None = None) -> int:
    """Profile all queues."""
    report = profile_redis(
        stand.spark,
        redis_url=stand.redis.url,
        postgres_url=stand.postgres_url,
        parameters=ProfileParameters(contents=contents, throttle_references_per_s=throttle_references_per_s),
        now_ms=system_clock(),
        profile_id="benchmark",
        key=KEY,
    )
    return report.messages


def throttled(stand: Stand) -> int:
    """Profile all queues at a fraction of the speed."""
    return profile(stand, throttle_references_per_s=stand.throttle_references_per_s)


@contextmanager
def before_others(pid: int) -> Iterator[None]:
    """Have the kernel give a process, not what it starts, a processor whenever its first thread wants one."""
    come_first(pid)
    try:
        yield
    finally:
        os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def come_first(pid: int) -> None:
    """Give a process real-time priority."""
    os.sched_setscheduler(pid, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def may_come_first() -> bool:
    """Return whether the system has real-time priorities and lets us give them."""
    try:
        with before_others(os.getpid()):
            return True
    except (AttributeError, PermissionError):
        return False


WAYS: dict[str, Callable[[Stand], int]] = {
    QUIET: quiet,
    PROFILE: profile,
    THROTTLED: throttled,
    CONTENTS: lambda stand: profile(stand, contents=True),
}


def measured(stand: Stand, way: Callable[[Stand], int], *, apart: bool) -> Sample:
    """Run one way beside the client."""
    postgres_pid, redis_pid = stand.postgres.pid, stand.redis.pid
    assert postgres_pid is not None
    assert redis_pid is not None
    with (
        bystander(stand.redis.url, apart=apart) as end,
        before_others(redis_pid) if apart else nullcontext(),
        Watch({"client": os.getpid(), "postgres": postgres_pid, "redis": redis_pid}) as watch,
    ):
        started = time.perf_counter()
        references = way(stand)
        seconds = time.perf_counter() - started
        latencies = end()
    return Sample(references=references, seconds=round(seconds, 4), cpu_s=watch.cpu_s(), latencies=latencies)


def take_turns(stand: Stand, *, rounds: int, say: Callable[[str], None]) -> dict[str, list[Sample]]:
    """Return the samples of each way, one per round."""
    endings = {"": False}
    if may_come_first():
        endings[APART] = True
    else:
        say("not measured: ways apart; the system gives nobody, or not this user, real-time priority (CAP_SYS_NICE)")
    samples: dict[str, list[Sample]] = {}
    for number in range(rounds):
        say(f"round {number + 1}")
        for ending, apart in endings.items():
            for way, work in WAYS.items():
                samples.setdefault(way + ending, []).append(measured(stand, work, apart=apart))
    return samples


def memory(stand: Stand, *, queues: int, folder: Path) -> dict[str, int]:
    """Return the most memory that a profile took in a fresh Spark."""
    places = {POSTGRES_VARIABLE: stand.postgres_url, REDIS_VARIABLE: stand.redis.url}
    taken = memory_of(
        *("profile_queues.py", "--store", "redis", "--profile-id", "memory"),
        variables={"QUEUEKEEPER_HOME": str(folder), **places},
        log=folder / "memory.log",
    )
    return {"queues": queues, **taken}


# --- the result ------------------------------------------------------------------------------------------------


def summary(rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds; what a client notices is formed within a round, against a quiet of its kind."""
    ways: dict[str, Any] = {}
    for way, samples in rounds.items():
        alone_samples = rounds[QUIET + APART if way.endswith(APART) else QUIET]
        latencies = {
            operation: {
                name: round(statistics.median(getattr(sample.latencies[place], name) for sample in samples), 3)
                for name in ("p50_ms", "p99_ms", "longest_ms")
            }
            | {
                "p99_times_quiet": round(
                    statistics.median(
                        sample.latencies[place].p99_ms / alone.latencies[place].p99_ms
                        for sample, alone in zip(samples, alone_samples, strict=True)
                    ),
                    2,
                )
            }
            for place, operation in enumerate(("ping", "save"))
        }
        ways[way] = {"latencies": latencies}
        if not way.startswith(QUIET):
            ways[way]["references_per_s"] = round(
                statistics.median(sample.references / sample.seconds for sample in samples)
            )
            ways[way]["cpu_us_per_reference"] = {
                party: round(1e6 * statistics.median(sample.cpu_s[party] / sample.references for sample in samples), 2)
                for party in samples[0].cpu_s
            }
    return ways


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table."""
    used_by = ("client", "redis", "postgres")
    table = bench.table_of(
        f"{result['queues']:,} queues of {result['references_per_queue']:,} references",
        *("way", "references/s", *(f"{party} µs" for party in used_by)),
        *("ping p50", "p99", "save p50", "p99", "times"),
    )
    for way, values in result["summary"].items():
        used = values.get("cpu_us_per_reference", {})
        ping, save = values["latencies"]["ping"], values["latencies"]["save"]
        table.add_row(
            way,
            f"{values['references_per_s']:,}" if used else "",
            *(f"{used[party]:.1f}" if used else "" for party in used_by),
            *(f"{latency[name]:.2f}" for latency in (ping, save) for name in ("p50_ms", "p99_ms")),
            f"{save['p99_times_quiet']:.1f}",
        )
    console.print(table)
    for entry in result["memory"]:
        console.print(f"{entry['queues']:,} queues: JVM {entry['jvm_mib']} MiB, Python {entry['python_mib']} MiB")


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything."""
    with bench.private_folder() as folder, private_servers(folder, arguments.server) as (postgres, server):
        os.environ["JAVA_HOME"] = str(java_home(folder))
        stand = Stand(
            spark=build_session("queuekeeper benchmark", master="local[2]"),
            postgres=postgres,
            postgres_url=postgres.create_database("benchmark"),
            redis=server,
            throttle_references_per_s=arguments.throttle,
        )
        size = {"references": arguments.references, "payload_bytes": arguments.payload_bytes}
        tenth = max(1, arguments.queues // 10)
        fill(server.url, first=0, queues=tenth, **size)
        found = [memory(stand, queues=tenth, folder=folder)] if arguments.memory else []
        console.print("filling and warming up")
        fill(server.url, first=tenth, queues=arguments.queues - tenth, **size)
        profile(stand)
        rounds = take_turns(stand, rounds=arguments.rounds, say=console.print)
        if arguments.memory:
            found.append(memory(stand, queues=arguments.queues, folder=folder))
        with connect(stand.postgres_url) as connection, server.client() as client:
            about = bench.facts(connection, client) | {"spark": version("pyspark")}
        stand.spark.stop()
    return {
        "machine": about,
        "queues": arguments.queues,
        "references_per_queue": arguments.references,
        "payload_bytes": arguments.payload_bytes,
        "summary": summary(rounds),
        "memory": found,
        "rounds": bench.in_words(rounds),
    }


def options(about: str | None) -> argparse.ArgumentParser:
    """Return a parser of what benchmarks of profiles are asked with."""
    parser = bench.options(about, rounds=3)
    parser.add_argument("--queues", type=int, default=20_000)
    parser.add_argument("--references", type=int, default=50, help="of each queue")
    parser.add_argument("--payload-bytes", type=int, default=256)
    bench.add_server(parser)
    parser.add_argument("--memory", action="store_true", help="also measure memory at a tenth of the queues and all")
    bench.add_json(parser)
    return parser


def finish(
    parser: argparse.ArgumentParser,
    words: Sequence[str] | None,
    *,
    name: str,
    work: Callable[[argparse.Namespace, Console], dict[str, Any]],
    tell: Callable[[Console, dict[str, Any]], None],
    counts: Sequence[str] = (),
) -> int:
    """Measure, print and write the result.

    :param name: how the name of the result's file begins.
    :param counts: more options that are one or more.
    """
    arguments = parser.parse_args(words)
    known = ("queues", "references", "payload_bytes", "rounds", *counts)
    bench.refuse_less_than_one(parser, *(getattr(arguments, each) for each in known))
    file_name = f"{name}-{arguments.server}-{arguments.queues * arguments.references}.json"
    return bench.finish(partial(work, arguments), tell, path=arguments.json or bench.RESULTS / file_name)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = options(__doc__)
    parser.add_argument("--throttle", type=int, default=50_000, help="references per second of the throttled way")
    return finish(parser, words, name="profile", work=run, tell=show, counts=("throttle",))


if __name__ == "__main__":
    sys.exit(main())
