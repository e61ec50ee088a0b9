"""Shared by the operations of sessions in Redis: steps, names of keys, and reading of sessions and records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from queuekeeper.keyspace import (
    MAX_PACKET_ID,
    payload_key,
    session_keys,
    suffix_packet_id,
)
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.sessions.layouts import MAX_SERIAL, LayoutOperations, known_serial
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.steps import Reply, Steps, ask
from queuekeeper.sessions.store import FIRST_SERIAL
from queuekeeper.sessions.wire import UnreadableError, pending_message, stored_json

KEYS_PER_CALL = 250
"""Most messages that a call reads or removes; a thousand would block the server for 6 ms."""

REFERENCES_PER_LIST = 1_000
NO_EXPIRY = -1
_NO_KEY = -2
_OWNER_FIELDS = frozenset({b"owner", b"epoch", b"import", b"mirror", b"outbox", b"outbox_version", b"outbox_ms"})
_INTEGER = re.compile(rb"-?[0-9]{1,18}")


class Keys:
    """Names of a session's keys, and the last packet id as this process knows it.

    :ivar last: last packet id that the next call expects, after the call before it; empty when the key is absent, none
        when it is not known. A wrong value costs a conflict and does no harm.
    """

    __slots__ = ("_told", "client_id", "last", "last_packet_id", "messages", "session", "stem")

    def __init__(self, client_id: str, prefix: str) -> None:
        self.client_id = client_id
        self.messages, self.last_packet_id, self.session = (
            key.encode() for key in session_keys(client_id, prefix=prefix)
        )
        self.stem = payload_key(client_id, "", prefix=prefix).encode()
        self.last: bytes | None = None
        self._told: bytes | None = None

    def note(self, ids: Sequence[int]) -> None:
        """Record the packet ids of a call that will be sent; the next call expects the last of them."""
        if ids:
            self.last = b"%d" % ids[-1]

    def follow(self, told: bytes, *, again: bool = False) -> bytes:
        """Return the last packet id that a call should expect, after the server has answered ``told``.

        When calls of many tasks got the same answer, each expects the ids of the call before it.

        :param again: whether this call got the same answer before, so that the call before it was not stored.
        """
        if self.last is None or told != self._told or again:
            self.last = self._told = told
        return self.last

    def payload(self, packet_id: int) -> bytes:
        """Return the payload key of a packet id."""
        return b"%b%d" % (self.stem, packet_id)

    def packet_id(self, member: bytes) -> int | None:
        """Return the packet id that a reference names; none when it is not a payload key of this session."""
        if not member.startswith(self.stem):
            return None
        return suffix_packet_id(member[len(self.stem) :])


class State(NamedTuple):
    """A session as ``read_session`` returns it."""

    last_packet_id: bytes
    references: int
    highest: int
    now_ms: int
    fields: dict[bytes, bytes]

    @property
    def noted_serial(self) -> int:
        """The recorded serial of delivery, whether its messages still exist or not."""
        serial = integer_of(self.fields.get(b"delivered_serial"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def delivered_serial(self) -> int:
        """The serial up to which existing messages have been delivered; see lua/includes/delivered.lua."""
        serial = integer_of(self.fields.get(b"sent_up_to"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def last_serial(self) -> int:
        """The serial given out last, as recorded in the session."""
        serial = integer_of(self.fields.get(b"last_serial"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def given_serial(self) -> int | None:
        """The serial given out last, by whoever did."""
        return known_serial(max(self.highest, self.last_serial))

    @property
    def given_packet_id(self) -> int | None:
        """The packet id given out last; none when it is not a packet id."""
        return packet_id_of(self.last_packet_id)

    @property
    def has_been_used(self) -> bool:
        """Whether the session has more than the record of its owner."""
        return not self.fields.keys() <= _OWNER_FIELDS

    @property
    def is_open(self) -> bool:
        """Whether Redis takes writes; the same rule as lua/includes/ownership.lua."""
        elsewhere = self.fields.get(b"owner") in {b"postgres", b"fenced"}
        return not elsewhere and self.fields.get(b"import", b"done") == b"done"

    @property
    def sweep_is_due(self) -> bool:
        """Whether the set may hold references to expired messages."""
        earliest = integer_of(self.fields.get(b"earliest_expiry_ms"))
        if earliest is None or self.fields.get(b"saved_last_packet_id") != self.last_packet_id:
            return True
        if self.highest > self.last_serial:
            return True
        return earliest <= self.now_ms


class Reference(NamedTuple):
    """A member of the sorted set of a session's messages."""

    member: bytes
    serial: int


