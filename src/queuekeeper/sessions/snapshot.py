"""A snapshot of a session in a form that both stores share, and the differences between two snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

from queuekeeper.keyspace import MAX_PACKET_ID, safe_counter
from queuekeeper.sessions.judge import MAX_SERIAL
from queuekeeper.sessions.reports import PendingMessage

_COMPARED = tuple(field.name for field in fields(PendingMessage) if field.name not in {"serial", "redelivery"})
_CONTENT = frozenset({"payload", "correlation_data", "user_properties"})
"""Fields that a publisher wrote; no report shows them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBatch:
    """The last batch that a session has saved from a source; its offset tells a repeated batch.

    :param source: name of what numbers the batches.
    """

    source: str
    offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSnapshot:
    """What must be equal in both stores before a session may change its owner.

    :param last_packet_id: packet id given out last, see :func:`last_given`; none before the first.
    :param last_serial: serial given out last; none before the first.
    :param delivered_serial: messages up to this serial have been sent; none when the store does not record it.
    :param batches: the last batch of each source, ordered by name.
    :param messages: live messages ordered by serial: all, or those with the requested serials.
    """

    client_id: str
    last_packet_id: int | None
    last_serial: int | None
    delivered_serial: int | None
    batches: tuple[SourceBatch, ...] = ()
    messages: tuple[PendingMessage, ...] = ()

    def for_redis(self) -> SessionSnapshot:
        """Return what Redis must hold of a whole session of PostgreSQL.

        In Redis, a broker overwrites the message whose packet id it gives out again, so the last packet id must be past
        the ids of waiting messages. Offline migrations do the same.
        """
        waiting = [message.packet_id for message in self.messages]
        return replace(self, last_packet_id=safe_counter(self.last_packet_id, waiting))


