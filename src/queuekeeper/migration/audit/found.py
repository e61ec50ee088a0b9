"""Takes what RDB files hold of sessions apart into rows that PostgreSQL compares.

Keys, records and states are read here as ``docs/keyspace.md`` and the headers of the scripts describe them, and by no
code of the copy, the stores or the verification: a fault of theirs must not hide itself.
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import orjson

from queuekeeper.rdb.files import SnapshotFiles
from queuekeeper.rdb.snapshot import Entry, Snapshot, Want
from queuekeeper.rdb.values import NEVER, Kind

# Packet id, end of life in ms, kind, bytes up to the payload; time, flags, bytes of the topic; expiry interval.
_HEAD, _META, _INTERVAL = struct.Struct(">HdBI"), struct.Struct(">QBH"), struct.Struct(">I")
_STATE = struct.Struct(">17d")
_KINDS = {1: "PUBLISH", 2: "PUBREL"}
_QOS, _RETAIN, _HAS_INTERVAL = 3, 4, 8
_PACKET_IDS = 65_535
_SESSION_FIELDS = (b"plan", b"import", b"used")
_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A zero character in JSON: an even number of backslashes before it are escaped themselves."""


class Found(NamedTuple):
    """A row of table ``audit_found``; see ``sql/migration/audit.sql``."""

    file: int  # number of the file
    client_id: str
    part: str  # session, last_packet_id, reference, payload or record
    packet_id: int | None = None
    serial_number: float | None = None  # a score, which need not be whole
    expires_at_ms: int | None = None
    payload_sha256: bytes | None = None
    facts: str | None = None


class _Message(NamedTuple):
    """A message as far as it can be read."""

    packet_id: int | None = None
    expires_at_ms: int = NEVER
    payload_sha256: bytes | None = None
    facts: str | None = None


def found_in(files: SnapshotFiles, *, prefix: str, database: int, packed: bool, taken_at_ms: int) -> Iterator[Found]:
    """Yield what RDB files hold of sessions, but what had expired when they were taken.

    :param packed: whether the sessions are packed, or in TBMQ's layout.
    :param taken_at_ms: instant at which the last of the files was begun.
    """
    names = rb"packed" if packed else rb"messages|messages_[0-9]+|last_packet_id|session"
    key_of = re.compile(rb"%b\{(.+)\}_(%b)" % (re.escape(prefix.encode()), names), re.DOTALL)

    def wanted(number: int, key: bytes, _kind: Kind) -> Want:
        return Want.VALUE if number == database and key_of.fullmatch(key) else Want.NOTHING

    for number, path in enumerate(files.paths):
        with path.open("rb") as file:
            for entry in Snapshot(file, name=str(path)).entries(wanted):
                match = key_of.fullmatch(entry.key)
                assert match is not None
                client_id = _text(match[1])
                if client_id is not None and not _is_over(entry.expires_at_ms, taken_at_ms):
                    read = _packed if packed else _part
                    for each in read(entry, client_id, match[2].decode(), taken_at_ms=taken_at_ms):
                        yield each._replace(file=number)


def _part(entry: Entry, client_id: str, name: str, *, taken_at_ms: int) -> Iterator[Found]:
    """Yield what a key of TBMQ's layout holds."""
    del taken_at_ms
    value, kind = entry.value, entry.kind
    if name == "session" and kind is Kind.HASH:
        yield Found(0, client_id, "session", facts=_session({each.name: each.value for each in value}))
    elif name == "last_packet_id" and kind is Kind.STRING:
        yield Found(0, client_id, name, facts=_facts({"lastPacketId": value.decode(errors="replace")}))
    elif name == "messages" and kind is Kind.ZSET:
        stem = entry.key + b"_"
        for member, score in value:
            packet_id = member.removeprefix(stem) if member.startswith(stem) else b""
            yield Found(0, client_id, "reference", _packet_id(packet_id), float(score))
    elif name.startswith("messages_") and kind is Kind.STRING:
        message = _tbmq(value)
        yield Found(
            0,
            client_id,
            "payload",
            _packet_id(name.removeprefix("messages_").encode()),
            None,
            entry.expires_at_ms,
            message.payload_sha256,
            message.facts,
        )


