"""Records, the form in which messages are stored, and JSON as their body; the server never reads a record.

A record is one byte for the format, four bytes for the size of the header, the header, and the body. The header is a
JSON object with those of ``content_type``, ``order_key`` and ``headers`` that the message has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from queuekeeper.checks import checked
from queuekeeper.errors import UsageError
from queuekeeper.fanout.model import NewMessage
from queuekeeper.fanout.reports import FanoutMessage
from queuekeeper.jsonl import json_bytes

JSON_CONTENT_TYPE = "application/json"

_FORMAT = b"\x01"
_SIZE_BYTES = 4
_BARE = _FORMAT + bytes(_SIZE_BYTES)
_FIELDS = {"content_type": str, "order_key": str, "headers": dict}


class Record(NamedTuple):
    """Contents of a record."""

    body: bytes
    content_type: str | None
    order_key: str | None
    headers: Mapping[str, str]


def write_record(message: NewMessage) -> bytes:
    """Return the record of a message."""
    headers = dict(message.headers) or None
    found = {"content_type": message.content_type, "order_key": message.order_key, "headers": headers}
    fields = {name: value for name, value in found.items() if value is not None}
    if not fields:
        return _BARE + message.body
    header = orjson.dumps(fields)
    return b"".join((_FORMAT, len(header).to_bytes(_SIZE_BYTES), header, message.body))


def read_record(raw: bytes) -> Record:
    """Return the contents of a record.

    :raises ValueError: when the bytes are no record.
    """
    start = len(_FORMAT) + _SIZE_BYTES
    end = start + int.from_bytes(raw[len(_FORMAT) : start])
    if not raw.startswith(_FORMAT) or len(raw) < max(start, end):
        raise ValueError("not a record of a fan-out queue")
    if end == start:
        return Record(raw[end:], None, None, {})
    fields = orjson.loads(raw[start:end])
    if not isinstance(fields, dict) or any(
        name not in _FIELDS or not isinstance(value, _FIELDS[name]) for name, value in fields.items()
    ):
        raise ValueError("the header of a record is not one of a fan-out queue")
    return Record(raw[end:], fields.get("content_type"), fields.get("order_key"), fields.get("headers", {}))


def json_message(value: Any, **fields: Any) -> NewMessage:
    """Return a message whose body is the JSON of a value.

    :param fields: the other fields of :class:`NewMessage`.
    :raises UsageError: when JSON cannot hold the value.
    """
    return NewMessage(body=json_bytes("value", value), content_type=JSON_CONTENT_TYPE, **fields)


@checked
def read_json(message: FanoutMessage) -> Any:
    """Return the value that a message's body holds as JSON.

    :raises UsageError: when the body is not JSON.
    """
    try:
        return orjson.loads(message.body)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"body of message {message.id} of {message.queue!r} is no JSON: {error}") from None
