"""Sets the expiry of messages by their own time and expiry interval, where they have none or a later one."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue
from queuekeeper.maintenance.remedies.packed import TOLERANCE_MS, LivesOfPacked
from queuekeeper.maintenance.remedies.sessions import Sessions, Verdict
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S
from queuekeeper.sessions.wire import MAX_INTERVAL_S, expires_at_ms

_MAX_INTEGER = 2**53 - 1
_NEVER = -1
_GIVEN = "life given where there was no end"
_SHORTENED = "life made shorter"


class RepairTtl(Remedy):
    """Set the expiry of messages that have none, or a later one than they should have."""

    kind = "repair_ttl"
    packed = LivesOfPacked
    writes_by = frozenset({"set_expiry"})

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per message that would live too long."""
        state = self.sessions.state(queue)
        references = [each for each in self.sessions.references(queue) if each.packet_id is not None]
        grace_ms = state.now_ms + 1_000 * self.sessions.parameters.grace_s
        effects: list[Effect] = []
        for reference, verdict in self.sessions.judged(queue, references):
            if not verdict.readable:
                continue
            wanted = max(_end_ms(verdict, self.sessions.parameters.default_ttl_s), grace_ms)
            if verdict.expires_at_ms != _NEVER and verdict.expires_at_ms <= wanted + TOLERANCE_MS:
                continue
            effects.append(
                Effect(
                    kind=_GIVEN if verdict.expires_at_ms == _NEVER else _SHORTENED,
                    packet_id=reference.packet_id,
                    serial=reference.score,
                    before=verdict.expires_at_ms,
                    after=wanted,
                )
            )
        return effects

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Set the instants."""
        return _set(self.sessions, queue, [(effect, effect.before, effect.after) for effect in effects], may_lengthen=0)

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Set them back."""
        done = _set(self.sessions, queue, [(effect, effect.after, effect.before) for effect in effects], may_lengthen=1)
        return ["" if each else "the message is gone, or has another expiry by now" for each in done]


def _end_ms(verdict: Verdict, default_ttl_s: int) -> int:
    interval_s = verdict.interval_s
    if interval_s == MAX_INTERVAL_S:
        # TBMQ's signed number holds no greater interval.
        interval_s = MAX_EXPIRY_INTERVAL_S
    end_ms = expires_at_ms(time_ms=verdict.time_ms, msg_expiry_interval=interval_s, default_ttl_s=default_ttl_s)
    return min(end_ms, _MAX_INTEGER)


def _set(
    sessions: Sessions,
    queue: Queue,
    changes: Sequence[tuple[Effect, int | str | None, int | str | None]],
    *,
    may_lengthen: int,
) -> list[bool]:
    keys = sessions.keys(queue)
    done: list[bool] = []
    for batch in sessions.batches(changes):
        call = scripts.set_expiry(
            keys,
            payloads=(sessions.payload(queue, effect.packet_id or 0) for effect, _, _ in batch),
            may_lengthen=may_lengthen,
            lives=(str(value) for effect, before, after in batch for value in (effect.serial, before, after)),
        )
        done += map(bool, sessions.ask(call).done)
    return done
