"""The collection of compacted queues as tasks; what is collected and how is in ``queuekeeper.maintenance``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.forms import reject_unknown_of
from queuekeeper.airflow.links import ReportLink
from queuekeeper.airflow.operators.maintenance import MaintenanceOperator, RunReportOperator, ShareOperator
from queuekeeper.airflow.values import flag
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.errors import CheckFailed
from queuekeeper.identity import client_hash, hash_key
from queuekeeper.jobs.undo import remove_old_undo_files
from queuekeeper.maintenance.compacted_gc import (
    collect_share,
    plan_collection,
    report_collection,
    save_collection_plan,
)
from queuekeeper.maintenance.compacted_gc_model import KIND, CollectionParameters
from queuekeeper.maintenance.compacted_gc_report import last_finished, verdict, write_report
from queuekeeper.postgres import migrate
from queuekeeper.report.files import ReportKind

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanCollectionOperator(MaintenanceOperator):
    """Count what is due in compacted queues and write it down; nothing is removed.

    As the first task of its DAG it also refuses parameters that the form does not have.

    :param key_prefix: put before every key (templated).
    :param policy: what may go of queues without rules of their own (templated).
    :param retention_s: age at which it may (templated).
    :param tombstone_s: age at which an acknowledged tombstone may (templated).
    :param override: hold all queues to these rules (templated).
    :param client_filter: pattern of client ids; empty for all (templated).
    :param key_filter: pattern of keys; empty for all (templated).
    :param keep_values: write values to the undo file (templated).
    :param max_operations_per_s: rate; empty for none (templated).
    :param max_run_minutes: time limit of a task; empty for none (templated).
    :param max_jitter_s: how much later a task may start (templated).
    :param shares: tasks that share the registry (templated).
    :param undo_retention_days: age from which undo files are removed (templated).
    :param dry_run: nothing is to be collected (templated).
    """

    template_fields: Sequence[str] = (
        *MaintenanceOperator.template_fields,
        "key_prefix",
        "policy",
        "retention_s",
        "tombstone_s",
        "override",
        "client_filter",
        "key_filter",
        "keep_values",
        "max_operations_per_s",
        "max_run_minutes",
        "max_jitter_s",
        "shares",
        "undo_retention_days",
        "plan_only",
    )

    def __init__(
        self,
        *,
        key_prefix: str = "{{ params.key_prefix or '' }}",
        policy: str = "{{ params.policy }}",
        retention_s: int | str = "{{ params.retention_s }}",
        tombstone_s: int | str = "{{ params.tombstone_s }}",
        override: bool | str = "{{ params.override }}",
        client_filter: str = "{{ params.client_filter or '' }}",
        key_filter: str = "{{ params.key_filter or '' }}",
        keep_values: bool | str = "{{ params.keep_values }}",
        max_operations_per_s: int | str = "{{ params.max_operations_per_s or '' }}",
        max_run_minutes: int | str = "{{ params.max_run_minutes or '' }}",
        max_jitter_s: int | str = "{{ params.max_jitter_s }}",
        shares: int | str = "{{ params.shares }}",
        undo_retention_days: int | str = "{{ params.undo_retention_days }}",
        plan_only: bool | str = "{{ params.dry_run }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.key_prefix = key_prefix
        self.policy = policy
        self.retention_s = retention_s
        self.tombstone_s = tombstone_s
        self.override = override
        self.client_filter = client_filter
        self.key_filter = key_filter
        self.keep_values = keep_values
        self.max_operations_per_s = max_operations_per_s
        self.max_run_minutes = max_run_minutes
        self.max_jitter_s = max_jitter_s
        self.shares = shares
        self.undo_retention_days = undo_retention_days
        self.plan_only = plan_only

    def execute(self, context: Context) -> list[dict[str, str]]:
        """Return run and share of each task that is to collect; none in a dry run."""
        reject_unknown_of(context)
        parameters = CollectionParameters(
            key_prefix=self.key_prefix,
            policy=self.policy,
            retention_s=int(self.retention_s),
            tombstone_s=int(self.tombstone_s),
            override=flag("override", self.override),
            client_filter=self.client_filter,
            key_filter=self.key_filter,
            keep_values=flag("keep_values", self.keep_values),
            max_operations_per_s=int(self.max_operations_per_s) if self.max_operations_per_s else None,
            max_run_minutes=int(self.max_run_minutes) if self.max_run_minutes else None,
            max_jitter_s=int(self.max_jitter_s),
            shares=int(self.shares),
        )
        settings = Settings()
        days = int(self.undo_retention_days)
        old = remove_old_undo_files(settings.undo, kind=KIND, days=days, now_ms=system_clock())
        self.log.info("Looking for what is due; %s undo files were old and are gone", old)
        key = hash_key(settings)
        with self.postgres_hook.connect() as connection, self.redis_hook.connect() as client:
            migrate(connection)
            plan = plan_collection(
                client,
                parameters=parameters,
                name_client=lambda client_id: client_hash(client_id, key=key),
                say=self.say,
            )
        with self.postgres_hook.maintenance_runs() as runs:
            run_id = save_collection_plan(runs, plan).maintenance_run_id
        self.log.info("Run %s: %s", run_id, plan.counts)
        return self.hand_on(context, run_id, [] if flag("dry_run", self.plan_only) else parameters.share_names())


class CollectShareOperator(ShareOperator):
    """Collect one share of a plan; repeating it goes on where it stopped."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what was done; a share that is not done fails the task once that is noted."""
        self.log.info("Collecting %s for run %s", self.share, self.maintenance_run_id)
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            report = collect_share(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                share=self.share,
                undo_directory=Settings().undo,
                say=self.say,
            )
        self.log.info("%s: %s", self.share, report.counts)
        if report.undo_file:
            self.log.info("What is gone stands in %s", report.undo_file)
        if not report.done:
            raise CheckFailed(f"{self.share} is not done: {report.stopped}")
        return asdict(report)


class ReportCollectionOperator(RunReportOperator):
    """Look at the queues a second time, and write what was planned, done and left as HTML and JSON."""

    operator_extra_links = (ReportLink(ReportKind.COMPACTED),)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what it came to, and where the files are.

        :raises CheckFailed: once the report is written, when a queue could not be collected.
        """
        self.demand_plan()
        with self.postgres_hook.maintenance_runs() as runs, self.redis_hook.connect() as client:
            outcome = report_collection(
                client,
                runs=runs,
                run_id=self.maintenance_run_id,
                dry_run=flag("dry_run", self.plan_only),
                say=self.say,
            )
        self.log.info("The registry was last finished: %s", last_finished(outcome.finished_ms))
        found = self.told(
            context,
            outcome,
            write=write_report,
            words=verdict(outcome),
            hint="`queuekeeper quality run --store compacted` names them, `queuekeeper compacted repair` mends them",
        )
        return found | {"finished_ms": outcome.finished_ms}
