"""The question about a plan, and how long a plan and an answer to it count: one rule for jobs of every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from queuekeeper import __version__
from queuekeeper.audit import Answer
from queuekeeper.errors import RefusedError, StalePlan
from queuekeeper.report.figures import duration

APPROVAL_TASK = "approve"
"""Task of a DAG that asks whether the plan may be carried out."""
APPROVE = "Approve"
REJECT = "Reject"

VALID_DAYS = 8
"""A day more than anybody may take to answer: who answers in the last minute is heard, and a stopped run can go on."""

VALID_MS = VALID_DAYS * 86_400_000
_VALID_S = VALID_MS / 1_000
_TWO_DAYS_S = 172_800.0

_CLOCKS_MS = 60_000
"""How far the clocks of who plans and of who takes the answer may be apart."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What decides whether a plan may still be carried out.

    :param name: as people know it, such as ``run 0123456789abcdef``.
    :param code_version: release that made it.
    :param approved_by: none while nobody has agreed, and where nobody is asked.
    :param begun: whether it is at work or was; then it is not planned again.
    :param command: command that makes a new plan; empty where several do.
    """

    name: str
    code_version: str
    planned_at_ms: int
    approved_by: str | None = None
    approved_at_ms: int | None = None
    begun: bool = False
    command: str = ""

    @property
    def remedy(self) -> str:
        """What to do about a plan that does not count any more."""
        return planning_again(self.command)

    def answered(self, answer: Answer, *, now_ms: int) -> Standing:
        """Return how it stands with an approval that is not noted yet.

        :param now_ms: when it was given, if it does not say.
        :raises StalePlan: when it was given before there was the plan, so that nobody has seen it.
        """
        at_ms = now_ms if answer.at is None else milliseconds(answer.at)
        if at_ms < self.planned_at_ms - _CLOCKS_MS:
            late = _span((self.planned_at_ms - at_ms) / 1_000)
            raise StalePlan(
                f"{self.name} was planned {late} after {answer.actor} had answered, so the answer is about an earlier "
                f"plan: clear the task that asks, to have this one seen, or {self.remedy}"
            )
        return replace(self, approved_by=answer.actor, approved_at_ms=at_ms)


def check_current(plan: Standing, *, now_ms: int) -> None:
    """Check that a plan may be approved, or carried out.

    The plan has to be young enough when somebody agrees to it, and the answer when it is acted on. Where nobody has
    agreed, the plan has to be young enough now. What has begun, and was held up, goes on once it is approved again.

    :raises StalePlan: saying what is too old, or which release made the plan.
    """
    check_release(plan.name, plan.code_version, command=plan.command)
    judged_at_ms = now_ms if plan.approved_at_ms is None else plan.approved_at_ms
    age_s = (judged_at_ms - plan.planned_at_ms) / 1_000
    if age_s > _VALID_S and not plan.begun:
        until = "ago" if plan.approved_at_ms is None else "before it was approved"
        raise StalePlan(
            f"{plan.name} was planned {_span(age_s)} {until}, and a plan counts for {VALID_DAYS} days: {plan.remedy}"
        )
    if plan.approved_at_ms is not None:
        age_s = (now_ms - plan.approved_at_ms) / 1_000
        if age_s > _VALID_S:
            remedy = "it has begun, and goes on once it is approved again" if plan.begun else plan.remedy
            raise StalePlan(f"{old_approval(plan.name, plan.approved_by, age_s=age_s, limit_s=_VALID_S)}: {remedy}")


def planning_again(command: str) -> str:
    """Return what to do about a plan that does not count any more.

    :param command: command that makes a new one; empty where several do.
    """
    return f"plan again by `queuekeeper {command}`" if command else "plan again"


def check_release(name: str, code_version: str, *, command: str = "") -> None:
    """Check that this release has made a plan; another one may mean something else by the same words.

    :param command: command that makes a new plan; empty where several do.
    :raises StalePlan: saying which release made it.
    """
    if code_version != __version__:
        made_by = f"release {code_version}" if code_version else "an earlier release"
        again = planning_again(command)
        raise StalePlan(f"{name} was planned by {made_by}, and this is release {__version__}: {again}")


def old_approval(name: str, approved_by: str | None, *, age_s: float, limit_s: float) -> str:
    """Return the sentence about an approval that does not count any more, without what to do."""
    return f"{name} was approved {_span(age_s)} ago by {approved_by}, and an approval counts for {_span(limit_s)}"


def milliseconds(at: datetime) -> int:
    """Return an instant as this module counts time."""
    return round(at.timestamp() * 1_000)


def _span(seconds: float) -> str:
    return f"{seconds / 86_400:,.1f} days" if seconds > _TWO_DAYS_S else duration(seconds)


def check_four_eyes(approved_by: str, triggered_by: str | None) -> None:
    """Check that the person who approved the run is not the person who triggered it.

    :raises RefusedError: when they are the same person, or it is not known who triggered the run.
    """
    if triggered_by is None or approved_by == triggered_by:
        raise RefusedError(
            f"{approved_by} has approved the run, and {triggered_by or 'nobody knows who'} has triggered it: with "
            "four eyes these have to be two persons; trigger the DAG again and have somebody else answer"
        )
