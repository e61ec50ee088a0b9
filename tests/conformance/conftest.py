"""Fixtures of the conformance lane: a database with the event broker in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import pytest

from queuekeeper import postgres
from queuekeeper.embedded import PostgresServer
from queuekeeper.events import schema

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
