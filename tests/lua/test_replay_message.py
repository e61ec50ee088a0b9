"""``replay_message``: one repaired message joins an imported session, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lua_sessions import Message, Session, contents, messages, now_ms, unchanged

from queuekeeper.errors import MovedOn, PacketIdInUse, StaleEpoch, StoreFull, UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.model import Ack, NewMessage, SessionSave, StoreRules
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua


@pytest.fixture
def session(client: RedisClient) -> Session:
    """A session of three messages, imported to the end."""
    imported = Session(client=client)
    imported.import_session(messages(3), last_packet_id=3)
    return imported


def repaired(packet_id: int = 4, serial: int = 1_002, *, life_ms: int = 60_000) -> Message:
    return Message(packet_id, serial, now_ms() + life_ms, f'{{"packetId":{packet_id}}}')


def test_message_takes_its_place_by_serial(session: Session) -> None:
    message = repaired(serial=500)
    reply = session.replay_message(message, expected=3, last_packet_id=4)
    assert reply == {"word": "replayed", "key": session.payload(4).encode()}
    assert [key for key, _ in session.references()] == [session.payload(n) for n in (4, 1, 2, 3)]
    assert session.client.get(session.payload(4)) == message.json.encode()
    assert session.client.pexpiretime(session.payload(4)) == message.expires_at_ms
    assert session.client.get(session.keys.last_packet_id) == b"4"
    assert session.state()["references"] == "4"
    assert session.state()["imported_last_packet_id"] == "4"


def test_last_packet_id_stays_when_none_is_given(session: Session) -> None:
    session.replay_message(repaired(packet_id=9, serial=500), expected=3)
    assert session.client.get(session.keys.last_packet_id) == b"3"
    assert session.state()["imported_last_packet_id"] == "3"


def test_session_without_last_packet_id_takes_a_message(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session([])
    assert session.replay_message(repaired(1), last_packet_id=1).word == "replayed"
    assert client.get(session.keys.last_packet_id) == b"1"


def test_repeated_replay_changes_nothing(session: Session) -> None:
    message = repaired(serial=500)
    session.replay_message(message, expected=3, last_packet_id=4)
    before = contents(session.client)
    assert session.replay_message(message, expected=3, last_packet_id=4) == {
        "word": "unchanged",
        "key": session.payload(4).encode(),
    }
    assert contents(session.client) == before


def test_replay_after_a_lost_answer_does_not_add_the_message_under_a_second_packet_id(session: Session) -> None:
    session.replay_message(repaired(4, serial=500), expected=3, last_packet_id=4)
    before = contents(session.client)
    reply = session.replay_message(repaired(5, serial=500), expected=4, last_packet_id=5)
    assert reply == {"word": "unchanged", "key": session.payload(4).encode()}
    assert contents(session.client) == before


def test_replay_is_still_known_when_the_client_has_confirmed_the_message(session: Session) -> None:
    session.replay_message(repaired(4, serial=500), expected=3, last_packet_id=4)
    session.client.zrem(session.keys.messages, session.payload(4))
    session.client.delete(session.payload(4))
    assert session.replay_message(repaired(5, serial=500), expected=4, last_packet_id=5).word == "unchanged"


def test_serial_that_a_later_message_was_given_is_not_taken_for_a_replay(session: Session) -> None:
    session.client.zadd(session.keys.messages, {session.payload(9): 500})
    with (
        unchanged(session.client),
        pytest.raises(MovedOn, match="serial 500 has been given to a message that came later"),
    ):
        session.replay_message(repaired(4, serial=500), expected=3, last_packet_id=4)


def test_session_with_a_replayed_message_can_still_be_dropped(session: Session) -> None:
    session.replay_message(repaired(serial=500), expected=3, last_packet_id=4)
    assert session.drop_import([1, 2, 3, 4]) == {"removed": 4, "remaining": 0}


def test_replay_does_not_hide_that_a_session_was_used(session: Session) -> None:
    session.client.zrem(session.keys.messages, session.payload(1))
    session.replay_message(repaired(serial=500), expected=3, last_packet_id=4)
    with pytest.raises(MovedOn):
        session.drop_import([2, 3, 4])


def test_replay_does_not_hide_that_packet_ids_were_given_out(session: Session) -> None:
    session.client.set(session.keys.last_packet_id, 7)
    session.replay_message(repaired(8, serial=500), expected=7, last_packet_id=8)
    with pytest.raises(MovedOn):
        session.drop_import([1, 2, 3, 8])


@pytest.mark.parametrize("taken", ["another serial", "unreferenced"])
def test_packet_id_in_use_is_refused(session: Session, taken: str) -> None:
    if taken == "unreferenced":
        session.client.zrem(session.keys.messages, session.payload(3))
    with (
        unchanged(session.client),
        pytest.raises(PacketIdInUse, match=r"^another message of the session has this packet id$"),
    ):
        session.replay_message(repaired(3, serial=500), expected=3)


@pytest.mark.parametrize("waits", [True, False], ids=["beside another", "alone"])
def test_message_is_not_lost_where_our_saves_let_the_keys_end_earlier(session: Session, waits: bool) -> None:
    store = RedisSessionStore(session.client, rules=StoreRules(session_expiry_s=0))
    acks = [Ack(packet_id=packet_id) for packet_id in range(1, 5)]
    store.ack(session.client_id, acks)
    published = NewMessage(topic="t", payload=b"x", qos=1, time_ms=now_ms(), expiry_interval_s=7_200)
    save = SessionSave(client_id=session.client_id, messages=(published,))
    assert store.save_messages([save])[0].packet_ids == (4,)
    if not waits:
        store.ack(session.client_id, acks)

    message = repaired(9, serial=500, life_ms=86_400_000)
    assert session.replay_message(message, expected=4, last_packet_id=9).word == "replayed"
    for key in session.keys:
        assert session.client.pexpiretime(key) >= message.expires_at_ms, key
    assert int(session.state()["earliest_expiry_ms"]) <= message.expires_at_ms
    store.save_messages([save])
    for key in session.keys:
        until_ms = session.client.pexpiretime(key)
        assert until_ms == -1 or until_ms >= message.expires_at_ms, key


def test_expired_message_is_not_written(session: Session) -> None:
    before = contents(session.client)
    assert session.replay_message(repaired(serial=500, life_ms=0), expected=3, last_packet_id=4) == {
        "word": "expired",
        "key": b"",
    }
    assert contents(session.client) == before


@pytest.mark.parametrize("expected", ["", "2", "4"])
def test_last_packet_id_that_has_moved_is_refused(session: Session, expected: str) -> None:
    with (
        unchanged(session.client),
        pytest.raises(MovedOn, match=r"^the last packet id of the session is not the expected one$"),
    ):
        session.replay_message(repaired(serial=500), expected=expected, last_packet_id=4)


@pytest.mark.parametrize("reason", ["other plan", "unfinished", "absent"])
def test_session_that_the_plan_has_not_imported_to_its_end_is_refused(client: RedisClient, reason: str) -> None:
    session = Session(client=client)
    if reason != "absent":
        session.import_session(messages(1), last=reason == "other plan")
    wanted = replace(session, plan="plan-b") if reason == "other plan" else session
    with (
        unchanged(client),
        pytest.raises(MovedOn, match=rf"^plan {wanted.plan} has not imported the session to its end$"),
    ):
        wanted.replay_message(repaired())


def test_greater_epoch_fences_an_older_writer(session: Session) -> None:
    session.client.hset(session.keys.session, "epoch", "2")
    with pytest.raises(StaleEpoch, match=r"^epoch 2 owns the session$"):
        session.replay_message(repaired(), expected=3)


BAD_ARGUMENTS = {
    0: ("", "4 keys and 7 arguments are expected"),
    1: ("one", "epoch is not an integer of 0 or more"),
    2: ("70000", "last packet id is not an integer from 0 to 65535"),
    3: ("-1", "last packet id is not an integer from 0 to 65535"),
    4: ("1e3", "serial is not an integer of 0 or more"),
    5: ("", "expiry is not an integer"),
}


@pytest.mark.parametrize("position", BAD_ARGUMENTS)
def test_bad_argument_is_refused(session: Session, position: int) -> None:
    value, message = BAD_ARGUMENTS[position]
    args = ["plan-a", "1", "3", "4", "500", str(now_ms() + 60_000), "{}"]
    args[position] = value
    with unchanged(session.client), pytest.raises(UsageError) as caught:
        ScriptCaller(session.client).call(load("sessions/replay_message"), [*session.keys, session.payload(4)], args)
    assert str(caught.value) == message


def test_full_server_refuses_the_message_as_a_whole(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = Session(client=client)
        session.import_session(messages(1), last_packet_id=1)
        before = contents(client)
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            session.replay_message(repaired(2, serial=2_000), expected=1, last_packet_id=2)
        assert contents(client) == before
