"""Connects to a Redis or Valkey server or cluster, and reads its facts."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast
from urllib.parse import unquote, urlsplit

import hiredis
import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterError,
    InvalidResponse,
    MaxConnectionsError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from queuekeeper.checks import checked
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.errors import NotAllowed, QueuekeeperError, RefusedError, ServerUnavailable, StoreFull, UsageError
from queuekeeper.hosts import check_host, is_loopback, without_secret
from queuekeeper.keyspace import SLOTS

RedisClient: TypeAlias = redis.Redis | redis.RedisCluster

T = TypeVar("T")

Words: TypeAlias = tuple[str | bytes | int, ...]
"""A command and its arguments."""

_pack = cast(Callable[[Words], bytes], hiredis.pack_command)

CONNECT_TIMEOUT_S = 5
REPLY_TIMEOUT_S = 30
"""Time limit of a reply in seconds; our scripts run for milliseconds, so a server that is silent longer is stuck."""

RETRY_FOR_S = 30.0
"""Seconds for which a call that has not run is sent again: longer than a failover takes with a cluster's defaults."""

MINIMUM_REDIS_VERSION = (7, 0)
"""Least version: Redis 7.0 has scripts with flags, and PEXPIRETIME; every version of Valkey is later."""

DEFAULTS = {
    "socket_connect_timeout": CONNECT_TIMEOUT_S,
    "socket_timeout": REPLY_TIMEOUT_S,
    "client_name": "queuekeeper",
}
"""Default options, which a URL may override."""

_POOL = {"max_connections": 2**31}
"""A thread has a connection of its own while it waits for a reply; redis-py refuses the one after its limit at once."""

_OURS = frozenset({"decode_responses", "encoding", "encoding_errors", "protocol", "retry_on_timeout"})


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Facts about one master.

    :param address: ``host:port``.
    :param version: version of the product; Valkey's own version for Valkey.
    :param maxmemory_bytes: 0 when no limit is set.
    :param role: ``master`` or ``slave``, as in ``INFO``.
    """

    address: str
    version: str
    is_valkey: bool
    used_memory_bytes: int
    maxmemory_bytes: int
    maxmemory_policy: str
    total_system_memory_bytes: int
    aof_enabled: bool
    role: str
    run_id: str
    replication_id: str


@checked
def connect(url: str) -> RedisClient:
    """Open a connection to a single server, or to the cluster that the server belongs to.

    Automatic retries are off: a script that is sent twice would be run twice.

    :param url: ``redis://``, ``rediss://`` or ``unix://``; for a cluster, the address of any node.
    :raises UsageError: when the URL does not parse or names a database that a cluster does not have.
    :raises ServerUnavailable: when the server cannot be reached or refuses us, with the cause and what to do.
    """
    address, secret, _ = read_url(url)
    ours: dict[str, Any] = {"decode_responses": False, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    options = {**ours, **_POOL, **DEFAULTS}
    try:
        single = redis.Redis.from_url(url, **options)
        with redis_errors(address, secret=secret):
            is_cluster = bool(_info(single, "cluster").get("cluster_enabled"))
        if not is_cluster:
            return single
        single.close()
        if single.connection_pool.connection_kwargs.get("db"):
            raise UsageError(f"{address} is a cluster, which has only database 0: take the database out of the URL")
        with redis_errors(address, secret=secret):
            # Slots without a server are reported later, when slots are divided into cohorts.
            return redis.RedisCluster.from_url(url, require_full_coverage=False, **options)
    except TypeError as error:
        raise unknown_option(error, address) from None


def pack(words: Words) -> bytes:
    """Return the bytes of a command; redis-py's own function takes twice the time.

    :raises UsageError: when a key or argument cannot be sent.
    """
    try:
        return _pack(words)
    except (TypeError, ValueError) as error:
        raise UsageError(f"a key or argument cannot be sent: {error}") from None


def unknown_option(error: TypeError, address: str) -> UsageError:
    """Return the exception for a URL with an option that redis-py does not know."""
    return UsageError(f"the Redis URL of {address} has an option that is not known: {error}")


def read_url(url: str) -> tuple[str, str, dict[str, Any]]:
    """Return the address of a URL, its password, which must not appear in messages, and all options of redis-py.

    :raises UsageError: when the URL does not parse or sets a reserved option.
    """
    try:
        parts = urlsplit(url)
        options = parse_url(url)  # type: ignore[no-untyped-call]
        if parts.port == 0:
            raise ValueError("port 0 cannot be connected to")
        # redis-py reads a database that is not a number as 0, and /1/2 as 12.
        if not parts.scheme.startswith("unix") and not re.fullmatch("/?[0-9]*", unquote(parts.path)):
            raise ValueError("its database is not a number")
        check_host(str(options.get("host", "")))
    except ValueError as error:
        # The URL may hold a password, so the message has only the reason.
        reason = str(error) if "://" not in str(error) or "schemes" in str(error) else "it does not parse"
        raise UsageError(
            f"the Redis URL cannot be used: {reason}. Write redis://[user:password@]host:port[/db]"
        ) from None
    reserved = sorted(_OURS & options.keys())
    if reserved:
        raise UsageError(f"the Redis URL must not set {', '.join(reserved)}: the replies would be read wrongly")
    address = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return address, unquote(options.get("password") or ""), options


def address_of(client: RedisClient) -> str:
    """Return ``host:port`` of a server, or of a cluster's default node."""
    if isinstance(client, redis.RedisCluster):
        node = client.get_default_node()  # type: ignore[no-untyped-call]
        return str(node.name) if node is not None else "the cluster"
    options = client.connection_pool.connection_kwargs
    return str(options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}")


