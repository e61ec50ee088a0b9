"""Session stores on servers that are killed, filled, resharded, failed over and kept busy, under load.

Each test counts: what was acknowledged as saved is there, nothing is there twice, and all is in order.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from lua_sessions import command

from queuekeeper import assets, postgres, schema_migrations
from queuekeeper.embedded import PostgresServer, RedisCluster, RedisServer
from queuekeeper.errors import ServerUnavailable, StoreFull
from queuekeeper.redis_client import connect
from queuekeeper.sessions.model import Ack, Release, SessionSave
from queuekeeper.sessions.postgres_store import AsyncPostgresSessionStore, PostgresSessionStore
from queuekeeper.sessions.reports import SaveReport
from queuekeeper.sessions.writer import SessionWriter, Stored
from tests.chaos.session_load import (
    MOVING,
    THREADS,
    Kind,
    Load,
    Session,
    Threaded,
    clients_of,
    in_order,
    is_packed,
    is_writer,
    message,
    met_a_moving_slot,
    number_of,
    read_all,
    redis_load,
    redis_store,
)
from tests.chaos.support import contents, refusals, set_maxmemory, until
from tests.cluster_slots import slot_of
from tests.conftest import ONE_SERVER_EACH, nightly

pytestmark = pytest.mark.chaos

CLIENTS = ("{brace} first", "{}", "смарт-😀", *(f"device-{number}" for number in range(9)))
NODE_TIMEOUT_MS = 2_000
STORES = ["blocking", "asyncio", "packed-blocking", *nightly("packed-asyncio")]
# The writer reads and acknowledges by the asyncio store.
SAVED_BY = ["blocking", "writer", "packed-writer", *nightly("asyncio", "packed-blocking", "packed-asyncio")]
# What only calls meet, whatever the script that they are of.
CALLED = ["blocking", "asyncio", *nightly("packed-blocking", "packed-asyncio")]
SAVED_BY_CALLS_OF = ["blocking", "writer", *nightly("asyncio", "packed-writer", "packed-blocking", "packed-asyncio")]
SAVED_SLOWLY_BY = ["writer", "packed-writer", *nightly("blocking", "asyncio", "packed-blocking", "packed-asyncio")]


def save(client_id: str, numbers: Sequence[int], *, offset: int = 0, payload_bytes: int = 0) -> SessionSave:
    """Return a batch of messages with these numbers."""
    return SessionSave(
        client_id=client_id,
        messages=tuple(message(number, payload_bytes=payload_bytes) for number in numbers),
        source="test",
        offset=offset,
    )


async def numbers_in(store: Any, client_id: str) -> list[int]:
    """Return the numbers of all messages of a session, which are in order."""
    found = await read_all(store, client_id)
    in_order(found)
    return [number_of(one) for one in found]


@contextmanager
def meanwhile(work: Callable[[], object], *, pause_s: float) -> Iterator[None]:
    """Do something again and again in another thread."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            work()
            done.wait(pause_s)

    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(repeat)
        try:
            yield
        finally:
            done.set()
        repeated.result()


# Resharding.


@pytest.fixture(scope="module", params=ONE_SERVER_EACH)
def moving_cluster(request: pytest.FixtureRequest, server_home: Path) -> Iterator[RedisCluster]:
    """Three masters whose slots may be moved."""
    cluster = RedisCluster(server_home / f"moving-{request.param}", flavour=request.param, die_with_parent=True)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("kind", SAVED_SLOWLY_BY)
def test_resharding_loses_nothing_and_fails_no_call(
    moving_cluster: RedisCluster, kind: Kind, dice: random.Random
) -> None:
    moving_cluster.flush()
    # Packed sessions have one key each, of which a call finds all or nothing.
    refused = MOVING - {"TRYAGAIN"} if is_packed(kind) else MOVING
    with clients_of(moving_cluster.url) as nodes:
        for node in nodes:
            node.config_resetstat()

    def reshard() -> int:
        moved = 0
        for client_id in dice.sample(CLIENTS, len(CLIENTS)):
            with slot_of(moving_cluster.url, client_id) as slot:
                # As many at once as redis-cli moves.
                moved += slot.move(keys_at_once=10)
        return moved

    async def run() -> None:
        async with redis_load(kind, moving_cluster.url, dice, clients=CLIENTS, short_lives=True) as load:
            await load.fill(messages=200)
            async with load.running():
                moved = 0
                for _ in range(10):
                    moved += await asyncio.to_thread(reshard)
                    # Chance decides what the calls of a load meet.
                    if await asyncio.to_thread(met_a_moving_slot, moving_cluster.url, refused=refused):
                        break
                await load.proceeds(messages=10)
            outcome = await load.settle()
        assert moved >= (1 if is_packed(kind) else 100) * len(CLIENTS)
        assert outcome.lost == []

    asyncio.run(run())
    assert met_a_moving_slot(moving_cluster.url, refused=refused), "the load did not meet a moving slot"


