"""Answers the scripts of a profile from keys of a snapshot, as the server would have at that instant."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from queuekeeper import lua
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.quality.profile.queue_window import FAULT_BITS, MISSING, UNREADABLE
from queuekeeper.rdb.values import NEVER, Kind
from queuekeeper.sessions.judge import MAX_EXPIRY_INTERVAL_S
from queuekeeper.sessions.packed_record import HAS_INTERVAL, KINDS, META_BYTES, RETAIN
from queuekeeper.sessions.wire import MAX_INTERVAL_S, interval_s

_EXACT = 2**53
_GRACE_MS = 60_000
_ABSENT, _REFERRED, _CONFIRMED = -2, -2, -3
_FOREIGN = -1
_PACKET_ID = re.compile(rb"0|[1-9][0-9]{0,8}")
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,15}|[1-9][0-9]{16}")
_HEAD = struct.Struct(">HdBI")
_META = struct.Struct(">QBH")
_FOUR = struct.Struct(">I")
_PUBREL_BIT = 64


class SnapshotKey(NamedTuple):
    """A key of a session as a snapshot has it, with what a profile looks into.

    :ivar length: bytes of a string.
    :ivar text: the string.
    :ivar references: serial and packet id of each reference of a sorted set, in turn; see :func:`references_of`.
    :ivar fields: name and value of each field of a hash, in turn.
    """

    key: bytes
    kind: str
    expires_at_ms: int
    length: int | None = None
    text: bytes | None = None
    references: list[int] | None = None
    fields: list[bytes] | None = None


def references_of(key: bytes, members: Iterable[tuple[bytes, float]]) -> list[int]:
    """Return serial and packet id of each reference in the order of delivery, as lua/quality/profile_references.lua."""
    stem = key + b"_"
    numbers = []
    for member, score in sorted(members, key=itemgetter(1, 0)):
        packet_id = _FOREIGN
        if member.startswith(stem):
            text = member[len(stem) :]
            packet_id = int(text) if _PACKET_ID.fullmatch(text) else UNREADABLE
        numbers += [int(score) if 0 <= score <= _EXACT and score % 1 == 0 else -1, packet_id]
    return numbers


class SnapshotCaller:
    """Answers calls of the scripts that a profile of sessions needs, from keys that are in memory.

    Each answer is what the script's header promises; ``tests/lua/test_snapshot_profile.py`` compares both.

    :param keys: keys of sessions that had not expired.
    :param now_ms: instant of the snapshot.
    """

    def __init__(self, keys: Iterable[SnapshotKey], *, now_ms: int) -> None:
        self._keys = {each.key: each for each in keys}
        self._now_ms = now_ms
        self._ids: dict[bytes, frozenset[bytes]] = {}
        self._answers: Mapping[str, Callable[[Sequence[bytes], Sequence[Any]], list[Any]]] = {
            "quality/profile_references": self._references,
            "quality/profile_messages": self._messages,
            "quality/profile_contents": self._contents,
            "quality/profile_layouts": self._layouts,
            "quality/profile_packed": self._packed,
            "sessions/find_orphans": self._orphans,
        }

    def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        """Return the answers to calls, in order."""
        replies = lua.Replies(len(calls))
        for place, call in enumerate(calls):
            keys = [key if isinstance(key, bytes) else str(key).encode() for key in call.keys]
            replies[place] = self._answers[call.script.name](keys, call.args)
        return replies

    def _is_referred_to(self, messages: bytes, payload: bytes) -> bool:
        """Return whether a set of references has one of a payload, whose key is that of a packet id."""
        if messages not in self._ids:
            found = self._keys.get(messages)
            ids = found.references[1::2] if found and found.references else []
            self._ids[messages] = frozenset(b"%b_%d" % (messages, each) for each in ids if each >= 0)
        return payload in self._ids[messages]

    def _fields(self, key: bytes) -> dict[bytes, bytes] | None:
        """Return the fields of a hash; nothing where there is no hash."""
        found = self._keys.get(key)
        if found is None or found.fields is None:
            return None
        return dict(zip(found.fields[::2], found.fields[1::2], strict=True))

    # --- sessions in TBMQ's layout -----------------------------------------------------------------------------

    def _references(self, keys: Sequence[bytes], args: Sequence[Any]) -> list[Any]:
        start, limit = map(int, args)
        wrong_types = without_expiry = 0
        for key, kind in zip(keys, (Kind.ZSET, Kind.STRING, Kind.HASH), strict=True):
            if found := self._keys.get(key):
                without_expiry += found.expires_at_ms == NEVER
                wrong_types += found.kind != kind
        messages = self._keys.get(keys[0])
        numbers = (messages.references if messages else None) or []
        saved = int(b"saved_last_packet_id" in (self._fields(keys[2]) or ()))
        newest = numbers[-1] if numbers else _FOREIGN
        head = [len(numbers) // 2, wrong_types, without_expiry, self._last_packet_id(keys[1]), saved, newest]
        return head + numbers[2 * start : 2 * (start + limit)]

    def _last_packet_id(self, key: bytes) -> int:
        found = self._keys.get(key)
        if found is None:
            return MISSING
        number = None if found.text is None else _integer(found.text)
        return number if number is not None and 0 <= number <= MAX_PACKET_ID else UNREADABLE

    def _messages(self, keys: Sequence[bytes], _args: Sequence[Any]) -> list[Any]:
        messages, *payloads = keys
        numbers = []
        for key in payloads:
            if found := self._keys.get(key):
                numbers += [found.expires_at_ms, -1 if found.length is None else found.length]
            else:
                numbers += [_ABSENT if self._is_referred_to(messages, key) else _CONFIRMED, 0]
        return numbers

    def _orphans(self, keys: Sequence[bytes], _args: Sequence[Any]) -> list[Any]:
        messages, *payloads = keys
        numbers = []
        for key in payloads:
            found = None if self._is_referred_to(messages, key) else self._keys.get(key)
            numbers.append(found.expires_at_ms if found else _REFERRED)
        return numbers

    def _contents(self, keys: Sequence[bytes], args: Sequence[Any]) -> list[Any]:
        client_id, default_ttl_s, *packet_ids = args
        numbers: list[int] = []
        for key, packet_id in zip(keys, packet_ids, strict=True):
            found = self._keys.get(key)
            if found is None or found.text is None:
                numbers += [0, 0]
            else:
                numbers += _judged(
                    found.text, expires_at_ms=found.expires_at_ms, client_id=str(client_id), packet_id=int(packet_id),
                    default_ttl_s=int(default_ttl_s),
                )  # fmt: skip
        return numbers

    def _layouts(self, keys: Sequence[bytes], _args: Sequence[Any]) -> list[Any]:
        *tbmqs, packed = keys
        is_there = any(key in self._keys for key in tbmqs)
        return [int(is_there and self._takes(keys[2])), int(packed in self._keys and self._takes(packed))]

    def _takes(self, key: bytes) -> bool:
        fields = self._fields(key)
        if fields is None:
            return True
        return fields.get(b"owner") not in (b"postgres", b"fenced") and _is_whole(fields)

    # --- packed sessions ---------------------------------------------------------------------------------------

    def _packed(self, keys: Sequence[bytes], args: Sequence[Any]) -> list[Any]:
        _, _, default_ttl_s, fingerprints = args
        [key] = keys
        found, fields = self._keys.get(key), self._fields(key)
        expires_at_ms = found.expires_at_ms if found else _ABSENT
        if fields is None:
            return [b"0", -1 if found else 0, expires_at_ms, self._now_ms, b"", 0, 1]
        numbers: list[Any] = []
        for name, record in fields.items():
            serial = _integer(name)
            if serial is not None and serial >= 0:
                facts = _judged_record(record, default_ttl_s=int(default_ttl_s), fingerprints=bool(int(fingerprints)))
                numbers += [serial, *facts]
        head = [b"0", 1, expires_at_ms, self._now_ms, fields.get(b"s", b""), len(fields), int(_is_whole(fields))]
        return head + numbers


def _is_whole(fields: Mapping[bytes, bytes]) -> bool:
    """Return whether the import of a session is complete."""
    return fields.get(b"import", b"done") == b"done"


def _integer(text: bytes) -> int | None:
    """Return an integer as lua/includes/integers.lua reads it, whose numbers are doubles."""
    number = float(text) if _INTEGER.fullmatch(text) else math.inf
    return int(number) if abs(number) <= _EXACT else None


def _digest(topic: bytes, time_ms: float, payload: bytes) -> int:
    """Return the 48 bits of a message's digest."""
    text = b"%b\n%d\n%b" % (topic, int(time_ms), payload)
    return int.from_bytes(hashlib.sha1(text, usedforsecurity=False).digest()[:6], "big")


