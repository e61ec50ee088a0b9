"""Sessions move to Redis and back with devices connected: nothing is lost, and what must not be done is refused."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any, Self

import psycopg
import pytest
from tbmq_broker import Broker

from queuekeeper import audit, postgres
from queuekeeper.approvals import check_four_eyes
from queuekeeper.clock import system_clock
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import (
    CheckFailed,
    NotAllowed,
    NotOwner,
    RefusedError,
    ServerUnavailable,
    StaleDriver,
    UsageError,
)
from queuekeeper.jobs.progress import watched
from queuekeeper.keyspace import is_scattered, payload_key, session_keys
from queuekeeper.migration.ledger.ledger import QuarantinedRow
from queuekeeper.migration.offline.quarantine import replay
from queuekeeper.migration.online import crew, foreign_writers
from queuekeeper.migration.online.checks import check_approval_age
from queuekeeper.migration.online.cohorts import OnlineCohorts
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.mover import SessionMover
from queuekeeper.migration.online.reports import MoveReport, Outcome
from queuekeeper.migration.online.sides import PostgresSide, RedisSide
from queuekeeper.migration.online.states import OnlineState
from queuekeeper.redis_async import AsyncScriptCaller
from queuekeeper.redis_client import is_cluster
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.quarantine import Stores
from queuekeeper.sessions.quarantine import replay as put_back
from queuekeeper.sessions.router import SessionRouter
from queuekeeper.sessions.snapshot import SessionSnapshot, differences
from tests.access_users import forget_refusals, url_of_user
from tests.conformance.online_worlds import (
    DEFAULT_TTL_S,
    PLAN_ID,
    DiesBeforeRedisKnows,
    OnlineWorld,
    message,
    mirrored,
    until_none_is_late,
)
from tests.conftest import nightly
from tests.patience import PATIENCE_S
from tests.property.migration_rules import Message, Rules, decide, pairs, stored_json

pytestmark = pytest.mark.conformance

C = "meter-7"
QUARANTINE = """
    SELECT
        client_id, serial_number, topic, time, packet_id, packet_type, qos, payload, user_properties, retain,
        msg_expiry_interval, payload_format_indicator, content_type, response_topic, correlation_data, reason
    FROM queuekeeper.session_quarantine
