"""Both script callers keep their promises when servers are lost, slots move and scripts are flushed."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from lua_sessions import command
from script_callers import APPEND, AwaitedCaller, BlockingCaller, Caller, eventually, script

from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import MovedOn, RefusedError, ScriptError, ServerUnavailable, StoreFull, UsageError
from queuekeeper.lua import Call, Script
from queuekeeper.redis_async import AsyncScriptCaller, connect
from queuekeeper.redis_client import connect as connect_blocking
from queuekeeper.redis_client import nodes
from queuekeeper.redis_connection import Connection, Limits, endpoint
from tests.cluster_slots import slot_of
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conftest import ONE_SERVER_EACH
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.lua

SERVERS = [*ONE_SERVER_EACH, "cluster"]

MakeCaller: TypeAlias = Callable[..., Caller]


@pytest.fixture(params=[BlockingCaller, AwaitedCaller], ids=["blocking", "asyncio"])
def make_caller(request: pytest.FixtureRequest) -> MakeCaller:
    """Make a caller of one kind: ``make_caller(url, **options)``."""
    kind: MakeCaller = request.param
    return kind


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest) -> str:
    """Address of an empty server or cluster that knows no script."""
    if request.param == "cluster":
        found = str(request.getfixturevalue("redis_cluster_url"))
    else:
        found = str(request.getfixturevalue("redis_servers")(request.param).url)
    with connect_blocking(found) as client:
        for _, node in nodes(client):
            node.flushall()
            node.script_flush()
            node.config_resetstat()
    return found


@pytest.fixture
def append(tmp_path: Path) -> Script:
    """Append a text to a list, or refuse it."""
    return script(tmp_path, "append", APPEND)


@pytest.fixture
def attach(tmp_path: Path) -> Script:
    """Do the same by another script."""
    return script(tmp_path, "attach", APPEND)


@pytest.fixture
def length(tmp_path: Path) -> Script:
    """Only read."""
    return script(tmp_path, "length", "return redis.call('LLEN', KEYS[1])", flags=" flags=no-writes")


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread; what fails there fails the test."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures, failures


def lists(url: str, names: list[str]) -> list[list[bytes]]:
    with connect_blocking(url) as client:
        found: list[list[bytes]] = [client.lrange(name, 0, -1) for name in names]
    return found


def calls_of(scripts: list[Script], *, clients: int, each: int) -> list[Call]:
    return [
        Call(scripts[(step + number) % len(scripts)], [f"{{client-{number}}}"], [str(step)])
        for step in range(each)
        for number in range(clients)
    ]


def test_replies_are_in_the_order_of_the_calls(
    make_caller: MakeCaller, url: str, append: Script, attach: Script
) -> None:
    with make_caller(url) as caller:
        assert caller.call(append, ["{client-0}"], ["x"]) == 1
        replies = caller.execute(calls_of([append, attach], clients=30, each=4))
        assert replies == [step + (number == 0) for step in range(1, 5) for number in range(30)]
        assert replies.replicated == [None] * 120
        assert caller.execute([]) == []


def test_script_is_loaded_once_per_server(make_caller: MakeCaller, url: str, append: Script) -> None:
    with make_caller(url) as caller:
        caller.execute(calls_of([append], clients=300, each=2)).or_raise()
    with connect_blocking(url) as client:
        loads = [node.info("commandstats")["cmdstat_script|load"]["calls"] for _, node in nodes(client)]
    assert loads == [1] * len(loads)


def test_flushed_scripts_change_no_order(make_caller: MakeCaller, url: str, append: Script, attach: Script) -> None:
    done = threading.Event()

    def flush() -> None:
        with connect_blocking(url) as client:
            while not done.is_set():
                for _, node in nodes(client):
                    node.script_flush()

    with make_caller(url) as caller, meanwhile(flush):
        try:
            for _ in range(3):
                caller.execute(calls_of([append, attach], clients=20, each=10)).or_raise()
        finally:
            done.set()
    expected = [str(step).encode() for step in range(10)] * 3
    assert lists(url, [f"{{client-{number}}}" for number in range(20)]) == [expected] * 20


def test_error_of_one_call_holds_back_the_later_ones_of_its_client_only(
    make_caller: MakeCaller, url: str, append: Script
) -> None:
    calls = [
        Call(append, [key], [text])
        for text, key in (("1", "{a}"), ("1", "{b}"), ("refuse", "{a}"), ("2", "{b}"), ("2", "{a}"))
    ]
    with make_caller(url) as caller:
        replies = caller.execute(calls)
        assert [replies[0], replies[1], replies[3]] == [1, 1, 2]
        assert isinstance(replies[2], MovedOn)
        assert replies[4] is replies[2]
        with pytest.raises(MovedOn, match=r"^refused$"):
            replies.or_raise()
        with pytest.raises(MovedOn, match=r"^refused$"):
            caller.call(append, ["{a}"], ["refuse"])
        assert caller.call(append, ["{a}"], ["2"]) == 2


def test_broken_script_is_named(make_caller: MakeCaller, url: str, tmp_path: Path) -> None:
    liar = script(tmp_path, "liar", "return redis.error_reply('STALE x')")
    unreadable = script(tmp_path, "unreadable", "this is not Lua")
    with make_caller(url) as caller:
        with pytest.raises(ScriptError, match=r"^liar answered STALE, which its header does not declare"):
            caller.call(liar, ["{a}"])
        for _ in range(2):
            with pytest.raises(ScriptError, match=r"^unreadable: .*unreadable\.lua:\d+"):
                caller.call(unreadable, ["{a}"])


def test_keys_of_two_slots_are_refused(make_caller: MakeCaller, redis_cluster_url: str, append: Script) -> None:
    with make_caller(redis_cluster_url) as caller, pytest.raises(RefusedError, match="don't hash to the same slot"):
        caller.call(append, ["{a}", "{b}"], ["x"])


def test_user_without_permission_is_told(make_caller: MakeCaller, valkey_url: str, append: Script) -> None:
    with connect_blocking(valkey_url) as client:
        command(client, "ACL SETUSER", "limited", "on", ">pw", "~*", "+@all", "-script|load")
        try:
            address = valkey_url.partition("@")[2]
            with (
                make_caller(f"redis://limited:pw@{address}") as caller,
                pytest.raises(RefusedError, match="does not allow this user to do that"),
            ):
                caller.call(append, ["{a}"], ["x"])
        finally:
            command(client, "ACL DELUSER", "limited")


def test_full_server_refuses_and_serves_again(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script, length: Script
) -> None:
    server = redis_server_factory(maxmemory="20mb")
    with make_caller(server.url) as caller, server.client() as client:
        assert caller.call(append, ["{a}"], ["x"]) == 1
        client.config_set("maxmemory", 1)
        replies = caller.execute([Call(append, ["{a}"], ["y"]), Call(length, ["{b}"], [])])
        assert isinstance(replies[0], StoreFull)
        assert "Raise maxmemory" in str(replies[0])
        assert replies[1] == 0
        client.config_set("maxmemory", 0)
        assert caller.call(append, ["{a}"], ["y"]) == 2


def test_silent_server_is_given_up_in_time(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script
) -> None:
    server = redis_server_factory()
    with make_caller(f"{server.url}?socket_timeout=0.3") as caller, server.client() as client:
        # A busy machine may need longer for what a server does at once.
        eventually(lambda: does(caller, append))
        command(client, "CLIENT PAUSE", 3_600_000, "WRITE")
        replies = caller.execute([Call(append, [key], ["y"]) for key in ("{a}", "{b}")])
        assert [type(reply) for reply in replies] == [ServerUnavailable] * 2
        assert "does not answer within" in str(replies[0])
        assert str(replies[0]).endswith("Nobody knows whether the call has run")
        command(client, "CLIENT UNPAUSE")
        eventually(lambda: does(caller, append))


def does(caller: Caller, append: Script) -> bool:
    try:
        return bool(caller.call(append, ["{c}"], ["x"]))
    except ServerUnavailable:
        return False


def test_killed_server_is_found_again(make_caller: MakeCaller, own_server: Any, append: Script) -> None:
    with make_caller(own_server.url, retry_for_s=0.5) as caller:
        assert caller.call(append, ["{a}"], ["x"]) == 1
        eventually(lambda: own_server.client().config_get("appendfsync"))
        own_server.kill()
        with pytest.raises(ServerUnavailable, match=r"^Redis at 127\.0\.0\.1:\d+ refuses the connection"):
            caller.call(append, ["{a}"], ["y"])
        own_server.start()
        assert caller.call(append, ["{b}"], ["z"]) == 1


def test_killed_connection_is_opened_again(make_caller: MakeCaller, url: str, append: Script) -> None:
    with make_caller(url) as caller, connect_blocking(url) as client:
        for expected in (1, 2, 3):
            assert caller.call(append, ["{a}"], ["x"]) == expected
            for _, node in nodes(client):
                command(node, "CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")


def test_busy_server_is_waited_for(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script
) -> None:
    server = redis_server_factory(busy_reply_threshold=20)
    with make_caller(server.url) as caller, server.client() as other, server.client() as killer:

        def block() -> None:
            with pytest.raises(redis.ResponseError, match="killed"):
                other.eval("while true do end", 0)

        def is_busy() -> bool:
            try:
                killer.get("x")
            except redis.ResponseError as error:
                return str(error).startswith("BUSY")
            return False

        with meanwhile(block):
            eventually(is_busy)
            timer = threading.Timer(0.3, lambda: command(killer, "SCRIPT KILL"))
            timer.start()
            assert caller.call(append, ["{a}"], ["x"]) == 1
            timer.join()


def test_demoted_master_is_waited_for_and_not_for_ever(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script
) -> None:
    server = redis_server_factory()
    with server.client() as client:
        with make_caller(server.url) as caller:
            command(client, "REPLICAOF", "127.0.0.1", 1)
            timer = threading.Timer(0.3, lambda: command(client, "REPLICAOF", "NO", "ONE"))
            timer.start()
            assert caller.call(append, ["{a}"], ["x"]) == 1
            timer.join()
        command(client, "REPLICAOF", "127.0.0.1", 1)
        with (
            make_caller(server.url, retry_for_s=0.2) as caller,
            pytest.raises(ServerUnavailable, match="is a replica and takes no writes"),
        ):
            caller.call(append, ["{a}"], ["x"])


@pytest.mark.parametrize("waits", [False, True], ids=["calls", "waits"])
def test_failover_behind_one_address_is_followed(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script, waits: bool
) -> None:
    before, after = redis_server_factory(), redis_server_factory()
    with (
        CuttingProxy(before.url) as address,
        before.client() as demoted,
        after.client() as promoted,
        make_caller(address.url) as caller,
    ):
        promoted.config_set("requirepass", before.url.removeprefix("redis://:").partition("@")[0])
        assert caller.call(append, ["{a}"], ["x"]) == 1
        assert not caller.await_wake("{a}wake", timeout_s=0.01)
        # The old master lives on as a replica, and its connections with it.
        command(demoted, "REPLICAOF", "127.0.0.1", 1)
        address.target = ("127.0.0.1", after.port)
        if waits:
            with pytest.raises(ServerUnavailable, match="is a replica and takes no writes"):
                caller.await_wake("{a}wake", timeout_s=0.01)
            promoted.zadd("{a}wake", {"wake": 1})
            assert caller.await_wake("{a}wake", timeout_s=PATIENCE_S)
        assert caller.call(append, ["{a}"], ["y"]) == 1
        assert promoted.lrange("{a}", 0, -1) == [b"y"]


async def _answers(caller: AsyncScriptCaller) -> bool:
    try:
        await caller.ping()
    except ServerUnavailable:
        return False
    return True


def test_ping_says_at_once_that_a_server_is_away_and_when_it_is_back(redis_server_factory: Callable[..., Any]) -> None:
    server = redis_server_factory()

    async def test() -> None:
        # By default a call would be tried for half a minute before it said so.
        async with asyncio.timeout(PATIENCE_S), await connect(server.url) as caller:
            assert await _answers(caller)
            await asyncio.to_thread(server.stop)
            while await _answers(caller):
                await asyncio.sleep(0.01)
            with pytest.raises(ServerUnavailable, match="nothing listens there"):
                await caller.ping()
            await asyncio.to_thread(server.start)
            while not await _answers(caller):
                await asyncio.sleep(0.01)

    asyncio.run(test())


def test_ping_asks_every_master_and_follows_a_failover(server_home: Path) -> None:
    cluster = RedisCluster(
        server_home / "ping", replicas=1, config={"cluster-node-timeout": 1_000}, die_with_parent=True
    )
    cluster.start()

    async def test() -> None:
        async with asyncio.timeout(PATIENCE_S), await connect(cluster.url) as caller:
            assert await _answers(caller)
            await asyncio.to_thread(cluster.nodes[1].kill)
            while await _answers(caller):
                await asyncio.sleep(0.01)
            # Nothing but the ping finds out about the replica that has taken over.
            while not await _answers(caller):
                await asyncio.sleep(0.1)

    try:
        asyncio.run(test())
    finally:
        cluster.stop()


def test_slot_is_followed_through_every_stage_of_its_move(
    make_caller: MakeCaller, redis_cluster_url: str, append: Script, attach: Script
) -> None:
    with make_caller(redis_cluster_url) as caller, slot_of(redis_cluster_url, "a") as slot:
        assert caller.call(append, ["{a}here"], ["1"]) == 1
        slot.begin()
        try:
            assert caller.call(append, ["{a}here"], ["2"]) == 2, "the key is still at the source"
            assert caller.call(attach, ["{a}new"], ["1"]) == 1, "the source answers ASK; the target lacks the script"
            slot.move_keys("{a}here")
            replies = caller.execute([Call(append, ["{a}here"], ["3"]), Call(attach, ["{a}new"], ["2"])])
            assert replies == [3, 2]
        finally:
            slot.finish()
        assert caller.call(append, ["{a}here"], ["4"]) == 4, "the source answers MOVED"
        slot.move()
        assert caller.call(append, ["{a}here", "{a}new"], ["5"]) == 5


def test_wake_up_is_waited_for_while_its_slot_moves(make_caller: MakeCaller, redis_cluster_url: str) -> None:
    with make_caller(redis_cluster_url) as caller, slot_of(redis_cluster_url, "a") as slot:
        slot.begin()
        try:
            assert not caller.await_wake("{a}wake", timeout_s=0.1)
            with connect_blocking(redis_cluster_url) as client:
                client.zadd("{a}wake", {"x": 1})
            assert caller.await_wake("{a}wake", timeout_s=PATIENCE_S), "it is at the target already"
        finally:
            slot.finish()
        slot.move()


def test_call_waits_while_its_keys_are_on_two_nodes(
    make_caller: MakeCaller, redis_cluster_url: str, append: Script
) -> None:
    with make_caller(redis_cluster_url) as caller, slot_of(redis_cluster_url, "a") as slot:
        for key in ("{a}1", "{a}2"):
            caller.call(append, [key], ["x"])
        slot.begin()
        slot.move_keys("{a}1")

        def complete() -> None:
            time.sleep(0.4)
            slot.move_keys("{a}2")
            slot.finish()

        with meanwhile(complete):
            assert caller.execute([Call(append, ["{a}1", "{a}2"], ["y"]), Call(append, ["{b}"], ["z"])]) == [2, 1]
        slot.move()


@pytest.mark.slow
def test_call_waits_for_a_slot_that_nobody_serves(
    make_caller: MakeCaller, redis_cluster_url: str, append: Script
) -> None:
    with make_caller(redis_cluster_url) as caller, slot_of(redis_cluster_url, "a") as slot:
        caller.call(append, ["{a}"], ["x"])
        for node in slot.masters:
            command(node, "CLUSTER DELSLOTS", slot.number)

        def serve() -> None:
            time.sleep(0.3)
            command(slot.source, "CLUSTER ADDSLOTS", slot.number)

        with meanwhile(serve):
            assert caller.call(append, ["{a}"], ["y"]) in {1, 2}, "a node drops keys of a slot that is taken from it"


@pytest.fixture
def replicated(redis_server_factory: Callable[..., Any]) -> tuple[Any, Any]:
    """A master and its replica."""
    master, replica = redis_server_factory(repl_diskless_sync_delay=0), redis_server_factory()
    with replica.client() as client, master.client() as of_master:
        command(client, "CONFIG SET", "masterauth", of_master.connection_pool.connection_kwargs["password"])
        command(client, "REPLICAOF", "127.0.0.1", master.port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up")
    return master, replica


def test_replicas_are_waited_for_once_per_execute(
    make_caller: MakeCaller, replicated: tuple[Any, Any], append: Script, length: Script
) -> None:
    master, replica = replicated
    with (
        make_caller(master.url, replicas=1, replica_timeout_ms=15_000) as caller,
        master.client() as client,
        replica.client() as copy,
    ):
        caller.call(append, ["{a}"], ["x"])
        client.config_resetstat()
        calls = [Call(append, ["{a}"], ["y"]), Call(length, ["{b}"]), Call(append, ["{c}"], ["refuse"])]
        replies = caller.execute(calls)
        assert replies.replicated == [True, None, None]
        assert copy.lrange("{a}", 0, -1) == [b"x", b"y"]
        assert client.info("commandstats")["cmdstat_wait"]["calls"] == 1
        caller.execute([Call(length, ["{b}"])])
        assert client.info("commandstats")["cmdstat_wait"]["calls"] == 1, "what only reads waits for no replica"


def test_lost_replica_is_reported(make_caller: MakeCaller, replicated: tuple[Any, Any], append: Script) -> None:
    master, replica = replicated
    with make_caller(master.url, replicas=1, replica_timeout_ms=200) as caller:
        # A busy machine may need longer for what a replica does at once.
        eventually(lambda: caller.execute([Call(append, ["{b}"], ["x"])]).replicated == [True])
        replica.kill()
        replies = caller.execute([Call(append, ["{a}"], ["y"])])
        assert replies == [1], "it is stored, and only the replica lacks it"
        assert replies.replicated == [False]


@pytest.mark.parametrize(
    ("replicas", "timeout_ms"), [(-1, 1_000), (1, 0), (1, 3_600_000), (1.5, 1_000), (True, 1_000), (2**40, 1), (1, 1.5)]
)
def test_wait_that_no_server_takes_is_refused(
    make_caller: MakeCaller, valkey_url: str, replicas: float, timeout_ms: float
) -> None:
    with (
        pytest.raises(UsageError, match="cannot wait"),
        make_caller(valkey_url, replicas=replicas, replica_timeout_ms=timeout_ms),
    ):
        pass


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda url: f"{url}?nonsense=1", "has an option that is not known"),
        (lambda url: f"{url}?protocol=3", "must not set protocol"),
        (lambda url: f"{url}?db=99", "does not have the database that the URL names"),
        (lambda url: url.replace("redis://:", "redis://:no"), "refuses user or password"),
        # The server waits for the rest of what it takes for a command.
        pytest.param(
            lambda url: f"{url}?socket_timeout=0.5&socket_connect_timeout=0.5".replace("redis://", "rediss://"), "TLS"
        ),
        (lambda _: "redis://127.0.0.1:1", "refuses the connection"),
        (lambda _: "unix:///nowhere/redis.sock", "/nowhere/redis.sock cannot be reached"),
    ],
)
def test_address_that_cannot_be_used(
    make_caller: MakeCaller, valkey_url: str, change: Callable[[str], str], message: str
) -> None:
    wrong = change(valkey_url)
    with pytest.raises((UsageError, ServerUnavailable), match=message) as caught, make_caller(wrong):
        pass
    secret = valkey_url.removeprefix("redis://:").partition("@")[0]
    assert secret not in str(caught.value)


def test_unix_socket_user_and_database_of_the_address_are_used(
    make_caller: MakeCaller, redis_server_factory: Callable[..., Any], append: Script, tmp_path: Path
) -> None:
    path = tmp_path / "redis.sock"
    server = redis_server_factory(unixsocket=str(path))
    with server.client(database=3) as client:
        command(client, "ACL SETUSER", "writer", "on", ">p@ss", "~*", "+@all")
        with make_caller(f"unix://writer:p%40ss@{path}?db=3") as caller:
            assert caller.call(append, ["{a}"], ["x"]) == 1
            users = {entry["user"] for entry in client.client_list() if entry["name"] == "queuekeeper"}
            assert users == {"writer"}
        assert client.llen("{a}") == 1


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = tmp_path / "server.crt", tmp_path / "server.key"
    certificate_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


@contextmanager
def tls_terminated(port: int, certificate: tuple[Path, Path]) -> Iterator[int]:
    """Listen with TLS in front of a server that may have been built without."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    loop = asyncio.new_event_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.close)
        eventually(lambda: len(asyncio.all_tasks(loop)) == 0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_tls_is_spoken_and_certificates_are_checked(
    make_caller: MakeCaller, valkey_url: str, append: Script, certificate: tuple[Path, Path]
) -> None:
    port = int(valkey_url.rpartition(":")[2].partition("/")[0])
    with tls_terminated(port, certificate) as secured:
        address = valkey_url.replace("redis://", "rediss://").replace(f":{port}/", f":{secured}/")
        with make_caller(f"{address}?ssl_ca_certs={certificate[0]}") as caller:
            assert caller.call(append, ["{a}"], ["x"]) == 1
        with pytest.raises(ServerUnavailable, match="TLS failed"), make_caller(address):
            pass


def test_many_tasks_keep_the_order_of_each_client(url: str, append: Script, attach: Script) -> None:
    async def run() -> None:
        async with await connect(url) as caller:

            async def one(number: int) -> list[int]:
                scripts = (append, attach)
                futures = [caller.call(scripts[step % 2], [f"{{client-{number}}}"], [str(step)]) for step in range(100)]
                return list(await asyncio.gather(*futures))

            found = await asyncio.gather(*(one(number) for number in range(100)))
            assert found == [list(range(1, 101))] * 100

    asyncio.run(run())
    expected = [str(step).encode() for step in range(100)]
    assert lists(url, [f"{{client-{number}}}" for number in range(100)]) == [expected] * 100


@asynccontextmanager
async def silent_server() -> Any:
    """Serve nobody: note the chunks that arrive, and answer the first command only."""
    chunks: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        greeted = False
        while data := await reader.read(10_000_000):
            while not greeted:
                # CLIENT SETNAME, then INFO.
                for _ in range(data.count(b"*")):
                    writer.write(b"+OK\r\n")
                greeted = b"INFO" in data
                data = b"" if greeted else await reader.read(10_000_000)
            if data:
                chunks.append(data)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], chunks, writers
    finally:
        for writer in writers:
            writer.close()
        server.close()


