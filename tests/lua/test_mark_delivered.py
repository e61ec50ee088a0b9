"""``mark_delivered``: the note of what was sent goes forward only, and lives no longer than the session."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, messages, now_ms

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


def foreign(client: RedisClient) -> Session:
    """Make a session as another program does: without a hash."""
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 1})
    return session


def test_note_moves_forward_only(client: RedisClient) -> None:
    session = Session.saved(client, 3)
    assert [session.mark_delivered(serial) for serial in (2, 1, 2, 3)] == [1, 0, 0, 1]
    assert session.state()["delivered_serial"] == "3"


def test_note_survives_saves_and_acks_and_keeps_the_expiry_of_the_hash(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    until = client.pexpiretime(session.keys.session)
    session.mark_delivered(2)
    session.ack((1, ""), (2, ""))
    session.save_messages(messages(1, first=3), expected=2)
    assert session.state()["delivered_serial"] == "2"
    assert client.pexpiretime(session.keys.session) == until


def test_session_without_messages_and_fields_gets_no_hash(client: RedisClient) -> None:
    assert Session(client=client).mark_delivered(2) == 0
    assert contents(client) == {}


def test_session_whose_messages_are_all_confirmed_still_takes_the_note(client: RedisClient) -> None:
    session = Session.saved(client, 1)
    session.ack((1, ""))
    assert session.mark_delivered(1) == 1


def test_hash_of_a_session_of_another_program_expires_with_the_set(client: RedisClient) -> None:
    session = foreign(client)
    client.pexpireat(session.keys.messages, 4_000_000_000_000)
    assert session.mark_delivered(1, keep_ms=5) == 1
    assert contents(client)[session.keys.session] == (
        {b"delivered_serial": b"1", b"delivered_at": b":1"},
        4_000_000_000_000,
    )


def test_hash_for_a_set_without_expiry_lives_as_long_as_told(client: RedisClient) -> None:
    session = foreign(client)
    before = now_ms()
    assert session.mark_delivered(1, keep_ms=600_000) == 1
    assert before + 600_000 <= client.pexpiretime(session.keys.session) <= now_ms() + 600_000


def test_hash_for_a_set_without_expiry_may_stay_for_ever(client: RedisClient) -> None:
    session = foreign(client)
    session.mark_delivered(1)
    assert client.pexpiretime(session.keys.session) == -1
    session.mark_delivered(2, keep_ms=5)
    assert client.pexpiretime(session.keys.session) == -1


@pytest.mark.parametrize(
    ("serial", "keep_ms", "message"),
    [
        (-1, "", "serial is not an integer of 0 or more"),
        ("x", "", "serial is not an integer of 0 or more"),
        (1, 0, "life of the hash is neither empty nor an integer of 1 or more"),
        (1, "x", "life of the hash is neither empty nor an integer of 1 or more"),
    ],
)
def test_bad_argument_is_refused(client: RedisClient, serial: int | str, keep_ms: int | str, message: str) -> None:
    session = foreign(client)
    before = contents(client)
    with pytest.raises(UsageError) as caught:
        session.mark_delivered(serial, keep_ms=keep_ms)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match=r"^3 keys and 3 arguments are expected$"):
        ScriptCaller(client).call(load("sessions/mark_delivered"), [session.keys.messages], ["", 1, ""])
    assert contents(client) == before


def test_full_server_takes_the_note(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 1)
        client.config_set("maxmemory", 1)
        assert session.mark_delivered(1) == 1
