"""``queuekeeper partitions``: policies, coverage, plans, and doing what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queuekeeper.cli import context, jobs
from queuekeeper.cli.command import CONFIRMS, PLANS, OnPostgres, command, group
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import (
    Columns,
    Shown,
    cell,
    copied,
    headed,
    instant,
    listing,
    pairs,
    printable,
    record,
    screen,
    told_tables,
)
from queuekeeper.cli.progress import followed
from queuekeeper.cli.run_control import note_on, say
from queuekeeper.clock import DAY_MS, system_clock
from queuekeeper.errors import QueuekeeperError, ServerUnavailable, StalePlan, UsageError
from queuekeeper.jobs.progress import Narrator
from queuekeeper.maintenance.partitions.catalog import read_table
from queuekeeper.maintenance.partitions.coverage import coverage
from queuekeeper.maintenance.partitions.manifest import archive_place
from queuekeeper.maintenance.partitions.model import (
    ApplyReport,
    Coverage,
    PartitionPlan,
    Purpose,
    RetiredPartition,
)
from queuekeeper.maintenance.partitions.plan import plan_for, plan_reattachment
from queuekeeper.maintenance.partitions.policies import (
    NO_POLICY,
    delete_policy,
    load_policies,
    load_policy,
    save_policy,
)
from queuekeeper.maintenance.partitions.policy import PartitionPolicy, PartitionRules, spans
from queuekeeper.maintenance.partitions.retired import load_retired, retired_partitions, without_archive
from queuekeeper.maintenance.partitions.runs import carry_out, outcomes_table, save_run
from queuekeeper.maintenance.partitions.summary import plan_markdown
from queuekeeper.maintenance.partitions.survey import of_others, refuse_others
from queuekeeper.maintenance.partitions.systems import SystemTable, systems_named, whole_name
from queuekeeper.maintenance.partitions.systems import recognise as recognised
from queuekeeper.maintenance.partitions.wishes import PartitionWish, RegisterWish
from queuekeeper.maintenance.queue_tables import known_policies
from queuekeeper.schema_migrations import migrate
from queuekeeper.wording import number_of, sentence

if TYPE_CHECKING:
    from queuekeeper.maintenance.partitions.archive import ArchiveReport
    from queuekeeper.maintenance.partitions.iceberg import RegisterReport

Found = TypeVar("Found")
Of = TypeVar("Of", bound="PartitionPolicy | PartitionPlan | RetiredPartition")

app = group()

FoundTable = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", help="One table; every table that is recognised if left out.")
]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name with its schema, as SQL writes it.")]
OneTable = Annotated[
    str | None, typer.Argument(metavar="[TABLE]", help="One table; every table that has a policy if left out.")
]


def _archive(text: str) -> Path:
    return archive_place(text, name="the option")


ArchiveFolder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        parser=_archive,
        help="Folder of the archive, or its URL in an object store. Needed when it was moved since it was written.",
    ),
]


NewArchives = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="FOLDER",
        parser=_archive,
        help="Folder of archives, or its URL in an object store. [default: QUEUEKEEPER_ARCHIVES_DIR, else archives "
        "below QUEUEKEEPER_HOME]",
    ),
]


@command(app, "set", asks=takes(lambda: PartitionRules))
def set_policy(call: OnPostgres, name: TableName, *, parameters: PartitionRules) -> Shown:
    """Set how a table is partitioned.

    The step may be changed at any time. Nothing is created yet.

    Example: `queuekeeper partitions set public.readings --step '1 day' --ahead '7 days' --retention '30 days'`
    """
    migrate(call.connection)
    found = read_table(call.connection, name)
    refuse_others(call.connection, found, of_others(call.connection, found))
    policy = PartitionPolicy(table=found.name, **asdict(parameters))
    spans(policy, found.key)
    save_policy(call.connection, policy)
    following = f"Next: queuekeeper partitions plan {quote(policy.table)}"
    return Shown(policy, lambda: [record(f"Policy of {policy.table}", policy), "", copied(following)])


@command(app, also=CONFIRMS)
def recognise(call: OnPostgres, name: FoundTable = None, *, set_policies: bool = False) -> Shown:
    """Recognise tables of other queue systems.

    Tables of pgmq, River, procrastinate, graphile-worker and pg-boss are recognised by their columns. It says who takes
    rows out of each, and prints the command that gives it the policy which ships for it. Nothing is written without
    `--set-policies`, and no row is touched with it. What pg_partman maintains is left to it.

    Example: `queuekeeper partitions recognise`

    :param set_policies: Set the policies that ship for tables which are partitioned already and have none; asks first.
    """
    known = known_policies(call.connection)
    found = recognised(call.connection, with_policy=[each.table for each in known])
    if name is not None:
        found = [each for each in found if each.table == whole_name(call.connection, name)]
        if not found:
            raise UsageError(
                f"{printable(name)} is no table of {systems_named()}: `queuekeeper partitions set TABLE` takes others"
            )
    given = [each for each in found if set_policies and each.sets_policy]
    if given:
        names = ", ".join(each.table for each in given)
        policies = number_of(len(given), "policy")
        call.confirm(f"{policies} will be set: {names}. Old partitions leave by them. Set them?")
        migrate(call.connection)
        for each in given:
            policy = each.policy()
            spans(policy, read_table(call.connection, each.table).key)
            save_policy(call.connection, policy)
    facts = {"tables": found, "set": [each.table for each in given]}
    return Shown(facts, lambda: _recognised(found, given))


ADOPT = """Partition a plain table while it is written to.

