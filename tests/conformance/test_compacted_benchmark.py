"""The benchmark of compacted queues measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance


@pytest.mark.nightly
def test_a_small_run_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, said = measured(
        "compacted",
        tmp_path,
        *("--rounds", "1", "--messages", "400", "--clients", "2", "--keys", "20", "--payload-bytes", "256"),
        *("--rows", "1000"),
        servers={"valkey"},
    )
    ways = result["summary"]
    appending = [
        *("producer", "mixed", "append x 1", "append x 100", "piped append x 1", "piped append x 100"),
        *("plain append x 1", "plain append x 100"),
    ]
    reading = ["consumer", "fetch x 5", "fetch x 100", "piped fetch x 100", "plain fetch x 100"]
    assert ways.keys() == {
        *(f"{way}, {keys}, 256 B" for way in appending for keys in ("new", "reused")),
        *(f"{way}, 256 B" for way in reading),
        "append x 100, reused, flushed always, 256 B",
    }
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
        assert sample["server_cpu_s"] > 0, way
        made_beforehand = way.startswith(("piped", "plain"))
        assert (sample["client_cpu_s"] is None) == (sample["p50_ms"] is None) == made_beforehand, way
        # What is overwritten before it is read does not come; what the queues held before may.
        assert sample["messages"] == 400 or way.startswith("mixed"), way
    (both,) = result["rounds"]["mixed, new, 256 B"]
    assert both["messages"] == 800
    ours, plain = ways["append x 100, new, 256 B"], ways["plain append x 100, new, 256 B"]
    assert ours["of_limit"] == pytest.approx(ours["messages_per_s"] / plain["messages_per_s"], rel=0.01)
    assert ours["per_server_cpu_s"] == pytest.approx(1e6 / ours["server_cpu_us"], rel=0.01)
    stored = result["bytes_per_message"]["256"]
    assert set(stored) == {"100", "1000", "20000"}
    assert all(256 < each < 1_000 for each in stored.values())
    operations = result["blocking"]["1000"]
    # The first makes the queue known to the collector.
    assert operations["append, 100 new keys"]["calls"] == 1 + 10
    assert {"collect, 100 at once", "verify", "fetch, a window of 500", "rewind", "purge", "drop"} < operations.keys()
    for operation, found in operations.items():
        assert 0 < found["p10_ms"] <= found["p50_ms"] <= found["p99_ms"] <= found["longest_ms"], operation
    assert [each["what"] for each in result["original"]] == ["appends"]
    # What is not alike is said wherever the figures stand side by side.
    assert "do not compare like with like" in " ".join(said.split())


def test_impossible_wishes_are_refused_before_anything_is_started() -> None:
    assert is_refused("compacted", "--rows", "0")
