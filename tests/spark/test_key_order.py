"""A source read in the order of its keys: where that is done, the fates of its rows, a bad index, and a pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import cohorts
from queuekeeper.migration.ledger.model import CohortState
from queuekeeper.migration.offline.judging import Judging
from queuekeeper.migration.offline.plan import measured_rows
from queuekeeper.migration.offline.source import _spark_hash, layout, open_source
from queuekeeper.redis_client import shards
from tests.spark.world import PARAMETERS, World

RANGES = 5
NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World], hostile_template: str) -> World:
    return make_world(template=hostile_template)


def _bounds(world: World) -> tuple[str, ...] | None:
    return _read(world, ranges=RANGES)[0]


def _read(world: World, *, ranges: int | None) -> tuple[tuple[str, ...] | None, Counter[str]]:
    """Return where ranges begin, and all rows with their fates."""
    found = cohorts(count=PARAMETERS.cohort_count, shards=shards(world.client))
    placement = layout(cohorts=found, wanted=[each.cohort for each in found], tasks=3)
    judging = Judging(default_ttl_s=PARAMETERS.default_ttl_s, clustered=False)
    with open_source(world.spark, postgres_url=world.postgres_url, placement=placement, ranges=ranges) as source:
        rows = measured_rows(source, judging, prefix="", limit=PARAMETERS.limit, as_of_ms=NOW_MS)
        return source.bounds, Counter(map(str, rows.select(*sorted(rows.columns)).collect()))


def test_rows_meet_the_same_fates_as_rows_that_spark_has_sorted(world: World) -> None:
    bounds, by_key = _read(world, ranges=RANGES)
    assert bounds is not None
    assert len(bounds) == RANGES - 1
    assert max(by_key.values()) == 1
    assert by_key == _read(world, ranges=None)[1]


def test_spark_sends_rows_to_the_task_that_their_label_names(spark: SparkSession) -> None:
    hashes = [row[0] for row in spark.range(20_000).selectExpr("hash(cast(id AS int))").collect()]
    assert [_spark_hash(number) for number in range(20_000)] == hashes


@pytest.mark.parametrize(
    "change",
    [
        "ALTER DATABASE {name} SET effective_cache_size = '8kB'",
        # As after a system's upgrade has changed a collation, or a move between systems.
        "UPDATE pg_database SET datcollversion = '1' WHERE datname = '{name}'",
        # Ids that differ may be equal to such a collation.
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'default'",
    ],
)
def test_large_tables_and_odd_collations_are_left_to_spark(
    make_world: Callable[..., World], hostile_template: str, change: str
) -> None:
    world = make_world(template=hostile_template)
    assert _bounds(world) is not None
    world.connection.execute(change.format(name=world.connection.info.dbname))
    assert _bounds(world) is None


def test_a_pause_leaves_every_cohort_to_be_copied_and_the_next_copy_completes_them(
    make_world: Callable[..., World], hostile_template: str
) -> None:
    world = make_world(template=hostile_template)
    plan = world.plan()
    world.ledger.set_paused(plan.plan_id, True)
    paused = world.copy(plan.plan_id, gives_way=True)
    assert paused.paused
    assert set(world.ledger.cohort_states(plan.plan_id).values()) == {CohortState.COPYING}

    world.ledger.set_paused(plan.plan_id, False)
    rest = world.copy(plan.plan_id, gives_way=True, only_missing=True)
    assert not rest.paused
    assert paused.messages_written + rest.messages_written == plan.total("to_copy")
    assert world.verify(plan.plan_id).balanced


def test_an_index_that_hides_rows_stops_plan_copy_and_verification_with_the_remedy(
    make_world: Callable[..., World], hostile_template: str
) -> None:
    world = make_world(template=hostile_template)
    plan = world.plan()
    for setting in ("enable_seqscan", "enable_bitmapscan", "enable_sort"):
        world.connection.execute(f"ALTER DATABASE {world.connection.info.dbname} SET {setting} = off")
    # The index now claims the reverse of the order that it has, so that a search in it goes astray.
    world.connection.execute(
        "UPDATE pg_index SET indoption = '3 3' WHERE indexrelid = 'device_publish_msg_pkey'::regclass"
    )
    with pytest.raises(RefusedError, match="REINDEX TABLE device_publish_msg"):
        world.plan()
    with pytest.raises(RefusedError, match="REINDEX TABLE device_publish_msg"):
        world.copy(plan.plan_id)
    assert set(world.ledger.cohort_states(plan.plan_id).values()) == {CohortState.COPYING}
    with pytest.raises(RefusedError, match="REINDEX TABLE device_publish_msg"):
        world.verify(plan.plan_id)