"""
MOST_THERE, MOST_BACK = 23, 53
"""Questions to both servers that a fence may span: on a machine of its own each takes some milliseconds."""
MOST_CALLS = 7
"""Calls of scripts that these questions may carry, either way."""

WHY_LATE = "its queue could not be copied within the lease: try again when it is shorter or the client is quiet"
NEWCOMERS = ("newcomer-1", "newcomer-2", "newcomer-3", "newcomer-4")
STRANGE = ("}first", "in{the}middle", "%percent", "{}", "смарт-😀", "<b>x</b>", C)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, postgres_url: str, valkey_url: str, control_schema: None
) -> Iterator[OnlineWorld]:
    """Empty tables of TBMQ 1.x and an empty Valkey, to which sessions move in the layout of the test."""
    world = OnlineWorld(postgres_url, valkey_url, layout=getattr(request, "param", Layout.TBMQ))
    yield world
    world.close()


in_both_layouts = pytest.mark.parametrize("world", Layout, indirect=True)
in_one_layout_by_day = pytest.mark.parametrize("world", [Layout.TBMQ, *nightly(Layout.PACKED)], indirect=True)
"""For what a driver decides: it asks both layouts by the same calls, whose answers have tests in both."""


@pytest.fixture
def few(world: OnlineWorld) -> OnlineWorld:
    """The same with some clients of three messages each, and a plan of one cohort."""
    for client_id in STRANGE:
        save(world.at_postgres, client_id, b"1", b"2", b"3")
    world.plan(count=1)
    return world


def wait_for(holds: Callable[[], bool]) -> None:
    """Return when something holds."""
    ends_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def save(store: object, client_id: str, *payloads: bytes, **fields: object) -> None:
    """Save messages, which has to succeed."""
    messages: tuple[NewMessage, ...] = tuple(message(each, **fields) for each in payloads)
    (report,) = store.save_messages([SessionSave(client_id=client_id, messages=messages)])  # type: ignore[attr-defined]
    assert report.error is None, report.error


def payloads(store: object, client_id: str) -> list[bytes]:
    """Return what is pending, in order."""
    return [each.payload for each in store.fetch_pending(client_id).messages]  # type: ignore[attr-defined]


def meant(row: tuple[Any, ...]) -> Message:
    """Return a row in the one form that a store writes: no properties and no retain have several forms."""
    found = Message(*row)
    properties = pairs(found.user_properties)
    return found._replace(user_properties=str(properties) if properties else None, retain=found.retain is True)


def check_there_and_back(world: OnlineWorld) -> None:
    """Move everything to Redis and back, and compare what both stores hold with what the written rules say."""
    world.plan()
    before, clients = world.rows(), world.clients()
    driver = world.to_redis()

    # Ids that no cluster can serve stay where they are, and nobody waits for them.
    staying = {each for each in clients if is_cluster(world.client) and is_scattered(each)}
    moving = {client_id: client for client_id, client in clients.items() if client_id not in staying}
    assert world.states() == {"on_redis"}
    assert {client_id: world.owner(client_id).owner for client_id in clients} == (
        dict.fromkeys(moving, world.target) | dict.fromkeys(staying, "postgres")
    )
    for client_id in staying:
        assert world.in_redis(client_id) == {}
    for client_id, client in moving.items():
        expected = {
            each.packet_id: (
                each.serial_number,
                stored_json(each),
                client.decision.messages[each.serial_number].expires_at_ms,
            )
            for each in client.moved
        }
        assert world.in_redis(client_id) == expected, client_id
        assert list(world.in_redis(client_id)) == list(expected), client_id
        assert world.last_packet_id(client_id) == client.decision.last_packet_id, client_id

    report = until_none_is_late(driver.roll_back)
    assert report.left == {}
    assert world.states() == {"copying"}
    assert world.all_owners() == {"postgres"}
    after = world.rows()
    live = {row[:2] for client in clients.values() for row in client.moved}
    assert {key: meant(after[key]) for key in live} == {key: meant(before[key]) for key in live}
    aside = {row[:2]: row for row in world.sql(QUARANTINE)}
    for client_id, client in moving.items():
        assert world.at_postgres.get_last_packet_id(client_id) == client.decision.last_packet_id, client_id
        for serial, reason in client.bad.items():
            # Whole, and with the reason that the rules give.
            assert aside[client_id, serial] == (*before[client_id, serial], reason)
    assert aside.keys().isdisjoint(after)


@pytest.mark.parametrize("layout", [Layout.PACKED, *nightly(Layout.TBMQ)])
def test_there_and_back_leaves_every_live_message_where_it_was(
    postgres_url: str, redis_url: str, layout: Layout
) -> None:
    """The driver is the user that is printed for it."""
    world = OnlineWorld(postgres_url, redis_url, layout=layout)
    try:
        world.fill(hostile=True)
        with url_of_user(world.client, "online", prefix="") as world.redis_url:
            check_there_and_back(world)
    finally:
        world.close()


# Keys of one session in TBMQ's layout are many: it is this one that has to keep them in one slot.
@pytest.mark.parametrize("layout", [Layout.TBMQ, *nightly(Layout.PACKED)])
def test_on_a_cluster_there_and_back_leaves_every_live_message_where_it_was(
    postgres_url: str, redis_cluster_url: str, layout: Layout
) -> None:
    """The driver is the user that is printed for it."""
    world = OnlineWorld(postgres_url, redis_cluster_url, prefix="tbmq:", layout=layout)
    try:
        world.fill(hostile=True)
        with url_of_user(world.client, "online", prefix="tbmq:") as world.redis_url:
            check_there_and_back(world)
    finally:
        world.close()


@pytest.mark.parametrize("server", ["valkey_url", "redis_cluster_url"])
def test_client_of_any_id_moves_to_the_keys_that_tbmq_reads(
    request: pytest.FixtureRequest, postgres_url: str, server: str
) -> None:
    world = OnlineWorld(postgres_url, request.getfixturevalue(server))
    try:
        client_ids = ("%x", "%7Dx", "%25x", "a%b", "}x", "a}b", "{}")
        for client_id in client_ids:
            save(world.at_postgres, client_id, client_id.encode(), b"2")
        world.plan(count=1)
        driver = world.driver()
        driver.arm()
        reports = [driver.catch_up(), driver.verify(), driver.cut_over()]

        staying = [each for each in client_ids if is_cluster(world.client) and is_scattered(each)]
        assert [report.kept for report in reports] == [len(staying)] * 3
        assert [report.left for report in reports] == [{}, {}, {}]
        for client_id in client_ids:
            if client_id not in staying:
                found = Broker(world.client, client_id).fetch()
                assert [(each["clientId"], each["packetId"]) for each in found] == [(client_id, 1), (client_id, 2)]
        with world.router() as router:
            for client_id in client_ids:
                save(router, client_id, b"3")
                assert payloads(router, client_id) == [client_id.encode(), b"2", b"3"]
        assert world.sql(QUARANTINE) == []
    finally:
        world.close()


# --- clients that come in the middle, and what they do -----------------------------------------------------------


@pytest.mark.parametrize("counter", [65_536, 0, -1, None])
def test_message_that_tbmq_adds_after_a_move_overwrites_none_that_waits(
    world: OnlineWorld, counter: int | None
) -> None:
    world.long_queue("meter-7", 3)
    world.sql("UPDATE device_session_ctx SET last_packet_id = %s", counter)
    assert world.at_postgres.get_last_packet_id("meter-7") == 3
    world.plan(count=1)
    world.to_redis()

    assert Broker(world.client, "meter-7").add("plant/new") == 4

    found = world.at_redis.fetch_pending("meter-7").messages
    assert [(each.packet_id, each.topic) for each in found] == [(1, "t"), (2, "t"), (3, "t"), (4, "plant/new")]


# Serials and packet ids of what waits, and the session's counter -> what a broker gives out next.
COUNTERS_THAT_LAG = {
    "behind the newest": ([(1, 1), (2, 2), (3, 3)], 1, 4),
    "behind the newest, across a gap and the end of the round": ([(1, 65_534), (2, 2), (3, 5)], 65_533, 6),
    "an earlier round waits": ([(6, 6), (7, 7), (65_540, 5)], 5, 8),
    "the newest belongs to an earlier round": ([(1, 2), (2, 40_000)], 1, 3),
    "just ahead": ([(1, 1), (2, 2), (3, 3)], 9, 10),
}


@pytest.mark.parametrize("case", COUNTERS_THAT_LAG)
def test_counter_of_a_moved_session_passes_what_waits_and_both_stores_say_so_there_and_back(
    world: OnlineWorld, case: str
) -> None:
    waiting, counter, following = COUNTERS_THAT_LAG[case]
    world.long_queue(C, len(waiting))
    for place, given in reversed([*enumerate(waiting)]):
        world.sql(
            "UPDATE device_publish_msg SET serial_number = %s, packet_id = %s WHERE serial_number = %s", *given, place
        )
    world.sql("UPDATE device_session_ctx SET last_packet_id = %s, last_serial_number = %s", counter, waiting[-1][0])
    world.plan(count=1)
    driver = world.to_redis()

    assert world.last_packet_id(C) == following - 1
    # Nothing has changed since the client moved, so the mirror has written nothing; both are equal all the same.
    assert world.move(lambda mover: mover.compare(C)).equal
    assert until_none_is_late(driver.roll_back).left == {}
    assert world.sql("SELECT last_packet_id FROM device_session_ctx") == [(following - 1,)]

    assert world.move(lambda mover: mover.cut_over(C)).outcome is Outcome.MOVED
    assert Broker(world.client, C).add("plant/new") == following
    found = world.at_redis.fetch_pending(C).messages
    assert [each.packet_id for each in found] == [*(packet_id for _, packet_id in waiting), following]


@in_one_layout_by_day
def test_client_that_comes_in_the_middle_is_in_one_store_only_and_moves_with_the_others(few: OnlineWorld) -> None:
    driver = few.driver()
    with few.router() as router:
        driver.arm()
        save(router, "newcomer-1", b"a", b"b")
        driver.catch_up()
        save(router, "newcomer-2", b"c")
        assert few.in_redis("newcomer-2") == {}
        driver.verify()
        assert until_none_is_late(driver.cut_over).left == {}
        save(router, "newcomer-3", b"d")
        save(router, "newcomer-1", b"e")

        assert few.all_owners() == {few.target}
        assert payloads(router, "newcomer-1") == [b"a", b"b", b"e"]
        # Before the mirror has been at it, a client that came to Redis is there only.
        assert not [key for key in few.rows() if key[0] == "newcomer-3"]
        assert [fields["packetId"] for _, fields, _ in few.in_redis("newcomer-3").values()] == [1]

        assert until_none_is_late(driver.roll_back).left == {}
        save(router, "newcomer-4", b"f")
        found = {client_id: payloads(router, client_id) for client_id in (*STRANGE, *NEWCOMERS)}

    assert few.all_owners() == {"postgres"}
    assert found == {client_id: [b"1", b"2", b"3"] for client_id in STRANGE} | {
        "newcomer-1": [b"a", b"b", b"e"],
        "newcomer-2": [b"c"],
        "newcomer-3": [b"d"],
        "newcomer-4": [b"f"],
    }
    assert {client_id: payloads(few.at_postgres, client_id) for client_id in found} == found


@in_both_layouts
def test_nobody_writes_to_the_store_that_does_not_own_a_client(few: OnlineWorld) -> None:
    few.to_redis()
    (refused,) = few.at_postgres.save_messages([SessionSave(client_id=C, messages=(message(b"4"),))])
    assert "Redis owns session 'meter-7'" in str(refused.error)
    with pytest.raises(NotOwner):
        few.at_postgres.ack(C, [Ack(packet_id=1)])

    few.driver().roll_back()
    (refused,) = few.at_redis.save_messages([SessionSave(client_id=C, messages=(message(b"4"),))])
    assert isinstance(refused.error, NotOwner)
    with pytest.raises(NotOwner):
        few.at_redis.ack(C, [Ack(packet_id=1)])
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3"]


def change_everything(router: SessionRouter) -> None:
    """Do to sessions in Redis whatever a broker does."""
    save(router, C, b"4", qos=2)
    router.ack(C, [Ack(packet_id=1)])
    router.mark_released(C, packet_id=4)
    router.mark_delivered(C, serial=2)
    router.purge_session("{}")
    router.reserve_packet_ids("%percent", count=3)
    (report,) = router.save_messages(
        [SessionSave(client_id="<b>x</b>", messages=(message(b"once"),), source="kafka-3", offset=17)]
    )
    assert report.stored == 1


def check_mirrored(world: OnlineWorld) -> None:
    """Compare what PostgreSQL holds with what :func:`change_everything` left."""
    rows = {key: (row[4], row[5], row[7]) for key, row in world.rows().items() if key[0] == C}
    assert rows == {
        (C, 1): (2, "PUBLISH", b"2"),
        (C, 2): (3, "PUBLISH", b"3"),
        (C, 3): (4, "PUBREL", b""),  # the client has the message: what is left of it is its packet id
    }
    assert not [key for key in world.rows() if key[0] == "{}"]
    assert world.at_postgres.get_last_packet_id("%percent") == 6
    assert [each.offset for each in world.at_postgres.read_snapshot("<b>x</b>").batches] == [17]
    for client_id in STRANGE:
        expected = world.at_redis.read_snapshot(client_id)
        assert differences(expected, world.at_postgres.read_snapshot(client_id)) == []


@in_both_layouts
def test_every_change_in_redis_reaches_postgresql_and_a_repeated_mirror_changes_nothing(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        change_everything(router)
    behind = driver.mirror(dry_run=True)
    assert (behind.clients, behind.behind, behind.written) == (len(STRANGE), 4, 0)
    assert behind.lag_s >= 0

    assert mirrored(driver) == 4
    check_mirrored(few)
    rows, tuples = few.rows(), few.sql("SELECT xmin, ctid FROM device_publish_msg ORDER BY ctid")
    assert mirrored(driver) == 0
    # Also when the note of what was done is lost.
    for client_id in STRANGE:
        few.client.hset(few.own_key(client_id), mapping={"outbox": "*", "outbox_ms": "1"})
        few.client.hincrby(few.own_key(client_id), "outbox_version", 1)
    assert mirrored(driver) == len(STRANGE)
    assert few.rows() == rows
    assert few.sql("SELECT xmin, ctid FROM device_publish_msg ORDER BY ctid") == tuples
    check_mirrored(few)


@pytest.mark.parametrize("times", [1, 100])
def test_mirror_whose_process_stands_still_writes_on_with_another_connection(
    few: OnlineWorld, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    driver = few.to_redis()
    with few.router() as router:
        change_everything(router)
    read, stood_still = RedisSide.read, 0

    async def late(side: RedisSide, client_id: str, **options: Any) -> SessionSnapshot:
        nonlocal stood_still
        if client_id == C and options and stood_still < times:
            stood_still += 1
            # The loop stands still, and all movers with it: so is a machine that has no processor for it.
            time.sleep(3)
        return await read(side, client_id, **options)

    with monkeypatch.context() as slow:
        slow.setattr(RedisSide, "read", late)
        slow.setattr("queuekeeper.migration.online.mover.LEASE_MS", 2_000)
        done = driver.mirror()
    if times == 1:
        assert (done.written, done.refused) == (4, 0)
    else:
        assert (done.written, done.refused) == (3, 1)
        assert "ended a transaction that stood still for 2,000 ms" in done.reason
        assert mirrored(driver) == 1
    check_mirrored(few)


def test_process_that_stands_still_at_one_client_gives_the_others_back_and_that_one_by_the_next_try(
    few: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = few.to_redis()
    apply = PostgresSide.apply

    async def late(side: PostgresSide, owned: Ownership, *given: Any, **options: Any) -> Any:
        if owned.client_id == C:
            time.sleep(3)
        return await apply(side, owned, *given, **options)

    with monkeypatch.context() as slow:
        slow.setattr(PostgresSide, "apply", late)
        slow.setattr("queuekeeper.migration.online.mover.LEASE_MS", 2_000)
        done = few.driver(count=1).roll_back()
    assert done.outcomes == {"moved": len(STRANGE) - 1, "refused": 1}
    assert "ended a transaction that stood still for 2,000 ms" in dict(done.examples)[C]
    assert few.owner(C).owner == "redis"

    assert until_none_is_late(driver.roll_back).left == {}
    assert few.all_owners() == {"postgres"}


@in_both_layouts
def test_mirrors_side_by_side_leave_the_newest_state(few: OnlineWorld) -> None:
    driver = few.to_redis()
    ends = threading.Event()

    def follow() -> None:
        while not ends.is_set():
            few.driver(count=2).mirror()

    with few.router() as router, ThreadPoolExecutor(3) as pool:
        mirrors = [pool.submit(follow) for _ in range(3)]
        for number in range(60):
            client_id = STRANGE[number % len(STRANGE)]
            save(router, client_id, b"more")
            first = router.fetch_pending(client_id).messages[0]
            router.ack(client_id, [Ack(packet_id=first.packet_id, serial=first.serial)])
        ends.set()
        for mirror in mirrors:
            mirror.result()

    driver.mirror()
    for client_id in STRANGE:
        expected = few.at_redis.read_snapshot(client_id)
        assert differences(expected, few.at_postgres.read_snapshot(client_id)) == []


def test_an_older_snapshot_is_not_written_over_a_newer_one(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        save(router, C, b"4")
        router.ack(C, [Ack(packet_id=1)])
    with psycopg.connect(few.postgres_url) as other:
        # Somebody is writing the same session's copy: a mirror waits, and reads what to write when it is alone.
        other.execute("SELECT 1 FROM queuekeeper.session_owners WHERE client_id = %s FOR UPDATE", [C])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(driver.mirror)
            wait_for(lambda: bool(few.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")))
            few.at_redis.ack(C, [Ack(packet_id=2)])
            other.rollback()
            assert waiting.result().written == 1
    assert sorted(serial for client_id, serial in few.rows() if client_id == C) == [2, 3]


@in_both_layouts
def test_verification_of_clients_on_redis_tells_what_differs_in_postgresql(few: OnlineWorld) -> None:
    driver = few.to_redis()
    assert driver.verify().outcomes == {"equal": len(STRANGE)}

    few.sql("DELETE FROM device_publish_msg WHERE client_id = %s AND serial_number = 1", C)
    with pytest.raises(
        CheckFailed, match=r"1 of 7 clients differ, the first 'meter-7': .*message 1 is missing, .*roll back"
    ):
        driver.verify()
    assert few.states() == {"on_redis"}
    # What Redis holds counts: the way back brings it.
    assert until_none_is_late(driver.roll_back).left == {}
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3"]


# --- queues that are too long ------------------------------------------------------------------------------------


def test_queue_too_long_for_its_lease_stays_where_it_is_and_is_named(postgres_url: str, valkey_url: str) -> None:
    length = 4_000
    world = OnlineWorld(postgres_url, valkey_url, limit=length)
    try:
        save(world.at_postgres, C, b"1")
        world.long_queue("long", length)
        world.plan(count=1)
        driver = world.driver(lease_ms=50, count=1)
        driver.arm()
        driver.catch_up()
        driver.verify()

        # On a busy machine the short one may be late, too; the next try moves it.
        while world.owner(C).owner == "postgres":
            report = driver.cut_over()
            assert ("long", WHY_LATE) in report.examples
        assert world.owner("long").owner == "postgres"
        assert world.states() == {"cutting_over"}
        with world.router() as router:
            router.ack("long", [Ack(packet_id=1)])
        assert world.at_postgres.inspect("long").messages == length - 1
        # PostgreSQL ends the transaction of a driver that a busy machine holds up; the next try moves it.
        while world.owner("long").owner == "postgres":
            with suppress(ServerUnavailable):
                world.driver().cut_over()

        while world.owner(C).owner == "redis":
            back = driver.roll_back()
            assert ("long", WHY_LATE) in back.examples
        assert world.owner("long").owner == "redis"
        with world.router() as router:
            router.ack("long", [Ack(packet_id=2)])
        assert len(world.in_redis("long")) == length - 2
        while world.owner("long").owner == "redis":
            with suppress(ServerUnavailable):
                world.driver().roll_back(mirror_wait_minutes=5)
        assert world.at_postgres.inspect("long").messages == length - 2
    finally:
        world.close()


# --- what is refused ---------------------------------------------------------------------------------------------


def test_what_is_not_verified_is_not_cut_over(few: OnlineWorld) -> None:
    driver = few.driver()
    with pytest.raises(RefusedError, match=r"none of these cohorts of plan .* is armed: arm them first"):
        driver.cut_over()
    driver.arm()
    for step in (lambda: None, driver.catch_up):
        step()
        with pytest.raises(RefusedError, match=r"to cut over it has to be verified .*catch up and verify come first"):
            driver.cut_over()
        assert few.all_owners() == {"postgres"}
    with pytest.raises(RefusedError, match="to roll back it has to be"):
        driver.roll_back()
    with pytest.raises(RefusedError, match="to soak it has to be on_redis"):
        driver.soak(minutes=0)


def test_user_who_lacks_a_right_ends_the_step_and_no_client_counts_as_different(few: OnlineWorld) -> None:
    few.driver().arm()
    admin_url = few.redis_url
    with url_of_user(few.client, "cleanup", prefix="") as few.redis_url:
        with pytest.raises(NotAllowed, match=r"does not allow this user to do that: .*`queuekeeper acl redis` prints"):
            few.driver().catch_up()
        forget_refusals(few.client)
    few.redis_url = admin_url
    few.to_redis()
    assert few.all_owners() == {few.target}


def test_cohort_that_was_never_armed_is_not_passed_over_in_silence(world: OnlineWorld) -> None:
    save(world.at_postgres, C, b"1")
    world.plan(count=4)
    driver = world.driver()
    driver.arm([0, 1])

    with pytest.raises(RefusedError, match=r"cohort 2 .* was never armed: arm it first"):
        driver.catch_up([0, 2])
    assert driver.catch_up().cohorts == (0, 1)


def test_cohorts_are_armed_one_after_the_other_and_no_client_stays_behind(world: OnlineWorld) -> None:
    clients = [f"meter-{number}" for number in range(20)]
    for client_id in clients:
        save(world.at_postgres, client_id, b"1", b"2")
    world.plan(count=2)
    driver = world.driver()

    def move(cohorts: list[int]) -> int:
        driver.catch_up(cohorts)
        driver.verify(cohorts)
        return sum(until_none_is_late(lambda: driver.cut_over(cohorts)).outcomes.values())

    driver.arm([0])
    moved = move([0])
    assert 0 < moved < len(clients)
    with pytest.raises(RefusedError, match="cohort 0 is on_redis: to arm it has to be planned or"):
        driver.arm([0, 1])
    assert len(world.online.load(world.plan_id)) == 1
    # Without a choice, those that are left.
    assert driver.arm().cohorts == (1,)
    assert moved + move([1]) == len(clients)
    with world.router() as router:
        for client_id in clients:
            assert payloads(router, client_id) == [b"1", b"2"]
    with pytest.raises(RefusedError, match="cohort 0 is on_redis: to arm"):
        driver.arm()


@pytest.mark.parametrize("is_first", [True, False])
def test_arming_that_was_interrupted_has_to_be_repeated_before_anything_is_copied(
    few: OnlineWorld, *, is_first: bool
) -> None:
    """Clients that are not on record would be Redis's after the cut over, and their messages would stay behind."""
    driver = few.driver()
    if not is_first:
        driver.arm()
        driver.catch_up()
        driver.disarm()
    # What an arming leaves that ends before the clients are on record.
    few.online.arm(few.ledger.load_plan(few.plan_id), [0], actor="test")
    for step in (driver.catch_up, driver.verify):
        with pytest.raises(RefusedError, match=r"cohort 0 of plan .* was not armed to the end.*: arm it again"):
            step()
    driver.disarm()
    few.online.arm(few.ledger.load_plan(few.plan_id), [0], actor="test")
    assert driver.arm().clients == len(STRANGE)
    assert driver.catch_up().outcomes == {"equal": len(STRANGE)}


