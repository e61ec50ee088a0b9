"""What remedies do in packed sessions: a script tells numbers of each message, and others change what still fits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

from queuekeeper import lua
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, PackedKeys, packed_keys, safe_counter
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.lua.scripts import quality
from queuekeeper.maintenance.remedies.model import Effect, Queue, QueueRefused
from queuekeeper.maintenance.remedies.sessions import Sessions, check_owned
from queuekeeper.sessions.packed_state import (
    STATE,
    PackedContent,
    PackedMessage,
    PackedState,
    is_behind,
    packet_id_of,
    promised_in_use,
    state_faults,
    state_of,
)

TOLERANCE_MS = 60_000
"""Tolerance in milliseconds: a broker counts the life from storing the message, moments after the message's time."""

_FIELDS_PER_CALL = 200
_SERIALS_PER_CALL = 100
_UNREADABLE, _BAD_QOS, _BAD_TYPE, _TOO_LONG, _RELEASED = 1, 4, 16, 32, 64
_LEFT = {"missing": "it is no longer kept", "occupied": "there is a message at its place"}


class Fact(NamedTuple):
    """What the server tells of a message."""

    message: PackedMessage
    faults: int
    fingerprint: int
    due_ms: int

    @property
    def serial(self) -> int:
        """Serial of the message."""
        return self.message.serial

    def effect(self, kind: str, **more: Any) -> Effect:
        """Return an effect on this message."""
        found = self.message
        packet_id = found.packet_id if found.packet_id >= 0 else None
        return Effect(
            kind=kind, packet_id=packet_id, serial=str(found.serial), expires_at_ms=found.expires_at_ms, **more
        )


class Reading(NamedTuple):
    """A packed session as it was read.

    :ivar text: its state as stored; empty for none.
    :ivar pexpiretime: when its key expires, -1 for never.
    :ivar is_still: whether state and number of fields were the same from the first page to the last.
    """

    text: bytes
    fields: int
    pexpiretime: int
    now_ms: int
    is_still: bool
    facts: list[Fact]

    @property
    def state(self) -> PackedState | None:
        """The state; none when it is none."""
        return state_of(self.text)

    @property
    def content(self) -> PackedContent:
        """What the session holds."""
        return PackedContent(messages=[each.message for each in self.facts], others=self.fields - len(self.facts))

    def is_dead(self, fact: Fact) -> bool:
        """Return whether the life of a message is over."""
        return 0 <= fact.message.expires_at_ms <= self.now_ms


