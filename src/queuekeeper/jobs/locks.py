"""A lock that a session of PostgreSQL holds, and that ends with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg

from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.sql_statements import statement


@contextmanager
def session_lock(connection: Connection, name: str) -> Iterator[bool]:
    """Try to hold a named lock for this session, and yield whether it was free; a killed process leaves none.

    The lock is released at the end of the block, since the server may notice the end of a connection too late.
    """
    digest = hashlib.sha256(name.encode()).digest()
    key = {"key": int.from_bytes(digest[:8], "big", signed=True)}
    with translated_errors(connection):
        row = connection.execute(statement("queuekeeper/queries/lock_shard"), key).fetchone()
    is_held = row is not None and bool(row[0])
    try:
        yield is_held
    finally:
        # A connection that is gone has given up its locks; the error that broke it is the one to show.
        if is_held and not connection.closed:
            with suppress(psycopg.OperationalError):
                connection.execute(statement("queuekeeper/queries/unlock_shard"), key)
