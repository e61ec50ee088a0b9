"""Judges rows and builds what Redis will hold, column by column on Arrow's arrays, where rows are read."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.sessions import judge
from queuekeeper.sessions.judge import MAX_TIME_MS, Reason
from queuekeeper.sessions.packed_record import HAS_INTERVAL, KINDS, META_BYTES, RETAIN
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.wire import MAX_INTERVAL_S, json_bytes

Mask = NDArray[np.bool_]

_ESCAPED = r'["\\\x00-\x1f]'
"""Characters that JSON does not hold as they are."""

(_PAIRS,) = (rule for rule in judge.RULES if isinstance(rule, judge.Pairs))

LIFE_COLUMNS = ("time", "msg_expiry_interval")
"""Columns from which the end of a life follows."""

_IDENTITY = {"client_id": "string", "serial_number": "bigint", "packet_id": "int"}
_VERDICT = {"reason": "string", "expires_at_ms": "bigint"}
PLACE = {"slot": "int", "cohort": "int", "task": "int"}
"""What the reader adds to each row: where its client belongs."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What becomes of a batch before Spark sees it.

    :param columns: column name -> Spark type of the result, without slot, cohort and task.
    :param work: gets a batch with its slot, cohort and task, and returns one that has the columns and these three.
    """

    columns: dict[str, str]
    work: Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, kw_only=True)
class Judging:
    """What the verdict on a row depends on, besides the row.

    :param default_ttl_s: life of a message without an expiry interval.
    :param clustered: whether the target is a cluster, which cannot serve an id that begins with a closing brace.
    :param layout: how messages are stored; no verdict depends on it.
    """

    default_ttl_s: int
    clustered: bool
    layout: Layout = Layout.TBMQ

    def messages(self, columns: dict[str, str]) -> Step:
        """Add ``reason`` and ``expires_at_ms`` to messages of these columns."""
        return Step(columns=columns | _VERDICT, work=self._judged)

    def sessions(self, columns: dict[str, str]) -> Step:
        """Add ``reason`` to sessions of these columns."""
        return Step(columns=columns | {"reason": "string"}, work=self._judged_sessions)

    def sizes(self, *, prefix: str) -> Step:
        """Return messages as a plan counts them, with the bytes of key and value, from ``payload_bytes``."""
        sizes = {"payload_bytes": "int", "key_bytes": "int", "value_bytes": "bigint"}
        return Step(columns=_IDENTITY | _VERDICT | sizes, work=partial(self._sized, prefix))

    def fragments(self, *, prefix: str, as_of_ms: int) -> Step:
        """Return messages as the import sends them, ready to be concatenated.

        Each message that lives at the plan's instant carries its part of KEYS and ARGV in the Redis protocol's form; a
        packed session has no part of KEYS.
        The rows of a client come to lie one behind the other in Arrow's buffers, so a call is a header and two slices,
        without work in Python per row (``docs/adr``, 0003).
        """
        parts = {"keys_part": "string", "args_part": "string" if self.layout is Layout.TBMQ else "binary"}
        return Step(columns=_IDENTITY | _VERDICT | parts, work=partial(self._built, prefix, as_of_ms))

    def _judged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._with_verdict(batch, _Properties.of(batch))

    def _with_verdict(self, batch: pa.RecordBatch, properties: _Properties) -> pa.RecordBatch:
        broken = [(rule.reason, _breaks(rule, batch, properties)) for rule in judge.RULES]
        return batch.append_column("reason", _first([*self._of_client(batch), *broken])).append_column(
            "expires_at_ms", expires_at_ms(batch, default_ttl_s=self.default_ttl_s)
        )

    def _judged_sessions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        last = batch.column("last_packet_id")
        # A session without a counter is sound.
        bad = ~_mask(_between(last, 0, MAX_PACKET_ID), null=True)
        reason = _first([*self._of_client(batch), (Reason.LAST_PACKET_ID_OUT_OF_RANGE, bad)])
        return batch.append_column("reason", reason)

    def _of_client(self, batch: pa.RecordBatch) -> list[tuple[Reason, Mask]]:
        encoded = batch.column("client_id").dictionary_encode()
        found = [judge.client_defect(name, clustered=self.clustered) for name in encoded.dictionary.to_pylist()]
        index = encoded.indices.to_numpy(zero_copy_only=False)
        return [
            (reason, np.fromiter((defect is reason for defect in found), np.bool_, len(found))[index])
            for reason in sorted({defect for defect in found if defect is not None})
        ]

    def _sized(self, prefix: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        properties = _Properties.of(batch)
        judged = self._with_verdict(batch, properties)
        payload_bytes = pc.cast(batch.column("payload_bytes"), pa.int64())
        if self.layout is Layout.TBMQ:
            key = _payload_key(batch, prefix=prefix)
            rest = _message_json(batch, properties, payload="")
            # Base64 makes four bytes of three.
            payload_bytes = pc.multiply(pc.divide(pc.add(payload_bytes, 2), 3), 4)
        else:
            key, rest = _text(batch.column("serial_number")), _record(judged, properties, payload=b"")
        size = pc.add(pc.cast(pc.binary_length(rest), pa.int64()), payload_bytes)
        return judged.append_column("key_bytes", pc.binary_length(key)).append_column("value_bytes", size)

    def _built(self, prefix: str, as_of_ms: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        judged = self._judged(batch)
        live = pc.and_(pc.is_null(judged.column("reason")), pc.greater(judged.column("expires_at_ms"), as_of_ms))
        sent = _mask(live, null=False)
        waits = judged.filter(pa.array(sent))
        properties, serials = _Properties.of(waits), _bulk(_text(waits.column("serial_number")))
        if self.layout is Layout.TBMQ:
            keys = _bulk(_payload_key(waits, prefix=prefix))
            json = _message_json(waits, properties, payload=_base64(waits.column("payload")))
            args = pc.binary_join_element_wise(serials, _bulk(_text(waits.column("expires_at_ms"))), _bulk(json), "")
        else:
            keys = pa.repeat("", waits.num_rows)
            record = _record(waits, properties, payload=waits.column("payload"))
            args = pc.binary_join_element_wise(serials.cast(pa.binary()), _bulk(record), b"")
        kept = [name for name in judged.schema.names if name in _IDENTITY | _VERDICT | PLACE]
        place = pa.array(np.cumsum(sent) - 1, mask=~sent)
        built = judged.select(kept).append_column("keys_part", keys.take(place))
        return built.append_column("args_part", args.take(place))


@dataclass(frozen=True, kw_only=True)
class _Properties:
    """User properties of a batch, each distinct text read once, by the one reader that there is.

    :param index: place of each row's text.
    :param pairs: the pairs of each text, or ``judge.UNREADABLE`` where the text breaks their rule.
    """

    index: NDArray[np.int64]
    pairs: list[Any]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> _Properties:
        encoded = batch.column("user_properties").dictionary_encode(null_encoding="encode")
        return cls(
            index=encoded.indices.to_numpy(zero_copy_only=False),
            pairs=[
                judge.UNREADABLE if _PAIRS.breaks({_PAIRS.column: pairs}) else pairs
                for pairs in map(judge.pairs_of, encoded.dictionary.to_pylist())
            ],
        )

    def broken(self) -> Mask:
        """Return which rows break the rule."""
        found = (pairs is judge.UNREADABLE for pairs in self.pairs)
        return np.fromiter(found, np.bool_, len(self.pairs))[self.index]

    def packet_bytes(self) -> NDArray[np.int64]:
        """Return what each row's pairs add to a packet; what is unreadable adds nothing."""
        sizes = (0 if pairs is judge.UNREADABLE else judge.Packet.pair_bytes(pairs) for pairs in self.pairs)
        return np.fromiter(sizes, np.int64, len(self.pairs))[self.index]

    def json(self) -> pa.Array:
        """Return each row's member of the message's JSON; null where there are no pairs."""
        members = [
            None
            if pairs is judge.UNREADABLE or not pairs
            else b',"userProperties":%s' % json_bytes({"props": [{"k": name, "v": value} for name, value in pairs]})
            for pairs in self.pairs
        ]
        return pa.array(members, pa.string()).take(pa.array(self.index))


