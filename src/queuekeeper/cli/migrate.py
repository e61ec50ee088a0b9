"""``queuekeeper migrate``: plan, copy, verify, report, and what goes with them."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context, foreign_writers, jobs
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import (
    cell,
    instant,
    pairs,
    plain,
    printable,
    record,
    screen,
    show,
    table,
)
from queuekeeper.cli.run_control import agree
from queuekeeper.errors import CheckFailed, QueuekeeperError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.migration.ledger import QuarantinedRow, Step
    from queuekeeper.migration.model import LedgerRow, MigrationParameters, MigrationPlan

app = typer.Typer(no_args_is_help=True, help="Move sessions to Redis: plan, copy, verify, report.")
app.add_typer(foreign_writers.app, name="trigger")

PlanId = Annotated[str, typer.Argument(metavar="PLAN", help="Id of the plan.")]
PlanIdOrNewest = Annotated[str | None, typer.Argument(metavar="[PLAN]", help="Id of the plan; the newest if left out.")]
Cohorts = Annotated[
    str | None, typer.Option("--cohorts", help="Such as 0-3,7; all cohorts of the plan if left out.", metavar="CHOICE")
]

_TONES = {"verified": "green", "failed": "red", "refused": "red", "copying": "yellow", "copied": "yellow"}
REFRESH_S = 0.5


@app.callback()
def _group() -> None:
    """Move sessions to Redis: plan, copy, verify, report."""


@contextmanager
def _bar(postgres_url: str, *, plan_id: str, step: Step, total: int) -> Iterator[None]:
    """Draw a progress bar on a terminal while the block runs; elsewhere the step's own lines have to do."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    from queuekeeper.migration.ledger import MigrationLedger
    from queuekeeper.postgres import connect

    console = screen(stderr=True)
    if not console.is_terminal:
        yield
        return
    stop = threading.Event()

    def watch(progress: Progress, task: TaskID) -> None:
        try:
            with connect(postgres_url, autocommit=True) as connection:
                ledger = MigrationLedger(connection)
                while not stop.wait(REFRESH_S):
                    done = ledger.progress(plan_id, step).done
                    progress.update(task, completed=done)
                    speed = progress.tasks[0].speed
                    if speed:
                        progress.update(task, rate=f", {speed:,.0f}/s, {max(0, total - done) / speed:,.0f} s left")
        except QueuekeeperError:
            # The bar is decoration; what broke the connection ends the step itself with its own words.
            return

    outer = sys.stdout
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} messages{task.fields[rate]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress, Path(os.devnull).open("w") as nowhere:
        task = progress.add_task(step.capitalize(), total=total, rate="")
        thread = threading.Thread(target=watch, args=(progress, task), daemon=True)
        thread.start()
        sys.stdout = nowhere  # the bar says what the step's lines would say
        try:
            yield
        finally:
            sys.stdout = outer
            stop.set()
            thread.join(timeout=10)


def _parameters() -> type[MigrationParameters]:
    from queuekeeper.migration.model import MigrationParameters

    return MigrationParameters


@app.command(cls=JobCommand)
@takes(_parameters)
def plan(
    *,
    parameters: MigrationParameters,
    run_id: Annotated[str | None, typer.Option(help="Name of this request, for the record.")] = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    spark_master: context.SparkMaster = None,
    as_json: context.AsJson = False,
) -> None:
    """Count what a migration would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper migrate plan --limit 5000 --default-ttl-s 86400`
    """
    source, target = context.reachable(postgres_url, redis_url)
    with context.spark("queuekeeper migrate plan", spark_master, source, target) as spark:
        from queuekeeper.migration.plan import plan_migration

        made = plan_migration(spark, postgres_url=source, redis_url=target, parameters=parameters, run_id=run_id)

    def pretty(out: Console) -> None:
        _plan(out, made)
        out.print(f"\nNext: queuekeeper migrate copy {made.plan_id}")

    show(_plan_facts(made), as_json=as_json, pretty=pretty)


@app.command()
def copy(
    plan_id: PlanId,
    *,
    cohorts: Cohorts = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    spark_master: context.SparkMaster = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Write the planned sessions into Redis. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it.

    Example: `queuekeeper migrate copy 0123456789abcdef --cohorts 0-3`
    """
    source, target = context.reachable(postgres_url, redis_url)
    with context.open_ledger(source) as ledger:
        planned = ledger.load_plan(plan_id)
        total = planned.total_of(planned.choose(cohorts), "to_copy")
        question = f"Plan {plan_id} is not approved: {total:,} messages will be copied to Redis. Approve and copy?"
        agree(ledger, plan_id, question, yes=yes, as_json=as_json)
    with context.spark("queuekeeper migrate copy", spark_master, source, target) as spark:
        from queuekeeper.migration.apply import copy_sessions

        with _bar(source, plan_id=plan_id, step="copy", total=total):
            report = copy_sessions(spark, postgres_url=source, redis_url=target, plan_id=plan_id, cohorts=cohorts)

    def pretty(out: Console) -> None:
        out.print(record("Copy", report))
        out.print(f"\nNext: queuekeeper migrate verify {plan_id}")

    show(report, as_json=as_json, pretty=pretty)


@app.command()
def verify(
    plan_id: PlanIdOrNewest = None,
    *,
    cohorts: Cohorts = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    spark_master: context.SparkMaster = None,
    as_json: context.AsJson = False,
) -> None:
    """Read both stores again and balance the ledger. Exit code 1 when it does not balance.

    Example: `queuekeeper migrate verify`
    """
    source, target = context.reachable(postgres_url, redis_url)
    with context.open_ledger(source) as ledger:
        plan_id = jobs.chosen(ledger, plan_id, "session_migration")
        planned = ledger.load_plan(plan_id)
        total = planned.total_of(planned.choose(cohorts), "to_copy")
    with context.spark("queuekeeper migrate verify", spark_master, source, target) as spark:
        from queuekeeper.migration.verify import verify_migration

        with _bar(source, plan_id=plan_id, step="verify", total=total):
            report = verify_migration(spark, postgres_url=source, redis_url=target, plan_id=plan_id, cohorts=cohorts)

    def pretty(out: Console) -> None:
        _verdict(out, balanced=report.balanced)
        out.print(_ledger(report.ledger))
        out.print(f"\nDigest {report.digest}, {report.seconds:,.1f} s. Report: queuekeeper migrate report {plan_id}")

    facts = plain(report) | {"balanced": report.balanced, "unaccounted": _unaccounted(report.ledger)}
    show(facts, as_json=as_json, pretty=pretty)
    if not report.balanced:
        raise CheckFailed(
            f"the ledger of plan {plan_id} does not balance: {_unaccounted(report.ledger):,} messages unaccounted for, "
            f"{report.differences:,} differences; `queuekeeper migrate report {plan_id}` lists them"
        )


@app.command()
def report(
    plan_id: PlanIdOrNewest = None,
    *,
    directory: Annotated[Path | None, typer.Option(help="Folder; else QUEUEKEEPER_REPORTS_DIR.")] = None,
    show_client_ids: Annotated[
        bool, typer.Option("--show-client-ids", help="Name clients as they are instead of by hash.")
    ] = False,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Write the report of a migration as HTML and JSON. Exit code 1 when the ledger does not balance.

    Example: `queuekeeper migrate report --directory reports`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.migration.report import build_report, write_report
    from queuekeeper.migration.report_model import Verdict

    with context.open_ledger(postgres_url) as ledger, context.redis_connection(redis_url) as client:
        plan_id = jobs.chosen(ledger, plan_id, "session_migration")
        built = build_report(ledger, client, plan_id=plan_id, now_ms=system_clock(), show_client_ids=show_client_ids)
        files = write_report(built, (directory or context.settings().reports).absolute())
        ledger.save_report(plan_id, html_path=str(files.html), json_path=str(files.json), sha256=files.sha256)

    def pretty(out: Console) -> None:
        _verdict(out, balanced=built.verdict is Verdict.BALANCED, words=built.verdict.value)
        out.print(built.explanation, soft_wrap=True)
        out.print(pairs("Files", {"HTML": files.html, "JSON": files.json, "SHA-256 of the HTML": files.sha256}))

    facts = plain(files) | {
        "plan_id": plan_id,
        "verdict": built.verdict.value,
        "explanation": built.explanation,
        "totals": plain(built.totals),
    }
    show(facts, as_json=as_json, pretty=pretty)
    if built.verdict is Verdict.NOT_BALANCED:
        raise CheckFailed(f"the ledger of plan {plan_id} does not balance: open {files.html}")


@app.command()
def status(
    plan_id: PlanIdOrNewest = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Tell how far a migration has come.

    Example: `queuekeeper migrate status`
    """
    with context.open_ledger(postgres_url) as ledger:
        plan_id = jobs.chosen(ledger, plan_id, "session_migration")
        found = ledger.load_plan(plan_id)
        states = ledger.cohort_states(plan_id)
        progress = {"copy": ledger.progress(plan_id, "copy"), "verify": ledger.progress(plan_id, "verify")}
        rows = ledger.ledger(plan_id)
        approval, throttle = ledger.approval(plan_id), ledger.throttle(plan_id)
        verified_at_ms = ledger.verified_at_ms(plan_id)
    counts: dict[str, int] = {}
    for number in found.chosen:
        state = states[number].value
        counts[state] = counts.get(state, 0) + 1

    def pretty(out: Console) -> None:
        _plan(out, found)
        out.print(
            pairs(
                "State",
                {
                    "plan": cell(found.state.value, style=_TONES.get(found.state.value, "")),
                    "why": found.state_reason or None,
                    "approved": None if approval is None else f"by {approval.approved_by}",
                    "throttle": "none" if throttle is None else f"{throttle:,} messages/s",
                    "cohorts": ", ".join(f"{count:,} {state}" for state, count in counts.items()),
                    "copied": f"{progress['copy'].done:,} of {found.total('to_copy'):,} messages",
                    "verified": instant(verified_at_ms),
                },
            )
        )
        if rows:
            out.print()
            out.print(_ledger(rows))

    facts = _plan_facts(found) | {
        "approval": plain(approval),
        "throttle_messages_per_s": throttle,
        "cohort_states": counts,
        "progress": plain(progress),
        "ledger": [plain(row) | {"unaccounted": row.unaccounted} for row in rows],
        "verified_at_ms": verified_at_ms,
    }
    show(facts, as_json=as_json, pretty=pretty)


jobs.add_aliases(app, "session_migration", {"throttle": "throttle"})


@app.command()
def quarantine(
    plan_id: PlanIdOrNewest = None,
    *,
    reason: Annotated[str | None, typer.Option(help="List the rows of one reason.")] = None,
    client_id: Annotated[str | None, typer.Option("--client", help="List the rows of one client.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most rows to list.")] = 50,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Count the quarantined rows by reason, with what to do. List them with --reason or --client.

    Example: `queuekeeper migrate quarantine --reason packet_id_duplicate`
    """
    from queuekeeper.migration.report import guide, replay_command

    _check_reason(reason)
    with context.open_ledger(postgres_url) as ledger:
        plan_id = jobs.chosen(ledger, plan_id, "session_migration")
        ledger.load_plan(plan_id)
        counts = ledger.quarantine_counts(plan_id)
        listed = reason is not None or client_id is not None
        rows = ledger.quarantined(plan_id, reason=reason, client_id=client_id, limit=limit) if listed else []

    def pretty(out: Console) -> None:
        if not counts:
            out.print("No row is quarantined.")
            return
        shape = ("reason", "kind", "open", "replayed", "what to do")
        out.print(
            table(
                f"Quarantine of plan {plan_id}",
                shape,
                [(each.reason, each.kind, each.open, each.replayed, guide(each.reason)[1]) for each in counts],
            )
        )
        if listed:
            columns = ("client", "kind", "serial", "packet id", "reason", "detail")
            out.print(table(f"Open rows, at most {limit:,}", columns, [_quarantined(row) for row in rows]))
        else:
            out.print(f"\nAfter repair: {replay_command(str(plan_id), counts[0].reason)}", soft_wrap=True)

    facts = {
        "plan_id": plan_id,
        "counts": [
            plain(each)
            | {
                "meaning": guide(each.reason)[0],
                "repair": guide(each.reason)[1],
                "command": replay_command(plan_id, each.reason),
            }
            for each in counts
        ],
        "rows": [dict(zip(_QUARANTINED, _quarantined(row), strict=True)) for row in rows],
    }
    show(facts, as_json=as_json, pretty=pretty)


_QUARANTINED = ("client_id", "kind", "serial_number", "packet_id", "reason", "detail")


def _quarantined(row: QuarantinedRow) -> tuple[Any, ...]:
    """Return what may be shown of a row; its content may not."""
    serial = None if row.serial_number is None else str(row.serial_number)
    packet_id = None if row.packet_id is None else str(row.packet_id)
    return row.client_id, row.kind, serial, packet_id, row.reason, row.detail


def _check_reason(reason: str | None) -> None:
    from queuekeeper.sessions.judge import Reason

    if reason is not None and reason not in set(Reason):
        raise UsageError(f"the reason is {reason!r}: it must be one of {', '.join(sorted(Reason))}")


@app.command()
def replay(
    plan_id: PlanId,
    *,
    reason: Annotated[str | None, typer.Option(help="Rows of one reason; all open rows if left out.")] = None,
    client_id: Annotated[str | None, typer.Option("--client", help="Rows of one client.")] = None,
    assign_packet_ids: Annotated[
        bool, typer.Option("--assign-packet-ids", help="Give messages a free packet id where theirs cannot be used.")
    ] = False,
    drop_user_properties: Annotated[
        bool, typer.Option("--drop-user-properties", help="Leave user properties out where they cannot be read.")
    ] = False,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Put repaired rows of the quarantine into their sessions.

    Example: `queuekeeper migrate replay 0123456789abcdef --reason packet_id_duplicate --assign-packet-ids --dry-run`
    """
    from queuekeeper.audit import record_answer
    from queuekeeper.migration import quarantine as repair

    _check_reason(reason)
    with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
        _load(connection, plan_id)
        note = partial(record_answer, connection, subject=plan_id, kind="quarantine_replay")
        if not dry_run:
            context.confirm(
                f"Repaired rows of plan {plan_id} will be written to Redis.", yes=yes, as_json=as_json, note=note
            )
        done = repair.replay(
            connection,
            client,
            plan_id=plan_id,
            reason=reason,
            client_id=client_id,
            assign_packet_ids=assign_packet_ids,
            drop_user_properties=drop_user_properties,
            dry_run=dry_run,
        )
    title = "Replay, nothing was written" if dry_run else "Replay"
    show(done, as_json=as_json, pretty=lambda out: out.print(record(title, done)))


def _load(connection: Any, plan_id: str) -> MigrationPlan:
    from queuekeeper.migration.ledger import MigrationLedger

    return MigrationLedger(connection).load_plan(plan_id)


@app.command()
def undo(
    plan_id: PlanId,
    *,
    cohorts: Cohorts = None,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Take out of Redis what a plan has imported. Sessions used since are left alone.

    Example: `queuekeeper migrate undo 0123456789abcdef --dry-run`
    """
    from queuekeeper.migration.clients import clients_of
    from queuekeeper.migration.model import CohortState, PlanState
    from queuekeeper.migration.undo import drop_imports

    missing = "undo finds the sessions by the source's tables: restore them first"
    source = context.postgres_address(postgres_url)
    with context.open_ledger(source) as ledger, context.redis_connection(redis_url) as client:
        found = ledger.load_plan(plan_id)
        wanted = found.choose(cohorts)
        if not dry_run:
            context.confirm(
                f"What plan {plan_id} has imported into {len(wanted):,} cohorts will be removed from Redis.",
                yes=yes,
                as_json=as_json,
                note=partial(ledger.note_answer, plan_id),
            )
        with (
            ledger.copy_lock(plan_id, wanted),
            context.postgres_connection(source, autocommit=False) as reader,
            screen(stderr=True).status("Looking at sessions"),
        ):
            dropped = drop_imports(
                client,
                clients_of(reader, found, wanted, missing=missing),
                plan_id=plan_id,
                prefix=found.parameters.key_prefix,
                dry_run=dry_run,
            )
            if not dry_run:
                ledger.set_cohort_state(plan_id, wanted, CohortState.PLANNED)
                approved = ledger.approval(plan_id) is not None
                ledger.set_plan_state(plan_id, PlanState.APPROVED if approved else PlanState.PLANNED)
                ledger.note_undo(plan_id, plain(dropped), actor=context.person())
    title = "Undo, nothing was removed" if dry_run else "Undo"
    show(dropped, as_json=as_json, pretty=lambda out: out.print(record(title, dropped)))


def _plan_facts(found: MigrationPlan) -> dict[str, Any]:
    totals = ("sessions", "clients", "messages", "payload_bytes", "to_copy", "expired", "trimmed", "quarantined")
    return {
        "plan_id": found.plan_id,
        "state": found.state.value,
        "state_reason": found.state_reason,
        "parameters": plain(found.parameters),
        "source_fingerprint": found.source_fingerprint,
        "code_version": found.code_version,
        "as_of_ms": found.as_of_ms,
        "cohorts": len(found.cohorts),
        "chosen": list(found.chosen),
        "totals": {name: found.total(name) for name in (*totals, "forecast_bytes")},
        "quarantined_by_reason": found.quarantined_by_reason(),
    }


def _plan(out: Console, found: MigrationPlan) -> None:
    out.print(
        pairs(
            f"Plan {found.plan_id}",
            {
                "source read": instant(found.as_of_ms),
                "cohorts": f"{len(found.chosen):,} of {len(found.cohorts):,} chosen",
                "sessions": found.total("sessions"),
                "messages": found.total("messages"),
                "to copy": found.total("to_copy"),
                "expired": found.total("expired"),
                "over the limit": found.total("trimmed"),
                "quarantined": found.total("quarantined"),
                "memory forecast": f"{found.total('forecast_bytes') / 1_048_576:,.1f} MiB",
            },
        )
    )
    reasons = found.quarantined_by_reason()
    if reasons:
        out.print(table("Quarantined rows", ("reason", "rows"), reasons.items()))


def _unaccounted(rows: tuple[LedgerRow, ...]) -> int:
    return sum(abs(row.unaccounted) for row in rows)


def _verdict(out: Console, *, balanced: bool, words: str | None = None) -> None:
    text = words or ("balanced" if balanced else "not balanced")
    out.print(
        f"{'✓' if balanced else '✗'} {printable(text).capitalize()}", style="bold green" if balanced else "bold red"
    )


def _ledger(rows: tuple[LedgerRow, ...]) -> Any:
    names = ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined")
    totals = [sum(getattr(row, name) for row in rows) for name in names]
    unaccounted = _unaccounted(rows)
    differences = sum(row.differences for row in rows)
    columns = (*(name.replace("_", " ") for name in names), "unaccounted", "differences")
    return table(f"Ledger of {len(rows):,} cohorts", columns, [(*totals, unaccounted, differences)])
