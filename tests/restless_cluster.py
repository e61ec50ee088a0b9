"""A cluster that does not rest: slots move, masters die and hand over, one after the other, while work goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import redis
from lua_sessions import command, value_of

from queuekeeper.embedded import RedisCluster, RedisServer
from queuekeeper.embedded.redis_server import Flavour
from queuekeeper.errors import QueuekeeperError, ServerUnavailable
from queuekeeper.keyspace import SLOTS, client_slot
from queuekeeper.redis_client import RedisClient, connect, nodes
from queuekeeper.redis_names import masters
from tests.chaos.support import until
from tests.cluster_slots import slot_of
from tests.patience import PATIENCE_S

NODE_TIMEOUT_MS = 1_000

Contents = dict[bytes, tuple[Any, int]]
"""Value and instant of expiry of every key."""


@contextmanager
def six_masters(directory: Path, *, flavour: Flavour) -> Iterator[RedisCluster]:
    """Run a cluster of six masters with a replica each, which keeps nothing on disk."""
    made = RedisCluster(
        directory,
        flavour=flavour,
        masters=6,
        replicas=1,
        config={"cluster-node-timeout": NODE_TIMEOUT_MS, "appendonly": "no"},
        die_with_parent=True,
    )
    made.start()
    try:
        yield made
    finally:
        made.stop()


def restore(client: RedisClient, found: Contents) -> None:
    """Write what another server holds."""
    anything: Any = client
    for key, (value, expires_at_ms) in found.items():
        match value:
            case bytes():
                anything.set(key, value)
            case dict():
                anything.hset(key, mapping=value)
            case [(_, dict()), *_]:
                for entry_id, fields in value:
                    anything.xadd(key, fields, id=entry_id)
            case [(_, _), *_]:
                anything.zadd(key, dict(value))
            case _:
                anything.rpush(key, *value)
        if expires_at_ms >= 0:
            anything.pexpireat(key, expires_at_ms)


def contents(client: RedisClient) -> Contents:
    """Return all there is, apart from who collects; a key that two masters have fails."""
    if isinstance(client, redis.RedisCluster):
        client.nodes_manager.initialize()
    found: Contents = {}
    for _, node in nodes(client):
        for key in node.scan_iter(count=1_000):
            assert key not in found
            if b"compacted:collector:" not in key:
                found[key] = (value_of(node, key), int(node.pexpiretime(key)))
    return found


def assert_same(found: Contents, expected: Contents) -> None:
    """Check that keys and values are the same, and expiries as far as MIGRATE keeps them.

    It sends what is left of a life: each move makes it longer by the time that the move takes.
    """
    assert found.keys() == expected.keys()
    assert {key: (value, expected[key][0]) for key, (value, _) in found.items() if value != expected[key][0]} == {}
    late_ms = {key: at_ms - expected[key][1] for key, (_, at_ms) in found.items() if at_ms != expected[key][1]}
    assert all(0 <= late < PATIENCE_S * 1_000 and expected[key][1] >= 0 for key, late in late_ms.items()), late_ms


class Restless:
    """Disturbs a cluster, one step each time it is called, and then again from the first step.

    :param clients: client ids or queues, whose slots move; masters that hold the first and the second one go.
    :ivar done: disturbances so far, by name.
    """

    def __init__(self, cluster: RedisCluster, clients: list[str]) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._clients = clients
        self._steps = self._program()

    def __call__(self, *_: object) -> None:
        """Do the next thing, as soon as all masters serve and all nodes know them."""
        until(self._is_whole, what="a replica takes over")
        try:
            self.done.append(next(self._steps))
        except QueuekeeperError as error:
            raise AssertionError("the cluster cannot be disturbed") from error

    def _is_whole(self) -> bool:
        try:
            with connect(self._cluster.url) as client:
                assert isinstance(client, redis.RedisCluster)
                found = masters(client)
            known = {master.address.rpartition(":")[2] for master in found if master.slots}
            is_served = sum(len(master.slots) for master in found) == SLOTS
            return is_served and all(
                _masters_known(node) == known for node in self._cluster.nodes if node.pid is not None
            )
        except ServerUnavailable:
            return False

    def _program(self) -> Iterator[str]:
        first, second, *others = self._clients
        for client_id in others[:3]:
            yield self._move(client_id)
        yield self.kill(first)
        for client_id in others[:3]:
            yield self._move(client_id)
        yield self.hand_over(second)
        while True:
            for client_id in others:
                yield self._move(client_id)

    @property
    def failed_over(self) -> bool:
        """Whether a master was killed and another one has handed over."""
        return "kill" in self.done and "hand over" in self.done

    def _move(self, client_id: str) -> str:
        """Move a slot to another master; atomically where the servers know how to, each second time."""
        with slot_of(self._cluster.url, client_id) as slot:
            if len(self.done) % 2 and _moves_at_once(slot.source):
                slot.move_at_once()
                return "move at once"
            slot.move(keys_at_once=3)
        return "move"

    def kill(self, client_id: str) -> str:
        """Kill the master of a slot as soon as its replica has all that it has; the replica takes over later."""
        master, replica = self._pair(client_id)
        with master.client() as client:
            written = _replication(client)["master_repl_offset"]
        with replica.client() as client:
            until(lambda: _replication(client).get("slave_repl_offset", 0) >= written, what="the replica has it all")
        master.kill()
        return "kill"

    def hand_over(self, client_id: str) -> str:
        """Let a replica take over from its living master."""
        _, replica = self._pair(client_id)
        with replica.client() as client:
            command(client, "CLUSTER FAILOVER")
            until(lambda: _replication(client)["role"] == "master", what="the replica is master")
        return "hand over"

    def _pair(self, client_id: str) -> tuple[RedisServer, RedisServer]:
        """Return the master that holds a slot, and its replica; the node that the cluster's URL names stays alive."""
        with slot_of(self._cluster.url, client_id) as slot:
            port = slot.source.connection_pool.connection_kwargs["port"]
        living = [node for node in self._cluster.nodes if node.pid is not None]
        master = next(node for node in living if node.port == port)
        for node in living:
            with node.client() as client:
                if _replication(client).get("master_port") == port:
                    return master, node
        raise AssertionError(f"{client_id}'s master has no replica")


