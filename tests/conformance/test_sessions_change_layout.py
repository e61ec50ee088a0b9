"""Sessions move from one layout of a Redis to the other and back while their devices are connected."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from queuekeeper.errors import CheckFailed, NotOwner, RefusedError, UsageError
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.migration.ledger.parameters import BadRows, MigrationParameters, Mode, Source
from queuekeeper.migration.online.driver import OnlineDriver
from queuekeeper.migration.online.inside_redis import plan_inside_redis
from queuekeeper.redis_client import is_cluster
from queuekeeper.sessions.model import Ack, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from queuekeeper.sessions.reports import PendingMessage
from queuekeeper.sessions.router import SessionRouter
from tests.access_users import url_of_user
from tests.conformance.online_worlds import DEFAULT_TTL_S, OnlineWorld, message, until_none_is_late
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

C = "meter-7"
BUSY = (C, "смарт-😀")
CLIENTS = (*BUSY, "in{the}middle", "%percent", "}first")
OTHER = {Layout.TBMQ: Layout.PACKED, Layout.PACKED: Layout.TBMQ}


class LayoutWorld(OnlineWorld):
    """A Redis whose sessions are in TBMQ's layout, and PostgreSQL, which holds none."""

    def fill_redis(self, *, layout: Layout = Layout.TBMQ) -> None:
        """Give every client of a hostile sample a session; some messages were delivered, some received."""
        self.fill(messages=400, sessions=30, hostile=True)
        store = self.store(layout)
        cannot = {each for each in self.clients() if is_cluster(self.client) and each.startswith("}")}
        for number, client_id in enumerate(sorted(self.clients().keys() - cannot)):
            snapshot = self.at_postgres.read_snapshot(client_id).for_redis()
            store.apply_snapshot(client_id, snapshot, epoch=1, driver=0)
            store.set_owner(client_id, epoch=2, owner="redis")
            for each in snapshot.messages[: number % 3]:
                store.mark_delivered(client_id, serial=each.serial)
                store.mark_released(client_id, packet_id=each.packet_id, serial=each.serial)
        self.sql("TRUNCATE device_publish_msg, device_session_ctx")

    def store(self, layout: Layout) -> RedisSessionStore:
        """Return a store that asks for no owner."""
        return RedisSessionStore(self.client, self._prefix, self.rules, layout=layout)

    def plan_from(self, source: Layout, **chosen: Any) -> None:
        """Plan as the command does."""
        parameters = MigrationParameters(
            from_store=Source(source.value),
            layout=OTHER[source],
            mode=Mode.ONLINE,
            cohort_count=4,
            limit=self.rules.limit,
            default_ttl_s=DEFAULT_TTL_S,
            key_prefix=self._prefix,
            **chosen,
        )
        self.plan_made = plan_inside_redis(
            postgres_url=self.postgres_url, redis_url=self.redis_url, parameters=parameters, run_id=None
        )
        self.plan_id = self.plan_made.plan_id

    def to_other_layout(self, source: Layout) -> OnlineDriver:
        """Plan, and give all clients to the other layout."""
        self.plan_from(source)
        return self.to_redis()

    def commit(self, driver: OnlineDriver) -> None:
        """End the mirror of all clients."""
        driver.soak(minutes=0)
        driver.verify()
        driver.commit()

    def answers(self, router: SessionRouter) -> dict[str, tuple[Any, ...]]:
        """Return what a device and a broker get to know of every session."""
        found = {}
        for (client_id,) in self.sql("SELECT client_id FROM queuekeeper.session_owners ORDER BY client_id"):
            view = router.inspect(client_id)
            found[client_id] = (
                tuple(pending(router, client_id)),
                router.get_last_packet_id(client_id),
                view.last_serial,
                view.delivered_serial,
            )
        return found

    def payload_keys(self) -> int:
        """Return how many keys of messages there are in TBMQ's layout."""
        return sum(1 for _ in self.client.scan_iter(match="{*}_messages_*"))


def pending(store: Any, client_id: str) -> Iterator[PendingMessage]:
    """Yield all messages of a session, page by page."""
    page = store.fetch_pending(client_id, limit=50)
    yield from page.messages
    while page.more:
        page = store.fetch_pending(
            client_id, limit=50, after_serial=page.after_serial, backlog_serial=page.backlog_serial
        )
        yield from page.messages


