"""What commands on runs of maintenance have in common: which run is meant, how far it is, paused, slower or not."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queuekeeper.cli import context
from queuekeeper.cli.output import pairs, plain, printable, screen, show, table
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.audit import Answer
    from queuekeeper.jobs.store import MaintenanceRun, MaintenanceRuns, ShardProgress
    from queuekeeper.postgres import Connection

Undone = TypeVar("Undone")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id that the plan has shown.")]
RunIdOrNewest = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Id of the run; the newest if left out.")]
Rate = Annotated[str, typer.Argument(metavar="RATE", help="Operations per second, or none.")]


@dataclass(frozen=True, kw_only=True)
class RunKind:
    """A kind of maintenance as commands speak of it.

    :param kind: what its runs are called where all kinds are kept.
    :param noun: what people call one.
    :param command: makes one.
    """

    kind: str
    noun: str
    command: str

    def chosen(self, runs: MaintenanceRuns, run_id: str | None) -> str:
        """Return the run that a command is about: the one named, else the newest.

        :raises UsageError: when there is none, or it is of another kind.
        """
        found = run_id or runs.latest_id(self.kind)
        if found is None:
            raise UsageError(f"there is no {self.noun} yet: make one by `queuekeeper {self.command}`")
        kind = runs.load(found).kind
        if kind != self.kind:
            raise UsageError(f"run {found} is a {kind}, not a {self.noun}")
        return found

    def set_paused(self, run_id: str, paused: bool, postgres_url: str | None, as_json: bool) -> None:
        """Let a run wait, or go on, and say so."""
        with context.open_maintenance_runs(postgres_url) as runs:
            runs.set_paused(self.chosen(runs, run_id), paused, actor=context.person())
        show(
            {"maintenance_run_id": run_id, "paused": paused},
            as_json=as_json,
            pretty=lambda out: out.print(f"Run {run_id}: {'paused' if paused else 'goes on'}."),
        )

    def set_throttle(self, run_id: str, rate: str, postgres_url: str | None, as_json: bool) -> None:
        """Give a run another rate, and say so."""
        operations_per_s = context.rate_of(rate, "operations")
        with context.open_maintenance_runs(postgres_url) as runs:
            runs.set_throttle(self.chosen(runs, run_id), operations_per_s, actor=context.person())
        words = f"at most {throttle_words(operations_per_s)}" if operations_per_s else "no throttle"
        show(
            {"maintenance_run_id": run_id, "throttle_operations_per_s": operations_per_s},
            as_json=as_json,
            pretty=lambda out: out.print(f"Run {run_id}: {words}."),
        )


def agree(runs: MaintenanceRuns, run_id: str, question: str, *, yes: bool, as_json: bool) -> None:
    """Ask whether a run may be carried out, unless somebody has agreed to it; the answer is put on record.

    :raises RefusedError: when nobody can be asked, or the answer is no.
    :raises StalePlan: when plan or approval are too old, or another release made the plan.
    """
    from queuekeeper.audit import Action
    from queuekeeper.clock import system_clock

    runs.check_current(run_id, now_ms=system_clock())
    if runs.load(run_id).approved_by is not None:
        return

    def note(answer: Answer) -> None:
        runs.note_answer(run_id, answer)
        if answer.action is Action.APPROVE:
            runs.set_approved(run_id, answer)

    context.confirm(question, yes=yes, as_json=as_json, note=note)


def take_back(
    undo: Callable[[bool], Undone],
    question: Callable[[Undone], str],
    *,
    subject: str,
    kind: str,
    connection: Connection | None,
    yes: bool,
    as_json: bool,
    dry_run: bool,
) -> Undone:
    """Count what would be taken back, ask, take it back, and put answer and deed on record.

    :param undo: takes back, or only counts.
    :param subject: run that has made the changes.
    :param kind: of that run.
    :param connection: where the audit is; none when there is none.
    :param dry_run: only count.
    :returns: what was counted, or done.
    """
    from queuekeeper.audit import record_answer, record_undo

    found = undo(True)
    if not dry_run:
        note = None if connection is None else partial(record_answer, connection, subject=subject, kind=kind)
        context.confirm(question(found), yes=yes, as_json=as_json, note=note)
        found = undo(False)
        if connection is not None:
            record_undo(connection, subject=subject, kind=kind, report=plain(found), actor=context.person())
    return found


def show_status(
    run: MaintenanceRun,
    progress: Sequence[ShardProgress],
    *,
    title: str,
    heads: Sequence[str],
    row: Callable[[ShardProgress], Sequence[Any]],
    as_json: bool,
    facts: Mapping[str, Any] = MappingProxyType({}),
    notes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Show how far a run is, share by share.

    :param heads: of the columns of ``row``.
    :param facts: what JSON has besides.
    :param notes: what people are shown besides.
    """

    def pretty(out: Console) -> None:
        throttle = run.throttle_operations_per_s
        lines = {
            "run": run.state.value,
            "paused": run.paused,
            "throttle": "none" if throttle is None else throttle_words(throttle),
        }
        out.print(pairs(f"{title} {run.maintenance_run_id}", {**lines, **notes}))
        out.print(table("Shares", heads, [row(each) for each in progress]))

    told = {
        "maintenance_run_id": run.maintenance_run_id,
        "state": run.state.value,
        "paused": run.paused,
        "throttle_operations_per_s": run.throttle_operations_per_s,
        "progress": [plain(each) for each in progress],
        "report": run.report,
    }
    show(told | dict(facts), as_json=as_json, pretty=pretty)


def throttle_words(operations_per_s: int) -> str:
    """Return a rate as people read it."""
    return f"{operations_per_s:,} operations/s"


def say(line: str) -> None:
    """Show progress, apart from results."""
    screen(stderr=True).print(printable(line), style="dim", soft_wrap=True)
