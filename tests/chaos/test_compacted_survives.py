"""Compacted queues on servers that are killed, filled and resharded, with consumers and collectors that are killed.

Each test keeps books: no append that was answered is lost, order holds, no number stands for two messages, and nothing
that was acknowledged comes again. ``COMPACTED_ROWS`` says how long the long queue is; the suite's is short.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import postgres, schema_migrations
from queuekeeper.compacted.model import Append, Position, Purge, Retention
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import StoreFull
from queuekeeper.redis_client import connect
from tests.chaos.compacted_load import compacted_load
from tests.chaos.session_load import clients_of, met_a_moving_slot
from tests.chaos.support import ROOT, contents, set_maxmemory, until
from tests.cluster_slots import slot_of
from tests.compacted_gc_world import DAY_MS, World
from tests.conftest import ONE_SERVER_EACH

pytestmark = pytest.mark.chaos

CLIENTS = ("{brace} first", "{}", "смарт-😀", "device-1", "device-2", "device-3")
ROWS = int(os.environ.get("COMPACTED_ROWS") or 200_000)
CALL_MS = 5.0


# A consumer as a service runs it: it notes what it got, and what the server knows to be done. Its work on the message
# that is named by its place, from 1 on, never ends; on 0 no work hangs.
CONSUMER = """
import sys
import time
from queuekeeper.compacted.consumer import (CompactedConsumer)
from queuekeeper.compacted.consumption import (ConsumerRules)
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.redis_client import connect

url, client_id, log, hangs_at = sys.argv[1:]
with open(log, "a", buffering=1) as file, connect(url) as client:
    file.write("\\n")
    with CompactedConsumer(CompactedQueues(client), client_id, rules=ConsumerRules(window=20)) as consumer:
        for place, message in enumerate(consumer, 1):
            file.write(f"got {message.sequence} {int(message.redelivered)}\\n")
            if place == int(hangs_at):
                time.sleep(3600)
            consumer.ack(message)
            file.write(f"acked {message.sequence} 0\\n")
"""


# A collector as a task of a run: it goes on where the one before was killed.
COLLECTOR = """
import sys
from pathlib import Path
from queuekeeper import postgres, schema_migrations
from queuekeeper.jobs.engine import Engine
from queuekeeper.maintenance.compacted.collection import Collection
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.redis_client import connect

redis_url, postgres_url, run_id, share, undo = sys.argv[1:]
with connect(redis_url) as client, postgres.connect(postgres_url, autocommit=True) as connection:
    engine = Engine(job=Collection, client=client, undo_directory=Path(undo))
    engine.apply(MaintenanceRuns(connection), run_id, share)
