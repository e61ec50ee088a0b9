"""What tasks about one queue in Redis have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from queuekeeper.airflow.defaults import REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperRedisHook


class RedisQueueOperator(BaseOperator):
    """Where the queue is.

    :param key_prefix: put before every Redis key (templated).
    :param redis_conn_id: server or cluster (templated).
    """

    template_fields: Sequence[str] = ("key_prefix", "redis_conn_id")

    def __init__(self, *, key_prefix: str = "", redis_conn_id: str = REDIS_CONNECTION, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key_prefix = key_prefix
        self.redis_conn_id = redis_conn_id

    def redis_hook(self) -> QueuekeeperRedisHook:
        """Return the hook of the connection that the task names."""
        return QueuekeeperRedisHook(self.redis_conn_id)
