"""What the tasks of maintenance in Redis have in common, whatever they maintain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook


class MaintenanceOperator(BaseOperator):
    """What all tasks of maintenance in Redis are given.

    :param postgres_conn_id: where plan, approval and progress are kept (templated).
    :param redis_conn_id: what is maintained (templated).
    """

    template_fields: Sequence[str] = ("postgres_conn_id", "redis_conn_id")

    def __init__(
        self,
        *,
        postgres_conn_id: str = POSTGRES_CONNECTION,
        redis_conn_id: str = REDIS_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.postgres_conn_id = postgres_conn_id
        self.redis_conn_id = redis_conn_id

    @property
    def postgres_hook(self) -> QueuekeeperPostgresHook:
        """Hook of the records."""
        return QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id)

    @property
    def redis_hook(self) -> QueuekeeperRedisHook:
        """Hook of the store."""
        return QueuekeeperRedisHook(self.redis_conn_id)

    def say(self, line: str) -> None:
        """Write progress to the task's log."""
        self.log.info("%s", line)
