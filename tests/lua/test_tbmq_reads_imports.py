"""What TBMQ 2.x does with a session finds imported messages in order: as ``tbmq_broker`` tells it."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from lua_sessions import HOSTILE_IDS, Message, Session, contents, now_ms
from tbmq_broker import Broker

from queuekeeper.errors import MovedOn
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua

DAY_MS = 86_400_000


def publish(packet_id: int, serial: int, client_id: str, *, life_ms: int = DAY_MS) -> Message:
    """Return a message with every field that TBMQ has, and none that it does not have."""
    record = {
        "clientId": client_id,
        "topicName": f"site/{serial}",
        "time": now_ms(),
        "qos": 2,
        "packetId": packet_id,
        "packetType": "PUBLISH",
        "payload": b64encode(b"\x00\xff" * 10).decode(),
        "retained": False,
        "userProperties": {"props": [{"k": "a", "v": "1"}, {"k": "a", "v": "2"}]},
        "msgExpiryInterval": life_ms // 1_000,
        "payloadFormatIndicator": 0,
        "contentType": "text/plain",
        "responseTopic": "reply",
        "correlationData": b64encode(b"id").decode(),
    }
    return Message(packet_id, serial, now_ms() + life_ms, json.dumps(record))


def imported(client: RedisClient, client_id: str = "meter-7") -> tuple[Session, Broker, list[Message]]:
    """Import a session whose packet ids wrapped while its serials went on."""
    session = Session(client=client, client_id=client_id)
    ids = [(65_534, 900_001), (65_535, 900_002), (1, 900_003), (2, 900_004), (3, 900_010)]
    batch = [publish(packet_id, serial, client_id) for packet_id, serial in ids]
    session.import_chunks([batch[:2], batch[2:]], last_packet_id=3)
    return session, Broker(client, client_id), batch


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_broker_finds_every_message_in_order_and_whole(client: RedisClient, client_id: str) -> None:
    _, broker, batch = imported(client, client_id)
    assert broker.fetch() == [json.loads(message.json) for message in batch]


def test_broker_acknowledges_in_any_order_until_nothing_is_left(client: RedisClient) -> None:
    session, broker, _ = imported(client)
    for packet_id in (1, 65_535, 3, 65_534):
        broker.acknowledge(packet_id)
    assert [message["packetId"] for message in broker.fetch()] == [2]
    broker.acknowledge(2)
    assert broker.fetch() == []
    assert sorted(contents(client)) == sorted([session.keys.last_packet_id, session.keys.session])


def test_broker_adds_behind_the_imported_messages_with_the_next_packet_id(client: RedisClient) -> None:
    _, broker, _ = imported(client)
    assert [broker.add("new/1"), broker.add("new/2")] == [4, 5]
    assert [message["packetId"] for message in broker.fetch()] == [65_534, 65_535, 1, 2, 3, 4, 5]


def test_broker_goes_on_with_the_packet_ids_of_a_session_without_messages(client: RedisClient) -> None:
    session = Session(client=client)
    session.import_session([], last_packet_id=65_535)
    broker = Broker(client, "meter-7")
    assert [broker.add("new/1"), broker.add("new/2")] == [1, 2]
    assert [message["topicName"] for message in broker.fetch()] == ["new/1", "new/2"]


def test_broker_turns_an_imported_message_into_pubrel(client: RedisClient) -> None:
    _, broker, batch = imported(client)
    broker.received(1)
    found = broker.fetch()
    assert found[2] == {**json.loads(batch[2].json), "packetType": "PUBREL"}
    assert [message["packetType"] for message in found].count("PUBREL") == 1


def test_broker_trims_the_oldest_imported_messages(client: RedisClient) -> None:
    _, broker, _ = imported(client)
    broker.add("new", limit=3)
    assert [message["packetId"] for message in broker.fetch()] == [2, 3, 4]


def test_broker_passes_over_messages_whose_life_has_ended(client: RedisClient) -> None:
    session, broker, _ = imported(client)
    client.pexpireat(session.payload(65_535), 1)
    assert [message["packetId"] for message in broker.fetch()] == [65_534, 1, 2, 3]
    assert len(session.references()) == 4


@pytest.mark.parametrize("use", ["acknowledge", "add"])
def test_session_that_the_broker_has_used_is_never_written_again(client: RedisClient, use: str) -> None:
    session, broker, batch = imported(client)
    if use == "acknowledge":
        broker.acknowledge(1)
    else:
        broker.add("new")
    before = contents(client)
    assert session.import_session(batch, last_packet_id=3) == [b"used", 0, 0]
    with pytest.raises(MovedOn):
        session.drop_import([1, 2, 3, 65_534, 65_535])
    assert session.state()["used"] == "1"
    client.hdel(session.keys.session, "used")
    assert contents(client) == before


def test_session_that_the_broker_has_written_is_inspected(client: RedisClient) -> None:
    broker = Broker(client, "fresh")
    broker.add("a/1")
    broker.add("a/2")
    view = RedisSessionStore(client).inspect("fresh")
    assert [(message.serial, message.packet_id, message.topic) for message in view.page] == [
        (1, 1, "a/1"),
        (2, 2, "a/2"),
    ]
    assert view.last_packet_id == 2
    assert view.imported is None
