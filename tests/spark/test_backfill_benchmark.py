"""The benchmark of the copy measures what it says, on a sample too small for its figures to mean anything."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def test_a_small_run_measures_all_ways_and_writes_them_down(tmp_path: Path) -> None:
    path = tmp_path / "result.json"

    done = subprocess.run(
        [
            *(sys.executable, str(ROOT / "benchmarks" / "backfill.py"), "--messages", "2000", "--sessions", "200"),
            *("--rounds", "1", "--naive-messages", "300", "--json", str(path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    text = path.read_text("utf-8")
    result = json.loads(text)
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
    # The result is published: it says what kind of machine it was, not which one.
    assert {"processor", "cores", "memory_gib", "spark", "postgresql", "valkey"} <= set(result["machine"])
    for secret in (socket.gethostname(), str(tmp_path), str(ROOT), "redis://", "postgresql://"):
        assert secret not in text


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--messages", "-1"), ("--server", "memcached")])
def test_impossible_wishes_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "backfill.py"), *words], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "error:" in done.stderr
