"""``queuekeeper partitions``: policies, coverage, plans, and doing what they say."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import cell, instant, pairs, plain, printable, record, show, show_tables, table
from queuekeeper.cli.run_control import note_on, say
from queuekeeper.errors import CheckFailed, QueuekeeperError, ServerUnavailable, StalePlan, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.partitions.model import (
        ApplyReport,
        Coverage,
        PartitionPlan,
        PartitionWish,
        RetiredPartition,
    )
    from queuekeeper.maintenance.partitions.policy import PartitionPolicy
    from queuekeeper.postgres import Connection

Found = TypeVar("Found")

app = typer.Typer(no_args_is_help=True)

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name with its schema, as SQL writes it.")]
OneTable = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", help="One table; every table that has a policy if left out.")
]


@app.callback()
def _group() -> None:
    """Keep partitions ahead of data, and retire old ones."""


@app.command("set")
def set_policy(
    name: TableName,
    *,
    step: Annotated[str, typer.Option(help="Length of a partition: '1 day', '1 month', or a number of keys.")],
    ahead: Annotated[str, typer.Option(help="How far beyond clock and data partitions reach.")],
    retention: Annotated[str | None, typer.Option(help="How long keys are kept; for ever if left out.")] = None,
    far_future: Annotated[
        str | None, typer.Option(help="Rows further ahead pull no partitions; as far as --ahead if left out.")
    ] = None,
    lowest_needed_sql: Annotated[
        str | None, typer.Option(help="Query that answers the lowest key that a consumer still needs.")
    ] = None,
    archive: Annotated[bool, typer.Option(help="Drop only what was archived and verified.")] = True,
    quarantine_schema: Annotated[str, typer.Option(help="Where retired partitions wait.")] = "queuekeeper_retired",
    quarantine_days: Annotated[int, typer.Option(help="Days until a retired partition may be dropped.")] = 7,
    blocking_detach: Annotated[
        bool, typer.Option(help="Where a DEFAULT partition asks for it, detach by a lock that others wait for.")
    ] = False,
    storage: Annotated[
        list[str] | None, typer.Option(help="Storage parameter of new partitions, name=value; repeatable.")
    ] = None,
    lock_timeout_ms: Annotated[int, typer.Option(help="Longest wait for a lock.")] = 1_000,
    deadline_s: Annotated[int, typer.Option(help="Seconds after which one apply stops trying.")] = 300,
    at_most: Annotated[int, typer.Option(help="Partitions that one plan creates.")] = 400,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Set how a table is partitioned.

    The step may be changed at any time. Nothing is created yet.

    Example: `queuekeeper partitions set public.readings --step '1 day' --ahead '7 days' --retention '30 days'`
    """
    from queuekeeper.maintenance.partitions.catalog import read_table
    from queuekeeper.maintenance.partitions.policies import save_policy
    from queuekeeper.maintenance.partitions.policy import PartitionPolicy, spans
    from queuekeeper.postgres import migrate

    pairs_of_storage = [each.partition("=") for each in storage or []]
    with context.postgres_connection(postgres_url) as connection:
        migrate(connection)
        found = read_table(connection, name)
        policy = PartitionPolicy(
            table=found.name,
            step=step,
            ahead=ahead,
            retention=retention,
            far_future=far_future,
            lowest_needed_sql=lowest_needed_sql,
            archive=archive,
            quarantine_schema=quarantine_schema,
            quarantine_days=quarantine_days,
            blocking_detach=blocking_detach,
            storage={option: value for option, _, value in pairs_of_storage},
            lock_timeout_ms=lock_timeout_ms,
            deadline_s=deadline_s,
            at_most=at_most,
        )
        spans(policy, found.key)
        save_policy(connection, policy)

    def pretty(out: Console) -> None:
        out.print(record(f"Policy of {policy.table}", policy))
        out.print(f"\nNext: queuekeeper partitions plan {policy.table}", soft_wrap=True)

    show(policy, as_json=as_json, pretty=pretty)


