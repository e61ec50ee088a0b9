"""Rows of the tables, and the statements that write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import orjson

from queuekeeper.portions import portions
from queuekeeper.sessions.model import NewMessage
from queuekeeper.sessions.postgres_operations.common import Query, Session
from queuekeeper.sessions.reports import PendingMessage

BYTES_PER_STATEMENT = 16_000_000
_COLUMNS = (
    "client_ids", "serials", "topics", "times_ms", "packet_ids", "packet_types", "qos", "payloads", "user_properties",
    "retain", "expiry_intervals", "payload_format_indicators", "content_types", "response_topics", "correlation_data",
)  # fmt: skip
_PAYLOAD = _COLUMNS.index("payloads")
Row: TypeAlias = tuple[Any, ...]


def row_of(
    message: NewMessage | PendingMessage,
    *,
    client_id: str,
    serial: int,
    packet_id: int,
    packet_type: str,
    interval: int | None,
) -> Row:
    """Return a row of the vendor's table."""
    properties = None
    if message.user_properties:
        pairs = [{"k": name, "v": value} for name, value in message.user_properties]
        properties = orjson.dumps({"props": pairs}).decode()
    return (
        client_id,
        serial,
        message.topic,
        message.time_ms,
        packet_id,
        packet_type,
        message.qos,
        message.payload,
        properties,
        message.retain,
        interval,
        message.payload_format_indicator,
        message.content_type,
        message.response_topic,
        message.correlation_data,
    )


def messages_queries(name: str, rows: Sequence[Row]) -> Iterator[Query]:
    """Return statements that write rows of messages, each up to its limit of rows."""
    for part in portions(rows, size=lambda row: len(row[_PAYLOAD]), most=BYTES_PER_STATEMENT):
        columns = (_sent(column) for column in zip(*part, strict=True))
        yield Query(name=name, parameters=dict(zip(_COLUMNS, columns, strict=True)))


def _sent(column: Sequence[Any]) -> list[Any]:
    """Return a column for ``unnest``, which fills up shorter ones: nothing is sent of a column that no row uses."""
    is_empty = column[0] is None and all(value is None for value in column)
    return [] if is_empty else list(column)


def save_sessions_query(sessions: Sequence[Session]) -> Query:
    """Return the statement that records packet ids and serials given out last."""
    return Query(
        name="save_sessions",
        parameters={
            "client_ids": [session.client_id for session in sessions],
            "last_serials": [session.last_serial for session in sessions],
            "last_packet_ids": [session.last_packet_id for session in sessions],
        },
    )


def save_states_query(sessions: Sequence[Session]) -> Query:
    """Return the statement that writes the values for which the vendor has no columns."""
    return Query(
        name="save_session_states",
        parameters={
            "client_ids": [session.client_id for session in sessions],
            "last_serials": [session.last_serial for session in sessions],
            "message_bounds": [session.message_bound for session in sessions],
            "delivered_serials": [session.delivered_serial for session in sessions],
            "until_ms": [session.until_ms for session in sessions],
            "trimmed": [session.trimmed for session in sessions],
            "expired": [session.expired for session in sessions],
            "refused": [session.refused for session in sessions],
        },
    )


def count_removed_query(counts: Sequence[tuple[str, int, int]]) -> Query:
    """Return the statement that counts removed messages: client id, expired, quarantined."""
    return Query(
        name="count_removed",
        parameters={
            "client_ids": [client_id for client_id, _, _ in counts],
            "expired": [expired for _, expired, _ in counts],
            "quarantined": [quarantined for _, _, quarantined in counts],
        },
    )
