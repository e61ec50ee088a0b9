"""Upkeep of sessions in PostgreSQL: purges one session, and cleans up and trims all sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from queuekeeper.errors import NotOwner, SessionFenced, StaleEpoch
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.postgres_operations import room
from queuekeeper.sessions.postgres_operations.common import (
    ROWS_PER_STEP,
    Query,
    Step,
    Undo,
    check_vendor_id,
    retried,
    stored_serial,
)
from queuekeeper.sessions.postgres_operations.room import RoomOperations
from queuekeeper.sessions.postgres_operations.rows import count_removed_query, save_states_query
from queuekeeper.sessions.reports import PurgeProgress, PurgeReport
from queuekeeper.sessions.store import SessionOperations

BLOCKS_PER_STEP = 1_000
"""Pages of the vendor's table that one step of the clean-up reads: 8 MB."""

SESSIONS_PER_STEP = 500


@dataclass(frozen=True, kw_only=True)
class CleanupReport:
    """Result of a clean-up of the whole store.

    :param messages: rows removed; in a dry run, rows that would be removed.
    :param sessions: sessions removed; in a trim, sessions over the limit.
    :param dry_run: whether it was a dry run, which removes nothing.
    """

    messages: int
    sessions: int
    dry_run: bool


class UpkeepOperations(RoomOperations):
    """Purges a session, removes expired messages, and trims all sessions."""

    @keeps(SessionOperations.purge_session)
    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """:param progress: progress of an interrupted purge, from which to continue; it is updated."""
        check_vendor_id(client_id)
        count = Query(name="count_pending", parameters={"client_id": client_id})
        (((messages, highest_serial),),) = yield Step(begin=True, end=True, queries=(count,))
        if dry_run:
            return PurgeReport(client_id=client_id, messages=messages, kept=0, dry_run=True)
        progress = progress or PurgeProgress()
        if progress.up_to_serial is None:
            progress.up_to_serial = stored_serial(highest_serial)
        parameters = {"client_id": client_id, "up_to_serial": progress.up_to_serial, "limit": ROWS_PER_STEP}
        while highest_serial is not None:
            _, ((gone,),) = yield Step(
                begin=True,
                end=True,
                queries=(self._hold([client_id]), Query(name="purge_messages", parameters=parameters)),
            )
            progress.removed += gone
            if gone < ROWS_PER_STEP:
                break
        answer = yield Step(
            begin=True,
            end=True,
            queries=(
                self._hold([client_id]),
                Query(name="lock_existing_sessions", parameters={"client_ids": [client_id]}),
                Query(name="remove_empty_sessions", parameters={"client_ids": [client_id], "now_ms": None}),
                count,
            ),
        )
        ((kept, _),) = answer[-1]
        return PurgeReport(client_id=client_id, messages=progress.removed, kept=kept, dry_run=False)

    def remove_expired(self, *, dry_run: bool = False) -> Operation[CleanupReport]:
        """Remove the expired messages of all sessions, then the sessions that have expired.

        It reads the vendor's table once, in short transactions, and waits for no lock. Sessions that another store owns
        are skipped.
        """
        (((blocks,),),) = yield Step(begin=True, end=True, queries=(Query(name="source_blocks"),))
        messages = 0
        for block in range(0, blocks, BLOCKS_PER_STEP):
            parameters = {
                "first_place": f"({block},0)",
                "end_place": f"({block + BLOCKS_PER_STEP},0)",
                "default_ttl_s": self._rules.default_ttl_s,
            }
            messages += yield from self._transaction(self._remove_expired(parameters, dry_run=dry_run))
        sessions = yield from self._remove_idle_sessions(dry_run=dry_run)
        return CleanupReport(messages=messages, sessions=sessions, dry_run=dry_run)

    def _remove_expired(self, parameters: dict[str, Any], *, dry_run: bool) -> Operation[int]:
        (((move,),),) = yield Step(queries=(Query(name="sessions_move"),))
        own: list[str] | None = None
        if move or dry_run:
            (found,) = yield Step(queries=(Query(name="expired_sessions", parameters=parameters),))
            expired_of = dict(found)
            own = (yield from self._hold_own(list(expired_of))) if move else list(expired_of)
            if dry_run:
                raise Undo(sum(expired_of[client_id] for client_id in own))
        (rows,) = yield Step(queries=(Query(name="remove_expired", parameters=parameters | {"client_ids": own}),))
        if rows:
            yield Step(queries=(count_removed_query([(client_id, expired, 0) for client_id, expired in rows]),))
        return sum(expired for _, expired in rows)

    def _remove_idle_sessions(self, *, dry_run: bool) -> Operation[int]:
        sessions = 0
        after_client_id = ""
        while True:
            parameters = {
                "after_client_id": after_client_id,
                "limit": SESSIONS_PER_STEP,
                "default_ttl_s": self._rules.default_ttl_s if dry_run else None,
            }
            (rows,) = yield Step(begin=True, end=True, queries=(Query(name="idle_sessions", parameters=parameters),))
            if not rows:
                return sessions
            client_ids = [client_id for client_id, _ in rows]
            after_client_id = client_ids[-1]
            sessions += yield from self._transaction(self._remove_idle(client_ids, now_ms=rows[0][1], dry_run=dry_run))

    def _remove_idle(self, client_ids: Sequence[str], *, now_ms: int, dry_run: bool) -> Operation[int]:
        own = yield from self._hold_own(client_ids)
        if dry_run:
            raise Undo(len(own))
        answer = yield Step(
            queries=(
                Query(name="lock_existing_sessions", parameters={"client_ids": own}),
                Query(name="remove_empty_sessions", parameters={"client_ids": own, "now_ms": now_ms}),
            )
        )
        ((removed,),) = answer[-1]
        return int(removed)

    def trim_sessions(self, *, dry_run: bool = False) -> Operation[CleanupReport]:
        """Remove messages over the limit in all sessions, including those that the vendor's broker wrote.

        Dead messages are removed first, then the oldest, in short transactions. Sessions that another store owns are
        skipped.
        """
        messages = sessions = 0
        after_client_id: str | None = ""
        while after_client_id is not None:
            parameters = {
                "after_client_id": after_client_id,
                "sessions": SESSIONS_PER_STEP,
                "limit": self._rules.limit,
                "default_ttl_s": self._rules.default_ttl_s,
            }
            (rows,) = yield Step(
                begin=True, end=True, queries=(Query(name="sessions_over_limit", parameters=parameters),)
            )
            after_client_id = rows[-1][0]
            over = {client_id: too_many for client_id, too_many in rows if too_many is not None}
            own = (yield from self._transaction(self._tell_own(list(over)))) if over else []
            sessions += len(own)
            for client_id in own:
                messages += over[client_id] if dry_run else (yield from self._trim_session(client_id))
        return CleanupReport(messages=messages, sessions=sessions, dry_run=dry_run)

    def _trim_session(self, client_id: str) -> Operation[int]:
        removed = 0
        while True:
            try:
                gone, left = yield from retried(partial(self._trim_once, client_id, goes_on=removed > 0))
            except (NotOwner, SessionFenced, StaleEpoch):
                return removed
            removed += gone
            # Where a transaction has done all that it may, there may be more: it counts no further.
            if not gone or (gone < room.TRIMMED_PER_TRANSACTION and left <= self._rules.limit):
                return removed

    def _trim_once(self, client_id: str, *, goes_on: bool) -> Operation[tuple[int, int]]:
        return (yield from self._transaction(self._trim(client_id, goes_on=goes_on)))

    def _trim(self, client_id: str, *, goes_on: bool) -> Operation[tuple[int, int]]:
        # This is above any limit, so that the messages are counted.
        session = (yield from self._lock([client_id], counts=[MAX_PACKET_ID]))[client_id]
        if goes_on:
            # A session that was over its limit is rid of all dead messages.
            yield from self._remove_dead([session])
        yield from self._make_room([session], limit=self._rules.limit)
        yield Step(queries=(save_states_query([session]),))
        return session.dead + session.trimmed, session.messages or 0

    @staticmethod
    def _hold_own(client_ids: Sequence[str]) -> Operation[list[str]]:
        """Lock the owner rows of the sessions that PostgreSQL owns, and return those sessions."""
        (rows,) = yield Step(queries=(Query(name="own_sessions", parameters={"client_ids": list(client_ids)}),))
        return [client_id for (client_id,) in rows]

    def _tell_own(self, client_ids: Sequence[str]) -> Operation[list[str]]:
        """Return which of the sessions PostgreSQL owns, without a lock."""
        raise Undo((yield from self._hold_own(client_ids)))
