"""Routers over both stores while sessions move: behind any step, with drivers that die and servers that are gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest

from queuekeeper import redis_async, redis_client
from queuekeeper.embedded import PostgresServer
from queuekeeper.errors import NotOwner, RefusedError, ServerUnavailable, SessionFenced, UsageError
from queuekeeper.migration.ledger.parameters import Lease
from queuekeeper.operation import Pause
from queuekeeper.sessions.model import OWNER_WORDS, Ack, NewMessage, Owner, Release, SessionSave
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.reports import PendingMessage, SaveReport
from queuekeeper.sessions.router import AsyncSessionRouter, RouterOperations, SessionRouter
from queuekeeper.sessions.router.finding import BACKOFF
from queuekeeper.sessions.router.finding import PATIENCE_S as ROUTER_PATIENCE_S
from queuekeeper.sessions.router.steps import Step
from queuekeeper.sessions.writer import SessionWriter
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conformance.store_worlds import AwaitedStore, RouterWorld, Store, Work
from tests.conformance.test_session_store import HOSTILE_IDS
from tests.conftest import nightly
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

C = "meter-7"
OTHERS: dict[Owner, Owner] = {"postgres": "redis", "redis": "postgres"}


# The asyncio form has the contract of the stores, in test_session_store.py, over both layouts; a router's own code does
# not know them.
@pytest.fixture(scope="module", params=["blocking", *nightly("packed-blocking", "asyncio", "packed-asyncio")])
def opened_world(request: pytest.FixtureRequest) -> Iterator[RouterWorld]:
    """Routers over both stores, in one form; sessions begin in PostgreSQL."""
    postgres_server: PostgresServer = request.getfixturevalue("postgres_server")
    layout = Layout.PACKED if request.param.startswith("packed") else Layout.TBMQ
    is_awaited = request.param.endswith("asyncio")
    name = f"router_{request.param.replace('-', '_')}"
    url = postgres_server.create_database(name, template="template0")
    redis_url = request.getfixturevalue("redis_servers")("valkey").url
    world = RouterWorld(redis_url, url, owner="postgres", awaited=is_awaited, patience_s=PATIENCE_S, layout=layout)
    yield world
    world.close()
    postgres_server.drop_database(name)


@pytest.fixture
def world(opened_world: RouterWorld) -> Iterator[RouterWorld]:
    """Stores that hold nothing."""
    opened_world.erase()
    yield opened_world
    opened_world.erase()


@pytest.fixture
def blocking_world(postgres_url: str, valkey_url: str) -> Iterator[RouterWorld]:
    """Both stores for a test that changes more than sessions, or opens its routers itself."""
    world = RouterWorld(valkey_url, postgres_url, owner="postgres", awaited=False)
    yield world
    world.close()


def batch(*payloads: bytes, client_id: str = C, topic: str = "t", **fields: Any) -> SessionSave:
    """Return a save of messages with these payloads."""
    now_ms = time.time_ns() // 1_000_000
    messages = tuple(NewMessage(topic=topic, payload=payload, qos=1, time_ms=now_ms) for payload in payloads)
    return SessionSave(client_id=client_id, messages=messages, **fields)


def numbered(count: int) -> list[bytes]:
    """Return payloads that can be told apart."""
    return [b"%d" % number for number in range(count)]


def save(store: Store, *saves: SessionSave) -> list[SaveReport]:
    """Save and insist on success."""
    reports: list[SaveReport] = store.save_messages(list(saves))
    assert [report.error for report in reports] == [None] * len(saves)
    return reports


def pending(store: Store, client_id: str = C) -> list[PendingMessage]:
    """Return all that waits, by pages, and insist on strict order."""
    found: list[PendingMessage] = []
    after_serial, backlog_serial = -1, None
    while True:
        page = store.fetch_pending(client_id, after_serial=after_serial, backlog_serial=backlog_serial, limit=200)
        found += page.messages
        if not page.more:
            break
        after_serial, backlog_serial = page.after_serial, page.backlog_serial
    serials = [message.serial for message in found]
    assert serials == sorted(set(serials))
    assert len({message.packet_id for message in found}) == len(found)
    return found


def payloads(store: Store, client_id: str = C) -> list[bytes]:
    """Return the payloads of what waits, in order."""
    return [message.payload for message in pending(store, client_id)]


def operations_of(store: Store) -> RouterOperations:
    """Return the operations of a router, blocking or awaited."""
    operations: RouterOperations = (store.store if isinstance(store, AwaitedStore) else store).operations
    return operations


# A move behind any step

Case: TypeAlias = Callable[[Store, Store, str], Generator[Callable[[], Any], Any, None]]
"""Prepares a session, yields a call, gets its result and checks it, also with another router."""


def saving(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, batch(b"a", client_id=client_id))
    bystander = f"{client_id}-bystander"
    saves = [
        batch(b"b", b"c", client_id=client_id, source="p0", offset=7),
        batch(b"x", client_id=bystander),
        batch(b"d", client_id=client_id, source="p0", offset=8),
        batch(b"e", client_id=client_id),
    ]
    reports = yield lambda: store.save_messages(saves)
    assert [report.error for report in reports] == [None] * 4
    assert [report.client_id for report in reports] == [save.client_id for save in saves]
    assert [report.packet_ids for report in reports] == [(2, 3), (1,), (4,), (5,)]
    assert payloads(other, client_id) == [b"a", b"b", b"c", b"d", b"e"]
    assert payloads(other, bystander) == [b"x"]


def fetching(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, batch(*numbered(5), client_id=client_id))
    page = yield lambda: store.fetch_pending(client_id, limit=3, mark_delivered=True)
    assert [message.payload for message in page.messages] == numbered(3)
    rest = other.fetch_pending(client_id, after_serial=page.after_serial, backlog_serial=page.backlog_serial)
    assert [message.payload for message in rest.messages] == numbered(5)[3:]
    assert [message.redelivery for message in pending(other, client_id)] == [True] * 3 + [False] * 2


def acknowledging(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    [report] = save(store, batch(*numbered(5), client_id=client_id))
    acks = [Ack(packet_id=60_000)] * 1_100
    # Whatever is acknowledged together: something was removed before the move, and something behind it.
    for place, packet_id, serial in zip((0, 300, 600, 1_099), report.packet_ids, report.serials, strict=False):
        assert packet_id is not None
        acks[place] = Ack(packet_id=packet_id, serial=serial)
    report = yield lambda: store.ack(client_id, acks)
    assert (report.client_id, report.removed, report.unknown) == (client_id, 4, 1_096)
    assert payloads(other, client_id) == [b"4"]


def releasing(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    [report] = save(store, batch(b"a", b"b", client_id=client_id))
    release = yield lambda: store.mark_released(client_id, packet_id=2, serial=report.serials[1])
    assert release is Release.RELEASED
    assert [(m.packet_type, m.payload) for m in pending(other, client_id)] == [("PUBLISH", b"a"), ("PUBREL", b"")]


def marking(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    [report] = save(store, batch(b"a", b"b", client_id=client_id))
    moved = yield lambda: store.mark_delivered(client_id, serial=report.serials[0])
    assert moved is True
    assert [message.redelivery for message in pending(other, client_id)] == [True, False]


def purging(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, *(batch(*numbered(200), client_id=client_id) for _ in range(3)))
    report = yield lambda: store.purge_session(client_id)
    assert (report.client_id, report.messages, report.kept, report.dry_run) == (client_id, 600, 0, False)
    assert not other.inspect(client_id).exists


def numbering(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, batch(b"a", client_id=client_id))
    assert (yield lambda: store.set_last_packet_id(client_id, packet_id=70, expected=1)) is True
    assert other.get_last_packet_id(client_id) == 70


def reserving(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, batch(b"a", client_id=client_id))
    assert (yield lambda: store.reserve_packet_ids(client_id, count=3)) == (2, 3, 4)
    assert save(other, batch(b"b", client_id=client_id))[0].packet_ids == (5,)


def looking(store: Store, other: Store, client_id: str) -> Generator[Callable[[], Any], Any, None]:
    save(store, batch(b"a", b"b", client_id=client_id))
    message = yield lambda: store.peek(client_id, packet_id=2)
    assert message.payload == b"b"
    assert store.get_last_packet_id(client_id) == 2
    view = store.inspect(client_id)
    assert (view.exists, view.messages) == (True, 2)


CASES: Sequence[Case] = (
    saving,
    fetching,
    acknowledging,
    releasing,
    marking,
    purging,
    numbering,
    reserving,
    looking,
)


@pytest.mark.parametrize("owner", OTHERS)
@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_move_behind_any_step_of_a_call_changes_nothing_for_the_caller(
    world: RouterWorld, case: Case, owner: Owner
) -> None:
    store, other = world.store(), world.neighbour()
    moves: list[bool] = []
    for number in range(1, 40):
        client_id = f"{case.__name__}-{number}"
        assert store.get_last_packet_id(client_id) is None
        if owner == "redis":
            assert world.move(client_id, "redis")
        steps = case(store, other, client_id)
        call = next(steps)

        def move(client_id: str = client_id) -> None:
            moves.append(world.move(client_id, OTHERS[owner]))

        with world.after_step(store, number, move) as moved:
            result = call()
        with pytest.raises(StopIteration):
            steps.send(result)
        if not moved():
            break
    else:
        pytest.fail("a call takes more steps than this test disturbs")
    assert any(moves)


@pytest.mark.parametrize("owner", OTHERS)
def test_message_saved_while_a_purge_changes_stores_survives(world: RouterWorld, owner: Owner) -> None:
    store, other = world.store(), world.neighbour()
    for number in range(1, 10):
        client_id = f"c-{number}"
        assert store.get_last_packet_id(client_id) is None
        if owner == "redis":
            assert world.move(client_id, "redis")
        save(store, batch(*numbered(200), client_id=client_id), batch(*numbered(200), client_id=client_id))

        def move_and_save(client_id: str = client_id) -> None:
            assert world.move(client_id, OTHERS[owner])
            save(other, batch(b"new", client_id=client_id))

        with world.after_step(store, number, move_and_save) as moved:
            report = store.purge_session(client_id)
        assert report.messages == 400
        if not moved():
            break
        assert payloads(other, client_id) == [b"new"]
    assert number > 2


def test_writers_notice_nothing_of_a_session_that_goes_to_and_fro(world: RouterWorld) -> None:
    names = [f"writer-{number}" for number in range(4)]
    world.store().get_last_packet_id(C)

    def work(name: str, number: int, store: Store) -> Any:
        texts = [f"{name}:{2 * number + place}".encode() for place in range(2)]
        return store.save_messages([batch(*texts, source=name, offset=number)])

    plans: list[list[Work]] = [[partial(work, name, number) for number in range(12)] for name in names]
    plans.append([lambda store: store.fetch_pending(C, limit=1_000)] * 12)
    moves: list[bool] = []
    ended = threading.Event()

    def to_and_fro() -> None:
        while not ended.is_set():
            owner = world.owners.look_up([C])[C].owner
            moves.append(world.move(C, OTHERS.get(owner, "postgres"), tells=len(moves) % 3 != 0))
            ended.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        driver = pool.submit(to_and_fro)
        try:
            *results, pages = world.at_once(plans)
        finally:
            ended.set()
        driver.result()
    assert sum(moves) > 2
    reports = [report for plan in results for [report] in plan]
    assert [report.error for report in reports] == [None] * len(reports)
    assert not any(report.replayed for report in reports)
    found = pending(world.store())
    reported = sorted((p, s) for report in reports for p, s in zip(report.packet_ids, report.serials, strict=True))
    assert reported == [(message.packet_id, message.serial) for message in found]
    for name in names:
        own = [message.payload for message in found if message.payload.startswith(name.encode())]
        assert own == [f"{name}:{number}".encode() for number in range(24)]
    # Whoever reads sees what was saved before, and nothing twice.
    lengths = [len(page.messages) for page in pages]
    assert lengths == sorted(lengths)
    for page in pages:
        assert page.messages == tuple(found[: len(page.messages)])


def test_session_goes_there_and_back_with_any_client_id(world: RouterWorld) -> None:
    store, stale = world.store(), world.store()
    for client_id in HOSTILE_IDS:
        [first] = save(store, batch(b"a", b"b", client_id=client_id))
        assert payloads(stale, client_id) == [b"a", b"b"]
        assert world.move(client_id, "redis")
        [second] = save(store, batch(b"c", client_id=client_id))
        assert (second.packet_ids, second.serials[0]) == ((3,), (first.serials[1] or 0) + 1)
        assert store.inspect(client_id).store == "redis"
        assert store.ack(client_id, [Ack(packet_id=1, serial=first.serials[0])]).removed == 1
        assert world.move(client_id, "postgres")
        save(store, batch(b"d", client_id=client_id))
        assert store.inspect(client_id).store == "postgres"
        assert payloads(store, client_id) == payloads(stale, client_id) == [b"b", b"c", b"d"]


# What a router remembers


@pytest.mark.parametrize("owner", OTHERS)
def test_router_that_remembers_the_former_owner_reads_what_the_present_one_has(
    world: RouterWorld, owner: Owner
) -> None:
    reads: list[Callable[[Store], Any]] = [
        lambda store: [message.payload for message in store.fetch_pending(C).messages],
        lambda store: store.get_last_packet_id(C),
        lambda store: store.inspect(C).messages,
        lambda store: store.peek(C, packet_id=3) is not None,
        lambda store: store.peek(C, packet_id=1),
        lambda store: len(store.export_session(C).lines),
        lambda store: store.purge_session(C, dry_run=True).messages,
    ]
    expected = [[b"b", b"c"], 3, 2, True, None, 3, 2]
    stale = [world.store() for _ in reads]
    store = world.store()
    assert store.get_last_packet_id(C) is None
    if owner == "redis":
        assert world.move(C, "redis")
    save(store, batch(b"a", b"b"))
    for each in stale:
        assert each.get_last_packet_id(C) == 2
    assert world.move(C, OTHERS[owner])
    save(store, batch(b"c"))
    assert store.ack(C, [Ack(packet_id=1)]).removed == 1
    assert [read(each) for read, each in zip(reads, stale, strict=True)] == expected


def test_what_is_remembered_costs_nothing_and_is_asked_for_again_when_it_is_old(world: RouterWorld) -> None:
    store = world.store()
    save(store, batch(b"a"))
    with world.after_step(store, 2, lambda: None) as was_asked:
        store.mark_released(C, packet_id=1)
    assert not was_asked()
    operations_of(store)._clock = lambda: time.monotonic() + 61
    with world.after_step(store, 2, lambda: None) as was_asked:
        store.mark_released(C, packet_id=1)
    assert was_asked()


def test_one_call_may_hold_more_sessions_than_a_router_remembers(blocking_world: RouterWorld) -> None:
    world = blocking_world
    world.connection.execute("UPDATE queuekeeper.online_cohorts SET default_owner = 'redis'")
    saves = [batch(b"a", client_id=f"c-{number}") for number in range(2_500)]
    with redis_client.connect(world.url) as client, SessionRouter(client, world.postgres_url, owners=2_000) as store:
        for packet_id in (1, 2):
            assert {report.packet_ids for report in save(store, *saves)} == {(packet_id,)}


def test_refused_call_is_nothing_for_the_log(world: RouterWorld, caplog: pytest.LogCaptureFixture) -> None:
    stores = [world.store() for _ in range(5)]
    for store in stores:
        assert store.get_last_packet_id(C) is None
    assert world.move(C, "redis")
    for store in stores:
        assert store.ack(C, [Ack(packet_id=60_000)]).unknown == 1
        save(store, batch(b"a"))
    assert [record.getMessage() for record in caplog.records] == []


# Drivers that die


def test_fence_of_a_driver_that_died_ends_with_its_lease(world: RouterWorld) -> None:
    store = world.store()
    save(store, batch(b"a"))
    fenced = world.owners.fence(C, driver=1, lease_ms=300)
    assert payloads(store) == [b"a"]
    [first, second, other] = save(store, batch(b"b"), batch(b"c"), batch(b"x", client_id="other"))
    assert time.time() * 1_000 >= fenced.fenced_until_ms
    assert (first.packet_ids, second.packet_ids, other.packet_ids) == ((2,), (3,), (1,))
    assert payloads(store) == [b"a", b"b", b"c"]


def test_driver_that_died_before_it_told_redis_costs_nothing(world: RouterWorld) -> None:
    calls: list[Callable[[Store], Any]] = [
        lambda store: save(store, batch(b"b")),
        lambda store: store.ack(C, [Ack(packet_id=1)]),
        pending,
        lambda store: store.inspect(C),
    ]
    for knows_nothing in (False, True):
        for call in calls:
            world.erase()
            store = world.store()
            save(store, batch(b"a"))
            assert world.move(C, "redis", tells=False)
            session = world.own_key(C)
            assert world.client.hget(session, "owner") == b"postgres"
            if knows_nothing:
                store = world.store()
            # It has not a moment to wait.
            operations_of(store)._patience_s = 0.0
            call(store)
            assert world.client.hget(session, "owner") == b"redis"
            assert world.client.hget(session, "mirror") == world.client.hget(session, "epoch")


def test_redis_is_told_of_a_session_that_has_gone_back(world: RouterWorld) -> None:
    store = world.store()
    save(store, batch(b"a"))
    assert world.move(C, "redis")
    save(store, batch(b"b"))
    assert world.move(C, "postgres", tells=False)
    session = world.own_key(C)
    assert world.client.hget(session, "owner") == b"fenced"
    save(store, batch(b"c"))
    assert world.client.hget(session, "owner") == b"postgres"
    assert payloads(store) == payloads(world.store()) == [b"a", b"b", b"c"]


def test_client_that_redis_has_never_seen_is_at_home_there(blocking_world: RouterWorld) -> None:
    blocking_world.connection.execute("UPDATE queuekeeper.online_cohorts SET default_owner = 'redis'")
    store = blocking_world.store()
    assert not store.inspect(C).exists
    assert store.inspect(C).counts is None
    assert save(store, batch(b"a"))[0].packet_ids == (1,)
    assert store.inspect(C).store == "redis"


def test_session_of_no_armed_cohort_is_postgresqls(blocking_world: RouterWorld) -> None:
    world = blocking_world
    world.connection.execute("UPDATE queuekeeper.online_cohorts SET state = 'planned'")
    store = world.store()
    save(store, batch(b"a"))
    assert store.inspect(C).store == "postgres"
    assert world.client.dbsize() == 0
    # What a router remembers of before the migration is no excuse.
    world.connection.execute("UPDATE queuekeeper.online_cohorts SET state = 'copying'")
    assert world.store().get_last_packet_id(C) == 1
    assert world.move(C, "redis")
    assert store.get_last_packet_id(C) == 1
    save(store, batch(b"b"))
    assert store.inspect(C).store == "redis"
    assert payloads(store) == [b"a", b"b"]


# Patience


@contextmanager
def answering(store: Store, skip: Callable[[Step], bool]) -> Iterator[None]:
    """Let a test answer steps of a router itself: those for which its function says so."""
    target = store.store if isinstance(store, AwaitedStore) else store
    original = target.answer

    def answer(step: Step) -> Any:
        return None if skip(step) else original(step)

    async def answer_async(step: Step) -> Any:
        return None if skip(step) else await original(step)

    target.answer = answer_async if isinstance(store, AwaitedStore) else answer
    try:
        yield
    finally:
        target.answer = original


def impatient(world: RouterWorld) -> Store:
    """Return a router that waits for a tenth of a second."""
    store = world.store()
    operations_of(store)._patience_s = 0.1
    return store


def test_patience_has_an_end_and_leaves_the_others_alone(world: RouterWorld) -> None:
    store = impatient(world)
    save(store, batch(b"a"))
    world.owners.fence(C, driver=1, lease_ms=3_600_000)
    start_s = time.monotonic()
    saves = [batch(b"x", client_id="before"), batch(b"b"), batch(b"c"), batch(b"x", client_id="behind")]
    reports = store.save_messages(saves)
    # Not as long as the driver may hold it.
    assert 0.1 <= time.monotonic() - start_s < PATIENCE_S
    assert [report.client_id for report in reports] == ["before", C, C, "behind"]
    assert [report.packet_ids for report in reports] == [(1,), (), (), (1,)]
    for report in reports[1:3]:
        assert isinstance(report.error, SessionFenced)
    calls: list[Callable[[], Any]] = [
        lambda: store.ack(C, [Ack(packet_id=1)]),
        lambda: store.mark_delivered(C, serial=0),
        lambda: store.purge_session(C),
        lambda: store.reserve_packet_ids(C, count=1),
    ]
    for call in calls:
        with pytest.raises(SessionFenced, match=r"on its way.*0\.1 s: repeat the call"):
            call()
    # What is being moved does not change, and can be read.
    assert payloads(store) == [b"a"]


@pytest.mark.parametrize("call", ["save", "ack"])
@pytest.mark.parametrize("owner", OTHERS)
@pytest.mark.parametrize("fence_s", [0.0, 0.05, 1.0])
def test_call_that_meets_a_fence_is_done_soon_behind_its_end(
    world: RouterWorld, owner: Owner, fence_s: float, call: str
) -> None:
    """The pauses of the call are the clock: no program that keeps the machine busy makes it late."""
    store = world.store()
    save(store, batch(b"a"))
    if owner == "redis":
        assert world.move(C, "redis")
        save(store, batch(b"b"))
    fenced = world.owners.fence(C, driver=1, lease_ms=round(1_000 * PATIENCE_S))
    if owner == "redis":
        world.at_redis.set_owner(C, epoch=fenced.epoch, owner="fenced", mirrored=True)
    paused_s: list[float] = []
    asked: list[Step] = []

    def skip(step: Step) -> bool:
        if not isinstance(step, Pause):
            asked.append(step)
            return False
        paused_s.append(step.seconds)
        if sum(paused_s) >= fence_s > sum(paused_s[:-1]) or (len(paused_s) == 1 and not fence_s):
            assert world.owners.unfence(C, driver=1, epoch=fenced.epoch) is not None
            assert world.move(C, OTHERS[owner])
        return True

    with answering(store, skip):
        if call == "save":
            [report] = store.save_messages([batch(b"c")])
            assert report.error is None
        else:
            assert store.ack(C, [Ack(packet_id=1)]).removed == 1

    assert sum(paused_s) <= fence_s + 0.1, "the next try comes at most a tenth of a second behind the fence's end"
    assert len(paused_s) <= 4 + 10 * fence_s
    # A try is up to three questions to a store and one for the owner; the first and the last have some more.
    assert len(asked) <= 4 * len(paused_s) + 7
    before = [b"a", b"b"] if owner == "redis" else [b"a"]
    assert payloads(store) == ([*before, b"c"] if call == "save" else before[1:])


def test_call_waits_for_longer_than_any_fence_lasts() -> None:
    longest_ms = 1_000
    Lease(lease_ms=longest_ms)
    with pytest.raises(UsageError, match="lease_ms is 1001"):
        Lease(lease_ms=longest_ms + 1)
    # A pause may have begun right before the fence ends.
    assert longest_ms / 1_000 + BACKOFF.after(99) < ROUTER_PATIENCE_S <= 3, "TBMQ 1.x gives a batch up after about 3 s"


def test_what_is_learned_when_patience_is_over_is_tried_once(world: RouterWorld) -> None:
    # As when PostgreSQL takes longer than that to say who owns the session now.
    store = world.store()
    operations_of(store)._patience_s = 0.0
    save(store, batch(b"a"))
    assert world.move(C, "redis")
    assert payloads(store) == [b"a"]
    assert world.move(C, "postgres")
    assert store.ack(C, [Ack(packet_id=1)]).removed == 1
    assert world.move(C, "redis")
    assert save(store, batch(b"b"))[0].packet_ids == (2,)


def test_store_that_goes_on_refusing_is_named(world: RouterWorld) -> None:
    store = impatient(world)
    save(store, batch(b"a"))
    assert world.move(C, "redis")
    world.client.hset(world.own_key(C), mapping={"owner": "postgres", "epoch": str(2**53 - 1)})
    [report] = store.save_messages([batch(b"b")])
    assert isinstance(report.error, NotOwner)
    owned = world.owners.look_up([C])[C]
    words = f"belongs to {OWNER_WORDS[owned.owner]} (epoch {owned.epoch}) according to PostgreSQL"
    assert f"{words}, but was refused for 0.1 s" in str(report.error)
    assert "let the migration's driver run again" in str(report.error)


def test_nothing_is_saved_behind_a_save_that_failed(world: RouterWorld) -> None:
    store = world.store()
    world.connection.execute(
        "CREATE OR REPLACE FUNCTION refuse_bad() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'bad'; END $$"
    )
    world.connection.execute(
        "CREATE TRIGGER refuse_bad BEFORE INSERT ON device_publish_msg FOR EACH ROW WHEN (NEW.topic = 'bad')"
        " EXECUTE FUNCTION refuse_bad()"
    )
    try:
        reports = store.save_messages(
            [batch(b"a"), batch(b"b", topic="bad"), batch(b"c"), batch(b"x", client_id="other")]
        )
    finally:
        world.connection.execute("DROP TRIGGER refuse_bad ON device_publish_msg")
    assert [report.error is None for report in reports] == [True, False, False, True]
    assert reports[1].error is reports[2].error
    assert payloads(store) == [b"a"]


def test_saves_of_one_call_stay_in_order_when_some_are_repeated(world: RouterWorld) -> None:
    store = world.store()
    clients = [f"c-{number}" for number in range(12)]
    save(store, *(batch(b"0", client_id=client_id) for client_id in clients))
    for number, client_id in enumerate(clients):
        if number % 3 == 1:
            assert world.move(client_id, "redis", tells=number % 2 == 0)
        elif number % 3 == 2:
            world.owners.fence(client_id, driver=1, lease_ms=200)
    saves = [batch(b"%d" % place, client_id=client_id) for place in range(1, 5) for client_id in clients]
    reports = save(store, *saves)
    assert [report.client_id for report in reports] == [each.client_id for each in saves]
    for client_id in clients:
        assert payloads(world.neighbour(), client_id) == [b"0", b"1", b"2", b"3", b"4"]


# Bad input


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (batch(*numbered(257)), r"257 messages.*at most 256 messages.*cut it"),
        (batch(b"x" * 262_144, b"x" * 262_145), r"2 messages of 524289 bytes.*524288 bytes; cut it"),
        (batch(b"x", client_id="i" * 256), r"client id has 256 characters"),
    ],
    ids=["messages", "bytes", "client id"],
)
def test_save_that_is_no_single_step_is_refused_before_anything_is_written(
    world: RouterWorld, given: SessionSave, words: str
) -> None:
    store = world.store()
    with pytest.raises(UsageError, match=words):
        store.save_messages([batch(b"a", client_id="first"), given, batch(b"a", client_id="last")])
    assert not any(store.inspect(client_id).exists for client_id in ("first", C, "last"))
    assert save(store, batch(*numbered(256)), batch(b"x" * 600_000, client_id="large"))[1].stored == 1


def test_numbers_of_a_router_are_checked() -> None:
    for values in ({"owners": 1_999}, {"patience_s": -1.0}, {"owner_age_s": 0.0}, {"patience_s": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(values))):
            RouterOperations(**values)


def test_owner_that_this_release_does_not_know_is_named(blocking_world: RouterWorld) -> None:
    store = blocking_world.store()
    save(store, batch(b"a"))
    blocking_world.connection.execute(
        "ALTER TABLE queuekeeper.session_owners DROP CONSTRAINT session_owners_owner_check"
    )
    blocking_world.connection.execute("UPDATE queuekeeper.session_owners SET owner = 'kafka'")
    with pytest.raises(RefusedError, match=r"belongs to 'kafka'.*use the release"):
        blocking_world.store().get_last_packet_id(C)
    [report] = blocking_world.store().save_messages([batch(b"b")])
    assert "kafka" in str(report.error)


# Servers that are gone


def moved_pair(world: RouterWorld) -> None:
    """Leave one client with each store, and a message in both."""
    store = world.neighbour()
    save(store, batch(b"a", client_id="p"), batch(b"a", client_id="r"), batch(b"a", client_id="unknown"))
    assert world.move("r", "redis")
    assert world.move("unknown", "redis")


def test_sessions_in_redis_go_on_without_postgresql(blocking_world: RouterWorld) -> None:
    moved_pair(blocking_world)
    with ExitStack() as opened:
        client = opened.enter_context(redis_client.connect(blocking_world.url))
        with CuttingProxy(blocking_world.postgres_url) as proxy:
            store = opened.enter_context(SessionRouter(client, proxy.url, owner_age_s=0.001))
            save(store, batch(b"b", client_id="p"), batch(b"b", client_id="r"))
        for _ in range(3):
            p, r, unknown = store.save_messages([batch(b"c", client_id=c) for c in ("p", "r", "unknown")])
            assert r.error is None
            for report in (p, unknown):
                assert isinstance(report.error, ServerUnavailable)
                assert "PostgreSQL at" in str(report.error)
        assert "nobody can say who owns session 'unknown'" in str(unknown.error)
        with pytest.raises(ServerUnavailable, match="PostgreSQL at"):
            store.fetch_pending("p")
        assert payloads(store, "r") == [b"a", b"b", b"c", b"c", b"c"]
        # An attempt to connect may take long, and is not made for each call.
        with blocking_world.after_step(store, 2, lambda: None) as was_asked:
            assert store.mark_released("r", packet_id=1) is Release.RELEASED
        assert not was_asked()
    assert payloads(blocking_world.neighbour(), "p") == [b"a", b"b"]


def test_sessions_in_postgresql_go_on_without_redis(blocking_world: RouterWorld) -> None:
    moved_pair(blocking_world)
    with ExitStack() as opened:
        with CuttingProxy(blocking_world.url) as proxy:
            client = opened.enter_context(redis_client.connect(proxy.url))
            store = opened.enter_context(SessionRouter(client, blocking_world.postgres_url))
            save(store, batch(b"b", client_id="p"), batch(b"b", client_id="r"))
        p, r, unknown = store.save_messages([batch(b"c", client_id=c) for c in ("p", "r", "unknown")])
        assert p.error is None
        for report in (r, unknown):
            assert isinstance(report.error, ServerUnavailable)
            assert "Redis at" in str(report.error)
        with pytest.raises(ServerUnavailable, match="Redis at"):
            store.fetch_pending("r")
        assert payloads(store, "p") == [b"a", b"b", b"c"]


def test_connections_that_the_server_has_ended_are_replaced(world: RouterWorld) -> None:
    store = world.store()
    save(store, batch(b"a"))
    world.connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    save(store, batch(b"b"))
    assert payloads(store) == [b"a", b"b"]


def test_closed_router_says_so(blocking_world: RouterWorld) -> None:
    with redis_client.connect(blocking_world.url) as client:
        with SessionRouter(client, blocking_world.postgres_url) as store:
            save(store, batch(b"a"))
        with pytest.raises(RefusedError, match="closed"):
            store.fetch_pending(C)


# Many tasks


def backends(world: RouterWorld) -> list[str]:
    """Return the states of all connections to the database but the world's own; PostgreSQL's own workers have none."""
    rows = world.connection.execute(
        "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    return [state for (state,) in rows.fetchall()]


def test_many_tasks_share_few_connections(blocking_world: RouterWorld) -> None:
    world = blocking_world
    # Those of before may take their time to end.
    ends_s = time.monotonic() + PATIENCE_S
    while backends(world) and time.monotonic() < ends_s:
        time.sleep(0.01)

    async def work() -> list[int]:
        seen: list[int] = []

        async def one(store: AsyncSessionRouter, number: int) -> None:
            client_id = f"c-{number % 20}"
            for _ in range(3):
                [report] = await store.save_messages([batch(b"a", client_id=client_id)])
                assert report.error is None
                seen.append(len(backends(world)))

        async with (
            await redis_async.connect(world.url) as caller,
            AsyncSessionRouter(caller, world.postgres_url, connections=3, patience_s=PATIENCE_S) as store,
        ):
            await asyncio.gather(*(one(store, number) for number in range(40)))
        return seen

    assert max(asyncio.run(work())) == 3
    store = world.neighbour()
    assert sum(len(pending(store, f"c-{number}")) for number in range(20)) == 120


def test_writer_saves_through_a_router_while_sessions_move(blocking_world: RouterWorld) -> None:
    world = blocking_world

    async def work() -> list[Any]:
        async with (
            await redis_async.connect(world.url) as caller,
            AsyncSessionRouter(caller, world.postgres_url, patience_s=PATIENCE_S) as store,
            SessionWriter(store, source="broker-1", first_offset=1) as writer,
        ):

            async def publish(client_id: str) -> None:
                for number in range(30):
                    [new] = batch(b"%d" % number, client_id=client_id).messages
                    await writer.save(client_id, new)

            async def move() -> None:
                for number in range(10):
                    # Where a writer in progress keeps its session for longer than a driver waits, it comes again.
                    while not await asyncio.to_thread(world.move, f"c-{number}", "redis", tells=number % 2 == 0):
                        pass

            for number in range(10):
                await store.get_last_packet_id(f"c-{number}")
            await asyncio.gather(*(publish(f"c-{number}") for number in range(12)), move())
            [large] = batch(b"x" * 300_000).messages
            [odd] = batch(b"x").messages
            odd = replace(odd, content_type="x" * 256)
            calls = [writer.save("c-1", message) for message in (large, large, odd, large)]
            return await asyncio.gather(*calls, return_exceptions=True)

    first, second, odd, third = asyncio.run(work())
    assert (first.packet_id, second.packet_id, third.packet_id) == (31, 32, 33)
    assert isinstance(odd, UsageError)
    store = world.neighbour()
    for number in range(12):
        assert payloads(store, f"c-{number}")[:30] == numbered(30)
        assert (store.inspect(f"c-{number}").store == "redis") == (number < 10)


def test_task_that_is_cancelled_leaves_nothing_open(blocking_world: RouterWorld) -> None:
    world = blocking_world

    async def work() -> None:
        async with (
            await redis_async.connect(world.url) as caller,
            AsyncSessionRouter(caller, world.postgres_url, connections=1) as store,
        ):
            calls: list[Callable[[], Any]] = [
                lambda: store.save_messages([batch(b"lost"), batch(b"x", client_id="r")]),
                lambda: store.fetch_pending(C),
                lambda: store.ack(C, [Ack(packet_id=1)]),
                lambda: store.reserve_packet_ids(C, count=1),
            ]
            for pause_s in (0.0, 0.001, 0.003, 0.01, 0.05):
                # Whoever writes the session waits here.
                with world.connection.transaction():
                    world.connection.execute("SELECT 1 FROM device_session_ctx WHERE client_id = %s FOR UPDATE", (C,))
                    world.connection.execute("LOCK TABLE device_publish_msg IN ACCESS EXCLUSIVE MODE")
                    tasks = [asyncio.ensure_future(call()) for call in calls]
                    await asyncio.sleep(pause_s)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    assert all(task.cancelled() for task in tasks)
                    assert "idle in transaction" not in backends(world)
                [report] = await store.save_messages([batch(b"b")])
                assert report.error is None

    moved_pair(world)
    save(world.neighbour(), batch(b"a"))
    asyncio.run(work())
    assert payloads(world.neighbour()) == [b"a", *[b"b"] * 5]
