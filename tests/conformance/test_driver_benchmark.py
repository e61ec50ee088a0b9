"""The benchmark of Redis clients measures each that is installed, and names those that are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.benchmark_runs import is_refused, measured

pytestmark = pytest.mark.conformance


@pytest.mark.nightly
def test_a_small_run_measures_what_is_installed_and_names_what_is_not(tmp_path: Path) -> None:
    result, said = measured("drivers", tmp_path, "--rounds", "1", "--seconds", "0.05", servers={"valkey"})
    for driver in ("ours", "redis.asyncio", "coredis", "glide"):
        is_left_out = importlib.util.find_spec(driver.partition(".")[0]) is None if driver != "ours" else False
        assert (f"{driver} is left out" in said) == is_left_out, driver
        for case in ("writer, 512 publishers", "overlap, 100 x 1", "overlap, 10 x 10"):
            assert (f"{case}: {driver}" in result["summary"]) != is_left_out, driver
    for way, figures in result["summary"].items():
        [sample] = result["rounds"][way]
        assert sample["messages"] > 0, way
        ours = result["summary"][f"{way.partition(': ')[0]}: ours"]
        expected = figures["messages_per_s"] / ours["messages_per_s"]
        assert figures["speed_to_ours"] == pytest.approx(expected, rel=0.01, abs=0.001), way


def test_impossible_wishes_are_refused_before_anything_is_started() -> None:
    assert is_refused("drivers", "--seconds", "0")
