"""Sets aside records that no reference names: nobody would ever send them, and they keep their packet ids in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuekeeper import lua
from queuekeeper.keyspace import orphan_key
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue
from queuekeeper.maintenance.remedies.sessions import Sessions

_ABSENT = -2
_LEFT = {
    "missing": "it is no longer kept",
    "occupied": "another message has its packet id by now",
}


class UnlinkOrphans(Remedy):
    """Rename records without a reference, and keep them for a while."""

    kind = "unlink_orphans"
    packed = "a record is a field of its session, and needs no reference"
    looks_by = frozenset({"find_orphans"})
    writes_by = frozenset({"unlink_orphan", "restore_message"})

    def survey(self, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Find all payload keys by SCAN, since nothing else names an orphan."""
        return self.sessions.numbered_keys(queues, "messages")

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per record without a reference; a young record may be about to get one."""
        old_ms = self.sessions.state(queue).now_ms - 1_000 * self.sessions.parameters.grace_s
        session = self.sessions.keys(queue)
        found: list[int] = []
        for batch in self.sessions.batches(surveyed):
            keys = [self.sessions.payload(queue, packet_id) for packet_id in batch]
            expiries = self.sessions.ask(scripts.find_orphans(session, payloads=keys)).expiries
            found += (packet_id for packet_id, expiry in zip(batch, expiries, strict=True) if expiry != _ABSENT)
        verdicts = self.sessions.judge(queue, [self.sessions.payload(queue, packet_id) for packet_id in found])
        return [
            Effect(kind="orphan set aside", packet_id=packet_id, expires_at_ms=verdict.expires_at_ms)
            for packet_id, verdict in zip(found, verdicts, strict=True)
            if verdict.word != "missing" and verdict.time_ms <= old_ms
        ]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Rename the records that are still orphans."""
        keep_ms, grace_ms = 1_000 * self.sessions.parameters.keep_s, 1_000 * self.sessions.parameters.grace_s
        keys = self.sessions.keys(queue)

        def call(effect: Effect) -> lua.Call:
            payload, orphan = _names(self.sessions, queue, effect)
            return scripts.unlink_orphan(
                keys,
                payload=payload,
                orphan=orphan,
                keep_ms=keep_ms,
                expires_at_ms=str(effect.expires_at_ms),
                grace_ms=grace_ms,
            )

        return [bool(reply) for reply in self.sessions.ask_each(map(call, effects))]

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Rename each back."""
        keys = self.sessions.keys(queue)

        def call(effect: Effect) -> lua.Call:
            payload, orphan = _names(self.sessions, queue, effect)
            expires_at_ms = str(effect.expires_at_ms)
            return scripts.restore_message(
                keys, aside=orphan, payload=payload, serial="", expires_at_ms=expires_at_ms, client_id=""
            )

        return [_LEFT.get(reply.decode(), "") for reply in self.sessions.ask_each(map(call, effects))]


def _names(sessions: Sessions, queue: Queue, effect: Effect) -> tuple[str, str]:
    """Return the name of a record in its session, and its name while it is kept."""
    packet_id = effect.packet_id or 0
    orphan = orphan_key(queue.client_id, packet_id, prefix=sessions.parameters.key_prefix)
    return sessions.payload(queue, packet_id), orphan
