"""Sets aside messages that repeat an earlier one of their session: same topic, time and payload, another packet id."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.aside import aside_key, bring_back, is_serial
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue
from queuekeeper.maintenance.remedies.packed import TOLERANCE_MS, DuplicatesOfPacked
from queuekeeper.maintenance.remedies.sessions import Reference, Verdict


class RemoveDuplicates(Remedy):
    """Put messages that repeat an older message of their session into its quarantine."""

    kind = "remove_duplicates"
    packed = DuplicatesOfPacked
    writes_by = frozenset({"quarantine_duplicate", "restore_message"})

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per message that repeats one with a lower serial."""
        self.sessions.state(queue)
        references = [
            each for each in self.sessions.references(queue) if each.packet_id is not None and is_serial(each.score)
        ]
        first: dict[str, tuple[Reference, Verdict]] = {}
        effects: list[Effect] = []
        serials: set[str] = set()
        for reference, verdict in self.sessions.judged(queue, references):
            # A PUBREL belongs to an exchange under way.
            if verdict.word != "publish":
                continue
            kept, its = first.setdefault(verdict.digest, (reference, verdict))
            # A message is kept under its serial, so of messages with the same serial each run sets aside the first.
            if reference.score in serials:
                continue
            if int(kept.score) < int(reference.score) and _lives_as_long(its, verdict):
                serials.add(reference.score)
                effects.append(
                    Effect(
                        kind="repeated message set aside",
                        packet_id=reference.packet_id,
                        serial=reference.score,
                        expires_at_ms=verdict.expires_at_ms,
                        twin=kept.packet_id,
                        twin_serial=kept.score,
                    )
                )
        return effects

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Move the messages that still equal their twin."""
        keys = self.sessions.keys(queue)
        keep_ms = 1_000 * self.sessions.parameters.keep_s
        replies = self.sessions.ask_each(
            scripts.quarantine_duplicate(
                keys,
                kept=self.sessions.payload(queue, each.twin or 0),
                payload=self.sessions.payload(queue, each.packet_id or 0),
                quarantined=aside_key(self.sessions, queue, each),
                kept_serial=each.twin_serial,
                serial=each.serial,
                keep_ms=keep_ms,
                tolerance_ms=TOLERANCE_MS,
            )
            for each in effects
        )
        return [bool(reply) for reply in replies]

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Move each back."""
        return bring_back(self.sessions, queue, effects, judged=False)


def _lives_as_long(kept: Verdict, going: Verdict) -> bool:
    """Return whether the kept message lives as long; the life of a retry counts from when it was stored."""
    if kept.expires_at_ms == -1:
        return True
    return going.expires_at_ms != -1 and kept.expires_at_ms + TOLERANCE_MS >= going.expires_at_ms
