"""Cleanups beside brokers that write, on servers that reshard and die, by processes that are killed: nothing live goes.

Each test counts. ``CLEANUP_RACE_S`` says how long the races last; the suite's are short.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import postgres
from queuekeeper.clock import system_clock
from queuekeeper.errors import ServerUnavailable
from queuekeeper.jobs.store import RunState
from queuekeeper.maintenance.cleanup.model import CleanupCounts
from queuekeeper.redis_client import connect
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.addresses import url_of
from tests.chaos.support import until
from tests.cleanup_world import HOUR_MS, Device, World, with_records
from tests.cluster_slots import slot_of
from tests.conftest import ONE_SERVER_EACH
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos

RACE_S = float(os.environ.get("CLEANUP_RACE_S") or 8)
DEVICES = 24
LIMITS = {"grace_s": 1, "default_ttl_s": 3_600, "idle_days": 1}


@pytest.fixture
def records(postgres_url: str) -> Iterator[Any]:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield with_records(connection)


class TbmqWriter:
    """A broker of TBMQ's: some messages live long, some expire at once, some are confirmed, some are half confirmed.

    :ivar waiting: packet ids of each device that live long and are not confirmed, in the order of delivery.
    """

    def __init__(self, client: Any, dice: random.Random, names: list[str]) -> None:
        self.devices = [Device(client, name) for name in names]
        self.waiting: dict[str, list[int]] = {name: [] for name in names}
        self.written = 0
        self._dice = dice

    def step(self) -> None:
        """Do one thing to one device."""
        device, dice = self._dice.choice(self.devices), self._dice
        waiting = self.waiting[device.client_id]
        match dice.choice(("long", "long", "short", "short", "pack", "ack", "ack", "received")):
            case "long":
                waiting.append(self._new(device.add(), waiting))
            case "short":
                self._new(device.add(life_ms=dice.randint(1, 60)), waiting)
            case "pack":
                last = device.add(5)
                waiting += [self._new(packet_id, waiting) for packet_id in range(last - 4, last + 1)]
            case "ack" if waiting:
                device.acknowledge(waiting.pop(dice.randrange(len(waiting))))
            case "received" if waiting:
                device.received(dice.choice(waiting))

    def _new(self, packet_id: int, waiting: list[int]) -> int:
        assert packet_id not in waiting, "a packet id in use was given out again"
        self.written += 1
        return packet_id

    def lost(self) -> dict[str, list[int]]:
        """Return the messages that should wait and do not; those that wait are in order."""
        lost = {}
        for device in self.devices:
            found = device.live()
            waiting = self.waiting[device.client_id]
            assert [packet_id for packet_id in found if packet_id in set(waiting)] == [
                packet_id for packet_id in waiting if packet_id in set(found)
            ]
            missing = sorted(set(waiting) - set(found))
            if missing:
                lost[device.client_id] = missing
            if waiting:
                assert device.client.ttl(device.keys.last_packet_id) == -1, "a packet id may not expire under messages"
        return lost


class OurWriter:
    """A broker on our own store, which gives its keys an expiry itself."""

    def __init__(self, client: Any, dice: random.Random, names: list[str]) -> None:
        self.store = RedisSessionStore(client)
        self._client = client
        self.waiting: dict[str, list[int]] = {name: [] for name in names}
        self.written = 0
        self._dice = dice

    def step(self) -> None:
        """Save for one device, or confirm."""
        name, dice = self._dice.choice(list(self.waiting)), self._dice
        waiting = self.waiting[name]
        if waiting and dice.random() < 0.4:
            packet_id = waiting.pop(dice.randrange(len(waiting)))
            assert self.store.ack(name, [Ack(packet_id=packet_id)]).removed == 1
            return
        lives_long = dice.random() < 0.5
        message = NewMessage(
            topic="t", payload=b"x", qos=1, time_ms=system_clock(), expiry_interval_s=3_600 if lives_long else 1
        )
        (report,) = self.store.save_messages([SessionSave(client_id=name, messages=(message,))])
        assert report.error is None
        (saved,) = report.packet_ids
        assert saved is not None
        assert saved not in waiting
        self.written += 1
        if lives_long:
            waiting.append(saved)

    def lost(self) -> dict[str, list[int]]:
        """Return the messages that should wait and do not."""
        lost = {}
        for name, waiting in self.waiting.items():
            device = Device(self._client, name)
            missing = sorted(set(waiting) - set(device.live()))
            if missing:
                lost[name] = missing
        return lost


@contextmanager
def at_work(*writers: Any) -> Iterator[None]:
    """Let writers write until the block ends; what one of them raises is raised here."""
    stop = threading.Event()

    def work(writer: Any) -> None:
        while not stop.is_set():
            writer.step()

    with ThreadPoolExecutor(len(writers)) as pool:
        jobs = [pool.submit(work, writer) for writer in writers]
        try:
            yield
        finally:
            stop.set()
        for job in jobs:
            job.result()


Writer = TbmqWriter | OurWriter


def race(world: World, dice: random.Random, *writers: Writer, disturbance: Any = None) -> CleanupCounts:
    """Clean again and again while brokers write; check that nothing live went, and return what was cleaned."""
    total = CleanupCounts()
    nothing: list[dict[str, list[int]]] = [{} for _ in writers]
    with at_work(*writers, *([disturbance] if disturbance else [])):
        deadline = time.monotonic() + RACE_S
        while time.monotonic() < deadline or not (total.dead_references and total.orphans):
            world.device(f"lost-{dice.randrange(100)}").orphan(dice.randint(1, 99), age_ms=HOUR_MS)
            total.add(world.clean(**LIMITS)[1])
    assert [writer.lost() for writer in writers] == nothing
    # What lives for a second at most is over then.
    time.sleep(1.1)
    total.add(world.clean(**LIMITS)[1])
    assert [writer.lost() for writer in writers] == nothing
    assert world.plan(**LIMITS).to_do == 0
    written = sum(writer.written for writer in writers)
    waiting = sum(len(each) for writer in writers for each in writer.waiting.values())
    print(f"{written:,} messages written, {waiting:,} live, 0 lost; {total}")
    assert waiting > 0
    assert min(total.dead_references, total.orphans) > 0
    return total


@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_cleanup_beside_writing_brokers_removes_nothing_live(
    flavour: str, redis_servers: Callable[..., Any], records: Any, tmp_path: Path, dice: random.Random
) -> None:
    url = redis_servers(flavour).url
    with connect(url) as client, connect(url) as one, connect(url) as another:
        client.flushall()
        total = race(
            World(client, records, tmp_path),
            dice,
            TbmqWriter(one, random.Random(dice.random()), [f"device-{number}" for number in range(DEVICES)]),
            OurWriter(another, random.Random(dice.random()), [f"ours-{number}" for number in range(6)]),
        )
    assert total.expiries_repaired > 0


class Mover:
    """Somebody who moves slots of a cluster to another master and back, key by key."""

    def __init__(self, url: str, names: list[str]) -> None:
        self.moves = 0
        self._url = url
        self._names = names

    def step(self) -> None:
        """Move one slot there and back."""
        with slot_of(self._url, self._names[self.moves % len(self._names)]) as slot:
            slot.move(keys_at_once=3)
            slot.move()
        self.moves += 1


# By day: saves on such a cluster in test_session_stores_survive.py, collections in test_compacted_survives.py.
@pytest.mark.nightly
def test_cleanup_of_a_cluster_that_is_resharded_removes_nothing_live(
    redis_cluster_url: str, records: Any, tmp_path: Path, dice: random.Random
) -> None:
    # TBMQ's own scripts do not survive this: they touch keys that they do not declare.
    names = [f"ours-{number}" for number in range(DEVICES)]
    mover = Mover(redis_cluster_url, names)
    with connect(redis_cluster_url) as client, connect(redis_cluster_url) as writing:
        writer = OurWriter(writing, random.Random(dice.random()), names)
        race(World(client, records, tmp_path), dice, writer, disturbance=mover)
    print(f"{mover.moves} slots moved there and back")
    assert mover.moves > 0


def test_cleanup_that_is_killed_again_and_again_comes_to_its_end(
    valkey_url: str, postgres_url: str, records: Any, tmp_path: Path, dice: random.Random
) -> None:
    with connect(valkey_url) as client:
        world = World(client, records, tmp_path / "undo")
        devices = [world.device(f"device-{number}") for number in range(2_000)]
        pipeline: Any = client.pipeline(transaction=False)
        for device in devices:
            for packet_id in (1, 2, 3):
                pipeline.zadd(device.keys.messages, {device.payload(packet_id): packet_id})
            pipeline.set(device.payload(2), "live", px=HOUR_MS)
            pipeline.set(device.keys.last_packet_id, 3)
        pipeline.execute()
        run_id, (shard,) = world.approved(max_operations_per_s=4_000)
        command = [str(Path(sys.executable).parent / "queuekeeper"), "cleanup", "apply", run_id, "--yes"]
        environment = os.environ | {
            "QUEUEKEEPER_HOME": str(tmp_path),
            "QUEUEKEEPER_REDIS_URL": valkey_url,
            "QUEUEKEEPER_POSTGRES_URL": postgres_url,
        }
        positions = [0]
        for _ in range(2):
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            ) as process:
                until(
                    lambda: world.runs.shard_progress(run_id, shard).scanned > positions[-1], what="the cleanup goes on"
                )
                time.sleep(dice.uniform(0, 0.4))
                process.send_signal(signal.SIGKILL)
            progress = world.runs.shard_progress(run_id, shard)
            positions.append(progress.scanned)
            assert not progress.done
        assert world.runs.load(run_id).state is RunState.RUNNING
        world.runs.set_throttle(run_id, None)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert "clean: a second look finds nothing to do" in done.stdout
        assert positions == sorted(set(positions))
        outcome = world.report(run_id)
        assert outcome.clean
        # A page whose end a kill has cut off was cleaned, and is counted by no one.
        assert outcome.counts.keys >= 6_000
        assert 0 < outcome.counts.dead_references <= 4_000
        for device in devices:
            pipeline.zrange(device.keys.messages, 0, -1)
            pipeline.exists(device.payload(2))
        assert pipeline.execute() == [each for device in devices for each in ([device.payload(2).encode()], 1)]


def test_cleanup_goes_on_when_its_server_was_killed_and_started_again(
    redis_server_factory: Callable[..., Any], records: Any, tmp_path: Path
) -> None:
    server = redis_server_factory(appendonly="yes")
    with connect(server.url) as client:
        world = World(client, records, tmp_path)
        for number in range(600):
            device = world.device(f"device-{number}")
            device.add(2)
            device.expire(1)
        run_id, (shard,) = world.approved(max_operations_per_s=1_000)
        errors: list[BaseException] = []

        def apply() -> None:
            try:
                world.apply(run_id, shard)
            except ServerUnavailable as error:
                errors.append(error)

        with postgres.connect(url_of(records), autocommit=True) as connection:
            watcher = World(client, connection, tmp_path)
            thread = threading.Thread(target=apply)
            thread.start()
            until(lambda: watcher.runs.shard_progress(run_id, shard).scanned > 0, what="the cleanup begins")
            server.kill()
            thread.join(timeout=PATIENCE_S)
        assert len(errors) == 1
        assert world.runs.load(run_id).state is RunState.FAILED
        server.start()
        world.runs.set_throttle(run_id, None)
        assert world.apply(run_id, shard).done
        assert world.plan().to_do == 0
        assert all(world.device(f"device-{number}").live() == [2] for number in range(600))
