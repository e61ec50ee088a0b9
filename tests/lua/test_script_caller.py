"""Calling scripts: lost scripts are loaded again, order is kept, and redirects of a cluster are followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from lua_sessions import Session, command, contents, messages
from script_callers import APPEND, eventually, script
from script_replies import reply_of

from queuekeeper import lua
from queuekeeper.errors import MovedOn, RefusedError, ScriptError, ServerUnavailable, WrongType
from queuekeeper.keyspace import client_slot
from queuekeeper.lua import Call, Script, ScriptCaller, caller, scripts
from queuekeeper.redis_client import RedisClient, connect, nodes
from tests.cluster_slots import Slot, slot_of
from tests.conftest import ONE_SERVER_EACH, url_of_server
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.lua


@pytest.fixture
def appenders(tmp_path: Path) -> list[Script]:
    """Two scripts that append a text to a list, or refuse it."""
    return [script(tmp_path, name, APPEND) for name in ("append", "attach")]


def flush_scripts(client: RedisClient) -> None:
    for _, node in nodes(client):
        node.script_flush()


def known(client: RedisClient, wanted: Script) -> list[bool]:
    return [node.script_exists(wanted.sha1)[0] for _, node in nodes(client)]


def test_script_is_loaded_when_it_is_first_called(client: RedisClient, appenders: list[Script]) -> None:
    assert not any(known(client, appenders[0]))
    assert ScriptCaller(client).call(appenders[0], ["{a}"], ["x"]) == 1
    assert any(known(client, appenders[0]))


def test_known_script_is_called_by_its_digest(valkey_url: str, appenders: list[Script]) -> None:
    with connect(valkey_url) as client:
        caller = ScriptCaller(client)
        for _ in range(5):
            caller.call(appenders[0], ["{a}"], ["x"])
        statistics = client.info("commandstats")
        assert "cmdstat_eval" not in statistics
        assert statistics["cmdstat_script|load"]["calls"] == 1
        assert statistics["cmdstat_evalsha"]["calls"] == 6


def test_script_survives_a_flush(client: RedisClient, appenders: list[Script]) -> None:
    caller = ScriptCaller(client)
    for length in (1, 2, 3):
        assert caller.call(appenders[0], ["{a}"], ["x"]) == length
        flush_scripts(client)


def test_script_survives_a_restart(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(2), last=False)
        own_server.restart()
        assert session.import_session(messages(2, first=3), chunk=1, last=False) == {
            "word": "imported",
            "written": 2,
            "expired": 0,
        }
        own_server.kill()
        own_server.start()
        call = session.import_call(messages(2, first=5), chunk=2)
        (reply,) = ScriptCaller(client).execute([call])
        assert reply_of(call, reply) == {"word": "imported", "written": 2, "expired": 0}
        assert len(session.references()) == 6


def test_replies_are_in_the_order_of_the_calls(client: RedisClient, appenders: list[Script]) -> None:
    calls = [
        Call(appenders[number % 2], [f"{{client-{number}}}"], [str(round_number)])
        for round_number in range(3)
        for number in range(50)
    ]
    caller = ScriptCaller(client)
    assert caller.execute(calls) == [1] * 50 + [2] * 50 + [3] * 50
    assert caller.execute([]) == []


def test_script_that_is_lost_does_not_change_the_order_of_calls(client: RedisClient, appenders: list[Script]) -> None:
    caller = ScriptCaller(client)
    caller.call(appenders[0], ["{warm}"], ["x"])
    # The second script is not known: sent all at once, every first one would run before it.
    calls = [Call(appenders[number % 2], ["{a}"], [str(number)]) for number in range(10)]
    assert caller.execute(calls) == list(range(1, 11))
    assert client.lrange("{a}", 0, -1) == [str(number).encode() for number in range(10)]


def test_calls_keep_their_order_while_scripts_are_flushed_all_the_time(
    client: RedisClient, appenders: list[Script]
) -> None:
    stop = threading.Event()
    flushes = 0

    def flush_until_stopped() -> None:
        nonlocal flushes
        while not stop.is_set():
            flush_scripts(client)
            flushes += 1

    thread = threading.Thread(target=flush_until_stopped)
    thread.start()
    try:
        rounds = 0
        while rounds < 10 or flushes <= 10:
            calls = [
                Call(appenders[number % 2], [f"{{client-{number % 20}}}"], [str(rounds * 10 + number // 20)])
                for number in range(200)
            ]
            expected = [rounds * 10 + number // 20 + 1 for number in range(200)]
            assert ScriptCaller(client).execute(calls) == expected
            rounds += 1
    finally:
        stop.set()
        thread.join()
    for number in range(20):
        assert client.lrange(f"{{client-{number}}}", 0, -1) == [str(step).encode() for step in range(10 * rounds)]


def test_error_of_one_call_leaves_other_clients_alone(client: RedisClient, appenders: list[Script]) -> None:
    calls: list[Call] = []
    for text in ("1", "refuse", "2"):
        calls += [Call(appenders[0], ["{a}list"], [text]), Call(appenders[0], ["{b}list"], ["x"])]
    replies = ScriptCaller(client).execute(calls)
    assert replies[0] == 1
    assert isinstance(replies[2], MovedOn)
    assert replies[4] is replies[2], "a call behind a failed one of its client id is not sent"
    assert replies[1::2] == [1, 2, 3]
    assert client.lrange("{a}list", 0, -1) == [b"1"]


def test_first_error_can_be_raised_after_everything_was_sent(client: RedisClient, appenders: list[Script]) -> None:
    replies = ScriptCaller(client).execute(
        [Call(appenders[0], ["{a}"], ["refuse"]), Call(appenders[0], ["{b}"], ["x"])]
    )
    with pytest.raises(MovedOn, match=r"^refused$"):
        replies.or_raise()
    assert client.llen("{b}") == 1


def test_error_word_that_the_header_does_not_declare_is_a_broken_script(client: RedisClient, tmp_path: Path) -> None:
    liar = script(tmp_path, "liar", "return redis.error_reply('STALE ' .. KEYS[1] .. ARGV[1])")
    with pytest.raises(ScriptError) as caught:
        ScriptCaller(client).call(liar, ["{a}"], ["x"])
    assert str(caught.value) == "liar answered STALE, which its header does not declare: STALE {a}x"


def test_key_of_another_type_is_named_with_a_way_on(client: RedisClient, appenders: list[Script]) -> None:
    client.set("{a}", "text")
    words = r"^a key has another type than Queuekeeper gives it, one of \{a\}: find it by TYPE, .* \(append: WRONGTYPE "
    with pytest.raises(WrongType, match=words):
        ScriptCaller(client).call(appenders[0], ["{a}"], ["x"])


def test_lost_server_is_named_and_nothing_is_sent_twice(own_server: Any, appenders: list[Script]) -> None:
    with connect(own_server.url) as client:
        caller = ScriptCaller(client)
        caller.call(appenders[0], ["{a}"], ["x"])
        own_server.kill()
        with pytest.raises(ServerUnavailable, match=rf"^Redis at 127\.0\.0\.1:{client_port(client)} "):
            caller.call(appenders[0], ["{a}"], ["y"])
        replies = caller.execute([Call(appenders[0], [key], ["y"]) for key in ("{a}", "{b}")])
        assert [type(reply) for reply in replies] == [ServerUnavailable, ServerUnavailable]
        own_server.start()
        assert caller.call(appenders[0], ["{a}"], ["z"]) == 2


def client_port(client: RedisClient) -> int:
    assert isinstance(client, redis.Redis)
    return int(client.connection_pool.connection_kwargs["port"])


def test_keys_of_two_slots_are_refused_by_a_cluster(redis_cluster_url: str) -> None:
    with connect(redis_cluster_url) as client, pytest.raises(RefusedError, match="don't hash to the same slot"):
        ScriptCaller(client).call(lua.load("sessions/import_session"), ["{a}", "{b}", "{c}"], [])


def test_key_of_another_slot_inside_a_script_is_refused_by_a_cluster(redis_cluster_url: str, tmp_path: Path) -> None:
    # Both slots are on one node, where a script without a #! line would be let through.
    wanderer = script(tmp_path, "wanderer", "return redis.call('SET', '{client-32}', ARGV[1] .. KEYS[1])")
    with connect(redis_cluster_url) as client:
        assert isinstance(client, redis.RedisCluster)
        slots = [client_slot(client_id) for client_id in ("client-7", "client-32")]
        assert len({client.nodes_manager.get_node_from_slot(slot).name for slot in slots}) == 1
        with pytest.raises(ScriptError, match="do not hash to the same slot"):
            ScriptCaller(client).call(wanderer, ["{client-7}"], ["x"])
        assert contents(client) == {}


@contextmanager
def moved_slot(url: str, key: str) -> Iterator[Slot]:
    """Give a slot to another master without telling the client, and give it back."""
    with slot_of(url, key) as slot:
        slot.move()
        try:
            yield slot
        finally:
            slot.move()


def test_slot_that_has_moved_is_followed(redis_cluster_url: str) -> None:
    with connect(redis_cluster_url) as client:
        session = Session(client=client)
        session.import_session(messages(3), last=False)
        with moved_slot(redis_cluster_url, session.client_id) as slot:
            assert session.import_session(messages(3, first=4), chunk=1, last=False) == {
                "word": "imported",
                "written": 3,
                "expired": 0,
            }
            assert slot.source.zcard(session.keys.messages) == 6
            assert command(slot.target, "CLUSTER COUNTKEYSINSLOT", slot.number) == 0
        last_chunk = session.import_call(messages(3, first=7), chunk=2, last_packet_id=9)
        replies = ScriptCaller(client).execute(
            [
                last_chunk,
                scripts.sessions.export_messages(payloads=map(session.payload, range(1, 10)), max_bytes=""),
            ]
        )
        assert reply_of(last_chunk, replies[0]) == {"word": "imported", "written": 3, "expired": 0}
        assert b"" not in replies[1]
        assert len(session.references()) == 9


def test_many_calls_follow_a_slot_that_has_moved(redis_cluster_url: str, appenders: list[Script]) -> None:
    with connect(redis_cluster_url) as client:
        caller = ScriptCaller(client)
        clients = [f"{{client-{number}}}" for number in range(30)]
        for _ in range(2):
            calls = [Call(appenders[step % 2], [name], [str(step)]) for step in range(3) for name in clients]
            with moved_slot(redis_cluster_url, "client-7"):
                caller.execute(calls).or_raise()
        for name in clients:
            assert client.lrange(name, 0, -1) == [b"0", b"1", b"2"] * 2


def test_slot_that_is_moving_is_asked_for(redis_cluster_url: str, appenders: list[Script]) -> None:
    with connect(redis_cluster_url) as client, slot_of(redis_cluster_url, "a") as slot:
        slot.begin()
        try:
            calls = [Call(appenders[number % 2], ["{a}"], [str(number)]) for number in range(4)]
            # The key is not there, so the source sends each call on to the target.
            assert ScriptCaller(client).execute(calls) == [1, 2, 3, 4]
        finally:
            command(slot.source, "CLUSTER SETSLOT", slot.number, "STABLE")
            stray = connect_raw(slot.target)
            command(stray, "ASKING")
            command(stray, "DEL", "{a}")
            stray.close()
            command(slot.target, "CLUSTER SETSLOT", slot.number, "STABLE")
        assert contents(client) == {}


def test_call_that_only_reads_is_sent_again_in_a_cluster_when_its_connection_is_lost(
    redis_cluster_url: str, appenders: list[Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def lose_once(lane: Any) -> Any:
        if not lost:
            lost.append(lane.address)
            raise redis.ConnectionError("Connection closed by server.")
        return read(lane)

    read = caller._Lane.read
    with connect(redis_cluster_url) as client:
        Session(client=client).import_session(messages(2))
        looking = scripts.sessions.read_session(Session(client=client).keys)
        monkeypatch.setattr(caller._Lane, "read", lose_once)
        assert looking.script.read(ScriptCaller(client).call(*looking)).references == 2
        assert len(lost) == 1
        lost.clear()
        with pytest.raises(ServerUnavailable, match="Nobody knows whether the call has run"):
            ScriptCaller(client).call(appenders[0], ["{a}"], ["x"])


def connect_raw(node: redis.Redis) -> redis.Redis:
    """Return a client with one connection only: ASKING holds for the next command on it."""
    return redis.Redis(connection_pool=node.connection_pool, single_connection_client=True)


def test_user_without_permission_is_told_which(redis_url: str, appenders: list[Script]) -> None:
    with connect(redis_url) as client:
        command(client, "ACL SETUSER", "reader", "on", ">pw", "~*", "+@all", "-evalsha", "-eval")
        try:
            assert isinstance(client, redis.Redis)
            url = f"redis://reader:pw@127.0.0.1:{client_port(client)}"
            with connect(url) as reader, pytest.raises(RefusedError, match="does not allow this user to do that"):
                ScriptCaller(reader).call(appenders[0], ["{a}"], ["x"])
        finally:
            command(client, "ACL DELUSER", "reader")


@pytest.mark.parametrize("url", [*ONE_SERVER_EACH, "cluster"])
def test_as_many_threads_as_there_are_wait_on_connections_of_their_own(
    request: pytest.FixtureRequest, url: str
) -> None:
    many = 150
    address = url_of_server(request, url)
    with connect(address) as client, connect(address) as other, ThreadPoolExecutor(many) as threads:
        other.delete("{a}wake")
        wait = partial(ScriptCaller(client).await_wake, "{a}wake", timeout_s=PATIENCE_S)
        waiting = [threads.submit(wait) for _ in range(many)]
        try:
            eventually(lambda: any(each.done() for each in waiting) or _blocked(other) == many)
        finally:
            other.zadd("{a}wake", {str(number): number for number in range(many)})
        assert all(each.result() for each in waiting)


def _blocked(client: RedisClient) -> int:
    return sum(int(node.info("clients")["blocked_clients"]) for _, node in nodes(client))


def test_limit_of_connections_in_the_address_is_named_when_it_is_reached(valkey_url: str) -> None:
    limited = f"{valkey_url}?max_connections=1"
    with connect(limited) as client, connect(valkey_url) as other, ThreadPoolExecutor(1) as threads:
        other.delete("{a}wake")
        waiting = threads.submit(ScriptCaller(client).await_wake, "{a}wake", timeout_s=PATIENCE_S)
        try:
            eventually(lambda: _blocked(other) == 1)
            with pytest.raises(ServerUnavailable, match="max_connections in the URL"):
                ScriptCaller(client).await_wake("{a}wake", timeout_s=1.0)
        finally:
            other.zadd("{a}wake", {"x": 1})
        assert waiting.result()
