"""Measure a profile of an RDB file beside one of the server that wrote it: references per second of processor time.

``python benchmarks/snapshot.py --queues 20_000 --references 50 --rounds 3``

The server is private and holds still, so that both read the same. The ways take turns in one Spark that is up already:

live       a profile of the server, without contents; what the server takes counts
snapshot   a profile of its RDB file, without contents
... contents   the same with the contents of messages

With ``--memory`` the command is started as an operator would, for a file of a tenth of the queues and one of all.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bench
import profile_queues
from backfill import private_servers
from profile_queues import KEY, Stand
from pyspark.sql import SparkSession
from rich.console import Console
from watch import Watch, peak_mib

from queuekeeper.clock import system_clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.java import java_home
from queuekeeper.migration.spark.session import build_session
from queuekeeper.postgres import connect
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.stores import profile_snapshot

LIVE, SNAPSHOT, CONTENTS = "live", "snapshot", " contents"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One way, measured once.

    :param cpu_s: seconds of processor time: ``client`` (Spark's JVM and workers), ``postgres`` and ``redis``.
    """

    references: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def per_cpu_s(self) -> float:
        """References per second of processor time, whosever it is."""
        return self.references / sum(self.cpu_s.values())


def saved(stand: Stand, name: str) -> Path:
    """Have the server write its file, and keep it by a name."""
    with stand.redis.client(timeout_s=600) as client:
        client.save()
        settings: dict[str, str] = {**client.config_get("dir"), **client.config_get("dbfilename")}
    written = Path(settings["dir"], settings["dbfilename"])
    return written.rename(written.with_name(name))


def of_snapshot(stand: Stand, path: Path, *, contents: bool) -> int:
    """Profile all queues of a file."""
    report = profile_snapshot(
        stand.spark, paths=[path], postgres_url=stand.postgres_url, parameters=ProfileParameters(contents=contents),
        now_ms=system_clock(), profile_id="benchmark", key=KEY,
    )  # fmt: skip
    return report.messages


def measured(stand: Stand, way: Callable[[], int]) -> Sample:
    """Run one way."""
    postgres_pid, redis_pid = stand.postgres.pid, stand.redis.pid
    assert postgres_pid is not None
    assert redis_pid is not None
    with Watch({"client": os.getpid(), "postgres": postgres_pid, "redis": redis_pid}) as watch:
        started = time.perf_counter()
        references = way()
        seconds = time.perf_counter() - started
    return Sample(references=references, seconds=round(seconds, 4), cpu_s=watch.cpu_s())


def memory(stand: Stand, path: Path, *, folder: Path) -> dict[str, float]:
    """Return the most memory that the command takes for a file in a fresh Spark."""
    command = [
        *(sys.executable, "-m", "queuekeeper", "quality", "profile", "--rdb", str(path), "--spark-master", "local[2]"),
        *("--postgres-url", stand.postgres_url),
    ]
    environment = {**os.environ, "QUEUEKEEPER_HOME": str(folder)}
    with (folder / "memory.log").open("w+") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        peaks = peak_mib(process)
        if process.returncode:
            said.seek(0)
            raise QueuekeeperError(f"the profile of {path.name} failed:\n{said.read()[-3_000:]}")
    return {"file_mib": round(path.stat().st_size / 2**20, 1), "jvm_mib": peaks["jvm"], "python_mib": peaks["python"]}


def summary(rounds: dict[str, list[Sample]]) -> dict[str, Any]:
    """Return medians over the rounds; a snapshot is compared with the server within a round."""
    ways: dict[str, Any] = {}
    for way, samples in rounds.items():
        live = rounds[way.replace(SNAPSHOT, LIVE)]
        ways[way] = {
            "references_per_s": round(statistics.median(each.references / each.seconds for each in samples)),
            "references_per_cpu_s": round(statistics.median(each.per_cpu_s for each in samples)),
            "cpu_us_per_reference": {
                party: round(1e6 * statistics.median(each.cpu_s[party] / each.references for each in samples), 2)
                for party in samples[0].cpu_s
            },
            "times_live": round(
                statistics.median(each.per_cpu_s / other.per_cpu_s for each, other in zip(samples, live, strict=True)),
                2,
            ),
        }
    return ways


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table."""
    used_by = ("client", "redis", "postgres")
    table = bench.table_of(
        f"{result['queues']:,} queues of {result['references_per_queue']:,} references, {result['file_mib']:,} MiB",
        *("way", "references/s", "per s of processor", "times live", *(f"{party} µs" for party in used_by)),
    )
    for way, values in result["summary"].items():
        table.add_row(
            way, f"{values['references_per_s']:,}", f"{values['references_per_cpu_s']:,}",
            f"{values['times_live']:.2f}", *(f"{values['cpu_us_per_reference'][party]:.1f}" for party in used_by),
        )  # fmt: skip
    console.print(table)
    for entry in result["memory"]:
        console.print(f"{entry['file_mib']:,} MiB: JVM {entry['jvm_mib']} MiB, Python {entry['python_mib']} MiB")


def started(folder: Path) -> SparkSession:
    """Start Spark."""
    os.environ["JAVA_HOME"] = str(java_home(folder))
    return build_session("queuekeeper benchmark", master="local[2]")


def run(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Measure everything."""
    with bench.private_folder() as folder, private_servers(folder, arguments.server) as (postgres, server):
        stand = Stand(
            spark=started(folder), postgres=postgres, postgres_url=postgres.create_database("benchmark"), redis=server,
            throttle_references_per_s=1,
        )  # fmt: skip
        size = {"references": arguments.references, "payload_bytes": arguments.payload_bytes}
        tenth = max(1, arguments.queues // 10)
        profile_queues.fill(server.url, first=0, queues=tenth, **size)
        files = [saved(stand, "tenth.rdb")]
        console.print("filling and warming up")
        profile_queues.fill(server.url, first=tenth, queues=arguments.queues - tenth, **size)
        files.append(saved(stand, "all.rdb"))
        profile_queues.profile(stand)
        ways: dict[str, Callable[[], Sample]] = {}
        for ending, contents in (("", False), (CONTENTS, True)):
            live = partial(profile_queues.profile, stand, contents=contents)
            ways[LIVE + ending] = partial(measured, stand, live)
            ways[SNAPSHOT + ending] = partial(
                measured, stand, partial(of_snapshot, stand, files[-1], contents=contents)
            )
        rounds = bench.in_turns(
            ways,
            rounds=arguments.rounds,
            console=console,
            told=lambda each: f"{each.per_cpu_s:,.0f} per s of processor",
        )
        with connect(stand.postgres_url) as connection, server.client() as client:
            about = bench.facts(connection, client) | {"spark": version("pyspark")}
        stand.spark.stop()
        found = [memory(stand, path, folder=folder) for path in files] if arguments.memory else []
        file_mib = round(files[-1].stat().st_size / 2**20, 1)
    return {
        "machine": about,
        "queues": arguments.queues,
        "references_per_queue": arguments.references,
        "payload_bytes": arguments.payload_bytes,
        "file_mib": file_mib,
        "summary": summary(rounds),
        "memory": found,
        "rounds": bench.in_words(rounds),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write the result."""
    parser = profile_queues.options(__doc__)
    return profile_queues.finish(parser, words, name="snapshot", work=run, tell=show)


if __name__ == "__main__":
    sys.exit(main())
