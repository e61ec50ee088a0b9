"""What tasks have in common that use both stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.supervised import SupervisedOperator


class StoresOperator(SupervisedOperator):
    """What all tasks are given that use both stores.

    :param postgres_conn_id: where records are kept, and sessions of TBMQ 1.x are (templated).
    :param redis_conn_id: where sessions of TBMQ 2.x and other queues are (templated).
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