@contextmanager
def disturbed(restless: Restless) -> Iterator[Callable[[], bool]]:
    """Disturb a cluster from another thread until the block ends; tell whether it has failed over by then."""
    stop, errors = Event(), list[BaseException]()

    def disturb() -> None:
        try:
            while not stop.is_set():
                restless()
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=disturb)
    thread.start()
    try:
        yield lambda: restless.failed_over or not thread.is_alive()
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


@contextmanager
def at_rest(cluster: RedisCluster) -> Iterator[RedisClient]:
    """Empty a cluster whose nodes all live, and connect to it."""
    cluster.start()
    until(lambda: _is_balanced(cluster), what="every master has a replica")
    cluster.flush()
    with connect(cluster.url) as client:
        yield client


def _is_balanced(cluster: RedisCluster) -> bool:
    """Tell whether every master has a replica; a spare one is sent to a master without.

    A master that was dead follows whoever tells it that its slots have gone: also one to which a single slot has moved.
    """
    with ExitStack() as stack:
        clients = {node.port: stack.enter_context(node.client()) for node in cluster.nodes}
        told = {port: _replication(client) for port, client in clients.items()}
        followers: dict[int, list[int]] = {port: [] for port in told if told[port]["role"] == "master"}
        for port, facts in told.items():
            if facts["role"] != "master":
                if facts["master_link_status"] != "up":
                    return False
                followers.setdefault(facts["master_port"], []).append(port)
        without = [port for port, replicas in followers.items() if not replicas]
        spare = [replicas[-1] for replicas in followers.values() if len(replicas) > 1]
        for port, orphan in zip(spare, without, strict=False):
            with suppress(redis.ResponseError):
                command(clients[port], "CLUSTER REPLICATE", command(clients[orphan], "CLUSTER MYID").decode())
        return not without


def spread(cluster: RedisCluster, names: list[str]) -> list[str]:
    """Return names with two first that masters hold whom the cluster's URL does not name, one each."""
    with connect(cluster.url) as client:
        assert isinstance(client, redis.RedisCluster)
        ports = {name: client.nodes_manager.slots_cache[client_slot(name)][0].port for name in names}
    first = next(name for name in names if ports[name] != cluster.nodes[0].port)
    second = next(name for name in names if ports[name] not in {cluster.nodes[0].port, ports[first]})
    return [first, second, *(name for name in names if name not in {first, second})]


def _masters_known(node: RedisServer) -> set[str]:
    """Return the ports of the masters with slots that a node knows of."""
    with node.client() as client:
        told: dict[str, dict[str, Any]] = command(client, "CLUSTER NODES")
    return {
        address.partition("@")[0].rpartition(":")[2]
        for address, each in told.items()
        if "master" in each["flags"] and each["slots"]
    }


def _replication(client: redis.Redis) -> dict[str, Any]:
    found: Any = client.info("replication")
    return dict(found)


def _moves_at_once(node: redis.Redis) -> bool:
    facts: Any = node.info("server")
    return int(str(facts.get("valkey_version", "0")).partition(".")[0]) >= 9
