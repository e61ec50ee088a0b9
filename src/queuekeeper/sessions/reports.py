"""What the stores of DEVICE sessions say: messages, views and reports."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum

from queuekeeper.errors import QueuekeeperError
from queuekeeper.quick_init import quick_init
from queuekeeper.sessions.judge import Reason


class Problem(StrEnum):
    """Why a reference in Redis, or a row of PostgreSQL, leads to no message."""

    DANGLING = "dangling"  # the payload key has expired or was removed
    FOREIGN = "foreign"  # the reference does not name a payload key of this session, and is not followed
    UNREADABLE = "unreadable"  # the payload key or the row holds something else than a message that can be delivered


@dataclass(frozen=True, kw_only=True)
class MessageView:
    """One pending message without its content.

    What the store does not say, or what a broken reference hides, is none.

    :param serial: place in the order of delivery.
    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC.
    :param payload_bytes: size of the payload itself, without base64.
    :param time_ms: when the broker received it.
    :param expires_at_ms: end of its life; none for a record in Redis that has no end.
    :param problem: set when the reference leads to no message, or nobody can deliver the one that it leads to.
    :param reason: rule that the message breaks, in the words of the quarantine.
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
    """What the session hash in Redis says about the migration that wrote the session.

    :param state: number of the next chunk, or ``done``.
    :param references: references that the import left.
    :param last_packet_id: last packet id that it wrote.
    :param touched: whether somebody has used the session since.
    """

    plan_id: str
    state: str
    references: int | None
    last_packet_id: int | None
    touched: bool


@dataclass(frozen=True, kw_only=True)
class SessionCounts:
    """What has become of a session's messages beside delivery, as far as its store has seen it.

    :param trimmed: live messages removed because the session was over its limit.
    :param expired: messages whose life was over when they were saved or found.
    :param refused: messages refused for their expiry interval.
    :param quarantined: records set aside because they cannot be read.
    """

    trimmed: int = 0
    expired: int = 0
    refused: int = 0
    quarantined: int = 0


@dataclass(frozen=True, kw_only=True)
class SessionView:
    """A session and one page of its messages, in the order of delivery.

    :param store: ``redis`` or ``postgres``.
    :param exists: whether the store holds anything of the session.
    :param messages: all messages of the session; references in Redis, rows in PostgreSQL.
    :param offset: messages before the page.
    :param page: messages of the page.
    :param last_serial: serial given out last, where the store keeps it.
    :param delivered_serial: messages up to it have been sent; none when the store does not say.
    :param counts: none when the store has no record of its own for the session.
    :param owner: store that owns the session, where Redis says so.
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
        """Offset of the next page, or none at the end."""
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
    """Why one message of a batch was not stored, while its neighbours were."""

    EXPIRED = "expired"  # its life, counted from its own time, is over
    EXPIRY_OUT_OF_RANGE = "expiry_out_of_range"  # the interval is not four unsigned bytes (MQTT 5 section 3.3.2.3.3)


@quick_init
@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """Result of one :class:`SessionSave`.

    :param packet_ids: packet id of each message, none where it was refused.
    :param serials: serial of each message, none where it was refused.
    :param refused: why, by position in the batch.
    :param trimmed: messages removed because the session was over its limit, live ones only.
    :param trimmed_in_flight: those of ``trimmed`` that had been delivered and not acknowledged.
    :param dead: references removed whose message had expired; they make room before live messages do.
    :param replayed: the batch had been stored before; nothing was stored again.
    :param forgotten: a replayed batch is older than the last one of its source, so its ids are no longer known.
    :param replicated: whether as many replicas as asked for have it; none when none were asked for.
    :param error: set when this session's part failed; then nothing else is, and other sessions are not affected.
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
            # One error may have ended the saves of many sessions.
            if error.client_id not in (None, self.client_id):
                error = self.__dict__["error"] = copy(error)
                error.client_id = self.client_id
            error.about(client_id=self.client_id)

    @property
    def stored(self) -> int:
        """Messages that are in the store because of this batch."""
        return sum(packet_id is not None for packet_id in self.packet_ids)


@quick_init
@dataclass(frozen=True, kw_only=True)
class PendingMessage:
    """A message to deliver, or an exchange to finish.

    :param packet_type: ``PUBLISH``, or ``PUBREL`` once the client has sent PUBREC; the latter has no payload any more.
    :param expires_at_ms: end of its life; none without one.
    :param expiry_interval_s: as the publisher set it; what is left of it is :meth:`remaining_s`.
    :param redelivery: it has been sent before, so PUBLISH carries DUP (MQTT 5 section 3.3.1.1).
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
        """Return the expiry interval to send on, less the time it has waited (MQTT 5 section 3.3.2.3.3).

        :returns: none when the publisher set none; 0 when its life is over.
        """
        if self.expiry_interval_s is None:
            return None
        return max(0, self.expiry_interval_s - max(0, -((self.time_ms - now_ms) // 1000)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingPage:
    """One page of a session's messages, in the order of delivery.

    :param after_serial: pass it to the next call; it has moved past expired and unreadable records too.
    :param backlog_serial: highest serial when the first page was read. A message saved later has a greater one, and
        must wait until the pages have reached this serial.
    :param more: whether there may be messages up to ``backlog_serial`` that were not read yet.
    :param expired: references of the page that led to no message.
    :param unreadable: records of the page that nobody can read; they were put in quarantine.
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
    """What acknowledgements removed.

    :param removed: messages removed.
    :param unknown: acknowledgements that met no message, or one of another serial.
    """

    client_id: str
    removed: int
    unknown: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PurgeReport:
    """What a purge removed.

    :param messages: references or rows removed; in a dry run, what would be.
    :param kept: messages that were saved while the purge ran, and stay.
    :param dry_run: nothing was removed.
    """

    client_id: str
    messages: int
    kept: int
    dry_run: bool


@dataclass(kw_only=True, slots=True)
class PurgeProgress:
    """How far a purge has come, so that it can go on where it was interrupted, also in another store.

    :param up_to_serial: what has a greater serial was saved meanwhile; none before the first step.
    :param removed: references or rows removed so far.
    """

    up_to_serial: int | None = None
    removed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPage:
    """A part of a session as JSON Lines.

    :param lines: each a JSON object, without line end; the first page begins with the session's own line.
    :param after_serial: pass it to the next call.
    :param more: whether there is a next page.
    :param unreadable: records left out because nobody can read them.
    """

    lines: tuple[bytes, ...]
    after_serial: int
    more: bool
    unreadable: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What an import of JSON Lines stored.

    :param stored: messages that are in the session now.
    :param expired: messages whose life was over.
    """

    client_id: str
    stored: int
    expired: int
    last_packet_id: int | None
