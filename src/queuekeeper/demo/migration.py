"""The first step: a migration that a person approves, from its plan to a ledger that balances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from queuekeeper.clock import system_clock
from queuekeeper.demo.day import Day, DemoOptions, Outcome, Waiting
from queuekeeper.demo.follow import follow
from queuekeeper.errors import CheckFailed, UsageError
from queuekeeper.jobs.progress import line
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantineCount
from queuekeeper.migration.ledger.model import LedgerRow, unaccounted
from queuekeeper.migration.ledger.status import migration_status
from queuekeeper.postgres import Connection
from queuekeeper.sessions.sample import SampleReport, fill
from queuekeeper.sessions.sample_parameters import SampleParameters

DAG_ID = "session_migration"


def migrate_sessions(day: Day) -> Waiting[None]:
    """Move the sample to Redis, and show where every row went."""
    ledger = MigrationLedger(day.connection)
    run_id = day.trigger(DAG_ID, note="The demo moves its sample, hostile rows among it.")
    day.say(f"Triggered the DAG {DAG_ID}: [link]{day.run_page(DAG_ID, run_id)}[/]")
    with _bars(day.console) as bars:

        def look() -> None:
            if (plan_id := _plan_of(ledger, run_id)) is not None:
                bars.update(day.connection, plan_id)

        state = yield from follow(day, DAG_ID, run_id, shows_tasks=True, asks=True, look=look)
    plan_id = _plan_of(ledger, run_id)
    if plan_id is None:
        raise CheckFailed(f"the run ended as {state} before it had made a plan; its log is above")
    rows = ledger.ledger(plan_id)
    balanced = bool(rows) and all(row.unaccounted == 0 and row.differences == 0 for row in rows)
    _show(day.console, rows, tuple(ledger.quarantine_counts(plan_id)))
    verdict = "[green]balances to zero[/]" if balanced else "[red]does not balance[/]"
    day.console.print(f"The ledger of plan {plan_id} {verdict}; the run ended as {state}.")
    report = max(ledger.reports(plan_id), key=lambda stored: stored.report_id, default=None)
    if report is not None:
        day.console.print(f"Report      {report.html_path}", soft_wrap=True)
    copied = sum(row.copied for row in rows)
    outcome = Outcome(
        step="Migration",
        line=f"{copied:,} messages moved to Redis once the plan was approved, and every row is accounted for",
        page=day.page(f"/migration/{plan_id}"),
        sound=balanced and state == "success",
    )
    day.show(outcome)


def _plan_of(ledger: MigrationLedger, run_id: str) -> str | None:
    try:
        return ledger.plan_of_run(run_id)
    except UsageError:
        return None


class _Bars:
    """Shows a bar per step on a terminal, and prints lines from time to time where the output is a file."""

    _STEPS: tuple[Literal["copy", "verify"], ...] = ("copy", "verify")

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._bars = {step: progress.add_task(step, total=None, visible=False, rate="") for step in self._STEPS}
        self._said: dict[str, int] = {}

    def update(self, connection: Connection, plan_id: str) -> None:
        status = migration_status(connection, plan_id, now_ms=system_clock())
        for step in (status.copy, status.verify):
            if step.silent_s is None:
                continue
            self._progress.update(
                self._bars[step.step],
                completed=step.done,
                total=step.total,
                visible=True,
                rate=f"{step.messages_per_s:,.0f}/s" if step.messages_per_s else "",
            )
            tenth = 10 * step.done // max(1, step.total)
            if not self._console.is_terminal and tenth != self._said.get(step.step):
                self._said[step.step] = tenth
                said = line(step.step, done=step.done, total=step.total, rate=step.messages_per_s)
                self._console.print(f"         {said}", soft_wrap=True)


@contextmanager
def _bars(console: Console) -> Iterator[_Bars]:
    columns = (
        TextColumn("         {task.description:<7}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Bars(console, progress)


def _show(console: Console, rows: tuple[LedgerRow, ...], quarantine: tuple[QuarantineCount, ...]) -> None:
    names = [field.name for field in fields(LedgerRow) if field.name not in ("cohort", "digest")]
    table = Table(title="Ledger", title_justify="left", title_style="bold")
    table.add_column("rows")
    table.add_column("count", justify="right")
    for name in names:
        table.add_row(name.replace("_", " "), f"{sum(getattr(row, name) for row in rows):,}")
    table.add_row("[b]unaccounted[/]", f"[b]{unaccounted(rows):,}[/]")
    console.print(table)
    if quarantine:
        reasons = Table(title="Quarantine", title_justify="left", title_style="bold")
        reasons.add_column("reason")
        reasons.add_column("rows", justify="right")
        for count in quarantine:
            reasons.add_row(f"{count.reason} ({count.kind})", f"{count.open + count.replayed:,}")
        console.print(reasons)


def fill_source(connection: Connection, options: DemoOptions) -> SampleReport:
    """Fill the tables of TBMQ 1.4 with healthy and hostile rows."""
    return fill(
        connection,
        SampleParameters(
            messages=options.messages,
            sessions=max(options.messages // 10, 100),
            long_queue_messages=min(12_000, options.messages // 10),
            now_ms=system_clock(),
            hostile=True,
            create_schema=True,
        ),
    )
