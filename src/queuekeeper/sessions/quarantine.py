"""Messages that a store has set aside from its sessions: list them, judge them, and put them back.

A message that is put back is a new message: an ordinary save in the store that owns the session appends it under a new
serial and packet id. Each row is the source of its save, so that a repeated save stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.postgres import Connection, rows_of, translated_errors
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import (
    CONTENT_RULES,
    RULES,
    OneOf,
    Pairs,
    Reason,
    Rule,
    broken_rule,
    check_reason,
    client_defect,
    pairs_of,
)
from queuekeeper.sessions.model import NewMessage, SessionSave, StoreChoice, StoreRules
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import Refusal, SessionView
from queuekeeper.sessions.router import SessionRouter
from queuekeeper.sql_statements import statement

Store: TypeAlias = SessionRouter | RedisSessionStore | PostgresSessionStore

SUBJECT = "session_quarantine"
"""Name of the quarantine in the audit."""

WORDS_SHOWN = 20
_PUBREL = "PUBREL"
_SCATTERED = (
    "no cluster can hold its client, and PostgreSQL, where it would go, may be read by nobody any more: if the broker "
    f"reads PostgreSQL, name such messages, by row, --client or --reason {Reason.CLIENT_ID_SCATTERED}"
)
_IN_ORDER = "an earlier message of its client was refused, and comes back before it: try again"
_NEW_RULES = (*CONTENT_RULES, *(rule for rule in RULES if isinstance(rule, OneOf)))
"""Rules of a message that gets a new serial and packet id: it must be a PUBLISH, and its old ids do not matter."""


@dataclass(frozen=True, kw_only=True)
class AsideMessage:
    """A row of ``queuekeeper.session_quarantine``; its text form shows no content.

    :param reason: why the message was set aside, a :class:`~queuekeeper.sessions.judge.Reason`.
    :param serial_number: serial that the message had in its session.
    :param status: ``open`` or ``replayed``.
    :param assigned_serial_number: serial under which it was replayed; none when it is no longer known.
    :param assigned_packet_id: packet id under which it was replayed; none when it is no longer known.
    """

    quarantine_id: int
    reason: str
    client_id: str
    serial_number: int
    topic: str
    time: int
    packet_id: int | None
    packet_type: str | None
    qos: int
    payload: bytes = field(repr=False)
    user_properties: str | None = field(repr=False)
    retain: bool | None
    msg_expiry_interval: int | None
    payload_format_indicator: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None = field(repr=False)
    quarantined_at: datetime
    status: str
    assigned_serial_number: int | None
    assigned_packet_id: int | None
    replayed_at: datetime | None
    replayed_by: str | None

    @property
    def fault(self) -> str:
        """The rule that keeps the message from being put back, as a sentence; empty when it breaks none."""
        return fault(self)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Result of a replay from any quarantine.

    :param replayed: messages put back into their sessions; on a dry run, messages that would be put back.
    :param unchanged: messages that an earlier try had already stored; this one only recorded it.
    :param expired: messages that have expired; they stay in quarantine.
    :param not_repaired: messages that still break a rule.
    :param why: reasons for some messages that were not put back, by the number of the row.
    """

    dry_run: bool
    replayed: int = 0
    unchanged: int = 0
    expired: int = 0
    not_repaired: int = 0
    why: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplayReport(Replayed):
    """Result of a replay from the quarantine of sessions.

    :param released: messages that the client has already received (PUBREL), so that nothing is left to deliver.
    :param no_session: messages of sessions that no longer exist.
    :param in_both_stores: messages of sessions that exist in both stores without a recorded owner.
    :param refused: messages that the store refused, since the session is moving or full.
    :param scattered: messages of clients that no cluster can hold; they are put back only when selected by name.
    """

    released: int = 0
    no_session: int = 0
    in_both_stores: int = 0
    refused: int = 0
    scattered: int = 0


class Outcome(StrEnum):
    """Result of one message; the values are fields of :class:`ReplayReport`."""

    REPLAYED = "replayed"
    UNCHANGED = "unchanged"
    EXPIRED = "expired"
    NOT_REPAIRED = "not_repaired"
    RELEASED = "released"
    NO_SESSION = "no_session"
    IN_BOTH_STORES = "in_both_stores"
    REFUSED = "refused"
    SCATTERED = "scattered"