def save(store: Any, client_id: str, *payloads: bytes) -> None:
    """Save messages, which has to succeed."""
    for each in payloads:
        (report,) = store.save_messages([SessionSave(client_id=client_id, messages=(message(each),))])
        assert report.error is None, report.error


def payloads(store: Any, client_id: str) -> list[bytes]:
    """Return what waits, in order."""
    return [each.payload for each in pending(store, client_id)]


@pytest.fixture
def world(postgres_url: str, valkey_url: str, control_schema: None) -> Iterator[LayoutWorld]:
    """An empty Valkey."""
    world = LayoutWorld(postgres_url, valkey_url)
    yield world
    world.close()


@pytest.fixture
def few(world: LayoutWorld) -> LayoutWorld:
    """The same with some sessions of three messages in TBMQ's layout, whose owner is not recorded."""
    for client_id in CLIENTS:
        save(world.store(Layout.TBMQ), client_id, b"1", b"2", b"3")
    return world


def check_there_and_back(world: LayoutWorld) -> None:
    """Move hostile sessions to the packed layout and back, each time for good, and compare all answers."""
    world.fill_redis()
    with world.router(home=Layout.TBMQ) as router:
        world.plan_from(Layout.TBMQ)
        world.driver().arm()
        before = world.answers(router)
        assert len(before) > 30
        waiting = sum(len(messages) for messages, *_ in before.values())
        assert world.plan_made.total("to_copy") == waiting > 300

        driver = world.to_redis()
        assert world.all_owners() == {"packed"}
        assert world.answers(router) == before
        world.commit(driver)
        assert world.answers(router) == before
        assert world.payload_keys() == 0
        assert sum(row.copied for row in world.ledger.ledger(world.plan_id)) == waiting

    # A router that knows nothing yet finds them, whatever layout it takes for home.
    with world.router(home=Layout.PACKED) as router:
        driver = world.to_other_layout(Layout.PACKED)
        assert world.plan_made.total("to_copy") == waiting
        assert world.all_owners() == {"redis"}
        after = world.answers(router)
        assert {name: each[0] for name, each in after.items()} == {name: each[0] for name, each in before.items()}
        assert after == before
        world.commit(driver)
        assert world.answers(router) == before
        for client_id, (messages, *_) in before.items():
            assert not world.store(Layout.PACKED).inspect(client_id).messages
            assert len(world.in_redis(client_id)) == len(messages)


# A single server has the tests below, and the cluster all that it has.
@pytest.mark.nightly
def test_sessions_answer_the_same_in_either_layout(postgres_url: str, redis_url: str, control_schema: None) -> None:
    """Order, packet ids, properties, expiry, DUP, PUBREL and counters are the same, there and back."""
    world = LayoutWorld(postgres_url, redis_url)
    try:
        check_there_and_back(world)
    finally:
        world.close()


def test_on_a_cluster_sessions_answer_the_same_in_either_layout(
    postgres_url: str, redis_cluster_url: str, control_schema: None
) -> None:
    """The driver is the user that is printed for it."""
    world = LayoutWorld(postgres_url, redis_cluster_url, prefix="tbmq:")
    try:
        with url_of_user(world.client, "online", prefix="tbmq:") as world.redis_url:
            check_there_and_back(world)
    finally:
        world.close()


