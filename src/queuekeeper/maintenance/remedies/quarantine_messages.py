"""Sets aside records that nobody can deliver, and brings repaired records back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuekeeper.keyspace import quarantined_key
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.aside import bring_back, is_serial, put_aside
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue, text_of
from queuekeeper.maintenance.remedies.packed import QuarantinePacked
from queuekeeper.maintenance.remedies.sessions import Reference, Verdict

_FOREIGN = "reference that names no key of its session removed"


class QuarantineMessages(Remedy):
    """Put misplaced or unreadable records into the session's quarantine."""

    kind = "quarantine_messages"
    packed = QuarantinePacked
    writes_by = frozenset({"quarantine_message", "remove_references", "restore_message"})

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per misplaced or unreadable record."""
        self.sessions.state(queue)
        references = self.sessions.references(queue)
        own = [each for each in references if each.own and is_serial(each.score)]
        effects = [
            Effect(kind=_FOREIGN, serial=each.score, member=text_of(each.member)) for each in references if not each.own
        ]
        serials: set[str] = set()
        for reference, verdict in self.sessions.judged(queue, own):
            fault = _fault(reference, verdict)
            # A record is kept under its serial, so of records with the same serial each run sets aside the first.
            if fault and reference.score not in serials:
                serials.add(reference.score)
                effects.append(
                    Effect(
                        kind=f"{fault} set aside",
                        packet_id=reference.packet_id,
                        serial=reference.score,
                        expires_at_ms=verdict.expires_at_ms,
                        member="" if reference.packet_id else text_of(reference.member),
                    )
                )
        return effects

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Move records to quarantine and remove foreign references."""
        records = [each for each in effects if each.kind != _FOREIGN]
        moved = iter(put_aside(self.sessions, queue, records, judged=True))
        keys = self.sessions.keys(queue)

        def forget(effect: Effect) -> bool:
            call = scripts.remove_references(keys, references=(effect.raw_member, effect.serial))
            return bool(self.sessions.ask(call))

        return [forget(effect) if effect.kind == _FOREIGN else next(moved) for effect in effects]

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Move records back."""
        records = [each for each in effects if each.kind != _FOREIGN]
        back = iter(bring_back(self.sessions, queue, records, judged=False))
        return ["it named nothing" if effect.kind == _FOREIGN else next(back) for effect in effects]


class ReplayQuarantined(Remedy):
    """Put records of the session's quarantine back at their serials."""

    kind = "replay_quarantined"
    packed = "its store puts aside only what nobody can read, and an undo brings back what a remedy did"
    writes_by = frozenset({"restore_message", "quarantine_message"})

    def survey(self, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Find the keys of quarantines by a SCAN of all keys, since nothing else names them."""
        return self.sessions.numbered_keys(queues, "quarantined")

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per record that can come back."""
        self.sessions.state(queue)
        if not surveyed:
            return []
        references = self.sessions.references(queue)
        scores = {each.score for each in references}
        digests = {
            verdict.digest for verdict in self.sessions.judge(queue, [each.member for each in references if each.own])
        }
        prefix = self.sessions.parameters.key_prefix
        names = [quarantined_key(queue.client_id, serial, prefix=prefix) for serial in surveyed]
        effects: list[Effect] = []
        packet_ids: set[int] = set()
        for serial, verdict in zip(surveyed, self.sessions.judge(queue, names), strict=True):
            if not verdict.readable or verdict.packet_id is None or str(serial) in scores or verdict.digest in digests:
                continue
            # Of records with the same packet id the first comes back.
            if verdict.packet_id in packet_ids:
                continue
            effects.append(Effect(kind="record back in its queue", packet_id=verdict.packet_id, serial=str(serial)))
            digests.add(verdict.digest)
            packet_ids.add(verdict.packet_id)
        places = self.sessions.judge(queue, [self.sessions.payload(queue, each.packet_id or 0) for each in effects])
        return [effect for effect, place in zip(effects, places, strict=True) if place.word == "missing"]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Move the records that still can come back."""
        return [not left for left in bring_back(self.sessions, queue, effects, judged=True)]

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Move the records into quarantine again."""
        return ["" if done else "it no longer waits" for done in put_aside(self.sessions, queue, effects, judged=False)]


def _fault(reference: Reference, verdict: Verdict) -> str:
    if verdict.word == "missing":
        return ""
    if reference.packet_id is None:
        return "record with a packet id out of range"
    if verdict.word in {"wrong_type", "unreadable"}:
        return "record that nobody can read"
    if verdict.word == "other_client" or verdict.packet_id != reference.packet_id:
        return "record of another client or packet id"
    return ""
