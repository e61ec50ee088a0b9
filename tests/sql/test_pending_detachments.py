"""What counts as a detachment that nobody ends, with detachments at work and cut off beside a reader."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic

import psycopg
import pytest

from queuekeeper import postgres, schema_migrations
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.partitioned_tables import read_partitioned_tables
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sql

DETACH = "ALTER TABLE readings DETACH PARTITION readings_1 CONCURRENTLY"
WAITS = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"


@pytest.fixture
def watcher(postgres_url: str) -> Iterator[Connection]:
    """A session that judges, without rights to anything but what everybody has, beside a table with one partition."""
    with postgres.connect(postgres_url, autocommit=True) as connection:
        schema_migrations.migrate(connection)
        connection.execute(
            "CREATE TABLE readings (k int) PARTITION BY RANGE (k);"
            "CREATE TABLE readings_1 PARTITION OF readings FOR VALUES FROM (0) TO (10)"
        )
        connection.execute(
            "CREATE ROLE watcher; GRANT USAGE ON SCHEMA queuekeeper TO watcher;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA queuekeeper TO watcher"
        )
        connection.execute("SET ROLE watcher")
        try:
            yield connection
        finally:
            connection.execute("RESET ROLE; DROP OWNED BY watcher; DROP ROLE watcher")


@contextmanager
def reader_of(url: str, query: str) -> Iterator[None]:
    """Let a transaction that has read something stay open."""
    with postgres.connect(url, autocommit=True) as reader, reader.transaction():
        reader.execute(query)
        yield


@contextmanager
def at_work(url: str, watcher: Connection, query: str) -> Iterator[None]:
    """Let a session wait in a statement, which has to end well once the block has."""
    with postgres.connect(url, autocommit=True) as session, ThreadPoolExecutor(1) as pool:
        work = pool.submit(session.execute, query)
        try:
            give_up_at = monotonic() + PATIENCE_S
            while not watcher.execute(WAITS, (session.info.backend_pid,)).fetchall():
                assert not work.done()
                assert monotonic() < give_up_at
            yield
        except BaseException:
            session.cancel()
            raise
        work.result()


def pending(watcher: Connection) -> int:
    (table,) = read_partitioned_tables(watcher, now_ms=0)
    return int(table["pending_detaches"])


def cut_off(url: str) -> None:
    with reader_of(url, "SELECT * FROM readings"), postgres.connect(url, autocommit=True) as session:
        session.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            session.execute(DETACH)


def test_detachment_that_waits_for_a_reader_is_at_work(watcher: Connection, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as reader:
        reader.execute("BEGIN; SELECT * FROM readings")
        with at_work(postgres_url, watcher, DETACH):
            assert pending(watcher) == 0
            reader.execute("COMMIT")


def test_detachment_that_was_cut_off_is_pending_until_somebody_ends_it(watcher: Connection, postgres_url: str) -> None:
    cut_off(postgres_url)
    assert pending(watcher) == 1
    # Readers of the table, and of what was to leave it, are no work on it.
    with reader_of(postgres_url, "SELECT * FROM readings"), reader_of(postgres_url, "SELECT * FROM readings_1"):
        assert pending(watcher) == 1
    with postgres.connect(postgres_url, autocommit=True) as reader:
        reader.execute("BEGIN; SELECT * FROM readings_1")
        finalize = "ALTER TABLE readings DETACH PARTITION readings_1 FINALIZE"
        with at_work(postgres_url, watcher, finalize):
            assert pending(watcher) == 0
            reader.execute("COMMIT")
    assert pending(watcher) == 0
