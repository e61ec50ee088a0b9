"""Start, retries, tags and templates that all DAGs of Queuekeeper share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from queuekeeper.airflow.notifiers import Event, notifiers
from queuekeeper.errors import QueuekeeperError, ServerUnavailable
from queuekeeper.jobs.resources import Pool as Pool  # noqa: PLC0414 - DAGs take it from here

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Start date of every DAG; it is fixed, so that the serialized DAG stays the same."""

ONE_AT_A_TIME: dict[str, Any] = {"start_date": START, "catchup": False, "max_active_runs": 1}
"""Arguments of a DAG of which one run is active at a time."""

ON_SCHEDULE: dict[str, Any] = {**ONE_AT_A_TIME, "is_paused_upon_creation": True}
"""Arguments of a DAG that runs on a schedule after somebody has unpaused it."""


class Tag(StrEnum):
    """Tags by which DAGs are found in the UI."""

    QUEUEKEEPER = "queuekeeper"
    MIGRATION = "migration"
    POSTGRES = "postgres"
    REDIS = "redis"
    SPARK = "spark"
    QUALITY = "quality"
    MAINTENANCE = "maintenance"


def of_file(path: str, words: str | None) -> dict[str, Any]:
    """Return id and description of a DAG, which come from its file.

    :param words: the file's docstring.
    """
    return {"dag_id": Path(path).stem, "doc_md": words}


def tags(*others: Tag) -> list[str]:
    """Return the tags of a DAG, with the tag that all DAGs have."""
    return [Tag.QUEUEKEEPER.value, *(tag.value for tag in others)]


def connections(*servers: str) -> dict[str, str]:
    """Return the connections of tasks as templates: those that the form names.

    :param servers: ``postgres``, ``redis``, ``spark``.
    """
    return {f"{server}_conn_id": f"{{{{ params.{server}_conn_id }}}}" for server in servers}


def retry_policy() -> ExceptionRetryPolicy:
    """Return the policy that decides which failures are retried.

    An unreachable server may be back in a minute. Other errors of Queuekeeper are refusals, which a retry would repeat.
    Any other exception follows the task's own number of retries.
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
                reason="refused: a retry would be refused, too",
            ),
        ]
    )


def default_args(*, owner: str = "queuekeeper") -> dict[str, Any]:
    """Return the default arguments of every task of a DAG."""
    return {
        "owner": owner,
        "retries": 2,
        # A driver whose task was killed ends itself within two seconds; the next try must not start before.
        "retry_delay": timedelta(seconds=15),
        "retry_policy": retry_policy(),
        "on_failure_callback": notifiers(Event.FAILURE),
    }


def spark_jobs(dag_file: str) -> str:
    """Return the folder of Spark applications that belongs to a DAG file: ``spark_jobs/`` beside its folder."""
    return str(Path(dag_file).resolve().parent.parent / "spark_jobs")
