"""A profile's Parquet in an object store is judged there, and replaced as a whole.

By day: tests/integration/test_cli_quality.py judges a folder, and tests/spark/test_archive_partition.py writes Parquet
to an object store and reads it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from lua_sessions import now_ms
from planted_queues import PARAMETERS

from queuekeeper.errors import UsageError
from queuekeeper.quality.judge.parquet import judge_parquet
from queuekeeper.quality.profile.stores import profile_redis
from tests.object_store import ObjectStore
from tests.spark.world import World

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def world(make_world: Callable[..., World]) -> World:
    return make_world(planted=True)


def _profile(world: World, place: str) -> None:
    report = profile_redis(
        world.spark, redis_url=world.redis_url, postgres_url=world.postgres_url,
        parameters=replace(PARAMETERS, contents=True), now_ms=now_ms(), profile_id="placed", parquet_dir=place,
        key=b"a key of tests",
    )  # fmt: skip
    assert report.parquet == f"{place}/placed"


def _judged(world: World, place: str) -> list[tuple[object, ...]]:
    report = judge_parquet(world.spark, path=place, suite="sessions_redis", contents=True)
    return [(each.check_id, each.passed, each.broken, each.observed) for each in report.results]


def test_parquet_in_an_object_store_is_judged_as_in_a_folder(world: World, shared_bucket: str, tmp_path: Path) -> None:
    places = (f"s3://{shared_bucket}/profiles", str(tmp_path))
    for place in places:
        _profile(world, place)
    found, expected = (_judged(world, f"{place}/placed") for place in places)
    assert found == expected


def test_parquet_in_an_object_store_is_judged_and_replaced_as_a_whole(
    world: World, make_world: Callable[..., World], shared_bucket: str, object_store: ObjectStore
) -> None:
    remote = f"s3://{shared_bucket}/profiles"
    _profile(world, remote)
    found = _judged(world, f"{remote}/placed")
    assert not any(broken for _, _, broken, _ in found)
    assert not all(passed for _, passed, *_ in found)

    # Without a queue there is a file, too: nothing is wrong, and nothing of the profile before is left.
    _profile(make_world(), remote)
    (_,) = object_store.objects(shared_bucket)
    assert all(passed for _, passed, *_ in _judged(world, f"{remote}/placed"))
    with pytest.raises(UsageError, match=r"^s3://.*/profiles/missing holds no profile: name the folder"):
        _judged(world, f"{remote}/missing")
