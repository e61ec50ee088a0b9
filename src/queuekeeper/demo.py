"""``make demo``: a migration and a look at its queues on private servers, driven through Airflow's REST API."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console
from rich.markdown import Markdown
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from queuekeeper import embedded
from queuekeeper.approvals import APPROVAL_TASK, APPROVE
from queuekeeper.clock import system_clock
from queuekeeper.config import Settings
from queuekeeper.embedded import AirflowClient, AirflowServer, PostgresServer, RedisServer, TaskState
from queuekeeper.errors import CheckFailed, QueuekeeperError, RefusedError, UsageError
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantineCount, StoredReport
from queuekeeper.migration.ledger.model import LedgerRow, unaccounted
from queuekeeper.migration.ledger.progress import line
from queuekeeper.migration.ledger.status import migration_status
from queuekeeper.postgres import Connection, connect, migrate, statement
from queuekeeper.sessions.sample import SampleParameters, SampleReport, fill

DAG_ID = "session_migration"

QUALITY_DAG_ID = "queue_quality"
QUALITY_CONF = {"suite": "full", "stores": "redis"}

_MARK = "filled by the demo"
"""Comment on the database that a demo has filled, and may empty again."""

Approval = Literal["auto", "ui"]
_LOOK_EVERY_S = 0.5
_TIMEOUT_S = 1_800.0
_ANSWER_WITHIN_S = 120.0
"""Airflow's first answers take half a minute on a busy machine; an Airflow that has died refuses at once."""
_READ_WITHIN_S = 300.0
"""On a busy machine Airflow takes minutes to read all DAGs."""
_SETTLED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_SYMBOLS: Mapping[str, str] = {
    "success": "[green]✓[/]",
    "failed": "[red]✗[/]",
    "upstream_failed": "[red]✗[/]",
    "skipped": "[yellow]–[/]",
}


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of a demo, from the environment.

    :param approval: ``auto`` lets the demo approve and say so, ``ui`` waits for a person.
    :param leave: end when the result is shown, instead of leaving the user interface up.
    :param messages: healthy messages of the sample, at least 5,000 in a tenth as many sessions. With fewer messages a
        plan would refuse the share of hostile rows.
    """

    approval: Approval = "auto"
    leave: bool = False
    messages: int = 200_000

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> DemoOptions:
        """Read ``DEMO_APPROVE``, ``DEMO_EXIT`` and ``DEMO_MESSAGES``.

        :raises UsageError: when a variable has a wrong value; names it and the values that it may have.
        """
        approval = environment.get("DEMO_APPROVE") or "auto"
        if approval not in ("auto", "ui"):
            raise UsageError(f"DEMO_APPROVE is {approval!r}: it may be 'auto' or 'ui'")
        messages = environment.get("DEMO_MESSAGES") or "200000"
        if not messages.isdecimal() or not 5_000 <= int(messages) <= 100_000_000:
            raise UsageError(f"DEMO_MESSAGES is {messages!r}: it must be a number from 5000 to 100000000")
        return cls(
            approval="ui" if approval == "ui" else "auto",
            leave=environment.get("DEMO_EXIT", "") not in ("", "0"),
            messages=int(messages),
        )


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of the demo's migration.

    :param balanced: whether every row is accounted for and nothing differs.
    :param run_state: Airflow's state of the run.
    """

    plan_id: str
    run_id: str
    run_state: str
    rows: tuple[LedgerRow, ...]
    quarantine: tuple[QuarantineCount, ...]
    report: StoredReport | None
    balanced: bool
    seconds: float


def main() -> int:
    """Run the demo and return the exit code."""
    console = Console(highlight=False)
    # A terminal that goes away or a supervisor's SIGTERM must stop the servers just as Ctrl-C does, and Ctrl-C also
    # where a shell has started this in its background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        options = DemoOptions.read(os.environ)
        # Always the private servers, since the demo empties the stores that it uses.
        return run(Settings(postgres_url=None, redis_url=None), options, console)
    except QueuekeeperError as error:
        console.print(f"[red]The demo stopped:[/] {error}", markup=True)
        return error.exit_code
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 130


