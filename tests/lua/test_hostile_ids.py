"""Client ids that break names of keys: TBMQ and our stores find each other's sessions, and no other client's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from lua_sessions import command, contents, now_ms
from tbmq_broker import Broker

from queuekeeper import postgres, redis_async, schema_migrations, sql_statements
from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.errors import InvalidName, ScatteredClient, UsageError
from queuekeeper.fanout.model import NewMessage as NewFanoutMessage
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.keyspace import is_scattered
from queuekeeper.maintenance.fanout.queues import find_queues
from queuekeeper.quality.explain import read_queue
from queuekeeper.redis_client import RedisClient, connect, is_cluster, nodes
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.postgres_store import PostgresSessionStore
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from tests.conftest import ONE_SERVER_EACH, url_of_parameter

pytestmark = pytest.mark.lua

IDS = (
    "%", "%x", "%7Dx", "%257Dx", "%7B", "a%b", "100%", "%s %(name)s", "%00", "x}", "a}b", "a}_messages", "{", "{}",
    "{}}", "{{", "{a}b", "a{b}c", "{a}{b}", "_messages", "a_messages_1", "a}_messages_1", "*", "?", "glob*?[a-z]^\\",
    "[a]", "\\", "смарт-😀", "e\u0301", "\u202eabc", "line\nbreak", "\r\n", "tab\t ", " ", "'\"`;--", "<script>",
    "i" * 65_535, "😀" * 16_383, "}", "}x", "}{a}", "}_messages_1",
)  # fmt: skip
"""The last four have an empty hash tag; the others are served everywhere."""

SERVED = tuple(each for each in IDS if not is_scattered(each))
SCATTERED = tuple(each for each in IDS if is_scattered(each))


def shown(client_id: str) -> str:
    return ascii(client_id[:20])


def message(topic: str) -> NewMessage:
    return NewMessage(topic=topic, payload=b"\xff body", qos=2, time_ms=now_ms(), expiry_interval_s=600)


def topics_of(store: RedisSessionStore, client_id: str) -> list[str]:
    return [each.topic for each in store.fetch_pending(client_id).messages]


def ids_of(client: RedisClient) -> tuple[str, ...]:
    return SERVED if is_cluster(client) else IDS


@pytest.fixture(params=[*ONE_SERVER_EACH, "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisClient]:
    """Client of an empty server, by day of a cluster too: what TBMQ reads there is promised."""
    with connect(url_of_parameter(request)) as client:
        for _, node in nodes(client):
            command(node, "FLUSHALL")
        yield client


def test_there_are_forty_ids_and_all_differ() -> None:
    assert len(set(IDS)) == len(IDS) == 42
    assert len(SERVED) == 38


def test_broker_reads_under_its_own_keys_what_we_save(server: RedisClient) -> None:
    store = RedisSessionStore(server)
    for client_id in ids_of(server):
        store.save_messages([SessionSave(client_id=client_id, messages=(message("a"), message(client_id[:9])))])
    for client_id in ids_of(server):
        found = Broker(server, client_id).fetch()
        assert [(each["clientId"], each["packetId"]) for each in found] == [(client_id, 1), (client_id, 2)]
        assert found[1]["topicName"] == client_id[:9]
        # And goes on behind it, and we behind that.
        assert Broker(server, client_id).add("theirs") == 3
        (saved,) = store.save_messages([SessionSave(client_id=client_id, messages=(message("ours"),))])
        assert saved.packet_ids == (4,)
        assert topics_of(store, client_id) == ["a", client_id[:9], "theirs", "ours"]


def test_we_read_confirm_and_purge_what_the_broker_saves(server: RedisClient) -> None:
    store = RedisSessionStore(server)
    for client_id in ids_of(server):
        broker = Broker(server, client_id)
        assert [broker.add(f"{client_id[:9]}/{n}") for n in range(3)] == [1, 2, 3]
    for client_id in ids_of(server):
        assert topics_of(store, client_id) == [f"{client_id[:9]}/{n}" for n in range(3)]
        store.mark_released(client_id, packet_id=3)
        store.ack(client_id, [Ack(packet_id=1)])
        assert [each["packetId"] for each in Broker(server, client_id).fetch()] == [2, 3]
        assert store.inspect(client_id).messages == 2
    for client_id in ids_of(server):
        store.purge_session(client_id)
    assert contents(server) == {}


def test_compacted_queue_of_any_id_is_served(client: RedisClient) -> None:
    queues = CompactedQueues(client)
    for client_id in ids_of(client):
        queues.append(client_id, [Append(key=b"k", value=client_id[:9].encode()), Append(key=b"l", value=b"2")])
    for client_id in ids_of(client):
        fence = queues.subscribe(client_id, session="s").fence
        found = queues.fetch(client_id, fence=fence).messages
        assert [(each.client_id, each.value) for each in found] == [
            (client_id, client_id[:9].encode()),
            (client_id, b"2"),
        ]
        assert queues.verify(client_id).found == 0
        queues.drop(client_id)
        assert not queues.inspect(client_id).exists


def test_fanout_queue_of_any_name_is_served(client: RedisClient) -> None:
    queues = FanoutQueues(client)
    names = [each for each in ids_of(client) if len(each) <= 255 and each.isprintable()]
    assert len(names) > 25
    for name in names:
        queues.register(name, consumer="mailer")
        queues.publish(name, [NewFanoutMessage(body=name.encode())])
    assert sorted(find_queues(client, prefix="")) == sorted(names)
    for name in names:
        claimed = queues.claim(name, consumer="mailer", count=9)
        assert [each.body for each in claimed.messages] == [name.encode()]
        assert queues.verify(name).findings == ()
        queues.unregister(name, consumer="mailer", force=True)


def test_batches_of_all_of_them_are_saved_at_once_and_in_order(
    client: RedisClient,
) -> None:
    url = _url_of(client)

    async def work() -> None:
        async with await redis_async.connect(url) as caller:
            store = AsyncRedisSessionStore(caller)
            for n in range(3):
                reports = await store.save_messages(
                    [SessionSave(client_id=each, messages=(message(f"{n}"),)) for each in ids_of(client)]
                )
                assert [report.packet_ids for report in reports] == [(n + 1,)] * len(ids_of(client))
            # Nobody waits for one before the next.
            await asyncio.gather(
                *(
                    store.save_messages([SessionSave(client_id=each, messages=(message(f"{n}"),))])
                    for n in range(3, 6)
                    for each in ids_of(client)
                )
            )
            for client_id in ids_of(client):
                page = await store.fetch_pending(client_id)
                assert [each.topic for each in page.messages] == [str(n) for n in range(6)]

    asyncio.run(work())


def _url_of(client: RedisClient) -> str:
    _, node = nodes(client)[0]
    options = node.connection_pool.connection_kwargs
    return f"redis://:{options.get('password') or ''}@{options['host']}:{options['port']}"


# What a cluster refuses.


@pytest.fixture
def cluster(redis_cluster_url: str) -> Any:

    from queuekeeper.redis_client import nodes

    with connect(redis_cluster_url) as client:
        for _, node in nodes(client):
            command(node, "FLUSHALL")
        yield client


@pytest.mark.parametrize("client_id", SCATTERED)
def test_cluster_refuses_an_id_that_begins_with_a_brace_and_serves_its_neighbours(
    cluster: RedisClient, client_id: str
) -> None:
    words = r"^id .* begins with a closing brace: its keys lie in several slots, .* Connect under another id"
    store = RedisSessionStore(cluster)
    saves = [SessionSave(client_id=each, messages=(message("t"),)) for each in ("before", client_id, "after")]
    before, refused, after = store.save_messages(saves)
    assert isinstance(refused.error, ScatteredClient)
    assert repr(client_id) in str(refused.error)
    assert (before.error, after.error, before.packet_ids, after.packet_ids) == (None, None, (1,), (1,))
    for call in (
        lambda: store.fetch_pending(client_id),
        lambda: store.ack(client_id, [Ack(packet_id=1)]),
        lambda: store.inspect(client_id),
        lambda: store.purge_session(client_id),
        lambda: store.reserve_packet_ids(client_id, count=1),
        lambda: CompactedQueues(cluster).append(client_id, [Append(key=b"k", value=b"v")]),
        lambda: CompactedQueues(cluster).subscribe(client_id, session="s"),
        lambda: FanoutQueues(cluster).register(client_id, consumer="mailer"),
        lambda: FanoutQueues(cluster).publish(client_id, [NewFanoutMessage(body=b"x")]),
    ):
        with pytest.raises(ScatteredClient, match=words):
            call()

    async def work() -> None:
        async with await redis_async.connect(_url_of(cluster)) as caller:
            asynchronous = AsyncRedisSessionStore(caller)
            (report,) = await asynchronous.save_messages([saves[1]])
            assert isinstance(report.error, ScatteredClient)
            with pytest.raises(ScatteredClient, match=words):
                await asynchronous.fetch_pending(client_id)

    asyncio.run(work())
    assert {key for key in contents(cluster) if "before" not in key and "after" not in key} == set()


def test_queue_that_a_cluster_refuses_is_explained_from_postgresql(cluster: RedisClient, postgres_url: str) -> None:
    with postgres.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql_statements.statement("sessions/vendor_schema"))
        schema_migrations.migrate(connection)
        store = PostgresSessionStore(connection)
        store.save_messages([SessionSave(client_id="}x", messages=(message("t"),))])

        reading = read_queue("}x", connection=connection, client=cluster)

        assert reading.source is not None
        assert reading.source.messages == 1
        assert reading.target is None
        assert "begins with a closing brace" in reading.problems["Redis"]


# What MQTT forbids.


def test_zero_character_is_refused_at_every_door(single: RedisClient) -> None:
    store, compacted, fanout = RedisSessionStore(single), CompactedQueues(single), FanoutQueues(single)
    bad = "meter\0-7"
    for call in (
        lambda: store.save_messages([SessionSave(client_id=bad, messages=(message("t"),))]),
        lambda: store.fetch_pending(bad),
        lambda: store.inspect(bad),
        lambda: compacted.append(bad, [Append(key=b"k", value=b"v")]),
        lambda: compacted.inspect(bad),
        lambda: compacted.drop(bad),
    ):
        with pytest.raises(UsageError, match=r"^client id holds a zero character, which MQTT forbids .*'meter\\x00-7'"):
            call()
    for named in (
        lambda: fanout.register(bad, consumer="mailer"),
        lambda: fanout.register("orders", consumer=bad),
        lambda: fanout.publish(bad, [NewFanoutMessage(body=b"x")]),
    ):
        with pytest.raises(InvalidName, match=r"holds '\\x00': no control characters"):
            named()
    assert contents(single) == {}
