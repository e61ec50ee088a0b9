"""Fixtures of the conformance lane: empty servers, a database for records of runs, one with the event broker in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.events import schema
from queuekeeper.redis_client import RedisClient, connect, nodes
from tests.conftest import ONE_SERVER_EACH

_copies = count(1)


@pytest.fixture(scope="session")
def events_template(postgres_server: PostgresServer) -> str:
    """Name of a database with a new event broker; copying it is ten times faster than installing another."""
    postgres_server.start()
    name = f"events_template_{os.getpid()}"
    with postgres.connect(postgres_server.create_database(name, template="template0"), autocommit=True) as connection:
        schema.install(connection)
    return name


@pytest.fixture
def broker_url(postgres_server: PostgresServer, events_template: str) -> Iterator[str]:
    """Address of a database of the test's own, with a new event broker."""
    postgres_server.start()
    name = f"events_{os.getpid()}_{next(_copies)}"
    yield postgres_server.create_database(name, template=events_template)
    postgres_server.start()
    postgres_server.drop_database(name)


@pytest.fixture(params=[*ONE_SERVER_EACH, "cluster"])
def each_server(request: pytest.FixtureRequest) -> Iterator[RedisClient]:
    """Client of an empty server: Valkey, Redis, and a cluster."""
    if request.param == "cluster":
        url = request.getfixturevalue("redis_cluster_url")
    else:
        url = request.getfixturevalue("redis_servers")(request.param).url
    with connect(url) as client:
        for _, node in nodes(client):
            node.flushall()
        yield client


@pytest.fixture(scope="module")
def shared_records(postgres_server: PostgresServer) -> Iterator[postgres.Connection]:
    """A database that all tests of a file keep their records in."""
    name = f"records_{os.getpid()}_{next(_copies)}"
    postgres_server.start()
    with postgres.connect(postgres_server.create_database(name, template="template0"), autocommit=True) as connection:
        postgres.migrate(connection)
        yield connection
    postgres_server.drop_database(name)


@pytest.fixture
def records(shared_records: postgres.Connection) -> postgres.Connection:
    """The same, empty: the same plan at the same instant is the same run, which another test may have done."""
    shared_records.execute("TRUNCATE queuekeeper.maintenance_runs CASCADE")
    return shared_records