def facts(
    *, columns: dict[str, str], default_ttl_s: int, left_out: Sequence[str] = (), bad: Sequence[Reason] = ()
) -> Step:
    """Add to messages when they end (``ends``), and whether they break one of the rules of ``bad`` (``unreadable``).

    :param left_out: columns that nobody needs afterwards.
    """

    def add(batch: pa.RecordBatch) -> pa.RecordBatch:
        known = batch.append_column("ends", expires_at_ms(batch, default_ttl_s=default_ttl_s))
        return known.append_column("unreadable", _unreadable(batch, bad)) if bad else known

    kept = {name: kind for name, kind in columns.items() if name not in left_out}
    return Step(columns=kept | {"ends": "bigint"} | ({"unreadable": "boolean"} if bad else {}), work=add)


def _unreadable(batch: pa.RecordBatch, reasons: Sequence[Reason]) -> pa.Array:
    """Return which messages break one of the rules that have these reasons."""
    properties = _Properties.of(batch)
    rules = [rule for rule in judge.RULES if rule.reason in reasons]
    return pa.array(np.logical_or.reduce([_breaks(rule, batch, properties) for rule in rules]))


def expires_at_ms(batch: pa.RecordBatch, *, default_ttl_s: int) -> pa.Array:
    """Return the instant at which each message's life ends.

    The expiry interval counts from the message's own time, so a copy never lengthens a life. It is an unsigned integer
    of four bytes (MQTT 5 section 3.3.2.3.3), which the source keeps in a signed column: a negative value is a very long
    interval. Null where the time is out of range.
    """
    time = batch.column("time")
    in_range = pc.fill_null(_between(time, 0, MAX_TIME_MS), fill_value=False)
    life_ms = pc.multiply(pc.fill_null(_interval_s(batch), default_ttl_s), 1000)
    return pc.if_else(in_range, pc.add(pc.if_else(in_range, time, 0), life_ms), pa.scalar(None, pa.int64()))


