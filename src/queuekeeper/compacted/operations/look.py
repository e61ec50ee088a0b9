"""Operations that read a compacted queue and its messages without a change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from queuekeeper.checks import check_integer
from queuekeeper.compacted.model import MAX_PAGE, MAX_SEQUENCE, check_key
from queuekeeper.compacted.operations.common import BYTES_PER_CALL, CommonOperations, ask, or_none, retention_of
from queuekeeper.compacted.records import message_of
from queuekeeper.compacted.reports import CompactedMessage, QueueView
from queuekeeper.errors import ScriptError, UsageError
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation

SAMPLES = 20
"""Members of each Redis key from which Redis estimates its memory."""

_NUMBER = re.compile(rb"-?\d{1,16}")

COUNTERS = (
    "appended",
    "compacted",
    "evicted",
    "evicted_unacked",
    "expired",
    "expired_unacked",
    "tombstones_collected",
    "purged",
    "purged_unacked",
    "restored",
    "delivered",
    "redelivered",
    "acks",
    "repeated_acks",
    "skipped",
    "rewinds",
)


class LookOperations(CommonOperations):
    """Get, peek, inspect."""

    def get(self, client_id: str, *, key: bytes) -> Operation[CompactedMessage | None]:
        """Return the value or tombstone of a key, without consuming it; none when the key has neither."""
        check_key(key)
        found = yield from ask(scripts.get(self._keys(client_id), key=key))
        return None if found is None else _message(client_id, key, found)

    def peek(
        self, client_id: str, *, after_sequence: int = 0, limit: int = 100
    ) -> Operation[tuple[CompactedMessage, ...]]:
        """Return messages in order, without consuming them.

        This includes acknowledged messages that retention or a newer value of their key has not removed.

        :param after_sequence: return the messages behind this sequence number; 0 to begin with the first message.
        :param limit: most messages, 1 to 500. Messages of more than 1 MB together are cut off; an empty result means
            that there are no more.
        """
        check_integer("after_sequence", after_sequence, 0, MAX_SEQUENCE, "the number of a message, or 0")
        check_integer("limit", limit, 1, MAX_PAGE, "read longer queues page by page")
        keys = self._keys(client_id)
        rows: Sequence[Any] = ()
        while not rows and after_sequence != -1:
            call = scripts.peek(keys, after_sequence=after_sequence, limit=limit, max_bytes=BYTES_PER_CALL)
            reply = yield from ask(call)
            after_sequence, rows = reply.next_after_sequence, reply.messages
        return tuple(_message(client_id, row.key, row) for row in rows)

    def inspect(self, client_id: str) -> Operation[QueueView]:
        """Return the state of a queue.

        It has counts and ages of its messages, its consumer, and its counters.

        :raises ScriptError: when the queue's state is damaged.
        """
        reply = yield from ask(scripts.inspect(self._keys(client_id), samples=SAMPLES, now=self._now()))
        if reply is None:
            return QueueView(client_id=client_id, exists=False)
        try:
            return _view(client_id, reply)
        except (ValueError, UsageError) as error:
            raise ScriptError(f"the state of the queue of {client_id!r} is damaged: {error}") from None


def _message(client_id: str, key: bytes, row: Any) -> CompactedMessage:
    """Return a message of ``get`` or ``peek``."""
    return message_of(
        client_id, key=key, sequence=row.sequence, appended_ms=row.ms, redelivered=False, stored=row.value
    )


def _view(client_id: str, reply: Any) -> QueueView:
    def age_ms(instant_ms: int) -> int | None:
        return None if instant_ms == -1 else reply.now - instant_ms

    fields = dict(reply.fields)

    def number(name: bytes, absent: bytes = b"0") -> int:
        found = fields.get(name, absent)
        if not _NUMBER.fullmatch(found) or abs(int(found)) > MAX_SEQUENCE:
            raise ValueError(f"{name.decode()} is no integer of 53 bits")
        return int(found)

    # The view does not have these fields, but appends need them: check them, too.
    number(b"last_ms"), number(b"largest_bytes")
    return QueueView(
        client_id=client_id,
        exists=True,
        incarnation=number(b"incarnation"),
        epoch=number(b"epoch"),
        sequence=number(b"sequence"),
        sent=number(b"sent"),
        acked=number(b"acked"),
        acked_ms=number(b"acked_ms") or None,
        live=reply.live,
        tombstones=reply.tombstones,
        lag=reply.lag,
        in_flight=reply.in_flight,
        size_bytes=number(b"bytes"),
        oldest_sequence=or_none(reply.oldest_sequence),
        oldest_age_ms=age_ms(reply.oldest_ms),
        newest_age_ms=age_ms(reply.newest_ms),
        oldest_undelivered_age_ms=age_ms(reply.oldest_undelivered_ms),
        oldest_unacked_age_ms=age_ms(reply.oldest_unacked_ms),
        session=fields.get(b"session", b"").decode() or None,
        lease_left_ms=max(0, number(b"lease_until_ms") - reply.now),
        counters={name: number(name.encode()) for name in COUNTERS},
        last_lost_sequence=number(b"last_lost_sequence") or None,
        retention=retention_of(fields[b"retention_policy"], number(b"retention_ms", b""), number(b"tombstone_ms", b""))
        if b"retention_policy" in fields
        else None,
        estimated_memory_bytes=reply.memory_bytes,
    )
