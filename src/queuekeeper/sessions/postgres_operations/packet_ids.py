"""Packet ids of a session: the last one, those in use, and the next ones."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice

from queuekeeper.checks import check_integer
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.model import check_expected, check_packet_id
from queuekeeper.sessions.parts import no_free_packet_ids
from queuekeeper.sessions.postgres_operations.common import Query, Session, Step, Undo, check_vendor_id, retried
from queuekeeper.sessions.postgres_operations.room import RoomOperations
from queuekeeper.sessions.postgres_operations.rows import Row, messages_queries, save_sessions_query
from queuekeeper.sessions.store import SessionOperations

MAX_RESERVED_PACKET_IDS = 1_000


class PacketIdOperations(RoomOperations):
    """Reads, sets and reserves packet ids, and frees ids for a save."""

    @keeps(SessionOperations.get_last_packet_id)
    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        check_vendor_id(client_id)
        (((packet_id,),),) = yield Step(
            begin=True, end=True, queries=(Query(name="last_packet_id", parameters={"client_id": client_id}),)
        )
        return int(packet_id) if packet_id is not None else None

    @keeps(SessionOperations.has_saved)
    def has_saved(self, client_id: str, *, source: str) -> Operation[bool]:
        check_vendor_id(client_id)
        query = Query(name="has_saved", parameters={"client_id": client_id, "source": source})
        (((known,),),) = yield Step(begin=True, end=True, queries=(query,))
        return bool(known)

    @keeps(SessionOperations.set_last_packet_id)
    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        check_vendor_id(client_id)
        check_packet_id(packet_id)
        check_expected(expected)
        return (yield from retried(lambda: self._transaction(self._exchange(client_id, packet_id, expected))))

    def _exchange(self, client_id: str, packet_id: int, expected: int | None) -> Operation[bool]:
        session = (yield from self._lock([client_id]))[client_id]
        if session.last_packet_id != (expected or 0):
            raise Undo(False)
        session.last_packet_id = packet_id
        yield Step(queries=(save_sessions_query([session]),))
        return True

    @keeps(SessionOperations.reserve_packet_ids)
    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        check_vendor_id(client_id)
        check_integer("count", count, 1, MAX_RESERVED_PACKET_IDS, "ids are given out in small numbers")
        return (yield from retried(lambda: self._transaction(self._reserve(client_id, count))))

    def _reserve(self, client_id: str, count: int) -> Operation[tuple[int, ...]]:
        session = (yield from self._lock([client_id], counts=[count]))[client_id]
        in_use: set[int] = set()
        if session.used_packet_ids:
            in_use = yield from self._packet_ids_in_use(session)
        if MAX_PACKET_ID - len(in_use) < count:
            raise no_free_packet_ids(client_id, free=MAX_PACKET_ID - len(in_use), count=count)
        packet_ids = following_ids(session.last_packet_id, count, in_use)
        session.last_packet_id = packet_ids[-1]
        yield Step(queries=(save_sessions_query([session]),))
        return tuple(packet_ids)

    def _packet_ids_in_use(self, session: Session) -> Operation[set[int]]:
        parameters = {"client_id": session.client_id, "default_ttl_s": self._rules.default_ttl_s}
        (rows,) = yield Step(queries=(Query(name="used_packet_ids", parameters=parameters),))
        return {packet_id for (packet_id,) in rows}

    def _free_packet_ids(self, session: Session, count: int, rows: list[Row]) -> Operation[set[int]]:
        """Trim a session until enough packet ids are free, and return the ids in use.

        :param rows: rows that were not written yet; they may be trimmed too.
        """
        if rows:
            yield Step(queries=tuple(messages_queries("save_messages", rows)))
            rows.clear()
        while True:
            counted = Query(name="count_pending", parameters={"client_id": session.client_id})
            ((((messages, _),)),) = yield Step(queries=(counted,))
            session.messages = messages
            session.grow(0)
            before = session.dead + session.trimmed
            yield from self._make_room([session], limit=MAX_PACKET_ID - count)
            in_use = yield from self._packet_ids_in_use(session)
            if MAX_PACKET_ID - len(in_use) >= count:
                return in_use
            if session.dead + session.trimmed == before:
                # Another transaction holds the messages to remove.
                raise no_free_packet_ids(session.client_id, free=MAX_PACKET_ID - len(in_use), count=count)

    def _remove_replaced(self, session: Session, packet_ids: Sequence[int]) -> Operation[None]:
        """Remove expired messages whose packet ids are being given out again."""
        parameters = {
            "client_id": session.client_id,
            "packet_ids": list(packet_ids),
            "default_ttl_s": self._rules.default_ttl_s,
        }
        ((((gone,),)),) = yield Step(queries=(Query(name="remove_replaced_messages", parameters=parameters),))
        session.dead += gone
        session.expired += gone
        session.grow(-gone)


def following_ids(last: int, count: int, in_use: Set[int]) -> list[int]:
    """Return the packet ids after the last one that are not in use; 1 follows 65,535."""
    if not in_use:
        return [(last + step) % MAX_PACKET_ID + 1 for step in range(count)]
    every = ((last + step) % MAX_PACKET_ID + 1 for step in range(MAX_PACKET_ID))
    return list(islice((packet_id for packet_id in every if packet_id not in in_use), count))
