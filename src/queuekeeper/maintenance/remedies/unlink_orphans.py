"""Sets aside records that no reference names: nobody would ever send them, and they keep their packet ids in use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        """Return one effect per record without a reference."""
        world.state(queue)
        messages = world.keys(queue).messages
        effects: list[Effect] = []
        for batch in batches(surveyed):
            keys = [world.payload(queue, packet_id) for packet_id in batch]
            effects += (
                Effect(kind="orphan set aside", packet_id=packet_id, expires_at_ms=expires_at_ms)
                for packet_id, expires_at_ms in zip(
                    batch, world.call("find_orphans", [messages, *keys], []), strict=True
                )
                if expires_at_ms != _ABSENT
            )
        return effects

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Rename each, where it still is an orphan."""
        keep_ms = 1_000 * world.parameters.keep_s
        calls = [([world.keys(queue).messages, *_names(world, queue, each)], [keep_ms]) for each in effects]
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
