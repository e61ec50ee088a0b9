"""Trims a session to its limit: first references to expired messages, then the oldest messages."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.aside import is_serial
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue, text_of
from queuekeeper.maintenance.remedies.packed import TrimPacked

_DEAD = "dead reference removed"
_TRIMMED = "message trimmed"


class TrimDeadFirst(Remedy):
    """Trim a queue that holds more than the limit, dead references first."""

    kind = "trim_dead_first"
    packed = TrimPacked
    writes_by = frozenset({"remove_dead_references", "trim_messages"})
    undoes = False

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per reference or message to be removed, dead references first."""
        state = self.sessions.state(queue)
        if state.references <= self.sessions.parameters.limit:
            return []
        references = [each for each in self.sessions.references(queue) if each.own and is_serial(each.score)]
        verdicts = self.sessions.judge(queue, [each.member for each in references])
        dead = [
            Effect(kind=_DEAD, packet_id=each.packet_id, serial=each.score, member=text_of(each.member))
            for each, verdict in zip(references, verdicts, strict=True)
            if verdict.word == "missing"
        ]
        excess = max(0, state.references - len(dead) - self.sessions.parameters.limit)
        live = [
            Effect(kind=_TRIMMED, packet_id=each.packet_id, serial=each.score, member=text_of(each.member))
            for each, verdict in zip(references, verdicts, strict=True)
            if verdict.word != "missing"
        ]
        return dead + live[:excess]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Remove references that are still dead, then messages while the queue is over its limit."""
        keys = self.sessions.keys(queue)
        dead = [each for each in effects if each.kind == _DEAD]
        live = [each for each in effects if each.kind == _TRIMMED]
        done: list[bool] = []
        for batch in self.sessions.batches(dead):
            members = [each.raw_member for each in batch]
            call = scripts.remove_dead_references(
                keys, payloads=members, epoch="", earliest_expiry_ms="", complete_for=""
            )
            removed = self.sessions.ask(call).removed
            done += [position < removed for position in range(len(batch))]
        for batch in self.sessions.batches(live):
            reply = self.sessions.ask(
                scripts.trim_messages(
                    keys,
                    payloads=[each.raw_member for each in batch],
                    epoch="",
                    limit=self.sessions.parameters.limit,
                    serials=[each.serial for each in batch],
                )
            )
            done += [position < reply.trimmed + reply.dead for position in range(len(batch))]
        return done
