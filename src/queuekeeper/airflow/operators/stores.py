"""What tasks have in common that use both stores, or PostgreSQL alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.operators.asked import Ask, AsksOperator
from queuekeeper.airflow.supervised import SupervisedOperator
from queuekeeper.jobs.common import DryRun
from queuekeeper.postgres import Connection


class StoresOperator(SupervisedOperator):
    """Arguments of all tasks that use both stores.

    :param postgres_conn_id: connection of the database with records and sessions of TBMQ 1.x (templated).
    :param redis_conn_id: connection of the Redis with sessions of TBMQ 2.x and other queues (templated).
    """

    template_fields: Sequence[str] = ("postgres_conn_id", "redis_conn_id")

    def __init__(
        self, *, postgres_conn_id: str = POSTGRES_CONNECTION, redis_conn_id: str = REDIS_CONNECTION, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id
        self.redis_conn_id = redis_conn_id

    @property
    def postgres_hook(self) -> QueuekeeperPostgresHook:
        """Hook of PostgreSQL."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id)

    @property
    def redis_hook(self) -> QueuekeeperRedisHook:
        """Hook of Redis."""
        return QueuekeeperRedisHook(self.redis_conn_id)


class DatabaseOperator(AsksOperator):
    """Arguments of tasks that work on PostgreSQL alone.

    :param postgres_conn_id: connection of the database, which also holds the schema ``queuekeeper`` (templated).
    """

    template_fields: Sequence[str] = ("postgres_conn_id",)
    plan_only = Ask(DryRun, name="dry_run")

    def __init__(self, *, postgres_conn_id: str = POSTGRES_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id

    @property
    def only_plans(self) -> bool:
        """Whether the run is a dry run."""
        return self.read(DryRun).dry_run

    def connect(self) -> AbstractContextManager[Connection]:
        """Open the database for a ``with`` block."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect()
