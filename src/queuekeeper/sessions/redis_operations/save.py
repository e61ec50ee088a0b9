"""Saves: stores messages of many sessions, most saves by one call each."""

from __future__ import annotations

from collections.abc import Sequence

from queuekeeper import lua
from queuekeeper.errors import QueuekeeperError
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.sessions.layouts import SOON_MS, Answered, SavedPart, Trimmed, added
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.parts import Part
from queuekeeper.sessions.redis_operations.common import Keys
from queuekeeper.sessions.redis_operations.packet_ids import PacketIdOperations, following_ids
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.steps import Reply, Steps, read_runs, write_runs
from queuekeeper.sessions.wire import stored_json

_PUBLISH = "PUBLISH"
_save_script = scripts.save_messages  # a look-up per save would take a hundredth of its time


class SaveOperations(PacketIdOperations):
    """Saves messages."""

    def _first_call(
        self, save: SessionSave, ends_ms: Sequence[int], soon_ms: int
    ) -> tuple[Keys, Sequence[int], lua.Call] | None:
        keys = self._recent.get(save.client_id)
        last = keys.last
        if last is None:
            return None
        ids = following_ids(last, len(ends_ms))
        keys.note(ids)
        return keys, ids, self._save_call(keys, save, save.messages, ends_ms, soon_ms, last=last, ids=ids)

    def _report_of(self, keys: Keys, ids: Sequence[int], reply: Reply, replicated: bool | None) -> SaveReport | None:
        if type(reply) is not bytes:
            return None
        saved = _save_script.script.read(reply)
        if saved.expired or int(saved.references) > self._rules.limit:
            return None
        serial = int(saved.first_serial)
        return SaveReport(
            client_id=keys.client_id,
            packet_ids=tuple(ids),
            serials=tuple(range(serial, serial + len(ids))),
            dead=int(saved.replaced[0]) if saved.replaced else 0,
            replicated=replicated,
        )

    def _save_part(
        self, save: SessionSave, part: Part, refused: Sequence[Refusal], begun: Answered | None
    ) -> Steps[SavedPart | None]:
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
        if reply.word:
            keys.last = None
            if reply.word == "forgotten":
                return None
            return SavedPart(
                read_runs(reply.packet_ids), reply.first_serial, reply.expired,
                trimmed=trimmed, replicated=replicated, replayed=True,
            )  # fmt: skip
        expired = reply.expired
        if ids and expired and expired.count(b",") + 1 == len(ids):
            # No packet ids were given out that the next call could follow.
            keys.last = None
        return SavedPart(
            ids,
            int(reply.first_serial),
            expired,
            int(reply.references),
            added(trimmed, Trimmed(dead=sum(map(int, reply.replaced)))),
            replicated,
        )

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
        epoch = "" if self._epoch_of is None else self._epoch(keys.client_id)
        batch = ""
        if save.source is not None or refused:
            over = sum(refusal is Refusal.EXPIRED for refusal in refused)
            is_numbered = save.source is not None
            batch = _save_script.forms.batch(
                refused=len(refused) - over,
                over=over,
                offset=(save.offset or 0) if is_numbered else "",
                chunk=number if is_numbered else "",
                packet_ids=write_runs(ids) if is_numbered else "",
                source=save.source or "",
            )
        payloads: list[lua.Value] = []
        stored: list[lua.Value] = []
        stem, client_id = keys.stem, save.client_id
        for packet_id, message, end_ms in zip(ids, messages, ends_ms, strict=True):
            payloads.append(b"%b%d" % (stem, packet_id))
            stored.append(end_ms)
            stored.append(stored_json(message, client_id=client_id, packet_id=packet_id, packet_type=_PUBLISH))
        until_ms: int | str = ""
        if ends_ms and isinstance(self._session_expiry_ms, int):
            until_ms = max(ends_ms) + self._session_expiry_ms
        return _save_script(
            keys,
            payloads=payloads,
            epoch=epoch,
            expected=last.decode(),
            last_packet_id=ids[-1] if ids else "",
            until_ms=until_ms,
            soon="1" if ends_ms and min(ends_ms) <= soon_ms else "",
            batch=batch,
            messages=stored,
        )
