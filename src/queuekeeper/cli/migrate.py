"""``queuekeeper migrate``: plan a migration, copy, verify, report and undo it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.audit import record_answer
from queuekeeper.cli import context, foreign_writers, runs
from queuekeeper.cli.command import CONFIRMS, PLANS, Call, OnPostgres, OnServers, command, group
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, cell, copied, instant, listing, pairs, screen, table
from queuekeeper.cli.progress import shown
from queuekeeper.cli.run_control import PlanId, agree, run_taken_back, run_told
from queuekeeper.jobs.control import chosen
from queuekeeper.migration.ledger.ledger import QuarantinedRow, Step
from queuekeeper.migration.ledger.model import LedgerRow, MigrationPlan, unaccounted
from queuekeeper.migration.ledger.parameters import AuditWish, CohortChoice, MigrationParameters, PlanWish
from queuekeeper.sessions.judge import check_reason
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from rich.text import Text

    from queuekeeper.cli.tables import Table
    from queuekeeper.migration.audit.recount import AuditReport

app = group()
app.add_typer(foreign_writers.app, name="trigger")

PlanIdOrNewest = Annotated[str | None, typer.Argument(metavar="[PLAN]", help="Id of the plan; the newest if left out.")]
_CHOOSES = takes(lambda: CohortChoice)

_COUNTING = "Counting what the migration would do"
_TONES = {"verified": "green", "failed": "red", "refused": "red", "copying": "yellow", "copied": "yellow"}


def _bar(call: OnServers, plan_id: str, step: Step, total: int) -> AbstractContextManager[None]:
    """Show how far a step is while a block runs."""

    @contextmanager
    def counting() -> Iterator[Callable[[], int]]:
        with call.anew() as own:
            yield lambda: own.ledger.progress(plan_id, step).done

    return shown(step, total=total, unit="messages", counting=counting)


def _newest(call: Call, plan_id: str | None) -> str:
    """Return the plan that a command is about: the one named, else the newest."""
    return chosen(call.ledger, plan_id)


@command(app, asks=takes(lambda: PlanWish))
def plan(call: OnServers, *, parameters: PlanWish, spark_master: context.SparkMaster = None) -> Shown:
    """Count what a migration would do. Nothing is written to Redis, so there is no dry run.

    Example: `queuekeeper migrate plan --limit 5000 --default-ttl-s 86400`
    """
    source, target = context.reachable(call.postgres_url, call.redis_url)
    wanted = parameters.part(MigrationParameters)
    if wanted.inside_redis:
        from queuekeeper.migration.online.inside_redis import plan_inside_redis

        with screen(stderr=True).status(_COUNTING):
            moved = plan_inside_redis(
                postgres_url=source, redis_url=target, parameters=wanted, run_id=parameters.run_id or None
            )
        return Shown(moved, lambda: _plan(moved), then=f"Next: queuekeeper online arm {moved.plan_id}")
    with context.spark("queuekeeper migrate plan", spark_master, source, target) as spark:
        from queuekeeper.migration.offline.plan import plan_migration

        with screen(stderr=True).status(_COUNTING):
            made = plan_migration(
                spark,
                postgres_url=source,
                redis_url=target,
                parameters=wanted,
                run_id=parameters.run_id or None,
            )
    return Shown(made, lambda: _plan(made), then=f"Next: queuekeeper migrate copy {made.plan_id}")


@command(app, also=CONFIRMS, asks=_CHOOSES)
def copy(
    call: OnServers, plan_id: PlanId, *, parameters: CohortChoice, spark_master: context.SparkMaster = None
) -> Shown:
    """Write the planned sessions into Redis. Repeat it after an interruption: it goes on where it stopped.

    Asks for approval unless the plan is approved already; --yes approves it.

    Example: `queuekeeper migrate copy 0123456789abcdef --cohorts 0-3`
    """
    source, target = context.reachable(call.postgres_url, call.redis_url)
    planned = call.ledger.load_plan(plan_id)
    planned.check_from_postgres(instead=f"queuekeeper online catch-up {plan_id}")
    chosen = planned.choose(parameters.cohorts)
    total = planned.total_of(chosen, "to_copy")
    agree(call, call.ledger, plan_id, planned.question(chosen))
    with context.spark("queuekeeper migrate copy", spark_master, source, target) as spark:
        from queuekeeper.migration.offline.copy import copy_sessions

        with _bar(call, plan_id, "copy", total):
            report = copy_sessions(
                spark, postgres_url=source, redis_url=target, plan_id=plan_id, cohorts=parameters.cohorts
            )
    return Shown(report, "Copy", then=f"Next: queuekeeper migrate verify {plan_id}")


@command(app, asks=_CHOOSES)
def verify(
    call: OnServers,
    plan_id: PlanIdOrNewest = None,
    *,
    parameters: CohortChoice,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Read both stores again and balance the ledger. Exit code 1 when it does not balance.

    Example: `queuekeeper migrate verify`
    """
    source, target = context.reachable(call.postgres_url, call.redis_url)
    plan_id = _newest(call, plan_id)
    planned = call.ledger.load_plan(plan_id)
    planned.check_from_postgres(instead=f"queuekeeper online verify {plan_id}")
    total = planned.total_of(planned.choose(parameters.cohorts), "to_copy")
    with context.spark("queuekeeper migrate verify", spark_master, source, target) as spark:
        from queuekeeper.migration.offline.verify import verify_migration

        with _bar(call, plan_id, "verify", total):
            report = verify_migration(
                spark, postgres_url=source, redis_url=target, plan_id=plan_id, cohorts=parameters.cohorts
            )
    words = f"\nDigest {report.digest}, {report.seconds:,.1f} s. Report: queuekeeper migrate report {plan_id}"
    failed = (
        f"the ledger of plan {plan_id} does not balance: {report.wrong}; "
        f"`queuekeeper migrate report {plan_id}` lists them"
    )
    return Shown(
        report,
        lambda: [_verdict(balanced=report.balanced), _ledger(report.ledger), words],
        failed=None if report.balanced else failed,
    )


