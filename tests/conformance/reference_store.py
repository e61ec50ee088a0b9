"""The contract of a session store in plain Python, with a clock that tests move: what every real store is held to."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import orjson

from queuekeeper.checks import check_integer, check_page
from queuekeeper.clock import Clock
from queuekeeper.errors import MovedOn, NotOwner, PacketIdInUse, QueuekeeperError, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID, check_client_id, safe_counter
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S
from queuekeeper.sessions.model import (
    Ack,
    NewMessage,
    Release,
    SessionSave,
    StoreRules,
    check_expected,
    check_packet_id,
    check_serial,
)
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.reports import (
    AckReport,
    ExportPage,
    ImportReport,
    MessageView,
    PendingMessage,
    PendingPage,
    Problem,
    PurgeReport,
    Refusal,
    SaveReport,
    SessionCounts,
    SessionView,
)
from queuekeeper.sessions.store import PAGE_BYTES

PROPERTIES = (
    "retain",
    "expiry_interval_s",
    "payload_format_indicator",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
    "subscription_ids",
)
"""Fields of a new message that a pending one repeats as they are; all but these are named where they are used."""


@dataclass
class Session:
    """One session.

    :param messages: by packet id, in the order of delivery; dead ones stay until somebody meets them.
    :param batches: offset and report of the last batch of each source.
    :param unreadable: serials of messages that a test has spoiled.
    :param counts: none before anything was stored: a session of which only packet ids are known has no record.
    """

    messages: dict[int, PendingMessage] = field(default_factory=dict)
    last_packet_id: int | None = None
    last_serial: int = 0
    delivered_serial: int = -1
    batches: dict[str, tuple[int, SaveReport]] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    counts: SessionCounts | None = None

    def count(self, **more: int) -> None:
        """Add to the counts, if there are any."""
        if self.counts is not None:
            known = {name: getattr(self.counts, name) + number for name, number in more.items()}
            self.counts = replace(self.counts, **known)

    def next_packet_ids(self, count: int, in_use: Container[int]) -> list[int]:
        """Return the ids after the last one that are not in use, wrapping from 65,535 to 1."""
        every = ((self.last_packet_id or 0) + step for step in range(MAX_PACKET_ID))
        free = (number % MAX_PACKET_ID + 1 for number in every if number % MAX_PACKET_ID + 1 not in in_use)
        found = list(islice(free, count))
        if len(found) < count:
            raise PacketIdInUse(f"there are {len(found)} free packet ids, and {count} are needed")
        return found


class Sessions:
    """What all store objects of a test share, as they would share a server.

    :param clock: current time, moved by the test.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.by_client_id: dict[str, Session] = {}
        self.refused: set[str] = set()

    def get(self, client_id: str) -> Session:
        """Return a session; one that is not there as an empty one, which is not kept."""
        return self.by_client_id.get(client_id) or Session()

    def live(self, client_id: str) -> dict[int, PendingMessage]:
        """Return the messages whose life is not over."""
        return self.live_in(self.get(client_id))

    def live_in(self, session: Session) -> dict[int, PendingMessage]:
        """Return a session's messages whose life is not over."""
        now_ms = self.clock()
        return {
            packet_id: message
            for packet_id, message in session.messages.items()
            if message.expires_at_ms is None or message.expires_at_ms > now_ms
        }

    def is_dead(self, message: PendingMessage) -> bool:
        """Return whether a message's life is over."""
        return message.expires_at_ms is not None and message.expires_at_ms <= self.clock()


