"""Delivery from packed sessions: messages are fetched, marked as sent, and acknowledged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from queuekeeper.checks import check_integer
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import BYTES_PER_CALL, MAX_SERIAL, Page
from queuekeeper.sessions.model import Ack, Release, check_packet_id, check_serial
from queuekeeper.sessions.packed_operations.common import (
    SERIALS_PER_CALL,
    SERIALS_PER_READ,
    CommonOperations,
    Keys,
    State,
)
from queuekeeper.sessions.packed_record import expires_at_ms, fields_of, message_of
from queuekeeper.sessions.reports import AckReport
from queuekeeper.sessions.steps import Step, Steps, ask, checked
from queuekeeper.sessions.store import SessionOperations
from queuekeeper.sessions.wire import UnreadableError


class DeliverOperations(CommonOperations):
    """Fetch, mark as delivered, acknowledge, mark as released."""

    def _page(
        self, client_id: str, state: State, *, after_serial: int, backlog_serial: int, limit: int, max_bytes: int
    ) -> Steps[Page]:
        keys = self._keys(client_id)
        page = Page(after_serial)
        if after_serial >= backlog_serial:
            return page
        serials = yield from self._serials(keys, state, after=after_serial)
        at = taken = 0
        while at < len(serials) and serials[at] <= backlog_serial:
            # One more than wanted shows whether a page follows.
            wanted = serials[at : at + min(SERIALS_PER_READ, limit + 1 - taken)]
            budget = min(BYTES_PER_CALL, max(1, max_bytes - page.payload_bytes) + 1_024)
            records = yield from self._records(keys, state, wanted, max_bytes=budget)
            for serial, record in records:
                if serial > backlog_serial:
                    return page
                if record is None:
                    continue
                if taken == limit or not _take(page, serial, record, state, max_bytes):
                    page.more = True
                    return page
                taken += 1
            at += len(records)
        return page

    def _clean_up(self, client_id: str, page: Page) -> Steps[None]:
        keys = self._keys(client_id)
        epoch = self._epoch(client_id)
        calls: Step = []
        for start in range(0, len(page.dead), SERIALS_PER_CALL):
            some = page.dead[start : start + SERIALS_PER_CALL]
            calls.append(scripts.remove_expired(keys, epoch=epoch, earliest="", seen=0, serials=some))
        for serial, record in page.unreadable:
            digest = hashlib.sha1(record, usedforsecurity=False).hexdigest()
            calls.append(
                scripts.quarantine_message(
                    keys, epoch=epoch, serial=serial, quarantined=f"quarantined:{serial}", digest=digest
                )
            )
        if calls:
            for reply in (yield calls):
                checked(reply)

    @keeps(SessionOperations.mark_delivered)
    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        check_integer("serial", serial, 0, MAX_SERIAL, "of a message that was fetched")
        call = scripts.mark_delivered(self._keys(client_id), epoch=self._epoch(client_id), serial=serial)
        return bool((yield from ask(call)))

    @keeps(SessionOperations.ack)
    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        keys = self._keys(client_id)
        removed, unknown = yield from self._ack(keys, client_id, acks)
        if unknown:
            serials = yield from self._serials_of(keys, {ack.packet_id for ack in unknown})
            again = [
                Ack(packet_id=ack.packet_id, serial=serials[ack.packet_id])
                for ack in unknown
                if ack.packet_id in serials
            ]
            more, _ = yield from self._ack(keys, client_id, again)
            removed += more
        return AckReport(client_id=client_id, removed=removed, unknown=len(acks) - removed)

    def _ack(self, keys: Keys, client_id: str, acks: Sequence[Ack]) -> Steps[tuple[int, list[Ack]]]:
        """Acknowledge; return how many messages were removed, and what may mean older messages."""
        most = self.acks_per_call
        parts = [acks[start : start + most] for start in range(0, len(acks), most)]
        if not parts:
            return 0, []
        written = scripts.ack.forms.packet_ids
        calls = [
            scripts.ack(
                keys,
                epoch=self._epoch(client_id),
                packet_ids=[
                    written(packet_id=ack.packet_id, serial="" if ack.serial is None else ack.serial) for ack in part
                ],
            )
            for part in parts
        ]
        removed, unknown = 0, []
        for part, call, reply in zip(parts, calls, (yield calls), strict=True):
            told = call.script.read(checked(reply))
            removed += told.removed
            unknown += [part[position] for position in told.unknown]
        return removed, unknown

    def _serials_of(self, keys: Keys, packet_ids: set[int]) -> Steps[dict[int, int]]:
        """Look for messages with packet ids; of two with the same one, an expired one does not count."""
        state = yield from self._read_session(keys)
        near = sorted({serial for packet_id in packet_ids for serial in state.serials_of(packet_id)})
        places = yield from self._places(keys, state, near)
        if packet_ids - {packet_id for _, packet_id, _ in places}:
            older = [serial for serial in (yield from self._serials(keys, state)) if serial < state.since]
            places = (yield from self._places(keys, state, older)) + places
        found: dict[int, int] = {}
        for serial, packet_id, ends_ms in places:
            if packet_id in packet_ids and (packet_id not in found or ends_ms > state.now_ms):
                found[packet_id] = serial
        return found

    @keeps(SessionOperations.mark_released)
    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """An unreadable record counts as missing."""
        check_packet_id(packet_id)
        check_serial(serial)
        keys = self._keys(client_id)
        outcome = yield from self._release(keys, client_id, packet_id, serial)
        if outcome == "elsewhere":
            serials = yield from self._serials_of(keys, {packet_id})
            if packet_id not in serials:
                return Release.MISSING
            outcome = yield from self._release(keys, client_id, packet_id, serials[packet_id])
        # The next fetch quarantines it.
        return Release.MISSING if outcome == "unreadable" else Release(outcome)

    def _release(self, keys: Keys, client_id: str, packet_id: int, serial: int | None) -> Steps[str]:
        call = scripts.mark_released(
            keys, epoch=self._epoch(client_id), packet_id=packet_id, serial="" if serial is None else serial
        )
        return str((yield from ask(call)).decode())


def _take(page: Page, serial: int, record: bytes, state: State, max_bytes: int) -> bool:
    """Take a record into a page; return whether it fitted."""
    try:
        size = len(fields_of(record)[1])
    except UnreadableError:
        size = 0
    if page.messages and page.payload_bytes + size > max_bytes:
        return False
    page.after_serial = serial
    ends_ms = expires_at_ms(record)
    if ends_ms is not None and ends_ms <= state.now_ms:
        page.dead.append(serial)
        return True
    try:
        page.messages.append(message_of(record, serial=serial, redelivery=serial <= state.delivered_serial))
        page.payload_bytes += size
    except UnreadableError:
        page.unreadable.append((serial, record))
    return True
