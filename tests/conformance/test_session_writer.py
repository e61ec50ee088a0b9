"""The writer: many publishers, one message each; what arrives together is sent together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from queuekeeper import lua
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.keyspace import payload_key, session_keys
from queuekeeper.redis_async import connect
from queuekeeper.redis_client import connect as connect_blocking
from queuekeeper.sessions.model import NewMessage, StoreRules
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.writer import FLUSHES, SESSIONS_PER_FLUSH, MessageRefused, SessionWriter, Stored
from tests.conformance.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.conformance


class WatchedStore(AsyncRedisSessionStore):
    """Notes what is sent, and can hold it back."""

    def __init__(self, caller: Any, **options: Any) -> None:
        super().__init__(caller, **options)
        self.sent: list[list[bytes]] = []
        self.under_way: dict[bytes, int] = {}
        self.most_under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def answer(self, step: Sequence[lua.Call]) -> lua.Replies:
        names = [call.client_id for call in step]
        self.sent.append(names)
        for name in names:
            self.under_way[name] = self.under_way.get(name, 0) + 1
        self.most_under_way = max(self.most_under_way, *self.under_way.values())
        await self.gate.wait()
        try:
            return await super().answer(step)
        finally:
            for name in names:
                self.under_way[name] -= 1


@asynccontextmanager
async def opened(url: str, **rules: Any) -> AsyncIterator[WatchedStore]:
    async with await connect(url) as caller:
        yield WatchedStore(caller, rules=StoreRules(**rules))


def run(url: str, test: Callable[[WatchedStore], Awaitable[None]], **rules: Any) -> None:
    async def main() -> None:
        async with opened(url, **rules) as store:
            await test(store)

    asyncio.run(main())


def message(payload: bytes = b"x", *, life_s: int | None = 3_600) -> NewMessage:
    return NewMessage(topic="t", payload=payload, qos=1, time_ms=time.time_ns() // 1_000_000, expiry_interval_s=life_s)


async def payloads(store: AsyncRedisSessionStore, client_id: str) -> list[bytes]:
    return [found.payload for found in (await store.fetch_pending(client_id, limit=10_000)).messages]


@pytest.fixture(params=["valkey", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """A single server, and a cluster."""
    return str(request.getfixturevalue("valkey_url" if request.param == "valkey" else "redis_cluster_url"))


def test_every_publisher_learns_where_its_messages_are(url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:

            async def publish(name: int) -> list[Stored]:
                client_id = f"client-{name % 20}"
                return [await writer.save(client_id, message(b"%d/%d" % (name, turn))) for turn in range(10)]

            results = await asyncio.gather(*map(publish, range(60)))
        for name in range(20):
            found = (await store.fetch_pending(f"client-{name}")).messages
            told = {
                (stored.serial, stored.packet_id, b"%d/%d" % (publisher, turn))
                for publisher in range(name, 60, 20)
                for turn, stored in enumerate(results[publisher])
            }
            assert told == {(m.serial, m.packet_id, m.payload) for m in found}
            assert len(found) == 30
        assert store.most_under_way == 1, "a session has one batch under way"
        assert len(store.sent) < 100, "600 messages were sent together"

    run(url, test)


def test_messages_for_one_session_are_stored_in_the_order_of_the_calls(url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store, max_pending=50) as writer:
            calls = [asyncio.create_task(writer.save("a", message(b"%d" % number))) for number in range(1_000)]
            results = await asyncio.gather(*calls)
        assert [stored.serial for stored in results] == list(range(1, 1_001))
        assert await payloads(store, "a") == [b"%d" % number for number in range(1_000)]

    run(url, test)


def test_what_arrives_while_a_batch_is_under_way_leaves_together(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:
            await writer.save("a", message())
            store.sent.clear()
            store.gate.clear()
            calls = [asyncio.create_task(writer.save("a", message()))]
            await asyncio.sleep(0.01)
            calls += [asyncio.create_task(writer.save("a", message())) for _ in range(100)]
            await asyncio.sleep(0.01)
            store.gate.set()
            assert [stored.packet_id for stored in await asyncio.gather(*calls)] == list(range(2, 103))
        assert store.sent == [[b"{a}"], [b"{a}"]]

    run(valkey_url, test)


def test_many_publishers_are_not_all_in_one_flush(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:
            clients = [f"c{n}" for n in range(3 * SESSIONS_PER_FLUSH)]
            await asyncio.gather(*(writer.save(client_id, message()) for client_id in clients))
            store.sent.clear()
            store.gate.clear()
            calls = [asyncio.create_task(writer.save(client_id, message())) for client_id in clients]
            await asyncio.sleep(0.02)
            assert [len(names) for names in store.sent] == [SESSIONS_PER_FLUSH] * FLUSHES
            store.gate.set()
            assert {stored.packet_id for stored in await asyncio.gather(*calls)} == {2}
        names = [name for names in store.sent for name in names]
        assert names == [b"{%b}" % client_id.encode() for client_id in clients], "who came first leaves first"

    run(valkey_url, test)


def test_call_that_fails_does_not_touch_its_neighbours(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        with connect_blocking(valkey_url) as client:
            client.set(session_keys("broken").messages, "no set")
        async with SessionWriter(store) as writer:
            results = await asyncio.gather(
                writer.save("a", message(b"1")),
                writer.save("a", message(b"2", life_s=0)),
                writer.save("a", message(b"3", life_s=2**32)),
                writer.save("a", message(b"4" * 1_001)),
                writer.save("", message(b"5")),
                writer.save("broken", message(b"6")),
                writer.save("a", b"7"),  # type: ignore[arg-type]
                writer.save("a", message(b"8")),
                return_exceptions=True,
            )
        told = [result if isinstance(result, Stored) else f"{type(result).__name__}: {result}" for result in results]
        assert told[0] == Stored(1, 1)
        assert told[1] == "MessageRefused: the message for 'a' was not stored: expired"
        assert told[2] == "MessageRefused: the message for 'a' was not stored: expiry out of range"
        assert str(told[3]).startswith("UsageError: a payload for 'a' has 1001 bytes")
        assert told[4] == "UsageError: client id is empty: a session without an id cannot be stored"
        assert "WRONGTYPE" in str(told[5])
        assert told[6] == "UsageError: a message for 'a' is a bytes: it must be a NewMessage"
        assert told[7] == Stored(2, 2)
        assert isinstance(results[1], MessageRefused)
        assert results[1].refusal == "expired"
        assert await payloads(store, "a") == [b"1", b"8"]

    run(valkey_url, test, max_payload_bytes=1_000)


def test_calls_beyond_the_bound_wait_until_there_is_room(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store, max_pending=3) as writer:
            await asyncio.gather(*(writer.save(f"c{n}", message()) for n in range(5)))
            store.sent.clear()
            store.gate.clear()
            calls = [asyncio.create_task(writer.save(f"c{n}", message())) for n in range(5)]
            await asyncio.sleep(0.02)
            assert sorted(name for names in store.sent for name in names) == [b"{c0}", b"{c1}", b"{c2}"]
            store.gate.set()
            assert {stored.packet_id for stored in await asyncio.gather(*calls)} == {2}

    run(valkey_url, test)


def test_call_that_is_cancelled_while_it_waits_for_room_leaves_its_turn_to_the_next(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store, max_pending=1) as writer:
            await writer.save("a", message(b"0"))
            store.gate.clear()
            calls = [asyncio.create_task(writer.save("a", message(b"%d" % number))) for number in range(1, 5)]
            await asyncio.sleep(0.01)
            calls[1].cancel()
            store.gate.set()
            await calls[0]
            # By now the turn is the third call's, which may not have taken it yet.
            calls[2].cancel()
            assert (await calls[3]).serial in {3, 4}
        assert (await payloads(store, "a"))[:2] == [b"0", b"1"]
        assert (await payloads(store, "a"))[-1] == b"4"

    run(valkey_url, test)


def test_closing_stores_all_that_was_accepted_and_takes_nothing_more(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        writer = SessionWriter(store, max_pending=10)
        calls = [asyncio.create_task(writer.save(f"c{n % 7}", message())) for n in range(100)]
        await asyncio.sleep(0)
        await writer.close()
        assert all(call.done() for call in calls)
        assert sum([len(await payloads(store, f"c{n}")) for n in range(7)]) == 100
        with pytest.raises(RefusedError, match="the writer is closed"):
            await writer.save("a", message())

    run(valkey_url, test)


def test_closing_waits_for_those_whose_batch_has_not_begun_without_looking_again_and_again(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: WatchedStore) -> None:
        writer = SessionWriter(store, max_pending=2)
        calls = [asyncio.create_task(writer.save(f"c{n}", message())) for n in range(5)]
        await asyncio.sleep(0)
        assert not store.sent

        async def look_again(delay: float) -> None:
            raise AssertionError(f"closing looks again after {delay} s")

        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "sleep", look_again)
            await writer.close()
        assert all(call.done() for call in calls)

    run(valkey_url, test)


def test_closing_rests_while_a_batch_is_under_way_whose_callers_were_cancelled(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: WatchedStore) -> None:
        store.gate.clear()
        writer = SessionWriter(store)
        call = asyncio.create_task(writer.save("a", message()))
        while not store.sent:
            await asyncio.sleep(0)
        call.cancel()
        turns = 0
        sleep = asyncio.sleep

        async def counting(delay: float) -> None:
            nonlocal turns
            turns += 1
            await sleep(delay)

        monkeypatch.setattr(asyncio, "sleep", counting)
        closing = asyncio.create_task(writer.close())
        for _ in range(100):
            await sleep(0)
        assert not closing.done()
        assert turns < 10
        store.gate.set()
        await closing

    run(valkey_url, test)


def test_flush_waits_for_what_was_accepted(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:
            await writer.flush()
            calls = [asyncio.create_task(writer.save("a", message())) for _ in range(600)]
            await asyncio.sleep(0)
            await writer.flush()
            assert len(await payloads(store, "a")) == 600
            await asyncio.gather(*calls)

    run(valkey_url, test)


def test_cancelled_call_takes_its_message_back_unless_it_is_under_way(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:
            await writer.save("a", message(b"0"))
            store.gate.clear()
            first = asyncio.create_task(writer.save("a", message(b"1")))
            await asyncio.sleep(0.01)
            second = asyncio.create_task(writer.save("a", message(b"2")))
            third = asyncio.create_task(writer.save("a", message(b"3")))
            await asyncio.sleep(0.01)
            first.cancel()
            second.cancel()
            await asyncio.wait([first, second])
            store.gate.set()
            assert (await third).packet_id == 3
        assert await payloads(store, "a") == [b"0", b"1", b"3"]

    run(valkey_url, test)


def test_batch_whose_reply_was_lost_is_sent_again_and_stored_once(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store, source="broker-1", first_offset=1_000) as writer:
            await writer.save("a", message(b"0"))
            proxy.cuts = 2
            calls = [writer.save(name, message(b"%d" % n)) for n in range(1, 4) for name in ("a", "b")]
            results = await asyncio.gather(*calls)
        assert proxy.cuts == 0
        assert [stored.packet_id for stored in results] == [2, 1, 3, 2, 4, 3]
        assert await payloads(store, "a") == [b"0", b"1", b"2", b"3"]
        assert await payloads(store, "b") == [b"1", b"2", b"3"]

    with CuttingProxy(valkey_url) as proxy:
        run(proxy.url, test)


def test_lost_reply_is_an_error_where_batches_have_no_number(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store) as writer:
            await writer.save("a", message(b"0"))
            proxy.cuts = 1
            lost = await asyncio.gather(*(writer.save("a", message()) for _ in range(3)), return_exceptions=True)
            assert [type(error) for error in lost] == [ServerUnavailable] * 3
            assert len({id(error) for error in lost}) == 3, "each call has its own traceback"
            assert (await writer.save("a", message(b"9"))).packet_id == 5

    with CuttingProxy(valkey_url) as proxy:
        run(proxy.url, test)


def test_number_that_the_source_has_used_before_stores_nothing(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        async with SessionWriter(store, source="s", first_offset=10) as writer:
            await writer.save("a", message(b"0"))
        for first_offset in (9, 10):
            async with SessionWriter(store, source="s", first_offset=first_offset) as writer:
                with pytest.raises(RefusedError, match="source 's' has saved a batch for 'a' with number"):
                    await writer.save("a", message(b"1"))
        async with SessionWriter(store, source="s", first_offset=11) as writer:
            await writer.save("a", message(b"2"))
        assert await payloads(store, "a") == [b"0", b"2"]

    run(valkey_url, test)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_pending": 0}, "max_pending is 0: it must be 1 to"),
        ({"source": "s"}, "source and first_offset go together"),
        ({"first_offset": 1}, "source and first_offset go together"),
        ({"source": "", "first_offset": 1}, "source is empty"),
        ({"source": "s", "first_offset": -1}, "first_offset is -1"),
    ],
)
def test_bad_option_is_refused(valkey_url: str, options: dict[str, Any], words: str) -> None:
    async def test(store: WatchedStore) -> None:
        with pytest.raises(UsageError, match=words):
            SessionWriter(store, **options)

    run(valkey_url, test)


def test_record_of_the_writer_is_the_one_of_the_store(valkey_url: str) -> None:
    async def test(store: WatchedStore) -> None:
        new = message(b"body")
        async with SessionWriter(store) as writer:
            await writer.save("a", new)
        with connect_blocking(valkey_url) as client:
            assert client.pexpiretime(payload_key("a", 1)) == new.time_ms + 3_600_000

    run(valkey_url, test)
