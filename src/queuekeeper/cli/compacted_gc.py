"""``queuekeeper compacted gc`` and what goes with it: collect, how far it is, take it back; what queues there are."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that --help answers at once
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from queuekeeper.cli import context, jobs
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import pairs, printable, record, show
from queuekeeper.cli.run_control import say
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.service.signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.console import Console

    from queuekeeper.jobs.parameters import Parameters

KIND = "compacted_queue_gc"
KeyPrefix = Annotated[str | None, typer.Option(help="Prefix of the Redis keys.")]


@takes(
    lambda: jobs.model_of(KIND),
    fixed={**jobs.ALONE, "max_jitter_s": 0},
    names={"client_filter": ["--clients"], "key_filter": ["--keys"]},
)
def gc(
    *,
    parameters: Parameters,
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

    if undo is not None and go_on is not None:
        raise UsageError("name a run to go on with, or one to take back, not both")
    if gc_interval is not None:
        interval_s = EcqSettings.parse({"gc_interval": gc_interval}).gc_interval_ms / 1_000
        if undo is not None or go_on is not None or not (yes or dry_run):
            raise UsageError("--gc-interval goes with --yes: nobody is there to be asked; --undo and --go-on are once")
    if undo is not None:
        jobs.undo(
            undo,
            kind=KIND,
            dry_run=dry_run,
            undo_directory=undo_directory,
            postgres_url=postgres_url,
            redis_url=redis_url,
            yes=yes,
            as_json=as_json,
        )
        return

    def collect() -> None:
        jobs.carry_out(
            KIND,
            parameters,
            dry_run=dry_run,
            go_on=go_on,
            report_directory=None,
            undo_directory=undo_directory,
            postgres_url=postgres_url,
            redis_url=redis_url,
            yes=yes,
            as_json=as_json,
        )

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

    with suppress(KeyboardInterrupt), stopped_by_signals(stop):
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
    from queuekeeper.maintenance.compacted.registry import rebuild_registry

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
    from queuekeeper.maintenance.compacted.registry import registry_status

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


COMMANDS: tuple[tuple[str, Callable[..., None]], ...] = (("status", status), ("gc", gc), ("gc-rebuild", gc_rebuild))
"""Commands that the group ``compacted`` takes in."""
