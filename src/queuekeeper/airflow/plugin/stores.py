"""Opens the stores for a page, by Airflow's connections, and keeps a store that is down from taking the page along."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

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
_STATEMENT_TIMEOUT_MS = 10_000


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
    """

    def __init__(
        self,
        *,
        postgres_url: Callable[[], str] = lambda: QueuekeeperPostgresHook().url,
        redis_url: Callable[[], str] = lambda: QueuekeeperRedisHook().url,
    ) -> None:
        self._postgres_url = postgres_url
        self._redis_url = redis_url

    @contextmanager
    def postgres(self) -> Iterator[Connection]:
        """Open source and control database for the length of a ``with`` block; nobody waits for a page for long."""
        url = self._postgres_url()
        if "connect_timeout=" not in url:
            url += f"{'&' if '?' in url else '?'}connect_timeout={_CONNECT_TIMEOUT_S}"
        with postgres.connect(url, autocommit=True) as connection:
            connection.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}")
            yield connection

    @contextmanager
    def redis(self) -> Iterator[RedisClient]:
        """Open Redis for the length of a ``with`` block."""
        client = redis_client.connect(self._redis_url())
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


def panel(load: Callable[[], T]) -> Panel[T]:
    """Return what is loaded, or why it is not; what the reader is told holds no secret."""
    try:
        return Panel(value=load())
    except QueuekeeperError as error:
        return Panel(problem=str(error))
    except psycopg.errors.QueryCanceled:
        return Panel(problem="PostgreSQL did not answer in time: it is busy; look again later.")
    except (psycopg.Error, redis.RedisError, OSError) as error:
        # Their own words may quote what was sent.
        _log.exception("A part of a page could not be loaded")
        return Panel(problem=f"The store failed ({type(error).__name__}): the API server's log has the particulars.")