def test_differences_stop_the_verification_and_the_cohort_stays_behind(few: OnlineWorld) -> None:
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    # A payload that nobody can read is written over; a reference that names no key of its client is nobody's to remove.
    few.client.set(payload_key(C, 1), b"{", keepttl=True)
    few.client.zadd(session_keys(C).messages, {"no key": 50})
    with pytest.raises(CheckFailed, match="1 of 7 clients differ, the first 'meter-7'"):
        driver.verify()
    assert few.states() == {"caught_up"}


def test_commit_comes_after_the_soak_and_nothing_comes_after_the_commit(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with pytest.raises(RefusedError, match="cohort 0 is on_redis: to commit it has to be soaking"):
        driver.commit()
    driver.soak(minutes=0)
    driver.commit()

    assert few.states() == {"committed"}
    for step in (driver.roll_back, driver.cut_over, driver.catch_up, driver.disarm, driver.arm):
        with pytest.raises(RefusedError, match=r"committed.*new migration"):
            step()
    assert few.all_owners() == {few.target}


def test_soak_that_was_interrupted_goes_on_from_its_beginning_whoever_watches(few: OnlineWorld) -> None:
    few.to_redis()
    begun_ms = system_clock()
    first = few.driver(clock=lambda: begun_ms).look_at_soak(minutes=10_080)
    assert few.states() == {"soaking"}
    assert first.left_s == pytest.approx(7 * 86_400, abs=60)

    # The driver is gone; days later another one watches, and takes nothing over.
    before = few.cohort().driver
    later = few.driver(clock=lambda: begun_ms + 6 * 86_400_000).look_at_soak(minutes=10_080)
    assert later.left_s == pytest.approx(86_400, abs=60)
    assert later.begun_ms == first.begun_ms
    assert few.cohort().driver == before

    with few.router() as router:
        save(router, C, b"4")
    over = few.driver(clock=lambda: begun_ms + 8 * 86_400_000).soak(minutes=10_080)
    assert (over.is_over, over.begun_ms, over.written) == (True, first.begun_ms, 1)
    assert few.driver().commit().clients


def test_soak_begins_anew_after_a_way_back(few: OnlineWorld) -> None:
    driver = few.to_redis()
    first = driver.look_at_soak(minutes=0)
    driver.roll_back()
    few.to_redis(driver)

    assert driver.look_at_soak(minutes=0).begun_ms > first.begun_ms


def test_cohorts_soak_by_themselves(world: OnlineWorld) -> None:
    save(world.at_postgres, C, b"1")
    world.plan(count=2)
    driver = world.to_redis()

    driver.soak([1], minutes=0)

    assert [str(each.state) for each in world.online.load(world.plan_id)] == ["on_redis", "soaking"]


@in_both_layouts
def test_commit_ends_the_mirror_and_lets_sessions_expire_again(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        save(router, C, b"4")
        save(router, "newcomer-1", b"a")
        assert few.client.ttl(few.own_key("newcomer-1")) == -1
        driver.soak(minutes=0)
        driver.commit()

        for client_id in (C, "newcomer-1"):
            fields = few.fields(client_id)
            assert fields["owner"] == "redis"
            assert not fields.keys() & {"mirror", "outbox", "outbox_ms", "outbox_version"}
        assert few.client.ttl(few.own_key("newcomer-1")) > 0
        rows = few.rows()
        save(router, C, b"5")
        save(router, "newcomer", b"a")
        assert payloads(router, C) == [b"1", b"2", b"3", b"4", b"5"]
        router.purge_session(C)
        assert payloads(router, C) == []
    assert (driver.mirror().clients, few.rows()) == (0, rows)
    assert few.owner("newcomer").owner == few.target


def test_commit_that_was_interrupted_is_finished_by_the_next_one(few: OnlineWorld) -> None:
    driver = few.to_redis()
    driver.soak(minutes=0)
    with postgres.connect(few.postgres_url) as other:
        other.execute("SELECT 1 FROM queuekeeper.session_owners WHERE client_id = %s FOR UPDATE", [C])
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(driver.commit)
            waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_for(lambda: bool(few.sql(waiting)))
            few.sql(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS found")
            assert isinstance(committing.exception(), ServerUnavailable)
    assert few.states() == {"committed"}
    assert "mirror" in few.fields(C)

    few.driver().commit()

    assert [client_id for client_id in STRANGE if "mirror" in few.fields(client_id)] == []
    assert few.sql("SELECT count(*) FROM queuekeeper.session_owners WHERE mirrored") == [(0,)]


def test_commit_is_not_finished_over_a_later_plan(few: OnlineWorld) -> None:
    driver = few.to_redis()
    driver.soak(minutes=0)
    driver.commit()
    few.plan(count=2, plan_id="fedcba9876543210")
    later = few.driver()
    later.arm()
    with few.router() as router:
        save(router, "newcomer-1", b"a")
    few.to_redis(later)
    assert "mirror" in few.fields("newcomer-1")

    with pytest.raises(RefusedError, match="plan 0123456789abcdef is committed, and plan fedcba9876543210 is at work"):
        driver.commit()
    with pytest.raises(RefusedError, match="plan fedcba9876543210 is at work"):
        driver.without_place()
    assert "mirror" in few.fields("newcomer-1")
    assert later.roll_back([each.cohort for each in few.online.load("fedcba9876543210")]).left == {}


def left_behind(world: OnlineWorld) -> None:
    """Commit a plan that has left one client in PostgreSQL, and make a later plan over the same slots."""
    for client_id in STRANGE:
        save(world.at_postgres, client_id, b"1", b"2", b"3")
    spoil(world, C)
    world.plan(count=1, bad_rows="leave")
    driver = world.to_redis()
    driver.soak(minutes=0)
    driver.commit()
    for serial in ODD_ROWS:
        world.sql("DELETE FROM device_publish_msg WHERE client_id = %s AND serial_number = %s", C, serial)
    world.plan(count=2, plan_id="fedcba9876543210")


def test_client_that_a_commit_has_left_in_postgresql_stays_there_when_a_later_plan_is_disarmed(
    world: OnlineWorld,
) -> None:
    left_behind(world)
    later = world.driver()
    later.arm()
    later.disarm()

    with world.router() as router:
        assert payloads(router, C) == [b"1", b"2", b"3"]
        save(router, C, b"4")
        assert payloads(router, C) == [b"1", b"2", b"3", b"4"]
        assert payloads(router, "{}") == [b"1", b"2", b"3"]


@in_one_layout_by_day
def test_later_plan_moves_what_a_commit_has_left_though_the_others_have_gone_on(world: OnlineWorld) -> None:
    left_behind(world)
    with world.router() as router:
        save(router, "{}", b"4")
        later = world.to_redis()

        assert world.all_owners() == {world.target}
        assert payloads(router, C) == [b"1", b"2", b"3"]
        # One that no mirror keeps up to date in PostgreSQL is not compared with it.
        assert later.verify().outcomes == {"equal": 1}
        assert until_none_is_late(later.roll_back).left == {}
        assert payloads(router, "{}") == [b"1", b"2", b"3", b"4"]


@in_one_layout_by_day
def test_roll_back_of_a_later_plan_leaves_what_an_earlier_one_has_committed(
    world: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(world)
    later = world.to_redis()
    totals: set[int | None] = set()

    assert later.mirror(dry_run=True).clients == 1
    assert later.committed_before() == len(STRANGE) - 1
    monkeypatch.setattr("queuekeeper.jobs.progress.SHOWN_S", 0)
    with watched(lambda _, total, __: totals.add(total)):
        later.verify()
    assert totals == {1}
    assert until_none_is_late(later.roll_back).left == {}

    assert {client_id: world.owner(client_id).owner for client_id in STRANGE} == {
        client_id: world.target if client_id != C else "postgres" for client_id in STRANGE
    }
    later.disarm()
    with world.router() as router:
        for client_id in STRANGE:
            assert payloads(router, client_id) == [b"1", b"2", b"3"]


def test_way_back_that_comes_too_late_gives_a_client_no_mirror_that_it_had_not(world: OnlineWorld) -> None:
    left_behind(world)
    world.driver().arm()

    report = world.move(lambda mover: mover.roll_back("{}"), cohorts=(0, 1), lease_ms=0)

    assert report.outcome is Outcome.LATE
    assert (world.owner("{}").owner, world.owner("{}").mirrored) == ("redis", False)
    assert (world.fields("{}")["owner"], "mirror" in world.fields("{}")) == ("redis", False)


def test_second_plan_over_the_same_slots_is_refused_until_the_first_has_ended(few: OnlineWorld) -> None:
    driver = few.driver()
    driver.arm()
    few.plan(count=2, plan_id="fedcba9876543210")
    second = few.driver()
    with pytest.raises(RefusedError, match=r"plan 0123456789abcdef moves the same slots: commit it, or .*disarm"):
        second.arm()
    driver.disarm()
    second.arm()
    second.catch_up()
    second.verify()
    assert until_none_is_late(second.cut_over).left == {}


def test_canary_goes_first(world: OnlineWorld) -> None:
    world.fill(messages=100, sessions=40)
    world.plan(count=4)
    driver = world.driver()
    driver.arm()
    driver.catch_up()
    driver.verify()
    canary = driver.choose_canary(1)
    assert canary == (0,)
    assert driver.choose_canary(100) == canary
    for cohorts in (None, [1]):
        with pytest.raises(
            RefusedError, match="the canary, cohorts 0, has not gone to the target and back yet: rehearse it"
        ):
            driver.cut_over(cohorts)
    assert world.all_owners() == {"postgres"}

    steps = [each.step for each in driver.rehearse()]

    assert steps == ["catch up", "verify", "cut over", "verify", "roll back", "catch up", "verify"]
    assert world.all_owners() == {"postgres"}
    assert world.states() == {"verified"}
    first = driver.cut_over_share(1)
    assert first is not None
    assert first.cohorts == (0,)
    second = driver.cut_over_share(50)
    assert second is not None
    assert 0 not in second.cohorts
    assert driver.cut_over_share(50) is None
    driver.cut_over_share(100)
    assert world.states() == {"on_redis"}


@in_one_layout_by_day
@pytest.mark.parametrize(
    ("step", "times", "rest"),
    [
        ("cut_over", 1, ["cut over", "verify", "roll back", "catch up", "verify"]),
        ("verify", 2, ["verify", "roll back", "catch up", "verify"]),
        ("roll_back", 1, ["roll back", "catch up", "verify"]),
        ("catch_up", 2, ["catch up", "verify", "cut over", "verify", "roll back", "catch up", "verify"]),
    ],
)
def test_rehearsal_that_was_interrupted_goes_on_where_it_was(
    world: OnlineWorld, step: str, times: int, rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(messages=100, sessions=40)
    world.plan(count=4)
    driver = world.driver()
    driver.arm()
    driver.choose_canary(1)
    work, left = getattr(driver, step), [None] * (times - 1)
    state = {"cut_over": OnlineState.CUTTING_OVER, "roll_back": OnlineState.ROLLING_BACK}.get(step)

    def interrupted(cohorts: Sequence[int]) -> Any:
        if left:
            left.pop()
            return work(cohorts)
        if state is not None:
            with postgres.connect(world.postgres_url, autocommit=True) as connection:
                online = OnlineCohorts(connection)
                taken = online.take(PLAN_ID, cohorts)
                online.move(PLAN_ID, cohorts, driver=taken, after=state, actor="test")
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        driver.rehearse()
    monkeypatch.undo()

    assert [each.step for each in driver.rehearse()] == rest
    assert world.all_owners() == {"postgres"}
    driver.cut_over_share(1)
    assert world.states() == {"on_redis", "copying"}
    with pytest.raises(RefusedError, match="cohort 0 is on_redis: to catch up it has to be"):
        driver.rehearse()


# --- two drivers, and drivers that die ---------------------------------------------------------------------------


@in_one_layout_by_day
def test_older_of_two_drivers_stops_at_its_next_write_and_changes_nothing(world: OnlineWorld) -> None:
    world.fill(messages=200, sessions=60)
    world.plan(count=1)
    older = world.driver(count=1)
    older.arm()
    older.catch_up()
    older.verify()
    known = "SELECT client_id, owner, epoch, state FROM queuekeeper.session_owners ORDER BY client_id"
    world.ledger.set_throttle(PLAN_ID, 20, actor="test")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(older.cut_over)
        wait_for(lambda: world.all_owners() == {"postgres", world.target})
        world.online.take(PLAN_ID, [0])
        with postgres.connect(world.postgres_url) as other:
            # What it had begun to write before is there by then.
            other.execute("LOCK TABLE queuekeeper.session_owners IN SHARE MODE")
            owners = other.execute(known).fetchall()
        error = first.exception()

    assert isinstance(error, StaleDriver)
    assert "another driver has taken over cohort 0: this one stops" in str(error)
    # A client that it had fenced before is its own until the fence ends, and may have moved.
    fenced = {client_id for client_id, _, _, state in owners if state == "fenced"}
    assert len(fenced) <= 1
    assert [row for row in world.sql(known) if row[0] not in fenced] == [row for row in owners if row[0] not in fenced]
    world.ledger.set_throttle(PLAN_ID, None, actor="test")
    assert until_none_is_late(world.driver().cut_over).left == {}


@in_both_layouts
def test_client_of_a_driver_that_died_before_redis_knew_is_redis_s_and_the_next_caller_says_so(
    few: OnlineWorld,
) -> None:
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    with pytest.raises(ServerUnavailable, match="has died"):
        few.move(lambda mover: mover.cut_over(C), store=DiesBeforeRedisKnows)

    assert few.owner(C).owner == few.target
    assert few.fields(C)["owner"] == "postgres"
    with few.router() as router:
        save(router, C, b"4")
        assert payloads(router, C) == [b"1", b"2", b"3", b"4"]
    assert few.fields(C)["owner"] == "redis"
    assert few.move(lambda mover: mover.mirror(C))
    assert sorted(serial for client_id, serial in few.rows() if client_id == C) == [0, 1, 2, 3]


@in_one_layout_by_day
def test_client_of_a_driver_that_died_before_redis_knew_is_completed_by_the_next_run(few: OnlineWorld) -> None:
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    driver.verify()
    with pytest.raises(ServerUnavailable, match="has died"):
        few.move(lambda mover: mover.cut_over(C), store=DiesBeforeRedisKnows)

    assert until_none_is_late(driver.cut_over).left == {}

    assert few.fields(C)["owner"] == "redis"
    assert int(few.fields(C)["epoch"]) == few.owner(C).epoch
    assert few.fields(C)["mirror"] == few.fields(C)["epoch"]


@in_one_layout_by_day
def test_client_of_a_driver_that_died_before_redis_knew_of_the_way_back_can_go_again(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with pytest.raises(ServerUnavailable, match="has died"):
        few.move(lambda mover: mover.roll_back(C), store=DiesBeforeRedisKnows)
    assert few.owner(C).owner == "postgres"
    assert few.fields(C)["owner"] == "fenced"

    with few.router() as router:
        save(router, C, b"4")
    assert until_none_is_late(driver.roll_back).left == {}
    few.sql("DELETE FROM device_publish_msg WHERE client_id = %s AND serial_number = 0", C)
    few.to_redis(driver)
    assert [fields["payload"] for _, fields, _ in few.in_redis(C).values()] == ["Mg==", "Mw==", "NA=="]


@in_both_layouts
def test_driver_that_dies_while_it_holds_a_client_for_the_way_back_leaves_it_in_redis(few: OnlineWorld) -> None:
    few.to_redis()
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with postgres.connect(few.postgres_url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE device_session_ctx IN EXCLUSIVE MODE")
        dying = pool.submit(few.move, lambda mover: mover.roll_back(C))
        wait_for(lambda: bool(few.sql(waiting)))
        assert few.fields(C)["owner"] == "fenced"
        few.sql(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS found")
        assert isinstance(dying.exception(), ServerUnavailable)

    few.sql(
        "UPDATE queuekeeper.session_owners SET fenced_until = clock_timestamp() + interval '300 ms' "
        "WHERE client_id = %s AND state = 'fenced'",
        C,
    )
    with few.router() as router:
        save(router, C, b"4")
        assert payloads(router, C) == [b"1", b"2", b"3", b"4"]
    assert few.owner(C).owner == few.target
    assert few.fields(C)["owner"] == "redis"
    driver = few.driver()
    assert until_none_is_late(driver.roll_back).left == {}
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3", b"4"]


class Exchanges:
    """Counts how often this process asks PostgreSQL and Redis by asyncio, and calls scripts, in the block."""

    def __init__(self) -> None:
        self.count = self.calls = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        for owner, name in ((psycopg.AsyncConnection, "wait"), (AsyncScriptCaller, "execute")):
            carries_calls = owner is AsyncScriptCaller
            self._patch.setattr(owner, name, self._counting(getattr(owner, name), carries_calls=carries_calls))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _counting(self, original: Callable[..., Any], *, carries_calls: bool) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            self.count += 1
            if carries_calls:
                self.calls += len(args[1])
            return original(*args, **options)

        return counting


@pytest.mark.parametrize(("way", "most"), [("cut_over", MOST_THERE), ("roll_back", MOST_BACK)])
def test_fence_spans_a_few_exchanges_however_long_the_queue(few: OnlineWorld, way: str, most: int) -> None:
    """What a device waits for behind a fence, counted in questions to both servers: no other program changes that."""
    lengths = {"short": 1, "long": 400}
    for client_id, length in lengths.items():
        for begin in range(0, length, 100):
            save(few.at_postgres, client_id, *[b"%d" % number for number in range(begin, min(begin + 100, length))])
    driver = few.driver()
    driver.arm()
    if way == "roll_back":
        few.to_redis(driver)

    def moved(client_id: str, *, late: int) -> tuple[int, int]:
        async def move(mover: SessionMover) -> tuple[int, int]:
            await (mover.mirror if way == "roll_back" else mover.sync)(client_id)
            # They come between the copy and the fence.
            with few.router() as router:
                for _ in range(late):
                    save(router, client_id, b"late")
            with Exchanges() as exchanges:
                report = await getattr(mover, f"_{way}")(client_id)
            assert report.outcome is Outcome.MOVED
            assert report.written == late, "what was copied before is not copied behind the fence"
            return exchanges.count, exchanges.calls

        return few.move(move)

    alone, calls = moved("short", late=0)
    assert 5 < alone <= most
    assert 1 < calls <= MOST_CALLS, "one question may carry many calls"
    long, long_calls = moved("long", late=0)
    assert long <= alone + 2, "a long queue may take a second page"
    assert long_calls <= calls + 2
    late, late_calls = moved(C, late=20)
    assert late <= alone + 10, "what came late is written, and compared once more"
    assert late_calls <= calls + 10


def test_client_that_is_late_is_left_alone_between_two_fences_for_as_long_as_one_lasts(
    few: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else callers would wait for fence upon fence, and for longer than TBMQ waits."""
    order: list[str | float] = []

    async def copy(_: str) -> None:
        order.append("copy")

    async def is_late(client_id: str) -> MoveReport:
        order.append("fence")
        return MoveReport(client_id=client_id, outcome=Outcome.LATE)

    async def sleep(seconds: float) -> None:
        order.append(seconds)

    async def move(mover: SessionMover) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", sleep)
            return (await mover._tried(C, before=copy, move=is_late)).outcome

    few.driver().arm()
    assert few.move(move, lease_ms=700) is Outcome.LATE
    assert order == ["copy", "fence", 0.7, "copy", "fence", 0.7, "copy", "fence"]


def test_client_fenced_by_a_driver_that_has_died_is_waited_for(few: OnlineWorld) -> None:
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    driver.verify()
    dead = few.online.take(PLAN_ID, [0])
    assert few.owners.fence(C, driver=dead, lease_ms=600, owner="postgres") is not None

    assert driver.cut_over().outcomes == {"moved": len(STRANGE)}


@pytest.mark.parametrize("call", ["mirror", "roll_back"])
def test_connection_that_is_lost_between_two_clients_is_told_as_such(few: OnlineWorld, call: str) -> None:
    few.to_redis()
    with few.router() as router:
        save(router, C, b"4")

    async def lose(mover: SessionMover) -> object:
        connection = mover._connection
        few.sql("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("SELECT 1")
        return await getattr(mover, call)(C)

    with pytest.raises(ServerUnavailable, match="broke the connection"):
        few.move(lose)
    assert few.owner(C).owner == few.target


def test_step_that_cannot_reach_postgresql_leaves_no_connection_to_redis_behind(
    few: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = few.driver()
    driver.arm()

    def unreachable(*_: Any, **__: Any) -> Any:
        raise ServerUnavailable("PostgreSQL does not answer")

    monkeypatch.setattr(crew, "connect", unreachable)
    before = len(few.client.client_list())
    # As long as somebody holds the error, nothing of the step is cleared away by itself.
    with pytest.raises(ServerUnavailable, match="PostgreSQL does not answer") as held:
        driver.catch_up()
    wait_for(lambda: len(few.client.client_list()) == before)
    del held


@in_both_layouts
def test_fence_that_ends_while_the_mirror_writes_costs_no_client_its_way_back(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        save(router, C, b"4")
    taken = few.online.take(PLAN_ID, [0])
    fenced = few.owners.fence(C, driver=taken, lease_ms=500, owner=few.target)
    assert fenced is not None
    assert fenced.epoch is not None
    assert fenced.fenced_until_ms is not None
    few.at_redis.set_owner(C, epoch=fenced.epoch, owner="fenced", mirrored=True)

    with psycopg.connect(few.postgres_url) as other, ThreadPoolExecutor(1) as pool:
        # The driver that fenced it is dead; a mirror holds the session's row, and writes when the fence has ended.
        other.execute("LOCK TABLE queuekeeper.online_cohorts IN ACCESS EXCLUSIVE MODE")
        going = pool.submit(few.move, lambda mover: mover.roll_back(C), driver=taken)
        wait_for(lambda: bool(few.sql("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")))
        few.sql("SELECT pg_sleep(%s)", max(0.0, fenced.fenced_until_ms / 1_000 - time.time()) + 0.1)
        other.rollback()
        assert going.result().outcome is Outcome.MOVED
    assert few.owner(C).owner == "postgres"
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3", b"4"]
    assert until_none_is_late(driver.roll_back).left == {}


@in_one_layout_by_day
def test_epochs_go_on_when_a_plan_is_disarmed_and_armed_again(few: OnlineWorld) -> None:
    driver = few.to_redis()
    driver.roll_back()
    epoch = int(few.fields(C)["epoch"])
    driver.disarm()
    save(few.at_postgres, C, b"4")

    few.to_redis(driver)

    assert int(few.fields(C)["epoch"]) > epoch
    assert payloads(few.at_redis, C) == [b"1", b"2", b"3", b"4"]


def test_who_did_what_with_the_cohorts_is_in_the_audit_and_its_chain_holds(few: OnlineWorld) -> None:
    driver = few.to_redis()
    driver.roll_back()
    driver.disarm()

    with postgres.connect(few.postgres_url, autocommit=True) as connection:
        entries = list(audit.read_chain(connection))
        report = audit.verify_chain(entries)
    assert report.is_whole
    assert {entry.subject for entry in entries} == {PLAN_ID}
    states = [json.loads(entry.effect).get("state") for entry in entries]
    way = ["copying", "caught_up", "verified", "cutting_over", "on_redis", "rolling_back", "copying", "planned"]
    assert [state for state in states if state is not None] == way


def test_cut_over_that_has_come_to_its_end_is_repeated_without_effect(few: OnlineWorld) -> None:
    driver = few.to_redis()
    epoch = few.fields(C)["epoch"]

    again = driver.cut_over()

    assert (again.clients, again.outcomes) == (0, {})
    assert few.fields(C)["epoch"] == epoch
    assert few.states() == {"on_redis"}


def test_what_is_on_its_way_back_can_be_compared(few: OnlineWorld) -> None:
    driver = few.to_redis()
    number = few.online.take(PLAN_ID, [0])
    few.online.move(PLAN_ID, [0], driver=number, after=OnlineState.ROLLING_BACK, actor="test")

    assert driver.verify().outcomes == {"equal": len(STRANGE)}
    assert driver.roll_back().outcomes == {"moved": len(STRANGE)}


# --- servers, people, clocks -------------------------------------------------------------------------------------


def caught_up(world: OnlineWorld) -> OnlineDriver:
    """Plan the move of one client with one message, and copy it; return the driver."""
    save(world.at_postgres, C, b"1")
    world.plan(count=1)
    driver = world.driver()
    driver.arm()
    driver.catch_up()
    return driver


def test_redis_that_was_restarted_after_the_verification_makes_it_void(
    postgres_url: str, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory(appendonly="yes")
    with closing(OnlineWorld(postgres_url, server.url)) as world:
        driver = caught_up(world)
        driver.verify()
        server.stop()
        server.start()

        words = "a server has failed over or was restarted while cohort 0 was worked on: verify it again"
        with pytest.raises(RefusedError, match=words):
            driver.cut_over()
        assert world.all_owners() == {"postgres"}
        words = "cohort 0 has to be verified again before a cut over or a commit: servers were"
        with pytest.raises(RefusedError, match=words):
            driver.cut_over()
        assert world.cohort().dirty_reason
        driver.catch_up()
        driver.verify()
        assert until_none_is_late(driver.cut_over).left == {}


def test_catch_up_after_a_restart_of_redis_goes_through_at_once(
    postgres_url: str, redis_server_factory: Callable[..., RedisServer]
) -> None:
    server = redis_server_factory()
    with closing(OnlineWorld(postgres_url, server.url)) as world:
        driver = caught_up(world)
        server.stop()
        server.start()
        world.client.flushall()

        assert driver.catch_up().written == 1
        driver.verify()
        assert until_none_is_late(driver.cut_over).left == {}


def test_pause_throttle_and_resume_take_effect_while_it_works_and_say_why(world: OnlineWorld) -> None:
    world.fill(messages=200, sessions=200)
    world.plan(count=1)
    driver = world.driver()
    driver.arm()
    world.ledger.set_throttle(PLAN_ID, 10, actor="alice")

    def done() -> int:
        return len(world.client.keys("*_session"))

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(driver.catch_up)
        wait_for(lambda: done() >= 5)
        assert world.online.control(PLAN_ID).held_back == "throttled to 10 clients/s"

        world.ledger.set_paused(PLAN_ID, True, actor="alice")
        wait_for(lambda: "paused" in world.online.control(PLAN_ID).held_back)
        before = done()
        time.sleep(0.5)
        assert done() - before <= 4  # clients that were under way
        assert not work.done()
        assert any("catch up: held back, paused by a person: queuekeeper run resume" in line for line in world.told)

        world.ledger.set_paused(PLAN_ID, False, actor="alice")
        wait_for(lambda: done() > before + 4)
        world.ledger.set_throttle(PLAN_ID, None, actor="alice")
        work.result(timeout=PATIENCE_S)
    # Nothing is at work any more that could be held back.
    assert world.online.control(PLAN_ID).held_back == ""
    changes = world.sql("SELECT action FROM queuekeeper.audit WHERE actor = 'alice' ORDER BY seq")
    assert changes == [("throttle",), ("pause",), ("resume",), ("throttle",)]


def test_rollback_is_refused_with_the_figures_while_the_mirror_is_behind(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        save(router, C, b"4")
    time.sleep(1.1)

    words = (
        r"the mirror is [1-9]\d* s behind for 1 of 7 clients, at most 1 s are allowed: run queuekeeper online mirror"
    )
    with pytest.raises(RefusedError, match=words):
        driver.roll_back(max_lag_s=1)
    assert few.states() == {"on_redis"}
    driver.mirror()
    assert driver.roll_back(max_lag_s=1).left == {}


def test_rollback_waits_for_the_mirror_and_goes_back_once_postgresql_takes_writes(few: OnlineWorld) -> None:
    words = (
        r"roll back: the mirror is [\d,]+ s behind for 1 of 7 clients, at most 0 s are allowed; "
        "the mirror is brought up to date for at most .* s"
    )
    waits: list[str] = []

    def tell(line: str) -> None:
        if re.match(words, line):
            waits.append(line)
            if len(waits) == 2:
                few.take_messages()

    few.to_redis()
    few.take_no_messages()
    few.leave_behind(C, b"4")

    assert few.driver(tell=tell).roll_back(max_lag_s=0, mirror_wait_minutes=60).left == {}
    assert len(waits) == 2
    assert few.all_owners() == {"postgres"}
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3", b"4"]


def test_rollback_is_refused_once_the_wait_for_the_mirror_is_over(few: OnlineWorld) -> None:
    few.to_redis()
    few.take_no_messages()
    few.leave_behind(C, b"4")

    with pytest.raises(RefusedError, match=r"behind for 1 of 7 clients, at most 0 s are allowed: run queuekeeper"):
        few.driver().roll_back(max_lag_s=0, mirror_wait_minutes=0.01)
    assert (few.all_owners(), few.states()) == ({"redis"}, {"on_redis"})


def test_postgresql_that_takes_no_writes_holds_the_rollback_and_redis_goes_on(few: OnlineWorld) -> None:
    driver = few.to_redis()
    name = few.connection.info.dbname
    few.sql(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    try:
        save(few.at_redis, C, b"4")
        time.sleep(1.1)
        report = driver.mirror()
        assert (report.written, report.refused) == (0, 1)
        assert "takes no writes" in report.reason
        with pytest.raises(RefusedError, match=r"the mirror is \d+ s behind for 1 of 7 clients"):
            driver.roll_back(max_lag_s=1)
    finally:
        few.sql("SET default_transaction_read_only = off")
        few.sql(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    assert mirrored(driver) == 1
    assert payloads(few.at_redis, C) == [b"1", b"2", b"3", b"4"]


def test_record_that_nobody_can_read_does_not_hold_up_the_mirror_of_others(few: OnlineWorld) -> None:
    driver = few.to_redis()
    with few.router() as router:
        for client_id in STRANGE:
            save(router, client_id, b"4")
        few.client.set(payload_key(C, 4), b"{", keepttl=True)

        assert mirrored(driver) == len(STRANGE)
        assert driver.mirror(dry_run=True).behind == 0
        assert payloads(router, C) == [b"1", b"2", b"3"]
    assert until_none_is_late(driver.roll_back).left == {}
    assert payloads(few.at_postgres, C) == [b"1", b"2", b"3"]


def test_clocks_that_differ_are_refused(few: OnlineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    # As far apart as two servers of one machine can be: any difference is too large.
    monkeypatch.setattr("queuekeeper.migration.online.checks.MAX_SKEW_MS", -1)

    with pytest.raises(RefusedError, match=r"clocks of PostgreSQL and Redis differ by [\d,]+ ms, .*set them \(NTP\)"):
        few.driver().arm()
    assert few.states() == set()


def test_clock_of_the_drivers_machine_decides_neither_what_lives_nor_how_long_a_soak_is(
    few: OnlineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ns = 30 * 86_400 * 10**9
    now_ns = time.time_ns
    monkeypatch.setattr("queuekeeper.clock.time.time_ns", lambda: now_ns() + ahead_ns)

    driver = few.to_redis()

    assert [fields["payload"] for _, fields, _ in few.in_redis(C).values()] == ["MQ==", "Mg==", "Mw=="]
    few.client.delete(payload_key(C, 1))
    with pytest.raises(CheckFailed, match=f"clients differ, the first '{C}'"):
        driver.verify()
    assert driver.look_at_soak(minutes=1_440).left_s == pytest.approx(86_400, abs=600)


def test_approval_counts_for_a_while_only(few: OnlineWorld) -> None:
    with pytest.raises(RefusedError, match="nobody has approved plan 0123456789abcdef: nothing was moved"):
        check_approval_age(few.ledger, PLAN_ID, limit_s=60)
    few.ledger.approve(PLAN_ID, "alice")
    check_approval_age(few.ledger, PLAN_ID, limit_s=60)
    few.sql("UPDATE queuekeeper.plans SET approved_at = approved_at - interval '2 hours'")
    with pytest.raises(RefusedError, match=r"was approved 2 h .*ago by alice, and an approval counts for .*anew"):
        check_approval_age(few.ledger, PLAN_ID, limit_s=60)


@pytest.mark.parametrize("triggered_by", ["alice", None])
def test_four_eyes_are_those_of_two_persons(triggered_by: str | None) -> None:
    check_four_eyes("alice", "bob")
    with pytest.raises(RefusedError, match="with four eyes these have to be two persons"):
        check_four_eyes("alice", triggered_by)


def test_lease_that_no_broker_would_wait_for_is_refused(few: OnlineWorld) -> None:
    for lease_ms in (49, 1_001):
        with pytest.raises(UsageError, match=f"lease_ms is {lease_ms}: it must be an integer from 50 to 1,000"):
            few.driver(lease_ms=lease_ms)


def test_what_is_done_is_found_done(few: OnlineWorld) -> None:
    driver = few.driver()
    for _ in range(2):
        driver.arm()
    for _ in range(2):
        driver.catch_up()
    assert driver.catch_up().written == 0
    for _ in range(2):
        driver.verify()
    assert driver.cut_over().outcomes == {"moved": len(STRANGE)}
    assert driver.cut_over().outcomes == {}
    driver.soak(minutes=0)
    driver.soak(minutes=0)
    assert driver.roll_back().outcomes == {"moved": len(STRANGE)}
    few.to_redis(driver)
    assert few.states() == {"on_redis"}
    actions = few.sql("SELECT effect ->> 'state' FROM queuekeeper.audit WHERE action = 'apply' ORDER BY seq")
    assert [state for (state,) in actions][-1] == "on_redis"


def test_where_other_writers_have_to_be_refused_a_missing_trigger_is(few: OnlineWorld) -> None:
    driver = few.driver()
    with pytest.raises(RefusedError, match=r"device_publish_msg.*migrate trigger install.*nothing was armed"):
        driver.arm(require_trigger=True)
    with pytest.raises(RefusedError, match="armed"):
        driver.catch_up()

    with postgres.connect(few.postgres_url, autocommit=True) as connection:
        foreign_writers.install(connection)
    assert driver.arm(require_trigger=True).clients > 0


ODD_ROWS: dict[int, tuple[dict[str, Any], str]] = {
    10: ({"payload_format_indicator": 2}, "payload_format_invalid"),
    11: ({"user_properties": '{"props":[{"k":"a","v":"b\\u0000c"}]}'}, "user_properties_invalid"),
    12: ({"topic": "x" * 65_536}, "topic_invalid"),
}
MENDED: dict[int, dict[str, Any]] = {
    10: {"payload_format_indicator": 1},
    11: {"user_properties": None},
    12: {"topic": "x" * 65_535},
}


def spoil(world: OnlineWorld, client_id: str) -> None:
    """Give a client three rows that MQTT cannot carry, among others."""
    for serial, (columns, _) in ODD_ROWS.items():
        row = {
            "client_id": client_id, "serial_number": serial, "topic": "t", "time": time.time_ns() // 1_000_000,
            "packet_id": serial, "packet_type": "PUBLISH", "qos": 1, "payload": b"odd %d" % serial,
        } | columns  # fmt: skip
        places = ", ".join(["%s"] * len(row))
        world.sql(f"INSERT INTO device_publish_msg ({', '.join(row)}) VALUES ({places})", *row.values())


def test_rows_that_mqtt_cannot_carry_are_put_aside_and_block_nobody(few: OnlineWorld) -> None:
    spoil(few, C)
    before = few.rows()

    few.to_redis()

    assert few.all_owners() == {few.target}
    assert payloads(few.at_redis, C) == [b"1", b"2", b"3"]
    aside = {row[1]: row for row in few.sql(QUARANTINE)}
    assert aside == {serial: (*before[C, serial], reason) for serial, (_, reason) in ODD_ROWS.items()}


def test_replay_leaves_sessions_alone_that_have_changed_their_owner(few: OnlineWorld) -> None:
    spoil(few, C)
    row = Message(*few.rows()[C, 12])._replace(topic="mended")
    few.ledger.replace_quarantine(
        PLAN_ID, [0], [QuarantinedRow(cohort=0, kind="message", reason="topic_invalid", detail="", **row._asdict())]
    )
    few.to_redis()
    # As if an offline plan had set the row aside, before these sessions moved with devices connected.
    few.sql('UPDATE queuekeeper.plans SET parameters = parameters || \'{"mode": "offline"}\'')
    report = replay(few.connection, few.client, plan_id=PLAN_ID)
    assert (report.moved_on, report.replayed) == (1, 0)
    assert payloads(few.at_redis, C) == [b"1", b"2", b"3"]


def test_client_of_such_rows_stays_where_the_plan_says_so_and_comes_when_they_are_mended(world: OnlineWorld) -> None:
    for client_id in STRANGE:
        save(world.at_postgres, client_id, b"1", b"2", b"3")
    spoil(world, C)
    before = world.rows()
    world.plan(count=1, bad_rows="leave")
    driver = world.driver()
    driver.arm()
    reports = [driver.catch_up(), driver.verify(), driver.cut_over()]

    # Nobody else waits for it, each step says so, and nothing of it was touched.
    assert [report.kept for report in reports] == [1, 1, 1]
    assert [report.clients for report in reports] == [len(STRANGE)] * 3
    assert [report.left for report in reports] == [{}, {}, {}]
    ((kept, reason),) = reports[-1].examples
    assert kept == C
    assert reason == (
        "it stays in PostgreSQL because of rows that nobody can deliver, serial 10 (payload format invalid), serial 11 "
        "(user properties invalid), serial 12 (topic invalid): mend them in device_publish_msg, then cut over again"
    )
    assert world.states() == {"on_redis"}
    assert {client_id: world.owner(client_id).owner for client_id in STRANGE} == {
        client_id: "postgres" if client_id == C else "redis" for client_id in STRANGE
    }
    assert {key: row for key, row in world.rows().items() if key[0] == C} == {
        key: row for key, row in before.items() if key[0] == C
    }
    assert world.sql(QUARANTINE) == []
    with world.router() as router:
        assert payloads(router, "{}") == [b"1", b"2", b"3"]
    assert driver.verify().outcomes == {"equal": len(STRANGE) - 1, "kept": 1}

    for serial, columns in MENDED.items():
        for name, value in columns.items():
            world.sql(
                f"UPDATE device_publish_msg SET {name} = %s WHERE client_id = %s AND serial_number = %s",
                value, C, serial,
            )  # fmt: skip
    again = driver.cut_over()
    assert again.outcomes == {"moved": 1}
    assert world.all_owners() == {world.target}
    assert payloads(world.at_redis, C) == [b"1", b"2", b"3", b"odd 10", b"odd 11", b"odd 12"]
    assert driver.verify().outcomes == {"equal": len(STRANGE)}
    assert driver.soak(minutes=0).refused == 0
    assert until_none_is_late(driver.roll_back).left == {}
    assert world.all_owners() == {"postgres"}


@pytest.fixture
def clustered(postgres_url: str, redis_cluster_url: str) -> Iterator[OnlineWorld]:
    """Clients that a cluster can hold, and some that it cannot, with good rows, bad ones and a dead one, or none."""
    world = OnlineWorld(postgres_url, redis_cluster_url)
    try:
        for client_id in (C, "a}b", *SCATTERED):
            save(world.at_postgres, client_id, b"1", b"2", b"3")
        spoil(world, "}x")
        world.sql("UPDATE device_publish_msg SET time = 1000 WHERE client_id = '}x' AND serial_number = 0")
        world.at_postgres.ack("}idle", [Ack(packet_id=number) for number in (1, 2, 3)])
        yield world
    finally:
        world.close()


SCATTERED = ("}x", "}y", "}idle")
SERVED = "id '}x' begins with a closing brace: its keys lie in several slots"


def quarantined_offline(world: OnlineWorld) -> dict[tuple[str, int], str | None]:
    """Return which rows the offline plan quarantines, and why, as the written rules have it for a cluster."""
    rules = Rules(limit=500, default_ttl_s=DEFAULT_TTL_S, as_of_ms=system_clock(), clustered=True)
    found = [
        (message, decide(client.messages, None, rules).messages[message.serial_number])
        for client in world.clients().values()
        for message in client.messages
    ]
    return {message[:2]: outcome.reason for message, outcome in found if outcome.fate == "quarantined"}


def ledger_sums(world: OnlineWorld) -> tuple[int, int, int, int]:
    """Return rows seen, copied, quarantined and unaccounted for, as the last verification has noted them."""
    rows = world.ledger.ledger(world.plan_id)
    return (
        sum(row.rows_seen for row in rows),
        sum(row.copied for row in rows),
        sum(row.quarantined for row in rows),
        sum(row.unaccounted for row in rows),
    )


def test_client_that_no_cluster_can_hold_is_served_until_the_commit_and_then_quarantined_as_offline(
    clustered: OnlineWorld,
) -> None:
    clustered.plan(count=2)
    before, planned = clustered.rows(), quarantined_offline(clustered)
    assert {row[0] for row in planned} == {"}x", "}y"}
    assert set(planned.values()) == {"client_id_scattered"}

    driver = clustered.driver()
    driver.arm()
    reports = [driver.catch_up(), driver.verify(), until_none_is_late(driver.cut_over)]
    assert [(report.kept, report.left, report.set_aside) for report in reports] == [(len(SCATTERED), {}, 0)] * 3
    why = dict(reports[0].examples)["}x"]
    assert why.startswith("it stays in PostgreSQL until the commit, which puts its messages into queuekeeper.")
    assert f"session_quarantine (client_id_scattered): {SERVED}" in why
    # What the plan counts is in the ledger, and it balances; nothing of these clients was touched.
    assert ledger_sums(clustered) == (6 + len(planned), 6, len(planned), 0)
    assert clustered.rows() == before
    assert clustered.sql(QUARANTINE) == []

    # Undo: all is as it was, and the way may be gone again.
    assert until_none_is_late(driver.roll_back).left == {}
    after = clustered.rows()
    assert after.keys() == before.keys()
    assert {key: after[key] for key in planned} == {key: before[key] for key in planned}
    driver.catch_up()
    driver.verify()
    assert until_none_is_late(driver.cut_over).left == {}
    driver.soak(minutes=0)
    before = clustered.rows()

    assert driver.without_place([0, 1]) == {"}x": 6, "}y": 3, "}idle": 0}
    done = driver.commit()
    assert (done.set_aside, done.kept, done.left) == (len(planned), len(SCATTERED), {})
    words = "its messages were put into queuekeeper.session_quarantine (client_id_scattered)"
    assert dict(done.examples) == dict.fromkeys(SCATTERED, words)
    aside = {row[:2]: row for row in clustered.sql(QUARANTINE)}
    assert aside == {place: (*before[place], reason) for place, reason in planned.items()}
    assert {place[0] for place in clustered.rows()} == {C, "a}b"}
    # Again: the same.
    again = driver.commit()
    assert (again.set_aside, again.kept, again.left) == (0, len(SCATTERED), {})
    assert {row[:2]: row for row in clustered.sql(QUARANTINE)} == aside
    with clustered.router() as router:
        save(router, "}y", b"4")
    assert driver.without_place([0, 1]) == {"}x": 0, "}y": 1, "}idle": 0}
    late = driver.commit()
    assert (late.set_aside, late.kept, late.left) == (1, len(SCATTERED), {})
    assert [row[0] for row in clustered.sql(QUARANTINE) if row[:2] not in aside] == ["}y"]
    recorded = clustered.sql(
        "SELECT effect ->> 'set_aside', effect ->> 'clients' FROM queuekeeper.audit WHERE action = 'apply'"
        " AND subject = %s AND effect ->> 'kind' = 'online_set_aside' ORDER BY seq",
        clustered.plan_id,
    )
    assert recorded == [(str(len(planned)), "2"), ("1", "1")], "a commit that moves none has nothing to say"

    # Who goes on with such a client in PostgreSQL can, and gets back what can be delivered, in order and once.
    with clustered.router() as router:
        save(router, "}y", b"5")
        redis = clustered.at_redis
        stores = Stores(clustered.connection, postgres=clustered.at_postgres, redis=lambda _: redis, router=router)
        # Not unless they are named: nobody may read PostgreSQL any more.
        bare = put_back(clustered.connection, stores, person="test")
        assert (bare.replayed, bare.scattered) == (0, len(planned) + 1)
        assert ["--reason client_id_scattered" in words for words in bare.why.values()] == [True]
        assert payloads(router, "}y") == [b"5"]
        back = put_back(clustered.connection, stores, person="test", reason="client_id_scattered")
        assert back.scattered == 0
        assert (back.replayed, back.expired, back.not_repaired) == (len(planned) - 3, 1, len(ODD_ROWS))
        again_back = put_back(clustered.connection, stores, person="test", reason="client_id_scattered")
        assert again_back.replayed == 0
        assert payloads(router, "}x") == [b"2", b"3"]
        assert payloads(router, "}y") == [b"5", b"1", b"2", b"3", b"4"]


def test_client_that_no_cluster_can_hold_stays_for_good_where_the_plan_says_so(clustered: OnlineWorld) -> None:
    clustered.plan(count=2, bad_rows="leave")
    before = clustered.rows()

    driver = clustered.driver()
    driver.arm()
    reports = [driver.catch_up(), driver.verify(), until_none_is_late(driver.cut_over)]
    assert [(report.kept, report.left) for report in reports] == [(len(SCATTERED), {})] * 3
    why = dict(reports[0].examples)["}x"]
    assert why.startswith(f"it stays in PostgreSQL (client_id_scattered): {SERVED}")
    assert ledger_sums(clustered) == (6, 6, 0, 0)
    driver.soak(minutes=0)
    assert driver.without_place([0, 1]) == {}
    for _ in range(2):
        assert driver.commit().set_aside == 0

    assert {key: row for key, row in clustered.rows().items() if key[0] in SCATTERED} == {
        key: row for key, row in before.items() if key[0] in SCATTERED
    }
    assert clustered.sql(QUARANTINE) == []
    with clustered.router() as router:
        save(router, "}y", b"4")
        assert payloads(router, "}y") == [b"1", b"2", b"3", b"4"]


def test_copy_that_nobody_can_read_is_made_right_by_the_next_step(few: OnlineWorld) -> None:
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    # As an earlier release copied it, and what somebody else has left there.
    key = payload_key(C, 2)
    fields = json.loads(few.client.get(key)) | {"payloadFormatIndicator": 2}
    few.client.set(key, json.dumps(fields), keepttl=True)
    few.client.set(payload_key("}first", 9), "no JSON", px=60_000)
    few.client.zadd(session_keys("}first").messages, {payload_key("}first", 9): 99})

    assert driver.catch_up().outcomes == {"equal": len(STRANGE)}
    assert driver.verify().outcomes == {"equal": len(STRANGE)}
    assert driver.cut_over().outcomes == {"moved": len(STRANGE)}
    for client_id in STRANGE:
        assert payloads(few.at_redis, client_id) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("setting", ["proto-max-bulk-len", "client-query-buffer-limit"])
def test_message_that_redis_would_not_take_is_refused_in_words_before_its_client_moves(
    postgres_url: str, redis_server_factory: Callable[..., RedisServer], setting: str
) -> None:
    server = redis_server_factory(**{setting.replace("-", "_"): 2**20})
    world = OnlineWorld(postgres_url, server.url)
    try:
        save(world.at_postgres, C, b"1", bytes(780_000))
        world.plan(count=1)
        driver = world.driver()
        # What nobody can deliver, or nobody will, is not sent.
        for serial, columns in ((10, "topic = ''"), (11, "time = 1000")):
            world.sql(
                "INSERT INTO device_publish_msg (client_id, serial_number, topic, time, packet_id, packet_type, qos,"
                " payload) SELECT client_id, %s, topic, time, %s, packet_type, qos, payload || payload"
                " FROM device_publish_msg WHERE serial_number = 1",
                serial, serial,
            )  # fmt: skip
            world.sql(f"UPDATE device_publish_msg SET {columns} WHERE serial_number = %s", serial)
        driver.arm()
        assert driver.catch_up().left == {}
        assert payloads(world.at_redis, C) == [b"1", bytes(780_000)]

        save(world.at_postgres, C, bytes(790_000))
        for step in (driver.catch_up, driver.arm):
            with pytest.raises(RefusedError, match=rf"takes 1,048,576 \({setting}\): CONFIG SET {setting} ") as refused:
                step()
        remedy = str(refused.value).split(": CONFIG SET ")[1].partition(",")[0].split()
        server_size = int(remedy[1])
        assert server_size - 2 > 2**20 > 790_000
        world.client.config_set(*remedy)

        world.to_redis()
        found = world.at_redis.fetch_pending(C, max_bytes=4_000_000).messages
        assert [len(each.payload) for each in found] == [1, 780_000, 790_000]
        assert world.client.strlen(payload_key(C, found[-1].packet_id)) == server_size - 2
    finally:
        world.close()
