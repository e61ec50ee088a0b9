"""``queuekeeper repair``: mend sessions by one remedy: plan, ask, do, take back; what a remedy does is its own."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import JobCommand, takes
from queuekeeper.cli.output import pairs, plain, printable, record, screen, show, table
from queuekeeper.cli.run_control import agree, take_back
from queuekeeper.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.remedies import RemedyPlan, RemedyReport
    from queuekeeper.maintenance.remedies.registry import RepairOptions

NEWEST = "latest"
"""Stands for the newest quality run."""

app = typer.Typer(no_args_is_help=True, help="Mend one kind of fault in sessions that Redis holds.")

_HELP = {
    "repair_counter": "Move the last packet id forward to that of the newest message. There is no undo.",
    "repair_ttl": "Give messages the end that their own time and expiry say; no life is made longer.",
    "reorder_from_source": "Put messages back into the order of PostgreSQL's serials.",
    "unlink_orphans": "Set records aside that no reference names.",
    "remove_duplicates": "Set messages aside that repeat an earlier one; the oldest stays.",
    "rekey_clients": "Move sessions of ids that begin with } or % from an earlier build's keys. There is no undo.",
    "trim_dead_first": "Bring queues down to the limit, dead references first. There is no undo.",
    "quarantine_messages": "Set records aside that nobody can read, or that belong elsewhere.",
    "replay_quarantined": "Bring records back from the quarantine that can be read now.",
}


@app.callback()
def _group() -> None:
    """Mend one kind of fault in sessions that Redis holds.

    Each command plans first, says how it can be undone, and asks. It treats the sessions named, or those that failed
    the remedy's check in a quality run.
    """


def _options() -> type[RepairOptions]:
    from queuekeeper.maintenance.remedies.registry import RepairOptions

    return RepairOptions


def _command(remedy: str) -> Callable[..., None]:
    def repair(
        client_ids: Annotated[
            list[str] | None, typer.Argument(metavar="CLIENT", help="The MQTT client ids of the sessions.")
        ] = None,
        *,
        parameters: RepairOptions,
        undo_file: Annotated[
            Path | None, typer.Option(help="Where to note what is changed.", show_default="in QUEUEKEEPER_UNDO_DIR")
        ] = None,
        dry_run: context.DryRun = False,
        yes: context.Yes = False,
        postgres_url: context.PostgresUrl = None,
        redis_url: context.RedisUrl = None,
        as_json: context.AsJson = False,
    ) -> None:
        _repair(
            remedy,
            client_ids=client_ids or [],
            asked=parameters,
            undo_file=undo_file,
            dry_run=dry_run,
            yes=yes,
            postgres_url=postgres_url,
            redis_url=redis_url,
            as_json=as_json,
        )

    repair.__doc__ = f"{_HELP[remedy]}\n\nExample: `queuekeeper repair {remedy} meter-17 --dry-run`"
    return takes(_options, names={"quality_run_id": ["--quality-run"], "client_hashes": ["--client-hash"]})(repair)


for _name, _words in _HELP.items():
    app.command(_name, cls=JobCommand, short_help=_words)(_command(_name))


def _repair(
    remedy: str,
    *,
    client_ids: list[str],
    asked: RepairOptions,
    undo_file: Path | None,
    dry_run: bool,
    yes: bool,
    postgres_url: str | None,
    redis_url: str | None,
    as_json: bool,
) -> None:
    from queuekeeper.clock import Pace, system_clock
    from queuekeeper.identity import hash_key
    from queuekeeper.jobs.parameters import describe
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.remedies import RemedyParameters, plan_remedy
    from queuekeeper.maintenance.remedies.queues import Selection, named_queues
    from queuekeeper.maintenance.remedies.records import apply_recorded, record_plan
    from queuekeeper.maintenance.remedies.registry import remedy_named
    from queuekeeper.quality.failed_queues import failed_queues

    given = {name: getattr(asked, name) for name in asked.model_fields_set}
    by_quality = "quality_run_id" in given
    if bool(client_ids) == by_quality:
        raise UsageError("name either client ids or --quality-run: whose sessions are to be looked at?")
    settings = context.settings()
    options: dict[str, Any] = {name: value for name, value in given.items() if name in describe(RemedyParameters)}
    with ExitStack() as opened:
        # A dry run on sessions that are named needs Redis only.
        wants_postgres = not dry_run or by_quality or remedy_named(remedy).reads_source
        connection = opened.enter_context(context.postgres_connection(postgres_url)) if wants_postgres else None
        client = opened.enter_context(context.redis_connection(redis_url))
        if not by_quality:
            queues = tuple(named_queues(client_ids, key=hash_key(settings)))
            selection = Selection(client_hashes=tuple(queue.client_hash for queue in queues))
        else:
            assert connection is not None
            selection = Selection(
                quality_run_id="" if asked.quality_run_id == NEWEST else asked.quality_run_id,
                cohorts=asked.cohorts,
                client_hashes=asked.client_hashes,
            )
            judged = failed_queues(connection, remedy=remedy, selection=selection)
            queues = judged.queues
            options = {"limit": judged.limit, "default_ttl_s": judged.default_ttl_s} | options
        parameters = RemedyParameters(**options)
        with screen(stderr=True).status(f"Looking at {len(queues):,} sessions"):
            plan = plan_remedy(
                client,
                remedy=remedy,
                queues=queues,
                parameters=parameters,
                source=connection,
                pace=Pace(lambda: asked.max_operations_per_s),
            )
        if dry_run or plan.is_empty:
            show(plan.as_record(), as_json=as_json, pretty=lambda out: _show_plan(out, plan))
            return
        if not as_json:
            _show_plan(screen(stderr=True), plan)
        assert connection is not None
        runs = MaintenanceRuns(connection)
        run = record_plan(
            runs, plan, selection=selection, now_ms=system_clock(), operations_per_s=asked.max_operations_per_s
        )
        question = f"{sum(plan.effects.values()):,} changes will be made in Redis."
        agree(runs, run.maintenance_run_id, question, yes=yes, as_json=as_json)
        report = apply_recorded(
            client,
            runs=runs,
            run_id=run.maintenance_run_id,
            queues=queues,
            undo_directory=settings.undo,
            undo_file=undo_file,
            source=connection,
            say=_say(as_json=as_json),
        )
    facts = {"maintenance_run_id": run.maintenance_run_id, **asdict(report)}
    show(facts, as_json=as_json, pretty=lambda out: _show_report(out, run.maintenance_run_id, report))


@app.command(cls=JobCommand, short_help="Take a repair back by its undo file.")
@takes(_options, only=["max_operations_per_s"])
def undo(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Undo file that a repair has written.")],
    *,
    parameters: RepairOptions,
    dry_run: context.DryRun = False,
    yes: context.Yes = False,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Take a repair back, where nobody has used the place since.

    Example: `queuekeeper repair undo 3f2a9c0d11e47b58.repair.undo.jsonl --dry-run`
    """
    from queuekeeper.clock import Pace
    from queuekeeper.identity import hash_key
    from queuekeeper.jobs.undo import read_undo_file
    from queuekeeper.maintenance.remedies import undo_remedy

    key = hash_key(context.settings())
    header, _ = read_undo_file(file)
    with ExitStack() as opened:
        # Only what is done has to be put on record.
        connection = None if dry_run else opened.enter_context(context.postgres_connection(postgres_url))
        client = opened.enter_context(context.redis_connection(redis_url))
        report = take_back(
            lambda only_count: undo_remedy(
                client, path=file, key=key, dry_run=only_count, pace=Pace(lambda: parameters.max_operations_per_s)
            ),
            lambda counted: f"Up to {counted.restored:,} changes of {counted.remedy} will be taken back.",
            subject=str(header.get("run_id", file.name)),
            kind=str(header.get("kind")),
            connection=connection,
            dry_run=dry_run,
            yes=yes,
            as_json=as_json,
        )

    def pretty(out: Console) -> None:
        out.print(record("Dry run" if dry_run else "Undo", report))
        if report.left:
            out.print(table("Left as they are", ("reason", "changes"), report.left.items()))

    show(report, as_json=as_json, pretty=pretty)


