"""Sets aside records that nobody can deliver, and brings those back that somebody has repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from queuekeeper import lua
from queuekeeper.keyspace import quarantined_key
from queuekeeper.maintenance.remedies.aside import bring_back, is_serial, put_aside
from queuekeeper.maintenance.remedies.model import Effect, Queue, SimpleRemedy
from queuekeeper.maintenance.remedies.world import Reference, Verdict, World

_FOREIGN = "reference that names no key of its session removed"


class QuarantineMessages(SimpleRemedy):
    """See ``purpose``."""

    name = "quarantine_messages"
    writes_by = frozenset({"quarantine_message", "remove_references", "restore_message"})
    purpose = (
        "Puts records that are no message, belong to another client or packet id, or whose packet id is out of range "
        "into the session's quarantine."
    )
    undo_words = "Records come back to their places while they are kept; a reference without a record stays removed."

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per record that does not belong where it is."""
        world.state(queue)
        references = world.references(queue)
        own = [each for each in references if each.own and is_serial(each.score)]
        effects = [
            Effect(kind=_FOREIGN, serial=each.score, member=_text(each.member)) for each in references if not each.own
        ]
        serials: set[str] = set()
        for reference, verdict in world.judged(queue, own):
            fault = _fault(reference, verdict)
            # A record is kept under its serial: of those that share one the first goes, the next after it.
            if fault and reference.score not in serials:
                serials.add(reference.score)
                effects.append(
                    Effect(
                        kind=f"{fault} set aside",
                        packet_id=reference.packet_id,
                        serial=reference.score,
                        expires_at_ms=verdict.expires_at_ms,
                        member="" if reference.packet_id else _text(reference.member),
                    )
                )
        return effects

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Move records, remove foreign references."""
        records = [each for each in effects if each.kind != _FOREIGN]
        moved = iter(put_aside(world, queue, records, judged=True))
        keys = world.keys(queue)

        def forget(effect: Effect) -> bool:
            pair: list[lua.Value] = [effect.member.encode("utf-8", "surrogateescape"), effect.serial]
            return bool(world.call("remove_references", [keys.messages], pair))

        return [forget(effect) if effect.kind == _FOREIGN else next(moved) for effect in effects]

    def undo(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Move records back."""
        records = [each for each in effects if each.kind != _FOREIGN]
        back = iter(bring_back(world, queue, records, judged=False))
        return ["it named nothing" if effect.kind == _FOREIGN else next(back) for effect in effects]


class ReplayQuarantined(SimpleRemedy):
    """See ``purpose``."""

    name = "replay_quarantined"
    writes_by = frozenset({"restore_message", "quarantine_message"})
    purpose = (
        "Puts records of the session's quarantine back at their serials, where they can be read now, their places are "
        "free, and no message of the session repeats them."
    )
    undo_words = "Messages go back into quarantine while they wait."

    def survey(self, world: World, queues: Sequence[Queue]) -> Mapping[str, Sequence[int]]:
        """Walk over all keys of quarantines: nothing else names them."""
        return world.numbered_keys(queues, "quarantined")

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per record that can come back."""
        world.state(queue)
        if not surveyed:
            return []
        references = world.references(queue)
        scores = {each.score for each in references}
        digests = {verdict.digest for verdict in world.judge(queue, [each.member for each in references if each.own])}
        prefix = world.parameters.key_prefix
        names = [quarantined_key(queue.client_id, serial, prefix=prefix) for serial in surveyed]
        effects: list[Effect] = []
        packet_ids: set[int] = set()
        for serial, verdict in zip(surveyed, world.judge(queue, names), strict=True):
            if not verdict.readable or verdict.packet_id is None or str(serial) in scores or verdict.digest in digests:
                continue
            # Of records under one packet id the first gets the place.
            if verdict.packet_id in packet_ids:
                continue
            effects.append(Effect(kind="record back in its queue", packet_id=verdict.packet_id, serial=str(serial)))
            digests.add(verdict.digest)
            packet_ids.add(verdict.packet_id)
        places = world.judge(queue, [world.payload(queue, each.packet_id or 0) for each in effects])
        return [effect for effect, place in zip(effects, places, strict=True) if place.word == "missing"]

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Move each, where it still can."""
        return [not left for left in bring_back(world, queue, effects, judged=True)]

    def undo(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Move each into quarantine again."""
        return ["" if done else "it waits no more" for done in put_aside(world, queue, effects, judged=False)]


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


def _text(member: bytes) -> str:
    return member.decode("utf-8", "surrogateescape")
