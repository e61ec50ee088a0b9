"""Upkeep of sessions in Redis: purges whole sessions."""

from __future__ import annotations

from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.redis_operations.common import KEYS_PER_CALL, CommonOperations
from queuekeeper.sessions.reports import PurgeProgress, PurgeReport
from queuekeeper.sessions.steps import ask
from queuekeeper.sessions.store import SessionOperations


class UpkeepOperations(CommonOperations):
    """Purge."""

    @keeps(SessionOperations.purge_session)
    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """:param progress: progress of an interrupted purge, from which to continue; it is updated."""
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        if dry_run:
            return PurgeReport(client_id=client_id, messages=state.references, kept=0, dry_run=True)
        keys.last = None
        progress = progress or PurgeProgress()
        if progress.up_to_serial is None:
            progress.up_to_serial = state.highest
        highest = progress.up_to_serial
        while True:
            page = yield from self._list(keys, "rank", 0, KEYS_PER_CALL)
            going = [reference.member for reference in page if reference.serial <= highest]
            own = [member for member in going if keys.packet_id(member) is not None]
            foreign = [member for member in going if keys.packet_id(member) is None]
            call = scripts.purge_session(
                keys, payloads=own, epoch=self._epoch(keys.client_id), up_to_serial=highest, members=foreign
            )
            reply = yield from ask(call)
            progress.removed += reply.removed
            if not reply.remaining or len(going) < KEYS_PER_CALL:
                return PurgeReport(client_id=client_id, messages=progress.removed, kept=reply.remaining, dry_run=False)
