"""Checks a Redis or Valkey: persistence, memory, clock, encryption and password."""

from __future__ import annotations

from typing import Any

import redis
from redis.exceptions import RedisError

from queuekeeper.clock import Clock, system_clock
from queuekeeper.doctor.findings import Finding, Notes, State, clock_finding, encryption_finding
from queuekeeper.errors import QueuekeeperError
from queuekeeper.keyspace import SLOTS
from queuekeeper.migration.servers import MEMORY_SHARE, server_problems
from queuekeeper.redis_client import (
    RedisClient,
    ServerFacts,
    address_of,
    connect,
    facts,
    is_encrypted,
    is_local,
    nodes,
    redis_errors,
    shards,
)
from queuekeeper.report import figures

MEMORY_SHARE_WARNING = 0.7
"""Share of maxmemory from which a warning is due: a copy, or a burst while consumers are away, may fill the server."""


def examine_redis(url: str, *, clock: Clock = system_clock) -> list[Finding]:
    """Check every master; what the user may not ask is noted as unknown.

    :param url: address of a server, or of any node of a cluster.
    :param clock: clock of this machine.
    """
    notes = Notes("Redis")
    try:
        client = connect(url)
    except QueuekeeperError as error:
        notes.unreachable(error)
        return notes.findings
    findings: list[Finding] = []
    try:
        if isinstance(client, redis.RedisCluster):
            findings += _cluster(client)
        known = {server.address: server for server in facts(client)}
        for address, node in nodes(client):
            findings += _examine(known[address], node, clock)
    except QueuekeeperError as error:
        notes.unreachable(error)
        return findings + notes.findings
    finally:
        client.close()
    return findings


def _cluster(client: RedisClient) -> list[Finding]:
    notes = Notes(f"Redis cluster at {address_of(client)}")
    served = sum(last - first + 1 for first, last, _ in shards(client))
    notes.add(
        "slots",
        State.OK if served == SLOTS else State.FAILED,
        f"{served:,} of {SLOTS:,} served by {len(nodes(client))} masters",
        "clients with other slots get no service: redis-cli --cluster fix",
    )
    return notes.findings


def _examine(server: ServerFacts, node: redis.Redis, clock: Clock) -> list[Finding]:
    notes = Notes(f"Redis {server.address}")
    product = "Valkey" if server.is_valkey else "Redis"
    problems = server_problems(server)
    notes.add(
        "version, role and eviction",
        State.FAILED if problems else State.OK,
        f"{product} {server.version}, {server.role}, maxmemory-policy {server.maxmemory_policy}",
        "; ".join(problems),
    )
    with redis_errors(server.address):
        persistence: dict[str, Any] = node.info("persistence")
        replication: dict[str, Any] = node.info("replication")
    _persistence(notes, server, persistence, _setting(node, "appendfsync"))
    _memory(notes, server)
    replicas = int(replication["connected_slaves"])
    notes.add(
        "replicas",
        State.OK if replicas else State.WARNING,
        f"{replicas:,}",
        "what is not yet on disk is lost with this machine: add a replica (docs/reliability.md states the bounds)",
    )
    before_ms = clock()
    with redis_errors(server.address):
        seconds, microseconds = node.time()
    clock_finding(notes, server_ms=seconds * 1_000 + microseconds // 1_000, before_ms=before_ms, after_ms=clock())
    encryption_finding(
        notes, encrypted=is_encrypted(node), local=is_local(node), how="use rediss:// and a TLS port of the server"
    )
    password = node.connection_pool.connection_kwargs.get("password")
    notes.add(
        "password",
        State.OK if password else State.WARNING,
        "asked for" if password else "none: whoever reaches the port may do everything",
        "give each job a user of its own: queuekeeper acl redis",
    )
    return notes.findings


def _persistence(notes: Notes, server: ServerFacts, persistence: dict[str, Any], appendfsync: str | None) -> None:
    failing = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if persistence.get(name, "ok") != "ok"
    ]
    if not server.aof_enabled:
        notes.add(
            "persistence",
            State.WARNING,
            "no append-only file: a crash loses everything since the last snapshot",
            "CONFIG SET appendonly yes, and CONFIG REWRITE",
        )
    elif failing:
        notes.add(
            "persistence",
            State.FAILED,
            f"the last write to disk failed ({', '.join(failing)})",
            "see the server's log; it is often a full disk",
        )
    elif appendfsync is None:
        notes.add(
            "persistence", State.UNKNOWN, "append-only file; this user may not ask how often it is synced",
            "grant +config|get to this user",
        )  # fmt: skip
    else:
        notes.add(
            "persistence",
            State.WARNING if appendfsync == "no" else State.OK,
            f"append-only file, appendfsync {appendfsync}",
            "CONFIG SET appendfsync everysec (a crash loses a second at most), or always",
        )


def _memory(notes: Notes, server: ServerFacts) -> None:
    used, limit = server.used_memory_bytes, server.maxmemory_bytes or server.total_system_memory_bytes
    if not limit:
        notes.add(
            "memory", State.UNKNOWN, f"{figures.size(used)} used; neither maxmemory nor the host's memory is known",
            "CONFIG SET maxmemory to what the host can spare",
        )  # fmt: skip
        return
    share = used / limit
    state = State.FAILED if share > MEMORY_SHARE else State.WARNING if share > MEMORY_SHARE_WARNING else State.OK
    what = "maxmemory" if server.maxmemory_bytes else "the host's memory; maxmemory is not set"
    if not server.maxmemory_bytes:
        state = max(state, State.WARNING, key=list(State).index)
    notes.add(
        "memory",
        state,
        f"{figures.size(used)} used, {share:.0%} of {figures.size(limit)} ({what})",
        "set maxmemory to what the host can spare; free room by `queuekeeper cleanup plan`, or add masters",
    )


def _setting(node: redis.Redis, name: str) -> str | None:
    try:
        found: Any = node.config_get(name)
    except RedisError:
        return None
    value = found.get(name, found.get(name.encode()))
    return value.decode() if isinstance(value, bytes) else value
