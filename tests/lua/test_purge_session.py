"""``purge_session``: a session goes page by page, and what was saved meanwhile stays."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, Session, contents, messages

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_session_goes_page_by_page_without_a_trace(client: RedisClient, client_id: str) -> None:
    session = Session(client=client, client_id=client_id)
    session.save_messages(messages(5))
    assert session.purge_session([1, 2, 3], up_to_serial=5) == {"removed": 3, "remaining": 2}
    assert session.client.get(session.keys.last_packet_id) == b"5"
    assert session.purge_session([4, 5], up_to_serial=5) == {"removed": 2, "remaining": 0}
    assert contents(client) == {}


def test_repeated_page_removes_nothing(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    session.purge_session([1], up_to_serial=2)
    assert session.purge_session([1], up_to_serial=2) == {"removed": 0, "remaining": 1}
    assert session.purge_session([1, 2], up_to_serial=2) == {"removed": 1, "remaining": 0}
    assert session.purge_session([1, 2], up_to_serial=2) == {"removed": 0, "remaining": 0}


def test_what_was_saved_meanwhile_stays_with_the_session(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    session.ack((1, ""))
    session.save_messages(messages(1), expected=2)
    state = session.state()
    assert session.purge_session([1, 2], up_to_serial=2) == {"removed": 1, "remaining": 1}
    assert session.references() == [(session.payload(1), 3)]
    assert session.client.get(session.payload(1)) is not None
    assert session.state() == state


def test_dead_references_go_too(client: RedisClient) -> None:
    session = Session.saved(client, 2)
    client.delete(session.payload(1))
    assert session.purge_session([1, 2], up_to_serial=2) == {"removed": 2, "remaining": 0}


def test_references_that_name_other_keys_go_but_not_these_keys(client: RedisClient) -> None:
    session = Session.saved(client, 1)
    anything: Any = client
    anything.set("another", "kept")
    anything.zadd(session.keys.messages, {"another": 0.5, "späte": 7})
    assert session.purge_session([1], up_to_serial=6, members=["another", "späte", "unknown"]) == {
        "removed": 2,
        "remaining": 1,
    }
    assert session.purge_session(up_to_serial=7, members=["späte"]) == {"removed": 1, "remaining": 0}
    assert contents(client) == {"another": (b"kept", -1)}


def test_session_without_messages_goes_at_once(client: RedisClient) -> None:
    session = Session.saved(client, 1)
    session.ack((1, ""))
    assert session.purge_session(up_to_serial=0) == {"removed": 0, "remaining": 0}
    assert contents(client) == {}


def test_unfinished_import_is_purged_too(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session(messages(2), last=False)
    assert session.purge_session([1, 2], up_to_serial=1_002) == {"removed": 2, "remaining": 0}
    assert contents(client) == {}


@pytest.mark.parametrize(
    ("count", "members", "up_to_serial", "message"),
    [
        (1, 0, "x", "the highest serial is not an integer"),
        (1_001, 0, 1, "a call takes at most 1000 payload keys and members"),
        (0, 1_001, 1, "a call takes at most 1000 payload keys and members"),
    ],
)
def test_bad_argument_is_refused(
    client: RedisClient, count: int, members: int, up_to_serial: Any, message: str
) -> None:
    session = Session.saved(client, 1)
    before = contents(client)
    with pytest.raises(UsageError) as caught:
        session.purge_session(range(1, count + 1), up_to_serial=up_to_serial, members=["x"] * members)
    assert str(caught.value) == message
    with pytest.raises(UsageError, match=r"^3 keys, payload keys, an epoch, the highest serial and members are"):
        ScriptCaller(client).call(load("sessions/purge_session"), session.keys, [])
    assert contents(client) == before


def test_full_server_purges(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 2)
        client.config_set("maxmemory", 1)
        assert session.purge_session([1, 2], up_to_serial=2) == {"removed": 2, "remaining": 0}
        assert contents(client) == {}