def run(settings: Settings, options: DemoOptions, console: Console) -> int:
    """Show the migration and return the exit code: 0 when the ledger balances and its queues are sound.

    :raises RefusedError: when another demo uses the same home.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(_only_one(settings.home))
        stack.enter_context(_servers_as_before(settings, console))
        _say(console, began, "Starting the demo's own PostgreSQL and Redis")
        embedded.up(settings)
        postgres_url = _begin_anew(settings)
        airflow = embedded.private_airflow(settings)
        with ThreadPoolExecutor(1) as other:
            _say(console, began, "Starting Airflow, and filling PostgreSQL meanwhile")
            started = other.submit(airflow.start)
            try:
                connection = stack.enter_context(connect(postgres_url, autocommit=True))
                migrate(connection)
                sample = _sample(connection, options)
                _say(console, began, _describe(sample))
                started.result()
            except BaseException:
                # Otherwise an interrupt would wait until Airflow has started.
                while not started.done():
                    airflow.stop()
                    wait([started], timeout=_LOOK_EVERY_S)
                raise
        admin = airflow.user("admin")
        _say(
            console,
            began,
            f"Airflow is up: [link]{airflow.url}[/]  user [b]{admin.name}[/]  password [b]{admin.password}[/]",
        )
        with AirflowClient(airflow.url, user=admin.name, password=admin.password, timeout_s=_ANSWER_WITHIN_S) as client:
            result = _migrate_sessions(client, connection, options, console, began)
            is_sound, page = _look_at_queues(client, connection, options, console, began)
        _show(console, result, airflow)
        critical = "[red]something critical was found[/]; the run's report names the queues and the remedy"
        console.print(f"Quality     {page}: {'nothing critical was found' if is_sound else critical}", soft_wrap=True)
        if not options.leave:
            console.print("The user interface stays up. Ctrl-C ends the demo.")
            _wait_for_interrupt()
        if result.balanced and result.run_state == "success" and is_sound:
            return 0
        return CheckFailed.exit_code


def _migrate_sessions(
    client: AirflowClient, connection: Connection, options: DemoOptions, console: Console, began: float
) -> DemoResult:
    ledger = MigrationLedger(connection)
    client.wait_for_dag(DAG_ID, timeout_s=_READ_WITHIN_S)
    run_id = client.trigger(DAG_ID)
    _say(console, began, f"Triggered the DAG {DAG_ID}: [link]{client.base_url}/dags/{DAG_ID}/runs/{run_id}[/]")
    state = follow(client, connection, DAG_ID, run_id, options, console, began=began)
    plan_id = _plan_of(ledger, run_id)
    if plan_id is None:
        raise CheckFailed(f"the run ended as {state} before it had made a plan; its log is above")
    rows = ledger.ledger(plan_id)
    return DemoResult(
        plan_id=plan_id,
        run_id=run_id,
        run_state=state,
        rows=rows,
        quarantine=tuple(ledger.quarantine_counts(plan_id)),
        report=max(ledger.reports(plan_id), key=lambda stored: stored.report_id, default=None),
        balanced=bool(rows) and all(row.unaccounted == 0 and row.differences == 0 for row in rows),
        seconds=time.monotonic() - began,
    )


def _look_at_queues(
    client: AirflowClient, connection: Connection, options: DemoOptions, console: Console, began: float
) -> tuple[bool, str]:
    """Judge the queues that the migration has made; return whether nothing critical was found, and the run's page."""
    # Triggered before the DAG is unpaused, so that its schedule does not start a run first.
    run_id = client.trigger(QUALITY_DAG_ID, conf=QUALITY_CONF)
    client.wait_for_dag(QUALITY_DAG_ID, timeout_s=_READ_WITHIN_S)
    page = f"{client.base_url}/dags/{QUALITY_DAG_ID}/runs/{run_id}"
    _say(console, began, f"Triggered the DAG {QUALITY_DAG_ID}: [link]{page}[/]")
    state = follow(client, connection, QUALITY_DAG_ID, run_id, options, console, began=began)
    client.pause(QUALITY_DAG_ID)
    return state == "success", page