"""


def noted(path: Path) -> list[tuple[str, int, bool]]:
    """Return what a consumer has noted; the last line of one that was killed may be half a line."""
    lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
    words = [line.split() for line in lines if line.endswith("\n")]
    return [(line[0], int(line[1]), line[2] == "1") for line in words if len(line) == 3]


def test_killed_consumer_gets_flagged_what_was_in_flight_and_never_what_it_acknowledged(
    valkey_url: str, tmp_path: Path, dice: random.Random
) -> None:
    log = tmp_path / "noted"
    command = [sys.executable, "-c", CONSUMER, valkey_url, "device-1", str(log)]
    keys = itertools.count()
    # Where a consumer's notes ended when it was killed, and what it held then.
    kills: list[tuple[int, list[int]]] = []
    with connect(valkey_url) as client:
        anything: Any = client
        queues = CompactedQueues(client)
        # One is killed wherever it is, which may be between two batches; the others at work on a message.
        for hangs_at in (dice.randint(20, 70), 0, dice.randint(20, 70)):
            queues.append("device-1", [Append(key=b"%d" % next(keys), value=b"x") for _ in range(100)])
            connections = len(anything.client_list())
            with subprocess.Popen([*command, str(hangs_at)]) as consumer:
                # A message before the one on which it hangs has two notes, that one has one.
                wanted = len(noted(log)) + (2 * hangs_at - 1 if hangs_at else dice.randint(40, 140))
                until(lambda: len(noted(log)) >= wanted, what="some messages")  # noqa: B023
                consumer.kill()
            until(lambda: len(anything.client_list()) == connections, what="the end of what it has sent")  # noqa: B023
            view = queues.inspect("device-1")
            count = view.in_flight
            messages = queues.peek("device-1", after_sequence=view.acked, limit=count) if count else ()
            kills.append((len(noted(log)), [message.sequence for message in messages]))
            assert messages or not hangs_at, "the message at work was taken as done"
        # Half of what the last one held is overwritten: that comes as its new values only.
        overwritten = messages[::2]
        new = [Append(key=message.key, value=b"new") for message in overwritten]
        last = queues.append("device-1", [*new, Append(key=b"last")]).sequences[-1]
        with subprocess.Popen([*command, "0"]) as consumer:
            until(lambda: ("acked", last, False) in noted(log), what="the last message")
            consumer.kill()
        assert queues.inspect("device-1").acked == last
        assert queues.verify("device-1").found == 0

    notes = noted(log)
    gone = {message.sequence for message in overwritten}
    for notes_before, held in kills:
        again = {sequence: flagged for what, sequence, flagged in notes[notes_before:] if what == "got"}
        assert [sequence for sequence in held if again.get(sequence) is not (None if sequence in gone else True)] == []
    acked: set[int] = set()
    highest = 0
    for what, sequence, redelivered in notes:
        if what == "acked":
            acked.add(sequence)
            continue
        assert sequence not in acked, f"{sequence} was acknowledged and came again"
        assert redelivered or sequence > highest, f"{sequence} came late and is not flagged"
        highest = max(highest, sequence)
    assert set(range(1, last + 1)) - {sequence for _, sequence, _ in notes} <= gone, "lost"
    print(f"{last} messages, in flight at the kills: {[len(held) for _, held in kills]}, overwritten {len(gone)}")


def test_two_producers_of_one_queue_get_numbers_of_one_order(valkey_url: str, dice: random.Random) -> None:
    async def run() -> None:
        async with compacted_load(valkey_url, dice, clients=["device-1"]) as load:
            async with load.running():
                await load.proceeds(messages=300)
            await load.settle()

    asyncio.run(run())


@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_killed_server_has_every_append_that_was_answered_when_it_flushes_always(
    redis_server_factory: Callable[..., RedisServer], flavour: str, dice: random.Random
) -> None:
    server = redis_server_factory(flavour=flavour, appendfsync="always")

    async def run() -> None:
        async with compacted_load(server.url, dice, clients=CLIENTS) as load:
            async with load.running():
                # A server may be killed when nobody asks it anything: that counts as one more time.
                for kills in range(1, 13):
                    await load.proceeds()
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                    if kills >= 2 and load.unavailable > 0:
                        break
                await load.proceeds()
            await load.settle()
            assert load.unavailable > 0, "no call met the dead server"

    asyncio.run(run())


def test_resharding_loses_nothing_while_queues_are_appended_to_received_and_collected(
    redis_cluster_url: str, dice: random.Random
) -> None:
    with clients_of(redis_cluster_url) as nodes:
        for node in nodes:
            node.config_resetstat()

    def reshard() -> None:
        for client_id in dice.sample(CLIENTS, len(CLIENTS)):
            with slot_of(redis_cluster_url, client_id) as slot:
                # A queue has eight keys, fewer while it is empty: its scripts meet a slot that has some of them.
                moved = 0
                for _ in range(50):
                    moved = slot.move(keys_at_once=1)
                    slot.move()
                    if moved >= 5:
                        break
                assert moved >= 5

    async def run() -> None:
        async with compacted_load(redis_cluster_url, dice, clients=CLIENTS, collects=True) as load:
            async with load.running():
                await load.proceeds()
                for _ in range(10):
                    await asyncio.to_thread(reshard)
                    # Chance decides what the calls of a load meet.
                    if await asyncio.to_thread(met_a_moving_slot, redis_cluster_url):
                        break
                await load.proceeds()
            await load.settle()
            assert load.collected > 0
            assert load.unavailable == 0, "a call failed"

    asyncio.run(run())
    assert met_a_moving_slot(redis_cluster_url), "the load did not meet a moving slot"


@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_full_server_refuses_appends_before_any_effect_and_does_all_that_makes_room(
    redis_server_factory: Callable[..., RedisServer], flavour: str
) -> None:
    server = redis_server_factory(flavour=flavour)
    with server.client() as client, connect(server.url) as connection:
        queues = CompactedQueues(connection)
        for queue in ("a", "b", "c"):
            queues.append(queue, [Append(key=b"%d" % number, value=b"x" * 100) for number in range(100)])
        fence = queues.subscribe("a", session="one").fence
        before = contents(client)
        set_maxmemory(server, room_bytes=-1_000_000_000)
        late = [Append(key=b"%d" % number, value=b"late") for number in range(95, 105)]
        for _ in range(2):
            for queue in ("a", "new"):
                with pytest.raises(StoreFull):
                    queues.append(queue, late, producer="late", number=1)
        assert contents(client) == before

        fetched = queues.fetch("a", fence=fence, limit=50, window=50)
        assert [message.sequence for message in fetched.messages] == list(range(1, 51))
        assert queues.ack("a", fence=fence, sequences=range(11, 51)).acked == 40
        assert queues.ack("a", fence=fence, sequences=range(1, 11)).acked_up_to == 50
        assert queues.heartbeat("a", fence=fence).lag == 50
        assert queues.inspect("a").acked == 50
        assert queues.verify("a").found == 0
        assert queues.rewind("a", to=Position.sequence(21)).new_acked == 20
        fence = queues.subscribe("a", session="two").fence
        assert queues.fetch("a", fence=fence).messages[0].sequence == 21
        assert queues.release("a", fence=fence)
        retention = Retention(retention_ms=0)
        due = queues.find_due("a", retention=retention, limit=30, with_values=True)
        assert queues.collect("a", retention=retention, rows=due.rows).collected == 30
        assert queues.purge("b", what=Purge.everything()).messages == 100
        assert queues.drop("c").existed

        set_maxmemory(server, room_bytes=None)
        report = queues.append("a", late, producer="late", number=1)
        assert (report.is_replay, report.sequences) == (False, tuple(range(101, 111)))
        assert queues.restore("a", rows=due.rows).restored == 30
        assert queues.append("new", late, producer="late", number=1).sequences == tuple(range(1, 11))
        assert queues.append("b", late).first_sequence == 101
        for queue in ("a", "b", "c", "new"):
            assert queues.verify(queue).found == 0


def test_collector_that_is_killed_again_and_again_collects_everything_once_and_no_newer_value(
    valkey_url: str, postgres_url: str, tmp_path: Path, dice: random.Random
) -> None:
    names = [f"device-{number}" for number in range(40)]
    old = [f"{number:02}" for number in range(50)]
    with connect(valkey_url) as client, postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        world = World(client=client, connection=connection, undo=tmp_path / "undo")
        for name in names:
            world.append(name, *old)
        world.now_ms += 8 * DAY_MS
        run_id, [share] = world.planned(max_operations_per_s=1_500)
        command = [sys.executable, "-c", COLLECTOR, valkey_url, postgres_url, run_id, share, str(world.undo)]
        removed = 0
        overtaken: dict[str, set[str]] = {name: set() for name in names}
        for _ in range(2):
            with subprocess.Popen(command) as collector:
                until(
                    lambda: world.runs.shard_progress(run_id, share).removed > removed,  # noqa: B023
                    what="the collection goes on",
                )
                # Newer values come while it is at work.
                for name in dice.sample(names, 10):
                    keys = dice.sample(old, 5)
                    world.append(name, *keys)
                    overtaken[name].update(keys)
                collector.kill()
            removed = world.runs.shard_progress(run_id, share).removed
        assert removed < len(names) * len(old), "the collector was at its end before it was killed"
        world.runs.set_throttle(run_id, None)
        subprocess.run(command, check=True)

        outcome = world.report(run_id)
        assert outcome.clean
        for name in names:
            assert set(world.live(name)) == {key.encode() for key in overtaken[name]}
            assert world.queues.verify(name).found == 0
        # What a kill has cut off was removed, and is counted by no one; nothing is counted twice.
        assert outcome.counts.messages <= len(names) * len(old)
        print(f"{removed} of {len(names) * len(old)} were gone after the second kill")
        # All that went stands in the undo file, also what was written last before a kill.
        world.take_back(run_id)
        for name in names:
            assert {message.key for message in world.queues.peek(name)} == {key.encode() for key in old}
            assert world.queues.verify(name).found == 0


# By day: how much a call of each script takes in, tests/lua/test_compacted_consume.py and test_compacted_retention.py.
@pytest.mark.nightly
def test_no_call_keeps_the_server_long_from_others_on_a_long_queue(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "compacted.py"), "--only", "^$", "--payload-bytes", "64"]
    done = subprocess.run(
        [*command, "--rows", str(ROWS), "--append-only", "no", "--json", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    # It also checks that the queue is whole.
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
    operations: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))["blocking"][str(ROWS)]
    # On a busy machine most calls wait for other programs, and a few calls may all do; a tenth of many do not.
    usual_ms = {name: found["p10_ms"] for name, found in operations.items() if found["calls"] >= 50}
    assert len(usual_ms) >= 9
    assert {name: ms for name, ms in usual_ms.items() if ms > CALL_MS} == {}
