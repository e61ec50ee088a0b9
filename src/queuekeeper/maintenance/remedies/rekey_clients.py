"""Moves sessions from keys as TBMQ writes them to keys with our encoded tag, for client ids that spoil the tag."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from queuekeeper import lua
from queuekeeper.keyspace import MAX_PACKET_ID, broker_stem, client_id_of_tag, hash_tag
from queuekeeper.maintenance.remedies.aside import is_serial
from queuekeeper.maintenance.remedies.model import Effect, Queue, QueueRefused, SimpleRemedy
from queuekeeper.maintenance.remedies.world import World

BYTES_PER_WRITE = 524_288
MESSAGES_PER_WRITE = 200

_MOVED = "message moved"
_DEAD = "dead reference left behind"
_COUNTER = "counter moved"
_NOTE = "note of a move removed"
_ABSENT = -2


class _Record(NamedTuple):
    content: bytes
    expires_at_ms: int

    @property
    def digest(self) -> str:
        return hashlib.sha1(self.content, usedforsecurity=False).hexdigest()


class RekeyClients(SimpleRemedy):
    """See ``purpose``.

    On a cluster the old keys lie in several slots, so no script sees them together: each is copied, read back and
    compared, and only then removed, if it still is what was copied. An interrupted move goes on when it is repeated.
    """

    name = "rekey_clients"
    looks_by = frozenset({"export_messages"})
    writes_by = frozenset({"rekey_messages", "finish_rekey", "unlink_copied", "remove_references"})
    purpose = (
        "Moves sessions of client ids that begin with a closing brace or a percent sign from the keys that TBMQ gives "
        "them to keys in one slot. TBMQ itself does not find them there."
    )
    undo_words = (
        "There is none: in a cluster the old keys could not be used. Each copy is compared before its original goes."
    )
    can_undo = False

    def find(self, world: World, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per message under the old tag, and one for its counter."""
        if not queue.client_id:
            raise QueueRefused("its client id is empty: a session without an id cannot be stored")
        if hash_tag(queue.client_id) == queue.client_id:
            return []
        old = _Old(world, queue)
        members = world.members(old.messages)
        ours_by_name = client_id_of_tag(queue.client_id) != queue.client_id
        if ours_by_name and old.read([f"{old.stem}_session"])[0] is not None:
            raise QueueRefused("the keys under its tag are those of another client")
        packet_ids = [old.packet_id(member) for member, _ in members]
        if None in packet_ids or not all(is_serial(score) for _, score in members):
            raise QueueRefused("it holds references that name no packet id, or serials that are none")
        verdicts = old.judge([member for member, _ in members])
        if any(word == "wrong_type" for word, _ in verdicts):
            raise QueueRefused("a key of the session holds another Redis type")
        counter = old.read([old.last_packet_id])[0]
        if ours_by_name and (members or counter) and not any(word in {"publish", "pubrel"} for word, _ in verdicts):
            raise QueueRefused("no message tells whether the keys under its tag are its own")
        if any(word == "other_client" for word, _ in verdicts):
            raise QueueRefused("the keys under its tag are those of another client")
        effects = [
            Effect(
                kind=_DEAD if word == "missing" else _MOVED,
                packet_id=packet_id,
                serial=score,
                expires_at_ms=None if word == "missing" else expires_at_ms,
            )
            for packet_id, (_, score), (word, expires_at_ms) in zip(packet_ids, members, verdicts, strict=True)
        ]
        if counter is not None:
            effects.append(Effect(kind=_COUNTER, after=_counter(counter.content)))
        elif not effects and "rekeyed" in world.state(queue).fields:
            effects.append(Effect(kind=_NOTE))
        return effects

    def apply(self, world: World, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Copy, compare, remove."""
        old = _Old(world, queue)
        counter = old.read([old.last_packet_id])[0]
        last_packet_id = "" if counter is None else _counter(counter.content)
        done: dict[int, bool] = {}
        messages = [(place, each) for place, each in enumerate(effects) if each.kind == _MOVED]
        records = old.read([old.payload(each.packet_id) for _, each in messages])
        for part in _parts([(place, each, record) for (place, each), record in zip(messages, records, strict=True)]):
            gone = self._move(world, queue, old, [(each, record) for _, each, record in part], last_packet_id)
            done |= {place: each in gone for place, each, _ in part}
        for place, each in enumerate(effects):
            if each.kind == _DEAD:
                done[place] = old.forget([each]) > 0
            elif each.kind == _COUNTER and counter is not None:
                # The counter goes last: while it is there, so is what it counts.
                if not messages:
                    world.call("rekey_messages", world.keys(queue), [last_packet_id])
                done[place] = not world.members(old.messages) and old.remove(old.last_packet_id, counter)
        # Without the note, a later move into a session that has gone its own way is refused.
        if old.read([old.last_packet_id])[0] is None and not world.members(old.messages):
            noted = bool(world.call("finish_rekey", [world.keys(queue).session], []))
            done |= {place: noted for place, each in enumerate(effects) if each.kind == _NOTE}
        return [done.get(place, False) for place in range(len(effects))]

    def _move(
        self, world: World, queue: Queue, old: _Old, part: Sequence[tuple[Effect, _Record]], last_packet_id: str
    ) -> list[Effect]:
        """Move some messages and return those of which nothing is left under the old tag."""
        names = [world.payload(queue, each.packet_id or 0) for each, _ in part]
        triples: list[lua.Value] = []
        for each, record in part:
            triples += (each.serial, record.expires_at_ms, record.content)
        world.call("rekey_messages", [*world.keys(queue), *names], [last_packet_id, *triples])
        written = world.call("export_messages", names, [])
        # The server's time, read after the copies: those that have expired by themselves are no loss.
        now_ms = world.state(queue).now_ms
        for at, (_, record) in enumerate(part):
            copy = _Record(written[2 * at], written[2 * at + 1])
            expired = copy.expires_at_ms == _ABSENT and 0 <= record.expires_at_ms <= now_ms
            if copy != record and not expired:
                raise QueueRefused("a copy differs from its original, which stays")
        names = [old.payload(each.packet_id) for each, _ in part]
        gone = [
            each
            for name, (each, record) in zip(names, part, strict=True)
            if old.remove(name, record) or old.read([name])[0] is None
        ]
        if gone:
            old.forget(gone)
        return gone


class _Old:
    """The session under TBMQ's own names; each key may be in another slot."""

    def __init__(self, world: World, queue: Queue) -> None:
        self._world = world
        self._queue = queue
        self.stem = broker_stem(queue.client_id, prefix=world.parameters.key_prefix)
        self.messages = f"{self.stem}_messages"
        self.last_packet_id = f"{self.stem}_last_packet_id"

    def payload(self, packet_id: int | None) -> str:
        return f"{self.messages}_{packet_id}"

    def packet_id(self, member: bytes) -> int | None:
        stem, _, suffix = member.rpartition(b"_")
        good = stem == self.messages.encode() and suffix.isdigit() and not suffix.startswith(b"0") and len(suffix) < 6
        return int(suffix) if good and int(suffix) <= MAX_PACKET_ID else None

    def judge(self, keys: Sequence[bytes]) -> list[tuple[str, int]]:
        replies = self._world.calls("judge_messages", [([key], [self._queue.client_id, 1]) for key in keys])
        return [(reply[0].decode(), reply[1]) for reply in replies]

    def read(self, keys: Sequence[str]) -> list[_Record | None]:
        replies: list[Any] = self._world.calls("export_messages", [([key], []) for key in keys])
        return [None if reply[1] == _ABSENT else _Record(*reply) for reply in replies]

    def remove(self, key: str, record: _Record) -> bool:
        return bool(self._world.call("unlink_copied", [key], [record.digest]))

    def forget(self, effects: Sequence[Effect]) -> int:
        pairs: list[lua.Value] = []
        for each in effects:
            pairs += (self.payload(each.packet_id), each.serial)
        return int(self._world.call("remove_references", [self.messages], pairs))


def _counter(content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    return text if text.isascii() and text.isdigit() and str(int(text)) == text and int(text) <= MAX_PACKET_ID else ""


def _parts(
    records: Sequence[tuple[int, Effect, _Record | None]],
) -> Iterator[list[tuple[int, Effect, _Record]]]:
    """Cut messages into calls of bounded size; those that have gone meanwhile are left out."""
    part: list[tuple[int, Effect, _Record]] = []
    size_bytes = 0
    for place, effect, record in records:
        if record is None:
            continue
        if part and (size_bytes + len(record.content) > BYTES_PER_WRITE or len(part) == MESSAGES_PER_WRITE):
            yield part
            part, size_bytes = [], 0
        part.append((place, effect, record))
        size_bytes += len(record.content)
    if part:
        yield part