def _packed(entry: Entry, client_id: str, _name: str, *, taken_at_ms: int) -> Iterator[Found]:
    """Yield what a packed session holds; a message whose life was over stays in it, and counts as gone."""
    if entry.kind is not Kind.HASH:
        return
    fields = {each.name: each.value for each in entry.value}
    yield Found(0, client_id, "session", facts=_session(fields))
    state = fields.get(b"s", b"")
    given = int(_STATE.unpack(state)[1]) if len(state) == _STATE.size else 0
    if given:
        yield Found(0, client_id, "last_packet_id", facts=_facts({"lastPacketId": str((given - 1) % _PACKET_IDS + 1)}))
    for name, record in fields.items():
        if name.isdigit():
            message = _record(record, client_id)
            if not _is_over(message.expires_at_ms, taken_at_ms):
                yield Found(0, client_id, "record", message.packet_id, float(name), *message[1:])


def _is_over(expires_at_ms: int, now_ms: int) -> bool:
    return expires_at_ms != NEVER and expires_at_ms <= now_ms


def _packet_id(digits: bytes) -> int | None:
    """Return the packet id that a key ends with; none where it is not written as TBMQ writes one."""
    return int(digits) if re.fullmatch(rb"[1-9][0-9]{0,4}", digits) else None


def _session(fields: dict[bytes, bytes]) -> str | None:
    known = {name.decode(): fields[name].decode(errors="replace") for name in _SESSION_FIELDS if name in fields}
    return _facts(known) or "{}"


def _tbmq(text: bytes) -> _Message:
    """Return a message of TBMQ's JSON."""
    try:
        fields = orjson.loads(text)
        payload = fields.pop("payload")
        return _Message(payload_sha256=_digest(payload), facts=_facts(fields))
    except (ValueError, AttributeError, TypeError, KeyError):
        return _Message()


def _record(record: bytes, client_id: str) -> _Message:
    """Return a message of a packed session, with the names that TBMQ's JSON has."""
    packet_id: int | None = None
    ends_ms: float = NEVER
    try:
        packet_id, ends_ms, kind, size = _HEAD.unpack_from(record)
        meta, payload = record[_HEAD.size : _HEAD.size + size], record[_HEAD.size + size :]
        time_ms, flags, topic_bytes = _META.unpack_from(meta)
        start = _META.size + (_INTERVAL.size if flags & _HAS_INTERVAL else 0)
        end = start + topic_bytes
        if len(meta) != size or end > size:
            raise ValueError("cut off")
        fields = orjson.loads(meta[end:]) if meta[end:] else {}
        fields |= {
            "clientId": client_id,
            "topicName": meta[start:end].decode(),
            "time": time_ms,
            "qos": flags & _QOS,
            "packetId": packet_id,
            "packetType": _KINDS[kind],
            "retained": bool(flags & _RETAIN),
        }
        if flags & _HAS_INTERVAL:
            (fields["msgExpiryInterval"],) = _INTERVAL.unpack_from(meta, _META.size)
        return _Message(packet_id, int(ends_ms), sha256(payload).digest(), _facts(fields))
    except (struct.error, ValueError, TypeError, KeyError, OverflowError):
        return _Message(packet_id)


def _digest(text: str) -> bytes:
    """Return the hash of the decoded Base64, or of the text itself where it is none."""
    try:
        return sha256(a2b_base64(text, strict_mode=True)).digest()
    except ValueError:
        return sha256(text.encode()).digest()


def _facts(fields: dict[str, Any]) -> str | None:
    """Return fields as JSON that PostgreSQL can hold, a hash in place of what may be long; none where it cannot."""
    if isinstance(correlation := fields.get("correlationData"), str):
        fields["correlationData"] = _digest(correlation).hex()
    text = orjson.dumps(fields).decode()
    return None if _ZERO.search(text) else text


def _text(name: bytes) -> str | None:
    """Return a client id; none for what cannot be one in PostgreSQL."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
