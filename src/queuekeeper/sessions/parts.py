"""Expiry of new messages, and the parts of a save: the same rules for every store.

Each part is stored as a whole, and packet ids are given out part by part. When a message has expired by the server's
clock, its packet id is skipped; when all messages of a part have expired, the next part begins with the same id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queuekeeper.errors import PacketIdInUse, UsageError
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.reports import Refusal

MESSAGES_PER_SAVE = 256
BYTES_PER_SAVE = 524_288
"""Most payload bytes of one part; a single larger message is a part of its own."""

MAX_INSTANT_MS = 2**53 - 1
"""Latest end of a life; Redis and Lua represent it exactly."""


class Part(NamedTuple):
    """Messages of a batch that are stored as a whole, with their positions in the batch and the ends of their lives."""

    number: int
    positions: list[int]
    messages: list[NewMessage]
    ends_ms: list[int]


def end_of_life(message: NewMessage, *, default_ttl_s: int) -> int | Refusal:
    """Return when a message's life ends, or why the message is refused at any time.

    An interval of 0 expires at once; an interval outside four unsigned bytes is invalid (MQTT 5 section 3.3.2.3.3).
    """
    life_s = message.expiry_interval_s
    if life_s is None:
        life_s = default_ttl_s
    elif life_s == 0:
        return Refusal.EXPIRED
    elif not 0 < life_s <= MAX_EXPIRY_INTERVAL_S:
        return Refusal.EXPIRY_OUT_OF_RANGE
    end_ms = message.time_ms + 1_000 * life_s
    return end_ms if end_ms <= MAX_INSTANT_MS else MAX_INSTANT_MS


def ends_of_lives(messages: Sequence[NewMessage], *, default_ttl_s: int) -> list[int] | None:
    """Return when each message's life ends; none when a message is refused."""
    life_ms = 1_000 * default_ttl_s
    # Nearly all messages have no interval and need no call each.
    ends_ms = [message.time_ms + life_ms for message in messages if message.expiry_interval_s is None]
    if len(ends_ms) == len(messages):
        return ends_ms
    judged = [end_of_life(message, default_ttl_s=default_ttl_s) for message in messages]
    found = [end_ms for end_ms in judged if type(end_ms) is int]
    return found if len(found) == len(judged) else None


def parts_of(messages: Sequence[NewMessage], *, default_ttl_s: int) -> tuple[list[Part], dict[int, Refusal]]:
    """Cut a batch into parts; a repeated batch is cut in the same places.

    :returns: at least one part, which is empty when all messages are refused, and the refusals by position.
    """
    refused: dict[int, Refusal] = {}
    parts = [Part(0, [], [], [])]
    size_bytes = 0
    for position, message in enumerate(messages):
        end_ms = end_of_life(message, default_ttl_s=default_ttl_s)
        if isinstance(end_ms, Refusal):
            refused[position] = end_ms
            continue
        part = parts[-1]
        # The cut must not depend on packet ids, since a repeated batch may get other ids at first.
        size_bytes += len(message.payload)
        if part.messages and (size_bytes > BYTES_PER_SAVE or len(part.messages) == MESSAGES_PER_SAVE):
            part = Part(len(parts), [], [], [])
            parts.append(part)
            size_bytes = len(message.payload)
        part.positions.append(position)
        part.messages.append(message)
        part.ends_ms.append(end_ms)
    return parts, refused


def no_free_packet_ids(client_id: str, *, free: int, count: int) -> PacketIdInUse:
    """Return the error of a session that lacks packet ids even after it was trimmed."""
    return PacketIdInUse(
        f"session {client_id!r} has {free} free packet ids, and {count} are needed: wait until the client has "
        "acknowledged messages"
    )


def other_batch(save: SessionSave, *, stored: int, given: int) -> UsageError:
    """Return the error of a batch that was repeated with another number of messages."""
    return UsageError(
        f"batch {save.offset} of source {save.source!r} has {given} messages for {save.client_id!r}: it had {stored} "
        "when it was stored; a retry repeats the whole batch"
    )
