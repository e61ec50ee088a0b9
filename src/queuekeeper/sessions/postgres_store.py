"""DEVICE sessions in the tables of TBMQ 1.x, which are read as they are and never altered."""

from __future__ import annotations

from typing import Any

from psycopg import errors as postgres_errors

from queuekeeper.errors import SchemaMismatch, UsageError
from queuekeeper.postgres import Connection, address, statement, translated_errors
from queuekeeper.sessions.model import DEFAULT_PAGE, MessageView, SessionView, check_page


class PostgresSessionStore:
    """Sessions in ``device_session_ctx`` and ``device_publish_msg``.

    :param connection: of the database that TBMQ 1.x used.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> SessionView:
        """Describe a session and one page of its messages.

        :param offset: messages to pass over, counted in the order of delivery.
        :raises UsageError: when the client id is empty or the page out of range.
        :raises SchemaMismatch: when the tables are not TBMQ's.
        """
        check_page(offset=offset, limit=limit)
        if not client_id:
            raise UsageError("client id is empty: a session without an id cannot be stored")
        if "\0" in client_id:
            raise UsageError("client id holds a zero byte, which PostgreSQL cannot store")
        session = self._rows("sessions/inspect_session", client_id=client_id)
        exists, messages, last_packet_id, last_serial = session[0]
        rows = self._rows("sessions/inspect_messages", client_id=client_id, offset=offset, limit=limit)
        return SessionView(
            client_id=client_id,
            store="postgres",
            exists=exists or messages > 0,
            messages=messages,
            offset=offset,
            page=tuple(
                MessageView(
                    serial=serial,
                    packet_id=packet_id,
                    packet_type=packet_type,
                    qos=qos,
                    topic=topic,
                    payload_bytes=payload_bytes,
                    time_ms=time_ms,
                    expires_at_ms=None if expires_at_ms is None else int(expires_at_ms),
                )
                for serial, packet_id, packet_type, qos, topic, payload_bytes, time_ms, expires_at_ms in rows
            ),
            last_packet_id=last_packet_id,
            last_serial=last_serial,
        )

    def _rows(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        with translated_errors(self._connection):
            try:
                return self._connection.execute(statement(name), parameters).fetchall()
            except (postgres_errors.UndefinedTable, postgres_errors.UndefinedColumn) as error:
                self._connection.rollback()
                raise SchemaMismatch(
                    f"{address(self._connection)} does not hold TBMQ 1.4's tables: {error.diag.message_primary}. "
                    "Name the database of TBMQ 1.x"
                ) from error
