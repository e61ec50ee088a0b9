"""Delivery: a client's messages are fetched, marked as sent, and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from queuekeeper.checks import check_integer
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.judge import MAX_SERIAL
from queuekeeper.sessions.model import Ack, Release, check_packet_id, check_serial
from queuekeeper.sessions.postgres_operations.common import (
    ROWS_PER_STEP,
    CommonOperations,
    Query,
    Step,
    check_vendor_id,
)
from queuekeeper.sessions.postgres_operations.rows import count_removed_query
from queuekeeper.sessions.reports import AckReport, PendingMessage, PendingPage
from queuekeeper.sessions.store import FIRST_SERIAL, FetchOperations, PageWish, SessionOperations
from queuekeeper.sessions.wire import UnreadableError

LOWEST_SERIAL, HIGHEST_SERIAL = -(2**63), 2**63 - 1
"""Range of the vendor's column, which also holds serials that no store keeps."""


@dataclass(slots=True, kw_only=True)
class Page:
    """The content of a page of rows; ``unreadable`` has reasons by serial."""

    after_serial: int
    backlog_serial: int
    messages: list[PendingMessage] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    more: bool = False


class DeliverOperations(CommonOperations, FetchOperations):
    """Fetch, mark as delivered, acknowledge, mark as released."""

    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        check_vendor_id(client_id)
        wish.check(HIGHEST_SERIAL)
        if wish.backlog_serial is not None:
            check_integer("backlog_serial", wish.backlog_serial, LOWEST_SERIAL, HIGHEST_SERIAL, "from the page before")
        page = yield from self._read_page(
            client_id,
            # Broken rows may have negative serials; a fetch from the beginning finds them.
            after_serial=wish.after_serial if wish.after_serial > FIRST_SERIAL else None,
            backlog_serial=wish.backlog_serial,
            limit=wish.limit,
            max_bytes=wish.max_bytes,
        )
        if page.expired or page.unreadable:
            yield from self._transaction(put_away(client_id, page, self._hold([client_id])))
        if wish.mark_delivered and page.messages:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page.messages),
            after_serial=max(page.after_serial, FIRST_SERIAL),
            backlog_serial=page.backlog_serial,
            more=page.more,
            expired=len(page.expired),
            unreadable=len(page.unreadable),
        )

    def _read_page(
        self, client_id: str, *, after_serial: int | None, backlog_serial: int | None, limit: int, max_bytes: int
    ) -> Operation[Page]:
        """Read a page of rows.

        :param after_serial: serial after which the page begins; none for the first page.
        """
        parameters = {
            "client_id": client_id,
            "first_serial": LOWEST_SERIAL if after_serial is None else min(after_serial + 1, HIGHEST_SERIAL),
            "backlog_serial": backlog_serial,
            "limit": limit,
            "max_bytes": max_bytes,
            "default_ttl_s": self._rules.default_ttl_s,
        }
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="fetch_pending", parameters=parameters),))
        backlog_serial, delivered_serial, now_ms, available, *_ = rows[0]
        page = Page(after_serial=FIRST_SERIAL if after_serial is None else after_serial, backlog_serial=backlog_serial)
        if available is None:
            return page
        page.more = available > len(rows)
        for _, _, _, _, *columns in rows:
            page.after_serial = serial = columns[0]
            try:
                message = self._pending(columns, delivered_serial=delivered_serial)
            except UnreadableError as error:
                page.unreadable[serial] = str(error)
                continue
            if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                page.expired.append(serial)
            else:
                page.messages.append(message)
        return page

    @keeps(SessionOperations.mark_delivered)
    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        check_vendor_id(client_id)
        check_integer("serial", serial, 0, MAX_SERIAL, "of a message that was fetched")
        answer = yield Step(
            begin=True,
            end=True,
            queries=(
                self._hold([client_id]),
                Query(name="forget_cleared_sessions", parameters={"client_ids": [client_id]}),
                Query(name="mark_delivered", parameters={"client_id": client_id, "serial": serial}),
            ),
        )
        return bool(answer[-1])

    @keeps(SessionOperations.ack)
    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        check_vendor_id(client_id)
        removed = unknown = 0
        for begin in range(0, len(acks), ROWS_PER_STEP):
            part = acks[begin : begin + ROWS_PER_STEP]
            parameters = {
                "client_id": client_id,
                "packet_ids": [ack.packet_id for ack in part],
                "serials": [ack.serial for ack in part],
            }
            _, rows = yield Step(
                begin=True, end=True, queries=(self._hold([client_id]), Query(name="ack", parameters=parameters))
            )
            removed += len(rows)
            left = set(rows)
            for ack in part:
                met = {row for row in left if row[0] == ack.packet_id and ack.serial in (None, row[1])}
                left -= met
                unknown += not met
        return AckReport(client_id=client_id, removed=removed, unknown=unknown)

    @keeps(SessionOperations.mark_released)
    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        check_vendor_id(client_id)
        check_packet_id(packet_id)
        check_serial(serial)
        parameters = {
            "client_id": client_id,
            "packet_id": packet_id,
            "serial": serial,
            "default_ttl_s": self._rules.default_ttl_s,
        }
        _, ((released, released_before),) = yield Step(
            begin=True, end=True, queries=(self._hold([client_id]), Query(name="mark_released", parameters=parameters))
        )
        if released:
            return Release.RELEASED
        return Release.ALREADY if released_before else Release.MISSING


def put_away(client_id: str, page: Page, *before: Query) -> Operation[int]:
    """Remove and count the expired and unreadable rows of a page, in the caller's transaction.

    Rows that others have removed since the page was read are not counted.

    :param before: statements to execute first.
    :returns: how many messages were quarantined.
    """
    parameters = {"client_id": client_id, "serials": list(page.unreadable), "reasons": list(page.unreadable.values())}
    *_, ((expired,),), ((put_aside,),) = yield Step(
        queries=(
            *before,
            Query(name="remove_messages", parameters={"client_id": client_id, "serials": page.expired}),
            Query(name="quarantine_messages", parameters=parameters),
        )
    )
    yield Step(queries=(count_removed_query([(client_id, expired, put_aside)]),))
    return int(put_aside)
