"""Room in sessions: removes messages over the limit, dead messages first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuekeeper.operation import Operation
from queuekeeper.sessions.postgres_operations.common import CommonOperations, Query, Session, Step

TRIMMED_PER_TRANSACTION = 10_000
"""Most messages of a session that one transaction trims, and counts beyond the limit, and most dead ones that it
removes; the next transactions trim the rest."""


class RoomOperations(CommonOperations):
    """Trims locked sessions to make room."""

    def _over(self, sessions: Iterable[Session], *, limit: int | None = None) -> list[Session]:
        most = self._rules.limit if limit is None else limit
        return [session for session in sessions if (session.messages or 0) > most]

    def _make_room(self, sessions: Iterable[Session], *, limit: int) -> Operation[None]:
        """Trim locked sessions to the limit: dead messages first, then undelivered ones, then those in flight."""
        over = self._over(sessions, limit=limit)
        if not over:
            return
        yield from self._remove_dead(over)
        over = self._over(over, limit=limit)
        if not over:
            return
        by_id = {session.client_id: session for session in over}
        excess = [(session.messages or 0) - limit for session in over]
        parameters: dict[str, Any] = {
            "client_ids": [session.client_id for session in over],
            "excess": [min(count, TRIMMED_PER_TRANSACTION) for count in excess],
            "delivered_serials": [session.delivered_serial for session in over],
        }
        (rows,) = yield Step(queries=(Query(name="trim_messages", parameters=parameters),))
        for client_id, trimmed, in_flight in rows:
            session = by_id[client_id]
            session.trimmed += trimmed
            session.trimmed_in_flight += in_flight
            session.grow(-trimmed)

    def _remove_dead(self, sessions: Iterable[Session]) -> Operation[None]:
        """Remove dead messages of locked sessions."""
        by_id = {session.client_id: session for session in sessions}
        parameters: dict[str, Any] = {"client_ids": list(by_id), "default_ttl_s": self._rules.default_ttl_s}
        (rows,) = yield Step(queries=(Query(name="remove_dead_messages", parameters=parameters),))
        for client_id, dead in rows:
            session = by_id[client_id]
            session.dead += dead
            session.expired += dead
            session.grow(-dead)
