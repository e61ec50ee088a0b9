"""Ends the processes that it was told to watch once its parent is gone; ``embedded.process`` runs it as a script."""

from __future__ import annotations

import contextlib
import os
import select
import sys

import psutil

_LOOK_EVERY_S = 0.5


def main(parent: int) -> None:
    """Read one pid per line until the parent is gone, then kill those processes and their children."""
    watched: list[psutil.Process] = []
    buffer = b""
    while True:
        # A forked sibling may hold the pipe open after the parent has died, so the parent is checked as well.
        orphaned = os.getppid() != parent
        if not select.select([0], [], [], 0 if orphaned else _LOOK_EVERY_S)[0]:
            if orphaned:
                break
            continue
        chunk = os.read(0, 65_536)
        if not chunk:
            break
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            # Looked up at once: psutil keeps the start time and signals no later process with the same pid.
            with contextlib.suppress(psutil.NoSuchProcess):
                watched.append(psutil.Process(int(line)))
    for process in watched:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    member.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
