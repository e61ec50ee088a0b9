"""``quarantine_message``: a record that nobody can read leaves its session and is kept."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, Message, Session, contents, now_ms, readable

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000


def saved(client: RedisClient, client_id: str = "meter-7") -> Session:
    session = Session(client=client, client_id=client_id)
    session.save_messages([Message(n, 0, FAR_MS, "broken") for n in (1, 2)])
    return session


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_record_is_kept_under_its_serial_with_its_expiry(client: RedisClient, client_id: str) -> None:
    session = saved(client, client_id)
    assert session.quarantine_message(1, 1) == 1
    found = contents(client)
    assert found[session.quarantined(1)] == (b"broken", FAR_MS)
    assert session.payload(1) not in found
    assert session.references() == [(session.payload(2), 2)]
    assert session.state()["quarantined"] == "1"


def test_record_of_another_type_without_expiry_is_kept_for_as_long_as_told(client: RedisClient) -> None:
    session = saved(client)
    anything: Any = client
    anything.delete(session.payload(1))
    anything.rpush(session.payload(1), "x")
    before = now_ms()
    assert session.quarantine_message(1, 1, keep_ms=600_000) == 1
    value, expiry = contents(client)[session.quarantined(1)]
    assert value == [b"x"]
    assert before + 600_000 <= expiry <= now_ms() + 600_000


def test_older_record_of_the_same_name_is_kept(client: RedisClient) -> None:
    session = saved(client)
    client.set(session.quarantined(1), "older")
    before = contents(client)
    assert session.quarantine_message(1, 1) == 0
    assert contents(client) == before


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_message_of_the_client_stays_when_its_id_is_given(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id)
    session.save_messages([readable(client_id, 1)])
    session.save_messages([Message(2, 0, FAR_MS, readable(client_id, 9).json)], expected=1)
    session.save_messages([readable("other client", 3)], expected=2)
    before = contents(client)
    assert session.quarantine_message(1, 1, client_id=client_id) == 0
    assert contents(client) == before
    assert session.quarantine_message(2, 2, client_id=client_id) == 1, "another packet id"
    assert session.quarantine_message(3, 3, client_id=client_id) == 1, "another client"
    assert session.quarantine_message(1, 1) == 1


@pytest.mark.parametrize(("packet_id", "serial"), [(1, 2), (3, 3)])
def test_other_message_is_left_alone(client: RedisClient, packet_id: int, serial: int) -> None:
    session = saved(client)
    before = contents(client)
    assert session.quarantine_message(packet_id, serial) == 0
    assert contents(client) == before


def test_message_that_has_expired_meanwhile_is_left_to_the_sweep(client: RedisClient) -> None:
    session = saved(client)
    client.delete(session.payload(1))
    before = contents(client)
    assert session.quarantine_message(1, 1) == 0
    assert contents(client) == before


def test_repeated_call_changes_nothing(client: RedisClient) -> None:
    session = saved(client)
    session.quarantine_message(1, 1)
    before = contents(client)
    assert session.quarantine_message(1, 1) == 0
    assert contents(client) == before


def test_session_of_another_program_gets_no_hash(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 1})
    anything.set(session.payload(1), "broken")
    assert session.quarantine_message(1, 1) == 1
    assert list(contents(client)) == [session.quarantined(1)]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["", "x", 1, ""], "4 keys, an epoch, a serial, a life and a client id are expected"),
        (["", 1, 1], "4 keys, an epoch, a serial, a life and a client id are expected"),
        (["", 1, 0, ""], "life of the record is not an integer of 1 or more"),
        (["", 1, "", ""], "life of the record is not an integer of 1 or more"),
    ],
)
def test_bad_argument_is_refused(client: RedisClient, args: list[Any], message: str) -> None:
    session = saved(client)
    before = contents(client)
    keys = [session.keys.messages, session.keys.session, session.payload(1), session.quarantined(1)]
    with pytest.raises(UsageError) as caught:
        ScriptCaller(client).call(load("sessions/quarantine_message"), keys, args)
    assert str(caught.value) == message
    assert contents(client) == before


def test_full_server_quarantines(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = saved(client)
        client.config_set("maxmemory", 1)
        assert session.quarantine_message(1, 1) == 1
