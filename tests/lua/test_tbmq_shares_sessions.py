"""TBMQ 2.x and the session scripts on the same sessions: each reads, confirms and removes what the other wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, Message, Session, contents, now_ms, stored
from tbmq_broker import Broker, record

from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua


@pytest.fixture
def broker(client: RedisClient) -> Broker:
    return Broker(client, "meter-7")


@pytest.fixture
def session(client: RedisClient) -> Session:
    return Session(client=client)


def publish(packet_id: int, *, life_ms: int = 600_000) -> Message:
    """Return a message as our stores write it."""
    message = {
        "clientId": "meter-7",
        "topicName": f"site/{packet_id}",
        "time": now_ms(),
        "qos": 2,
        "packetId": packet_id,
        "packetType": "PUBLISH",
        "payload": "//79",
        "retained": False,
        "subscriptionIds": [1, 268_435_455],
    }
    return Message(packet_id, 0, now_ms() + life_ms, json.dumps(message, separators=(",", ":")))


def bodies(session: Session, packet_ids: list[int]) -> list[dict[str, Any]]:
    """Read messages by our script."""
    return [json.loads(each.json) for each in session.fetch_messages(packet_ids).records]


def sent_up_to(session: Session) -> int:
    """Return up to which serial the messages that wait are known as sent."""
    return int(dict(session.read_session().fields)[b"sent_up_to"])


# What TBMQ wrote, under our scripts.


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_messages_of_the_broker_are_read_in_order_with_their_expiry(client: RedisClient, client_id: str) -> None:
    broker, session = Broker(client, client_id), Session(client=client, client_id=client_id)
    before = now_ms()
    assert [broker.add(f"site/{n}") for n in range(3)] == [1, 2, 3]
    assert session.list_references("serial", -1) == [(session.payload(n), n) for n in (1, 2, 3)]
    assert session.read_session().pick("last_packet_id", "references", "highest") == (b"3", 3, b"3")
    assert bodies(session, [1, 2, 3]) == broker.fetch()
    for read in session.fetch_messages([1, 2, 3]).records:
        assert before + 600_000 <= read.pexpiretime <= now_ms() + 600_000


def test_messages_of_the_broker_are_confirmed(broker: Broker, session: Session) -> None:
    for n in range(3):
        broker.add(f"site/{n}")
    assert session.ack((2, 2), (1, 9)).removed == (1, 0)
    assert [message["packetId"] for message in broker.fetch()] == [1, 3]
    assert session.ack((1, ""), (3, "")).removed == (1, 1)
    assert list(contents(session.client)) == [session.keys.last_packet_id]


def test_message_of_the_broker_is_released_and_keeps_its_expiry(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    (message,) = broker.fetch()
    until = session.client.pexpiretime(session.payload(1))
    assert session.mark_released(1, 1) == b"released"
    assert broker.fetch() == [{**message, "packetType": "PUBREL", "payload": ""}]
    assert session.client.pexpiretime(session.payload(1)) == until


def test_message_that_the_broker_released_is_known_as_released(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    broker.received(1)
    before = contents(session.client)
    assert session.mark_released(1) == b"already"
    assert contents(session.client) == before
    assert session.fetch_messages([1]).records[0].pexpiretime == -1
    assert session.remove_dead_references([1]) == {"removed": 0, "earliest_expiry_ms": b""}
    assert session.ack((1, 1)).removed == (1,)


def test_dead_references_of_the_broker_are_swept(broker: Broker, session: Session) -> None:
    for n in range(4):
        broker.add(f"site/{n}")
    session.client.delete(session.payload(1), session.payload(3))
    assert session.remove_dead_references([1, 2, 3, 4]).removed == 2
    assert [message["packetId"] for message in broker.fetch()] == [2, 4]


def test_messages_of_the_broker_are_trimmed(broker: Broker, session: Session) -> None:
    for n in range(4):
        broker.add(f"site/{n}")
    assert session.trim_messages([(1, 1), (2, 2), (3, 3)], limit=2) == {"trimmed": 2, "dead": 0, "references": 2}
    assert [message["packetId"] for message in broker.fetch()] == [3, 4]


def test_session_of_the_broker_is_purged_without_a_trace(broker: Broker, session: Session) -> None:
    for n in range(3):
        broker.add(f"site/{n}")
    session.mark_delivered(2)
    assert session.purge_session([1, 2, 3], up_to_serial=3) == {"removed": 3, "remaining": 0}
    assert contents(session.client) == {}


def test_unreadable_record_of_the_broker_leaves_its_session(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    broker.add("site/2")
    session.client.set(session.payload(1), "broken")
    assert session.quarantine_message(1, 1) == 1
    assert [message["packetId"] for message in broker.fetch()] == [2]


def test_save_goes_behind_the_messages_of_the_broker(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    broker.add("site/2")
    assert session.save_messages([publish(3)]) == {"word": "conflict", "last_packet_id": b"2"}
    assert session.save_messages([publish(3)], expected=2) == stored(first_serial=3, references=3)
    assert [message["packetId"] for message in broker.fetch()] == [1, 2, 3]


def test_save_steps_over_a_packet_id_that_the_broker_has_in_use(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    session.client.set(session.keys.last_packet_id, 65_535)
    assert session.save_messages([publish(1)], expected=65_535) == {
        "word": "conflict",
        "last_packet_id": b"65535",
        "positions": (0,),
    }
    assert session.save_messages([publish(2)], expected=65_535) == stored(first_serial=2, references=2)
    assert [message["topicName"] for message in broker.fetch()] == ["site/1", "site/2"]


# What our scripts wrote, under TBMQ.


def test_broker_reads_saved_messages_in_order_and_whole(broker: Broker, session: Session) -> None:
    batch = [publish(n) for n in (65_534, 65_535, 1, 2)]
    session.set_last_packet_id(65_533)
    session.save_messages(batch, expected=65_533, source="a", packet_ids="65534-65535,1-2")
    assert broker.fetch() == [json.loads(message.json) for message in batch]


def test_broker_goes_on_with_packet_ids_and_order_and_so_do_we(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1), publish(2)])
    assert broker.add("broker/3") == 3
    assert session.save_messages([publish(4)], expected=2) == {"word": "conflict", "last_packet_id": b"3"}
    assert session.save_messages([publish(4)], expected=3) == stored(first_serial=4, references=4)
    assert broker.add("broker/5") == 5
    assert [message["packetId"] for message in broker.fetch()] == [1, 2, 3, 4, 5]


def test_broker_confirms_and_releases_saved_messages(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1), publish(2)])
    broker.received(1)
    broker.acknowledge(2)
    assert broker.fetch() == [
        {**json.loads(publish(1).json), "packetType": "PUBREL", "time": broker.fetch()[0]["time"]}
    ]
    assert session.ack((2, 2), (1, 1)).removed == (0, 1)


def test_broker_reads_what_we_released(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1)])
    session.mark_released(1, 1)
    (message,) = broker.fetch()
    assert (message["packetType"], message["payload"]) == ("PUBREL", "")
    broker.acknowledge(1)
    assert session.list_references("rank", 0) == []


def test_broker_forgets_saved_messages_whose_life_has_ended(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1), publish(2)])
    session.client.pexpireat(session.payload(1), 1)
    assert [message["packetId"] for message in broker.fetch()] == [2]
    assert session.list_references("rank", 0) == [(session.payload(2), 2)]


def test_broker_trims_saved_messages(broker: Broker, session: Session) -> None:
    session.save_messages([publish(n) for n in range(1, 6)])
    broker.add("broker/6", limit=3)
    assert [serial for _, serial in session.list_references("rank", 0)] == [4, 5, 6]


def test_session_that_the_broker_purged_begins_anew_with_greater_serials(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1), publish(2)])
    broker.purge()
    assert list(contents(session.client)) == [session.keys.session]
    assert session.save_messages([publish(3)], expected=2) == {"word": "conflict", "last_packet_id": b""}
    assert session.save_messages([publish(1)]) == stored(first_serial=3, references=1)
    assert [message["packetId"] for message in broker.fetch()] == [1]


@pytest.mark.parametrize("session_expiry_ms", [600_000, ""])
@pytest.mark.parametrize("added", [65_534, 65_535, 65_536, 2 * 65_535])
def test_save_goes_behind_what_the_broker_added_once_around_all_packet_ids(
    broker: Broker, session: Session, added: int, session_expiry_ms: int | str
) -> None:
    session.save_messages([publish(n) for n in (1, 2, 3)], session_expiry_ms=session_expiry_ms)
    last = (2 + added) % 65_535 + 1
    assert broker.add_many("broker/", added, limit=5) == last
    saved = session.save_messages([publish(last + 1)], expected=last, session_expiry_ms=session_expiry_ms)
    assert saved == stored(first_serial=added + 4, references=6)
    assert [message["topicName"] for message in broker.fetch()] == [
        *(f"broker/{number}" for number in range(added - 4, added + 1)),
        f"site/{last + 1}",
    ]


def test_save_goes_behind_what_the_broker_added_before_it_set_the_counter_back(
    broker: Broker, session: Session
) -> None:
    session.save_messages([publish(n) for n in (1, 2, 3)])
    broker.add("broker/4")
    # As it does when it hands messages of a group over while others are added.
    session.client.set(session.keys.last_packet_id, 3)
    assert session.save_messages([publish(5)], expected=3) == stored(first_serial=5, references=5)


def test_message_that_the_broker_added_to_a_session_that_it_purged_was_not_sent(
    broker: Broker, session: Session
) -> None:
    session.save_messages([publish(n) for n in (1, 2, 3)])
    session.mark_delivered(3)
    assert sent_up_to(session) == 3
    broker.purge()
    for n in (1, 2, 3):
        broker.add(f"broker/{n}")
    assert sent_up_to(session) == -1
    assert session.mark_delivered(1) == 1
    assert sent_up_to(session) == 1
    broker.purge()
    broker.add("broker/4")
    assert sent_up_to(session) == -1


def test_message_that_the_broker_added_below_one_that_was_sent_and_confirmed_was_not_sent(
    broker: Broker, session: Session
) -> None:
    session.save_messages([publish(n) for n in (1, 2, 3)])
    session.mark_delivered(3)
    broker.acknowledge(2)
    broker.acknowledge(3)
    broker.add("broker/4")
    assert session.list_references("rank", 0) == [(session.payload(1), 1), (session.payload(4), 2)]
    assert sent_up_to(session) == 1
    session.save_messages([publish(5)], expected=4)
    assert sent_up_to(session) == 1


def test_messages_that_were_sent_stay_so_while_the_broker_adds_and_we_save(broker: Broker, session: Session) -> None:
    session.save_messages([publish(n) for n in (1, 2, 3)])
    session.mark_delivered(3)
    for last in (3, 5, 7):
        broker.add(f"broker/{last + 1}")
        session.save_messages([publish(last + 2)], expected=last + 1)
    assert sent_up_to(session) == 3
    assert session.mark_delivered(8) == 1
    broker.add("broker/10")
    assert sent_up_to(session) == 8


def test_many_steps_of_the_broker_at_once_are_those_steps(client: RedisClient) -> None:
    one_by_one, at_once = Broker(client, "a"), Broker(client, "b")
    for broker in (one_by_one, at_once):
        broker.add("before", limit=5)
    for number in range(1, 21):
        one_by_one.add(f"t/{number}", limit=5)
    at_once.add_many("t/", 20, limit=5)
    assert [
        [(message["packetId"], message["topicName"]) for message in broker.fetch()] for broker in (one_by_one, at_once)
    ] == [[(number + 1, f"t/{number}") for number in range(16, 21)]] * 2


def test_session_that_both_use_loses_nothing_to_the_expiry_of_its_keys(broker: Broker, session: Session) -> None:
    session.save_messages([publish(1, life_ms=60_000)], session_expiry_ms=0)
    broker.add("broker/2", life_s=86_400)
    session.save_messages([publish(3, life_ms=60_000)], expected=2, session_expiry_ms=0)
    anything: Any = session.client
    assert [anything.pexpiretime(key) for key in session.keys] == [-1, -1, -1]


def test_records_of_the_broker_escape_slashes(broker: Broker, session: Session) -> None:
    broker.add("site/1")
    (read,) = session.fetch_messages([1]).records
    assert b'"topicName":"site\\/1"' in read.json
    assert b'"topicName":"site\\/1"' in record(json.loads(read.json)).encode()
