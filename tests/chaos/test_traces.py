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
from typing import Any, NamedTuple

import pytest

from queuekeeper.embedded import RedisServer
from tests.chaos.compacted_trace import CompactedTrace
from tests.chaos.compacted_wrong_steps import wrong_compacted_traces
from tests.chaos.dispatch_trace import DispatchTrace
from tests.chaos.dispatch_wrong_steps import wrong_dispatch_traces
from tests.chaos.fanout_trace import FanoutTrace
from tests.chaos.fanout_wrong_steps import wrong_fanout_traces
from tests.chaos.save_trace import SaveTrace
from tests.chaos.save_wrong_steps import wrong_save_traces
from tests.chaos.traced_compacted import TracedCompacted
from tests.chaos.traced_events import TracedEvents
from tests.chaos.traced_fanout import TracedFanout
from tests.chaos.traced_saves import TracedSaves
from tests.conftest import REDIS_FLAVOURS, nightly

pytestmark = pytest.mark.chaos

ASKED_SEEDS = int(os.environ.get("TRACE_SEEDS") or 0)
FIRST_SEED = int(os.environ.get("TRACE_FIRST_SEED") or 1)
SEEDS = range(FIRST_SEED, FIRST_SEED + ASKED_SEEDS) or [1, *nightly(2, 3, 4)]
HAPPENED = "what has happened"
ENOUGH_FOR_ALL_SEED = 5


class Traced(NamedTuple):
    """What is put under load, and held to its model.

    :ivar load: runs the processes, and kills whom a strike names.
    :ivar trace: makes a trace of what they have written down.
    :ivar wrong: makes traces with a wrong step each, or says with ``LookupError`` that the trace has no place for one.
    :ivar strikes: who may be struck; the server always may.
    :ivar number: of the strikes of a seed.
    :ivar ends: strikes that bring about a place for each wrong step in the end.
    """

    load: type[Any]
    trace: type[Any]
    wrong: Callable[[Any], dict[str, Any]]
    number: int
    strikes: tuple[str, ...]
    ends: tuple[str, ...]


FANOUT = ("worker", "worker", "publisher", "end of a worker")
COMPACTED = ("consumer", "take-over", "producer", "collector")
SESSION = ("a", "b", "a", "tbmq", "reader")
EVENTS = ("publisher", "dispatcher", "dispatcher", "consumer", "end of a consumer", "connections")
TRACED = {
    "fan-out queue": Traced(TracedFanout, FanoutTrace, wrong_fanout_traces, 6, FANOUT, ("worker", "end of a worker")),
    "compacted queue": Traced(
        TracedCompacted, CompactedTrace, wrong_compacted_traces, 6, COMPACTED, ("take-over", "consumer")
    ),
    "session": Traced(TracedSaves, SaveTrace, wrong_save_traces, 4, SESSION, ("a", "reader")),
    "event broker": Traced(TracedEvents, DispatchTrace, wrong_dispatch_traces, 4, EVENTS, ("consumer", "dispatcher")),
}


@pytest.fixture
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Traced, int], Any]:
    """Make what is put under load by a seed, on a server that may be killed."""

    def make(traced: Traced, seed: int) -> Any:
        if traced.load is TracedEvents:
            postgres_server, url = (request.getfixturevalue(name) for name in ("postgres_server", "postgres_url"))
            return TracedEvents(postgres_server, url, tmp_path, seed)
        factory: Callable[..., RedisServer] = request.getfixturevalue("redis_server_factory")
        server = factory(flavour=REDIS_FLAVOURS[seed % len(REDIS_FLAVOURS)], appendfsync="always")
        return traced.load(server, tmp_path, seed)

    return make


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TRACED)
def test_no_step_is_taken_that_the_model_does_not_allow(
    loaded: Callable[[Traced, int], Any], name: str, seed: int
) -> None:
    traced = TRACED[name]
    load = loaded(traced, seed)
    load.run(random.Random(seed).choices((*traced.strikes, "server"), k=traced.number))
    found = traced.trace(load.folder)
    stuck = [str(each) for each in found.replay({HAPPENED: found.lanes()})]
    assert stuck == [], "\n".join([*load.story, *stuck, f"traces: {load.folder}"])


@pytest.mark.parametrize("name", ["fan-out queue", *nightly("compacted queue", "session", "event broker")])
def test_wrong_step_is_found_in_the_trace(loaded: Callable[[Traced, int], Any], name: str) -> None:
    traced = TRACED[name]
    load = loaded(traced, ENOUGH_FOR_ALL_SEED)

    def until_all_can_be_wrong() -> Iterator[str]:
        for strike in cycle(traced.ends):
            yield strike
            with suppress(LookupError):
                traced.wrong(traced.trace(load.folder).lanes())
                return

    load.run(until_all_can_be_wrong())
    found = traced.trace(load.folder)
    trace = found.lanes()
    wrong = traced.wrong(trace)
    stuck = {each.name for each in found.replay({HAPPENED: trace} | wrong)}
    assert stuck == wrong.keys()
