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
from typing import TypeVar

import pytest

from queuekeeper.embedded import RedisServer
from tests.chaos.compacted_trace import CompactedTrace
from tests.chaos.compacted_wrong_steps import wrong_compacted_traces
from tests.chaos.fanout_trace import FanoutTrace
from tests.chaos.fanout_wrong_steps import wrong_fanout_traces
from tests.chaos.traced_compacted import TracedCompacted
from tests.chaos.traced_fanout import TracedFanout
from tests.chaos.traced_processes import TracedProcesses
from tests.conftest import REDIS_FLAVOURS, nightly

pytestmark = pytest.mark.chaos

ASKED_SEEDS = int(os.environ.get("TRACE_SEEDS") or 0)
FIRST_SEED = int(os.environ.get("TRACE_FIRST_SEED") or 1)
SEEDS = range(FIRST_SEED, FIRST_SEED + ASKED_SEEDS) or [1, *nightly(2, 3, 4)]
STRIKES = ("worker", "worker", "publisher", "server", "end of a worker")
STRIKES_ON_COMPACTED = ("consumer", "take-over", "producer", "collector", "server")
HAPPENED = "what has happened"

Queue = TypeVar("Queue", bound=TracedProcesses)


@pytest.fixture
def queue_of(redis_server_factory: Callable[..., RedisServer], tmp_path: Path) -> Callable[[type[Queue], int], Queue]:
    """Make the queue of a seed, on a server of its own."""

    def make(kind: type[Queue], seed: int) -> Queue:
        server = redis_server_factory(flavour=REDIS_FLAVOURS[seed % len(REDIS_FLAVOURS)], appendfsync="always")
        return kind(server, tmp_path, seed)

    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_fanout_queue_takes_no_step_that_its_model_does_not_allow(
    queue_of: Callable[[type[TracedFanout], int], TracedFanout], seed: int
) -> None:
    queue = queue_of(TracedFanout, seed)
    queue.run(random.Random(seed).choices(STRIKES, k=6))
    found = FanoutTrace(queue.folder)
    stuck = [str(each) for each in found.replay({HAPPENED: found.lanes()})]
    assert stuck == [], "\n".join([*queue.story, *stuck, f"traces: {queue.folder}"])


def test_wrong_step_of_a_fanout_queue_is_found_in_its_trace(
    queue_of: Callable[[type[TracedFanout], int], TracedFanout],
) -> None:
    queue = queue_of(TracedFanout, 5)

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


@pytest.mark.parametrize("seed", SEEDS)
def test_compacted_queue_takes_no_step_that_its_model_does_not_allow(
    queue_of: Callable[[type[TracedCompacted], int], TracedCompacted], seed: int
) -> None:
    queue = queue_of(TracedCompacted, seed)
    queue.run(random.Random(seed).sample(STRIKES_ON_COMPACTED, k=len(STRIKES_ON_COMPACTED)))
    found = CompactedTrace(queue.folder)
    stuck = [str(each) for each in found.replay({HAPPENED: found.lanes()})]
    assert stuck == [], "\n".join([*queue.story, *stuck, f"traces: {queue.folder}"])


def test_wrong_step_of_a_compacted_queue_is_found_in_its_trace(
    queue_of: Callable[[type[TracedCompacted], int], TracedCompacted],
) -> None:
    queue = queue_of(TracedCompacted, 5)

    def until_all_can_be_wrong() -> Iterator[str]:
        for strike in cycle(("take-over", "consumer")):
            yield strike
            with suppress(LookupError):
                wrong_compacted_traces(CompactedTrace(queue.folder).lanes())
                return

    queue.run(until_all_can_be_wrong())
    found = CompactedTrace(queue.folder)
    trace = found.lanes()
    wrong = wrong_compacted_traces(trace)
    stuck = {each.name for each in found.replay({HAPPENED: trace} | wrong)}
    assert stuck == wrong.keys()