def test_writers_at_work_lose_and_reorder_nothing(few: LayoutWorld) -> None:
    sent: dict[str, list[bytes]] = {client_id: [b"1", b"2", b"3"] for client_id in CLIENTS}
    got: dict[str, list[bytes]] = {client_id: [] for client_id in CLIENTS}
    stop = threading.Event()
    failures: list[BaseException] = []

    def publish(client_id: str) -> None:
        with few.router(home=Layout.TBMQ, patience_s=PATIENCE_S) as router:
            while not stop.is_set():
                if len(sent[client_id]) - len(got[client_id]) > 50:
                    # No queue reaches the limit.
                    time.sleep(0.01)
                    continue
                payload = b"%d" % (len(sent[client_id]) + 1)
                save(router, client_id, payload)
                sent[client_id].append(payload)

    def receive(client_id: str) -> None:
        with few.router(home=Layout.TBMQ, patience_s=PATIENCE_S) as router:
            while not stop.is_set():
                for each in router.fetch_pending(client_id, limit=3).messages:
                    router.mark_delivered(client_id, serial=each.serial)
                    report = router.ack(client_id, [Ack(packet_id=each.packet_id, serial=each.serial)])
                    assert report.removed == 1
                    got[client_id].append(each.payload)

    def guarded(work: Any, client_id: str) -> None:
        try:
            work(client_id)
        except BaseException as failure:
            failures.append(failure)

    threads = [
        threading.Thread(target=guarded, args=(work, client_id)) for client_id in BUSY for work in (publish, receive)
    ]
    for thread in threads:
        thread.start()
    try:
        driver = few.to_other_layout(Layout.TBMQ)
        assert few.all_owners() == {"packed"}
        driver.mirror()
        assert until_none_is_late(driver.roll_back).left == {}
        assert few.all_owners() == {"redis"}
        few.to_redis(driver)
        assert few.all_owners() == {"packed"}
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    with few.router(home=Layout.TBMQ) as router:
        for client_id in CLIENTS:
            assert got[client_id] + payloads(router, client_id) == sent[client_id], client_id
    assert all(len(got[client_id]) > 3 for client_id in BUSY)


def test_mover_killed_in_the_middle_is_resumed_with_the_same_result(world: LayoutWorld) -> None:
    world.fill_redis()
    world.plan_from(Layout.TBMQ)
    world.driver().arm()
    with world.router(home=Layout.TBMQ) as router:
        before = world.answers(router)
        driver = world.driver()
        driver.catch_up()
        driver.verify()
        code = (
            "import sys\n"
            "from queuekeeper.migration.online.driver import OnlineDriver\n"
            "postgres_url, redis_url, plan_id = sys.argv[1:]\n"
            "OnlineDriver(postgres_url=postgres_url, redis_url=redis_url, plan_id=plan_id, actor='x').cut_over()\n"
        )
        words = [sys.executable, "-c", code, world.postgres_url, world.redis_url, world.plan_id]
        with subprocess.Popen(words) as mover:
            ends_s = time.monotonic() + PATIENCE_S
            while "packed" not in world.all_owners():
                assert time.monotonic() < ends_s
                assert mover.poll() is None
            mover.kill()
        # All sessions answer, wherever they are.
        assert world.answers(router) == before
        assert until_none_is_late(world.driver().cut_over).left == {}
        assert world.all_owners() == {"packed"}
        assert world.answers(router) == before


def kill_behind_the_change_of_owner(world: LayoutWorld, step: str) -> None:
    """Have a driver carry out a step, and kill it when the owner of a client has just changed in PostgreSQL."""
    code = (
        "import os, signal, sys\n"
        "from queuekeeper.migration.online import mover\n"
        "from queuekeeper.migration.online.driver import OnlineDriver\n"
        "flip = mover.AsyncOwnerStore.flip\n"
        "async def killed(self, client_id, **options):\n"
        "    await flip(self, client_id, **options)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "mover.AsyncOwnerStore.flip = killed\n"
        "postgres_url, redis_url, plan_id, step = sys.argv[1:]\n"
        "driver = OnlineDriver(postgres_url=postgres_url, redis_url=redis_url, plan_id=plan_id, actor='x', count=1)\n"
        "getattr(driver, step)()\n"
    )
    words = [sys.executable, "-c", code, world.postgres_url, world.redis_url, world.plan_id, step]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL


def last_packet_ids(world: LayoutWorld) -> dict[Layout, int | None]:
    """Return the last packet id of the client in each layout, whoever owns it."""
    return {layout: world.store(layout).read_snapshot(C).last_packet_id for layout in Layout}


def check_that_no_packet_id_in_use_is_given_out(router: SessionRouter) -> None:
    """Save messages to the client whose messages have the packet ids 1, 2 and 3."""
    save(router, C, b"4", b"5")
    held = list(pending(router, C))
    assert [each.payload for each in held] == [b"1", b"2", b"3", b"4", b"5"]
    assert len({each.packet_id for each in held}) == 5


