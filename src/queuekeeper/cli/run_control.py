"""What commands that change data have in common: the question, the way back, the report, and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import Shown, cell, pairs, printable, screen, told_tables
from queuekeeper.clock import system_clock
from queuekeeper.facts import plain

if TYPE_CHECKING:
    from queuekeeper.audit import Answer
    from queuekeeper.cli.command import Call, OnServers
    from queuekeeper.jobs.store import MaintenanceRun, Runs
    from queuekeeper.postgres import Connection

Undone = TypeVar("Undone")

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="Id of the plan.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, as `queuekeeper run list` shows it.")]
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
    from queuekeeper.audit import Action

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
    :param connection: connection to the database of the audit; none without an audit.
    :returns: what was counted, or done.
    """
    from queuekeeper.audit import record_answer, record_undo

    note = None if connection is None else partial(record_answer, connection, subject=subject, kind=kind)
    found = call.carry_out(undo, question, note=note)
    if connection is not None and not call.dry_run:
        record_undo(connection, subject=subject, kind=kind, report=plain(found), actor=context.person())
    return found


def run_taken_back(call: OnServers, run: MaintenanceRun, **chosen: Any) -> Shown:
    """Take back a run that the engine does not, and put answer and deed on record.

    :param chosen: what of it; all when left out.
    """
    from queuekeeper.audit import record_answer

    note = partial(record_answer, call.connection, subject=run.maintenance_run_id, kind=run.kind)
    assert run.of.undo is not None
    undone = run.of.undo(
        call, run, dry_run=call.dry_run, agree=lambda question: call.confirm(question, note=note), **chosen
    )
    if not call.dry_run:
        call.runs.note_undo(run.maintenance_run_id, plain(undone), actor=context.person())
    return Shown(undone, "Undo, nothing was removed" if call.dry_run else "Undo")


def run_told(call: OnServers, run: MaintenanceRun, *, directory: Path | None = None, **asked: Any) -> Shown:
    """Tell what a run has come to that is not the engine's; as a report, too, where there is a folder for it.

    :param asked: how it is to be told.
    """
    assert run.of.report is not None
    told = run.of.report(call, run, now_ms=system_clock(), **asked)
    files = told.write(context.report_folder(directory)) if directory or run.of.keeps_files else None

    def pretty() -> Iterator[Any]:
        mark, style = {True: ("✓ ", "bold green"), False: ("✗ ", "bold red"), None: ("", "bold")}[told.healthy]
        yield cell(f"{mark}{told.verdict[:1].upper()}{told.verdict[1:]}", style=style)
        yield from map(cell, told.lines)
        yield from told_tables(told.tables)
        if files is not None:
            yield pairs("Files", files.named())

    failed = told.failed and (f"{told.failed}: open {files.html}" if files else told.failed)
    return Shown({**(plain(files) if files else {}), **told.facts}, pretty, failed=failed or None)


def say(line: str) -> None:
    """Show progress, apart from results."""
    screen(stderr=True).print(printable(line), style="dim", soft_wrap=True)
