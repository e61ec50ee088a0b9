"""Sessions in Redis that change owners: snapshots, what PostgreSQL does not know yet, and callers who know epochs."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from queuekeeper import lua
from queuekeeper.errors import MovedOn, NotOwner, StaleEpoch, UnreadableRecord, UsageError
from queuekeeper.keyspace import is_scattered, packed_keys, payload_key, session_keys
from queuekeeper.redis_async import connect as connect_async
from queuekeeper.redis_client import connect, is_cluster, nodes
from queuekeeper.sessions.by_layout import operations_of
from queuekeeper.sessions.model import OWNER_OF, Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.owners import Ownership
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore, RedisSessionStore
from queuekeeper.sessions.reports import PurgeReport, SaveReport
from queuekeeper.sessions.snapshot import ApplyReport, Outbox, SessionSnapshot, SourceBatch, differences

pytestmark = pytest.mark.conformance

CLIENT_IDS = ("meter-7", "}brace", "a{b}c", "смарт-😀", "line\nbreak")


def message(payload: bytes = b"x", *, life_s: int | None = 3_600, **properties: Any) -> NewMessage:
    now_ms = time.time_ns() // 1_000_000
    return NewMessage(topic="t", payload=payload, qos=1, time_ms=now_ms, expiry_interval_s=life_s, **properties)


def save(store: RedisSessionStore, client_id: str, *messages: NewMessage, **options: Any) -> SaveReport:
    (report,) = store.save_messages([SessionSave(client_id=client_id, messages=messages or (message(),), **options)])
    return report


@pytest.fixture(params=["valkey_url", "redis_cluster_url"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    with connect(request.getfixturevalue(request.param)) as found:
        yield found


@pytest.fixture(params=CLIENT_IDS)
def client_id(request: pytest.FixtureRequest, client: Any) -> str:
    """Any id that the server serves: one that a cluster refuses has a letter before it there."""
    given: str = request.param
    return f"a{given}" if is_cluster(client) and is_scattered(given) else given


@pytest.fixture(params=Layout)
def layout(request: pytest.FixtureRequest) -> Layout:
    """Layout of the copy."""
    found: Layout = request.param
    return found


@pytest.fixture(params=Layout)
def source_layout(request: pytest.FixtureRequest) -> Layout:
    """Layout of the source."""
    found: Layout = request.param
    return found


@pytest.fixture
def source(client: Any, source_layout: Layout) -> RedisSessionStore:
    """A store that stands for the one that sessions come from."""
    return RedisSessionStore(client, prefix="from:", layout=source_layout)


@pytest.fixture
def copy(client: Any, layout: Layout) -> RedisSessionStore:
    """The store that sessions are copied to."""
    return RedisSessionStore(client, prefix="to:", layout=layout)


UNREADABLE = r"^the message with serial 1 of 'a' cannot be read: set it aside"


def expire(client: Any, layout: Layout, packet_id: int, *, prefix: str = "") -> None:
    """End the life of a message of session a, whose serial is its packet id, as time would."""
    if layout is Layout.TBMQ:
        client.delete(payload_key("a", packet_id, prefix=prefix))
    else:
        key = packed_keys("a", prefix=prefix).session
        record = client.hget(key, packet_id)
        client.hset(key, packet_id, record[:2] + struct.pack(">d", 1) + record[10:])


def spoil(client: Any, layout: Layout, packet_id: int, *, prefix: str = "") -> None:
    """Make a record of session a unreadable."""
    if layout is Layout.TBMQ:
        client.set(payload_key("a", packet_id, prefix=prefix), "broken", keepttl=True)
    else:
        client.hset(packed_keys("a", prefix=prefix).session, packet_id, "broken")


def filled(store: RedisSessionStore, client_id: str) -> SessionSnapshot:
    save(
        store,
        client_id,
        message(b"plain", life_s=None),
        message(
            b"\0\xff",
            content_type="text",
            response_topic="r/é",
            correlation_data=b"\1",
            user_properties=(("k", "v"), ("k", "w")),
            subscription_ids=(1, 268_435_455),
            payload_format_indicator=1,
            retain=True,
        ),
        source="p0",
        offset=7,
    )
    save(store, client_id, message(b"third", life_s=2**32 - 1), source="p1", offset=0)
    save(store, client_id, message(b"gone"))
    store.mark_delivered(client_id, serial=2)
    store.mark_released(client_id, packet_id=1)
    store.ack(client_id, [Ack(packet_id=4)])
    return store.read_snapshot(client_id)


def test_snapshot_says_all_that_another_store_has_to_know(source: RedisSessionStore, client_id: str) -> None:
    found = filled(source, client_id)

    assert replace(found, messages=()) == SessionSnapshot(
        client_id=client_id,
        last_packet_id=4,
        last_serial=4,
        delivered_serial=2,
        batches=(SourceBatch(source="p0", offset=7), SourceBatch(source="p1", offset=0)),
    )
    assert found.messages == source.fetch_pending(client_id).messages
    assert [each.packet_type for each in found.messages] == ["PUBREL", "PUBLISH", "PUBLISH"]


def test_snapshot_of_no_session_is_empty(source: RedisSessionStore) -> None:
    assert source.read_snapshot("nobody") == SessionSnapshot(
        client_id="nobody", last_packet_id=None, last_serial=None, delivered_serial=None
    )


def test_copy_is_equal_and_stays_so_when_it_is_made_again(
    source: RedisSessionStore, copy: RedisSessionStore, client_id: str
) -> None:
    wanted = filled(source, client_id)

    assert copy.apply_snapshot(client_id, wanted, epoch=3, driver=1) == ApplyReport(written=3, removed=0)
    found = copy.read_snapshot(client_id)
    assert differences(wanted, found) == []
    assert found == wanted
    assert copy.apply_snapshot(client_id, wanted, epoch=3, driver=1) == ApplyReport(written=0, removed=0)
    view = copy.inspect(client_id)
    assert (view.owner, view.epoch, view.messages) == ("postgres", 3, 3)


def test_copy_of_a_long_session_is_made_in_bounded_calls(source: RedisSessionStore, copy: RedisSessionStore) -> None:
    save(source, "a", *(message(b"%d" % n) for n in range(1_100)))
    save(source, "a", *(message(bytes(200_000)) for _ in range(6)))
    wanted = source.read_snapshot("a")
    steps: list[lua.Call] = []
    answer = copy.answer

    def noting(step: Any) -> Any:
        steps.extend(step)
        return answer(step)

    copy.answer = noting  # type: ignore[method-assign]

    assert copy.apply_snapshot("a", wanted, epoch=1, driver=1).written == 1_106

    calls = [call for call in steps if call.script.name.endswith("/sync_session")]
    assert max(len(call.keys) + len(call.args) for call in calls) < 3 * 256 + 3 * 256 + 20
    assert max(sum(len(value) for value in call.args if isinstance(value, bytes)) for call in calls) < 1_000_000
    assert copy.read_snapshot("a") == wanted
    emptied = replace(wanted, messages=())
    assert copy.apply_snapshot("a", emptied, epoch=1, driver=1) == ApplyReport(written=0, removed=1_106)
    assert copy.read_snapshot("a") == emptied


def test_only_what_has_changed_is_written(source: RedisSessionStore, copy: RedisSessionStore) -> None:
    copy.apply_snapshot("a", filled(source, "a"), epoch=1, driver=1)
    source.ack("a", [Ack(packet_id=2)])
    source.mark_released("a", packet_id=3)
    save(source, "a", source="p1", offset=1)

    report = copy.apply_snapshot("a", source.read_snapshot("a"), epoch=1, driver=1)

    assert report == ApplyReport(written=2, removed=1)
    assert copy.read_snapshot("a") == source.read_snapshot("a")


def test_changes_are_applied_by_their_serials_alone(source: RedisSessionStore, copy: RedisSessionStore) -> None:
    save(source, "a", *(message() for _ in range(20)))
    copy.apply_snapshot("a", source.read_snapshot("a"), epoch=1, driver=1)
    source.ack("a", [Ack(packet_id=n) for n in (2, 3, 9, 17)])
    save(source, "a", message(b"new"))
    serials = [21, 9, 2, 3, 999]

    wanted = source.read_snapshot("a", serials=serials)
    report = copy.apply_snapshot("a", wanted, epoch=1, driver=1, serials=serials)

    assert [each.serial for each in wanted.messages] == [21]
    assert (wanted.last_packet_id, wanted.last_serial) == (21, 21)
    assert report == ApplyReport(written=1, removed=3)
    (left,) = differences(source.read_snapshot("a"), copy.read_snapshot("a"))
    assert (left.what, left.serial, left.expected) == ("message", 17, "")
    assert copy.apply_snapshot("a", wanted, epoch=1, driver=1, serials=[17]) == ApplyReport(written=0, removed=1)
    assert copy.read_snapshot("a") == source.read_snapshot("a")


def test_no_serials_change_the_session_alone(source: RedisSessionStore, copy: RedisSessionStore) -> None:
    copy.apply_snapshot("a", filled(source, "a"), epoch=1, driver=1)
    source.set_last_packet_id("a", packet_id=77, expected=4)
    source.mark_delivered("a", serial=3)

    report = copy.apply_snapshot("a", source.read_snapshot("a", serials=[]), epoch=1, driver=1, serials=[])

    assert report == ApplyReport(written=0, removed=0)
    assert copy.read_snapshot("a") == source.read_snapshot("a")


def test_sources_that_are_forgotten_are_forgotten_in_the_copy(
    source: RedisSessionStore, copy: RedisSessionStore
) -> None:
    wanted = filled(source, "a")
    copy.apply_snapshot("a", wanted, epoch=1, driver=1)
    many = tuple(SourceBatch(source=f"s{n:03}", offset=n) for n in range(300))
    for batches in (wanted.batches[:1], many, ()):
        copy.apply_snapshot("a", replace(wanted, batches=batches), epoch=1, driver=1)
        assert copy.read_snapshot("a").batches == batches


def test_source_that_was_forgotten_and_saves_again_is_known_once(
    source: RedisSessionStore, copy: RedisSessionStore
) -> None:
    """Its mirror would refuse a batch that is there twice, and the session could not go back."""
    wanted = filled(source, "a")
    copy.apply_snapshot("a", wanted, epoch=1, driver=1)
    copy.apply_snapshot("a", replace(wanted, batches=()), epoch=1, driver=1)
    copy.set_owner("a", epoch=2, owner="redis", mirrored=True)

    save(copy, "a", message(), source="p0", offset=9)

    assert copy.read_snapshot("a").batches == (SourceBatch(source="p0", offset=9),)


def test_batch_that_was_saved_elsewhere_is_answered_as_forgotten(
    source: RedisSessionStore, copy: RedisSessionStore
) -> None:
    copy.apply_snapshot("a", filled(source, "a"), epoch=1, driver=1)
    copy.set_owner("a", epoch=2, owner="redis", mirrored=True)

    repeated = save(copy, "a", message(), message(), source="p0", offset=7)
    following = save(copy, "a", message(), source="p0", offset=8)

    assert (repeated.replayed, repeated.forgotten, repeated.error) == (True, True, None)
    assert (following.serials, following.packet_ids, following.replayed) == ((5,), (5,), False)
    assert copy.read_snapshot("a").batches[0] == SourceBatch(source="p0", offset=8)


def test_messages_whose_life_ended_are_in_no_snapshot(
    source: RedisSessionStore, client: Any, source_layout: Layout
) -> None:
    save(source, "a", message(), message())
    expire(client, source_layout, 1, prefix="from:")

    assert [each.serial for each in source.read_snapshot("a").messages] == [2]


def test_what_nobody_can_read_is_no_snapshot(source: RedisSessionStore, client: Any, source_layout: Layout) -> None:
    save(source, "a", message())
    spoil(client, source_layout, 1, prefix="from:")

    with pytest.raises(UnreadableRecord, match=UNREADABLE):
        source.read_snapshot("a")


def test_reference_to_what_is_no_message_is_no_snapshot(client: Any) -> None:
    source = RedisSessionStore(client)
    save(source, "a", message())
    client.zadd(session_keys("a").messages, {"another": 1})

    with pytest.raises(UnreadableRecord, match=UNREADABLE):
        source.read_snapshot("a")


def test_unreadable_record_of_a_copy_is_named_and_written_over(
    source: RedisSessionStore, copy: RedisSessionStore, client: Any, layout: Layout
) -> None:
    wanted = filled(source, "a")
    copy.apply_snapshot("a", wanted, epoch=1, driver=1)
    spoil(client, layout, 2, prefix="to:")

    assert copy.read_copy("a")[1] == (2,)
    assert copy.apply_snapshot("a", wanted, epoch=1, driver=1) == ApplyReport(written=1, removed=0)
    assert copy.read_copy("a") == (wanted, ())


def test_copy_of_a_session_that_is_redis_s_is_refused(source: RedisSessionStore, copy: RedisSessionStore) -> None:
    wanted = filled(source, "a")
    with pytest.raises(MovedOn):
        source.apply_snapshot("a", wanted, epoch=1, driver=1)
    copy.apply_snapshot("a", wanted, epoch=5, driver=1)
    with pytest.raises(StaleEpoch):
        copy.apply_snapshot("a", wanted, epoch=4, driver=1)
    copy.set_owner("a", epoch=6, owner="redis")
    with pytest.raises(NotOwner):
        copy.apply_snapshot("a", wanted, epoch=7, driver=1)


# What PostgreSQL does not know yet.


def test_outbox_holds_what_has_changed_until_it_is_trimmed(copy: RedisSessionStore) -> None:
    assert copy.read_outbox("a") is None
    assert copy.set_owner("a", epoch=3, owner="redis", mirrored=True)
    assert copy.read_outbox("a") is None
    before_ms = time.time_ns() // 1_000_000
    save(copy, "a", *(message() for _ in range(5)))
    copy.ack("a", [Ack(packet_id=2)])

    found = copy.read_outbox("a")

    assert found is not None
    assert found == Outbox(client_id="a", epoch=3, version=2, since_ms=found.since_ms, serials=(1, 2, 3, 4, 5))
    assert before_ms <= found.since_ms <= time.time_ns() // 1_000_000
    copy.mark_delivered("a", serial=4)
    assert not copy.trim_outbox("a", epoch=3, version=found.version)
    assert copy.trim_outbox("a", epoch=3, version=found.version + 1)
    assert copy.read_outbox("a") is None
    copy.mark_delivered("a", serial=5)
    only_session = copy.read_outbox("a")
    assert only_session is not None
    assert (only_session.serials, only_session.version) == ((), 4)
    copy.purge_session("a")
    purged = copy.read_outbox("a")
    assert purged is not None
    assert purged.serials is None
    with pytest.raises(StaleEpoch):
        copy.trim_outbox("a", epoch=4, version=purged.version)


def test_outboxes_of_many_sessions_are_read_at_once(copy: RedisSessionStore) -> None:
    names = [f"c{n}" for n in range(20)]
    for name in names:
        copy.set_owner(name, epoch=1, owner="redis", mirrored=True)
    copy.save_messages([SessionSave(client_id=name, messages=(message(),)) for name in names[::2]])

    found = copy.read_outboxes([*names, "nobody"])

    assert list(found) == names[::2]
    assert {outbox.serials for outbox in found.values()} == {(1,)}
    assert copy.read_outboxes([]) == {}


def test_every_change_of_a_mirrored_session_is_noted_and_counted(client: Any, layout: Layout) -> None:
    store = RedisSessionStore(client, layout=layout, rules=StoreRules(limit=6))
    store.set_owner("a", epoch=3, owner="redis", mirrored=True)
    noted = []

    def note(change: object) -> None:
        outbox = store.read_outbox("a")
        noted.append(None if outbox is None else outbox.serials)
        if outbox is not None:
            store.trim_outbox("a", epoch=3, version=outbox.version)

    note(save(store, "a", *(message() for _ in range(6)), source="p0", offset=1))
    note(save(store, "a", message(), message()))
    note(store.mark_delivered("a", serial=3))
    note(store.mark_delivered("a", serial=2))
    note(store.mark_released("a", packet_id=3))
    note(store.ack("a", [Ack(packet_id=4), Ack(packet_id=5), Ack(packet_id=60)]))
    note(store.ack("a", [Ack(packet_id=4)]))
    note(store.reserve_packet_ids("a", count=2))
    note(store.set_last_packet_id("a", packet_id=99, expected=10))
    note(store.set_last_packet_id("a", packet_id=98, expected=10))
    note(save(store, "a", message(life_s=0), source="p0", offset=2))
    spoil(client, layout, 6)
    note(store.fetch_pending("a"))

    assert noted == [
        (1, 2, 3, 4, 5, 6), (1, 2, 7, 8), (), None, (3,), (4, 5), None, (), (), None, (), (6,),
    ]  # fmt: skip
    view = store.inspect("a")
    assert (view.messages, [each.serial for each in view.page]) == (3, [3, 7, 8])
    store.set_owner("a", epoch=4, owner="redis")
    assert store.inspect("a").messages == 3
    save(store, "a", message())
    assert store.read_outbox("a") is None


def test_purge_of_a_mirrored_session_leaves_owner_and_note_and_what_came_meanwhile(client: Any, layout: Layout) -> None:
    store = RedisSessionStore(client, layout=layout)
    store.set_owner("a", epoch=3, owner="redis", mirrored=True)
    save(store, "a", *(message() for _ in range(600)), source="p0", offset=1)
    outbox = store.read_outbox("a")
    assert outbox is not None
    store.trim_outbox("a", epoch=3, version=outbox.version)
    answer, steps = store.answer, 0

    def meanwhile(step: Any) -> Any:
        nonlocal steps
        steps += 1
        replies = answer(step)
        if steps == 4:
            save(RedisSessionStore(client, layout=layout), "a", message(b"new"))
        return replies

    store.answer = meanwhile  # type: ignore[method-assign]
    assert store.purge_session("a") == PurgeReport(client_id="a", messages=600, kept=1, dry_run=False)
    assert [each.payload for each in store.fetch_pending("a").messages] == [b"new"]
    assert store.purge_session("a").messages == 1
    outbox = store.read_outbox("a")
    assert outbox is not None
    assert outbox.serials is None
    view = store.inspect("a")
    assert (view.exists, view.messages, view.owner, view.epoch) == (False, 0, "redis", 3)
    # It begins anew: nothing is known of batches and packet ids.
    report = save(store, "a", message(), source="p0", offset=1)
    assert (report.packet_ids, report.serials, report.replayed) == ((1,), (1,), False)
    store.set_owner("a", epoch=4, owner="redis")
    assert store.purge_session("a").messages == 1
    assert everything(client) == {}


def test_mirrored_session_does_not_expire_until_its_mirror_ends(client: Any, layout: Layout) -> None:
    store = RedisSessionStore(client, layout=layout, rules=StoreRules(session_expiry_s=3_600))
    save(store, "a", message())
    key = (session_keys("a") if layout is Layout.TBMQ else packed_keys("a")).session
    assert client.pexpiretime(key) > 0
    store.set_owner("a", epoch=3, owner="redis", mirrored=True)
    store.reserve_packet_ids("a", count=1)
    assert client.pexpiretime(key) == -1
    store.set_owner("a", epoch=4, owner="redis")
    assert client.pexpiretime(key) > 0


def test_export_that_is_restored_into_a_mirrored_session_is_noted(client: Any, layout: Layout) -> None:
    epochs = {"a": 3}
    store = RedisSessionStore(client, layout=layout, epoch_of=epochs.get)
    save(RedisSessionStore(client, prefix="from:"), "a", message(), message())
    lines = RedisSessionStore(client, prefix="from:").export_session("a").lines
    store.set_owner("a", epoch=3, owner="redis", mirrored=True)

    assert store.import_session("a", lines).stored == 2

    outbox = store.read_outbox("a")
    assert outbox is not None
    assert outbox.serials is None
    store.trim_outbox("a", epoch=3, version=outbox.version)
    save(store, "a", message())
    outbox = store.read_outbox("a")
    assert outbox is not None
    assert outbox.serials == (3,)
    epochs["a"] = 4
    assert isinstance(store.save_messages([SessionSave(client_id="a", messages=(message(),))])[0].error, StaleEpoch)


# Callers who know epochs.

WRITES: dict[str, Callable[[RedisSessionStore], Any]] = {
    "ack": lambda store: store.ack("a", [Ack(packet_id=1)]),
    "mark_released": lambda store: store.mark_released("a", packet_id=1),
    "mark_delivered": lambda store: store.mark_delivered("a", serial=2),
    "fetch_pending": lambda store: store.fetch_pending("a", mark_delivered=True),
    "purge_session": lambda store: store.purge_session("a"),
    "set_last_packet_id": lambda store: store.set_last_packet_id("a", packet_id=9, expected=2),
    "reserve_packet_ids": lambda store: store.reserve_packet_ids("a", count=2),
}


def everything(client: Any) -> dict[Any, Any]:
    return {key: node.dump(key) for _, node in nodes(client) for key in node.keys("*")}


@pytest.fixture
def epochs() -> dict[str, int | None]:
    """Epochs as the caller of ``knowing`` knows them."""
    return {}


@pytest.fixture
def knowing(client: Any, epochs: dict[str, int | None], layout: Layout) -> RedisSessionStore:
    """A store of a caller who knows epochs, with a session of two messages."""
    store = RedisSessionStore(client, epoch_of=epochs.get, layout=layout)
    save(store, "a", message(), message())
    return store


@pytest.mark.parametrize("write", WRITES)
def test_write_under_another_epoch_is_refused_and_under_its_own_done(
    client: Any, knowing: RedisSessionStore, epochs: dict[str, int | None], write: str
) -> None:
    knowing.set_owner("a", epoch=5, owner="redis", mirrored=True)
    before = everything(client)
    for known in (4, 6):
        epochs["a"] = known
        with pytest.raises(StaleEpoch, match=r"^epoch 5 owns the session: ask for its owner$"):
            WRITES[write](knowing)
        assert everything(client) == before
    epochs["a"] = 5
    WRITES[write](knowing)
    assert everything(client) != before


@pytest.mark.parametrize("owner", ["postgres", "fenced"])
@pytest.mark.parametrize("write", WRITES)
def test_write_to_a_session_of_postgres_is_refused(
    client: Any, knowing: RedisSessionStore, epochs: dict[str, int | None], write: str, owner: str
) -> None:
    knowing.set_owner("a", epoch=5, owner=owner)
    before = everything(client)
    for known in (None, 5):
        epochs["a"] = known
        with pytest.raises(NotOwner):
            WRITES[write](knowing)
        assert everything(client) == before


def test_refused_save_says_why_and_the_others_are_done(
    knowing: RedisSessionStore, epochs: dict[str, int | None]
) -> None:
    knowing.set_owner("a", epoch=5, owner="fenced")
    epochs["b"] = 7

    reports = knowing.save_messages([SessionSave(client_id=name, messages=(message(),)) for name in ("a", "b", "c")])

    assert [type(report.error) for report in reports] == [NotOwner, StaleEpoch, type(None)]
    assert str(reports[0].error) == "the session is on its way to the other store: repeat the call in a moment"
    knowing.set_owner("a", epoch=6, owner="redis")
    assert knowing.set_owner("b", epoch=7, owner="redis")
    epochs["a"] = 6
    again = knowing.save_messages([SessionSave(client_id=name, messages=(message(),)) for name in ("a", "b")])
    assert [(report.error, report.serials) for report in again] == [(None, (3,)), (None, (1,))]


@pytest.mark.parametrize("owner", ["postgres", "fenced"])
def test_session_of_postgres_can_be_read_and_is_not_cleaned_up(
    client: Any, knowing: RedisSessionStore, owner: str, layout: Layout
) -> None:
    spoil(client, layout, 1)
    save(knowing, "a")
    expire(client, layout, 3)
    knowing.set_owner("a", epoch=5, owner=owner)
    before = everything(client)

    page = knowing.fetch_pending("a")

    assert ([each.serial for each in page.messages], page.unreadable, page.expired) == ([2], 1, 1)
    assert everything(client) == before


def test_call_that_tells_redis_what_postgres_says(knowing: RedisSessionStore, layout: Layout) -> None:
    told = Ownership(client_id="a", owner=OWNER_OF[layout], epoch=4, mirrored=True)
    operations = operations_of(layout)

    assert list(knowing.answer([operations.set_owner_call(told)] * 2)) == [b"set", b"unchanged"]
    call = operations.read_session_call("a")
    fields = operations.own_fields(call, knowing.answer([call])[0])
    assert (fields.owner, fields.epoch, fields.mirror, fields.outbox) == (b"redis", b"4", b"4", b"*")
    with pytest.raises(UsageError, match="has no epoch"):
        operations.set_owner_call(replace(told, epoch=None))


def test_stores_for_asyncio_do_the_same(redis_cluster_url: str, layout: Layout) -> None:
    async def run() -> None:
        async with await connect_async(redis_cluster_url) as caller:
            known: dict[str, int] = {}
            store = AsyncRedisSessionStore(caller, epoch_of=known.get, layout=layout)
            await store.save_messages([SessionSave(client_id="a", messages=(message(),))])
            wanted = await store.read_snapshot("a")
            assert await store.set_owner("a", epoch=2, owner="postgres")
            assert not await store.set_owner("a", epoch=2, owner="postgres")
            empty = replace(wanted, messages=())
            assert await store.apply_snapshot("a", empty, epoch=2, driver=1) == ApplyReport(written=0, removed=1)
            assert await store.apply_snapshot("a", wanted, epoch=2, driver=1) == ApplyReport(written=1, removed=0)
            await store.set_owner("a", epoch=3, owner="redis", mirrored=True)
            known["a"] = 2
            with pytest.raises(StaleEpoch):
                await store.ack("a", [Ack(packet_id=1)])
            known["a"] = 3
            assert (await store.ack("a", [Ack(packet_id=1)])).removed == 1
            outbox = await store.read_outbox("a")
            assert outbox is not None
            assert await store.read_outboxes(["a"]) == {"a": outbox}
            assert await store.trim_outbox("a", epoch=3, version=outbox.version)

    asyncio.run(run())