def is_encrypted(node: redis.Redis) -> bool:
    """Return whether a connection uses TLS."""
    return issubclass(node.connection_pool.connection_class, redis.SSLConnection)


def is_local(node: redis.Redis) -> bool:
    """Return whether a connection stays on this machine."""
    options = node.connection_pool.connection_kwargs
    return "path" in options or is_loopback(options.get("host", "localhost"))


def loopback_host(url: str) -> str | None:
    """Return the host of a URL if it is one such as ``localhost``, which means a different machine on each host.

    :returns: ``None`` for any other host.
    :raises UsageError: when the URL does not parse.
    """
    options = read_url(url)[2]
    host = str(options.get("path") or options.get("host") or "localhost")
    return host if is_loopback(host) else None


@contextmanager
def redis_errors(address: str, *, secret: str = "") -> Iterator[None]:
    """Turn exceptions that redis-py raises in the block into our exceptions.

    :param address: server to name in the message.
    :param secret: text that must not appear in a message.
    """
    try:
        yield
    except (RedisError, RedisClusterException, OSError) as error:
        raise from_redis(error, address, secret=secret) from None if secret else error


def refused_in_script(text: str) -> bool:
    """Return whether an error says that a script has called what its user may not."""
    return "ACL failure in script" in text


def from_redis(error: BaseException, address: str, *, secret: str = "") -> QueuekeeperError:
    """Return our exception for a failed command, which says what is wrong and what to do.

    :param error: exception of redis-py; one of our own exceptions is returned unchanged.
    :param address: server that the command was sent to.
    :param secret: text that must not appear in the message.
    """
    if isinstance(error, QueuekeeperError):
        return error
    text = without_secret(str(error).strip().rstrip("."), secret)
    low = text.lower()
    server = f"Redis at {address}"
    if isinstance(error, OutOfMemoryError):
        return StoreFull(f"{server} is full: {text}. Raise maxmemory or free memory, then repeat")
    if isinstance(error, NoPermissionError) or refused_in_script(text):
        rules = "Grant it with ACL SETUSER, `queuekeeper acl redis` prints what each job needs"
        return NotAllowed(f"{server} does not allow this user to do that: {text}. {rules}")
    if isinstance(error, ReadOnlyError):
        return ServerUnavailable(f"{server} is a replica and takes no writes: name its master")
    if isinstance(error, BusyLoadingError):
        return ServerUnavailable(f"{server} is still loading its data: wait until it answers PING, then repeat")
    if text.startswith("BUSY "):
        return ServerUnavailable(f"{server} has been running one script for long: end that one with SCRIPT KILL")
    if text.startswith("NOREPLICAS "):
        return ServerUnavailable(f"{server} takes no writes while it lacks replicas: see min-replicas-to-write")
    if text.startswith("MISCONF "):
        return ServerUnavailable(f"{server} takes no writes since it cannot save them: {text}. See its log")
    if isinstance(error, AskError | TryAgainError):
        return ServerUnavailable(f"{server}: the slot is being moved and is not served in full: {text}")
    if isinstance(error, AuthenticationError) or "authentication" in low or "auth " in low:
        if "without any password" in low:
            return ServerUnavailable(f"{server} has no password set: take user and password out of the URL")
        if "required" in low:
            return ServerUnavailable(
                f"{server} asks for a password: put it in the URL, redis://user:password@host:port"
            )
        return ServerUnavailable(f"{server} refuses user or password: {text}. Check both in the URL")
    if isinstance(error, ClusterError) or "clusterdown" in low:
        return ServerUnavailable(
            f"the cluster at {address} does not serve: {text}. See CLUSTER INFO and repair it first"
        )
    if isinstance(error, RedisClusterException):
        return ServerUnavailable(f"the cluster at {address} cannot be used: {text}")
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return ServerUnavailable(
            f"{server} does not answer within {CONNECT_TIMEOUT_S} s (connect) or {REPLY_TIMEOUT_S} s (reply), or as "
            "its URL says: check address, firewall and load, and that rediss:// names a TLS port"
        )
    if isinstance(error, MaxConnectionsError):
        return ServerUnavailable(
            f"{server} was not asked: as many threads wait for it as max_connections in the URL allows. Raise or omit "
            "that option"
        )
    if isinstance(error, RedisConnectionError | OSError):
        if "ssl" in low or "certificate" in low or "tls" in low:
            return ServerUnavailable(
                f"{server}: TLS failed: {text}. Use rediss:// only with a TLS port, and name the authority's "
                "certificate with ?ssl_ca_certs=FILE"
            )
        if "refused" in low or f"[errno {errno.ECONNREFUSED}]" in low:
            return ServerUnavailable(
                f"{server} refuses the connection: nothing listens there. Start it or correct the URL"
            )
        if any(word in low for word in ("name or service", "getaddrinfo", "nodename", "temporary failure in name")):
            return ServerUnavailable(f"{server}: the host name is not known. Correct the URL or the name service")
        if "closed" in low or "reset" in low or "broken pipe" in low:
            return ServerUnavailable(
                f"{server} closed the connection: it stopped, or it speaks TLS only (then write rediss://)"
            )
        return ServerUnavailable(f"{server} cannot be reached: {text}")
    if "db index is out of range" in low or "select is not allowed" in low:
        return UsageError(f"{server} does not have the database that the URL names; a cluster has database 0 only")
    if isinstance(error, InvalidResponse):
        return ServerUnavailable(f"{address} does not speak the Redis protocol: {text}. Correct the URL")
    if isinstance(error, ResponseError):
        return RefusedError(f"{server} refuses the command: {text}")
    return RefusedError(f"{server}: {text}")


