"""The benchmark of the event broker measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance

ONE_OF_EACH = "|".join(
    [
        "^publish, single", "^(publish|insert|copy|limit), by 100,", "^poll", "^(read|queue) 1,000", "2 consumers",
        "broker at", "^. conditions", "^4 subscriptions", "^idle poll, 9",
    ]
)  # fmt: skip


@pytest.mark.nightly
def test_a_small_run_measures_all_ways_checks_delivery_and_writes_it_down(tmp_path: Path) -> None:
    result, _ = measured(
        "events",
        tmp_path,
        *("--rounds", "1", "--events", "400", "--delivered", "400", "--payload-bytes", "64", "--consumers", "2"),
        *("--conditions", "1", "4", "--per-s", "900", "--waiting", "9", "--not-durable", "--only", ONE_OF_EACH),
        servers={"postgresql"},
    )
    ways = result["summary"]["ways"]
    assert ways.keys() == {
        *("publish, single, 64 B", "publish, by 100, 64 B", "insert, by 100, 64 B", "copy, by 100, 64 B"),
        *("limit, by 100, 64 B", "poll, 64 B", "read 1,000 at once, 64 B", "queue 1,000 at once, 64 B"),
        *("broker end to end, 2 consumers, 64 B", "queue end to end, 2 consumers, 64 B"),
        *("broker at 900/s, 1 consumers, 64 B", "1 conditions", "4 conditions", "4 subscriptions of one condition"),
        "idle poll, 9 waiting",
    }
    for way, (sample,) in result["rounds"].items():
        assert ways[way]["events_per_s"] == round(sample["events"] / sample["seconds"])
        assert (sample["missing"], sample["twice"], sample["out_of_order"]) == (0, 0, 0), way
    for system in ("broker", "queue"):
        (sample,) = result["rounds"][f"{system} end to end, 2 consumers, 64 B"]
        assert sample["events"] == 800  # each consumer has each event
        assert 0 < sample["p50_ms"] <= sample["p99_ms"]
    ours, limit = ways["insert, by 100, 64 B"], ways["limit, by 100, 64 B"]
    assert ours["of_limit"] == pytest.approx(ours["events_per_s"] / limit["events_per_s"], rel=0.01)
    assert set(result["summary"]["time_per_condition"]) == {"1 to 4"}


@pytest.mark.parametrize("words", [("--events", "0"), ("--consumers", "0")])
def test_impossible_wishes_of_events_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    assert is_refused("events", *words)
