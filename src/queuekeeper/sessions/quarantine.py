"""Messages that a store has set aside from its sessions: what waits, whether it can be delivered, and the way back.

A message that comes back is a new one: the store's ordinary save puts it behind all others, under a new serial and
packet id, in the store that owns the session. Each row is a source of its own, so a repeated save stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.postgres import Connection, statement, translated_errors
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

Store: TypeAlias = SessionRouter | RedisSessionStore | PostgresSessionStore

SUBJECT = "session_quarantine"
"""What the audit calls it."""

WORDS_SHOWN = 20
_MISSING = "run `queuekeeper database migrate`"
_PUBREL = "PUBREL"
_SCATTERED = (
    "no cluster can hold its client, and PostgreSQL, where it would go, may be read by nobody any more: if the broker "
    f"reads PostgreSQL, name such messages, by row, --client or --reason {Reason.CLIENT_ID_SCATTERED}"
)
_NEW_RULES = (*CONTENT_RULES, *(rule for rule in RULES if isinstance(rule, OneOf)))
"""Of a message that gets a new place: its serial and its packet id do not matter, whether it is a PUBLISH does."""


@dataclass(frozen=True, kw_only=True)
class AsideMessage:
    """A row of ``queuekeeper.session_quarantine``; its text form shows no content.

    :param reason: why it was set aside, a :class:`~queuekeeper.sessions.judge.Reason`.
    :param serial_number: which it had.
    :param status: ``open`` or ``replayed``.
    :param assigned_serial_number: serial number of the replay; ``None`` also where no store knows it any more.
    :param assigned_packet_id: likewise.
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
        """Return which rule keeps the message from coming back as a new one, in words; empty when none does."""
        return fault(self)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What becomes of messages of any quarantine.

    :param replayed: messages in their sessions again; on a dry run those that would be.
    :param unchanged: messages that an earlier try had stored already; only noted now.
    :param expired: messages whose life is over; they stay.
    :param not_repaired: messages that still break a rule.
    :param why: of some that were not replayed, why, by the number of the row.
    """

    dry_run: bool
    replayed: int = 0
    unchanged: int = 0
    expired: int = 0
    not_repaired: int = 0
    why: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReplayReport(Replayed):
    """Result of a replay of messages that were set aside; a replayed message is a new message.

    :param released: what is left of messages that the client has received (PUBREL); there is nothing to deliver.
    :param no_session: messages of sessions that are not there any more.
    :param in_both_stores: messages of sessions that both stores have, and of which no owner is on record.
    :param refused: messages that a store did not take: the session is on its way, or full.
    :param scattered: messages of clients that no cluster can hold; they come back only where they are named.
    """

    released: int = 0
    no_session: int = 0
    in_both_stores: int = 0
    refused: int = 0
    scattered: int = 0


class Outcome(StrEnum):
    """Outcomes of a message that was set aside; fields of :class:`ReplayReport`."""

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
    """Return a row of a quarantine as the rules take it.

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
    """Return which rule keeps a row's message from coming back as a new one, in words; empty when none does."""
    values = row_values(row)
    broken = broken_rule(values, _NEW_RULES)
    return "" if broken is None else broken.words(values)


def defect(row: Any, *, clustered: bool = False, rules: Sequence[Rule] = RULES) -> Reason | None:
    """Return which rule a row of a quarantine breaks by itself, as plans, stores and movers judge it.

    :param row: see :func:`row_values`.
    :param clustered: see :func:`~queuekeeper.sessions.judge.client_defect`.
    """
    if (reason := client_defect(row.client_id, clustered=clustered)) is not None:
        return reason
    broken = broken_rule(row_values(row), rules)
    return None if broken is None else broken.reason


def readable(text: str | None) -> bool:
    """Return whether user properties can be copied; those that cannot may only be dropped."""
    values = {"user_properties": pairs_of(text)}
    return broken_rule(values, [rule for rule in RULES if isinstance(rule, Pairs)]) is None


