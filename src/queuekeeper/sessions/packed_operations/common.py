"""Shared by the operations of packed sessions: the state of a session, and how its messages are found and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queuekeeper import lua
from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID, packed_keys
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.sessions.layouts import BYTES_PER_CALL, LayoutOperations, known_serial
from queuekeeper.sessions.packed_record import record_of
from queuekeeper.sessions.packed_serials import SerialPages, is_sparse
from queuekeeper.sessions.packed_state import PackedState, state_of
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.steps import HMGET, Steps, ask, checked
from queuekeeper.sessions.store import FIRST_SERIAL

SERIALS_PER_READ = 512
"""Most messages that a step reads: a page of the usual size, and one more, which shows whether a page follows."""

_SERIALS_PER_COMMAND = 128

SERIALS_PER_CALL = 100
"""Most messages that a script reads or removes, which takes it four to eight times as long."""

_NO_STATE = PackedState(*(0 for _ in PackedState._fields))._replace(last=-1, delivered=-1)


class Keys:
    """The key of a session, and what this process expects there.

    :ivar next_packet_id: that the next save is expected to begin with; 0 when it is not known. A wrong value costs the
        script some time and does no harm.
    """

    __slots__ = ("client_id", "next_packet_id", "session")

    def __init__(self, client_id: str, prefix: str) -> None:
        self.client_id = client_id
        self.session = packed_keys(client_id, prefix=prefix).session.encode()
        self.next_packet_id = 0

    def expected(self, count: int) -> Sequence[int]:
        """Return the packet ids that the next call should give out, which the one after it follows; none if unknown."""
        first = self.next_packet_id
        if not first or not count:
            return ()
        ids = following(first, count)
        self.next_packet_id = ids[-1] % MAX_PACKET_ID + 1
        return ids


def following(first: int, count: int) -> Sequence[int]:
    """Return so many packet ids from one on; 1 follows 65,535."""
    if first + count - 1 <= MAX_PACKET_ID:
        return range(first, first + count)
    return [(first + step - 1) % MAX_PACKET_ID + 1 for step in range(count)]


class State(NamedTuple):
    """A session as ``read_session`` returns it; see lua/includes/packed_format.lua."""

    now_ms: int
    messages: int
    highest: int
    exists: bool
    last: int
    ids: int
    head: int
    delivered_serial: int
    largest: int
    earliest_ms: int
    counts: tuple[int, int, int, int]
    owner: bytes
    epoch: bytes
    progress: bytes
    plan: bytes
    references: bytes
    imported_last_packet_id: bytes
    is_used: bool
    since: int
    offset: int
    is_noted_used: bool

    @property
    def given_packet_id(self) -> int | None:
        """Packet id given out last."""
        return (self.ids - 1) % MAX_PACKET_ID + 1 if self.ids else None

    @property
    def given_serial(self) -> int | None:
        """Serial given out last."""
        return known_serial(self.last)

    @property
    def noted_serial(self) -> int:
        """Serial up to which messages were sent, which never goes back."""
        return self.delivered_serial

    @property
    def has_stored(self) -> bool:
        """Whether messages were saved or imported, so that there are counts."""
        return self.last > FIRST_SERIAL or self.plan != b""

    @property
    def is_open(self) -> bool:
        """Whether Redis takes writes; the same rule as lua/includes/ownership.lua."""
        return self.owner not in {b"postgres", b"fenced"} and self.progress in {b"", b"done"}

    def serials_of(self, packet_id: int) -> list[int]:
        """Return where messages with a packet id can be since packet ids count up with serials, the newest first.

        Of all packet ids of messages, the last one that was given out is at most twice 65,535 ahead; see
        lua/includes/packed_places.lua.
        """
        newest = self.ids - (self.ids - packet_id) % MAX_PACKET_ID - self.offset
        return [serial for serial in (newest, newest - MAX_PACKET_ID) if serial >= max(self.since, self.head)]


class CommonOperations(LayoutOperations[State, Keys]):
    """Base of all operations; see ``PackedSessionOperations``."""

    acks_per_call = SERIALS_PER_CALL

    def _new_keys(self, client_id: str) -> Keys:
        return Keys(client_id, self._prefix)

    def _read_session(self, keys: Keys) -> Steps[State]:
        reply = yield from ask(scripts.read_session(keys))
        state = state_of(reply.state) if reply.state else _NO_STATE
        if state is None:
            raise RefusedError(
                f"the state of the packed session of {keys.client_id!r} cannot be read: queuekeeper repair "
                "repair_state works it out again from the messages"
            )
        return State(
            now_ms=reply.now_ms,
            messages=reply.fields - state.others if reply.state else 0,
            highest=state.last if reply.fields > state.others else FIRST_SERIAL,
            # A copy of what PostgreSQL does not have either has a state.
            exists=bool(reply.state) and (state.last > FIRST_SERIAL or state.ids > 0 or reply.plan != b""),
            last=state.last,
            ids=state.ids,
            head=state.head,
            delivered_serial=state.delivered,
            largest=state.largest,
            earliest_ms=state.earliest,
            counts=(state.trimmed, state.expired, state.refused, state.quarantined),
            owner=reply.owner,
            epoch=reply.epoch,
            progress=reply.progress,
            plan=reply.plan,
            references=reply.references,
            imported_last_packet_id=reply.imported_last_packet_id,
            is_used=reply.is_used == b"1",
            since=state.since,
            offset=state.offset,
            is_noted_used=reply.is_noted_used == b"1",
        )

    def _imported(self, message: PendingMessage) -> bytes:
        """Return the record of a message that comes from elsewhere."""
        return record_of(
            message, packet_id=message.packet_id, end_ms=self._end_of_life(message), packet_type=message.packet_type
        )

    def _serials(self, keys: Keys, state: State, *, after: int = FIRST_SERIAL) -> Steps[Sequence[int]]:
        """Return in order all serials after one that may have a message."""
        if not state.messages:
            return ()
        if not is_sparse(head=state.head, last=state.last, messages=state.messages):
            return range(max(state.head, after + 1), state.last + 1)
        pages = SerialPages(keys, largest=state.largest, max_bytes=BYTES_PER_CALL)
        while pages.more:
            pages.take((yield from ask(pages.call())))
        return [serial for serial in pages.serials() if serial > after]

    def _records(
        self, keys: Keys, state: State, serials: Sequence[int], *, max_bytes: int
    ) -> Steps[list[tuple[int, bytes | None]]]:
        """Read records of serials, as many as fit into ``max_bytes``, at least one; none where there is no message."""
        some = serials[:SERIALS_PER_READ]
        if len(some) * state.largest <= max_bytes:
            # Several commands in one step: others wait for one of them at most, and short replies are cheaper.
            calls = [
                lua.Call(HMGET, [keys.session], list(some[at : at + _SERIALS_PER_COMMAND]))
                for at in range(0, len(some), _SERIALS_PER_COMMAND)
            ]
            records = [record for reply in (yield calls) for record in checked(reply)]
        else:
            some = some[:SERIALS_PER_CALL]
            records = (yield from ask(scripts.fetch_messages(keys, max_bytes=max_bytes, serials=some))).records
        return list(zip(some, records, strict=False))

    def _places(
        self, keys: Keys, state: State, serials: Sequence[int] | None = None
    ) -> Steps[list[tuple[int, int, int]]]:
        """Return serial, packet id and expiry of messages; packet id and expiry are 0 for a record that is none.

        :param serials: that may have a message; by default, all.
        """
        if serials is None:
            serials = yield from self._serials(keys, state)
        found: list[tuple[int, int, int]] = []
        for start in range(0, len(serials), SERIALS_PER_CALL):
            some = serials[start : start + SERIALS_PER_CALL]
            reply = yield from ask(scripts.list_messages(keys, serials=some))
            for serial, text in zip(some, reply.found, strict=True):
                if text:
                    packet_id, _, ends_ms = text.partition(b":")
                    found.append((serial, int(packet_id), int(ends_ms)))
        return found
