"""Room in a session: removes messages over the limit, dead references first."""

from __future__ import annotations

from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.sessions.layouts import MAX_SERIAL, Trimmed
from queuekeeper.sessions.redis_operations.common import KEYS_PER_CALL, CommonOperations, Keys, is_last
from queuekeeper.sessions.steps import Steps, ask
from queuekeeper.sessions.store import FIRST_SERIAL


class RoomOperations(CommonOperations):
    """Trims a session to make room."""

    def _trim(self, client_id: str, limit: int) -> Steps[Trimmed]:
        keys = self._recent.get(client_id)
        state = yield from self._read_session(keys)
        dead = 0
        references = state.references
        if references > limit and state.sweep_is_due:
            dead = yield from self._sweep(keys, state.fields.get(b"saved_last_packet_id", b""))
            references -= dead
        live = [0, 0]
        for in_flight, before in enumerate((state.delivered_serial, FIRST_SERIAL)):
            cursor = before
            while references > limit:
                wanted = min(KEYS_PER_CALL, references - limit)
                page = yield from self._list(keys, "serial", cursor, wanted)
                candidates = [r for r in page if keys.packet_id(r.member) and r.serial <= MAX_SERIAL]
                if candidates:
                    call = scripts.trim_messages(
                        keys,
                        payloads=[r.member for r in candidates],
                        epoch=self._epoch(keys.client_id),
                        limit=limit,
                        serials=[r.serial for r in candidates],
                    )
                    reply = yield from ask(call)
                    references = reply.references
                    live[in_flight] += reply.trimmed
                    dead += reply.dead
                if is_last(page, wanted):
                    break
                cursor = page[-1].serial
        return Trimmed(live=live[0] + live[1], in_flight=live[1], dead=dead)

    def _sweep(self, keys: Keys, saved_last_packet_id: bytes) -> Steps[int]:
        """Remove all dead references and record when the next message expires; return how many were removed."""
        removed: int = 0
        cursor = FIRST_SERIAL
        earliest = b""
        while True:
            page = yield from self._list(keys, "serial", cursor, KEYS_PER_CALL)
            last = is_last(page, KEYS_PER_CALL)
            own = [r.member for r in page if keys.packet_id(r.member) is not None]
            call = scripts.remove_dead_references(
                keys,
                payloads=own,
                epoch=self._epoch(keys.client_id),
                earliest_expiry_ms=earliest,
                complete_for=saved_last_packet_id if last else b"",
            )
            reply = yield from ask(call)
            earliest = reply.earliest_expiry_ms
            removed += reply.removed
            if last:
                return removed
            cursor = page[-1].serial
