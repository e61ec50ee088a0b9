"""``import_session``: each rule of its contract, on real servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, KEPT_MS, Message, Session, contents, messages, now_ms, unchanged

from queuekeeper.embedded import RedisServer
from queuekeeper.errors import (
    ImportedBefore,
    MovedOn,
    NotOwner,
    OutOfOrder,
    StaleEpoch,
    StoreFull,
    UsageError,
)
from queuekeeper.keyspace import hash_slot, is_scattered
from queuekeeper.lua import ScriptCaller
from queuekeeper.redis_client import RedisClient, connect
from tests.append_only import append_only_file, finished_sessions_that_lack_something

pytestmark = pytest.mark.lua


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_session_of_any_client_id_is_stored_whole(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id)
    batch = messages(3)

    assert session.import_session(batch, last_packet_id=3) == {"word": "imported", "written": 3, "expired": 0}

    assert contents(client) == {
        session.keys.messages: ([(session.payload(m.packet_id).encode(), float(m.serial)) for m in batch], -1),
        session.keys.last_packet_id: (b"3", KEPT_MS),
        session.keys.session: (
            {
                b"owner": b"redis",
                b"epoch": b"1",
                b"plan": b"plan-a",
                b"import": b"done",
                b"references": b"3",
                b"imported_last_packet_id": b"3",
                b"imported_until_ms": b"%d" % KEPT_MS,
            },
            -1,
        ),
        **{session.payload(m.packet_id): (m.json.encode(), m.expires_at_ms) for m in batch},
    }
    assert is_scattered(client_id) or len({hash_slot(key) for key in contents(client)}) == 1


def test_prefix_is_part_of_key_and_reference(client: RedisClient) -> None:
    session = Session(client=client, prefix="tbmq:")
    session.import_session(messages(1))
    assert session.references() == [("tbmq:{meter-7}_messages_1", 1_001.0)]


def test_import_that_is_repeated_changes_nothing(client: RedisClient) -> None:
    session = Session(client=client)
    chunks = [messages(3), messages(2, first=4)]
    session.import_chunks(chunks, last_packet_id=5)
    before = contents(client)

    for number, chunk in enumerate(chunks):
        last = number == 1
        assert session.import_session(chunk, chunk=number, last=last, last_packet_id=5) == {
            "word": "unchanged",
            "written": 0,
            "expired": 0,
        }

    assert contents(client) == before


def test_unfinished_import_starts_again_and_ends_equal_to_an_undisturbed_one(client: RedisClient) -> None:
    chunks = [messages(3), messages(3, first=4), messages(2, first=7)]
    session = Session(client=client)
    session.import_chunks(chunks, last_packet_id=8)
    undisturbed = contents(client)

    for done in (1, 2):
        client.flushall()
        for number in range(done):
            session.import_session(chunks[number], chunk=number, last=False)
        session.import_chunks(chunks, last_packet_id=8)
        assert contents(client) == undisturbed


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_import_goes_on_after_the_server_was_killed(own_server: Any, done: int) -> None:
    chunks = [messages(40, first=1 + 40 * number) for number in range(4)]
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_chunks(chunks, last_packet_id=160)
        undisturbed = contents(client)
        client.flushall()
        for number in range(done):
            session.import_session(chunks[number], chunk=number, last=False)

    own_server.kill()
    own_server.start()

    with connect(own_server.url) as client:
        session = Session(client=client)
        for number in range(done, 4):
            session.import_session(chunks[number], chunk=number, last=number == 3, last_packet_id=160)
        assert contents(client) == undisturbed


def test_behind_a_torn_file_no_session_says_that_it_is_whole_and_is_not(
    redis_server_factory: Callable[..., RedisServer],
) -> None:
    server = redis_server_factory()
    with server.client() as client:
        begun = append_only_file(server).size_bytes
        for number in range(12):
            chunks = [messages(5, first=1 + 5 * chunk) for chunk in range(4)]
            Session(client=client, client_id=f"meter-{number}").import_chunks(chunks, last_packet_id=20)
        assert finished_sessions_that_lack_something(client) == []
    server.kill()
    written = append_only_file(server)
    whole = written.path.read_bytes()

    # Each cut takes something else away, and leaves a torn command.
    for kept in range(len(whole) - 1, begun + len(whole) // 3, -(len(whole) // 10)):
        written.path.write_bytes(whole[:kept])
        server.start()
        with server.client() as client:
            assert finished_sessions_that_lack_something(client) == [], kept
            found = [Session(client=client, client_id=f"meter-{number}") for number in range(12)]
            assert {len(each.references()) for each in found if each.state().get("import") == "done"} == {20}, kept
        server.kill()


def test_messages_without_life_are_counted_and_their_earlier_reference_removed(client: RedisClient) -> None:
    session = Session(client=client)
    alive = messages(3)
    session.import_session(alive, last=False)
    later = [alive[0], alive[1]._replace(expires_at_ms=now_ms()), alive[2]._replace(expires_at_ms=-1)]

    assert session.import_session(later, last_packet_id=3) == {"word": "imported", "written": 1, "expired": 2}

    assert session.references() == [(session.payload(1), 1_001.0)]
    assert session.state()["references"] == "1"


def test_session_whose_messages_have_all_expired_keeps_its_last_packet_id(client: RedisClient) -> None:
    session = Session(client=client)
    assert session.import_session(messages(3, expires_at_ms=1), last_packet_id=9) == {
        "word": "imported",
        "written": 0,
        "expired": 3,
    }
    assert sorted(contents(client)) == sorted([session.keys.last_packet_id, session.keys.session])


@pytest.mark.parametrize(("last_packet_id", "stored"), [("", None), ("0", b"0"), ("65535", b"65535")])
def test_session_without_messages_is_imported_too(
    client: RedisClient, last_packet_id: str, stored: bytes | None
) -> None:
    session = Session(client=client)
    assert session.import_session([], last_packet_id=last_packet_id) == {"word": "imported", "written": 0, "expired": 0}
    assert client.get(session.keys.last_packet_id) == stored
    assert session.state()["import"] == "done"
    assert session.state()["references"] == "0"


def test_chunk_may_hold_more_messages_than_unpack_can_take(client: RedisClient) -> None:
    session = Session(client=client)
    batch = messages(5_000)
    assert session.import_session(batch, last_packet_id=5_000) == {"word": "imported", "written": 5_000, "expired": 0}
    assert session.references() == [(session.payload(m.packet_id), float(m.serial)) for m in batch]


def test_chunk_beyond_the_limit_is_refused(client: RedisClient) -> None:
    with pytest.raises(UsageError, match=r"^a call takes at most 5000 messages$"):
        Session(client=client).import_session(messages(5_001))
    assert contents(client) == {}


def test_order_follows_serials_whatever_their_order_in_the_call(client: RedisClient) -> None:
    session = Session(client=client)
    largest = Message(3, 2**53, now_ms() + 60_000, "{}")
    session.import_session([largest, *reversed(messages(2))])
    assert [key for key, _ in session.references()] == [session.payload(n) for n in (1, 2, 3)]
    assert session.references()[2][1] == 2**53


def test_message_text_is_stored_byte_for_byte(client: RedisClient) -> None:
    session = Session(client=client)
    text = '{"a":[],"n":9007199254740993,"é":"\\u0000","😀":1.0}'
    session.import_session([Message(1, 1, now_ms() + 60_000, text)])
    assert client.get(session.payload(1)) == text.encode()


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunk_without_its_predecessor_is_out_of_order(client: RedisClient, chunk: int) -> None:
    session = Session(client=client)
    with pytest.raises(OutOfOrder, match=f"^chunk {chunk} has no predecessor: start again with chunk 0$"):
        session.import_session(messages(1), chunk=chunk)
    assert contents(client) == {}


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunk_that_comes_twice_or_too_early_is_out_of_order(client: RedisClient, chunk: int) -> None:
    session = Session(client=client)
    session.import_session(messages(1), chunk=0, last=False)
    session.import_session(messages(1, first=2), chunk=1, last=False)
    with unchanged(client), pytest.raises(OutOfOrder):
        session.import_session(messages(1, first=3), chunk=chunk)


def test_chunk_of_another_plan_is_out_of_order(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(1), last=False)
    with pytest.raises(OutOfOrder):
        replace(session, plan="plan-b").import_session(messages(1, first=2), chunk=1)


@pytest.mark.parametrize("existing", ["messages", "last_packet_id"])
def test_session_that_nobody_imported_is_left_alone(client: RedisClient, existing: str) -> None:
    session = Session(client=client)
    if existing == "messages":
        client.zadd(session.keys.messages, {session.payload(1): 0})
    else:
        client.set(session.keys.last_packet_id, 5)
    with unchanged(client), pytest.raises(MovedOn, match=r"^the session exists and was not imported$"):
        session.import_session(messages(1))


def test_untouched_import_of_another_plan_has_to_be_dropped_first(client: RedisClient) -> None:
    first = Session(client=client)
    first.import_session(messages(2), last_packet_id=2)
    second = replace(first, plan="plan-b")
    before = contents(client)

    with pytest.raises(ImportedBefore, match=r"^plan plan-a imported the session: drop that import first$"):
        second.import_session(messages(2), last_packet_id=2)
    assert contents(client) == before

    assert first.drop_import([1, 2]) == {"removed": 2, "remaining": 0}
    assert second.import_session(messages(2), last_packet_id=2) == {"word": "imported", "written": 2, "expired": 0}
    assert second.state()["plan"] == "plan-b"


def test_unfinished_import_of_another_plan_has_to_be_dropped_first(client: RedisClient) -> None:
    first = Session(client=client)
    first.import_session(messages(2), last=False)
    second = replace(first, plan="plan-b")
    with pytest.raises(ImportedBefore):
        second.import_session(messages(2))
    assert first.drop_import([1, 2]) == {"removed": 2, "remaining": 0}
    assert second.import_session(messages(2)) == {"word": "imported", "written": 2, "expired": 0}


@pytest.mark.parametrize("use", ["acknowledged", "added"])
def test_import_of_another_plan_that_was_used_is_left_alone(client: RedisClient, use: str) -> None:
    first = Session(client=client)
    first.import_session(messages(2), last_packet_id=2)
    if use == "acknowledged":
        client.zrem(first.keys.messages, first.payload(1))
    else:
        client.set(first.keys.last_packet_id, 3)
    with unchanged(client), pytest.raises(MovedOn, match=r"^the session has been used since plan plan-a imported it$"):
        replace(first, plan="plan-b").import_session(messages(2))


def test_greater_epoch_fences_an_older_writer(client: RedisClient) -> None:
    newer = Session(client=client, epoch=8)
    newer.import_session(messages(1), last=False)
    older = replace(newer, epoch=7)
    before = contents(client)
    for chunk in (0, 1):
        with pytest.raises(StaleEpoch, match=r"^epoch 8 owns the session$"):
            older.import_session(messages(1), chunk=chunk)
    assert contents(client) == before
    assert replace(newer, epoch=9).import_session(messages(1, first=2), chunk=1) == {
        "word": "imported",
        "written": 1,
        "expired": 0,
    }


def test_session_that_redis_owns_without_an_import_is_refused(client: RedisClient) -> None:
    session = Session(client=client)
    client.hset(session.keys.session, mapping={"owner": "redis", "epoch": 1})
    with pytest.raises(NotOwner, match=r"^the session belongs to Redis and was not imported$"):
        session.import_session(messages(1))


@pytest.mark.parametrize("mirror", [0, 1])
def test_export_is_restored_where_nobody_has_used_a_session_that_moves(client: RedisClient, mirror: int) -> None:
    session = Session(client=client, plan="restore:a", epoch=5)
    session.set_owner("redis", mirror=mirror)
    assert session.import_session(messages(2), last=False) == {"word": "imported", "written": 2, "expired": 0}
    # One that was interrupted begins again.
    session.import_chunks([messages(2), messages(1, first=3)], last_packet_id=3)
    assert len(session.references()) == 3
    state = session.state()
    assert (state["owner"], state["epoch"], state.get("outbox")) == ("redis", "5", "*" if mirror else None)
    assert session.import_session(messages(1)) == {"word": "unchanged", "written": 0, "expired": 0}


def test_export_is_not_restored_over_a_session_that_moves(client: RedisClient) -> None:
    session = Session(client=client, plan="restore:a", epoch=5)
    session.set_owner("redis", mirror=1)
    for older in (0, 4):
        with pytest.raises(StaleEpoch):
            replace(session, epoch=older).import_session(messages(1))
    with pytest.raises(NotOwner):
        replace(session, epoch=6).import_session(messages(1))
    with pytest.raises(NotOwner):
        replace(session, plan="plan-a").import_session(messages(1))
    session.save_messages(messages(1))
    for _ in range(2):
        with unchanged(client), pytest.raises(MovedOn, match=r"^the session has been used$"):
            session.import_session(messages(1, first=2))
        session.ack((1, ""))
    for owner, epoch in (("fenced", 6), ("postgres", 7)):
        session.set_owner(owner, epoch=epoch)
        with pytest.raises(NotOwner):
            replace(session, epoch=epoch).import_session(messages(1, first=2))


def test_session_that_postgres_owns_is_imported_and_given_the_owner_that_was_asked_for(client: RedisClient) -> None:
    session = Session(client=client)
    client.hset(session.keys.session, mapping={"owner": "postgres", "epoch": 1})
    session.import_session(messages(1), last=False)
    assert session.state()["owner"] == "postgres"
    session.import_session(messages(1, first=2), chunk=1, owner="postgres")
    assert session.state()["owner"] == "postgres"


def test_last_serial_is_noted_with_the_last_chunk(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(1), last=False, last_serial=70_000)
    assert "last_serial" not in session.state()
    session.import_session([], chunk=1, last_packet_id=3, last_serial=70_000)
    assert session.state()["last_serial"] == "70000"


BAD_CALLS: dict[str, tuple[Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]], str]] = {
    "no message for a key": (lambda k, a: (k, a[:-3]), "3 keys and a key per message"),
    "half a triple": (lambda k, a: (k, a[:-1]), "3 keys and a key per message"),
    "no keys": (lambda k, a: (k[:2], a[:7]), "3 keys and a key per message"),
    "plan empty": (lambda k, a: (k, ["", *a[1:]]), "the plan id is empty"),
    "epoch text": (lambda k, a: (k, [a[0], "x", *a[2:]]), "epoch is not an integer of 0 or more"),
    "epoch negative": (lambda k, a: (k, [a[0], -1, *a[2:]]), "epoch is not an integer of 0 or more"),
    "epoch fraction": (lambda k, a: (k, [a[0], "1.5", *a[2:]]), "epoch is not an integer of 0 or more"),
    "epoch too great": (lambda k, a: (k, [a[0], "9" * 17, *a[2:]]), "epoch is not an integer of 0 or more"),
    "owner unknown": (lambda k, a: (k, [*a[:2], "kafka", *a[3:]]), "owner is neither redis nor postgres"),
    "chunk empty": (lambda k, a: (k, [*a[:3], "", *a[4:]]), "chunk is not an integer of 0 or more"),
    "last unknown": (lambda k, a: (k, [*a[:4], "yes", *a[5:]]), "the mark of the last chunk is neither 0 nor 1"),
    "last packet id great": (lambda k, a: (k, [*a[:5], 65_536, *a[6:]]), "last packet id is not an integer"),
    "last packet id negative": (lambda k, a: (k, [*a[:5], -1, *a[6:]]), "last packet id is not an integer"),
    "last serial negative": (lambda k, a: (k, [*a[:6], -1, *a[7:]]), "last serial is neither empty nor an integer"),
    "serial negative": (lambda k, a: (k, [*a[:7], -5, *a[8:]]), "serial of message 1 is not an integer of 0 or more"),
    "serial hexadecimal": (lambda k, a: (k, [*a[:7], "0x10", *a[8:]]), "serial of message 1 is not an integer"),
    "serial inexact": (lambda k, a: (k, [*a[:7], 2**53 + 2, *a[8:]]), "serial of message 1 is not an integer"),
    "serial nan": (lambda k, a: (k, [*a[:7], "nan", *a[8:]]), "serial of message 1 is not an integer"),
    "expiry empty": (lambda k, a: (k, [*a[:8], "", *a[9:]]), "expiry of message 1 is not an integer"),
    "expiry endless": (lambda k, a: (k, [*a[:8], "9" * 19, *a[9:]]), "expiry of message 1 is not an integer"),
    "key twice": (lambda k, a: ([*k, k[3]], [*a, *a[7:10]]), "payload key of message 3 comes twice in the chunk"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_argument_is_refused_before_anything_is_written(client: RedisClient, name: str) -> None:
    spoil, message = BAD_CALLS[name]
    script, keys, args = Session(client=client).import_call(messages(2), last_packet_id=2)
    keys, args = spoil([*keys], [*args])
    with pytest.raises(UsageError) as caught:
        ScriptCaller(client).call(script, keys, args)
    assert str(caught.value).startswith(message)
    assert contents(client) == {}


def test_packet_id_of_another_serial_is_refused_across_chunks(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(3), last=False)
    before = contents(client)
    again = messages(2, first=4)
    clash = again[1]._replace(packet_id=2)
    with pytest.raises(UsageError, match=r"^payload key of message 2 belongs to another serial$"):
        session.import_session([again[0], clash], chunk=1)
    assert contents(client) == before


def test_full_server_refuses_a_chunk_as_a_whole(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(2), last=False)
        before = contents(client)
        client.config_set("maxmemory", 1)
        for batch in (messages(2, first=3), messages(2, first=3, expires_at_ms=1), []):
            with pytest.raises(StoreFull, match=r"is full: .*Raise maxmemory or free memory, then repeat"):
                session.import_session(batch, chunk=1)
        assert contents(client) == before
        client.config_set("maxmemory", 0)
        assert session.import_session(messages(2, first=3), chunk=1) == {"word": "imported", "written": 2, "expired": 0}


def test_import_into_a_server_that_fills_up_stops_at_a_chunk_and_goes_on_after_room_is_made(own_server: Any) -> None:
    chunks = [[m._replace(json="x" * 10_000) for m in messages(20, first=1 + 20 * number)] for number in range(40)]
    with connect(own_server.url) as client:
        session = Session(client=client)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 3_000_000)
        stored = 0

        def import_all() -> None:
            nonlocal stored
            for stored, chunk in enumerate(chunks):
                session.import_session(chunk, chunk=stored, last=stored == len(chunks) - 1)

        with pytest.raises(StoreFull):
            import_all()
        assert 0 < stored < len(chunks)
        assert session.state()["import"] == str(stored)
        assert session.state()["references"] == str(20 * stored)
        assert [key for key, _ in session.references()] == [session.payload(n) for n in range(1, 20 * stored + 1)]
        assert len(contents(client)) == 20 * stored + 2

        client.config_set("maxmemory", 0)
        for number in range(stored, len(chunks)):
            session.import_session(chunks[number], chunk=number, last=number == len(chunks) - 1)
        assert session.state()["import"] == "done"
        assert len(session.references()) == 800
