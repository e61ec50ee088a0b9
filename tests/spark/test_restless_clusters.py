"""A migration and a profile on a cluster whose slots move and whose masters fail over: what they come to in peace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from lua_sessions import now_ms
from planted_queues import PARAMETERS, plant, plant_healthy

from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import ServerUnavailable
from queuekeeper.migration.ledger.model import CohortState, CopyReport, PlanState
from queuekeeper.migration.offline import copy
from queuekeeper.quality.profile.stores import profile_redis
from queuekeeper.redis_client import connect
from queuekeeper.redis_names import Master, masters
from tests.conftest import ONE_SERVER_EACH
from tests.restless_cluster import Restless, assert_same, at_rest, contents, disturbed, six_masters, spread
from tests.spark.world import World

T = TypeVar("T")
NAMES = [f"device-{number}" for number in range(24)]


@pytest.fixture(scope="module", params=ONE_SERVER_EACH)
def six(request: pytest.FixtureRequest, server_home: Path) -> Iterator[RedisCluster]:
    """Six masters with a replica each."""
    with six_masters(server_home / f"spark-six-{request.param}", flavour=request.param) as made:
        yield made


def repeated(do: Callable[[], T]) -> T:
    """Do what says that it has to be repeated until it comes to its end."""
    for _ in range(20):
        try:
            return do()
        except ServerUnavailable as error:
            print(f"repeated: {error}")
    raise AssertionError("it never comes to its end")


def test_copy_says_that_a_master_was_replaced_and_the_next_one_completes_it(
    make_world: Callable[..., World], healthy_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(template=healthy_template, target="cluster")
    plan = world.plan()
    looks = 0

    def replaced_meanwhile(client: Any) -> list[Master]:
        nonlocal looks
        looks += 1
        first, *others = masters(client)
        return [first if looks == 1 else copy_of(first, process="another"), *others]

    monkeypatch.setattr(copy, "masters", replaced_meanwhile)
    with pytest.raises(ServerUnavailable, match=r"a replica took over .* in cohorts [\d,-]+\. Copy again"):
        world.copy(plan.plan_id)
    monkeypatch.undo()
    states = world.ledger.cohort_states(plan.plan_id)
    assert set(states.values()) == {CohortState.COPIED, CohortState.COPYING}
    report = world.copy(plan.plan_id, only_missing=True)
    assert report.messages_written == 0
    assert report.sessions_unchanged > 0
    assert world.ledger.load_plan(plan.plan_id).state is PlanState.COPIED


def copy_of(master: Master, *, process: str) -> Master:
    return Master(
        address=master.address, node=master.node, mark=f"{process}.1", slots=master.slots, leaving=master.leaving
    )


@pytest.mark.nightly
def test_migration_comes_to_the_same_digest_and_the_same_keys(
    six: RedisCluster, make_world: Callable[..., World], hostile_template: str
) -> None:
    six.start()
    world = make_world(template=hostile_template, target=six.url)
    plan = world.plan()
    with at_rest(six) as client:
        written = world.copy(plan.plan_id)
        expected, digest = contents(client), world.verify(plan.plan_id).digest
    with at_rest(six):
        world.ledger.set_cohort_state(plan.plan_id, plan.chosen, CohortState.PLANNED)
        world.ledger.set_plan_state(plan.plan_id, PlanState.APPROVED)
        world.ledger.set_throttle(plan.plan_id, 300)
        reports: list[CopyReport] = []
        with disturbed(restless := Restless(six, spread(six, NAMES))) as failed_over:
            while not reports or not failed_over():
                reports.append(repeated(lambda: world.copy(plan.plan_id)))
                world.ledger.set_throttle(plan.plan_id, None)
        print(f"{len(reports)} copies, {restless.done}")
        assert restless.failed_over
        assert sum(report.messages_written for report in reports) <= written.messages_written
    six.start()
    with connect(six.url) as client:
        verified = world.verify(plan.plan_id)
        assert verified.balanced
        assert verified.digest == digest
        assert_same(contents(client), expected)


@pytest.mark.nightly
def test_profile_finds_every_queue_once(six: RedisCluster, make_world: Callable[..., World]) -> None:
    with at_rest(six) as client:
        world = make_world(target=six.url)
        plant(client)
        plant_healthy(client)
        expected = profile(world, "in peace")
        profiles: list[dict[str, Any]] = []
        with disturbed(restless := Restless(six, spread(six, NAMES))) as failed_over:
            while not profiles or not failed_over():
                profiles.append(repeated(lambda: profile(world, "in unrest")))
        print(f"{len(profiles)} profiles, {restless.done}")
        assert restless.failed_over
        for found in profiles:
            assert found.keys() == expected.keys()
            differing = {client_id: row.items() - expected[client_id].items() for client_id, row in found.items()}
            assert not any(differing.values()), {client_id: each for client_id, each in differing.items() if each}


def profile(world: World, profile_id: str) -> dict[str, dict[str, Any]]:
    """Return what is on record of each queue, apart from where its cohort was, and when it expires."""
    profile_redis(
        world.spark,
        redis_url=world.redis_url,
        postgres_url=world.postgres_url,
        parameters=PARAMETERS,
        now_ms=now_ms(),
        profile_id=profile_id,
        key=b"key",
    )
    cursor = world.connection.execute("SELECT * FROM queuekeeper.queue_profiles WHERE profile_id = %s", (profile_id,))
    names = [column.name for column in cursor.description or ()]
    rows = [dict(zip(names, values, strict=True)) for values in cursor]
    left_out = {"profile_id", "cohort", "shard", "earliest_expires_at_ms", "latest_expires_at_ms", "hours"}
    assert len({row["client_id"] for row in rows}) == len(rows)
    return {row["client_id"]: {name: row[name] for name in row.keys() - left_out} for row in rows}
