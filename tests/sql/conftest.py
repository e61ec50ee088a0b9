"""Fixtures of the SQL lane: a database with the control schema, and one with the vendor's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from queuekeeper import postgres, sql_statements
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.postgres import Connection
from tests.event_samples import subscribe

_copies = count(1)


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    """Connection to an empty database that commits by itself."""
    with postgres.connect(postgres_url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def connect(postgres_url: str, connection: Connection) -> Iterator[Callable[[], Connection]]:
    """Open further connections to the same database."""
    opened: list[Connection] = []

    def another() -> Connection:
        opened.append(postgres.connect(postgres_url, autocommit=True))
        return opened[-1]

    yield another
    for each in opened:
        each.close()


@pytest.fixture
def ledger(connection: Connection, control_schema: None) -> MigrationLedger:
    """Ledger of a database that has just been migrated."""
    return MigrationLedger(connection)


@pytest.fixture
def source(connection: Connection) -> Connection:
    """Connection to a database with the vendor's empty tables."""
    connection.execute(sql_statements.statement("sessions/vendor_schema"))
    return connection


@pytest.fixture
def database(source: Connection, control_schema: None) -> Connection:
    """Connection to a database with the vendor's tables and ours."""
    return source


@pytest.fixture
def broker(connection: Connection) -> Connection:
    """Connection to a broker with one subscription to everything."""
    subscribe(connection, "all")
    return connection
