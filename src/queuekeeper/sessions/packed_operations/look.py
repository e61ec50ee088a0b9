"""Reading a packed session and its messages without changing anything."""

from __future__ import annotations

from queuekeeper.checks import check_page
from queuekeeper.errors import RefusedError
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import BYTES_PER_CALL, known_serial
from queuekeeper.sessions.model import check_packet_id
from queuekeeper.sessions.packed_operations.common import SERIALS_PER_CALL, State
from queuekeeper.sessions.packed_operations.deliver import DeliverOperations
from queuekeeper.sessions.packed_record import expires_at_ms, message_of
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.reports import ImportView, MessageView, PendingMessage, Problem, SessionCounts, SessionView
from queuekeeper.sessions.store import SessionOperations
from queuekeeper.sessions.wire import UnreadableError


class LookOperations(DeliverOperations):
    """Inspects a session, and reads one message."""

    @keeps(SessionOperations.inspect)
    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        check_page(offset, limit, most=MAX_PAGE)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        serials = yield from self._serials(keys, state)
        page: list[MessageView] = []
        at = passed = 0
        if state.messages == len(serials):
            at = passed = offset
        # Of messages before the page, only packet ids are read.
        while at < len(serials) and passed + SERIALS_PER_CALL <= offset:
            places = yield from self._places(keys, state, serials[at : at + SERIALS_PER_CALL])
            passed += len(places)
            at += SERIALS_PER_CALL
        while at < len(serials) and len(page) < limit:
            records = yield from self._records(keys, state, serials[at:], max_bytes=BYTES_PER_CALL)
            for serial, record in records:
                if record is None:
                    continue
                passed += 1
                if passed > offset and len(page) < limit:
                    page.append(_message_view(serial, record, state))
            at += len(records)
        trimmed, expired, refused, quarantined = state.counts
        counts = SessionCounts(trimmed=trimmed, expired=expired, refused=refused, quarantined=quarantined)
        return SessionView(
            client_id=client_id,
            store="redis",
            exists=state.exists,
            messages=state.messages,
            offset=offset,
            page=tuple(page),
            last_packet_id=state.given_packet_id,
            last_serial=state.given_serial,
            delivered_serial=known_serial(state.delivered_serial),
            counts=counts if state.has_stored else None,
            owner=state.owner.decode() or None,
            epoch=int(state.epoch) if state.epoch else None,
            imported=_import_view(state),
        )

    @keeps(SessionOperations.peek)
    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """:raises RefusedError: when the record is unreadable."""
        check_packet_id(packet_id)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        found = yield from self._serials_of(keys, {packet_id})
        if packet_id not in found:
            return None
        ((serial, record),) = yield from self._records(keys, state, [found[packet_id]], max_bytes=BYTES_PER_CALL)
        if record is None:
            return None
        ends_ms = expires_at_ms(record)
        if ends_ms is not None and ends_ms <= state.now_ms:
            return None
        try:
            return message_of(record, serial=serial, redelivery=serial <= state.delivered_serial)
        except UnreadableError as error:
            raise RefusedError(f"packet id {packet_id} of {client_id!r} names a record that is none: {error}") from None


def _message_view(serial: int, record: bytes, state: State) -> MessageView:
    """Return the view of a message."""
    ends_ms = expires_at_ms(record)
    try:
        message = message_of(record, serial=serial, redelivery=False)
    except UnreadableError as error:
        return MessageView(serial=serial, expires_at_ms=ends_ms, problem=Problem.UNREADABLE, reason=error.reason)
    is_dead = ends_ms is not None and ends_ms <= state.now_ms
    return MessageView(
        serial=serial,
        packet_id=message.packet_id,
        packet_type=message.packet_type,
        qos=message.qos,
        topic=message.topic,
        payload_bytes=len(message.payload),
        time_ms=message.time_ms,
        expires_at_ms=ends_ms,
        problem=Problem.DANGLING if is_dead else None,
    )


def _import_view(state: State) -> ImportView | None:
    if not state.plan:
        return None
    return ImportView(
        plan_id=state.plan.decode("utf-8", "replace"),
        state=state.progress.decode(),
        references=int(state.references) if state.references else None,
        last_packet_id=int(state.imported_last_packet_id) if state.imported_last_packet_id else None,
        touched=state.is_used,
    )
