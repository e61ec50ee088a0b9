"""What real queues do under load, while somebody is killed, is what their models in ``proofs/`` allow.

``TRACE_SEEDS`` says how many seeded runs each has, ``TRACE_FIRST_SEED`` with which number they begin. Redis flushes its
file with every write, as only then a kill loses nothing. A session that changes its owner has its traces in
``test_online_migration_survives.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import pytest

from queuekeeper.embedded import RedisServer
from tests.chaos.fanout_trace import FanoutTrace
from tests.chaos.fanout_wrong_steps import wrong_fanout_traces
from tests.chaos.traced_fanout import TracedFanout
from tests.conftest import REDIS_FLAVOURS, nightly

pytestmark = pytest.mark.chaos

ASKED_SEEDS = int(os.environ.get("TRACE_SEEDS") or 0)
FIRST_SEED = int(os.environ.get("TRACE_FIRST_SEED") or 1)
SEEDS = range(FIRST_SEED, FIRST_SEED + ASKED_SEEDS) or [1, *nightly(2, 3, 4)]
STRIKES = ("worker", "worker", "publisher", "server", "end of a worker")
HAPPENED = "what has happened"


@pytest.fixture
def queue_of(redis_server_factory: Callable[..., RedisServer], tmp_path: Path) -> Callable[[int], TracedFanout]:
    """Make the queue of a seed, on a server of its own."""

    def make(seed: int) -> TracedFanout:
        server = redis_server_factory(flavour=REDIS_FLAVOURS[seed % len(REDIS_FLAVOURS)], appendfsync="always")
        return TracedFanout(server, tmp_path, seed)

    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_fanout_queue_takes_no_step_that_its_model_does_not_allow(
    queue_of: Callable[[int], TracedFanout], seed: int
) -> None:
    queue = queue_of(seed)
    queue.run(random.Random(seed).choices(STRIKES, k=6))
    found = FanoutTrace(queue.folder)
    stuck = [str(each) for each in found.replay({HAPPENED: found.lanes()})]
    assert stuck == [], "\n".join([*queue.story, *stuck, f"traces: {queue.folder}"])


def test_wrong_step_of_a_fanout_queue_is_found_in_its_trace(queue_of: Callable[[int], TracedFanout]) -> None:
    queue = queue_of(5)

    def until_all_can_be_wrong() -> Iterator[str]:
        for strike in cycle(("worker", "end of a worker")):
            yield strike
            with suppress(LookupError):
                wrong_fanout_traces(FanoutTrace(queue.folder).lanes())
                return

    queue.run(until_all_can_be_wrong())
    found = FanoutTrace(queue.folder)
    trace = found.lanes()
    wrong = wrong_fanout_traces(trace)
    stuck = {each.name for each in found.replay({HAPPENED: trace} | wrong)}
    assert stuck == wrong.keys()