class CommonOperations(LayoutOperations[State, Keys]):
    """Base of all operations; see ``RedisSessionOperations``."""

    acks_per_call = KEYS_PER_CALL

    def _new_keys(self, client_id: str) -> Keys:
        return Keys(client_id, self._prefix)

    def _read_session(self, keys: Keys) -> Steps[State]:
        reply = yield from ask(scripts.read_session(keys))
        return State(
            last_packet_id=reply.last_packet_id,
            references=reply.references,
            highest=min(_serial(reply.highest), MAX_SERIAL) if reply.highest else FIRST_SERIAL,
            now_ms=reply.now_ms,
            fields=dict(reply.fields),
        )

    def _list(self, keys: Keys, by: str, start: int, limit: int) -> Steps[list[Reference]]:
        return listed_references((yield from ask(scripts.list_references(keys, by=by, start=start, limit=limit))))

    def _records(self, keys: Keys, members: Sequence[bytes], *, max_bytes: int) -> Steps[list[tuple[bytes, int]]]:
        """Read JSON and expiry of as many members as fit into ``max_bytes``, at least one.

        A member may be any text. Only payload keys of this session are read; other members count as missing.
        """
        own = [member for member in members if member.startswith(keys.stem)]
        stored: dict[bytes, tuple[bytes, int]] = {}
        if own:
            reply = yield from ask(scripts.fetch_messages(payloads=own, max_bytes=max_bytes))
            stored = dict(zip(own, reply.records, strict=False))
        records: list[tuple[bytes, int]] = []
        for member in members:
            if member in stored:
                records.append(stored[member])
            elif member.startswith(keys.stem):
                break
            else:
                records.append((b"", _NO_KEY))
        return records


def listed_references(reply: Reply) -> list[Reference]:
    """Return the references in a reply of ``list_references``."""
    return [Reference(row.member, _serial(row.score)) for row in reply.references]


def is_last(page: Sequence[Reference], wanted: int) -> bool:
    """Return whether a page is the last one; no message is beyond the greatest serial."""
    return len(page) < wanted or page[-1].serial >= MAX_SERIAL


def read_message(
    json: bytes, *, client_id: str, packet_id: int, serial: int, expires_at_ms: int | None, redelivery: bool
) -> PendingMessage | None:
    """Return a record as a message; none when it is not a message of this session and packet id, or is broken."""
    try:
        return judge_record(
            json,
            client_id=client_id,
            packet_id=packet_id,
            serial=serial,
            expires_at_ms=expires_at_ms,
            redelivery=redelivery,
        )
    except ValueError:
        return None


def referenced_message(
    reference: Reference, record: tuple[bytes, int], state: State, *, client_id: str, packet_id: int
) -> PendingMessage | None:
    """Return the record to which a reference leads as a message, as :func:`read_message` does.

    :param record: JSON, and the end of its life as Redis tells it.
    """
    json, expires_at_ms = record
    return read_message(
        json,
        client_id=client_id,
        packet_id=packet_id,
        serial=reference.serial,
        expires_at_ms=None if expires_at_ms < 0 else expires_at_ms,
        redelivery=reference.serial <= state.delivered_serial,
    )


def judge_record(
    json: bytes, *, client_id: str, packet_id: int, serial: int, expires_at_ms: int | None, redelivery: bool
) -> PendingMessage:
    """Return a record as a message.

    :raises UnreadableError: when it is not a message of this session and packet id, or cannot be delivered.
    """
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        raise UnreadableError("it is not JSON") from None
    message = pending_message(
        fields, client_id=client_id, serial=serial, expires_at_ms=expires_at_ms, redelivery=redelivery
    )
    if message.packet_id != packet_id:
        raise UnreadableError(f"packetId is {message.packet_id}, but its key names {packet_id}")
    return message


def imported_json(message: PendingMessage, client_id: str) -> bytes:
    """Return the record of a message that keeps its packet id and type."""
    return stored_json(message, client_id=client_id, packet_id=message.packet_id, packet_type=message.packet_type)


def _serial(score: bytes) -> int:
    """Return a score as an integer; an infinite score, which no store writes, as the nearest integer of 64 bits."""
    try:
        return int(score)
    except ValueError:
        return int(max(-(2.0**63), min(float(score), 2.0**63)))


def packet_id_of(last: bytes) -> int | None:
    """Return the packet id that a session has given out last; none when the value is not a packet id."""
    number = integer_of(last)
    return number if number is not None and 1 <= number <= MAX_PACKET_ID else None


def integer_of(value: bytes | None) -> int | None:
    """Return the integer in a field; none when it is absent or not an integer."""
    return int(value) if value is not None and _INTEGER.fullmatch(value) else None
