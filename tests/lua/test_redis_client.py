"""Connecting: what a person reads when a server is not there or not as expected, and what servers say of themselves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Thread
from typing import Any

import pytest
import redis
from lua_sessions import command

from queuekeeper.errors import ServerUnavailable, StoreFull, UsageError
from queuekeeper.keyspace import SLOTS
from queuekeeper.redis_client import RedisClient, connect, facts, from_redis, nodes, shards
from queuekeeper.redis_connection import endpoint

pytestmark = pytest.mark.lua

PASSWORD = "p%40ss-word-that-nobody-may-see"


@contextmanager
def listener(answer: bytes | None) -> Iterator[int]:
    """Listen on a port and answer the first bytes of each connection; none closes it at once."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with closing(connection):
                    if answer is not None:
                        connection.recv(1_000)
                        connection.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return int(server.getsockname()[1])


def refused(url: str) -> str:
    with pytest.raises(ServerUnavailable) as caught:
        connect(url)
    if PASSWORD in url:
        assert caught.value.__cause__ is None, "the cause could show the password"
    assert "p@ss-word" not in str(caught.value)
    return str(caught.value)


def test_cluster_is_recognised(client: RedisClient, request: pytest.FixtureRequest) -> None:
    cluster = "cluster" in request.node.callspec.id
    assert isinstance(client, redis.RedisCluster if cluster else redis.Redis)
    assert len(nodes(client)) == (3 if cluster else 1)


def test_nothing_is_sent_twice_by_itself(client: RedisClient) -> None:
    for _, node in nodes(client):
        assert node.connection_pool.connection_kwargs["retry"].get_retries() == 0
    if isinstance(client, redis.RedisCluster):
        assert client.retry.get_retries() == 0


def test_replies_are_bytes(client: RedisClient) -> None:
    client.set("{a}", b"\xff")
    assert client.get("{a}") == b"\xff"


def test_shards_cover_every_slot_once(client: RedisClient) -> None:
    expected = 0
    for first, last, address in shards(client):
        assert first == expected
        assert address in dict(nodes(client))
        expected = last + 1
    assert expected == SLOTS
    assert len(shards(client)) == len(nodes(client))


def test_slot_without_server_is_left_out(redis_cluster_url: str) -> None:
    with connect(redis_cluster_url) as client:
        masters = dict(nodes(client))
        slot, _, owner = shards(client)[1]
        for node in (masters[owner], *(node for address, node in masters.items() if address != owner)):
            command(node, "CLUSTER DELSLOTS", slot)
        try:
            with connect(redis_cluster_url) as other:
                ranges = shards(other)
                assert sum(last - first + 1 for first, last, _ in ranges) == SLOTS - 1
                assert not any(first <= slot <= last for first, last, _ in ranges)
        finally:
            command(masters[owner], "CLUSTER ADDSLOTS", slot)


def test_facts_of_each_master(client: RedisClient, request: pytest.FixtureRequest) -> None:
    found = facts(client)
    assert [server.address for server in found] == [address for address, _ in nodes(client)]
    for server in found:
        assert server.is_valkey == ("redis" not in request.node.callspec.id)
        assert int(server.version.split(".")[0]) >= 7
        assert server.maxmemory_policy == "noeviction"
        assert server.maxmemory_bytes == 0
        assert 100_000 < server.used_memory_bytes < server.total_system_memory_bytes
        assert server.role == "master"
        assert len(server.run_id) == 40
        assert len(server.replication_id) == 40


def test_facts_follow_the_configuration(redis_server_factory: Callable[..., Any]) -> None:
    server = redis_server_factory(maxmemory="64mb", maxmemory_policy="allkeys-lru", appendonly="no")
    with connect(server.url) as client:
        (found,) = facts(client)
    assert (found.maxmemory_bytes, found.maxmemory_policy, found.aof_enabled) == (64 * 1024**2, "allkeys-lru", False)


def test_refused_connection() -> None:
    port = free_port()
    assert refused(f"redis://:{PASSWORD}@127.0.0.1:{port}") == (
        f"Redis at 127.0.0.1:{port} refuses the connection: nothing listens there. Start it or correct the URL"
    )


def test_wrong_password(redis_url: str) -> None:
    address = redis_url.rpartition("@")[2].removesuffix("/0")
    message = refused(f"redis://:{PASSWORD}@{address}")
    assert "refuses user or password" in message
    assert message.endswith("Check both in the URL")


