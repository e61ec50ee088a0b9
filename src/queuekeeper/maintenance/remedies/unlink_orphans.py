"""Sets aside records that no reference names: nobody would ever send them, and they keep their packet ids in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuekeeper import lua
from queuekeeper.keyspace import orphan_key
from queuekeeper.maintenance.remedies.model import Effect, Queue, SimpleRemedy
from queuekeeper.maintenance.remedies.world import World, batches

_ABSENT = -2
_LEFT = {
    "missing": "its time in keeping is over",
    "occupied": "another message has its packet id by now",
}


class UnlinkOrphans(SimpleRemedy):
    """See ``purpose``."""

    name = "unlink_orphans"
    looks_by = frozenset({"find_orphans"})
    writes_by = frozenset({"unlink_orphan", "restore_message"})
    purpose = (
        "Takes records that no reference names out of their sessions and keeps them under another name for a while."
    )
    undo_words = (
        "Records get their names and expiry instants back while they are kept; they never leave the server, so the "
        "memory comes back when that time is over."
    )

    def survey(self, world: World, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Walk over all payload keys: an orphan is named nowhere else."""
        return world.numbered_keys(queues, "messages")

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per record without a reference; a young one may be about to get its own."""
        old_ms = world.state(queue).now_ms - 1_000 * world.parameters.grace_s
        messages = world.keys(queue).messages
        found: list[int] = []
        for batch in batches(surveyed):
            keys = [world.payload(queue, packet_id) for packet_id in batch]
            replies = world.call("find_orphans", [messages, *keys], [])
            found += (packet_id for packet_id, reply in zip(batch, replies, strict=True) if reply != _ABSENT)
        verdicts = world.judge(queue, [world.payload(queue, packet_id) for packet_id in found])
        return [
            Effect(kind="orphan set aside", packet_id=packet_id, expires_at_ms=verdict.expires_at_ms)
            for packet_id, verdict in zip(found, verdicts, strict=True)
            if verdict.word != "missing" and verdict.time_ms <= old_ms
        ]

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Rename each, where it still is an orphan."""
        keep_ms, grace_ms = 1_000 * world.parameters.keep_s, 1_000 * world.parameters.grace_s
        messages = world.keys(queue).messages
        calls: list[tuple[list[str], list[lua.Value]]] = [
            ([messages, *_names(world, queue, each)], [keep_ms, str(each.expires_at_ms), grace_ms]) for each in effects
        ]
        return [bool(reply) for reply in world.calls("unlink_orphan", calls)]

    def undo(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Rename each back."""
        keys = world.keys(queue)
        replies = world.calls(
            "restore_message",
            [
                (
                    [keys.messages, keys.session, *reversed(_names(world, queue, each))],
                    ["", str(each.expires_at_ms), ""],
                )
                for each in effects
            ],
        )
        return [_LEFT.get(reply.decode(), "") for reply in replies]


def _names(world: World, queue: Queue, effect: Effect) -> list[str]:
    packet_id = effect.packet_id or 0
    return [
        world.payload(queue, packet_id),
        orphan_key(queue.client_id, packet_id, prefix=world.parameters.key_prefix),
    ]