# Crash and restart.


async def killed_twice(load: Load, server: RedisServer | PostgresServer) -> list[float]:
    """Kill a server under load and start it again, twice; return when it was killed."""
    killed_at: list[float] = []
    async with load.running():
        for _ in range(2):
            await load.proceeds()
            killed_at.append(time.monotonic())
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await load.proceeds()
    return killed_at


@pytest.mark.parametrize("kind", SAVED_BY)
def test_killed_server_has_all_that_was_acknowledged_when_it_flushes_always(
    redis_server_factory: Callable[..., RedisServer], kind: Kind, dice: random.Random
) -> None:
    server = redis_server_factory(appendfsync="always")

    async def run() -> None:
        async with redis_load(kind, server.url, dice, clients=CLIENTS, repeats=True) as load:
            await killed_twice(load, server)
            outcome = await load.settle()
        assert outcome.lost == []

    asyncio.run(run())


@pytest.mark.parametrize("kind", SAVED_SLOWLY_BY)
def test_killed_server_lacks_at_most_two_seconds_when_it_flushes_every_second(
    redis_server_factory: Callable[..., RedisServer], kind: Kind, dice: random.Random
) -> None:
    server = redis_server_factory(appendfsync="everysec")

    async def run() -> None:
        async with redis_load(kind, server.url, dice, clients=CLIENTS, repeats=True, keeps=False) as load:
            killed_at = await killed_twice(load, server)
            outcome = await load.settle()
        assert all(any(at_s - 2 <= one.at_s <= at_s + 0.5 for at_s in killed_at) for one in outcome.lost)

    asyncio.run(run())


# Failover.


@pytest.fixture(scope="module")
def replicated_cluster(server_home: Path) -> Iterator[RedisCluster]:
    """Three masters with a replica each."""
    cluster = RedisCluster(
        server_home / "replicated",
        flavour="valkey",
        replicas=1,
        config={"cluster-node-timeout": NODE_TIMEOUT_MS, "appendonly": "no"},
        die_with_parent=True,
    )
    cluster.start()
    yield cluster
    cluster.stop()


class Shard:
    """A master, its replica, and clients whose sessions they hold."""

    def __init__(self, cluster: RedisCluster, *, clients: int) -> None:
        cluster.start()
        cluster.flush()
        with slot_of(cluster.url, "device-0") as slot:
            port = slot.source.connection_pool.connection_kwargs["port"]
        self.cluster = cluster
        self.master = next(node for node in cluster.nodes if node.port == port)
        self.replica = next(node for node in cluster.nodes if self._replication(node).get("master_port") == port)
        self.clients: list[str] = []
        with connect(cluster.url) as client:
            number = 0
            while len(self.clients) < clients:
                client_id = f"device-{number}"
                number += 1
                if client.get_node_from_key(f"{{{client_id}}}").port == port:
                    self.clients.append(client_id)

    @staticmethod
    def _replication(node: RedisServer) -> dict[str, Any]:
        with node.client() as client:
            found: dict[str, Any] = client.info("replication")
        return found

    async def fail_over(self, load: Load, *, frozen_s: float) -> tuple[float, float]:
        """Kill the master while its replica lags behind; return when the lag began and how long saves had to wait."""
        replica = psutil.Process(self.replica.pid)
        async with load.running(reading=False):
            await load.proceeds(messages=200)
            # What was answered by now is what the replica has, however far behind a busy machine lets it fall.
            frozen_at = time.monotonic()
            offset = self._replication(self.master)["master_repl_offset"]
            while self._replication(self.replica)["slave_repl_offset"] < offset:
                await asyncio.sleep(0.01)
            replica.suspend()
            try:
                await asyncio.sleep(frozen_s)
                killed_at = time.monotonic()
                await asyncio.to_thread(self.master.kill)
            finally:
                replica.resume()
            await load.proceeds()
            waited_s = time.monotonic() - killed_at
        return frozen_at, waited_s


