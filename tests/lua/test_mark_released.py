"""``mark_released``: a PUBREC makes the record PUBREL without its body, and changes nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lua_sessions import Message, Session, contents, now_ms

from queuekeeper.errors import UsageError
from queuekeeper.lua import ScriptCaller, load
from queuekeeper.redis_client import RedisClient, connect

pytestmark = pytest.mark.lua

FAR_MS = 4_000_000_000_000


def saved(client: RedisClient, record: str, *, expires_at_ms: int = FAR_MS) -> Session:
    session = Session(client=client)
    session.save_messages([Message(1, 0, expires_at_ms, record)])
    return session


@pytest.mark.parametrize(
    ("record", "released"),
    [
        (
            '{"packetId":1,"packetType":"PUBLISH","payload":"AAEC/w==","qos":2}',
            '{"packetId":1,"packetType":"PUBREL","payload":"","qos":2}',
        ),
        (
            '{"payload":"A\\/\\/=","subscriptionIds":[],"packetType":"PUBLISH","n":12345678901234567890}',
            '{"payload":"","subscriptionIds":[],"packetType":"PUBREL","n":12345678901234567890}',
        ),
        ('{ "packetType" : "PUBLISH",\n"payload": "AAAA" }', '{ "packetType" : "PUBREL",\n"payload": "" }'),
        ('{"packetType":"PUBLISH","payload":""}', '{"packetType":"PUBREL","payload":""}'),
        ('{"packetType":"PUBLISH"}', '{"packetType":"PUBREL"}'),
        ('{"packetType":"PUBLISH","payload":null}', '{"packetType":"PUBREL","payload":null}'),
    ],
)
def test_record_becomes_pubrel_without_body_and_is_the_same_otherwise(
    client: RedisClient, record: str, released: str
) -> None:
    session = saved(client, record)
    before = contents(client)
    assert session.mark_released(1, 1) == b"released"
    assert contents(client) == {**before, session.payload(1): (released.encode(), FAR_MS)}


def test_texts_that_look_like_members_are_left_alone(client: RedisClient) -> None:
    record = {
        "topicName": '"packetType":"PUBLISH","payload":"AAAA"',
        "contentType": "payload",
        "responseTopic": "packetType",
        "userProperties": {"props": [{"k": "payload", "v": '"payload":"BBBB"'}, {"k": "packetType", "v": "PUBLISH"}]},
        "packetType": "PUBLISH",
        "payload": "CCCC",
    }
    session = saved(client, json.dumps(record, separators=(",", ":")))
    assert session.mark_released(1) == b"released"
    anything: Any = client
    assert json.loads(anything.get(session.payload(1))) == {**record, "packetType": "PUBREL", "payload": ""}


def test_large_record_is_released_quickly(client: RedisClient) -> None:
    session = saved(client, '{"payload":"' + "A" * 1_400_000 + '","packetType":"PUBLISH"}')
    assert session.mark_released(1) == b"released"
    assert client.get(session.payload(1)) == b'{"payload":"","packetType":"PUBREL"}'


def test_expiry_stays(client: RedisClient) -> None:
    until = now_ms() + 60_000
    session = saved(client, '{"packetType":"PUBLISH"}', expires_at_ms=until)
    session.mark_released(1)
    assert client.pexpiretime(session.payload(1)) == until


def test_record_without_expiry_gets_none(client: RedisClient) -> None:
    session = saved(client, '{"packetType":"PUBLISH"}')
    client.persist(session.payload(1))
    assert session.mark_released(1) == b"released"
    assert client.pexpiretime(session.payload(1)) == -1


def test_repeated_pubrec_changes_nothing(client: RedisClient) -> None:
    session = saved(client, '{"packetType":"PUBLISH","payload":"AA=="}')
    session.mark_released(1)
    before = contents(client)
    assert session.mark_released(1, 1) == b"already"
    assert contents(client) == before


@pytest.mark.parametrize(("packet_id", "serial"), [(1, 2), (2, ""), (2, 1)])
def test_other_message_is_missing(client: RedisClient, packet_id: int, serial: int | str) -> None:
    session = saved(client, '{"packetType":"PUBLISH"}')
    before = contents(client)
    assert session.mark_released(packet_id, serial) == b"missing"
    assert contents(client) == before


def test_expired_message_is_missing(client: RedisClient) -> None:
    session = saved(client, '{"packetType":"PUBLISH"}')
    client.delete(session.payload(1))
    assert session.mark_released(1) == b"missing"
    assert client.exists(session.payload(1)) == 0


@pytest.mark.parametrize(
    "record", ["", "x", "{}", '{"packetType":"PUBACK"}', '{"packetType":1}', '{"packetType":"PUBL']
)
def test_record_that_is_no_message_is_unreadable(client: RedisClient, record: str) -> None:
    session = saved(client, record)
    before = contents(client)
    assert session.mark_released(1) == b"unreadable"
    assert contents(client) == before


def test_key_of_another_type_is_unreadable(client: RedisClient) -> None:
    session = saved(client, "{}")
    anything: Any = client
    anything.delete(session.payload(1))
    anything.rpush(session.payload(1), "x")
    assert session.mark_released(1, 1) == b"unreadable"


@pytest.mark.parametrize("args", [["", "x"], ["", "1.0"], [], [""], ["", 1, 2]])
def test_bad_argument_is_refused(client: RedisClient, args: list[str]) -> None:
    session = Session(client=client)
    keys = [session.keys.messages, session.keys.session, session.payload(1)]
    with pytest.raises(UsageError, match=r"^3 keys, an epoch and a serial, an integer or empty, are expected$"):
        ScriptCaller(client).call(load("sessions/mark_released"), keys, args)


def test_full_server_takes_a_pubrec(own_server: Any) -> None:
    with connect(own_server.url) as client:
        session = saved(client, '{"packetType":"PUBLISH","payload":"AAAA"}')
        client.config_set("maxmemory", 1)
        assert session.mark_released(1, 1) == b"released"
        assert client.get(session.payload(1)) == b'{"packetType":"PUBREL","payload":""}'
