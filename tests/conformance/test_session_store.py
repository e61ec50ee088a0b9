"""The contract of a session store, kept by the reference, Redis and PostgreSQL, blocking and asyncio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import orjson
import pytest

from queuekeeper.errors import MovedOn, QueuekeeperError, UsageError
from queuekeeper.sessions.model import Ack, NewMessage, Release, SessionSave, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.reports import PendingMessage, PendingPage, Refusal, SaveReport, SessionCounts
from tests.conformance.store_worlds import (
    PackedWorld,
    PostgresWorld,
    RedisWorld,
    ReferenceWorld,
    RouterWorld,
    ServerWorld,
    Store,
    Work,
    World,
    lose_answer,
)
from tests.conftest import REDIS_FLAVOURS, nightly, url_of_server
from tests.patience import short_lives_ms

pytestmark = pytest.mark.conformance

# Both forms of a store send the same steps (tests/unit/test_forms.py): each kind of server meets one, the other
# at night. Routers send the steps of these stores: those over sessions in Redis meet what a mirror needs as well, and
# what is a router's own has its tests, with sessions in either store, in test_session_router.py.
REDIS_WORLDS = [
    "valkey-blocking",
    "cluster-asyncio",
    "packed-valkey-blocking",
    "packed-cluster-asyncio",
    *nightly(f"{REDIS_FLAVOURS[-1]}-asyncio", "cluster-blocking"),
    *nightly(f"packed-{REDIS_FLAVOURS[-1]}-asyncio", "packed-cluster-blocking"),
]
SERVER_WORLDS = [
    *REDIS_WORLDS,
    "postgres-asyncio",
    "router-redis-asyncio",
    "router-packed-asyncio",
    *nightly("postgres-blocking", "router-postgres-blocking"),
]
HOSTILE_IDS = (
    "%x",
    "{a}b",
    "%7Dx",
    "{}",
    "смарт-😀-メーター",
    "i" * 255,
    "glob*?[a-z]^\\",
    "<script>alert('1')</script>",
    'line\nbreak "quoted"',
    "%s %(name)s $1",
)
C = "meter-7"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def opened_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """One kind of store, kept for all tests of this file."""
    server, _, form = request.param.partition("-")
    world: World
    if server == "reference":
        world = ReferenceWorld()
    elif server == "postgres":
        postgres_server = request.getfixturevalue("postgres_server")
        url = postgres_server.create_database(f"stores_{form}", template="template0")
        world = PostgresWorld(url, awaited=form == "asyncio")
    elif server == "router":
        postgres_server = request.getfixturevalue("postgres_server")
        owner, _, form = form.partition("-")
        layout = Layout.TBMQ
        if owner == "packed":
            owner, layout = "redis", Layout.PACKED
        url = postgres_server.create_database(f"routers_{form}", template="template0")
        redis_url = request.getfixturevalue("redis_servers")("valkey").url
        world = RouterWorld(redis_url, url, owner=owner, awaited=form == "asyncio", layout=layout)
    else:
        kind: type[RedisWorld] = RedisWorld
        if server == "packed":
            kind = PackedWorld
            server, _, form = form.partition("-")
        world = kind(url_of_server(request, server), awaited=form == "asyncio")
    yield world
    world.close()
    if server in {"postgres", "router"}:
        postgres_server.drop_database(f"{'stores' if server == 'postgres' else 'routers'}_{form}")


@pytest.fixture
def world(opened_world: World) -> Iterator[World]:
    """A kind of store that holds nothing."""
    opened_world.erase()
    yield opened_world
    opened_world.erase()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test over every store, or over those with a server when it asks for one."""
    if "server_world" in metafunc.fixturenames:
        metafunc.parametrize("opened_world", SERVER_WORLDS, indirect=True, scope="module")
    elif "redis_world" in metafunc.fixturenames:
        metafunc.parametrize("opened_world", REDIS_WORLDS, indirect=True, scope="module")
    elif "opened_world" in metafunc.fixturenames:
        metafunc.parametrize("opened_world", ["reference", *SERVER_WORLDS], indirect=True, scope="module")


@pytest.fixture
def server_world(world: World) -> ServerWorld:
    """A kind of store with a server behind it."""
    assert isinstance(world, ServerWorld)
    return world


@pytest.fixture
def redis_world(world: World) -> RedisWorld:
    """Stores on Redis."""
    assert isinstance(world, RedisWorld)
    return world


def message(world: World, payload: bytes = b"x", **fields: Any) -> NewMessage:
    """Return a message that lives for an hour unless said otherwise."""
    values: dict[str, Any] = {"topic": "t", "qos": 1, "time_ms": world.now_ms(), "expiry_interval_s": 3_600, **fields}
    return NewMessage(payload=payload, **values)


def outlived(world: World, use: Callable[[Store, NewMessage], object], **rules: Any) -> Store:
    """Return a store in which a message was used while it lived, and wait until its life is over.

    :param use: all that must happen while it lives; it begins anew, with nothing stored, when it took too long.
    """
    lives_ms = short_lives_ms()
    while True:
        world.erase()
        store = world.store(**rules)
        ends_ms = world.now_ms() + next(lives_ms)
        use(store, message(world, b"dying", time_ms=ends_ms - 1_000_000, expiry_interval_s=1_000))
        if world.now_ms() < ends_ms:
            world.wait_until(ends_ms)
            return store


def batch(world: World, *payloads: bytes, client_id: str = C, **fields: Any) -> SessionSave:
    """Return a save of messages with these payloads."""
    return SessionSave(client_id=client_id, messages=tuple(message(world, p) for p in payloads), **fields)


def numbered(count: int, first: int = 0) -> tuple[bytes, ...]:
    """Return payloads that can be told apart."""
    return tuple(b"%d" % n for n in range(first, first + count))


def save(store: Store, *saves: SessionSave) -> SaveReport:
    """Save, insist on success and return the last report."""
    reports: list[SaveReport] = store.save_messages(list(saves))
    assert [report.error for report in reports] == [None] * len(saves)
    assert [report.client_id for report in reports] == [save.client_id for save in saves]
    return reports[-1]


def save_all(store: Store, *messages: NewMessage) -> SaveReport:
    """Save messages of one session together."""
    return save(store, SessionSave(client_id=C, messages=messages))


def pages(store: Store, client_id: str = C, **options: Any) -> Iterator[PendingPage]:
    """Return what waits, page by page, as a broker reads it on reconnect."""
    after_serial, backlog_serial = -1, None
    while True:
        page = store.fetch_pending(client_id, after_serial=after_serial, backlog_serial=backlog_serial, **options)
        yield page
        if not page.more:
            return
        assert page.after_serial > after_serial
        after_serial, backlog_serial = page.after_serial, page.backlog_serial


def pending(store: Store, client_id: str = C, **options: Any) -> list[PendingMessage]:
    """Return all that waits, and insist on strict order."""
    found = [message for page in pages(store, client_id, **options) for message in page.messages]
    serials = [message.serial for message in found]
    assert serials == sorted(set(serials))
    assert len({message.packet_id for message in found}) == len(found)
    return found


def ids(store: Store, client_id: str = C) -> list[int]:
    """Return the packet ids of what waits, in order."""
    return [message.packet_id for message in pending(store, client_id)]


def payloads(store: Store, client_id: str = C) -> list[bytes]:
    """Return the payloads of what waits, in order."""
    return [message.payload for message in pending(store, client_id)]


def export(store: Store, client_id: str, limit: int = 2) -> list[bytes]:
    """Return a whole session as JSON Lines."""
    lines: list[bytes] = []
    after_serial = None
    while True:
        page = store.export_session(client_id, after_serial=after_serial, limit=limit)
        lines += page.lines
        if not page.more:
            return lines
        after_serial = page.after_serial