def row_values(row: Any) -> dict[str, Any]:
    """Return the values of a row for :func:`~queuekeeper.sessions.judge.broken_rule`.

    :param row: record with the columns of ``device_publish_msg``.
    """
    names = (
        "serial_number", "packet_id", "packet_type", "topic", "qos", "time", "payload_format_indicator", "content_type",
        "response_topic",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names} | {
        "payload": len(row.payload or b""),
        "correlation_data": None if row.correlation_data is None else len(row.correlation_data),
        "user_properties": pairs_of(row.user_properties),
    }


def fault(row: Any) -> str:
    """Return the rule that keeps a row's message from being put back, as a sentence; empty when it breaks none."""
    values = row_values(row)
    broken = broken_rule(values, _NEW_RULES)
    return "" if broken is None else broken.words(values)


def defect(row: Any, *, clustered: bool = False, rules: Sequence[Rule] = RULES) -> Reason | None:
    """Return the reason of the rule that a row of a quarantine breaks; plans, stores and movers use the same rules.

    :param row: see :func:`row_values`.
    :param clustered: see :func:`~queuekeeper.sessions.judge.client_defect`.
    """
    if (reason := client_defect(row.client_id, clustered=clustered)) is not None:
        return reason
    broken = broken_rule(row_values(row), rules)
    return None if broken is None else broken.reason


def readable(text: str | None) -> bool:
    """Return whether user properties can be read; unreadable ones can only be dropped."""
    values = {"user_properties": pairs_of(text)}
    return broken_rule(values, [rule for rule in RULES if isinstance(rule, Pairs)]) is None


class SessionQuarantine:
    """The table ``queuekeeper.session_quarantine``.

    :param connection: connection with ``autocommit``.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def counts(self) -> list[tuple[str, int, int]]:
        """Return reason, open rows and replayed rows, ordered by open rows, most first."""
        return rows_of(self._connection, "sessions/quarantine_counts")

    def rows(
        self,
        *,
        quarantine_ids: Sequence[int] | None = None,
        status: str | None = "open",
        reason: str | None = None,
        client_id: str | None = None,
        limit: int | None = 1_000,
    ) -> list[AsideMessage]:
        """Return messages, ordered by client and serial.

        :param status: ``open`` or ``replayed``; none for both.
        :param limit: most rows to return, since rows hold payloads; none for all rows.
        :raises UsageError: for an unknown reason.
        """
        check_reason(reason)
        choice = {
            "quarantine_ids": None if quarantine_ids is None else list(quarantine_ids),
            "status": status,
            "reason": reason,
            "client_id": client_id,
            "maximum": limit,
        }
        with translated_errors(self._connection):
            cursor = self._connection.execute(statement("sessions/quarantined_messages"), choice)
            names = [column.name for column in cursor.description or ()]
            return [AsideMessage(**dict(zip(names, row, strict=True))) for row in cursor]

    def get(self, quarantine_id: int) -> AsideMessage:
        """Return one message.

        :raises UsageError: when there is no row of this number.
        """
        found = self.rows(quarantine_ids=[quarantine_id], status=None)
        if not found:
            raise UsageError(f"no message {quarantine_id} was set aside: `queuekeeper sessions quarantine` lists all")
        return found[0]

    def mark_replayed(self, quarantine_id: int, *, serial: int | None, packet_id: int | None, person: str) -> None:
        """Record that a message was put back; a repeated call changes nothing."""
        mark = {"quarantine_id": quarantine_id, "serial": serial, "packet_id": packet_id, "person": person}
        with translated_errors(self._connection):
            self._connection.execute(statement("sessions/mark_replayed"), mark)


@dataclass(frozen=True, eq=False, repr=False)
class Stores:
    """Finds the store that takes a session's new messages.

    For a session with a recorded owner, the router sends each save to the owner. A session without one does not move:
    the store that has the session takes the message, and when both stores have it, a person must choose.

    :param connection: connection to the database of TBMQ 1.x, with schema ``queuekeeper``.
    :param redis: returns the store in Redis of a client's session; none when PostgreSQL holds all sessions.
    :param router: router of both stores; required with ``redis``.
    :param choice: store that a person chose for sessions that both stores have, without a recorded owner.
    """

    connection: Connection
    _: KW_ONLY
    postgres: PostgresSessionStore
    redis: Callable[[str], RedisSessionStore] | None = None
    router: SessionRouter | None = None
    choice: StoreChoice = "owner"

    def of(self, client_id: str) -> Store | Outcome:
        """Return the store that takes a session's messages, or why there is none."""
        if self.redis is None or self.router is None:
            # The store refuses, in the transaction of the save, a session that Redis owns or that is moving.
            return self.postgres if self._exists(self.postgres, client_id) else Outcome.NO_SESSION
        if self.knows_owner(client_id):
            return self.router if self._exists(self.router, client_id) else Outcome.NO_SESSION
        at_redis = self.redis(client_id)
        in_postgres, in_redis = (self._exists(store, client_id) for store in (self.postgres, at_redis))
        if self.choice == "owner" and in_postgres and in_redis:
            return Outcome.IN_BOTH_STORES
        if in_redis and self.choice != "postgres":
            return at_redis
        # The look-up records an owner for a session that is about to move and has none.
        return self.router if in_postgres and self.choice != "redis" else Outcome.NO_SESSION

    def knows_owner(self, client_id: str) -> bool:
        """Return whether the session has a recorded owner, which it has once an online migration has come to it."""
        found = self.connection.execute(statement("sessions/look_up_owners"), {"client_ids": [client_id]}).fetchone()
        return found is not None

    @staticmethod
    def _exists(store: Store, client_id: str) -> bool:
        view: SessionView = store.inspect(client_id, limit=1)
        return view.exists