# --- the contents of TBMQ's records ----------------------------------------------------------------------------------

_NULL = object()
"""In place of null, which is not the same as no value."""

_JSON = json.JSONDecoder(strict=False, parse_int=float)
"""Reads numbers as Lua has them."""

_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?P<half>u[dD][89a-fA-F])|.)", re.DOTALL)
"""An escape in JSON; of a surrogate pair, both."""


def _value(text: bytes) -> Any:
    """Return what JSON says, as the server reads it: up to a zero byte, and without half a surrogate pair.

    :raises ValueError: when it is no JSON to the server.
    """
    text = text.partition(b"\0")[0]
    if b"\\u" in text and any(escape["half"] for escape in _ESCAPE.finditer(text)):
        raise ValueError("half a surrogate pair")
    return _JSON.decode(text.decode(errors="surrogateescape"))


def _decoded(text: bytes) -> Any:
    """Return the object that JSON says; nothing when it says something else.

    :raises ValueError: when it is no JSON.
    """
    found = _value(text)
    if not isinstance(found, dict):
        return None
    if None in found.values():
        return {name: _NULL if value is None else value for name, value in found.items()}
    return found


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _topic(message: Mapping[str, Any]) -> Any:
    topic = message.get("topicName")
    # In Lua, no value and false are the same here.
    return message.get("topic") if topic is None or topic is False else topic