def follow(
    client: AirflowClient,
    connection: Connection,
    dag_id: str,
    run_id: str,
    options: DemoOptions,
    console: Console,
    *,
    began: float,
) -> str:
    """Show a run until its end, answer its question unless a person does, and return its state.

    :param began: when the demo began, by the monotonic clock.
    """
    ledger = MigrationLedger(connection)
    shown: dict[tuple[str, int], str | None] = {}
    asked = False
    deadline = time.monotonic() + _TIMEOUT_S
    with _bars(console) as bars:
        while True:
            state = client.run_state(dag_id, run_id)
            tasks = client.tasks(dag_id, run_id)
            for task in tasks:
                key = (task.task_id, task.map_index)
                if task.state in _SETTLED and shown.get(key) != task.state:
                    _say(console, began, f"{_SYMBOLS.get(task.state or '', ' ')} {_name(task)}: {task.state}")
                    if task.state == "failed":
                        _show_log(client, console, dag_id, run_id, task)
                shown[key] = task.state
            if _waits_for_a_person(tasks) and not (asked and options.approval == "ui"):
                asked = _approve(client, run_id, options, console, began, asked=asked)
                # The time that a person takes to answer does not count.
                deadline = float("inf") if options.approval == "ui" else deadline
            plan_id = _plan_of(ledger, run_id)
            if plan_id is not None:
                bars.update(connection, plan_id)
            if state in ("success", "failed"):
                return state
            if time.monotonic() > deadline:
                raise CheckFailed(
                    f"the run is still {state} after {_TIMEOUT_S / 60:.0f} minutes: see {client.base_url}"
                )
            time.sleep(_LOOK_EVERY_S)


def _approve(
    client: AirflowClient, run_id: str, options: DemoOptions, console: Console, began: float, *, asked: bool
) -> bool:
    """Answer the question, or show a person where to; return whether the question was asked yet."""
    question = client.question(DAG_ID, run_id, APPROVAL_TASK)
    if question is None or question.get("response_received"):
        return asked
    if asked:
        # An answer sent before Airflow has recorded that the task waits is lost, and the task asks again.
        client.answer(DAG_ID, run_id, APPROVAL_TASK, options=[APPROVE])
        return True
    body = str(question.get("body") or "").strip()
    subject = Text(str(question["subject"]))
    console.print(Panel(Markdown(body or "(no details)"), title=subject, title_align="left"))
    if options.approval == "ui":
        page = f"{client.base_url}/dags/{DAG_ID}/runs/{run_id}/tasks/{APPROVAL_TASK}/required_actions"
        _say(console, began, f"Waiting for you to approve or reject: [link]{page}[/]")
        return True
    client.answer(DAG_ID, run_id, APPROVAL_TASK, options=[APPROVE])
    _say(console, began, "The demo itself answered [b]Approve[/]; DEMO_APPROVE=ui would have waited for you")
    return True


def _waits_for_a_person(tasks: Sequence[TaskState]) -> bool:
    waiting = ("awaiting_input", "deferred")
    return any(task.task_id == APPROVAL_TASK and task.state in waiting for task in tasks)


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
            rate = step.messages_per_s or 0.0
            self._progress.update(
                self._bars[step.step],
                completed=step.done,
                total=step.total,
                visible=True,
                rate=f"{rate:,.0f}/s" if rate else "",
            )
            tenth = 10 * step.done // max(1, step.total)
            if not self._console.is_terminal and tenth != self._said.get(step.step):
                self._said[step.step] = tenth
                said = line(step.step, done=step.done, total=step.total, rate=rate)
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


