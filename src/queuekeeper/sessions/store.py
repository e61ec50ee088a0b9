"""The contract of a store of DEVICE sessions, which every store keeps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from queuekeeper.checks import check_integer, check_page
from queuekeeper.operation import Operation
from queuekeeper.sessions.model import DEFAULT_PAGE, MAX_PAGE, Ack, Release, SessionSave
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
"""Serial before all others; the vendor's broker begins here, too."""

PAGE_BYTES = 4_000_000
"""Payload bytes of a page by default; a single larger message is a page of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PageWish:
    """Which page of what waits for a client is wanted; see :meth:`FetchOperations.fetch_pending`."""

    after_serial: int
    backlog_serial: int | None
    limit: int
    max_bytes: int
    mark_delivered: bool

    def check(self, highest_serial: int) -> None:
        """Refuse a page that no store would read.

        :param highest_serial: of the store.
        :raises UsageError: naming the parameter, its value and the rule.
        """
        check_page(0, self.limit, most=MAX_PAGE)
        check_integer("after_serial", self.after_serial, FIRST_SERIAL, highest_serial, "from the page before")
        check_integer("max_bytes", self.max_bytes, 1, 2**53 - 1, "a page holds at least one message")


class FetchOperations(Protocol):
    """Fetching: its parameters are named here, for every store."""

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
        """Return a page of what waits for a client, in order; to be called on reconnect until ``more`` is false.

        :param after_serial: from the page before; the default begins at the oldest.
        :param backlog_serial: from the page before, so that all pages end where the first one saw the end.
        :param mark_delivered: note that what the page holds is being sent, for ``redelivery`` after the next fetch.
        """
        wish = PageWish(
            after_serial=after_serial, backlog_serial=backlog_serial, limit=limit, max_bytes=max_bytes,
            mark_delivered=mark_delivered,
        )  # fmt: skip
        return (yield from self._fetch_page(client_id, wish))

    @abstractmethod
    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        """Do it."""


class SessionOperations(FetchOperations, Protocol):
    """What a store does, as operations.

    A blocking store offers each as a method that returns the result, an asyncio store as a coroutine method.
    """

    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Store messages for many sessions, each session's in order; one session's failure is its report's ``error``.

        Two saves for one session in a call are done one after the other. Messages get the packet ids that follow the
        session's last one; ids of messages that still wait are passed over. What is over the limit afterwards is
        trimmed: references to expired messages first, then the oldest message that was not delivered, then the
        oldest in flight.

        :returns: a report for each save, in order.
        :raises UsageError: when a payload is larger than the store's rules allow; nothing was written then.
        """

    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """Note that messages up to a serial have been sent; the note survives the process and never goes back.

        :returns: whether it moved.
        """

    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        """Remove messages that the client has confirmed by PUBACK or PUBCOMP; a repeated call removes nothing."""

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """Note a PUBREC: the record becomes PUBREL, loses its body and keeps place and expiry."""

    def purge_session(self, client_id: str, *, dry_run: bool = False) -> Operation[PurgeReport]:
        """Remove a session with all its messages, in bounded steps; messages saved meanwhile survive."""

    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        """Return the packet id given out last; none when none ever was."""

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        """Set the packet id given out last if it still is the expected one.

        :returns: whether it was set.
        """

    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        """Give out packet ids atomically, for messages that are kept elsewhere, as in a shared subscription.

        :param count: 1 to 1,000.
        :raises PacketIdInUse: when so many free ids do not exist.
        """

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """Describe a session and a page of its messages, without content and without changing anything."""

    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """Return one message with its content, changing nothing; none when no message has this packet id."""

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """Return a page of a session as JSON Lines: its own line first, then a line per message, in order.

        :param after_serial: none for the first page.
        """

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """Store an exported session where no session of this client id is; serials, ids and expiry stay.

        :raises UsageError: naming the line that is not one of an export; nothing was written then.
        :raises MovedOn: when the session exists.
        """