def lost(error: BaseException, address: str) -> ServerUnavailable:
    """Return the exception for a command that was sent and got no reply.

    :param error: exception that ended the connection.
    :param address: server that the command was sent to.
    """
    return ServerUnavailable(f"{from_redis(error, address)}. Nobody knows whether the call has run")


def is_cluster(client: RedisClient) -> bool:
    """Return whether keys are spread over servers by their hash slots."""
    return isinstance(client, redis.RedisCluster)


def through_failover(client: RedisClient, ask: Callable[[], T]) -> T:
    """Return the result of a call; on a cluster, repeat a failed call for as long as a failover may take.

    :param ask: call that changes nothing, since it may be repeated.
    :raises ServerUnavailable: when the call still fails after that time; on a single server, at once.
    """
    give_up_at = time.monotonic() + RETRY_FOR_S
    attempt = 0
    while True:
        try:
            return ask()
        except ServerUnavailable:
            if not isinstance(client, redis.RedisCluster) or time.monotonic() > give_up_at:
                raise
        time.sleep(SERVER_BACKOFF.after(attempt))
        attempt += 1
        with suppress(RedisError, RedisClusterException, OSError):
            client.nodes_manager.initialize()


def nodes(client: RedisClient) -> list[tuple[str, redis.Redis]]:
    """Return address and connection of every master, in the order of their addresses."""
    if isinstance(client, redis.RedisCluster):
        primaries = client.get_primaries()  # type: ignore[no-untyped-call]
        found = {str(node.name): client.get_redis_connection(node) for node in primaries}
        return sorted(found.items())
    return [(address_of(client), client)]


