"""Saves: stores messages of many sessions, most saves by one call each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from queuekeeper import lua
from queuekeeper.errors import QueuekeeperError
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import SOON_MS, SavedPart, Trimmed, added
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.parts import BYTES_PER_SAVE, MESSAGES_PER_SAVE, Part, ends_of_lives
from queuekeeper.sessions.redis_operations.common import Keys
from queuekeeper.sessions.redis_operations.packet_ids import Answered, PacketIdOperations, following_ids
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.steps import SESSIONS_PER_STEP, Reply, Steps, part_of, read_runs, together, write_runs
from queuekeeper.sessions.store import SessionOperations
from queuekeeper.sessions.wire import stored_json

_PUBLISH = "PUBLISH"


_Begun: TypeAlias = tuple[int, Keys, Sequence[int], lua.Call]
"""A save that one call may complete: its place among all saves, keys, packet ids, and the call."""


class SaveOperations(PacketIdOperations):
    """Saves messages."""

    @keeps(SessionOperations.save_messages)
    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        most_bytes = self._rules.max_payload_bytes
        places: dict[str, int] = {}
        repeated: dict[str, list[int]] = {}
        for index, save in enumerate(saves):
            client_id = save.client_id
            place = places.setdefault(client_id, index)
            if place != index:
                repeated.setdefault(client_id, [place]).append(index)
            if save.largest_bytes > most_bytes:
                self._rules.check_size(save)
        reports: dict[int, SaveReport] = {}
        begun: list[_Begun] = []
        branches: list[Steps[None]] = []
        soon_ms = self._clock() + SOON_MS
        for client_id, place in places.items():
            first = None if client_id in repeated else self._begin(saves[place], place, soon_ms)
            if first is None:
                branches.append(self._save_session(saves, repeated.get(client_id, [place]), reports))
            else:
                begun.append(first)
        # One call with the expected reply completes most saves; they skip the work that other saves need.
        for start in range(0, len(begun), SESSIONS_PER_STEP):
            sent = begun[start : start + SESSIONS_PER_STEP]
            replies: Sequence[Reply]
            try:
                replies = yield [call for _, _, _, call in sent]
            except QueuekeeperError as error:
                replies = [error] * len(sent)
            replicated = replies.replicated if isinstance(replies, lua.Replies) else None
            for at, (place, keys, ids, _) in enumerate(sent):
                report = self._report_of(keys, ids, replies[at], None if replicated is None else replicated[at])
                if report is None:
                    reply = ids, part_of(replies, at, at + 1)
                    branches.append(self._save_session(saves, [place], reports, reply))
                else:
                    reports[place] = report
        yield from together(iter(branches))
        return [reports[index] for index in range(len(saves))]

    def _begin(self, save: SessionSave, place: int, soon_ms: int) -> _Begun | None:
        """Return the one call that completes most saves; none when the save needs more calls."""
        keys = self._recent.get(save.client_id)
        last = keys.last
        messages = save.messages
        count = len(messages)
        if last is None or count > MESSAGES_PER_SAVE or (save.payload_bytes > BYTES_PER_SAVE and count > 1):
            return None
        ends_ms = ends_of_lives(messages, default_ttl_s=self._rules.default_ttl_s)
        if ends_ms is None:
            return None
        ids = following_ids(last, count)
        keys.note(ids)
        return place, keys, ids, self._save_call(keys, save, messages, ends_ms, soon_ms, last=last, ids=ids)

    def _report_of(self, keys: Keys, ids: Sequence[int], reply: Reply, replicated: bool | None) -> SaveReport | None:
        """Return the report of a save that its first call has completed; none when more calls are needed."""
        if type(reply) is not bytes:
            return None
        serial, references, expired, replaced = _read_saved(reply)
        if expired or references > self._rules.limit:
            return None
        return SaveReport(
            client_id=keys.client_id,
            packet_ids=tuple(ids),
            serials=tuple(range(serial, serial + len(ids))),
            dead=replaced,
            replicated=replicated,
        )

    def _save_part(
        self, save: SessionSave, part: Part, refused: Sequence[Refusal], begun: Answered | None
    ) -> Steps[SavedPart | None]:
        """:param begun: packet ids and replies of the first call; none when it was not sent."""
        keys = self._recent.get(save.client_id)
        soon_ms = self._clock() + SOON_MS

        def call(last: bytes, ids: Sequence[int]) -> lua.Call:
            return self._save_call(
                keys,
                save,
                part.messages,
                part.ends_ms,
                soon_ms,
                last=last,
                ids=ids,
                number=part.number,
                refused=refused,
            )

        try:
            ids, reply, replicated, trimmed = yield from self._claim(
                keys, len(part.messages), call, may_trim=True, begun=begun
            )
        except QueuekeeperError:
            keys.last = None
            raise
        if type(reply) is not bytes:
            keys.last = None
            if reply.word == "forgotten":
                return None
            return SavedPart(
                read_runs(reply.packet_ids), reply.first_serial, reply.expired,
                trimmed=trimmed, replicated=replicated, replayed=True,
            )  # fmt: skip
        serial, references, expired, replaced = _read_saved(reply)
        if ids and expired and expired.count(b",") + 1 == len(ids):
            # No packet ids were given out that the next call could follow.
            keys.last = None
        return SavedPart(ids, serial, expired, references, added(trimmed, Trimmed(dead=replaced)), replicated)

    def _save_call(
        self,
        keys: Keys,
        save: SessionSave,
        messages: Sequence[NewMessage],
        ends_ms: Sequence[int],
        soon_ms: int,
        *,
        last: bytes,
        ids: Sequence[int],
        number: int = 0,
        refused: Sequence[Refusal] = (),
    ) -> lua.Call:
        stem = keys.stem
        epoch = "" if self._epoch_of is None else self._epoch(keys.client_id)
        batch = ""
        if save.source is not None or refused:
            over = sum(refusal is Refusal.EXPIRED for refusal in refused)
            batch = f"{len(refused) - over}:{over}::::"
            if save.source is not None:
                told = f"{save.offset or 0}:{number}:{write_runs(ids)}:{save.source}"
                batch = f"{len(refused) - over}:{over}:{told}"
        stored: list[lua.Value] = []
        client_id = save.client_id
        for packet_id, message, end_ms in zip(ids, messages, ends_ms, strict=True):
            json = stored_json(message, client_id=client_id, packet_id=packet_id, packet_type=_PUBLISH)
            stored += end_ms, json
        until_ms: int | str = ""
        if ends_ms and isinstance(self._session_expiry_ms, int):
            until_ms = max(ends_ms) + self._session_expiry_ms
        soon = "1" if ends_ms and min(ends_ms) <= soon_ms else ""
        heading = f"{epoch}:{last.decode()}:{ids[-1] if ids else ''}:{until_ms}:{soon}:{batch}"
        payloads = [b"%b%d" % (stem, packet_id) for packet_id in ids]
        return self._save_script(keys, payloads=payloads, heading=heading, messages=stored)


def _read_saved(reply: bytes) -> tuple[int, int, bytes, int]:
    """Return first serial, references, positions of expired messages, and how many of those were given packet ids."""
    parts = reply.split(b":")
    return int(parts[1]), int(parts[2]), parts[3], int(parts[4]) if len(parts) > 4 else 0
