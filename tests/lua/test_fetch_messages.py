"""``fetch_messages``: as many messages as fit, whatever the keys hold."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Message, Session

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000


def saved(client: RedisClient, sizes: list[int]) -> Session:
    session = Session(client=client)
    for number, size in enumerate(sizes, start=1):
        session.save_messages([Message(number, 0, FAR_MS + number, "x" * size)], expected=number - 1 or "")
    return session


def test_messages_come_with_their_expiry_in_the_order_of_the_keys(client: RedisClient) -> None:
    session = saved(client, [1, 2, 3])
    assert session.fetch_messages([3, 1, 2]).records == ((b"xxx", FAR_MS + 3), (b"x", FAR_MS + 1), (b"xx", FAR_MS + 2))


def test_missing_key_wrong_type_and_no_expiry_are_told_apart(client: RedisClient) -> None:
    session = saved(client, [1])
    anything: Any = client
    anything.rpush(session.payload(2), "x")
    anything.set(session.payload(3), "y")
    anything.hset(session.payload(4), "a", "b")
    anything.pexpireat(session.payload(4), FAR_MS)
    assert session.fetch_messages([9, 2, 3, 4]).records == ((b"", -2), (b"", -1), (b"y", -1), (b"", FAR_MS))


@pytest.mark.parametrize(
    ("sizes", "max_bytes", "read"),
    [
        ([10] * 20, 200, 20),
        ([10] * 20, 199, 19),
        ([10] * 20, 95, 9),
        ([10] * 20, 1, 1),
        ([500, 1, 1], 100, 1),
        ([1, 500, 1], 100, 1),
        ([1, 1, 1, 1, 500], 100, 4),
        ([1, 99, 1], 100, 2),
    ],
)
def test_reading_stops_before_the_bytes_are_exceeded_but_reads_at_least_one(
    client: RedisClient, sizes: list[int], max_bytes: int, read: int
) -> None:
    session = saved(client, sizes)
    reply = session.fetch_messages(list(range(1, len(sizes) + 1)), max_bytes=max_bytes)
    assert [len(each.json) for each in reply.records] == sizes[:read]


def test_500_messages_are_read_at_once_and_501_refused(client: RedisClient) -> None:
    session = Session(client=client)
    session.save_messages([Message(number, 0, FAR_MS, str(number)) for number in range(1, 257)])
    records = session.fetch_messages(list(range(1, 501))).records
    assert [int(each.json) for each in records[:256]] == list(range(1, 257))
    assert records[256:] == ((b"", -2),) * 244
    with pytest.raises(UsageError, match=r"^1 to 500 keys and 1 argument are expected$"):
        session.fetch_messages(list(range(1, 502)))
    with pytest.raises(UsageError, match=r"^1 to 500 keys and 1 argument are expected$"):
        ScriptCaller(client).call(load("sessions/fetch_messages"), [session.payload(1)], [1, 2])


@pytest.mark.parametrize("max_bytes", [0, -1, "x"])
def test_bad_bound_is_refused(client: RedisClient, max_bytes: Any) -> None:
    with pytest.raises(UsageError, match=r"^max_bytes is not an integer of 1 or more$"):
        Session(client=client).fetch_messages([1], max_bytes=max_bytes)
