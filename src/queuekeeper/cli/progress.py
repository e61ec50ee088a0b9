"""How far work is, while it is done: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path

from queuekeeper.cli.output import screen
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.progress import Rate, line

REFRESH_S = 0.5
LINE_S = 10.0


@contextmanager
def shown(
    step: str,
    *,
    total: int | None,
    unit: str,
    counting: Callable[[], AbstractContextManager[Callable[[], int]]],
    tells_itself: bool = False,
) -> Iterator[None]:
    """Show how far a step is while the block runs, with its rate over the last ten seconds.

    :param total: how much there is to do; none where nobody knows.
    :param counting: opens what asks how much is done, with a connection of its own.
    :param tells_itself: whether the step prints lines, which a bar takes the place of.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    console, stop, rate = screen(stderr=True), threading.Event(), Rate()
    if tells_itself and not console.is_terminal:
        yield
        return
    # The words have the room: a line of 80 columns holds millions of messages.
    columns = BarColumn(bar_width=12), TextColumn("{task.description}", markup=False)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(step, total=total)

    def watch() -> None:
        try:
            with counting() as count:
                while not stop.wait(REFRESH_S if console.is_terminal else LINE_S):
                    done = count()
                    said = line(step, done=done, total=total, rate=rate.at(time.monotonic(), done), unit=unit)
                    bar.update(task, completed=done, description=said)
                    if not console.is_terminal:
                        console.print(said, soft_wrap=True)
        except QueuekeeperError:
            # It is decoration: what broke the connection ends the step itself, with its own words.
            return

    thread = threading.Thread(target=watch, daemon=True)
    with bar, Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere if tells_itself else sys.stdout):
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(timeout=10)
