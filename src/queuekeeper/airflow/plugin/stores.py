"""Opens the stores for a page by Airflow's connections; if a store is down, the rest of the page is still shown."""

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
"""A lock that lasts longer usually lasts minutes: other maintenance, or a forgotten transaction."""

TOO_SLOW = (psycopg.errors.QueryCanceled, psycopg.errors.LockNotAvailable)


@dataclass(frozen=True, kw_only=True)
class Panel(Generic[T]):
    """A part of a page: its value, or why there is none.

    :param problem: empty when there is a value.
    """

    value: T | None = None
    problem: str = ""


class Stores:
    """The stores that pages show.

    :param postgres_url: returns the address of source and control database.
    :param redis_url: returns the address of Redis.
    :param statement_timeout_ms: longest time that a page waits for one answer of PostgreSQL.
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
        """Open source and control database for a ``with`` block, with short time-outs."""
        url = _with_option(self._postgres_url(), "connect_timeout", _CONNECT_TIMEOUT_S)
        with postgres.connect(url, autocommit=True) as connection:
            connection.execute(
                f"SET statement_timeout = {self._statement_timeout_ms}; SET lock_timeout = {_LOCK_TIMEOUT_MS}"
            )
            yield connection

    @contextmanager
    def redis(self) -> Iterator[RedisClient]:
        """Open Redis for a ``with`` block, with short time-outs."""
        client = redis_client.connect(_with_option(self._redis_url(), "socket_timeout", _REPLY_TIMEOUT_S))
        try:
            yield client
        finally:
            client.close()

    def from_postgres(self, load: Callable[[Connection], T]) -> Panel[T]:
        """Return the value that is loaded from PostgreSQL, or why it could not be loaded."""

        def opened() -> T:
            with self.postgres() as connection:
                return load(connection)

        return panel(opened)

    def from_redis(self, load: Callable[[RedisClient], T]) -> Panel[T]:
        """Return the value that is loaded from Redis, or why it could not be loaded."""

        def opened() -> T:
            with self.redis() as client:
                return load(client)

        return panel(opened)


def _with_option(url: str, name: str, value: int) -> str:
    """Return an address with an option added, unless it has that option already."""
    return url if f"{name}=" in url else f"{url}{'&' if '?' in url else '?'}{name}={value}"


def together(*loads: Callable[[], Panel[Any]]) -> list[Panel[Any]]:
    """Load parts of a page at the same time and return them; the page takes as long as its slowest part."""
    with ThreadPoolExecutor(len(loads)) as threads:
        return list(threads.map(lambda load: load(), loads))


def too_slow(error: Exception) -> str:
    """Return the words for an answer that did not come in time; empty for any other error."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return "PostgreSQL waits for another session, which holds a lock on a table: reload this page later."
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "PostgreSQL did not answer in time because it is busy: reload this page later."
    return ""


def panel(load: Callable[[], T]) -> Panel[T]:
    """Return the loaded value, or why it could not be loaded, in words without secrets."""
    try:
        return Panel(value=load())
    except QueuekeeperError as error:
        return Panel(problem=str(error))
    except TOO_SLOW as error:
        return Panel(problem=too_slow(error))
    except (psycopg.Error, redis.RedisError, OSError) as error:
        # The error's own words may quote what was sent.
        _log.exception("A part of a page could not be loaded")
        return Panel(problem=f"The store failed ({type(error).__name__}): the API server's log has the details.")