class ReferenceStore:
    """A store without a server.

    :param sessions: shared by all store objects of a test.
    """

    def __init__(self, sessions: Sessions, rules: StoreRules | None = None) -> None:
        self._sessions = sessions
        self._rules = rules or StoreRules()

    def save_messages(self, saves: Sequence[SessionSave]) -> list[SaveReport]:
        """Save; see the contract."""
        for save in saves:
            for message in save.messages:
                if len(message.payload) > self._rules.max_payload_bytes:
                    raise UsageError(
                        f"payload has {len(message.payload)} bytes: at most {self._rules.max_payload_bytes}"
                    )
        reports = []
        for save in saves:
            try:
                reports.append(self._save(save))
            except QueuekeeperError as error:
                reports.append(SaveReport(client_id=save.client_id, error=error))
        return reports

    def _save(self, save: SessionSave) -> SaveReport:
        if save.client_id in self._sessions.refused:
            raise NotOwner("the session belongs to the other store")
        session = self._sessions.get(save.client_id)
        if save.source is not None and save.offset is not None and save.source in session.batches:
            offset, report = session.batches[save.source]
            if save.offset == offset:
                return replace(report, trimmed=0, trimmed_in_flight=0, dead=0, replayed=True)
            if save.offset < offset:
                nothing = (None,) * len(save.messages)
                return SaveReport(
                    client_id=save.client_id, packet_ids=nothing, serials=nothing, replayed=True, forgotten=True
                )
        packet_ids: list[int | None] = [None] * len(save.messages)
        serials: list[int | None] = [None] * len(save.messages)
        refused = {
            position: refusal
            for position, message in enumerate(save.messages)
            if (refusal := self.refusal(message)) is not None
        }
        trimmed = in_flight = dead = 0
        for part in self._parts(save.messages):
            live = self._sessions.live_in(session)
            if MAX_PACKET_ID - len(live) < len(part):
                gone = self._make_room(session, MAX_PACKET_ID - len(part))
                trimmed, in_flight, dead = trimmed + gone[0], in_flight + gone[1], dead + gone[2]
                live = self._sessions.live_in(session)
            ids = session.next_packet_ids(len(part), live)
            storable = [position for position in part if position not in refused]
            if not storable:
                continue
            for position, packet_id in zip(part, ids, strict=True):
                if position in refused:
                    continue
                # Only a dead message can have it.
                dead += session.messages.pop(packet_id, None) is not None
                session.last_serial = (session.last_serial or session.last_packet_id or 0) + 1
                packet_ids[position], serials[position] = packet_id, session.last_serial
                session.messages[packet_id] = self._pending(save.messages[position], packet_id, session.last_serial)
            session.last_packet_id = ids[-1]
        if any(packet_ids):
            session.counts = session.counts or SessionCounts()
            self._sessions.by_client_id[save.client_id] = session
            gone = self._make_room(session, self._rules.limit)
            trimmed, in_flight, dead = trimmed + gone[0], in_flight + gone[1], dead + gone[2]
        over = list(refused.values()).count(Refusal.EXPIRED)
        session.count(trimmed=trimmed, expired=dead + over, refused=len(refused) - over)
        report = SaveReport(
            client_id=save.client_id,
            packet_ids=tuple(packet_ids),
            serials=tuple(serials),
            refused=refused,
            trimmed=trimmed,
            trimmed_in_flight=in_flight,
            dead=dead,
        )
        if save.source is not None and save.offset is not None and session.counts is not None:
            session.batches[save.source] = (save.offset, report)
        return report

    def _parts(self, messages: Sequence[NewMessage]) -> list[list[int]]:
        """Cut a batch as every store does, by positions; what no store would look at is in no part."""
        parts: list[list[int]] = [[]]
        size_bytes = 0
        for position, message in enumerate(messages):
            life_s = message.expiry_interval_s
            if life_s is not None and not 1 <= life_s <= MAX_EXPIRY_INTERVAL_S:
                continue
            size_bytes += len(message.payload)
            if parts[-1] and (len(parts[-1]) == 256 or size_bytes > 524_288):
                parts.append([])
                size_bytes = len(message.payload)
            parts[-1].append(position)
        return parts

    def refusal(self, message: NewMessage) -> Refusal | None:
        """Return why a message is not stored."""
        if message.expiry_interval_s is not None and not 0 <= message.expiry_interval_s <= MAX_EXPIRY_INTERVAL_S:
            return Refusal.EXPIRY_OUT_OF_RANGE
        over = message.expiry_interval_s == 0 or self._expires_at_ms(message) <= self._sessions.clock()
        return Refusal.EXPIRED if over else None

    def _expires_at_ms(self, message: NewMessage) -> int:
        life_s = self._rules.default_ttl_s if message.expiry_interval_s is None else message.expiry_interval_s
        return min(message.time_ms + 1000 * life_s, 2**53 - 1)

    def _pending(self, message: NewMessage, packet_id: int, serial: int) -> PendingMessage:
        return PendingMessage(
            serial=serial,
            packet_id=packet_id,
            packet_type="PUBLISH",
            topic=message.topic,
            payload=message.payload,
            qos=message.qos,
            time_ms=message.time_ms,
            expires_at_ms=self._expires_at_ms(message),
            redelivery=False,
            **{name: getattr(message, name) for name in PROPERTIES},
        )

    def _make_room(self, session: Session, limit: int) -> tuple[int, int, int]:
        """Return how many messages were trimmed, how many of them in flight, and how many had died."""
        dead = self._sweep(session) if len(session.messages) > limit else 0
        excess = max(0, len(session.messages) - limit)
        oldest = sorted(session.messages.values(), key=lambda m: (m.serial <= session.delivered_serial, m.serial))
        for victim in oldest[:excess]:
            del session.messages[victim.packet_id]
        return excess, sum(m.serial <= session.delivered_serial for m in oldest[:excess]), dead

    def _sweep(self, session: Session) -> int:
        dead = [packet_id for packet_id, m in session.messages.items() if self._sessions.is_dead(m)]
        for packet_id in dead:
            del session.messages[packet_id]
        return len(dead)

    def fetch_pending(
        self,
        client_id: str,
        *,
        after_serial: int = -1,
        backlog_serial: int | None = None,
        limit: int = DEFAULT_PAGE,
        max_bytes: int = PAGE_BYTES,
        mark_delivered: bool = False,
    ) -> PendingPage:
        check_client_id(client_id)
        check_page(0, limit, most=MAX_PAGE)
        check_integer("after_serial", after_serial, -1, 2**53)
        if backlog_serial is not None:
            check_integer("backlog_serial", backlog_serial, -1, 2**53)
        check_integer("max_bytes", max_bytes, 1, 2**53 - 1, "a page holds at least one message")
        session = self._sessions.get(client_id)
        if backlog_serial is None:
            backlog_serial = max((m.serial for m in session.messages.values()), default=-1)
        page: list[PendingMessage] = []
        expired = unreadable = 0
        waiting = [m for m in session.messages.values() if after_serial < m.serial <= backlog_serial]
        for number, message in enumerate(waiting):
            full = number == limit or (page and sum(len(m.payload) for m in [*page, message]) > max_bytes)
            if full:
                break
            after_serial = message.serial
            if message.serial in session.unreadable:
                del session.messages[message.packet_id]
                unreadable += 1
            elif self._sessions.is_dead(message):
                del session.messages[message.packet_id]
                expired += 1
            else:
                page.append(replace(message, redelivery=message.serial <= session.delivered_serial))
        session.count(expired=expired, quarantined=unreadable)
        if mark_delivered and page:
            self.mark_delivered(client_id, serial=page[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page),
            after_serial=after_serial,
            backlog_serial=backlog_serial,
            more=any(after_serial < m.serial <= backlog_serial for m in session.messages.values()),
            expired=expired,
            unreadable=unreadable,
        )

    def mark_delivered(self, client_id: str, *, serial: int) -> bool:
        check_client_id(client_id)
        check_integer("serial", serial, 0, 2**53 - 1)
        session = self._sessions.get(client_id)
        serial = min(serial, session.last_serial)
        moved = session.counts is not None and serial > session.delivered_serial
        if moved:
            session.delivered_serial = serial
        return moved

    def ack(self, client_id: str, acks: Sequence[Ack]) -> AckReport:
        check_client_id(client_id)
        removed = 0
        for ack in acks:
            message = self._sessions.get(client_id).messages.get(ack.packet_id)
            if message is not None and ack.serial in (None, message.serial):
                del self._sessions.get(client_id).messages[ack.packet_id]
                removed += 1
        return AckReport(client_id=client_id, removed=removed, unknown=len(acks) - removed)

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Release:
        check_client_id(client_id)
        check_packet_id(packet_id)
        check_serial(serial)
        message = self._sessions.live(client_id).get(packet_id)
        if message is None or serial not in (None, message.serial):
            return Release.MISSING
        if message.packet_type == "PUBREL":
            return Release.ALREADY
        released = replace(message, packet_type="PUBREL", payload=b"")
        self._sessions.get(client_id).messages[packet_id] = released
        return Release.RELEASED

    def purge_session(self, client_id: str, *, dry_run: bool = False) -> PurgeReport:
        check_client_id(client_id)
        count = len(self._sessions.get(client_id).messages)
        if not dry_run:
            self._sessions.by_client_id.pop(client_id, None)
        return PurgeReport(client_id=client_id, messages=count, kept=0, dry_run=dry_run)

    def get_last_packet_id(self, client_id: str) -> int | None:
        check_client_id(client_id)
        return self._sessions.get(client_id).last_packet_id

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> bool:
        check_client_id(client_id)
        check_packet_id(packet_id)
        check_expected(expected)
        if self.get_last_packet_id(client_id) != expected:
            return False
        self._sessions.by_client_id.setdefault(client_id, Session()).last_packet_id = packet_id
        return True

    def reserve_packet_ids(self, client_id: str, *, count: int) -> tuple[int, ...]:
        check_client_id(client_id)
        check_integer("count", count, 1, 1_000, "ids are given out in small numbers")
        session = self._sessions.by_client_id.setdefault(client_id, Session())
        ids = session.next_packet_ids(count, self._sessions.live_in(session))
        session.last_packet_id = ids[-1]
        return tuple(ids)

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> SessionView:
        check_client_id(client_id)
        check_page(offset, limit, most=MAX_PAGE)
        session = self._sessions.get(client_id)
        messages = list(session.messages.values())
        return SessionView(
            client_id=client_id,
            store="reference",
            exists=client_id in self._sessions.by_client_id,
            messages=len(messages),
            offset=offset,
            page=tuple(self._view(session, message) for message in messages[offset : offset + limit]),
            last_packet_id=session.last_packet_id,
            last_serial=session.last_serial or None,
            delivered_serial=None if session.delivered_serial < 0 else session.delivered_serial,
            counts=session.counts,
        )

    def _view(self, session: Session, message: PendingMessage) -> MessageView:
        if message.serial in session.unreadable:
            return MessageView(serial=message.serial, packet_id=message.packet_id, problem=Problem.UNREADABLE)
        if self._sessions.is_dead(message):
            return MessageView(serial=message.serial, packet_id=message.packet_id, problem=Problem.DANGLING)
        return MessageView(
            serial=message.serial,
            packet_id=message.packet_id,
            packet_type=message.packet_type,
            qos=message.qos,
            topic=message.topic,
            payload_bytes=len(message.payload),
            time_ms=message.time_ms,
            expires_at_ms=message.expires_at_ms,
        )

    def peek(self, client_id: str, *, packet_id: int) -> PendingMessage | None:
        check_client_id(client_id)
        check_packet_id(packet_id)
        session = self._sessions.get(client_id)
        message = session.messages.get(packet_id)
        if message is None or self._sessions.is_dead(message):
            return None
        return replace(message, redelivery=message.serial <= session.delivered_serial)

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> ExportPage:
        check_client_id(client_id)
        check_page(0, limit, most=MAX_PAGE)
        session = self._sessions.get(client_id)
        lines: list[dict[str, Any]] = []
        if after_serial is None:
            after_serial = -1
            lines.append({"last_packet_id": session.last_packet_id, "last_serial": session.last_serial})
        waiting = [m for m in self._sessions.live(client_id).values() if m.serial > after_serial]
        lines += [_line(message) for message in waiting[:limit]]
        return ExportPage(
            lines=tuple(orjson.dumps(line) for line in lines),
            after_serial=waiting[:limit][-1].serial if waiting else after_serial,
            more=len(waiting) > limit,
        )

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> ImportReport:
        check_client_id(client_id)
        if client_id in self._sessions.by_client_id:
            raise MovedOn(f"session {client_id!r} exists")
        session = Session(counts=SessionCounts())
        expired = 0
        told: list[int] = []
        is_first = True
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, bytes):
                raise UsageError(f"line {number} of lines is a {type(line).__name__}: it must be bytes")
            if not line.strip():
                continue
            try:
                fields = orjson.loads(line)
                if is_first:
                    is_first = False
                    session.last_packet_id, session.last_serial = _values(fields, "last_packet_id", "last_serial")
                    continue
                message = _message(fields)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise UsageError(f"line {number} is not one of an export: {error}") from error
            told.append(message.packet_id)
            if self._sessions.is_dead(message):
                expired += 1
            else:
                session.messages[message.packet_id] = message
        session.last_packet_id = safe_counter(session.last_packet_id, told)
        self._sessions.by_client_id[client_id] = session
        return ImportReport(
            client_id=client_id, stored=len(session.messages), expired=expired, last_packet_id=session.last_packet_id
        )


def _line(message: PendingMessage) -> dict[str, Any]:
    values = {name: value for name, value in asdict(message).items() if name != "redelivery"}
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}


def _message(fields: Mapping[str, Any]) -> PendingMessage:
    values = dict(fields)
    values["payload"] = bytes.fromhex(values["payload"])
    if values["correlation_data"] is not None:
        values["correlation_data"] = bytes.fromhex(values["correlation_data"])
    values["user_properties"] = tuple((name, value) for name, value in values["user_properties"])
    values["subscription_ids"] = tuple(values["subscription_ids"])
    return PendingMessage(redelivery=False, **values)


def _values(fields: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    if fields.keys() != set(names):
        raise ValueError(f"it has the fields {', '.join(fields)}")
    return tuple(fields[name] for name in names)
