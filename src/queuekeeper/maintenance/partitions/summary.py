"""Renders a plan for partitions as Markdown, with each statement and its locks."""

from __future__ import annotations

from queuekeeper.maintenance.partitions.model import PartitionPlan, PlannedStep
from queuekeeper.report.figures import duration, number, size, words
from queuekeeper.wording import number_of

_STEPS_SHOWN = 12


def plan_markdown(plan: PartitionPlan, *, shown: int | None = _STEPS_SHOWN) -> str:
    """Return what a plan would do and why, the exact SQL, the locks that it takes, and who holds them now.

    :param shown: most steps to show, and most entries of every other list; none for all.
    """
    lines = [f"**{plan.table}**, {plan.purpose.value}: {number_of(len(plan.steps), 'step')}, {size(plan.bytes)}"]
    if plan.lowest_needed is not None:
        lines += ["", f"Consumers still need keys from `{plan.lowest_needed}`."]
    if plan.passes_consumers:
        lines += ["", "**It retires rows that a consumer has not read yet: the consumer will miss them.**"]
    for step in plan.steps[:shown]:
        lines += ["", *_step_lines(step)]
    if shown is not None and len(plan.steps) > shown:
        lines += ["", f"and {number_of(len(plan.steps) - shown, 'further step')} of the same kind, see the log"]
    for title, texts in (
        ("Stays", [f"{each.partition}: {each.reason}" for each in plan.held]),
        ("Found", [f"{words(each.kind)} {each.subject}: {each.words}" for each in plan.findings]),
        (
            "In the way now",
            [
                f"process {each.pid} ({each.application or 'unnamed'}, {each.state}) holds {each.mode} on "
                f"{each.relation} for {duration(each.transaction_age_s)}"
                for each in plan.blockers
            ],
        ),
    ):
        if texts:
            lines += ["", f"{title}:", "", *(f"- {text}" for text in texts[:shown])]
            if shown is not None and len(texts) > shown:
                lines.append(f"- and {number(len(texts) - shown)} more")
    return "\n".join(lines)


def _step_lines(step: PlannedStep) -> list[str]:
    rows = "" if step.rows is None else f", about {number_of(step.rows, 'row')}"
    lines = [f"{step.kind.value} `{step.partition}` ({size(step.bytes)}{rows}): {step.reason}", "", "```sql"]
    for statement in step.statements:
        lines.append(f"{statement.sql};")
        lines += [f"-- {lock.mode} on {lock.relation}: blocks {lock.blocks}" for lock in statement.locks]
    return [*lines, "```"]
