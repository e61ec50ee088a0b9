"""What only sessions in the packed layout promise."""

from __future__ import annotations

import time
from collections.abc import Sequence

import orjson
import pytest

from queuekeeper import lua
from queuekeeper.keyspace import packed_keys
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.conformance
C = "meter-7"


def batch(*payloads: bytes) -> SessionSave:
    now_ms = time.time_ns() // 1_000_000
    return SessionSave(
        client_id=C, messages=tuple(NewMessage(topic="t", payload=each, qos=1, time_ms=now_ms) for each in payloads)
    )


class Watched(lua.ScriptCaller):
    """Notes how many arguments each call has."""

    def __init__(self, client: RedisClient) -> None:
        super().__init__(client)
        self.sizes: list[int] = []

    def execute(self, calls: Sequence[lua.Call]) -> lua.Replies:
        self.sizes += [len(call.args) for call in calls]
        return super().execute(calls)


def with_gaps(store: RedisSessionStore, *, messages: int, gap: int) -> None:
    """Make a session whose messages are so many places apart."""
    store.save_messages([batch(*(b"%d" % number for number in range(messages)))])
    lines = [orjson.loads(line) for line in store.export_session(C, limit=10_000).lines]
    for number, line in enumerate(lines[1:]):
        line["serial"] = number * gap
    lines[0]["session"]["last_serial"] = messages * gap
    store.purge_session(C)
    store.import_session(C, [orjson.dumps(line) for line in lines])


def test_session_whose_serials_have_wide_gaps_is_read_by_what_is_there(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        store.save_messages([batch(b"a", b"b", b"c")])
        lines = [orjson.loads(line) for line in store.export_session(C).lines]
        lines[0]["session"]["last_serial"] = 2**52
        for line, serial in zip(lines[1:], (5, 2**40, 2**52), strict=True):
            line["serial"] = serial
        store.purge_session(C)
        store.import_session(C, [orjson.dumps(line) for line in lines])
        store.save_messages([batch(b"d")])

        assert [m.payload for m in store.fetch_pending(C).messages] == [b"a", b"b", b"c", b"d"]
        assert store.ack(C, [Ack(packet_id=2), Ack(packet_id=4)]).removed == 2
        assert [m.serial for m in store.inspect(C).page] == [5, 2**52]
        assert store.purge_session(C).messages == 2
        assert client.dbsize() == 0


def test_session_of_many_messages_with_wide_gaps_is_read_in_short_calls(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        with_gaps(store, messages=1_500, gap=50)
        watched = store._caller = Watched(client)

        assert [m.payload for m in store.fetch_pending(C, limit=10_000).messages] == [b"%d" % n for n in range(1_500)]

        # Either 200 fields of a list, or 500 records.
        assert max(watched.sizes) <= 500
        client.delete(packed_keys(C).session)


def test_one_message_of_many_is_found_without_reading_the_others(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        store.save_messages([batch(*(b"%d" % number for number in range(2_000)))])
        watched = store._caller = Watched(client)

        found = store.peek(C, packet_id=1_234)

        assert found is not None
        assert found.payload == b"1233"
        assert sum(watched.sizes) < 5
        # A packet id that somebody has set is further ahead than any message's.
        assert store.set_last_packet_id(C, packet_id=1_000, expected=2_000)
        found = store.peek(C, packet_id=1_234)
        assert found is not None
        assert store.ack(C, [Ack(packet_id=1_234), Ack(packet_id=999)]).removed == 2
        assert store.peek(C, packet_id=1_234) is None
        store.purge_session(C)


def test_inspection_far_into_a_session_with_gaps_shows_what_is_there(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        (report,) = store.save_messages([batch(*(b"x" for _ in range(2_000)))])
        gone = report.serials[3::7]
        store.ack(C, [Ack(packet_id=serial % 65_535, serial=serial) for serial in gone if serial is not None])
        left = [serial for serial in report.serials if serial not in set(gone)]

        for offset in (0, 249, 250, 1_000, len(left) - 1, len(left)):
            page = store.inspect(C, offset=offset, limit=10).page
            assert [view.serial for view in page] == left[offset : offset + 10]
        store.purge_session(C)


def test_only_the_newest_unreadable_records_are_kept_and_all_are_counted(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, layout=Layout.PACKED)
        (report,) = store.save_messages([batch(*(b"x" for _ in range(130)))])
        key = packed_keys(C).session
        for serial in report.serials[:120]:
            client.hset(key, str(serial), b"spoiled")

        page = store.fetch_pending(C)

        assert (len(page.messages), page.unreadable) == (10, 120)
        view = store.inspect(C)
        assert view.messages == 10
        assert view.counts is not None
        assert view.counts.quarantined == 120
        kept = [name.decode() for name in client.hkeys(key) if name.startswith(b"quarantined:")]
        assert sorted(kept) == sorted(f"quarantined:{serial}" for serial in report.serials[20:120])
        assert store.purge_session(C).messages == 10
        assert client.dbsize() == 0


def test_session_that_is_emptied_and_filled_again_keeps_its_limit_to_the_message(valkey_url: str) -> None:
    with connect(valkey_url) as client:
        store = RedisSessionStore(client, rules=StoreRules(limit=5), layout=Layout.PACKED)
        expected: list[bytes] = []
        for number in range(40):
            payloads = [b"%d.%d" % (number, each) for each in range(number % 4 + 1)]
            store.save_messages([batch(*payloads)])
            expected = (expected + payloads)[-5:]
            found = store.fetch_pending(C).messages
            assert [each.payload for each in found] == expected
            if number % 3 == 0:
                going = found[: number % 5 + 1]
                store.ack(C, [Ack(packet_id=each.packet_id, serial=each.serial) for each in going])
                expected = expected[len(going) :]
        store.purge_session(C)
