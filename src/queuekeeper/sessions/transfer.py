"""A whole session to a file and back, page by page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import orjson

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.model import MAX_PAYLOAD_BYTES, StoreRules
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage

SessionStore: TypeAlias = RedisSessionStore | PostgresSessionStore
"""A store for blocking callers."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What an export wrote.

    :param messages: lines after the session's own.
    :param unreadable: records left out because nobody can read them; the export is not whole when there are any.
    """

    client_id: str
    messages: int
    unreadable: int


def rules(*, default_ttl_s: int = StoreRules.default_ttl_s) -> StoreRules:
    """Return rules that take back whole what another store has kept: its size and number were the broker's business.

    :param default_ttl_s: life of a message without an expiry, as the broker has it.
    """
    return StoreRules(default_ttl_s=default_ttl_s, limit=MAX_PACKET_ID, max_payload_bytes=MAX_PAYLOAD_BYTES)


def export_session(store: SessionStore, client_id: str, output: BinaryIO) -> ExportReport:
    """Write a session as JSON Lines; memory is bounded by a page.

    It is no snapshot: messages that are confirmed or saved meanwhile may be in it or not.

    :raises UsageError: when there is no such session; nothing was written.
    """
    view = store.inspect(client_id, limit=1)
    if not view.exists:
        raise UsageError(
            f"{view.store} holds no session of {client_id!r}: check the client id, the store and the prefix of its keys"
        )
    lines = unreadable = 0
    after_serial: int | None = None
    more = True
    while more:
        page = store.export_session(client_id, after_serial=after_serial)
        output.writelines(line + b"\n" for line in page.lines)
        lines += len(page.lines)
        unreadable += page.unreadable
        after_serial, more = page.after_serial, page.more
    return ExportReport(client_id=client_id, messages=lines - 1, unreadable=unreadable)


def export_session_to_file(store: SessionStore, client_id: str, path: Path, *, replace: bool = False) -> ExportReport:
    """Write a session into a file that appears when it is complete, and that only its owner can read.

    :param replace: put it in the place of a file that is there.
    :raises UsageError: when there is no such session, or something else than a file has this name.
    :raises RefusedError: when the file is there and may not be replaced, or cannot be written.
    """
    with _draft(path, replace=replace) as file:
        return export_session(store, client_id, file)


def peek_into_file(message: PendingMessage, path: Path, *, replace: bool = False) -> None:
    """Write one message with its content into a file that only its owner can read, as a line of JSON.

    :param replace: put it in the place of a file that is there.
    :raises UsageError: when something else than a file has this name.
    :raises RefusedError: when the file is there and may not be replaced, or cannot be written.
    """
    facts = jsonl.message_facts(message, content=True)
    with _draft(path, replace=replace) as file:
        file.write(orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE))


@contextmanager
def _draft(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file that takes its name at the end of the block; when the block fails, there is none."""
    target = path.resolve()
    if target.exists():
        if not target.is_file():
            raise UsageError(f"{path} is no file: name one to write to")
        if not replace:
            raise RefusedError(f"{path} exists: name another file, or say that it may be replaced")
    try:
        descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RefusedError(f"{path} cannot be written: {error.strerror}; name another file or make room") from error
