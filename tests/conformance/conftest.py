"""Fixtures of the conformance lane: empty servers, and a database for records of runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from queuekeeper import postgres, schema_migrations
from queuekeeper.embedded import PostgresServer
from queuekeeper.redis_client import RedisClient, connect, nodes
from tests.conftest import ONE_SERVER_EACH, url_of_parameter

_copies = count(1)


@pytest.fixture(params=[*ONE_SERVER_EACH, "cluster"])
def each_server(request: pytest.FixtureRequest) -> Iterator[RedisClient]:
    """Client of an empty server: Valkey, Redis, and a cluster."""
    with connect(url_of_parameter(request)) as client:
        for _, node in nodes(client):
            node.flushall()
        yield client


@pytest.fixture(scope="module")
def shared_records(postgres_server: PostgresServer) -> Iterator[postgres.Connection]:
    """A database that all tests of a file keep their records in."""
    name = f"records_{os.getpid()}_{next(_copies)}"
    postgres_server.start()
    with postgres.connect(postgres_server.create_database(name, template="template0"), autocommit=True) as connection:
        schema_migrations.migrate(connection)
        yield connection
    postgres_server.drop_database(name)


@pytest.fixture
def records(shared_records: postgres.Connection) -> postgres.Connection:
    """The same, empty: the same plan at the same instant is the same run, which another test may have done."""
    shared_records.execute("TRUNCATE queuekeeper.maintenance_runs CASCADE")
    return shared_records
