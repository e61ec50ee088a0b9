"""What is special to sessions in Redis: keys and slots, expiry of keys, memory, broken records, lost connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from tbmq_broker import Broker

from queuekeeper.clock import system_clock
from queuekeeper.errors import (
    MovedOn,
    PacketIdInUse,
    QueuekeeperError,
    RefusedError,
    ServerUnavailable,
    StoreFull,
    UsageError,
)
from queuekeeper.keyspace import packed_keys, payload_key, quarantined_key, session_keys
from queuekeeper.redis_async import connect as connect_async
from queuekeeper.redis_client import connect, nodes
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.reports import SaveReport
from tests.conformance.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.conformance

HOUR_MS = 3_600_000
KEYS = {Layout.TBMQ: session_keys, Layout.PACKED: packed_keys}
CLIENT_IDS = ("meter-7", "%7Dbrace", "%percent", "{", "{}", "a{b}c", "glob*?[x]", "смарт-😀", "line\nbreak", "i" * 255)


def message(payload: bytes = b"x", *, life_s: int | None = 3_600) -> NewMessage:
    return NewMessage(topic="t", payload=payload, qos=1, time_ms=time.time_ns() // 1_000_000, expiry_interval_s=life_s)


def save(store: RedisSessionStore, client_id: str, *payloads: bytes, **options: Any) -> SaveReport:
    messages = tuple(message(payload) for payload in payloads)
    (report,) = store.save_messages([SessionSave(client_id=client_id, messages=messages, **options)])
    return report


def payloads(store: RedisSessionStore, client_id: str) -> list[bytes]:
    return [found.payload for found in store.fetch_pending(client_id, limit=10_000).messages]


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def leave_records(client: Any, client_id: str, first: int, last: int) -> None:
    """Write records that no reference names, as a set that was evicted leaves them."""
    write = (
        "for n = ARGV[1], ARGV[2] do redis.call('SET', KEYS[1] .. string.format('%d', n), 'left', 'PX', 3600000) end"
    )
    client.eval(write, 1, payload_key(client_id, ""), first, last)


@pytest.fixture
def client(valkey_url: str) -> Iterator[Any]:
    with connect(valkey_url) as found:
        yield found


def test_any_client_id_has_its_session_on_a_cluster(redis_cluster_url: str) -> None:
    with connect(redis_cluster_url) as cluster:
        store = RedisSessionStore(cluster, prefix="tbmq:")
        saves = [SessionSave(client_id=name, messages=(message(name.encode()),)) for name in CLIENT_IDS]
        assert [report.error for report in store.save_messages(saves)] == [None] * len(saves)
        for name in CLIENT_IDS:
            assert payloads(store, name) == [name.encode()]
            assert store.ack(name, [Ack(packet_id=1, serial=1)]).removed == 1
            assert store.purge_session(name).messages == 0
        assert sum(node.dbsize() for _, node in nodes(cluster)) == 0


def test_pages_go_on_with_what_another_program_added_below_the_place_that_was_reached(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", *numbered(4))
    page = store.fetch_pending("a", limit=2, mark_delivered=True)
    assert page.more
    broker = Broker(client, "a")
    broker.purge()
    broker.add("new")
    following = store.fetch_pending(
        "a", after_serial=page.after_serial, backlog_serial=page.backlog_serial, limit=2, mark_delivered=True
    )
    assert [(found.topic, found.redelivery) for found in following.messages] == [("new", False)]
    assert [found.redelivery for found in store.fetch_pending("a").messages] == [True]


TIED = (1, 2, 2, 2.25, 2.5, 3, 4, 4, 5, 5.5, 7, 7)


@pytest.mark.parametrize(("limit", "max_bytes"), [*((limit, 10_000) for limit in range(1, 14)), (500, 1), (500, 3)])
def test_pages_pass_over_no_message_of_those_that_share_a_serial(client: Any, limit: int, max_bytes: int) -> None:
    store = RedisSessionStore(client)
    sent = [b"%02d" % number for number in range(len(TIED))]
    save(store, "a", *sent)
    client.zadd(
        session_keys("a").messages,
        {payload_key("a", packet_id): score for packet_id, score in enumerate(TIED, start=1)},
    )

    page = store.fetch_pending("a", limit=limit, max_bytes=max_bytes)
    found, pages = list(page.messages), 1
    while page.more:
        page = store.fetch_pending(
            "a", after_serial=page.after_serial, backlog_serial=page.backlog_serial, limit=limit, max_bytes=max_bytes
        )
        found += page.messages
        pages += 1
        assert pages <= len(TIED)

    assert [each.payload for each in found] == sent
    exported = store.export_session("a", limit=limit)
    lines = list(exported.lines)
    while exported.more:
        exported = store.export_session("a", after_serial=exported.after_serial, limit=limit)
        lines += exported.lines
    assert len(lines) == 1 + len(sent)


@pytest.mark.parametrize("purged", [False, True])
def test_pages_end_where_another_program_added_below_what_was_delivered_long_ago(client: Any, purged: bool) -> None:
    store = RedisSessionStore(client)
    save(store, "a", *numbered(10))
    store.mark_delivered("a", serial=10)
    broker = Broker(client, "a")
    if purged:
        broker.purge()
    else:
        store.ack("a", [Ack(packet_id=packet_id) for packet_id in (8, 9, 10)])
    for number in range(4):
        broker.add(f"new-{number}")

    found: list[int] = []
    page = store.fetch_pending("a", limit=2)
    while True:
        found += (each.serial for each in page.messages)
        if not page.more or len(found) > 20:
            break
        page = store.fetch_pending("a", after_serial=page.after_serial, backlog_serial=page.backlog_serial, limit=2)
    assert found == list(range(1, 5 if purged else 12))


@pytest.mark.parametrize("session_expiry_s", [0, 600])
@pytest.mark.parametrize("layout", Layout)
def test_keys_of_a_session_end_within_an_hour_after_its_last_message(
    client: Any, session_expiry_s: int, layout: Layout
) -> None:
    store = RedisSessionStore(client, rules=StoreRules(session_expiry_s=session_expiry_s), layout=layout)
    save(store, "a", b"x")
    (message,) = store.inspect("a").page
    assert message.expires_at_ms is not None
    end_ms = message.expires_at_ms + 1_000 * session_expiry_s
    for key in KEYS[layout]("a"):
        assert end_ms <= client.pexpiretime(key) <= end_ms + HOUR_MS


@pytest.mark.parametrize("layout", Layout)
def test_keys_of_a_session_stay_where_the_rules_say_for_ever(client: Any, layout: Layout) -> None:
    store = RedisSessionStore(client, rules=StoreRules(session_expiry_s=None), layout=layout)
    save(store, "a", b"x")
    assert {client.pttl(key) for key in KEYS[layout]("a")} == {-1}


@pytest.mark.parametrize("layout", Layout)
def test_full_server_takes_no_save_and_still_confirms_and_purges(
    redis_server_factory: Callable[..., Any], layout: Layout
) -> None:
    server = redis_server_factory(maxmemory="20mb", maxmemory_policy="noeviction")
    with connect(server.url) as full:
        store = RedisSessionStore(full, rules=StoreRules(max_payload_bytes=10_000_000), layout=layout)
        first = save(store, "a", b"1", b"2")
        assert first.stored == 2
        full.config_set("maxmemory", "1mb")
        before = full.dbsize()

        report = save(store, "a", b"3")

        assert isinstance(report.error, StoreFull)
        assert report.stored == 0
        assert full.dbsize() == before
        assert payloads(store, "a") == [b"1", b"2"]
        assert store.mark_delivered("a", serial=1)
        assert store.ack("a", [Ack(packet_id=1)]).removed == 1
        full.config_set("maxmemory", "20mb")
        assert save(store, "a", b"3").packet_ids == (3,)
        full.config_set("maxmemory", "1mb")
        assert store.purge_session("a").messages == 2
        assert full.dbsize() == 0


def test_unreadable_record_goes_to_quarantine_and_its_neighbours_are_delivered(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", *numbered(4))
    client.set(payload_key("a", 2), '{"packetType":"PUBLISH"', keepttl=True)
    client.delete(payload_key("a", 3))
    client.hset(payload_key("a", 3), "field", "value")
    client.zadd(session_keys("a").messages, {"{b}_messages_1": 3.5})

    page = store.fetch_pending("a")

    assert [found.payload for found in page.messages] == [b"0", b"3"]
    assert page.unreadable == 3
    assert client.get(quarantined_key("a", 2)) == b'{"packetType":"PUBLISH"'
    assert client.pttl(quarantined_key("a", 2)) > 0
    assert client.hgetall(quarantined_key("a", 3)) == {b"field": b"value"}
    assert client.pttl(quarantined_key("a", 3)) > 0
    assert store.fetch_pending("a").unreadable == 1, "what names no key of the session is left where it is"


def test_record_that_nobody_can_read_is_no_message_to_confirm_or_peek_at(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", b"1")
    client.set(payload_key("a", 1), "[]")
    assert store.mark_released("a", packet_id=1).value == "missing"
    with pytest.raises(RefusedError, match=r"packet id 1 of 'a' names a record that is no message"):
        store.peek("a", packet_id=1)


@pytest.mark.parametrize("off_ms", [-86_400_000, 86_400_000])
def test_store_whose_clock_is_a_day_off_delivers_what_lives_and_nothing_else(client: Any, off_ms: int) -> None:
    store = RedisSessionStore(client, clock=lambda: system_clock() + off_ms)
    dead = replace(message(b"dead"), time_ms=system_clock() - 60_000, expiry_interval_s=59)
    live = replace(message(b"live"), time_ms=system_clock(), expiry_interval_s=60)
    (report,) = store.save_messages([SessionSave(client_id="a", messages=(dead, live))])
    assert report.error is None
    assert payloads(store, "a") == [b"live"]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_key_of_another_type_fails_its_session_alone(client: Any, position: int) -> None:
    store = RedisSessionStore(client)
    key = session_keys("bad")[position]
    client.rpush(key, "value")
    bad, good = store.save_messages([SessionSave(client_id=name, messages=(message(),)) for name in ("bad", "good")])
    assert isinstance(bad.error, QueuekeeperError)
    assert "WRONGTYPE" in str(bad.error)
    assert (good.error, good.stored) == (None, 1)
    assert client.keys("{bad}*") == [key.encode()]


def test_last_packet_id_that_is_no_number_is_named(client: Any) -> None:
    client.set(session_keys("a").last_packet_id, "many")
    report = save(RedisSessionStore(client), "a", b"x")
    assert isinstance(report.error, RefusedError)
    assert "b'many'" in str(report.error)


def test_export_of_a_session_whose_last_packet_id_is_none_can_be_imported(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", b"x")
    client.set(session_keys("a").last_packet_id, 70_000)
    lines = store.export_session("a").lines
    assert store.get_last_packet_id("a") is None
    store.purge_session("a")
    assert store.import_session("a", lines).last_packet_id == 1


@pytest.mark.parametrize("layout", Layout)
def test_import_that_was_interrupted_before_its_end_still_says_what_was_delivered(client: Any, layout: Layout) -> None:
    class Cut(RedisSessionStore):
        def answer(self, step: Any) -> Any:
            if any(call.script.name.endswith("/mark_delivered") for call in step):
                raise ServerUnavailable("cut")
            return super().answer(step)

    store = RedisSessionStore(client, layout=layout)
    save(store, "a", *numbered(3))
    store.fetch_pending("a", limit=2, mark_delivered=True)
    lines = store.export_session("a").lines
    store.purge_session("a")
    with pytest.raises(ServerUnavailable):
        Cut(client, layout=layout).import_session("a", lines)

    for _ in range(2):
        with pytest.raises(MovedOn, match="these lines were imported before"):
            store.import_session("a", lines)
        assert [each.redelivery for each in store.fetch_pending("a").messages] == [True, True, False]
    save(store, "a", b"3")
    assert [each.redelivery for each in store.fetch_pending("a").messages] == [True, True, False, False]


def test_messages_in_flight_are_trimmed_last(client: Any) -> None:
    store = RedisSessionStore(client, rules=StoreRules(limit=5))
    save(store, "a", *numbered(5))
    store.fetch_pending("a", limit=3, mark_delivered=True)

    report = save(store, "a", b"5", b"6")
    assert (report.trimmed, report.trimmed_in_flight) == (2, 0)
    assert payloads(store, "a") == [b"0", b"1", b"2", b"5", b"6"]

    report = save(store, "a", *numbered(4, 7))
    assert (report.trimmed, report.trimmed_in_flight) == (4, 0)
    assert payloads(store, "a") == [b"0", b"1", b"2", b"9", b"10"]

    store.mark_delivered("a", serial=11)
    report = save(store, "a", b"11")
    assert (report.trimmed, report.trimmed_in_flight) == (1, 0), "the new one is the only one not delivered"
    assert payloads(store, "a") == [b"0", b"1", b"2", b"9", b"10"]


@pytest.mark.parametrize("layout", Layout)
def test_batch_whose_reply_was_lost_trims_when_it_is_repeated(client: Any, layout: Layout) -> None:
    # Whoever saved died before the trim, as with a greater limit.
    died = RedisSessionStore(client, rules=StoreRules(limit=100), layout=layout)
    save(died, "a", *numbered(6), source="p0", offset=1)
    store = RedisSessionStore(client, rules=StoreRules(limit=4), layout=layout)

    report = save(store, "a", *numbered(6), source="p0", offset=1)

    assert (report.replayed, report.trimmed) == (True, 2)
    assert payloads(store, "a") == numbered(4, 2)


def test_expired_messages_make_room_before_live_ones(client: Any) -> None:
    store = RedisSessionStore(client, rules=StoreRules(limit=3))
    save(store, "a", b"live")
    short = message(b"short", life_s=600)
    store.save_messages([SessionSave(client_id="a", messages=(short, short))])
    # Their end is set to the past, there and where the session notes which end comes first: nobody waits for it.
    ends_ms = client.pexpiretime(payload_key("a", 2))
    session_key = session_keys("a").session
    assert client.hget(session_key, "earliest_expiry_ms") == b"%d" % ends_ms
    assert ends_ms < client.pexpiretime(payload_key("a", 1))
    client.hset(session_key, "earliest_expiry_ms", 1)
    assert [client.pexpireat(payload_key("a", packet_id), 1) for packet_id in (2, 3)] == [1, 1]
    report = save(store, "a", b"new")
    assert (report.trimmed, report.dead) == (0, 2)
    assert payloads(store, "a") == [b"live", b"new"]


def test_full_set_of_packet_ids_makes_room_for_new_messages(client: Any) -> None:
    store = RedisSessionStore(client, rules=StoreRules(limit=65_535))
    for first in range(0, 65_535, 5_000):
        assert save(store, "a", *numbered(min(5_000, 65_535 - first), first)).error is None
    report = save(store, "a", b"new", b"er")
    assert report.error is None
    assert report.packet_ids == (1, 2)
    assert report.trimmed == 2
    assert client.zcard(session_keys("a").messages) == 65_535


def test_packet_ids_in_use_are_passed_over_however_many(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", *numbered(1_500))
    client.set(session_keys("a").last_packet_id, 65_534, keepttl=True)
    assert save(RedisSessionStore(client), "a", b"x", b"y", b"z").packet_ids == (65_535, 1_501, 1_502)
    assert store.reserve_packet_ids("a", count=2) == (1_503, 1_504)


def test_records_without_references_are_passed_over_however_many(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", b"x")
    leave_records(client, "a", 2, 1_201)
    assert save(store, "a", b"y").packet_ids == (1_202,)
    assert save(store, "a", b"z").packet_ids == (1_203,)
    assert payloads(store, "a") == [b"x", b"y", b"z"]


def test_save_where_every_packet_id_is_in_use_without_a_reference_is_refused_and_ends(client: Any) -> None:
    store = RedisSessionStore(client)
    leave_records(client, "a", 1, 65_535)
    report = save(store, "a", b"x")
    assert isinstance(report.error, PacketIdInUse)
    assert "has 0 free packet ids, and 1 are needed" in str(report.error)
    client.delete(payload_key("a", 65_000))
    assert save(store, "a", b"x").packet_ids == (65_000,)


def test_saves_of_many_tasks_for_one_session_follow_one_another(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each save that came too late for its packet ids would need a try more than the one before.
    monkeypatch.setattr("queuekeeper.sessions.redis_operations.packet_ids.TRIES", 3)

    async def run() -> list[SaveReport]:
        async with connect_async(valkey_url) as caller:
            store = AsyncRedisSessionStore(caller)
            saves = [SessionSave(client_id="a", messages=(message(b"%d" % number),)) for number in range(40)]
            reports: list[SaveReport] = []
            for _ in range(2):
                done = await asyncio.gather(*(store.save_messages([each]) for each in saves))
                reports += (report for (report,) in done)
                # Another program is ahead of all of them.
                with connect(valkey_url) as client:
                    save(RedisSessionStore(client), "a", b"other")
            return reports

    reports = asyncio.run(run())
    assert [report.error for report in reports] == [None] * 80
    serials = [serial for report in reports for serial in report.serials]
    assert serials[:40] == list(range(1, 41))
    assert sorted(filter(None, serials[40:])) == list(range(42, 82))


@pytest.mark.parametrize("layout", Layout)
def test_batch_whose_reply_was_lost_is_stored_once(valkey_url: str, layout: Layout) -> None:
    with CuttingProxy(valkey_url) as proxy, connect(proxy.url) as cut, connect(valkey_url) as direct:
        store = RedisSessionStore(cut, layout=layout)
        assert save(store, "a", b"0").error is None
        proxy.cuts = 1
        report = save(store, "a", b"1", b"2", source="p0", offset=7)
        assert isinstance(report.error, ServerUnavailable)
        assert payloads(RedisSessionStore(direct, layout=layout), "a") == [b"0", b"1", b"2"]

        again = save(store, "a", b"1", b"2", source="p0", offset=7)

        assert (again.error, again.replayed, again.packet_ids, again.serials) == (None, True, (2, 3), (2, 3))
        assert payloads(store, "a") == [b"0", b"1", b"2"]
        older = save(store, "a", b"1", source="p0", offset=6)
        assert (older.replayed, older.forgotten, older.packet_ids) == (True, True, (None,))
        assert save(store, "a", b"3", source="p0", offset=8).packet_ids == (4,)


@pytest.mark.parametrize("layout", Layout)
def test_request_that_did_not_reach_the_server_is_stored_by_its_repetition(valkey_url: str, layout: Layout) -> None:
    with connect(valkey_url) as killed, connect(valkey_url) as killer:
        store = RedisSessionStore(killed, layout=layout)
        assert save(store, "a", b"0").error is None
        own_ids = {int(found["id"]) for found in killer.client_list()} - {killer.client_id()}
        # Writes are held back before they run.
        killer.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        with ThreadPoolExecutor(1) as pool:
            lost = pool.submit(save, store, "a", b"1", source="p0", offset=7)
            while not any(int(found["id"]) in own_ids and "b" in found["flags"] for found in killer.client_list()):
                time.sleep(0.005)
            for number in own_ids:
                killer.execute_command("CLIENT", "KILL", "ID", number)
            assert isinstance(lost.result().error, ServerUnavailable)
        killer.execute_command("CLIENT", "UNPAUSE")
        again = save(store, "a", b"1", source="p0", offset=7)
        assert (again.error, again.replayed, again.packet_ids) == (None, False, (2,))
        assert payloads(store, "a") == [b"0", b"1"]


@pytest.mark.parametrize("layout", Layout)
def test_threads_that_save_for_one_client_lose_and_mix_nothing(client: Any, layout: Layout) -> None:
    stores = [RedisSessionStore(client, layout=layout) for _ in range(3)]

    def publish(name: int) -> list[SaveReport]:
        store = stores[name % len(stores)]
        return [save(store, "a", *(b"%d/%d/%d" % (name, turn, n) for n in range(3))) for turn in range(20)]

    with ThreadPoolExecutor(6) as pool:
        reports = [report for done in pool.map(publish, range(6)) for report in done]

    assert [report.error for report in reports] == [None] * 120
    ids = [packet_id for report in reports for packet_id in report.packet_ids]
    assert sorted(filter(None, ids)) == list(range(1, 361))
    found = payloads(stores[0], "a")
    assert len(found) == 360
    for name in range(6):
        own = [payload for payload in found if payload.startswith(b"%d/" % name)]
        assert own == [b"%d/%d/%d" % (name, turn, n) for turn in range(20) for n in range(3)]
    batches = [found[at : at + 3] for at in range(0, 360, 3)]
    assert all(len({payload.rsplit(b"/", 1)[0] for payload in batch}) == 1 for batch in batches)


def test_last_packet_id_of_a_new_session_needs_no_read_when_it_is_known(client: Any) -> None:
    store = RedisSessionStore(client)
    save(store, "a", b"x")
    steps: list[int] = []
    answer = store.answer

    def counting(step: Any) -> Any:
        steps.append(len(step))
        return answer(step)

    store.answer = counting  # type: ignore[method-assign]
    store.save_messages([SessionSave(client_id="a", messages=(message(),))])
    assert steps == [1]
    others = [SessionSave(client_id=f"b{n}", messages=(message(),)) for n in range(50)]
    steps.clear()
    store.save_messages(others)
    assert steps == [50, 50], "all sessions are read at once, then all are saved at once"


def test_large_batch_is_cut_into_bounded_calls(client: Any) -> None:
    store = RedisSessionStore(client)
    client.config_resetstat()
    assert save(store, "a", *[b"x" * 200_000] * 6).stored == 6
    assert save(store, "b", *numbered(600)).stored == 600
    scripts = client.info("commandstats")["cmdstat_evalsha"]
    reads = 2
    assert scripts["calls"] - scripts["failed_calls"] - reads == 3 + 3


@pytest.mark.parametrize("recent_sessions", [0, "many"])
def test_bad_number_of_recent_sessions_is_refused(client: Any, recent_sessions: Any) -> None:
    with pytest.raises(UsageError, match="recent_sessions"):
        RedisSessionStore(client, recent_sessions=recent_sessions)


def test_session_that_fell_out_of_mind_is_read_again(client: Any) -> None:
    store = RedisSessionStore(client, recent_sessions=2)
    for turn in (1, 2):
        for name in ("a", "b", "c"):
            assert save(store, name, b"x").packet_ids == (turn,)
