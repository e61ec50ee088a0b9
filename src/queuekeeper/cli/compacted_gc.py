"""``queuekeeper compacted gc`` and what goes with it: collect, how far it is, take it back; what queues there are."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import cell, instant, pairs, printable, record, show, table
from queuekeeper.cli.run_control import Rate, RunId, RunIdOrNewest, RunKind, agree, say, show_status, take_back
from queuekeeper.errors import CheckFailed, QueuekeeperError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.maintenance.compacted_gc_model import CollectionOutcome, CollectionParameters
    from queuekeeper.postgres import Connection
    from queuekeeper.redis_client import RedisClient

KeyPrefix = Annotated[str | None, typer.Option(help="Prefix of the Redis keys.")]


def _parameters() -> type[CollectionParameters]:
    from queuekeeper.maintenance.compacted_gc_model import CollectionParameters

    return CollectionParameters


@takes(
    _parameters,
    fixed={"shares": 1, "max_jitter_s": 0},
    names={"client_filter": ["--clients"], "key_filter": ["--keys"]},
)
def gc(
    *,
    parameters: CollectionParameters,
    dry_run: context.DryRun = False,
    go_on: Annotated[
        str | None, typer.Option("--go-on", metavar="RUN", help="Go on with a run that was stopped or killed.")
    ] = None,
    undo: Annotated[
        str | None, typer.Option("--undo", metavar="RUN", help="Bring back what a run has removed, instead.")
    ] = None,
    undo_directory: Annotated[
        Path | None, typer.Option("--undo-directory", help="Folder of the undo files; else QUEUEKEEPER_UNDO_DIR.")
    ] = None,
    gc_interval: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Collect now and again so long after, such as 1h, until SIGTERM or Ctrl-C. With --yes only.",
        ),
    ] = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    yes: context.Yes = False,
    as_json: context.AsJson = False,
) -> None:
    """Collect what retention lets go, then look again.

    Asks before anything goes. Exit code 1 when it was stopped or a queue cannot be collected; --go-on goes on. With
    --gc-interval, what goes wrong is said, and it tries again when it is time to.

    Example: `queuekeeper compacted gc --dry-run`
    """
    from queuekeeper.compacted.settings import EcqSettings
    from queuekeeper.identity import client_hash, hash_key
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.compacted_gc import (
        collect_share,
        load_collection_plan,
        plan_collection,
        report_collection,
        save_collection_plan,
    )
    from queuekeeper.postgres import migrate

    if undo is not None and go_on is not None:
        raise UsageError("name a run to go on with, or one to take back, not both")
    if gc_interval is not None:
        interval_s = EcqSettings.parse({"gc_interval": gc_interval}).gc_interval_ms / 1_000
        if undo is not None or go_on is not None or not (yes or dry_run):
            raise UsageError("--gc-interval goes with --yes: nobody is there to be asked; --undo and --go-on are once")
    settings = context.settings()
    directory = undo_directory or settings.undo

    def collect() -> None:
        with context.postgres_connection(postgres_url) as connection, context.redis_connection(redis_url) as client:
            migrate(connection)
            runs = MaintenanceRuns(connection)
            if undo is not None:
                _take_back(connection, client, undo, directory, dry_run=dry_run, yes=yes, as_json=as_json)
                return
            key = hash_key(settings)
            if go_on is None:
                made = plan_collection(
                    client,
                    parameters=parameters,
                    name_client=lambda client_id: client_hash(client_id, key=key),
                    say=say,
                )
                run_id = save_collection_plan(runs, made).maintenance_run_id
            else:
                run_id, made = go_on, load_collection_plan(runs, go_on)
            if not dry_run:
                if made.counts.messages:
                    agree(
                        runs,
                        run_id,
                        _question(run_id, made.parameters, made.counts.messages),
                        yes=yes,
                        as_json=as_json,
                    )
                for share in made.parameters.share_names():
                    collect_share(client, runs=runs, run_id=run_id, share=share, undo_directory=directory, say=say)
            outcome = report_collection(client, runs=runs, run_id=run_id, dry_run=dry_run, say=say)
        _show_outcome(outcome, as_json=as_json)

    if gc_interval is None:
        collect()
    else:
        _collect_again_and_again(collect, interval_s=interval_s)


def _collect_again_and_again(collect: Callable[[], None], *, interval_s: float) -> None:
    """Collect now, and whenever the time is over since the last beginning, until a signal."""
    ended = threading.Event()
    at_work = False

    def stop() -> None:
        ended.set()
        if at_work:
            # As if it were killed, which every step allows for, but that it gives up what it holds.
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), context.until_signal(stop):
        while not ended.is_set():
            begun_s = time.monotonic()
            at_work = True
            try:
                collect()
            except QueuekeeperError as error:
                # A server that is away may be back by then; nobody would miss a collector that has ended.
                say(f"not collected, and tried again when it is time to: {error}")
            finally:
                at_work = False
            ended.wait(max(0.0, begun_s + interval_s - time.monotonic()))


def _question(run_id: str, parameters: CollectionParameters, messages: int) -> str:
    way_back = f"`compacted gc --undo {run_id}` brings them back" if parameters.keep_values else "they cannot come back"
    return f"{messages:,} messages will be removed; {way_back}. Collect?"


def _show_outcome(outcome: CollectionOutcome, *, as_json: bool) -> None:
    from queuekeeper.maintenance.compacted_gc_report import count_rows, rule_words, verdict

    def pretty(out: Console) -> None:
        tone = "yellow" if outcome.dry_run else "green" if not outcome.open_shares else "red"
        out.print(cell(verdict(outcome), style=f"bold {tone}"))
        columns = [dict(count_rows(outcome.plan.counts))]
        if outcome.left is not None:
            columns += [dict(count_rows(outcome.counts)), dict(count_rows(outcome.left))]
        out.print(
            table(
                f"Collection {outcome.maintenance_run_id}",
                ("", "planned", "done", "second look")[: len(columns) + 1],
                [(name, *(each[name] for each in columns)) for name in columns[0]],
            )
        )
        out.print(
            pairs(
                "Rules",
                {
                    "what goes": rule_words(outcome.plan.parameters),
                    "as of": instant(outcome.plan.as_of_ms),
                    "queues in the registry": outcome.plan.registered,
                    "registry last finished": instant(outcome.finished_ms) or "never",
                },
            )
        )

    show(
        asdict(outcome) | {"clean": outcome.clean, "moved_on": outcome.moved_on, "verdict": verdict(outcome)},
        as_json=as_json,
        pretty=pretty,
    )
    if outcome.open_shares:
        raise CheckFailed(f"not done: `queuekeeper compacted gc --go-on {outcome.maintenance_run_id}` goes on")
    if outcome.broken_queues:
        raise CheckFailed(f"{verdict(outcome)}: `queuekeeper quality run --store compacted` names them")


def _take_back(
    connection: Connection,
    client: RedisClient,
    run_id: str,
    directory: Path,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from queuekeeper.jobs.store import MaintenanceRuns
    from queuekeeper.maintenance.compacted_gc import load_collection_plan
    from queuekeeper.maintenance.compacted_gc_undo import undo_collection

    prefix = load_collection_plan(MaintenanceRuns(connection), run_id).parameters.key_prefix
    found = take_back(
        lambda only_count: undo_collection(
            client, run_id=run_id, key_prefix=prefix, directory=directory, dry_run=only_count
        ),
        lambda counted: (
            f"{counted.restored:,} messages will be put back whose keys have no value now. Take run {run_id} back?"
        ),
        subject=run_id,
        kind=_kind().kind,
        connection=None if dry_run else connection,
        yes=yes,
        as_json=as_json,
    )
    show(found, as_json=as_json, pretty=lambda out: out.print(record("Undo", found)))


def gc_status(
    run_id: RunIdOrNewest = None,
    *,
    key_prefix: KeyPrefix = None,
    postgres_url: context.PostgresUrl = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Say how far a collection is.

    And when the whole registry was last finished.

    Example: `queuekeeper compacted gc-status`
    """
    from queuekeeper.maintenance.compacted_registry import Registry

    prefix = context.settings().key_prefix if key_prefix is None else key_prefix
    with context.open_maintenance_runs(postgres_url) as runs, context.redis_connection(redis_url) as client:
        finished_ms = Registry(client, prefix).finished_ms()
        run = runs.load(_kind().chosen(runs, run_id))
        progress = runs.progress(run.maintenance_run_id)
    show_status(
        run,
        progress,
        title="Collection",
        heads=("share", "part", "queues", "messages", "done"),
        row=lambda each: (each.shard, each.cursor, each.scanned, each.removed, each.done),
        facts={"finished_ms": finished_ms},
        notes={"registry last finished": instant(finished_ms) or "never"},
        as_json=as_json,
    )


