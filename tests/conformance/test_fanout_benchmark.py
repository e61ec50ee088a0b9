"""The benchmark of fan-out queues measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance


@pytest.mark.nightly
def test_a_small_run_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    result, said = measured(
        "fanout",
        tmp_path,
        *("--rounds", "1", "--consumers", "1", "3", "--messages", "20", "--deliveries", "60"),
        *("--payload-bytes", "256", "--rows", "1000"),
        servers={"valkey"},
    )
    ways = result["summary"]
    both = ["publish x 1", "publish x 100", "consume x 1", "consume x 100", "end to end"]
    works = {"fanout": both, "streams": both, "naive": ["publish x 1", "consume x 1", "end to end"]}
    assert ways.keys() == {
        f"{system} {work}, {consumers} consumers, 256 B"
        for system, all_works in works.items()
        for work in all_works
        for consumers in (1, 3)
    }
    for way, (sample,) in result["rounds"].items():
        consumers = 3 if ", 3 consumers" in way else 1
        # The first message end to end opens connections.
        done_messages = {"publish": 20, "consume": 20 * consumers, "end": 19 * consumers}[way.split()[1]]
        assert sample["messages"] == done_messages, way
        assert min(sample["server_cpu_s"], sample["client_cpu_s"], sample["p50_ms"]) > 0, way
        assert sample["p50_ms"] <= sample["p99_ms"], way
    ours, naive = (ways[f"{system} publish x 1, 3 consumers, 256 B"] for system in ("fanout", "naive"))
    assert ours["server_cpu_of_naive"] == pytest.approx(ours["server_cpu_us"] / naive["server_cpu_us"], rel=0.02)
    for stored in result["bytes_per_message"]["256"].values():
        assert all(256 < each["stored"] < 1_500 for each in stored.values())
        # What all have had is gone; the original keeps it until its time is over.
        assert max(abs(stored[system]["left"]) for system in ("fanout", "streams")) < 20
        assert stored["naive"]["left"] > 256
    calls = result["calls"]
    assert {"publish, 1 consumers", "publish, 3 consumers", "claim 1", "claim 100", "ack 1", "ack 100"} < calls.keys()
    assert calls["claim 1"]["calls"] == calls["ack 1"]["calls"] == 200
    assert all(0 < each["p10_ms"] <= each["longest_ms"] for each in calls.values())
    # What is not alike is said wherever the figures stand side by side.
    assert "do not promise the same" in " ".join(said.split())


def test_impossible_wishes_are_refused_before_anything_is_started() -> None:
    assert is_refused("fanout", "--rows", "999")
