"""``trim_messages``: what is over the limit goes, in the order given and no more than needed."""

from __future__ import annotations

from typing import Any

import pytest
from lua_sessions import Session, contents, messages, unchanged

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of six messages."""
    return Session.saved(client, 6)


def serials(session: Session) -> list[float]:
    return [serial for _, serial in session.references()]


def test_first_candidates_go_until_the_limit_is_kept(session: Session) -> None:
    assert session.trim_messages([(5, 5), (3, 3), (1, 1), (2, 2)], limit=4) == {
        "trimmed": 2,
        "dead": 0,
        "references": 4,
    }
    assert serials(session) == [1, 2, 4, 6]
    assert session.client.exists(session.payload(3), session.payload(5)) == 0
    assert session.state()["trimmed"] == "2"
    assert "expired" not in session.state()


def test_session_within_its_limit_keeps_everything(session: Session) -> None:
    before = contents(session.client)
    assert session.trim_messages([(1, 1)], limit=6) == {"trimmed": 0, "dead": 0, "references": 6}
    assert session.trim_messages([], limit=1) == {"trimmed": 0, "dead": 0, "references": 6}
    assert contents(session.client) == before


def test_candidate_whose_message_has_expired_is_counted_as_dead(session: Session) -> None:
    session.client.delete(session.payload(2))
    assert session.trim_messages([(1, 1), (2, 2), (3, 3)], limit=3) == {"trimmed": 2, "dead": 1, "references": 3}
    assert (session.state()["trimmed"], session.state()["expired"]) == ("2", "1")


def test_candidate_that_is_another_message_by_now_is_passed_over(session: Session) -> None:
    session.ack((1, 1))
    session.save_messages(messages(1), expected=6)
    assert session.trim_messages([(1, 1), (2, 2), (9, 9)], limit=4) == {"trimmed": 1, "dead": 0, "references": 5}
    assert serials(session) == [3, 4, 5, 6, 7]


def test_candidate_that_comes_twice_goes_once(session: Session) -> None:
    assert session.trim_messages([(1, 1), (1, 1), (2, 2)], limit=4) == {"trimmed": 2, "dead": 0, "references": 4}


def test_no_candidate_left_changes_nothing(session: Session) -> None:
    before = contents(session.client)
    assert session.trim_messages([(1, 99)], limit=2) == {"trimmed": 0, "dead": 0, "references": 6}
    assert contents(session.client) == before


def test_limit_of_zero_empties_the_set(session: Session) -> None:
    assert session.trim_messages([(n, n) for n in range(1, 7)], limit=0) == {"trimmed": 6, "dead": 0, "references": 0}
    assert sorted(contents(session.client)) == sorted([session.keys.last_packet_id, session.keys.session])


def test_session_of_another_program_gets_no_hash(client: RedisClient) -> None:
    session = Session(client=client)
    anything: Any = client
    anything.zadd(session.keys.messages, {session.payload(1): 1, session.payload(2): 2})
    assert session.trim_messages([(1, 1)], limit=1) == {"trimmed": 0, "dead": 1, "references": 1}
    assert list(contents(client)) == [session.keys.messages]


@pytest.mark.parametrize(
    ("candidates", "limit", "message"),
    [
        ([(1, 1)], -1, "limit is not an integer of 0 or more"),
        ([(1, 1)], "", "limit is not an integer of 0 or more"),
        ([(1, 1), (2, "")], 1, "serial of message 2 is not an integer"),
        ([(n, n) for n in range(1, 1_002)], 1, "a call takes at most 1000 payload keys"),
    ],
)
def test_bad_argument_is_refused(session: Session, candidates: Any, limit: Any, message: str) -> None:
    with unchanged(session.client), pytest.raises(UsageError) as caught:
        session.trim_messages(candidates, limit=limit)
    assert str(caught.value) == message


def test_serials_and_keys_have_to_match(session: Session) -> None:
    keys = [session.keys.messages, session.keys.session, session.payload(1)]
    with pytest.raises(UsageError, match=r"^2 keys, a key per message, epoch, limit and a serial per message are"):
        ScriptCaller(session.client).call(load("sessions/trim_messages"), keys, ["", 1])


def test_full_server_trims(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session.saved(client, 3)
        client.config_set("maxmemory", 1)
        assert session.trim_messages([(1, 1), (2, 2)], limit=1) == {"trimmed": 2, "dead": 0, "references": 1}
        assert session.state()["trimmed"] == "2"