def _interval_s(batch: pa.RecordBatch) -> pa.Array:
    """Return the publisher's expiry interval as MQTT means it; null when none was set."""
    signed = pc.cast(batch.column("msg_expiry_interval"), pa.int64())
    return pc.if_else(pc.less(signed, 0), pc.add(signed, 2**32), signed)


def _breaks(rule: judge.Rule, batch: pa.RecordBatch, properties: _Properties) -> Mask:
    """Return which messages break one of the rules."""
    match rule:
        case judge.NotEmpty():
            return _mask(pc.equal(pc.binary_length(batch.column(rule.column)), 0), null=True)
        case judge.OneOf():
            return ~_mask(pc.is_in(batch.column(rule.column), pa.array(rule.allowed)), null=False)
        case judge.Bounds():
            # PostgreSQL's texts hold neither a zero character nor half a surrogate pair.
            is_number = rule.measure == "number"
            values = batch.column(rule.column) if is_number else _size(batch, rule.column)
            return ~_mask(_between(values, rule.least, rule.most), null=rule.optional)
        case judge.Pairs():
            return properties.broken()
        case judge.Packet():
            sizes = [_size(batch, name) for name in ("payload", "correlation_data", *judge.PACKET_TEXTS)]
            total = properties.packet_bytes() + judge.PACKET_FIXED_BYTES
            for size in sizes:
                total = total + pc.fill_null(pc.cast(size, pa.int64()), 0).to_numpy(zero_copy_only=False)
            return np.asarray(total > rule.most_bytes)


