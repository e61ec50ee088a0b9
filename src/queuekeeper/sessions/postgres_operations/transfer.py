"""Export and import of a session as JSON Lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from queuekeeper.checks import check_integer, check_page
from queuekeeper.errors import MovedOn, UsageError
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.postgres_operations.common import Query, Session, Step, check_vendor_id, retried, signed
from queuekeeper.sessions.postgres_operations.deliver import HIGHEST_SERIAL, LOWEST_SERIAL, DeliverOperations
from queuekeeper.sessions.postgres_operations.look import LookOperations
from queuekeeper.sessions.postgres_operations.packet_ids import PacketIdOperations
from queuekeeper.sessions.postgres_operations.rows import Row, messages_queries, row_of, save_states_query
from queuekeeper.sessions.reports import ExportPage, ImportReport
from queuekeeper.sessions.store import FIRST_SERIAL, PAGE_BYTES, SessionOperations


class TransferOperations(PacketIdOperations, DeliverOperations, LookOperations):
    """Exports and imports sessions."""

    @keeps(SessionOperations.export_session)
    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """Of two messages with the same packet id, since ids wrap, the older one is left out as unreadable."""
        check_vendor_id(client_id)
        check_page(0, limit, most=MAX_PAGE)
        if after_serial is not None:
            check_integer("after_serial", after_serial, LOWEST_SERIAL, HIGHEST_SERIAL, "from the page before")
        lines: list[bytes] = []
        if after_serial is None:
            session = yield from self.inspect(client_id, limit=1)
            last_serial = session.last_serial
            lines.append(
                jsonl.session_line(
                    client_id=client_id,
                    last_packet_id=(yield from self.get_last_packet_id(client_id)),
                    last_serial=last_serial if last_serial is None or last_serial >= 0 else None,
                    exported_from="postgres",
                )
            )
        page = yield from self._read_page(
            client_id,
            after_serial=after_serial,
            backlog_serial=HIGHEST_SERIAL,
            limit=limit,
            max_bytes=PAGE_BYTES,
        )
        superseded: set[int] = set()
        if page.messages:
            parameters = {
                "client_id": client_id,
                "first_serial": page.messages[0].serial,
                "last_serial": page.messages[-1].serial,
            }
            (rows,) = yield Step(
                begin=True, end=True, queries=(Query(name="superseded_messages", parameters=parameters),)
            )
            superseded = {serial for (serial,) in rows}
        lines += [
            jsonl.message_line(message, client_id=client_id)
            for message in page.messages
            if message.serial not in superseded
        ]
        return ExportPage(
            lines=tuple(lines),
            after_serial=page.after_serial,
            more=page.more,
            unreadable=len(page.unreadable) + len(superseded),
        )

    @keeps(SessionOperations.import_session)
    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """The lines are held in memory until all have been checked.

        :raises UsageError: also when there are more messages than the rules allow, or a message has a value that the
            vendor's tables cannot hold.
        """
        check_vendor_id(client_id)
        session = jsonl.read_lines(lines, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        if len(session.messages) > self._rules.limit:
            raise UsageError(
                f"the export has {len(session.messages)} messages: this store keeps at most {self._rules.limit} (limit)"
            )
        for message in session.messages:
            self._check_import(message)
        return (yield from retried(lambda: self._transaction(self._import(session))))

    def _import(self, exported: jsonl.ExportedSession) -> Operation[ImportReport]:
        parameters: dict[str, Any] = {
            "client_id": exported.client_id,
            "last_serial": FIRST_SERIAL if exported.last_serial is None else exported.last_serial,
            "last_packet_id": exported.last_packet_id or 0,
        }
        forget = Query(name="forget_cleared_sessions", parameters={"client_ids": [exported.client_id]})
        _, _, rows = yield Step(
            queries=(self._hold([exported.client_id]), forget, Query(name="import_session", parameters=parameters))
        )
        if not rows:
            raise MovedOn(f"session {exported.client_id!r} exists: purge it before the import")
        ((now_ms,),) = rows
        stored: list[Row] = []
        latest_ms = now_ms
        for message in exported.messages:
            interval = signed(message.expiry_interval_s)
            expires_at_ms = self._expires_at_ms(message.time_ms, interval)
            if expires_at_ms > now_ms:
                latest_ms = max(latest_ms, expires_at_ms)
                stored.append(
                    row_of(
                        message,
                        client_id=exported.client_id,
                        serial=message.serial,
                        packet_id=message.packet_id,
                        packet_type=message.packet_type,
                        interval=interval,
                    )
                )
        state = Session(
            client_id=exported.client_id,
            last_serial=parameters["last_serial"],
            last_packet_id=parameters["last_packet_id"],
            now_ms=now_ms,
            delivered_serial=exported.delivered_serial,
            message_bound=len(stored),
            messages=None,
            batch_offset=None,
            batch_first_serial=None,
            batch_packet_ids=None,
            used_packet_ids=[],
            is_kept=False,
            until_ms=self._until_ms(latest_ms),
        )
        yield Step(queries=(*messages_queries("save_messages", stored), save_states_query([state])))
        return ImportReport(
            client_id=exported.client_id,
            stored=len(stored),
            expired=len(exported.messages) - len(stored),
            last_packet_id=exported.last_packet_id,
        )
