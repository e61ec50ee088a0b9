"""Moves sessions that builds before release 0.1 wrote under an encoded id, ``{%25x}`` for ``%x``, to their own keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from queuekeeper import lua
from queuekeeper.jobs.model import World
from queuekeeper.keyspace import MAX_PACKET_ID, earlier_tag, encoded_client_id, is_scattered, key_stem, suffix_packet_id
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.maintenance.remedies.aside import is_serial
from queuekeeper.maintenance.remedies.job import Remedy
from queuekeeper.maintenance.remedies.model import Effect, Queue, QueueRefused, RemedyParameters
from queuekeeper.maintenance.remedies.sessions import WRONG_TYPE, Sessions
from queuekeeper.portions import portions
from queuekeeper.redis_client import is_cluster

BYTES_PER_WRITE = 524_288

_MOVED = "message moved"
_DEAD = "dead reference left behind"
_COUNTER = "counter moved"
_COPIED = "counter copied, as another client shares it"
_NOTE = "note of a move removed"
_ABSENT = -2
_OWN = frozenset({"publish", "pubrel"})
_NOTED_ANEW = frozenset({"delivered_serial", "delivered_at"})
# Fields that the next save determines again, and fields of the migration that wrote the session.
_LEFT_BEHIND = frozenset(
    {
        "rekeyed", "saved_last_packet_id", "until_ms", "earliest_expiry_ms", "import", "plan", "references",
        "imported_last_packet_id", "imported_until_ms", "used",
    }
)  # fmt: skip


class _Record(NamedTuple):
    content: bytes
    expires_at_ms: int

    @property
    def digest(self) -> str:
        return hashlib.sha1(self.content, usedforsecurity=False).hexdigest()


class RekeyClients(Remedy):
    """Move sessions from encoded keys of early builds to the keys that TBMQ gives them.

    The keys under the encoded id may also belong to, or hold messages of, a client whose real id equals the encoded
    one. The client id inside each message decides, and messages of the other client stay. Without a readable message
    the owner is unknown, and nothing is moved.

    Old and new keys lie in different slots of a cluster, so no script sees both: each key is copied, read back and
    compared, and only then removed if it has not changed. A repeated run continues an interrupted move.

    ``member`` of an effect is the id in the keys that the effect changes.
    """

    kind = "rekey_clients"
    packed = "builds before release 0.1, which encoded ids, had no packed sessions"
    looks_by = frozenset({"export_messages"})
    writes_by = frozenset({"mark_delivered", "rekey_messages", "finish_rekey", "unlink_copied", "remove_references"})
    undoes = False

    def __init__(self, world: World[RemedyParameters]) -> None:
        super().__init__(world)
        # Names that a counting pass has counted as removed, so that a later step skips them.
        self._gone: set[bytes] = set()

    def look(self, queue: Queue, surveyed: Sequence[int]) -> list[Effect]:
        """Return one effect per message under the old tag, and one for its counter."""
        return [effect for move in _moves(self.sessions, queue, self._gone) for effect in move.find()]

    def change(self, queue: Queue, effects: Sequence[Effect]) -> list[bool]:
        """Copy, compare, remove."""
        moves = {move.source: move for move in _moves(self.sessions, queue, self._gone)}
        return [
            done
            for source, some in groupby(effects, key=lambda effect: effect.member)
            for done in moves[source].apply(list(some))
        ]


def _moves(sessions: Sessions, queue: Queue, gone: set[bytes]) -> list[_Move]:
    """Return the possible moves for a queue's id, as the encoded id and as the id that was encoded."""
    found: list[_Move] = []
    decoded, encoded = encoded_client_id(queue.client_id), earlier_tag(queue.client_id)
    if decoded is not None:
        target = Queue(client_id=decoded, client_hash=queue.client_hash)
        found.append(_Move(sessions, gone, source=queue.client_id, target=target, is_named=False))
    if encoded is not None:
        found.append(_Move(sessions, gone, source=encoded, target=queue, is_named=True))
    return found


