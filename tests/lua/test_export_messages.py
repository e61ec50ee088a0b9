"""``export_messages``: message and instant of expiry of each key, in order."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, messages

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


def test_messages_are_read_with_their_expiry(client: RedisClient) -> None:
    session = Session(client=client)
    batch = messages(3)
    session.import_session(batch)
    client.delete(session.payload(2))
    client.persist(session.payload(3))
    assert session.export_messages([3, 2, 1]).records == (
        (batch[2].json.encode(), -1),
        (b"", -2),
        (batch[0].json.encode(), batch[0].expires_at_ms),
    )


def test_most_keys_of_one_call_are_five_hundred(client: RedisClient) -> None:
    session = Session(client=client)
    batch = messages(501)
    session.import_session(batch)
    records = session.export_messages(range(1, 501)).records
    assert [each.json for each in records] == [message.json.encode() for message in batch[:500]]
    with pytest.raises(UsageError, match=r"^1 to 500 keys and 1 argument are expected$"):
        session.export_messages(range(1, 502))


def test_what_does_not_fit_is_left_out_and_told_by_its_size(client: RedisClient) -> None:
    session = Session(client=client)
    batch = messages(3)
    session.import_session(batch)
    client.set(session.payload(2), "x" * 10_000)
    client.delete(session.payload(3))
    client.rpush(session.payload(3), "another type")
    first = batch[0].json.encode()
    whole = (first, batch[0].expires_at_ms)
    records = session.export_messages([1, 2, 3], len(first) + 10_000).records
    assert records == (whole, (b"x" * 10_000, -1), (b"", -1))
    for most_bytes in (len(first), len(first) + 9_999):
        assert session.export_messages([1, 2, 3], most_bytes).records == (whole, (b"", -10_003), (b"", -1))
    # What is behind it is read, if it fits.
    assert session.export_messages([2, 1], len(first)).records == ((b"", -10_003), whole)
    assert session.export_messages([1, 2], 1).records == ((b"", -3 - len(first)), (b"", -10_003))


@pytest.mark.parametrize("most_bytes", ["0", "-1", "x", " "])
def test_bound_is_an_integer_of_one_or_more(client: RedisClient, most_bytes: str) -> None:
    with pytest.raises(UsageError, match=r"^max_bytes is not an integer of 1 or more$"):
        ScriptCaller(client).call(load("sessions/export_messages"), ["{a}_messages_1"], [most_bytes])


@pytest.mark.parametrize(("keys", "args"), [([], []), (["{a}_messages_1"], []), (["{a}_messages_1"], ["1", "1"])])
def test_bad_argument_is_refused(client: RedisClient, keys: list[str], args: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^1 to 500 keys and 1 argument are expected$"):
        ScriptCaller(client).call(load("sessions/export_messages"), keys, args)


def test_full_server_is_read_unchanged(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(1))
        before = contents(client)
        client.config_set("maxmemory", 1)
        assert session.export_messages([1]).records[0].json == b'{"packetId":1,"subscriptionIds":[]}'
        assert contents(client) == before
