"""The benchmark of the profile measures what it says, on so few queues that its figures mean nothing."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Namespace
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
        "quiet": False, "profile": True, "throttled": True, "contents": True, "yielding": True, "gentle": True,
    }  # fmt: skip
    for (sample,) in rounds.values():
        assert [latency.operation for latency in sample.latencies] == ["ping", "save"]
        assert all(latency.count > 0 and latency.p50_ms <= latency.longest_ms for latency in sample.latencies)
    summary = benchmark.summary(rounds)
    (profile,) = rounds["profile"]
    assert summary["profile"]["references_per_s"] == round(profile.references / profile.seconds)
    assert summary["contents"]["cpu_us_per_reference"]["client"] > 0
    assert summary["quiet"]["latencies"]["save"]["p99_times_quiet"] == 1


def test_spark_yields_while_it_works_with_all_its_threads_and_children_and_not_after(
    benchmark: Any, spark: SparkSession
) -> None:
    def work(_: Any) -> int:
        seen.append(set(benchmark.policies(machine).values()))
        return int(spark.range(100).count())

    java: Any = spark.sparkContext._jvm
    machine = psutil.Process(java.java.lang.ProcessHandle.current().pid())
    # A Python worker, too.
    assert spark.sparkContext.parallelize([1]).map(lambda number: number + 1).collect() == [2]
    assert len(machine.children(recursive=True)) > 0
    seen: list[set[int]] = []
    assert benchmark.yielding(work)(Namespace(spark=spark)) == 100
    assert seen == [{os.SCHED_IDLE}]
    assert set(benchmark.policies(machine).values()) == {os.SCHED_OTHER}


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--throttle", "0"), ("--queues", "-1"), ("--server", "memcached")]
)
def test_impossible_wishes_are_refused_before_anything_is_started(
    benchmark: Any, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert "error:" in capsys.readouterr().err
