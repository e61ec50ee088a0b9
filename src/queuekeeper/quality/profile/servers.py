"""Asks Redis servers how safe messages are with them: memory, eviction, persistence, replicas."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import redis
from redis.exceptions import NoPermissionError

from queuekeeper.redis_client import RedisClient, facts, nodes, read_url, redis_errors


def read_servers(client: RedisClient) -> tuple[dict[str, Any], ...]:
    """Return what each master says of itself, as JSON knows it.

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
            # CONFIG is an administrator's command: without it this one thing stays unknown.
            configured = {}
    return {
        # Neither says anything about a file that is not kept.
        "appendfsync": _text(configured) if persistence["aof_enabled"] else None,
        "aof_written": persistence.get("aof_last_write_status") == "ok" if persistence["aof_enabled"] else None,
        "evicted_keys": int(stats["evicted_keys"]),
        "replicas": int(replication["connected_slaves"]),
    }


def _text(configured: dict[Any, Any]) -> str | None:
    for value in configured.values():
        return value.decode() if isinstance(value, bytes) else str(value)
    return None


def redis_target(redis_url: str, *, key_prefix: str) -> str:
    """Return what profiles of a Redis have in common: address, database, prefix of keys; never a password."""
    place, _, options = read_url(redis_url)
    return f"{place}/{options.get('db', 0)} {key_prefix}".rstrip()
