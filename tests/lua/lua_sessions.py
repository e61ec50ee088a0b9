"""What the tests of the Lua scripts share: sessions to import, and all that a server holds, to compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import redis

from queuekeeper import lua
from queuekeeper.keyspace import SessionKeys, payload_key, session_keys
from queuekeeper.redis_client import RedisClient, nodes

HOSTILE_IDS = (
    "meter-7",
    "}brace first",
    "%percent",
    "in{the}middle",
    "{}",
    "{",
    "glob*?[a-z]^\\",
    "смарт-😀-メーター",
    "<script>alert(1)</script>",
    "line\nbreak",
    "i" * 255,
)


class Message(NamedTuple):
    """One message as ``import_session`` takes it."""

    packet_id: int
    serial: int
    expires_at_ms: int
    json: str


def now_ms() -> int:
    """Return this machine's time, which is the server's too."""
    return time.time_ns() // 1_000_000


def command(client: Any, *words: str | bytes | int) -> Any:
    """Send any command; redis-py's own method has no types."""
    return client.execute_command(*words)


def messages(count: int, *, first: int = 1, expires_at_ms: int | None = None) -> list[Message]:
    """Return messages with packet ids and serials that count up."""
    until = expires_at_ms or now_ms() + 3_600_000
    return [
        Message(first + n, 1_000 + first + n, until + n, f'{{"packetId":{first + n},"subscriptionIds":[]}}')
        for n in range(count)
    ]


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session and the calls of the scripts on it."""

    client: RedisClient
    client_id: str = "meter-7"
    plan: str = "plan-a"
    epoch: int = 1
    prefix: str = ""

    @property
    def keys(self) -> SessionKeys:
        """Names of the session's keys."""
        return session_keys(self.client_id, prefix=self.prefix)

    def payload(self, packet_id: int) -> str:
        """Return the name of a payload key."""
        return payload_key(self.client_id, packet_id, prefix=self.prefix)

    def import_call(
        self,
        batch: Sequence[Message],
        *,
        chunk: int | str = 0,
        last: bool = True,
        last_packet_id: int | str = "",
        owner: str = "redis",
    ) -> tuple[list[str], list[str | int]]:
        """Return keys and arguments of one call of ``import_session``."""
        keys = [*self.keys, *(self.payload(message.packet_id) for message in batch)]
        args: list[str | int] = [self.plan, self.epoch, owner, chunk, int(last), last_packet_id]
        for message in batch:
            args += [message.serial, message.expires_at_ms, message.json]
        return keys, args

    def import_session(self, batch: Sequence[Message], **options: Any) -> list[Any]:
        """Import one chunk."""
        keys, args = self.import_call(batch, **options)
        return self._call("import_session", keys, args)

    def import_chunks(self, chunks: Sequence[Sequence[Message]], *, last_packet_id: int | str = "") -> None:
        """Import a whole session."""
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            self.import_session(chunk, chunk=number, last=last, last_packet_id=last_packet_id)

    def drop_import(self, packet_ids: Sequence[int] = ()) -> list[int]:
        """Drop the import of the messages with these packet ids."""
        return self._call("drop_import", [*self.keys, *map(self.payload, packet_ids)], [self.plan])

    def export_messages(self, packet_ids: Sequence[int]) -> list[Any]:
        """Read messages and their expiry."""
        return self._call("export_messages", [self.payload(packet_id) for packet_id in packet_ids], [])

    def replay_message(
        self, message: Message, *, expected: int | str = "", last_packet_id: int | str = ""
    ) -> list[Any]:
        """Add one repaired message."""
        args: list[lua.Value] = [
            self.plan,
            self.epoch,
            expected,
            last_packet_id,
            message.serial,
            message.expires_at_ms,
            message.json,
        ]
        return self._call("replay_message", [*self.keys, self.payload(message.packet_id)], args)

    def state(self) -> dict[str, str]:
        """Return the session hash as text."""
        fields: dict[bytes, bytes] = command(self.client, "HGETALL", self.keys.session)
        return {name.decode(): value.decode() for name, value in fields.items()}

    def references(self) -> list[tuple[str, float]]:
        """Return the names of the payload keys with their scores, in order."""
        client: Any = self.client
        found: list[tuple[bytes, float]] = client.zrange(self.keys.messages, 0, -1, withscores=True)
        return [(member.decode(), score) for member, score in found]

    def _call(self, script: str, keys: Sequence[lua.Value], args: Sequence[lua.Value]) -> list[Any]:
        reply = lua.ScriptCaller(self.client).call(lua.load(f"sessions/{script}"), keys, args)
        assert isinstance(reply, list)
        return reply


def contents(client: RedisClient) -> dict[str, tuple[Any, int]]:
    """Return value and instant of expiry of every key of every master."""
    found: dict[str, tuple[Any, int]] = {}
    for _, node in nodes(client):
        for key in node.scan_iter(count=1_000):
            found[key.decode()] = (_value(node, key), int(node.pexpiretime(key)))
    return found


def _value(node: redis.Redis, key: bytes) -> Any:
    match node.type(key):
        case b"string":
            return node.get(key)
        case b"hash":
            return node.hgetall(key)
        case b"zset":
            return node.zrange(key, 0, -1, withscores=True)
        case b"list":
            return node.lrange(key, 0, -1)
        case other:
            raise AssertionError(f"{key!r} is a {other!r}, which no script writes")
