"""The benchmark of the profile measures what it says, on so few queues that its figures mean nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from queuekeeper.embedded import PostgresServer, RedisServer

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with its neighbours on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("profile_queues")


def test_all_ways_take_turns_beside_a_client_that_is_timed(
    benchmark: Any,
    spark: SparkSession,
    postgres_server: PostgresServer,
    postgres_url: str,
    redis_servers: Callable[[str], RedisServer],
    valkey_url: str,
) -> None:
    stand = benchmark.Stand(
        spark=spark,
        postgres=postgres_server,
        postgres_url=postgres_url,
        redis=redis_servers("valkey"),
        throttle_references_per_s=1_000,
        quiet_s=0.2,
    )
    benchmark.fill(valkey_url, first=0, queues=20, references=30, payload_bytes=64)
    said: list[str] = []

    rounds = benchmark.take_turns(stand, rounds=1, say=said.append)

    assert said == ["round 1"]
    assert {way: sample.references >= 600 for way, (sample,) in rounds.items()} == {
        "quiet": False, "profile": True, "throttled": True, "contents": True,
    }  # fmt: skip
    for (sample,) in rounds.values():
        assert [latency.operation for latency in sample.latencies] == ["ping", "save"]
        assert all(latency.count > 0 and latency.p50_ms <= latency.longest_ms for latency in sample.latencies)
    summary = benchmark.summary(rounds)
    (profile,) = rounds["profile"]
    assert summary["profile"]["references_per_s"] == round(profile.references / profile.seconds)
    assert summary["contents"]["cpu_us_per_reference"]["client"] > 0
    assert summary["quiet"]["latencies"]["save"]["p99_times_quiet"] == 1


def test_every_thread_of_a_process_and_of_its_children_yields(benchmark: Any) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        started = psutil.Process(process.pid)
        benchmark.yield_processors(started)
        family = [started, *started.children(recursive=True)]
        assert len(family) == 2
        assert {os.getpriority(os.PRIO_PROCESS, thread.id) for each in family for thread in each.threads()} == {19}
        process.communicate(b"\n")


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--throttle", "0"), ("--queues", "-1"), ("--server", "memcached")]
)
def test_impossible_wishes_are_refused_before_anything_is_started(
    benchmark: Any, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert "error:" in capsys.readouterr().err
