"""The asyncio script caller outlives changes of its cluster, long outages and slow networks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lua_sessions import command
from script_callers import APPEND, eventually, script

from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import ServerUnavailable, UsageError
from queuekeeper.lua import Call, Script
from queuekeeper.redis_async import AsyncScriptCaller, connect
from tests.conformance.cutting_proxy import CuttingProxy
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


async def _end_of(call: asyncio.Future[Any]) -> str:
    try:
        await call
    except ServerUnavailable as error:
        return str(error)
    return "done"


def test_calls_behind_one_another_wait_no_longer_than_one_of_them(own_server: Any, append: Script) -> None:
    retry_for_s = 1.0

    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), connect(own_server.url, retry_for_s=retry_for_s) as caller:
            await caller.call(append, ["{a}"], ["x"])
            own_server.kill()
            await asyncio.sleep(0.1)
            begun_s = time.monotonic()
            ends = [_end_of(caller.call(append, ["{a}"], ["x"])) for _ in range(20)]
            assert all("refuses the connection" in end for end in await asyncio.gather(*ends))
            taken_s = time.monotonic() - begun_s
            begun_s = time.monotonic()
            assert "refuses the connection" in await _end_of(caller.call(append, ["{b}"], ["x"]))
            alone_s = time.monotonic() - begun_s
            assert taken_s < 10 * alone_s, "one after the other they take twenty times as long"

    asyncio.run(test())


def test_calls_behind_one_another_hear_at_once_that_the_password_is_wrong(own_server: Any, append: Script) -> None:
    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), connect(own_server.url) as caller:
            await caller.call(append, ["{a}"], ["x"])
            with own_server.client() as client:
                client.config_set("requirepass", "another")
                command(client, "CLIENT KILL TYPE normal SKIPME yes")
                await asyncio.sleep(0.1)
                before = client.info("stats")["total_connections_received"]
                ends = [_end_of(caller.call(append, ["{a}"], ["x"])) for _ in range(20)]
                assert all("refuses user or password" in end for end in await asyncio.gather(*ends))
                connections = client.info("stats")["total_connections_received"] - before
            assert connections < 10, "each on its own would connect once, a second after the one before"

    asyncio.run(test())


def test_other_event_loop_is_refused_and_nothing_is_sent(own_server: Any, append: Script) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        caller = first.run(_opened(own_server.url))

        async def call() -> Any:
            return await caller.call(append, ["{a}"], ["x"])

        async def execute() -> Any:
            return await caller.execute([Call(append, ["{a}"], ["x"])])

        async def wait() -> Any:
            return await caller.await_wake("{a}wake", timeout_s=1.0)

        for ask in (call, execute, wait):
            with pytest.raises(UsageError, match="belongs to another event loop, and nothing was sent"):
                second.run(ask())
        assert first.run(call()) == 1
        first.run(caller.close())


async def _opened(url: str) -> AsyncScriptCaller:
    return await connect(url)


def test_reply_that_comes_slowly_is_waited_for_while_it_comes(own_server: Any, tmp_path: Path) -> None:
    large = script(tmp_path, "large", "return string.rep('x', 1000000)", flags=" flags=no-writes")

    async def test(url: str, proxy: CuttingProxy) -> None:
        async with asyncio.timeout(PATIENCE_S), connect(f"{url}?socket_timeout=3") as caller:
            proxy.hold(after=proxy.passed)
            call = caller.call(large, ["{a}"])
            while not call.done():
                # One piece at a time, longer in all than a silent server is waited for.
                await asyncio.sleep(0.3)
                proxy.hold(after=proxy.passed)
            assert len(await call) == 1_000_000

    with CuttingProxy(own_server.url) as proxy:
        asyncio.run(test(proxy.url, proxy))


def test_closing_is_the_reason_for_every_call_that_it_ends(own_server: Any, append: Script) -> None:
    async def test() -> list[BaseException]:
        failed: list[BaseException] = []
        for number in range(20):
            with own_server.client() as client:
                client.script_flush()
            caller = await connect(own_server.url)
            calls = [caller.call(append, [f"{{client-{each}}}"], ["x" * 1_000]) for each in range(100)]
            waits = [asyncio.create_task(caller.await_wake("{a}wake", timeout_s=PATIENCE_S)) for _ in range(5)]
            for _ in range(number):
                await asyncio.sleep(0)
            await caller.close()
            answers = await asyncio.gather(*calls, *waits, return_exceptions=True)
            failed += [answer for answer in answers if isinstance(answer, BaseException)]
        return failed

    failed = asyncio.run(test())
    assert failed
    assert {str(error) for error in failed if "closed by us" not in str(error)} == set()
