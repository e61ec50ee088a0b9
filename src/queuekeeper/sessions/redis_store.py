"""DEVICE sessions in Redis, in the layout that TBMQ 2.x reads and writes; writing them is the Lua scripts' business."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import orjson

from queuekeeper import lua
from queuekeeper.keyspace import MAX_PACKET_ID, check_prefix, payload_key, session_keys
from queuekeeper.redis_client import RedisClient, address_of, redis_errors
from queuekeeper.sessions.model import DEFAULT_PAGE, ImportView, MessageView, Problem, SessionView, check_page

KEYS_PER_CALL = 500
BYTES_PER_CALL = 4_000_000
"""Most that one reply should hold; a single larger message is read alone."""

_T = TypeVar("_T")
_NO_EXPIRY = -1
_PACKET_ID = re.compile(rb"[1-9][0-9]{0,4}")
_INTEGER = re.compile(rb"-?[0-9]{1,18}")


class RedisSessionStore:
    """Sessions on a single server or a cluster.

    :param prefix: put before every key.
    """

    def __init__(self, client: RedisClient, prefix: str = "") -> None:
        self._client = client
        self._prefix = check_prefix(prefix)
        self._caller = lua.ScriptCaller(client)

    def inspect(self, client_id: str, *, offset: int = 0, limit: int = DEFAULT_PAGE) -> SessionView:
        """Describe a session and one page of its messages; nothing is changed, not even expired references.

        :param offset: messages to pass over, counted in the order of delivery.
        :raises UsageError: when the client id is empty or the page out of range.
        """
        check_page(offset=offset, limit=limit)
        keys = session_keys(client_id, prefix=self._prefix)
        client: Any = self._client
        with redis_errors(address_of(self._client)):
            fields: dict[bytes, bytes] = client.hgetall(keys.session)
            last_packet_id: bytes | None = client.get(keys.last_packet_id)
            messages: int = client.zcard(keys.messages)
            found: list[tuple[bytes, float]] = client.zrange(keys.messages, offset, offset + limit - 1, withscores=True)
        references = [(member, _serial(score)) for member, score in found]
        return SessionView(
            client_id=client_id,
            store="redis",
            exists=bool(fields) or last_packet_id is not None or messages > 0,
            messages=messages,
            offset=offset,
            page=tuple(self._page(client_id, references)),
            last_packet_id=_integer(last_packet_id),
            owner=_text(fields.get(b"owner")),
            epoch=_integer(fields.get(b"epoch")),
            imported=_import_view(fields, messages=messages, last_packet_id=last_packet_id),
        )

    def _page(self, client_id: str, references: Sequence[tuple[bytes, int]]) -> Iterator[MessageView]:
        stem = payload_key(client_id, "", prefix=self._prefix).encode()
        # A member may be any text. Only names of this session's payload keys are followed.
        own = [key for key, _ in references if key.startswith(stem)]
        stored = dict(self._read(own))
        for key, serial in references:
            if key not in stored:
                yield MessageView(serial=serial, problem=Problem.FOREIGN)
                continue
            suffix = key[len(stem) :]
            packet_id = int(suffix) if _PACKET_ID.fullmatch(suffix) and int(suffix) <= MAX_PACKET_ID else None
            yield _message_view(serial, packet_id, *stored[key])

    def _read(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, tuple[bytes, int]]]:
        """Return JSON and instant of expiry of payload keys, in calls that are bounded in keys and bytes."""
        script = lua.load("sessions/export_messages")
        for batch in self._batches(keys):
            reply = self._caller.call(script, batch)
            yield from zip(batch, zip(reply[::2], reply[1::2], strict=True), strict=True)

    def _batches(self, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
        batch: list[bytes] = []
        size_bytes = 0
        for key, key_bytes in zip(keys, self._sizes(keys), strict=True):
            if batch and (len(batch) == KEYS_PER_CALL or size_bytes + key_bytes > BYTES_PER_CALL):
                yield batch
                batch, size_bytes = [], 0
            batch.append(key)
            size_bytes += key_bytes
        if batch:
            yield batch

    def _sizes(self, keys: Sequence[bytes]) -> Iterable[int]:
        if not keys:
            return []
        with redis_errors(address_of(self._client)):
            pipe: Any = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.strlen(key)
            # A key of another type has no length; reading it says so.
            return [size if isinstance(size, int) else 0 for size in pipe.execute(raise_on_error=False)]


def _message_view(serial: int, packet_id: int | None, json: bytes, expires_at_ms: int) -> MessageView:
    """Describe a message; ``json`` is empty where the key is missing or of another type."""
    expiry = None if expires_at_ms < 0 else expires_at_ms
    if not json:
        missing = expires_at_ms < _NO_EXPIRY
        problem = Problem.DANGLING if missing else Problem.UNREADABLE
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=problem)
    try:
        fields = orjson.loads(json)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        return MessageView(serial=serial, packet_id=packet_id, expires_at_ms=expiry, problem=Problem.UNREADABLE)
    return MessageView(
        serial=serial,
        packet_id=packet_id,
        packet_type=_of(str, fields.get("packetType")),
        qos=_of(int, fields.get("qos")),
        # Releases before 2.1 wrote it as "topic".
        topic=_of(str, fields.get("topicName", fields.get("topic"))),
        payload_bytes=_base64_bytes(fields.get("payload")),
        time_ms=_of(int, fields.get("time")),
        expires_at_ms=expiry,
    )


def _import_view(fields: dict[bytes, bytes], *, messages: int, last_packet_id: bytes | None) -> ImportView | None:
    plan_id = _text(fields.get(b"plan"))
    if plan_id is None:
        return None
    references = _integer(fields.get(b"references"))
    imported_last = fields.get(b"imported_last_packet_id", b"")
    return ImportView(
        plan_id=plan_id,
        state=_text(fields.get(b"import")) or "",
        references=references,
        last_packet_id=_integer(imported_last),
        # The same rule as lua/includes/touched.lua.
        touched=(references or 0) != messages or imported_last != (last_packet_id or b""),
    )


def _serial(score: float) -> int:
    """Return a score as an integer; an infinite one, which no store of sessions writes, as the nearest of 64 bits."""
    return int(max(-(2.0**63), min(score, 2.0**63)))


def _base64_bytes(text: Any) -> int | None:
    """Return how many bytes base64 text stands for, without decoding it."""
    if not isinstance(text, str):
        return None
    return len(text.rstrip("=")) * 3 // 4


def _of(kind: type[_T], value: Any) -> _T | None:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _integer(value: bytes | None) -> int | None:
    return int(value) if value is not None and _INTEGER.fullmatch(value) else None
