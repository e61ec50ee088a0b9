"""The benchmark of the online path measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance


@pytest.mark.nightly
def test_a_small_run_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, _ = measured(
        "online",
        tmp_path,
        *("--rounds", "1", "--seconds", "0.05", "--messages", "200", "--sessions", "20", "--payload-bytes", "64"),
        *("--publishers", "8", "--long-queue", "600"),
        servers={"postgresql", "valkey"},
    )
    ways = result["summary"]["ways"]
    always = [
        *("naive, 8 publishers", "naive, 64 publishers", "writer, 8 publishers, 1p", "writer, 8 publishers, 2p"),
        "limit x 1",
        *("batch, 100 x 1, 1p", "batch, 100 x 1, 2p", "batch, 10 x 10, 1p", "batch, 10 x 10, 2p"),
        *("overlap, 100 x 1, 1p", "overlap, 100 x 1, 2p", "overlap, 10 x 10, 1p", "overlap, 10 x 10, 2p"),
        *("limit x 10", "limit x 100", "tbmq x 1", "tbmq x 10", "tbmq x 100", "postgres, 100 x 1", "postgres, 10 x 10"),
    ]
    assert {f"{way}, 64 B" for way in always} <= ways.keys()
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
        # So little work takes PostgreSQL less time than the kernel's clock can tell.
        assert sample["server_cpu_s"] > 0 or way.startswith("postgres"), way
        made_beforehand = way.startswith(("limit", "tbmq", "redis-benchmark", "valkey-benchmark"))
        assert (sample["client_cpu_s"] is None) == made_beforehand, way
        assert sample["messages"] == 200 or not made_beforehand, way
    naive, limit = ways["naive, 64 publishers, 64 B"], ways["limit x 1, 64 B"]
    assert limit["times_naive"] == pytest.approx(limit["messages_per_s"] / naive["messages_per_s"], rel=0.01)
    # Publishers are compared with as many naive ones.
    writer, as_many = ways["writer, 8 publishers, 1p, 64 B"], ways["naive, 8 publishers, 64 B"]
    assert writer["times_naive"] == pytest.approx(writer["messages_per_s"] / as_many["messages_per_s"], rel=0.01)
    assert naive["of_limit"] == pytest.approx(naive["messages_per_s"] / limit["messages_per_s"], abs=0.001)
    assert set(result["summary"]["server_cpu_ours_to_tbmq"]) == {"1 per call", "10 per call", "100 per call"}
    stored = result["bytes_per_message"]["64"]
    assert all(stored[store] > 64 for store in ("ours", "tbmq", "postgres"))
    blocking = result["blocking"]
    assert list(blocking) == ["save", "fetch", "ack", "trim", "purge", "sweep"]
    assert blocking["save"]["calls"] == 3 + 1  # three of at most 256 messages, and the look before
    for operation, found in blocking.items():
        assert 0 < found["p10_ms"] <= found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"], operation
        assert found["cpu_ms"] > 0, operation
    assert [fetch["messages"] for fetch in result["fetch"]] == [600, 600]


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--long-queue", "10001")])
def test_impossible_wishes_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    assert is_refused("online", *words)
