"""``reserve_packet_ids``: no packet id is given out twice."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Message, Session, contents, messages, now_ms

from queuekeeper.errors import NotOwner, StoreFull, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of three messages."""
    saved = Session(client=client)
    saved.save_messages([Message(n, 0, FAR_MS, "{}") for n in (1, 2, 3)])
    return saved


def test_reserved_packet_ids_are_not_given_out_again(session: Session) -> None:
    before = contents(session.client)
    assert session.reserve_packet_ids([4, 5], expected=3, keep_ms=1).word == "reserved"
    assert session.reserve_packet_ids([4, 5], expected=3, keep_ms=1) == {"word": "conflict", "last_packet_id": b"5"}
    assert session.save_messages(messages(1, first=4), expected=3) == {"word": "conflict", "last_packet_id": b"5"}
    after = contents(session.client)
    until = before[session.keys.session][1]
    assert after.pop(session.keys.last_packet_id) == (b"5", until)
    fields, expiry = after.pop(session.keys.session)
    assert (fields[b"saved_last_packet_id"], expiry) == (b"5", until)
    assert {key: before[key] for key in after} == after


def test_save_after_a_reservation_knows_the_session_still(session: Session) -> None:
    session.reserve_packet_ids([4], expected=3)
    session.save_messages([Message(5, 0, FAR_MS, "{}")], expected=4)
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS)


def test_session_that_another_program_has_moved_stays_recognisable(session: Session) -> None:
    session.client.set(session.keys.last_packet_id, 8)
    assert session.reserve_packet_ids([9], expected=8).word == "reserved"
    assert session.state()["saved_last_packet_id"] == "3"


def test_packet_ids_in_use_are_a_conflict_that_names_them(session: Session) -> None:
    session.client.set(session.keys.last_packet_id, 65_534)
    before = contents(session.client)
    assert session.reserve_packet_ids([65_535, 1, 2], expected=65_534) == {
        "word": "conflict",
        "last_packet_id": b"65534",
        "positions": (1, 2),
    }
    assert contents(session.client) == before


def test_session_that_does_not_exist_gets_a_last_packet_id_for_as_long_as_told(client: RedisClient) -> None:
    session = Session(client=client)
    before = now_ms()
    assert session.reserve_packet_ids([1, 2], keep_ms=600_000).word == "reserved"
    ((key, (value, expiry)),) = contents(client).items()
    assert (key, value) == (session.keys.last_packet_id, b"2")
    assert before + 600_000 <= expiry <= now_ms() + 600_000


def test_expiry_of_the_last_packet_id_is_prolonged_and_never_shortened(client: RedisClient) -> None:
    session = Session(client=client)
    session.reserve_packet_ids([1], keep_ms=1_000_000)
    first = client.pexpiretime(session.keys.last_packet_id)
    session.reserve_packet_ids([2], expected=1, keep_ms=1_000)
    assert client.pexpiretime(session.keys.last_packet_id) == first
    session.reserve_packet_ids([3], expected=2, keep_ms=2_000_000)
    assert client.pexpiretime(session.keys.last_packet_id) >= first + 900_000


def test_expiry_that_a_cleanup_gave_goes_where_sessions_last_for_ever(client: RedisClient) -> None:
    session = Session(client=client)
    session.reserve_packet_ids([1])
    client.pexpire(session.keys.last_packet_id, 1_000_000)
    assert session.reserve_packet_ids([2], expected=1).word == "reserved"
    assert contents(client) == {session.keys.last_packet_id: (b"2", -1)}


def test_last_packet_id_without_expiry_stays_so(client: RedisClient) -> None:
    session = Session(client=client)
    session.reserve_packet_ids([1])
    session.reserve_packet_ids([2], expected=1, keep_ms=1_000)
    assert client.pexpiretime(session.keys.last_packet_id) == -1


@pytest.mark.parametrize("options", [{"last": False}, {"owner": "postgres"}])
def test_session_that_takes_no_messages_gives_out_no_packet_ids(client: RedisClient, options: dict[str, Any]) -> None:
    session = Session(client=client)
    session.import_session(messages(1), **options)
    with pytest.raises(NotOwner, match=r"^the other store owns the session, or its import is not complete$"):
        session.reserve_packet_ids([2])


@pytest.mark.parametrize(
    ("packet_ids", "options", "message"),
    [
        ([0], {}, "last one to give out is not an integer from 1 to 65535"),
        ([65_536], {}, "last one to give out is not an integer from 1 to 65535"),
        ([4], {"keep_ms": 0}, "life of the last packet id is neither empty nor an integer of 1 or more"),
        (range(1, 1_002), {}, "3 keys, 1 to 1000 payload keys and 4 arguments are expected"),
    ],
)
def test_bad_argument_is_refused(session: Session, packet_ids: Any, options: dict[str, Any], message: str) -> None:
    before = contents(session.client)
    with pytest.raises(UsageError) as caught:
        session.reserve_packet_ids(packet_ids, expected=3, **options)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match=r"^3 keys, 1 to 1000 payload keys and 4 arguments are expected$"):
        ScriptCaller(session.client).call(load("sessions/reserve_packet_ids"), session.keys, ["", 3, 4, ""])
    assert contents(session.client) == before


def test_thousand_packet_ids_are_given_out_at_once(client: RedisClient) -> None:
    session = Session(client=client)
    assert session.reserve_packet_ids(range(1, 1_001)).word == "reserved"
    assert client.get(session.keys.last_packet_id) == b"1000"


@pytest.mark.parametrize(("script", "given"), [("reserve_packet_ids", [2]), ("set_last_packet_id", 2)])
def test_full_server_gives_out_nothing(own_server: Any, script: str, given: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 1)
        before = contents(client)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            getattr(session, script)(given, expected=1)
        assert contents(client) == before
