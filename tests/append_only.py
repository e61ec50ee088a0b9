"""What a server has appended to its file, and what a session looks like behind a file that was torn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import redis

from queuekeeper.embedded import RedisServer


@dataclass(frozen=True, kw_only=True)
class AppendOnlyFile:
    """The file to which a server appends what it was told."""

    path: Path
    size_bytes: int


def append_only_file(server: RedisServer) -> AppendOnlyFile:
    """Return the file that the server, dead or alive, appends to."""
    numbered = {
        int(match[1]): path
        for path in (server.directory / "data" / "appendonlydir").iterdir()
        if (match := re.fullmatch(r"appendonly\.aof\.(\d+)\.incr\.aof", path.name))
    }
    path = numbered[max(numbered)]
    return AppendOnlyFile(path=path, size_bytes=path.stat().st_size)


def finished_sessions_that_lack_something(client: redis.Redis) -> list[bytes]:
    """Return sessions that say that they are whole and are not: what is written last must be lost first."""
    lacking: list[bytes] = []
    finished = 0
    for name in client.scan_iter(match="*}_session", count=1_000):
        session = client.hgetall(name)
        if session[b"import"] != b"done":
            continue
        finished += 1
        stem = name.removesuffix(b"_session")
        references = client.zrange(stem + b"_messages", 0, -1)
        payloads = client.exists(*references) if references else 0
        last_packet_id = client.get(stem + b"_last_packet_id") or b""
        whole = len(references) == int(session[b"references"]) == payloads
        if not whole or last_packet_id != session[b"imported_last_packet_id"]:
            lacking.append(name)
    for name in client.scan_iter(match="*}_packed", count=1_000):
        session = client.hgetall(name)
        if session[b"import"] == b"done":
            finished += 1
            if sum(field.isdigit() for field in session) != int(session[b"references"]):
                lacking.append(name)
    assert finished > 0
    return lacking
