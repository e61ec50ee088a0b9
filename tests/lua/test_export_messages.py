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
    assert session.export_messages([3, 2, 1]) == [
        *(batch[2].json.encode(), -1),
        *(b"", -2),
        *(batch[0].json.encode(), batch[0].expires_at_ms),
    ]


def test_most_keys_of_one_call_are_five_hundred(client: RedisClient) -> None:
    session = Session(client=client)
    batch = messages(501)
    session.import_session(batch)
    assert session.export_messages(range(1, 501))[::2] == [message.json.encode() for message in batch[:500]]
    with pytest.raises(UsageError, match=r"^1 to 500 keys and no arguments are expected$"):
        session.export_messages(range(1, 502))


@pytest.mark.parametrize(("keys", "args"), [([], []), (["{a}_messages_1"], ["x"])])
def test_bad_argument_is_refused(client: RedisClient, keys: list[str], args: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^1 to 500 keys and no arguments are expected$"):
        ScriptCaller(client).call(load("sessions/export_messages"), keys, args)


def test_full_server_is_read_unchanged(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(1))
        before = contents(client)
        client.config_set("maxmemory", 1)
        assert session.export_messages([1])[0] == b'{"packetId":1,"subscriptionIds":[]}'
        assert contents(client) == before
