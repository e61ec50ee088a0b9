"""What all DAGs of Queuekeeper share: connections, pools, retries and tags."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from queuekeeper.airflow.notifiers import Event, notifiers
from queuekeeper.errors import QueuekeeperError, ServerUnavailable

POSTGRES_CONNECTION = "queuekeeper_postgres"
REDIS_CONNECTION = "queuekeeper_redis"
SPARK_CONNECTION = "queuekeeper_spark"

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Start date of every DAG; runs before it make no sense, and a fixed one keeps the serialized DAG the same."""

ONE_AT_A_TIME: dict[str, Any] = {"start_date": START, "catchup": False, "max_active_runs": 1}
"""Arguments of a DAG whose runs follow one another."""

ON_SCHEDULE: dict[str, Any] = {**ONE_AT_A_TIME, "is_paused_upon_creation": True}
"""Arguments of a DAG that runs by itself, once somebody has unpaused it."""


class Pool(StrEnum):
    """Pools by what their tasks load. A task in a pool that nobody created is never scheduled."""

    SPARK = "queuekeeper_spark"
    POSTGRES = "queuekeeper_postgres"
    REDIS = "queuekeeper_redis"


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    """How many tasks of a pool may run at once, and why."""

    slots: int
    description: str


POOLS: dict[Pool, PoolSize] = {
    Pool.SPARK: PoolSize(slots=1, description="Spark drivers at a time"),
    Pool.POSTGRES: PoolSize(slots=4, description="Tasks that load the source or control database"),
    Pool.REDIS: PoolSize(slots=4, description="Tasks that load Redis"),
}
"""``queuekeeper up --airflow`` creates these; elsewhere: ``airflow pools set queuekeeper_spark 1 "Spark drivers"``."""


class Tag(StrEnum):
    """Words by which DAGs are found in the UI."""

    QUEUEKEEPER = "queuekeeper"
    MIGRATION = "migration"
    POSTGRES = "postgres"
    REDIS = "redis"
    SPARK = "spark"
    QUALITY = "quality"
    MAINTENANCE = "maintenance"


def of_file(path: str, words: str | None) -> dict[str, Any]:
    """Return name and help of a DAG: those of its file.

    :param words: the file's docstring.
    """
    return {"dag_id": Path(path).stem, "doc_md": words}


def tags(*others: Tag) -> list[str]:
    """Return the tags of a DAG, with the one that all have."""
    return [Tag.QUEUEKEEPER.value, *(tag.value for tag in others)]


def connections(*servers: str) -> dict[str, str]:
    """Return which connections tasks use: those that the form names.

    :param servers: ``postgres``, ``redis``, ``spark``.
    """
    return {f"{server}_conn_id": f"{{{{ params.{server}_conn_id }}}}" for server in servers}


def retry_policy() -> ExceptionRetryPolicy:
    """Return which failures are worth another try.

    An unreachable server may be back in a minute. What else Queuekeeper refuses on purpose it would refuse again.
    Anything unforeseen follows the task's own number of retries.
    """
    return ExceptionRetryPolicy(
        rules=[
            RetryRule(
                exception=ServerUnavailable,
                action=RetryAction.RETRY,
                retry_delay=timedelta(minutes=1),
                reason="the server may be back soon",
            ),
            RetryRule(
                exception=QueuekeeperError,
                action=RetryAction.FAIL,
                reason="refused on purpose: trying again changes nothing",
            ),
        ]
    )


def default_args(*, owner: str = "queuekeeper") -> dict[str, Any]:
    """Return the arguments that every task of a DAG starts from."""
    return {
        "owner": owner,
        "retries": 2,
        # A driver whose task was killed ends itself within two seconds; the next try must not meet it.
        "retry_delay": timedelta(seconds=15),
        "retry_policy": retry_policy(),
        "on_failure_callback": notifiers(Event.FAILURE),
    }


def spark_jobs(dag_file: str) -> str:
    """Return the folder of Spark applications that belongs to a DAG file: ``spark_jobs/`` beside its folder."""
    return str(Path(dag_file).resolve().parent.parent / "spark_jobs")
