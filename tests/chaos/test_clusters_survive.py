"""Jobs on a cluster of six masters while slots move and masters fail over: they come to what they come to in peace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from queuekeeper import postgres
from queuekeeper.compacted.model import Append
from queuekeeper.embedded import RedisCluster, RedisServer
from queuekeeper.errors import ServerUnavailable
from queuekeeper.jobs import engine as engines
from queuekeeper.jobs import keys as key_jobs
from queuekeeper.jobs.engine import Engine
from queuekeeper.jobs.model import Outcome
from queuekeeper.jobs.store import MaintenanceRuns
from queuekeeper.maintenance.cleanup.model import CleanupParameters
from queuekeeper.maintenance.compacted.model import CollectionParameters
from queuekeeper.maintenance.fanout.model import FanoutRepairParameters
from queuekeeper.maintenance.remedies.model import RemedyParameters
from queuekeeper.maintenance.remedies.queues import named_queues
from queuekeeper.redis_client import RedisClient, connect
from tests import cleanup_world, compacted_gc_world, fanout_repair_world
from tests.conftest import ONE_SERVER_EACH, nightly
from tests.fanout_lists import line_up
from tests.remedies_world import engine_of
from tests.restless_cluster import (
    Contents,
    Restless,
    assert_same,
    at_rest,
    contents,
    disturbed,
    restore,
    six_masters,
    spread,
)

pytestmark = pytest.mark.chaos

NAMES = [f"device-{number}" for number in range(24)]
T = TypeVar("T")


@pytest.fixture(scope="module", params=ONE_SERVER_EACH)
def cluster(request: pytest.FixtureRequest, server_home: Path) -> Iterator[RedisCluster]:
    """Six masters with a replica each."""
    with six_masters(server_home / f"six-{request.param}", flavour=request.param) as made:
        yield made


@pytest.fixture
def records(postgres_url: str) -> Iterator[Any]:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        yield cleanup_world.with_records(connection)


@dataclass
class Work:
    """A job's way from plan to report, in which what says that it has to be repeated is repeated.

    :param engine: makes the job's engine for a client.
    """

    engine: Callable[[RedisClient], Engine]
    parameters: Any
    records: Any
    refusals: list[str] = field(default_factory=list)

    def lead(self, client: RedisClient) -> Outcome[Any, Any, Any]:
        """Plan, approve, do and look again."""
        engine, runs = self.engine(client), MaintenanceRuns(self.records)
        self.records.execute("TRUNCATE queuekeeper.maintenance_runs CASCADE")
        plan = self._again(lambda: engine.plan(self.parameters))
        assert plan.exact
        run_id = engine.save(runs, plan).maintenance_run_id
        if engine.job.asks:
            runs.approve(run_id, "ada")
        for share in plan.share_names():
            assert self._again(lambda share=share: engine.apply(runs, run_id, share)).done  # type: ignore[misc]
        return self._again(lambda: engine.report(runs, run_id, dry_run=False))

    def _again(self, do: Callable[[], T]) -> T:
        while True:
            try:
                return do()
            except ServerUnavailable as error:
                self.refusals.append(str(error))
                print(f"repeated: {error}")
                assert len(self.refusals) < 20


def same_in_peace_and_in_unrest(
    work: Work,
    cluster: RedisCluster,
    client: RedisClient,
    *,
    peaceful: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    all_along: bool,
) -> None:
    """Do the same work on the same data twice, and compare what it says and what it leaves.

    :param client: of the cluster, where the data is.
    :param peaceful: an empty server.
    :param all_along: whether slots move from the plan to the report; else between steps of the work, until each kind of
        disturbance has come.
    """
    planted = contents(client)
    with connect(peaceful.url) as other:
        restore(other, planted)
        expected = work.lead(other)
        left: Contents = contents(other)
    assert (expected.clean, expected.proved) == (True, True)
    assert expected.counts.changes > 0

    restless = Restless(cluster, spread(cluster, NAMES))
    waits = 0

    def disturb(_amount: float) -> None:
        nonlocal waits
        waits += 1
        if waits % 3 == 0 and not restless.failed_over:
            restless()

    if not all_along:
        monkeypatch.setattr(engines, "run_pace", lambda *_, **__: disturb)
    with disturbed(restless) if all_along else nullcontext():
        found = work.lead(client)
        while all_along and not restless.failed_over:
            work.lead(client)
    print(f"{restless.done}, {len(work.refusals)} times repeated")
    assert restless.failed_over
    assert_same(contents(client), left)
    assert found.clean
    assert found.proved or all_along
    done, all_done = changes_of(found.counts), changes_of(expected.counts)
    if any("Nobody knows" in refusal for refusal in work.refusals):
        # The call that got no answer was counted by nobody.
        assert all(done[name] <= number for name, number in all_done.items())
    else:
        assert done == all_done


def changes_of(counts: Any) -> dict[str, int]:
    """Return what was done, by name, without what was only looked at."""
    return {name: value for name, value in asdict(counts).items() if name not in counts.looked_at | {"freed_bytes"}}


@pytest.fixture(params=[False, *nightly(True)], ids=["between its steps", "all along"])
def same(
    request: pytest.FixtureRequest,
    cluster: RedisCluster,
    redis_servers: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Work, RedisClient], None]:
    """Compare work in peace and in unrest; see :func:`same_in_peace_and_in_unrest`."""
    peaceful = redis_servers("valkey")
    with peaceful.client() as client:
        client.flushall()

    def compared(work: Work, client: RedisClient) -> None:
        same_in_peace_and_in_unrest(
            work, cluster, client, peaceful=peaceful, monkeypatch=monkeypatch, all_along=request.param
        )

    return compared


def test_cleanup(
    cluster: RedisCluster,
    records: Any,
    tmp_path: Path,
    same: Callable[[Work, RedisClient], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_jobs, "KEYS_PER_PAGE", 20)
    with at_rest(cluster) as client:
        for name in NAMES:
            device = cleanup_world.Device(client, name)
            device.add(12)
            device.received(2)
            device.expire(1, 5, 6)
            for packet_id in (20, 21):
                device.orphan(packet_id, age_ms=cleanup_world.DAY_MS)
        parameters = CleanupParameters(grace_s=1, default_ttl_s=7_200)
        same(
            Work(lambda each: cleanup_world.World(each, records, tmp_path).engine(), parameters, records),
            client,
        )


def test_collection(
    cluster: RedisCluster, records: Any, tmp_path: Path, same: Callable[[Work, RedisClient], None]
) -> None:
    with at_rest(cluster) as client:
        world = compacted_gc_world.World(client=client, connection=records, undo=tmp_path)
        for name in NAMES:
            world.queues.append(name, [Append(key=b"%d" % number, value=b"old") for number in range(8)])
            world.consume(name, acks=4)
        world.now_ms += 8 * compacted_gc_world.DAY_MS
        for name in NAMES:
            world.append(name, "1", "fresh")
        parameters = CollectionParameters(shares=2, max_operations_per_s=None, max_jitter_s=0)

        def engine(each: RedisClient) -> Engine:
            return compacted_gc_world.World(
                client=each, connection=records, undo=tmp_path, now_ms=world.now_ms
            ).engine()

        same(Work(engine, parameters, records), client)


def test_repair_of_fanout_queues(
    cluster: RedisCluster, records: Any, same: Callable[[Work, RedisClient], None]
) -> None:
    with at_rest(cluster) as client:
        world = fanout_repair_world.World(client=client, connection=records, now_ms=fanout_repair_world.START_MS)
        anything: Any = client
        for name in NAMES:
            world.register(name, "billing", "shipping")
            popped, missing, drifted, *_ = world.publish(name, 6)
            world.kill(name, "billing", 2)
            line_up(client, name, "billing", "shipping", prefix=world.prefix)
            for consumer in ("billing", "shipping"):
                anything.lrem(world.consumer_keys(name, consumer).ready[0], 0, popped)
            anything.hdel(world.keys(name).messages, missing)
            anything.hset(world.keys(name).references, drifted, 5)
        world.now_ms += fanout_repair_world.HOUR_MS
        parameters = FanoutRepairParameters(shares=2, max_operations_per_s=None)

        def engine(each: RedisClient) -> Engine:
            return fanout_repair_world.World(client=each, connection=records, now_ms=world.now_ms).engine()

        same(Work(engine, parameters, records), client)


def test_repair_of_sessions(
    cluster: RedisCluster, records: Any, tmp_path: Path, same: Callable[[Work, RedisClient], None]
) -> None:
    with at_rest(cluster) as client:
        for name in NAMES:
            device = cleanup_world.Device(client, name)
            device.add(6)
            for packet_id in (20, 21, 22):
                device.orphan(packet_id, age_ms=cleanup_world.DAY_MS)
        queues = named_queues(NAMES, key=b"key")
        same(
            Work(
                lambda each: engine_of(each, "unlink_orphans", queues, key=b"key", undo_directory=tmp_path),
                RemedyParameters(),
                records,
            ),
            client,
        )
