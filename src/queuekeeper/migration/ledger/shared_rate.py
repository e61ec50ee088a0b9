"""Divides a rate among the Spark tasks that are at work now."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psycopg

from queuekeeper.postgres import Connection, statement, translated_errors

_QUERIES = "queuekeeper/queries/"


@contextmanager
def shared_rate(connection: Connection, name: str) -> Iterator[Callable[[float], float]]:
    """Count this connection among those that share a rate, until the block ends.

    The number of tasks is known only while they run, since a cluster grants executors late. Each task holds a lock that
    ends with its connection, so that a killed task is not counted.

    :param name: what the rate belongs to, such as a plan's id.
    :returns: a function that returns this connection's present share of the whole rate.
    """
    lock = {"class": lock_class("rate", name)}

    def share(rate: float) -> float:
        with translated_errors(connection):
            row = connection.execute(statement(f"{_QUERIES}count_sharers"), lock).fetchone()
        return rate / max(1, row[0] if row else 1)

    with translated_errors(connection):
        connection.execute(statement(f"{_QUERIES}join_sharers"), lock)
    try:
        yield share
    finally:
        if not connection.closed:
            with suppress(psycopg.OperationalError):
                connection.execute(statement(f"{_QUERIES}leave_sharers"), lock)


def lock_class(purpose: str, name: str) -> int:
    """Return the first key of the advisory locks of a purpose and a name, such as a plan's id; never negative."""
    return int.from_bytes(hashlib.sha256(f"queuekeeper.{purpose}:{name}".encode()).digest()[:4], "big") >> 1
