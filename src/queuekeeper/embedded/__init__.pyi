"""What others use of private servers; ``__init__.py`` loads each name when it is asked for."""

from .airflow_client import AirflowClient as AirflowClient, TaskState as TaskState
from .airflow_server import AirflowServer as AirflowServer, AirflowUser as AirflowUser
from .postgres_server import PostgresServer as PostgresServer
from .redis_server import RedisCluster as RedisCluster, RedisServer as RedisServer
from .stack import (
    DATABASE as DATABASE,
    ServerStatus as ServerStatus,
    ServerUrls as ServerUrls,
    Status as Status,
    Stopped as Stopped,
    addresses_with_passwords as addresses_with_passwords,
    down as down,
    down_airflow as down_airflow,
    erase as erase,
    private_airflow as private_airflow,
    server_urls as server_urls,
    status as status,
    up as up,
)
