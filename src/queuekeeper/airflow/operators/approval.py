"""Puts a plan before a person and acts on the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.defaults import POSTGRES_CONNECTION
from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.notifiers import Event
from queuekeeper.airflow.notifiers import notifiers as configured_notifiers
from queuekeeper.airflow.operators.asked import Ask, AsksOperator
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.summary import cohort_groups, summarise
from queuekeeper.audit import Action, Answer, current_run
from queuekeeper.clock import system_clock
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.jobs.common import Approval, DryRun, FourEyes
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import CopyGroups, MigrationPlan, PlanState
from queuekeeper.migration.online.checks import check_four_eyes
from queuekeeper.migration.preflight import check_same_source
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import facts

if TYPE_CHECKING:
    from airflow.sdk import Context

APPROVE = "Approve"
REJECT = "Reject"
NOBODY = "nobody"
"""Stands in the audit where a person would, when nobody has answered."""


class SummarisePlanOperator(StoresOperator):
    """Read the plan of a run and return it in short: numbers, and the same as Markdown.

    :param run_id: run that made the plan (templated).
    :param postgres_conn_id: where plans are kept (templated).
    :param redis_conn_id: target, asked for its memory (templated).
    """

    template_fields: Sequence[str] = ("run_id", *StoresOperator.template_fields)

    def __init__(self, *, run_id: str = "{{ run_id }}", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_id = run_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Return plan id, numbers and Markdown."""
        with self.postgres_hook.ledger() as ledger:
            plan = ledger.load_plan(ledger.plan_of_run(self.run_id))
        if plan.state is PlanState.REFUSED:
            raise RefusedError(f"plan {plan.plan_id} was refused: {plan.state_reason}")
        with self.redis_hook.connect() as client:
            summary = summarise(plan, facts(client))
        self.log.info("Plan %s in short:\n%s", summary.plan_id, summary.markdown)
        return asdict(summary)


class ApprovePlanOperator(AsksOperator, HITLOperator):
    """Ask a person to approve or reject a plan; rejecting is the default, and what no answer in time means.

    The answer only counts once :class:`CheckApprovalOperator` has read it. A program that answers should look again: an
    answer within a second or two of the question can cross Airflow's own note that the task has parked; Airflow 3.3
    then tries the task again, and the question is asked anew.

    :param subject: the question in one line (templated).
    :param body: what the person needs to know, as Markdown (templated).
    :param store: what was not written to when the answer is no.
    :param notifiers: who is told that a person is asked; those of Airflow's configuration when absent.
    """

    template_fields: Collection[str] = HITLOperator.template_fields
    timeout_minutes = Ask(Approval, name="approval_timeout_minutes")
    # Then the question is skipped, and all that follows.
    plan_only = Ask(DryRun, name="dry_run")

    def __init__(
        self,
        *,
        subject: str,
        body: str,
        store: str = "Redis",
        notifiers: Sequence[BaseNotifier] | BaseNotifier | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            subject=subject,
            body=body,
            options=[APPROVE, REJECT],
            defaults=REJECT,
            multiple=False,
            notifiers=configured_notifiers(Event.APPROVAL) if notifiers is None else notifiers,
            **kwargs,
        )
        self.store = store

    def execute(self, context: Context) -> Any:
        """Ask, or skip where the plan is the end of it."""
        if self.read(DryRun).dry_run:
            raise AirflowSkipException(
                f"it ends with the plan: a dry run, or nothing to do; nothing was written to {self.store}"
            )
        self.response_timeout = timedelta(minutes=self.read(Approval).approval_timeout_minutes)
        return super().execute(context)


