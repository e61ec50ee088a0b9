"""``set_last_packet_id``: set only while it is what the caller has read."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, messages, now_ms, stored, unchanged

from queuekeeper.errors import NotOwner, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


def test_expected_value_is_replaced_and_the_expiry_stays(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    until = client.pexpiretime(session.keys.last_packet_id)
    assert session.set_last_packet_id(500, expected=2) == 1
    assert contents(client)[session.keys.last_packet_id] == (b"500", until)
    assert session.state()["saved_last_packet_id"] == "500"
    assert session.save_messages(messages(1, first=501), expected=500) == stored(first_serial=3, references=3)


@pytest.mark.parametrize("expected", ["", 1, 3])
def test_other_value_stays(client: RedisClient, expected: int | str) -> None:
    session = Session.saved(client, 2)
    before = contents(client)
    assert session.set_last_packet_id(500, expected=expected) == 0
    assert contents(client) == before


def test_first_value_makes_no_hash_and_lives_as_long_as_told(client: RedisClient) -> None:
    session = Session(client=client)
    assert session.set_last_packet_id(7, expected=1) == 0
    before = now_ms()
    assert session.set_last_packet_id(7, keep_ms=600_000) == 1
    ((key, (value, expiry)),) = contents(client).items()
    assert (key, value) == (session.keys.last_packet_id, b"7")
    assert before + 600_000 <= expiry <= now_ms() + 600_000


def test_first_value_may_stay_for_ever_and_be_zero(client: RedisClient) -> None:
    session = Session(client=client)
    assert session.set_last_packet_id(0) == 1
    assert contents(client) == {session.keys.last_packet_id: (b"0", -1)}


def test_session_that_another_program_has_moved_stays_recognisable(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    client.set(session.keys.last_packet_id, 8)
    assert session.set_last_packet_id(9, expected=8) == 1
    assert session.state()["saved_last_packet_id"] == "2"


@pytest.mark.parametrize("options", [{"last": False}, {"owner": "postgres", "last_packet_id": 1}])
def test_session_that_takes_no_messages_is_left_alone(client: RedisClient, options: dict[str, Any]) -> None:
    session = Session(client=client)
    session.import_session(messages(1), **options)
    with (
        unchanged(client),
        pytest.raises(NotOwner, match=r"^the other store owns the session, or its import is not complete$"),
    ):
        session.set_last_packet_id(2, expected=options.get("last_packet_id", ""))


@pytest.mark.parametrize(
    ("packet_id", "keep_ms", "message"),
    [
        ("", "", "last packet id is not an integer from 0 to 65535"),
        (-1, "", "last packet id is not an integer from 0 to 65535"),
        (65_536, "", "last packet id is not an integer from 0 to 65535"),
        (1, -1, "life of the last packet id is neither empty nor an integer of 1 or more"),
    ],
)
def test_bad_argument_is_refused(client: RedisClient, packet_id: Any, keep_ms: Any, message: str) -> None:
    session = Session(client=client)
    with pytest.raises(UsageError) as caught:
        session.set_last_packet_id(packet_id, keep_ms=keep_ms)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match=r"^3 keys and 4 arguments are expected$"):
        ScriptCaller(client).call(load("sessions/set_last_packet_id"), session.keys[1:], ["", "", 1])
    assert contents(client) == {}
