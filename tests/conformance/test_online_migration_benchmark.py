"""The benchmark of online migration measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance


@pytest.mark.nightly
def test_a_small_run_measures_all_steps_and_writes_them_down(tmp_path: Path) -> None:
    result, said = measured(
        "online_migration",
        tmp_path,
        *("--clients", "40", "--messages", "2", "--rate", "40", "--seconds", "0.5", "--movers", "2"),
        servers={"postgresql", "valkey"},
    )
    steps = {line["step"]: line for line in result["steps"]}
    alone = ("load on PostgreSQL alone", "load on Redis alone")
    moving = ("cut over", "roll back", "cut over again")
    assert {*alone, *moving, "arm", "catch up", "verify", "on Redis, mirrored", "commit"} <= steps.keys()
    for name in (*alone, *moving):
        line = steps[name]
        assert line["router"]["calls"] > 0, name
        assert line["ping"]["calls"] > 0, name
        assert 0 < line["router"]["p50_ms"] <= line["router"]["p99_ms"] <= line["router"]["longest_ms"], name
        assert (line["fenced_p50_ms"] is None) == (name in alone), name
    for name in moving:
        assert 0 < steps[name]["fenced_p50_ms"] <= steps[name]["fenced_p99_ms"] <= steps[name]["fenced_longest_ms"]
        assert steps[name]["clients_per_s"] > 0
        assert name in said


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--clients", "-1")])
def test_impossible_wishes_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    assert is_refused("online_migration", *words)
