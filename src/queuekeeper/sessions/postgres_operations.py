"""What a store of sessions does in the tables of TBMQ 1.x, as operations.

The vendor's tables stay as they are. What they have no column for is kept in schema ``queuekeeper``. Locks are taken
in one order, so that our own writers never wait for each other in a circle: sessions by client id, then messages by
serial, then our own rows. Whatever has no need to wait passes over what others hold. Before all of them each write
holds the rows that say who owns its sessions, so that no session changes its owner while it is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import orjson
import psycopg
from psycopg import errors as postgres_errors

from queuekeeper.checks import check_integer
from queuekeeper.errors import (
    MovedOn,
    NotOwner,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    SessionFenced,
    StaleEpoch,
    UsageError,
)
from queuekeeper.keyspace import MAX_PACKET_ID, check_client_id
from queuekeeper.operation import Operation
from queuekeeper.sessions import jsonl, wire
from queuekeeper.sessions.judge import MAX_SERIAL, Reason, broken_rule, pairs_of, row_defect, sql_bounds
from queuekeeper.sessions.model import (
    DEFAULT_PAGE,
    Ack,
    AckReport,
    ExportPage,
    ImportReport,
    MessageView,
    NewMessage,
    PendingMessage,
    PendingPage,
    Problem,
    PurgeProgress,
    PurgeReport,
    Refusal,
    Release,
    SaveReport,
    SessionCounts,
    SessionSave,
    SessionView,
    StoreRules,
    check_packet_id,
    check_page,
)
from queuekeeper.sessions.parts import MAX_INSTANT_MS, end_of_life, no_free_packet_ids, other_batch, parts_of
from queuekeeper.sessions.snapshot import ApplyReport, SessionSnapshot, SourceBatch, last_given
from queuekeeper.sessions.store import PAGE_BYTES
from queuekeeper.sessions.wire import UnreadableError

T = TypeVar("T")
Row: TypeAlias = tuple[Any, ...]

SESSIONS_PER_TRANSACTION = 500
MESSAGES_PER_TRANSACTION = 5_000
BYTES_PER_TRANSACTION = 16_000_000
"""Saves share a transaction within these bounds; one save is never divided."""

BYTES_PER_STATEMENT = 16_000_000
ROWS_PER_STEP = 1_000
"""Messages that one step of a purge, or of acknowledgements, removes."""

TRIMMED_PER_TRANSACTION = 10_000
"""Most messages of a session that one transaction trims; what a vendor's broker left beyond goes with the next ones."""

BLOCKS_PER_STEP = 1_000
"""Part of the vendor's table that one step of the clean-up reads: 8 MB."""

SESSIONS_PER_STEP = 500
MESSAGES_PER_SNAPSHOT_STEP = 500
"""Rows of any size that one step of a snapshot reads."""

MAX_VENDOR_TEXT = 255
"""Characters in the vendor's columns for client id, content type and response topic."""

FIRST_SERIAL = -1
"""After which all messages come; the vendor's broker begins here too."""

FOR_EVER_MS = 2**63 - 1
MAX_RESERVED_PACKET_IDS = 1_000
TRIES = 5
REFUSALS: dict[str, type[QueuekeeperError]] = {"QK001": NotOwner, "QK002": SessionFenced, "QK003": StaleEpoch}
"""SQLSTATE of ``queuekeeper.hold_owners`` -> exception."""

_MOVED = -1
"""First serial of a source's batch that another store has saved: more than its offset is not known."""

_JUDGED_COLUMNS = (
    "serial_number", "packet_id", "packet_type", "topic", "payload", "qos", "time", "payload_format_indicator",
    "content_type", "response_topic", "correlation_data", "user_properties",
)  # fmt: skip
"""Of a row that is judged without being delivered: payload and correlation data are sizes."""