def _show(console: Console, result: DemoResult, airflow: AirflowServer) -> None:
    names = [field.name for field in fields(LedgerRow) if field.name not in ("cohort", "digest")]
    table = Table(title="Ledger", title_justify="left", title_style="bold")
    table.add_column("rows")
    table.add_column("count", justify="right")
    for name in names:
        table.add_row(name.replace("_", " "), f"{sum(getattr(row, name) for row in result.rows):,}")
    table.add_row("[b]unaccounted[/]", f"[b]{unaccounted(result.rows):,}[/]")
    console.print(table)
    if result.quarantine:
        reasons = Table(title="Quarantine", title_justify="left", title_style="bold")
        reasons.add_column("reason")
        reasons.add_column("rows", justify="right")
        for count in result.quarantine:
            reasons.add_row(f"{count.reason} ({count.kind})", f"{count.open + count.replayed:,}")
        console.print(reasons)
    verdict = "[green]balances to zero[/]" if result.balanced else "[red]does not balance[/]"
    console.print(f"The ledger of plan {result.plan_id} {verdict}; the run ended as {result.run_state}.")
    if result.report is not None:
        console.print(f"Report      {result.report.html_path}", soft_wrap=True)
    admin = airflow.user("admin")
    console.print(f"Airflow     {airflow.url}/dags/{DAG_ID}/runs/{result.run_id}", soft_wrap=True)
    console.print(f"            user {admin.name}, password {admin.password}")
    console.print(f"Time taken  {result.seconds:.0f} s")


def _show_log(client: AirflowClient, console: Console, dag_id: str, run_id: str, task: TaskState) -> None:
    try:
        lines = client.log(dag_id, run_id, task)
    except QueuekeeperError as error:
        lines = [f"(its log cannot be read: {error})"]
    # As plain text, since brackets in a log line are no markup.
    console.print(Panel(Text("\n".join(lines[-25:])), title=f"end of the log of {_name(task)}", title_align="left"))


def _name(task: TaskState) -> str:
    return task.task_id if task.map_index < 0 else f"{task.task_id}[{task.map_index}]".replace("[", r"\[")


def _say(console: Console, began: float, text: str) -> None:
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/] {text}", soft_wrap=True)


def _sample(connection: Connection, options: DemoOptions) -> SampleReport:
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


def _describe(sample: SampleReport) -> str:
    return (
        f"The database holds {sample.messages:,} messages in {sample.sessions:,} sessions; "
        f"the longest queue has {sample.longest_queue:,}, and {sum(sample.hostile.values()):,} rows are hostile"
    )


def _begin_anew(settings: Settings) -> str:
    """Empty the private servers of this home and return the address of their database.

    :raises RefusedError: when they hold data that no demo has made.
    """
    database = embedded.DATABASE
    postgres, redis = PostgresServer(settings.home / "postgres"), RedisServer(settings.home / "redis")
    with connect(postgres.database_url(database), autocommit=True) as connection, redis.client() as client:
        row = connection.execute(statement("queuekeeper/queries/database_contents"), {"mark": _MARK}).fetchone()
        assert row is not None
        is_marked, tables = row
        if not is_marked and (tables or client.dbsize()):
            raise RefusedError(
                f"the private servers in {settings.home} hold data that no demo has made, and the demo begins by "
                "emptying them: run it with another QUEUEKEEPER_HOME, or remove the data by `make clean`"
            )
        client.flushdb()
    postgres.drop_database(database)
    url = postgres.create_database(database)
    with connect(url, autocommit=True) as connection:
        connection.execute(f"COMMENT ON DATABASE {database} IS '{_MARK}'")
    return url


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"another demo runs in {home}: end it first, or choose another QUEUEKEEPER_HOME"
            ) from error
        yield


@contextmanager
def _servers_as_before(settings: Settings, console: Console) -> Iterator[None]:
    """Stop at the end the servers that did not run before."""
    before = {server.name for server in embedded.status(settings).servers if server.is_running}
    try:
        yield
    finally:
        # A second Ctrl-C would leave servers behind.
        earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if not before:
                console.print("Stopping the servers.")
                embedded.down(settings)
            elif "api-server" not in before:
                console.print("Stopping Airflow; the other servers ran before and stay.")
                embedded.down_airflow(settings)
        finally:
            signal.signal(signal.SIGINT, earlier)


def _wait_for_interrupt() -> None:
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
