"""The asyncio script caller outlives changes of its cluster, long outages and slow networks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from lua_sessions import command
from script_callers import APPEND, eventually, script

from queuekeeper.embedded import RedisCluster
from queuekeeper.lua import Call, Script
from queuekeeper.redis_async import connect
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.lua


@pytest.fixture
def append(tmp_path: Path) -> Script:
    """Append a text to a list, or refuse it."""
    return script(tmp_path, "append", APPEND)


@pytest.fixture
def own_cluster(server_home: Path) -> Iterator[RedisCluster]:
    """A cluster whose nodes a test may take away."""
    config = {"cluster-node-timeout": 1_000}
    cluster = RedisCluster(server_home / "troubled", replicas=1, config=config, die_with_parent=True)
    cluster.start()
    yield cluster
    cluster.stop()


def _take_out(cluster: RedisCluster) -> None:
    """Take the first node out of its cluster as operators do: its replica takes over, and the others forget it."""
    first, successor = cluster.nodes[0].client(), cluster.nodes[3].client()
    with first, successor:
        command(successor, "CLUSTER FAILOVER")
        eventually(lambda: first.info("replication")["role"] == "slave")
        name = command(first, "CLUSTER MYID")
        for node in cluster.nodes[1:]:
            with node.client() as other:
                command(other, "CLUSTER FORGET", name)
        command(first, "CLUSTER RESET")


def test_node_that_has_left_the_cluster_leads_nobody_astray(own_cluster: RedisCluster, append: Script) -> None:
    clients = [f"{{client-{number}}}" for number in range(30)]

    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), connect(own_cluster.url) as caller:
            calls = [Call(append, [client], ["x"]) for client in clients]
            assert (await caller.execute(calls)).or_raise() == [1] * 30
            await asyncio.to_thread(_take_out, own_cluster)
            assert (await caller.execute(calls)).or_raise() == [2] * 30
            # Who serves which slot is read anew; a call on its way to the server that dies is lost.
            await asyncio.to_thread(own_cluster.nodes[1].kill)
            await caller.execute(calls)
            assert (await caller.execute(calls)).or_raise()

    asyncio.run(test())
