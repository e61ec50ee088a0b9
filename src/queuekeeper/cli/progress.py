"""How far work is, while it is done: a bar on a terminal. Elsewhere, the work prints lines."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from queuekeeper.cli.output import screen
from queuekeeper.errors import QueuekeeperError
from queuekeeper.jobs.progress import Rate, line, watched

REFRESH_S = 0.5


@contextmanager
def followed() -> Iterator[None]:
    """Show on a terminal what the narrators of the block tell, from the first that does; elsewhere they say lines."""
    console = screen(stderr=True)
    if not console.is_terminal:
        yield
        return
    with ExitStack() as opened:
        bars: list[tuple[Any, Any]] = []

        def watch(done: int, total: int | None, words: str) -> None:
            if not bars:
                bar = opened.enter_context(_bar(console))
                bars.append((bar, bar.add_task(words, total=total)))
            bar, task = bars[0]
            # To `update` none means: as before.
            bar.tasks[0].total = total
            bar.update(task, completed=done, description=words)

        with watched(watch):
            yield


def _bar(console: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn

    # The words have the room: a line of 80 columns holds millions of messages.
    columns = BarColumn(bar_width=12), TextColumn("{task.description}", markup=False)
    return Progress(*columns, console=console, transient=True)


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
    console, stop, rate = screen(stderr=True), threading.Event(), Rate()
    if not console.is_terminal:
        yield
        return
    bar = _bar(console)
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
