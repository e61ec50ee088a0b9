"""What commands that change data have in common: the question, the way back, and progress."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from queuekeeper.audit import Action, Answer, record_answer, record_undo
from queuekeeper.cli import context
from queuekeeper.cli.output import plain, printable, screen
from queuekeeper.clock import system_clock
from queuekeeper.jobs.store import Runs
from queuekeeper.postgres import Connection

if TYPE_CHECKING:
    from queuekeeper.cli.command import Call

Undone = TypeVar("Undone")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id that the plan has shown.")]
RunIdOrNewest = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id of the run; the newest if left out.")]
Rate = Annotated[str, typer.Argument(metavar="RATE", help="Operations per second, or none.")]


def agree(call: Call, runs: Runs, run_id: str, question: str) -> None:
    """Ask whether a run may be carried out, unless somebody has agreed to it; the answer is put on record.

    :raises RefusedError: when nobody can be asked, or the answer is no.
    :raises StalePlan: when plan or approval are too old, or another release made the plan.
    """
    runs.check_current(run_id, now_ms=system_clock())
    if runs.load(run_id).approved_by is None:
        call.confirm(question, note=note_on(runs, run_id))


def note_on(runs: Runs, *run_ids: str) -> Callable[[Answer], None]:
    """Return what puts the answer to a question about runs on record, and lets them be carried out if it is a yes."""

    def note(answer: Answer) -> None:
        for run_id in run_ids:
            runs.note_answer(run_id, answer)
            if answer.action is Action.APPROVE:
                runs.set_approved(run_id, answer)

    return note


def take_back(
    call: Call,
    undo: Callable[[bool], Undone],
    question: Callable[[Undone], str],
    *,
    subject: str,
    kind: str,
    connection: Connection | None,
) -> Undone:
    """Count what would be taken back, ask, take it back, and put answer and deed on record.

    :param undo: takes back, or only counts.
    :param subject: run that has made the changes.
    :param kind: of that run.
    :param connection: where the audit is; none when there is none.
    :returns: what was counted, or done.
    """
    note = None if connection is None else partial(record_answer, connection, subject=subject, kind=kind)
    found = call.carry_out(undo, question, note=note)
    if connection is not None and not call.dry_run:
        record_undo(connection, subject=subject, kind=kind, report=plain(found), actor=context.person())
    return found


def say(line: str) -> None:
    """Show progress, apart from results."""
    screen(stderr=True).print(printable(line), style="dim", soft_wrap=True)
