"""Opens the stores for a page, by Airflow's connections, and keeps a store that is down from taking the page along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
import redis

from queuekeeper import postgres, redis_client
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.errors import QueuekeeperError
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3
_REPLY_TIMEOUT_S = 5
_STATEMENT_TIMEOUT_MS = 10_000
_LOCK_TIMEOUT_MS = 2_000
"""A lock that is held for longer is held for minutes: maintenance of others, or somebody who forgot a transaction."""

TOO_SLOW = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)


@dataclass(frozen=True, kw_only=True)
class Panel(Generic[T]):
    """A part of a page: what it shows, or why it cannot.

    :param problem: empty when there is a value.
    """

    value: T | None = None
    problem: str = ""


class Stores:
    """The stores that pages show.

    :param postgres_url: returns the address of source and control database.
    :param redis_url: returns the address of Redis.
    :param statement_timeout_ms: for which a page waits for one answer of PostgreSQL.
    """

    def __init__(
        self,
        *,
        postgres_url: Callable[[], str] = lambda: QueuekeeperPostgresHook().url,
        redis_url: Callable[[], str] = lambda: QueuekeeperRedisHook().url,
        statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS,
    ) -> None:
        self._postgres_url = postgres_url
        self._redis_url = redis_url
        self._statement_timeout_ms = statement_timeout_ms

    @contextmanager
    def postgres(self) -> Iterator[Connection]:
        """Open source and control database for the length of a ``with`` block; nobody waits for a page for long."""
        url = _with_option(self._postgres_url(), "connect_timeout", _CONNECT_TIMEOUT_S)
        with postgres.connect(url, autocommit=True) as connection:
            connection.execute(
                f"SET statement_timeout = {self._statement_timeout_ms}; SET lock_timeout = {_LOCK_TIMEOUT_MS}"
            )
            yield connection

    @contextmanager
    def redis(self) -> Iterator[RedisClient]:
        """Open Redis for the length of a ``with`` block; nobody waits for a page for long here, either."""
        client = redis_client.connect(_with_option(self._redis_url(), "socket_timeout", _REPLY_TIMEOUT_S))
        try:
            yield client
        finally:
            client.close()

    def from_postgres(self, load: Callable[[Connection], T]) -> Panel[T]:
        """Return what is loaded from PostgreSQL, or why it is not."""

        def opened() -> T:
            with self.postgres() as connection:
                return load(connection)

        return panel(opened)

    def from_redis(self, load: Callable[[RedisClient], T]) -> Panel[T]:
        """Return what is loaded from Redis, or why it is not."""

        def opened() -> T:
            with self.redis() as client:
                return load(client)

        return panel(opened)


def _with_option(url: str, name: str, value: int) -> str:
    """Return an address with an option, unless it has one of this name."""
    return url if f"{name}=" in url else f"{url}{'&' if '?' in url else '?'}{name}={value}"


def together(*loads: Callable[[], Panel[Any]]) -> list[Panel[Any]]:
    """Return parts of a page that are loaded side by side: a page takes as long as its slowest part."""
    with ThreadPoolExecutor(len(loads)) as threads:
        return list(threads.map(lambda load: load(), loads))


def too_slow(error: Exception) -> str:
    """Return what to say of an answer that did not come in time; empty for any other error."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "PostgreSQL is held up: another session holds a lock on a table; look again later."
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "PostgreSQL did not answer in time: it is busy; look again later."
    return ""


def panel(load: Callable[[], T]) -> Panel[T]:
    """Return what is loaded, or why it is not; what the reader is told holds no secret."""
    try:
        return Panel(value=load())
    except QueuekeeperError as error:
        return Panel(problem=str(error))
    except TOO_SLOW as error:
        return Panel(problem=too_slow(error))
    except (psycopg.Error, redis.RedisError, OSError) as error:
        # Their own words may quote what was sent.
        _log.exception("A part of a page could not be loaded")
        return Panel(problem=f"The store failed ({type(error).__name__}): the API server's log has the particulars.")