class CheckApprovalOperator(AsksOperator):
    """Read the answer, check that the plan still describes the source, note who agreed, and share out the cohorts.

    :param plan_id: plan that was put before the person (templated).
    :param decision: what :class:`ApprovePlanOperator` returned (templated).
    :param postgres_conn_id: source and control database (templated).
    """

    template_fields: Sequence[str] = ("plan_id", "run_id", "decision", "postgres_conn_id")
    copy_groups = Ask(CopyGroups)
    four_eyes = Ask(FourEyes)

    def __init__(
        self,
        *,
        plan_id: str,
        decision: Any,
        run_id: str = "{{ run_id }}",
        postgres_conn_id: str = POSTGRES_CONNECTION,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.plan_id = plan_id
        self.decision = decision
        self.run_id = run_id
        self.postgres_conn_id = postgres_conn_id

    def execute(self, context: Context) -> list[str]:
        """Return the groups of cohorts to copy."""
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection:
            ledger = MigrationLedger(connection)
            answer = take_answer(
                self.plan_id,
                self.decision,
                note=lambda given: ledger.note_answer(self.plan_id, given),
            )
            if self.read(FourEyes).four_eyes:
                check_four_eyes(answer.actor, context["dag_run"].triggering_user_name)
            plan = ledger.load_plan(self.plan_id)
            check_plan(plan, answer, connection, asked_for=ledger.plan_of_run(self.run_id))
            ledger.set_approved(plan.plan_id, answer)
        groups = cohort_groups(plan, groups=self.read(CopyGroups).copy_groups)
        self.log.info("Plan %s was approved by %s and still holds", plan.plan_id, answer.actor)
        self.log.info("Copying %s cohorts in %s groups: %s", len(plan.chosen), len(groups), "; ".join(groups))
        return groups


def take_answer(
    subject: str,
    decision: Mapping[str, Any] | None,
    *,
    note: Callable[[Answer], None],
    store: str = "Redis",
) -> Answer:
    """Have the answer to a question put on record, whatever it was, and return it when it is an approval.

    Every task that acts on an answer reads it by this function, so that none is missing in the audit.

    :param subject: plan or run that was asked about.
    :param decision: the answer as Airflow hands it over; none when the question was never answered.
    :param note: puts it on record.
    :param store: what was not written to when nobody approved.
    :raises RefusedError: unless somebody approved.
    """
    run = current_run()
    answer = answer_of(decision, facts={} if run is None else asdict(run))
    note(answer)
    nothing = f"nothing was written to {store}; trigger the DAG again for a new plan"
    if not decision:
        # Somebody marked the task as a success by hand: that is no approval.
        raise RefusedError(f"nobody answered whether plan {subject} may run: {nothing}")
    if answer.action is Action.UNANSWERED:
        agreed = list(decision.get("chosen_options") or []) == [APPROVE]
        how = "approved without a name to it" if agreed else "rejected, as nobody answered in time"
        raise RefusedError(f"plan {subject} was {how}: {nothing}")
    if answer.action is Action.REJECT:
        raise RefusedError(f"plan {subject} was rejected by {answer.actor}: {nothing}")
    return answer


def answer_of(decision: Mapping[str, Any] | None, *, facts: Mapping[str, Any]) -> Answer:
    """Return an answer as the audit has it; an approval without a name to it is no answer.

    :param facts: where it was given.
    """
    found = decision or {}
    user = found.get("responded_by_user") or {}
    name = str(user.get("name") or user.get("id") or "")
    at = found.get("responded_at")
    agreed = list(found.get("chosen_options") or []) == [APPROVE]
    return Answer(
        action=Action.UNANSWERED if not name else Action.APPROVE if agreed else Action.REJECT,
        actor=name or NOBODY,
        at=datetime.fromisoformat(at) if isinstance(at, str) else at,
        facts=facts,
    )


def check_plan(plan: MigrationPlan, answer: Answer, connection: Connection, *, asked_for: str) -> None:
    """Check that a plan still describes source, wishes and code.

    :param answer: the approval.
    :param asked_for: plan of the run that wants to copy.
    :raises StalePlan: naming what has changed.
    """
    if asked_for != plan.plan_id:
        raise StalePlan(
            f"this run has since made plan {asked_for}, and {plan.plan_id} was approved: nothing was written to Redis; "
            "trigger the DAG again for a new plan"
        )
    MigrationLedger(connection).check_current(plan.plan_id, now_ms=system_clock(), answer=answer)
    check_same_source(connection, plan)
