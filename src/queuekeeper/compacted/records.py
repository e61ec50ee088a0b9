"""Records: how a value, its properties, content type and time are stored as bytes.

A record without properties, content type and time is ``=`` and the value. Any other record is ``+``, the length of the
head as four bytes, the head, and the value. The head is a JSON object with the fields ``published_ms``,
``content_type`` and ``properties``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import orjson

from queuekeeper.compacted.model import NO_PROPERTIES, Append, Properties, plain_properties
from queuekeeper.compacted.reports import CompactedMessage

_PLAIN = b"="
_DESCRIBED = b"+"
RECORD_KINDS = _PLAIN + _DESCRIBED
HEADED_KINDS = _DESCRIBED
_LENGTH_BYTES = 4
_DIGEST_BYTES = 8
_TOMBSTONE = b"1"
_FLAGS = (b"0", _TOMBSTONE)
_NO_HEAD: dict[str, Any] = {}


def record_of(append: Append) -> bytes:
    """Return the record of an entry."""
    head: dict[str, Any] = {}
    if append.published_ms is not None:
        head["published_ms"] = append.published_ms
    if append.content_type is not None:
        head["content_type"] = append.content_type
    if append.properties:
        head["properties"] = plain_properties(append.properties)
    if not head:
        return _PLAIN + append.value
    text = orjson.dumps(head)
    return b"".join((_DESCRIBED, len(text).to_bytes(_LENGTH_BYTES), text, append.value))


def stored_bytes(append: Append) -> int:
    """Return the size in bytes of an entry's key and record."""
    is_plain = not append.properties and append.content_type is None and append.published_ms is None
    return len(append.key) + (len(_PLAIN) + len(append.value) if is_plain else len(record_of(append)))


def digest_of(entries: Iterable[bytes | str | int]) -> str:
    """Return a digest of an append's entries, given as the arguments of the script."""
    texts: list[bytes] = []
    for part in entries:
        text = part if type(part) is bytes else str(part).encode()
        texts += (b"%d:" % len(text), text)
    return blake2b(b"".join(texts), digest_size=_DIGEST_BYTES).hexdigest()


def message_of(
    client_id: str, *, key: bytes, sequence: int, appended_ms: int, redelivered: bool, stored: bytes
) -> CompactedMessage:
    """Return a message from its stored value: sequence number, flag of a tombstone and record, separated by spaces.

    A value that cannot be read gives a message with ``is_readable`` false, so that the messages behind it can be read.

    :param sequence: sequence number in the queue's order; ``verify`` finds a value that has another one.
    """
    words = stored.split(b" ", 2)
    parts = _parts(words[2]) if len(words) == 3 and words[0].isdigit() and words[1] in _FLAGS else None
    if parts is None:
        return CompactedMessage(
            client_id=client_id,
            key=key,
            value=stored,
            sequence=sequence,
            appended_ms=appended_ms,
            redelivered=redelivered,
            is_readable=False,
        )
    head, value = parts
    return CompactedMessage(
        client_id=client_id,
        key=key,
        value=value,
        sequence=sequence,
        appended_ms=appended_ms,
        published_ms=head.get("published_ms"),
        tombstone=words[1] == _TOMBSTONE,
        redelivered=redelivered,
        properties=_properties(head.get("properties")),
        content_type=head.get("content_type"),
    )


def is_head(text: bytes) -> bool:
    """Return whether a head can be read."""
    return _head(text) is not None


def _parts(record: bytes) -> tuple[dict[str, Any], bytes] | None:
    """Return head and value of a record; none when the record cannot be read."""
    if record.startswith(_PLAIN):
        return _NO_HEAD, record[1:]
    start = 1 + _LENGTH_BYTES
    end = start + int.from_bytes(record[1:start])
    if not record.startswith(_DESCRIBED) or len(record) < end:
        return None
    head = _head(record[start:end])
    return None if head is None else (head, record[end:])


def _head(text: bytes) -> dict[str, Any] | None:
    """Return the fields of a head; none when it is no JSON object or a field has a wrong type."""
    try:
        head = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(head, dict):
        return None
    published_ms, content_type = head.get("published_ms", 0), head.get("content_type", "")
    is_described = type(published_ms) is int and type(content_type) is str and _are_properties(head.get("properties"))
    return head if is_described else None


def _are_properties(found: Any) -> bool:
    if type(found) is list:
        return all(type(pair) is list and [type(text) for text in pair] == [str, str] for pair in found)
    return found is None or (type(found) is dict and all(type(text) is str for text in found.values()))


def _properties(found: Any) -> Mapping[str, str]:
    if found is None:
        return NO_PROPERTIES
    return Properties(found) if type(found) is list else found
