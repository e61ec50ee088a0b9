"""Processes that use one queue, write down what they do, and are killed, as their server is."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from queuekeeper.embedded import RedisServer
from tests.chaos.online_load import Child
from tests.chaos.support import until
from tests.chaos.trace_recorder import record_end

READY = "ready"
"""What a process says that has begun."""


def stop_by_signal() -> threading.Event:
    """Return what is set when this process is asked to end."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    return stopped


class TracedProcesses:
    """Processes, their server, and a dice.

    :ivar story: what has happened to whom.
    """

    def __init__(self, server: RedisServer, folder: Path, seed: int) -> None:
        self.folder = folder
        self.story: list[str] = [f"seed {seed}"]
        self.dice = random.Random(seed)
        self.server = server
        self._numbers = count(1)

    def begin(self, function: Callable[..., None], stack: ExitStack) -> Child:
        """Start a process, which gets the server's address, the folder and a seed, and says when it is ready."""
        number = next(self._numbers)
        said = self.folder / f"said-{os.getpid()}-{number}"
        child = Child(function, self.server.url, self.folder, self.dice.randrange(2**32), said=said)
        stack.enter_context(child)
        until(lambda: READY in child.text, what="a process is ready")
        return child

    def kill(self, victim: Child) -> None:
        """Kill a process, and note when all that it has asked for was carried out."""
        victim.kill()
        with self.server.client() as client:
            # A server answers what it has read in one round before it reads again.
            for _ in range(3):
                client.ping()
        record_end(self.folder, victim.pid)

    def restart_server(self) -> None:
        """Kill the server, and start it again."""
        self.server.kill()
        self.server.start()

    def pass_time(self) -> None:
        """Let the load go on for some time."""
        time.sleep(0.2 + self.dice.random() * 0.4)