def all_properties(world: World) -> dict[str, Any]:
    """Return every optional field of a message, filled with what is hard to keep."""
    found: dict[str, Any] = {
        "topic": 'plant/"7"/\\\\/😀/</script>',
        "qos": 2,
        "retain": True,
        "expiry_interval_s": 86_400,
        "payload_format_indicator": 0,
        "content_type": "text/\u2028plain",
        "response_topic": "",
        "correlation_data": bytes(range(256)),
        "user_properties": (("b", "2"), ("a", "1"), ("b", "2"), ("", ""), ('"packetType":"PUBLISH"', '"payload":"x"')),
    }
    if world.keeps_subscription_ids:
        found["subscription_ids"] = (1, 268_435_455)
    return found


# Order and packet ids


def test_messages_wait_in_the_order_in_which_they_were_saved(world: World) -> None:
    store = world.store()
    assert store.get_last_packet_id(C) is None
    first = save(store, batch(world, b"a", b"b", b"c"))
    second = save(store, batch(world, b"d", b"e"))

    assert (first.packet_ids, second.packet_ids) == ((1, 2, 3), (4, 5))
    assert (first.stored, first.refused, first.trimmed, first.dead, first.replayed) == (3, {}, 0, 0, False)
    found = pending(store)
    assert [m.payload for m in found] == [b"a", b"b", b"c", b"d", b"e"]
    assert [m.packet_id for m in found] == [1, 2, 3, 4, 5]
    assert tuple(m.serial for m in found) == first.serials + second.serials
    assert store.get_last_packet_id(C) == 5


def test_message_comes_back_whole(world: World) -> None:
    store = world.store()
    for client_id in HOSTILE_IDS:
        _check_message_comes_back_whole(world, store, client_id)


def _check_message_comes_back_whole(world: World, store: Store, client_id: str) -> None:
    full = message(world, bytes(range(256)), **all_properties(world))
    bare = NewMessage(topic="t", payload=b"", qos=1, time_ms=world.now_ms())
    report = save(store, SessionSave(client_id=client_id, messages=(full, bare)))

    for new, found in zip((full, bare), pending(store, client_id), strict=True):
        told = asdict(found)
        assert {name: told[name] for name in asdict(new)} == asdict(new)
        assert found.packet_type == "PUBLISH"
        assert not found.redelivery
        assert store.peek(client_id, packet_id=found.packet_id) == found
    assert store.peek(client_id, packet_id=1).expires_at_ms == full.time_ms + 86_400_000
    assert store.peek(client_id, packet_id=2).expires_at_ms == bare.time_ms + 604_800_000
    assert store.ack(client_id, [Ack(packet_id=1, serial=report.serials[0])]).removed == 1
    assert ids(store, client_id) == [2]


def test_default_life_is_the_stores(world: World) -> None:
    store = world.store(default_ttl_s=60)
    time_ms = world.now_ms() - 30_000
    save(store, SessionSave(client_id=C, messages=(message(world, time_ms=time_ms, expiry_interval_s=None),)))
    [found] = pending(store)
    assert (found.expires_at_ms, found.expiry_interval_s) == (time_ms + 60_000, None)
    report = save(
        store,
        SessionSave(client_id=C, messages=(message(world, time_ms=time_ms - 30_000, expiry_interval_s=None),)),
    )
    assert report.refused == {0: Refusal.EXPIRED}


def test_packet_ids_wrap_and_the_order_does_not(world: World) -> None:
    store = world.store()
    assert store.set_last_packet_id(C, packet_id=65_533, expected=None)
    report = save(store, batch(world, b"a", b"b", b"c", b"d"))
    assert report.packet_ids == (65_534, 65_535, 1, 2)
    assert payloads(store) == [b"a", b"b", b"c", b"d"]
    assert store.get_last_packet_id(C) == 2
    assert save(store, batch(world, b"e")).packet_ids == (3,)
    assert payloads(store) == [b"a", b"b", b"c", b"d", b"e"]


