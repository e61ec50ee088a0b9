"""An online migration under load plays one history for each seed, and keeps its promises in each.

``SIMULATED_SEEDS`` says how many seeds are played, ``SIMULATED_FIRST_SEED`` with which number they begin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from queuekeeper.embedded import PostgresServer
from tests.chaos.conftest import template_of
from tests.chaos.online_scenarios import POSTGRES_VARIABLE, REDIS_VARIABLE, VIOLATED
from tests.chaos.simulated_sessions import BROKEN, prepare_world
from tests.conftest import nightly

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parents[2]
ASKED_SEEDS = int(os.environ.get("SIMULATED_SEEDS") or 0)
FIRST_SEED = int(os.environ.get("SIMULATED_FIRST_SEED") or 1)
SEEDS = range(FIRST_SEED, FIRST_SEED + ASKED_SEEDS) or nightly(*range(2, 30))
FINDS_SEEDS = range(3, 30)
"""Seeds of which the first ones find what is broken."""

_names = count(1)

Played = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def template(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a database with an armed migration, and with a clock that is set by hand."""
    with template_of(postgres_server, "simulated", prepare_world) as name:
        yield name


@pytest.fixture
def played(postgres_server: PostgresServer, template: str, valkey_url: str) -> Played:
    """Play a seed in a process of its own, on a database of its own and an empty Redis."""

    def play(seed: int, *broken: str) -> subprocess.CompletedProcess[str]:
        name = f"simulated_{os.getpid()}_{next(_names)}"
        servers = {
            POSTGRES_VARIABLE: postgres_server.create_database(name, template=template),
            REDIS_VARIABLE: valkey_url,
        }
        try:
            return subprocess.run(
                [sys.executable, "-m", "tests.chaos.simulated_sessions", str(seed), *broken],
                cwd=ROOT, env=os.environ | servers | {"PYTHONHASHSEED": "0"},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        finally:
            postgres_server.drop_database(name)

    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_simulated_migration_keeps_its_promises(played: Played, seed: int) -> None:
    history = played(seed)
    assert history.returncode == 0, history.stderr


def test_simulated_migration_keeps_its_promises_and_has_one_history(played: Played) -> None:
    first, second = (played(FIRST_SEED) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == second.stdout.splitlines()


@pytest.mark.parametrize("broken", [next(iter(BROKEN)), *nightly(*list(BROKEN)[1:])])
def test_broken_promise_is_found(played: Played, broken: str) -> None:
    codes = (played(seed, broken).returncode for seed in FINDS_SEEDS)
    assert next((code for code in codes if code), 0) == VIOLATED
