"""Packet ids of a session: the last one, and how calls are given those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TypeAlias

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.model import check_packet_id
from queuekeeper.sessions.parts import no_free_packet_ids
from queuekeeper.sessions.redis_operations.common import (
    REFERENCES_PER_LIST,
    Keys,
    Reply,
    Steps,
    ask,
    checked,
    integer_of,
    is_last,
)
from queuekeeper.sessions.redis_operations.room import RoomOperations, Trimmed, added
from queuekeeper.sessions.store import FIRST_SERIAL, SessionOperations

TRIES = 200
"""Tries for packet ids that other writers of the session may take first."""

LISTED_AFTER = 2
"""Collisions after which all packet ids in use are read instead of being found one by one."""

MAX_RESERVATION = 1_000

_ClaimCall: TypeAlias = Callable[[bytes, Sequence[int]], lua.Call]
"""Takes the last packet id as it is known and the packet ids to give out."""

Answered: TypeAlias = tuple[Sequence[int], Sequence[Reply]]
"""Packet ids of a call, and its answer."""


class PacketIdOperations(RoomOperations):
    """Read, set and reserve packet ids; claim them for a call."""

    @keeps(SessionOperations.get_last_packet_id)
    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        state = yield from self._read_session(self._keys(client_id))
        return integer_of(state.last_packet_id) or None

    @keeps(SessionOperations.set_last_packet_id)
    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        check_packet_id(packet_id)
        if expected is not None:
            check_integer("expected", expected, 1, MAX_PACKET_ID, "or none; MQTT 5 section 2.2.1")
        keys = self._keys(client_id)
        # TBMQ 1.x wrote 0 into sessions that had never given one out.
        for text in ("", "0") if expected is None else (expected,):
            call = scripts.set_last_packet_id(
                keys,
                epoch=self._epoch(keys),
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
                epoch=self._epoch(keys),
                expected=last,
                last_packet_id=ids[-1],
                keep_ms=self._session_expiry_ms,
            )

        ids, *_ = yield from self._claim(keys, count, call)
        keys.last = b"%d" % ids[-1]
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
        """Make a call that gives out packet ids, until nobody else has taken them first.

        Returns the packet ids, the reply, whether replicas have it, and what was removed to make room.

        :param may_trim: make room in the session when too few packet ids are free.
        :param begun: packet ids and replies of the first try, when it has been made.
        """
        last = keys.last
        if last is None and begun is None:
            last = (yield from self._read_session(keys)).last_packet_id
        in_use: set[int] = set()
        collisions = 0
        trimmed = Trimmed()
        for _ in range(TRIES):
            if begun is None:
                ids = following_ids(last or b"", count, in_use)
                asked = call(last or b"", ids)
                replies = yield [asked]
                read = asked.script.read
            else:
                ids, replies = begun
                begun = None
                read = self._save_script.script.read
            reply = read(checked(replies[0]))
            if type(reply) is bytes or reply.word != "conflict":
                return ids, reply, _replicated(replies), trimmed
            last = reply.last_packet_id
            keys.last = last
            if not reply.positions:
                continue
            in_use.update(ids[position] for position in reply.positions)
            collisions += 1
            if collisions == LISTED_AFTER:
                collisions = 0
                in_use = yield from self._packet_ids_in_use(keys)
                if may_trim and MAX_PACKET_ID - len(in_use) < count:
                    trimmed = added(trimmed, (yield from self._trim(keys, MAX_PACKET_ID - count)))
                    in_use = yield from self._packet_ids_in_use(keys)
                if MAX_PACKET_ID - len(in_use) < count:
                    raise no_free_packet_ids(keys.client_id, free=MAX_PACKET_ID - len(in_use), count=count)
        raise RefusedError(f"other writers took the next packet ids first, {TRIES} times: save with fewer at once")

    def _packet_ids_in_use(self, keys: Keys) -> Steps[set[int]]:
        found: set[int] = set()
        cursor = FIRST_SERIAL
        while True:
            page = yield from self._list(keys, "serial", cursor, REFERENCES_PER_LIST)
            own = [(r.member, packet_id) for r in page if (packet_id := keys.packet_id(r.member)) is not None]
            if own:
                # The packet id of a message that has expired is free, though a reference still leads to it.
                call = scripts.find_missing(payloads=[member for member, _ in own])
                missing = set((yield from ask(call)).positions)
                found.update(packet_id for at, (_, packet_id) in enumerate(own) if at not in missing)
            if is_last(page, REFERENCES_PER_LIST):
                return found
            cursor = page[-1].serial


def following_ids(last: bytes, count: int, in_use: Set[int] = frozenset()) -> Sequence[int]:
    """Return the packet ids that follow the last one, those in use left out; after 65,535 comes 1."""
    try:
        packet_id = int(last) if last else 0
    except ValueError:
        raise RefusedError(f"last packet id of the session is {last!r}: it must be 0 to {MAX_PACKET_ID}") from None
    if not 1 <= packet_id <= MAX_PACKET_ID:
        packet_id = 0
    if not in_use and packet_id + count <= MAX_PACKET_ID:
        return range(packet_id + 1, packet_id + count + 1)
    found: list[int] = []
    while len(found) < count:
        packet_id = packet_id % MAX_PACKET_ID + 1
        if packet_id not in in_use:
            found.append(packet_id)
    return found


def _replicated(replies: Sequence[Reply]) -> bool | None:
    return replies.replicated[0] if isinstance(replies, lua.Replies) else None
