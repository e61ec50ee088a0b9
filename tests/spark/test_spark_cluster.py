"""A standalone Spark whose workers are hosts of their own that have neither Queuekeeper nor a file of the driver's.

By day there is one worker; at night there are three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
import redis
from pyspark.sql import SparkSession

from queuekeeper.migration.ledger.model import VerifyReport
from queuekeeper.migration.ledger.parameters import MigrationParameters
from tests.chaos.support import contents, differing
from tests.conformance.cutting_proxy import CuttingProxy
from tests.spark.cluster import ROOT, Cluster, pack_environment, result_of
from tests.spark.world import World

COHORTS = 12

ONE_DRIVER = f"""
import json, os, sys
from queuekeeper.facts import plain
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.migration.offline.copy import copy_sessions
from queuekeeper.migration.offline.plan import plan_migration
from queuekeeper.migration.offline.verify import verify_migration
from queuekeeper.migration.spark.session import build_session

stores = {{name: os.environ[f"QUEUEKEEPER_{{name}}".upper()] for name in ("postgres_url", "redis_url")}}
spark = build_session("one driver", master=sys.argv[1], stores=list(stores.values()))
parameters = MigrationParameters(cohort_count={COHORTS}, quarantine_cap_percent=50)
plan_id = plan_migration(spark, **stores, parameters=parameters, run_id=None).plan_id
copy_sessions(spark, **stores, plan_id=plan_id)
report = verify_migration(spark, **stores, plan_id=plan_id)
spark.stop()
print(json.dumps(plain(report)))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return pack_environment(tmp_path_factory.mktemp("archive"), compiled=request.config.getoption("--nightly"))


@pytest.fixture(scope="module")
def cluster(
    archive: Path, server_home: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    count = 3 if request.config.getoption("--nightly") else 1
    folder, hidden = tmp_path_factory.mktemp("cluster"), [server_home, ROOT]
    with Cluster.started(count=count, archive=archive, folder=folder, hidden=hidden) as started:
        yield started


@dataclass(frozen=True, kw_only=True)
class Served:
    """A migration's servers at addresses that all hosts reach; a local Spark looks at them from here.

    :param variables: the addresses, for the environment of a driver.
    """

    here: World
    variables: dict[str, str]

    @property
    def secrets(self) -> list[str]:
        """The passwords of both."""
        return [str(urlsplit(url).password) for url in self.variables.values()]

    def keys(self) -> dict[bytes, Any]:
        """Return all that the target holds."""
        return found_in(self.here)


def found_in(world: World) -> dict[bytes, Any]:
    """Return what a target holds, without the name of the plan by which it came there."""
    found = contents(cast("redis.Redis", world.client))
    return {
        name: (kind, tuple(each for each in content if each[0] != b"plan") if kind == b"hash" else content, end)
        for name, (kind, content, end) in found.items()
    }


@pytest.fixture
def served(
    cluster: Cluster, spark: SparkSession, clone: Callable[[str], str], hostile_template: str, own_redis: Any
) -> Iterator[Served]:
    address = cluster.network.here
    with (
        CuttingProxy(clone(hostile_template), host=address) as source,
        CuttingProxy(own_redis(), host=address) as target,
        World.opened(spark, postgres_url=source.url, redis_url=target.url) as here,
    ):
        yield Served(here=here, variables={"QUEUEKEEPER_POSTGRES_URL": source.url, "QUEUEKEEPER_REDIS_URL": target.url})


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """What a local Spark makes of the same source in one go."""

    report: VerifyReport
    keys: dict[bytes, Any]


@pytest.fixture(scope="module")
def undisturbed(make_world: Callable[..., World], hostile_template: str) -> Undisturbed:
    world = make_world(template=hostile_template)
    plan_id = world.plan(MigrationParameters(cohort_count=COHORTS, quarantine_cap_percent=50)).plan_id
    world.copy(plan_id)
    return Undisturbed(report=world.verify(plan_id), keys=found_in(world))


def assert_as_undisturbed(served: Served, report: Any, undisturbed: Undisturbed) -> None:
    expected = undisturbed.report
    assert (report["balanced"], report["digest"]) == (True, expected.digest)
    assert tuple(served.here.ledger.ledger(report["plan_id"])) == expected.ledger
    assert differing(served.keys(), undisturbed.keys) == []


def test_a_host_without_a_file_of_the_drivers_moves_all_as_one_machine_does_and_shows_no_secret(
    cluster: Cluster, served: Served, undisturbed: Undisturbed
) -> None:
    with cluster.search(served.secrets) as search:
        with cluster.program("python", "-c", ONE_DRIVER, cluster.master, **served.variables) as driver:
            report = result_of(driver, search)
        assert_as_undisturbed(served, report, undisturbed)

    read = "\n".join(search.read)
    for what in (
        "CoarseGrainedExecutorBackend",
        "/environment/bin/python -m pyspark.daemon",
        "/stderr",
        "/app/?appId=",
    ):
        assert what in read
    assert any("spark.archives" in path.read_text() for path in (cluster.folder / "events").rglob("events*"))
    assert search.found == set()
