"""``remove_dead_references``: references to expired messages go, and the session learns when the next one expires."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Message, Session, contents, unchanged

from queuekeeper.errors import ScriptError, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of five messages, each of which lives a millisecond longer; the messages 1, 2 and 4 are gone."""
    saved = Session(client=client)
    saved.save_messages([Message(n, 0, FAR_MS + n, "{}") for n in range(1, 6)])
    client.delete(*(saved.payload(n) for n in (1, 2, 4)))
    return saved


def text(number: int) -> bytes:
    return str(number).encode()


def test_dead_references_go_and_live_messages_stay(session: Session) -> None:
    assert session.remove_dead_references([1, 2, 3, 4, 5]) == {"removed": 3, "earliest_expiry_ms": text(FAR_MS + 3)}
    assert session.references() == [(session.payload(3), 3), (session.payload(5), 5)]
    assert session.state()["expired"] == "3"
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS + 1)


def test_only_what_is_given_is_looked_at(session: Session) -> None:
    assert session.remove_dead_references([5, 4]) == {"removed": 1, "earliest_expiry_ms": text(FAR_MS + 5)}
    assert [serial for _, serial in session.references()] == [1, 2, 3, 5]


def test_repeated_call_removes_and_counts_nothing(session: Session) -> None:
    session.remove_dead_references([1, 2, 3, 4, 5])
    before = contents(session.client)
    assert session.remove_dead_references([1, 2, 3, 4, 5]) == {"removed": 0, "earliest_expiry_ms": text(FAR_MS + 3)}
    assert contents(session.client) == before


def test_last_page_tells_the_session_when_the_next_message_expires(session: Session) -> None:
    reply = session.remove_dead_references([1, 2, 3])
    assert reply == {"removed": 2, "earliest_expiry_ms": text(FAR_MS + 3)}
    earliest = reply.earliest_expiry_ms
    assert session.remove_dead_references([4, 5], earliest_expiry_ms=int(earliest), complete_for=5) == {
        "removed": 1,
        "earliest_expiry_ms": earliest,
    }
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS + 3)


def test_earliest_of_the_pages_before_gives_way_to_an_earlier_one(session: Session) -> None:
    assert session.remove_dead_references([3], earliest_expiry_ms=FAR_MS + 4).earliest_expiry_ms == text(FAR_MS + 3)
    assert session.remove_dead_references([5], earliest_expiry_ms=FAR_MS + 4).earliest_expiry_ms == text(FAR_MS + 4)


def test_session_that_has_saved_meanwhile_is_not_told(session: Session) -> None:
    session.save_messages([Message(6, 0, FAR_MS, "{}")], expected=5)
    session.remove_dead_references([1, 2, 3, 4, 5], complete_for=5)
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS)


def test_nothing_expires_where_no_message_has_an_expiry(session: Session) -> None:
    client: Any = session.client
    client.persist(session.payload(3))
    client.persist(session.payload(5))
    assert session.remove_dead_references([1, 2, 3, 4, 5], complete_for=5) == {"removed": 3, "earliest_expiry_ms": b""}
    assert session.state()["earliest_expiry_ms"] == str(2**53)


def test_empty_last_page_ends_a_sweep(session: Session) -> None:
    assert session.remove_dead_references([], earliest_expiry_ms=FAR_MS + 9, complete_for=5) == {
        "removed": 0,
        "earliest_expiry_ms": text(FAR_MS + 9),
    }
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS + 9)


def test_session_of_another_program_gets_no_hash(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 1})
    assert session.remove_dead_references([1], complete_for=1) == {"removed": 1, "earliest_expiry_ms": b""}
    assert contents(client) == {}


def test_session_of_another_type_is_refused_before_anything_is_written(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 1})
    anything.set(session.keys.session, "x")
    with unchanged(client), pytest.raises(ScriptError, match="WRONGTYPE"):
        session.remove_dead_references([1], complete_for=1)


def test_sweep_ends_the_need_for_another_until_the_next_expiry(session: Session) -> None:
    session.remove_dead_references([1, 2, 3, 4, 5], complete_for=5)
    session.save_messages([Message(6, 0, FAR_MS + 9, "{}")], expected=5)
    assert session.state()["earliest_expiry_ms"] == str(FAR_MS + 3)


@pytest.mark.parametrize(
    ("options", "count", "message"),
    [
        ({"earliest_expiry_ms": "x"}, 1, "earliest expiry is not an integer"),
        ({}, 1_001, "a call takes at most 1000 payload keys"),
    ],
)
def test_bad_argument_is_refused(session: Session, options: dict[str, Any], count: int, message: str) -> None:
    before = contents(session.client)
    with pytest.raises(UsageError) as caught:
        session.remove_dead_references(range(1, count + 1), **options)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match=r"^2 keys, payload keys and 3 arguments are expected$"):
        ScriptCaller(session.client).call(
            load("sessions/remove_dead_references"), [session.keys.messages], ["", "", ""]
        )
    assert contents(session.client) == before


def test_thousand_references_are_removed_at_once(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(n): n for n in range(1, 1_001)})
    assert session.remove_dead_references(range(1, 1_001)) == {"removed": 1_000, "earliest_expiry_ms": b""}


def test_full_server_removes_dead_references(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 2)
        client.delete(session.payload(1))
        client.config_set("maxmemory", 1)
        assert session.remove_dead_references([1, 2], complete_for=2).removed == 1
        assert [serial for _, serial in session.references()] == [2]