@command(app)
def report(
    call: OnServers, plan_id: PlanIdOrNewest = None, *, directory: Path | None = None, show_client_ids: bool = False
) -> Shown:
    """Write the report of a migration as HTML and JSON. Exit code 1 when the ledger does not balance.

    Example: `queuekeeper migrate report --directory reports`

    :param directory: Folder; else QUEUEKEEPER_REPORTS_DIR.
    :param show_client_ids: Name clients as they are instead of by hash.
    """
    run = call.ledger.load(_newest(call, plan_id))
    return run_told(call, run, directory=directory, show_client_ids=show_client_ids)


@command(app, asks=takes(lambda: AuditWish))
def audit(call: OnPostgres, plan_id: PlanIdOrNewest = None, *, parameters: AuditWish) -> Shown:
    """Recompute the ledger of a finished migration by one SQL query. Exit code 1 when a number or message differs.

    It reads source, quarantine and RDB files of the target, and uses no code of the copy or the verification. It
    writes only temporary tables.

    Example: `queuekeeper migrate audit --rdb dump.rdb`
    """
    from queuekeeper.migration.audit.recount import audit_migration

    plan_id = _newest(call, plan_id)
    with screen(stderr=True).status("Reading the snapshot and the source"):
        found = audit_migration(
            call.connection,
            plan_id=plan_id,
            paths=[Path(path) for path in parameters.rdb],
            database=parameters.rdb_database,
        )
    failed = f"the audit of plan {plan_id} finds what the ledger does not have: {found.wrong}"
    return Shown(found, lambda: _audited(found), failed=None if found.agrees else failed)


