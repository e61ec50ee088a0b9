"""A migration while devices are connected, there and back, under load, with everybody killed in turn.

Two brokers publish, deliver and acknowledge through routers all the time, and every message is accounted for in the
end. ``ONLINE_SEEDS`` says how many seeded runs there are, ``ONLINE_FIRST_SEED`` with which number they begin; a failed
run is met again by its number alone, though not to the millisecond. Redis flushes its file with every write, as only
then a kill loses nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer, RedisServer
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.migration.ledger.parameters import Source
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.sessions.pages import Layout
from tests.chaos.online_world import CLIENTS_PER_S, COHORTS, PLAN_ID, VICTIMS, Fault, OnlineWorld, Side, Step
from tests.chaos.owner_trace import OwnerTraces
from tests.chaos.owner_wrong_steps import wrong_owner_traces
from tests.conftest import REDIS_FLAVOURS, nightly
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos

ASKED_SEEDS = int(os.environ.get("ONLINE_SEEDS") or 0)
FIRST_SEED = int(os.environ.get("ONLINE_FIRST_SEED") or 1)
# Run 27 goes there, back, and there once more: a driver, a broker and both servers die. In the second nobody dies, and
# another driver comes twice; it ends with a commit.
SEEDS = range(FIRST_SEED, FIRST_SEED + ASKED_SEEDS) or [27, *nightly(1, 2, 3, 4)]
INTO_TBMQ = (Source.POSTGRES, Layout.TBMQ)
INTO_PACKED = (Source.POSTGRES, Layout.PACKED)
BETWEEN_LAYOUTS = ((Source.TBMQ, Layout.PACKED), (Source.PACKED, Layout.TBMQ))
# The same driver moves sessions by each way; the one into TBMQ's layout has the other tests here.
WAYS = (
    [INTO_TBMQ, INTO_PACKED, *BETWEEN_LAYOUTS] if ASKED_SEEDS else [INTO_PACKED, *nightly(INTO_TBMQ, *BETWEEN_LAYOUTS)]
)

REPLAYED = 4
"""Clients of a run whose traces are replayed: a run takes as long as that."""

THERE: tuple[Step, ...] = ("arm", "catch_up", "verify", "cut_over")
_names = count(1)


def name_of_way(way: tuple[Source, Layout]) -> str:
    """Return what a test of a way is called."""
    return "-to-".join(way)


@pytest.fixture(scope="module")
def redis_homes(server_home: Path) -> Iterator[dict[Flavour, RedisServer]]:
    """A server of each flavour that loses nothing when it is killed."""
    servers = {
        flavour: RedisServer(
            server_home / f"online-{flavour}",
            flavour=flavour,
            config={"appendfsync": "always"},
            die_with_parent=True,
        )
        for flavour in REDIS_FLAVOURS
    }
    yield servers
    for server in servers.values():
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


@pytest.fixture(params=[INTO_TBMQ], ids=name_of_way)
def world(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    online_template: str,
    redis_homes: dict[Flavour, RedisServer],
    tmp_path: Path,
) -> Iterator[Callable[[int], OnlineWorld]]:
    """Make the world of one seed, with an empty database and an empty Redis."""
    made: list[str] = []

    def make(seed: int) -> OnlineWorld:
        postgres_server.start()
        made.append(f"online_{os.getpid()}_{next(_names)}")
        postgres_server.create_database(made[-1], template=online_template)
        redis = redis_homes[REDIS_FLAVOURS[seed % len(REDIS_FLAVOURS)]]
        redis.start()
        with redis.client() as client:
            client.flushall()
        from_store, layout = request.param
        return OnlineWorld(
            server=postgres_server,
            database=made[-1],
            redis=redis,
            folder=tmp_path,
            seed=seed,
            from_store=from_store,
            layout=layout,
        )

    yield make
    postgres_server.start()
    for name in made:
        postgres_server.drop_database(name)


def patient(online: OnlineWorld) -> OnlineWorld:
    """Let calls wait: how long the longest takes is judged by a benchmark, and a busy machine makes none fail."""
    online.brokers = [replace(each, patience_s=PATIENCE_S) for each in online.brokers]
    return online


@pytest.mark.parametrize("world", [INTO_TBMQ, *nightly(INTO_PACKED, *BETWEEN_LAYOUTS)], indirect=True, ids=name_of_way)
def test_devices_notice_nothing_of_a_migration_and_its_rollback(world: Callable[[int], OnlineWorld]) -> None:
    online = patient(world(0))
    with online.loaded():
        for step in THERE:
            online.complete(step)
            if step == "cut_over":
                assert online.owners() == {"target"}
            online.await_load(0.2)
        online.keep_mirrored()
        online.complete("soak")
        assert online.states() == {OnlineState.SOAKING}
        online.complete("roll_back")
        assert online.owners() == {"source"}

    held = online.snapshots()
    balance = online.balance(held["source"])
    assert balance.accepted > 500, "there was hardly any load"
    assert balance.acknowledged > 100
    assert balance.stored > 20
    assert balance.failures == {}, "a call failed, though nothing did"


# By day: test_traces.py, with the steps of a fan-out queue.
@pytest.mark.nightly
def test_wrong_step_is_found_in_a_trace(world: Callable[[int], OnlineWorld]) -> None:
    online = patient(world(5))
    with online.loaded():
        for step in THERE:
            online.complete(step)
        online.complete("mirror")
        online.await_load(0.5)
        online.complete("roll_back")

    found = OwnerTraces(online.folder, cohort_count=COHORTS)
    # One whose queue was not empty at the moments of interest.
    for client_id in found.clients():
        with suppress(LookupError):
            trace = found.of_client(client_id)
            wrong = wrong_owner_traces(trace)
            break
    stuck = {each.name for each in found.replay({"what has happened": trace} | wrong)}
    assert stuck == wrong.keys()


# The seeded run compares both stores, too, when somebody has died in each step.
@pytest.mark.nightly
def test_mirror_has_all_that_redis_has_when_the_load_ends(world: Callable[[int], OnlineWorld]) -> None:
    online = patient(world(1))
    with online.loaded():
        for step in THERE:
            online.complete(step)
        online.complete("mirror")
        online.complete("soak")
    online.complete("mirror")

    held = online.snapshots()
    assert online.balance(held["target"]).failures == {}
    online.check_equal(held["target"], held["source"])
    online.balance(held["source"])


# tests/conformance/test_online_migration.py rehearses and commits without load.
@pytest.mark.nightly
def test_rehearsed_and_committed_migration_leaves_redis_with_all(world: Callable[[int], OnlineWorld]) -> None:
    online = patient(world(2))
    with online.loaded():
        online.complete("arm")
        with postgres.connect(online.postgres_url, autocommit=True) as connection:
            OnlineCohorts(connection).choose_canary(PLAN_ID, [0])
        online.complete("rehearse")
        for step in ("catch_up", "verify", "cut_over", "soak", "commit"):
            online.complete(step)
        assert online.states() == {OnlineState.COMMITTED}
        online.await_load(0.5)

    assert online.balance(online.snapshots()["target"]).failures == {}


# tests/integration/test_cli_online.py leads one without load.
@pytest.mark.nightly
def test_commands_lead_a_migration_there_and_back(world: Callable[[int], OnlineWorld]) -> None:
    online = patient(world(3))
    environment = os.environ | {
        "QUEUEKEEPER_POSTGRES_URL": online.postgres_url,
        "QUEUEKEEPER_REDIS_URL": online.redis.url,
    }

    def run(*words: str) -> str:
        command = [str(Path(sys.executable).parent / "queuekeeper"), "online", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        # Clients that a busy machine could not change over within their lease are named, to be tried again.
        for _ in range(20):
            if "try again" not in done.stdout or done.returncode == 0:
                break
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with online.loaded():
        run("arm", PLAN_ID)
        run("catch-up", PLAN_ID)
        run("verify", PLAN_ID)
        run("cut-over", PLAN_ID, "--yes", "--lease-ms", "500")
        assert online.owners() == {"target"}
        run("mirror", PLAN_ID)
        assert "on_redis" in run("status", PLAN_ID, "--json")
        # On a busy machine the commands themselves take long to start, and meanwhile nobody mirrors.
        run("roll-back", PLAN_ID, "--yes", "--lease-ms", "500", "--max-lag-s", "3600")

    assert online.owners() == {"source"}
    assert online.balance(online.snapshots()["source"]).failures == {}


# tests/conformance/test_online_migration.py has two drivers without load.
@pytest.mark.nightly
@pytest.mark.parametrize("step", ["cut_over", "roll_back"])
def test_of_two_drivers_the_older_one_stops_at_its_next_write(world: Callable[[int], OnlineWorld], step: Step) -> None:
    online = patient(world(4))
    with online.loaded():
        for each in THERE if step == "roll_back" else THERE[:-1]:
            online.complete(each)
        online.complete(step, Fault(victim="rival", after_s=12 / CLIENTS_PER_S))
        assert online.owners() == ({"source"} if step == "roll_back" else {"target"})

    said = "\n".join(online.story)
    assert said.count("of two: StaleDriver another driver has taken over") == 1, said
    assert said.count("of two: done") == 1, said
    held = online.snapshots()
    assert online.balance(held["source" if step == "roll_back" else "target"]).failures == {}


@pytest.mark.parametrize("world", WAYS, indirect=True, ids=name_of_way)
@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_is_killed_no_message_is_lost_or_out_of_order(world: Callable[[int], OnlineWorld], seed: int) -> None:
    dice = random.Random(seed)
    online = world(seed)
    end = ("roll_back", "mirror", "commit", "again")[seed % 4]
    steps: list[Step] = [*THERE, "mirror", "soak"]
    if end == "roll_back":
        steps.append("roll_back")
    elif end == "commit":
        steps.append("commit")
    elif end == "again":
        steps += ["roll_back", "catch_up", "verify", "cut_over"]
    # The first steps are short, and cut over and rollback are where it counts.
    weights = [4 if step in ("cut_over", "roll_back") else 1 for step in steps]
    struck = set(dice.choices(range(len(steps)), weights, k=4))
    online.tell(f"seed {seed}: {steps}, somebody dies in {sorted(struck)}")

    with online.loaded():
        for place, step in enumerate(steps):
            fault = Fault(victim=dice.choice(VICTIMS), after_s=dice.random() * 0.8) if place in struck else None
            online.complete(step, fault)
            if step == "cut_over" and end != "commit":
                online.keep_mirrored()

    owner: Side = "source" if end == "roll_back" else "target"
    if end in ("mirror", "again"):
        online.complete("mirror")
        held = online.snapshots()
        online.check_equal(held["target"], held["source"])
        online.balance(held["source"])
    else:
        held = online.snapshots()
    assert online.owners() == {owner}
    online.balance(held[owner])
    if online.from_store is Source.POSTGRES:
        replay_traces(online, dice)


def replay_traces(online: OnlineWorld, dice: random.Random) -> None:
    """Check that the model allows all that was done to some clients."""
    found = OwnerTraces(online.folder, cohort_count=COHORTS)
    traces = {client_id: found.of_client(client_id) for client_id in dice.sample(found.clients(), k=REPLAYED)}
    assert all(len(trace) > 2 for trace in traces.values())
    stuck = [str(each) for each in found.replay(traces)]
    assert stuck == [], "\n".join([*online.story, *stuck, f"traces: {online.folder}"])
