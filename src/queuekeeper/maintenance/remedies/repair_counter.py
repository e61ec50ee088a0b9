"""Moves a session's last packet id forward to its newest message's, so that no waiting message is overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.keyspace import MAX_PACKET_ID, safe_counter
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue, bytes_of
from queuekeeper.maintenance.remedies.packed import CounterOfPacked

_SET = "counter set where there was none"
_MOVED = "counter moved forward"


class RepairCounter(Remedy):
    """Move a last packet id forward that is missing or lies behind the newest message."""

    kind = "repair_counter"
    packed = CounterOfPacked
    writes_by = frozenset({"set_last_packet_id"})
    undoes = False

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect when the counter is missing, no packet id, or would give out ids of waiting messages."""
        state = self.sessions.state(queue)
        text = state.last_packet_id
        # The counter of our own store is right, however far the newest message lies behind it, since that store skips
        # packet ids in use.
        if state.references == 0 or (text and state.fields.get("saved_last_packet_id") == text):
            return []
        waiting = [each.packet_id for each in self.sessions.references(queue) if each.packet_id is not None]
        if not waiting:
            return []
        last = _valid(text)
        target = safe_counter(last, waiting)
        if target == last:
            return []
        return [Effect(kind=_MOVED if last else _SET, packet_id=waiting[-1], before=text, after=target)]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Set the counter if it has not changed since it was read."""
        keys = self.sessions.keys(queue)
        return [
            bool(
                self.sessions.ask(
                    scripts.set_last_packet_id(
                        keys,
                        epoch="",
                        expected=bytes_of(str(effect.before)),
                        last_packet_id=str(effect.after),
                        keep_ms="",
                    )
                )
            )
            for effect in effects
        ]


def _valid(text: str) -> int | None:
    """Return a packet id; none for other text, and for the 0 of a session that has given out none."""
    if not text.isascii() or not text.isdigit() or text.startswith("0") or len(text) > 5:
        return None
    return int(text) if int(text) <= MAX_PACKET_ID else None