@app.command()
def forget(name: TableName, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Forget a policy; the table stays as it is.

    Example: `queuekeeper partitions forget public.readings`
    """
    from queuekeeper.maintenance.partitions.policies import delete_policy

    with context.postgres_connection(postgres_url) as connection:
        delete_policy(connection, name)
    show(
        {"table": name, "forgotten": True},
        as_json=as_json,
        pretty=lambda out: out.print(f"{printable(name)} has no policy any more."),
    )


@app.command()
def status(name: OneTable = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Say how far partitions reach, and what is wrong.

    When inserts begin to fail, too.

    Exit code 1 when a table has less head-room than its policy asks for, a gap, or an interrupted detach.

    Example: `queuekeeper partitions status`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.partitions.coverage import coverage

    with context.postgres_connection(postgres_url) as connection:
        found, errors = _each(
            connection, name, lambda policy: coverage(connection, policy=policy, now_ms=system_clock())
        )

    def pretty(out: Console) -> None:
        for each in found:
            _coverage(out, each)

    show({"tables": found}, as_json=as_json, pretty=pretty)
    short = [each.table for each in found if not each.healthy]
    if short or errors:
        raise CheckFailed("; ".join([*(f"{each} needs maintenance" for each in short), *errors]))


def _wish() -> type[PartitionWish]:
    from queuekeeper.maintenance.partitions.model import PartitionWish

    return PartitionWish


@app.command(cls=JobCommand)
@takes(_wish, only=["override_consumers"])
def plan(
    name: OneTable = None,
    *,
    parameters: PartitionWish,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Show what would be created, retired and dropped.

    With the exact SQL, its locks, and who holds them now. Nothing is written.

    Example: `queuekeeper partitions plan public.readings`
    """
    with context.postgres_connection(postgres_url) as connection:
        purposes = ("creation", "retirement", "drop")
        plans, errors = _planned(connection, name, *purposes, override_consumers=parameters.override_consumers)
    _show_plans(plans, errors, as_json=as_json)


@app.command()
def create(
    name: OneTable = None,
    *,
    dry_run: context.DryRun = False,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Create the partitions that are missing.

    DEFAULT is drained and interrupted detaches are put right. Safe to repeat.

    Exit code 1 when a step is not done, 3 when a table has changed meanwhile: repeat it.

    Example: `queuekeeper partitions create --dry-run`
    """
    with context.postgres_connection(postgres_url) as connection:
        plans, errors = _planned(connection, name, "creation")
        _carry_out(connection, plans, errors, dry_run=dry_run, as_json=as_json)


@app.command(cls=JobCommand)
@takes(_wish, only=["override_consumers"])
def retire(
    name: OneTable = None,
    *,
    parameters: PartitionWish,
    dry_run: context.DryRun = False,
    postgres_url: context.PostgresUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Move what is beyond its retention to quarantine.

    It is detached first; `reattach` is the way back.

    Exit code 1 when a step is not done, 3 when a table has changed meanwhile: repeat it.

    Example: `queuekeeper partitions retire public.readings --dry-run`
    """
    with context.postgres_connection(postgres_url) as connection:
        plans, errors = _planned(connection, name, "retirement", override_consumers=parameters.override_consumers)
        question = "{steps} partitions of {bytes:,} bytes will leave their tables."
        if parameters.override_consumers:
            question += " Consumers still need some of them."
        _carry_out(
            connection, plans, errors, dry_run=dry_run, as_json=as_json, question=f"{question} Retire them?", yes=yes
        )


@app.command()
def drop(
    name: OneTable = None,
    *,
    dry_run: context.DryRun = False,
    postgres_url: context.PostgresUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Drop retired partitions whose days are up.

    Only those whose archive was verified. There is no undo.

    Example: `queuekeeper partitions drop --dry-run`
    """
    with context.postgres_connection(postgres_url) as connection:
        plans, errors = _planned(connection, name, "drop")
        question = "{steps} retired partitions of {bytes:,} bytes will be dropped for good. Drop them?"
        _carry_out(connection, plans, errors, dry_run=dry_run, as_json=as_json, question=question, yes=yes)


@app.command()
def retired(
    name: OneTable = None, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """List what was retired, and what became of it.

    Example: `queuekeeper partitions retired public.readings`
    """
    from queuekeeper.maintenance.partitions.policies import load_policy
    from queuekeeper.maintenance.partitions.retired import retired_partitions

    with context.postgres_connection(postgres_url) as connection:
        found = retired_partitions(connection, table=name)
        if name is not None and not found:
            # A table without a policy may have records, but not none of both.
            load_policy(connection, name)
    show({"retired": found}, as_json=as_json, pretty=lambda out: out.print(_retired(found)))


@app.command()
def reattach(
    retired_id: Annotated[int, typer.Argument(metavar="ID", help="Number that `partitions retired` shows.")],
    *,
    dry_run: context.DryRun = False,
    postgres_url: context.PostgresUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Put a retired partition back into its table.

    Retirement leaves it alone for its days of quarantine.

    Example: `queuekeeper partitions reattach 12`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.partitions.plan import plan_reattachment
    from queuekeeper.maintenance.partitions.policies import load_policy
    from queuekeeper.maintenance.partitions.retired import load_retired

    with context.postgres_connection(postgres_url) as connection:
        policy = load_policy(connection, load_retired(connection, retired_id).table)
        made = plan_reattachment(connection, policy=policy, retired_id=retired_id, now_ms=system_clock())
        question = "{steps} partition of {bytes:,} bytes will be part of its table again. Attach it?"
        _carry_out(connection, [made], [], dry_run=dry_run, as_json=as_json, question=question, yes=yes)


@app.command()
def restore(
    retired_id: Annotated[int, typer.Argument(metavar="ID", help="Number that `partitions retired` shows.")],
    *,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the archive, where it is not where its record says.")
    ] = None,
    postgres_url: context.PostgresUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Load a dropped partition from its archive.

    It comes into the quarantine schema; `reattach` comes after it.

    It holds exactly what was archived, or is not there. It can be repeated.

    Example: `queuekeeper partitions restore 12`
    """
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.partitions.restore import restore_partition

    with context.postgres_connection(postgres_url) as connection:
        report = restore_partition(
            connection, retired_id=retired_id, now_ms=system_clock(), path=folder, actor=context.person()
        )
    values = {
        "table": report.table,
        "rows": report.content.rows,
        "hash": report.content.rows_hash,
        "archive": report.path,
        "next": f"queuekeeper partitions reattach {retired_id}",
    }
    show(report, as_json=as_json, pretty=lambda out: out.print(pairs("Restored", values)))


# --- inside -------------------------------------------------------------------------------------------------------


def _each(
    connection: Connection, name: str | None, look: Callable[[PartitionPolicy], Found]
) -> tuple[list[Found], list[str]]:
    """Look at one table or at all; what is wrong with one does not stop the others."""
    from queuekeeper.maintenance.partitions.policies import load_policies, load_policy

    if name is not None:
        return [look(load_policy(connection, name))], []
    policies = load_policies(connection)
    if not policies:
        raise UsageError("no table has a policy: set one by `queuekeeper partitions set`")
    found, errors = [], []
    for policy in policies:
        try:
            found.append(look(policy))
        except ServerUnavailable:
            raise
        except QueuekeeperError as error:
            errors.append(f"{policy.table}: {error}")
    return found, errors


def _planned(
    connection: Connection, name: str | None, *purposes: str, override_consumers: bool = False
) -> tuple[list[PartitionPlan], list[str]]:
    """Plan for one table or for all, and say what is wrong with some."""
    from queuekeeper.clock import system_clock
    from queuekeeper.maintenance.partitions.model import Purpose
    from queuekeeper.maintenance.partitions.plan import plan_for

    now_ms = system_clock()
    found, errors = _each(
        connection,
        name,
        lambda policy: [
            plan_for(
                connection,
                policy=policy,
                purpose=Purpose(purpose),
                now_ms=now_ms,
                override_consumers=override_consumers,
            )
            for purpose in purposes
        ],
    )
    return [each for made in found for each in made], errors


def _carry_out(
    connection: Connection,
    plans: Sequence[PartitionPlan],
    errors: list[str],
    *,
    dry_run: bool,
    as_json: bool,
    question: str = "",
    yes: bool = False,
) -> None:
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.partitions.runs import carry_out, outcomes_table, save_run

    if dry_run:
        _show_plans(plans, errors, as_json=as_json)
        return
    runs = MaintenanceRuns(connection)
    saved = {each.table: save_run(runs, each) for each in plans if not each.empty}
    if question and saved:
        steps, size = sum(len(each.steps) for each in plans), sum(each.bytes for each in plans)
        words = question.format(steps=steps, bytes=size)
        context.confirm(words, yes=yes, as_json=as_json, note=note_on(runs, *saved.values()))
    reports: list[ApplyReport] = []
    for each in plans:
        try:
            # Also an empty plan is applied: that notes when maintenance last succeeded.
            run_id = saved.get(each.table, "")
            reports.append(carry_out(connection, each, run_id=run_id, actor=context.person(), say=say))
        except ServerUnavailable:
            raise
        except QueuekeeperError as error:
            errors.append(f"{each.table}: {error}")
    show(
        {"reports": [plain(each) | {"done": each.done} for each in reports]},
        as_json=as_json,
        pretty=lambda out: show_tables(out, [outcomes_table(each) for each in reports]),
    )
    undone = [
        f"{step.partition}: {step.words}"
        for report in reports
        for step in report.outcomes
        if step.state.value not in {"done", "already"}
    ]
    if undone or errors:
        only_stale = not errors and all(each.done or each.stale for each in reports)
        raise (StalePlan if only_stale else CheckFailed)("; ".join([*undone, *errors]))


def _coverage(out: Console, found: Coverage) -> None:
    fails = "never" if found.covered_until is None else None
    if found.inserts_fail_in_s is not None:
        fails = f"in {found.inserts_fail_in_s / 3_600:,.1f} hours"
    out.print(
        pairs(
            found.table,
            {
                "partitions": found.partitions,
                "bytes": found.bytes,
                "covered until": found.covered_until or "no end",
                "inserts fail": fails,
                "head-room": cell("met" if found.head_room_met else "too short", style="" if found.healthy else "red"),
                "quarantined": found.quarantined,
                "last maintenance": instant(found.observed_at_ms),
            },
        )
    )
    if found.findings:
        rows = [(each.kind, each.subject, each.words) for each in found.findings]
        out.print(table("Findings", ("kind", "where", "what"), rows))


def _show_plans(plans: Sequence[PartitionPlan], errors: Sequence[str], *, as_json: bool) -> None:
    from queuekeeper.maintenance.partitions.summary import plan_markdown

    def pretty(out: Console) -> None:
        for each in plans:
            for line in plan_markdown(each, shown=None).splitlines():
                if not line.startswith("```"):
                    out.print(printable(line.replace("**", "")), soft_wrap=True)
            out.print()

    facts = [plain(each) | {"empty": each.empty, "bytes": each.bytes} for each in plans]
    show({"plans": facts}, as_json=as_json, pretty=pretty)
    if errors:
        raise CheckFailed("; ".join(errors))


def _retired(found: Sequence[RetiredPartition]) -> Any:
    names = ("retired_id", "table", "partition_name", "lower", "upper", "state", "bytes")
    days = ("retired_at", "archived_at", "drop_after")
    rows = [
        [*(getattr(each, name) for name in names), *((at := getattr(each, day)) and f"{at:%Y-%m-%d}" for day in days)]
        for each in found
    ]
    return table("Retired partitions", [each.replace("_", " ") for each in (*names, *days)], rows)