def replay(
    connection: Connection,
    stores: Stores,
    *,
    person: str,
    quarantine_ids: Sequence[int] | None = None,
    reason: str | None = None,
    client_id: str | None = None,
    drop_user_properties: bool = False,
    default_ttl_s: int = StoreRules.default_ttl_s,
    dry_run: bool = False,
    clock: Clock = system_clock,
) -> ReplayReport:
    """Append messages from the quarantine to their sessions; messages of one client keep their order.

    A repeated call records a message that a killed call had stored, and does not store it again. Messages that the
    commit of a move to a cluster set aside are put back only when rows, a reason or a client are given.

    :param person: person to record in the row.
    :param quarantine_ids: only these rows; none for all rows.
    :param reason: only rows of this reason.
    :param client_id: only rows of this client.
    :param drop_user_properties: drop user properties that cannot be read.
    :param default_ttl_s: life in seconds of a message without an expiry interval; the same as in the stores.
    :param dry_run: write nothing.
    """
    table = SessionQuarantine(connection)
    way_back = WayBack(stores, default_ttl_s=default_ttl_s, dry_run=dry_run, clock=clock)
    are_named = any(choice is not None for choice in (quarantine_ids, reason, client_id))
    counts: dict[str, int] = {}
    why: dict[int, str] = {}
    for row in table.rows(quarantine_ids=quarantine_ids, reason=reason, client_id=client_id, limit=None):
        if row.reason == Reason.CLIENT_ID_SCATTERED and not are_named:
            # The reason is the same for all of them.
            if Outcome.SCATTERED not in counts:
                why[row.quarantine_id] = _SCATTERED
            counts[Outcome.SCATTERED] = counts.get(Outcome.SCATTERED, 0) + 1
            continue
        mended = row
        if drop_user_properties and not readable(row.user_properties):
            mended = replace(row, user_properties=None)
        back = way_back.put(mended, source=f"quarantine:{row.quarantine_id}")
        if back.stored:
            table.mark_replayed(row.quarantine_id, serial=back.serial, packet_id=back.packet_id, person=person)
        counts[back.outcome] = counts.get(back.outcome, 0) + 1
        if back.words and len(why) < WORDS_SHOWN:
            why[row.quarantine_id] = back.words
    return ReplayReport(dry_run=dry_run, why=why, **counts)


@dataclass(frozen=True, kw_only=True)
class PutBack:
    """Result of putting one message back.

    :param words: why the message was not put back; empty when the outcome explains it.
    :param stored: whether the message is in its session, by this call or an earlier one; false on a dry run.
    :param serial: serial of the message in its session; none when it is not known.
    :param packet_id: packet id of the message in its session; none when it is not known.
    """

    outcome: Outcome
    words: str = ""
    stored: bool = False
    serial: int | None = None
    packet_id: int | None = None


