"""What every benchmark has beside its measuring: options, private servers, turns, tables, and the result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import psutil
import redis
from rich.console import Console
from rich.table import Table

from queuekeeper import __version__
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.errors import QueuekeeperError, RefusedError
from queuekeeper.postgres import Connection

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
APPEND_ONLY = ("no", "everysec", "always")
Sample = TypeVar("Sample")


# --- options ---------------------------------------------------------------------------------------------------


def options(about: str | None, *, rounds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser of a benchmark's options.

    :param rounds: how many there are unless somebody says so; none for a benchmark without.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def add_server(parser: argparse.ArgumentParser) -> None:
    """Let the server be chosen."""
    parser.add_argument("--server", "--flavour", choices=("valkey", "redis"), default="valkey")


def add_append_only(parser: argparse.ArgumentParser) -> None:
    """Let the server's durability be chosen."""
    about = "whether and how the append-only file is flushed"
    parser.add_argument("--append-only", choices=APPEND_ONLY, default="everysec", help=about)


def add_only(parser: argparse.ArgumentParser) -> None:
    """Let ways be left out."""
    parser.add_argument("--only", default="", help="regular expression: ways to measure")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Let the place of the result be chosen."""
    about = "where to write the result; a name in benchmarks/results if absent"
    parser.add_argument("--json", type=Path, help=about)


def refuse_less_than_one(parser: argparse.ArgumentParser, *counts: int) -> None:
    """End with a message when there is nothing to count."""
    if min(counts) < 1:
        parser.error("counts must be 1 or more")


# --- servers ---------------------------------------------------------------------------------------------------


@contextmanager
def private_folder() -> Iterator[Path]:
    """Give a folder that is removed at the end."""
    home = Path(tempfile.mkdtemp(prefix="queuekeeper-benchmark-"))
    home.chmod(0o711)
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def private_postgres(folder: Path, *, durable: bool = True) -> Iterator[PostgresServer]:
    """Run a PostgreSQL of the benchmark's own."""
    server = PostgresServer(folder / "postgres", durable=durable, die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.erase()


@contextmanager
def private_redis(
    folder: Path, flavour: Flavour, config: Mapping[str, str | int] | None = None
) -> Iterator[RedisServer]:
    """Run a Redis or Valkey of the benchmark's own."""
    server = RedisServer(folder / flavour, flavour=flavour, config=dict(config or {}), die_with_parent=True)
    try:
        server.start()
        yield server
    finally:
        server.erase()


def durability(append_only: str) -> dict[str, str | int]:
    """Return the settings of a server for a choice of ``--append-only``."""
    if append_only == "no":
        return {"appendonly": "no"}
    # The file is written anew between measurements, not during one.
    return {"appendfsync": append_only, "auto-aof-rewrite-percentage": 0}


@contextmanager
def measured_redis(arguments: argparse.Namespace) -> Iterator[tuple[RedisServer, redis.Redis]]:
    """Run the Redis or Valkey that was asked for, as durable as asked, and connect to it."""
    with (
        private_folder() as home,
        private_redis(home, arguments.server, durability(arguments.append_only)) as server,
        server.client(timeout_s=600) as client,
    ):
        yield server, client


# --- measuring -------------------------------------------------------------------------------------------------


def in_turns(
    ways: Mapping[str, Callable[[], Sample]],
    *,
    rounds: int,
    console: Console,
    told: Callable[[Sample], str],
) -> dict[str, list[Sample]]:
    """Measure each way once a round, and never one always after the same other.

    :param told: what is printed of a sample.
    """
    names = list(ways)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds):
        first = number * len(names) // rounds
        for name in names[first:] + names[:first]:
            sample = ways[name]()
            samples[name].append(sample)
            console.print(f"round {number + 1}: {name}: {told(sample)}")
    return samples


@contextmanager
def sampled(counts: Counter[str]) -> Iterator[None]:
    """Count in which module the main thread is, at each tick of this process's own processor time.

    A tick is a millisecond, or as long as the system's clock lasts.
    """

    def count(_: int, frame: FrameType | None) -> None:
        counts[(frame.f_globals.get("__name__") if frame else None) or "code made at run time"] += 1

    before = signal.signal(signal.SIGPROF, count)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True, kw_only=True)
class Blocking:
    """For how long the calls of one operation kept the server from all others.

    :param total_ms: of all calls together.
    :param p10_ms: a call that no other program disturbed. All of these are the server's own latency statistics, which
        count the time for which others had the processor.
    :param cpu_ms: processor time of the server per call, reading and writing included.
    """

    calls: int
    total_ms: float
    p10_ms: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    cpu_ms: float


