"""The benchmark of the profile measures what it says, on so few queues that its figures mean nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queuekeeper.embedded import PostgresServer, RedisServer

ROOT = Path(__file__).parents[2]
_POLICY = "import os, sys; sys.exit(os.sched_getscheduler(0))"

pytestmark = pytest.mark.spark


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with its neighbours on the path."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("profile_queues")


# What it measures has tests of its own in tests/spark/test_profile_queues.py.
@pytest.mark.nightly
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
    apart = ("quiet apart", "profile apart", "throttled apart", "contents apart") if benchmark.may_come_first() else ()
    assert [way for way, (sample,) in rounds.items() if sample.references >= 600] == [
        way for way in ("quiet", "profile", "throttled", "contents", *apart) if not way.startswith("quiet")
    ]
    for (sample,) in rounds.values():
        assert [latency.operation for latency in sample.latencies] == ["ping", "save"]
        assert all(latency.count > 0 and latency.p50_ms <= latency.longest_ms for latency in sample.latencies)
    summary = benchmark.summary(rounds)
    (profile,) = rounds["profile"]
    assert summary["profile"]["references_per_s"] == round(profile.references / profile.seconds)
    assert summary["contents"]["cpu_us_per_reference"]["client"] > 0
    assert summary["quiet"]["latencies"]["save"]["p99_times_quiet"] == 1


def test_redis_comes_first_while_a_way_apart_is_measured_and_not_after(benchmark: Any) -> None:
    if not benchmark.may_come_first():
        pytest.skip("this system gives nobody, or not this user, real-time priority")
    pid = os.getpid()
    with benchmark.before_others(pid):
        assert os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
        assert subprocess.run([sys.executable, "-c", _POLICY], check=False).returncode == os.SCHED_OTHER
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER


def test_ways_apart_are_left_out_with_words_where_the_system_does_not_let_redis_come_first(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    def measured(_: object, way: object, *, apart: bool) -> str:
        return f"{way} {apart}"

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    monkeypatch.setattr(benchmark, "measured", measured)
    said: list[str] = []
    rounds = benchmark.take_turns(None, rounds=2, say=said.append)
    assert list(rounds) == ["quiet", "profile", "throttled", "contents"]
    assert all(sample.endswith("False") for samples in rounds.values() for sample in samples)
    assert "CAP_SYS_NICE" in said[0]


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--throttle", "0"), ("--queues", "-1"), ("--server", "memcached")]
)
def test_impossible_wishes_are_refused_before_anything_is_started(
    benchmark: Any, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(words)
    assert "error:" in capsys.readouterr().err
