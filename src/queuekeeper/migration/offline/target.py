"""Reads imported sessions out of Redis page by page, as Arrow batches."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from binascii import a2b_base64
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson
import pyarrow as pa

from queuekeeper import lua
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.lua import scripts
from queuekeeper.operation import Operation
from queuekeeper.portions import portions
from queuekeeper.redis_client import RedisClient, address_of, clocks_ms, redis_errors
from queuekeeper.sessions import judge, packed_record
from queuekeeper.sessions.packed_operations import PackedSessionOperations
from queuekeeper.sessions.packed_operations.common import Keys, State
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.steps import Steps, together
from queuekeeper.sessions.wire import MAX_INTERVAL_S, UnreadableError

_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Pair(msgspec.Struct):
    k: str
    v: str


class _Pairs(msgspec.Struct):
    props: list[_Pair] = []


class _Stored(msgspec.Struct, rename="camel", gc=False):
    """A message in TBMQ's format.

    The copy and the stores read and write it by other code, so that a fault of one shows as a difference.
    """

    client_id: str | None = None
    topic_name: str | None = None
    time: _Number | None = None
    qos: _Number | None = None
    packet_id: _Number | None = None
    packet_type: str | None = None
    payload: str | None = None
    retained: bool | None = None
    user_properties: _Pairs | None = None
    msg_expiry_interval: _Number | None = None
    payload_format_indicator: _Number | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = None


_STORED, _PROPERTIES = msgspec.json.Decoder(_Stored), msgspec.json.Decoder(_Pairs)
_NOTHING = _Stored()

_SESSIONS_PER_TRIP = 128
_REFERENCES_PER_PAGE = 500
_KEYS_PER_CALL = 100
# Aim for the size of one answer; the number of keys follows from the answers before.
_BYTES_PER_TRIP = 8_000_000
_MOST_KEYS_PER_TRIP = 2_000
# A message this many times larger than those before it is read in a call of its own.
_ANY_BYTES = 2**53 - 1
_SURPLUS = 4
_LEFT_OUT = -3


class FoundSession(NamedTuple):
    """A session as Redis holds it.

    :param has_references: whether it refers to messages.
    :param progress: how far its import has come.
    :param is_used: whether it was used since its import.
    """

    has_references: bool
    last_packet_id: str | None
    plan: str | None
    progress: str | None
    is_used: bool


@dataclass
class _Page:
    """Messages in the making, column by column.

    :param clients: number of each one's client among those that are read together.
    :param positions: places in their queues, from 0.
    :param stored: what is stored, as it is; none for a reference to nothing.
    :param lines: the same as TBMQ's JSON, where it can be read.
    :param payloads: hash of each payload, where the lines do not have it.
    """

    clients: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    ends_ms: list[int | None] = field(default_factory=list)
    key_packet_ids: list[bytes | None] = field(default_factory=list)
    stored: list[bytes | None] = field(default_factory=list)
    lines: list[bytes | None] = field(default_factory=list)
    payloads: list[bytes | None] | None = None

    def batch(self) -> pa.RecordBatch:
        """Return the page; see :data:`PAGE`."""
        found = [_NOTHING if line is None else _decoded(line) for line in self.lines]
        payloads = self.payloads or [_hash(each.payload) for each in found]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(values, kind)
                for values, kind in zip(
                    [
                        self.clients, self.positions, self.scores, self.ends_ms, self.key_packet_ids, self.stored,
                        [each.client_id for each in found],
                        [each.packet_id for each in found],
                        payloads,
                        [each.topic_name for each in found],
                        [each.time for each in found],
                        [each.qos for each in found],
                        [each.packet_type for each in found],
                        [each.retained for each in found],
                        [each.msg_expiry_interval for each in found],
                        [each.payload_format_indicator for each in found],
                        [each.content_type for each in found],
                        [each.response_topic for each in found],
                        [_hash(each.correlation_data) for each in found],
                        [each.user_properties and _as_text(each.user_properties) for each in found],
                    ],
                    PAGE.types, strict=True,
                )
            ],
            schema=PAGE,
        )  # fmt: skip


PAGE = pa.schema(
    [
        ("client", pa.int32()), ("position", pa.int32()), ("score", pa.float64()), ("expires_at_ms", pa.int64()),
        ("key_packet_id", pa.binary()), ("stored", pa.binary()), ("client_id", pa.string()), ("packet_id", pa.int64()),
        ("payload", pa.binary()), ("topic", pa.string()), ("time", pa.int64()), ("qos", pa.int64()),
        ("packet_type", pa.string()), ("retain", pa.bool_()), ("msg_expiry_interval", pa.int64()),
        ("payload_format_indicator", pa.int64()), ("content_type", pa.string()), ("response_topic", pa.string()),
        ("correlation_data", pa.binary()), ("user_properties", pa.string()),
    ]
)  # fmt: skip
"""Columns of a page: content by the names of the source's columns, with hashes in place of what may be long.