def _size(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the bytes of a column's values; they come from the source where it sends a hash or nothing instead."""
    measured = f"{name}_bytes"
    return batch.column(measured) if measured in batch.schema.names else pc.binary_length(batch.column(name))


def _between(values: pa.Array, least: int, most: int) -> pa.Array:
    wide = pc.cast(values, pa.int64())
    return pc.and_(pc.greater_equal(wide, least), pc.less_equal(wide, most))


def _mask(values: pa.Array, *, null: bool) -> Mask:
    """Return truth values for numpy.

    :param null: what a null counts as.
    """
    found: Mask = pc.fill_null(values, null).to_numpy(zero_copy_only=False)
    return found


def _first(broken: Sequence[tuple[Reason, Mask]]) -> pa.Array:
    """Return the first reason that holds for each row; null where none does."""
    reasons = [reason.value for reason, _ in broken]
    index = np.full(len(broken[0][1]), -1)
    for number, (_, mask) in reversed(list(enumerate(broken))):
        index[mask] = number
    return pa.array(reasons).take(pa.array(index, mask=index < 0))


def _message_json(batch: pa.RecordBatch, properties: _Properties, *, payload: pa.Array | str) -> pa.Array:
    """Return messages as TBMQ 2.x writes them: its field names only, absent values left out.

    :param payload: in Base64, or a stand-in when only the length of the rest matters.
    """

    def text(name: str) -> pa.Array:
        return _escaped(batch.column(name))

    def number(name: str) -> pa.Array:
        return _text(batch.column(name))

    optional = [
        properties.json(),
        _member("msgExpiryInterval", _text(pc.min_element_wise(_interval_s(batch), MAX_INTERVAL_S, skip_nulls=False))),
        *_rare_members(batch),
    ]
    retained = pc.if_else(pc.fill_null(batch.column("retain"), fill_value=False), "true", "false")
    return pc.binary_join_element_wise(
        '{"clientId":"', text("client_id"), '","topicName":"', text("topic"), '","time":', number("time"),
        ',"qos":', number("qos"), ',"packetId":', number("packet_id"),
        ',"packetType":"', text("packet_type"), '","payload":"', payload, '","retained":', retained,
        *(each for each in optional if each.null_count < len(each)), "}", "",
        null_handling="replace", null_replacement="",
    )  # fmt: skip


def _rare_members(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return members of a message's JSON that few messages have, each with a comma before it; null where absent."""
    return [
        _member("payloadFormatIndicator", _text(batch.column("payload_format_indicator"))),
        _member("contentType", _escaped(batch.column("content_type")), '"'),
        _member("responseTopic", _escaped(batch.column("response_topic")), '"'),
        _member("correlationData", _base64(batch.column("correlation_data")), '"'),
    ]


def _member(name: str, value: pa.Array, quote: str = "") -> pa.Array:
    return pc.binary_join_element_wise(f',"{name}":{quote}', value, quote, "")


_RECORD_HEAD = np.dtype(
    [
        ("packet_id", ">u2"), ("expires_at_ms", ">f8"), ("kind", "u1"), ("size", ">u4"), ("time", ">u8"),
        ("flags", "u1"), ("topic_bytes", ">u2"),
    ]
)  # fmt: skip
"""Head of a packed session's record, see :mod:`queuekeeper.sessions.packed_record`; a generated test compares both."""


def _record(batch: pa.RecordBatch, properties: _Properties, *, payload: pa.Array | bytes) -> pa.Array:
    """Return messages as records of a packed session.

    :param payload: the payloads, or a stand-in when only the length of the rest matters.
    """
    members = [each for each in (properties.json(), *_rare_members(batch)) if each.null_count < len(each)]
    rest = pa.repeat(b"", batch.num_rows)
    if members:
        joined = pc.binary_join_element_wise(*members, "", null_handling="replace", null_replacement="")
        some = pc.binary_join_element_wise("{", pc.utf8_slice_codeunits(joined, 1), "}", "")
        rest = pc.if_else(pc.equal(joined, ""), "", some).cast(pa.binary())
    interval_s = _interval_s(batch)
    has_interval = _mask(pc.is_valid(interval_s), null=False)
    topic = batch.column("topic").cast(pa.binary())
    topic_bytes = _sizes(topic)
    retained = _mask(batch.column("retain"), null=False)
    head = np.zeros(batch.num_rows, _RECORD_HEAD)
    head["packet_id"] = _values(batch.column("packet_id"))
    head["expires_at_ms"] = _values(batch.column("expires_at_ms"))
    head["kind"] = _values(pc.index_in(batch.column("packet_type"), pa.array(list(KINDS)))) + 1
    head["size"] = META_BYTES + 4 * has_interval + topic_bytes + _sizes(rest)
    head["time"] = _values(batch.column("time"))
    head["flags"] = _values(batch.column("qos")) + RETAIN * retained + HAS_INTERVAL * has_interval
    head["topic_bytes"] = topic_bytes
    interval = _fixed(_values(interval_s).astype(">u4"))
    return pc.binary_join_element_wise(
        _fixed(head), pc.if_else(pa.array(has_interval), interval, b""), topic, rest, payload, b"",
        null_handling="replace", null_replacement=b"",
    )  # fmt: skip


def _sizes(values: pa.Array) -> NDArray[np.int64]:
    return _values(pc.binary_length(values))


def _values(numbers: pa.Array) -> NDArray[np.int64]:
    """Return numbers for numpy, 0 for null: rows that break a rule are measured before they are left out."""
    found: NDArray[np.int64] = pc.fill_null(pc.cast(numbers, pa.int64()), 0).to_numpy(zero_copy_only=False)
    return found


def _fixed(values: NDArray[Any]) -> pa.Array:
    """Return the bytes of each of numpy's values."""
    kind = pa.binary(values.dtype.itemsize)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(values), [None, pa.py_buffer(values)]).cast(pa.binary())


def _payload_key(batch: pa.RecordBatch, *, prefix: str) -> pa.Array:
    """Return the Redis keys of the payloads; see :func:`queuekeeper.keyspace.payload_key`."""
    return pc.binary_join_element_wise(
        f"{prefix}{{", batch.column("client_id"), "}_messages_", _text(batch.column("packet_id")), ""
    )


def _text(numbers: pa.Array) -> pa.Array:
    return pc.cast(numbers, pa.string())


def _bulk(texts: pa.Array) -> pa.Array:
    """Return texts or bytes as the Redis protocol's bulk strings."""
    sizes = _text(pc.binary_length(texts)).cast(texts.type)
    dollar, end, nothing = (pa.scalar(each, texts.type) for each in ("$", "\r\n", ""))
    return pc.binary_join_element_wise(dollar, sizes, end, texts, end, nothing)


def _escaped(texts: pa.Array) -> pa.Array:
    """Return texts as they stand between the quotes of JSON."""
    if not pc.any(pc.match_substring_regex(texts, _ESCAPED)).as_py():
        return texts
    return pa.array([None if text is None else json_bytes(text)[1:-1] for text in texts.to_pylist()], pa.string())


def _base64(values: pa.Array) -> pa.Array:
    if values.null_count == len(values):
        return pa.nulls(len(values), pa.string())
    found = (None if value is None else b2a_base64(value, newline=False) for value in values.to_pylist())
    return pa.array(found, pa.string(), size=len(values))