_COUNTS = ("trimmed", "expired", "refused", "quarantined")
_LOWEST_SERIAL, _HIGHEST_SERIAL = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One statement of ``sql/sessions`` with its parameters."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Statements that a store sends at once; the answer is a list with the rows of each.

    :param begin: they begin a transaction; it is undone when a statement fails.
    :param end: they end it, and it holds.
    :param undo: the transaction is undone, if it has not ended.
    :param transaction: what a step that only begins or undoes a transaction tells it by from those of others.
    """

    queries: tuple[Query, ...] = ()
    begin: bool = False
    end: bool = False
    undo: bool = False
    transaction: object = None


@dataclass(frozen=True, kw_only=True)
class CleanupReport:
    """What a clean-up of the whole store removed.

    :param messages: rows removed; in a dry run, what would be.
    :param sessions: sessions removed, or in a trim, sessions that were over the limit.
    :param dry_run: nothing was removed.
    """

    messages: int
    sessions: int
    dry_run: bool


@dataclass(slots=True)
class _Session:
    """A locked session and what becomes of it in a transaction."""

    client_id: str
    last_serial: int
    last_packet_id: int
    now_ms: int
    delivered_serial: int
    message_bound: int | None
    messages: int | None
    batch_offset: int | None
    batch_first_serial: int | None
    batch_packet_ids: list[int | None] | None
    used_packet_ids: list[int]
    # Whether it has a row in session_states; without one nothing is counted.
    is_kept: bool
    # Whether this transaction has made the session.
    is_new: bool = False
    stored: int = 0
    # None says nothing.
    until_ms: int | None = None
    trimmed: int = 0
    trimmed_in_flight: int = 0
    dead: int = 0
    expired: int = 0
    refused: int = 0

    def grow(self, count: int) -> None:
        """Count messages that were added or, below zero, removed."""
        if self.messages is not None:
            self.messages += count
            self.message_bound = self.messages
        elif self.message_bound is not None:
            self.message_bound += count


class _Undo(Exception):
    """Ends a transaction that shall leave nothing behind."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class PostgresSessionOperations:
    """The contract of ``store.SessionOperations`` in PostgreSQL, and the clean-ups that this store needs.

    A message without an expiry interval lives as long as the rules say, counted from its own time, since the vendor has
    no column for the instant.

    :param rules: bounds that the store keeps.
    :param epoch_of: tells the epoch in which the caller knows a session; the session is not written to in another one.
        None knows none.
    """

    def __init__(self, rules: StoreRules, *, epoch_of: Callable[[str], int | None] | None = None) -> None:
        self._rules = rules
        self._epoch_of = epoch_of

    # --- saving ------------------------------------------------------------------------------------------------

    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """See ``store.SessionOperations.save_messages``; a broken connection ends the call, and it can be repeated.

        :raises UsageError: also when a text is longer than the vendor's column, or subscription ids are given.
        """
        for save in saves:
            self.check_save(save)
        reports: list[SaveReport] = []
        for batch in _batches(saves):
            reports += yield from self._save_apart(batch)
        return reports

    def check_save(self, save: SessionSave) -> None:
        """Refuse what the vendor's tables or the rules have no place for.

        :raises UsageError: naming it.
        """
        _check_client_id(save.client_id)
        if save.source is not None:
            _check_length("source", save.source)
        for message in save.messages:
            if len(message.payload) > self._rules.max_payload_bytes:
                raise UsageError(
                    f"payload has {len(message.payload)} bytes: this store takes at most "
                    f"{self._rules.max_payload_bytes} (max_payload_bytes)"
                )
            _check_columns(message)

    def _save_apart(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """Save a batch; when it fails, its halves apart, until only the session that is to blame has not been saved.

        Sessions of another store are told at once; the others are saved without them.
        """
        if not saves:
            return []
        try:
            return (yield from _retried(lambda: self._transaction(self._save(saves))))
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
        changed: list[_Session] = []
        batches: list[tuple[SessionSave, int, Sequence[int | None]]] = []
        reports: list[SaveReport] = []
        for save in saves:
            session = sessions[save.client_id]
            report = self._replayed(save, session)
            if report is None:
                report, first_serial = yield from self._placed(save, session, rows)
                # A save that stores nothing makes no session, as in Redis.
                if session.stored or session.is_kept:
                    changed.append(session)
                    if save.source is not None:
                        batches.append((save, first_serial, report.packet_ids))
            reports.append(report)
        if changed:
            queries = [
                *(_messages_query("save_messages", part) for part in _parts(rows)),
                _save_sessions_query(changed),
            ]
            grown = [session for session in changed if session.stored]
            if self._over(grown):
                yield Step(queries=tuple(queries))
                yield from self._make_room(grown, limit=self._rules.limit)
                queries = []
            queries.append(_save_states_query(changed))
            if batches:
                queries.append(_save_sources_query(batches))
            yield Step(queries=tuple(queries))
        for_nothing = [each.client_id for each in sessions.values() if each.is_new and not each.stored]
        if for_nothing:
            parameters = {"client_ids": for_nothing, "now_ms": None}
            yield Step(queries=(Query(name="remove_empty_sessions", parameters=parameters),))
        return [
            report
            if report.replayed
            else replace(
                report,
                trimmed=sessions[report.client_id].trimmed,
                trimmed_in_flight=sessions[report.client_id].trimmed_in_flight,
                dead=sessions[report.client_id].dead,
            )
            for report in reports
        ]

    def _lock(
        self,
        client_ids: Sequence[str],
        *,
        sources: Sequence[str | None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Operation[dict[str, _Session]]:
        """Lock sessions, make those that are missing, and tell their state."""
        parameters = {"client_ids": list(client_ids)}
        answer = yield Step(
            queries=(
                self._hold(client_ids),
                Query(name="lock_sessions", parameters=parameters),
                Query(name="forget_cleared_sessions", parameters=parameters),
                Query(
                    name="read_sessions",
                    parameters=parameters
                    | {
                        "sources": list(sources or [None] * len(client_ids)),
                        "counts": list(counts or [0] * len(client_ids)),
                        "limit": self._rules.limit,
                    },
                ),
            )
        )
        sessions = {row[0]: _Session(*row) for row in answer[-1]}
        for (client_id,) in answer[1]:
            if client_id is not None:
                sessions[client_id].is_new = True
        return sessions

    def _replayed(self, save: SessionSave, session: _Session) -> SaveReport | None:
        """Return the report of a batch that its source has saved before."""
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

    def _packet_ids_in_use(self, session: _Session) -> Operation[set[int]]:
        parameters = {"client_id": session.client_id, "default_ttl_s": self._rules.default_ttl_s}
        (rows,) = yield Step(queries=(Query(name="used_packet_ids", parameters=parameters),))
        return {packet_id for (packet_id,) in rows}

    def _placed(self, save: SessionSave, session: _Session, rows: list[Row]) -> Operation[tuple[SaveReport, int]]:
        """Give ids and serials to the messages of a save, and add those that can be stored to the rows.

        Where packet ids are too few, room is made first, as in Redis: part by part.

        :returns: the report, and the serial of its first message.
        """
        parts, refused = parts_of(save.messages, default_ttl_s=self._rules.default_ttl_s)
        serial = session.last_serial
        if serial + len(save.messages) > MAX_SERIAL:
            raise RefusedError(
                f"session {save.client_id!r} has serial {serial}: there is none after {MAX_SERIAL}; purge the session"
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
            packet_ids = _following(session.last_packet_id, len(part.messages), in_use)
            live = [end_ms > session.now_ms for end_ms in part.ends_ms]
            if session.used_packet_ids and any(live):
                taken = [packet_id for packet_id, lives in zip(packet_ids, live, strict=True) if lives]
                yield from self._remove_replaced(session, taken)
            for packet_id, lives, message, position, end_ms in zip(
                packet_ids, live, part.messages, part.positions, part.ends_ms, strict=True
            ):
                if not lives:
                    refused[position] = Refusal.EXPIRED
                    continue
                serial += 1
                given[position], serials[position] = packet_id, serial
                latest_ms = max(latest_ms, end_ms)
                rows.append(
                    _columns(
                        message,
                        client_id=save.client_id,
                        serial=serial,
                        packet_id=packet_id,
                        packet_type="PUBLISH",
                        interval=_signed(message.expiry_interval_s),
                    )
                )
            if any(live):
                session.last_packet_id, session.last_serial = packet_ids[-1], serial
                session.stored += sum(live)
                session.grow(sum(live))
                if session.used_packet_ids:
                    in_use.update(packet_id for packet_id, lives in zip(packet_ids, live, strict=True) if lives)
        session.expired += sum(refusal is Refusal.EXPIRED for refusal in refused.values())
        session.refused += sum(refusal is Refusal.EXPIRY_OUT_OF_RANGE for refusal in refused.values())
        if session.stored:
            session.until_ms = self._until_ms(latest_ms)
        report = SaveReport(client_id=save.client_id, packet_ids=tuple(given), serials=tuple(serials), refused=refused)
        return report, first_serial

    def _free_packet_ids(self, session: _Session, count: int, rows: list[Row]) -> Operation[set[int]]:
        """Trim a session until enough packet ids are free, and return those that are not.

        :param rows: what was not written yet; it may be trimmed as what was written before.
        """
        if rows:
            yield Step(queries=tuple(_messages_query("save_messages", part) for part in _parts(rows)))
            rows.clear()
        while True:
            counted = Query(name="count_pending", parameters={"client_id": session.client_id})
            ((((messages, _),)),) = yield Step(queries=(counted,))
            session.messages = messages
            session.grow(0)
            before = session.dead + session.trimmed
            yield from self._make_room([session], limit=MAX_PACKET_ID - count)
            in_use = yield from self._packet_ids_in_use(session)
            if MAX_PACKET_ID - len(in_use) >= count:
                return in_use
            if session.dead + session.trimmed == before:
                # Somebody else holds what would have to go.
                raise no_free_packet_ids(session.client_id, free=MAX_PACKET_ID - len(in_use), count=count)

    def _remove_replaced(self, session: _Session, packet_ids: Sequence[int]) -> Operation[None]:
        """Remove expired messages whose packet ids are given out again."""
        parameters = {
            "client_id": session.client_id,
            "packet_ids": list(packet_ids),
            "default_ttl_s": self._rules.default_ttl_s,
        }
        ((((gone,),)),) = yield Step(queries=(Query(name="remove_replaced_messages", parameters=parameters),))
        session.dead += gone
        session.expired += gone
        session.grow(-gone)

    def _over(self, sessions: Iterable[_Session], *, limit: int | None = None) -> list[_Session]:
        most = self._rules.limit if limit is None else limit
        return [session for session in sessions if (session.messages or 0) > most]

    def _make_room(self, sessions: Iterable[_Session], *, limit: int) -> Operation[None]:
        """Trim what locked sessions have too much: dead messages, then undelivered ones, then those in flight."""
        over = self._over(sessions, limit=limit)
        if not over:
            return
        parameters: dict[str, Any] = {
            "client_ids": [session.client_id for session in over],
            "default_ttl_s": self._rules.default_ttl_s,
        }
        (rows,) = yield Step(queries=(Query(name="remove_dead_messages", parameters=parameters),))
        by_id = {session.client_id: session for session in over}
        for client_id, dead in rows:
            session = by_id[client_id]
            session.dead += dead
            session.expired += dead
            session.grow(-dead)
        over = self._over(over, limit=limit)
        if not over:
            return
        excess = [(session.messages or 0) - limit for session in over]
        parameters = {
            "client_ids": [session.client_id for session in over],
            "excess": [min(count, TRIMMED_PER_TRANSACTION) for count in excess],
            "delivered_serials": [session.delivered_serial for session in over],
        }
        (rows,) = yield Step(queries=(Query(name="trim_messages", parameters=parameters),))
        for client_id, trimmed, in_flight in rows:
            session = by_id[client_id]
            session.trimmed += trimmed
            session.trimmed_in_flight += in_flight
            session.grow(-trimmed)

    # --- delivering --------------------------------------------------------------------------------------------

    def fetch_pending(
        self,
        client_id: str,
        *,
        after_serial: int = FIRST_SERIAL,
        backlog_serial: int | None = None,
        limit: int = DEFAULT_PAGE,
        max_bytes: int = PAGE_BYTES,
        mark_delivered: bool = False,
    ) -> Operation[PendingPage]:
        """See ``store.SessionOperations.fetch_pending``."""
        _check_client_id(client_id)
        check_page(offset=0, limit=limit)
        check_integer("max_bytes", max_bytes, 1, 2**53 - 1, "a page holds at least one message")
        page = yield from self._read_page(
            client_id, after_serial=after_serial, backlog_serial=backlog_serial, limit=limit, max_bytes=max_bytes
        )
        if page.expired or page.unreadable:
            yield Step(begin=True, end=True, queries=(self._hold([client_id]), *_put_away(client_id, page)))
        if mark_delivered and page.messages:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page.messages),
            after_serial=page.after_serial,
            backlog_serial=page.backlog_serial,
            more=page.more,
            expired=len(page.expired),
            unreadable=len(page.unreadable),
        )

    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """See ``store.SessionOperations.mark_delivered``."""
        _check_client_id(client_id)
        check_integer("serial", serial, FIRST_SERIAL, MAX_SERIAL, "as a fetch has told it")
        answer = yield Step(
            begin=True,
            end=True,
            queries=(
                self._hold([client_id]),
                Query(name="forget_cleared_sessions", parameters={"client_ids": [client_id]}),
                Query(name="mark_delivered", parameters={"client_id": client_id, "serial": serial}),
            ),
        )
        return bool(answer[-1])

    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        """See ``store.SessionOperations.ack``."""
        _check_client_id(client_id)
        removed = unknown = 0
        for begin in range(0, len(acks), ROWS_PER_STEP):
            part = acks[begin : begin + ROWS_PER_STEP]
            parameters = {
                "client_id": client_id,
                "packet_ids": [ack.packet_id for ack in part],
                "serials": [ack.serial for ack in part],
            }
            _, rows = yield Step(
                begin=True, end=True, queries=(self._hold([client_id]), Query(name="ack", parameters=parameters))
            )
            removed += len(rows)
            left = set(rows)
            for ack in part:
                met = {row for row in left if row[0] == ack.packet_id and ack.serial in (None, row[1])}
                left -= met
                unknown += not met
        return AckReport(client_id=client_id, removed=removed, unknown=unknown)

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """See ``store.SessionOperations.mark_released``."""
        _check_client_id(client_id)
        check_packet_id(packet_id)
        parameters = {
            "client_id": client_id,
            "packet_id": packet_id,
            "serial": serial,
            "default_ttl_s": self._rules.default_ttl_s,
        }
        _, ((released, released_before),) = yield Step(
            begin=True, end=True, queries=(self._hold([client_id]), Query(name="mark_released", parameters=parameters))
        )
        if released:
            return Release.RELEASED
        return Release.ALREADY if released_before else Release.MISSING

    # --- sessions ----------------------------------------------------------------------------------------------

    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """See ``store.SessionOperations.purge_session``.

        :param progress: of a purge that was interrupted, to go on with; it is brought up to date.
        """
        _check_client_id(client_id)
        count = Query(name="count_pending", parameters={"client_id": client_id})
        (((messages, highest_serial),),) = yield Step(begin=True, end=True, queries=(count,))
        if dry_run:
            return PurgeReport(client_id=client_id, messages=messages, kept=0, dry_run=True)
        progress = progress or PurgeProgress()
        if progress.up_to_serial is None:
            progress.up_to_serial = _serial(highest_serial)
        parameters = {"client_id": client_id, "up_to_serial": progress.up_to_serial, "limit": ROWS_PER_STEP}
        while highest_serial is not None:
            _, ((gone,),) = yield Step(
                begin=True,
                end=True,
                queries=(self._hold([client_id]), Query(name="purge_messages", parameters=parameters)),
            )
            progress.removed += gone
            if gone < ROWS_PER_STEP:
                break
        answer = yield Step(
            begin=True,
            end=True,
            queries=(
                self._hold([client_id]),
                Query(name="lock_existing_sessions", parameters={"client_ids": [client_id]}),
                Query(name="remove_empty_sessions", parameters={"client_ids": [client_id], "now_ms": None}),
                count,
            ),
        )
        ((kept, _),) = answer[-1]
        return PurgeReport(client_id=client_id, messages=progress.removed, kept=kept, dry_run=False)

    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        """See ``store.SessionOperations.get_last_packet_id``."""
        _check_client_id(client_id)
        (((packet_id,),),) = yield Step(
            begin=True, end=True, queries=(Query(name="last_packet_id", parameters={"client_id": client_id}),)
        )
        return int(packet_id) if packet_id is not None else None

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        """See ``store.SessionOperations.set_last_packet_id``."""
        _check_client_id(client_id)
        check_packet_id(packet_id)
        return (yield from _retried(lambda: self._transaction(self._exchange(client_id, packet_id, expected))))

    def _exchange(self, client_id: str, packet_id: int, expected: int | None) -> Operation[bool]:
        session = (yield from self._lock([client_id]))[client_id]
        if session.last_packet_id != (expected or 0):
            raise _Undo(False)
        session.last_packet_id = packet_id
        yield Step(queries=(_save_sessions_query([session]),))
        return True

    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        """See ``store.SessionOperations.reserve_packet_ids``."""
        _check_client_id(client_id)
        check_integer("count", count, 1, MAX_RESERVED_PACKET_IDS, "ids are given out in small numbers")
        return (yield from _retried(lambda: self._transaction(self._reserve(client_id, count))))

    def _reserve(self, client_id: str, count: int) -> Operation[tuple[int, ...]]:
        session = (yield from self._lock([client_id], counts=[count]))[client_id]
        in_use: set[int] = set()
        if session.used_packet_ids:
            in_use = yield from self._packet_ids_in_use(session)
        if MAX_PACKET_ID - len(in_use) < count:
            raise no_free_packet_ids(client_id, free=MAX_PACKET_ID - len(in_use), count=count)
        packet_ids = _following(session.last_packet_id, count, in_use)
        session.last_packet_id = packet_ids[-1]
        yield Step(queries=(_save_sessions_query([session]),))
        return tuple(packet_ids)

    # --- looking -----------------------------------------------------------------------------------------------

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """See ``store.SessionOperations.inspect``.

        It needs the vendor's tables only, and tells more where schema ``queuekeeper`` is there and may be read.
        """
        check_client_id(client_id)
        check_page(offset=offset, limit=limit)
        parameters = {"client_id": client_id}
        (session,), rows = yield Step(
            begin=True,
            end=True,
            queries=(
                Query(name="inspect_session", parameters=parameters),
                Query(
                    name="inspect_messages",
                    parameters=parameters
                    | {"offset": offset, "limit": limit, "default_ttl_s": self._rules.default_ttl_s},
                ),
            ),
        )
        exists, messages, last_packet_id, last_serial, has_state = session
        delivered_serial: int | None = None
        counts: SessionCounts | None = None
        if has_state:
            (states,) = yield Step(begin=True, end=True, queries=(Query(name="inspect_state", parameters=parameters),))
            if states:
                ((delivered_serial, *counted),) = states
                counts = SessionCounts(**dict(zip(_COUNTS, counted, strict=True)))
        return SessionView(
            client_id=client_id,
            store="postgres",
            exists=exists or messages > 0,
            messages=messages,
            offset=offset,
            page=tuple(_view(*row) for row in rows),
            last_packet_id=last_packet_id,
            last_serial=last_serial,
            delivered_serial=delivered_serial,
            counts=counts,
        )

    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """See ``store.SessionOperations.peek``.

        :raises RefusedError: when nobody can read the record.
        """
        _check_client_id(client_id)
        check_packet_id(packet_id)
        (rows,) = yield Step(
            begin=True,
            end=True,
            queries=(Query(name="peek", parameters={"client_id": client_id, "packet_id": packet_id}),),
        )
        for delivered_serial, now_ms, *columns in rows:
            try:
                message = self._pending(columns, delivered_serial=delivered_serial)
            except UnreadableError as error:
                raise RefusedError(
                    f"message {packet_id} of session {client_id!r} cannot be read: {error}; "
                    "the next fetch puts it in quarantine"
                ) from None
            if message.expires_at_ms is None or message.expires_at_ms > now_ms:
                return message
        return None

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """See ``store.SessionOperations.export_session``.

        Where two messages have one packet id, since ids have wrapped, the older one is left out as unreadable.
        """
        _check_client_id(client_id)
        check_page(offset=0, limit=limit)
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
            after_serial=FIRST_SERIAL if after_serial is None else after_serial,
            backlog_serial=_HIGHEST_SERIAL,
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

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """See ``store.SessionOperations.import_session``; the lines are held in memory until all have been checked.

        :raises UsageError: also when there are more messages than the rules allow, or one has what the vendor's tables
            cannot say.
        """
        _check_client_id(client_id)
        session = jsonl.read_lines(lines, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        if len(session.messages) > self._rules.limit:
            raise UsageError(
                f"the export has {len(session.messages)} messages: this store keeps at most {self._rules.limit} (limit)"
            )
        for message in session.messages:
            self._check_import(message)
        return (yield from _retried(lambda: self._transaction(self._import(session))))

    def _check_import(self, message: PendingMessage) -> None:
        try:
            _check_columns(message)
        except UsageError as error:
            raise UsageError(f"the message with serial {message.serial} has no place in this store: {error}") from None
        expires_at_ms = self._expires_at_ms(message.time_ms, _signed(message.expiry_interval_s))
        told_ms = message.expires_at_ms
        if told_ms is not None and abs(told_ms - expires_at_ms) > _EXPIRY_SLACK_MS:
            raise UsageError(
                f"the message with serial {message.serial} expires at {told_ms}, and here it would at "
                f"{expires_at_ms}: TBMQ 1.x has no column for the instant; use a store whose default_ttl_s is that of "
                "the store it comes from"
            )

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
            raise MovedOn(f"session {exported.client_id!r} exists: purge it first, or import nothing")
        ((now_ms,),) = rows
        stored: list[Row] = []
        latest_ms = now_ms
        for message in exported.messages:
            interval = _signed(message.expiry_interval_s)
            expires_at_ms = self._expires_at_ms(message.time_ms, interval)
            if expires_at_ms > now_ms:
                latest_ms = max(latest_ms, expires_at_ms)
                stored.append(
                    _columns(
                        message,
                        client_id=exported.client_id,
                        serial=message.serial,
                        packet_id=message.packet_id,
                        packet_type=message.packet_type,
                        interval=interval,
                    )
                )
        state = _Session(
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
        yield Step(
            queries=(*(_messages_query("save_messages", part) for part in _parts(stored)), _save_states_query([state]))
        )
        return ImportReport(
            client_id=exported.client_id,
            stored=len(stored),
            expired=len(exported.messages) - len(stored),
            last_packet_id=exported.last_packet_id,
        )

    # --- cleaning up -------------------------------------------------------------------------------------------

    def remove_expired(self, *, dry_run: bool = False) -> Operation[CleanupReport]:
        """Remove the messages of all sessions whose life is over, then sessions whose own time is.

        It goes through the vendor's table once, in short transactions, and waits for nobody. Sessions of another store
        are passed over.
        """
        (((blocks,),),) = yield Step(begin=True, end=True, queries=(Query(name="source_blocks"),))
        messages = 0
        for block in range(0, blocks, BLOCKS_PER_STEP):
            parameters = {
                "first_place": f"({block},0)",
                "end_place": f"({block + BLOCKS_PER_STEP},0)",
                "default_ttl_s": self._rules.default_ttl_s,
            }
            messages += yield from self._transaction(self._remove_expired(parameters, dry_run=dry_run))
        sessions = yield from self._remove_idle_sessions(dry_run=dry_run)
        return CleanupReport(messages=messages, sessions=sessions, dry_run=dry_run)

    def _remove_expired(self, parameters: dict[str, Any], *, dry_run: bool) -> Operation[int]:
        (((move,),),) = yield Step(queries=(Query(name="sessions_move"),))
        own: list[str] | None = None
        if move or dry_run:
            (found,) = yield Step(queries=(Query(name="expired_sessions", parameters=parameters),))
            expired_of = dict(found)
            own = (yield from self._hold_own(list(expired_of))) if move else list(expired_of)
            if dry_run:
                raise _Undo(sum(expired_of[client_id] for client_id in own))
        (rows,) = yield Step(queries=(Query(name="remove_expired", parameters=parameters | {"client_ids": own}),))
        if rows:
            yield Step(queries=(_count_removed_query([(client_id, expired, 0) for client_id, expired in rows]),))
        return sum(expired for _, expired in rows)

    def _remove_idle_sessions(self, *, dry_run: bool) -> Operation[int]:
        sessions = 0
        after_client_id = ""
        while True:
            parameters = {"after_client_id": after_client_id, "limit": SESSIONS_PER_STEP}
            (rows,) = yield Step(begin=True, end=True, queries=(Query(name="idle_sessions", parameters=parameters),))
            if not rows:
                return sessions
            client_ids = [client_id for client_id, _ in rows]
            after_client_id = client_ids[-1]
            sessions += yield from self._transaction(self._remove_idle(client_ids, now_ms=rows[0][1], dry_run=dry_run))

    def _remove_idle(self, client_ids: Sequence[str], *, now_ms: int, dry_run: bool) -> Operation[int]:
        own = yield from self._hold_own(client_ids)
        if dry_run:
            raise _Undo(len(own))
        answer = yield Step(
            queries=(
                Query(name="lock_existing_sessions", parameters={"client_ids": own}),
                Query(name="remove_empty_sessions", parameters={"client_ids": own, "now_ms": now_ms}),
            )
        )
        ((removed,),) = answer[-1]
        return int(removed)

    def trim_sessions(self, *, dry_run: bool = False) -> Operation[CleanupReport]:
        """Remove what is over the limit in all sessions, also in those that the vendor's broker has filled.

        Dead messages go first, then the oldest, in short transactions. Sessions of another store are passed over.
        """
        messages = sessions = 0
        after_client_id: str | None = ""
        while after_client_id is not None:
            parameters = {
                "after_client_id": after_client_id,
                "sessions": SESSIONS_PER_STEP,
                "limit": self._rules.limit,
                "default_ttl_s": self._rules.default_ttl_s,
            }
            (rows,) = yield Step(
                begin=True, end=True, queries=(Query(name="sessions_over_limit", parameters=parameters),)
            )
            after_client_id = rows[-1][0]
            over = {client_id: too_many for client_id, too_many in rows if too_many is not None}
            own = (yield from self._transaction(self._tell_own(list(over)))) if over else []
            sessions += len(own)
            for client_id in own:
                messages += over[client_id] if dry_run else (yield from self._trim_session(client_id))
        return CleanupReport(messages=messages, sessions=sessions, dry_run=dry_run)

    def _trim_session(self, client_id: str) -> Operation[int]:
        removed = 0
        while True:
            try:
                gone, left = yield from _retried(lambda: self._transaction(self._trim(client_id)))
            except (NotOwner, SessionFenced, StaleEpoch):
                return removed
            removed += gone
            if not gone or left <= self._rules.limit:
                return removed

    def _trim(self, client_id: str) -> Operation[tuple[int, int]]:
        # More than any bound: the messages are counted.
        session = (yield from self._lock([client_id], counts=[MAX_PACKET_ID]))[client_id]
        yield from self._make_room([session], limit=self._rules.limit)
        yield Step(queries=(_save_states_query([session]),))
        return session.dead + session.trimmed, session.messages or 0

    # --- moving while devices are connected --------------------------------------------------------------------

    def set_aside_unreadable(self, client_id: str, *, duplicates: bool = False) -> Operation[int]:
        """Put messages that nobody can deliver aside, as a fetch would that came to them.

        :param duplicates: also those whose packet id a newer live message has: a session in Redis has no place for
            both.
        :returns: how many.
        :raises NotOwner: when there are any and the session is not PostgreSQL's.
        """
        _check_client_id(client_id)
        unreadable = yield from self._unreadable(client_id)
        yield from self._set_aside(client_id, unreadable)
        if not duplicates:
            return len(unreadable)
        repeated = yield from self._duplicates(client_id)
        yield from self._set_aside(client_id, repeated)
        return len(unreadable) + len(repeated)

    def find_unreadable(self, client_id: str) -> Operation[dict[int, str]]:
        """Tell which messages cannot move to Redis, by serial, and why; nothing is changed.

        :returns: those that nobody can deliver, and those whose packet id a newer live message has.
        """
        _check_client_id(client_id)
        unreadable = yield from self._unreadable(client_id)
        repeated = yield from self._duplicates(client_id)
        return repeated | unreadable

    def _duplicates(self, client_id: str) -> Operation[dict[int, str]]:
        parameters = {"client_id": client_id, "default_ttl_s": self._rules.default_ttl_s}
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="duplicate_messages", parameters=parameters),))
        return {serial: str(Reason.PACKET_ID_DUPLICATE) for (serial,) in rows}

    def _set_aside(self, client_id: str, reasons: dict[int, str]) -> Operation[None]:
        if reasons:
            page = _Page(after_serial=FIRST_SERIAL, backlog_serial=FIRST_SERIAL, unreadable=reasons)
            yield Step(begin=True, end=True, queries=(self._hold([client_id]), *_put_away(client_id, page)))

    def _unreadable(self, client_id: str, *, inside: bool = False) -> Operation[dict[int, str]]:
        """Return which messages nobody can deliver, by serial, and why.

        :param inside: a transaction is under way.
        """
        parameters = {"client_id": client_id, **sql_bounds()}
        suspicious = Query(name="suspicious_messages", parameters=parameters)
        (rows,) = yield Step(begin=not inside, end=not inside, queries=(suspicious,))
        reasons = {row[0]: row_defect(dict(zip(_JUDGED_COLUMNS, row, strict=True))) for row in rows}
        return {serial: str(reason) for serial, reason in reasons.items() if reason is not None}

    def read_snapshot(self, client_id: str, serials: Sequence[int] | None = None) -> Operation[SessionSnapshot]:
        """Read what the other store has to know of a session; what changes meanwhile may be in it or not.

        :meth:`read_left_out` tells what is not in it.

        :param serials: of the messages to read; none for all.
        """
        snapshot, _ = yield from self._read_snapshot(client_id, serials)
        return snapshot

    def read_left_out(self, client_id: str) -> Operation[dict[int, str]]:
        """Tell which messages a snapshot leaves out, by serial, and why.

        :returns: the rule that a row breaks, ``expired``, or ``packet_id_duplicate`` when a newer live message has the
            same packet id. What is older than the newest that the rules allow is not told.
        """
        _, left_out = yield from self._read_snapshot(client_id, None)
        return left_out

    def _read_snapshot(
        self, client_id: str, serials: Sequence[int] | None
    ) -> Operation[tuple[SessionSnapshot, dict[int, str]]]:
        _check_client_id(client_id)
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
            # Of a session that is not there, only messages tell anything.
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
        """Make the copy of a session that Redis owns equal to a snapshot, in one transaction; it can be repeated.

        Where all messages are looked at, those that nobody can deliver are put aside.

        :param epoch: of the session.
        :param driver: number of the driver that writes.
        :param serials: of the messages to look at, also of those that are gone; none for all.
        :raises NotOwner: when PostgreSQL owns the session, or another driver has come.
        :raises StaleEpoch: when the session has another epoch.
        :raises UsageError: when a message has what the vendor's tables cannot say.
        """
        _check_client_id(client_id)
        for message in snapshot.messages:
            self._check_import(message)

        def attempt() -> Operation[ApplyReport]:
            return self._transaction(self._apply(client_id, snapshot, epoch=epoch, driver=driver, serials=serials))

        return (yield from _retried(attempt))

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
                page = _Page(after_serial=FIRST_SERIAL, backlog_serial=FIRST_SERIAL, unreadable=unreadable)
                yield Step(queries=tuple(_put_away(client_id, page)))
        written, removed, latest_ms = yield from self._apply_messages(client_id, snapshot, serials)
        if snapshot == SessionSnapshot(
            client_id=snapshot.client_id, last_packet_id=None, last_serial=None, delivered_serial=None
        ):
            # It has been purged.
            purge = Query(name="remove_empty_sessions", parameters={"client_ids": [client_id], "now_ms": None})
            yield Step(queries=(purge,))
            return ApplyReport(written=written, removed=removed)
        state = {
            "client_id": client_id,
            "last_serial": _serial(snapshot.last_serial),
            "delivered_serial": _serial(snapshot.delivered_serial),
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
        """Hold a session of Redis for writing by its driver."""
        answer = yield Step(
            queries=(
                Query(name="set_driver", parameters={"driver": driver}),
                Query(name="hold_owners", parameters={"client_ids": [client_id], "epochs": [epoch]}),
                Query(name="look_up_owners", parameters={"client_ids": [client_id]}),
            )
        )
        if [owner for _, owner, *_ in answer[-1]] != ["redis"]:
            raise NotOwner(f"PostgreSQL owns session {client_id!r}: no copy is written over it")

    def _apply_messages(
        self, client_id: str, snapshot: SessionSnapshot, serials: Sequence[int] | None
    ) -> Operation[tuple[int, int, int]]:
        """Write and remove messages, and note what was given out last.

        :returns: messages written, messages removed, and the instant at which the last life ends.
        """
        wanted = None if serials is None else set(serials)
        messages = [message for message in snapshot.messages if wanted is None or message.serial in wanted]
        session = {
            "client_id": client_id,
            "last_serial": _serial(snapshot.last_serial),
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
            _columns(
                message,
                client_id=client_id,
                serial=message.serial,
                packet_id=message.packet_id,
                packet_type=message.packet_type,
                interval=_signed(message.expiry_interval_s),
            )
            for message in messages
        ]
        written = 0
        for part in _parts(rows):
            (((count,),),) = yield Step(queries=(_messages_query("apply_messages", part),))
            written += count
        return written, removed, max([now_ms, *(message.expires_at_ms or 0 for message in messages)])

    # --- common parts ------------------------------------------------------------------------------------------

    def _hold(self, client_ids: Sequence[str]) -> Query:
        """Return the statement that a write begins with: no session may change its owner before it ends."""
        epochs = [None if self._epoch_of is None else self._epoch_of(client_id) for client_id in client_ids]
        return Query(name="hold_owners", parameters={"client_ids": list(client_ids), "epochs": epochs})

    @staticmethod
    def _hold_own(client_ids: Sequence[str]) -> Operation[list[str]]:
        """Hold those of some sessions that are PostgreSQL's, and return them."""
        (rows,) = yield Step(queries=(Query(name="own_sessions", parameters={"client_ids": list(client_ids)}),))
        return [client_id for (client_id,) in rows]

    def _tell_own(self, client_ids: Sequence[str]) -> Operation[list[str]]:
        """Tell which of some sessions are PostgreSQL's, and hold none of them."""
        raise _Undo((yield from self._hold_own(client_ids)))

    def _expires_at_ms(self, time_ms: int, interval: int | None) -> int:
        end_ms = wire.expires_at_ms(
            time_ms=time_ms, msg_expiry_interval=interval, default_ttl_s=self._rules.default_ttl_s
        )
        return min(end_ms, MAX_INSTANT_MS)

    def _until_ms(self, latest_ms: int) -> int:
        expiry_s = self._rules.session_expiry_s
        return FOR_EVER_MS if expiry_s is None else latest_ms + 1000 * expiry_s

    def _read_page(
        self, client_id: str, *, after_serial: int, backlog_serial: int | None, limit: int, max_bytes: int
    ) -> Operation[_Page]:
        parameters = {
            "client_id": client_id,
            # Broken rows have negative serials; they are found by whoever begins at the beginning.
            "first_serial": after_serial + 1 if after_serial > FIRST_SERIAL else _LOWEST_SERIAL,
            "backlog_serial": backlog_serial,
            "limit": limit,
            "max_bytes": max_bytes,
            "default_ttl_s": self._rules.default_ttl_s,
        }
        (rows,) = yield Step(begin=True, end=True, queries=(Query(name="fetch_pending", parameters=parameters),))
        backlog_serial, delivered_serial, now_ms, available, *_ = rows[0]
        page = _Page(after_serial=after_serial, backlog_serial=backlog_serial)
        if available is None:
            return page
        page.more = available > len(rows)
        for _, _, _, _, *columns in rows:
            serial = columns[0]
            page.after_serial = max(page.after_serial, serial)
            try:
                message = self._pending(columns, delivered_serial=delivered_serial)
            except UnreadableError as error:
                page.unreadable[serial] = str(error)
                continue
            if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
                page.expired.append(serial)
            else:
                page.messages.append(message)
        return page

    def _pending(self, columns: Sequence[Any], *, delivered_serial: int) -> PendingMessage:
        """Return a row as a message.

        :raises UnreadableError: naming the rule that the row breaks, in the words of the migration's quarantine.
        """
        (
            serial,
            packet_id,
            packet_type,
            topic,
            payload,
            qos,
            time_ms,
            retain,
            interval,
            payload_format_indicator,
            content_type,
            response_topic,
            correlation_data,
            user_properties,
        ) = columns
        pairs = pairs_of(user_properties)
        broken = broken_rule(
            {
                "serial_number": serial,
                "packet_id": packet_id,
                "packet_type": packet_type,
                "topic": topic,
                "payload": len(payload),
                "qos": qos,
                "time": time_ms,
                "payload_format_indicator": payload_format_indicator,
                "content_type": content_type,
                "response_topic": response_topic,
                "correlation_data": None if correlation_data is None else len(correlation_data),
                "user_properties": pairs,
            }
        )
        if broken is not None:
            raise UnreadableError(broken.reason, broken.reason)
        return PendingMessage(
            serial=serial,
            packet_id=packet_id,
            packet_type=packet_type,
            topic=topic,
            payload=payload,
            qos=qos,
            time_ms=time_ms,
            expires_at_ms=self._expires_at_ms(time_ms, interval),
            redelivery=serial <= delivered_serial,
            retain=bool(retain),
            expiry_interval_s=wire.interval_s(interval),
            payload_format_indicator=payload_format_indicator,
            content_type=content_type,
            response_topic=response_topic,
            correlation_data=correlation_data,
            user_properties=pairs,
        )

    @staticmethod
    def _transaction(body: Operation[T]) -> Operation[T]:
        """Run steps in one transaction; whatever ends them early leaves nothing behind."""
        transaction = object()
        try:
            yield Step(begin=True, transaction=transaction)
            result = yield from body
            yield Step(end=True)
        except _Undo as undo:
            yield Step(undo=True, transaction=transaction)
            return undo.result  # type: ignore[no-any-return]
        except Exception:
            yield Step(undo=True, transaction=transaction)
            raise
        return result


@dataclass(slots=True, kw_only=True)
class _Page:
    """What a page of rows holds; ``unreadable`` has reasons by serial."""

    after_serial: int
    backlog_serial: int
    messages: list[PendingMessage] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    more: bool = False


_EXPIRY_SLACK_MS = 60_000
"""TBMQ 2.x counts a life from when it stores the message, moments after the message's time."""

_RETRIED = (
    postgres_errors.DeadlockDetected,
    postgres_errors.SerializationFailure,
    # Somebody who does not lock sessions, as the vendor's broker, has given out the same serial.
    postgres_errors.UniqueViolation,
)

_NOBODYS_OWN = (
    postgres_errors.OperationalError,
    postgres_errors.InsufficientPrivilege,
    postgres_errors.UndefinedTable,
    postgres_errors.UndefinedColumn,
    postgres_errors.UndefinedFunction,
    postgres_errors.InvalidSchemaName,
    postgres_errors.ReadOnlySqlTransaction,
)
"""No single session is to blame for these."""


def _retried(attempt: Callable[[], Operation[T]]) -> Operation[T]:
    """Run an operation again when it lost against another writer."""
    for _ in range(TRIES - 1):
        try:
            return (yield from attempt())
        except RefusedError as error:
            if not isinstance(error.__cause__, _RETRIED):
                raise
    return (yield from attempt())


_REFUSED = {
    "QK001": "Redis owns session {!r}",
    "QK002": "session {!r} is on its way to the other store: repeat the call in a moment",
    "QK003": "session {!r} has another epoch: look up who owns it",
}


def _refused(error: QueuekeeperError) -> dict[str, QueuekeeperError]:
    """Return the sessions that must not be written and why, when that is what an error says."""
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or cause.sqlstate not in REFUSALS or not cause.diag.message_detail:
        return {}
    refused: dict[str, QueuekeeperError] = {}
    for client_id, code in orjson.loads(cause.diag.message_detail):
        refused[client_id] = REFUSALS[code](_REFUSED[code].format(client_id))
        refused[client_id].__cause__ = cause
    return refused


def _following(last: int, count: int, in_use: Set[int]) -> list[int]:
    """Return the packet ids that follow the last one, those in use left out; after 65,535 comes 1."""
    every = ((last + step) % MAX_PACKET_ID + 1 for step in range(MAX_PACKET_ID))
    return list(islice((packet_id for packet_id in every if packet_id not in in_use), count))


def _serial(serial: int | None) -> int:
    """Return what the columns hold for a serial."""
    return FIRST_SERIAL if serial is None else serial


def _batches(saves: Sequence[SessionSave]) -> Iterator[list[SessionSave]]:
    """Cut saves into transactions; one holds a session once, since a save sees what the one before it left."""
    batch: list[SessionSave] = []
    client_ids: set[str] = set()
    messages = size_bytes = 0
    for save in saves:
        save_bytes = sum(len(message.payload) for message in save.messages)
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


def _parts(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut rows into statements."""
    begin = size_bytes = 0
    for number, row in enumerate(rows):
        row_bytes = len(row[_PAYLOAD])
        if number > begin and size_bytes + row_bytes > BYTES_PER_STATEMENT:
            yield rows[begin:number]
            begin, size_bytes = number, 0
        size_bytes += row_bytes
    if rows:
        yield rows[begin:]


_COLUMNS = (
    "client_ids", "serials", "topics", "times_ms", "packet_ids", "packet_types", "qos", "payloads", "user_properties",
    "retain", "expiry_intervals", "payload_format_indicators", "content_types", "response_topics", "correlation_data",
)  # fmt: skip
_PAYLOAD = _COLUMNS.index("payloads")


def _columns(
    message: NewMessage | PendingMessage,
    *,
    client_id: str,
    serial: int,
    packet_id: int,
    packet_type: str,
    interval: int | None,
) -> Row:
    """Return a row of the vendor's table."""
    properties = None
    if message.user_properties:
        pairs = [{"k": name, "v": value} for name, value in message.user_properties]
        properties = orjson.dumps({"props": pairs}).decode()
    return (
        client_id,
        serial,
        message.topic,
        message.time_ms,
        packet_id,
        packet_type,
        message.qos,
        message.payload,
        properties,
        message.retain,
        interval,
        message.payload_format_indicator,
        message.content_type,
        message.response_topic,
        message.correlation_data,
    )


def _save_messages_queries(rows: Sequence[Row]) -> Iterator[Query]:
    return (_messages_query("save_messages", part) for part in _parts(rows))


def _messages_query(name: str, rows: Sequence[Row]) -> Query:
    columns = (list(column) for column in zip(*rows, strict=True))
    return Query(name=name, parameters=dict(zip(_COLUMNS, columns, strict=True)))


def _save_sessions_query(sessions: Sequence[_Session]) -> Query:
    return Query(
        name="save_sessions",
        parameters={
            "client_ids": [session.client_id for session in sessions],
            "last_serials": [session.last_serial for session in sessions],
            "last_packet_ids": [session.last_packet_id for session in sessions],
        },
    )


def _save_states_query(sessions: Sequence[_Session]) -> Query:
    return Query(
        name="save_session_states",
        parameters={
            "client_ids": [session.client_id for session in sessions],
            "last_serials": [session.last_serial for session in sessions],
            "message_bounds": [session.message_bound for session in sessions],
            "delivered_serials": [session.delivered_serial for session in sessions],
            "until_ms": [session.until_ms for session in sessions],
            "trimmed": [session.trimmed for session in sessions],
            "expired": [session.expired for session in sessions],
            "refused": [session.refused for session in sessions],
        },
    )


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


def _count_removed_query(counts: Sequence[tuple[str, int, int]]) -> Query:
    return Query(
        name="count_removed",
        parameters={
            "client_ids": [client_id for client_id, _, _ in counts],
            "expired": [expired for _, expired, _ in counts],
            "quarantined": [quarantined for _, _, quarantined in counts],
        },
    )


def _view(expires_at_ms: Any, *values: Any) -> MessageView:
    """Describe a row.

    :param values: of :data:`_JUDGED_COLUMNS`.
    """
    row = dict(zip(_JUDGED_COLUMNS, values, strict=True))
    reason = row_defect(row)
    return MessageView(
        serial=row["serial_number"],
        packet_id=row["packet_id"],
        packet_type=row["packet_type"],
        qos=row["qos"],
        topic=row["topic"],
        payload_bytes=row["payload"],
        time_ms=row["time"],
        expires_at_ms=int(expires_at_ms),
        problem=None if reason is None else Problem.UNREADABLE,
        reason=reason,
    )


def _put_away(client_id: str, page: _Page) -> Iterator[Query]:
    """Remove what a page holds beside messages, and count it."""
    if page.expired:
        yield Query(name="remove_messages", parameters={"client_id": client_id, "serials": page.expired})
    if page.unreadable:
        parameters = {"serials": list(page.unreadable), "reasons": list(page.unreadable.values())}
        yield Query(name="quarantine_messages", parameters={"client_id": client_id} | parameters)
    yield _count_removed_query([(client_id, len(page.expired), len(page.unreadable))])


def _signed(interval_s: int | None) -> int | None:
    """Return what the vendor's column holds for an expiry interval: its four bytes, read as a signed number."""
    return interval_s - 2**32 if interval_s is not None and interval_s >= 2**31 else interval_s


def _check_client_id(client_id: str) -> None:
    check_client_id(client_id)
    _check_length("client id", client_id)


def _check_columns(message: NewMessage | PendingMessage) -> None:
    if message.subscription_ids:
        raise UsageError(
            f"subscription_ids is {message.subscription_ids}: TBMQ 1.x has no column for them; leave them out, or use "
            "the Redis store"
        )
    for name, value in (("content_type", message.content_type), ("response_topic", message.response_topic)):
        if value is not None:
            _check_length(name, value)


def _check_length(name: str, value: str) -> None:
    if len(value) > MAX_VENDOR_TEXT:
        raise UsageError(
            f"{name} has {len(value)} characters ({value[:20]!r}...): this store has columns of {MAX_VENDOR_TEXT}"
        )
