"""Reading a session and its messages without changing anything."""

from __future__ import annotations

from typing import Any

from queuekeeper.checks import check_page
from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.judge import row_defect
from queuekeeper.sessions.model import check_packet_id
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.postgres_operations.common import (
    JUDGED_COLUMNS,
    CommonOperations,
    Query,
    Step,
    check_vendor_id,
)
from queuekeeper.sessions.reports import MessageView, PendingMessage, Problem, SessionCounts, SessionView
from queuekeeper.sessions.store import SessionOperations
from queuekeeper.sessions.wire import UnreadableError

_COUNTS = ("trimmed", "expired", "refused", "quarantined")


class LookOperations(CommonOperations):
    """Inspects a session, and reads one message."""

    @keeps(SessionOperations.inspect)
    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """Only the vendor's tables are required; the view has more fields when schema ``queuekeeper`` can be read."""
        check_client_id(client_id)
        check_page(offset, limit, most=MAX_PAGE)
        parameters = {"client_id": client_id}
        (session,), rows = yield Step(
            begin=True,
            end=True,
            queries=(
                Query(name="inspect_session", parameters=parameters),
                Query(
                    name="inspect_messages",
                    parameters=parameters
                    | {"offset": offset, "limit": limit, "default_ttl_s": self._rules.default_ttl_s},
                ),
            ),
        )
        exists, messages, last_packet_id, last_serial, has_state = session
        delivered_serial: int | None = None
        counts: SessionCounts | None = None
        if has_state:
            (states,) = yield Step(begin=True, end=True, queries=(Query(name="inspect_state", parameters=parameters),))
            if states:
                ((delivered_serial, *counted),) = states
                counts = SessionCounts(**dict(zip(_COUNTS, counted, strict=True)))
        return SessionView(
            client_id=client_id,
            store="postgres",
            exists=exists or messages > 0,
            messages=messages,
            offset=offset,
            page=tuple(_view(*row) for row in rows),
            last_packet_id=last_packet_id,
            last_serial=last_serial,
            delivered_serial=delivered_serial,
            counts=counts,
        )

    @keeps(SessionOperations.peek)
    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """:raises RefusedError: when the record is unreadable."""
        check_vendor_id(client_id)
        check_packet_id(packet_id)
        (rows,) = yield Step(
            begin=True,
            end=True,
            queries=(Query(name="peek", parameters={"client_id": client_id, "packet_id": packet_id}),),
        )
        for delivered_serial, now_ms, *columns in rows:
            try:
                message = self._pending(columns, delivered_serial=delivered_serial)
            except UnreadableError as error:
                raise RefusedError(
                    f"message {packet_id} of session {client_id!r} cannot be read: {error}; "
                    "the next fetch puts it in quarantine"
                ) from None
            if message.expires_at_ms is None or message.expires_at_ms > now_ms:
                return message
        return None


def _view(expires_at_ms: Any, *values: Any) -> MessageView:
    """Return the view of a row.

    :param values: values of :data:`JUDGED_COLUMNS`.
    """
    row = dict(zip(JUDGED_COLUMNS, values, strict=True))
    reason = row_defect(row)
    return MessageView(
        serial=row["serial_number"],
        packet_id=row["packet_id"],
        packet_type=row["packet_type"],
        qos=row["qos"],
        topic=row["topic"],
        payload_bytes=row["payload"],
        time_ms=row["time"],
        expires_at_ms=int(expires_at_ms),
        problem=None if reason is None else Problem.UNREADABLE,
        reason=reason,
    )
