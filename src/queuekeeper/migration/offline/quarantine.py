"""Replays repaired messages of the quarantine into imported sessions: at their places, or behind all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple

from queuekeeper import lua
from queuekeeper.clock import system_clock
from queuekeeper.errors import MovedOn, PacketIdInUse, RefusedError, StaleEpoch
from queuekeeper.keyspace import (
    MAX_PACKET_ID,
    PackedKeys,
    SessionKeys,
    packed_keys,
    payload_key,
    safe_counter,
    session_keys,
)
from queuekeeper.lua import scripts
from queuekeeper.migration.ledger.ledger import MigrationLedger, QuarantinedRow
from queuekeeper.migration.ledger.model import EPOCH, MigrationPlan
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.offline.undo import keys_of
from queuekeeper.migration.preflight import check_same_target
from queuekeeper.postgres import Connection
from queuekeeper.redis_client import RedisClient, address_of, is_cluster, redis_errors
from queuekeeper.sessions import quarantine as aside
from queuekeeper.sessions import wire
from queuekeeper.sessions.judge import Reason, user_properties
from queuekeeper.sessions.layouts import BYTES_PER_CALL
from queuekeeper.sessions.packed_record import record_of
from queuekeeper.sessions.packed_serials import SerialPages
from queuekeeper.sessions.packed_state import state_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.quarantine import defect, readable
from queuekeeper.sessions.redis_operations.common import is_last, listed_references, packet_id_of
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.store import FIRST_SERIAL

_TRIES = 5
_REFERENCES_PER_LIST = 1_000
_SERIALS_PER_LIST = 500
_AS_NEW = {
    aside.Outcome.REPLAYED: "as_new",
    aside.Outcome.UNCHANGED: "unchanged",
    aside.Outcome.EXPIRED: "expired",
    aside.Outcome.NOT_REPAIRED: "not_repaired",
}
"""Fields of the report for messages put behind the others; with any other outcome a message stays where it was."""
_ID_REASONS = {Reason.PACKET_ID_DUPLICATE, Reason.PACKET_ID_OUT_OF_RANGE}


@dataclass(frozen=True, kw_only=True)
class ReplayReport(aside.Replayed):
    """What became of the open rows of a quarantine; a replayed message is at its place in its session.

    :param as_new: messages put behind all others, as new messages, since their session is no longer as this plan has
        imported it; in a dry run, messages that would be put there.
    :param packet_id_in_use: messages whose packet id a pending message has; try again with ``assign_packet_ids``.
    :param moved_on: messages of sessions that this plan has not imported or that keep changing; try again with
        ``as_new``.
    :param sessions: session rows; they need no replay, since their counter was taken from their newest message.
    """

    plan_id: str
    as_new: int = 0
    packet_id_in_use: int = 0
    moved_on: int = 0
    sessions: int = 0


def replay(
    connection: Connection,
    client: RedisClient,
    *,
    plan_id: str,
    reason: str | None = None,
    client_id: str | None = None,
    assign_packet_ids: bool = False,
    drop_user_properties: bool = False,
    as_new: aside.Stores | None = None,
    dry_run: bool = False,
) -> ReplayReport:
    """Write open rows of the quarantine into Redis, at the place of their serial number.

    Repair a row by changing its columns in ``queuekeeper.quarantine``, or by ``assign_packet_ids`` or
    ``drop_user_properties``.

    :param reason: only rows of this reason.
    :param client_id: only rows of this client.
    :param assign_packet_ids: give a message the next free packet id where its own cannot be used.
    :param drop_user_properties: leave user properties out where they cannot be read.
    :param as_new: stores by which messages of sessions that are no longer as this plan has imported them are saved as
        new messages, behind all others; without it, they stay in the quarantine.
    :param dry_run: write nothing.
    :raises RefusedError: for an online plan, whose rows are set aside in ``queuekeeper.session_quarantine``.
    """
    ledger = MigrationLedger(connection)
    plan = ledger.load_plan(plan_id)
    if plan.parameters.mode is Mode.ONLINE:
        raise RefusedError(
            f"plan {plan_id} moves sessions while devices are connected: a row that it cannot move stays in the source"
            " or is set aside; `queuekeeper sessions quarantine` lists those, `queuekeeper sessions replay` brings them"
            " back"
        )
    check_same_target(client, plan)
    layout = _Packed if plan.parameters.layout is Layout.PACKED else _Tbmq
    replayer = _Replayer(
        client,
        ledger,
        plan_id=plan_id,
        layout=layout(client, plan.parameters.key_prefix, plan_id),
        default_ttl_s=plan.parameters.default_ttl_s,
        assign=assign_packet_ids,
        dry_run=dry_run,
    )
    way_back = None
    if as_new is not None:
        way_back = aside.WayBack(as_new, default_ttl_s=plan.parameters.default_ttl_s, dry_run=dry_run)
    counts: dict[str, int] = {}
    why: dict[int, str] = {}
    with redis_errors(address_of(client)):
        for row in ledger.quarantined(plan_id, reason=reason, client_id=client_id, limit=None):
            assert row.quarantine_id is not None
            unreadable = drop_user_properties and not readable(row.user_properties)
            mended = replace(row, user_properties=None) if unreadable else row
            outcome, packet_id = replayer.replay(mended)
            if outcome == "moved_on" and way_back is not None:
                outcome, packet_id, words = replayer.put_behind(mended, way_back)
                if words and len(why) < aside.WORDS_SHOWN:
                    why[row.quarantine_id] = words
            counts[outcome] = counts.get(outcome, 0) + 1
            if outcome in {"replayed", "as_new", "unchanged"} and not dry_run:
                ledger.mark_replayed(
                    row.quarantine_id, packet_id if packet_id != row.packet_id else None, system_clock()
                )
    return ReplayReport(plan_id=plan_id, dry_run=dry_run, why=why, **counts)


def reopen_lost(ledger: MigrationLedger, client: RedisClient, plan: MigrationPlan, cohorts: Sequence[int]) -> int:
    """Mark replayed rows as open again if their session was imported anew since, without them.

    :param cohorts: cohorts whose copy is complete.
    :returns: how many rows are open again.
    """
    wanted = set(cohorts)
    lost: list[int] = []
    with redis_errors(address_of(client)):
        for row in ledger.quarantined(plan.plan_id, status="replayed", limit=None):
            if row.cohort not in wanted or row.quarantine_id is None:
                continue
            parameters = plan.parameters
            session = keys_of(row.client_id, prefix=parameters.key_prefix, layout=parameters.layout).session
            notes = ["plan", "import", f"replayed:{row.serial_number}", f"source:{_source(row)}"]
            if client.hmget(session, notes) == [plan.plan_id.encode(), b"done", None, None]:
                lost.append(row.quarantine_id)
    ledger.reopen_quarantine(lost)
    return len(lost)


@dataclass(kw_only=True)
class _Session:
    """State of a session for a replay; it holds as long as the session is as expected.

    :param expected: what shows that nobody has given out packet ids since: the last packet id, or a packed session's
        state, as stored; empty where there is none.
    :param counter: packet id given out last; none when the session has given out none.
    :param waiting: serial and packet id of each message, in order.
    :param later: serials that were given out since the import, where the session knows.
    """

    client_id: str
    expected: bytes
    counter: int | None
    waiting: list[tuple[int, int]]
    later: range = range(0)


class _Put(NamedTuple):
    """Answer of a script that puts a message at its place.

    :param packet_id: packet id that the message has there; none when it is not there.
    :param expected: see :class:`_Session`, after the call.
    """

    word: str
    packet_id: int | None
    expected: bytes


@dataclass(eq=False, repr=False)
class _Layout(ABC):
    """How messages are put at their places in sessions of a layout."""

    client: RedisClient
    prefix: str
    plan_id: str

    def __post_init__(self) -> None:
        self._caller = lua.ScriptCaller(self.client)

    def _ask(self, call: lua.Call) -> Any:
        return call.script.read(self._caller.call(*call))

    def holds(self, client_id: str, packet_id: int) -> bool:
        """Return whether the session has a message of a packet id that does not wait."""
        return False

    @abstractmethod
    def keys(self, client_id: str) -> SessionKeys | PackedKeys:
        """Return the keys of a session."""

    @abstractmethod
    def look_at(self, client_id: str) -> _Session:
        """Read a session."""

    @abstractmethod
    def put(
        self, row: QuarantinedRow, session: _Session, *, packet_id: int, last_packet_id: int | str, end_ms: int
    ) -> _Put:
        """Put a message at its place.

        :param last_packet_id: new one of the session; empty where it stays.
        """


class _Tbmq(_Layout):
    def keys(self, client_id: str) -> SessionKeys:
        return session_keys(client_id, prefix=self.prefix)

    def holds(self, client_id: str, packet_id: int) -> bool:
        return bool(self.client.exists(payload_key(client_id, packet_id, prefix=self.prefix)))

    def look_at(self, client_id: str) -> _Session:
        keys = self.keys(client_id)
        last: Any = self.client.get(keys.last_packet_id)
        stem = payload_key(client_id, "", prefix=self.prefix).encode()
        waiting: list[tuple[int, int]] = []
        start = FIRST_SERIAL
        while True:
            call = scripts.sessions.list_references(keys, by="serial", start=start, limit=_REFERENCES_PER_LIST)
            page = listed_references(self._ask(call))
            own = [(serial, member[len(stem) :]) for member, serial in page if member.startswith(stem)]
            waiting += [(serial, int(packet_id)) for serial, packet_id in own if packet_id.isdigit()]
            if is_last(page, _REFERENCES_PER_LIST):
                break
            # Members of other programs may share a score; to see one twice does no harm.
            start = max(start + 1, page[-1].serial - 1)
        return _Session(client_id=client_id, expected=last or b"", counter=packet_id_of(last or b""), waiting=waiting)

    def put(
        self, row: QuarantinedRow, session: _Session, *, packet_id: int, last_packet_id: int | str, end_ms: int
    ) -> _Put:
        reply = self._ask(
            scripts.sessions.replay_message(
                self.keys(row.client_id),
                payload=payload_key(row.client_id, packet_id, prefix=self.prefix),
                plan=self.plan_id,
                epoch=EPOCH,
                expected=session.expected,
                last_packet_id=last_packet_id,
                serial=row.serial_number,
                expires_at_ms=end_ms,
                message=_json(row, packet_id),
            )
        )
        return _Put(reply.word, _packet_id(reply.key), str(last_packet_id).encode() or session.expected)


class _Packed(_Layout):
    def keys(self, client_id: str) -> PackedKeys:
        return packed_keys(client_id, prefix=self.prefix)

    def look_at(self, client_id: str) -> _Session:
        keys = self.keys(client_id)
        # First, so that it is another one if messages come while they are listed.
        text: bytes = self._ask(scripts.packed.read_session(keys)).state
        state = state_of(text)
        pages = SerialPages(keys, largest=state.largest if state else 0, max_bytes=BYTES_PER_CALL)
        while pages.more:
            pages.take(self._ask(pages.call()))
        waiting: list[tuple[int, int]] = []
        places = pages.serials()
        for start in range(0, len(places), _SERIALS_PER_LIST):
            some = places[start : start + _SERIALS_PER_LIST]
            found = self._ask(scripts.packed.list_messages(keys, serials=some)).found
            waiting += [(at, int(each.partition(b":")[0])) for at, each in zip(some, found, strict=True) if each]
        imported: Any = self.client.hget(keys.session, "imported_state")
        if state is None or imported is None:
            return _Session(client_id=client_id, expected=text, counter=None, waiting=waiting)
        return _Session(
            client_id=client_id,
            expected=text,
            counter=state.last_packet_id,
            waiting=waiting,
            later=range(int(imported.partition(b":")[0]) + 1, state.last + 1),
        )

    def put(
        self, row: QuarantinedRow, session: _Session, *, packet_id: int, last_packet_id: int | str, end_ms: int
    ) -> _Put:
        message = PendingMessage(
            **aside.content_of(row), serial=0, packet_id=packet_id, packet_type=row.packet_type or "",
            expires_at_ms=end_ms, redelivery=False,
        )  # fmt: skip
        reply = self._ask(
            scripts.packed.replay_message(
                self.keys(row.client_id),
                plan=self.plan_id,
                epoch=EPOCH,
                expected=session.expected,
                last_packet_id=last_packet_id,
                holder=next((serial for serial, own in session.waiting if own == packet_id), ""),
                serial=row.serial_number,
                record=record_of(message, packet_id=packet_id, end_ms=end_ms, packet_type=message.packet_type),
            )
        )
        expected = reply.state if reply.word == "replayed" else session.expected
        return _Put(reply.word, _packet_id(reply.packet_id), expected)


@dataclass(eq=False, repr=False)
class _Replayer:
    client: RedisClient
    ledger: MigrationLedger
    _: KW_ONLY
    plan_id: str
    layout: _Layout
    default_ttl_s: int
    assign: bool
    dry_run: bool

    def __post_init__(self) -> None:
        self._session: _Session | None = None

    def replay(self, row: QuarantinedRow) -> tuple[str, int | None]:
        """Return what became of a row (a field of :class:`ReplayReport`) and the packet id that it has now."""
        if row.kind == "session":
            return "sessions", None
        assign = self.assign and row.reason in _ID_REASONS
        # The packet id will be replaced, so only the rest of the row is judged.
        judged = replace(row, packet_id=1) if assign else row
        if defect(judged, clustered=is_cluster(self.client)) is not None:
            return "not_repaired", None
        if self._noted(row.client_id, f"source:{_source(row)}"):
            return "moved_on", None  # an earlier try has saved it as a new message
        for _ in range(_TRIES):
            session = self._look_at(row.client_id)
            packet_id = self._free_packet_id(session) if assign else row.packet_id
            if packet_id is None:
                return "packet_id_in_use", None
            assert row.serial_number is not None
            waiting = [*session.waiting]
            insort(waiting, (row.serial_number, packet_id))
            # A broker must not give out a packet id of a waiting message, this one's included.
            counter = safe_counter(packet_id if assign else session.counter, [own for _, own in waiting])
            last_packet_id = "" if counter == session.counter or counter is None else counter
            if self.dry_run:
                word = self._foresee(row, session, packet_id)
                if word == "replayed":
                    session.waiting, session.counter = waiting, counter
                return word, packet_id
            end_ms = self._expires_at_ms(row)
            try:
                done = self.layout.put(row, session, packet_id=packet_id, last_packet_id=last_packet_id, end_ms=end_ms)
            except PacketIdInUse:
                return "packet_id_in_use", None
            except StaleEpoch:
                return "moved_on", None  # an online migration has changed the session's owner
            except MovedOn:
                self._session = None
                continue  # the counter moved between reading and writing, unless the session is not ours at all
            if done.word == "replayed":
                session.waiting, session.counter, session.expected = waiting, counter, done.expected
            return done.word, done.packet_id or packet_id
        return "moved_on", None

    def put_behind(self, row: QuarantinedRow, way_back: aside.WayBack) -> tuple[str, int | None, str]:
        """Save a message as a new one; return the outcome, its packet id, and why it was not saved.

        If another plan has imported the session since, it has read the same source: that plan's session or quarantine
        holds the message.
        """
        placed = self._noted(row.client_id, f"replayed:{row.serial_number}")
        if placed:
            return "unchanged", _packet_id(placed), ""
        if self.dry_run and self._noted(row.client_id, f"source:{_source(row)}"):
            return "unchanged", None, ""
        state = self._imported(row.client_id)
        if state["import"] not in {None, b"done"}:
            return "moved_on", None, "the copy of its session is not done"
        by = (state["plan"] or b"").decode()
        if by not in {"", self.plan_id}:
            words = f"plan {by} has imported the session since, with what it found of this message: look into that plan"
            return "moved_on", None, words
        if way_back.stores.knows_owner(row.client_id):
            words = (
                "the session has moved with devices connected since, with what was found of this message: look into"
                " `queuekeeper sessions quarantine`"
            )
            return "moved_on", None, words
        back = way_back.put(row, source=_source(row))
        return _AS_NEW.get(back.outcome, "moved_on"), back.packet_id, back.words

    def _noted(self, client_id: str, field: str) -> Any:
        """Return what an earlier try noted in the session; it may have ended before it wrote to the quarantine."""
        return self.client.hget(self.layout.keys(client_id).session, field)

    def _imported(self, client_id: str) -> dict[str, Any]:
        """Return which plan has imported a session, and how far."""
        names = ["plan", "import"]
        return dict(zip(names, self.client.hmget(self.layout.keys(client_id).session, names), strict=True))

    def _look_at(self, client_id: str) -> _Session:
        """Read a session; the last one is remembered."""
        if self._session is None or self._session.client_id != client_id:
            self._session = self.layout.look_at(client_id)
        return self._session

    def _foresee(self, row: QuarantinedRow, session: _Session, packet_id: int) -> str:
        """Return the outcome that the script would return."""
        if self._imported(row.client_id) != {"plan": self.plan_id.encode(), "import": b"done"}:
            return "moved_on"
        if self._noted(row.client_id, f"replayed:{row.serial_number}"):
            return "unchanged"
        if row.serial_number in session.later or row.serial_number in {serial for serial, _ in session.waiting}:
            return "moved_on"
        if packet_id in {own for _, own in session.waiting} or self.layout.holds(row.client_id, packet_id):
            return "packet_id_in_use"
        return "expired" if self._expires_at_ms(row) <= system_clock() else "replayed"

    def _free_packet_id(self, session: _Session) -> int | None:
        in_use = {packet_id for _, packet_id in session.waiting}
        for step in range(MAX_PACKET_ID):
            candidate = ((session.counter or 0) + step) % MAX_PACKET_ID + 1
            if candidate not in in_use and not self.layout.holds(session.client_id, candidate):
                return candidate
        return None

    def _expires_at_ms(self, row: QuarantinedRow) -> int:
        assert row.time is not None
        return wire.expires_at_ms(
            time_ms=row.time, msg_expiry_interval=row.msg_expiry_interval, default_ttl_s=self.default_ttl_s
        )


def _packet_id(noted: bytes) -> int | None:
    """Return the packet id of a message from what a replay has noted: it, or a key that ends with it."""
    return int(noted.rpartition(b"_")[2]) if noted else None


def _source(row: QuarantinedRow) -> str:
    """Return the source name under which a row is saved as a new message."""
    return f"plan_quarantine:{row.quarantine_id}"


def _json(row: QuarantinedRow, packet_id: int) -> str | bytes:
    """Return a row as TBMQ stores it."""
    assert row.topic is not None
    assert row.time is not None
    assert row.qos is not None
    assert row.packet_type is not None
    return wire.message_json(
        client_id=row.client_id,
        topic=row.topic,
        time_ms=row.time,
        qos=row.qos,
        packet_id=packet_id,
        packet_type=row.packet_type,
        payload=row.payload or b"",
        retain=row.retain,
        user_property_pairs=user_properties(row.user_properties),
        msg_expiry_interval=row.msg_expiry_interval,
        payload_format_indicator=row.payload_format_indicator,
        content_type=row.content_type,
        response_topic=row.response_topic,
        correlation_data=row.correlation_data,
    )
