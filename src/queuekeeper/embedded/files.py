"""Private files, generated secrets and free ports for the private servers."""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections import deque
from contextlib import closing
from pathlib import Path

from queuekeeper.errors import ServerUnavailable

HOST = "127.0.0.1"
# Below the range of the local ports of outgoing connections, which could take ours.
_PORTS = range(20_000, 32_700)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def secret(path: Path) -> str:
    """Return the secret kept in ``path``; the first call makes it."""
    try:
        return path.read_text("utf-8").strip()
    except FileNotFoundError:
        value = secrets.token_urlsafe(24)
        write_private(path, value + "\n")
        return value


_given_out: deque[int] = deque(maxlen=256)
"""Ports that this process was given last: the servers of a cluster get all of theirs before the first one listens."""


def is_free(port: int) -> bool:
    """Return whether nothing listens on this loopback port."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        # With SO_REUSEADDR, as servers do: connections of an earlier server that still linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_port(preferred: int | None = None) -> int:
    """Return a free loopback port outside the range of outgoing connections.

    :param preferred: taken when it is free, so that addresses stay the same over restarts.
    """
    if preferred is not None and is_free(preferred):
        return preferred
    for port in random.SystemRandom().sample(_PORTS, 200):
        if port not in _given_out and is_free(port):
            _given_out.append(port)
            return port
    raise ServerUnavailable(f"no free port between {_PORTS.start} and {_PORTS.stop} on {HOST}")


def noted_port(path: Path) -> int | None:
    """Return the port that was noted in ``path``, if one was."""
    try:
        return int(path.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def demand_free(port: int, name: str) -> int:
    """Return ``port`` when it is free.

    :raises ServerUnavailable: when another program listens there.
    """
    if not is_free(port):
        raise ServerUnavailable(
            f"{name} cannot listen on {HOST}:{port}: another program does; end it or choose another port"
        )
    return port
