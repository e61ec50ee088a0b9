"""Summarises the plan of a migration, and divides its cohorts among tasks after a person has approved it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.hooks import QueuekeeperPostgresHook
from queuekeeper.airflow.operators.approval import AnswerOperator
from queuekeeper.airflow.operators.asked import Ask, argument
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.summary import summarise
from queuekeeper.audit import Answer
from queuekeeper.clock import system_clock
from queuekeeper.errors import StalePlan
from queuekeeper.facts import brief
from queuekeeper.jobs.resources import POSTGRES_CONNECTION
from queuekeeper.keyspace import format_cohorts
from queuekeeper.migration.ledger.ledger import MigrationLedger
from queuekeeper.migration.ledger.model import MigrationPlan
from queuekeeper.migration.ledger.parameters import CopyGroups
from queuekeeper.migration.preflight import check_same_source
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import facts

if TYPE_CHECKING:
    from airflow.sdk import Context


class SummarisePlanOperator(StoresOperator):
    """Read the plan of a run and return the summary that commands print, and the same as Markdown.

    :param run_id: id of the run that made the plan (templated).
    :param postgres_conn_id: connection of the database that records plans (templated).
    :param redis_conn_id: connection of the target, whose memory is read (templated).
    """

    run_id: str = argument("{{ run_id }}")

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the summary of the plan, and the same as Markdown."""
        with self.postgres_hook.ledger() as ledger:
            plan = ledger.load_plan(ledger.plan_of_run(self.run_id))
        plan.check_accepted()
        with self.redis_hook.connect() as client:
            markdown = summarise(plan, facts(client))
        self.log.info("Plan %s in short:\n%s", plan.plan_id, markdown)
        return brief(plan) | {"question": plan.question(plan.chosen), "markdown": markdown}


class CheckApprovalOperator(AnswerOperator):
    """Read the answer, check that the plan still describes the source, record who approved, and divide the cohorts.

    :param plan_id: id of the plan that the person was asked about (templated).
    :param postgres_conn_id: connection of source and control database (templated).
    """

    plan_id: str = argument()
    run_id: str = argument("{{ run_id }}")
    postgres_conn_id: str = argument(POSTGRES_CONNECTION)
    copy_groups = Ask(CopyGroups)

    def execute(self, context: Context) -> list[str]:
        """Return the groups of cohorts to copy."""
        with QueuekeeperPostgresHook(postgres_conn_id=self.postgres_conn_id).connect() as connection:
            ledger = MigrationLedger(connection)
            answer = self.answer(
                context, subject=self.plan_id, note=lambda given: ledger.note_answer(self.plan_id, given)
            )
            plan = ledger.load_plan(self.plan_id)
            check_plan(plan, answer, connection, asked_for=ledger.plan_of_run(self.run_id))
            ledger.set_approved(plan.plan_id, answer)
        groups = cohort_groups(plan, groups=self.read(CopyGroups).copy_groups)
        self.log.info("Plan %s was approved by %s and still holds", plan.plan_id, answer.actor)
        self.log.info("Copying %s cohorts in %s groups: %s", len(plan.chosen), len(groups), "; ".join(groups))
        return groups


def check_plan(plan: MigrationPlan, answer: Answer, connection: Connection, *, asked_for: str) -> None:
    """Check that source, parameters and code are still those of the plan.

    :param answer: the approval.
    :param asked_for: id of the newest plan of the run that wants to copy.
    :raises StalePlan: when one of them has changed; the message names it.
    """
    if asked_for != plan.plan_id:
        raise StalePlan(
            f"this run has since made plan {asked_for}, and {plan.plan_id} was approved: nothing was written to Redis; "
            "trigger the DAG again for a new plan"
        )
    MigrationLedger(connection).check_current(plan.plan_id, now_ms=system_clock(), answer=answer)
    check_same_source(connection, plan)


def cohort_groups(plan: MigrationPlan, *, groups: int) -> list[str]:
    """Divide the chosen cohorts among tasks, in order and so that each task copies about as many messages.

    :param groups: desired number of tasks; there are never more tasks than cohorts.
    """
    chosen = list(plan.chosen_cohorts)
    # A cohort without messages still costs the reading of its sessions.
    weights = {cohort.cohort: cohort.to_copy + cohort.sessions + 1 for cohort in chosen}
    left = [cohort.cohort for cohort in chosen]
    result: list[str] = []
    for groups_left in range(min(groups, len(chosen)), 0, -1):
        fair = sum(weights[cohort] for cohort in left) / groups_left
        group = [left.pop(0)]
        weight = weights[group[0]]
        while left and (groups_left == 1 or (len(left) >= groups_left and weight + weights[left[0]] / 2 <= fair)):
            weight += weights[left[0]]
            group.append(left.pop(0))
        result.append(format_cohorts(group))
    return result