@dataclass(eq=False, repr=False)
class WayBack:
    """Appends messages of a quarantine to their sessions, as new messages, in the order in which they are given.

    When a store refuses a message, the later messages of the same client are refused too, so that a repetition keeps
    their order. Messages of one client are given one after the other.

    :param default_ttl_s: life in seconds of a message without an expiry interval; the same as in the stores.
    :param dry_run: write nothing.
    """

    stores: Stores
    _: KW_ONLY
    default_ttl_s: int
    dry_run: bool
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        self._refused: str | None = None

    def put(self, row: Any, *, source: str) -> PutBack:
        """Append a message.

        :param row: see :func:`row_values`.
        :param source: source of the save, unique to the row, so that a repeated save stores nothing twice.
        """
        outcome, words = _obstacle(row, default_ttl_s=self.default_ttl_s, now_ms=self.clock())
        if outcome is not None:
            return PutBack(outcome=outcome, words=words)
        if row.client_id == self._refused:
            return PutBack(outcome=Outcome.REFUSED, words=_IN_ORDER)
        back = _save(self.stores, row, source=source, dry_run=self.dry_run)
        if back.outcome is Outcome.REFUSED:
            self._refused = row.client_id
        return back


def _obstacle(row: Any, *, default_ttl_s: int, now_ms: int) -> tuple[Outcome | None, str]:
    """Return why a message cannot be put back in any store; no outcome when it can."""
    if row.packet_type == _PUBREL:
        return Outcome.RELEASED, "the client has received it: only its acknowledgement was waiting"
    if defect(row, rules=_NEW_RULES) is not None:
        return Outcome.NOT_REPAIRED, fault(row) or "its client id is empty"
    ends_ms = wire.expires_at_ms(
        time_ms=row.time, msg_expiry_interval=row.msg_expiry_interval, default_ttl_s=default_ttl_s
    )
    return (Outcome.EXPIRED, "") if ends_ms <= now_ms else (None, "")


_WHY = {
    Outcome.NO_SESSION: "its session is not there any more",
    Outcome.IN_BOTH_STORES: "both stores have the session and no owner is on record: name the broker's by --store",
}


def _save(stores: Stores, row: Any, *, source: str, dry_run: bool) -> PutBack:
    try:
        store = stores.of(row.client_id)
        if isinstance(store, Outcome):
            return PutBack(outcome=store, words=_WHY[store])
        if store.inspect(row.client_id, limit=1).messages >= MAX_PACKET_ID:
            words = f"all {MAX_PACKET_ID:,} packet ids of the session are in use"
            return PutBack(outcome=Outcome.REFUSED, words=words)
        message = NewMessage(**content_of(row))
        if dry_run:
            known = store.has_saved(row.client_id, source=source)
            return PutBack(outcome=Outcome.UNCHANGED if known else Outcome.REPLAYED)
        save = SessionSave(client_id=row.client_id, messages=(message,), source=source, offset=0)
        (report,) = store.save_messages([save])
    except QueuekeeperError as error:
        return PutBack(outcome=Outcome.REFUSED, words=str(error))
    if report.error is not None:
        return PutBack(outcome=Outcome.REFUSED, words=str(report.error))
    if report.refused:
        if report.refused[0] is Refusal.EXPIRED:
            return PutBack(outcome=Outcome.EXPIRED)
        return PutBack(outcome=Outcome.NOT_REPAIRED, words="its expiry interval is out of range")
    outcome = Outcome.UNCHANGED if report.replayed else Outcome.REPLAYED
    return PutBack(outcome=outcome, stored=True, serial=report.serials[0], packet_id=report.packet_ids[0])


def content_of(row: Any) -> dict[str, Any]:
    """Return the content of a row's message by the names of :class:`~queuekeeper.sessions.model.NewMessage`."""
    same = ("topic", "qos", "payload_format_indicator", "content_type", "response_topic", "correlation_data")
    return {name: getattr(row, name) for name in same} | {
        "payload": row.payload or b"",
        "time_ms": row.time,
        "retain": bool(row.retain),
        "expiry_interval_s": wire.interval_s(row.msg_expiry_interval),
        "user_properties": pairs_of(row.user_properties),
    }