``packet_id`` is null where a message cannot be read.
"""


def _decoded(line: bytes) -> _Stored:
    with suppress(ValueError, RecursionError):
        return _STORED.decode(line)
    return _NOTHING


def pairs_as_text(text: str) -> str | None:
    """Return user properties of the source's column as one text, in which no other pairs have the same.

    They are read by other code than the copy's, except for what is no JSON throughout and TBMQ takes nevertheless.
    """
    with suppress(ValueError, RecursionError):
        return _as_text(_PROPERTIES.decode(text))
    pairs = judge.pairs_of(text)
    return None if pairs is judge.UNREADABLE else _as_text(_Pairs([_Pair(*pair) for pair in pairs]))


def _as_text(pairs: _Pairs) -> str | None:
    return "".join(f"{len(pair.k)}:{pair.k}{len(pair.v)}:{pair.v}" for pair in pairs.props) or None


def _hash(text: str | None) -> bytes | None:
    """Return the hash of the decoded Base64, or of the text itself where it is not valid Base64."""
    if text is None:
        return None
    try:
        content = a2b_base64(text, strict_mode=True)
    except ValueError:
        content = text.encode()
    return hashlib.sha256(content).digest()


class Reader(ABC):
    """Reads sessions of a layout; memory is bounded by a page.

    :param prefix: put before every key.
    """

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._caller = lua.ScriptCaller(client)

    def read(self, clients: Sequence[str]) -> Iterator[tuple[list[FoundSession], Iterator[pa.RecordBatch]]]:
        """Yield what Redis holds of clients, some after the other: their sessions, and pages of their messages.

        The pages (:data:`PAGE`) are to be read before what follows. They are in the order of each client's queue.
        """
        for start in range(0, len(clients), _SESSIONS_PER_TRIP):
            yield self._some(clients[start : start + _SESSIONS_PER_TRIP])

    def now_ms(self) -> int:
        """Return the instant by which messages that were not found may have expired."""
        return max(clocks_ms(self._client))

    @abstractmethod
    def _some(self, names: Sequence[str]) -> tuple[list[FoundSession], Iterator[pa.RecordBatch]]:
        """Return the sessions of some clients, and what reads their messages."""


def reader_of(layout: Layout) -> type[Reader]:
    """Return what reads sessions of a layout."""
    return TargetReader if layout is Layout.TBMQ else PackedReader


class _References(NamedTuple):
    """Messages that a session refers to, one behind the other: as many as a call reads.

    :param client: number of its client among those that are read together.
    :param position: place of the first one in its queue.
    """

    client: int
    position: int
    keys: list[bytes]
    scores: list[float]

    def only(self, first: int, last: int) -> _References:
        """Return those from one to before another."""
        return _References(self.client, self.position + first, self.keys[first:last], self.scores[first:last])


class TargetReader(Reader):
    """Reads sessions in TBMQ's layout as they are, with dead references."""

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        super().__init__(client, prefix=prefix)
        self._keys_per_trip = _KEYS_PER_CALL

    def _some(self, names: Sequence[str]) -> tuple[list[FoundSession], Iterator[pa.RecordBatch]]:
        commands: list[tuple[Any, ...]] = []
        for name in names:
            keys = session_keys(name, prefix=self._prefix)
            commands += [
                self._references(name, 0),
                ("GET", keys.last_packet_id),
                ("HMGET", keys.session, "plan", "import", "used"),
            ]
        answers = self._pipeline(commands)
        sessions = [
            FoundSession(bool(page), _text(last_packet_id), _text(plan), _text(progress), used is not None)
            for page, last_packet_id, (plan, progress, used) in zip(
                answers[::3], answers[1::3], answers[2::3], strict=True
            )
        ]
        return sessions, self._pages(names, answers[::3])

    def _pages(self, names: Sequence[str], first: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        waiting: list[_References] = []
        count = 0
        for client, name in enumerate(names):
            for page in self._queue(client, name, first[client]):
                size = min(_KEYS_PER_CALL, self._keys_per_trip)
                for start in range(0, len(page.keys), size):
                    waiting.append(page.only(start, start + size))
                    count += len(waiting[-1].keys)
                    if count >= self._keys_per_trip:
                        yield from self._messages(names, waiting, count)
                        waiting, count = [], 0
        yield from self._messages(names, waiting, count)

    def _queue(self, client: int, name: str, page: list[Any]) -> Iterator[_References]:
        """Yield all that a session refers to.

        :param page: what its first page is.
        """
        start, keys, scores = 0, *_columns(page)
        while keys:
            yield _References(client, start, keys, scores)
            if len(keys) < _REFERENCES_PER_PAGE:
                return
            start += len(keys)
            keys, scores = _columns(self._pipeline([self._references(name, start)])[0])

    def _references(self, name: str, start: int) -> tuple[Any, ...]:
        messages = session_keys(name, prefix=self._prefix).messages
        return ("ZRANGE", messages, start, start + _REFERENCES_PER_PAGE - 1, "WITHSCORES")

    def _messages(self, names: Sequence[str], trip: Sequence[_References], count: int) -> Iterator[pa.RecordBatch]:
        """Read messages; one that is much larger than others is read by itself.

        :param count: how many there are.
        """
        if not trip:
            return
        share = _SURPLUS * _BYTES_PER_TRIP // count
        records = self._records_of(trip, most_bytes=share)
        size_bytes = sum(
            _LEFT_OUT - end_ms if end_ms <= _LEFT_OUT else len(json) for some in records for json, end_ms in some
        )
        fitting = _BYTES_PER_TRIP * count // max(1, size_bytes)
        self._keys_per_trip = max(1, min(_MOST_KEYS_PER_TRIP, fitting, 4 * self._keys_per_trip))
        page = _Page()
        for references, found in zip(trip, records, strict=True):
            start = 0
            for at in [at for at, (_, end_ms) in enumerate(found) if end_ms <= _LEFT_OUT]:
                self._add(page, names, references.only(start, at), found[start:at])
                yield page.batch()
                page, start = _Page(), at + 1
                large = references.only(at, start)
                self._add(page, names, large, *self._records_of([large], most_bytes=_ANY_BYTES))
                yield page.batch()
                page = _Page()
            self._add(page, names, references.only(start, len(found)), found[start:])
        yield page.batch()

    def _records_of(self, trip: Sequence[_References], *, most_bytes: int) -> list[Sequence[tuple[bytes, int]]]:
        """Return JSON and end of life of messages, for each of their calls.

        :param most_bytes: per message; a call leaves out what does not fit.
        """
        calls = [
            scripts.sessions.export_messages(payloads=each.keys, max_bytes=min(_ANY_BYTES, most_bytes * len(each.keys)))
            for each in trip
        ]
        replies = self._caller.execute(calls).or_raise()
        return [call.script.read(reply).records for call, reply in zip(calls, replies, strict=True)]

    def _add(
        self, page: _Page, names: Sequence[str], references: _References, found: Sequence[tuple[bytes, int]]
    ) -> None:
        client, position, keys, scores = references
        stem = payload_key(names[client], "", prefix=self._prefix).encode()
        stored = [json or None for json, _ in found]
        page.clients += [client] * len(keys)
        page.positions += range(position, position + len(keys))
        page.scores += scores
        page.ends_ms += [end_ms for _, end_ms in found]
        page.key_packet_ids += [key.removeprefix(stem) if key.startswith(stem) else None for key in keys]
        page.stored += stored
        page.lines += stored

    def _pipeline(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        with redis_errors(address_of(self._client)):
            pipe: Any = self._client.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = pipe.execute()
            return answers


@dataclass
class _Packed:
    """A packed session as it is read.

    :param number: of the client among those that are read together.
    :param serials: of the messages that are not read yet.
    :param position: number of messages that are.
    """

    number: int
    name: str
    keys: Keys
    state: State
    serials: Sequence[int] = ()
    position: int = 0
    records: list[tuple[int, bytes | None]] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """About how many bytes the next page has."""
        return max(1, min(len(self.serials), _REFERENCES_PER_PAGE) * self.state.largest)


class PackedReader(Reader, PackedSessionOperations):
    """Reads packed sessions as they are; a message whose life is over counts as gone."""

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        Reader.__init__(self, client, prefix=prefix)
        PackedSessionOperations.__init__(self, prefix=prefix)

    def _some(self, names: Sequence[str]) -> tuple[list[FoundSession], Iterator[pa.RecordBatch]]:
        found: list[_Packed] = []
        self._carry_out(together(self._begin_reading(at, name, found) for at, name in enumerate(names)))
        # Those that were answered first come first.
        found.sort(key=lambda each: each.number)
        return [_session_of(each.state) for each in found], self._pages(found)

    def _pages(self, sessions: Sequence[_Packed]) -> Iterator[pa.RecordBatch]:
        while sessions := [each for each in sessions if each.serials]:
            for some in portions(sessions, size=lambda each: each.size_bytes, most=_BYTES_PER_TRIP):
                self._carry_out(together(self._read_on(each) for each in some))
                page = _Page(payloads=[])
                for each in some:
                    for serial, record in each.records:
                        if record is not None:
                            self._add(page, each, serial=serial, record=record)
                yield page.batch()

    def _begin_reading(self, number: int, name: str, sessions: list[_Packed]) -> Steps[None]:
        keys = self._keys(name)
        state = yield from self._read_session(keys)
        sessions.append(_Packed(number, name, keys, state, (yield from self._serials(keys, state))))

    def _read_on(self, session: _Packed) -> Steps[None]:
        session.records = yield from self._records(
            session.keys, session.state, session.serials, max_bytes=_BYTES_PER_TRIP
        )
        session.serials = session.serials[len(session.records) :]

    def _add(self, page: _Page, session: _Packed, *, serial: int, record: bytes) -> None:
        ends_ms = packed_record.expires_at_ms(record)
        is_over = ends_ms is not None and ends_ms <= session.state.now_ms
        line: bytes | None = None
        payload, packet_id = b"", None
        if not is_over:
            with suppress(UnreadableError):
                fields, payload = packed_record.fields_of(record)
                # TBMQ's JSON, in which both sides are compared, knows no longer interval.
                if "msgExpiryInterval" in fields:
                    fields["msgExpiryInterval"] = min(fields["msgExpiryInterval"], MAX_INTERVAL_S)
                line = orjson.dumps(fields | {"clientId": session.name})
                packet_id = b"%d" % fields["packetId"]
        assert page.payloads is not None
        page.clients.append(session.number)
        page.positions.append(session.position)
        page.scores.append(float(serial))
        page.ends_ms.append(ends_ms)
        page.key_packet_ids.append(packet_id)
        page.stored.append(None if is_over else record)
        page.lines.append(line)
        page.payloads.append(hashlib.sha256(payload).digest())
        session.position += 1

    def _carry_out(self, operation: Operation[None]) -> None:
        with suppress(StopIteration):
            step = next(operation)
            while True:
                step = operation.send(self._caller.execute(step))


def _session_of(state: State) -> FoundSession:
    last = state.given_packet_id
    return FoundSession(
        state.messages > 0,
        None if last is None else str(last),
        _text(state.plan or None),
        _text(state.progress or None),
        state.is_noted_used,
    )


def _columns(page: list[Any]) -> tuple[list[bytes], list[float]]:
    """Return references and their scores; redis-py answers in pairs or flat, depending on the command's options."""
    if page and not isinstance(page[0], bytes):
        page = [value for pair in page for value in pair]
    return page[::2], [float(score) for score in page[1::2]]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
