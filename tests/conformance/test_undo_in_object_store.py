"""Undo files in an object store serve as those on a disk do, from whichever machine they are written and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queuekeeper.config import Settings
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jobs import keys
from queuekeeper.jobs.undo import UndoFile, read_undo_file, remove_old_undo_files
from queuekeeper.maintenance.cleanup.expired_references import Cleanup
from queuekeeper.maintenance.cleanup.model import KIND, CleanupCounts
from queuekeeper.redis_client import RedisClient, connect
from tests import compacted_gc_world
from tests.cleanup_world import DAY_MS, World, now_ms
from tests.object_store import ObjectStore

pytestmark = pytest.mark.conformance

DEVICES = 60


@pytest.fixture
def place(bucket: str) -> str:
    """URL of a folder in an object store, in which nothing is yet."""
    return f"s3://{bucket}/undo"


@pytest.fixture
def client(valkey_url: str) -> Iterator[RedisClient]:
    with connect(valkey_url) as opened:
        yield opened


def machine(client: RedisClient, records: Any, place: str) -> World:
    """Return what another machine has: the same servers and the same URL, and nothing else."""
    return World(client, records, Settings(undo_dir=place).undo)


@pytest.fixture
def world(client: RedisClient, records: Any, place: str) -> World:
    """A store with a dead reference in each of many sessions, which takes many steps."""
    found = machine(client, records, place)
    for number in range(DEVICES):
        device = found.device(f"meter-{number}")
        device.add(2)
        device.expire(1)
    return found


def test_run_that_is_killed_is_taken_back_and_gone_on_with_elsewhere(
    world: World, records: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "KEYS_PER_PAGE", 10)
    before = world.contents()
    run_id, (share,) = world.approved()
    apply, done = Cleanup.apply, list[int]()

    def killed(job: Cleanup, step: Any) -> CleanupCounts:
        if len(done) == 2:
            raise KeyboardInterrupt
        counts = apply(job, step)
        done.extend([counts.dead_references] if counts.dead_references else [])
        return counts

    with monkeypatch.context() as patched:
        patched.setattr(Cleanup, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            world.apply(run_id, share)
    assert world.contents() != before
    assert 0 < sum(done) < DEVICES

    second = machine(world.client, records, place)
    assert second.take_back(run_id, dry_run=True).references == sum(done)
    assert second.take_back(run_id).references == sum(done)
    assert world.contents() == before

    # Its own part of the work stays taken back; the rest is done.
    report = second.apply(run_id, share)
    assert (report.done, report.undo_file.startswith(place)) == (True, True)
    third = machine(world.client, records, place)
    assert third.report(run_id).undo_files == (report.undo_file,)
    assert third.take_back(run_id).references == DEVICES - sum(done)
    assert world.contents() == before


@pytest.mark.parametrize("parts", [0, 1])
def test_nothing_is_changed_when_the_store_refuses(
    parts: int, world: World, object_store: ObjectStore, bucket: str
) -> None:
    before = world.contents()
    run_id, (share,) = world.approved()
    with (
        object_store.answering(403, "AccessDenied", after=parts),
        pytest.raises(RefusedError, match=r"cannot be written: AccessDenied; let this user write, or name another"),
    ):
        world.apply(run_id, share)
    assert len(object_store.objects(bucket)) == parts
    assert world.contents() == before
    # Whoever repeats it has all of it done.
    assert world.apply(run_id, share).counts.dead_references == DEVICES


def test_store_that_is_busy_for_a_moment_is_asked_again(world: World, object_store: ObjectStore) -> None:
    run_id, (share,) = world.approved()
    with object_store.answering(503, "SlowDown", after=1, times=2):
        report = world.apply(run_id, share)
    assert report.counts.dead_references == DEVICES
    assert world.take_back(run_id, dry_run=True).references == DEVICES


@pytest.mark.nightly
def test_step_that_notes_more_than_the_store_takes_at_once_is_kept_whole(place: str) -> None:
    path = Settings(undo_dir=place).undo / "1.a.undo.jsonl"
    lines = [{"value": f"{number:020}" * 50_000} for number in range(110)]
    with UndoFile(path, {"kind": KIND}) as undo:
        undo.write(lines)
    assert list(read_undo_file(path)[1]) == lines


def test_plan_and_dry_run_leave_nothing_in_the_store(world: World, object_store: ObjectStore, bucket: str) -> None:
    run_id, _ = world.planned()
    world.engine().report(world.runs, run_id, dry_run=True)
    assert object_store.objects(bucket) == []


def test_old_files_go(world: World) -> None:
    run_id, _ = world.clean()
    for days, gone in ((0, 0), (2, 1), (2, 0)):
        found = remove_old_undo_files(world.undo, kind=KIND, days=1, now_ms=now_ms() + days * DAY_MS)
        assert (days, found) == (days, gone)
    with pytest.raises(UsageError, match=f"run {run_id} has no undo file in s3://"):
        world.take_back(run_id)


def test_collected_messages_come_back(client: RedisClient, records: Any, place: str) -> None:
    world = compacted_gc_world.World(client=client, connection=records, undo=Settings(undo_dir=place).undo)
    world.append("meter-7", "a", "b")
    world.now_ms += 8 * DAY_MS
    first = world.collected()
    # The file of this one says that "a" has gone since.
    world.append("meter-7", "a")
    world.now_ms += 8 * DAY_MS
    world.collected()
    restored = world.take_back(first.maintenance_run_id)
    assert (restored.restored, restored.kept, world.live("meter-7")) == (1, 1, [b"b"])