def gc_pause(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a running collection wait. It notices within seconds.

    Example: `queuekeeper compacted gc-pause 0123456789abcdef`
    """
    _kind().set_paused(run_id, True, postgres_url, as_json)


def gc_resume(run_id: RunId, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False) -> None:
    """Let a paused collection go on.

    Example: `queuekeeper compacted gc-resume 0123456789abcdef`
    """
    _kind().set_paused(run_id, False, postgres_url, as_json)


def gc_throttle(
    run_id: RunId, rate: Rate, *, postgres_url: context.PostgresUrl = None, as_json: context.AsJson = False
) -> None:
    """Slow a collection down or let it go. A running one follows within seconds.

    Example: `queuekeeper compacted gc-throttle 0123456789abcdef 5000`
    """
    _kind().set_throttle(run_id, rate, postgres_url, as_json)


def gc_rebuild(
    *,
    dry_run: context.DryRun = False,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Register queues that the collector does not know.

    The names of all keys are looked through.

    Example: `queuekeeper compacted gc-rebuild --dry-run`
    """
    from queuekeeper.jobs.shares import server_clock
    from queuekeeper.maintenance.compacted_registry import rebuild_registry

    prefix = context.settings().key_prefix if key_prefix is None else key_prefix
    with context.redis_connection(redis_url) as client:
        report = rebuild_registry(client, prefix=prefix, now_ms=server_clock(client)(), dry_run=dry_run)
    show(report, as_json=as_json, pretty=lambda out: out.print(record("Registry", report)))


def status(
    *,
    key_prefix: KeyPrefix = None,
    redis_url: context.RedisUrl = None,
    as_json: context.AsJson = False,
) -> None:
    """Say how many compacted queues there are.

    And which is the first and the last by name that has messages.

    Example: `queuekeeper compacted status`
    """
    from queuekeeper.maintenance.compacted_registry import registry_status

    prefix = context.settings().key_prefix if key_prefix is None else key_prefix
    with context.redis_connection(redis_url) as client:
        found = registry_status(client, prefix=prefix)

    def pretty(out: Console) -> None:
        facts = {
            "queues": f"{found.queues:,}",
            "first with messages": printable(found.first_client_id or "none"),
            "last with messages": printable(found.last_client_id or "none"),
        }
        if not found.is_complete:
            facts["of all queues"] = "no, of those that were looked at"
        out.print(pairs("Compacted queues", facts))

    show(found, as_json=as_json, pretty=pretty)


COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (
    ("status", status),
    ("gc", gc),
    ("gc-status", gc_status),
    ("gc-pause", gc_pause),
    ("gc-resume", gc_resume),
    ("gc-throttle", gc_throttle),
    ("gc-rebuild", gc_rebuild),
)
"""Commands that the group ``compacted`` takes in."""


def _kind() -> RunKind:
    from queuekeeper.maintenance.compacted_gc_model import KIND

    return RunKind(kind=KIND, noun="collection", command="compacted gc")
