"""Saves: stores messages of many sessions in shared transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson
import psycopg
from psycopg import errors as postgres_errors

from queuekeeper.errors import QueuekeeperError, RefusedError, ServerUnavailable
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.operation import Operation, keeps
from queuekeeper.sessions.judge import MAX_SERIAL
from queuekeeper.sessions.model import SessionSave
from queuekeeper.sessions.parts import end_of_life, other_batch, parts_of
from queuekeeper.sessions.postgres_operations.common import (
    REFUSALS,
    Query,
    Session,
    Step,
    check_columns,
    check_length,
    check_vendor_id,
    retried,
    signed,
)
from queuekeeper.sessions.postgres_operations.packet_ids import PacketIdOperations, following_ids
from queuekeeper.sessions.postgres_operations.rows import (
    Row,
    messages_queries,
    row_of,
    save_sessions_query,
    save_states_query,
)
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.store import SessionOperations

SESSIONS_PER_TRANSACTION = 500
MESSAGES_PER_TRANSACTION = 5_000
BYTES_PER_TRANSACTION = 16_000_000
"""Limits of the saves that share a transaction; one save is never divided."""

_MOVED = -1
"""First serial of a batch that another store has saved, since only the offset of the batch is known."""

_NOBODYS_OWN = (
    postgres_errors.OperationalError,
    postgres_errors.InsufficientPrivilege,
    postgres_errors.UndefinedTable,
    postgres_errors.UndefinedColumn,
    postgres_errors.UndefinedFunction,
    postgres_errors.InvalidSchemaName,
    postgres_errors.ReadOnlySqlTransaction,
)
"""Errors that no single session causes."""

_REFUSED = {
    "QK001": "Redis owns session {!r}",
    "QK002": "session {!r} is on its way to the other store: repeat the call in a moment",
    "QK003": "session {!r} has another epoch: look up who owns it",
}


class SaveOperations(PacketIdOperations):
    """Saves messages."""

    @keeps(SessionOperations.save_messages)
    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """A broken connection ends the call; repeat it then.

        :raises UsageError: also when a text is longer than the vendor's column, or subscription ids are given.
        """
        for save in saves:
            self.check_save(save)
        reports: list[SaveReport] = []
        failed: dict[str, QueuekeeperError] = {}
        for batch in _batches(saves):
            # A later save, if stored now, would come before the failed save that the caller repeats.
            answer = iter((yield from self._save_apart([save for save in batch if save.client_id not in failed])))
            for save in batch:
                error = failed.get(save.client_id)
                report = next(answer) if error is None else SaveReport(client_id=save.client_id, error=error)
                if report.error is not None:
                    failed[save.client_id] = report.error
                reports.append(report)
        return reports

    def check_save(self, save: SessionSave) -> None:
        """Refuse a save with a value that the vendor's tables cannot hold or the rules do not allow.

        :raises UsageError: naming the value.
        """
        check_vendor_id(save.client_id)
        if save.source is not None:
            check_length("source", save.source)
        self._rules.check_size(save)
        for message in save.messages:
            check_columns(message)

    def _save_apart(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Save a batch; when it fails, save its halves separately, until only the session that causes it is left.

        Sessions that another store owns are reported at once; the others are saved without them.
        """
        if not saves:
            return []
        try:
            return (yield from retried(lambda: self._transaction(self._save(saves))))
        except ServerUnavailable:
            raise
        except QueuekeeperError as error:
            if len(saves) == 1 or isinstance(error.__cause__, _NOBODYS_OWN):
                return [SaveReport(client_id=save.client_id, error=error) for save in saves]
            refused = _refused(error)
        if refused:
            rest = iter((yield from self._save_apart([save for save in saves if save.client_id not in refused])))
            return [
                SaveReport(client_id=save.client_id, error=refused[save.client_id])
                if save.client_id in refused
                else next(rest)
                for save in saves
            ]
        middle = len(saves) // 2
        reports = yield from self._save_apart(saves[:middle])
        return reports + (yield from self._save_apart(saves[middle:]))

    def _save(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        sessions = yield from self._lock(
            [save.client_id for save in saves],
            sources=[save.source for save in saves],
            counts=[len(save.messages) for save in saves],
        )
        rows: list[Row] = []
        changed: list[Session] = []
        batches: list[tuple[SessionSave, int, Sequence[int | None]]] = []
        outcomes: list[SaveReport | _Placed] = []
        for save in saves:
            session = sessions[save.client_id]
            outcome: SaveReport | _Placed | None = self._replayed(save, session)
            if outcome is None:
                outcome = yield from self._placed(save, session, rows)
                # A save that stores nothing creates no session, as in Redis.
                if session.stored or session.is_kept:
                    changed.append(session)
                    if save.source is not None:
                        batches.append((save, outcome.first_serial, outcome.packet_ids))
            outcomes.append(outcome)
        if changed:
            queries = [
                *messages_queries("save_messages", rows),
                save_sessions_query(changed),
            ]
            grown = [session for session in changed if session.stored]
            if self._over(grown):
                yield Step(queries=tuple(queries))
                yield from self._make_room(grown, limit=self._rules.limit)
                queries = []
            queries.append(save_states_query(changed))
            if batches:
                queries.append(_save_sources_query(batches))
            yield Step(queries=tuple(queries))
        for_nothing = [each.client_id for each in sessions.values() if each.is_new and not each.stored]
        if for_nothing:
            parameters = {"client_ids": for_nothing, "now_ms": None}
            yield Step(queries=(Query(name="remove_empty_sessions", parameters=parameters),))
        return [
            outcome if isinstance(outcome, SaveReport) else outcome.report(sessions[save.client_id])
            for save, outcome in zip(saves, outcomes, strict=True)
        ]

    def _replayed(self, save: SessionSave, session: Session) -> SaveReport | None:
        """Return the report of a batch that was saved before; none for a new batch."""
        if save.offset is None or session.batch_offset is None or save.offset > session.batch_offset:
            return None
        nothing: tuple[None, ...] = (None,) * len(save.messages)
        if save.offset < session.batch_offset or session.batch_first_serial == _MOVED:
            return SaveReport(
                client_id=save.client_id, packet_ids=nothing, serials=nothing, replayed=True, forgotten=True
            )
        packet_ids = session.batch_packet_ids or []
        if len(packet_ids) != len(save.messages):
            raise other_batch(save, stored=len(packet_ids), given=len(save.messages))
        serial = session.batch_first_serial or 0
        serials: list[int | None] = []
        refused: dict[int, Refusal] = {}
        for position, packet_id in enumerate(packet_ids):
            if packet_id is None:
                serials.append(None)
                judged = end_of_life(save.messages[position], default_ttl_s=self._rules.default_ttl_s)
                refused[position] = judged if isinstance(judged, Refusal) else Refusal.EXPIRED
            else:
                serials.append(serial)
                serial += 1
        return SaveReport(
            client_id=save.client_id,
            packet_ids=tuple(packet_ids),
            serials=tuple(serials),
            refused=refused,
            replayed=True,
        )

    def _placed(self, save: SessionSave, session: Session, rows: list[Row]) -> Operation[_Placed]:
        """Give packet ids and serials to the messages of a save, and add the messages to store to the rows.

        When too few packet ids are free, the session is trimmed first, part by part as in Redis.
        """
        parts, refused = parts_of(save.messages, default_ttl_s=self._rules.default_ttl_s)
        serial = session.last_serial
        if serial + len(save.messages) > MAX_SERIAL:
            raise RefusedError(
                f"session {save.client_id!r} has serial {serial}: the greatest is {MAX_SERIAL}; purge the session"
            )
        first_serial = serial + 1
        in_use: set[int] = set()
        if session.used_packet_ids:
            in_use = yield from self._packet_ids_in_use(session)
        count = len(save.messages)
        given: list[int | None] = [None] * count
        serials: list[int | None] = [None] * count
        latest_ms = session.now_ms
        for part in parts:
            if MAX_PACKET_ID - len(in_use) < len(part.messages):
                in_use = yield from self._free_packet_ids(session, len(part.messages), rows)
            packet_ids = following_ids(session.last_packet_id, len(part.messages), in_use)
            taken = [
                packet_id for packet_id, end_ms in zip(packet_ids, part.ends_ms, strict=True) if end_ms > session.now_ms
            ]
            if session.used_packet_ids and taken:
                yield from self._remove_replaced(session, taken)
                in_use.update(taken)
            for packet_id, message, position, end_ms in zip(
                packet_ids, part.messages, part.positions, part.ends_ms, strict=True
            ):
                if end_ms <= session.now_ms:
                    refused[position] = Refusal.EXPIRED
                    continue
                serial += 1
                given[position], serials[position] = packet_id, serial
                latest_ms = max(latest_ms, end_ms)
                rows.append(
                    row_of(
                        message,
                        client_id=save.client_id,
                        serial=serial,
                        packet_id=packet_id,
                        packet_type="PUBLISH",
                        interval=signed(message.expiry_interval_s),
                    )
                )
            if taken:
                session.last_packet_id, session.last_serial = packet_ids[-1], serial
                session.stored += len(taken)
                session.grow(len(taken))
        for refusal in refused.values():
            session.expired += refusal is Refusal.EXPIRED
            session.refused += refusal is Refusal.EXPIRY_OUT_OF_RANGE
        if session.stored:
            session.until_ms = self._until_ms(latest_ms)
        return _Placed(first_serial, tuple(given), tuple(serials), refused)


class _Placed(NamedTuple):
    """Packet ids and serials of a save's messages, by position; none for a message that is refused."""

    first_serial: int
    packet_ids: tuple[int | None, ...]
    serials: tuple[int | None, ...]
    refused: dict[int, Refusal]

    def report(self, session: Session) -> SaveReport:
        """Return the report of the save, once its session has room."""
        return SaveReport(
            client_id=session.client_id,
            packet_ids=self.packet_ids,
            serials=self.serials,
            refused=self.refused,
            trimmed=session.trimmed,
            trimmed_in_flight=session.trimmed_in_flight,
            dead=session.dead,
        )


def _refused(error: QueuekeeperError) -> dict[str, QueuekeeperError]:
    """Return the errors of sessions that an error says must not be written."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or cause.sqlstate not in REFUSALS or not cause.diag.message_detail:
        return {}
    refused: dict[str, QueuekeeperError] = {}
    for client_id, code in orjson.loads(cause.diag.message_detail):
        refused[client_id] = REFUSALS[code](_REFUSED[code].format(client_id))
        refused[client_id].__cause__ = cause
    return refused


def _batches(saves: Sequence[SessionSave]) -> Iterator[list[SessionSave]]:
    """Split saves into transactions. A transaction has each session once, since a save must see the save before it."""
    batch: list[SessionSave] = []
    client_ids: set[str] = set()
    messages = size_bytes = 0
    for save in saves:
        save_bytes = save.payload_bytes
        full = (
            len(batch) == SESSIONS_PER_TRANSACTION
            or messages + len(save.messages) > MESSAGES_PER_TRANSACTION
            or size_bytes + save_bytes > BYTES_PER_TRANSACTION
        )
        if batch and (full or save.client_id in client_ids):
            yield batch
            batch, client_ids, messages, size_bytes = [], set(), 0, 0
        batch.append(save)
        client_ids.add(save.client_id)
        messages += len(save.messages)
        size_bytes += save_bytes
    if batch:
        yield batch


def _save_sources_query(batches: Sequence[tuple[SessionSave, int, Sequence[int | None]]]) -> Query:
    return Query(
        name="save_session_sources",
        parameters={
            "client_ids": [save.client_id for save, _, _ in batches],
            "sources": [save.source for save, _, _ in batches],
            "offsets": [save.offset for save, _, _ in batches],
            "first_serials": [first_serial for _, first_serial, _ in batches],
            "packet_ids": [packet_id for _, _, packet_ids in batches for packet_id in packet_ids],
            "lengths": [len(packet_ids) for _, _, packet_ids in batches],
        },
    )
