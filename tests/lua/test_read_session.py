"""``read_session``: what a session says about itself, in one reply."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, now_ms

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


def test_session_that_does_not_exist_reads_as_empty(client: RedisClient) -> None:
    before_ms = now_ms()
    reply = Session(client=client).read_session()
    assert (reply.last_packet_id, reply.references, reply.highest, reply.fields) == (b"", 0, b"", ())
    assert before_ms <= reply.now_ms <= now_ms()
    assert contents(client) == {}


def test_session_reads_with_all_its_fields(client: RedisClient) -> None:
    session = Session.saved(client, 3)
    session.ack((1, ""))
    reply = session.read_session()
    assert (reply.last_packet_id, reply.references, reply.highest) == (b"3", 2, b"3")
    read = {name.decode(): value.decode() for name, value in reply.fields}
    assert read == session.state()
    assert read["last_serial"] == "3"


def test_session_with_very_many_sources_is_read(client: RedisClient) -> None:
    session = Session(client=client)
    client.hset(session.keys.session, mapping={f"source:{n}": "1" for n in range(10_000)})
    assert len(session.read_session().fields) == 10_000


def test_high_serials_are_read_exactly(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 2**53 - 1})
    assert session.read_session().highest == str(2**53 - 1).encode()


@pytest.mark.parametrize(("keys", "args"), [(2, []), (3, ["1"])])
def test_wrong_number_of_keys_or_arguments_is_refused(client: RedisClient, keys: int, args: list[str]) -> None:
    with pytest.raises(UsageError, match=r"^3 keys and no arguments are expected$"):
        ScriptCaller(client).call(load("sessions/read_session"), Session(client=client).keys[:keys], args)
