"""TBMQ 2.x's operations on a session, told again in plain commands, for tests of what both can read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lua_sessions import HOSTILE_IDS, now_ms

CONNECTING_IDS = tuple(client_id for client_id in HOSTILE_IDS if client_id[0] not in "}%")
"""TBMQ puts the id between braces as it is: ids that we encode have other keys there, and are not reachable."""


def record(message: dict[str, Any]) -> str:
    """Return the JSON of a message in the form that the encoder of its scripts gives it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).replace("/", "\\/")


@dataclass(frozen=True)
class Broker:
    """A broker that knows the client id only: it makes every key's name itself, and reads nothing of ours."""

    client: Any
    client_id: str

    @property
    def stem(self) -> str:
        return f"{{{self.client_id}}}"

    def fetch(self) -> list[dict[str, Any]]:
        """Read everything in order of score; a reference without a message is forgotten."""
        found = []
        for reference in self.client.zrange(f"{self.stem}_messages", 0, -1):
            text = self.client.get(reference)
            if text is None:
                self.client.zrem(f"{self.stem}_messages", reference)
            else:
                found.append(json.loads(text))
        return found

    def acknowledge(self, packet_id: int) -> None:
        """Remove a message that the client has confirmed."""
        key = f"{self.stem}_messages_{packet_id}"
        self.client.zrem(f"{self.stem}_messages", key)
        self.client.delete(key)

    def received(self, packet_id: int) -> None:
        """Note that the client has sent PUBREC: the record stays, as PUBREL and without an expiry."""
        key = f"{self.stem}_messages_{packet_id}"
        text = self.client.get(key)
        if text is not None:
            self.client.set(key, record({**json.loads(text), "packetType": "PUBREL"}))

    def add(self, topic: str, *, limit: int = 10_000, life_s: int = 600) -> int:
        """Store one message behind all others and return the packet id that it gets."""
        message = {
            "clientId": self.client_id,
            "topicName": topic,
            "time": now_ms(),
            "qos": 2,
            "packetType": "PUBLISH",
            "payload": b64encode(b"\xff\xff\xfe body").decode(),
            "retained": False,
            "msgExpiryInterval": life_s,
        }
        return self.save([message], limit=limit)

    def save(self, pack: Sequence[dict[str, Any]], *, limit: int = 10_000, default_life_s: int = 604_800) -> int:
        """Store a pack behind all others and return the last packet id.

        What was written stays when the server refuses one of the commands, as it does inside a script.
        """
        packet_id = int(self.client.get(f"{self.stem}_last_packet_id") or 0)
        newest = self.client.zrange(f"{self.stem}_messages", 0, 0, desc=True, withscores=True)
        score = newest[0][1] if newest else packet_id
        for message in pack:
            packet_id = packet_id % 65_535 + 1
            score += 1
            key = f"{self.stem}_messages_{packet_id}"
            life_s = message.get("msgExpiryInterval", default_life_s)
            self.client.set(key, record({**message, "packetId": packet_id}), ex=life_s)
            self.client.zadd(f"{self.stem}_messages", {key: score})
        self.client.set(f"{self.stem}_last_packet_id", packet_id)
        for reference in self.client.zrange(f"{self.stem}_messages", 0, -limit - 1):
            self.client.zrem(f"{self.stem}_messages", reference)
            self.client.delete(reference)
        return packet_id

    def purge(self) -> None:
        """Remove everything that it knows of the session."""
        for reference in self.client.zrange(f"{self.stem}_messages", 0, -1):
            self.client.delete(reference)
        self.client.delete(f"{self.stem}_messages", f"{self.stem}_last_packet_id")
