"""Saves and packet ids of packed sessions: scripts give the ids out, so that most saves take one call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import QueuekeeperError, RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID, PackedKeys
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.model import NewMessage, SessionSave, check_expected, check_packet_id
from queuekeeper.sessions.packed_operations.room import FreeIds, RoomOperations
from queuekeeper.sessions.packed_record import record_to_store
from queuekeeper.sessions.parts import Part, no_free_packet_ids, other_batch, parts_of
from queuekeeper.sessions.redis_operations.packet_ids import MAX_RESERVATION, TRIES
from queuekeeper.sessions.redis_operations.room import Trimmed, added
from queuekeeper.sessions.redis_operations.save import SOON_MS
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.steps import Reply, Steps, ask, checked, read_runs, together
from queuekeeper.sessions.store import SessionOperations

_HEADING = struct.Struct(">8d")


class SaveOperations(RoomOperations):
    """Saves messages; reads, sets and reserves packet ids."""

    @keeps(SessionOperations.save_messages)
    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        indexes: dict[str, list[int]] = {}
        for index, save in enumerate(saves):
            self._rules.check_size(save)
            indexes.setdefault(save.client_id, []).append(index)
        reports: dict[int, SaveReport] = {}
        yield from together(self._save_session(saves, some, reports) for some in indexes.values())
        return [reports[index] for index in range(len(saves))]

    def check_payload(self, client_id: str, message: NewMessage) -> None:
        """Refuse a value that is not a message, or is larger than the rules allow.

        :raises UsageError: naming size and limit.
        """
        if type(message) is not NewMessage or len(message.payload) > self._rules.max_payload_bytes:
            self._rules.check_size(SessionSave(client_id=client_id, messages=(message,)))

    @keeps(SessionOperations.get_last_packet_id)
    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        return (yield from self._read_session(self._keys(client_id))).last_packet_id

    @keeps(SessionOperations.set_last_packet_id)
    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        check_packet_id(packet_id)
        check_expected(expected)
        call = scripts.set_last_packet_id(
            self._keys(client_id),
            epoch=self._epoch(client_id),
            expected=expected or 0,
            packet_id=packet_id,
            keep_ms=self._session_expiry_ms,
        )
        return bool((yield from ask(call)))

    @keeps(SessionOperations.reserve_packet_ids)
    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        check_integer("count", count, 1, MAX_RESERVATION, "reserve more in several calls")
        keys = self._keys(client_id)
        found: FreeIds | None = None
        for _ in range(TRIES):
            given = ""
            if found is not None:
                given = f"{found.state.last}:{found.state.ids}:{found.ids[-1]}:{found.free}"
            call = scripts.reserve_packet_ids(
                keys, epoch=self._epoch(client_id), count=count, keep_ms=self._session_expiry_ms, given=given
            )
            reply = yield from ask(call)
            if reply.word == "reserved":
                return tuple(found.packet_ids if found else _following(reply.first_packet_id, count))
            found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                raise no_free_packet_ids(client_id, free=len(found.ids), count=count)
        raise _too_many_writers()

    def _save_session(
        self, saves: Sequence[SessionSave], indexes: list[int], reports: dict[int, SaveReport]
    ) -> Steps[None]:
        """Do all saves for one session, one after the other."""
        failure: QueuekeeperError | None = None
        for index in indexes:
            save = saves[index]
            if failure is None:
                try:
                    reports[index] = yield from self._save(save)
                    continue
                except QueuekeeperError as error:
                    failure = error
            # A later save, if stored now, would come before the failed save that the caller repeats.
            reports[index] = SaveReport(client_id=save.client_id, error=failure)

    def _save(self, save: SessionSave) -> Steps[SaveReport]:
        keys = self._keys(save.client_id)
        parts, refused = parts_of(save.messages, default_ttl_s=self._rules.default_ttl_s)
        count = len(save.messages)
        packet_ids: list[int | None] = [None] * count
        serials: list[int | None] = [None] * count
        trimmed = Trimmed()
        replays = messages = 0
        forgotten = False
        replicated: bool | None = None
        before = list(refused.values())
        for part in parts:
            reply, found, has_it, made_room = yield from self._save_part(
                keys, save, part, () if part.number else before
            )
            trimmed = added(trimmed, made_room)
            if has_it is not None:
                replicated = has_it and replicated is not False
            if type(reply) is not bytes and reply.word == "forgotten":
                forgotten = True
                break
            if type(reply) is not bytes:
                replays += 1
                serial, expired = reply.first_serial, reply.expired
                ids = _given_out(reply.packet_ids)
                if len(ids) != len(part.messages):
                    stored = count - len(part.messages) + len(ids)
                    raise other_batch(save, stored=stored, given=count)
            else:
                values = reply.split(b":")
                serial, messages, expired = int(values[0]), int(values[2]), values[5]
                trimmed = added(trimmed, Trimmed(live=int(values[3]), dead=int(values[4])))
                ids = found.packet_ids if found else _following(int(values[1]), len(part.messages))
            dead = {int(position) for position in expired.split(b",")} if expired else ()
            for at, position in enumerate(part.positions):
                if at in dead:
                    refused[position] = Refusal.EXPIRED
                    continue
                packet_ids[position] = ids[at]
                serials[position] = serial
                serial += 1
        if messages > self._rules.limit and any(packet_id is not None for packet_id in packet_ids):
            # The messages are stored, and an error would make the caller store them twice. The next save trims.
            with suppress(QueuekeeperError):
                trimmed = added(trimmed, (yield from self._trim(keys, save.client_id, self._rules.limit)))
        return SaveReport(
            client_id=save.client_id,
            packet_ids=tuple(packet_ids),
            serials=tuple(serials),
            # The expired messages of a forgotten batch are not known.
            refused={} if forgotten else refused,
            trimmed=trimmed.live,
            trimmed_in_flight=trimmed.in_flight,
            dead=trimmed.dead,
            replayed=forgotten or replays == len(parts),
            forgotten=forgotten,
            replicated=replicated,
        )

    def _save_part(
        self, keys: PackedKeys, save: SessionSave, part: Part, refused: Sequence[Refusal]
    ) -> Steps[tuple[Reply, FreeIds | None, bool | None, Trimmed]]:
        """Save a part, again while packet ids are in use or other writers come first."""
        records = [
            record_to_store(message, end_ms=end_ms) for message, end_ms in zip(part.messages, part.ends_ms, strict=True)
        ]
        count = len(records)
        found: FreeIds | None = None
        made_room = Trimmed()
        for _ in range(TRIES):
            call = self._save_call(keys, save, part, records, refused, found)
            replies = yield [call]
            reply = call.script.read(checked(replies[0]))
            if type(reply) is bytes or reply.word != "conflict":
                replicated = replies.replicated[0] if isinstance(replies, lua.Replies) else None
                return reply, found, replicated, made_room
            found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                trimmed = yield from self._trim(keys, save.client_id, MAX_PACKET_ID - count)
                made_room = added(made_room, trimmed)
                found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                raise no_free_packet_ids(save.client_id, free=len(found.ids), count=count)
        raise _too_many_writers()

    def _save_call(
        self,
        keys: PackedKeys,
        save: SessionSave,
        part: Part,
        records: Sequence[bytes],
        refused: Sequence[Refusal],
        found: FreeIds | None,
    ) -> lua.Call:
        ends_ms = part.ends_ms
        soonest_ms = min(ends_ms, default=0)
        until_ms = 0
        if isinstance(self._session_expiry_ms, int):
            until_ms = max(ends_ms, default=0) + self._session_expiry_ms
        over = sum(refusal is Refusal.EXPIRED for refusal in refused)
        heading = _HEADING.pack(
            until_ms,
            soonest_ms,
            # The script puts the packet id before each.
            max(map(len, records), default=0) + 2,
            bool(ends_ms) and soonest_ms <= self._clock() + SOON_MS,
            self._rules.limit,
            len(refused) - over,
            over,
            part.number,
        )
        given = ""
        if found is not None:
            ids = found.packet_ids
            replaced = [found.expired[packet_id] for packet_id in ids if packet_id in found.expired]
            given = (
                f"{found.state.last}:{found.state.ids}:{found.ids[-1]}:{found.free}"
                f":{','.join(map(str, ids))}:{','.join(map(str, replaced))}"
            )
        return scripts.save_messages(
            keys,
            heading=heading,
            epoch=self._epoch(save.client_id),
            source="" if save.source is None else f"source:{save.source}",
            offset="" if save.offset is None else save.offset,
            given=given,
            messages=records,
        )


def _following(first: int, count: int) -> Sequence[int]:
    """Return so many packet ids from one on; 1 follows 65,535."""
    if first + count - 1 <= MAX_PACKET_ID:
        return range(first, first + count)
    return [(first + step - 1) % MAX_PACKET_ID + 1 for step in range(count)]


def _given_out(text: bytes) -> Sequence[int]:
    """Return the packet ids that a script has recorded for a call."""
    first, plus, count = text.partition(b"+")
    return _following(int(first), int(count)) if plus else read_runs(text)


def _too_many_writers() -> RefusedError:
    return RefusedError(
        f"other writers changed the session first, {TRIES} times: let fewer writers save to the session"
    )
