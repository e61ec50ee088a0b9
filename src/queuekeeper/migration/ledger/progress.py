"""Prints the progress of a step about once a second and records its throughput."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from queuekeeper.clock import Clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.progress import Rate, line
from queuekeeper.migration.ledger.ledger import MigrationLedger, Step
from queuekeeper.postgres import connect


def warn(warnings: Iterable[str]) -> None:
    """Print warnings before the work begins."""
    for warning in warnings:
        print(f"warning: {warning}", flush=True)


@contextmanager
def reported(
    postgres_url: str, *, plan_id: str, step: Step, parts: Sequence[str], total: int, clock: Clock
) -> Iterator[None]:
    """Print progress and record throughput while the block runs.

    :param parts: parts that this run works on; other runs of the plan may work on the rest.
    :param total: messages to do in these parts.
    """
    stop = threading.Event()

    def watch() -> None:
        with connect(postgres_url, autocommit=True) as connection:
            ledger = MigrationLedger(connection)
            rate, shown = Rate(), -1
            while True:
                stopped = stop.wait(1.0)
                done = min(total, ledger.progress(plan_id, step, parts=parts).done)
                at_ms = clock()
                per_s = rate.at(at_ms / 1_000, done)
                if done != shown:
                    overall = ledger.progress(plan_id, step).done
                    ledger.record_throughput(plan_id=plan_id, step=step, at_ms=at_ms, done=overall)
                    print(line(step, done=done, total=total, rate=per_s), flush=True)
                    shown = done
                if stopped:
                    return

    def watch_quietly() -> None:
        # The step itself reports what is wrong with a server.
        try:
            watch()
        except QueuekeeperError:
            return

    thread = threading.Thread(target=watch_quietly, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5)