async def arrived(chunks: list[bytes]) -> bytes:
    """Return what has arrived when nothing more does."""
    while not chunks:
        await asyncio.sleep(0.01)
    quiet, seen = 0, len(chunks)
    # Turns of the loop, not time: a machine that stands still passes time in which nothing could arrive.
    while quiet < 20:
        await asyncio.sleep(0.005)
        quiet, seen = (quiet + 1 if len(chunks) == seen else 0), len(chunks)
    return b"".join(chunks)


@pytest.mark.parametrize("host", ["redis..example.com", "a" * 64 + ".example.com", "a\0b"])
def test_opening_that_fails_in_an_unknown_way_ends_with_an_answer(host: str) -> None:
    """Nobody can be asked for such a name; a node of a cluster may name itself so."""

    async def run() -> None:
        connection = Connection(endpoint("redis://localhost").at(host, 6_379), limits=Limits())
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                with pytest.raises(RefusedError, match=f"Redis at {host}:6379: "):
                    await connection.ask("PING")
        await connection.close()

    asyncio.run(run())


def test_calls_of_one_tick_are_one_write(append: Script) -> None:
    async def run() -> None:
        async with silent_server() as (port, chunks, _), await connect(f"redis://127.0.0.1:{port}") as caller:
            futures = [caller.call(append, [f"{{{number}}}"], ["x"]) for number in range(20)]
            await arrived(chunks)
            assert [chunk.count(b"EVALSHA") for chunk in chunks] == [20]
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ServerUnavailable}
        assert "was closed by us. Nobody knows whether" in str(outcomes[0])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("limits", "bound"),
    [
        (Limits(flushes=2, flush_commands=10, flush_bytes=1_000_000), 20),
        (Limits(flushes=3, flush_commands=10_000, flush_bytes=1_000), 15),
        (Limits(flushes=1, flush_commands=1, flush_bytes=1), 1),
    ],
)
def test_no_more_is_written_than_the_limits_allow(append: Script, limits: Limits, bound: int) -> None:
    async def run() -> None:
        async with silent_server() as (port, chunks, _):
            caller = await connect(f"redis://127.0.0.1:{port}", limits=limits)
            futures = [caller.call(append, [f"{{{number}}}"], ["x" * 200]) for number in range(500)]
            written = (await arrived(chunks)).count(b"EVALSHA")
            assert 0 < written <= bound
            await caller.close()
            outcomes = [str(outcome) for outcome in await asyncio.gather(*futures, return_exceptions=True)]
            assert sum("Nobody knows" in outcome for outcome in outcomes) == written
            assert sum("nothing was sent" in outcome for outcome in outcomes) == 500 - written

    asyncio.run(run())


