"""Owners, snapshots and outboxes of sessions in TBMQ's layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from queuekeeper import lua
from queuekeeper.lua.scripts import sessions as scripts
from queuekeeper.operation import Operation
from queuekeeper.sessions.layouts import BYTES_PER_CALL, known_serial
from queuekeeper.sessions.online import CopyState, OnlineOperations, OwnFields, SyncPart, batches_of
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_operations.common import (
    KEYS_PER_CALL,
    NO_EXPIRY,
    REFERENCES_PER_LIST,
    CommonOperations,
    Keys,
    Reference,
    State,
    imported_json,
    listed_references,
    packet_id_of,
    read_message,
    referenced_message,
)
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.snapshot import SessionSnapshot
from queuekeeper.sessions.steps import Reply, Steps, checked, runs_of


class KeyOnlineOperations(CommonOperations, OnlineOperations[State, Keys]):
    """Sets owners, reads and applies snapshots, reads and trims outboxes."""

    layout = Layout.TBMQ

    def _set_owner_call(self, client_id: str, *, epoch: int, owner: str, mirrored: bool) -> lua.Call:
        keys = self._keys(client_id)
        # The next save must read the last packet id, since PostgreSQL may have given out ids.
        keys.last = None
        return scripts.set_owner(keys, epoch=epoch, owner=owner, mirror=int(mirrored))

    def read_session_call(self, client_id: str) -> lua.Call:
        """Return the call that reads the fields of a session."""
        return scripts.read_session(self._keys(client_id))

    def own_fields(self, call: lua.Call, reply: Reply) -> OwnFields:
        """Read the reply of such a call."""
        told = call.script.read(reply)
        fields: dict[bytes, bytes] = dict(told.fields)
        owner, epoch, mirror, outbox, version, since_ms = (
            fields.get(name, b"")
            for name in (b"owner", b"epoch", b"mirror", b"outbox", b"outbox_version", b"outbox_ms")
        )
        return OwnFields(owner, epoch, mirror, outbox, version, since_ms, told.now_ms)

    def _trim_outbox_call(self, client_id: str, *, epoch: int, version: int, read_ms: int) -> lua.Call:
        return scripts.trim_outbox(self._keys(client_id), epoch=epoch, outbox_version=version, read_ms=read_ms)

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
            for reference, record in zip(batch, records, strict=False):
                json, expires_at_ms = record
                packet_id = keys.packet_id(reference.member)
                if packet_id is not None and not json and expires_at_ms < NO_EXPIRY:
                    continue
                message = packet_id and referenced_message(
                    reference, record, state, client_id=client_id, packet_id=packet_id
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
            batches=batches_of(state.fields.items()),
            messages=tuple(messages),
        )
        return snapshot, tuple(unreadable)

    def _compare_copy(
        self, client_id: str, messages: Sequence[PendingMessage], serials: Sequence[int] | None
    ) -> Steps[CopyState]:
        keys = self._keys(client_id)
        keys.last = None
        state = yield from self._read_session(keys)
        references = yield from self._references(keys, serials)
        wanted = {keys.payload(message.packet_id): message for message in messages}
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
        return CopyState(gone, wanted, batches_of(state.fields.items()))

    def _sync_call(
        self, snapshot: SessionSnapshot, part: SyncPart, copy: CopyState, *, epoch: int, completes: bool
    ) -> lua.Call:
        client_id = snapshot.client_id
        values: list[lua.Value] = []
        for source in part.sources:
            values += source
        for message in part.messages.values():
            values += (message.serial, self._end_of_life(message), imported_json(message, client_id))
        return scripts.sync_session(
            self._keys(client_id),
            payloads=[*part.gone, *part.messages],
            epoch=epoch,
            removed=len(part.gone),
            last_packet_id="" if snapshot.last_packet_id is None else snapshot.last_packet_id,
            last_serial="" if snapshot.last_serial is None else snapshot.last_serial,
            delivered_serial="" if snapshot.delivered_serial is None else snapshot.delivered_serial,
            sources=len(part.sources),
            values=values,
        )

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
