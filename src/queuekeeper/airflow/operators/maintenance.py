"""What the tasks of maintenance in Redis have in common, whatever they maintain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.operators.asked import AskedOperator
from queuekeeper.airflow.run_index import remember
from queuekeeper.config import Settings
from queuekeeper.errors import CheckFailed
from queuekeeper.report.files import ReportFiles

if TYPE_CHECKING:
    from airflow.sdk import Context

RUN_KEY = "maintenance_run_id"
"""Under this name the plan hands the id of its run on."""


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

    def hand_on(self, context: Context, run_id: str, shares: Sequence[str]) -> list[dict[str, str]]:
        """Return run and share of each task that is to work on a plan, and leave the run's id for the report."""
        context["ti"].xcom_push(key=RUN_KEY, value=run_id)
        return [{RUN_KEY: run_id, "share": share} for share in shares]


class PlanOperator(AskedOperator, MaintenanceOperator):
    """Finds what is to be done and writes it down.

    :param plan_only: nothing is to be done (templated).
    """

    template_fields: Sequence[str] = (*AskedOperator.template_fields, *MaintenanceOperator.template_fields, "plan_only")

    def __init__(self, *, plan_only: bool | str = "{{ params.dry_run }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan_only = plan_only


class ShareOperator(MaintenanceOperator):
    """Does one share of a plan; repeating it goes on where it stopped.

    :param maintenance_run_id: the run (templated).
    :param share: one of the plan's; mapped (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, RUN_KEY, "share")

    def __init__(self, *, maintenance_run_id: str, share: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.share = share


class SharedOutcome(Protocol):
    """What a run over shares came to, judged by a second look."""

    @property
    def maintenance_run_id(self) -> str: ...  # noqa: D102
    @property
    def plan(self) -> Any: ...  # noqa: D102
    @property
    def counts(self) -> Any: ...  # noqa: D102
    @property
    def left(self) -> Any | None: ...  # noqa: D102
    @property
    def clean(self) -> bool: ...  # noqa: D102
    @property
    def broken_queues(self) -> int: ...  # noqa: D102


Outcome = TypeVar("Outcome", bound=SharedOutcome)


class RunReportOperator(MaintenanceOperator):
    """Writes what was planned, done and left of a run as HTML and JSON.

    :param maintenance_run_id: the run; empty when there is no plan (templated).
    :param plan_only: nothing was to be done (templated).
    """

    template_fields: Sequence[str] = (*MaintenanceOperator.template_fields, RUN_KEY, "plan_only")

    def __init__(
        self, *, maintenance_run_id: str, plan_only: bool | str = "{{ params.dry_run }}", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.maintenance_run_id = maintenance_run_id
        self.plan_only = plan_only

    def demand_plan(self) -> None:
        """Skip the task when there is no plan."""
        if not self.maintenance_run_id:
            raise AirflowSkipException("there is no plan, so there is nothing to report")

    def told(
        self,
        context: Context,
        outcome: Outcome,
        *,
        write: Callable[[Outcome, Path], ReportFiles],
        words: str,
        hint: str,
    ) -> dict[str, Any]:
        """Write the report, put it on the run's record, and return what it came to and where the files are.

        :param words: what it came to, in a sentence.
        :param hint: what to do about queues that are broken.
        :raises CheckFailed: once the report is written, when there are such.
        """
        directory = Settings().reports
        files = write(outcome, directory)
        run = context["dag_run"]
        remember(directory, dag_id=run.dag_id, run_id=run.run_id, files=files)
        self.log.info("Run %s: %s; report %s", outcome.maintenance_run_id, words, files.html)
        if outcome.broken_queues:
            raise CheckFailed(f"{words}: {hint}; report: {files.html}")
        return {
            "maintenance_run_id": outcome.maintenance_run_id,
            "verdict": words,
            "clean": outcome.clean,
            "planned": asdict(outcome.plan.counts),
            "counts": asdict(outcome.counts),
            "left": None if outcome.left is None else asdict(outcome.left),
            "html": str(files.html),
            "json": str(files.json),
        }