def test_missing_password(redis_url: str) -> None:
    address = redis_url.rpartition("@")[2]
    assert "asks for a password: put it in the URL" in refused(f"redis://{address}")


def test_password_that_the_server_does_not_want(redis_server_factory: Callable[..., Any]) -> None:
    server = redis_server_factory(protected_mode="no")
    with connect(server.url) as client:
        client.config_set("requirepass", "")
        command(client, "ACL SETUSER", "default", "nopass")
    address = server.url.rpartition("@")[2]
    with connect(f"redis://{address}") as client:
        assert client.ping()


def test_unknown_host() -> None:
    assert refused(f"redis://:{PASSWORD}@no-such-host.invalid").startswith(
        "Redis at no-such-host.invalid:6379: the host name is not known."
    )


def test_server_that_speaks_something_else() -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert "does not speak the Redis protocol" in refused(f"redis://:{PASSWORD}@127.0.0.1:{port}")


def test_server_that_hangs_up() -> None:
    with listener(None) as port:
        assert "closed the connection: it stopped, or it speaks TLS only" in refused(f"redis://127.0.0.1:{port}")


def test_tls_to_a_port_without_tls() -> None:
    with listener(b"-ERR no TLS here\r\n") as port:
        assert "TLS failed" in refused(f"rediss://:{PASSWORD}@127.0.0.1:{port}")


def test_silent_server() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
        message = refused(f"redis://:{PASSWORD}@127.0.0.1:{port}?socket_timeout=0.1")
    assert message.startswith(f"Redis at 127.0.0.1:{port} does not answer within")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://:secret@host", "must specify one of the following schemes"),
        ("redis://:secret@host:port", "it does not parse|Port could not be cast"),
        ("redis://:secret@host:99999", "Port out of range"),
        ("redis://:secret@host:0", "port 0 cannot be connected to"),
        ("redis://:secret@127.0.0.1?nonsense=1", "has an option that is not known"),
        ("redis://:secret@host?decode_responses=true", "must not set decode_responses"),
        ("redis://:secret@host?protocol=3", "must not set protocol"),
        ("redis://:secret@redis..example.com:6379", "its host is no name of a host"),
        ("redis://:secret@" + "a" * 64 + ".example.com", "its host is no name of a host"),
        ("redis://:secret@a%00b", "its host is no name of a host"),
        ("", "must specify one of the following schemes"),
        ("redis://:secret@host/queue", "its database is not a number"),
        ("redis://:secret@host/1/2", "its database is not a number"),
        ("rediss://:secret@host/-1", "its database is not a number"),
    ],
)
@pytest.mark.parametrize("read", [connect, endpoint])
def test_url_that_cannot_be_used(read: Callable[[str], Any], url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(url)
    assert "secret" not in str(caught.value)


def test_cluster_has_one_database_only(redis_cluster_url: str) -> None:
    base = redis_cluster_url.removesuffix("/0")
    with pytest.raises(
        UsageError, match="does not have the database that the URL names; a cluster has database 0 only"
    ):
        connect(f"{base}?db=3")


@pytest.mark.parametrize("error", ["ClusterDownError", "ClusterError"])
def test_cluster_that_does_not_serve_is_named(error: str) -> None:
    found = from_redis(getattr(redis.exceptions, error)("TTL exhausted."), "host:1")
    assert isinstance(found, ServerUnavailable)
    assert str(found).endswith("host:1 does not serve: TTL exhausted. See CLUSTER INFO and repair it first")


def test_full_server_is_named() -> None:
    error = from_redis(redis.exceptions.OutOfMemoryError("command not allowed"), "host:1")
    assert isinstance(error, StoreFull)
    assert str(error) == "Redis at host:1 is full: command not allowed. Raise maxmemory or free memory, then repeat"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (redis.exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "while it lacks replicas"),
        (redis.exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "cannot save them"),
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), "slot is being moved"),
        (redis.exceptions.AskError("7 host:2"), "slot is being moved"),
    ],
)
def test_server_that_takes_no_writes_for_now_is_told_from_one_that_refuses(error: Exception, words: str) -> None:
    found = from_redis(error, "host:1")
    assert isinstance(found, ServerUnavailable)
    assert words in str(found)
