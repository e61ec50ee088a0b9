"""Puts a plan before a person and acts on the answer; the question itself is Airflow's own human-in-the-loop step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION, REDIS_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook, QueuekeeperRedisHook
from queuekeeper.airflow.summary import cohort_groups, summarise
from queuekeeper.airflow.values import flag
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.migration.ledger import MigrationLedger
from queuekeeper.migration.model import MigrationPlan, Mode, PlanState, code_version
from queuekeeper.migration.online.driver import check_four_eyes
from queuekeeper.migration.preflight import source_fingerprint
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import facts

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE = "Approve"
REJECT = "Reject"


class SummarisePlanOperator(BaseOperator):
    """Read the plan of a run and return it in short: numbers, and the same as Markdown.

    :param run_id: run that made the plan (templated).
    :param postgres_conn_id: where plans are kept (templated).
    :param redis_conn_id: target, asked for its memory (templated).
    """

    template_fields: Sequence[str] = ("run_id", "postgres_conn_id", "redis_conn_id")

    def __init__(
        self,
        *,
        run_id: str = "{{ run_id }}",
        postgres_conn_id: str = POSTGRES_CONNECTION,
        redis_conn_id: str = REDIS_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id
        self.postgres_conn_id = postgres_conn_id
        self.redis_conn_id = redis_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return plan id, numbers and Markdown."""
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).ledger() as ledger:
            plan = ledger.load_plan(ledger.plan_of_run(self.run_id))
        if plan.state is PlanState.REFUSED:
            raise RefusedError(f"plan {plan.plan_id} was refused: {plan.state_reason}")
        with QueuekeeperRedisHook(self.redis_conn_id).connect() as client:
            summary = summarise(plan, facts(client))
        self.log.info("Plan %s in short:\n%s", summary.plan_id, summary.markdown)
        return asdict(summary)


class ApprovePlanOperator(HITLOperator):
    """Ask a person to approve or reject a plan; rejecting is the default, and what no answer in time means.

    The answer only counts once :class:`CheckApprovalOperator` has read it. A program that answers should look again: an
    answer within a second or two of the question can cross Airflow's own note that the task has parked; Airflow 3.3
    then tries the task again, and the question is asked anew.

    :param subject: the question in one line (templated).
    :param body: what the person needs to know, as Markdown (templated).
    :param timeout_minutes: how long to wait for an answer (templated).
    :param plan_only: skip the question and all that follows; ``True`` after rendering (templated).
    :param store: what was not written to when the answer is no.
    """

    template_fields: Collection[str] = (*HITLOperator.template_fields, "timeout_minutes", "plan_only")

    def __init__(
        self,
        *,
        subject: str,
        body: str,
        timeout_minutes: int | str = "{{ params.approval_timeout_minutes }}",
        plan_only: bool | str = "{{ params.dry_run }}",
        store: str = "Redis",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            subject=subject, body=body, options=[APPROVE, REJECT], defaults=REJECT, multiple=False, **kwargs
        )
        self.timeout_minutes = timeout_minutes
        self.plan_only = plan_only
        self.store = store

    def execute(self, context: Context) -> Any:
        """Ask, or skip where the plan is the end of it."""
        if str(self.plan_only) == "True":
            raise AirflowSkipException(
                f"it ends with the plan: a dry run, or nothing to do; nothing was written to {self.store}"
            )
        self.response_timeout = timedelta(minutes=int(self.timeout_minutes))
        return super().execute(context)


class CheckApprovalOperator(BaseOperator):
    """Read the answer, check that the plan still describes the source, note who agreed, and share out the cohorts.

    :param plan_id: plan that was put before the person (templated).
    :param decision: what :class:`ApprovePlanOperator` returned (templated).
    :param copy_groups: how many tasks share the copy (templated).
    :param four_eyes: who approves is somebody else than who triggered the run (templated).
    :param postgres_conn_id: source and control database (templated).
    """

    template_fields: Sequence[str] = ("plan_id", "run_id", "decision", "copy_groups", "four_eyes", "postgres_conn_id")

    def __init__(
        self,
        *,
        plan_id: str,
        decision: Any,
        run_id: str = "{{ run_id }}",
        copy_groups: int | str = "{{ params.copy_groups }}",
        four_eyes: bool | str = "{{ params.four_eyes }}",
        postgres_conn_id: str = POSTGRES_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.plan_id = plan_id
        self.decision = decision
        self.run_id = run_id
        self.copy_groups = copy_groups
        self.four_eyes = four_eyes
        self.postgres_conn_id = postgres_conn_id

    def execute(self, context: Context) -> list[str]:
        """Return the groups of cohorts to copy."""
        approved_by = approver(self.plan_id, self.decision)
        if flag("four_eyes", self.four_eyes):
            check_four_eyes(approved_by, context["dag_run"].triggering_user_name)
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection:
            ledger = MigrationLedger(connection)
            plan = ledger.load_plan(self.plan_id)
            check_current(plan, connection, asked_for=ledger.plan_of_run(self.run_id))
            ledger.approve(plan.plan_id, approved_by)
        groups = cohort_groups(plan, groups=int(self.copy_groups))
        self.log.info("Plan %s was approved by %s and still holds", plan.plan_id, approved_by)
        self.log.info("Copying %s cohorts in %s groups: %s", len(plan.chosen), len(groups), "; ".join(groups))
        return groups


def approver(plan_id: str, decision: Mapping[str, Any] | None, *, store: str = "Redis") -> str:
    """Return the name of the person who approved a plan.

    :param decision: the answer as Airflow hands it over; none when the question was never answered.
    :param store: what was not written to when nobody approved.
    :raises RefusedError: unless somebody approved.
    """
    nothing = f"nothing was written to {store}; trigger the DAG again for a new plan"
    if not decision:
        # Somebody marked the task as a success by hand: that is no approval.
        raise RefusedError(f"nobody answered whether plan {plan_id} may run: {nothing}")
    user = decision.get("responded_by_user") or {}
    name = str(user.get("name") or user.get("id") or "")
    if list(decision.get("chosen_options") or []) != [APPROVE]:
        who = f"rejected by {name}" if name else "rejected, as nobody answered in time"
        raise RefusedError(f"plan {plan_id} was {who}: {nothing}")
    if not name:
        raise RefusedError(f"plan {plan_id} was approved without a name to it: {nothing}")
    return name


def check_current(plan: MigrationPlan, connection: Connection, *, asked_for: str) -> None:
    """Check that a plan still describes source, wishes and code.

    :param asked_for: plan of the run that wants to copy.
    :raises StalePlan: naming what has changed.
    """
    again = "nothing was written to Redis; trigger the DAG again for a new plan"
    if asked_for != plan.plan_id:
        raise StalePlan(f"this run has since made plan {asked_for}, and {plan.plan_id} was approved: {again}")
    if plan.code_version != code_version():
        raise StalePlan(
            f"plan {plan.plan_id} was made by release {plan.code_version}, and this is {code_version()}: {again}"
        )
    if plan.parameters.mode is Mode.ONLINE:
        return
    if source_fingerprint(connection) != plan.source_fingerprint:
        raise StalePlan(
            f"the source has changed since plan {plan.plan_id} was made: make sure that the broker is stopped; {again}"
        )
