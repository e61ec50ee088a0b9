"""Delivery from packed sessions: messages are fetched, marked as sent, and acknowledged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from queuekeeper.checks import check_integer
from queuekeeper.keyspace import PackedKeys
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.model import Ack, Release, check_packet_id, check_serial
from queuekeeper.sessions.packed_operations.common import BYTES_PER_CALL, SERIALS_PER_CALL, CommonOperations, State
from queuekeeper.sessions.packed_record import expires_at_ms, fields_of, message_of
from queuekeeper.sessions.reports import AckReport, PendingMessage, PendingPage
from queuekeeper.sessions.steps import Step, Steps, ask, checked
from queuekeeper.sessions.store import FIRST_SERIAL, FetchOperations, PageWish, SessionOperations
from queuekeeper.sessions.wire import UnreadableError


class Page:
    """The content of one page."""

    __slots__ = ("after_serial", "dead", "messages", "more", "payload_bytes", "unreadable")

    def __init__(self, after_serial: int) -> None:
        self.after_serial = after_serial
        self.more = False
        self.messages: list[PendingMessage] = []
        self.payload_bytes = 0
        self.dead: list[int] = []
        self.unreadable: list[tuple[int, bytes]] = []

    def take(self, serial: int, record: bytes, state: State, max_bytes: int) -> bool:
        """Take a record into the page; return whether it fitted."""
        try:
            size = len(fields_of(record)[1])
        except UnreadableError:
            size = 0
        if self.messages and self.payload_bytes + size > max_bytes:
            return False
        self.after_serial = serial
        ends_ms = expires_at_ms(record)
        if ends_ms is not None and ends_ms <= state.now_ms:
            self.dead.append(serial)
            return True
        try:
            self.messages.append(message_of(record, serial=serial, redelivery=serial <= state.delivered))
            self.payload_bytes += size
        except UnreadableError:
            self.unreadable.append((serial, record))
        return True


class DeliverOperations(CommonOperations, FetchOperations):
    """Fetch, mark as delivered, acknowledge, mark as released."""

    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        wish.check(2**53)
        keys = self._keys(client_id)
        backlog_serial = wish.backlog_serial
        if backlog_serial is not None:
            check_integer("backlog_serial", backlog_serial, FIRST_SERIAL, 2**53, "from the page before")
        state = yield from self._read_session(keys)
        if backlog_serial is None:
            backlog_serial = state.highest
        page = yield from self._page(
            keys,
            state,
            after_serial=wish.after_serial,
            backlog_serial=backlog_serial,
            limit=wish.limit,
            max_bytes=wish.max_bytes,
        )
        if state.is_open:
            yield from self._clean_up(keys, client_id, page)
        if wish.mark_delivered and page.messages and page.messages[-1].serial > state.delivered:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page.messages),
            after_serial=page.after_serial,
            backlog_serial=backlog_serial,
            more=page.more,
            expired=len(page.dead),
            unreadable=len(page.unreadable),
        )

    def _page(
        self, keys: PackedKeys, state: State, *, after_serial: int, backlog_serial: int, limit: int, max_bytes: int
    ) -> Steps[Page]:
        """Read a page of messages; nothing is changed."""
        page = Page(after_serial)
        if after_serial >= backlog_serial:
            return page
        serials = yield from self._serials(keys, state, after=after_serial)
        at = taken = 0
        while at < len(serials) and serials[at] <= backlog_serial:
            # One more than wanted shows whether a page follows.
            wanted = serials[at : at + min(SERIALS_PER_CALL, limit + 1 - taken)]
            budget = min(BYTES_PER_CALL, max(1, max_bytes - page.payload_bytes) + 1_024)
            records = yield from self._records(keys, state, wanted, max_bytes=budget)
            for serial, record in records:
                if serial > backlog_serial:
                    return page
                if record is None:
                    continue
                if taken == limit or not page.take(serial, record, state, max_bytes):
                    page.more = True
                    return page
                taken += 1
            at += len(records)
        return page

    def _clean_up(self, keys: PackedKeys, client_id: str, page: Page) -> Steps[None]:
        """Remove the expired messages of a page, and put its unreadable records aside."""
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
        check_integer("serial", serial, 0, 2**53, "of a message that was fetched")
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

    def _ack(self, keys: PackedKeys, client_id: str, acks: Sequence[Ack]) -> Steps[tuple[int, list[Ack]]]:
        """Acknowledge; return how many messages were removed, and what may mean older messages."""
        parts = [acks[start : start + SERIALS_PER_CALL] for start in range(0, len(acks), SERIALS_PER_CALL)]
        if not parts:
            return 0, []
        calls = [
            scripts.ack(
                keys,
                epoch=self._epoch(client_id),
                packet_ids=[f"{ack.packet_id}:{'' if ack.serial is None else ack.serial}" for ack in part],
            )
            for part in parts
        ]
        removed, unknown = 0, []
        for part, call, reply in zip(parts, calls, (yield calls), strict=True):
            told = call.script.read(checked(reply))
            removed += told.removed
            unknown += [part[position] for position in told.unknown]
        return removed, unknown

    def _serials_of(self, keys: PackedKeys, packet_ids: set[int]) -> Steps[dict[int, int]]:
        """Look through all messages for packet ids; of two with the same one, an expired one does not count."""
        state = yield from self._read_session(keys)
        found: dict[int, int] = {}
        for serial, packet_id, ends_ms in (yield from self._places(keys, state)):
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

    def _release(self, keys: PackedKeys, client_id: str, packet_id: int, serial: int | None) -> Steps[str]:
        call = scripts.mark_released(
            keys, epoch=self._epoch(client_id), packet_id=packet_id, serial="" if serial is None else serial
        )
        return str((yield from ask(call)).decode())
