"""The work of every system's worker: write a message's number into a file. Needs no package."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

URL = os.environ["PEERS_URL"]
FOLDER = Path(os.environ["PEERS_FOLDER"])
IS_KILLED = os.environ["PEERS_KILLED"] == "1"
"""Whether the worker is killed: it waits around its work, and gives a dead worker's messages back within seconds."""

QUEUE = "peers"
AT_ONCE = 8
TRIES = 6
LEASE_MS = 3_000
"""Time until the messages of a killed worker come again, where a system lets one choose it."""

PAUSE_S = 0.001 if IS_KILLED else 0.0
FAIL_EVERY = 50
_WIDTH = 8

_done = os.open(FOLDER / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def body_of(number: int, size: int) -> str:
    """Return a message."""
    return f"{number:0{_WIDTH}}".ljust(size, "x")


def _begin(body: str) -> int:
    """Return the number of a message.

    :raises RuntimeError: at the first attempt of one message in fifty.
    """
    number = int(body[:_WIDTH])
    if number % FAIL_EVERY == 0:
        try:
            os.close(os.open(FOLDER / f"failed-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        raise RuntimeError("once")
    return number


def _end(number: int) -> None:
    os.write(_done, b"%08d\n" % number)


def handle(body: str) -> None:
    """Handle a message in a thread."""
    number = _begin(body)
    time.sleep(PAUSE_S)
    _end(number)
    time.sleep(PAUSE_S)


async def handle_async(body: str) -> None:
    """Handle a message in an event loop."""
    number = _begin(body)
    await asyncio.sleep(PAUSE_S)
    _end(number)
    await asyncio.sleep(PAUSE_S)