@pytest.mark.parametrize("kind", ["writer", *nightly("blocking", "packed-writer", "packed-blocking")])
def test_failover_loses_nothing_that_was_reported_as_replicated(
    replicated_cluster: RedisCluster, kind: Kind, dice: random.Random
) -> None:
    shard = Shard(replicated_cluster, clients=8)
    options = {"replicas": 1, "replica_timeout_ms": 100}

    async def run() -> None:
        async with redis_load(
            kind,
            replicated_cluster.url,
            dice,
            clients=shard.clients,
            store_options=options,
            repeats=True,
            keeps=False,
            payload_bytes=8_000,
            pause_s=0,
        ) as load:
            _, waited_s = await shard.fail_over(load, frozen_s=1.0)
            outcome = await load.settle()
        print(f"saves waited {waited_s:.1f} s, lost without replica {len(outcome.lost)}")
        assert [one for one in outcome.lost if one.replicated] == []
        assert outcome.not_replicated > 0, "the replica that lagged was not noticed"

        async with redis_store(kind, shard.replica.url, **options) as store:
            (report,) = await store.save_messages([save(shard.clients[0], [0])])
            assert (report.error, report.stored, report.replicated) == (None, 1, False), "a replica that is gone"
            await asyncio.to_thread(replicated_cluster.start)
            (report,) = await store.save_messages([save(shard.clients[0], [1], offset=1)])
            assert report.replicated

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["writer", *nightly("blocking", "packed-writer", "packed-blocking")])
def test_failover_without_waiting_for_replicas_loses_at_most_what_the_replica_lacked(
    replicated_cluster: RedisCluster, kind: Kind, dice: random.Random
) -> None:
    shard = Shard(replicated_cluster, clients=8)

    async def run() -> None:
        async with redis_load(
            kind,
            replicated_cluster.url,
            dice,
            clients=shard.clients,
            repeats=True,
            keeps=False,
            payload_bytes=8_000,
            pause_s=0,
        ) as load:
            frozen_at, waited_s = await shard.fail_over(load, frozen_s=1.0)
            outcome = await load.settle()
        print(f"saves waited {waited_s:.1f} s")
        assert [one for one in outcome.lost if one.at_s < frozen_at] == []

    asyncio.run(run())


# Scripts.


@pytest.mark.parametrize("kind", SAVED_BY_CALLS_OF)
@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_scripts_may_be_flushed_at_any_time(
    redis_server_factory: Callable[..., RedisServer], flavour: str, kind: Kind, dice: random.Random
) -> None:
    server = redis_server_factory(flavour=flavour)

    async def run() -> None:
        async with redis_load(kind, server.url, dice, clients=CLIENTS) as load:
            with server.client() as client, meanwhile(client.script_flush, pause_s=0.002):
                async with load.running():
                    await load.proceeds(messages=100)
            outcome = await load.settle()
        assert outcome.lost == []

    asyncio.run(run())
    with server.client() as client:
        assert "NOSCRIPT" in refusals([client])


class SlowScript:
    """Somebody else's script that runs until it is killed."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keep the server busy, from when it says so."""
        with ThreadPoolExecutor(1) as pool, self._server.client() as killer:
            running = pool.submit(self._run)
            until(lambda: self._is_busy(killer), what="a busy server")
            try:
                yield
            finally:
                command(killer, "SCRIPT KILL")
            assert "killed" in running.result()

    def _run(self) -> str:
        with self._server.client() as client:
            try:
                client.eval("while true do end", 0)
            except Exception as error:
                return str(error)
        return "ended"

    @staticmethod
    def _is_busy(client: Any) -> bool:
        try:
            client.exists("x")
        except Exception as error:
            return str(error).startswith("BUSY")
        return False


@pytest.mark.parametrize("kind", SAVED_BY_CALLS_OF)
def test_calls_wait_for_somebody_elses_slow_script(
    redis_server_factory: Callable[..., RedisServer], kind: Kind, dice: random.Random
) -> None:
    server = redis_server_factory(lua_time_limit=50)
    slow = SlowScript(server)

    async def run() -> None:
        async with redis_load(kind, server.url, dice, clients=CLIENTS) as load:
            async with load.running():
                for number in range(2):
                    await load.proceeds()
                    late = Session(f"late-{number}")
                    with ExitStack() as busy:
                        await asyncio.to_thread(busy.enter_context, slow.running())
                        # Begun while the server is busy, and seen to have begun before its wait is measured.
                        waiting = asyncio.create_task(load.save(late, count=1))
                        while not late.next:
                            await asyncio.sleep(0)
                        await asyncio.sleep(0.6)
                        assert not waiting.done()
                    await waiting
                    assert set(late.saved) == {0}
                await load.proceeds()
            outcome = await load.settle()
        assert outcome.lost == []
        assert outcome.longest_save_s > 0.5

    asyncio.run(run())


