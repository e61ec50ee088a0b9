"""The operations of DEVICE sessions in Redis, as steps of script calls.

A step is a list of calls; its answer is the list of their replies, in order, with an exception in the place of a reply
that is an error. Calls of different sessions share steps, a session has one call that writes in flight.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import orjson

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.clock import Clock, system_clock
from queuekeeper.errors import (
    ImportedBefore,
    MovedOn,
    NotOwner,
    QueuekeeperError,
    RefusedError,
    StaleEpoch,
    UnreadableRecord,
    UsageError,
)
from queuekeeper.keyspace import (
    MAX_PACKET_ID,
    check_client_id,
    check_prefix,
    payload_key,
    quarantined_key,
    session_keys,
)
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation
from queuekeeper.sessions import jsonl
from queuekeeper.sessions.judge import Reason
from queuekeeper.sessions.model import (
    DEFAULT_PAGE,
    Ack,
    AckReport,
    ExportPage,
    ImportReport,
    ImportView,
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
from queuekeeper.sessions.parts import (
    BYTES_PER_SAVE,
    MESSAGES_PER_SAVE,
    Part,
    end_of_life,
    no_free_packet_ids,
    other_batch,
    parts_of,
)
from queuekeeper.sessions.snapshot import ApplyReport, Outbox, SessionSnapshot, SourceBatch
from queuekeeper.sessions.store import PAGE_BYTES
from queuekeeper.sessions.wire import UnreadableError, pending_message, stored_json
from queuekeeper.sessions.wire import expires_at_ms as end_of_life_ms

if TYPE_CHECKING:
    from queuekeeper.sessions.owners import Ownership

KEYS_PER_CALL = 250
"""Most messages that a call reads or removes: a thousand would keep the server from all others for 6 ms."""

BYTES_PER_CALL = 4_000_000
"""Most that one reply should hold; a single larger message is read alone."""

MESSAGES_PER_SYNC = 256
SOURCES_PER_SYNC = 256
"""Most payload keys and sources of one call of ``sync_session``; its messages have no more bytes than a save's."""

SESSIONS_PER_STEP = 1_000
TRIES = 200
"""Tries for packet ids that other writers of the session may take first."""

LISTED_AFTER = 2
"""Collisions after which all packet ids in use are read instead of being found one by one."""

REFERENCES_PER_LIST = 1_000
RECENT_SESSIONS = 100_000
MAX_RESERVATION = 1_000
FIRST_SERIAL = -1
"""Serial before all others."""

QUARANTINE_MS = 604_800_000
"""How long a record in quarantine is kept when it had no expiry of its own."""

T = TypeVar("T")

Step: TypeAlias = list[lua.Call]
Reply: TypeAlias = Any
Steps: TypeAlias = Generator[Step, Sequence[Reply], T]

EpochOf: TypeAlias = Callable[[str], int | None]
"""Says under which epoch the caller knows a session; none when it does not."""

_ClaimCall: TypeAlias = Callable[[bytes, Sequence[int]], lua.Call]
"""Takes the last packet id as it is known and the packet ids to give out."""

_Answered: TypeAlias = tuple[Sequence[int], Sequence[Reply]]
"""Packet ids of a call, and its answer."""

_NOTHING: frozenset[int] = frozenset()
_MAX_INTEGER = 2**53 - 1
_MAX_SERIAL = 2**53
_NO_EXPIRY = -1
_NO_KEY = -2
_PUBLISH = "PUBLISH"
_OWNER_FIELDS = frozenset({b"owner", b"epoch", b"import", b"mirror", b"outbox", b"outbox_version", b"outbox_ms"})
_PACKET_ID = re.compile(rb"[1-9][0-9]{0,4}")
_INTEGER = re.compile(rb"-?[0-9]{1,18}")


class _Keys:
    """Names of a session's keys, and the last packet id as this process knows it."""

    __slots__ = ("client_id", "last", "last_packet_id", "messages", "session", "stem")

    def __init__(self, client_id: str, prefix: str) -> None:
        self.client_id = client_id
        self.messages, self.last_packet_id, self.session = (
            key.encode() for key in session_keys(client_id, prefix=prefix)
        )
        self.stem = payload_key(client_id, "", prefix=prefix).encode()
        # Empty: the key is absent; none: not known. A wrong one costs a conflict and does no harm.
        self.last: bytes | None = None

    def payload(self, packet_id: int) -> bytes:
        return b"%b%d" % (self.stem, packet_id)

    def packet_id(self, member: bytes) -> int | None:
        """Return the packet id that a reference names; none for what is no payload key of this session."""
        if not member.startswith(self.stem):
            return None
        suffix = member[len(self.stem) :]
        if _PACKET_ID.fullmatch(suffix) is None or (packet_id := int(suffix)) > MAX_PACKET_ID:
            return None
        return packet_id


class _Recent:
    """Keys of the sessions that were saved to last."""

    def __init__(self, size: int, prefix: str) -> None:
        self._size = size
        self._prefix = prefix
        self._found: OrderedDict[str, _Keys] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, client_id: str) -> _Keys:
        with self._lock:
            keys = self._found.get(client_id)
            if keys is not None:
                self._found.move_to_end(client_id)
                return keys
            keys = self._found[client_id] = _Keys(client_id, self._prefix)
            if len(self._found) > self._size:
                self._found.popitem(last=False)
            return keys


