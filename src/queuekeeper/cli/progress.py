"""How far work is, while it is done: a bar on a terminal. Elsewhere, the work prints lines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path

from queuekeeper.cli.output import screen
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.progress import Rate, line

REFRESH_S = 0.5


@contextmanager
def shown(
    step: str,
    *,
    total: int | None,
    unit: str,
    counting: Callable[[], AbstractContextManager[Callable[[], int]]],
) -> Iterator[None]:
    """Show on a terminal how far a step is while the block runs; elsewhere the step's own lines say so.

    :param total: how much there is to do; none where nobody knows.
    :param counting: opens what asks how much is done, with a connection of its own.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    console, stop, rate = screen(stderr=True), threading.Event(), Rate()
    if not console.is_terminal:
        yield
        return
    # The words have the room: a line of 80 columns holds millions of messages.
    columns = BarColumn(bar_width=12), TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(step, total=total)

    def watch() -> None:
        try:
            with counting() as count:
                while not stop.wait(REFRESH_S):
                    done = count()
                    said = line(step, done=done, total=total, rate=rate.at(time.monotonic(), done), unit=unit)
                    bar.update(task, completed=done, description=said)
        except QueuekeeperError:
            # It is decoration: what broke the connection ends the step itself, with its own words.
            return

    thread = threading.Thread(target=watch, daemon=True)
    with bar, Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=10)