@pytest.mark.parametrize("kind", CALLED)
def test_save_that_does_not_want_to_wait_for_a_slow_script_says_so_and_stores_nothing(
    redis_server_factory: Callable[..., RedisServer], kind: Kind
) -> None:
    server = redis_server_factory(lua_time_limit=50)

    async def run() -> None:
        async with redis_store(kind, server.url, retry_for_s=0.2) as store:
            (report,) = await store.save_messages([save("a", [0])])
            assert report.stored == 1
            # What is sent before the server is seen to be busy waits for its reply; then BUSY is the reply.
            with SlowScript(server).running():
                (report,) = await store.save_messages([save("a", [1, 2], offset=1)])
            assert isinstance(report.error, ServerUnavailable)
            assert "end that one with SCRIPT KILL" in str(report.error)
            assert await numbers_in(store, "a") == [0]
            (report,) = await store.save_messages([save("a", [1, 2], offset=1)])
            assert (report.stored, report.replayed) == (2, False)
            assert await numbers_in(store, "a") == [0, 1, 2]

    asyncio.run(run())


# A full server.


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_full_server_refuses_saves_before_any_effect_and_does_all_that_makes_room(
    redis_server_factory: Callable[..., RedisServer], flavour: str, kind: Kind
) -> None:
    server = redis_server_factory(flavour=flavour)

    async def run(client: Any) -> None:
        async with redis_store(kind, server.url) as store:
            for client_id in ("a", "b"):
                (report,) = await store.save_messages([save(client_id, range(100))])
            ids: tuple[int, ...] = report.packet_ids
            before = contents(client)
            set_maxmemory(server, room_bytes=-1_000_000_000)
            late = [save("a", range(100, 105), offset=1), save("new", [0])]
            for _ in range(2):
                for report in await store.save_messages(late):
                    assert isinstance(report.error, StoreFull), report
                    assert (report.stored, report.packet_ids) == (0, ())
            with pytest.raises(StoreFull):
                await store.reserve_packet_ids("a", count=3)
            assert contents(client) == before

            assert await numbers_in(store, "a") == list(range(100))
            assert (await store.inspect("a")).messages == 100
            assert await store.mark_delivered("a", serial=10)
            assert await store.mark_released("a", packet_id=ids[3]) is Release.RELEASED
            assert (await store.ack("a", [Ack(packet_id=one) for one in ids[:3]])).removed == 3
            assert (await store.purge_session("b")).messages == 100
            assert not (await store.inspect("b")).exists

            set_maxmemory(server, room_bytes=None)
            for report in await store.save_messages(late):
                assert (report.error, report.replayed) == (None, False)
                assert report.stored > 0
            found = await read_all(store, "a")
            assert [one.packet_type for one in found] == ["PUBREL", *["PUBLISH"] * 101]
            assert [number_of(one) for one in found[1:]] == list(range(4, 105))
            assert await numbers_in(store, "new") == [0]

    with server.client() as client:
        asyncio.run(run(client))


@pytest.mark.parametrize("kind", SAVED_BY)
def test_each_session_is_told_whether_a_server_that_fills_up_has_its_messages(
    redis_server_factory: Callable[..., RedisServer], kind: Kind
) -> None:
    server = redis_server_factory()
    clients = [f"device-{number}" for number in range(400)]

    async def outcomes(store: Any) -> list[BaseException | None]:
        if not is_writer(kind):
            reports: list[SaveReport] = await store.save_messages(
                [save(one, [0], payload_bytes=8_000) for one in clients]
            )
            return [report.error for report in reports]
        async with SessionWriter(store, source="test", first_offset=0) as writer:
            calls = (writer.save(one, message(0, payload_bytes=8_000)) for one in clients)
            results = await asyncio.gather(*calls, return_exceptions=True)
        return [None if isinstance(result, Stored) else result for result in results]

    async def run() -> None:
        async with redis_store(kind, server.url) as store:
            set_maxmemory(server, room_bytes=3_000_000)
            told = await outcomes(store)
            refused = [error for error in told if error is not None]
            print(f"stored {len(told) - len(refused)}, refused {len(refused)}")
            assert 0 < len(refused) < len(told)
            assert {type(error) for error in refused} == {StoreFull}
            for client_id, error in zip(clients, told, strict=True):
                if error is None:
                    assert await numbers_in(store, client_id) == [0]
                else:
                    assert not (await store.inspect(client_id)).exists

    asyncio.run(run())


