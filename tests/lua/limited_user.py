"""A user of a server that may touch some keys only, to find out scripts that make the names of keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from lua_sessions import command

from queuekeeper.lua import Call, ScriptCaller
from queuekeeper.redis_client import RedisClient, connect, nodes

PASSWORD = "limited"


def pattern(key: str) -> str:
    """Return the access pattern of one key; white space, which a pattern may not hold, matches any character."""
    escaped = "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in key)
    return "".join("?" if letter.isspace() else letter for letter in escaped)


@contextmanager
def user_of(client: RedisClient, *rules: str) -> Iterator[RedisClient]:
    """Return a client of a user with these rights."""
    masters = [node for _, node in nodes(client)]
    for node in masters:
        command(node, "ACL SETUSER", "limited", "reset", "on", f">{PASSWORD}", *rules)
    options = masters[0].connection_pool.connection_kwargs
    try:
        with connect(f"redis://limited:{PASSWORD}@{options['host']}:{options['port']}") as user:
            yield user
    finally:
        for node in masters:
            command(node, "ACL DELUSER", "limited")


def limited(client: RedisClient, keys: list[str]) -> AbstractContextManager[RedisClient]:
    """Return a client of a user that may touch these keys only."""
    return user_of(client, "+@all", *(f"~{pattern(key)}" for key in keys))


def called_with_its_keys(client: RedisClient, call: Call) -> Any:
    """Call a script as a user that may touch the declared keys only, and return its reply."""
    with limited(client, [key.decode() if isinstance(key, bytes) else str(key) for key in call.keys]) as user:
        return ScriptCaller(user).call(*call)
