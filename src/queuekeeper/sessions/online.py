"""Moving sessions while their clients are connected: owners, snapshots, and changes for the other store.

Whatever the layout of the keys; a layout says how a session is read and which calls write it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from queuekeeper import lua
from queuekeeper.errors import UnreadableRecord, UsageError
from queuekeeper.operation import Operation
from queuekeeper.sessions.layouts import LayoutOperations, SessionState
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.parts import BYTES_PER_SAVE
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import ApplyReport, Outbox, SessionSnapshot, SourceBatch
from queuekeeper.sessions.steps import SESSIONS_PER_STEP, Reply, Steps, ask, checked, read_runs

if TYPE_CHECKING:
    from queuekeeper.sessions.owners import Ownership

MESSAGES_PER_SYNC = 256
SOURCES_PER_SYNC = 256
"""Most messages and sources of one call of ``sync_session``; the limit of bytes is that of a save."""

SOURCE = b"source:"
"""Beginning of the name of a field that holds the last batch of a source."""


class OwnFields(NamedTuple):
    """What a session records of its move, as texts; empty for none.

    :ivar now_ms: the server's time of the reading.
    """

    owner: bytes
    epoch: bytes
    mirror: bytes
    outbox: bytes
    outbox_version: bytes
    outbox_ms: bytes
    now_ms: int


class CopyState(NamedTuple):
    """How a copy differs from what it has to hold.

    :ivar gone: names of messages to remove: payload keys or serials.
    :ivar changed: name -> message to write.
    :ivar batches: last batch of each source of the copy.
    """

    gone: Sequence[Any]
    changed: Mapping[Any, PendingMessage]
    batches: Sequence[SourceBatch]


class SyncPart(NamedTuple):
    """The work of one call of ``sync_session``."""

    gone: list[Any]
    messages: dict[Any, PendingMessage]
    sources: list[tuple[str, lua.Value]]


S = TypeVar("S", bound=SessionState)
K = TypeVar("K")


class OnlineOperations(LayoutOperations[S, K], Generic[S, K]):
    """Sets owners, reads and applies snapshots, reads and trims outboxes.

    :cvar layout: whose sessions they are.
    """

    layout: ClassVar[Layout]

    @abstractmethod
    def _set_owner_call(self, client_id: str, *, epoch: int, owner: str, mirrored: bool) -> lua.Call:
        """Return the call that records an owner; the next save must not rest on what this process knows."""

    @abstractmethod
    def read_session_call(self, client_id: str) -> lua.Call:
        """Return the call that reads a session without its messages."""

    @abstractmethod
    def own_fields(self, call: lua.Call, reply: Reply) -> OwnFields:
        """Read the reply of such a call."""

    @abstractmethod
    def _read_snapshot(
        self, client_id: str, serials: Sequence[int] | None
    ) -> Steps[tuple[SessionSnapshot, tuple[int, ...]]]:
        """Read a snapshot, and the serials of unreadable records; see :meth:`read_snapshot`."""

    @abstractmethod
    def _compare_copy(
        self, client_id: str, messages: Sequence[PendingMessage], serials: Sequence[int] | None
    ) -> Steps[CopyState]:
        """Compare a copy with the messages that it has to hold.

        :param serials: serials to compare; none for all.
        """

    @abstractmethod
    def _sync_call(
        self, snapshot: SessionSnapshot, part: SyncPart, copy: CopyState, *, epoch: int, completes: bool
    ) -> lua.Call:
        """Return a call that brings a copy up to date.

        :param completes: whether the copy is equal to the snapshot as a whole after this call.
        """

    @abstractmethod
    def _trim_outbox_call(self, client_id: str, *, epoch: int, version: int, read_ms: int) -> lua.Call:
        """Return the call that removes the records of changes."""

    def set_owner(self, client_id: str, *, epoch: int, owner: str, mirrored: bool = False) -> Operation[bool]:
        """Record the owner of a session, as PostgreSQL has it.

        :param owner: ``redis`` for these keys, ``postgres`` for any other store, ``fenced`` while nobody may write.
        :param mirrored: record changes from now on for the store that the session came from.
        :returns: whether this was new to Redis.
        :raises StaleEpoch: when Redis has a greater epoch, or another owner in this epoch.
        """
        call = self._set_owner_call(client_id, epoch=epoch, owner=owner, mirrored=mirrored)
        return bool((yield from ask(call)) == b"set")

    def set_owner_call(self, ownership: Ownership) -> lua.Call:
        """Return the call that records an owner as PostgreSQL has it; its reply is ``set`` when it was new to Redis.

        :raises UsageError: when the session has no epoch, since such a session never moves.
        """
        if ownership.epoch is None:
            raise UsageError(f"the session of {ownership.client_id!r} has no epoch: it does not move between stores")
        return self._set_owner_call(
            ownership.client_id,
            epoch=ownership.epoch,
            owner=ownership.as_told(self.layout),
            mirrored=ownership.mirrored,
        )

    def read_snapshot(self, client_id: str, serials: Sequence[int] | None = None) -> Operation[SessionSnapshot]:
        """Read a snapshot of a session for the other store; it may hold or miss concurrent changes.

        :param serials: serials of the messages to read; none for all.
        :raises UnreadableRecord: when a record is unreadable; a fetch of the session sets it aside.
        """
        snapshot, unreadable = yield from self._read_snapshot(client_id, serials)
        if unreadable:
            raise UnreadableRecord(
                f"the message with serial {unreadable[0]} of {client_id!r} cannot be read: set it aside "
                "(queuekeeper repair, quarantine_messages)"
            )
        return snapshot

    def read_copy(self, client_id: str) -> Operation[tuple[SessionSnapshot, tuple[int, ...]]]:
        """Read the copy of a session that PostgreSQL owns.

        :returns: the snapshot, and the serials of unreadable records, which :meth:`apply_snapshot` overwrites.
        """
        return (yield from self._read_snapshot(client_id, None))

    def apply_snapshot(
        self,
        client_id: str,
        snapshot: SessionSnapshot,
        *,
        epoch: int,
        driver: int,
        serials: Sequence[int] | None = None,
    ) -> Operation[ApplyReport]:
        """Make the copy of a session that PostgreSQL owns equal to a snapshot; may be repeated.

        :param epoch: epoch of PostgreSQL's ownership.
        :param driver: ignored, since in Redis the epoch alone decides.
        :param serials: serials of the messages to compare, removed ones included; none for all.
        :raises NotOwner: when Redis owns the session, or it moves from there.
        :raises MovedOn: when the session was used in Redis and has no owner there.
        :raises StaleEpoch: when Redis has a greater epoch.
        """
        chosen = None if serials is None else set(serials)
        messages = [message for message in snapshot.messages if chosen is None or message.serial in chosen]
        copy = yield from self._compare_copy(client_id, messages, serials)
        offsets = {batch.source: batch.offset for batch in snapshot.batches}
        sources: list[tuple[str, lua.Value]] = list(offsets.items())
        sources += [(batch.source, "") for batch in copy.batches if batch.source not in offsets]
        written = removed = 0
        parts = list(_sync_parts(copy.gone, copy.changed, sources))
        for part in parts:
            completes = chosen is None and part is parts[-1]
            reply = yield from ask(self._sync_call(snapshot, part, copy, epoch=epoch, completes=completes))
            written += reply.written
            removed += reply.removed
        return ApplyReport(written=written, removed=removed)

    def read_outbox(self, client_id: str) -> Operation[Outbox | None]:
        """Read the changes of a session that PostgreSQL lacks; none when it lacks none, or there is no mirror."""
        return (yield from self.read_outboxes([client_id])).get(client_id)

    def read_outboxes(self, client_ids: Sequence[str]) -> Operation[dict[str, Outbox]]:
        """Read the changes of several sessions that PostgreSQL lacks; sessions without such changes are left out."""
        found: dict[str, Outbox] = {}
        for start in range(0, len(client_ids), SESSIONS_PER_STEP):
            some = client_ids[start : start + SESSIONS_PER_STEP]
            calls = [self.read_session_call(client_id) for client_id in some]
            replies = yield calls
            for client_id, call, answer in zip(some, calls, replies, strict=True):
                outbox = _outbox(client_id, self.own_fields(call, checked(answer)))
                if outbox is not None:
                    found[client_id] = outbox
        return found

    def trim_outbox(self, client_id: str, *, epoch: int, version: int, read_ms: int = 0) -> Operation[bool]:
        """Remove an outbox whose changes are in PostgreSQL; changes since it was read stay.

        :param epoch: epoch of the session when the outbox was read.
        :param version: version of the outbox when it was read.
        :param read_ms: Redis's time when the outbox was read.
        :returns: whether nothing is left.
        :raises StaleEpoch: when the session has another epoch.
        """
        call = self._trim_outbox_call(client_id, epoch=epoch, version=version, read_ms=read_ms)
        return bool((yield from ask(call)))


def batches_of(fields: Iterable[tuple[bytes, bytes]]) -> tuple[SourceBatch, ...]:
    """Return the last batch of each source of a session's fields, ordered by name.

    For a batch that was saved in another store see lua/sessions/sync_session.lua.
    """
    found: list[SourceBatch] = []
    for name, record in fields:
        offset, _, calls = record.partition(b";")
        if name.startswith(SOURCE) and offset.isdigit():
            source = name.removeprefix(SOURCE).decode("utf-8", "surrogateescape")
            found.append(SourceBatch(source=source, offset=int(offset) if calls else int(offset) - 1))
    return tuple(sorted(found, key=lambda batch: batch.source))


def _sync_parts(
    gone: Sequence[Any], changed: Mapping[Any, PendingMessage], sources: Sequence[tuple[str, lua.Value]]
) -> Iterator[SyncPart]:
    """Cut the work into calls, at least one; messages are written before others are removed, so that none is missed."""
    part, size_bytes = SyncPart([], {}, list(sources[:SOURCES_PER_SYNC])), 0
    for start in range(SOURCES_PER_SYNC, len(sources), SOURCES_PER_SYNC):
        yield part
        part = SyncPart([], {}, list(sources[start : start + SOURCES_PER_SYNC]))
    for key, message in changed.items():
        size_bytes += len(message.payload)
        if part.messages and (size_bytes > BYTES_PER_SAVE or len(part.messages) == MESSAGES_PER_SYNC):
            yield part
            part, size_bytes = SyncPart([], {}, []), len(message.payload)
        part.messages[key] = message
    for key in gone:
        if len(part.messages) + len(part.gone) == MESSAGES_PER_SYNC:
            yield part
            part = SyncPart([], {}, [])
        part.gone.append(key)
    yield part


def _outbox(client_id: str, fields: OwnFields) -> Outbox | None:
    if not fields.outbox or not fields.mirror:
        return None
    serials: tuple[int, ...] | None = None
    if fields.outbox == b"-":
        serials = ()
    elif fields.outbox != b"*":
        serials = tuple(sorted(set(read_runs(fields.outbox))))
    return Outbox(
        client_id=client_id,
        epoch=int(fields.epoch or 0),
        version=int(fields.outbox_version or 0),
        since_ms=int(fields.outbox_ms or 0),
        serials=serials,
        read_ms=fields.now_ms,
    )
