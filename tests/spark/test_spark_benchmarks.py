"""Benchmarks with Spark measure what they say, with counts too small for their figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.spark


# Each of its ways is a step that other tests of this lane take.
@pytest.mark.nightly
def test_a_small_run_of_the_copy_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, _ = measured(
        "backfill",
        tmp_path,
        *("--messages", "2000", "--sessions", "200", "--rounds", "1", "--naive-messages", "300"),
        servers={"spark", "postgresql", "valkey"},
    )
    assert result["messages"] == 2_000
    assert result["naive_messages"] == 300
    assert list(result["summary"]["ways"]) == [
        "reading limit", "writing limit", "naive", "pipeline of redis-py", "foreachPartition", "copy", "packed copy",
        "verify", "packed verify",
    ]  # fmt: skip
    for way, (sample,) in result["rounds"].items():
        assert sample["messages"] == (300 if way == "naive" else 2_000)
        assert sample["seconds"] > 0
        # So few rows take the limits less time than the kernel's clock can tell.
        assert sample["cpu_s"]["client"] > 0 or way.endswith("limit"), way
        assert result["summary"]["ways"][way]["messages_per_s"] == round(sample["messages"] / sample["seconds"])
    ways = result["summary"]["ways"]
    limit = min(ways["reading limit"]["messages_per_s"], ways["writing limit"]["messages_per_s"])
    assert result["summary"]["share_of_slower_limit"] == pytest.approx(ways["copy"]["messages_per_s"] / limit, abs=0.01)


@pytest.mark.nightly
def test_a_small_run_on_a_snapshot_measures_it_beside_its_server(tmp_path: Path) -> None:
    result, said = measured(
        "snapshot", tmp_path, *("--queues", "30", "--references", "5", "--rounds", "1", "--memory"),
        servers={"spark", "postgresql", "valkey"},
    )  # fmt: skip
    assert list(result["rounds"]) == ["live", "snapshot", "live contents", "snapshot contents"]
    for way, (sample,) in result["rounds"].items():
        assert sample["references"] == 150
        used = result["summary"][way]["references_per_cpu_s"]
        assert used == round(150 / sum(sample["cpu_s"].values()))
        other = result["summary"][way.replace("snapshot", "live")]["references_per_cpu_s"]
        assert result["summary"][way]["times_live"] == pytest.approx(used / other, abs=0.05)
    tenth, whole = result["memory"]
    # So few queues are less than a tenth of a MiB in part.
    assert tenth["file_mib"] < whole["file_mib"] == result["file_mib"]
    assert min(tenth["python_mib"], whole["jvm_mib"]) > 0
    assert "times live" in said


@pytest.mark.nightly
def test_a_small_run_of_growth_measures_all_jobs_at_each_size_and_draws_lines(tmp_path: Path) -> None:
    result, _ = measured(
        "growth",
        tmp_path,
        *("--messages", "1000", "2000", "3000", "--executors", "1", "--per-executor", "1000"),
        servers={"spark", "postgresql", "valkey"},
    )
    jobs = ["plan", "copy", "verify", "profile", "quality", "cleanup: plan", "cleanup: apply", "partition survey"]
    assert [size["messages"] for size in result["sizes"]] == [1_000, 2_000, 3_000]
    small, large, largest = (size["samples"] for size in result["sizes"])
    for name in jobs:
        line = result["lines"][name]["client"]
        for sample, messages in ((small[name], 1_000), (large[name], 2_000)):
            told_s = line["fixed_s"] + messages * line["us_per_message"] / 1e6
            assert told_s == pytest.approx(sample["cpu_s"]["client"], abs=0.001), name
        told_s = sum(
            line["fixed_s"] + 3_000 * line["us_per_message"] / 1e6
            for party, line in result["lines"][name].items()
            if party in ("client", "redis", "postgres")
        )
        off = told_s / sum(largest[name]["cpu_s"].values()) - 1
        assert result["lines"][name]["off"] == pytest.approx(off, abs=0.01), name
    for size in result["sizes"]:
        assert list(size["samples"]) == jobs
        assert size["samples"]["copy"]["connections"]["redis"] > 0
        # Counts by cohort, not by message.
        assert size["control_after_verify"]["rows"] == result["sizes"][0]["control_after_verify"]["rows"]
    (alone,) = result["executors"]
    assert (alone["executors"], alone["messages"]) == (1, 1_000)
    assert alone["memory_mib"]["executors"] > 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("backfill", ("--rounds", "0")),
        ("backfill", ("--messages", "-1")),
        ("backfill", ("--server", "memcached")),
        ("snapshot", ("--queues", "0")),
        ("growth", ("--messages", "49")),
        ("growth", ("--executors", "0")),
    ],
)
def test_impossible_wishes_are_refused_before_anything_is_started(name: str, words: tuple[str, ...]) -> None:
    assert is_refused(name, *words)
