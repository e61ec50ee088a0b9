"""Judgements of the pre-flight check on servers that cannot be had here, or only after long waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from queuekeeper.migration.servers import server_problems
from queuekeeper.redis_client import ServerFacts

pytestmark = pytest.mark.unit

FITTING = ServerFacts(
    address="10.0.0.1:6379",
    version="7.0.15",
    is_valkey=False,
    used_memory_bytes=2**20,
    maxmemory_bytes=0,
    maxmemory_policy="noeviction",
    total_system_memory_bytes=2**34,
    aof_enabled=True,
    role="master",
    run_id="r" * 40,
    replication_id="i" * 40,
)


@pytest.mark.parametrize(
    ("version", "is_valkey"), [("7.0.0", False), ("7.4.2", False), ("8.0.1", False), ("10.0", False), ("9.1.2", True)]
)
def test_present_versions_are_accepted(version: str, is_valkey: bool) -> None:
    assert server_problems(replace(FITTING, version=version, is_valkey=is_valkey)) == []


@pytest.mark.parametrize("version", ["6.2.14", "5.0.7", "2.8", "6.255.255"])
def test_old_redis_is_refused(version: str) -> None:
    assert server_problems(replace(FITTING, version=version)) == [
        f"Redis at 10.0.0.1:6379 is version {version}: upgrade it to 7.0 or later"
    ]


def test_every_problem_of_a_server_is_named() -> None:
    problems = server_problems(replace(FITTING, version="6.0.1", role="slave", maxmemory_policy="allkeys-lru"))

    assert [problem.partition(" ")[0] for problem in problems] == ["Redis"] * 3
    assert ["version" in problems[0], "replica" in problems[1], "allkeys-lru" in problems[2]] == [True] * 3
