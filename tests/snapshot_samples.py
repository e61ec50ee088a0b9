"""Keys of every type and form that a server writes into a snapshot, and what server and file say of them, alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import redis

from queuekeeper.rdb.snapshot import Entry, Snapshot
from queuekeeper.rdb.values import NEVER, Kind

END_MS = 4_000_000_000_123
"""When keys and fields expire that do: long after every test."""

_NUMBERS = (0, -1, 12, 127, 128, -128, -4_096, 4_095, 32_767, -32_769, 8_388_607, 2**31 - 1, -(2**31), 2**40, -(2**63))
_TEXTS = (b"", b"a", b"\xff\x00\r\n", b"ab" * 30, b"c" * 63, b"d" * 64, b"e" * 300, b"f" * 5_000, b"0123456789" * 2_000)


def _elements(count: int) -> list[bytes]:
    """Return different short strings."""
    return [b"element %d" % number for number in range(count)]


def _noise(size: int) -> bytes:
    """Return bytes that nothing compresses, the same each time."""
    return random.Random(size).randbytes(size)


def plant(client: Any, *, expiring_fields: bool) -> None:
    """Give a server keys of every type, small and large.

    :param expiring_fields: whether the server lets fields of hashes expire.
    """
    texts = [*(b"%d" % number for number in _NUMBERS), *_TEXTS, _noise(17_000)]
    for number, text in enumerate(texts):
        client.set(f"string:{number}", text)
    client.set("string:ends", "x", pxat=END_MS)
    client.set(_noise(40), b"a key with a name of bytes")
    texts = texts[:-1]
    client.rpush("list:small", *texts[:20])
    client.rpush("list:large", *texts, *_elements(1_500), _noise(9_000))
    client.sadd("set:numbers", 1, 2, 3)
    client.sadd("set:wide numbers", 1, -70_000)
    client.sadd("set:widest numbers", 1, 2**40)
    client.sadd("set:small", "a", "b", 3)
    client.sadd("set:large", *texts, *_elements(600))
    scores = {"a": 1, "b": 2.5, "c": float("inf"), "d": float("-inf"), "e": -0.1, "f": 1e300, "g": 2**53}
    client.zadd("zset:small", scores)
    client.zadd("zset:large", scores)
    client.zadd("zset:large", {each: place / 3 for place, each in enumerate(_elements(300))})
    client.hset("hash:small", mapping={"a": "1", "b": "two"})
    values: dict[bytes, bytes] = dict(zip(_elements(600), texts * 30, strict=False))
    client.hset("hash:large", mapping=values)
    client.pexpireat("hash:small", END_MS)
    if expiring_fields:
        client.hset("hash:small with ends", mapping={"a": "1", "b": "two", "c": "3"})
        client.hpexpireat("hash:small with ends", END_MS, "b")
        client.hset("hash:large with ends", mapping=dict.fromkeys(_elements(600), b"value"))
        for place, field in enumerate(_elements(5)):
            client.hpexpireat("hash:large with ends", END_MS + 1_000 * place, field)
    _plant_streams(client)


def _plant_streams(client: Any) -> None:
    for number in range(1, 500):
        fields = {"field": number, "other": b"x" * (number % 90)} if number % 7 else {b"one of %d" % number: "value"}
        client.xadd("stream:large", fields, id=f"{number // 9 + 1}-{number % 9 + 1}")
    for number in (1, 30, 31, 299):
        client.xdel("stream:large", f"{number // 9 + 1}-{number % 9 + 1}")
    client.xgroup_create("stream:large", "readers", id="0")
    client.xgroup_create("stream:large", "nobody", id="$")
    client.xreadgroup("readers", "first", {"stream:large": ">"}, count=10)
    client.xreadgroup("readers", "second", {"stream:large": ">"}, count=20)
    client.xadd("stream:empty", {"a": "b"}, id="5-1")
    client.xdel("stream:empty", "5-1")


def told(client: Any) -> dict[bytes, Any]:
    """Return what a server says of each key of a database: type, expiry, value."""
    found = {}
    for key in client.scan_iter(count=1_000):
        kind = client.type(key).decode()
        found[key] = kind, client.pexpiretime(key), _told(client, key, kind)
    return found


def _told(client: Any, key: bytes, kind: str) -> Any:
    if kind == "string":
        return client.get(key)
    if kind == "list":
        return client.lrange(key, 0, -1)
    if kind == "set":
        return sorted(client.smembers(key))
    if kind == "zset":
        return sorted(client.zrange(key, 0, -1, withscores=True))
    if kind == "hash":
        values = client.hgetall(key)
        try:
            ends = client.execute_command("HPEXPIRETIME", key, "FIELDS", len(values), *values)
        except redis.ResponseError:
            ends = [NEVER] * len(values)
        return sorted((field, value, end) for (field, value), end in zip(values.items(), ends, strict=True))
    entries = [(name, tuple(part for pair in fields.items() for part in pair)) for name, fields in client.xrange(key)]
    groups = []
    for group in client.xinfo_groups(key):
        waiting = client.xpending_range(key, group["name"], "-", "+", 1_000) if group["pending"] else []
        owners = sorted((each["consumer"], each["message_id"], each["times_delivered"]) for each in waiting)
        groups.append((group["name"], group["last-delivered-id"], owners))
    return entries, client.xinfo_stream(key)["last-generated-id"], groups


def read(path: Path, *, database: int = 0) -> dict[bytes, Any]:
    """Return what a file says of each key of a database, in the form of :func:`told`."""
    with path.open("rb") as file:
        entries = list(Snapshot(file, name=path.name).entries())
    return {
        each.key: (each.kind.value, each.expires_at_ms, _read(each))
        for each in entries
        if each.database == database and each.kind is not Kind.MODULE
    }


def _read(entry: Entry) -> Any:
    value = entry.value
    if entry.kind in (Kind.STRING, Kind.LIST):
        return value
    if entry.kind is not Kind.STREAM:
        return sorted(tuple(each) if isinstance(each, tuple) else each for each in value)
    groups = []
    for group in value.groups:
        owners = [
            (consumer, b"%d-%d" % name, group.pending[name][1])
            for consumer, names in group.consumers.items()
            for name in names
        ]
        assert len(owners) == len(group.pending)
        groups.append((group.name, b"%d-%d" % group.last_id, sorted(owners)))
    return [(b"%d-%d" % name, fields) for name, fields in value.entries], b"%d-%d" % value.last_id, groups
