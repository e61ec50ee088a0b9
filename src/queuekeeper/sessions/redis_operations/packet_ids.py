"""Packet ids of a session: the last one, and how calls get the ids after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import QueuekeeperError, RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import MAX_RESERVATION, TRIES, Answered, Trimmed, added
from queuekeeper.sessions.model import check_expected, check_packet_id
from queuekeeper.sessions.parts import no_free_packet_ids
from queuekeeper.sessions.redis_operations.common import Keys
from queuekeeper.sessions.redis_operations.room import RoomOperations
from queuekeeper.sessions.steps import Reply, Steps, ask, checked
from queuekeeper.sessions.store import SessionOperations

IDS_PER_LOOK = 1_000
"""Packet ids that one call checks for being free."""

_ClaimCall: TypeAlias = Callable[[bytes, Sequence[int]], lua.Call]
"""Makes a call from the last packet id as it is known and the packet ids to give out."""


class PacketIdOperations(RoomOperations):
    """Reads, sets and reserves packet ids, and claims them for calls."""

    @keeps(SessionOperations.set_last_packet_id)
    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        check_packet_id(packet_id)
        check_expected(expected)
        keys = self._keys(client_id)
        # TBMQ 1.x wrote 0 into sessions that had not given out any.
        for text in ("", "0") if expected is None else (expected,):
            call = scripts.set_last_packet_id(
                keys,
                epoch=self._epoch(keys.client_id),
                expected=text,
                last_packet_id=packet_id,
                keep_ms=self._session_expiry_ms,
            )
            if (yield from ask(call)):
                return True
        return False

    @keeps(SessionOperations.reserve_packet_ids)
    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        check_integer("count", count, 1, MAX_RESERVATION, "reserve more in several calls")
        keys = self._keys(client_id)

        def call(last: bytes, ids: Sequence[int]) -> lua.Call:
            return scripts.reserve_packet_ids(
                keys,
                payloads=map(keys.payload, ids),
                epoch=self._epoch(keys.client_id),
                expected=last,
                last_packet_id=ids[-1],
                keep_ms=self._session_expiry_ms,
            )

        try:
            ids, *_ = yield from self._claim(keys, count, call)
        except QueuekeeperError:
            keys.last = None
            raise
        return tuple(ids)

    def _claim(
        self,
        keys: Keys,
        count: int,
        call: _ClaimCall,
        *,
        may_trim: bool = False,
        begun: Answered | None = None,
    ) -> Steps[tuple[Sequence[int], Reply, bool | None, Trimmed]]:
        """Send a call that gives out packet ids, again while other writers take the ids first.

        Returns the packet ids, the reply, whether replicas have it, and what was removed to make room.

        :param may_trim: trim the session when too few packet ids are free.
        :param begun: packet ids and replies of the first try; none when there was no try yet.
        """
        last = keys.last
        told: bytes | None = None
        if last is None and begun is None:
            told = (yield from self._read_session(keys)).last_packet_id
            last = keys.follow(told)
        free: Sequence[int] = ()
        trimmed = Trimmed()
        for _ in range(TRIES):
            if begun is None:
                ids = free or following_ids(last or b"", count)
                asked = call(last or b"", ids)
                keys.note(ids)
                replies = yield [asked]
                read = asked.script.read
            else:
                ids, replies = begun
                begun = None
                read = scripts.save_messages.script.read
            reply = read(checked(replies[0]))
            if reply.word != "conflict":
                return ids, reply, _replicated(replies), trimmed
            free = ()
            last, told = keys.follow(reply.last_packet_id, again=reply.last_packet_id == told), reply.last_packet_id
            if not reply.positions:
                continue
            last = told
            free = yield from self._free_ids(keys, last, count)
            if may_trim and len(free) < count:
                trimmed = added(trimmed, (yield from self._trim(keys.client_id, MAX_PACKET_ID - count)))
                free = yield from self._free_ids(keys, last, count)
            if len(free) < count:
                raise no_free_packet_ids(keys.client_id, free=len(free), count=count)
        raise RefusedError(
            f"other writers took the next packet ids first, {TRIES} times: let fewer writers save to the session"
        )

    def _free_ids(self, keys: Keys, last: bytes, count: int) -> Steps[list[int]]:
        """Return the packet ids after the last one under which there is no record, with or without a reference.

        The result is shorter than ``count`` when fewer ids are free.
        """
        free: list[int] = []
        for start in range(0, MAX_PACKET_ID, IDS_PER_LOOK):
            ids = following_ids(last, min(IDS_PER_LOOK, MAX_PACKET_ID - start))
            reply = yield from ask(scripts.find_missing(payloads=map(keys.payload, ids)))
            free += (ids[position] for position in reply.positions)
            if len(free) >= count:
                break
            last = b"%d" % ids[-1]
        return free[:count]


def following_ids(last: bytes, count: int) -> Sequence[int]:
    """Return the packet ids after the last one; 1 follows 65,535."""
    try:
        packet_id = int(last) if last else 0
    except ValueError:
        raise RefusedError(f"last packet id of the session is {last!r}: it must be 0 to {MAX_PACKET_ID}") from None
    if not 1 <= packet_id <= MAX_PACKET_ID:
        packet_id = 0
    if packet_id + count <= MAX_PACKET_ID:
        return range(packet_id + 1, packet_id + count + 1)
    return [(packet_id + step) % MAX_PACKET_ID + 1 for step in range(count)]


def _replicated(replies: Sequence[Reply]) -> bool | None:
    return replies.replicated[0] if isinstance(replies, lua.Replies) else None
