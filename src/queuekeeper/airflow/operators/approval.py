"""Asks a person to approve or reject a plan, and reads the answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowSkipException

from queuekeeper.airflow.notifiers import Event
from queuekeeper.airflow.notifiers import notifiers as configured_notifiers
from queuekeeper.airflow.operators.asked import Ask, AsksOperator, argument
from queuekeeper.approvals import APPROVE, REJECT, check_four_eyes
from queuekeeper.audit import Action, Answer, current_run
from queuekeeper.errors import RefusedError
from queuekeeper.jobs.common import Approval, DryRun, FourEyes

if TYPE_CHECKING:
    from airflow.sdk import Context

NOBODY = "nobody"
"""Name in the audit instead of a person's when nobody has answered."""


class ApprovePlanOperator(AsksOperator, HITLOperator):
    """Ask a person to approve or reject a plan. Without an answer in time, the plan is rejected.

    The answer counts once a later task has read it, see :func:`take_answer`. A program that answers should check again
    later: an answer in the first two seconds can coincide with the deferral of the task. Airflow 3.3 then retries the
    task, and the question is asked again.

    :param subject: the question in one line (templated).
    :param body: what the person needs to know, as Markdown (templated).
    :param store: store named in messages as not written to, when nobody approves.
    :param notifiers: notifiers that are called when a person is asked; by default those of Airflow's configuration.
    """

    template_fields: Collection[str] = HITLOperator.template_fields
    timeout_minutes = Ask(Approval, name="approval_timeout_minutes")
    # A dry run skips the question and all later tasks.
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
        """Ask, or skip if the run ends with the plan."""
        if self.read(DryRun).dry_run:
            raise AirflowSkipException(
                f"the run ends with the plan: a dry run, or nothing to do; nothing was written to {self.store}"
            )
        self.response_timeout = timedelta(minutes=self.read(Approval).approval_timeout_minutes)
        return super().execute(context)


class AnswerOperator(AsksOperator):
    """Argument of tasks that act on the answer of a person.

    :param decision: return value of :class:`ApprovePlanOperator` (templated).
    """

    decision: Mapping[str, Any] | None = argument()
    four_eyes = Ask(FourEyes)

    def answer(self, context: Context, *, subject: str, note: Callable[[Answer], None], store: str = "Redis") -> Answer:
        """Record the answer and return it; see :func:`take_answer`.

        :raises RefusedError: unless a person has approved, and with four eyes another one than who triggered the run.
        """
        answer = take_answer(subject, self.decision, note=note, store=store)
        if self.read(FourEyes).four_eyes:
            check_four_eyes(answer.actor, context["dag_run"].triggering_user_name)
        return answer


def take_answer(
    subject: str,
    decision: Mapping[str, Any] | None,
    *,
    note: Callable[[Answer], None],
    store: str = "Redis",
) -> Answer:
    """Record the answer to a question, whatever it is, and return it if it is an approval.

    Every task that acts on an answer calls this function, so that the audit has all answers.

    :param subject: plan or run that the question was about.
    :param decision: the answer as Airflow returns it; ``None`` when the question was never answered.
    :param note: writes the answer into the audit.
    :param store: store named in messages as not written to.
    :raises RefusedError: unless a person has approved.
    """
    run = current_run()
    answer = answer_of(decision, facts={} if run is None else asdict(run))
    note(answer)
    nothing = f"nothing was written to {store}; trigger the DAG again for a new plan"
    if not decision:
        # Somebody marked the task as a success by hand, which is not an approval.
        raise RefusedError(f"nobody answered the question about plan {subject}: {nothing}")
    if answer.action is Action.UNANSWERED:
        agreed = list(decision.get("chosen_options") or []) == [APPROVE]
        how = "approved without a name" if agreed else "rejected, as nobody answered in time"
        raise RefusedError(f"plan {subject} was {how}: {nothing}")
    if answer.action is Action.REJECT:
        raise RefusedError(f"plan {subject} was rejected by {answer.actor}: {nothing}")
    return answer


def answer_of(decision: Mapping[str, Any] | None, *, facts: Mapping[str, Any]) -> Answer:
    """Return an answer as the audit records it; an approval without a name does not count as an answer.

    :param facts: DAG, run and task of the question.
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
