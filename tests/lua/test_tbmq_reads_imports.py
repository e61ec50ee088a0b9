"""What TBMQ 2.x does with a session finds imported messages in order: as ``tbmq_broker`` tells it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lua_sessions import HOSTILE_IDS, Message, Session, contents, now_ms
from tbmq_broker import Broker

from queuekeeper.errors import MovedOn
from queuekeeper.migration.offline.undo import drop_imports
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
    assert session.import_session(batch, last_packet_id=3) == {"word": "used", "written": 0, "expired": 0}
    with pytest.raises(MovedOn):
        session.drop_import([1, 2, 3, 65_534, 65_535])
    assert session.state()["used"] == "1"
    client.hdel(session.keys.session, "used")
    assert contents(client) == before


def confirm_and_go_around(broker: Broker) -> None:
    broker.acknowledge(3)
    broker.add_many("new/", 65_535, limit=5)


def purge_and_add(broker: Broker) -> None:
    broker.purge()
    broker.save(PACK)


def confirm_all_and_go_around(broker: Broker) -> None:
    for packet_id in range(1, 6):
        broker.acknowledge(packet_id)
    broker.add_many("new/", 65_535, limit=5)


SAME_AGAIN: dict[str, Callable[[Broker], object]] = {
    "adds once around all packet ids": lambda broker: broker.add_many("new/", 65_535, limit=5),
    "adds twice around all packet ids": lambda broker: broker.add_many("new/", 2 * 65_535, limit=5),
    "a confirmation, and adds once around": confirm_and_go_around,
    "a purge, and as many adds": purge_and_add,
    "confirmations of all, and adds once around": confirm_all_and_go_around,
}
"""Uses after which count and last packet id are what the import has left, and often the greatest score too."""

PACK: list[dict[str, Any]] = [{"topicName": f"new/{number}", "qos": 1, "msgExpiryInterval": 600} for number in range(5)]


def imported_as_the_broker_counts(client: RedisClient) -> tuple[Session, Broker, list[Message]]:
    """Import a session whose packet ids, serials and count are what the broker gives to five messages."""
    session = Session(client=client)
    batch = [publish(number, number, "meter-7") for number in range(1, 6)]
    session.import_session(batch, last_packet_id=5)
    return session, Broker(client, "meter-7"), batch


@pytest.mark.parametrize("use", SAME_AGAIN)
def test_session_that_was_used_until_its_counts_were_the_same_again_is_left_alone(
    client: RedisClient, use: str
) -> None:
    session, broker, batch = imported_as_the_broker_counts(client)
    SAME_AGAIN[use](broker)
    assert (len(session.references()), client.get(session.keys.last_packet_id)) == (5, b"5")
    before = contents(client)

    said = drop_imports(client, ["meter-7"], plan_id="plan-a", prefix="", dry_run=True)
    assert (said.sessions_dropped, said.sessions_moved_on) == (0, 1)
    assert drop_imports(client, ["meter-7"], plan_id="plan-a", prefix="", dry_run=False) == replace(said, dry_run=False)
    with pytest.raises(MovedOn):
        replace(session, plan="plan-b").import_session(batch, last_packet_id=5)
    view = RedisSessionStore(client).inspect("meter-7")
    assert view.imported is not None
    assert view.imported.touched
    assert contents(client) == before
    assert session.import_session(batch, last_packet_id=5) == {"word": "used", "written": 0, "expired": 0}
    client.hdel(session.keys.session, "used")
    assert contents(client) == before


def test_session_that_was_imported_without_a_last_packet_id_is_known_as_used(client: RedisClient) -> None:
    session, broker = Session(client=client), Broker(client, "meter-7")
    session.import_session([publish(number, number, "meter-7") for number in range(1, 6)])
    broker.add_many("new/", 65_535, limit=5)
    with pytest.raises(MovedOn):
        session.drop_import(range(1, 6))


@pytest.mark.parametrize("size", [5, 1_300])
def test_session_in_which_the_broker_was_sent_pubrec_is_not_dropped_and_loses_no_page(
    client: RedisClient, size: int
) -> None:
    session, broker = Session(client=client), Broker(client, "meter-7")
    session.import_session([publish(number, number, "meter-7") for number in range(1, size + 1)], last_packet_id=size)
    broker.received(size)
    before = contents(client)
    for dry_run in (True, False):
        report = drop_imports(client, ["meter-7"], plan_id="plan-a", prefix="", dry_run=dry_run)
        assert (report.sessions_moved_on, report.messages_dropped) == (1, 0)
        assert contents(client) == before


def test_session_from_which_our_store_has_sent_messages_is_not_dropped(client: RedisClient) -> None:
    session, _, batch = imported_as_the_broker_counts(client)
    session.mark_delivered(2)
    with pytest.raises(MovedOn):
        session.drop_import(range(1, 6))
    assert session.import_session(batch, last_packet_id=5) == {"word": "used", "written": 0, "expired": 0}


def test_import_of_an_earlier_build_is_judged_by_count_and_last_packet_id(client: RedisClient) -> None:
    session, _, batch = imported_as_the_broker_counts(client)
    client.hdel(session.keys.session, "imported_until_ms")
    client.persist(session.keys.last_packet_id)
    assert session.import_session(batch, last_packet_id=5) == {"word": "unchanged", "written": 0, "expired": 0}
    assert session.drop_import(range(1, 6)) == {"removed": 5, "remaining": 0}
    assert contents(client) == {}


def test_message_that_is_replayed_leaves_an_import_as_unused_as_it_was(client: RedisClient) -> None:
    session, broker, _ = imported_as_the_broker_counts(client)
    session.replay_message(publish(6, 6, "meter-7"), expected=5, last_packet_id=6)
    broker.add_many("new/", 65_535, limit=6)
    with pytest.raises(MovedOn):
        session.drop_import(range(1, 7))
    client.flushall()
    session.import_session([])
    session.replay_message(publish(1, 1, "meter-7"), last_packet_id=1)
    assert session.drop_import([1]) == {"removed": 1, "remaining": 0}
    assert contents(client) == {}


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