def empty_snapshot(client_id: str) -> SessionSnapshot:
    """Return the snapshot of a session that does not exist."""
    return SessionSnapshot(client_id=client_id, last_packet_id=None, last_serial=None, delivered_serial=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outbox:
    """Changes of a session in Redis that were not written to PostgreSQL yet.

    :param epoch: epoch of the session when the outbox was read.
    :param version: number that grows with every change.
    :param since_ms: Redis's time of the oldest of these changes.
    :param serials: messages that were added, removed or released; none when any message may have changed. Other fields,
        such as the last packet id, may have changed too.
    :param read_ms: Redis's time when the outbox was read.
    """

    client_id: str
    epoch: int
    version: int
    since_ms: int
    serials: tuple[int, ...] | None
    read_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One difference between two snapshots of a session; its text form is a sentence without content of messages.

    :param what: field of the snapshot or of a message, ``message`` for a message that one snapshot lacks, or ``batch``.
    :param serial: serial of the message; none when no message differs.
    :param source: source of the batch; none when no batch differs.
    :param expected: expected value as text; empty when there is none, a size for content.
    :param found: value that was found, in the same form.
    """

    client_id: str
    what: str
    expected: str
    found: str
    serial: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        subject = self.what
        if self.serial is not None:
            subject += f" {self.serial}" if subject == "message" else f" of message {self.serial}"
        if self.source is not None:
            subject += f" of source {self.source!r}"
        if self.expected == self.found:
            return f"{self.client_id!r}: {subject} is another of {self.found}"
        return f"{self.client_id!r}: {subject} is {self.found or 'missing'}, not {self.expected or 'missing'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplyReport:
    """Result of making a session equal to a snapshot.

    :param written: messages written.
    :param removed: messages removed.
    """

    written: int
    removed: int


def last_given(
    *, counter: int | None, last_serial: int | None, newest: PendingMessage | None
) -> tuple[int | None, int | None]:
    """Return the packet id and the serial that a session in PostgreSQL has given out last.

    The session's counter decides, unless it is not a packet id or the newest message has a greater serial than the
    session records; then the packet id of that message decides. Offline migrations apply the same rule in
    ``migration.offline.transforms``. Redis needs a packet id past those in use, see :meth:`SessionSnapshot.for_redis`.

    :param counter: last packet id in the session's row; it may be any number, or none.
    :param last_serial: last serial in the session's row; it may be any number, or none.
    :param newest: message with the greatest serial among the readable ones, expired or not.
    """
    known = -1 if last_serial is None else last_serial
    usable = counter is not None and 1 <= counter <= MAX_PACKET_ID
    packet_id = counter if usable else None
    if newest is not None and (newest.serial > known or not usable):
        packet_id = newest.packet_id
    serials = [known] if 0 <= known <= MAX_SERIAL else []
    if newest is not None:
        serials.append(newest.serial)
    return packet_id, max(serials, default=None)


def differences(expected: SessionSnapshot, found: SessionSnapshot, *, as_of_ms: int | None = None) -> list[Difference]:
    """Compare two snapshots of a session in all fields except ``redelivery``, which follows from the others.

    Messages that share a serial always differ, since a copy of them would hold one.

    :param as_of_ms: ignore messages that have expired by this instant, since the stores were read at different times;
        none compares all messages.
    """
    found_differences = [
        Difference(client_id=expected.client_id, what=name, expected=_shown(mine), found=_shown(other))
        for name in ("client_id", "last_packet_id", "last_serial", "delivered_serial")
        if (mine := getattr(expected, name)) != (other := getattr(found, name))
    ]
    found_differences += _batch_differences(expected, found)
    found_differences += _message_differences(expected, found, as_of_ms)
    return found_differences


def _batch_differences(expected: SessionSnapshot, found: SessionSnapshot) -> Iterator[Difference]:
    mine = {batch.source: batch.offset for batch in expected.batches}
    others = {batch.source: batch.offset for batch in found.batches}
    for source in sorted(mine.keys() | others.keys()):
        if mine.get(source) != others.get(source):
            yield Difference(
                client_id=expected.client_id,
                what="batch",
                source=source,
                expected=_shown(mine.get(source)),
                found=_shown(others.get(source)),
            )


def _message_differences(
    expected: SessionSnapshot, found: SessionSnapshot, as_of_ms: int | None
) -> Iterator[Difference]:
    mine, others = _by_serial(expected, as_of_ms), _by_serial(found, as_of_ms)
    for serial in sorted(mine.keys() | others.keys()):
        ours, theirs = mine.get(serial, ()), others.get(serial, ())
        if len(ours) > 1 or len(theirs) > 1:
            # A set in TBMQ's layout may have such; no other store can hold more than one of them.
            yield Difference(
                client_id=expected.client_id,
                what="message",
                serial=serial,
                expected=", ".join(map(_identity, ours)) + f" ({len(ours)} of this serial)" * (len(ours) > 1),
                found=", ".join(map(_identity, theirs)) + f" ({len(theirs)} of this serial)" * (len(theirs) > 1),
            )
            continue
        message, other = next(iter(ours), None), next(iter(theirs), None)
        if message is None or other is None:
            yield Difference(
                client_id=expected.client_id,
                what="message",
                serial=serial,
                expected=_identity(message),
                found=_identity(other),
            )
            continue
        for name in _COMPARED:
            value, other_value = getattr(message, name), getattr(other, name)
            if value != other_value:
                show = _size if name in _CONTENT else _shown
                yield Difference(
                    client_id=expected.client_id,
                    what=name,
                    serial=serial,
                    expected=show(value),
                    found=show(other_value),
                )


def _by_serial(snapshot: SessionSnapshot, as_of_ms: int | None) -> dict[int, list[PendingMessage]]:
    found: dict[int, list[PendingMessage]] = {}
    for message in snapshot.messages:
        if _is_alive(message, as_of_ms):
            found.setdefault(message.serial, []).append(message)
    return found


def _is_alive(message: PendingMessage, as_of_ms: int | None) -> bool:
    return as_of_ms is None or message.expires_at_ms is None or message.expires_at_ms > as_of_ms


def _identity(message: PendingMessage | None) -> str:
    return "" if message is None else f"{message.packet_type} with packet id {message.packet_id}"


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _size(value: Any) -> str:
    if value is None:
        return ""
    return f"{len(value)} {'bytes' if isinstance(value, bytes) else 'pairs'}"