@command(app)
def status(call: OnPostgres, plan_id: PlanIdOrNewest = None) -> Shown:
    """Tell how far a migration has come.

    Example: `queuekeeper migrate status`
    """
    ledger, plan_id = call.ledger, _newest(call, plan_id)
    found = ledger.load_plan(plan_id)
    states = ledger.cohort_states(plan_id)
    progress = {"copy": ledger.progress(plan_id, "copy"), "verify": ledger.progress(plan_id, "verify")}
    rows = ledger.ledger(plan_id)
    approval, throttle = ledger.approval(plan_id), ledger.throttle(plan_id)
    verified_at_ms = ledger.verified_at_ms(plan_id)
    counts = Counter(states[number].value for number in found.chosen)

    def pretty() -> Iterator[Any]:
        yield from _plan(found)
        facts = {
            "plan": cell(found.state.value, style=_TONES.get(found.state.value, "")),
            "why": found.state_reason or None,
            "approved": None if approval is None else f"by {approval.approved_by}",
            "throttle": "none" if throttle is None else f"{throttle:,} messages/s",
            "cohorts": ", ".join(f"{count:,} {state}" for state, count in counts.items()),
            "copied": f"{progress['copy'].done:,} of {found.total('to_copy'):,} messages",
            "verified": instant(verified_at_ms),
        }
        yield pairs("State", facts)
        if rows:
            yield _ledger(rows)

    facts = {
        "approval": approval,
        "throttle_messages_per_s": throttle,
        "cohort_states": counts,
        "progress": progress,
        "ledger": rows,
        "verified_at_ms": verified_at_ms,
    }
    return Shown(found.facts() | facts, pretty)


runs.add_aliases(app, "session_migration", {"throttle": "throttle"})


