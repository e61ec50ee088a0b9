"""Imports sessions, chunk by chunk, as ready-made calls of one script that are sent in windows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import hiredis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import redis
from redis.exceptions import RedisError, ResponseError

from queuekeeper import lua
from queuekeeper.errors import ImportedBefore, MovedOn, NotOwner, RefusedError, StaleEpoch
from queuekeeper.keyspace import PackedKeys, SessionKeys, safe_counter
from queuekeeper.lua import scripts
from queuekeeper.migration.ledger.model import EPOCH
from queuekeeper.migration.ledger.parameters import Mode
from queuekeeper.migration.offline import transforms
from queuekeeper.migration.offline.undo import drop_import, keys_of
from queuekeeper.redis_client import RedisClient, address_of, from_redis
from queuekeeper.sessions.pages import Layout

# Bounds of one script call: about 2 ms of the server's time.
CHUNK_MESSAGES = 256
CHUNK_BYTES = 512 * 1024
# Bounds of a window of calls; two windows are in flight, so that the server always has work.
WINDOW_CALLS = 64
WINDOW_BYTES = 2 * 1024 * 1024

OWNERS = {
    Mode.OFFLINE: "redis",  # the session belongs to Redis as soon as it is complete
    Mode.ONLINE: "postgres",  # nobody may use the copy before its owner changes
}

Buffer: TypeAlias = "memoryview[int] | bytes"


def _bulk(value: object) -> bytes:
    raw = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


_EPOCH, _EMPTY, _NOT_LAST, _LAST = map(_bulk, (EPOCH, "", "0", "1"))


@dataclass(slots=True)
class Chunk:
    """One call of a layout's ``import_session``.

    :param keys: payload keys as Redis bulk strings, one behind the other; none in the packed layout.
    :param args: serial, expiry and JSON of each message, likewise; serial and record in the packed layout.
    """

    client_id: str
    cohort: int
    number: int
    count: int
    keys: bytes
    args: bytes
    last: bool = False
    last_packet_id: str = ""
    last_serial: str = ""


@dataclass(slots=True)
class Counts:
    """What happened in one cohort."""

    messages_written: int = 0
    messages_expired: int = 0
    sessions_written: int = 0
    sessions_unchanged: int = 0
    sessions_moved_on: int = 0
    script_calls: int = 0


def chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[Chunk]:
    """Cut rows into script calls; the last call of a client is marked and has a counter beyond its messages' ids.

    :param batches: see :func:`queuekeeper.migration.offline.transforms.fragments`; rows of a client lie together.
    """
    pending: Chunk | None = None
    # Packet ids of the pending chunk's client; that of the newest message comes first.
    packet_ids: list[int] = []
    last_packet_id: int | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        keys, key_ends = _slices(batch.column("keys_part"))
        args, arg_ends = _slices(batch.column("args_part"))
        is_message = pc.equal(batch.column("kind"), transforms.MESSAGE).to_numpy(zero_copy_only=False)
        last_packet_ids, last_serials = batch.column("last_packet_id"), batch.column("last_serial")
        cohorts, own_ids = batch.column("cohort"), batch.column("packet_id")
        runs = pc.run_end_encode(batch.column("client_id"))
        start = 0
        for client_id, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            # A session row carries no message and comes last in its run.
            stop = end if is_message[end - 1] else end - 1
            if pending is not None and pending.client_id != client_id:
                yield _ended(pending, last_packet_id, packet_ids)
                pending, packet_ids = None, []
            last_packet_id, last_serial = last_packet_ids[end - 1].as_py(), last_serials[end - 1].as_py()
            packet_ids += own_ids[start:stop].to_pylist()
            cohort = cohorts[end - 1].as_py()
            first = start
            while first < stop or pending is None:
                until = min(stop, first + CHUNK_MESSAGES)
                if until - first > 1 and arg_ends[until] - arg_ends[first] > CHUNK_BYTES:
                    limit = arg_ends[first] + CHUNK_BYTES
                    until = max(first + 1, int(np.searchsorted(arg_ends[: until + 1], limit, side="right")) - 1)
                number = 0
                if pending is not None:
                    number = pending.number + 1
                    yield pending
                pending = Chunk(
                    client_id=client_id,
                    cohort=cohort,
                    number=number,
                    count=until - first,
                    keys=bytes(keys[key_ends[first] : key_ends[until]]),
                    args=bytes(args[arg_ends[first] : arg_ends[until]]),
                )
                first = until
            pending.last_serial = "" if last_serial is None else str(last_serial)
            start = end
    if pending is not None:
        yield _ended(pending, last_packet_id, packet_ids)


def _ended(chunk: Chunk, last_packet_id: int | None, packet_ids: list[int]) -> Chunk:
    """Return the last chunk of a client, with the counter that the session will have."""
    safe = safe_counter(last_packet_id, packet_ids[::-1])
    chunk.last, chunk.last_packet_id = True, "" if safe is None else str(safe)
    return chunk


def _slices(column: pa.Array) -> tuple[Buffer, np.ndarray[Any, np.dtype[np.int32]]]:
    """Return a text column's bytes and the offsets of its rows."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return (memoryview(data) if data is not None else b""), ends


