"""Private servers for a first try and for tests: PostgreSQL, Valkey or Redis, Java and Airflow."""

from __future__ import annotations

from queuekeeper.embedded.airflow_client import AirflowClient, TaskState
from queuekeeper.embedded.airflow_server import AirflowServer, AirflowUser
from queuekeeper.embedded.postgres_server import PostgresServer
from queuekeeper.embedded.redis_server import RedisCluster, RedisServer
from queuekeeper.embedded.stack import (
    DATABASE,
    ServerStatus,
    ServerUrls,
    Status,
    Stopped,
    addresses_with_passwords,
    airflow_server,
    down,
    down_airflow,
    erase,
    server_urls,
    status,
    up,
)
from queuekeeper.java import java_home

__all__ = [
    "DATABASE",
    "AirflowClient",
    "AirflowServer",
    "AirflowUser",
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "ServerStatus",
    "ServerUrls",
    "Status",
    "Stopped",
    "TaskState",
    "addresses_with_passwords",
    "airflow_server",
    "down",
    "down_airflow",
    "erase",
    "java_home",
    "server_urls",
    "status",
    "up",
]