The table is copied into partitions behind a trigger that notes changes, both are compared until the end, and change
places under a lock of at most a second. The old table stays, and is the way back, until `--act commit` drops it. After
the exchange the table has a policy of the options given here; nothing is retired before the commit.

It plans first, with the exact SQL, and asks before anything changes. Exit code 1 when it was stopped; --go-on goes on.

Example: `queuekeeper partitions adopt public.readings --key at --step '1 day' --ahead '7 days' --disk-mib 10000`
"""
app.command("adopt", cls=JobCommand)(jobs.command_of("partition_adoption", ADOPT, argument="table", on=OnPostgres))


@command(app)
def forget(call: OnPostgres, name: TableName) -> Shown:
    """Forget a policy; the table stays as it is.

    Example: `queuekeeper partitions forget public.readings`
    """
    delete_policy(call.connection, name)
    return Shown({"table": name, "forgotten": True}, lambda: [f"{printable(name)} has no policy any more."])


@command(app)
def status(call: OnPostgres, name: OneTable = None) -> Shown:
    """Say how far partitions reach, and what is wrong.

    It also says when inserts begin to fail.

    Exit code 1 when a table has less head-room than its policy asks for, a gap, or an interrupted detach.

    Example: `queuekeeper partitions status`
    """
    found, errors = _each(call, name, lambda policy: coverage(call.connection, policy=policy, now_ms=system_clock()))
    wrong = [*(f"{each.table} needs maintenance" for each in found if not each.healthy), *errors]
    return Shown(
        {"tables": found}, lambda: [part for each in found for part in _coverage(each)], failed="; ".join(wrong) or None
    )


@command(app, asks=takes(lambda: PartitionWish, only=["override_consumers"]))
def plan(call: OnPostgres, name: OneTable = None, *, parameters: PartitionWish) -> Shown:
    """Show what would be created, retired and dropped.

    It shows the exact SQL, the locks that this takes, and who holds them now. Nothing is written.

    Example: `queuekeeper partitions plan public.readings`
    """
    purposes = ("creation", "retirement", "drop")
    return _plans(*_planned(call, name, *purposes, override_consumers=parameters.override_consumers))


@command(app, also=("dry_run",))
def create(call: OnPostgres, name: OneTable = None) -> Shown:
    """Create the partitions that are missing.

    DEFAULT is drained and interrupted detaches are put right. Safe to repeat.

    Exit code 1 when a step is not done, 3 when a table has changed meanwhile: repeat it.

    Example: `queuekeeper partitions create --dry-run`
    """
    return _carry_out(call, *_planned(call, name, "creation"))


@command(app, also=PLANS, asks=takes(lambda: PartitionWish, only=["override_consumers"]))
def retire(call: OnPostgres, name: OneTable = None, *, parameters: PartitionWish) -> Shown:
    """Move what is beyond its retention to quarantine.

    It is detached first; `reattach` is the way back.

    Exit code 1 when a step is not done, 3 when a table has changed meanwhile: repeat it.

    Example: `queuekeeper partitions retire public.readings --dry-run`
    """
    question = "{steps:partition} of {bytes:,} bytes will leave the table."
    if parameters.override_consumers:
        question += " Consumers still need some of them."
    planned = _planned(call, name, "retirement", override_consumers=parameters.override_consumers)
    return _carry_out(call, *planned, question=f"{question} Retire them?")


@command(app)
def archive(
    call: OnPostgres,
    name: OneTable = None,
    *,
    folder: NewArchives = None,
    spark_master: context.SparkMaster = None,
) -> Shown:
    """Write retired partitions to Parquet, and compare both.

    It takes those whose policy asks for an archive and that have none. It can be repeated.

    Exit code 1 when one is not archived.

    Example: `queuekeeper partitions archive public.readings`
    """
    waiting, errors = _each(call, name, lambda policy: without_archive(call.connection, policy))
    chosen = [record for records in waiting for record in records]
    place = folder or archive_place(context.settings().archives, name="QUEUEKEEPER_ARCHIVES_DIR")
    found: list[ArchiveReport] = []
    if chosen:
        address = context.postgres_address(call.postgres_url)
        narrator = Narrator(say, "archived", total=len(chosen), unit="partitions")
        with context.spark("queuekeeper partitions archive", spark_master, address) as spark, followed():
            from queuekeeper.maintenance.partitions.archive import archive_partition

            def act(record: RetiredPartition) -> ArchiveReport:
                narrator.at(len(found))
                return archive_partition(
                    spark,
                    postgres_url=address,
                    retired_id=record.retired_id,
                    directory=place,
                    now_ms=system_clock(),
                )

            found, failed = _without_the_broken(chosen, act)
            errors += failed
    columns = {"partition": "manifest.table", "rows": "manifest.content.rows", "bytes": "manifest.size_bytes"}
    columns |= {"archive": "path"}
    return Shown(
        {"archives": found},
        lambda: [listing("Archives", found, columns, nothing="Nothing is to be archived.")],
        failed="; ".join(errors) or None,
    )


@command(app, also=("dry_run",), asks=takes(lambda: RegisterWish))
def register(call: OnPostgres, name: OneTable = None, *, folder: NewArchives = None, parameters: RegisterWish) -> Shown:
    """Register archives in an Iceberg catalog.

    Any engine that knows Iceberg then reads them as one table; no file is written anew. Partitions that are back in
    their table leave it. The catalog is the one that pyiceberg's configuration calls queuekeeper, else tables in schema
    queuekeeper_iceberg of PostgreSQL. It can be repeated.

    Example: `queuekeeper partitions register public.readings --dry-run`
    """
    from queuekeeper.maintenance.partitions.iceberg import register as register_archives

    def act(policy: PartitionPolicy) -> RegisterReport:
        return register_archives(
            call.connection,
            postgres_url=context.postgres_address(call.postgres_url),
            table=policy.table,
            directory=folder or context.settings().archives,
            now_ms=system_clock(),
            kept_snapshots_ms=parameters.keep_snapshots_days * DAY_MS,
            dry_run=call.dry_run,
        )

    found, errors = _each(call, name, act)
    columns = headed("table", added=lambda each: len(each.added), removed=lambda each: len(each.removed))
    columns |= headed("files", "rows", "expired_snapshots", "metadata")
    return Shown(
        {"tables": found, "dry_run": call.dry_run},
        lambda: [listing(call.title("Registered"), found, columns)],
        failed="; ".join(errors) or None,
    )


@command(app)
def query(
    call: OnPostgres,
    name: TableName,
    text: Annotated[str, typer.Argument(metavar="SQL", help="Query in the SQL of DuckDB, which names the table.")],
    *,
    lower: Annotated[str | None, typer.Option("--from", metavar="KEY")] = None,
    upper: Annotated[str | None, typer.Option("--to", metavar="KEY")] = None,
    rows: Annotated[int, typer.Option(min=1)] = 1_000,
    folder: NewArchives = None,
) -> Shown:
    """Query a table and its registered archives as one.

    The rows of the keys asked for are copied into a temporary folder first, so name a range where a table is large.

    Example: `queuekeeper partitions query public.readings 'SELECT count(*) FROM readings' --from 2026-01-01`

    :param lower: Least key to read, as SQL writes it. [default: the first one]
    :param upper: First key not to read. [default: none, to the last one]
    :param rows: Largest number of rows to show.
    """
    from queuekeeper.maintenance.partitions.query import query as answer

    with screen(stderr=True).status(f"Reading {printable(name)} and its archives"):
        found = answer(
            postgres_url=context.postgres_address(call.postgres_url),
            table=name,
            text=text,
            directory=folder or context.settings().archives,
            lower=lower,
            upper=upper,
            limit=rows,
        )
    read = f"{found.hot_rows:,} rows of PostgreSQL and {found.cold_rows:,} of archives were read"
    columns: Columns = {each: _at(place) for place, each in enumerate(found.columns)}
    return Shown(
        found,
        lambda: [listing("Answer", found.rows, columns, nothing="The query has no rows.")],
        then=f"{read}; --rows shows more" if found.is_cut else read,
    )


def _at(place: int) -> Callable[[Any], Any]:
    return lambda row: row[place]


@command(app, also=PLANS)
def drop(call: OnPostgres, name: OneTable = None) -> Shown:
    """Drop retired partitions whose time in quarantine is over.

    Only those whose archive was verified. There is no undo.

    Example: `queuekeeper partitions drop --dry-run`
    """
    question = "{steps:retired partition} of {bytes:,} bytes will be dropped for good. Drop them?"
    return _carry_out(call, *_planned(call, name, "drop"), question=question)


@command(app)
def retired(call: OnPostgres, name: OneTable = None) -> Shown:
    """List what was retired, and what became of it.

    Example: `queuekeeper partitions retired public.readings`
    """
    found = retired_partitions(call.connection, table=name)
    if name is not None and not found:
        # A table without a policy may have records, but not none of both.
        load_policy(call.connection, name)
    return Shown({"retired": found}, lambda: [listing("Retired partitions", found, _RETIRED)])


def _day(name: str) -> Callable[[Any], str | None]:
    return lambda each: None if (at := getattr(each, name)) is None else f"{at:%Y-%m-%d}"


_RETIRED = headed("retired_id", "table", "partition_name", "lower", "upper", "state", "bytes") | {
    name.replace("_", " "): _day(name) for name in ("retired_at", "archived_at", "drop_after")
}


@command(app, also=PLANS)
def reattach(call: OnPostgres, retired_id: Annotated[int, typer.Argument(metavar="ID")]) -> Shown:
    """Put a retired partition back into its table.

    Retirement does not take it again before the days of quarantine of its policy are over.

    Example: `queuekeeper partitions reattach 12`

    :param retired_id: Number that `partitions retired` shows.
    """
    policy = load_policy(call.connection, load_retired(call.connection, retired_id).table)
    made = plan_reattachment(call.connection, policy=policy, retired_id=retired_id, now_ms=system_clock())
    question = "{steps:partition} of {bytes:,} bytes will be part of its table again. Attach it?"
    return _carry_out(call, [made], [], question=question)


@command(app)
def restore(
    call: OnPostgres,
    retired_id: Annotated[int, typer.Argument(metavar="ID")],
    *,
    folder: ArchiveFolder = None,
    from_catalog: bool = False,
) -> Shown:
    """Load a dropped partition from its archive.

    It comes into the quarantine schema; `reattach` comes after it.

    The new table holds exactly what was archived; after an error there is none. The command can be repeated.

    Example: `queuekeeper partitions restore 12`

    :param retired_id: Number that `partitions retired` shows.
    :param from_catalog: Read the rows from the Iceberg catalog; --folder then names the folder of all archives. For
        archives whose own files are gone, since somebody has rewritten the Iceberg table.
    """
    from queuekeeper.maintenance.partitions.restore import restore_partition

    source = None
    if from_catalog:
        from queuekeeper.maintenance.partitions.iceberg import rows_of_catalog

        source = partial(
            rows_of_catalog,
            call.connection,
            postgres_url=context.postgres_address(call.postgres_url),
            directory=folder or context.settings().archives,
        )
    with screen(stderr=True).status(f"Restoring partition {retired_id} from its archive"):
        report = restore_partition(
            call.connection,
            retired_id=retired_id,
            now_ms=system_clock(),
            path=folder,
            source=source,
            actor=context.person(),
        )
    values = {
        "table": report.table,
        "rows": report.content.rows,
        "hash": report.content.rows_hash,
        "archive": report.path,
        "next": f"queuekeeper partitions reattach {retired_id}",
    }
    return Shown(report, lambda: [pairs("Restored", values)])


# --- inside -------------------------------------------------------------------------------------------------------


def _each(
    call: OnPostgres, name: str | None, look: Callable[[PartitionPolicy], Found]
) -> tuple[list[Found], list[str]]:
    """Look at one table or at all; what is wrong with one does not stop the others."""
    if name is not None:
        return [look(load_policy(call.connection, name))], []
    policies = load_policies(call.connection)
    if not policies:
        raise UsageError(NO_POLICY)
    return _without_the_broken(policies, look)


def _without_the_broken(items: Sequence[Of], act: Callable[[Of], Found]) -> tuple[list[Found], list[str]]:
    """Return what came of each table, and what is wrong with those where nothing did; a lost server ends it all."""
    found, errors = [], []
    for each in items:
        try:
            found.append(act(each))
        except ServerUnavailable:
            raise
        except QueuekeeperError as error:
            errors.append(f"{each.table}: {error}")
    return found, errors


def _planned(
    call: OnPostgres, name: str | None, *purposes: str, override_consumers: bool = False
) -> tuple[list[PartitionPlan], list[str]]:
    """Plan for one table or for all, and say what is wrong with some."""
    given: dict[str, Any] = {"now_ms": system_clock(), "override_consumers": override_consumers}

    def plans(policy: PartitionPolicy) -> list[PartitionPlan]:
        return [plan_for(call.connection, policy=policy, purpose=Purpose(each), **given) for each in purposes]

    found, errors = _each(call, name, plans)
    return [each for made in found for each in made], errors


def _carry_out(call: OnPostgres, plans: Sequence[PartitionPlan], errors: Sequence[str], *, question: str = "") -> Shown:
    if call.dry_run:
        return _plans(plans, errors)
    runs = call.runs
    saved = {each.table: save_run(runs, each) for each in plans if not each.empty}
    if question and saved:
        steps, size = sum(len(each.steps) for each in plans), sum(each.bytes for each in plans)
        call.confirm(sentence(question, steps=steps, bytes=size), note=note_on(runs, *saved.values()))

    def apply(each: PartitionPlan) -> ApplyReport:
        # Also an empty plan is applied: that notes when maintenance last succeeded.
        run_id = saved.get(each.table, "")
        return carry_out(call.connection, each, run_id=run_id, actor=context.person(), say=say)

    with followed():
        reports, failed = _without_the_broken(plans, apply)
    undone = [
        f"{step.partition}: {step.words}"
        for report in reports
        for step in report.outcomes
        if step.state.value not in {"done", "already"}
    ]
    wrong = "; ".join([*undone, *errors, *failed])
    only_stale = not errors and not failed and all(each.done or each.stale for each in reports)
    return Shown(
        {"reports": reports},
        lambda: told_tables(outcomes_table(each) for each in reports),
        failed=StalePlan(wrong) if wrong and only_stale else wrong or None,
    )


def _recognised(found: Sequence[SystemTable], given: Sequence[SystemTable]) -> Iterator[Any]:
    columns = headed("table", "system", "version", "form", "holds", "care")
    yield listing("Tables of other systems", found, columns, nothing=f"There is no table of {systems_named()}.")
    for each in found:
        yield ""
        yield f"{printable(each.table)}: {each.words}."
        if each in given:
            yield copied(f"Its policy is set. Next: queuekeeper partitions plan {quote(each.table)}")
        elif each.command:
            yield copied(each.command)


def _coverage(found: Coverage) -> Iterator[Any]:
    fails = "never" if found.covered_until is None else None
    if found.inserts_fail_in_s is not None:
        fails = f"in {found.inserts_fail_in_s / 3_600:,.1f} hours"
    facts = {
        "partitions": found.partitions,
        "bytes": found.bytes,
        "covered until": found.covered_until or "no end",
        "inserts fail": fails,
        "head-room": cell("met" if found.head_room_met else "too short", style="" if found.healthy else "red"),
        "quarantined": found.quarantined,
        "last maintenance": instant(found.observed_at_ms),
    }
    yield pairs(found.table, facts)
    if found.findings:
        columns: Columns = {"kind": lambda each: each.kind.replace("_", " "), "where": "subject", "what": "words"}
        yield listing("Findings", found.findings, {**columns, "mended by": "remedy"})


def _plans(plans: Sequence[PartitionPlan], errors: Sequence[str]) -> Shown:
    def pretty() -> Iterator[Any]:
        for each in plans:
            # Statements stay on their lines, to be copied.
            for at, block in enumerate(plan_markdown(each, shown=None).split("```")):
                lines = block.removeprefix("sql").replace("**", "").splitlines()
                yield from (copied(line) if at % 2 else printable(line) for line in lines if line or not at % 2)
            yield ""

    return Shown({"plans": plans}, pretty, failed="; ".join(errors) or None)
