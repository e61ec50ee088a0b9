"""Owners, snapshots and outboxes of packed sessions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from queuekeeper import lua
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.sessions.layouts import BYTES_PER_CALL, known_serial
from queuekeeper.sessions.online import SOURCE, CopyState, OnlineOperations, OwnFields, SyncPart, batches_of
from queuekeeper.sessions.packed_operations.common import CommonOperations, Keys, State
from queuekeeper.sessions.packed_operations.room import free_after
from queuekeeper.sessions.packed_record import expires_at_ms, message_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import SessionSnapshot, SourceBatch
from queuekeeper.sessions.steps import HMGET, Reply, Steps, checked
from queuekeeper.sessions.wire import UnreadableError

_SIZE = struct.Struct(">I")
_NO_MIRROR = OwnFields(owner=b"", epoch=b"", mirror=b"", outbox=b"", outbox_version=b"", outbox_ms=b"", now_ms=0)


class PackedOnlineOperations(CommonOperations, OnlineOperations[State, Keys]):
    """Sets owners, reads and applies snapshots, reads and trims outboxes."""

    layout = Layout.PACKED

    def _set_owner_call(self, client_id: str, *, epoch: int, owner: str, mirrored: bool) -> lua.Call:
        keys = self._keys(client_id)
        keys.next_packet_id = 0
        return scripts.set_owner(keys, epoch=epoch, owner=owner, mirror=int(mirrored))

    def read_session_call(self, client_id: str) -> lua.Call:
        """Return the call that reads the state of a session."""
        return scripts.read_session(self._keys(client_id))

    def own_fields(self, call: lua.Call, reply: Reply) -> OwnFields:
        """Read the reply of such a call."""
        told = call.script.read(reply)
        own = told.mirrors[0] if told.mirrors else _NO_MIRROR
        return OwnFields(
            owner=told.owner,
            epoch=told.epoch,
            mirror=own.mirror,
            outbox=own.outbox,
            outbox_version=own.outbox_version,
            outbox_ms=own.outbox_ms,
            now_ms=told.now_ms,
        )

    def _trim_outbox_call(self, client_id: str, *, epoch: int, version: int, read_ms: int) -> lua.Call:
        return scripts.trim_outbox(self._keys(client_id), epoch=epoch, outbox_version=version, read_ms=read_ms)

    def _read_snapshot(
        self, client_id: str, serials: Sequence[int] | None
    ) -> Steps[tuple[SessionSnapshot, tuple[int, ...]]]:
        keys = self._keys(client_id)
        state = yield from self._read_session(keys)
        messages: list[PendingMessage] = []
        unreadable: list[int] = []
        chosen = yield from self._chosen(keys, state, serials)
        at = 0
        while at < len(chosen):
            records = yield from self._records(keys, state, chosen[at:], max_bytes=BYTES_PER_CALL)
            at += len(records)
            for serial, record in records:
                ends_ms = None if record is None else expires_at_ms(record)
                if record is None or (ends_ms is not None and ends_ms <= state.now_ms):
                    continue
                try:
                    messages.append(message_of(record, serial=serial, redelivery=serial <= state.delivered_serial))
                except UnreadableError:
                    unreadable.append(serial)
        snapshot = SessionSnapshot(
            client_id=client_id,
            last_packet_id=state.given_packet_id,
            last_serial=state.given_serial,
            delivered_serial=known_serial(state.delivered_serial),
            batches=(yield from self._batches(keys)),
            messages=tuple(messages),
        )
        return snapshot, tuple(unreadable)

    def _compare_copy(
        self, client_id: str, messages: Sequence[PendingMessage], serials: Sequence[int] | None
    ) -> Steps[CopyState]:
        keys = self._keys(client_id)
        keys.next_packet_id = 0
        state = yield from self._read_session(keys)
        changed = {message.serial: message for message in messages}
        gone: list[int] = []
        chosen = yield from self._chosen(keys, state, serials)
        at = 0
        while at < len(chosen):
            records = yield from self._records(keys, state, chosen[at:], max_bytes=BYTES_PER_CALL)
            at += len(records)
            for serial, record in records:
                if record is None:
                    continue
                if serial not in changed:
                    gone.append(serial)
                elif record == self._imported(changed[serial]):
                    del changed[serial]
        return CopyState(gone, changed, (yield from self._batches(keys)))

    def _sync_call(
        self, snapshot: SessionSnapshot, part: SyncPart, copy: CopyState, *, epoch: int, completes: bool
    ) -> lua.Call:
        last_serial = -1 if snapshot.last_serial is None else snapshot.last_serial
        values: list[lua.Value] = []
        for source in part.sources:
            values += source
        values += part.gone
        for message in part.messages.values():
            values += (message.serial, self._imported(message))
        in_use = {message.packet_id for message in snapshot.messages}
        names = {batch.source for batch in (*snapshot.batches, *copy.batches)}
        fields = (SOURCE + name.encode("utf-8", "surrogateescape") for name in sorted(names))
        return scripts.sync_session(
            self._keys(snapshot.client_id),
            epoch=epoch,
            last_packet_id="" if snapshot.last_packet_id is None else snapshot.last_packet_id,
            last_serial="" if snapshot.last_serial is None else snapshot.last_serial,
            delivered_serial="" if snapshot.delivered_serial is None else snapshot.delivered_serial,
            first_serial=min((m.serial for m in snapshot.messages), default=last_serial + 1) if completes else "",
            free=free_after(snapshot.last_packet_id or 0, in_use) - (snapshot.last_packet_id or 0) if completes else "",
            source_names=b"".join(_SIZE.pack(len(field)) + field for field in fields),
            removed=len(part.gone),
            sources=len(part.sources),
            values=values,
        )

    def _chosen(self, keys: Keys, state: State, serials: Sequence[int] | None) -> Steps[Sequence[int]]:
        """Return in order the serials to look at: these, or all that may have a message."""
        return sorted(set(serials)) if serials is not None else (yield from self._serials(keys, state))

    def _batches(self, keys: Keys) -> Steps[tuple[SourceBatch, ...]]:
        ((listed,),) = map(checked, (yield [lua.Call(HMGET, [keys.session], ["sources"])]))
        # A source that a copy has forgotten is named once more when it saves again.
        fields: dict[bytes, None] = {}
        at = 0
        while at < len(listed or b""):
            (size,) = _SIZE.unpack_from(listed, at)
            at += _SIZE.size + size
            fields[listed[at - size : at]] = None
        if not fields:
            return ()
        (records,) = map(checked, (yield [lua.Call(HMGET, [keys.session], list(fields))]))
        return batches_of((field, record) for field, record in zip(fields, records, strict=True) if record is not None)