class PackedPart(ABC):
    """The part of a remedy that works on packed sessions.

    :param sessions: sessions of the server.
    :cvar scripts: scripts that it calls.
    """

    scripts: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, *, writes_by: Iterable[str] = ()) -> None:
        """Name the scripts of ``lua/packed/`` that it writes with."""
        if writes_by:
            cls.scripts = ("quality/profile_packed", *(f"packed/{name}" for name in writes_by))

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions

    @abstractmethod
    def look(self, queue: Queue) -> list[Effect]:
        """Return the effects that are to be made in a queue, in order."""

    @abstractmethod
    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Make the effects that still fit; return for each whether it was made."""

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Undo effects; return for each why it was not undone, or an empty text.

        :raises UsageError: when the remedy has no undo.
        """
        raise UsageError("this remedy has no undo")

    def keys(self, queue: Queue) -> PackedKeys:
        """Return the session's key."""
        return packed_keys(queue.client_id, prefix=self.sessions.parameters.key_prefix)

    def read(self, queue: Queue, *, fingerprints: bool = False) -> Reading:
        """Read what the server tells of a session.

        :raises QueueRefused: when it belongs to the other store, its import is not complete, or it is no hash.
        """
        keys = self.keys(queue)
        told = self.sessions.ask(scripts.read_session(keys))
        check_owned(told.owner.decode("utf-8", "replace"), told.progress.decode("utf-8", "replace"))
        cursor = b"0"
        begun: tuple[bytes, int] | None = None
        is_still = True
        facts: dict[int, Fact] = {}
        while True:
            reply = self.sessions.ask(
                quality.profile_packed(
                    keys,
                    cursor=cursor,
                    count=self.sessions.world.size(_FIELDS_PER_CALL),
                    default_ttl_s=self.sessions.parameters.default_ttl_s,
                    fingerprints=int(fingerprints),
                )
            )
            begun = begun or (reply.state, reply.fields)
            is_still = is_still and begun == (reply.state, reply.fields)
            for row in reply.page:
                message = PackedMessage(row.serial, row.packet_id, row.expires_at_ms, row.bytes)
                facts[row.serial] = Fact(message, row.faults, row.fingerprint, row.due_ms)
            cursor = reply.cursor
            if cursor == b"0":
                in_order = [facts[serial] for serial in sorted(facts)]
                return Reading(reply.state, reply.fields, reply.pexpiretime, reply.now_ms, is_still, in_order)

    def read_sound(self, queue: Queue, *, fingerprints: bool = False) -> Reading:
        """Read a session that has a state, without which no script changes a message.

        :raises QueueRefused: also when it has messages and no state.
        """
        found = self.read(queue, fingerprints=fingerprints)
        if found.facts and found.state is None:
            raise QueueRefused("it has messages and no state that can be read: run repair_state first")
        return found

    def set_aside(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Put messages aside that are still those that were judged; one with a twin only if it repeats that one."""
        replies = self.sessions.ask_each(
            scripts.set_aside(
                self.keys(queue),
                epoch="",
                serial=each.serial,
                packet_id=-1 if each.packet_id is None else each.packet_id,
                expires_at_ms=str(each.expires_at_ms),
                quarantined=_field(each),
                twin=each.twin_serial,
            )
            for each in effects
        )
        return [bool(reply) for reply in replies]

    def bring_back(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Bring messages back to their places; return for each why it was not, or an empty text."""
        replies = self.sessions.ask_each(
            scripts.restore_message(
                self.keys(queue),
                epoch="",
                quarantined=_field(each),
                serial=each.serial,
                packet_id=-1 if each.packet_id is None else each.packet_id,
                expires_at_ms=str(each.expires_at_ms),
            )
            for each in effects
        )
        return [_LEFT.get(reply.decode(), "") for reply in replies]


class TrimPacked(PackedPart, writes_by=("remove_expired", "trim_messages")):
    """Bring a session down to the limit, messages whose lives are over first."""

    _DEAD, _LIVE = "expired message removed", "message trimmed"

    def look(self, queue: Queue) -> list[Effect]:
        """Return one effect per message to be removed."""
        found, limit = self.read_sound(queue), self.sessions.parameters.limit
        if len(found.facts) <= limit:
            return []
        # The script counts messages by the state.
        if found.is_still and found.state and found.state.others != found.content.others:
            raise QueueRefused("its state counts its messages wrongly: run repair_state first")
        dead = [each for each in found.facts if found.is_dead(each)]
        live = [each for each in found.facts if not found.is_dead(each)]
        trimmed = live[: max(0, len(live) - limit)]
        return [each.effect(self._DEAD) for each in dead] + [each.effect(self._LIVE) for each in trimmed]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Remove what has expired, then messages while the session is over its limit."""
        done: list[bool] = []
        for is_dead in (True, False):
            serials = [each.serial for each in effects if (each.kind == self._DEAD) is is_dead]
            for batch in self.sessions.world.batches(serials, _SERIALS_PER_CALL):
                if is_dead:
                    removed = self.sessions.ask(remove_expired(self.keys(queue), batch)).removed
                else:
                    limit = self.sessions.parameters.limit
                    removed = self.sessions.ask(
                        scripts.trim_messages(self.keys(queue), epoch="", limit=limit, serials=batch)
                    ).trimmed
                done += [position < removed for position in range(len(batch))]
        return done


class QuarantinePacked(PackedPart, writes_by=("set_aside", "restore_message")):
    """Put records aside that nobody can read, or whose packet id a newer message has."""

    def look(self, queue: Queue) -> list[Effect]:
        """Return one effect per such record."""
        found = self.read_sound(queue)
        effects: list[Effect] = []
        taken: set[int] = set()
        for each in reversed(found.facts):
            packet_id = each.message.packet_id
            if found.is_dead(each):
                continue
            if each.faults & (_UNREADABLE | _BAD_QOS | _BAD_TYPE):
                effects.append(each.effect("record that nobody can read set aside"))
            elif packet_id == 0:
                effects.append(each.effect("record with a packet id out of range set aside"))
            elif packet_id in taken:
                effects.append(each.effect("message whose packet id a newer one has set aside"))
            else:
                taken.add(packet_id)
        return effects[::-1]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Put them aside."""
        return self.set_aside(queue, effects)

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Bring them back."""
        return self.bring_back(queue, effects)


class DuplicatesOfPacked(PackedPart, writes_by=("set_aside", "restore_message")):
    """Put messages aside that repeat an older one of their session."""

    def look(self, queue: Queue) -> list[Effect]:
        """Return one effect per message that repeats one with a lower serial."""
        found = self.read_sound(queue, fingerprints=True)
        first: dict[int, Fact] = {}
        effects: list[Effect] = []
        for each in found.facts:
            # A PUBREL belongs to an exchange under way.
            if not each.fingerprint or each.faults & _RELEASED or found.is_dead(each):
                continue
            kept = first.setdefault(each.fingerprint, each)
            lives_as_long = kept.message.expires_at_ms + TOLERANCE_MS >= each.message.expires_at_ms
            if kept is not each and lives_as_long:
                twin, serial = kept.message.packet_id, str(kept.serial)
                effects.append(each.effect("repeated message set aside", twin=twin, twin_serial=serial))
        return effects

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Put those aside that still equal their twin."""
        return self.set_aside(queue, effects)

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Bring them back."""
        return self.bring_back(queue, effects)


class LivesOfPacked(PackedPart, writes_by=("set_expiry",)):
    """Shorten lives that are longer than a message's own time and expiry, or the default life, say."""

    def look(self, queue: Queue) -> list[Effect]:
        """Return one effect per message that would live too long."""
        found = self.read_sound(queue)
        least_ms = found.now_ms + 1_000 * self.sessions.parameters.grace_s
        return [
            each.effect("life made shorter", before=each.message.expires_at_ms, after=after)
            for each in found.facts
            if each.faults & _TOO_LONG and (after := max(each.due_ms, least_ms)) < each.message.expires_at_ms
        ]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Set the instants."""
        return self._set(queue, [(each.serial, each.before, each.after) for each in effects], may_lengthen=0)

    def restore(self, queue: Queue, effects: Sequence[Effect]) -> list[str]:
        """Set them back."""
        done = self._set(queue, [(each.serial, each.after, each.before) for each in effects], may_lengthen=1)
        return ["" if each else "the message is gone, or has another expiry by now" for each in done]

    def _set(
        self, queue: Queue, changes: Sequence[tuple[str, int | str | None, int | str | None]], *, may_lengthen: int
    ) -> list[bool]:
        done: list[bool] = []
        for batch in self.sessions.batches(changes):
            lives = [str(value) for change in batch for value in change]
            call = scripts.set_expiry(self.keys(queue), epoch="", may_lengthen=may_lengthen, lives=lives)
            done += map(bool, self.sessions.ask(call).done)
        return done


class StateOfPacked(PackedPart, writes_by=("repair_state",)):
    """Work the state of a session out again from its messages, where it does not hold for them."""

    def look(self, queue: Queue) -> list[Effect]:
        """Return one effect when something that the state says does not hold."""
        found = self.read(queue)
        if not found.facts or not self.faults(found):
            return []
        if not found.is_still:
            raise QueueRefused("it changed while it was read: try again")
        return [Effect(kind="state worked out again from the messages")]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Write the state if the session has not changed since it was read."""
        found = self.read(queue)
        if not found.is_still or not found.facts:
            return [False for _ in effects]
        state = STATE.pack(*worked_out(found))
        call = scripts.repair_state(self.keys(queue), epoch="", expected=found.text, fields=found.fields, state=state)
        return [bool(self.sessions.ask(call)) for _ in effects]

    def faults(self, found: Reading) -> bool:
        """Return whether something is to be mended."""
        return found.state is None or bool(state_faults(found.state, found.content))


class CounterOfPacked(StateOfPacked):
    """The same, where the last packet id is missing, lies behind, or ids in use count as free."""

    def faults(self, found: Reading) -> bool:
        """Return whether the next packet id that is given out may be in use."""
        state, content = found.state, found.content
        return state is None or state.ids <= 0 or is_behind(state, content) or promised_in_use(state, content) > 0


def worked_out(found: Reading) -> PackedState:
    """Return the state that holds for a session's messages; what they do not tell stays as it was."""
    messages = found.content.messages
    packet_ids = [each.packet_id for each in messages if each.packet_id > 0]
    known = found.state
    if known is None:
        # Nobody knows which messages were sent before, so that all may have been.
        known = PackedState(*(0 for _ in PackedState._fields))._replace(
            until_ms=found.pexpiretime, guarded=1, delivered=messages[-1].serial, last=-1, head=messages[0].serial
        )
    before = packet_id_of(known.ids) if known.ids > 0 else None
    ids = known.ids
    if packet_ids:
        target = safe_counter(before, packet_ids) or packet_ids[-1]
        ids = target if before is None else ids + (target - before) % MAX_PACKET_ID
    last = max(known.last, messages[-1].serial)
    ends_ms = [each.expires_at_ms for each in messages if each.expires_at_ms >= 0]
    return known._replace(
        last=last,
        ids=ids,
        bound=len(messages),
        # The next save looks through the packet ids.
        free=ids,
        largest=max(each.size_bytes for each in messages),
        earliest=min(ends_ms, default=0),
        since=last + 1,
        offset=ids - last,
        head=min(known.head, messages[0].serial),
        others=found.content.others + (not found.text),
    )


def remove_expired(keys: PackedKeys, serials: Iterable[int | str]) -> lua.Call:
    """Return the call that removes those of some messages whose lives are over."""
    return scripts.remove_expired(keys, epoch="", earliest="", seen=0, serials=list(serials))


def _field(effect: Effect) -> str:
    """Return the field that keeps a message which was put aside."""
    return f"quarantined:{effect.serial}"