@pytest.fixture
def armed(world: LayoutWorld) -> LayoutWorld:
    """A verified client that goes from the packed layout to TBMQ's; the packet id 1 comes next, and is in use."""
    save(world.store(Layout.PACKED), C, b"1", b"2", b"3")
    assert world.store(Layout.PACKED).set_last_packet_id(C, packet_id=65_535, expected=3)
    world.plan_from(Layout.PACKED)
    driver = world.driver()
    driver.arm()
    driver.catch_up()
    driver.verify()
    return world


@pytest.mark.parametrize("resumed", [True, False])
def test_last_packet_id_that_a_killed_driver_has_not_written_to_the_copy_holds_up_no_verification(
    armed: LayoutWorld, resumed: bool
) -> None:
    kill_behind_the_change_of_owner(armed, "cut_over")
    assert armed.owner(C).owner == "redis"
    assert last_packet_ids(armed) == {Layout.PACKED: 65_535, Layout.TBMQ: 3}
    driver = armed.driver()
    if resumed:
        assert until_none_is_late(driver.cut_over).left == {}
    assert driver.verify().outcomes == {"equal": 1}
    assert last_packet_ids(armed) == {Layout.PACKED: 3, Layout.TBMQ: 3}
    until_none_is_late(driver.cut_over)
    with armed.router(home=Layout.PACKED) as router:
        check_that_no_packet_id_in_use_is_given_out(router)


@pytest.mark.parametrize("resumed", [True, False])
def test_way_back_from_a_cut_over_whose_driver_was_killed_gives_out_no_packet_id_in_use(
    armed: LayoutWorld, resumed: bool
) -> None:
    kill_behind_the_change_of_owner(armed, "cut_over")
    driver = armed.driver()
    if resumed:
        assert until_none_is_late(driver.cut_over).left == {}
    assert until_none_is_late(driver.roll_back).left == {}
    assert armed.owner(C).owner == "packed"
    assert last_packet_ids(armed) == {Layout.PACKED: 3, Layout.TBMQ: 3}
    with armed.router(home=Layout.PACKED) as router:
        check_that_no_packet_id_in_use_is_given_out(router)


@pytest.mark.parametrize("resumed", [True, False])
def test_way_back_whose_driver_was_killed_gives_out_no_packet_id_in_use_there_and_back(
    world: LayoutWorld, resumed: bool
) -> None:
    """The mirror image: the copy that is left behind is packed, and the next catch-up compares it."""
    save(world.store(Layout.TBMQ), C, b"1", b"2", b"3")
    with world.router(home=Layout.TBMQ) as router:
        driver = world.to_other_layout(Layout.TBMQ)
        assert router.set_last_packet_id(C, packet_id=65_535, expected=3)
        driver.mirror()
        kill_behind_the_change_of_owner(world, "roll_back")
        assert world.owner(C).owner == "redis"
        assert last_packet_ids(world) == {Layout.PACKED: 65_535, Layout.TBMQ: 3}
        if resumed:
            assert until_none_is_late(driver.roll_back).left == {}
            world.to_redis(driver)
            assert last_packet_ids(world) == {Layout.PACKED: 3, Layout.TBMQ: 3}
        check_that_no_packet_id_in_use_is_given_out(router)


