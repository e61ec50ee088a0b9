"""Messages, views and reports that the stores of DEVICE sessions return."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError
from queuekeeper.quick_init import quick_init
from queuekeeper.sessions.judge import Reason


class Problem(StrEnum):
    """Why a reference in Redis or a row in PostgreSQL is not a message."""

    DANGLING = "dangling"  # the payload key has expired or was removed
    FOREIGN = "foreign"  # the reference does not name a payload key of this session, and is not followed
    UNREADABLE = "unreadable"  # the payload key or the row does not hold a message that can be delivered


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """One pending message without its content.

    Values that the store does not have, or that a broken reference hides, are none.

    :param serial: place in the order of delivery.
    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC.
    :param payload_bytes: size of the payload itself, without base64.
    :param time_ms: when the broker received the message.
    :param expires_at_ms: end of its life; none for a record in Redis without expiry.
    :param problem: set when the reference leads to no message, or to one that cannot be delivered.
    :param reason: reason of the rule that the message breaks, as in the quarantine.
    """

    serial: int
    packet_id: int | None = None
    packet_type: str | None = None
    qos: int | None = None
    topic: str | None = None
    payload_bytes: int | None = None
    time_ms: int | None = None
    expires_at_ms: int | None = None
    problem: Problem | None = None
    reason: Reason | None = None


@dataclass(frozen=True, kw_only=True)
class ImportView:
    """The import of a session by a migration, as recorded in the session hash in Redis.

    :param state: number of the next chunk to import, or ``done``.
    :param references: references after the import.
    :param last_packet_id: last packet id that the import wrote.
    :param touched: whether somebody has used the session since.
    """

    plan_id: str
    state: str
    references: int | None
    last_packet_id: int | None
    touched: bool


@dataclass(frozen=True, kw_only=True)
class SessionCounts:
    """Messages of a session that were not delivered, as counted by its store.

    :param trimmed: live messages removed because the session was over its limit.
    :param expired: messages that had expired when they were saved or found.
    :param refused: messages whose expiry interval was out of range.
    :param quarantined: unreadable records that were put in quarantine.
    """

    trimmed: int = 0
    expired: int = 0
    refused: int = 0
    quarantined: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session and one page of its messages, in the order of delivery.

    :param store: ``redis`` or ``postgres``.
    :param exists: whether the store has the session.
    :param messages: all messages of the session; references in Redis, rows in PostgreSQL.
    :param offset: messages before the page.
    :param page: messages of the page.
    :param last_serial: serial given out last; none when the store does not record it.
    :param delivered_serial: messages up to this serial have been sent; none when the store does not record it.
    :param counts: none when the store has counted nothing for the session.
    :param owner: store that owns the session, as recorded in Redis.
    :param imported: none when no migration wrote the session.
    """

    client_id: str
    store: str
    exists: bool
    messages: int
    offset: int
    page: tuple[MessageView, ...]
    last_packet_id: int | None
    last_serial: int | None = None
    delivered_serial: int | None = None
    counts: SessionCounts | None = None
    owner: str | None = None
    epoch: int | None = None
    imported: ImportView | None = None

    @property
    def next_offset(self) -> int | None:
        """Offset of the next page; none at the end."""
        reached = self.offset + len(self.page)
        return reached if self.page and reached < self.messages else None

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads of the page."""
        return sum(message.payload_bytes or 0 for message in self.page)

    @property
    def problems(self) -> dict[Problem, int]:
        """Broken references of the page by kind."""
        counts: dict[Problem, int] = {}
        for message in self.page:
            if message.problem is not None:
                counts[message.problem] = counts.get(message.problem, 0) + 1
        return counts


class Refusal(StrEnum):
    """Why one message of a batch was not stored; the other messages were."""

    EXPIRED = "expired"  # its life, counted from its own time, is over
    EXPIRY_OUT_OF_RANGE = "expiry_out_of_range"  # the interval is not four unsigned bytes (MQTT 5 section 3.3.2.3.3)


@quick_init
@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """Result of one :class:`SessionSave`.

    :param packet_ids: packet id of each message; none for a refused message.
    :param serials: serial of each message; none for a refused message.
    :param refused: reasons of refused messages, by position in the batch.
    :param trimmed: live messages removed because the session was over its limit.
    :param trimmed_in_flight: messages among ``trimmed`` that had been delivered and not acknowledged.
    :param dead: references to expired messages that were removed; they are removed before live messages.
    :param replayed: whether the batch had been stored before; nothing was stored again.
    :param forgotten: whether a replayed batch is older than the last one of its source, so that its ids are not known.
    :param replicated: whether the requested number of replicas has the save; none when none was requested.
    :param error: error of this save; all other fields then have their defaults. Other sessions are not affected.
    """

    client_id: str
    packet_ids: tuple[int | None, ...] = ()
    serials: tuple[int | None, ...] = ()
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    trimmed: int = 0
    trimmed_in_flight: int = 0
    dead: int = 0
    replayed: bool = False
    forgotten: bool = False
    replicated: bool | None = None
    error: QueuekeeperError | None = None

    def __post_init__(self) -> None:
        error = self.error
        if error is not None:
            # One error may end the saves of many sessions.
            if error.client_id not in (None, self.client_id):
                error = self.__dict__["error"] = copy(error)
                error.client_id = self.client_id
            error.about(client_id=self.client_id)

    @property
    def stored(self) -> int:
        """How many messages of this batch the store has."""
        return sum(packet_id is not None for packet_id in self.packet_ids)


@quick_init
@dataclass(frozen=True, kw_only=True)
class PendingMessage:
    """A message to deliver, or an exchange to finish.

    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC; a PUBREL has no payload.
    :param expires_at_ms: end of its life; none when it does not expire.
    :param expiry_interval_s: interval that the publisher set; :meth:`remaining_s` returns what is left of it.
    :param redelivery: whether it has been sent before, so that PUBLISH carries DUP (MQTT 5 section 3.3.1.1).
    """

    serial: int
    packet_id: int
    packet_type: str
    topic: str
    payload: bytes = field(repr=False)
    qos: int
    time_ms: int
    expires_at_ms: int | None
    redelivery: bool
    retain: bool = False
    expiry_interval_s: int | None = None
    payload_format_indicator: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = field(default=None, repr=False)
    user_properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    subscription_ids: tuple[int, ...] = ()

    def remaining_s(self, *, now_ms: int) -> int | None:
        """Return the expiry interval to send: what is left after the time waited (MQTT 5 section 3.3.2.3.3).

        :returns: seconds; none when the publisher set no interval, 0 when the message has expired.
        """
        if self.expiry_interval_s is None:
            return None
        return max(0, self.expiry_interval_s - max(0, -((self.time_ms - now_ms) // 1000)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPage:
    """One page of a session's messages, in the order of delivery.

    :param after_serial: pass it to the next call; it is past expired and unreadable records too.
    :param backlog_serial: highest serial when the first page was read. Messages saved later have greater serials;
        deliver them after the pages have reached this serial.
    :param more: whether messages up to ``backlog_serial`` may be left to read.
    :param expired: references of the page whose messages had expired.
    :param unreadable: unreadable records of the page, now in quarantine.
    """

    client_id: str
    messages: tuple[PendingMessage, ...]
    after_serial: int
    backlog_serial: int
    more: bool
    expired: int = 0
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AckReport:
    """Result of acknowledgements.

    :param removed: messages removed.
    :param unknown: acknowledgements without a message of this packet id and serial.
    """

    client_id: str
    removed: int
    unknown: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeReport:
    """Result of a purge.

    :param messages: references or rows removed; in a dry run, that would be removed.
    :param kept: messages that were saved during the purge and stay.
    :param dry_run: whether it was a dry run, which removes nothing.
    """

    client_id: str
    messages: int
    kept: int
    dry_run: bool


@dataclass(kw_only=True, slots=True)
class PurgeProgress:
    """Progress of a purge, from which an interrupted purge can continue, also in another store.

    :param up_to_serial: greatest serial to remove; later messages were saved during the purge. None before the start.
    :param removed: references or rows removed so far.
    """

    up_to_serial: int | None = None
    removed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPage:
    """A page of a session as JSON Lines.

    :param lines: JSON objects without line ends; the first line of the first page describes the session.
    :param after_serial: pass it to the next call.
    :param more: whether there is a next page.
    :param unreadable: unreadable records that were left out.
    """

    lines: tuple[bytes, ...]
    after_serial: int
    more: bool
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """Result of an import of JSON Lines.

    :param stored: messages stored.
    :param expired: messages that had expired and were not stored.
    """

    client_id: str
    stored: int
    expired: int
    last_packet_id: int | None