class SessionQuarantine:
    """The table of messages that were set aside.

    :param connection: commits by itself.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def counts(self) -> list[tuple[str, int, int]]:
        """Return reason, open rows and replayed rows, the most open ones first."""
        with translated_errors(self._connection, missing=_MISSING):
            return self._connection.execute(statement("sessions/quarantine_counts")).fetchall()

    def rows(
        self,
        *,
        quarantine_ids: Sequence[int] | None = None,
        status: str | None = "open",
        reason: str | None = None,
        client_id: str | None = None,
        limit: int | None = 1_000,
    ) -> list[AsideMessage]:
        """Return messages, a client at a time and in the order of their serials.

        :param status: none for open and replayed ones.
        :param limit: most rows to return, since they hold payloads; none for all.
        :raises UsageError: for a reason that there is not.
        """
        check_reason(reason)
        choice = {
            "quarantine_ids": None if quarantine_ids is None else list(quarantine_ids),
            "status": status,
            "reason": reason,
            "client_id": client_id,
            "maximum": limit,
        }
        with translated_errors(self._connection, missing=_MISSING):
            cursor = self._connection.execute(statement("sessions/quarantined_messages"), choice)
            names = [column.name for column in cursor.description or ()]
            return [AsideMessage(**dict(zip(names, row, strict=True))) for row in cursor]

    def get(self, quarantine_id: int) -> AsideMessage:
        """Return one message.

        :raises UsageError: when there is none of this number.
        """
        found = self.rows(quarantine_ids=[quarantine_id], status=None)
        if not found:
            raise UsageError(f"no message {quarantine_id} was set aside: `queuekeeper sessions quarantine` lists them")
        return found[0]

    def mark_replayed(self, quarantine_id: int, *, serial: int | None, packet_id: int | None, person: str) -> None:
        """Note that a message is in its session again; a repeated note changes nothing."""
        mark = {"quarantine_id": quarantine_id, "serial": serial, "packet_id": packet_id, "person": person}
        with translated_errors(self._connection, missing=_MISSING):
            self._connection.execute(statement("sessions/mark_replayed"), mark)


@dataclass(frozen=True, eq=False, repr=False)
class Stores:
    """Finds the store that a session's new messages go to.

    Where an owner is on record, the router asks for owner and epoch with every save. Where none is, no session moves:
    the store that has it takes it, and a person has to say which one where both have.

    :param connection: to the database of TBMQ 1.x with schema ``queuekeeper``.
    :param redis: none where there is none; then all sessions are PostgreSQL's.
    :param router: of both; needed with ``redis``.
    :param choice: what the person says of sessions without an owner on record.
    """

    connection: Connection
    _: KW_ONLY
    postgres: PostgresSessionStore
    redis: RedisSessionStore | None = None
    router: SessionRouter | None = None
    choice: StoreChoice = "owner"

    def of(self, client_id: str) -> Store | Outcome:
        """Return the store that takes a session's messages, or why there is none."""
        if self.redis is None or self.router is None:
            # It refuses a session that Redis owns, or that is on its way, in the transaction of the save.
            return self.postgres if self._exists(self.postgres, client_id) else Outcome.NO_SESSION
        if self.knows_owner(client_id):
            return self.router if self._exists(self.router, client_id) else Outcome.NO_SESSION
        in_postgres, in_redis = (self._exists(store, client_id) for store in (self.postgres, self.redis))
        if self.choice == "owner" and in_postgres and in_redis:
            return Outcome.IN_BOTH_STORES
        if in_redis and self.choice != "postgres":
            return self.redis
        # A session without an owner on record that is about to move gets one here.
        return self.router if in_postgres and self.choice != "redis" else Outcome.NO_SESSION

    def knows_owner(self, client_id: str) -> bool:
        """Return whether an owner of the session is on record, since it moves or has moved with devices connected."""
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
    """Put messages that were set aside behind all others of their sessions, those of a client in their old order.

    One that is stored and not yet noted, since this was killed, is found again and only noted. What the commit of a
    move to a cluster has put aside comes back only where rows, a reason or a client are given.

    :param person: for the row.
    :param quarantine_ids: only these rows.
    :param reason: only rows of this reason.
    :param client_id: only rows of this client.
    :param drop_user_properties: leave user properties out where they cannot be read.
    :param default_ttl_s: life of a message without an expiry, as the stores have it.
    :param dry_run: write nothing.
    """
    table = SessionQuarantine(connection)
    are_named = any(choice is not None for choice in (quarantine_ids, reason, client_id))
    counts: dict[str, int] = {}
    why: dict[int, str] = {}
    for row in table.rows(quarantine_ids=quarantine_ids, reason=reason, client_id=client_id, limit=None):
        if row.reason == Reason.CLIENT_ID_SCATTERED and not are_named:
            # The words are the same for all of them.
            if Outcome.SCATTERED not in counts:
                why[row.quarantine_id] = _SCATTERED
            counts[Outcome.SCATTERED] = counts.get(Outcome.SCATTERED, 0) + 1
            continue
        mended = row
        if drop_user_properties and not readable(row.user_properties):
            mended = replace(row, user_properties=None)
        back = put_back(
            stores,
            mended,
            source=f"quarantine:{row.quarantine_id}",
            default_ttl_s=default_ttl_s,
            dry_run=dry_run,
            now_ms=clock(),
        )
        if back.stored:
            table.mark_replayed(row.quarantine_id, serial=back.serial, packet_id=back.packet_id, person=person)
        counts[back.outcome] = counts.get(back.outcome, 0) + 1
        if back.words and len(why) < WORDS_SHOWN:
            why[row.quarantine_id] = back.words
    return ReplayReport(dry_run=dry_run, why=why, **counts)