class _Lane:
    """One connection to one shard, with two windows of calls in flight."""

    def __init__(self, connection: redis.Connection, address: str) -> None:
        self.connection = connection
        self.address = address
        self.buffer: list[Any] = []  # bytes
        self.buffered_bytes = 0
        self.unsent: list[Chunk] = []
        self.sent: deque[list[Chunk]] = deque()


class SessionImporter:
    """Streams chunks into Redis; a call that a server did not run is sent again, in order.

    :param plan_id: written into each session, so that a repeated run recognises its own work.
    :param pace: called before each chunk with its number of messages; may wait.
    :param mode: an online import makes copies that PostgreSQL owns; an offline one makes sessions that Redis owns.
    :param layout: of the sessions in Redis.
    :ivar messages_done: messages that need no more work, including messages that an earlier run has written.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        plan_id: str,
        prefix: str,
        pace: Callable[[int], None],
        mode: Mode = Mode.OFFLINE,
        layout: Layout = Layout.TBMQ,
    ) -> None:
        self.client = client
        self.layout = layout
        self._owner = _bulk(OWNERS[mode])
        self.left_alone = (MovedOn,) if mode is Mode.OFFLINE else (MovedOn, NotOwner, StaleEpoch)
        self._plan = _bulk(plan_id)
        self.prefix = prefix
        self.pace = pace
        self.script = lua.load("sessions/import_session" if layout is Layout.TBMQ else "packed/import_session")
        self.counts: dict[int, Counts] = {}
        self.messages_done = 0
        self._caller = lua.ScriptCaller(client)
        self._lanes: dict[str, _Lane] = {}
        self._failed: list[Chunk] = []
        self._left_alone: set[str] = set()
        self._keys_per_message, self._values_per_message = (0, 2) if layout is Layout.PACKED else (1, 3)
        self._address = address_of(client)
        self._evalsha = _bulk("EVALSHA") + _bulk(self.script.sha1)

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk; it is sent when its window is full, or by :meth:`finish`."""
        self.pace(chunk.count)
        lane = self._lane(chunk)
        _, keys, args = self._call(chunk)
        names = len(keys) + chunk.count * self._keys_per_message
        lane.buffer += (
            b"*%d\r\n" % (3 + names + len(args) + chunk.count * self._values_per_message),
            self._evalsha,
            _bulk(names),
            *map(_bulk, keys),
            chunk.keys,
            *args,
            chunk.args,
        )
        lane.buffered_bytes += len(chunk.keys) + len(chunk.args) + 300
        lane.unsent.append(chunk)
        if len(lane.unsent) >= WINDOW_CALLS or lane.buffered_bytes >= WINDOW_BYTES:
            self._write(lane)
            if len(lane.sent) > 1:
                self._read(lane)
            if self._failed:
                self._settle()

    def finish(self) -> None:
        """Send the remaining chunks and wait for all replies."""
        self._settle()

    def close(self) -> None:
        """Close the connections."""
        for lane in self._lanes.values():
            lane.connection.disconnect()  # type: ignore[no-untyped-call]
        self._lanes.clear()

    def _keys(self, client_id: str) -> SessionKeys | PackedKeys:
        return keys_of(client_id, prefix=self.prefix, layout=self.layout)

    def _call(self, chunk: Chunk) -> lua.Call:
        """Return the call of a chunk without its messages, which come last; its arguments are bulk strings."""
        keys = self._keys(chunk.client_id)
        last, last_serial = (_LAST, _bulk(chunk.last_serial)) if chunk.last else (_NOT_LAST, _EMPTY)
        if isinstance(keys, PackedKeys):
            return scripts.packed.import_session(
                keys,
                plan=self._plan,
                epoch=_EPOCH,
                owner=self._owner,
                chunk=_bulk(chunk.number),
                last=last,
                last_packet_id=_bulk(chunk.last_packet_id or "0"),
                last_serial=last_serial,
                # Packed sessions that a copy has made do not expire as a whole, as those in TBMQ's layout.
                until_ms=_EMPTY,
                messages=(),
            )
        return scripts.sessions.import_session(
            keys,
            payloads=(),
            plan=self._plan,
            epoch=_EPOCH,
            owner=self._owner,
            chunk=_bulk(chunk.number),
            last=last,
            last_packet_id=_bulk(chunk.last_packet_id),
            last_serial=last_serial,
            messages=(),
        )

    def _lane(self, chunk: Chunk) -> _Lane:
        if isinstance(self.client, redis.RedisCluster):
            key = self._keys(chunk.client_id).session
            try:
                node = self.client.get_node_from_key(key)  # type: ignore[no-untyped-call]
            except RedisError as error:
                raise from_redis(error, self._address) from error
            if node is None:
                raise RefusedError(f"the cluster does not serve the slot of {key!r}: repair it, then repeat the copy")
            name, single = str(node.name), self.client.get_redis_connection(node)
        else:
            name, single = self._address, self.client
        if name not in self._lanes:
            self._lanes[name] = _Lane(_connection(single, name), name)
        return self._lanes[name]

    def _write(self, lane: _Lane) -> None:
        try:
            lane.connection.send_packed_command([b"".join(lane.buffer)])  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            raise from_redis(error, lane.address) from error
        lane.sent.append(lane.unsent)
        lane.unsent, lane.buffer, lane.buffered_bytes = [], [], 0

    def _read(self, lane: _Lane) -> None:
        for chunk in lane.sent.popleft():
            try:
                reply = lane.connection.read_response(disable_decoding=True)
            except ResponseError:
                # The script refused or was not loaded: repeated when nothing is in flight any more.
                self._failed.append(chunk)
            except (RedisError, OSError) as error:
                raise from_redis(error, lane.address) from error
            else:
                self._count(chunk, reply)

    def _settle(self) -> None:
        """Read all outstanding replies, then repeat the failed calls one by one, in the order of sending."""
        for lane in self._lanes.values():
            if lane.unsent:
                self._write(lane)
            while lane.sent:
                self._read(lane)
        failed, self._failed = self._failed, []
        for chunk in failed:
            self._alone(chunk)

    def _alone(self, chunk: Chunk) -> None:
        if chunk.client_id in self._left_alone:
            self.messages_done += chunk.count
            return
        script, keys, args = self._call(chunk)
        call = lua.Call(script, [*keys, *_unpacked(chunk.keys)], _unpacked(*args, chunk.args))
        try:
            try:
                reply = self._caller.call(*call)
            except ImportedBefore:
                drop_import(self.client, chunk.client_id, prefix=self.prefix, layout=self.layout)
                reply = self._caller.call(*call)
        except self.left_alone:
            self._left_alone.add(chunk.client_id)
            self._counts(chunk).sessions_moved_on += 1
            self.messages_done += chunk.count
            return
        except (NotOwner, StaleEpoch) as error:
            raise RefusedError(
                f"a session of cohort {chunk.cohort} was moved with devices connected before, and a copy with the "
                "broker stopped does not take it: plan again with mode online, which needs no device (queuekeeper "
                "migrate plan --mode online)"
            ) from error
        self._count(chunk, reply)

    def _counts(self, chunk: Chunk) -> Counts:
        return self.counts.setdefault(chunk.cohort, Counts())

    def _count(self, chunk: Chunk, answer: lua.Reply) -> None:
        reply = self.script.read(answer)
        counts = self._counts(chunk)
        counts.script_calls += 1
        self.messages_done += chunk.count
        counts.messages_written += reply.written
        counts.messages_expired += reply.expired
        if chunk.last:
            if reply.word == "unchanged":
                counts.sessions_unchanged += 1
            elif reply.word == "used":
                counts.sessions_moved_on += 1
            else:
                counts.sessions_written += 1


def _connection(single: redis.Redis, address: str) -> redis.Connection:
    """Return a new connection with the client's user and TLS settings."""
    try:
        connection: Any = single.connection_pool.make_connection()
        connection.connect()
    except (RedisError, OSError) as error:
        raise from_redis(error, address) from error
    assert isinstance(connection, redis.Connection)
    return connection


def _unpacked(*fragments: Any) -> list[bytes]:
    """Return the values of concatenated bulk strings."""
    reader = hiredis.Reader()
    reader.feed(b"".join(fragments))
    return list(iter(reader.gets, False))
