"""What the operations of sessions in Redis have in common, whatever the layout of the keys."""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from queuekeeper import lua
from queuekeeper.checks import check_integer, check_page
from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import ImportedBefore, MovedOn, NotOwner, QueuekeeperError, StaleEpoch
from queuekeeper.keyspace import check_client_id, check_prefix
from queuekeeper.operation import Operation, keeps
from queuekeeper.portions import portions
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.model import EpochOf, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.pages import DEFAULT_PAGE, MAX_PAGE
from queuekeeper.sessions.parts import (
    BYTES_PER_SAVE,
    MAX_INSTANT_MS,
    MESSAGES_PER_SAVE,
    Part,
    ends_of_lives,
    other_batch,
    parts_of,
)
from queuekeeper.sessions.reports import ExportPage, ImportReport, PendingMessage, PendingPage, Refusal, SaveReport
from queuekeeper.sessions.steps import HMGET, SESSIONS_PER_STEP, Reply, Steps, ask, checked, part_of, together
from queuekeeper.sessions.store import FIRST_SERIAL, PAGE_BYTES, FetchOperations, PageWish, SessionOperations
from queuekeeper.sessions.wire import expires_at_ms as end_of_life_ms

BYTES_PER_CALL = 4_000_000
"""Most bytes that one reply should hold; a single larger message is read alone."""

MAX_SERIAL = 2**53
RECENT_SESSIONS = 100_000

SOON_MS = 3_600_000
"""The server's clock decides on messages that expire within this time; this machine's clock may be that much behind."""

MAX_RESERVATION = 1_000

TRIES = 200
"""Tries to take packet ids, since other writers of the session may take them first."""

Answered: TypeAlias = tuple[Sequence[int], Sequence[Reply]]
"""Packet ids of a call, and its replies."""

K = TypeVar("K")


class RecentKeys(Generic[K]):
    """Cache of what a process knows of the sessions that were saved to last.

    It has two halves. A session that is used moves to the newer half; when that is full, the older half is dropped.

    :param make: makes what is not known, from the client id.
    """

    def __init__(self, size: int, make: Callable[[str], K]) -> None:
        check_integer("recent_sessions", size, 1, 10_000_000, "each takes about 600 bytes")
        self._half = (size + 1) // 2
        self._make = make
        self._newer: dict[str, K] = {}
        self._older: dict[str, K] = {}
        self._lock = threading.Lock()

    def get(self, client_id: str) -> K:
        """Return what is known of a session, and move it to the newer half."""
        keys = self._newer.get(client_id)
        return self._moved(client_id) if keys is None else keys

    def _moved(self, client_id: str) -> K:
        with self._lock:
            newer = self._newer
            # Another thread may have moved it first.
            keys = newer.get(client_id) or self._older.pop(client_id, None) or self._make(client_id)
            if client_id not in newer and len(newer) >= self._half:
                self._older = newer
                newer = self._newer = {}
            newer[client_id] = keys
            return keys


class SessionState(Protocol):
    """A session as it is read before its messages are."""

    @property
    def highest(self) -> int:
        """Highest serial of a message."""

    @property
    def delivered_serial(self) -> int:
        """Serial up to which the messages that exist have been delivered."""

    @property
    def noted_serial(self) -> int:
        """The same, whether its messages still exist or not."""

    @property
    def given_packet_id(self) -> int | None:
        """Packet id given out last; none before the first."""

    @property
    def given_serial(self) -> int | None:
        """Serial given out last."""

    @property
    def is_open(self) -> bool:
        """Whether Redis takes writes; the same rule as lua/includes/ownership.lua."""


class Page:
    """The content of one page.

    :ivar dead: what to remove, since its message has expired.
    :ivar unreadable: what to quarantine.
    :ivar foreign: what is no message of this session; it stays.
    """

    __slots__ = ("after_serial", "dead", "foreign", "messages", "more", "payload_bytes", "unreadable")

    def __init__(self, after_serial: int) -> None:
        self.after_serial = after_serial
        self.more = False
        self.messages: list[PendingMessage] = []
        self.payload_bytes = 0
        self.dead: list[Any] = []
        self.unreadable: list[Any] = []
        self.foreign = 0


class Trimmed(NamedTuple):
    """How many messages, and how many expired ones or references to such, were removed to make room."""

    live: int = 0
    in_flight: int = 0
    dead: int = 0


class SavedPart(NamedTuple):
    """A part of a save that has been stored.

    :ivar packet_ids: of all its messages, those that had expired included.
    :ivar first_serial: of those that were stored.
    :ivar expired: positions within the part of messages that had expired, with commas.
    :ivar messages: of the session now; 0 if it is not known.
    :ivar replicated: whether the replicas have it; none if nobody has asked.
    :ivar replayed: whether it had been stored before.
    """

    packet_ids: Sequence[int]
    first_serial: int
    expired: bytes
    messages: int = 0
    trimmed: Trimmed = Trimmed()
    replicated: bool | None = None
    replayed: bool = False


