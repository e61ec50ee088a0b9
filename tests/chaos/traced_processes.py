"""Processes that load a server, write down what they do, and are killed, as the server is."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from queuekeeper.embedded import PostgresServer, RedisServer
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

    :param url: of the server.
    :param folder: of what they write down.
    :ivar story: what has happened to whom.
    """

    def __init__(self, server: RedisServer | PostgresServer, url: str, folder: Path, seed: int) -> None:
        self.folder = folder
        self.story: list[str] = [f"seed {seed}"]
        self.dice = random.Random(seed)
        self.url = url
        self._server = server
        self._numbers = count(1)

    def begin(self, function: Callable[..., None], stack: ExitStack, *more: Any) -> Child:
        """Start a process, and wait until it is ready.

        :param function: gets the server's address, the folder, a seed, and what else it needs.
        """
        said = self.folder / f"said-{os.getpid()}-{next(self._numbers)}"
        child = Child(function, self.url, self.folder, self.dice.randrange(2**32), *more, said=said)
        stack.enter_context(child)
        until(lambda: READY in child.text, what="a process is ready")
        return child

    def struck(self, strikes: Iterable[str]) -> Iterator[str]:
        """Yield whom to strike, one after the other, and let the load go on in between; strike the server."""
        self.pass_time()
        for strike in strikes:
            self.story.append(strike)
            if strike == "server":
                self._server.kill()
                self._server.start()
            else:
                yield strike
            self.pass_time()

    def pass_time(self) -> None:
        """Let the load go on for some time."""
        time.sleep(0.2 + self.dice.random() * 0.4)


class TracedOnRedis(TracedProcesses):
    """Processes that load a Redis."""

    def __init__(self, server: RedisServer, folder: Path, seed: int) -> None:
        super().__init__(server, server.url, folder, seed)
        self._client = server.client

    def kill(self, victim: Child) -> None:
        """Kill a process, and note when all that it has asked for was carried out."""
        victim.kill()
        with self._client() as client:
            # A server answers what it has read in one round before it reads again.
            for _ in range(3):
                client.ping()
        record_end(self.folder, victim.pid)
