"""Reads the settings of Redis servers that keep messages safe: memory, eviction, persistence, replicas."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from queuekeeper.redis_client import RedisClient, facts, nodes, read_url, redis_errors, through_failover


def read_servers(client: RedisClient) -> tuple[dict[str, Any], ...]:
    """Return the settings and state of each master, as values of JSON.

    :raises RefusedError: when a server does not allow ``INFO``.
    """
    known = {fact.address: asdict(fact) for fact in facts(client)}
    is_clustered = isinstance(client, redis.RedisCluster)
    return tuple(
        known[address] | _safety(node, address) | {"is_clustered": is_clustered} for address, node in nodes(client)
    )


def _safety(node: redis.Redis, address: str) -> dict[str, Any]:
    with redis_errors(address):
        persistence, stats, replication = (node.info(section) for section in ("persistence", "stats", "replication"))
        try:
            configured = node.config_get("appendfsync")
        except NoPermissionError:
            # A user without the right to CONFIG gets no value here.
            configured = {}
    return {
        # Neither value means anything when the server keeps no such file.
        "appendfsync": _text(configured) if persistence["aof_enabled"] else None,
        "aof_written": persistence.get("aof_last_write_status") == "ok" if persistence["aof_enabled"] else None,
        "evicted_keys": int(stats["evicted_keys"]),
        "replicas": int(replication["connected_slaves"]),
    }


def _text(configured: dict[Any, Any]) -> str | None:
    for value in configured.values():
        return value.decode() if isinstance(value, bytes) else str(value)
    return None


def redis_target(client: RedisClient, *, redis_url: str, key_prefix: str) -> str:
    """Return address, database and prefix of keys, which identify the target of profiles; never a password.

    A cluster's address is the smallest of all its nodes, whichever of them the URL names, and whichever are masters.
    """
    place, _, options = read_url(redis_url)
    if isinstance(client, redis.RedisCluster):
        place = _smallest_address(client)
    return f"{place}/{options.get('db', 0)} {key_prefix}".rstrip()


def _smallest_address(client: redis.RedisCluster) -> str:
    def ask() -> str:
        address, node = nodes(client)[0]
        with redis_errors(address):
            # It names nodes that are down, too.
            known: dict[str, Any] = node.execute_command("CLUSTER NODES")  # type: ignore[no-untyped-call]
        named = ((*place.rpartition(":")[::2], each["hostname"]) for place, each in known.items())
        # A node has no host while the others have not met it.
        return min((f"{name or host}:{port}" for host, port, name in named if name or host), default=address)

    return through_failover(client, ask)