@pytest.mark.parametrize("kind", STORES)
def test_batch_that_a_full_server_has_cut_off_is_completed_by_its_repetition(
    redis_server_factory: Callable[..., RedisServer], kind: Kind
) -> None:
    server = redis_server_factory()
    # Five calls of the script.
    batch = save("a", range(1_200), payload_bytes=2_000)

    async def run() -> None:
        async with redis_store(kind, server.url) as store:
            set_maxmemory(server, room_bytes=2_500_000)
            (report,) = await store.save_messages([batch])
            assert isinstance(report.error, StoreFull)
            stored = await numbers_in(store, "a")
            assert 0 < len(stored) < 1_200
            assert stored == list(range(len(stored)))
            set_maxmemory(server, room_bytes=None)
            (report,) = await store.save_messages([batch])
            assert (report.error, report.stored) == (None, 1_200)
            found = await read_all(store, "a")
            assert [number_of(one) for one in found] == list(range(1_200))
            assert tuple(one.packet_id for one in found) == report.packet_ids

    asyncio.run(run())


# A replica.


@pytest.mark.parametrize("kind", CALLED)
def test_replica_is_read_from_and_refuses_writes_with_words(
    redis_server_factory: Callable[..., RedisServer], kind: Kind
) -> None:
    master, replica = redis_server_factory(repl_diskless_sync_delay=0), redis_server_factory()
    with replica.client() as client, master.client() as of_master:
        client.config_set("masterauth", of_master.connection_pool.connection_kwargs["password"])
        command(client, "REPLICAOF", "127.0.0.1", master.port)
        until(lambda: client.info("replication")["master_link_status"] == "up", what="replication")

    async def run() -> None:
        async with redis_store(kind, master.url, replicas=1, replica_timeout_ms=5_000) as store:
            (report,) = await store.save_messages([save("a", [0, 1])])
            assert report.replicated
        async with redis_store(kind, replica.url, retry_for_s=0.3) as store:
            assert await numbers_in(store, "a") == [0, 1]
            (refused,) = await store.save_messages([save("a", [2], offset=1)])
            assert isinstance(refused.error, ServerUnavailable)
            assert str(refused.error).endswith("is a replica and takes no writes: name its master")
            with pytest.raises(ServerUnavailable, match="name its master"):
                await store.ack("a", [Ack(packet_id=report.packet_ids[0])])
            assert await numbers_in(store, "a") == [0, 1]

    asyncio.run(run())


# PostgreSQL.


@asynccontextmanager
async def postgres_store(kind: Kind, url: str, opened: list[Any]) -> AsyncIterator[Callable[[], Any]]:
    """Answer a function that opens a store on a connection of its own, as soon as the server lets it in."""
    with ThreadPoolExecutor(THREADS) as pool:

        async def another() -> Any:
            while True:
                try:
                    if kind == "blocking":
                        opened.append(await asyncio.to_thread(postgres.connect, url, autocommit=True))
                        return Threaded(PostgresSessionStore(opened[-1]), pool)
                    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
                    opened.append(connection)
                    return AsyncPostgresSessionStore(connection)
                except (ServerUnavailable, psycopg.OperationalError):
                    await asyncio.sleep(0.1)

        yield another


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_killed_postgresql_has_all_that_was_acknowledged_and_nothing_twice(
    postgres_server: PostgresServer, postgres_url: str, kind: Kind, dice: random.Random
) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(assets.read("sql", "sessions/vendor_schema.sql").encode())
        schema_migrations.migrate(connection)

    async def run() -> None:
        opened: list[Any] = []
        async with postgres_store(kind, postgres_url, opened) as another:
            load = Load(await another(), dice, clients=CLIENTS, repeats=True, reopened=another)
            await killed_twice(load, postgres_server)
            outcome = await load.settle()
            for each in opened:
                closed = each.close()
                if closed is not None:
                    await closed
        assert outcome.lost == []

    asyncio.run(run())
