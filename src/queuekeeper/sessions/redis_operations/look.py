"""Reading a session and its messages without changing anything."""

from __future__ import annotations

from typing import Any

import orjson

from queuekeeper.checks import check_page
from queuekeeper.errors import RefusedError
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.layouts import BYTES_PER_CALL, known_serial
from queuekeeper.sessions.model import check_packet_id
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.redis_operations.common import (
    KEYS_PER_CALL,
    NO_EXPIRY,
    REFERENCES_PER_LIST,
    CommonOperations,
    Keys,
    Reference,
    State,
    integer_of,
    is_last,
    judge_record,
    referenced_message,
)
from queuekeeper.sessions.reports import ImportView, MessageView, PendingMessage, Problem, SessionCounts, SessionView
from queuekeeper.sessions.steps import T
from queuekeeper.sessions.store import FIRST_SERIAL, SessionOperations
from queuekeeper.sessions.wire import UnreadableError


class LookOperations(CommonOperations):
    """Inspects a session, and reads one message."""

    @keeps(SessionOperations.inspect)
    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        check_page(offset, limit, most=MAX_PAGE)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        references: list[Reference] = []
        while len(references) < limit:
            wanted = min(REFERENCES_PER_LIST, limit - len(references))
            listed = yield from self._list(keys, "rank", offset + len(references), wanted)
            references += listed
            if len(listed) < wanted:
                break
        page: list[MessageView] = []
        while len(page) < len(references):
            batch = references[len(page) : len(page) + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=BYTES_PER_CALL)
            page += (_message_view(keys, client_id, *pair) for pair in zip(batch, records, strict=False))
        fields = state.fields
        return SessionView(
            client_id=client_id,
            store="redis",
            exists=state.has_been_used or bool(state.last_packet_id) or state.references > 0,
            messages=state.references,
            offset=offset,
            page=tuple(page),
            last_packet_id=integer_of(state.last_packet_id),
            last_serial=integer_of(fields.get(b"last_serial")),
            delivered_serial=known_serial(state.delivered_serial),
            counts=_counts(fields) if state.has_been_used else None,
            owner=_text(fields.get(b"owner")),
            epoch=integer_of(fields.get(b"epoch")),
            imported=_import_view(state),
        )

    @keeps(SessionOperations.peek)
    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """:raises RefusedError: when the record is unreadable."""
        check_packet_id(packet_id)
        keys = self._keys(client_id)
        member = keys.payload(packet_id)
        state = yield from self._read_session(keys)
        (record,) = yield from self._records(keys, [member], max_bytes=BYTES_PER_CALL)
        if record[1] < NO_EXPIRY:
            return None
        cursor = FIRST_SERIAL
        while True:
            page = yield from self._list(keys, "serial", cursor, REFERENCES_PER_LIST)
            reference = next((each for each in page if each.member == member), None)
            if reference is not None:
                break
            if is_last(page, REFERENCES_PER_LIST):
                return None
            cursor = page[-1].serial
        message = referenced_message(reference, record, state, client_id=client_id, packet_id=packet_id)
        if message is None:
            raise RefusedError(f"packet id {packet_id} of {client_id!r} names a record that is no message of TBMQ")
        return message


def _message_view(keys: Keys, client_id: str, reference: Reference, record: tuple[bytes, int]) -> MessageView:
    """Return the view of a message; its JSON is empty when the key is missing or of another type."""
    serial = reference.serial
    if not reference.member.startswith(keys.stem):
        return MessageView(serial=serial, problem=Problem.FOREIGN)
    packet_id = keys.packet_id(reference.member)
    json, expires_at_ms = record
    expiry = None if expires_at_ms < 0 else expires_at_ms
    if not json:
        missing = expires_at_ms < NO_EXPIRY
        problem = Problem.DANGLING if missing else Problem.UNREADABLE
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=problem)
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=Problem.UNREADABLE)
    reason: Reason | None = None
    try:
        judge_record(
            json,
            client_id=client_id,
            packet_id=packet_id or 0,
            serial=serial,
            expires_at_ms=expiry,
            redelivery=False,
        )
        fault = None
    except UnreadableError as error:
        fault, reason = Problem.UNREADABLE, error.reason
    return MessageView(
        serial=serial,
        packet_id=packet_id,
        packet_type=_of(str, fields.get("packetType")),
        qos=_of(int, fields.get("qos")),
        # Releases before 2.1 wrote it as "topic".
        topic=_of(str, fields.get("topicName", fields.get("topic"))),
        payload_bytes=_base64_bytes(fields.get("payload", "" if fields.get("packetType") == "PUBREL" else None)),
        time_ms=_of(int, fields.get("time")),
        expires_at_ms=expiry,
        problem=fault,
        reason=reason,
    )


def _counts(fields: dict[bytes, bytes]) -> SessionCounts | None:
    if not fields:
        return None
    return SessionCounts(
        trimmed=integer_of(fields.get(b"trimmed")) or 0,
        expired=integer_of(fields.get(b"expired")) or 0,
        refused=integer_of(fields.get(b"refused")) or 0,
        quarantined=integer_of(fields.get(b"quarantined")) or 0,
    )


def _import_view(state: State) -> ImportView | None:
    fields = state.fields
    plan_id = _text(fields.get(b"plan"))
    if plan_id is None:
        return None
    references = integer_of(fields.get(b"references"))
    return ImportView(
        plan_id=plan_id,
        state=_text(fields.get(b"import")) or "",
        references=references,
        last_packet_id=integer_of(fields.get(b"imported_last_packet_id", b"")),
        touched=fields.get(b"import_used") == b"1",
    )


def _base64_bytes(text: Any) -> int | None:
    """Return the decoded size of a base64 text, without decoding it."""
    if not isinstance(text, str):
        return None
    return len(text.rstrip("=")) * 3 // 4


def _of(kind: type[T], value: Any) -> T | None:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
