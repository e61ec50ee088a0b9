"""Prints the progress of a step about once a second and records its throughput."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from queuekeeper.clock import Clock
from queuekeeper.errors import QueuekeeperError
from queuekeeper.migration.ledger.ledger import MigrationLedger, Step
from queuekeeper.postgres import connect


def line(step: str, *, done: int, total: int, rate: float) -> str:
    """Return one line of progress.

    :param done: messages.
    :param rate: messages per second.
    """
    share = 100 * done // total if total else 100
    text = f"{step} {done:,}/{total:,} messages ({share} %), {rate:,.0f}/s"
    return f"{text}, {(total - done) / rate:,.0f} s left" if rate > 0 and done < total else text


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
            first: tuple[int, int] | None = None
            shown = -1
            while True:
                stopped = stop.wait(1.0)
                done = min(total, ledger.progress(plan_id, step, parts=parts).done)
                at_ms = clock()
                if done and first is None:
                    first = (at_ms, done)
                if done != shown:
                    overall = ledger.progress(plan_id, step).done
                    ledger.record_throughput(plan_id=plan_id, step=step, at_ms=at_ms, done=overall)
                    elapsed_s = (at_ms - first[0]) / 1000 if first else 0
                    rate = (done - first[1]) / elapsed_s if first and elapsed_s > 0 else 0.0
                    print(line(step, done=done, total=total, rate=rate), flush=True)
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