def test_way_back_brings_everything_that_was_done_in_the_other_layout(few: LayoutWorld) -> None:
    with few.router(home=Layout.TBMQ) as router:
        driver = few.to_other_layout(Layout.TBMQ)
        save(router, C, b"4")
        first, second, *_ = pending(router, C)
        router.ack(C, [Ack(packet_id=first.packet_id, serial=first.serial)])
        router.mark_delivered(C, serial=second.serial)
        save(router, "newcomer", b"new")
        assert few.owner("newcomer").owner == "packed"
        few.driver().mirror()
        # The copy is up to date while its owner is the other layout.
        assert few.store(Layout.TBMQ).read_snapshot(C) == few.store(Layout.PACKED).read_snapshot(C)

        assert until_none_is_late(driver.roll_back).left == {}
        assert few.all_owners() == {"redis"}
        assert payloads(router, C) == [b"2", b"3", b"4"]
        assert [each.redelivery for each in pending(router, C)] == [True, False, False]
        assert payloads(router, "newcomer") == [b"new"]
        few.driver().disarm()
        # Nothing is left of the copies, and the store serves as before, also those that ask for no owner.
        assert all(few.store(Layout.PACKED).inspect(client_id).messages == 0 for client_id in CLIENTS)
        assert payloads(router, C) == [b"2", b"3", b"4"]
        save(few.store(Layout.TBMQ), C, b"5")
        assert payloads(router, C) == [b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("score", [2, 2.5])
def test_session_whose_messages_share_a_serial_stays_where_all_of_them_are(few: LayoutWorld, score: float) -> None:
    keys = session_keys(C)
    few.client.zadd(keys.messages, {payload_key(C, 3): score})
    few.plan_from(Layout.TBMQ)
    driver = few.driver()
    driver.arm()
    driver.catch_up()
    with pytest.raises(CheckFailed, match=rf"1 of 5 clients differ.*{C}.*message 2 .* \(2 of this serial\)"):
        driver.verify()
    with pytest.raises(RefusedError, match="verif"):
        driver.cut_over()
    with few.router(home=Layout.TBMQ) as router:
        assert payloads(router, C) == [b"1", b"2", b"3"]
    # Once each has a serial of its own, all of them move.
    few.client.zadd(keys.messages, {payload_key(C, 3): 3})
    driver.catch_up()
    assert driver.verify().outcomes == {"equal": len(CLIENTS)}
    assert driver.cut_over().outcomes == {"moved": len(CLIENTS)}
    with few.router(home=Layout.TBMQ) as router:
        assert payloads(router, C) == [b"1", b"2", b"3"]


NO_CLIENT_IDS = (b"\xff\xfe", b"zero\0inside", b"", b"x" * 65_536)


def test_keys_whose_id_no_client_can_have_hold_up_no_migration_and_stay_as_they_are(few: LayoutWorld) -> None:
    strange = [b"{%b}_%b" % (each, kind) for each in NO_CLIENT_IDS for kind in (b"messages", b"last_packet_id")]
    for key in strange:
        few.client.set(key, "3")
    driver = few.to_other_layout(Layout.TBMQ)
    few.commit(driver)
    with few.router(home=Layout.TBMQ) as router:
        for client_id in CLIENTS:
            assert payloads(router, client_id) == [b"1", b"2", b"3"]
    assert [few.client.get(key) for key in strange] == [b"3"] * len(strange)


def test_nobody_writes_to_the_layout_that_does_not_own_a_session(few: LayoutWorld) -> None:
    few.to_other_layout(Layout.TBMQ)
    (report,) = few.store(Layout.TBMQ).save_messages([SessionSave(client_id=C, messages=(message(b"4"),))])
    assert isinstance(report.error, NotOwner)
    with few.router() as router:
        assert router.inspect(C).store == "redis"
        assert payloads(router, C) == [b"1", b"2", b"3"]


def test_router_that_has_asked_before_the_first_step_writes_nothing_to_the_wrong_layout(few: LayoutWorld) -> None:
    """Its client comes for the first time when all others have moved."""
    with few.router(home=Layout.TBMQ) as early, few.router(home=Layout.TBMQ) as late:
        assert payloads(early, "newcomer") == []
        few.to_other_layout(Layout.TBMQ)
        save(late, "newcomer", b"1")
        save(early, "newcomer", b"2")
        save(late, "newcomer", b"3")
        assert payloads(early, "newcomer") == payloads(late, "newcomer") == [b"1", b"2", b"3"]
    assert few.owner("newcomer").owner == "packed"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"from_store": Source.TBMQ, "layout": Layout.TBMQ}, "there is nothing to move; choose the layout packed"),
        ({"from_store": Source.PACKED, "layout": Layout.PACKED}, "there is nothing to move; choose the layout tbmq"),
        ({"from_store": Source.TBMQ, "layout": Layout.PACKED, "mode": Mode.OFFLINE}, "choose the mode online"),
        ({"from_store": Source.PACKED, "bad_rows": BadRows.LEAVE}, "choose quarantine"),
    ],
)
def test_wrong_pairs_are_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MigrationParameters(**({"mode": Mode.ONLINE} | wrong))
