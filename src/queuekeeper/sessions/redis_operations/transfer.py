"""Import of a session from JSON Lines."""

from __future__ import annotations

from queuekeeper import lua
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.sessions.layouts import ImportChunk
from queuekeeper.sessions.redis_operations.common import imported_json
from queuekeeper.sessions.redis_operations.deliver import DeliverOperations


class TransferOperations(DeliverOperations):
    """Exports and imports sessions."""

    def _import_call(self, chunk: ImportChunk) -> lua.Call:
        session = chunk.session
        keys = self._keys(session.client_id)
        values: list[lua.Value] = []
        for message in chunk.messages:
            values += (message.serial, self._end_of_life(message), imported_json(message, session.client_id))
        return scripts.import_session(
            keys,
            payloads=[keys.payload(message.packet_id) for message in chunk.messages],
            plan=chunk.plan,
            epoch=chunk.epoch,
            owner="redis",
            chunk=chunk.number,
            last=int(chunk.last),
            last_packet_id="" if session.last_packet_id is None else session.last_packet_id,
            last_serial="" if session.last_serial is None else session.last_serial,
            messages=values,
        )
