"""Explains one queue, serial by serial: which messages the stores hold, and what happened to the others.

:func:`read_queue` reads, and :func:`explain` judges what was read without input or output. Only :func:`reveal_message`
shows a payload and a topic, after it has written an entry into the audit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from queuekeeper import audit
from queuekeeper.errors import QueuekeeperError, RefusedError, ScatteredClient, UsageError
from queuekeeper.identity import client_hash
from queuekeeper.migration.ledger.parameters import MigrationParameters
from queuekeeper.postgres import Connection, rows_of
from queuekeeper.quality.profile.model import Store
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.model import check_packet_id
from queuekeeper.sessions.pages import DEFAULT_EXPLAINED, Layout
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import RedisSessionStore, layout_of
from queuekeeper.sessions.reports import MessageView, PendingMessage, Problem, SessionView
from queuekeeper.wording import number_of

_DEFAULTS = MigrationParameters()

_REASON_LETTERS = range(10, 501)


class Fate(StrEnum):
    """What happened to a message."""

    WAITING = "waiting"  # to be delivered
    SENT = "sent"  # delivered, and not acknowledged yet
    RELEASED = "released"  # the client has sent PUBREC, and not PUBCOMP yet
    NOT_COPIED = "not copied"  # it is in PostgreSQL, and no migration has copied it yet
    ACKED = "acked"
    EXPIRED = "expired"
    TRIMMED = "trimmed"
    QUARANTINED = "quarantined"
    UNDELIVERABLE = "undeliverable"  # it is stored, but breaks a rule and cannot be delivered as it is
    UNKNOWN = "unknown"  # it should be stored, or no record says what happened: investigate it

    @property
    def is_gap(self) -> bool:
        """Whether the message will not be delivered any more."""
        return self in (
            Fate.ACKED, Fate.EXPIRED, Fate.TRIMMED, Fate.QUARANTINED, Fate.UNDELIVERABLE, Fate.UNKNOWN
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Aside:
    """A row or record of the client in quarantine.

    :param place: migration plan or store that put it there.
    :param kind: ``message`` or ``session``.
    :param serial: ``None`` for a session.
    """

    place: str
    kind: str
    reason: str
    detail: str
    serial: int | None
    status: str


@dataclass(frozen=True, kw_only=True)
class SerialLine:
    """A message, or successive messages of the same fate.

    :param why: the evidence, in a sentence.
    :param source: row in PostgreSQL; ``None`` if there is none, or if the line stands for several messages.
    :param target: reference and payload in Redis; ``None`` in the same cases.
    """

    first_serial: int
    last_serial: int
    fate: Fate
    why: str
    source: MessageView | None = None
    target: MessageView | None = None

    @property
    def messages(self) -> int:
        """Number of serials that the line stands for."""
        return self.last_serial - self.first_serial + 1


@dataclass(frozen=True, kw_only=True)
class QueueReading:
    """What the stores hold of one queue.

    :param problems: store -> why it was not reached.
    """

    source: SessionView | None
    target: SessionView | None
    aside: tuple[Aside, ...]
    problems: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One queue explained.

    :param client_hash: name of the client in reports and in the audit.
    :param served_from: store that the queue is delivered from; ``None`` when neither has it.
    :param lines: lines in the order of serials.
    :param counts: fate -> number of messages.
    :param complete: whether both stores were read to their end.
    :param problems: store -> why it was not reached; the lines lack the messages of that store.
    :param advice: what to do next.
    """

    client_hash: str
    as_of_ms: int
    served_from: Store | None
    source: SessionView | None
    target: SessionView | None
    lines: tuple[SerialLine, ...]
    aside: tuple[Aside, ...]
    counts: Mapping[str, int]
    complete: bool
    problems: Mapping[str, str]
    advice: str

    @property
    def unknown(self) -> int:
        """Number of messages whose fate is unknown."""
        return self.counts.get(Fate.UNKNOWN, 0)

    def to_json(self) -> str:
        """Return the explanation as evidence: with the hash of the client id instead of the id, without topics."""
        found = asdict(self)
        for view in (found["source"], found["target"]):
            if view is not None:
                del view["client_id"], view["page"]
        for line in found["lines"]:
            for side in (line["source"], line["target"]):
                if side is not None:
                    del side["topic"]
        return json.dumps(found, ensure_ascii=False, sort_keys=True)

    def evidence_hash(self) -> str:
        """Return the SHA-256 of the evidence, by which a copy of it can be verified."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def read_queue(
    client_id: str,
    *,
    connection: Connection | None,
    client: RedisClient | None,
    key_prefix: str = "",
    limit: int = DEFAULT_EXPLAINED,
    layout: Layout | None = None,
    problems: Mapping[str, str] | None = None,
) -> QueueReading:
    """Read one queue in both stores; when one store fails, the result names it, and the other store is still read.

    :param connection: ``None`` when PostgreSQL is not reached; ``problems`` then says why.
    :param client: ``None`` when Redis is not reached; ``problems`` then says why.
    :param limit: number of messages to read from each store, 1 to 10,000.
    :param layout: layout of the session in Redis; ``None`` for that in which it is there.
    :raises UsageError: when the client id is empty or too long, or the limit is out of range.
    """
    found = dict(problems or {})

    def attempt(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except QueuekeeperError as error:
            # PostgreSQL may hold a queue that a cluster cannot serve.
            if isinstance(error, UsageError) and not isinstance(error, ScatteredClient):
                raise
            found[name] = str(error)
            return None

    source = target = None
    aside: tuple[Aside, ...] = ()
    if connection is not None:
        source = attempt("PostgreSQL", lambda: PostgresSessionStore(connection).inspect(client_id, limit=limit))
        aside = attempt("quarantine", lambda: _read_aside(connection, client_id)) or ()
    if client is not None:
        target = attempt(
            "Redis",
            lambda: _redis_store(client, client_id, key_prefix, layout=layout).inspect(client_id, limit=limit),
        )
    return QueueReading(source=source, target=target, aside=aside, problems=found)


def _redis_store(
    client: RedisClient, client_id: str, key_prefix: str, *, layout: Layout | None = None
) -> RedisSessionStore:
    found = layout or layout_of(client, client_id, prefix=key_prefix)
    return RedisSessionStore(client, prefix=key_prefix, layout=found)


def _read_aside(connection: Connection, client_id: str) -> tuple[Aside, ...]:
    rows = rows_of(connection, "quality/explain_quarantine", {"client_id": client_id})
    return tuple(
        Aside(place=place, kind=kind, reason=reason, detail=detail, serial=serial, status=status)
        for place, kind, reason, detail, serial, status in rows
    )


def explain(
    client_id: str,
    *,
    reading: QueueReading,
    hash_key: bytes,
    now_ms: int,
    session_limit: int = _DEFAULTS.limit,
    default_ttl_s: int = _DEFAULTS.default_ttl_s,
) -> Explanation:
    """Work out the fate of each message.

    :param session_limit: live messages per session that the migration keeps.
    :param default_ttl_s: lifetime of a message without an expiry interval, in seconds.
    """
    judge = _Judge(reading, now_ms=now_ms, session_limit=session_limit, default_ttl_ms=default_ttl_s * 1_000)
    lines = tuple(judge.lines())
    counts: dict[str, int] = {}
    for line in lines:
        counts[str(line.fate)] = counts.get(str(line.fate), 0) + line.messages
    return Explanation(
        client_hash=client_hash(client_id, key=hash_key),
        as_of_ms=now_ms,
        served_from=judge.served_from,
        source=reading.source,
        target=reading.target,
        lines=lines,
        aside=reading.aside,
        counts=counts,
        complete=judge.horizon is None and not reading.problems,
        problems=reading.problems,
        advice=_advice(judge.served_from, counts, reading),
    )


def _advice(served_from: Store | None, counts: Mapping[str, int], reading: QueueReading) -> str:
    if reading.problems:
        return f"Not everything was reached ({', '.join(sorted(reading.problems))}): explain the queue again later."
    if served_from is None and not counts:
        return "Neither store knows this client: check the spelling of the id. Ids are case-sensitive."
    if counts.get(Fate.UNKNOWN):
        return (
            "Some messages are unaccounted for. Run queue_quality on this client's cohort, and keep this evidence "
            "with its hash before anything is repaired."
        )
    if counts.get(Fate.UNDELIVERABLE):
        return (
            "Messages break a rule and cannot be delivered: correct the rows, or let a fetch or a migration put them "
            "in quarantine."
        )
    if counts.get(Fate.QUARANTINED):
        return "Messages are in quarantine: correct what their reason names, then replay them."
    if counts.get(Fate.NOT_COPIED):
        return "Messages still wait to be copied: run session_migration, or look at its plan."
    return "Every message is accounted for."


class _Judge:
    """Compares both stores.

    :ivar horizon: last serial up to which both stores were read; ``None`` when they were read to their end.
    """

    def __init__(self, reading: QueueReading, *, now_ms: int, session_limit: int, default_ttl_ms: int) -> None:
        self._source, self._target = reading.source, reading.target
        self._now_ms = now_ms
        self._default_ttl_ms = default_ttl_ms
        self.served_from = _served_from(reading.source, reading.target)
        self._owner = self._target if self.served_from == "redis" else self._source
        self._rows = {each.serial: each for each in self._source.page} if self._source else {}
        self._aside = {each.serial: each for each in reading.aside if each.serial is not None}
        cut = [view.page[-1].serial for view in (self._source, self._target) if view and view.page and view.next_offset]
        self.horizon = min(cut, default=None)
        live = [serial for serial, row in sorted(self._rows.items()) if self._end_ms(row) > now_ms]
        # Unless all rows were read, the newest ones are not known.
        self._over_limit = set(live[:-session_limit]) if self.horizon is None else set[int]()

    def lines(self) -> list[SerialLine]:
        """Return a line per known message and per gap between them."""
        references = list(self._target.page) if self._target else []
        known = {each.serial for each in references} | set(self._rows) | set(self._aside)
        found = [self._referred(each) for each in references]
        found += [self._unreferred(serial) for serial in known - {each.serial for each in references}]
        found = [line for line in found if self.horizon is None or line.first_serial <= self.horizon]
        found += self._gaps(sorted({line.first_serial for line in found}))
        return sorted(found, key=lambda line: line.first_serial)

    # --- messages ----------------------------------------------------------------------------------------------

    def _referred(self, reference: MessageView) -> SerialLine:
        row = self._rows.get(reference.serial)
        fate, why = self._fate_of_reference(reference, row)
        return self._line(reference.serial, fate, why, row=row, reference=reference)

    def _fate_of_reference(self, reference: MessageView, row: MessageView | None) -> tuple[Fate, str]:
        if self.served_from != "redis":
            return Fate.UNKNOWN, "Redis holds it, but the queue is served from PostgreSQL."
        match reference.problem:
            case Problem.DANGLING if row is not None and self._end_ms(row) > self._now_ms:
                return Fate.UNKNOWN, "Its payload is gone from Redis, though by PostgreSQL the message has not expired."
            case Problem.DANGLING:
                return (
                    Fate.EXPIRED,
                    "Its life is over, or its payload is gone from Redis; what is left, a cleanup removes.",
                )
            case Problem.FOREIGN:
                return Fate.UNKNOWN, "Its reference names a key of another client."
            case Problem.UNREADABLE if reference.reason is not None:
                return Fate.UNDELIVERABLE, _broken(reference)
            case Problem.UNREADABLE:
                return Fate.UNKNOWN, "Its payload is there, but cannot be read."
        fate, why = self._fate_of_present(reference)
        if reference.expires_at_ms is None:
            why += " It would never expire."
        if row is not None and row.packet_id != reference.packet_id:
            why += f" PostgreSQL knows it under packet id {row.packet_id}."
        return fate, why

    def _fate_of_present(self, message: MessageView) -> tuple[Fate, str]:
        if message.packet_type == "PUBREL":
            return Fate.RELEASED, "The client has sent PUBREC; PUBREL goes out until it answers PUBCOMP."
        delivered = self._owner.delivered_serial if self._owner else None
        if delivered is not None and message.serial <= delivered:
            return Fate.SENT, "It was sent, and the client has not acknowledged it yet."
        return Fate.WAITING, "It waits for the client."

    def _unreferred(self, serial: int) -> SerialLine:
        row, aside = self._rows.get(serial), self._aside.get(serial)
        if aside is not None:
            done = "; it was replayed since" if aside.status == "replayed" else ""
            words = aside.reason.replace("_", " ")
            why = f"{words}: {aside.detail}" if aside.detail else words
            return self._line(serial, Fate.QUARANTINED, f"Put in quarantine by {aside.place}, {why}{done}.", row=row)
        assert row is not None  # serials come from references, rows and what was put aside
        fate, why = self._fate_of_row(row)
        return self._line(serial, fate, why, row=row)

    def _fate_of_row(self, row: MessageView) -> tuple[Fate, str]:
        if row.reason is not None:
            # A plan, too, judges the row before its expiry.
            return Fate.UNDELIVERABLE, _broken(row)
        expired = self._end_ms(row) <= self._now_ms
        if self.served_from == "postgres":
            if expired:
                return Fate.EXPIRED, "It has expired; the row is still there."
            return self._fate_of_present(row)
        if expired:
            return Fate.EXPIRED, "It expired before it could be delivered from Redis."
        target = self._target
        imported = target.imported if target else None
        if imported is None or imported.state != "done":
            return Fate.NOT_COPIED, "It is in PostgreSQL; no migration of this session has been completed."
        if row.serial in self._over_limit:
            return Fate.TRIMMED, "The session had more live messages than are kept; the oldest were left behind."
        assert target is not None  # it was imported
        if target.delivered_serial is not None and row.serial <= target.delivered_serial:
            return Fate.ACKED, "It was sent from Redis and is no longer there: it was acknowledged."
        if imported.touched and target.counts is not None and target.counts.trimmed:
            return (
                Fate.TRIMMED,
                f"Redis has trimmed {number_of(target.counts.trimmed, 'message')} of this session since.",
            )
        if imported.touched and (not target.page or row.serial < target.page[0].serial):
            return (
                Fate.ACKED,
                "The session was used since the migration, and this message is older than all that wait there.",
            )
        return Fate.UNKNOWN, "The migration has copied the session, and the message is not in Redis."

    # --- gaps --------------------------------------------------------------------------------------------------

    def _gaps(self, known: Sequence[int]) -> list[SerialLine]:
        owner = self._owner
        if owner is None:
            return []
        delivered = owner.delivered_serial
        edges = list(known) or ([] if delivered is None else [delivered])
        if not edges:
            return []
        found: list[SerialLine] = []
        last = owner.last_serial if self.horizon is None else None
        for before, after in zip(edges, [*edges[1:], None if last is None else last + 1], strict=True):
            if after is None or after - before < 2:
                continue
            first, end = before + 1, after - 1
            if delivered is None or not first <= delivered < end:
                found.append(self._gap(first, end))
            else:
                found += [self._gap(first, delivered), self._gap(delivered + 1, end)]
        return found

    def _gap(self, first: int, last: int) -> SerialLine:
        assert self._owner is not None
        counts, delivered = self._owner.counts, self._owner.delivered_serial
        if delivered is not None and last <= delivered:
            return SerialLine(
                first_serial=first, last_serial=last, fate=Fate.ACKED, why="Sent, and no longer stored: acknowledged."
            )
        if counts is None or delivered is None:
            fate, why = (
                Fate.UNKNOWN,
                (
                    "Gone without a record: acknowledged out of order, removed after expiry, or lost. The broker that "
                    "wrote the session keeps no counts."
                ),
            )
        elif counts.trimmed:
            fate, why = (
                Fate.TRIMMED,
                f"Never sent; the store has trimmed {number_of(counts.trimmed, 'message')} of this session.",
            )
        elif counts.expired:
            fate, why = Fate.EXPIRED, f"Never sent; {number_of(counts.expired, 'message')} of this session expired."
        elif counts.quarantined:
            fate, why = (
                Fate.QUARANTINED,
                f"Never sent; the quarantine holds {number_of(counts.quarantined, 'record')} of this session.",
            )
        else:
            fate, why = Fate.UNKNOWN, "Never sent, and gone; the store counts none as trimmed, expired or quarantined."
        return SerialLine(first_serial=first, last_serial=last, fate=fate, why=why)

    # --- inside ------------------------------------------------------------------------------------------------

    def _end_ms(self, row: MessageView) -> int:
        if row.expires_at_ms is not None:
            return row.expires_at_ms
        return (row.time_ms or 0) + self._default_ttl_ms

    @staticmethod
    def _line(
        serial: int, fate: Fate, why: str, *, row: MessageView | None, reference: MessageView | None = None
    ) -> SerialLine:
        return SerialLine(first_serial=serial, last_serial=serial, fate=fate, why=why, source=row, target=reference)


def _broken(message: MessageView) -> str:
    assert message.reason is not None  # the callers have checked it
    return f"It is there, but cannot be delivered: {message.reason.replace('_', ' ')}."


def _served_from(source: SessionView | None, target: SessionView | None) -> Store | None:
    if target is not None and target.exists:
        return "postgres" if target.owner == "postgres" else "redis"
    return "postgres" if source is not None and source.exists else None


def reveal_message(
    client_id: str,
    *,
    packet_id: int,
    store: Store,
    actor: str,
    reason: str,
    connection: Connection,
    client: RedisClient | None,
    hash_key: bytes,
    key_prefix: str = "",
) -> PendingMessage | None:
    """Return one message with its payload, after an entry in the audit names the reader and the reason.

    :param reason: 10 to 500 printable characters.
    :param connection: control database, which is also the store if the message is in PostgreSQL.
    :param client: Redis, if the message is there.
    :returns: ``None`` when no message has this packet id; the entry in the audit stays.
    :raises UsageError: when the reason is too short, too long or not printable, or the packet id is not valid.
    :raises RefusedError: when the entry cannot be written, so that nothing is shown, or the record cannot be read.
    """
    why = reason.strip()
    if len(why) not in _REASON_LETTERS or not why.isprintable():
        raise UsageError(
            f"the reason has {len(why)} characters: write {_REASON_LETTERS.start} to {_REASON_LETTERS.stop - 1}, "
            "without line breaks"
        )
    check_packet_id(packet_id)
    audit.record(
        connection,
        actor=actor,
        action=audit.Action.REVEAL,
        subject=client_hash(client_id, key=hash_key),
        effect={"store": store, "packet_id": packet_id, "reason": why},
    )
    if store == "postgres":
        return PostgresSessionStore(connection).peek(client_id, packet_id=packet_id)
    if client is None:
        raise RefusedError("the message is in Redis, and Redis was not reached: try again when it is up")
    return _redis_store(client, client_id, key_prefix).peek(client_id, packet_id=packet_id)
