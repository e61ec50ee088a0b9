"""Brings a session down to its limit: references to expired messages go first, then the oldest messages."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper import lua
from queuekeeper.maintenance.remedies.aside import is_serial
from queuekeeper.maintenance.remedies.model import Effect, Queue, SimpleRemedy
from queuekeeper.maintenance.remedies.world import World, batches

_DEAD = "dead reference removed"
_TRIMMED = "message trimmed"


class TrimDeadFirst(SimpleRemedy):
    """See ``purpose``."""

    name = "trim_dead_first"
    writes_by = frozenset({"remove_dead_references", "trim_messages"})
    purpose = "Removes dead references, then the oldest messages, of a queue that holds more than the limit."
    undo_words = (
        "There is none: trimmed messages are removed. Export the sessions before (queuekeeper sessions export)."
    )
    can_undo = False

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return what has to go, dead references first."""
        state = world.state(queue)
        if state.references <= world.parameters.limit:
            return []
        references = [each for each in world.references(queue) if each.own and is_serial(each.score)]
        verdicts = world.judge(queue, [each.member for each in references])
        dead = [
            Effect(kind=_DEAD, packet_id=each.packet_id, serial=each.score, member=_text(each.member))
            for each, verdict in zip(references, verdicts, strict=True)
            if verdict.word == "missing"
        ]
        excess = max(0, state.references - len(dead) - world.parameters.limit)
        live = [
            Effect(kind=_TRIMMED, packet_id=each.packet_id, serial=each.score, member=_text(each.member))
            for each, verdict in zip(references, verdicts, strict=True)
            if verdict.word != "missing"
        ]
        return dead + live[:excess]

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Remove what still is dead, then messages while the queue is over its limit."""
        keys = world.keys(queue)
        dead = [each for each in effects if each.kind == _DEAD]
        live = [each for each in effects if each.kind == _TRIMMED]
        done: list[bool] = []
        names: list[lua.Value]
        for batch in batches(dead):
            names = [keys.messages, keys.session, *map(_member, batch)]
            removed = world.call("remove_dead_references", names, ["", "", ""])[0]
            done += [position < removed for position in range(len(batch))]
        for batch in batches(live):
            names = [keys.messages, keys.session, *map(_member, batch)]
            trimmed, expired, _ = world.call(
                "trim_messages", names, ["", world.parameters.limit, *(each.serial for each in batch)]
            )
            done += [position < trimmed + expired for position in range(len(batch))]
        return done


def _text(member: bytes) -> str:
    return member.decode("utf-8", "surrogateescape")


def _member(effect: Effect) -> bytes:
    return effect.member.encode("utf-8", "surrogateescape")
