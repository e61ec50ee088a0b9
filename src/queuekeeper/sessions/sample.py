"""Fills the vendor's tables with sample sessions and messages, healthy or hostile, made from a seed."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.clock import DAY_MS
from queuekeeper.errors import RefusedError, SchemaMismatch, UsageError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.postgres import Connection, address, server_words, translated_errors
from queuekeeper.sessions.hostile import hostile_rows
from queuekeeper.sessions.sample_parameters import MAX_QUEUE, SampleParameters
from queuekeeper.sql_statements import statement

Integers = NDArray[np.int64]

BATCH_ROWS = 20_000
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_COPY_TRAILER = struct.pack(">h", -1)
_MESSAGE_TYPES = (
    "varchar", "int8", "varchar", "int8", "int4", "varchar", "int4", "bytea", "varchar", "bool", "int4", "int4",
    "varchar", "varchar", "bytea",
)  # fmt: skip
_SESSION_TYPES = ("varchar", "int8", "int8", "int4")


@dataclass(frozen=True, kw_only=True)
class SampleReport:
    """What a sample wrote.

    :param messages: rows of ``device_publish_msg``.
    :param sessions: rows of ``device_session_ctx``.
    :param clients: clients with messages.
    :param longest_queue: most messages of one client.
    :param hostile: hostile rows by kind, without their healthy neighbours.
    :param payload_bytes: bytes of all payloads.
    :param seconds: wall-clock time of the fill.
    """

    messages: int
    sessions: int
    clients: int
    longest_queue: int
    hostile: dict[str, int] = field(default_factory=dict)
    payload_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Healthy:
    """Healthy sessions and messages as columns, messages in the order of the table; batches draw the payloads."""

    client_ids: list[str]
    last_updated_time: Integers
    last_serial: Integers
    last_packet_id: Integers
    owner: Integers
    serial: Integers
    time: Integers
    packet_id: Integers
    counts: Integers


def fill(connection: Connection, parameters: SampleParameters) -> SampleReport:
    """Fill the vendor's tables in one transaction.

    :raises RefusedError: when the tables hold rows and ``replace`` is false.
    :raises SchemaMismatch: when the tables are missing and ``create_schema`` is false.
    :raises UsageError: when there are too few sessions for the messages.
    """
    started = time.perf_counter()
    healthy = _healthy(parameters)
    messages, sessions = hostile_rows(parameters) if parameters.hostile else ([], [])
    payload_bytes = sum(len(message.payload) for message in messages)
    advice = "these are not the tables of TBMQ 1.4; use an empty database"
    with (
        translated_errors(connection, missing=advice),
        connection.transaction(),
        connection.cursor() as cursor,
    ):
        _make_room(connection, parameters)
        with cursor.copy(statement("sessions/load_messages")) as copy:
            copy.write(_COPY_HEADER)
            for stream, size in _message_batches(healthy, parameters):
                copy.write(stream)
                payload_bytes += size
            copy.write(_COPY_TRAILER)
        with cursor.copy(statement("sessions/load_sessions")) as copy:
            copy.write(_COPY_HEADER)
            for stream in _session_batches(healthy):
                copy.write(stream)
            copy.write(_COPY_TRAILER)
        _copy_rows(cursor, "sessions/load_messages", _MESSAGE_TYPES, [message.row() for message in messages])
        _copy_rows(cursor, "sessions/load_sessions", _SESSION_TYPES, [session.row() for session in sessions])
        cursor.execute(statement("sessions/analyze_source"))
    kinds: dict[str, int] = {}
    queues: dict[str, int] = {}
    for message in messages:
        queues[message.client_id] = queues.get(message.client_id, 0) + 1
    for kind in [*(message.kind for message in messages), *(session.kind for session in sessions)]:
        if kind is not None:
            kinds[kind] = kinds.get(kind, 0) + 1
    return SampleReport(
        messages=len(healthy.owner) + len(messages),
        sessions=len(healthy.client_ids) + len(sessions),
        clients=int(np.count_nonzero(healthy.counts)) + len(queues),
        longest_queue=max(int(healthy.counts.max(initial=0)), max(queues.values(), default=0)),
        hostile=dict(sorted(kinds.items())),
        payload_bytes=payload_bytes,
        seconds=time.perf_counter() - started,
    )


def _make_room(connection: Connection, parameters: SampleParameters) -> None:
    if parameters.create_schema:
        connection.execute(statement("sessions/vendor_schema"))
    try:
        row = connection.execute(statement("sessions/source_has_rows")).fetchone()
    except psycopg.errors.UndefinedTable as error:
        raise SchemaMismatch(
            f"PostgreSQL at {address(connection)} lacks the tables of TBMQ 1.4 ({server_words(error)}): "
            "let the sample create them (create_schema=True), or name the right database"
        ) from error
    if row is not None and row[0]:
        if not parameters.replace:
            raise RefusedError(
                f"device_publish_msg or device_session_ctx at {address(connection)} holds rows: "
                "a sample fills empty tables only; use another database, or replace the rows (--replace)"
            )
        connection.execute(statement("sessions/empty_source"))


def _copy_rows(
    cursor: psycopg.Cursor[tuple[Any, ...]], name: str, types: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    if not rows:
        return
    with cursor.copy(statement(name)) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)


# --- healthy rows ----------------------------------------------------------------------------------------------


def _healthy(parameters: SampleParameters) -> _Healthy:
    """Draw all numbers; the batches draw the values of varying length."""
    rng = np.random.default_rng([parameters.seed, 0])
    sessions, messages = parameters.sessions, parameters.messages
    counts = _queue_lengths(rng, parameters)
    owner = np.repeat(np.arange(sessions), counts)
    begins = np.cumsum(counts) - counts

    # Most messages are recent; some are older than the default life of seven days.
    age_ms = np.minimum(rng.exponential(2.2 * DAY_MS, messages), 9 * DAY_MS) + rng.uniform(1_000, 60_000, messages)
    times = (parameters.now_ms - age_ms).astype(np.int64)
    times = times[np.lexsort((times, owner))]

    # Acknowledged messages leave gaps; the vendor's broker counts serial and packet id together.
    steps = np.where(rng.random(messages) < 0.05, rng.integers(2, 5, messages), 1).astype(np.int64)
    grown = np.cumsum(steps)
    has = counts > 0
    base = np.zeros(sessions, np.int64)
    base[has] = grown[begins[has]]
    offset = grown - base[owner]
    first_serial = rng.integers(0, 1_000_000, sessions)
    first_packet = rng.integers(0, MAX_PACKET_ID, sessions)
    wraps = (rng.random(sessions) < 0.1) & (counts > 1)
    first_packet[wraps] = MAX_PACKET_ID - rng.integers(1, counts[wraps])
    serial = first_serial[owner] + offset
    packet_id = (first_packet[owner] + offset) % MAX_PACKET_ID + 1

    last_offset = np.zeros(sessions, np.int64)
    last_time = parameters.now_ms - rng.integers(DAY_MS, 20 * DAY_MS, sessions)
    ends = begins[has] + counts[has] - 1
    last_offset[has] = offset[ends]
    last_time[has] = times[ends]
    # The newest message may have been acknowledged.
    last_offset += np.where(rng.random(sessions) < 0.2, rng.integers(1, 4, sessions), 0)

    order = rng.permutation(messages) if parameters.hostile else np.argsort(times, kind="stable")
    width = max(6, len(str(sessions - 1)))
    return _Healthy(
        client_ids=[f"sample-{number:0{width}d}" for number in range(sessions)],
        last_updated_time=last_time,
        last_serial=first_serial + last_offset,
        last_packet_id=(first_packet + last_offset) % MAX_PACKET_ID + 1,
        owner=owner[order],
        serial=serial[order],
        time=times[order],
        packet_id=packet_id[order],
        counts=counts,
    )


def _queue_lengths(rng: np.random.Generator, parameters: SampleParameters) -> Integers:
    sessions, messages = parameters.sessions, parameters.messages
    counts = np.zeros(sessions, np.int64)
    long_queues = min(parameters.long_queues, messages // 2 // parameters.long_queue_messages, sessions - 1)
    # The choice is random, so that long queues do not share a range of hash slots or one end of the table.
    order = rng.permutation(sessions)
    counts[order[:long_queues]] = parameters.long_queue_messages
    others = order[long_queues : max(long_queues + 1, sessions - sessions // 5)]
    weights = rng.lognormal(0.0, 1.0, len(others))
    counts[others] += rng.multinomial(messages - int(counts.sum()), weights / weights.sum())
    if counts.max() > MAX_QUEUE:
        raise UsageError(
            f"{messages} messages are too many for {sessions} sessions: a queue would hold {counts.max()} messages, "
            f"over {MAX_QUEUE}; raise the number of sessions"
        )
    return counts


def _message_batches(healthy: _Healthy, parameters: SampleParameters) -> Iterator[tuple[memoryview, int]]:
    """Yield rows in COPY's binary format, and the bytes of payload that they hold.

    Every value becomes an element of an Arrow column that includes COPY's length word. Joining the columns element by
    element then gives the byte stream without a Python object per row.
    """
    pools = _Pools(np.random.default_rng([parameters.seed, 1]))
    # The number of columns comes before the first of them.
    clients = _pieces([client_id.encode() for client_id in healthy.client_ids], before=struct.pack(">h", 15))
    for number, begin in enumerate(range(0, len(healthy.owner), BATCH_ROWS)):
        rng = np.random.default_rng([parameters.seed, 2, number])
        rows = slice(begin, begin + BATCH_ROWS)
        owner = healthy.owner[rows]
        count = len(owner)
        text = rng.random(count) < 0.5
        payloads, payload_bytes = _payloads(rng, pools.texts, text)
        second = rng.random(count) < 0.3
        released = second & (rng.random(count) < 0.15)
        # A tenth of the rows has every property of MQTT 5, a third has some, the rest has none.
        share = rng.random(count)

        def some(pool: pa.Array, probability: float) -> pa.Array:
            """Pick values; entry 0 of a pool is null."""
            chosen = (share < 0.1) | ((share < 0.43) & (rng.random(count) < probability))  # noqa: B023 - used at once
            return pool.take(pa.array(np.where(chosen, rng.integers(1, len(pool), count), 0)))  # noqa: B023

        formats = some(pools.format_indicators, 0.4)
        yield (
            _join(
                clients.take(pa.array(owner)),
                _int8(healthy.serial[rows]),
                pools.topics.take(pa.array((owner * 7 + rng.integers(0, 3, count)) % len(pools.topics))),
                _int8(healthy.time[rows]),
                _int4(healthy.packet_id[rows]),
                pools.packet_types.take(pa.array(released.astype(np.int8))),
                _int4(1 + second.astype(np.int64)),
                payloads,
                some(pools.user_properties, 0.6),
                pools.booleans.take(pa.array((rng.random(count) < 0.05).astype(np.int8))),
                some(pools.expiries, 0.8),
                formats,
                some(pools.content_types, 0.5),
                some(pools.response_topics, 0.3),
                some(pools.correlations, 0.3),
            ),
            payload_bytes,
        )


def _session_batches(healthy: _Healthy) -> Iterator[memoryview]:
    head = struct.pack(">h", 4)
    for begin in range(0, len(healthy.client_ids), BATCH_ROWS):
        rows = slice(begin, begin + BATCH_ROWS)
        yield _join(
            _pieces([client_id.encode() for client_id in healthy.client_ids[rows]], before=head),
            _int8(healthy.last_updated_time[rows]),
            _int8(healthy.last_serial[rows]),
            _int4(healthy.last_packet_id[rows]),
        )


class _Pools:
    """Values that many rows share, each with its length word; in columns that may be null, entry 0 is null."""

    def __init__(self, rng: np.random.Generator) -> None:
        def number(below: int) -> int:
            return int(rng.integers(below))

        kinds = ["telemetry", "attributes", "commands", "alerts", "état", "日本"]
        self.topics = _pieces(
            [f"site/{number(40)}/device/{number(5_000)}/{kinds[number(len(kinds))]}".encode() for _ in range(2_000)]
        )
        self.packet_types = _pieces([b"PUBLISH", b"PUBREL"])
        self.booleans = _pieces([b"\0", b"\1"])
        self.texts = _pieces(
            [
                _compact(
                    {"ts": 1_700_000_000_000 + number(10**9), "temperature": number(400) / 10, "room": "küche ☕"}
                    | {f"reading{index}": number(10**6) / 1_000 for index in range(number(18))}
                )
                for _ in range(2_000)
            ]
        )
        names = ["trace", "region", "tenant", "schema", "clé", "重要", "empty", "quote"]
        values = ["", "eu-west", 'a"b\\c', "☕", "x" * 200, "plain", "0", "null"]
        self.user_properties = _pieces(
            [
                None,
                *(
                    # Names may repeat, and their order counts (MQTT 5 section 3.3.2.3.7).
                    _compact(
                        {
                            "props": [
                                {"k": names[number(len(names))], "v": values[number(len(values))] + str(number(100))}
                                for _ in range(1 + number(5))
                            ]
                        }
                    )
                    for _ in range(500)
                ),
            ]
        )
        seconds = [30, 60, 600, 3_600, 21_600, 86_400, 259_200, 604_800, 1_209_600, 2_592_000, 31_536_000, 2**31 - 1]
        self.expiries = _pieces([None, *(struct.pack(">i", value) for value in seconds)])
        self.format_indicators = _pieces([None, struct.pack(">i", 0), struct.pack(">i", 1)])
        self.content_types = _pieces(
            [None, b"application/json", b"application/octet-stream", b"text/plain; charset=utf-8", b"application/cbor"]
        )
        self.response_topics = _pieces([None, *(f"reply/{number(5_000)}/answer".encode() for _ in range(200))])
        self.correlations = _pieces([None, *(rng.bytes(1 + number(32)) for _ in range(500))])


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _payloads(rng: np.random.Generator, texts: pa.Array, text: NDArray[np.bool_]) -> tuple[pa.Array, int]:
    """Return payloads with their length words, and their total bytes: half JSON, half random of about 200 bytes."""
    count = len(text)
    sizes = np.clip(rng.lognormal(np.log(200), 0.8, count), 1, 4_000).astype(np.int64)
    large = rng.random(count) < 0.005
    sizes[large] = rng.integers(4_096, 24_576, int(large.sum()))
    sizes = sizes[~text]
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes + 4, out=offsets[1:])
    data = np.frombuffer(bytearray(rng.bytes(int(offsets[-1]))), np.uint8)
    words = sizes.astype(">i4").view(np.uint8).reshape(-1, 4)
    data[offsets[:-1, None] + np.arange(4)] = words
    binary = pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    index = np.empty(count, np.int64)
    index[text] = rng.integers(0, len(texts), int(text.sum()))
    index[~text] = len(texts) + np.arange(len(sizes))
    chosen = pa.concat_arrays([texts, binary]).take(pa.array(index))
    return chosen, int(pc.sum(pc.binary_length(chosen)).as_py() or 0) - 4 * count


def _pieces(values: Sequence[bytes | None], *, before: bytes = b"") -> pa.Array:
    """Return values with COPY's length word in front; the word of null is -1."""
    return pa.array(
        [
            before + (struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value)
            for value in values
        ],
        pa.binary(),
    )


def _int8(values: Integers) -> pa.Array:
    return _numbers(values, np.dtype([("size", ">i4"), ("value", ">i8")]))


def _int4(values: Integers) -> pa.Array:
    return _numbers(values, np.dtype([("size", ">i4"), ("value", ">i4")]))


def _numbers(values: Integers, layout: np.dtype[np.void]) -> pa.Array:
    cells = np.empty(len(values), layout)
    cells["size"] = layout.itemsize - 4
    cells["value"] = values
    fixed = pa.Array.from_buffers(pa.binary(layout.itemsize), len(cells), [None, pa.py_buffer(cells)])
    return fixed.cast(pa.binary())


def _join(*columns: pa.Array) -> memoryview:
    rows = pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))
    _, offsets, data = rows.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(rows) + 1, rows.offset * 4)
    return memoryview(data)[int(bounds[0]) : int(bounds[-1])]
