"""The benchmark of online migration measures what it says, with counts too small for its figures to mean anything."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.conformance


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "online_migration.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_small_run_measures_all_steps_and_writes_them_down(tmp_path: Path) -> None:
    path = tmp_path / "result.json"

    done = run(
        *("--clients", "40", "--messages", "2", "--rate", "40", "--seconds", "0.5", "--movers", "2"),
        *("--json", str(path)),
    )

    assert done.returncode == 0, done.stdout + done.stderr
    text = path.read_text("utf-8")
    result = json.loads(text)
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
        assert name in done.stdout
    # The result is published: it says what kind of machine it was, not which one.
    assert {"processor", "cores", "memory_gib", "postgresql", "valkey"} <= set(result["machine"])
    for secret in (socket.gethostname(), str(tmp_path), str(ROOT), "redis://", "postgresql://"):
        assert secret not in text


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--clients", "-1")])
def test_impossible_wishes_are_refused_before_anything_is_started(words: tuple[str, str]) -> None:
    done = run(*words)

    assert done.returncode == 2
    assert "error:" in done.stderr
