"""The benchmark of the copy measures what it says, on a sample too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.spark


# Each of its ways is a step that other tests of this lane take.
@pytest.mark.nightly
def test_a_small_run_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, _ = measured(
        "backfill",
        tmp_path,
        *("--messages", "2000", "--sessions", "200", "--rounds", "1", "--naive-messages", "300"),
        servers={"spark", "postgresql", "valkey"},
    )
    assert result["messages"] == 2_000
    assert result["naive_messages"] == 300
    assert list(result["summary"]["ways"]) == ["reading limit", "writing limit", "naive", "copy"]
    for way, (sample,) in result["rounds"].items():
        assert sample["messages"] == (300 if way == "naive" else 2_000)
        assert sample["seconds"] > 0
        # So few rows take the limits less time than the kernel's clock can tell.
        assert sample["cpu_s"]["client"] > 0 or way.endswith("limit"), way
        assert result["summary"]["ways"][way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
    ways = result["summary"]["ways"]
    limit = min(ways["reading limit"]["messages_per_s"], ways["writing limit"]["messages_per_s"])
    assert result["summary"]["share_of_slower_limit"] == pytest.approx(ways["copy"]["messages_per_s"] / limit, abs=0.01)


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--messages", "-1"), ("--server", "memcached")])
def test_impossible_wishes_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    assert is_refused("backfill", *words)
