"""Saves and packet ids of packed sessions: scripts give the ids out, so that most saves take one call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import MAX_RESERVATION, SOON_MS, TRIES, Answered, SavedPart, Trimmed, added
from queuekeeper.sessions.model import NewMessage, SessionSave, check_expected, check_packet_id
from queuekeeper.sessions.packed_operations.common import Keys, following
from queuekeeper.sessions.packed_operations.room import FreeIds, RoomOperations
from queuekeeper.sessions.packed_record import record_of
from queuekeeper.sessions.parts import Part, no_free_packet_ids
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.steps import Reply, Steps, ask, checked, read_runs
from queuekeeper.sessions.store import SessionOperations


class SaveOperations(RoomOperations):
    """Saves messages; reads, sets and reserves packet ids."""

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
                given = scripts.reserve_packet_ids.forms.given(
                    last=found.state.last, ids=found.state.ids, next_ids=found.ids[-1], free=found.free
                )
            call = scripts.reserve_packet_ids(
                keys, epoch=self._epoch(client_id), count=count, keep_ms=self._session_expiry_ms, given=given
            )
            reply = yield from ask(call)
            if reply.word == "reserved":
                return tuple(found.packet_ids if found else following(reply.first_packet_id, count))
            found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                raise no_free_packet_ids(client_id, free=len(found.ids), count=count)
        raise _too_many_writers()

    def _first_call(
        self, save: SessionSave, ends_ms: Sequence[int], soon_ms: int
    ) -> tuple[Keys, Sequence[int], lua.Call] | None:
        keys = self._recent.get(save.client_id)
        if not keys.next_packet_id:
            return None
        ids = keys.expected(len(ends_ms))
        return keys, ids, self._save_call(keys, save, save.messages, ends_ms, soon_ms, ids)

    def _report_of(self, keys: Keys, ids: Sequence[int], reply: Reply, replicated: bool | None) -> SaveReport | None:
        if type(reply) is not int:
            return None
        return SaveReport(
            client_id=keys.client_id,
            packet_ids=tuple(ids),
            serials=tuple(range(reply, reply + len(ids))),
            replicated=replicated,
        )

    def _save_part(
        self, save: SessionSave, part: Part, refused: Sequence[Refusal], begun: Answered | None
    ) -> Steps[SavedPart | None]:
        """Save a part, again while packet ids are in use or other writers come first."""
        keys = self._keys(save.client_id)
        count = len(part.messages)
        soon_ms = self._clock() + SOON_MS
        found: FreeIds | None = None
        trimmed = Trimmed()
        for _ in range(TRIES):
            if begun is None:
                ids = keys.expected(count) if found is None else found.packet_ids
                call = self._save_call(
                    keys, save, part.messages, part.ends_ms, soon_ms, ids, number=part.number, refused=refused,
                    found=found,
                )  # fmt: skip
                replies = yield [call]
            else:
                ids, replies = begun
                begun = None
            reply = scripts.save_messages.script.read(checked(replies[0]))
            replicated = replies.replicated[0] if isinstance(replies, lua.Replies) else None
            if type(reply) is int:
                return SavedPart(ids, reply, b"", trimmed=trimmed, replicated=replicated)
            if not reply.word:
                first = int(reply.first_packet_id)
                if found is None and (not ids or first != ids[0]):
                    ids = following(first, count)
                    # No packet id is given out where all messages have expired.
                    keys.next_packet_id = ids[-1] % MAX_PACKET_ID + 1 if first and count else 0
                return SavedPart(
                    ids,
                    int(reply.first_serial),
                    reply.expired,
                    int(reply.messages),
                    added(trimmed, Trimmed(live=int(reply.trimmed), dead=int(reply.replaced))),
                    replicated,
                )
            if reply.word == "forgotten":
                return None
            if reply.word == "replayed":
                return SavedPart(
                    _given_out(reply.packet_ids), reply.first_serial, reply.expired,
                    trimmed=trimmed, replicated=replicated, replayed=True,
                )  # fmt: skip
            found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                trimmed = added(trimmed, (yield from self._trim(save.client_id, MAX_PACKET_ID - count)))
                found = yield from self._free_ids(keys, count)
            if len(found.ids) < count:
                raise no_free_packet_ids(save.client_id, free=len(found.ids), count=count)
        raise _too_many_writers()

    def _save_call(
        self,
        keys: Keys,
        save: SessionSave,
        messages: Sequence[NewMessage],
        ends_ms: Sequence[int],
        soon_ms: int,
        packet_ids: Sequence[int],
        *,
        number: int = 0,
        refused: Sequence[Refusal] = (),
        found: FreeIds | None = None,
    ) -> lua.Call:
        records = [
            record_of(message, packet_id=packet_id, end_ms=end_ms)
            for message, end_ms, packet_id in zip(messages, ends_ms, packet_ids or repeat(0), strict=False)
        ]
        soonest_ms = min(ends_ms, default=0)
        until_ms = 0
        if isinstance(self._session_expiry_ms, int):
            until_ms = max(ends_ms, default=0) + self._session_expiry_ms
        epoch = "" if self._epoch_of is None else self._epoch(save.client_id)
        has_more = save.source is not None or found is not None or epoch != "" or bool(refused)
        script = scripts.save_messages
        values: list[lua.Value] = []
        if has_more:
            over = sum(refusal is Refusal.EXPIRED for refusal in refused)
            values.append(
                script.forms.more(
                    refused=len(refused) - over,
                    over=over,
                    chunk=number,
                    epoch=-1 if epoch == "" else epoch,
                    offset=-1 if save.offset is None else save.offset,
                    is_given=found is not None,
                )
            )
        if save.source is not None:
            values.append(f"source:{save.source}")
        if found is not None:
            ids = found.packet_ids
            replaced = [found.expired[packet_id] for packet_id in ids if packet_id in found.expired]
            values.append(
                script.forms.given(
                    last=found.state.last,
                    ids=found.state.ids,
                    next_ids=found.ids[-1],
                    free=found.free,
                    packet_ids=",".join(map(str, ids)),
                    replaced=",".join(map(str, replaced)),
                )
            )
        return script(
            keys,
            until_ms=until_ms,
            soonest_ms=soonest_ms,
            largest=max(map(len, records), default=0),
            soon=bool(ends_ms) and soonest_ms <= soon_ms,
            limit=self._rules.limit,
            first_packet_id=packet_ids[0] if packet_ids else 0,
            has_more=has_more,
            values=values + records,
        )


def _given_out(text: bytes) -> Sequence[int]:
    """Return the packet ids that a script has recorded for a call."""
    first, plus, count = text.partition(b"+")
    return following(int(first), int(count)) if plus else read_runs(text)


def _too_many_writers() -> RefusedError:
    return RefusedError(
        f"other writers changed the session first, {TRIES} times: let fewer writers save to the session"
    )