@dataclass(frozen=True, kw_only=True)
class PutBack:
    """Outcome of one message.

    :param words: why it is not in its session; empty where the outcome says all.
    :param stored: whether it is in its session now, by this call or an earlier one; not so on a dry run.
    :param serial: its serial number there; ``None`` also where no store knows it any more.
    :param packet_id: likewise.
    """

    outcome: Outcome
    words: str = ""
    stored: bool = False
    serial: int | None = None
    packet_id: int | None = None


def put_back(stores: Stores, row: Any, *, source: str, default_ttl_s: int, dry_run: bool, now_ms: int) -> PutBack:
    """Save a message of a quarantine as a new one, behind all others of its session.

    :param row: see :func:`row_values`.
    :param source: of the row alone: a repeated save stores nothing twice.
    """
    outcome, words = _obstacle(row, default_ttl_s=default_ttl_s, now_ms=now_ms)
    if outcome is not None:
        return PutBack(outcome=outcome, words=words)
    return _save(stores, row, source=source, dry_run=dry_run)


def _obstacle(row: Any, *, default_ttl_s: int, now_ms: int) -> tuple[Outcome | None, str]:
    """Return why a message cannot come back, whichever store owns its session."""
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
        message = _new_message(row)
        if dry_run:
            return PutBack(outcome=Outcome.REPLAYED)
        save = SessionSave(client_id=row.client_id, messages=(message,), source=source, offset=0)
        (report,) = store.save_messages([save])
    except QueuekeeperError as error:
        return PutBack(outcome=Outcome.REFUSED, words=str(error))
    if report.error is not None:
        return PutBack(outcome=Outcome.REFUSED, words=str(report.error))
    if report.refused:
        if report.refused[0] is Refusal.EXPIRED:
            return PutBack(outcome=Outcome.EXPIRED)
        return PutBack(outcome=Outcome.NOT_REPAIRED, words="its expiry interval says nothing")
    outcome = Outcome.UNCHANGED if report.replayed else Outcome.REPLAYED
    return PutBack(outcome=outcome, stored=True, serial=report.serials[0], packet_id=report.packet_ids[0])


def _new_message(row: Any) -> NewMessage:
    return NewMessage(
        topic=row.topic,
        payload=row.payload,
        qos=row.qos,
        time_ms=row.time,
        retain=bool(row.retain),
        expiry_interval_s=wire.interval_s(row.msg_expiry_interval),
        payload_format_indicator=row.payload_format_indicator,
        content_type=row.content_type,
        response_topic=row.response_topic,
        correlation_data=row.correlation_data,
        user_properties=pairs_of(row.user_properties),
    )
