"""Delivery: a client's messages are fetched, marked as sent, and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.checks import check_integer
from queuekeeper.keyspace import quarantined_key
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import BYTES_PER_CALL, MAX_SERIAL, Page
from queuekeeper.sessions.model import Ack, Release, check_packet_id, check_serial
from queuekeeper.sessions.redis_operations.common import (
    KEYS_PER_CALL,
    NO_EXPIRY,
    REFERENCES_PER_LIST,
    CommonOperations,
    Keys,
    Reference,
    State,
    referenced_message,
)
from queuekeeper.sessions.reports import AckReport, PendingMessage
from queuekeeper.sessions.steps import Step, Steps, ask, checked
from queuekeeper.sessions.store import SessionOperations

QUARANTINE_MS = 604_800_000
"""How long a record without an expiry stays in quarantine."""


class DeliverOperations(CommonOperations):
    """Fetch, mark as delivered, acknowledge, mark as released."""

    def _page(
        self, client_id: str, state: State, *, after_serial: int, backlog_serial: int, limit: int, max_bytes: int
    ) -> Steps[Page]:
        keys = self._keys(client_id)
        page = Page(after_serial)
        references, page.more = yield from self._listed_page(
            keys, after_serial=after_serial, backlog_serial=backlog_serial, limit=limit
        )
        at = 0
        while at < len(references):
            # The next page begins after a serial, so messages that share one stay together, whatever their size.
            if page.messages and page.payload_bytes >= max_bytes and references[at].serial != page.after_serial:
                page.more = True
                return page
            # JSON holds the payload as base64, and some hundred bytes more.
            budget = min(BYTES_PER_CALL, max(0, max_bytes - page.payload_bytes) * 4 // 3 + 1_024)
            batch = references[at : at + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=budget)
            for reference, record in zip(batch, records, strict=False):
                json, expires_at_ms = record
                packet_id = keys.packet_id(reference.member)
                message: PendingMessage | None = None
                if packet_id is None:
                    page.foreign += 1
                elif not json and expires_at_ms < NO_EXPIRY:
                    page.dead.append(reference)
                else:
                    message = referenced_message(reference, record, state, client_id=client_id, packet_id=packet_id)
                    if message is None:
                        page.unreadable.append(reference)
                    elif (
                        page.messages
                        and page.payload_bytes + len(message.payload) > max_bytes
                        and reference.serial != page.after_serial
                    ):
                        page.more = True
                        return page
                    else:
                        page.messages.append(message)
                        page.payload_bytes += len(message.payload)
                page.after_serial = reference.serial
            at += len(records)
        return page

    def _listed_page(
        self, keys: Keys, *, after_serial: int, backlog_serial: int, limit: int
    ) -> Steps[tuple[list[Reference], bool]]:
        """List the references of a page, and tell whether another page follows.

        Other programs may give messages the same serial. A page ends before these, or has all of them, even if they are
        more than the limit; a page cannot begin between them.
        """
        found: list[Reference] = []
        while after_serial < backlog_serial and len(found) <= limit:
            # One reference more than wanted shows whether a page follows.
            wanted = min(REFERENCES_PER_LIST, limit + 1 - len(found))
            listed = yield from self._list(keys, "serial", after_serial, wanted)
            new = _between(after_serial, listed, backlog_serial)
            if len(listed) < wanted or listed[-1].serial > backlog_serial:
                return found + new, False
            # More may share the last serial.
            whole = [each for each in new if each.serial < listed[-1].serial]
            if wanted < REFERENCES_PER_LIST and (whole or found):
                return found + whole, True
            if wanted < REFERENCES_PER_LIST:
                listed = yield from self._list(keys, "serial", after_serial, REFERENCES_PER_LIST)
                new = _between(after_serial, listed, backlog_serial)
                first = [each for each in new if each.serial == new[0].serial]
                return first, len(first) < len(new) or (bool(new) and len(listed) == REFERENCES_PER_LIST)
            found += whole or new
            if not new:
                break
            after_serial = found[-1].serial
        return found, len(found) > limit

    def _clean_up(self, client_id: str, page: Page) -> Steps[None]:
        keys = self._keys(client_id)
        epoch = self._epoch(client_id)
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
        call = scripts.mark_delivered(
            keys, epoch=self._epoch(keys.client_id), serial=serial, keep_ms=self._session_expiry_ms
        )
        return bool((yield from ask(call)))

    @keeps(SessionOperations.ack)
    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        keys = self._keys(client_id)
        calls: Step = []
        for start in range(0, len(acks), self.acks_per_call):
            batch = acks[start : start + self.acks_per_call]
            calls.append(
                scripts.ack(
                    keys,
                    payloads=[keys.payload(ack.packet_id) for ack in batch],
                    epoch=self._epoch(keys.client_id),
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
            epoch=self._epoch(keys.client_id),
            serial="" if serial is None else serial,
        )
        outcome = (yield from ask(call)).decode()
        # The next fetch quarantines it.
        return Release.MISSING if outcome == "unreadable" else Release(outcome)


def _between(after_serial: int, listed: Sequence[Reference], last_serial: int) -> list[Reference]:
    """Return references of a range: a score that is not whole, listed behind its serial, counts as that serial."""
    return [each for each in listed if after_serial < each.serial <= last_serial]
