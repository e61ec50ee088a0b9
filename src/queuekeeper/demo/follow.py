"""Follows a run of Airflow on the screen, and answers its question unless a person does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from rich.markdown import Markdown
from rich.panel import Panel
from rich.text import Text

from queuekeeper.approvals import APPROVAL_TASK, APPROVE
from queuekeeper.demo.day import Day, Waiting
from queuekeeper.embedded import TaskState
from queuekeeper.embedded.airflow_client import FINISHED
from queuekeeper.errors import CheckFailed, QueuekeeperError

_TIMEOUT_S = 1_800.0
_SETTLED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_SYMBOLS: Mapping[str, str] = {
    "success": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "upstream_failed": "[red]✗[/]",
    "skipped": "[yellow]–[/]",
}


def follow(
    day: Day,
    dag_id: str,
    run_id: str,
    *,
    shows_tasks: bool = False,
    asks: bool = False,
    may_fail: Collection[str] = (),
    look: Callable[[], None] = lambda: None,
) -> Waiting[str]:
    """Wait for the end of a run, answer its question unless a person does, and return its state.

    :param shows_tasks: whether each task is shown that has ended; otherwise only failed ones, once the run has ended.
    :param asks: whether the run asks a person.
    :param may_fail: tasks whose failure is part of the day.
    :param look: is called at each look at the run.
    """
    client = day.client
    shown: dict[tuple[str, int], str | None] = {}
    asked = False
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        state = client.run_state(dag_id, run_id)
        # Each answer takes Airflow a hundredth of a second of a core, which the runs need themselves.
        tasks = client.tasks(dag_id, run_id) if shows_tasks or asks or state in FINISHED else []
        for task in tasks:
            key = (task.task_id, task.map_index)
            if task.state in _SETTLED and shown.get(key) != task.state:
                failed = task.state == "failed" and task.task_id not in may_fail
                if shows_tasks or failed:
                    day.say(f"{_SYMBOLS.get(task.state or '', ' ')} {_name(task)}: {task.state}")
                if failed:
                    _show_log(day, dag_id, run_id, task)
            shown[key] = task.state
        if asks and _waits_for_a_person(tasks) and not (asked and day.options.approval == "ui"):
            asked = _approve(day, dag_id, run_id, asked=asked)
            # The time that a person takes to answer does not count.
            deadline = float("inf") if day.options.approval == "ui" else deadline
        look()
        if state in FINISHED:
            return state
        if time.monotonic() > deadline:
            raise CheckFailed(f"the run is still {state} after {_TIMEOUT_S / 60:.0f} minutes: see {client.base_url}")
        yield


def _approve(day: Day, dag_id: str, run_id: str, *, asked: bool) -> bool:
    """Answer the question, or show a person where to; return whether the question was asked yet."""
    client = day.client
    question = client.question(dag_id, run_id, APPROVAL_TASK)
    if question is None or question.get("response_received"):
        return asked
    if asked:
        # An answer sent before Airflow has recorded that the task waits is lost, and the task asks again.
        client.answer(dag_id, run_id, APPROVAL_TASK, options=[APPROVE])
        return True
    body = str(question.get("body") or "").strip()
    subject = Text(str(question["subject"]))
    day.console.print(Panel(Markdown(body or "(no details)"), title=subject, title_align="left"))
    if day.options.approval == "ui":
        page = f"{day.run_page(dag_id, run_id)}/tasks/{APPROVAL_TASK}/required_actions"
        day.say(f"Waiting for you to approve or reject: [link]{page}[/]")
        return True
    client.answer(dag_id, run_id, APPROVAL_TASK, options=[APPROVE])
    day.say("The demo itself answered [b]Approve[/]; DEMO_APPROVE=ui would have waited for you")
    return True


def _waits_for_a_person(tasks: Sequence[TaskState]) -> bool:
    waiting = ("awaiting_input", "deferred")
    return any(task.task_id == APPROVAL_TASK and task.state in waiting for task in tasks)


def _show_log(day: Day, dag_id: str, run_id: str, task: TaskState) -> None:
    try:
        lines = day.client.log(dag_id, run_id, task)
    except QueuekeeperError as error:
        lines = [f"(its log cannot be read: {error})"]
    # As plain text, since brackets in a log line are no markup.
    day.console.print(Panel(Text("\n".join(lines[-25:])), title=f"end of the log of {_name(task)}", title_align="left"))


def _name(task: TaskState) -> str:
    return task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]".replace("[", r"\[")
