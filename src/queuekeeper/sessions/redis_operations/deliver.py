"""Delivery: a client's messages are fetched, marked as sent, and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.checks import check_integer
from queuekeeper.keyspace import quarantined_key
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.model import Ack, Release, check_packet_id, check_serial
from queuekeeper.sessions.redis_operations.common import (
    BYTES_PER_CALL,
    KEYS_PER_CALL,
    MAX_SERIAL,
    NO_EXPIRY,
    REFERENCES_PER_LIST,
    CommonOperations,
    Keys,
    Reference,
    read_message,
)
from queuekeeper.sessions.reports import AckReport, PendingMessage, PendingPage
from queuekeeper.sessions.steps import Step, Steps, ask, checked
from queuekeeper.sessions.store import FIRST_SERIAL, FetchOperations, PageWish, SessionOperations

QUARANTINE_MS = 604_800_000
"""How long a record without an expiry stays in quarantine."""


class _Page:
    """The content of one page."""

    __slots__ = ("after_serial", "dead", "foreign", "messages", "more", "payload_bytes", "unreadable")

    def __init__(self, after_serial: int) -> None:
        self.after_serial = after_serial
        self.more = False
        self.messages: list[PendingMessage] = []
        self.payload_bytes = 0
        self.dead: list[Reference] = []
        self.unreadable: list[Reference] = []
        self.foreign = 0


class DeliverOperations(CommonOperations, FetchOperations):
    """Fetch, mark as delivered, acknowledge, mark as released."""

    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        wish.check(MAX_SERIAL)
        after_serial, backlog_serial = wish.after_serial, wish.backlog_serial
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        if backlog_serial is None:
            backlog_serial = state.highest
        elif wish.mark_delivered and state.delivered_serial < after_serial <= state.noted_serial:
            # The serial of delivery was read with the pages. Another program has emptied the session since and begun
            # again with lower serials, so none of these messages was delivered.
            after_serial = state.delivered_serial
        check_integer("backlog_serial", backlog_serial, FIRST_SERIAL, MAX_SERIAL, "from the page before")
        page = yield from self._page(
            keys,
            client_id,
            after_serial=after_serial,
            backlog_serial=backlog_serial,
            delivered_serial=state.delivered_serial,
            limit=wish.limit,
            max_bytes=wish.max_bytes,
        )
        if state.is_open:
            yield from self._clean_up(keys, client_id, page)
        if wish.mark_delivered and page.messages and page.messages[-1].serial > state.delivered_serial:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page.messages),
            after_serial=page.after_serial,
            backlog_serial=backlog_serial,
            more=page.more,
            expired=len(page.dead),
            unreadable=len(page.unreadable) + page.foreign,
        )

    def _page(
        self,
        keys: Keys,
        client_id: str,
        *,
        after_serial: int,
        backlog_serial: int,
        delivered_serial: int,
        limit: int,
        max_bytes: int,
    ) -> Steps[_Page]:
        """Read a page of messages; nothing is changed."""
        page = _Page(after_serial)
        references: list[Reference] = []
        # One reference more than wanted shows whether a page follows.
        while after_serial < backlog_serial and len(references) <= limit:
            wanted = min(REFERENCES_PER_LIST, limit + 1 - len(references))
            listed = yield from self._list(keys, "serial", after_serial, wanted)
            references += (reference for reference in listed if reference.serial <= backlog_serial)
            if len(listed) < wanted:
                break
            after_serial = listed[-1].serial
        page.more = len(references) > limit
        del references[limit:]
        at = 0
        while at < len(references):
            if page.messages and page.payload_bytes >= max_bytes:
                page.more = True
                return page
            # JSON holds the payload as base64, and some hundred bytes more.
            budget = min(BYTES_PER_CALL, (max_bytes - page.payload_bytes) * 4 // 3 + 1_024)
            batch = references[at : at + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=budget)
            for reference, (json, expires_at_ms) in zip(batch, records, strict=False):
                packet_id = keys.packet_id(reference.member)
                message: PendingMessage | None = None
                if packet_id is None:
                    page.foreign += 1
                elif not json and expires_at_ms < NO_EXPIRY:
                    page.dead.append(reference)
                else:
                    message = read_message(
                        json,
                        client_id=client_id,
                        packet_id=packet_id,
                        serial=reference.serial,
                        expires_at_ms=None if expires_at_ms < 0 else expires_at_ms,
                        redelivery=reference.serial <= delivered_serial,
                    )
                    if message is None:
                        page.unreadable.append(reference)
                    elif page.messages and page.payload_bytes + len(message.payload) > max_bytes:
                        page.more = True
                        return page
                    else:
                        page.messages.append(message)
                        page.payload_bytes += len(message.payload)
                page.after_serial = reference.serial
            at += len(records)
        return page

    def _clean_up(self, keys: Keys, client_id: str, page: _Page) -> Steps[None]:
        """Remove the dead references of a page, and quarantine its unreadable records."""
        epoch = self._epoch(keys)
        calls: Step = []
        for start in range(0, len(page.dead), KEYS_PER_CALL):
            dead = [reference.member for reference in page.dead[start : start + KEYS_PER_CALL]]
            calls.append(
                scripts.remove_dead_references(keys, payloads=dead, epoch=epoch, earliest_expiry_ms="", complete_for="")
            )
        for reference in page.unreadable:
            aside = quarantined_key(client_id, reference.serial, prefix=self._prefix)
            calls.append(
                scripts.quarantine_message(
                    keys,
                    payload=reference.member,
                    quarantined=aside,
                    epoch=epoch,
                    serial=reference.serial,
                    keep_ms=QUARANTINE_MS,
                    client_id="",
                )
            )
        if calls:
            for reply in (yield calls):
                checked(reply)

    @keeps(SessionOperations.mark_delivered)
    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        check_integer("serial", serial, 0, MAX_SERIAL, "of a message that was fetched")
        keys = self._keys(client_id)
        call = scripts.mark_delivered(keys, epoch=self._epoch(keys), serial=serial, keep_ms=self._session_expiry_ms)
        return bool((yield from ask(call)))

    @keeps(SessionOperations.ack)
    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        keys = self._keys(client_id)
        calls: Step = []
        for start in range(0, len(acks), KEYS_PER_CALL):
            batch = acks[start : start + KEYS_PER_CALL]
            calls.append(
                scripts.ack(
                    keys,
                    payloads=[keys.payload(ack.packet_id) for ack in batch],
                    epoch=self._epoch(keys),
                    serials=["" if ack.serial is None else ack.serial for ack in batch],
                )
            )
        removed = 0
        if calls:
            for call, reply in zip(calls, (yield calls), strict=True):
                removed += sum(call.script.read(checked(reply)).removed)
        return AckReport(client_id=client_id, removed=removed, unknown=len(acks) - removed)

    @keeps(SessionOperations.mark_released)
    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """An unreadable record counts as missing."""
        check_packet_id(packet_id)
        check_serial(serial)
        keys = self._keys(client_id)
        call = scripts.mark_released(
            keys,
            payload=keys.payload(packet_id),
            epoch=self._epoch(keys),
            serial="" if serial is None else serial,
        )
        outcome = (yield from ask(call)).decode()
        # The next fetch quarantines it.
        return Release.MISSING if outcome == "unreadable" else Release(outcome)
