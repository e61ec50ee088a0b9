"""TBMQ 2.x's operations on a session, told again as scripts of its design, for tests of what both can read."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lua_sessions import now_ms


def record(message: dict[str, Any]) -> str:
    """Return the JSON of a message in the form that the encoder of its scripts gives it."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).replace("/", "\\/")


# Its five scripts by what they do: they make the names of payload keys themselves, and cjson reads and writes records.

_SAVE = """
local messages_key, last_packet_id_key = KEYS[1], KEYS[2]
local packet_id = tonumber(redis.call('GET', last_packet_id_key)) or 0
local newest = redis.call('ZRANGE', messages_key, 0, 0, 'REV', 'WITHSCORES')[2]
local score = tonumber(newest) or packet_id
for _, message in ipairs(cjson.decode(ARGV[1])) do
    packet_id = packet_id % 65535 + 1
    score = score + 1
    message.packetId = packet_id
    local key = messages_key .. '_' .. packet_id
    redis.call('SET', key, cjson.encode(message), 'EX', message.msgExpiryInterval or ARGV[3])
    redis.call('ZADD', messages_key, score, key)
end
redis.call('SET', last_packet_id_key, packet_id)
for _, key in ipairs(redis.call('ZRANGE', messages_key, 0, -ARGV[2] - 1)) do
    redis.call('ZREM', messages_key, key)
    redis.call('DEL', key)
end
return packet_id
"""

# What the script above has made of a session once it has run so many times for a message each. Those that its limit
# removes again are not written, so that a whole lap of packet ids takes no time. Topics are numbered.
_SAVE_AGAIN_AND_AGAIN = """
local messages_key, last_packet_id_key = KEYS[1], KEYS[2]
local message = cjson.decode(ARGV[1])
local limit, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local packet_id = tonumber(redis.call('GET', last_packet_id_key)) or 0
local newest = redis.call('ZRANGE', messages_key, 0, 0, 'REV', 'WITHSCORES')[2]
local score = tonumber(newest) or packet_id
local topic = message.topicName
for number = 1, count do
    packet_id = packet_id % 65535 + 1
    score = score + 1
    if number > count - limit then
        message.packetId = packet_id
        message.topicName = topic .. number
        local key = messages_key .. '_' .. packet_id
        redis.call('SET', key, cjson.encode(message), 'EX', message.msgExpiryInterval)
        redis.call('ZADD', messages_key, score, key)
    end
end
redis.call('SET', last_packet_id_key, packet_id)
for _, key in ipairs(redis.call('ZRANGE', messages_key, 0, -limit - 1)) do
    redis.call('ZREM', messages_key, key)
    redis.call('DEL', key)
end
return packet_id
"""

_FETCH = """
local found = {}
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local text = redis.call('GET', key)
    if text then
        found[#found + 1] = text
    else
        redis.call('ZREM', KEYS[1], key)
    end
end
return found
"""

_ACKNOWLEDGE = """
local key = KEYS[1] .. '_' .. ARGV[1]
redis.call('ZREM', KEYS[1], key)
redis.call('DEL', key)
"""

_RECEIVED = """
local key = KEYS[1] .. '_' .. ARGV[1]
local text = redis.call('GET', key)
if text then
    local message = cjson.decode(text)
    message.packetType = 'PUBREL'
    redis.call('SET', key, cjson.encode(message))
end
"""

_PURGE = """
for _, key in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    redis.call('DEL', key)
end
redis.call('DEL', KEYS[1], KEYS[2])
"""


@dataclass(frozen=True)
class Broker:
    """A broker that knows the client id only: it makes every key's name itself, and reads nothing of ours."""

    client: Any
    client_id: str

    def _run(self, script: str, *arguments: str | int) -> Any:
        stem = f"{{{self.client_id}}}"
        return self.client.eval(script, 2, f"{stem}_messages", f"{stem}_last_packet_id", *arguments)

    def fetch(self) -> list[dict[str, Any]]:
        """Read everything in order of score; a reference without a message is forgotten."""
        return [json.loads(text) for text in self._run(_FETCH)]

    def acknowledge(self, packet_id: int) -> None:
        """Remove a message that the client has confirmed."""
        self._run(_ACKNOWLEDGE, packet_id)

    def received(self, packet_id: int) -> None:
        """Note that the client has sent PUBREC: the record stays, as PUBREL and without an expiry."""
        self._run(_RECEIVED, packet_id)

    def add(self, topic: str, *, limit: int = 10_000, life_s: int = 600) -> int:
        """Store one message behind all others and return the packet id that it gets."""
        return self.save([self._message(topic, life_s)], limit=limit)

    def add_many(self, stem: str, count: int, *, limit: int, life_s: int = 600) -> int:
        """Store messages one by one, more than the limit, with topics numbered from 1; return the last packet id."""
        packet_id: int = self._run(_SAVE_AGAIN_AND_AGAIN, json.dumps(self._message(stem, life_s)), limit, count)
        return packet_id

    def _message(self, topic: str, life_s: int) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "topicName": topic,
            "time": now_ms(),
            "qos": 2,
            "packetType": "PUBLISH",
            "payload": b64encode(b"\xff\xff\xfe body").decode(),
            "retained": False,
            "msgExpiryInterval": life_s,
        }

    def save(self, pack: Sequence[dict[str, Any]], *, limit: int = 10_000, default_life_s: int = 604_800) -> int:
        """Store a pack behind all others and return the last packet id.

        What was written stays when the server refuses one of the commands.
        """
        packet_id: int = self._run(_SAVE, json.dumps(pack), limit, default_life_s)
        return packet_id

    def purge(self) -> None:
        """Remove everything that it knows of the session."""
        self._run(_PURGE)