def _is_message(message: Mapping[str, Any]) -> bool:
    payload, kind, life_s = (message.get(name) for name in ("payload", "packetType", "msgExpiryInterval"))
    return (
        isinstance(_topic(message), str)
        and all(_is_whole_number(message.get(name)) for name in ("time", "qos", "packetId"))
        and message["time"] >= 0
        and isinstance(kind, str)
        and (isinstance(payload, str) or (payload is None and kind == "PUBREL"))
        and (life_s in (None, _NULL) or _is_whole_number(life_s))
    )


def _judged(text: bytes, *, expires_at_ms: int, client_id: str, packet_id: int, default_ttl_s: int) -> tuple[int, int]:
    """Return the faults and the fingerprint of a record, as lua/quality/profile_contents.lua does."""
    try:
        message = _decoded(text)
        if message is None or not _is_message(message):
            return FAULT_BITS["unreadable"], 0
        topic = _topic(message).encode(errors="surrogateescape")
        payload = message.get("payload", "").encode(errors="surrogateescape")
    except (ValueError, RecursionError):
        return FAULT_BITS["unreadable"], 0
    qos, kind, life_s = message["qos"], message["packetType"], message.get("msgExpiryInterval")
    faults = 0
    if message.get("clientId") != client_id or message["packetId"] != packet_id:
        faults += FAULT_BITS["mismatched"]
    if not 0 <= qos <= 2:
        faults += FAULT_BITS["bad_qos"]
    elif qos == 0:
        faults += FAULT_BITS["qos_0"]
    if kind != "PUBLISH" and (kind != "PUBREL" or qos != 2):
        faults += FAULT_BITS["bad_packet_types"]
    life_s = _life_s(life_s) if _is_whole_number(life_s) else default_ttl_s
    if expires_at_ms >= 0 and expires_at_ms > message["time"] + 1_000 * life_s + _GRACE_MS:
        faults += FAULT_BITS["ttl_too_long"]
    return faults, _digest(topic, message["time"], payload)


def _life_s(value: float) -> float:
    """Return an expiry interval as lua/includes/expiry_interval.lua reads it."""
    if value == MAX_INTERVAL_S:
        return MAX_EXPIRY_INTERVAL_S
    return interval_s(int(value)) or 0


# --- the records of packed sessions ----------------------------------------------------------------------------------


def _judged_record(record: bytes, *, default_ttl_s: int, fingerprints: bool) -> tuple[int, ...]:
    """Return packet id, expiry, bytes, faults, fingerprint, end of a record, as lua/quality/profile_packed.lua does."""
    packet_id, ends_ms = _HEAD.unpack_from(record)[:2] if len(record) >= _HEAD.size else (-1, -1.0)
    expires_at_ms = int(ends_ms) if 0 <= ends_ms <= _EXACT else -1
    content = _content(record) if expires_at_ms >= 0 else None
    if content is None:
        return packet_id, expires_at_ms, len(record), FAULT_BITS["unreadable"], 0, 0
    kind, qos, time_ms, life_s, topic, payload = content
    faults = _PUBREL_BIT if kind == KINDS["PUBREL"] else 0
    if qos == 0:
        faults += FAULT_BITS["qos_0"]
    elif qos == 3:
        faults += FAULT_BITS["bad_qos"]
    if kind == KINDS["PUBREL"] and qos != 2:
        faults += FAULT_BITS["bad_packet_types"]
    due_ms = min(time_ms + 1_000 * (default_ttl_s if life_s is None else life_s), _EXACT - 1)
    if ends_ms > due_ms + _GRACE_MS:
        faults += FAULT_BITS["ttl_too_long"]
    fingerprint = _digest(topic, time_ms, payload) if fingerprints else 0
    return packet_id, expires_at_ms, len(record), faults, fingerprint, int(due_ms)


def _content(record: bytes) -> tuple[int, int, float, int | None, bytes, bytes] | None:
    """Return what lua/includes/packed_content.lua reads of a record: nothing when no store has written it."""
    _, _, kind, size = _HEAD.unpack_from(record)
    meta = record[_HEAD.size : _HEAD.size + size]
    if len(meta) != size or size < META_BYTES or kind not in KINDS.values():
        return None
    time_ms, flags, topic_bytes = _META.unpack_from(meta)
    at, life_s = META_BYTES, None
    if flags >= 2 * HAS_INTERVAL or topic_bytes == 0 or (flags >= HAS_INTERVAL and size < at + 4):
        return None
    if flags >= HAS_INTERVAL:
        [life_s] = _FOUR.unpack_from(meta, at)
        at += 4
    rest = meta[at + topic_bytes :]
    if at + topic_bytes > size or (rest and not _is_table(rest)):
        return None
    return kind, flags % RETAIN, float(time_ms), life_s, meta[at : at + topic_bytes], record[_HEAD.size + size :]


def _is_table(text: bytes) -> bool:
    try:
        return isinstance(_value(text), dict | list)
    except (ValueError, RecursionError):
        return False