@command(app)
def quarantine(
    call: OnPostgres,
    plan_id: PlanIdOrNewest = None,
    *,
    reason: str | None = None,
    client_id: Annotated[str | None, typer.Option("--client")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
) -> Shown:
    """Count the quarantined rows by reason, with what to do. List them with --reason or --client.

    Example: `queuekeeper migrate quarantine --reason packet_id_duplicate`

    :param reason: List the rows of one reason.
    :param client_id: List the rows of one client.
    :param limit: Most rows to list.
    """
    from queuekeeper.migration.report.gather import quarantine_lines

    check_reason(reason)
    ledger, chosen = call.ledger, _newest(call, plan_id)
    counts = quarantine_lines(ledger.load_plan(chosen), ledger.quarantine_counts(chosen))
    listed = reason is not None or client_id is not None
    rows = ledger.quarantined(chosen, reason=reason, client_id=client_id, limit=limit) if listed else []
    shown = [_quarantined(row) for row in rows]

    def pretty() -> Iterator[Any]:
        if not counts:
            yield "No row is quarantined."
            return
        columns = {"reason": "reason", "kind": "kind", "open": "open", "replayed": "replayed"}
        yield listing(f"Quarantine of plan {chosen}", counts, columns | {"what to do": "repair"})
        if listed:
            columns = {"client": "client_id", "kind": "kind", "serial": "serial_number", "packet id": "packet_id"}
            yield listing(f"Open rows, at most {limit:,}", shown, columns | {"reason": "reason", "detail": "detail"})
        else:
            yield ""
            yield copied(f"After repair: {counts[0].command}")

    return Shown({"plan_id": chosen, "counts": counts, "rows": shown}, pretty)


def _quarantined(row: QuarantinedRow) -> dict[str, str | None]:
    """Return what may be shown of a row; its content may not."""
    names = ("client_id", "kind", "serial_number", "packet_id", "reason", "detail")
    return {name: None if (fact := getattr(row, name)) is None else str(fact) for name in names}


@command(app, also=PLANS)
def replay(
    call: OnServers,
    plan_id: PlanId,
    *,
    reason: str | None = None,
    client_id: Annotated[str | None, typer.Option("--client")] = None,
    assign_packet_ids: bool = False,
    drop_user_properties: bool = False,
    as_new: bool = False,
) -> Shown:
    """Put repaired rows of the quarantine into their sessions.

    Each takes the place that its serial number gives it.

    Example: `queuekeeper migrate replay 0123456789abcdef --reason packet_id_duplicate --assign-packet-ids --dry-run`

    :param reason: Rows of one reason; all open rows if left out.
    :param client_id: Rows of one client.
    :param assign_packet_ids: Give messages a free packet id where theirs cannot be used.
    :param drop_user_properties: Leave user properties out where they cannot be read.
    :param as_new: Put messages of sessions that are no longer this plan's (moved_on) behind all others.
    """
    from queuekeeper.cli.session_quarantine import owners_stores, replay_shown
    from queuekeeper.migration.offline import quarantine as repair

    check_reason(reason)
    chosen = call.ledger.load_plan(plan_id).parameters
    stores = None
    if as_new:
        stores = owners_stores(
            call,
            key_prefix=chosen.key_prefix,
            default_ttl_s=chosen.default_ttl_s,
            choice="redis",
            layout=chosen.layout,
        )
    if not call.dry_run:
        note = partial(record_answer, call.connection, subject=plan_id, kind="quarantine_replay")
        call.confirm(f"Repaired rows of plan {plan_id} will be written to Redis.", note=note)
    done = repair.replay(
        call.connection,
        call.client,
        plan_id=plan_id,
        reason=reason,
        client_id=client_id,
        assign_packet_ids=assign_packet_ids,
        drop_user_properties=drop_user_properties,
        as_new=stores,
        dry_run=call.dry_run,
    )
    return replay_shown(call, done)


@command(app, also=PLANS, asks=_CHOOSES)
def undo(call: OnServers, plan_id: PlanId, *, parameters: CohortChoice) -> Shown:
    """Take out of Redis what a plan has imported. Sessions used since are left alone.

    Example: `queuekeeper migrate undo 0123456789abcdef --dry-run`
    """
    return run_taken_back(call, call.ledger.load(plan_id), cohorts=parameters.cohorts)


def _plan(found: MigrationPlan) -> Iterator[Any]:
    totals = found.totals()
    columns = {"sessions": "sessions", "messages": "messages", "to copy": "to_copy", "expired": "expired"}
    columns |= {"over the limit": "trimmed", "quarantined": "quarantined"}
    facts = {
        "source read": instant(found.as_of_ms),
        "cohorts": f"{len(found.chosen):,} of {len(found.cohorts):,} chosen",
        **{words: totals[name] for words, name in columns.items()},
        "memory forecast": f"{totals['forecast_bytes'] / 1_048_576:,.1f} MiB",
    }
    yield pairs(f"Plan {found.plan_id}", facts)
    reasons = found.quarantined_by_reason()
    if reasons:
        yield table("Quarantined rows", ("reason", "rows"), reasons.items())


def _audited(found: AuditReport) -> Iterator[Any]:
    if found.agrees:
        yield cell("✓ The ledger is right", style="bold green")
    else:
        yield cell("✗ The ledger is not right", style="bold red")
    heads = ("number", "ledger", "recomputed")
    numbers = [(each.name.replace("_", " "), each.ledger, each.recomputed) for each in found.numbers]
    yield table(f"Ledger of {number_of(len(found.cohorts), 'cohort')}", heads, numbers)
    if any(each.agrees and each.ledger != each.recomputed for each in found.numbers):
        yield "\nA message that expired meanwhile may count as copied in one column, as expired in the other."
    wrong = [
        (str(cohort.cohort), each.name.replace("_", " "), each.ledger, each.recomputed)
        for cohort in found.cohorts
        for each in cohort.numbers
        if not each.agrees
    ]
    if wrong:
        yield table("Numbers that differ", ("cohort", *heads), wrong)
    columns = {"client": "client_id", "serial": "serial_number", "packet id": "packet_id"}
    for each in found.findings:
        title = f"{each.kind.replace('_', ' ').capitalize()}: {each.count:,}"
        shown = f", the first {len(each.examples)}" if len(each.examples) < each.count else ""
        yield listing(title + shown, each.examples, columns | {"expected": "expected", "found": "found"})
    if found.sessions_elsewhere:
        yield f"\nThe files have {number_of(found.sessions_elsewhere, 'session')} more, which the source does not know."
    yield f"\nSnapshot of {instant(found.taken_at_ms)}, {found.seconds:,.1f} s."


def _verdict(*, balanced: bool) -> Text:
    return cell("✓ Balanced", style="bold green") if balanced else cell("✗ Not balanced", style="bold red")


def _ledger(rows: tuple[LedgerRow, ...]) -> Table:
    names = ("rows_seen", "copied", "expired", "trimmed", "superseded", "quarantined")
    totals = [sum(getattr(row, name) for row in rows) for name in names]
    differences = sum(row.differences for row in rows)
    columns = (*(name.replace("_", " ") for name in names), "unaccounted", "differences")
    return table(f"Ledger of {number_of(len(rows), 'cohort')}", columns, [(*totals, unaccounted(rows), differences)])
