"""Reads imported sessions out of Redis page by page, as Arrow batches."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import pyarrow as pa

from queuekeeper import lua
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.lua import scripts
from queuekeeper.operation import Operation
from queuekeeper.portions import portions
from queuekeeper.redis_client import RedisClient, address_of, clocks_ms, redis_errors
from queuekeeper.sessions import packed_record
from queuekeeper.sessions.model import Layout
from queuekeeper.sessions.packed_operations import PackedSessionOperations
from queuekeeper.sessions.packed_operations.common import Keys, State
from queuekeeper.sessions.steps import Steps, together
from queuekeeper.sessions.wire import MAX_INTERVAL_S, UnreadableError

SCHEMA = pa.schema(
    [
        ("task", pa.int32()),
        ("cohort", pa.int32()),
        ("client_id", pa.string()),
        ("kind", pa.string()),
        ("position", pa.int32()),
        ("serial_number", pa.float64()),
        ("key_packet_id", pa.string()),
        ("json", pa.string()),
        ("json_hash", pa.string()),
        ("payload_hash", pa.string()),
        ("expires_at_ms", pa.int64()),
        ("last_packet_id", pa.string()),
        ("plan", pa.string()),
        ("import", pa.string()),
        ("used", pa.bool_()),
        ("read_at_ms", pa.int64()),
    ]
)
"""A row per reference (``kind`` message) and one per session, whose ``position`` is the number of references.