def _say(*, as_json: bool) -> Callable[[str], None]:
    def say(text: str) -> None:
        if not as_json:
            screen(stderr=True).print(f"{time.strftime('%H:%M:%S')} {printable(text)}")

    return say


def _show_plan(out: Console, plan: RemedyPlan) -> None:
    facts: dict[str, Any] = {
        "remedy": plan.remedy,
        "sessions looked at": plan.looked_at,
        "sessions to mend": sum(bool(queue.effects) for queue in plan.queues),
        "undo": plan.undo,
    }
    out.print(pairs("Plan", facts))
    if plan.effects:
        out.print(table("Changes", ("what", "number"), plan.effects.items()))
        names = list(dict.fromkeys(name for example in plan.examples for name in example))
        rows = [[_text(example.get(name)) for name in names] for example in plan.examples]
        out.print(table("Some of them", [name.replace("_", " ") for name in names], rows))
    else:
        out.print("\nThere is nothing to do.")
    if plan.refusals:
        out.print(table("Sessions that cannot be treated", ("reason", "sessions"), plan.refusals.items()))


def _show_report(out: Console, run_id: str, report: RemedyReport) -> None:
    facts = {"run": run_id, "sessions treated": report.queues, "changed meanwhile": report.changed}
    facts |= {"not in the plan": report.not_planned, "seconds": report.seconds, "undo file": report.undo_file or None}
    out.print(pairs("Done", facts))
    out.print(table("Changes", ("what", "number"), report.done.items()))
    if report.refusals:
        out.print(table("Sessions that could not be treated", ("reason", "sessions"), report.refusals.items()))


def _text(value: Any) -> Any:
    return None if value is None else str(plain(value))