class _State(NamedTuple):
    """What ``read_session`` says."""

    last_packet_id: bytes
    references: int
    highest: int
    now_ms: int
    fields: dict[bytes, bytes]

    @property
    def noted_serial(self) -> int:
        """Up to which serial delivery was noted, whatever has become of the messages."""
        serial = _integer(self.fields.get(b"delivered_serial"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def delivered_serial(self) -> int:
        """Up to which serial the messages that are there have been delivered; see lua/includes/delivered.lua."""
        serial = _integer(self.fields.get(b"sent_up_to"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def last_serial(self) -> int:
        serial = _integer(self.fields.get(b"last_serial"))
        return FIRST_SERIAL if serial is None else serial

    @property
    def has_been_used(self) -> bool:
        """Whether it says more than which store owns the session."""
        return not self.fields.keys() <= _OWNER_FIELDS

    @property
    def is_open(self) -> bool:
        """Whether Redis takes writes; the same rule as lua/includes/ownership.lua."""
        elsewhere = self.fields.get(b"owner") in {b"postgres", b"fenced"}
        return not elsewhere and self.fields.get(b"import", b"done") == b"done"

    @property
    def sweep_is_due(self) -> bool:
        """Whether references to expired messages may be in the set."""
        earliest = _integer(self.fields.get(b"earliest_expiry_ms"))
        if earliest is None or self.fields.get(b"saved_last_packet_id") != self.last_packet_id:
            return True
        if self.highest > self.last_serial:
            return True
        return earliest <= self.now_ms


class _Reference(NamedTuple):
    member: bytes
    serial: int


class _Begun(NamedTuple):
    """A save that one call may do completely, and its place among all saves."""

    place: int
    client_id: str
    keys: _Keys
    ids: Sequence[int]
    call: lua.Call


class _Trimmed(NamedTuple):
    live: int = 0
    in_flight: int = 0
    dead: int = 0


class RedisSessionOperations:
    """What ``store.SessionOperations`` says, for Redis.

    Of what several processes save for one session at once, each save is whole and in order; they meet by optimistic
    tries. An instance may be shared by threads.

    :param prefix: put before every key.
    :param rules: bounds to keep; every process that saves to a session has to use the same.
    :param recent_sessions: sessions whose last packet id is kept in mind, so that a save needs no read before.
    :param epoch_of: under which epoch the caller knows a session; one that has another refuses writes (``StaleEpoch``).
        Those of PostgreSQL's, or on their way there, refuse everybody's (``NotOwner``). All can be read.
    :param clock: this machine's. Only where a life ends within an hour of it is the server asked for its own.
    :raises UsageError: for a prefix with a brace, or a number that is out of range.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        rules: StoreRules | None = None,
        recent_sessions: int = RECENT_SESSIONS,
        epoch_of: EpochOf | None = None,
        clock: Clock = system_clock,
    ) -> None:
        check_integer("recent_sessions", recent_sessions, 1, 10_000_000, "each takes about 600 bytes")
        self._prefix = check_prefix(prefix)
        self._rules = rules or StoreRules()
        self._recent = _Recent(recent_sessions, prefix)
        self._epoch_of = epoch_of
        self._clock = clock
        expiry_s = self._rules.session_expiry_s
        self._session_expiry_ms = "" if expiry_s is None else 1_000 * expiry_s
        # Bound once: looking it up costs a hundredth of a save.
        self._save_script = scripts.save_messages

    # Saving.

    def save_messages(self, saves: Sequence[SessionSave]) -> Operation[list[SaveReport]]:
        """See ``store.SessionOperations.save_messages``."""
        most_bytes = self._rules.max_payload_bytes
        places: dict[str, int] = {}
        repeated: dict[str, list[int]] = {}
        for index, save in enumerate(saves):
            client_id = save.client_id
            place = places.setdefault(client_id, index)
            if place != index:
                repeated.setdefault(client_id, [place]).append(index)
            for message in save.messages:
                if type(message) is not NewMessage or len(message.payload) > most_bytes:
                    self.check_payload(client_id, message)
        reports: dict[int, SaveReport] = {}
        begun: list[_Begun] = []
        branches: list[Steps[None]] = []
        for client_id, place in places.items():
            first = None if client_id in repeated else self._begin(saves[place], place)
            if first is None:
                branches.append(self._save_session(saves, repeated.get(client_id, [place]), reports))
            else:
                begun.append(first)
        # Most saves are done by one call whose reply is as expected: they need nothing of what the others do.
        for start in range(0, len(begun), SESSIONS_PER_STEP):
            sent = begun[start : start + SESSIONS_PER_STEP]
            replies: Sequence[Reply]
            try:
                replies = yield [first.call for first in sent]
            except QueuekeeperError as error:
                replies = [error] * len(sent)
            for at, first in enumerate(sent):
                report = self._report_of(first, replies, at)
                if report is None:
                    reply = first.ids, _part(replies, at, at + 1)
                    branches.append(self._save_session(saves, [first.place], reports, reply))
                else:
                    reports[first.place] = report
        yield from _together(iter(branches))
        return [reports[index] for index in range(len(saves))]

    def check_payload(self, client_id: str, message: NewMessage) -> None:
        """Refuse what is no message, or larger than the rules allow.

        :raises UsageError: naming size and limit.
        """
        if type(message) is not NewMessage:
            raise UsageError(f"a message for {client_id!r} is a {type(message).__name__}: it must be a NewMessage")
        if len(message.payload) > self._rules.max_payload_bytes:
            raise UsageError(
                f"a payload for {client_id!r} has {len(message.payload)} bytes: this store takes at most "
                f"{self._rules.max_payload_bytes} (max_payload_bytes)"
            )

    def _begin(self, save: SessionSave, place: int) -> _Begun | None:
        """Return the only call that a save needs when all goes well; none when it needs more."""
        keys = self._recent.get(save.client_id)
        last = keys.last
        messages = save.messages
        if last is None or len(messages) > MESSAGES_PER_SAVE:
            return None
        size_bytes = 0
        ends_ms: list[int] = []
        default_ttl_s = self._rules.default_ttl_s
        for message in messages:
            end_ms = end_of_life(message, default_ttl_s=default_ttl_s)
            if isinstance(end_ms, Refusal):
                return None
            ends_ms.append(end_ms)
            size_bytes += len(message.payload)
        if size_bytes > BYTES_PER_SAVE and len(messages) > 1:
            return None
        ids = _following(last, len(messages), _NOTHING)
        call = self._save_call(keys, save, messages, ends_ms, last=last, ids=ids)
        return _Begun(place, save.client_id, keys, ids, call)

    def _report_of(self, begun: _Begun, replies: Sequence[Reply], at: int) -> SaveReport | None:
        """Return the report of a save that its first call has done completely; none when there is more to do."""
        reply = replies[at]
        if type(reply) is not bytes:
            return None
        serial, references, expired, replaced = _read_saved(reply)
        if expired or references > self._rules.limit:
            return None
        ids = begun.ids
        begun.keys.last = b"%d" % ids[-1]
        return SaveReport(
            client_id=begun.client_id,
            packet_ids=tuple(ids),
            serials=tuple(range(serial, serial + len(ids))),
            dead=replaced,
            replicated=replies.replicated[at] if isinstance(replies, lua.Replies) else None,
        )

    def _save_session(
        self,
        saves: Sequence[SessionSave],
        indexes: list[int],
        reports: dict[int, SaveReport],
        begun: _Answered | None = None,
    ) -> Steps[None]:
        """Do all saves for one session, one after the other.

        :param begun: packet ids and replies of the first call, when it has been made.
        """
        failure: QueuekeeperError | None = None
        for index in indexes:
            save = saves[index]
            if failure is None:
                keys = self._recent.get(save.client_id)
                try:
                    reports[index] = yield from self._save(keys, save, begun)
                    begun = None
                    continue
                except QueuekeeperError as error:
                    keys.last = None
                    failure = error
            # What comes after a failed save would be stored before it when the caller repeats it.
            reports[index] = SaveReport(client_id=save.client_id, error=failure)

    def _save(self, keys: _Keys, save: SessionSave, begun: _Answered | None) -> Steps[SaveReport]:
        parts, refused = parts_of(save.messages, default_ttl_s=self._rules.default_ttl_s)
        count = len(save.messages)
        packet_ids: list[int | None] = [None] * count
        serials: list[int | None] = [None] * count
        trimmed = _Trimmed()
        replays = 0
        forgotten = False
        replicated: bool | None = None
        references = 0
        # Before the first part the caller has refused some, which are counted with it.
        before = list(refused.values())
        for part in parts:

            def call(last: bytes, ids: Sequence[int], part: Part = part) -> lua.Call:
                return self._save_call(
                    keys,
                    save,
                    part.messages,
                    part.ends_ms,
                    last=last,
                    ids=ids,
                    number=part.number,
                    refused=() if part.number else before,
                )

            ids, reply, has_it, made_room = yield from self._claim(
                keys, len(part.messages), call, may_trim=True, begun=begun
            )
            begun = None
            trimmed = _added(trimmed, made_room)
            if has_it is not None:
                replicated = has_it and replicated is not False
            replayed = type(reply) is not bytes
            if not replayed:
                serial, references, expired, replaced = _read_saved(reply)
                trimmed = _added(trimmed, _Trimmed(dead=replaced))
            elif reply.word == "forgotten":
                forgotten = True
                break
            else:
                serial, expired = reply.first_serial, reply.expired
                replays += 1
                ids = _read_runs(reply.packet_ids)
                if len(ids) != len(part.messages):
                    stored = len(save.messages) - len(part.messages) + len(ids)
                    raise other_batch(save, stored=stored, given=len(save.messages))
            dead = {int(position) for position in expired.split(b",")} if expired else ()
            if not replayed and len(dead) < len(part.messages):
                keys.last = b"%d" % ids[-1]
            for at, position in enumerate(part.positions):
                if at in dead:
                    refused[position] = Refusal.EXPIRED
                    continue
                packet_ids[position] = ids[at]
                serials[position] = serial
                serial += 1
        if references > self._rules.limit and any(packet_id is not None for packet_id in packet_ids):
            # The messages are stored, and an error would have them stored twice. The next save trims.
            with suppress(QueuekeeperError):
                trimmed = _added(trimmed, (yield from self._trim(keys, self._rules.limit)))
        return SaveReport(
            client_id=save.client_id,
            packet_ids=tuple(packet_ids),
            serials=tuple(serials),
            # Of a batch that is no longer known, nobody can tell which messages the server found expired.
            refused={} if forgotten else refused,
            trimmed=trimmed.live,
            trimmed_in_flight=trimmed.in_flight,
            dead=trimmed.dead,
            replayed=forgotten or replays == len(parts),
            forgotten=forgotten,
            replicated=replicated,
        )

    def _save_call(
        self,
        keys: _Keys,
        save: SessionSave,
        messages: Sequence[NewMessage],
        ends_ms: Sequence[int],
        *,
        last: bytes,
        ids: Sequence[int],
        number: int = 0,
        refused: Sequence[Refusal] = (),
    ) -> lua.Call:
        stem = keys.stem
        epoch = "" if self._epoch_of is None else self._epoch(keys)
        batch: lua.Value = ""
        if save.source is not None or refused:
            over = sum(refusal is Refusal.EXPIRED for refusal in refused)
            batch = f"{len(refused) - over}:{over}::::"
            if save.source is not None:
                told = f"{save.offset or 0}:{number}:{_write_runs(ids)}:{save.source}"
                batch = f"{len(refused) - over}:{over}:{told}"
        stored: list[lua.Value] = []
        client_id = save.client_id
        for packet_id, message, end_ms in zip(ids, messages, ends_ms, strict=True):
            stored.append(end_ms)
            stored.append(stored_json(message, client_id=client_id, packet_id=packet_id, packet_type=_PUBLISH))
        return self._save_script(
            keys,
            payloads=[b"%b%d" % (stem, packet_id) for packet_id in ids],
            epoch=epoch,
            expected=last,
            last_packet_id=ids[-1] if ids else "",
            session_expiry_ms=self._session_expiry_ms,
            batch=batch,
            now_ms=self._clock(),
            messages=stored,
        )

    def _claim(
        self,
        keys: _Keys,
        count: int,
        call: _ClaimCall,
        *,
        may_trim: bool = False,
        begun: _Answered | None = None,
    ) -> Steps[tuple[Sequence[int], Reply, bool | None, _Trimmed]]:
        """Make a call that gives out packet ids, until nobody else has taken them first.

        Returns the packet ids, the reply, whether replicas have it, and what was removed to make room.

        :param may_trim: make room in the session when too few packet ids are free.
        :param begun: packet ids and replies of the first try, when it has been made.
        """
        last = keys.last
        if last is None and begun is None:
            last = (yield from self._read_session(keys)).last_packet_id
        in_use: set[int] = set()
        collisions = 0
        trimmed = _Trimmed()
        for _ in range(TRIES):
            if begun is None:
                ids = _following(last or b"", count, in_use)
                asked = call(last or b"", ids)
                replies = yield [asked]
                read = asked.script.read
            else:
                ids, replies = begun
                begun = None
                read = self._save_script.script.read
            reply = read(_checked(replies[0]))
            if type(reply) is bytes or reply.word != "conflict":
                return ids, reply, _replicated(replies), trimmed
            last = reply.last_packet_id
            keys.last = last
            if not reply.positions:
                continue
            in_use.update(ids[position] for position in reply.positions)
            collisions += 1
            if collisions == LISTED_AFTER:
                collisions = 0
                in_use = yield from self._packet_ids_in_use(keys)
                if may_trim and MAX_PACKET_ID - len(in_use) < count:
                    trimmed = _added(trimmed, (yield from self._trim(keys, MAX_PACKET_ID - count)))
                    in_use = yield from self._packet_ids_in_use(keys)
                if MAX_PACKET_ID - len(in_use) < count:
                    raise no_free_packet_ids(keys.client_id, free=MAX_PACKET_ID - len(in_use), count=count)
        raise RefusedError(f"other writers took the next packet ids first, {TRIES} times: save with fewer at once")

    def _packet_ids_in_use(self, keys: _Keys) -> Steps[set[int]]:
        found: set[int] = set()
        cursor = FIRST_SERIAL
        while True:
            page = yield from self._list(keys, "serial", cursor, REFERENCES_PER_LIST)
            own = [(r.member, packet_id) for r in page if (packet_id := keys.packet_id(r.member)) is not None]
            if own:
                # The packet id of a message that has expired is free, though a reference still leads to it.
                call = scripts.find_missing(payloads=[member for member, _ in own])
                missing = set((yield from _ask(call)).positions)
                found.update(packet_id for at, (_, packet_id) in enumerate(own) if at not in missing)
            if _is_last(page, REFERENCES_PER_LIST):
                return found
            cursor = page[-1].serial

    def _trim(self, keys: _Keys, limit: int) -> Steps[_Trimmed]:
        """Remove what is over the limit: dead references, then what was not delivered, then what is in flight."""
        state = yield from self._read_session(keys)
        dead = 0
        references = state.references
        if references > limit and state.sweep_is_due:
            dead = yield from self._sweep(keys, state.fields.get(b"saved_last_packet_id", b""))
            references -= dead
        live = [0, 0]
        for in_flight, before in enumerate((state.delivered_serial, FIRST_SERIAL)):
            cursor = before
            while references > limit:
                wanted = min(KEYS_PER_CALL, references - limit)
                page = yield from self._list(keys, "serial", cursor, wanted)
                candidates = [r for r in page if keys.packet_id(r.member) and r.serial <= _MAX_SERIAL]
                if candidates:
                    call = scripts.trim_messages(
                        keys,
                        payloads=[r.member for r in candidates],
                        epoch=self._epoch(keys),
                        limit=limit,
                        serials=[r.serial for r in candidates],
                    )
                    reply = yield from _ask(call)
                    references = reply.references
                    live[in_flight] += reply.trimmed
                    dead += reply.dead
                if _is_last(page, wanted):
                    break
                cursor = page[-1].serial
        return _Trimmed(live=live[0] + live[1], in_flight=live[1], dead=dead)

    def _sweep(self, keys: _Keys, saved_last_packet_id: bytes) -> Steps[int]:
        """Remove all dead references and note when the next message expires; return how many went."""
        removed: int = 0
        cursor = FIRST_SERIAL
        earliest = b""
        while True:
            page = yield from self._list(keys, "serial", cursor, KEYS_PER_CALL)
            last = _is_last(page, KEYS_PER_CALL)
            own = [r.member for r in page if keys.packet_id(r.member) is not None]
            call = scripts.remove_dead_references(
                keys,
                payloads=own,
                epoch=self._epoch(keys),
                earliest_expiry_ms=earliest,
                complete_for=saved_last_packet_id if last else b"",
            )
            reply = yield from _ask(call)
            earliest = reply.earliest_expiry_ms
            removed += reply.removed
            if last:
                return removed
            cursor = page[-1].serial

    # Delivering.

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
        check_page(offset=0, limit=limit)
        check_integer("after_serial", after_serial, FIRST_SERIAL, _MAX_SERIAL, "from the page before")
        check_integer("max_bytes", max_bytes, 1, _MAX_INTEGER, "a page holds at least one message")
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        if backlog_serial is None:
            backlog_serial = state.highest
        elif state.delivered_serial < after_serial <= state.noted_serial:
            # Another program has emptied the session and begun again with lesser serials: none of these was delivered.
            after_serial = state.delivered_serial
        check_integer("backlog_serial", backlog_serial, FIRST_SERIAL, _MAX_SERIAL, "from the page before")
        page = yield from self._page(
            keys,
            client_id,
            after_serial=after_serial,
            backlog_serial=backlog_serial,
            delivered_serial=state.delivered_serial,
            limit=limit,
            max_bytes=max_bytes,
        )
        if state.is_open:
            yield from self._clean_up(keys, client_id, page)
        if mark_delivered and page.messages and page.messages[-1].serial > state.delivered_serial:
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

    def _page(
        self,
        keys: _Keys,
        client_id: str,
        *,
        after_serial: int,
        backlog_serial: int,
        delivered_serial: int,
        limit: int,
        max_bytes: int,
    ) -> Steps[_Page]:
        """Read a page of messages; nothing is changed."""
        page = _Page(after_serial)
        references: list[_Reference] = []
        # One more than asked for tells whether there are more.
        while after_serial < backlog_serial and len(references) <= limit:
            wanted = min(REFERENCES_PER_LIST, limit + 1 - len(references))
            listed = yield from self._list(keys, "serial", after_serial, wanted)
            references += (reference for reference in listed if reference.serial <= backlog_serial)
            if len(listed) < wanted:
                break
            after_serial = listed[-1].serial
        page.more = len(references) > limit
        del references[limit:]
        at = 0
        while at < len(references):
            if page.messages and page.payload_bytes >= max_bytes:
                page.more = True
                return page
            # JSON holds the payload as base64, and some hundred bytes around it.
            budget = min(BYTES_PER_CALL, (max_bytes - page.payload_bytes) * 4 // 3 + 1_024)
            batch = references[at : at + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=budget)
            for reference, (json, expires_at_ms) in zip(batch, records, strict=False):
                packet_id = keys.packet_id(reference.member)
                message: PendingMessage | None = None
                if packet_id is None:
                    page.foreign += 1
                elif not json and expires_at_ms < _NO_EXPIRY:
                    page.dead.append(reference)
                else:
                    message = _message(
                        json,
                        client_id=client_id,
                        packet_id=packet_id,
                        serial=reference.serial,
                        expires_at_ms=None if expires_at_ms < 0 else expires_at_ms,
                        redelivery=reference.serial <= delivered_serial,
                    )
                    if message is None:
                        page.unreadable.append(reference)
                    elif page.messages and page.payload_bytes + len(message.payload) > max_bytes:
                        page.more = True
                        return page
                    else:
                        page.messages.append(message)
                        page.payload_bytes += len(message.payload)
                page.after_serial = reference.serial
            at += len(records)
        return page

    def _records(self, keys: _Keys, members: Sequence[bytes], *, max_bytes: int) -> Steps[list[tuple[bytes, int]]]:
        """Read JSON and instant of expiry of as many members as fit, at least one.

        A member may be any text; only names of payload keys of this session are followed, others read as missing.
        """
        own = [member for member in members if member.startswith(keys.stem)]
        stored: dict[bytes, tuple[bytes, int]] = {}
        if own:
            reply = yield from _ask(scripts.fetch_messages(payloads=own, max_bytes=max_bytes))
            stored = dict(zip(own, reply.records, strict=False))
        records: list[tuple[bytes, int]] = []
        for member in members:
            if member in stored:
                records.append(stored[member])
            elif member.startswith(keys.stem):
                break
            else:
                records.append((b"", _NO_KEY))
        return records

    def _clean_up(self, keys: _Keys, client_id: str, page: _Page) -> Steps[None]:
        """Remove the references of a page that lead nowhere, and put aside what nobody can read."""
        epoch = self._epoch(keys)
        calls: Step = []
        for start in range(0, len(page.dead), KEYS_PER_CALL):
            dead = [reference.member for reference in page.dead[start : start + KEYS_PER_CALL]]
            calls.append(
                scripts.remove_dead_references(keys, payloads=dead, epoch=epoch, earliest_expiry_ms="", complete_for="")
            )
        for reference in page.unreadable:
            aside = quarantined_key(client_id, reference.serial, prefix=self._prefix)
            calls.append(
                scripts.quarantine_message(
                    keys,
                    payload=reference.member,
                    quarantined=aside,
                    epoch=epoch,
                    serial=reference.serial,
                    keep_ms=QUARANTINE_MS,
                    client_id="",
                )
            )
        if calls:
            for reply in (yield calls):
                _checked(reply)

    def mark_delivered(self, client_id: str, *, serial: int) -> Operation[bool]:
        """See ``store.SessionOperations.mark_delivered``."""
        check_integer("serial", serial, 0, _MAX_SERIAL, "of a message that was fetched")
        keys = self._keys(client_id)
        call = scripts.mark_delivered(keys, epoch=self._epoch(keys), serial=serial, keep_ms=self._session_expiry_ms)
        return bool((yield from _ask(call)))

    def ack(self, client_id: str, acks: Sequence[Ack]) -> Operation[AckReport]:
        """See ``store.SessionOperations.ack``."""
        keys = self._keys(client_id)
        calls: Step = []
        for start in range(0, len(acks), KEYS_PER_CALL):
            batch = acks[start : start + KEYS_PER_CALL]
            calls.append(
                scripts.ack(
                    keys,
                    payloads=[keys.payload(ack.packet_id) for ack in batch],
                    epoch=self._epoch(keys),
                    serials=["" if ack.serial is None else ack.serial for ack in batch],
                )
            )
        removed = 0
        if calls:
            for call, reply in zip(calls, (yield calls), strict=True):
                removed += sum(call.script.read(_checked(reply)).removed)
        return AckReport(client_id=client_id, removed=removed, unknown=len(acks) - removed)

    def mark_released(self, client_id: str, *, packet_id: int, serial: int | None = None) -> Operation[Release]:
        """See ``store.SessionOperations.mark_released``; a record that nobody can read is missing."""
        check_packet_id(packet_id)
        keys = self._keys(client_id)
        call = scripts.mark_released(
            keys,
            payload=keys.payload(packet_id),
            epoch=self._epoch(keys),
            serial="" if serial is None else serial,
        )
        outcome = (yield from _ask(call)).decode()
        # The next fetch puts it in quarantine.
        return Release.MISSING if outcome == "unreadable" else Release(outcome)

    # The session as a whole.

    def purge_session(
        self, client_id: str, *, dry_run: bool = False, progress: PurgeProgress | None = None
    ) -> Operation[PurgeReport]:
        """See ``store.SessionOperations.purge_session``.

        :param progress: of a purge that was interrupted, to go on with; it is brought up to date.
        """
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        if dry_run:
            return PurgeReport(client_id=client_id, messages=state.references, kept=0, dry_run=True)
        keys.last = None
        progress = progress or PurgeProgress()
        if progress.up_to_serial is None:
            progress.up_to_serial = state.highest
        highest = progress.up_to_serial
        while True:
            page = yield from self._list(keys, "rank", 0, KEYS_PER_CALL)
            going = [reference.member for reference in page if reference.serial <= highest]
            own = [member for member in going if keys.packet_id(member) is not None]
            foreign = [member for member in going if keys.packet_id(member) is None]
            call = scripts.purge_session(
                keys, payloads=own, epoch=self._epoch(keys), up_to_serial=highest, members=foreign
            )
            reply = yield from _ask(call)
            progress.removed += reply.removed
            if not reply.remaining or len(going) < KEYS_PER_CALL:
                return PurgeReport(client_id=client_id, messages=progress.removed, kept=reply.remaining, dry_run=False)

    def get_last_packet_id(self, client_id: str) -> Operation[int | None]:
        """See ``store.SessionOperations.get_last_packet_id``."""
        state = yield from self._read_session(self._keys(client_id))
        return _integer(state.last_packet_id) or None

    def set_last_packet_id(self, client_id: str, *, packet_id: int, expected: int | None) -> Operation[bool]:
        """See ``store.SessionOperations.set_last_packet_id``."""
        check_packet_id(packet_id)
        if expected is not None:
            check_integer("expected", expected, 1, MAX_PACKET_ID, "or none; MQTT 5 section 2.2.1")
        keys = self._keys(client_id)
        # TBMQ 1.x wrote 0 into sessions that had never given one out.
        for text in ("", "0") if expected is None else (expected,):
            call = scripts.set_last_packet_id(
                keys,
                epoch=self._epoch(keys),
                expected=text,
                last_packet_id=packet_id,
                keep_ms=self._session_expiry_ms,
            )
            if (yield from _ask(call)):
                return True
        return False

    def reserve_packet_ids(self, client_id: str, *, count: int) -> Operation[tuple[int, ...]]:
        """See ``store.SessionOperations.reserve_packet_ids``."""
        check_integer("count", count, 1, MAX_RESERVATION, "reserve more in several calls")
        keys = self._keys(client_id)

        def call(last: bytes, ids: Sequence[int]) -> lua.Call:
            return scripts.reserve_packet_ids(
                keys,
                payloads=map(keys.payload, ids),
                epoch=self._epoch(keys),
                expected=last,
                last_packet_id=ids[-1],
                keep_ms=self._session_expiry_ms,
            )

        ids, *_ = yield from self._claim(keys, count, call)
        keys.last = b"%d" % ids[-1]
        return tuple(ids)

    # Looking.

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> Operation[SessionView]:
        """See ``store.SessionOperations.inspect``."""
        check_page(offset=offset, limit=limit)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        references: list[_Reference] = []
        while len(references) < limit:
            wanted = min(REFERENCES_PER_LIST, limit - len(references))
            listed = yield from self._list(keys, "rank", offset + len(references), wanted)
            references += listed
            if len(listed) < wanted:
                break
        page: list[MessageView] = []
        while len(page) < len(references):
            batch = references[len(page) : len(page) + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=BYTES_PER_CALL)
            page += (_message_view(keys, client_id, *pair) for pair in zip(batch, records, strict=False))
        fields = state.fields
        return SessionView(
            client_id=client_id,
            store="redis",
            exists=state.has_been_used or bool(state.last_packet_id) or state.references > 0,
            messages=state.references,
            offset=offset,
            page=tuple(page),
            last_packet_id=_integer(state.last_packet_id),
            last_serial=_integer(fields.get(b"last_serial")),
            delivered_serial=_known(state.delivered_serial),
            counts=_counts(fields) if state.has_been_used else None,
            owner=_text(fields.get(b"owner")),
            epoch=_integer(fields.get(b"epoch")),
            imported=_import_view(state),
        )

    def peek(self, client_id: str, *, packet_id: int) -> Operation[PendingMessage | None]:
        """See ``store.SessionOperations.peek``.

        :raises RefusedError: when nobody can read the record.
        """
        check_packet_id(packet_id)
        keys = self._keys(client_id)
        member = keys.payload(packet_id)
        state = yield from self._read_session(keys)
        ((json, expires_at_ms),) = yield from self._records(keys, [member], max_bytes=BYTES_PER_CALL)
        if expires_at_ms < _NO_EXPIRY:
            return None
        cursor = FIRST_SERIAL
        while True:
            page = yield from self._list(keys, "serial", cursor, REFERENCES_PER_LIST)
            serial = next((reference.serial for reference in page if reference.member == member), None)
            if serial is not None:
                break
            if _is_last(page, REFERENCES_PER_LIST):
                return None
            cursor = page[-1].serial
        message = _message(
            json,
            client_id=client_id,
            packet_id=packet_id,
            serial=serial,
            expires_at_ms=None if expires_at_ms < 0 else expires_at_ms,
            redelivery=serial <= state.delivered_serial,
        )
        if message is None:
            raise RefusedError(f"packet id {packet_id} of {client_id!r} names a record that is no message of TBMQ's")
        return message

    # Moving.

    def export_session(
        self, client_id: str, *, after_serial: int | None = None, limit: int = DEFAULT_PAGE
    ) -> Operation[ExportPage]:
        """See ``store.SessionOperations.export_session``."""
        check_page(offset=0, limit=limit)
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        lines: list[bytes] = []
        if after_serial is None:
            after_serial = FIRST_SERIAL
            last_serial = max(state.highest, state.last_serial)
            lines.append(
                jsonl.session_line(
                    client_id=client_id,
                    last_packet_id=_integer(state.last_packet_id) or None,
                    last_serial=_known(last_serial),
                    exported_from="redis",
                )
            )
        page = yield from self._page(
            keys,
            client_id,
            after_serial=after_serial,
            backlog_serial=state.highest,
            delivered_serial=state.delivered_serial,
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

    def import_session(self, client_id: str, lines: Iterable[bytes]) -> Operation[ImportReport]:
        """See ``store.SessionOperations.import_session``; one that was interrupted goes on when it is repeated."""
        given = [line for line in lines if line.strip()]
        session = jsonl.read_lines(given, client_id=client_id, max_payload_bytes=self._rules.max_payload_bytes)
        plan = "restore:" + hashlib.sha256(b"\n".join(line.strip() for line in given)).hexdigest()
        keys = self._keys(client_id)
        stored = expired = 0
        chunks = list(_import_chunks(session.messages)) or [[]]
        for number, chunk in enumerate(chunks):
            messages: list[lua.Value] = []
            for message in chunk:
                messages += (message.serial, self._end_of_life(message), _imported_json(message, client_id))
            call = scripts.import_session(
                keys,
                payloads=[keys.payload(message.packet_id) for message in chunk],
                plan=plan,
                epoch=self._epoch(keys) or 0,
                owner="redis",
                chunk=number,
                last=int(number == len(chunks) - 1),
                last_packet_id="" if session.last_packet_id is None else session.last_packet_id,
                last_serial="" if session.last_serial is None else session.last_serial,
                messages=messages,
            )
            try:
                reply = yield from _ask(call)
            except (ImportedBefore, MovedOn, NotOwner, StaleEpoch) as error:
                if isinstance(error, NotOwner | StaleEpoch) and self._epoch(keys) != "":
                    raise
                raise MovedOn(f"the session of {client_id!r} exists: {error}") from None
            if reply.word in ("unchanged", "used"):
                raise MovedOn(f"the session of {client_id!r} exists: these lines were imported before")
            stored += reply.written
            expired += reply.expired
        if stored and session.delivered_serial > FIRST_SERIAL:
            yield from self.mark_delivered(client_id, serial=session.delivered_serial)
        return ImportReport(client_id=client_id, stored=stored, expired=expired, last_packet_id=session.last_packet_id)

    # Changing owners while the client is connected.

    def set_owner(self, client_id: str, *, epoch: int, owner: str, mirrored: bool = False) -> Operation[bool]:
        """Note which store owns a session, as PostgreSQL says.

        :param owner: ``redis``, ``postgres``, or ``fenced`` while nobody may write.
        :param mirrored: what Redis takes from now on is noted for PostgreSQL.
        :returns: whether Redis did not know yet.
        :raises StaleEpoch: when Redis knows a greater epoch, or another owner under this one.
        """
        call = self._set_owner_call(client_id, epoch=epoch, owner=owner, mirrored=mirrored)
        return bool((yield from _ask(call)) == b"set")

    def set_owner_call(self, ownership: Ownership) -> lua.Call:
        """Return the call that notes an owner as PostgreSQL says; its reply is ``set`` when Redis did not know yet.

        :raises UsageError: when it has no epoch: such a session never moves.
        """
        if ownership.epoch is None:
            raise UsageError(f"the session of {ownership.client_id!r} has no epoch: it does not move between stores")
        return self._set_owner_call(
            ownership.client_id, epoch=ownership.epoch, owner=ownership.owner, mirrored=ownership.mirrored
        )

    def _set_owner_call(self, client_id: str, *, epoch: int, owner: str, mirrored: bool) -> lua.Call:
        keys = self._keys(client_id)
        # Whoever saves next asks for the last packet id, as PostgreSQL may have given some out.
        keys.last = None
        return scripts.set_owner(keys, epoch=epoch, owner=owner, mirror=int(mirrored))

    def read_session_call(self, client_id: str) -> lua.Call:
        """Return the call that reads what a session says about itself."""
        return scripts.read_session(self._keys(client_id))

    def read_snapshot(self, client_id: str, serials: Sequence[int] | None = None) -> Operation[SessionSnapshot]:
        """Read what the other store has to know of a session; what changes meanwhile may be in it or not.

        :param serials: of the messages to read; none for all.
        :raises UnreadableRecord: when nobody can read a record; fetching the session sets it aside.
        """
        snapshot, unreadable = yield from self._read_snapshot(client_id, serials)
        if unreadable:
            raise UnreadableRecord(
                f"serial {unreadable[0]} of {client_id!r} is no message that can be read: set it aside "
                "(queuekeeper repair, quarantine_messages)"
            )
        return snapshot

    def read_copy(self, client_id: str) -> Operation[tuple[SessionSnapshot, tuple[int, ...]]]:
        """Read a copy of a session that PostgreSQL owns.

        :returns: what it holds, and the serials of what nobody can read: :meth:`apply_snapshot` writes over it.
        """
        return (yield from self._read_snapshot(client_id, None))

    def _read_snapshot(
        self, client_id: str, serials: Sequence[int] | None
    ) -> Operation[tuple[SessionSnapshot, tuple[int, ...]]]:
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        references = yield from self._references(keys, serials)
        messages: list[PendingMessage] = []
        unreadable: list[int] = []
        at = 0
        while at < len(references):
            batch = references[at : at + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=BYTES_PER_CALL)
            for reference, (json, expires_at_ms) in zip(batch, records, strict=False):
                packet_id = keys.packet_id(reference.member)
                if packet_id is not None and not json and expires_at_ms < _NO_EXPIRY:
                    continue
                message = packet_id and _message(
                    json,
                    client_id=client_id,
                    packet_id=packet_id,
                    serial=reference.serial,
                    expires_at_ms=None if expires_at_ms < 0 else expires_at_ms,
                    redelivery=reference.serial <= state.delivered_serial,
                )
                if message:
                    messages.append(message)
                else:
                    unreadable.append(reference.serial)
            at += len(records)
        last_serial = max(state.last_serial, state.highest)
        last_packet_id = _packet_id_of(state.last_packet_id) or None
        if last_packet_id is None and state.references:
            # A counter that is lost or no packet id says nothing: the newest message tells, as in PostgreSQL.
            newest = yield from self._list(keys, "serial", state.highest - 1, 1)
            last_packet_id = next((keys.packet_id(reference.member) for reference in newest), None)
        snapshot = SessionSnapshot(
            client_id=client_id,
            last_packet_id=last_packet_id,
            last_serial=_known(last_serial),
            delivered_serial=_known(state.delivered_serial),
            batches=_batches(state.fields),
            messages=tuple(messages),
        )
        return snapshot, tuple(unreadable)

    def apply_snapshot(
        self,
        client_id: str,
        snapshot: SessionSnapshot,
        *,
        epoch: int,
        driver: int,
        serials: Sequence[int] | None = None,
    ) -> Operation[ApplyReport]:
        """Make the copy of a session that PostgreSQL owns equal to a snapshot; it can be repeated.

        :param epoch: of PostgreSQL's ownership.
        :param driver: not looked at: Redis is written to under the epoch alone.
        :param serials: of the messages to look at, also of those that are gone; none for all.
        :raises NotOwner: when Redis owns the session, or it is on its way from there.
        :raises MovedOn: when it has been used in Redis, and nobody owns it.
        :raises StaleEpoch: when Redis knows a greater epoch.
        """
        keys = self._keys(client_id)
        keys.last = None
        state = yield from self._read_session(keys)
        references = yield from self._references(keys, serials)
        wanted = {
            keys.payload(message.packet_id): message
            for message in snapshot.messages
            if serials is None or message.serial in set(serials)
        }
        gone = [r.member for r in references if r.member not in wanted and keys.packet_id(r.member) is not None]
        present = [r for r in references if r.member in wanted and r.serial == wanted[r.member].serial]
        at = 0
        while at < len(present):
            batch = present[at : at + KEYS_PER_CALL]
            records = yield from self._records(keys, [r.member for r in batch], max_bytes=BYTES_PER_CALL)
            for reference, record in zip(batch, records, strict=False):
                if self._is_stored(wanted[reference.member], record, client_id):
                    del wanted[reference.member]
            at += len(records)
        offsets = {batch.source: batch.offset for batch in snapshot.batches}
        sources: list[tuple[str, lua.Value]] = list(offsets.items())
        sources += [(batch.source, "") for batch in _batches(state.fields) if batch.source not in offsets]
        written = removed = 0
        for part in _sync_parts(gone, wanted, sources):
            values: list[lua.Value] = []
            for source in part.sources:
                values += source
            for message in part.messages.values():
                values += (message.serial, self._end_of_life(message), _imported_json(message, client_id))
            call = scripts.sync_session(
                keys,
                payloads=[*part.gone, *part.messages],
                epoch=epoch,
                removed=len(part.gone),
                last_packet_id="" if snapshot.last_packet_id is None else snapshot.last_packet_id,
                last_serial="" if snapshot.last_serial is None else snapshot.last_serial,
                delivered_serial="" if snapshot.delivered_serial is None else snapshot.delivered_serial,
                sources=len(part.sources),
                values=values,
            )
            reply = yield from _ask(call)
            written += reply.written
            removed += reply.removed
        return ApplyReport(written=written, removed=removed)

    def read_outbox(self, client_id: str) -> Operation[Outbox | None]:
        """Read what of a session PostgreSQL does not know yet; none when it knows all, or there is no mirror."""
        state = yield from self._read_session(self._keys(client_id))
        return _outbox(client_id, state.fields, read_ms=state.now_ms)

    def read_outboxes(self, client_ids: Sequence[str]) -> Operation[dict[str, Outbox]]:
        """Read what of several sessions PostgreSQL does not know yet; those of which it knows all are left out."""
        found: dict[str, Outbox] = {}
        for start in range(0, len(client_ids), SESSIONS_PER_STEP):
            some = client_ids[start : start + SESSIONS_PER_STEP]
            calls = [self.read_session_call(client_id) for client_id in some]
            replies = yield calls
            for client_id, call, answer in zip(some, calls, replies, strict=True):
                reply = call.script.read(_checked(answer))
                outbox = _outbox(client_id, dict(reply.fields), read_ms=reply.now_ms)
                if outbox is not None:
                    found[client_id] = outbox
        return found

    def trim_outbox(self, client_id: str, *, epoch: int, version: int, read_ms: int = 0) -> Operation[bool]:
        """Forget what PostgreSQL has been told, unless more has come since it was read; then only that counts as new.

        :param epoch: of the session as it was read.
        :param version: of the outbox as it was read.
        :param read_ms: when that was.
        :returns: whether nothing is left.
        :raises StaleEpoch: when the session has another epoch.
        """
        keys = self._keys(client_id)
        call = scripts.trim_outbox(keys, epoch=epoch, outbox_version=version, read_ms=read_ms)
        return bool((yield from _ask(call)))

    def _references(self, keys: _Keys, serials: Sequence[int] | None) -> Steps[list[_Reference]]:
        """List references in their order: all, or those with these serials."""
        found: list[_Reference] = []
        if serials is None:
            while True:
                page = yield from self._list(keys, "rank", len(found), REFERENCES_PER_LIST)
                found += page
                if len(page) < REFERENCES_PER_LIST:
                    return found
        runs = _runs(sorted(set(serials)))
        for start in range(0, len(runs), KEYS_PER_CALL):
            some = runs[start : start + KEYS_PER_CALL]
            # The list begins behind a serial.
            calls = [
                scripts.list_references(keys, by="serial", start=first - 1, limit=last - first + 1)
                for first, last in some
            ]
            replies = yield calls
            for (first, last), call, reply in zip(some, calls, replies, strict=True):
                listed = _listed(call.script.read(_checked(reply)))
                found += (reference for reference in listed if first <= reference.serial <= last)
        return found

    def _is_stored(self, message: PendingMessage, record: tuple[bytes, int], client_id: str) -> bool:
        json, expires_at_ms = record
        if expires_at_ms != self._end_of_life(message):
            return False
        stored = _message(
            json,
            client_id=client_id,
            packet_id=message.packet_id,
            serial=message.serial,
            expires_at_ms=expires_at_ms,
            redelivery=message.redelivery,
        )
        return stored == replace(message, expires_at_ms=expires_at_ms)

    def _end_of_life(self, message: PendingMessage) -> int:
        if message.expires_at_ms is not None:
            return min(message.expires_at_ms, _MAX_INTEGER)
        end_ms = end_of_life_ms(
            time_ms=message.time_ms,
            msg_expiry_interval=message.expiry_interval_s,
            default_ttl_s=self._rules.default_ttl_s,
        )
        return min(end_ms, _MAX_INTEGER)

    # What several operations do.

    def _keys(self, client_id: str) -> _Keys:
        check_client_id(client_id)
        return self._recent.get(client_id)

    def _epoch(self, keys: _Keys) -> lua.Value:
        epoch = None if self._epoch_of is None else self._epoch_of(keys.client_id)
        return "" if epoch is None else epoch

    def _read_session(self, keys: _Keys) -> Steps[_State]:
        reply = yield from _ask(scripts.read_session(keys))
        return _State(
            last_packet_id=reply.last_packet_id,
            references=reply.references,
            highest=min(_serial(reply.highest), _MAX_SERIAL) if reply.highest else FIRST_SERIAL,
            now_ms=reply.now_ms,
            fields=dict(reply.fields),
        )

    def _list(self, keys: _Keys, by: str, start: int, limit: int) -> Steps[list[_Reference]]:
        return _listed((yield from _ask(scripts.list_references(keys, by=by, start=start, limit=limit))))


class _SyncPart(NamedTuple):
    """What one call of ``sync_session`` does."""

    gone: list[bytes]
    messages: dict[bytes, PendingMessage]
    sources: list[tuple[str, lua.Value]]


class _Page:
    """What was found of one page."""

    __slots__ = ("after_serial", "dead", "foreign", "messages", "more", "payload_bytes", "unreadable")

    def __init__(self, after_serial: int) -> None:
        self.after_serial = after_serial
        self.more = False
        self.messages: list[PendingMessage] = []
        self.payload_bytes = 0
        self.dead: list[_Reference] = []
        self.unreadable: list[_Reference] = []
        self.foreign = 0


def _together(branches: Iterator[Steps[None]]) -> Operation[None]:
    """Run operations side by side: what they ask for at the same time is one step.

    A step that fails as a whole has failed for each of them.
    """
    waiting: list[tuple[Steps[None], Step]] = []
    going = True
    while going or waiting:
        while going and len(waiting) < SESSIONS_PER_STEP:
            branch = next(branches, None)
            if branch is None:
                going = False
                break
            try:
                waiting.append((branch, next(branch)))
            except StopIteration:
                continue
        if not waiting:
            return
        step = [call for _, calls in waiting for call in calls]
        replies: Sequence[Reply]
        try:
            replies = yield step
        except QueuekeeperError as error:
            replies = [error] * len(step)
        asked: list[tuple[Steps[None], Step]] = []
        at = 0
        for branch, calls in waiting:
            end = at + len(calls)
            with suppress(StopIteration):
                asked.append((branch, branch.send(_part(replies, at, end))))
            at = end
        waiting = asked


def _is_last(page: Sequence[_Reference], wanted: int) -> bool:
    """Return whether no page follows; beyond the greatest serial there are no messages."""
    return len(page) < wanted or page[-1].serial >= _MAX_SERIAL


def _part(replies: Sequence[Reply], start: int, end: int) -> Sequence[Reply]:
    part = replies[start:end]
    if isinstance(replies, lua.Replies) and replies.replicated[start] is not None:
        answered = lua.Replies(end - start)
        answered[:] = part
        answered.replicated = replies.replicated[start:end]
        return answered
    return part


def _replicated(replies: Sequence[Reply]) -> bool | None:
    return replies.replicated[0] if isinstance(replies, lua.Replies) else None


def _ask(call: lua.Call) -> Steps[Reply]:
    """Return the reply of one call by the names of its header, or raise what stands in its place."""
    return call.script.read(_checked((yield [call])[0]))


def _listed(reply: Reply) -> list[_Reference]:
    return [_Reference(row.member, _serial(row.score)) for row in reply.references]


def _checked(reply: Reply) -> Reply:
    if isinstance(reply, QueuekeeperError):
        raise reply
    return reply


def _added(first: _Trimmed, second: _Trimmed) -> _Trimmed:
    return _Trimmed(*(a + b for a, b in zip(first, second, strict=True)))


def _following(last: bytes, count: int, in_use: Set[int]) -> Sequence[int]:
    """Return the packet ids that follow the last one, those in use left out; after 65,535 comes 1."""
    try:
        packet_id = int(last) if last else 0
    except ValueError:
        raise RefusedError(f"last packet id of the session is {last!r}: it must be 0 to {MAX_PACKET_ID}") from None
    if not 1 <= packet_id <= MAX_PACKET_ID:
        packet_id = 0
    if not in_use and packet_id + count <= MAX_PACKET_ID:
        return range(packet_id + 1, packet_id + count + 1)
    found: list[int] = []
    while len(found) < count:
        packet_id = packet_id % MAX_PACKET_ID + 1
        if packet_id not in in_use:
            found.append(packet_id)
    return found


def _packet_id_of(last: bytes) -> int:
    """Return the packet id that a session has given out last; 0 for none, and for what is no packet id."""
    number = _integer(last)
    return number if number is not None and 1 <= number <= MAX_PACKET_ID else 0


def _read_saved(reply: bytes) -> tuple[int, int, bytes, int]:
    """Return first serial, references, expired positions, and expired messages whose packet ids were given out."""
    _, serial, references, expired, *replaced = reply.split(b":")
    return int(serial), int(references), expired, int(replaced[0]) if replaced else 0


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return first and last of what follows one another."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def _write_runs(ids: Sequence[int]) -> str:
    """Return packet ids as text such as ``17-40,42``."""
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in _runs(ids))


def _read_runs(text: bytes) -> list[int]:
    """Return the numbers that :func:`_write_runs` wrote, or a script."""
    ids: list[int] = []
    for run in text.decode().split(",") if text else ():
        first, _, last = run.partition("-")
        ids += range(int(first), int(last or first) + 1)
    return ids


def _message(
    json: bytes, *, client_id: str, packet_id: int, serial: int, expires_at_ms: int | None, redelivery: bool
) -> PendingMessage | None:
    """Return a record as a message; none when it is none of this session and packet id that can be delivered."""
    try:
        return _judged(
            json,
            client_id=client_id,
            packet_id=packet_id,
            serial=serial,
            expires_at_ms=expires_at_ms,
            redelivery=redelivery,
        )
    except ValueError:
        return None


def _judged(
    json: bytes, *, client_id: str, packet_id: int, serial: int, expires_at_ms: int | None, redelivery: bool
) -> PendingMessage:
    """Return a record as a message.

    :raises UnreadableError: when it is none of this session and packet id that can be delivered, saying why.
    """
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        raise UnreadableError("it is not JSON") from None
    message = pending_message(
        fields, client_id=client_id, serial=serial, expires_at_ms=expires_at_ms, redelivery=redelivery
    )
    if message.packet_id != packet_id:
        raise UnreadableError(f"packetId is {message.packet_id}, and its key names {packet_id}")
    return message


def _imported_json(message: PendingMessage, client_id: str) -> bytes:
    return stored_json(message, client_id=client_id, packet_id=message.packet_id, packet_type=message.packet_type)


def _import_chunks(messages: Sequence[PendingMessage]) -> Iterator[list[PendingMessage]]:
    chunk: list[PendingMessage] = []
    size_bytes = 0
    for message in messages:
        size_bytes += len(message.payload)
        if chunk and (size_bytes > BYTES_PER_SAVE or len(chunk) == MESSAGES_PER_SAVE):
            yield chunk
            chunk, size_bytes = [], len(message.payload)
        chunk.append(message)
    if chunk:
        yield chunk


def _sync_parts(
    gone: Sequence[bytes], wanted: dict[bytes, PendingMessage], sources: Sequence[tuple[str, lua.Value]]
) -> Iterator[_SyncPart]:
    """Cut what is to be done into calls, at least one; messages come before removals, so that none is missed."""
    part, size_bytes = _SyncPart([], {}, list(sources[:SOURCES_PER_SYNC])), 0
    for start in range(SOURCES_PER_SYNC, len(sources), SOURCES_PER_SYNC):
        yield part
        part = _SyncPart([], {}, list(sources[start : start + SOURCES_PER_SYNC]))
    for key, message in wanted.items():
        size_bytes += len(message.payload)
        if part.messages and (size_bytes > BYTES_PER_SAVE or len(part.messages) == MESSAGES_PER_SYNC):
            yield part
            part, size_bytes = _SyncPart([], {}, []), len(message.payload)
        part.messages[key] = message
    for key in gone:
        if len(part.messages) + len(part.gone) == MESSAGES_PER_SYNC:
            yield part
            part = _SyncPart([], {}, [])
        part.gone.append(key)
    yield part


def _batches(fields: dict[bytes, bytes]) -> tuple[SourceBatch, ...]:
    """Return the last batches of all sources; see lua/sessions/sync_session.lua for one that was saved elsewhere."""
    found: list[SourceBatch] = []
    for name, record in fields.items():
        offset, _, calls = record.partition(b";")
        number = _integer(offset)
        if name.startswith(b"source:") and number is not None:
            source = name.removeprefix(b"source:").decode("utf-8", "surrogateescape")
            found.append(SourceBatch(source=source, offset=number if calls else number - 1))
    return tuple(sorted(found, key=lambda batch: batch.source))


def _outbox(client_id: str, fields: dict[bytes, bytes], *, read_ms: int) -> Outbox | None:
    noted = fields.get(b"outbox")
    if noted is None or b"mirror" not in fields:
        return None
    serials: tuple[int, ...] | None = None
    if noted == b"-":
        serials = ()
    elif noted != b"*":
        serials = tuple(sorted(set(_read_runs(noted))))
    return Outbox(
        client_id=client_id,
        epoch=_integer(fields.get(b"epoch")) or 0,
        version=_integer(fields.get(b"outbox_version")) or 0,
        since_ms=_integer(fields.get(b"outbox_ms")) or 0,
        serials=serials,
        read_ms=read_ms,
    )


def _message_view(keys: _Keys, client_id: str, reference: _Reference, record: tuple[bytes, int]) -> MessageView:
    """Describe a message; its JSON is empty where the key is missing or of another type."""
    serial = reference.serial
    if not reference.member.startswith(keys.stem):
        return MessageView(serial=serial, problem=Problem.FOREIGN)
    packet_id = keys.packet_id(reference.member)
    json, expires_at_ms = record
    expiry = None if expires_at_ms < 0 else expires_at_ms
    if not json:
        missing = expires_at_ms < _NO_EXPIRY
        problem = Problem.DANGLING if missing else Problem.UNREADABLE
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=problem)
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=Problem.UNREADABLE)
    reason: Reason | None = None
    try:
        _judged(
            json,
            client_id=client_id,
            packet_id=packet_id or 0,
            serial=serial,
            expires_at_ms=expiry,
            redelivery=False,
        )
        fault = None
    except UnreadableError as error:
        fault, reason = Problem.UNREADABLE, error.reason
    return MessageView(
        serial=serial,
        packet_id=packet_id,
        packet_type=_of(str, fields.get("packetType")),
        qos=_of(int, fields.get("qos")),
        # Releases before 2.1 wrote it as "topic".
        topic=_of(str, fields.get("topicName", fields.get("topic"))),
        payload_bytes=_base64_bytes(fields.get("payload", "" if fields.get("packetType") == "PUBREL" else None)),
        time_ms=_of(int, fields.get("time")),
        expires_at_ms=expiry,
        problem=fault,
        reason=reason,
    )


def _counts(fields: dict[bytes, bytes]) -> SessionCounts | None:
    if not fields:
        return None
    return SessionCounts(
        trimmed=_integer(fields.get(b"trimmed")) or 0,
        expired=_integer(fields.get(b"expired")) or 0,
        refused=_integer(fields.get(b"refused")) or 0,
        quarantined=_integer(fields.get(b"quarantined")) or 0,
    )


def _import_view(state: _State) -> ImportView | None:
    fields = state.fields
    plan_id = _text(fields.get(b"plan"))
    if plan_id is None:
        return None
    references = _integer(fields.get(b"references"))
    return ImportView(
        plan_id=plan_id,
        state=_text(fields.get(b"import")) or "",
        references=references,
        last_packet_id=_integer(fields.get(b"imported_last_packet_id", b"")),
        touched=fields.get(b"import_used") == b"1",
    )


def _known(serial: int) -> int | None:
    return None if serial == FIRST_SERIAL else serial


def _serial(score: bytes) -> int:
    """Return a score as an integer; an infinite one, which no store of sessions writes, as the nearest of 64 bits."""
    try:
        return int(score)
    except ValueError:
        return int(max(-(2.0**63), min(float(score), 2.0**63)))


def _base64_bytes(text: Any) -> int | None:
    """Return how many bytes base64 text stands for, without decoding it."""
    if not isinstance(text, str):
        return None
    return len(text.rstrip("=")) * 3 // 4


def _of(kind: type[T], value: Any) -> T | None:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _integer(value: bytes | None) -> int | None:
    return int(value) if value is not None and _INTEGER.fullmatch(value) else None
