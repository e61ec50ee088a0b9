"""Moving sessions while their clients are connected: owners, snapshots, and changes for the other store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from queuekeeper import lua
from queuekeeper.errors import UnreadableRecord, UsageError
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation
from queuekeeper.sessions.layouts import BYTES_PER_CALL, known_serial
from queuekeeper.sessions.model import Layout
from queuekeeper.sessions.parts import BYTES_PER_SAVE
from queuekeeper.sessions.redis_operations.common import (
    KEYS_PER_CALL,
    NO_EXPIRY,
    REFERENCES_PER_LIST,
    CommonOperations,
    Keys,
    Reference,
    imported_json,
    integer_of,
    listed_references,
    packet_id_of,
    read_message,
)
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import ApplyReport, Outbox, SessionSnapshot, SourceBatch
from queuekeeper.sessions.steps import SESSIONS_PER_STEP, Steps, ask, checked, read_runs, runs_of

if TYPE_CHECKING:
    from queuekeeper.sessions.owners import Ownership


MESSAGES_PER_SYNC = 256
SOURCES_PER_SYNC = 256
"""Most payload keys and sources of one call of ``sync_session``; the limit of bytes is that of a save."""


class _SyncPart(NamedTuple):
    """The work of one call of ``sync_session``."""

    gone: list[bytes]
    messages: dict[bytes, PendingMessage]
    sources: list[tuple[str, lua.Value]]


class OnlineOperations(CommonOperations):
    """Sets owners, reads and applies snapshots, reads and trims outboxes."""

    def set_owner(self, client_id: str, *, epoch: int, owner: str, mirrored: bool = False) -> Operation[bool]:
        """Record the owner of a session, as PostgreSQL has it.

        :param owner: ``redis``, ``postgres``, or ``fenced`` while nobody may write.
        :param mirrored: record changes in Redis from now on for PostgreSQL.
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
            owner=ownership.as_told(Layout.TBMQ),
            mirrored=ownership.mirrored,
        )

    def _set_owner_call(self, client_id: str, *, epoch: int, owner: str, mirrored: bool) -> lua.Call:
        keys = self._keys(client_id)
        # The next save must read the last packet id, since PostgreSQL may have given out ids.
        keys.last = None
        return scripts.set_owner(keys, epoch=epoch, owner=owner, mirror=int(mirrored))

    def read_session_call(self, client_id: str) -> lua.Call:
        """Return the call that reads the fields of a session."""
        return scripts.read_session(self._keys(client_id))

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
                if packet_id is not None and not json and expires_at_ms < NO_EXPIRY:
                    continue
                message = packet_id and read_message(
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
        last_packet_id = packet_id_of(state.last_packet_id)
        if last_packet_id is None and state.references:
            # When the counter is missing or not a packet id, the newest message decides, as in PostgreSQL.
            newest = yield from self._list(keys, "serial", state.highest - 1, 1)
            last_packet_id = next((keys.packet_id(reference.member) for reference in newest), None)
        snapshot = SessionSnapshot(
            client_id=client_id,
            last_packet_id=last_packet_id,
            last_serial=known_serial(last_serial),
            delivered_serial=known_serial(state.delivered_serial),
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
        """Make the copy of a session that PostgreSQL owns equal to a snapshot; may be repeated.

        :param epoch: epoch of PostgreSQL's ownership.
        :param driver: ignored, since in Redis the epoch alone decides.
        :param serials: serials of the messages to compare, removed ones included; none for all.
        :raises NotOwner: when Redis owns the session, or it moves from there.
        :raises MovedOn: when the session was used in Redis and has no owner there.
        :raises StaleEpoch: when Redis has a greater epoch.
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
                values += (message.serial, self._end_of_life(message), imported_json(message, client_id))
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
            reply = yield from ask(call)
            written += reply.written
            removed += reply.removed
        return ApplyReport(written=written, removed=removed)

    def read_outbox(self, client_id: str) -> Operation[Outbox | None]:
        """Read the changes of a session that PostgreSQL lacks; none when it lacks none, or there is no mirror."""
        state = yield from self._read_session(self._keys(client_id))
        return _outbox(client_id, state.fields, read_ms=state.now_ms)

    def read_outboxes(self, client_ids: Sequence[str]) -> Operation[dict[str, Outbox]]:
        """Read the changes of several sessions that PostgreSQL lacks; sessions without such changes are left out."""
        found: dict[str, Outbox] = {}
        for start in range(0, len(client_ids), SESSIONS_PER_STEP):
            some = client_ids[start : start + SESSIONS_PER_STEP]
            calls = [self.read_session_call(client_id) for client_id in some]
            replies = yield calls
            for client_id, call, answer in zip(some, calls, replies, strict=True):
                reply = call.script.read(checked(answer))
                outbox = _outbox(client_id, dict(reply.fields), read_ms=reply.now_ms)
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
        keys = self._keys(client_id)
        call = scripts.trim_outbox(keys, epoch=epoch, outbox_version=version, read_ms=read_ms)
        return bool((yield from ask(call)))

    def _references(self, keys: Keys, serials: Sequence[int] | None) -> Steps[list[Reference]]:
        """List references in order: all, or those with these serials."""
        found: list[Reference] = []
        if serials is None:
            while True:
                page = yield from self._list(keys, "rank", len(found), REFERENCES_PER_LIST)
                found += page
                if len(page) < REFERENCES_PER_LIST:
                    return found
        runs = runs_of(sorted(set(serials)))
        for start in range(0, len(runs), KEYS_PER_CALL):
            some = runs[start : start + KEYS_PER_CALL]
            # The list begins after a serial.
            calls = [
                scripts.list_references(keys, by="serial", start=first - 1, limit=last - first + 1)
                for first, last in some
            ]
            replies = yield calls
            for (first, last), call, reply in zip(some, calls, replies, strict=True):
                listed = listed_references(call.script.read(checked(reply)))
                found += (reference for reference in listed if first <= reference.serial <= last)
        return found

    def _is_stored(self, message: PendingMessage, record: tuple[bytes, int], client_id: str) -> bool:
        json, expires_at_ms = record
        if expires_at_ms != self._end_of_life(message):
            return False
        stored = read_message(
            json,
            client_id=client_id,
            packet_id=message.packet_id,
            serial=message.serial,
            expires_at_ms=expires_at_ms,
            redelivery=message.redelivery,
        )
        return stored == replace(message, expires_at_ms=expires_at_ms)


def _sync_parts(
    gone: Sequence[bytes], wanted: dict[bytes, PendingMessage], sources: Sequence[tuple[str, lua.Value]]
) -> Iterator[_SyncPart]:
    """Cut the work into calls, at least one; messages are written before others are removed, so that none is missed."""
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
    """Return the last batch of each source; for one saved in another store see lua/sessions/sync_session.lua."""
    found: list[SourceBatch] = []
    for name, record in fields.items():
        offset, _, calls = record.partition(b";")
        number = integer_of(offset)
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
        serials = tuple(sorted(set(read_runs(noted))))
    return Outbox(
        client_id=client_id,
        epoch=integer_of(fields.get(b"epoch")) or 0,
        version=integer_of(fields.get(b"outbox_version")) or 0,
        since_ms=integer_of(fields.get(b"outbox_ms")) or 0,
        serials=serials,
        read_ms=read_ms,
    )
