"""Asks the servers behind a report how much of their memory is in use."""

from __future__ import annotations

from dataclasses import dataclass

from queuekeeper.redis_client import RedisClient, facts


@dataclass(frozen=True, kw_only=True)
class ServerMemory:
    """What one Redis master says about its memory.

    :param maxmemory_bytes: 0 when no limit is set.
    """

    address: str
    product: str
    version: str
    used_memory_bytes: int
    maxmemory_bytes: int
    maxmemory_policy: str


def measure_servers(client: RedisClient) -> tuple[ServerMemory, ...]:
    """Return what each master says."""
    return tuple(
        ServerMemory(
            address=fact.address,
            product="Valkey" if fact.is_valkey else "Redis",
            version=fact.version,
            used_memory_bytes=fact.used_memory_bytes,
            maxmemory_bytes=fact.maxmemory_bytes,
            maxmemory_policy=fact.maxmemory_policy,
        )
        for fact in facts(client)
    )
