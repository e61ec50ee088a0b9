"""PostgreSQL, Redis and Spark as Airflow knows them: connections, and pools of the tasks that load them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

POSTGRES_CONNECTION = "queuekeeper_postgres"
REDIS_CONNECTION = "queuekeeper_redis"
SPARK_CONNECTION = "queuekeeper_spark"

POSTGRES_EXTRAS = frozenset(
    {
        "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count", "keepalives_idle",
        "keepalives_interval", "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert",
        "target_session_attrs", "tcp_user_timeout",
    }
)  # fmt: skip
REDIS_EXTRAS = frozenset({"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile"})
"""Options of an address that a connection may have among its extras; besides them, Redis has ``db`` and ``ssl``."""


class Pool(StrEnum):
    """Pools by the resource that their tasks load. A task in a pool that does not exist is never scheduled."""

    SPARK = "queuekeeper_spark"
    POSTGRES = "queuekeeper_postgres"
    REDIS = "queuekeeper_redis"


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """Number of tasks of a pool that may run at once, and why."""

    slots: int
    description: str


POOLS: Mapping[Pool, PoolSize] = {
    Pool.SPARK: PoolSize(slots=1, description="Spark drivers at a time"),
    Pool.POSTGRES: PoolSize(slots=4, description="Tasks that load the source or control database"),
    Pool.REDIS: PoolSize(slots=4, description="Tasks that load Redis"),
}
"""``queuekeeper up --airflow`` creates these; elsewhere: ``airflow pools set queuekeeper_spark 1 "Spark drivers"``."""