def read_topology(client: redis.RedisCluster) -> None:
    """Read again which server holds which slot, since the client's knowledge may be old."""
    with redis_errors(address_of(client)):
        client.nodes_manager.initialize()


def shards(client: RedisClient) -> list[tuple[int, int, str]]:
    """Return contiguous ranges of hash slots as ``(first, last, "host:port")``, in order.

    A single server holds all slots. Slots that no master serves are left out.
    """
    if not isinstance(client, redis.RedisCluster):
        return [(0, SLOTS - 1, address_of(client))]
    read_topology(client)
    ranges: list[tuple[int, int, str]] = []
    for slot in range(SLOTS):
        owners = client.nodes_manager.slots_cache.get(slot)
        if not owners:
            continue
        address = str(owners[0].name)
        if ranges and ranges[-1][1] == slot - 1 and ranges[-1][2] == address:
            ranges[-1] = (ranges[-1][0], slot, address)
        else:
            ranges.append((slot, slot, address))
    return ranges


def clocks_ms(client: RedisClient) -> list[int]:
    """Return the time of each master, by which its keys expire, in milliseconds since 1970-01-01 UTC."""

    def ask() -> list[int]:
        found: list[int] = []
        for address, node in nodes(client):
            with redis_errors(address):
                answer: Any = node.time()
            seconds, microseconds = answer
            found.append(int(seconds) * 1_000 + int(microseconds) // 1_000)
        return found

    return through_failover(client, ask)


def count_keys(client: RedisClient) -> int:
    """Return the number of keys of all masters."""
    found = 0
    for address, node in nodes(client):
        with redis_errors(address):
            found += int(node.dbsize())
    return found


def facts(client: RedisClient) -> list[ServerFacts]:
    """Return version, memory, persistence and role of each master."""
    return through_failover(client, lambda: _facts(client))


def demoted(address: str) -> ServerUnavailable:
    """Return the error for a node of a cluster that was a master when the client last read the slots."""
    return ServerUnavailable(f"Redis at {address} has become a replica, and its master is not known yet")


def _facts(client: RedisClient) -> list[ServerFacts]:
    result: list[ServerFacts] = []
    for address, node in nodes(client):
        with redis_errors(address):
            server, memory, persistence, replication = (
                _info(node, section) for section in ("server", "memory", "persistence", "replication")
            )
        if is_cluster(client) and replication["role"] != "master":
            raise demoted(address)
        valkey_version = server.get("valkey_version")
        result.append(
            ServerFacts(
                address=address,
                version=str(valkey_version or server["redis_version"]),
                is_valkey=valkey_version is not None,
                used_memory_bytes=int(memory["used_memory"]),
                maxmemory_bytes=int(memory["maxmemory"]),
                maxmemory_policy=str(memory["maxmemory_policy"]),
                total_system_memory_bytes=int(memory["total_system_memory"]),
                aof_enabled=bool(persistence["aof_enabled"]),
                role=str(replication["role"]),
                run_id=str(server["run_id"]),
                replication_id=str(replication["master_replid"]),
            )
        )
    return result


def value_bounds(client: RedisClient) -> list[tuple[str, str, int]]:
    """Return the settings that limit the size of a value, for each master: address, setting and bytes.

    A master whose settings may not be read is left out: its default is 512 MB, and the largest MQTT packet needs 358.
    """
    found: list[tuple[str, str, int]] = []
    for address, node in nodes(client):
        for setting in ("proto-max-bulk-len", "client-query-buffer-limit"):
            with redis_errors(address):
                try:
                    answer: Any = node.config_get(setting)
                except ResponseError:  # no permission, or a managed service without CONFIG
                    continue
            found += [(address, setting, int(value)) for value in answer.values()]
    return found


def unfit(server: ServerFacts) -> list[str]:
    """Return the reasons why Queuekeeper cannot use a server, each with its remedy."""
    problems = []
    version = tuple(int(part) for part in re.findall(r"\d+", server.version)[:2])
    if not server.is_valkey and version < MINIMUM_REDIS_VERSION:
        problems.append(f"Redis at {server.address} is version {server.version}: upgrade it to 7.0 or later")
    if server.role != "master":
        problems.append(f"Redis at {server.address} is a replica: name its master instead, or REPLICAOF NO ONE")
    return problems


def _info(client: redis.Redis, section: str) -> dict[str, Any]:
    return client.info(section)
