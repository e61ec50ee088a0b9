"""Export and import of a session as JSON Lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from queuekeeper import lua
from queuekeeper.checks import check_page
from queuekeeper.errors import ImportedBefore, MovedOn, NotOwner, StaleEpoch
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation, keeps
from queuekeeper.portions import portions
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.parts import BYTES_PER_SAVE, MESSAGES_PER_SAVE
from queuekeeper.sessions.redis_operations.common import imported_json, known_serial, packet_id_of
from queuekeeper.sessions.redis_operations.deliver import DeliverOperations
from queuekeeper.sessions.reports import ExportPage, ImportReport, PendingMessage
from queuekeeper.sessions.steps import ask
from queuekeeper.sessions.store import FIRST_SERIAL, PAGE_BYTES, SessionOperations


class TransferOperations(DeliverOperations):
    """Exports and imports sessions."""

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
            last_serial = max(state.highest, state.last_serial)
            lines.append(
                jsonl.session_line(
                    client_id=client_id,
                    last_packet_id=packet_id_of(state.last_packet_id),
                    last_serial=known_serial(last_serial),
                    exported_from="redis",
                )
            )
        page = yield from self._page(
            keys,
            client_id,
            after_serial=after_serial,
            backlog_serial=state.highest,
            delivered_serial=state.delivered_serial,
            limit=limit,
            max_bytes=PAGE_BYTES,
        )
        lines += (jsonl.message_line(message, client_id=client_id) for message in page.messages)
        return ExportPage(
            lines=tuple(lines),
            after_serial=page.after_serial,
            more=page.more,
            unreadable=len(page.unreadable) + page.foreign,
        )

    @keeps(SessionOperations.import_session)
    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """Repeating an interrupted import continues it."""
        given = [line for line in lines if line.strip()]
        session = jsonl.read_lines(given, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        plan = "restore:" + hashlib.sha256(b"\n".join(line.strip() for line in given)).hexdigest()
        keys = self._keys(client_id)
        stored = expired = 0
        chunks = list(import_chunks(session.messages)) or [[]]
        for number, chunk in enumerate(chunks):
            messages: list[lua.Value] = []
            for message in chunk:
                messages += (message.serial, self._end_of_life(message), imported_json(message, client_id))
            call = scripts.import_session(
                keys,
                payloads=[keys.payload(message.packet_id) for message in chunk],
                plan=plan,
                epoch=self._epoch(keys) or 0,
                owner="redis",
                chunk=number,
                last=int(number == len(chunks) - 1),
                last_packet_id="" if session.last_packet_id is None else session.last_packet_id,
                last_serial="" if session.last_serial is None else session.last_serial,
                messages=messages,
            )
            try:
                reply = yield from ask(call)
            except (ImportedBefore, MovedOn, NotOwner, StaleEpoch) as error:
                if isinstance(error, NotOwner | StaleEpoch) and self._epoch(keys) != "":
                    raise
                raise MovedOn(f"the session of {client_id!r} exists: {error}") from None
            if reply.word in ("unchanged", "used"):
                raise MovedOn(f"the session of {client_id!r} exists: these lines were imported before")
            stored += reply.written
            expired += reply.expired
        if stored and session.delivered_serial > FIRST_SERIAL:
            yield from self.mark_delivered(client_id, serial=session.delivered_serial)
        return ImportReport(client_id=client_id, stored=stored, expired=expired, last_packet_id=session.last_packet_id)


def import_chunks(messages: Sequence[PendingMessage]) -> Iterator[list[PendingMessage]]:
    """Cut an import into calls."""
    return portions(
        messages, size=lambda message: len(message.payload), most=BYTES_PER_SAVE, most_items=MESSAGES_PER_SAVE
    )
