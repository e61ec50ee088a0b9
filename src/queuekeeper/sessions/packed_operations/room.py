"""Room in a packed session: removes messages over the limit, expired ones first; and finds packet ids that are free."""

from __future__ import annotations

from typing import NamedTuple

from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.sessions.layouts import Trimmed
from queuekeeper.sessions.packed_operations.common import SERIALS_PER_CALL, CommonOperations, Keys, State
from queuekeeper.sessions.steps import Steps, ask


class FreeIds(NamedTuple):
    """Packet ids that a call may give out, when some of those that follow are in use.

    :ivar state: session as it was when they were found.
    :ivar ids: packet ids, not wrapped; fewer than wanted when no more are free.
    :ivar free: up to which number all following ones are free.
    :ivar expired: packet id -> serial of the expired message that has it.
    """

    state: State
    ids: list[int]
    free: int
    expired: dict[int, int]

    @property
    def packet_ids(self) -> list[int]:
        """The packet ids themselves."""
        return [(number - 1) % MAX_PACKET_ID + 1 for number in self.ids]


class RoomOperations(CommonOperations):
    """Trims a session, and finds free packet ids."""

    def _trim(self, client_id: str, limit: int) -> Steps[Trimmed]:
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        dead = 0
        messages = state.messages
        if messages > limit and state.earliest_ms <= state.now_ms:
            dead, messages = yield from self._sweep(keys, client_id, state)
        serials = yield from self._serials(keys, state)
        at = next((index for index, serial in enumerate(serials) if serial > state.delivered_serial), len(serials))
        live = [0, 0]
        for in_flight, candidates in enumerate((serials[at:], serials[:at])):
            for start in range(0, len(candidates), SERIALS_PER_CALL):
                if messages <= limit:
                    break
                some = candidates[start : start + SERIALS_PER_CALL]
                call = scripts.trim_messages(keys, epoch=self._epoch(client_id), limit=limit, serials=some)
                reply = yield from ask(call)
                live[in_flight] += reply.trimmed
                messages = reply.messages
        return Trimmed(live=live[0] + live[1], in_flight=live[1], dead=dead)

    def _sweep(self, keys: Keys, client_id: str, state: State) -> Steps[tuple[int, int]]:
        """Remove all expired messages; return how many, and how many messages there are now."""
        places = yield from self._places(keys, state)
        staying = [ends_ms for _, _, ends_ms in places if ends_ms > state.now_ms]
        gone = [serial for serial, packet_id, ends_ms in places if packet_id and ends_ms <= state.now_ms]
        removed, messages = 0, state.messages
        for start in range(0, max(len(gone), 1), SERIALS_PER_CALL):
            is_last = start + SERIALS_PER_CALL >= len(gone)
            call = scripts.remove_expired(
                keys,
                epoch=self._epoch(client_id),
                earliest=min(staying, default=0) if is_last else "",
                seen=state.last,
                serials=gone[start : start + SERIALS_PER_CALL],
            )
            reply = yield from ask(call)
            removed += reply.removed
            messages = reply.messages
        return removed, messages

    def _free_ids(self, keys: Keys, count: int) -> Steps[FreeIds]:
        """Look through all messages for the packet ids that are free after the last one."""
        state = yield from self._read_session(keys)
        places = yield from self._places(keys, state)
        live = {packet_id for _, packet_id, ends_ms in places if ends_ms > state.now_ms}
        expired = {packet_id: serial for serial, packet_id, ends_ms in places if ends_ms <= state.now_ms and packet_id}
        ids: list[int] = []
        for number in range(state.ids + 1, state.ids + MAX_PACKET_ID + 1):
            if len(ids) == count:
                break
            if (number - 1) % MAX_PACKET_ID + 1 not in live:
                ids.append(number)
        given = {(number - 1) % MAX_PACKET_ID + 1 for number in ids}
        free = free_after(ids[-1] if ids else state.ids, live | expired.keys() | given)
        return FreeIds(state, ids, free, expired)


def free_after(number: int, in_use: set[int]) -> int:
    """Return up to which number all that follow one are free, if those after it are given out in turn."""
    nearest = min(((packet_id - number - 1) % MAX_PACKET_ID for packet_id in in_use), default=MAX_PACKET_ID - 1)
    return number + min(nearest, MAX_PACKET_ID - 1)
