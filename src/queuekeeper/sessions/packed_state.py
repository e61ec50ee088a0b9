"""The state of a packed session, and whether it holds for the session's messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from queuekeeper.keyspace import HALF_ROUND, MAX_PACKET_ID
from queuekeeper.wording import number_of

STATE = struct.Struct(">17d")
"""The state as it is stored; see lua/includes/packed_format.lua."""


class PackedState(NamedTuple):
    """The state by names; see lua/includes/packed_format.lua."""

    last: int
    ids: int
    bound: int
    free: int
    largest: int
    earliest: int
    until_ms: int
    guarded: int
    since: int
    offset: int
    head: int
    delivered: int
    others: int
    trimmed: int
    expired: int
    refused: int
    quarantined: int

    @property
    def last_packet_id(self) -> int | None:
        """Packet id given out last; none before the first."""
        return packet_id_of(self.ids) if self.ids > 0 else None


class PackedMessage(NamedTuple):
    """What scripts tell of a message of a packed session.

    :ivar packet_id: -1 when the record is none.
    :ivar expires_at_ms: -1 when it is no instant.
    """

    serial: int
    packet_id: int
    expires_at_ms: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class PackedContent:
    """What a packed session holds.

    :param messages: all of its messages, by serial.
    :param others: fields that are no messages.
    """

    messages: Sequence[PackedMessage]
    others: int


def state_of(text: bytes) -> PackedState | None:
    """Return a stored state by names; none when there is none, or it is not one."""
    if len(text) != STATE.size:
        return None
    values = STATE.unpack(text)
    if not all(-(2.0**53) <= value <= 2.0**53 and value.is_integer() for value in values):
        return None
    return PackedState(*map(int, values))


def packet_id_of(number: int) -> int:
    """Return the packet id of a number that counts packet ids without wrapping."""
    return (number - 1) % MAX_PACKET_ID + 1


def misplaced(state: PackedState, content: PackedContent) -> int:
    """Return how many messages are outside of the serials that the state knows.

    No fetch finds those before the first one, and the next save overwrites those behind the last one.
    """
    return sum(not state.head <= each.serial <= state.last for each in content.messages)


def promised_in_use(state: PackedState, content: PackedContent) -> int:
    """Return how many messages have a packet id that the next saves would give out without looking."""
    free = state.free - state.ids
    return sum(
        each.packet_id > 0 and (each.packet_id - state.ids - 1) % MAX_PACKET_ID < free for each in content.messages
    )


def is_behind(state: PackedState, content: PackedContent) -> bool:
    """Return whether the newest message has a packet id that was not given out yet."""
    if not content.messages or content.messages[-1].packet_id <= 0 or state.ids <= 0:
        return False
    return 1 <= (content.messages[-1].packet_id - state.ids) % MAX_PACKET_ID <= HALF_ROUND


def state_faults(state: PackedState, content: PackedContent) -> tuple[str, ...]:
    """Return what the state says that does not hold for the messages, in words; empty when all of it holds.

    That a number is more careful than it has to be is no fault.
    """
    return tuple(_faults(state, content))


def _faults(state: PackedState, content: PackedContent) -> Iterator[str]:
    messages = content.messages
    if lost := misplaced(state, content):
        yield f"it has {number_of(lost, 'message')} outside of its serials, {state.head:,} to {state.last:,}"
    if used := promised_in_use(state, content):
        yield f"{used:,} packet ids that it takes for free are in use"
    if is_behind(state, content):
        yield "the newest message has a packet id that was not given out yet"
    if state.others != content.others:
        yield f"it counts {number_of(state.others, 'field')} that are no messages, and there are {content.others:,}"
    if state.bound < len(messages):
        yield f"it counts at most {number_of(state.bound, 'message')}, and there are {len(messages):,}"
    largest = max((each.size_bytes for each in messages), default=0)
    if state.largest < largest:
        yield f"its largest record has {state.largest:,} bytes, and one has {largest:,}"
    earliest_ms = min((each.expires_at_ms for each in messages if each.expires_at_ms >= 0), default=None)
    if earliest_ms is not None and state.earliest > earliest_ms:
        yield f"a message ends {state.earliest - earliest_ms:,} ms before the first end that it knows"
    if state.since or state.offset:
        wrong = sum(
            each.packet_id != packet_id_of(each.serial + state.offset)
            for each in messages
            if each.serial >= state.since and each.packet_id >= 0
        )
        if wrong:
            yield (
                f"it has {number_of(wrong, 'message')} from serial {state.since:,} on with other packet ids than it "
                "says"
            )
