"""The interface of all stores of DEVICE sessions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from queuekeeper.checks import check_integer, check_page
from queuekeeper.operation import Operation
from queuekeeper.sessions.model import Ack, Release, SessionSave
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.reports import (
    AckReport,
    ExportPage,
    ImportReport,
    PendingMessage,
    PendingPage,
    PurgeReport,
    SaveReport,
    SessionView,
)

FIRST_SERIAL = -1
"""Serial before the first; the vendor's broker begins here too."""

PAGE_BYTES = 4_000_000
"""Default for the payload bytes of a page; a single larger message is a page of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageWish:
    """Parameters of a page of a client's messages; see :meth:`FetchOperations.fetch_pending`."""

    after_serial: int
    backlog_serial: int | None
    limit: int
    max_bytes: int
    mark_delivered: bool

    def check(self, highest_serial: int) -> None:
        """Refuse parameters that are out of range.

        :param highest_serial: highest serial of the store.
        :raises UsageError: naming the parameter, its value and the rule.
        """
        check_page(0, self.limit, most=MAX_PAGE)
        check_integer("after_serial", self.after_serial, FIRST_SERIAL, highest_serial, "from the page before")
        check_integer("max_bytes", self.max_bytes, 1, 2**53 - 1, "a page holds at least one message")


class FetchOperations(Protocol):
    """Fetches messages; the parameters are the same for every store."""

    def fetch_pending(
        self,
        client_id: str,
        *,
        after_serial: int = FIRST_SERIAL,
        backlog_serial: int | None = None,
        limit: int = DEFAULT_PAGE,
        max_bytes: int = PAGE_BYTES,
        mark_delivered: bool = False,
    ) -> Operation[PendingPage]:
        """Return a page of a client's messages, in order; call it on reconnect until ``more`` is false.

        :param after_serial: ``after_serial`` of the page before; by default, the page begins at the oldest message.
        :param backlog_serial: ``backlog_serial`` of the page before, so that the last page ends where the queue ended
            when the first page was read.
        :param mark_delivered: record that the messages of the page are being sent, for ``redelivery`` in later fetches.
        """
        wish = PageWish(
            after_serial=after_serial, backlog_serial=backlog_serial, limit=limit, max_bytes=max_bytes,
            mark_delivered=mark_delivered,
        )  # fmt: skip
        return (yield from self._fetch_page(client_id, wish))

    @abstractmethod
    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        """Read the page."""


class SessionOperations(FetchOperations, Protocol):
    """The operations of a store.

    A blocking store has a method for each that returns the result, an asyncio store has a coroutine method.
    """

    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Store messages for many sessions, in order per session; the report of a session that failed has ``error``.

        Two saves for one session in a call are done one after the other; after one that failed, no later one is stored,
        since it would come before the one that the caller repeats. Messages get the packet ids after the
        session's last one, without ids of waiting messages. A session over its limit is then trimmed: references to
        expired messages first, then the oldest messages that were not delivered, then the oldest messages in flight.

        :returns: a report for each save, in order.
        :raises UsageError: when a payload is larger than the store's rules allow; nothing is written then.
        """

    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """Record that messages up to a serial have been sent; the recorded serial never decreases.

        :returns: whether the recorded serial has grown.
        """

    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        """Remove messages that the client has confirmed by PUBACK or PUBCOMP; a repeated call removes nothing."""

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """Record a PUBREC: the record becomes PUBREL, without a body, and keeps its place and expiry."""

    def purge_session(self, client_id: str, *, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove a session with all its messages, in bounded steps; messages saved during the purge stay."""

    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        """Return the packet id given out last; none before the first."""

    def has_saved(self, client_id: str, *, source: str) -> Operation[bool]:
        """Return whether a source has saved a batch in a session, which a repetition of it would not store again."""

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        """Set the packet id given out last, if it still is ``expected``.

        :returns: whether it was set.
        """

    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        """Give out packet ids atomically, for messages stored elsewhere, such as those of a shared subscription.

        :param count: 1 to 1,000.
        :raises PacketIdInUse: when fewer ids are free.
        """

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """Return a session and a page of its messages, without content; nothing is changed."""

    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """Return one message with its content; none when no message has this packet id. Nothing is changed."""

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """Return a page of a session as JSON Lines: a line for the session, then a line per message, in order.

        :param after_serial: ``after_serial`` of the page before; none for the first page.
        """

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """Store an exported session when the client has none; serials, packet ids and expiry are kept.

        :raises UsageError: naming the line that is not valid; nothing is written then.
        :raises MovedOn: when the session exists.
        """
