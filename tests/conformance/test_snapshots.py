"""What a server says of its keys stands in its RDB file, key by key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuekeeper.embedded.redis_server import Flavour, RedisServer
from queuekeeper.rdb.snapshot import Entry, Snapshot, Want
from queuekeeper.rdb.values import Kind
from tests.conftest import REDIS_FLAVOURS
from tests.snapshot_samples import plant, read, told

pytestmark = pytest.mark.conformance

DATA = Path(__file__).parents[1] / "data"

# Made by `plant` on Redis 8.2.3, a cluster of one, with frequencies of use, a function, and a value of a module.
REDIS_8 = DATA / "redis-8.2-cluster.rdb"


@pytest.fixture(params=REDIS_FLAVOURS)
def server(request: pytest.FixtureRequest, redis_servers: Callable[[Flavour], RedisServer]) -> RedisServer:
    """A server of each kind whose forms differ."""
    server = redis_servers(request.param)
    with server.client() as client:
        client.flushall()
    return server


def saved(server: RedisServer) -> Path:
    """Have a server write its file and return its place."""
    with server.client() as client:
        client.save()
        place: dict[str, str] = {**client.config_get("dir"), **client.config_get("dbfilename")}
    return Path(place["dir"], place["dbfilename"])


def has_expiring_fields(client: Any) -> bool:
    return b"HPEXPIREAT" in {name.upper() for name in client.execute_command("COMMAND LIST")}


@pytest.mark.parametrize("compression", ["yes", "no"])
def test_a_file_says_of_each_key_what_the_server_says(server: RedisServer, compression: str) -> None:
    with server.client() as client:
        client.config_set("rdbcompression", compression)
        plant(client, expiring_fields=has_expiring_fields(client))
        expected = told(client)
        path = saved(server)
        client.config_set("rdbcompression", "yes")

    assert read(path) == expected
    assert len(expected) >= 40
    assert {kind for kind, _, _ in expected.values()} == {*Kind} - {Kind.MODULE}


@pytest.mark.parametrize("edge", [2**7, 2**14, 2**21])
def test_an_element_of_any_size_near_an_edge_is_read(server: RedisServer, edge: int) -> None:
    # A listpack tells the size of an element behind it, too, in more bytes from some sizes on.
    with server.client() as client:
        client.config_set("hash-max-listpack-value", 2**22)
        for size in range(edge - 8, edge + 2):
            client.hset(f"hash:{size}", mapping={"before": "a", "value": b"v" * size, "behind": "b"})
        expected = told(client)
        path = saved(server)
        client.config_set("hash-max-listpack-value", 64)

    assert read(path) == expected


def test_marks_of_use_functions_and_databases_are_passed_over(server: RedisServer) -> None:
    with server.client(database=3) as other:
        other.set("elsewhere", "1", px=100_000_000)
        elsewhere = told(other)
    with server.client() as client:
        client.function_load("#!lua name=mine\nredis.register_function('f', function() return 1 end)", replace=True)
        client.set("here", "1")
        for policy in ("allkeys-lfu", "allkeys-lru"):
            client.config_set("maxmemory-policy", policy)
            path = saved(server)
            assert (read(path), read(path, database=3)) == (told(client), elsewhere)
        client.config_set("maxmemory-policy", "noeviction")
        client.function_flush()


def test_a_file_says_who_wrote_it_and_when(server: RedisServer) -> None:
    with server.client() as client:
        client.mset({f"key {number}": number for number in range(100)})
        facts: dict[str, Any] = client.info("server")
        before_ms = client.time()[0] * 1_000
        path = saved(server)
        after_ms = client.time()[0] * 1_000

    with path.open("rb") as file:
        snapshot = Snapshot(file, name="dump.rdb")

    assert snapshot.taken_at_ms is not None
    assert before_ms <= snapshot.taken_at_ms <= after_ms
    assert snapshot.key_count == 100
    assert not snapshot.is_clustered
    version = facts.get("valkey_version", facts["redis_version"])
    assert version in (snapshot.facts.get("valkey-ver"), snapshot.facts.get("redis-ver"))


def test_what_is_not_wanted_is_not_decoded_and_lengths_need_no_values(server: RedisServer) -> None:
    with server.client() as client:
        plant(client, expiring_fields=has_expiring_fields(client))
        lengths = {key: client.strlen(key) for key, (kind, _, _) in told(client).items() if kind == "string"}
        path = saved(server)

    def lengths_only(database: int, key: bytes, kind: Kind) -> Want:
        return Want.LENGTH if kind is Kind.STRING else Want.NOTHING

    with path.open("rb") as file:
        entries = list(Snapshot(file, name="dump.rdb").entries(lengths_only))

    assert {each.key: each.length for each in entries} == lengths
    assert {each.value for each in entries} == {None}


def test_a_file_of_redis_8_is_read(redis_server_factory: Callable[..., RedisServer]) -> None:
    with redis_server_factory(flavour="valkey").client() as client:
        plant(client, expiring_fields=True)
        expected = told(client)
    with REDIS_8.open("rb") as file:
        snapshot = Snapshot(file, name=REDIS_8.name)
        modules = [each for each in snapshot.entries() if each.kind is Kind.MODULE]

    assert modules == [Entry(0, b"graph", Kind.MODULE, -1, None, None)]
    assert read(REDIS_8) == expected
    assert snapshot.is_clustered
    assert snapshot.facts["redis-ver"] == "8.2.3"


def test_a_large_value_that_is_not_wanted_takes_no_memory(server: RedisServer) -> None:
    import tracemalloc

    with server.client() as client:
        client.config_set("rdbcompression", "no")
        for number in range(8):
            client.setrange(f"large {number}", 8_000_000, "end")
        path = saved(server)
        client.config_set("rdbcompression", "yes")
    assert path.stat().st_size > 64_000_000

    tracemalloc.start()
    with path.open("rb") as file:
        found = list(Snapshot(file, name="dump.rdb").entries(lambda *_: Want.LENGTH))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [each.length for each in found] == [8_000_003] * 8
    assert most_bytes < 12_000_000
