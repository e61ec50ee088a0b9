"""Exports a whole session to a file and imports it, page by page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import orjson

from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.model import MAX_PAYLOAD_BYTES, StoreRules
from queuekeeper.sessions.reports import PendingMessage

if TYPE_CHECKING:
    from queuekeeper.sessions.postgres_store import PostgresSessionStore
    from queuekeeper.sessions.redis_store import RedisSessionStore

SessionStore: TypeAlias = "RedisSessionStore | PostgresSessionStore"
"""Any store for blocking callers."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Result of an export.

    :param messages: messages written.
    :param unreadable: unreadable records that were left out; the export is incomplete when there are any.
    """

    client_id: str
    messages: int
    unreadable: int


def rules(*, default_ttl_s: int = StoreRules.default_ttl_s) -> StoreRules:
    """Return rules with the greatest limits, so that an import accepts everything that another store has kept.

    :param default_ttl_s: life in seconds of a message without an expiry interval; the same as in the broker.
    """
    return StoreRules(default_ttl_s=default_ttl_s, limit=MAX_PACKET_ID, max_payload_bytes=MAX_PAYLOAD_BYTES)


def export_session(store: SessionStore, client_id: str, output: BinaryIO) -> ExportReport:
    """Write a session as JSON Lines, with one page in memory at a time.

    The export is not a snapshot: it may hold or miss messages that are acknowledged or saved during it.

    :raises UsageError: when there is no such session; nothing is written then.
    """
    view = store.inspect(client_id, limit=1)
    if not view.exists:
        raise UsageError(
            f"{view.store} holds no session of {client_id!r}: check the client id, the store and the prefix of its "
            f"keys; `queuekeeper sessions inspect {quote(client_id)}` shows both stores"
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
    """Write a session into a file that only its owner can read; the file appears when it is complete.

    :param replace: replace an existing file.
    :raises UsageError: when there is no such session, or the path is not a file.
    :raises RefusedError: when the file exists and ``replace`` is false, or it cannot be written.
    """
    with _draft(path, replace=replace) as file:
        return export_session(store, client_id, file)


def peek_into_file(message: PendingMessage, path: Path, *, replace: bool = False) -> None:
    """Write one message with its content into a file that only its owner can read, as a line of JSON.

    :param replace: replace an existing file.
    :raises UsageError: when the path is not a file.
    :raises RefusedError: when the file exists and ``replace`` is false, or it cannot be written.
    """
    facts = jsonl.message_facts(message, content=True)
    with _draft(path, replace=replace) as file:
        file.write(orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE))


@contextmanager
def _draft(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file that gets its name at the end of the block; a block that fails leaves no file."""
    target = path.resolve()
    if target.exists():
        if not target.is_file():
            raise UsageError(f"{path} is no file: name one to write to")
        if not replace:
            raise RefusedError(f"{path} exists: name another file, or allow replacing it")
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