@pytest.mark.parametrize(("reply_bytes", "written"), [(1_000, 2), (100_000, 5)])
def test_call_goes_out_beside_others_when_its_reply_will_be_large(
    append: Script, reply_bytes: int, written: int
) -> None:
    async def run() -> None:
        limits = Limits(flushes=2, large_flushes=5, large_bytes=50_000)
        async with silent_server() as (port, chunks, writers):
            caller = await connect(f"redis://127.0.0.1:{port}", limits=limits)
            first = caller.call(append, ["{0}"], ["x"])
            await arrived(chunks)
            chunks.clear()
            writers[-1].write(b"$%d\r\n%b\r\n" % (reply_bytes, b"x" * reply_bytes))
            assert len(await first) == reply_bytes
            futures = []
            for number in range(1, 20):
                futures.append(caller.call(append, [f"{{{number}}}"], ["x"]))
                await asyncio.sleep(0)
            assert (await arrived(chunks)).count(b"EVALSHA") == written
            await caller.close()
            await asyncio.gather(*futures, return_exceptions=True)

    asyncio.run(run())


def test_what_was_not_written_goes_out_on_the_next_connection(
    redis_server_factory: Callable[..., Any], append: Script
) -> None:
    server = redis_server_factory()

    async def run() -> None:
        limits = Limits(flushes=1, flush_commands=10)
        async with await connect(server.url, limits=limits) as caller:
            await caller.call(append, ["{warm}"], ["x"])
            with server.client() as client:
                command(client, "CLIENT PAUSE", 60_000, "WRITE")
                futures = [caller.call(append, [f"{{{number}}}"], ["x"]) for number in range(30)]
                while not any("b" in entry["flags"] for entry in client.client_list()):
                    await asyncio.sleep(0.01)
                command(client, "CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
                command(client, "CLIENT UNPAUSE")
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
                assert [type(outcome) for outcome in outcomes[:10]] == [ServerUnavailable] * 10
                assert outcomes[10:] == [1] * 20
                assert all(str(outcome).endswith("Nobody knows whether the call has run") for outcome in outcomes[:10])

    asyncio.run(run())


def test_calls_survive_a_server_that_is_killed_and_started_again(own_server: Any, append: Script) -> None:
    async def run() -> None:
        async with await connect(own_server.url) as caller:
            await caller.call(append, ["{a}"], ["x"])
            await asyncio.to_thread(own_server.kill)
            waiting = [caller.call(append, [f"{{{number}}}"], ["x"]) for number in range(50)]
            await asyncio.to_thread(own_server.start)
            assert await asyncio.gather(*waiting) == [1] * 50

    asyncio.run(run())


def test_cancelled_call_holds_nobody_up(valkey_url: str, append: Script) -> None:
    async def run() -> None:
        async with await connect(valkey_url) as caller:
            first, second, third = (caller.call(append, ["{a}"], [text]) for text in "123")
            first.cancel()
            assert await second == 1, "what was cancelled before it was written is not sent"
            assert await third == 2
            batch = caller.execute([Call(append, ["{a}"], [text]) for text in "456"])
            batch.cancel()
            assert await caller.call(append, ["{a}"], ["7"]) == 3

    asyncio.run(run())


@pytest.mark.parametrize("wrong", [None, True, "\ud800"])
def test_argument_that_cannot_be_sent_fails_its_call_only(
    make_caller: MakeCaller, valkey_url: str, append: Script, wrong: Any
) -> None:
    with make_caller(valkey_url) as caller:
        replies = caller.execute([Call(append, [f"{{{text}}}"], [text]) for text in ("1", "2")])
        assert replies == [1, 1]
        calls = [Call(append, ["{1}"], ["1"]), Call(append, ["{3}"], [wrong]), Call(append, ["{2}"], ["2"])]
        replies = caller.execute(calls)
        assert [replies[0], replies[2]] == [2, 2]
        assert isinstance(replies[1], UsageError)
        assert "cannot be sent" in str(replies[1])
        assert "Nobody knows" not in str(replies[1])


def test_closed_caller_says_so(valkey_url: str, append: Script) -> None:
    async def run() -> None:
        caller = await connect(valkey_url)
        await caller.close()
        with pytest.raises(ServerUnavailable, match="was closed by us"):
            await caller.call(append, ["{a}"], ["x"])
        await caller.close()

    asyncio.run(run())
