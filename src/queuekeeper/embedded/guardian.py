"""Ends the processes it was told about once its parent is gone; run as a script by ``embedded.process``."""

from __future__ import annotations

import contextlib
import os
import select
import sys

import psutil

_LOOK_EVERY_S = 0.5


def main(parent: int) -> None:
    """Read lines of one pid each until the parent is gone, then kill those processes and their children."""
    watched: list[psutil.Process] = []
    buffer = b""
    while True:
        # A forked sibling may hold the pipe open after the parent has died, so its end is not all to look for.
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
            # Taken down at once: psutil remembers the start time and signals no other process of the same number.
            with contextlib.suppress(psutil.NoSuchProcess):
                watched.append(psutil.Process(int(line)))
    for process in watched:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    member.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]))
