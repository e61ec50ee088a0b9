"""Import and purge of a packed session."""

from __future__ import annotations

from queuekeeper import lua
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.layouts import ImportChunk
from queuekeeper.sessions.packed_operations.common import SERIALS_PER_CALL
from queuekeeper.sessions.packed_operations.look import LookOperations
from queuekeeper.sessions.reports import PurgeProgress, PurgeReport
from queuekeeper.sessions.steps import ask
from queuekeeper.sessions.store import FIRST_SERIAL, SessionOperations


class TransferOperations(LookOperations):
    """Exports, imports and purges sessions."""

    def _import_call(self, chunk: ImportChunk) -> lua.Call:
        session = chunk.session
        until_ms: lua.Value = ""
        if chunk.last and isinstance(self._session_expiry_ms, int):
            ends_ms = map(self._end_of_life, session.messages)
            until_ms = max([self._clock(), *ends_ms]) + self._session_expiry_ms
        values: list[lua.Value] = []
        for message in chunk.messages:
            values += (message.serial, self._imported(message))
        return scripts.import_session(
            self._keys(session.client_id),
            plan=chunk.plan,
            epoch=chunk.epoch,
            owner="redis",
            chunk=chunk.number,
            last=int(chunk.last),
            last_packet_id=session.last_packet_id or 0,
            last_serial="" if session.last_serial is None else session.last_serial,
            until_ms=until_ms,
            messages=values,
        )

    @keeps(SessionOperations.purge_session)
    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """One call removes everything at once, unless changes are mirrored; then it is done page by page.

        :param progress: progress of an interrupted purge; it is updated.
        """
        keys = self._keys(client_id)
        progress = progress or PurgeProgress()
        if dry_run:
            state = yield from self._read_session(keys)
            return PurgeReport(client_id=client_id, messages=state.messages, kept=0, dry_run=True)
        epoch = self._epoch(client_id)
        reply = yield from ask(scripts.purge_session(keys, epoch=epoch, up_to_serial=0, serials=()))
        progress.removed += reply.removed
        if reply.last_serial > FIRST_SERIAL:
            if progress.up_to_serial is None:
                progress.up_to_serial = reply.last_serial
            state = yield from self._read_session(keys)
            serials = yield from self._serials(keys, state)
            for start in range(0, max(len(serials), 1), SERIALS_PER_CALL):
                call = scripts.purge_session(
                    keys, epoch=epoch, up_to_serial=progress.up_to_serial,
                    serials=serials[start : start + SERIALS_PER_CALL],
                )  # fmt: skip
                reply = yield from ask(call)
                progress.removed += reply.removed
        return PurgeReport(client_id=client_id, messages=progress.removed, kept=reply.remaining, dry_run=False)