@contextmanager
def watched(
    client: redis.Redis,
    server_cpu_s: Callable[[], float],
    found: dict[str, Blocking],
    operation: str,
    *,
    beside: str | None = None,
) -> Iterator[None]:
    """Note what the server's own statistics say of the script calls that the block makes.

    :param server_cpu_s: tells the processor time that the server has used.
    :param beside: another command that it calls, whose quantiles are noted instead of those of scripts. The statistics
        count it within scripts too, which adds to calls and total.
    :raises QueuekeeperError: when one of them has failed.
    """
    # Not the slow log: it has the commands inside of scripts too, and writing them down takes as long as they do.
    client.config_set("latency-tracking-info-percentiles", "10 50 99 100")
    client.config_resetstat()
    before_s = server_cpu_s()
    yield
    used_s = server_cpu_s() - before_s
    commands: Any = client.info("commandstats")
    latencies: Any = client.info("latencystats")
    names = ["evalsha"] if beside is None else ["evalsha", beside]
    counts = [commands[f"cmdstat_{name}"] for name in names]
    quantiles = [latencies[f"latency_percentiles_usec_{name}"] for name in names]
    us = quantiles[-1]
    calls = sum(each["calls"] for each in counts)
    if failed := sum(each["failed_calls"] for each in counts):
        raise QueuekeeperError(f"{operation}: {failed} of {calls} calls have failed")
    found[operation] = Blocking(
        calls=calls,
        total_ms=round(sum(each["usec"] for each in counts) / 1e3, 2),
        p10_ms=round(us["p10"] / 1e3, 4),
        p50_ms=round(us["p50"] / 1e3, 4),
        p99_ms=round(us["p99"] / 1e3, 4),
        longest_ms=round(max(each["p100"] for each in quantiles) / 1e3, 4),
        cpu_ms=round(1e3 * used_s / calls, 4),
    )


def facts(postgres: Connection | None, server: redis.Redis | None = None) -> dict[str, Any]:
    """Return machine and versions of the servers that are measured; nothing that names the machine."""
    versions = {} if postgres is None else {"postgresql": _version(postgres)}
    if server is not None:
        about: Any = server.info("server")
        flavour = "valkey" if "valkey_version" in about else "redis"
        versions[flavour] = str(about[f"{flavour}_version"])
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {
        "measured_on": datetime.now(UTC).date().isoformat(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        **versions,
        "queuekeeper": __version__,
    }


def _version(postgres: Connection) -> str:
    number = postgres.info.server_version
    return f"{number // 10_000}.{number % 10_000}"


# --- the result ------------------------------------------------------------------------------------------------


def table_of(title: str, *columns: str, texts: int = 1) -> Table:
    """Return an empty table.

    :param texts: how many columns, from the left, hold words and not figures.
    """
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < texts else "right", no_wrap=number < texts)
    return table


def show_ways(
    console: Console,
    title: str,
    ways: Mapping[str, Mapping[str, Any]],
    columns: Iterable[tuple[str, str, str]],
    words: str,
) -> None:
    """Print the figures of each way, and what they say.

    :param columns: of each its heading, the name of its figure, and the form in which that is shown.
    """
    columns = list(columns)
    table = table_of(title, "way", *(heading for heading, _, _ in columns))
    for way, figures in ways.items():
        table.add_row(way, *(shown(figures.get(name), form) for _, name, form in columns))
    console.print(table)
    console.print(words)


def shown(value: float | None, form: str) -> str:
    """Return a figure, or nothing where there is none."""
    return "" if value is None else format(value, form)


def finish(
    measure: Callable[[Console], dict[str, Any]],
    show: Callable[[Console, dict[str, Any]], None],
    *,
    path: Path | None,
    width: int = 120,
    fault: Callable[[dict[str, Any]], str] = lambda _: "",
) -> int:
    """Measure, print and write the result.

    :param path: where it is written; none writes nothing.
    :param width: of the tables, where no terminal tells it.
    :param fault: says what is wrong with a result, if anything is.
    :returns: the exit code.
    """
    console = Console() if sys.stdout.isatty() else Console(width=width)
    try:
        result = measure(console)
    except RefusedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(console, result)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
        console.print(f"written to {path}", soft_wrap=True)
    wrong = fault(result)
    if wrong:
        print(f"error: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


def in_words(rounds: Mapping[str, Sequence[Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return samples, which are dataclasses, as they are written."""
    return {way: [asdict(sample) for sample in samples] for way, samples in rounds.items()}
