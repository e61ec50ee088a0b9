"""Looking at one session, its way to a file and back, and its end, as tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from queuekeeper.airflow.operators.counts_first import CountsFirstOperator
from queuekeeper.airflow.operators.stores import StoresOperator
from queuekeeper.airflow.values import as_dict
from queuekeeper.errors import CheckFailed, UsageError
from queuekeeper.jobs.common import SessionRules
from queuekeeper.jobs.parameters import Parameters, parameter
from queuekeeper.jsonl import open_file
from queuekeeper.sessions import transfer
from queuekeeper.sessions.jsonl import STORES, message_facts
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore

if TYPE_CHECKING:
    from airflow.sdk import Context

PAGE = 20


class Replace(Parameters):
    """Whether a file may take the place of another one."""

    replace: bool = parameter(False, title="Replace", help="Put the file in the place of one that is there.")


class SessionOperator(StoresOperator):
    """What all tasks about one session are given.

    :param client_id: MQTT client id of the session (templated).
    :param store: ``redis`` or ``postgres`` (templated).
    :param key_prefix: put before every Redis key (templated).
    :param default_ttl_s: life of a message without an expiry, as the broker has it (templated).
    :param postgres_conn_id: where sessions of TBMQ 1.x are (templated).
    :param redis_conn_id: where those of TBMQ 2.x are (templated).
    """

    template_fields: Sequence[str] = (
        "client_id",
        "store",
        "key_prefix",
        "default_ttl_s",
        *StoresOperator.template_fields,
    )

    def __init__(
        self,
        *,
        client_id: str,
        store: str = "redis",
        key_prefix: str = "",
        default_ttl_s: int | str = SessionRules().default_ttl_s,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.client_id = client_id
        self.store = store
        self.key_prefix = key_prefix
        self.default_ttl_s = default_ttl_s

    @contextmanager
    def open_store(self) -> Iterator[transfer.SessionStore]:
        """Open the store for the length of a ``with`` block.

        :raises UsageError: when there is no store of this name.
        """
        if self.store not in STORES:
            raise UsageError(f"the store is {self.store!r}: it must be {' or '.join(STORES)}")
        rules = transfer.rules(default_ttl_s=SessionRules.one("default_ttl_s", self.default_ttl_s))
        if self.store == "postgres":
            with self.postgres_hook.connect() as connection:
                yield PostgresSessionStore(connection, rules=rules)
        else:
            with self.redis_hook.connect() as client:
                yield RedisSessionStore(client, self.key_prefix, rules)


class InspectSessionOperator(SessionOperator):
    """Describe a session and a page of its messages, without content.

    :param offset: messages to pass over (templated).
    :param limit: messages to describe (templated); they all go through Airflow's database.
    """

    template_fields: Sequence[str] = (*SessionOperator.template_fields, "offset", "limit")

    def __init__(self, *, offset: int | str = 0, limit: int | str = PAGE, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.offset = offset
        self.limit = limit

    def execute(self, context: Context) -> dict[str, Any]:
        """Return what the store says of the session."""
        self.log.info("Looking at session %r in %s", self.client_id, self.store)
        with self.open_store() as store:
            view = store.inspect(self.client_id, offset=int(self.offset), limit=int(self.limit))
        self.log.info("Session %r: exists %s, %s messages", self.client_id, view.exists, view.messages)
        return as_dict(view)


class PeekSessionOperator(SessionOperator):
    """Describe one message. Its content goes into a file of the worker, when asked for, and nowhere else.

    :param packet_id: of the message (templated).
    :param content_path: file to write the message to with its content; only its owner can read it; none when empty
        (templated).
    :param replace: put it in the place of a file that is there (templated).
    """

    template_fields: Sequence[str] = (*SessionOperator.template_fields, "packet_id", "content_path", "replace")

    def __init__(
        self, *, packet_id: int | str, content_path: str = "", replace: bool | str = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.packet_id = packet_id
        self.content_path = content_path
        self.replace = replace

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the message without content.

        :raises UsageError: when no message has the packet id.
        """
        replace = Replace.one("replace", self.replace)
        packet_id = int(self.packet_id)
        self.log.info("Looking at packet id %s of session %r in %s", packet_id, self.client_id, self.store)
        with self.open_store() as store:
            message = store.peek(self.client_id, packet_id=packet_id)
        if message is None:
            raise UsageError(
                f"{self.store} holds no message of {self.client_id!r} with packet id {packet_id}: it may have been "
                "confirmed or have expired; InspectSessionOperator describes those that are there"
            )
        if self.content_path:
            transfer.peek_into_file(message, Path(self.content_path), replace=replace)
        self.log.info("Packet id %s: serial %s, %s bytes", packet_id, message.serial, len(message.payload))
        return message_facts(message, content=False) | {"content_path": self.content_path or None}


class PurgeSessionOperator(CountsFirstOperator, SessionOperator):
    """Remove a session with all its messages; a repeated task removes what has come since."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many messages were removed, or would be."""
        intent = "Counting what a purge would remove" if self.counts_only else "Purging"
        self.log.info("%s: session %r in %s", intent, self.client_id, self.store)
        with self.open_store() as store:
            report = store.purge_session(self.client_id, dry_run=self.counts_only)
        self.log.info(
            "Session %r: %s messages %s, %s kept", self.client_id, report.messages, self.done("removed"), report.kept
        )
        return as_dict(report)


class ExportSessionOperator(SessionOperator):
    """Write a session with its content into a file of the worker, as JSON Lines.

    Records that nobody can read fail the task once the file is written, so that nothing is purged because of it.

    :param path: file to write; only its owner can read it (templated).
    :param replace: put it in the place of a file that is there (templated).
    """

    template_fields: Sequence[str] = (*SessionOperator.template_fields, "path", "replace")

    def __init__(self, *, path: str, replace: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path
        self.replace = replace

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many messages were written, and where."""
        replace = Replace.one("replace", self.replace)
        self.log.info("Exporting session %r from %s to %s", self.client_id, self.store, self.path)
        with self.open_store() as store:
            report = transfer.export_session_to_file(store, self.client_id, Path(self.path), replace=replace)
        self.log.info(
            "Session %r: %s messages written, %s unreadable", self.client_id, report.messages, report.unreadable
        )
        if report.unreadable:
            raise CheckFailed(
                f"{self.path} is not the whole session: {report.unreadable} records of {self.client_id!r} cannot be "
                "read and were left out"
            )
        return as_dict(report) | {"path": self.path}


class ImportSessionOperator(SessionOperator):
    """Store an exported session where none of this client is; messages whose life is over are counted and left out.

    :param path: file of the worker to read (templated).
    """

    template_fields: Sequence[str] = (*SessionOperator.template_fields, "path")

    def __init__(self, *, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.path = path

    def execute(self, context: Context) -> dict[str, Any]:
        """Return how many messages were stored."""
        self.log.info("Importing session %r into %s from %s", self.client_id, self.store, self.path)
        with self.open_store() as store, open_file(Path(self.path)) as lines:
            report = store.import_session(self.client_id, lines)
        self.log.info("Session %r: %s messages stored, %s expired", self.client_id, report.stored, report.expired)
        return as_dict(report)
