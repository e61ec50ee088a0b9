"""``queuekeeper compacted gc``, ``gc-rebuild`` and ``status``: collect compacted queues, and say what there is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Any

import typer

from queuekeeper.cli import compacted, jobs, runs
from queuekeeper.cli.command import PLANS, OnRedis, OnServers, command
from queuekeeper.cli.options import takes
from queuekeeper.cli.output import Shown, pairs, show_result
from queuekeeper.cli.run_control import say
from queuekeeper.compacted import EcqSettings
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.jobs.parameters import Parameters
from queuekeeper.jobs.shares import server_clock
from queuekeeper.maintenance.compacted.registry import rebuild_registry, registry_status
from queuekeeper.service.signals import stopped_by_signals

KIND = "compacted_queue_gc"

app = compacted.app


@command(app)
def status(call: OnRedis) -> Shown:
    """Say how many compacted queues there are.

    It also names the first and the last queue with messages, in the order of their names.

    Example: `queuekeeper compacted status`
    """
    found = registry_status(call.client, prefix=call.key_prefix)

    def pretty() -> Iterator[Any]:
        facts = {
            "queues": f"{found.queues:,}",
            "first with messages": found.first_client_id or "none",
            "last with messages": found.last_client_id or "none",
        }
        if not found.is_complete:
            facts["of all queues"] = "no, of those that were looked at"
        yield pairs("Compacted queues", facts)

    return Shown(found, pretty)


@command(
    app,
    also=PLANS,
    asks=takes(
        lambda: jobs.model_of(KIND),
        fixed={**jobs.ALONE, "max_jitter_s": 0},
        names={"client_filter": ["--clients"], "key_filter": ["--keys"]},
    ),
)
def gc(
    call: OnServers,
    *,
    parameters: Parameters,
    go_on: jobs.GoOn = None,
    undo: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    undo_directory: jobs.UndoDirectory = None,
    gc_interval: Annotated[str | None, typer.Option(metavar="DURATION")] = None,
) -> Shown | None:
    """Remove what retention no longer keeps, then look again.

    It asks before anything is removed. Exit code 1 when it was stopped or a queue cannot be collected; --go-on goes on.
    With --gc-interval, a collection that fails is reported, and the next one begins at its time.

    Example: `queuekeeper compacted gc --dry-run`

    :param undo: Bring back what this run has removed, and collect nothing.
    :param gc_interval: Collect now, and again whenever this time, such as 1h, has passed since a collection began;
        SIGTERM or Ctrl-C ends it. Needs --yes or --dry-run. Without it, collect once.
    """
    if undo is not None and go_on is not None:
        raise UsageError("name a run to go on with (--go-on), or one to undo (--undo), not both")
    if gc_interval is not None:
        interval_s = EcqSettings.parse({"gc_interval": gc_interval}).gc_interval_ms / 1_000
        if undo is not None or go_on is not None or not (call.yes or call.dry_run):
            raise UsageError(
                "--gc-interval collects again and again, and nobody can be asked: add --yes or --dry-run, and leave "
                "out --undo and --go-on"
            )
    if undo is not None:
        return runs.take_run_back(call, undo, kind=KIND, undo_directory=undo_directory)

    def collect(by: OnServers) -> Shown:
        return jobs.carry_out(by, KIND, parameters, go_on=go_on, undo_directory=undo_directory)

    if gc_interval is None:
        return collect(call)

    def collect_anew() -> None:
        with call.anew() as now:
            shown = collect(now)
        show_result(shown, as_json=call.as_json)

    _collect_again_and_again(collect_anew, interval_s=interval_s)
    return None


def _collect_again_and_again(collect: Callable[[], None], *, interval_s: float) -> None:
    """Collect now, and again each time the interval since the last beginning is over, until a signal."""
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


@command(app, "gc-rebuild", also=("dry_run",))
def gc_rebuild(call: OnRedis) -> Shown:
    """Register queues that the collector does not know.

    It goes through the names of all keys.

    Example: `queuekeeper compacted gc-rebuild --dry-run`
    """
    now_ms = server_clock(call.client)()
    return Shown(rebuild_registry(call.client, prefix=call.key_prefix, now_ms=now_ms, dry_run=call.dry_run), "Registry")


runs.add_aliases(app, KIND, {f"gc-{name}": name for name in runs.STEERED})