A large message, and each of a packed session, comes without its payload, but with the hashes of payload and of what is
stored, since Spark's JSON reader takes no text beyond 20 MB.
"""

SPARK_SCHEMA = (
    "task int, cohort int, client_id string, kind string, position int, serial_number double, key_packet_id string, "
    "json string, json_hash string, payload_hash string, expires_at_ms bigint, last_packet_id string, plan string, "
    "`import` string, used boolean, read_at_ms bigint"
)

_SESSIONS_PER_TRIP = 128
_REFERENCES_PER_PAGE = 500
_KEYS_PER_CALL = 100
# Aim for the size of one answer; the number of keys follows from the answers before.
_BYTES_PER_TRIP = 8_000_000
_MOST_KEYS_PER_TRIP = 2_000
# A message this many times larger than those before it is read in a call of its own.
_ANY_BYTES = 2**53 - 1
_SURPLUS = 4
_LARGE_BYTES = 1_000_000
_LEFT_OUT = -3

T = TypeVar("T")


@dataclass
class _Rows:
    """Columns in the making."""

    columns: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in SCHEMA.names})

    def add(self, **values: Any) -> None:
        for name, column in self.columns.items():
            column.append(values.get(name))

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(self.columns, schema=SCHEMA)


class Reader(ABC):
    """Reads sessions of a layout; memory is bounded by a page.

    :param prefix: put before every key.
    """

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._caller = lua.ScriptCaller(client)

    def read(self, clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield what Redis holds of some clients.

        :param clients: client id -> (task, cohort).
        """
        names = list(clients)
        for start in range(0, len(names), _SESSIONS_PER_TRIP):
            yield from self._sessions(names[start : start + _SESSIONS_PER_TRIP], clients)

    @abstractmethod
    def _sessions(self, names: list[str], clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        """Yield what Redis holds of the named ones among the clients."""


def reader_of(layout: Layout) -> type[Reader]:
    """Return what reads sessions of a layout."""
    return TargetReader if layout is Layout.TBMQ else PackedReader


class TargetReader(Reader):
    """Reads sessions in TBMQ's layout as they are, with dead references."""

    def __init__(self, client: RedisClient, *, prefix: str) -> None:
        super().__init__(client, prefix=prefix)
        self._keys_per_trip = _KEYS_PER_CALL

    def _sessions(self, names: list[str], clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        commands: list[tuple[Any, ...]] = []
        for name in names:
            keys = session_keys(name, prefix=self._prefix)
            commands += [
                ("ZRANGE", keys.messages, 0, _REFERENCES_PER_PAGE - 1, "WITHSCORES"),
                ("ZCARD", keys.messages),
                ("GET", keys.last_packet_id),
                ("HMGET", keys.session, "plan", "import", "used"),
            ]
        answers = self._pipeline(commands)
        rows = _Rows()
        references: list[tuple[str, int, bytes, float]] = []
        for index, name in enumerate(names):
            page, count, last_packet_id, (plan, state, used) = answers[4 * index : 4 * index + 4]
            task, cohort = clients[name]
            rows.add(
                task=task, cohort=cohort, client_id=name, kind="session", position=count,
                last_packet_id=_text(last_packet_id), plan=_text(plan), used=used is not None,
                **{"import": _text(state)},
            )  # fmt: skip
            for page_start in range(0, max(count, 1), _REFERENCES_PER_PAGE):
                if page_start:
                    messages = session_keys(name, prefix=self._prefix).messages
                    (page,) = self._pipeline(
                        [("ZRANGE", messages, page_start, page_start + _REFERENCES_PER_PAGE - 1, "WITHSCORES")]
                    )
                references += [
                    (name, page_start + position, member, score)
                    for position, (member, score) in enumerate(_pairs(page))
                ]
                while len(references) >= (trip := self._keys_per_trip):
                    yield from self._messages(references[:trip], clients)
                    references = references[trip:]
        yield from self._messages(references, clients)
        # Taken after the messages were read, so that every message found expired has expired at this instant.
        rows.columns["read_at_ms"] = [max(clocks_ms(self._client))] * len(names)
        yield rows.batch()

    def _messages(
        self, references: list[tuple[str, int, bytes, float]], clients: Mapping[str, tuple[int, int]]
    ) -> Iterator[pa.RecordBatch]:
        if not references:
            return
        rows = _Rows()
        left_out: list[tuple[tuple[str, int, bytes, float], int]] = []
        size_bytes = 0
        for reference, json, expires_at_ms in self._trip(references, bounded=True):
            if expires_at_ms <= _LEFT_OUT:
                size_bytes += _LEFT_OUT - expires_at_ms
                left_out.append((reference, _LEFT_OUT - expires_at_ms))
            else:
                size_bytes += len(json)
                self._add(rows, reference, clients, json=json, expires_at_ms=expires_at_ms)
        fitting = _BYTES_PER_TRIP * len(references) // max(1, size_bytes)
        self._keys_per_trip = max(1, min(_MOST_KEYS_PER_TRIP, fitting, 4 * self._keys_per_trip))
        yield rows.batch()
        for batch in portions(left_out, size=lambda sized: sized[1], most=_BYTES_PER_TRIP):
            rows = _Rows()
            for reference, json, expires_at_ms in self._trip([left for left, _ in batch], bounded=False):
                self._add(rows, reference, clients, json=json, expires_at_ms=expires_at_ms)
            yield rows.batch()

    def _trip(
        self, references: Sequence[tuple[str, int, bytes, float]], *, bounded: bool
    ) -> Iterator[tuple[tuple[str, int, bytes, float], bytes, int]]:
        """Read the messages that references name.

        :param bounded: leave out messages that are much larger than expected.
        """
        calls: list[lua.Call] = []
        start = 0
        while start < len(references):
            end = start
            # A call holds keys of one session, since these share a slot.
            while end < len(references) and end - start < _KEYS_PER_CALL and references[end][0] == references[start][0]:
                end += 1
            most_bytes = _SURPLUS * _BYTES_PER_TRIP * (end - start) // len(references)
            keys = [member for _, _, member, _ in references[start:end]]
            max_bytes = most_bytes if bounded else _ANY_BYTES
            calls.append(scripts.sessions.export_messages(payloads=keys, max_bytes=max_bytes))
            start = end
        replies = self._caller.execute(calls).or_raise()
        records = (
            record for call, reply in zip(calls, replies, strict=True) for record in call.script.read(reply).records
        )
        return ((reference, json, at_ms) for reference, (json, at_ms) in zip(references, records, strict=True))

    def _add(
        self,
        rows: _Rows,
        reference: tuple[str, int, bytes, float],
        clients: Mapping[str, tuple[int, int]],
        *,
        json: bytes,
        expires_at_ms: int,
    ) -> None:
        name, position, member, score = reference
        task, cohort = clients[name]
        stem = payload_key(name, "", prefix=self._prefix).encode()
        content = _without_payload(json) if len(json) > _LARGE_BYTES else {"json": _text(json) if json else None}
        rows.add(
            task=task, cohort=cohort, client_id=name, kind="message", position=position, serial_number=score,
            key_packet_id=_text(member[len(stem) :]) if member.startswith(stem) else None,
            expires_at_ms=expires_at_ms, **content,
        )  # fmt: skip

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

    :param serials: of the messages that are not read yet.
    :param position: number of messages that are.
    """

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

    def _sessions(self, names: list[str], clients: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
        sessions: list[_Packed] = []
        self._carry_out(together(self._begin_reading(name, sessions) for name in names))
        rows = _Rows()
        for each in sessions:
            task, cohort = clients[each.name]
            last, plan, progress = each.state.given_packet_id, each.state.plan, each.state.progress
            rows.add(
                task=task, cohort=cohort, client_id=each.name, kind="session", position=each.state.messages,
                last_packet_id=None if last is None else str(last), plan=_text(plan or None),
                used=each.state.is_noted_used, read_at_ms=each.state.now_ms, **{"import": _text(progress or None)},
            )  # fmt: skip
        yield rows.batch()
        while sessions := [each for each in sessions if each.serials]:
            for some in portions(sessions, size=lambda each: each.size_bytes, most=_BYTES_PER_TRIP):
                self._carry_out(together(self._read_on(each) for each in some))
                rows = _Rows()
                for each in some:
                    for serial, record in each.records:
                        if record is not None:
                            self._add(rows, each, clients, serial=serial, record=record)
                yield rows.batch()

    def _begin_reading(self, name: str, sessions: list[_Packed]) -> Steps[None]:
        keys = self._keys(name)
        state = yield from self._read_session(keys)
        sessions.append(_Packed(name, keys, state, (yield from self._serials(keys, state))))

    def _read_on(self, session: _Packed) -> Steps[None]:
        session.records = yield from self._records(
            session.keys, session.state, session.serials, max_bytes=_BYTES_PER_TRIP
        )
        session.serials = session.serials[len(session.records) :]

    def _add(
        self, rows: _Rows, session: _Packed, clients: Mapping[str, tuple[int, int]], *, serial: int, record: bytes
    ) -> None:
        task, cohort = clients[session.name]
        ends_ms = packed_record.expires_at_ms(record)
        content: dict[str, str | None] = {"json": "{}", "payload_hash": "", "key_packet_id": None}
        if ends_ms is not None and ends_ms <= session.state.now_ms:
            content = {"json": None}
        else:
            with suppress(UnreadableError):
                fields, payload = packed_record.fields_of(record)
                # TBMQ's JSON, in which both sides are compared, knows no longer interval.
                if "msgExpiryInterval" in fields:
                    fields["msgExpiryInterval"] = min(fields["msgExpiryInterval"], MAX_INTERVAL_S)
                content = {
                    "json": orjson.dumps(fields | {"clientId": session.name, "payload": ""}).decode(),
                    "payload_hash": hashlib.sha256(payload).hexdigest(),
                    "key_packet_id": str(fields["packetId"]),
                }
        rows.add(
            task=task, cohort=cohort, client_id=session.name, kind="message", position=session.position,
            serial_number=float(serial), expires_at_ms=ends_ms, json_hash=hashlib.sha256(record).hexdigest(), **content,
        )  # fmt: skip
        session.position += 1

    def _carry_out(self, operation: Operation[None]) -> None:
        with suppress(StopIteration):
            step = next(operation)
            while True:
                step = operation.send(self._caller.execute(step))


def _without_payload(json: bytes) -> dict[str, str]:
    """Return a large message with hashes in place of its payload; empty values when it is unreadable."""
    found = {"json": "{}", "json_hash": hashlib.sha256(json).hexdigest(), "payload_hash": ""}
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        return found
    if isinstance(fields, dict):
        with suppress(KeyError, TypeError, ValueError):
            found["payload_hash"] = hashlib.sha256(b64decode(fields["payload"], validate=True)).hexdigest()
        found["json"] = orjson.dumps(fields | {"payload": ""}).decode()
    return found


def _pairs(page: list[Any]) -> list[tuple[bytes, float]]:
    """Return references with their scores; redis-py answers in pairs or flat, depending on the command's options."""
    if page and not isinstance(page[0], bytes):
        return [(member, float(score)) for member, score in page]
    return [(member, float(score)) for member, score in zip(page[::2], page[1::2], strict=True)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
