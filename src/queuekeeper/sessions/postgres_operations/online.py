"""Moving sessions while their clients are connected: snapshots, and messages that cannot move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuekeeper.errors import NotOwner
from queuekeeper.operation import Operation
from queuekeeper.sessions.judge import Reason, client_defect, row_defect, sql_bounds
from queuekeeper.sessions.postgres_operations.common import (
    JUDGED_COLUMNS,
    CommonOperations,
    Query,
    Step,
    check_vendor_id,
    retried,
    signed,
    stored_serial,
)
from queuekeeper.sessions.postgres_operations.deliver import Page, put_away
from queuekeeper.sessions.postgres_operations.rows import messages_queries, row_of
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import ApplyReport, SessionSnapshot, SourceBatch, empty_snapshot, last_given
from queuekeeper.sessions.store import FIRST_SERIAL
from queuekeeper.sessions.wire import UnreadableError

MESSAGES_PER_SNAPSHOT_STEP = 500
"""Rows that one step of a snapshot reads, whatever their size."""


class OnlineOperations(CommonOperations):
    """Finds and quarantines unreadable messages, reads and applies snapshots."""

    def set_aside_unreadable(
        self, client_id: str, *, duplicates: bool = False, clustered: bool = False
    ) -> Operation[int]:
        """Quarantine messages that cannot be delivered, as a fetch would.

        :param duplicates: also quarantine messages whose packet id a newer live message has, since a session in Redis
            cannot hold both.
        :param clustered: also quarantine all messages of a client that a cluster cannot hold; the session stays.
        :returns: how many messages were quarantined.
        :raises NotOwner: when there are such messages and PostgreSQL does not own the session.
        """
        check_vendor_id(client_id)
        unreadable = yield from self._unreadable(client_id, clustered=clustered)
        put_aside = yield from self._set_aside(client_id, unreadable)
        if duplicates:
            repeated = yield from self._duplicates(client_id)
            put_aside += yield from self._set_aside(client_id, repeated)
        return put_aside

    def find_unreadable(self, client_id: str, *, clustered: bool = False) -> Operation[dict[int, str]]:
        """Return the reasons of messages that cannot move to Redis, by serial; nothing is changed.

        :param clustered: whether Redis is a cluster, which holds no message of some clients.
        :returns: messages that cannot be delivered, and messages whose packet id a newer live message has.
        """
        check_vendor_id(client_id)
        unreadable = yield from self._unreadable(client_id, clustered=clustered)
        repeated = yield from self._duplicates(client_id)
        return repeated | unreadable

    def _duplicates(self, client_id: str) -> Operation[dict[int, str]]:
        parameters = {"client_id": client_id, "default_ttl_s": self._rules.default_ttl_s}
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="duplicate_messages", parameters=parameters),))
        return {serial: str(Reason.PACKET_ID_DUPLICATE) for (serial,) in rows}

    def _set_aside(self, client_id: str, reasons: dict[int, str]) -> Operation[int]:
        if not reasons:
            return 0
        page = Page(after_serial=FIRST_SERIAL, backlog_serial=FIRST_SERIAL, unreadable=reasons)
        return (yield from self._transaction(put_away(client_id, page, self._hold([client_id]))))

    def _unreadable(
        self, client_id: str, *, inside: bool = False, clustered: bool = False
    ) -> Operation[dict[int, str]]:
        """Return the reasons of messages that cannot be delivered, by serial.

        :param inside: whether a transaction is open.
        :param clustered: whether a cluster is to deliver them.
        """
        if (of_client := client_defect(client_id, clustered=clustered)) is not None:
            every = Query(name="list_serials", parameters={"client_id": client_id})
            (rows,) = yield Step(begin=not inside, end=not inside, queries=(every,))
            return {serial: str(of_client) for (serial,) in rows}
        parameters = {"client_id": client_id, **sql_bounds()}
        suspicious = Query(name="suspicious_messages", parameters=parameters)
        (rows,) = yield Step(begin=not inside, end=not inside, queries=(suspicious,))
        reasons = {row[0]: row_defect(dict(zip(JUDGED_COLUMNS, row, strict=True))) for row in rows}
        return {serial: str(reason) for serial, reason in reasons.items() if reason is not None}

    def read_snapshot(self, client_id: str, serials: Sequence[int] | None = None) -> Operation[SessionSnapshot]:
        """Read a snapshot of a session for the other store; it may hold or miss concurrent changes.

        :meth:`read_left_out` returns what the snapshot leaves out.

        :param serials: serials of the messages to read; none for all.
        """
        snapshot, _ = yield from self._read_snapshot(client_id, serials)
        return snapshot

    def read_left_out(self, client_id: str) -> Operation[dict[int, str]]:
        """Return the reasons of messages that a snapshot leaves out, by serial.

        :returns: reason of the rule that a row breaks, ``expired``, or ``packet_id_duplicate`` when a newer live
            message has the same packet id. Messages over the limit of the rules are not included.
        """
        _, left_out = yield from self._read_snapshot(client_id, None)
        return left_out

    def _read_snapshot(
        self, client_id: str, serials: Sequence[int] | None
    ) -> Operation[tuple[SessionSnapshot, dict[int, str]]]:
        check_vendor_id(client_id)
        parameters: dict[str, Any] = {
            "client_id": client_id,
            "before_serial": None,
            "limit": MESSAGES_PER_SNAPSHOT_STEP,
        }
        (session,), rows = yield Step(
            begin=True,
            end=True,
            queries=(
                Query(name="snapshot_session", parameters={"client_id": client_id}),
                Query(name="snapshot_messages", parameters=parameters),
            ),
        )
        exists, counter, known_serial, delivered_serial, sources, offsets = session
        newest: PendingMessage | None = None
        live: dict[int, PendingMessage] = {}
        left_out: dict[int, str] = {}
        while rows and len(live) < self._rules.limit:
            for now_ms, *columns in rows:
                try:
                    message = self._pending(columns, delivered_serial=delivered_serial)
                except UnreadableError as error:
                    left_out[columns[0]] = str(error)
                    continue
                newest = newest or message
                if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                    left_out[message.serial] = "expired"
                elif message.packet_id in live:
                    left_out[message.serial] = str(Reason.PACKET_ID_DUPLICATE)
                else:
                    live[message.packet_id] = message
            parameters = parameters | {"before_serial": rows[-1][1]}
            (rows,) = yield Step(
                begin=True, end=True, queries=(Query(name="snapshot_messages", parameters=parameters),)
            )
        last_packet_id, last_serial = last_given(counter=counter, last_serial=known_serial, newest=newest)
        if not exists and not live:
            # When there is no session row, only messages give the values.
            last_packet_id = last_serial = None
        messages = reversed(list(live.values())[: self._rules.limit])
        snapshot = SessionSnapshot(
            client_id=client_id,
            last_packet_id=last_packet_id,
            last_serial=last_serial,
            delivered_serial=None if delivered_serial < 0 else delivered_serial,
            batches=tuple(
                SourceBatch(source=source, offset=offset)
                for source, offset in sorted(zip(sources, offsets, strict=True))
            ),
            messages=tuple(message for message in messages if serials is None or message.serial in set(serials)),
        )
        return snapshot, left_out

    def apply_snapshot(
        self,
        client_id: str,
        snapshot: SessionSnapshot,
        *,
        epoch: int,
        driver: int,
        serials: Sequence[int] | None = None,
    ) -> Operation[ApplyReport]:
        """Make the copy of a session that Redis owns equal to a snapshot, in one transaction; may be repeated.

        When all messages are compared, messages that cannot be delivered are quarantined.

        :param epoch: epoch of the session.
        :param driver: number of the driver that writes.
        :param serials: serials of the messages to compare, removed ones included; none for all.
        :raises NotOwner: when PostgreSQL owns the session, or another driver has the cohort.
        :raises StaleEpoch: when the session has another epoch.
        :raises UsageError: when a message has a value that the vendor's tables cannot hold.
        """
        check_vendor_id(client_id)
        for message in snapshot.messages:
            self._check_import(message)

        def attempt() -> Operation[ApplyReport]:
            return self._transaction(self._apply(client_id, snapshot, epoch=epoch, driver=driver, serials=serials))

        return (yield from retried(attempt))

    def _apply(
        self,
        client_id: str,
        snapshot: SessionSnapshot,
        *,
        epoch: int,
        driver: int,
        serials: Sequence[int] | None,
    ) -> Operation[ApplyReport]:
        yield from self._hold_copy(client_id, epoch=epoch, driver=driver)
        if serials is None:
            unreadable = yield from self._unreadable(client_id, inside=True)
            if unreadable:
                page = Page(after_serial=FIRST_SERIAL, backlog_serial=FIRST_SERIAL, unreadable=unreadable)
                yield from put_away(client_id, page)
        written, removed, latest_ms = yield from self._apply_messages(client_id, snapshot, serials)
        if snapshot == empty_snapshot(snapshot.client_id):
            # The session was purged.
            purge = Query(name="remove_empty_sessions", parameters={"client_ids": [client_id], "now_ms": None})
            yield Step(queries=(purge,))
            return ApplyReport(written=written, removed=removed)
        state = {
            "client_id": client_id,
            "last_serial": stored_serial(snapshot.last_serial),
            "delivered_serial": stored_serial(snapshot.delivered_serial),
            "message_bound": len(snapshot.messages) if serials is None else None,
            "until_ms": self._until_ms(latest_ms),
        }
        sources = {"client_id": client_id, "sources": [batch.source for batch in snapshot.batches]}
        offsets = {"offsets": [batch.offset for batch in snapshot.batches]}
        yield Step(
            queries=(
                Query(name="apply_session_state", parameters=state),
                Query(name="remove_other_sources", parameters=sources),
                Query(name="apply_sources", parameters=sources | offsets),
            )
        )
        return ApplyReport(written=written, removed=removed)

    @staticmethod
    def _hold_copy(client_id: str, *, epoch: int, driver: int) -> Operation[None]:
        """Lock the owner row of a session that Redis owns, for its driver."""
        answer = yield Step(
            queries=(
                Query(name="set_driver", parameters={"driver": driver}),
                Query(name="hold_owners", parameters={"client_ids": [client_id], "epochs": [epoch]}),
                Query(name="look_up_owners", parameters={"client_ids": [client_id]}),
            )
        )
        if [owner for _, owner, *_ in answer[-1]] in (["postgres"], []):
            raise NotOwner(f"PostgreSQL owns session {client_id!r}: no copy is written over it")

    def _apply_messages(
        self, client_id: str, snapshot: SessionSnapshot, serials: Sequence[int] | None
    ) -> Operation[tuple[int, int, int]]:
        """Write and remove messages, and record packet id and serial given out last.

        :returns: messages written, messages removed, and the instant at which the last message expires.
        """
        wanted = None if serials is None else set(serials)
        messages = [message for message in snapshot.messages if wanted is None or message.serial in wanted]
        session = {
            "client_id": client_id,
            "last_serial": stored_serial(snapshot.last_serial),
            "last_packet_id": snapshot.last_packet_id or 0,
        }
        others = {
            "client_id": client_id,
            "kept": [message.serial for message in messages],
            "serials": None if serials is None else list(serials),
        }
        (((now_ms,),), ((removed,),)) = yield Step(
            queries=(
                Query(name="apply_session", parameters=session),
                Query(name="remove_other_messages", parameters=others),
            )
        )
        rows = [
            row_of(
                message,
                client_id=client_id,
                serial=message.serial,
                packet_id=message.packet_id,
                packet_type=message.packet_type,
                interval=signed(message.expiry_interval_s),
            )
            for message in messages
        ]
        written = 0
        for query in messages_queries("apply_messages", rows):
            (((count,),),) = yield Step(queries=(query,))
            written += count
        return written, removed, max([now_ms, *(message.expires_at_ms or 0 for message in messages)])
