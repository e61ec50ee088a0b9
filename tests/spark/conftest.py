"""Fixtures of the Spark lane: one Spark, one filled database to clone, servers that keep what a module has copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest
from planted_queues import plant, plant_healthy
from pyspark.sql import SparkSession

from queuekeeper import postgres
from queuekeeper.clock import system_clock
from queuekeeper.embedded import PostgresServer, RedisCluster, RedisServer
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.sessions import sample
from queuekeeper.sessions.sample_parameters import SampleParameters
from tests.lanes import mark
from tests.object_store import NOWHERE
from tests.spark.world import World, kill_the_dying
from tests.spark_session import compiling, spark

__all__ = ["compiling", "spark"]

HERE = Path(__file__).parent
# Sessions without messages: whether their counter can be used decides whether it is written at all.
EMPTY_SESSIONS = [
    (f"empty-{number}", 1_700_000_000_000, 5, counter)
    for number, counter in enumerate((None, -1, 0, 1, 65_535, 65_536))
]
_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items, HERE, pytest.mark.spark)


@pytest.fixture(scope="session")
def clone(postgres_server: PostgresServer) -> Iterator[Callable[[str], str]]:
    """Make a database, empty or as a copy of another one, and answer its address."""
    names: list[str] = []

    def made(template: str = "template0") -> str:
        names.append(f"spark_{os.getpid()}_{next(_numbers)}")
        return postgres_server.create_database(names[-1], template=template)

    yield made
    for name in reversed(names):
        postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def hostile_template(clone: Callable[[str], str]) -> str:
    """Name of a database with all the rows that an old one holds; nobody stays connected to it."""
    return _filled(clone("template0"), hostile=True)


@pytest.fixture(scope="session")
def healthy_template(clone: Callable[[str], str]) -> str:
    """Name of a database with healthy rows only."""
    return _filled(clone("template0"), hostile=False)


def _filled(url: str, *, hostile: bool) -> str:
    now_ms = system_clock()
    with postgres.connect(url, autocommit=True) as connection:
        sample.fill(
            connection,
            SampleParameters(
                messages=3_000,
                sessions=400,
                long_queues=2,
                long_queue_messages=700,
                now_ms=now_ms,
                hostile=hostile,
                create_schema=True,
            ),
        )
        if hostile:
            connection.cursor().executemany("INSERT INTO device_session_ctx VALUES (%s, %s, %s, %s)", EMPTY_SESSIONS)
        kill_the_dying(connection, now_ms=now_ms)
        return connection.info.dbname


@pytest.fixture(scope="module")
def own_redis(server_home: Path) -> Iterator[Callable[[Flavour], str]]:
    """Start a server that nobody else empties, and answer its address."""
    with ExitStack() as stack:

        def started(flavour: Flavour = "valkey") -> str:
            server = RedisServer(server_home / f"spark-{next(_numbers)}", flavour=flavour, die_with_parent=True)
            server.start()
            stack.callback(server.stop)
            return server.url

        yield started


@pytest.fixture(scope="module")
def make_world(
    spark: SparkSession,
    clone: Callable[[str], str],
    own_redis: Callable[[Flavour], str],
    redis_cluster: RedisCluster,
) -> Iterator[Callable[..., World]]:
    """Make a source and a target of a module's own; ``planted``: with queues of every fault, and healthy ones."""
    with ExitStack() as stack:

        def made(*, template: str = "template0", target: Flavour | str = "valkey", planted: bool = False) -> World:
            if target == "cluster":
                redis_cluster.flush()
                redis_url = redis_cluster.url
            else:
                redis_url = target if "://" in target else own_redis(target)  # type: ignore[arg-type]
            world = stack.enter_context(World.opened(spark, postgres_url=clone(template), redis_url=redis_url))
            if planted:
                plant(world.client)
                plant_healthy(world.client)
            return world

        yield made


@pytest.fixture
def shared_bucket(bucket: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a bucket in which Spark's tasks may read and write, too."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", *NOWHERE):
        monkeypatch.setitem(spark.sparkContext.environment, name, os.environ[name])
    return bucket