class ImportChunk(NamedTuple):
    """A part of a session that one call imports.

    :ivar number: from 0.
    :ivar last: whether it is the last one.
    """

    session: jsonl.ExportedSession
    messages: Sequence[PendingMessage]
    plan: str
    epoch: int
    number: int
    last: bool


S = TypeVar("S", bound=SessionState)


class LayoutOperations(FetchOperations, Generic[S, K]):
    """Base of the operations of both layouts.

    :cvar acks_per_call: most acknowledgements that one call removes, together or not at all.
    """

    acks_per_call: ClassVar[int]

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: StoreRules | None = None,
        recent_sessions: int = RECENT_SESSIONS,
        epoch_of: EpochOf | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._prefix = check_prefix(prefix)
        self._rules = rules or StoreRules()
        self._epoch_of = epoch_of
        self._clock = clock
        expiry_s = self._rules.session_expiry_s
        self._session_expiry_ms: int | str = "" if expiry_s is None else 1_000 * expiry_s
        self._recent = RecentKeys(recent_sessions, self._new_keys)

    @abstractmethod
    def _new_keys(self, client_id: str) -> K:
        """Return the keys of a session of which this process knows nothing yet."""

    @abstractmethod
    def _read_session(self, keys: K) -> Steps[S]:
        """Read a session without its messages."""

    def _keys(self, client_id: str) -> K:
        check_client_id(client_id)
        return self._recent.get(client_id)

    def _state_of(self, client_id: str) -> Steps[S]:
        return self._read_session(self._keys(client_id))

    @abstractmethod
    def _page(
        self, client_id: str, state: S, *, after_serial: int, backlog_serial: int, limit: int, max_bytes: int
    ) -> Steps[Page]:
        """Read a page of messages; nothing is changed."""

    @abstractmethod
    def _clean_up(self, client_id: str, page: Page) -> Steps[None]:
        """Remove the dead messages of a page, and put its unreadable records aside."""

    @abstractmethod
    def _first_call(
        self, save: SessionSave, ends_ms: Sequence[int], soon_ms: int
    ) -> tuple[Any, Sequence[int], lua.Call] | None:
        """Return keys, packet ids and the one call that completes most saves; none when the save needs more calls.

        :param ends_ms: ends of lives of its messages.
        :param soon_ms: a message that ends before is judged by the server's clock.
        """

    @abstractmethod
    def _report_of(self, keys: Any, ids: Sequence[int], reply: Reply, replicated: bool | None) -> SaveReport | None:
        """Return the report of a save that its first call has completed; none when more calls are needed."""

    @abstractmethod
    def _save_part(
        self, save: SessionSave, part: Part, refused: Sequence[Refusal], begun: Answered | None
    ) -> Steps[SavedPart | None]:
        """Save a part; none if the store has forgotten its batch, which was saved.

        :param refused: messages that were refused before, to be counted.
        :param begun: packet ids and replies of a call for this part that was sent before; none if there was no such.
        """

    @abstractmethod
    def _trim(self, client_id: str, limit: int) -> Steps[Trimmed]:
        """Remove what is over the limit: dead messages, then undelivered messages, then messages in flight."""

    @abstractmethod
    def _import_call(self, chunk: ImportChunk) -> lua.Call:
        """Return the call for one chunk of an import."""

    @abstractmethod
    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """Record that messages up to a serial have been sent."""

    def _epoch(self, client_id: str) -> int | str:
        epoch = None if self._epoch_of is None else self._epoch_of(client_id)
        return "" if epoch is None else epoch

    def check_payload(self, client_id: str, message: NewMessage) -> int:
        """Return a message's size in bytes; refuse what is not a message, or is larger than the rules allow.

        :raises UsageError: naming size and limit.
        """
        if type(message) is not NewMessage or (size_bytes := len(message.payload)) > self._rules.max_payload_bytes:
            save = SessionSave(client_id=client_id, messages=(message,))
            self._rules.check_size(save)
            return save.payload_bytes
        return size_bytes

    @keeps(SessionOperations.get_last_packet_id)
    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        return (yield from self._state_of(client_id)).given_packet_id

    @keeps(SessionOperations.has_saved)
    def has_saved(self, client_id: str, *, source: str) -> Operation[bool]:
        keys: Any = self._keys(client_id)
        yield from self._state_of(client_id)  # which tells a router first whose the session is
        ((noted,),) = map(checked, (yield [lua.Call(HMGET, [keys.session], [f"source:{source}"])]))
        return noted is not None

    # Saves.

    @keeps(SessionOperations.save_messages)
    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        most_bytes = self._rules.max_payload_bytes
        places: dict[str, int] = {}
        repeated: dict[str, list[int]] = {}
        for index, save in enumerate(saves):
            client_id = save.client_id
            place = places.setdefault(client_id, index)
            if place != index:
                repeated.setdefault(client_id, [place]).append(index)
            if save.largest_bytes > most_bytes:
                self._rules.check_size(save)
        reports: dict[int, SaveReport] = {}
        begun: list[tuple[int, Any, Sequence[int], lua.Call]] = []
        branches: list[Steps[None]] = []
        soon_ms = self._clock() + SOON_MS
        for client_id, place in places.items():
            first = None if client_id in repeated else self._begin(saves[place], soon_ms)
            if first is None:
                branches.append(self._save_session(saves, repeated.get(client_id, [place]), reports))
            else:
                begun.append((place, *first))
        # One call with the expected reply completes most saves; they skip the work that other saves need.
        for start in range(0, len(begun), SESSIONS_PER_STEP):
            sent = begun[start : start + SESSIONS_PER_STEP]
            replies: Sequence[Reply]
            try:
                replies = yield [call for _, _, _, call in sent]
            except QueuekeeperError as error:
                replies = [error] * len(sent)
            replicated = replies.replicated if isinstance(replies, lua.Replies) else None
            for at, (place, keys, ids, _) in enumerate(sent):
                report = self._report_of(keys, ids, replies[at], None if replicated is None else replicated[at])
                if report is None:
                    reply = ids, part_of(replies, at, at + 1)
                    branches.append(self._save_session(saves, [place], reports, reply))
                else:
                    reports[place] = report
        yield from together(iter(branches))
        return [reports[index] for index in range(len(saves))]

    def _begin(self, save: SessionSave, soon_ms: int) -> tuple[Any, Sequence[int], lua.Call] | None:
        count = len(save.messages)
        if count > MESSAGES_PER_SAVE or (save.payload_bytes > BYTES_PER_SAVE and count > 1):
            return None
        ends_ms = ends_of_lives(save.messages, default_ttl_s=self._rules.default_ttl_s)
        return None if ends_ms is None else self._first_call(save, ends_ms, soon_ms)

    def _save_session(
        self,
        saves: Sequence[SessionSave],
        indexes: list[int],
        reports: dict[int, SaveReport],
        begun: Answered | None = None,
    ) -> Steps[None]:
        """Do all saves for one session, one after the other.

        :param begun: see :meth:`_save_part`; of the first save.
        """
        failure: QueuekeeperError | None = None
        for index in indexes:
            save = saves[index]
            if failure is None:
                try:
                    reports[index] = yield from self._save(save, begun)
                    begun = None
                    continue
                except QueuekeeperError as error:
                    failure = error
            # A later save, if stored now, would come before the failed save that the caller repeats.
            reports[index] = SaveReport(client_id=save.client_id, error=failure)

    def _save(self, save: SessionSave, begun: Answered | None) -> Steps[SaveReport]:
        parts, refused = parts_of(save.messages, default_ttl_s=self._rules.default_ttl_s)
        count = len(save.messages)
        packet_ids: list[int | None] = [None] * count
        serials: list[int | None] = [None] * count
        trimmed = Trimmed()
        replays = messages = 0
        forgotten = False
        replicated: bool | None = None
        # Messages that were refused before are counted with the first part.
        before = list(refused.values())
        for part in parts:
            saved = yield from self._save_part(save, part, () if part.number else before, begun)
            begun = None
            if saved is None:
                forgotten = True
                break
            trimmed, messages = added(trimmed, saved.trimmed), saved.messages
            if saved.replicated is not None:
                replicated = saved.replicated and replicated is not False
            replays += saved.replayed
            if len(saved.packet_ids) != len(part.messages):
                raise other_batch(save, stored=count - len(part.messages) + len(saved.packet_ids), given=count)
            dead = {int(position) for position in saved.expired.split(b",")} if saved.expired else ()
            serial = saved.first_serial
            for at, position in enumerate(part.positions):
                if at in dead:
                    refused[position] = Refusal.EXPIRED
                    continue
                packet_ids[position] = saved.packet_ids[at]
                serials[position] = serial
                serial += 1
        # A repeated batch does not tell how many messages there are, and nobody may have trimmed after it.
        if (replays or messages > self._rules.limit) and any(packet_id is not None for packet_id in packet_ids):
            # The messages are stored, and an error would make the caller store them twice. The next save trims.
            with suppress(QueuekeeperError):
                trimmed = added(trimmed, (yield from self._trim(save.client_id, self._rules.limit)))
        return SaveReport(
            client_id=save.client_id,
            packet_ids=tuple(packet_ids),
            serials=tuple(serials),
            # The expired messages of a forgotten batch are not known.
            refused={} if forgotten else refused,
            trimmed=trimmed.live,
            trimmed_in_flight=trimmed.in_flight,
            dead=trimmed.dead,
            replayed=forgotten or replays == len(parts),
            forgotten=forgotten,
            replicated=replicated,
        )

    # Pages.

    def _fetch_page(self, client_id: str, wish: PageWish) -> Operation[PendingPage]:
        wish.check(MAX_SERIAL)
        after_serial, backlog_serial = wish.after_serial, wish.backlog_serial
        state = yield from self._state_of(client_id)
        if backlog_serial is None:
            backlog_serial = state.highest
        elif wish.mark_delivered and state.delivered_serial < after_serial <= state.noted_serial:
            # The serial of delivery was read with the pages. Another program has emptied the session since and begun
            # again with lower serials, so none of these messages was delivered.
            after_serial = state.delivered_serial
        check_integer("backlog_serial", backlog_serial, FIRST_SERIAL, MAX_SERIAL, "from the page before")
        page = yield from self._page(
            client_id,
            state,
            after_serial=after_serial,
            backlog_serial=backlog_serial,
            limit=wish.limit,
            max_bytes=wish.max_bytes,
        )
        if state.is_open:
            yield from self._clean_up(client_id, page)
        if wish.mark_delivered and page.messages and page.messages[-1].serial > state.delivered_serial:
            yield from self.mark_delivered(client_id, serial=page.messages[-1].serial)
        return PendingPage(
            client_id=client_id,
            messages=tuple(page.messages),
            after_serial=page.after_serial,
            backlog_serial=backlog_serial,
            more=page.more,
            expired=len(page.dead),
            unreadable=len(page.unreadable) + page.foreign,
        )

    @keeps(SessionOperations.export_session)
    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        check_page(0, limit, most=MAX_PAGE)
        state = yield from self._state_of(client_id)
        lines: list[bytes] = []
        if after_serial is None:
            after_serial = FIRST_SERIAL
            lines.append(
                jsonl.session_line(
                    client_id=client_id,
                    last_packet_id=state.given_packet_id,
                    last_serial=state.given_serial,
                    exported_from="redis",
                )
            )
        page = yield from self._page(
            client_id,
            state,
            after_serial=after_serial,
            backlog_serial=state.highest,
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
        given = list(lines)
        session = jsonl.read_lines(given, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        filled = [text for line in given if (text := line.strip())]
        plan = "restore:" + hashlib.sha256(b"\n".join(filled)).hexdigest()
        epoch = self._epoch(client_id)
        stored = expired = 0
        portioned = portions(
            session.messages,
            size=lambda message: len(message.payload),
            most=BYTES_PER_SAVE,
            most_items=MESSAGES_PER_SAVE,
        )
        chunks = list(portioned) or [[]]
        for number, messages in enumerate(chunks):
            chunk = ImportChunk(session, messages, plan, int(epoch or 0), number, last=number == len(chunks) - 1)
            try:
                reply = yield from ask(self._import_call(chunk))
            except (ImportedBefore, MovedOn, NotOwner, StaleEpoch) as error:
                if isinstance(error, NotOwner | StaleEpoch) and epoch != "":
                    raise
                raise MovedOn(f"the session of {client_id!r} exists: {error}") from None
            if reply.word in ("unchanged", "used"):
                if reply.word == "unchanged" and session.delivered_serial > FIRST_SERIAL:
                    # Nobody has used the session since, so that the import before this one has not come to its end.
                    yield from self.mark_delivered(client_id, serial=session.delivered_serial)
                raise MovedOn(f"the session of {client_id!r} exists: these lines were imported before")
            stored += reply.written
            expired += reply.expired
        if stored and session.delivered_serial > FIRST_SERIAL:
            yield from self.mark_delivered(client_id, serial=session.delivered_serial)
        return ImportReport(client_id=client_id, stored=stored, expired=expired, last_packet_id=session.last_packet_id)

    def _end_of_life(self, message: PendingMessage) -> int:
        if message.expires_at_ms is not None:
            return min(message.expires_at_ms, MAX_INSTANT_MS)
        end_ms = end_of_life_ms(
            time_ms=message.time_ms,
            msg_expiry_interval=message.expiry_interval_s,
            default_ttl_s=self._rules.default_ttl_s,
        )
        return min(end_ms, MAX_INSTANT_MS)


def added(first: Trimmed, second: Trimmed) -> Trimmed:
    """Return the sum of two results."""
    return Trimmed(*(a + b for a, b in zip(first, second, strict=True)))


def known_serial(serial: int) -> int | None:
    """Return a serial; none for the serial before the first."""
    return None if serial == FIRST_SERIAL else serial
