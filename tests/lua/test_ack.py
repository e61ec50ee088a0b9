"""``ack``: a confirmed message goes, and no other one."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, messages, unchanged

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

WRONG_NUMBER = r"^2 keys, 1 to 1000 payload keys, an epoch and as many serials are expected$"


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of four messages."""
    return Session.saved(client, 4)


def test_confirmed_messages_go_with_reference_and_record(session: Session) -> None:
    assert session.ack((3, 3), (1, "")).removed == (1, 1)
    assert [serial for _, serial in session.references()] == [2, 4]
    assert session.client.exists(session.payload(1), session.payload(3)) == 0


def test_repeated_ack_removes_nothing(session: Session) -> None:
    session.ack((1, 1))
    before = contents(session.client)
    assert session.ack((1, 1), (1, ""), (9, ""), (9, 9)).removed == (0, 0, 0, 0)
    assert contents(session.client) == before


def test_late_ack_leaves_a_newer_message_of_the_same_packet_id(session: Session) -> None:
    session.ack((1, 1))
    session.save_messages(messages(1), expected=4)
    before = contents(session.client)
    assert session.ack((1, 1)).removed == (0,)
    assert contents(session.client) == before
    assert session.ack((1, 5)).removed == (1,)


def test_packet_id_that_comes_twice_counts_once(session: Session) -> None:
    assert session.ack((1, 7), (1, 1), (1, 1), (1, "")).removed == (0, 1, 0, 0)


def test_dead_reference_goes_too(session: Session) -> None:
    session.client.delete(session.payload(1))
    assert session.ack((1, 1)).removed == (1,)
    assert [serial for _, serial in session.references()] == [2, 3, 4]


def test_fields_and_last_packet_id_stay_when_the_last_message_goes(session: Session) -> None:
    before = contents(session.client)
    assert session.ack(*((n, "") for n in range(1, 5))).removed == (1, 1, 1, 1)
    assert contents(session.client) == {key: before[key] for key in (session.keys.last_packet_id, session.keys.session)}


def test_session_that_does_not_exist_has_nothing_to_remove(client: RedisClient) -> None:
    assert Session(client=client).ack((1, ""), (2, 1)).removed == (0, 0)
    assert contents(client) == {}


def test_serials_beyond_32_bits_are_compared_exactly(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 2**53 - 1})
    assert session.ack((1, 2**53 - 2)).removed == (0,)
    assert session.ack((1, 2**53 - 1)).removed == (1,)


def test_thousand_acks_in_a_call(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(n): n for n in range(1, 1_001)})
    assert session.ack(*((n, n) for n in range(1, 1_001))).removed == (1,) * 1_000
    with pytest.raises(UsageError, match=WRONG_NUMBER):
        session.ack(*((n, n) for n in range(1, 1_002)))


@pytest.mark.parametrize("serial", ["x", "1.5", "1e3", "01"])
def test_bad_serial_is_refused(session: Session, serial: str) -> None:
    with (
        unchanged(session.client),
        pytest.raises(UsageError, match=r"^serial of message 2 is neither an integer nor empty$"),
    ):
        session.ack((1, 1), (2, serial))


@pytest.mark.parametrize(("keys", "args"), [(1, 0), (2, 0), (2, 1), (3, 1), (3, 3)])
def test_wrong_number_of_keys_or_arguments_is_refused(session: Session, keys: int, args: int) -> None:
    names = [session.keys.messages, session.keys.session, session.payload(1)][:keys]
    with pytest.raises(UsageError, match=WRONG_NUMBER):
        ScriptCaller(session.client).call(load("sessions/ack"), names, [1] * args)


def test_full_server_takes_acks(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 2)
        client.config_set("maxmemory", 1)
        assert session.ack((1, 1), (2, "")).removed == (1, 1)