class _Move:
    """A session under the encoded id, and the client that may own it.

    :param gone: names that a counting pass has counted as removed.
    :param source: the encoded id.
    :param is_named: whether a person or a quality run has named the target.
    """

    def __init__(self, sessions: Sessions, gone: set[bytes], *, source: str, target: Queue, is_named: bool) -> None:
        self.source = source
        self._gone = gone
        self._counts_only = sessions.world.counts_only
        self._sessions = sessions
        self._old_queue = Queue(client_id=source, client_hash=target.client_hash)
        self._target = target
        self._is_named = is_named
        self._old = sessions.keys(self._old_queue)
        self._new = sessions.keys(target)

    def find(self) -> list[Effect]:
        members = self._members()
        verdicts = self._judge([member for member, _ in members])
        words = {word for word, _ in verdicts}
        counter = self._counter()
        if not words & _OWN:
            if self._is_named and (members or counter) and "other_client" not in words:
                raise QueueRefused("no message tells whether the keys under its encoded id are its own")
            return self._note()
        if is_scattered(self._target.client_id) and is_cluster(self._sessions.client):
            raise QueueRefused("a cluster cannot serve its own keys: its id begins with a closing brace")
        if "wrong_type" in words:
            raise QueueRefused(WRONG_TYPE)
        fields = self._sessions.state(self._old_queue).fields
        if "mirror" in fields:
            raise QueueRefused("its changes still go to the other store too: end the online migration first")
        state = self._sessions.state(self._target)
        if "rekeyed" not in state.fields and (state.references or state.last_packet_id or state.fields):
            raise QueueRefused("the session exists and was not moved here")
        is_shared = "other_client" in words
        effects: list[Effect] = []
        for (member, score), (word, expires_at_ms) in zip(members, verdicts, strict=True):
            if word not in _OWN and is_shared:
                continue
            packet_id = self._packet_id(member)
            if packet_id is None or not is_serial(score):
                raise QueueRefused("it holds references without a packet id, or invalid serials")
            is_dead = word == "missing"
            effects.append(
                Effect(
                    kind=_DEAD if is_dead else _MOVED,
                    packet_id=packet_id,
                    serial=score,
                    expires_at_ms=None if is_dead else expires_at_ms,
                    member=self.source,
                )
            )
        if counter is not None:
            kind = _COPIED if is_shared else _COUNTER
            effects.append(Effect(kind=kind, after=_counter(counter.content), member=self.source))
        return effects

    def _note(self) -> list[Effect]:
        """Return the rest of a move that was killed right before its end."""
        if is_scattered(self._target.client_id) and is_cluster(self._sessions.client):
            return []
        noted = "rekeyed" in self._sessions.state(self._target).fields
        return [Effect(kind=_NOTE, member=self.source)] if noted else []

    def apply(self, effects: Sequence[Effect]) -> list[bool]:
        counter = self._counter()
        last_packet_id = "" if counter is None else _counter(counter.content)
        done: dict[int, bool] = {}
        messages = [(place, each) for place, each in enumerate(effects) if each.kind == _MOVED]
        records = self._read([self._payload(each.packet_id) for _, each in messages])
        read = [(place, each, record) for (place, each), record in zip(messages, records, strict=True)]
        for part in _parts(read, size_bytes=self._sessions.world.size(BYTES_PER_WRITE)):
            gone = self._move([(each, record) for _, each, record in part], last_packet_id)
            done |= {place: each in gone for place, each, _ in part}
        for place, each in enumerate(effects):
            if each.kind == _DEAD:
                done[place] = self._forget([each]) > 0
            elif each.kind in {_COUNTER, _COPIED} and counter is not None:
                # The counter is removed last, while no message is left that it counts.
                if not messages:
                    self._rekey([], [], last_packet_id)
                if each.kind == _COPIED:
                    done[place] = True
                elif not self._members():
                    done[place] = self._remove(self._old.last_packet_id, counter.digest)
        members = self._members()
        is_emptied = not members and self._counter() is None
        words = {word for word, _ in self._judge([member for member, _ in members])}
        if is_emptied or (not words & _OWN and "other_client" in words):
            noted = self._finish(is_emptied=is_emptied)
            done |= {place: noted for place, each in enumerate(effects) if each.kind == _NOTE}
        return [done.get(place, False) for place in range(len(effects))]

    def _finish(self, *, is_emptied: bool) -> bool:
        """Copy the session's own fields, and end the move by removing its note.

        Without the note, a later move into a session that has changed since is refused.
        """
        fields = self._sessions.state(self._old_queue).fields
        kept: list[lua.Value] = []
        for name, value in fields.items():
            if name not in _LEFT_BEHIND and name not in _NOTED_ANEW:
                kept += (name, value)
        if "delivered_serial" in fields:
            # The marks of what was sent are written for the set as it is here, since they count only for this set.
            self._sessions.ask(
                scripts.mark_delivered(self._new, epoch="", serial=fields["delivered_serial"], keep_ms="")
            )
        noted = bool(self._sessions.ask(scripts.finish_rekey(self._new, fields=kept)))
        if is_emptied and fields:
            self._remove(self._old.session, _digest_of(fields))
        return noted

    def _move(self, part: Sequence[tuple[Effect, _Record]], last_packet_id: str) -> list[Effect]:
        """Move some messages, and return those of which nothing is left under the old tag."""
        sessions = self._sessions
        names = [sessions.payload(self._target, each.packet_id or 0) for each, _ in part]
        triples: list[lua.Value] = []
        for each, record in part:
            triples += (each.serial, record.expires_at_ms, record.content)
        self._rekey(names, triples, last_packet_id)
        self._compare(names, [record for _, record in part])
        names = [self._payload(each.packet_id) for each, _ in part]
        gone = [
            each
            for name, (each, record) in zip(names, part, strict=True)
            if self._remove(name, record.digest) or self._read([name])[0] is None
        ]
        if gone:
            self._forget(gone)
        return gone

    def _rekey(self, payloads: Sequence[str], messages: Sequence[lua.Value], last_packet_id: str) -> None:
        self._sessions.ask(
            scripts.rekey_messages(self._new, payloads=payloads, last_packet_id=last_packet_id, messages=messages)
        )

    def _compare(self, names: Sequence[str], records: Sequence[_Record]) -> None:
        """Check that copies equal their originals; a counting pass finds only the copies of earlier moves.

        :raises QueueRefused: when a copy differs.
        """
        written = self._sessions.ask(scripts.export_messages(payloads=names, max_bytes="")).records
        # The server's time is read after the copies, since a copy that has expired is no loss.
        now_ms = self._sessions.state(self._target).now_ms
        for record, found in zip(records, written, strict=True):
            copy = _Record(found.json, found.pexpiretime)
            may_miss = self._counts_only or 0 <= record.expires_at_ms <= now_ms
            if copy != record and not (copy.expires_at_ms == _ABSENT and may_miss):
                raise QueueRefused("a copy differs from its original, which stays")

    # Keys under the encoded id.

    def _members(self) -> list[tuple[bytes, str]]:
        return [each for each in self._sessions.members(self._old) if each[0] not in self._gone]

    def _counter(self) -> _Record | None:
        name = self._old.last_packet_id
        return None if name.encode() in self._gone else self._read([name])[0]

    def _payload(self, packet_id: int | None) -> str:
        return self._sessions.payload(self._old_queue, packet_id or 0)

    def _packet_id(self, member: bytes) -> int | None:
        stem, _, suffix = member.rpartition(b"_")
        return suffix_packet_id(suffix) if stem == self._old.messages.encode() else None

    def _judge(self, keys: Sequence[bytes]) -> list[tuple[str, int]]:
        """Judge whether records belong to the target; a reference to another session's key does not."""
        stem = f"{key_stem(self.source, prefix=self._sessions.parameters.key_prefix)}_messages_".encode()
        near = [key for key in keys if key.startswith(stem)]
        verdicts = {
            key: (each.word, each.expires_at_ms)
            for key, each in zip(near, self._sessions.judge(self._target, near), strict=True)
        }
        return [verdicts.get(key, ("unreadable", _ABSENT)) for key in keys]

    def _read(self, keys: Sequence[str]) -> list[_Record | None]:
        replies = self._sessions.ask_each(scripts.export_messages(payloads=[key], max_bytes="") for key in keys)
        records = [_Record(found.json, found.pexpiretime) for reply in replies for found in reply.records]
        return [None if record.expires_at_ms == _ABSENT else record for record in records]

    def _remove(self, key: str, digest: str) -> bool:
        removed = bool(self._sessions.ask(scripts.unlink_copied(copied=key, digest=digest)))
        if removed and self._counts_only:
            self._gone.add(key.encode())
        return removed

    def _forget(self, effects: Sequence[Effect]) -> int:
        pairs: list[lua.Value] = []
        for each in effects:
            pairs += (self._payload(each.packet_id), each.serial)
        removed = int(self._sessions.ask(scripts.remove_references(self._old, references=pairs)))
        if removed == len(effects) and self._counts_only:
            self._gone.update(self._payload(each.packet_id).encode() for each in effects)
        return removed


def _digest_of(fields: Mapping[str, str]) -> str:
    """Return the digest of a hash's fields, as ``unlink_copied`` computes it."""
    parts = [part for name in sorted(fields, key=str.encode) for part in (name, fields[name])]
    text = "".join(f"{len(part.encode())}:{part}" for part in parts)
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _counter(content: bytes) -> str:
    text = content.decode("utf-8", "replace")
    is_whole = text.isascii() and text.isdigit() and len(text) <= 5 and str(int(text)) == text
    return text if is_whole and int(text) <= MAX_PACKET_ID else ""


def _parts(
    records: Sequence[tuple[int, Effect, _Record | None]], *, size_bytes: int
) -> Iterator[list[tuple[int, Effect, _Record]]]:
    """Cut messages into calls of bounded size; messages that are gone meanwhile are left out."""
    there = ((place, effect, record) for place, effect, record in records if record is not None)
    return portions(there, size=lambda each: len(each[2].content), most=size_bytes)
