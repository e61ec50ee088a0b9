"""Export, import and purge of a packed session."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from queuekeeper import lua
from queuekeeper.checks import check_page
from queuekeeper.errors import ImportedBefore, MovedOn, NotOwner, StaleEpoch
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.packed_operations.look import LookOperations
from queuekeeper.sessions.packed_record import imported_record
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.redis_operations.common import known_serial
from queuekeeper.sessions.redis_operations.transfer import import_chunks
from queuekeeper.sessions.reports import ExportPage, ImportReport, PurgeProgress, PurgeReport
from queuekeeper.sessions.steps import ask
from queuekeeper.sessions.store import FIRST_SERIAL, PAGE_BYTES, SessionOperations


class TransferOperations(LookOperations):
    """Exports, imports and purges sessions."""

    @keeps(SessionOperations.export_session)
    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        check_page(0, limit, most=MAX_PAGE)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        lines: list[bytes] = []
        if after_serial is None:
            after_serial = FIRST_SERIAL
            lines.append(
                jsonl.session_line(
                    client_id=client_id,
                    last_packet_id=state.last_packet_id,
                    last_serial=known_serial(state.last),
                    exported_from="redis",
                )
            )
        page = yield from self._page(
            keys, state, after_serial=after_serial, backlog_serial=state.highest, limit=limit, max_bytes=PAGE_BYTES
        )
        lines += (jsonl.message_line(message, client_id=client_id) for message in page.messages)
        return ExportPage(
            lines=tuple(lines), after_serial=page.after_serial, more=page.more, unreadable=len(page.unreadable)
        )

    @keeps(SessionOperations.import_session)
    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """Repeating an interrupted import continues it."""
        given = [line for line in lines if line.strip()]
        session = jsonl.read_lines(given, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        plan = "restore:" + hashlib.sha256(b"\n".join(line.strip() for line in given)).hexdigest()
        keys = self._keys(client_id)
        epoch = self._epoch(client_id)
        ends_ms = [self._end_of_life(message) for message in session.messages]
        until_ms: lua.Value = ""
        if isinstance(self._session_expiry_ms, int):
            until_ms = max([self._clock(), *ends_ms]) + self._session_expiry_ms
        stored = expired = 0
        chunks = list(import_chunks(session.messages)) or [[]]
        for number, chunk in enumerate(chunks):
            messages: list[lua.Value] = []
            for message in chunk:
                messages += (message.serial, imported_record(message, end_ms=self._end_of_life(message)))
            call = scripts.import_session(
                keys,
                plan=plan,
                epoch=epoch or 0,
                owner="redis",
                chunk=number,
                last=int(number == len(chunks) - 1),
                last_packet_id=session.last_packet_id or 0,
                last_serial="" if session.last_serial is None else session.last_serial,
                until_ms=until_ms,
                messages=messages,
            )
            try:
                reply = yield from ask(call)
            except (ImportedBefore, MovedOn, NotOwner, StaleEpoch) as error:
                if isinstance(error, NotOwner | StaleEpoch) and epoch != "":
                    raise
                raise MovedOn(f"the session of {client_id!r} exists: {error}") from None
            if reply.word in ("unchanged", "used"):
                raise MovedOn(f"the session of {client_id!r} exists: these lines were imported before")
            stored += reply.written
            expired += reply.expired
        if stored and session.delivered_serial > FIRST_SERIAL:
            yield from self.mark_delivered(client_id, serial=session.delivered_serial)
        return ImportReport(client_id=client_id, stored=stored, expired=expired, last_packet_id=session.last_packet_id)

    @keeps(SessionOperations.purge_session)
    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """One call removes everything at once.

        :param progress: progress of an interrupted purge; it is updated.
        """
        keys = self._keys(client_id)
        progress = progress or PurgeProgress()
        if dry_run:
            state = yield from self._read_session(keys)
            return PurgeReport(client_id=client_id, messages=state.messages, kept=0, dry_run=True)
        progress.removed += yield from ask(scripts.purge_session(keys, epoch=self._epoch(client_id)))
        return PurgeReport(client_id=client_id, messages=progress.removed, kept=0, dry_run=False)
