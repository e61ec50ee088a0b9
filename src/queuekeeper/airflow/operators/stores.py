"""What tasks have in common that use both stores, or PostgreSQL alone."""

from __future__ import annotations

from contextlib import AbstractContextManager

from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.operators.asked import Ask, AsksOperator, argument
from queuekeeper.jobs.common import DryRun
from queuekeeper.jobs.resources import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.postgres import Connection


class StoresOperator(AsksOperator):
    """Arguments of all tasks that use both stores.

    :param postgres_conn_id: connection of the database with records and sessions of TBMQ 1.x (templated).
    :param redis_conn_id: connection of the Redis with sessions of TBMQ 2.x and other queues (templated).
    """

    postgres_conn_id: str = argument(POSTGRES_CONNECTION)
    redis_conn_id: str = argument(REDIS_CONNECTION)

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

    postgres_conn_id: str = argument(POSTGRES_CONNECTION)
    plan_only = Ask(DryRun, name="dry_run")

    @property
    def only_plans(self) -> bool:
        """Whether the run is a dry run."""
        return self.read(DryRun).dry_run

    def connect(self) -> AbstractContextManager[Connection]:
        """Open the database for a ``with`` block."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect()