def test_packet_id_in_use_is_passed_over(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a", b"b", b"c"))
    store.ack(C, [Ack(packet_id=2)])
    # A store that remembers last ids must also see that another has moved this one.
    assert world.store().set_last_packet_id(C, packet_id=65_534, expected=3)
    report = save(store, batch(world, b"d", b"e", b"f", b"g"))
    assert report.packet_ids == (65_535, 2, 4, 5)
    assert payloads(store) == [b"a", b"c", b"d", b"e", b"f", b"g"]
    assert store.get_last_packet_id(C) == 5


def test_serials_never_start_again(world: World) -> None:
    store = world.store()
    assert store.set_last_packet_id(C, packet_id=65_533, expected=None)
    last = -1
    for _ in range(4):
        report = save(store, batch(world, b"a", b"b"))
        assert report.serials[0] is not None
        assert report.serials[0] > last
        assert report.serials[1] == report.serials[0] + 1
        last = report.serials[1]
        acks = [Ack(packet_id=packet_id) for packet_id in report.packet_ids if packet_id is not None]
        assert store.ack(C, acks).removed == 2
        store = world.store()


def test_two_saves_for_one_client_are_done_one_after_the_other(world: World) -> None:
    store = world.store()
    other = batch(world, b"z", client_id="other")
    reports = store.save_messages([batch(world, b"a", b"b"), other, batch(world, b"c"), batch(world, b"d", b"e")])
    assert [report.packet_ids for report in reports] == [(1, 2), (1,), (3,), (4, 5)]
    assert payloads(store) == [b"a", b"b", b"c", b"d", b"e"]


def test_many_clients_are_served_by_one_call(world: World) -> None:
    store = world.store()
    names = [f"client-{n}" for n in range(60)]
    for first in (0, 2):
        reports = store.save_messages([batch(world, *numbered(2, first), client_id=name) for name in names])
        assert [report.client_id for report in reports] == names
        assert {report.packet_ids for report in reports} == {(first + 1, first + 2)}
    assert all(payloads(store, name) == [b"0", b"1", b"2", b"3"] for name in names[::7])


def test_failure_of_one_client_leaves_the_others_alone(world: World) -> None:
    store = world.store()
    world.refuse("moved")
    saves = [batch(world, b"a", b"b", client_id=name) for name in ("before", "moved", "after", "moved")]
    reports = store.save_messages(saves)
    assert [report.client_id for report in reports] == ["before", "moved", "after", "moved"]
    for report in reports:
        if report.client_id == "moved":
            assert isinstance(report.error, QueuekeeperError)
            assert report == SaveReport(client_id="moved", error=report.error)
        else:
            assert report.error is None
            assert report.packet_ids == (1, 2)
    assert payloads(store, "before") == payloads(store, "after") == [b"a", b"b"]
    assert pending(store, "moved") == []
    assert save(store, batch(world, b"c", client_id="before")).packet_ids == (3,)


# Lives


def test_bad_expiry_is_refused_item_by_item(world: World) -> None:
    store = world.store()
    now = world.now_ms()
    cases: list[tuple[int | None, int, Refusal | None]] = [
        (3_600, now, None),
        (0, now, Refusal.EXPIRED),
        (-1, now, Refusal.EXPIRY_OUT_OF_RANGE),
        (2**31 - 1, now, None),
        (2**31, now, None),
        (2**32 - 1, now, None),
        (2**32, now, Refusal.EXPIRY_OUT_OF_RANGE),
        (-(2**31), now, Refusal.EXPIRY_OUT_OF_RANGE),
        (2**63, now, Refusal.EXPIRY_OUT_OF_RANGE),
        (60, now - 60_000, Refusal.EXPIRED),
        (None, now - 604_800_000, Refusal.EXPIRED),
        (2**32 - 1, 253_402_300_799_999, None),
        (3_600, now, None),
    ]
    new = tuple(
        message(world, b"%d" % n, time_ms=time_ms, expiry_interval_s=life_s)
        for n, (life_s, time_ms, _) in enumerate(cases)
    )
    report = save(store, SessionSave(client_id=C, messages=new))

    assert report.refused == {n: refusal for n, (_, _, refusal) in enumerate(cases) if refusal is not None}
    for n, (_, _, refusal) in enumerate(cases):
        assert (report.packet_ids[n] is None) == (report.serials[n] is None) == (refusal is not None)
    assert report.stored == 6
    found = pending(store)
    assert [m.payload for m in found] == [b"0", b"3", b"4", b"5", b"11", b"12"]
    assert [m.packet_id for m in found] == [packet_id for packet_id in report.packet_ids if packet_id is not None]
    for m in found[:4]:
        life_s = cases[int(m.payload)][0]
        assert life_s is not None
        assert m.expires_at_ms == now + 1_000 * life_s
        assert m.expiry_interval_s == life_s
    last = report.packet_ids[-1]
    assert store.get_last_packet_id(C) == last
    following = save(store, batch(world, b"next")).packet_ids
    assert following == ((last or 0) + 1,)


def test_batch_of_which_everything_is_refused_stores_nothing(world: World) -> None:
    store = world.store()
    new = (message(world, expiry_interval_s=0), message(world, expiry_interval_s=-5))
    report = save(store, SessionSave(client_id=C, messages=new))
    assert report.refused == {0: Refusal.EXPIRED, 1: Refusal.EXPIRY_OUT_OF_RANGE}
    assert (report.packet_ids, report.serials, report.stored) == ((None, None), (None, None), 0)
    assert pending(store) == []
    assert store.inspect(C).messages == 0


def test_refusals_are_counted_alike_alone_and_beside_others(world: World) -> None:
    store = world.store()
    bad = (message(world, expiry_interval_s=0), message(world, expiry_interval_s=-1))
    save(store, SessionSave(client_id=C, messages=bad))
    assert store.inspect(C).exists is False, "what stores nothing makes no session"

    save(store, SessionSave(client_id=C, messages=(message(world), *bad)))
    alone = SessionSave(client_id=C, messages=bad, source="orders-3", offset=9)
    first, again = save(store, alone), save(store, alone)

    assert (first.replayed, again.replayed) == (False, True)
    assert again.refused == first.refused == {0: Refusal.EXPIRED, 1: Refusal.EXPIRY_OUT_OF_RANGE}
    assert store.inspect(C).counts == SessionCounts(expired=2, refused=2)


def test_serials_go_on_after_an_export_and_an_import(world: World) -> None:
    store = world.store()
    saved = save(store, batch(world, b"1", b"2"))
    store.ack(C, [Ack(packet_id=1), Ack(packet_id=2)])
    assert store.set_last_packet_id(C, packet_id=60_000, expected=2)
    page = store.export_session(C)
    store.purge_session(C)
    store.import_session(C, page.lines)

    following = save(store, batch(world, b"3"))

    assert following.packet_ids == (60_001,)
    assert [following.serials[0]] == [serial + 1 for serial in saved.serials[1:] if serial is not None]


def test_message_that_ends_at_once_is_refused_whatever_its_time(world: World) -> None:
    store = world.store()
    later = message(world, time_ms=world.now_ms() + 600_000, expiry_interval_s=0)
    assert save(store, SessionSave(client_id=C, messages=(later,))).refused == {0: Refusal.EXPIRED}


def test_life_is_counted_from_the_messages_own_time_also_after_a_retry(world: World) -> None:
    time_ms = world.now_ms() - 600_000
    new = SessionSave(client_id=C, messages=(message(world, time_ms=time_ms),), source="orders-3", offset=9)
    save(world.store(), new)
    world.wait_until(world.now_ms() + 20)
    save(world.store(), new)
    save(world.store(), replace(new, source=None, offset=None))
    assert [m.expires_at_ms for m in pending(world.store())] == [time_ms + HOUR_MS] * 2


def test_message_whose_life_is_over_is_gone(world: World) -> None:
    def use(store: Store, short: NewMessage) -> None:
        save_all(store, message(world, b"a"), short, message(world, b"b"))

    store = outlived(world, use)
    assert store.peek(C, packet_id=2) is None
    assert store.mark_released(C, packet_id=2) is Release.MISSING
    assert b"dying" not in b"".join(export(store, C))
    [page] = pages(store)
    assert [m.payload for m in page.messages] == [b"a", b"b"]
    [page] = pages(store)
    assert [m.payload for m in page.messages] == [b"a", b"b"]
    assert (page.expired, page.unreadable) == (0, 0)


def test_queue_that_has_died_out_is_read_to_its_end(world: World) -> None:
    store = outlived(world, lambda store, short: save_all(store, *(short,) * 7))
    assert pending(store, limit=2) == []
    assert save(store, batch(world, b"new")).stored == 1
    assert payloads(store) == [b"new"]


# PUBACK, PUBREC, PUBCOMP


def test_pubrec_keeps_place_and_expiry_and_drops_the_body(world: World) -> None:
    store = world.store()
    full = message(world, b"body/+=" * 50, **all_properties(world))
    report = save(store, SessionSave(client_id=C, messages=(message(world, b"a"), full, message(world, b"b"))))
    before = store.fetch_pending(C, mark_delivered=True).messages[1]

    assert store.mark_released(C, packet_id=2, serial=report.serials[1]) is Release.RELEASED
    assert store.mark_released(C, packet_id=2, serial=report.serials[1]) is Release.ALREADY
    assert store.mark_released(C, packet_id=2) is Release.ALREADY
    found = pending(store)
    assert [m.packet_id for m in found] == [1, 2, 3]
    assert found[1] == replace(before, packet_type="PUBREL", payload=b"", redelivery=True)
    assert store.peek(C, packet_id=2) == found[1]
    assert store.inspect(C).page[1].packet_type == "PUBREL"
    assert store.inspect(C).page[1].payload_bytes == 0

    assert store.ack(C, [Ack(packet_id=2, serial=report.serials[1])]).removed == 1
    assert ids(store) == [1, 3]
    assert store.mark_released(C, packet_id=2) is Release.MISSING
    assert store.get_last_packet_id(C) == 3


def test_pubrec_for_a_message_that_is_not_there_is_missing(world: World) -> None:
    store = world.store()
    assert store.mark_released(C, packet_id=1) is Release.MISSING
    report = save(store, batch(world, b"a"))
    assert report.serials[0] is not None
    assert store.mark_released(C, packet_id=2) is Release.MISSING
    assert store.mark_released(C, packet_id=1, serial=report.serials[0] + 1) is Release.MISSING
    assert pending(store)[0].packet_type == "PUBLISH"
    assert pending(store)[0].payload == b"a"


def test_pubrel_dies_at_the_instant_at_which_the_message_would_have(world: World) -> None:
    released: list[Release] = []

    def use(store: Store, short: NewMessage) -> None:
        save_all(store, short)
        released.append(store.mark_released(C, packet_id=1))

    store = outlived(world, use)
    assert released[-1] is Release.RELEASED
    assert pending(store) == []


def test_ack_removes_what_it_names_and_nothing_else(world: World) -> None:
    store = world.store()
    report = save(store, batch(world, *numbered(6)))
    s = report.serials
    assert s[0] is not None
    done = store.ack(
        C,
        [
            Ack(packet_id=1, serial=s[0]),
            Ack(packet_id=2),
            Ack(packet_id=3, serial=s[3]),
            Ack(packet_id=9),
            Ack(packet_id=1, serial=s[0]),
        ],
    )
    assert (done.client_id, done.removed, done.unknown) == (C, 2, 3)
    assert ids(store) == [3, 4, 5, 6]
    again = store.ack(C, [Ack(packet_id=1, serial=s[0]), Ack(packet_id=2)])
    assert (again.removed, again.unknown) == (0, 2)
    nothing = store.ack(C, [])
    assert (nothing.removed, nothing.unknown) == (0, 0)
    stranger = store.ack("nobody", [Ack(packet_id=1), Ack(packet_id=2, serial=7)])
    assert (stranger.removed, stranger.unknown) == (0, 2)
    assert not store.inspect("nobody").exists


def test_late_ack_never_removes_a_newer_message_with_the_same_packet_id(world: World) -> None:
    store = world.store()
    old = save(store, batch(world, b"old"))
    store.ack(C, [Ack(packet_id=1)])
    assert store.set_last_packet_id(C, packet_id=65_535, expected=1)
    new = save(store, batch(world, b"new"))
    assert new.packet_ids == old.packet_ids == (1,)

    assert store.ack(C, [Ack(packet_id=1, serial=old.serials[0])]).unknown == 1
    assert store.mark_released(C, packet_id=1, serial=old.serials[0]) is Release.MISSING
    assert payloads(store) == [b"new"]
    assert store.ack(C, [Ack(packet_id=1, serial=new.serials[0])]).removed == 1
    assert pending(store) == []


# Limit


@pytest.mark.parametrize("sizes", [(15,), (10, 5), (1,) * 15])
def test_the_newest_stay_when_a_session_is_over_its_limit(world: World, sizes: Sequence[int]) -> None:
    store = world.store(limit=10)
    reports, first = [], 0
    for size in sizes:
        reports.append(save(store, batch(world, *numbered(size, first))))
        first += size
    assert sum(report.trimmed for report in reports) == 5
    assert sum(report.trimmed_in_flight + report.dead for report in reports) == 0
    found = pending(store)
    assert [m.packet_id for m in found] == list(range(6, 16))
    assert [m.payload for m in found] == list(numbered(10, 5))
    assert store.get_last_packet_id(C) == 15
    assert store.ack(C, [Ack(packet_id=1)]).unknown == 1
    assert len(ids(store)) == 10


def test_dead_references_make_room_before_live_messages_do(world: World) -> None:
    store = outlived(world, lambda store, short: save_all(store, message(world, b"live"), *(short,) * 4), limit=5)
    report = save(store, batch(world, b"new"))
    assert report.trimmed == 0
    assert payloads(store) == [b"live", b"new"]


def test_dead_references_are_counted_apart(world: World) -> None:
    def use(store: Store, short: NewMessage) -> None:
        save_all(store, message(world, b"live"), short, message(world, b"live"), short)

    store = outlived(world, use, limit=4)
    report = save(store, batch(world, b"a", b"b", b"c"))
    assert (report.trimmed, report.dead) == (1, 2)
    assert payloads(store) == [b"live", b"a", b"b", b"c"]


def test_messages_in_flight_are_trimmed_last_and_counted(world: World) -> None:
    store = world.store(limit=5)
    save(store, batch(world, b"sent-1", b"sent-2", b"sent-3"))
    store.fetch_pending(C, mark_delivered=True)
    report = save(store, batch(world, b"a", b"b", b"c", b"d"))
    assert (report.trimmed, report.trimmed_in_flight) == (2, 0)
    assert payloads(store) == [b"sent-1", b"sent-2", b"sent-3", b"c", b"d"]

    smaller = world.store(limit=2)
    report = save(smaller, batch(world, b"e"))
    assert (report.trimmed, report.trimmed_in_flight) == (4, 1)
    assert report.stored == 1
    assert payloads(store) == [b"sent-2", b"sent-3"]


# Retry


def test_retried_batch_stores_nothing_twice(world: World) -> None:
    new = SessionSave(
        client_id=C,
        messages=(message(world, b"a"), message(world, expiry_interval_s=0), message(world, b"b")),
        source="{orders}:3 😀",
        offset=41,
    )
    first = save(world.store(), new)
    store = world.store()
    second = save(store, new)
    assert second == replace(first, replayed=True)
    assert not second.forgotten
    assert payloads(store) == [b"a", b"b"]

    store.ack(C, [Ack(packet_id=1)])
    assert save(store, new).packet_ids == first.packet_ids
    assert payloads(store) == [b"b"]
    assert store.get_last_packet_id(C) == first.packet_ids[2]


def test_retry_also_works_between_other_batches(world: World) -> None:
    store = world.store()
    first = save(store, batch(world, b"a", source="p0", offset=0))
    save(store, batch(world, b"b", source="p1", offset=0))
    save(store, batch(world, b"c"))
    again = save(store, batch(world, b"a", source="p0", offset=0))
    assert again.replayed
    assert again.packet_ids == first.packet_ids
    following = save(store, batch(world, b"d", source="p0", offset=1))
    assert not following.replayed
    assert payloads(store) == [b"a", b"b", b"c", b"d"]
    # The same source and offset for another client is another batch.
    assert not save(store, batch(world, b"a", client_id="other", source="p0", offset=1)).replayed


def test_batch_older_than_the_last_of_its_source_is_not_stored_and_its_ids_are_forgotten(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a", source="p0", offset=7))
    save(store, batch(world, b"b", source="p0", offset=2**53 - 1))
    report = save(store, batch(world, b"a", source="p0", offset=7))
    assert report.replayed
    assert report.forgotten
    assert report.stored == 0
    assert payloads(store) == [b"a", b"b"]


def test_large_batch_is_retried_as_a_whole(world: World) -> None:
    store = world.store()
    count = min(600, world.messages_per_save)
    new = batch(world, *numbered(count), source="p0", offset=5)
    save(store, batch(world, b"x", b"y", b"z"))
    assert store.set_last_packet_id(C, packet_id=65_300, expected=3)
    first = save(store, new)
    assert first.packet_ids == (*range(65_301, 65_536), *range(4, 369))[:count]
    second = save(world.store(), new)
    assert second == replace(first, replayed=True)
    assert payloads(store) == [b"x", b"y", b"z", *numbered(count)]


def test_same_batch_twice_in_one_call_is_stored_once(world: World) -> None:
    store = world.store()
    new = batch(world, b"a", b"b", source="p0", offset=5)
    first, second = store.save_messages([new, new])
    assert (first.error, second.error) == (None, None)
    assert (first.replayed, second.replayed) == (False, True)
    assert first.packet_ids == second.packet_ids == (1, 2)
    assert payloads(store) == [b"a", b"b"]


def test_batch_whose_answer_was_lost_is_stored_once(server_world: ServerWorld) -> None:
    checker = server_world.neighbour()
    expected: list[bytes] = []
    count = min(300, server_world.messages_per_save)
    for number in range(1, 9):
        store = server_world.store()
        new = batch(server_world, *numbered(count, number * 1_000), source="p0", offset=number)
        expected += numbered(count, number * 1_000)
        with server_world.after_step(store, number, lose_answer) as lost, suppress(QueuekeeperError):
            store.save_messages([new])
        report = save(store, new)
        assert report.stored == count
        assert payloads(checker) == expected
        if not lost():
            break
    else:
        pytest.fail("a save takes more steps than this test loses")


# Reconnect


def test_pages_are_bounded_by_messages(world: World) -> None:
    store = world.store()
    save(store, batch(world, *numbered(7)))
    found = list(pages(store, limit=3))
    assert [[m.packet_id for m in page.messages] for page in found] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [page.more for page in found] == [True, True, False]
    assert {page.backlog_serial for page in found} == {found[-1].messages[-1].serial}
    assert [page.after_serial for page in found] == [page.messages[-1].serial for page in found]


def test_pages_are_bounded_by_bytes(world: World) -> None:
    store = world.store()
    sizes = (1_000, 1_000, 1_000, 9_000, 10, 10, 1_000, 9_000)
    save(store, batch(world, *(b"x" * size for size in sizes)))
    found = list(pages(store, max_bytes=5_000))
    assert [len(m.payload) for page in found for m in page.messages] == list(sizes)
    for page in found:
        assert page.messages
        assert len(page.messages) == 1 or sum(len(m.payload) for m in page.messages) <= 5_000
    assert len(found) <= len(sizes)


def test_messages_saved_while_a_backlog_is_read_do_not_overtake_it(world: World) -> None:
    store, other = world.store(), world.store()
    save(store, batch(world, *numbered(6)))
    seen = []
    for number, page in enumerate(pages(store, limit=2)):
        seen += [m.payload for m in page.messages]
        report = save(other, batch(world, b"late-%d" % number))
        assert report.serials[0] is not None
        assert report.serials[0] > page.backlog_serial
        store.ack(C, [Ack(packet_id=m.packet_id, serial=m.serial) for m in page.messages])
    assert seen == list(numbered(6))
    assert payloads(store) == [b"late-0", b"late-1", b"late-2"]


def test_session_without_messages_has_an_empty_page(world: World) -> None:
    store = world.store()
    page = store.fetch_pending(C, mark_delivered=True)
    assert (page.messages, page.more, page.expired, page.unreadable) == ((), False, 0, 0)
    assert not store.inspect(C).exists
    save(store, batch(world, b"a"))
    assert payloads(store) == [b"a"]


def test_redelivery_is_known_to_a_store_that_has_just_started(world: World) -> None:
    save(world.store(), batch(world, *numbered(4)))
    assert [m.redelivery for m in pending(world.store())] == [False] * 4
    page = world.store().fetch_pending(C, limit=3, mark_delivered=True)
    assert [m.redelivery for m in page.messages] == [False] * 3
    save(world.store(), batch(world, b"new"))
    assert [m.redelivery for m in pending(world.store())] == [True, True, True, False, False]
    assert [m.redelivery for m in pending(world.store(), mark_delivered=True)] == [True, True, True, False, False]
    assert [m.redelivery for m in pending(world.store())] == [True] * 5


def test_note_of_delivery_never_goes_back(world: World) -> None:
    store = world.store()
    assert not store.mark_delivered(C, serial=5)
    assert not store.inspect(C).exists
    serials = save(store, batch(world, *numbered(3))).serials
    assert store.mark_delivered(C, serial=serials[1])
    assert not store.mark_delivered(C, serial=serials[0])
    assert not store.mark_delivered(C, serial=serials[1])
    assert [m.redelivery for m in pending(store)] == [True, True, False]
    assert store.mark_delivered(C, serial=serials[2])
    assert [m.redelivery for m in pending(store)] == [True, True, True]


def test_unreadable_record_is_put_aside_and_the_rest_delivered(world: World) -> None:
    store = world.store()
    ways = world.ways_to_spoil
    report = save(store, batch(world, *numbered(2 * len(ways) + 1)))
    for number, way in enumerate(ways):
        packet_id, serial = report.packet_ids[2 * number + 1], report.serials[2 * number + 1]
        assert packet_id is not None
        assert serial is not None
        world.spoil(C, packet_id, serial, way)
    good = [b"%d" % n for n in range(0, 2 * len(ways) + 1, 2)]

    assert store.inspect(C).messages == 2 * len(ways) + 1
    found = list(pages(store, limit=3))
    assert [m.payload for page in found for m in page.messages] == good
    assert sum(page.unreadable for page in found) == len(ways)
    [page] = pages(store)
    assert [m.payload for m in page.messages] == good
    assert page.unreadable == 0
    assert store.inspect(C).messages == len(good)


# Last packet id


def test_last_packet_id_is_set_only_when_it_is_the_expected_one(world: World) -> None:
    store = world.store()
    assert not store.set_last_packet_id(C, packet_id=9, expected=4)
    assert store.get_last_packet_id(C) is None
    assert store.set_last_packet_id(C, packet_id=9, expected=None)
    assert not store.set_last_packet_id(C, packet_id=11, expected=None)
    assert not store.set_last_packet_id(C, packet_id=11, expected=8)
    assert store.get_last_packet_id(C) == 9
    assert store.set_last_packet_id(C, packet_id=65_535, expected=9)
    assert world.store().get_last_packet_id(C) == 65_535
    assert save(store, batch(world, b"a")).packet_ids == (1,)
    assert payloads(store) == [b"a"]


def test_packet_ids_are_reserved_like_those_of_messages(world: World) -> None:
    store = world.store()
    assert store.reserve_packet_ids(C, count=3) == (1, 2, 3)
    assert save(world.store(), batch(world, b"a", b"b")).packet_ids == (4, 5)
    assert store.reserve_packet_ids(C, count=1) == (6,)
    assert store.set_last_packet_id(C, packet_id=65_534, expected=6)
    assert store.reserve_packet_ids(C, count=7) == (65_535, 1, 2, 3, 6, 7, 8)
    assert store.get_last_packet_id(C) == 8
    assert payloads(store) == [b"a", b"b"]
    assert len(set(store.reserve_packet_ids("other", count=1_000))) == 1_000


def test_packet_ids_are_reserved_atomically(server_world: ServerWorld) -> None:
    reserving: list[Work] = [lambda store: store.reserve_packet_ids(C, count=3)] * 8
    saving: list[Work] = [lambda store: store.save_messages([batch(server_world, b"a", b"b")])] * 8
    results = server_world.at_once([reserving, saving, reserving, saving])
    given: list[Any] = [*results[0], *results[2]]
    given += [report.packet_ids for [report] in (*results[1], *results[3])]
    assert sorted(packet_id for each in given for packet_id in each) == list(range(1, 81))


# Whole sessions


def test_purge_removes_everything_and_a_dry_run_nothing(world: World) -> None:
    store = world.store()
    save(store, batch(world, *numbered(5)), batch(world, b"b", client_id="other"))
    store.fetch_pending(C, mark_delivered=True)
    dry = store.purge_session(C, dry_run=True)
    assert (dry.client_id, dry.messages, dry.kept, dry.dry_run) == (C, 5, 0, True)
    assert ids(store) == [1, 2, 3, 4, 5]

    done = store.purge_session(C)
    assert (done.client_id, done.messages, done.kept, done.dry_run) == (C, 5, 0, False)
    assert pending(store) == []
    assert not store.inspect(C).exists
    assert store.get_last_packet_id(C) is None
    assert store.purge_session(C).messages == 0
    assert payloads(store, "other") == [b"b"]
    # Also to the store that remembers the session it knew.
    assert save(store, batch(world, b"new")).packet_ids == (1,)
    assert [m.redelivery for m in pending(store)] == [False]


def test_purge_of_a_session_without_messages_forgets_its_last_packet_id(world: World) -> None:
    store = world.store()
    assert store.set_last_packet_id(C, packet_id=7, expected=None)
    assert store.inspect(C).exists
    assert store.purge_session(C).messages == 0
    assert not store.inspect(C).exists


def test_purge_of_a_long_session_is_done_in_steps(world: World) -> None:
    store = world.store()
    size = min(2_500, world.messages_per_save)
    save(store, *(batch(world, *numbered(min(size, 2_500 - first), first)) for first in range(0, 2_500, size)))
    assert store.purge_session(C, dry_run=True).messages == 2_500
    assert store.purge_session(C).messages == 2_500
    assert not store.inspect(C).exists


def test_message_saved_while_a_session_is_purged_survives(server_world: ServerWorld) -> None:
    other = server_world.neighbour()

    def save_new() -> None:
        save(other, batch(server_world, b"new"))

    for number in range(1, 6):
        store = server_world.store()
        save(store, batch(server_world, *numbered(3)))
        with server_world.after_step(store, number, save_new) as saved:
            report = store.purge_session(C)
        assert report.messages == 3
        if saved():
            assert payloads(other) == [b"new"]
            assert other.ack(C, [Ack(packet_id=m.packet_id, serial=m.serial) for m in pending(other)]).removed == 1
        else:
            assert number > 1
            assert pending(other) == []
            break
    else:
        pytest.fail("a purge takes more steps than this test disturbs")


def test_inspect_describes_all_messages_without_content(world: World) -> None:
    store = world.store()
    assert not store.inspect(C).exists
    full = message(world, b"secret", **all_properties(world))
    report = save(store, SessionSave(client_id=C, messages=(full, message(world, b"ab"), message(world, b"abc"))))
    store.mark_released(C, packet_id=2)
    view = store.inspect(C)
    assert (view.exists, view.messages, view.last_packet_id, view.last_serial) == (True, 3, 3, report.serials[-1])
    assert tuple(m.serial for m in view.page) == report.serials
    assert [(m.packet_id, m.packet_type, m.payload_bytes) for m in view.page] == [
        (1, "PUBLISH", 6),
        (2, "PUBREL", 0),
        (3, "PUBLISH", 3),
    ]
    assert (view.page[0].qos, view.page[0].topic, view.page[0].time_ms) == (2, full.topic, full.time_ms)
    assert view.page[0].expires_at_ms == full.time_ms + 86_400_000
    assert "secret" not in repr(view)
    part = store.inspect(C, offset=1, limit=1)
    assert part.page == view.page[1:2]
    assert part.next_offset == 2


def test_inspect_says_what_has_become_of_messages(server_world: ServerWorld) -> None:
    world = server_world
    store = world.store(limit=3)
    over = message(world, time_ms=world.now_ms() - 10_000, expiry_interval_s=1)
    bad = message(world, expiry_interval_s=2**32)
    save(store, SessionSave(client_id=C, messages=(over, bad, bad, *(message(world) for _ in range(3)))))
    view = store.inspect(C)
    assert view.delivered_serial is None
    assert view.counts == SessionCounts(expired=1, refused=2)

    save(store, batch(world, b"one more"))
    fetched = pending(store, mark_delivered=True)
    world.spoil(C, fetched[1].packet_id, fetched[1].serial, world.ways_to_spoil[0])
    pending(store)

    view = world.store().inspect(C)
    assert view.delivered_serial == fetched[-1].serial
    assert view.counts == SessionCounts(expired=1, refused=2, trimmed=1, quarantined=1)
    assert store.inspect("nobody").counts is None


def test_peek_shows_a_message_and_changes_nothing(world: World) -> None:
    store = world.store()
    assert store.peek(C, packet_id=1) is None
    save(store, batch(world, b"a", b"b"))
    before = store.inspect(C)
    assert store.peek(C, packet_id=3) is None
    assert store.peek(C, packet_id=2).payload == b"b"
    assert store.inspect(C) == before
    assert [m.redelivery for m in pending(store)] == [False, False]


def test_exported_session_comes_back_byte_for_byte(world: World) -> None:
    store = world.store()
    for client_id in HOSTILE_IDS:
        _check_exported_session_comes_back(world, store, client_id)


def _check_exported_session_comes_back(world: World, store: Store, client_id: str) -> None:
    assert store.set_last_packet_id(client_id, packet_id=65_534, expected=None)
    full = message(world, bytes(range(256)), **all_properties(world))
    longest = message(world, b"", expiry_interval_s=2**32 - 1)
    new = (full, longest, message(world, b"body"), message(world, b"end", expiry_interval_s=None))
    report = save(store, SessionSave(client_id=client_id, messages=new))
    assert store.mark_released(client_id, packet_id=2) is Release.RELEASED
    store.ack(client_id, [Ack(packet_id=65_535)])
    save(store, SessionSave(client_id=client_id, messages=(full,)))
    before = pending(store, client_id)

    lines = export(store, client_id)
    assert len(lines) == 5
    assert all(isinstance(orjson.loads(line), dict) and b"\n" not in line for line in lines)
    store.purge_session(client_id)
    imported = store.import_session(client_id, iter(lines))

    assert (imported.client_id, imported.stored, imported.expired) == (client_id, 4, 0)
    assert imported.last_packet_id == 4
    assert export(store, client_id) == lines
    assert pending(store, client_id) == before
    assert store.get_last_packet_id(client_id) == 4
    following = save(store, batch(world, b"next", client_id=client_id))
    assert following.packet_ids == (5,)
    assert following.serials[0] == (report.serials[3] or 0) + 2


def test_session_without_messages_is_exported_and_imported(world: World) -> None:
    store = world.store()
    assert store.set_last_packet_id(C, packet_id=77, expected=None)
    lines = export(store, C)
    assert len(lines) == 1
    store.purge_session(C)
    imported = store.import_session(C, lines)
    assert (imported.stored, imported.expired, imported.last_packet_id) == (0, 0, 77)
    assert store.get_last_packet_id(C) == 77


# What is on the session's line, the packet ids that are acknowledged, and what the counter becomes.
COUNTERS_THAT_LAG: dict[str, tuple[int, int | None, list[int], int]] = {
    "behind the newest": (0, 1, [1], 4),
    "not on record": (0, None, [], 4),
    "ahead of all that wait": (0, 20_000, [], 20_000),
    "next is in use, across the end of the round": (65_533, 65_535, [65_534, 65_535], 2),
    "a gap, then ids in use": (0, 2, [3], 4),
    "right": (0, 9, [], 9),
}


@pytest.mark.parametrize("case", COUNTERS_THAT_LAG)
def test_save_after_an_import_gives_out_no_packet_id_that_waits_whatever_the_lines_say(world: World, case: str) -> None:
    before, told, gone, becomes = COUNTERS_THAT_LAG[case]
    store = world.store()
    if before:
        assert store.set_last_packet_id(C, packet_id=before, expected=None)
    save(store, batch(world, b"a", b"b", b"c", b"d"))
    store.ack(C, [Ack(packet_id=packet_id) for packet_id in gone])
    waiting = {each.packet_id for each in pending(store)}
    lines = export(store, C)
    session = orjson.loads(lines[0])
    (session.get("session") or session)["last_packet_id"] = told
    store.purge_session(C)
    imported = store.import_session(C, [orjson.dumps(session), *lines[1:]])

    assert imported.last_packet_id == store.get_last_packet_id(C) == becomes
    # A broker of TBMQ's gives out the following one without looking.
    assert becomes % 65_535 + 1 not in waiting
    assert save(store, batch(world, b"next")).packet_ids == (becomes % 65_535 + 1,)
    assert payloads(store)[-1] == b"next"
    assert len(pending(store)) == len(waiting) + 1


def test_import_counts_messages_whose_life_is_over(world: World) -> None:
    exported: list[list[bytes]] = []

    def use(store: Store, short: NewMessage) -> None:
        save_all(store, message(world, b"a"), short, message(world, b"b"))
        exported.append(export(store, C))
        store.purge_session(C)

    store = outlived(world, use)
    imported = store.import_session(C, exported[-1])
    assert (imported.stored, imported.expired, imported.last_packet_id) == (2, 1, 3)
    assert payloads(store) == [b"a", b"b"]


def test_import_into_an_existing_session_is_refused(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a"))
    lines = export(store, C)
    with pytest.raises(MovedOn, match=C):
        store.import_session(C, lines)
    store.ack(C, [Ack(packet_id=1)])
    with pytest.raises(MovedOn):
        store.import_session(C, lines)
    assert pending(store) == []


def test_import_names_the_line_that_is_broken_and_stores_nothing(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a", b"b", b"c"))
    lines = export(store, C)
    store.purge_session(C)
    for broken in (b"{", b"[]", b"\xff", b"null", b'{"surprise":1}'):
        for number in (1, 3):
            changed = [*lines]
            changed[number - 1] = broken
            with pytest.raises(UsageError, match=rf"line {number}\b"):
                store.import_session(C, changed)
    assert not store.inspect(C).exists


def test_import_counts_empty_lines_and_refuses_lines_of_text(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a", b"b"))
    lines = export(store, C)
    store.purge_session(C)
    with pytest.raises(UsageError, match=r"line 5\b"):
        store.import_session(C, [b"", b"\n", lines[0], lines[1], b"{"])
    for number, line in enumerate(lines, start=1):
        text: Any = [*lines[: number - 1], line.decode(), *lines[number:]]
        with pytest.raises(UsageError, match=rf"line {number} of lines is a str: it must be bytes"):
            store.import_session(C, text)
    assert not store.inspect(C).exists
    assert store.import_session(C, [b"\n", *lines, b""]).stored == 2


def test_import_refuses_an_unknown_field(world: World) -> None:
    store = world.store()
    save(store, batch(world, b"a"))
    lines = export(store, C)
    store.purge_session(C)
    for number, line in enumerate(lines):
        changed = [*lines]
        changed[number] = orjson.dumps(orjson.loads(line) | {"surprise": 1})
        with pytest.raises(UsageError, match=rf"line {number + 1}\b.*surprise"):
            store.import_session(C, changed)
    assert not store.inspect(C).exists


# Bad input


def test_too_large_payload_is_refused_before_anything_is_written(world: World) -> None:
    store = world.store(max_payload_bytes=1_000)
    saves = [
        batch(world, b"a", client_id="first"),
        batch(world, b"b", b"x" * 1_001, client_id="second"),
        batch(world, b"c", client_id="third"),
    ]
    with pytest.raises(UsageError, match=r"1001.*1000"):
        store.save_messages(saves)
    assert not any(store.inspect(client_id).exists for client_id in ("first", "second", "third"))
    assert save(store, batch(world, b"x" * 1_000)).stored == 1


BAD_CALLS: tuple[tuple[Work, str], ...] = (
    (lambda store: store.fetch_pending(""), "client.id is empty"),
    (lambda store: store.fetch_pending("a\0b"), "zero"),
    (lambda store: store.fetch_pending(7), "client.id is 7: it must be text"),
    (lambda store: store.fetch_pending(C, limit=0), "limit is 0"),
    (lambda store: store.fetch_pending(C, limit=10_001), "limit is 10001"),
    (lambda store: store.fetch_pending(C, max_bytes=0), "max_bytes is 0"),
    (lambda store: store.fetch_pending(C, after_serial=-2), "after_serial is -2: it must be -1 to"),
    (lambda store: store.fetch_pending(C, after_serial=2**63), "after_serial is 9223372036854775808: it must be"),
    (lambda store: store.fetch_pending(C, backlog_serial=2**63), "backlog_serial is 9223372036854775808: it must be"),
    (lambda store: store.ack("", [Ack(packet_id=1)]), "empty"),
    (lambda store: store.mark_delivered("", serial=1), "empty"),
    (lambda store: store.mark_delivered(C, serial=-1), "serial is -1: it must be 0 to"),
    (lambda store: store.mark_delivered(C, serial=2**63), "serial is 9223372036854775808: it must be 0 to"),
    (lambda store: store.mark_released("", packet_id=1), "empty"),
    (lambda store: store.mark_released(C, packet_id=0), "packet_id is 0: it must be 1 to 65535"),
    (lambda store: store.mark_released(C, packet_id=1, serial=2**63), "serial is 9223372036854775808: it must be"),
    (lambda store: store.mark_released(C, packet_id=65_536), "packet_id is 65536: it must be 1 to 65535"),
    (lambda store: store.mark_released(C, packet_id="1"), "packet_id is '1': it must be an integer"),
    (lambda store: store.purge_session(""), "empty"),
    (lambda store: store.get_last_packet_id(""), "empty"),
    (lambda store: store.set_last_packet_id("", packet_id=1, expected=None), "empty"),
    (lambda store: store.set_last_packet_id(C, packet_id=0, expected=None), "packet_id is 0"),
    (lambda store: store.set_last_packet_id(C, packet_id=70_000, expected=None), "packet_id is 70000"),
    (lambda store: store.set_last_packet_id(C, packet_id=1, expected=0), "expected is 0: it must be 1 to 65535"),
    (lambda store: store.set_last_packet_id(C, packet_id=1, expected=70_000), "expected is 70000: it must be 1 to"),
    (lambda store: store.reserve_packet_ids("", count=1), "empty"),
    (lambda store: store.reserve_packet_ids(C, count=0), "count is 0: it must be 1 to 1000"),
    (lambda store: store.reserve_packet_ids(C, count=1_001), "count is 1001: it must be 1 to 1000"),
    (lambda store: store.inspect(""), "empty"),
    (lambda store: store.inspect(C, offset=-1), "offset is -1"),
    (lambda store: store.inspect(C, offset=2**63), "offset is 9223372036854775808: it must be"),
    (lambda store: store.inspect(C, limit=10_001), "limit is 10001"),
    (lambda store: store.peek("", packet_id=1), "empty"),
    (lambda store: store.peek(C, packet_id=-1), "packet_id is -1"),
    (lambda store: store.export_session(""), "empty"),
    (lambda store: store.export_session(C, limit=0), "limit is 0"),
    (lambda store: store.import_session("", []), "empty"),
)


def test_bad_parameter_is_named_with_its_value_and_the_rule(world: World) -> None:
    store = world.store()
    for call, words in BAD_CALLS:
        with pytest.raises(UsageError, match=words):
            call(store)
    assert not store.inspect(C).exists


GOOD = NewMessage(topic="t", payload=b"", qos=1, time_ms=0)
BAD_MESSAGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"qos": 0}, r"qos is 0: only QoS 1 and 2"),
    ({"qos": 3}, r"qos is 3: only QoS 1 and 2"),
    ({"qos": True}, r"qos is True"),
    ({"payload": "text"}, r"payload is a str: it must be bytes"),
    ({"topic": b"t"}, r"topic is a bytes: it must be text"),
    ({"topic": "a\0b"}, r"topic holds a zero character"),
    ({"topic": "\ud800"}, r"topic holds half a surrogate pair"),
    ({"topic": "ä" * 32_768}, r"topic has 65536 bytes: MQTT carries at most 65535"),
    ({"time_ms": -1}, r"time_ms is -1: it must be 0 to"),
    ({"time_ms": 253_402_300_800_000}, r"time_ms is 253402300800000: it must be 0 to 253402300799999"),
    ({"topic": ""}, r"topic is empty: a message needs one"),
    ({"correlation_data": b"x" * 65_536}, r"correlation_data has 65536 bytes: MQTT carries at most 65535"),
    ({"content_type": "ä" * 32_768}, r"content_type has 65536 bytes: MQTT carries at most 65535"),
    ({"response_topic": "a\0b"}, r"response_topic holds a zero character"),
    ({"user_properties": (("a", "\0"),)}, r"user property value holds a zero character"),
    ({"user_properties": (("a" * 65_536, "b"),)}, r"user property name has 65536 bytes: MQTT carries at most 65535"),
    ({"time_ms": 1.5}, r"time_ms is 1.5: it must be an integer"),
    ({"retain": 1}, r"retain is 1: it must be True or False"),
    ({"expiry_interval_s": "60"}, r"expiry_interval_s is a str: it must be an integer"),
    ({"expiry_interval_s": True}, r"expiry_interval_s is True: it must be an integer"),
    ({"payload_format_indicator": 2}, r"payload_format_indicator is 2: it must be 0 to 1"),
    ({"content_type": 5}, r"content_type is 5: it must be text"),
    ({"response_topic": b""}, r"response_topic is a bytes: it must be text"),
    ({"correlation_data": "x"}, r"correlation_data is a str: it must be bytes"),
    ({"user_properties": (("a",),)}, r"user_properties holds a tuple: each must be a pair"),
    ({"user_properties": (("a", 1),)}, r"user property value is 1: it must be text"),
    ({"subscription_ids": (0,)}, r"subscription_id is 0: it must be 1 to 268435455"),
    ({"subscription_ids": (268_435_456,)}, r"subscription_id is 268435456"),
)


@pytest.mark.parametrize(("fields", "words"), BAD_MESSAGES)
def test_bad_message_is_refused_before_any_store_sees_it(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(GOOD, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": b"secret"},
        {"payload": "secret"},
        {"correlation_data": "secret"},
        {"user_properties": [("name", "secret")]},
        {"user_properties": (["name", "secret"],)},
        {"user_properties": (("name", b"secret"),)},
        {"subscription_ids": ["secret"]},
    ],
)
def test_refusal_of_a_message_does_not_show_what_was_published(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"(it|each) must be") as refused:
        replace(GOOD, **fields)
    assert "secret" not in str(refused.value)


def _bad(make: Callable[[], object], words: str) -> Any:
    return pytest.param(make, words, id=words)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        _bad(lambda: SessionSave(client_id="", messages=(GOOD,)), "client.id is empty"),
        _bad(lambda: SessionSave(client_id=C, messages=()), "has no messages"),
        _bad(lambda: SessionSave(client_id=C, messages=(GOOD,) * 5_001), "has 5001 messages: at most 5000"),
        _bad(lambda: SessionSave(client_id=C, messages=(GOOD,), source="p"), "source and offset go together"),
        _bad(lambda: SessionSave(client_id=C, messages=(GOOD,), offset=1), "source and offset go together"),
        _bad(lambda: SessionSave(client_id=C, messages=(GOOD,), source="", offset=1), "source is empty"),
        _bad(lambda: SessionSave(client_id=C, messages=(GOOD,), source="p", offset=-1), "offset is -1"),
        _bad(lambda: Ack(packet_id=0), "packet_id is 0: it must be 1 to 65535"),
        _bad(lambda: Ack(packet_id=65_536), "packet_id is 65536: it must be 1 to 65535"),
        _bad(lambda: Ack(packet_id=1, serial=-2), "serial is -2: it must be -1 to"),
        _bad(lambda: Ack(packet_id=1, serial=2**53), "serial is 9007199254740992: it must be -1 to"),
        _bad(lambda: Ack(packet_id=1, serial=True), "serial is True: it must be an integer"),
        _bad(lambda: StoreRules(limit=0), "limit is 0: it must be 1 to 65535"),
        _bad(lambda: StoreRules(limit=65_536), "limit is 65536: it must be 1 to 65535"),
        _bad(lambda: StoreRules(default_ttl_s=0), "default_ttl_s is 0: it must be 1 to"),
        _bad(lambda: StoreRules(session_expiry_s=-1), "session_expiry_s is -1"),
        _bad(lambda: StoreRules(max_payload_bytes=0), "max_payload_bytes is 0"),
    ],
)
def test_bad_parameter_is_refused_before_any_store_sees_it(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# Many writers at once


def _writer(world: World, name: str, client_ids: Sequence[str], *, rounds: int) -> list[Work]:
    """Return saves of three numbered messages each, round after round, for one client after the other."""

    def work(number: int, store: Store) -> Any:
        client_id = client_ids[number % len(client_ids)]
        texts = [f"{name}:{3 * number + n}".encode() for n in range(3)]
        return store.save_messages([batch(world, *texts, client_id=client_id, source=name, offset=number)])

    return [partial(work, number) for number in range(rounds)]


@pytest.mark.parametrize("client_ids", [[C], ["c-1", "c-2", "c-3", "c-4"]], ids=["one-client", "many-clients"])
def test_many_writers_lose_and_duplicate_nothing(server_world: ServerWorld, client_ids: list[str]) -> None:
    names = [f"writer-{n}" for n in range(6)]
    results = server_world.at_once([_writer(server_world, name, client_ids, rounds=12) for name in names])
    reports = [report for plan in results for [report] in plan]
    assert [report.error for report in reports] == [None] * len(reports)
    assert not any(report.replayed for report in reports)
    store = server_world.store()
    found = {client_id: pending(store, client_id, limit=50) for client_id in client_ids}
    for client_id in client_ids:
        ours = [report for report in reports if report.client_id == client_id]
        reported = sorted((p, s) for report in ours for p, s in zip(report.packet_ids, report.serials, strict=True))
        assert reported == sorted((m.packet_id, m.serial) for m in found[client_id])
        assert store.get_last_packet_id(client_id) == len(found[client_id])
        for name in names:
            # What one writer saved for a client waits in the writer's order.
            numbers = [int(m.payload.split(b":")[1]) for m in found[client_id] if m.payload.startswith(name.encode())]
            assert numbers == sorted(numbers)
    everything = Counter(m.payload for each in found.values() for m in each)
    assert everything == Counter(f"{name}:{n}".encode() for name in names for n in range(36))


def test_writers_readers_and_acks_at_once_leave_no_trace(server_world: ServerWorld) -> None:
    """What is saved, delivered and acknowledged at the same time ends as an empty session in which nothing was lost."""
    writers = [_writer(server_world, f"writer-{n}", [C], rounds=10) for n in range(3)]
    delivered: Counter[bytes] = Counter()

    def ack_all(page: PendingPage) -> list[Ack]:
        delivered.update(m.payload for m in page.messages)
        return [Ack(packet_id=m.packet_id, serial=m.serial) for m in page.messages]

    seen: list[PendingPage] = []

    def fetch(store: Store) -> Any:
        return store.fetch_pending(C, limit=7)

    readers: list[list[Work]] = [[fetch] * 20]
    for _ in range(2):
        results = server_world.at_once([*writers, *readers])
        seen += results[-1]
        writers = []
    for page in seen:
        serials = [m.serial for m in page.messages]
        assert serials == sorted(set(serials))
    store = server_world.store()
    while (page := store.fetch_pending(C, limit=7)).messages:
        acks = ack_all(page)
        assert store.ack(C, acks).removed == len(acks)
    assert delivered == Counter(f"writer-{w}:{n}".encode() for w in range(3) for n in range(30))


def test_limit_holds_with_many_writers(server_world: ServerWorld) -> None:
    names = [f"writer-{n}" for n in range(4)]
    results = server_world.at_once([_writer(server_world, name, [C], rounds=8) for name in names], limit=10)
    reports = [report for plan in results for [report] in plan]
    assert [report.error for report in reports] == [None] * len(reports)
    found = pending(server_world.store())
    assert len(found) == 10
    assert sum(report.trimmed for report in reports) == 4 * 8 * 3 - 10
    newest = sorted(serial for report in reports for serial in report.serials if serial is not None)[-10:]
    assert [m.serial for m in found] == newest


# Keys in Redis


def _expiries(world: RedisWorld, client_id: str = C) -> list[int]:
    keys = sorted(world.client.scan_iter(match=f"{{{client_id}}}*"))
    own = [key for key in keys if b"_messages_" not in key]
    return [world.client.execute_command("PEXPIRETIME", key) for key in own]


def test_keys_of_a_session_do_not_outlive_it(redis_world: RedisWorld) -> None:
    store = redis_world.store(session_expiry_s=7_200)
    new = message(redis_world, b"a")
    save(store, SessionSave(client_id=C, messages=(new,)))
    until = new.time_ms + 3 * HOUR_MS
    assert len(_expiries(redis_world)) == redis_world.own_keys[0]
    assert all(until <= expiry <= until + HOUR_MS for expiry in _expiries(redis_world))

    longer = message(redis_world, b"b", expiry_interval_s=36_000)
    save(store, SessionSave(client_id=C, messages=(longer,)))
    until = longer.time_ms + 12 * HOUR_MS
    assert all(until <= expiry <= until + HOUR_MS for expiry in _expiries(redis_world))

    save(store, batch(redis_world, b"c"))
    store.fetch_pending(C, mark_delivered=True)
    store.mark_released(C, packet_id=1)
    store.ack(C, [Ack(packet_id=1), Ack(packet_id=2), Ack(packet_id=3)])
    assert len(_expiries(redis_world)) == redis_world.own_keys[1]
    assert all(until <= expiry <= until + HOUR_MS for expiry in _expiries(redis_world))


def test_session_that_never_expires_has_keys_that_never_do(redis_world: RedisWorld) -> None:
    save(redis_world.store(), batch(redis_world, b"a"))
    save(redis_world.store(session_expiry_s=None), batch(redis_world, b"b"))
    assert _expiries(redis_world) == [-1] * redis_world.own_keys[0]


def test_everything_refused_leaves_no_key_for_ever(redis_world: RedisWorld) -> None:
    store = redis_world.store()
    save(store, SessionSave(client_id=C, messages=(message(redis_world, expiry_interval_s=0),)))
    assert -1 not in _expiries(redis_world)
