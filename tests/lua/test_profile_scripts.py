"""The scripts that profile: numbers only, bounded, and clear about wrong calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from limited_user import limited
from lua_sessions import HOSTILE_IDS, command, now_ms
from planted_queues import Queue
from script_replies import Reply, reply_of

from queuekeeper import lua
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import SessionKeys, session_keys
from queuekeeper.lua import scripts
from queuekeeper.redis_client import RedisClient

pytestmark = pytest.mark.lua

KEYS = session_keys("meter-7")


def answer(client: RedisClient, call: lua.Call) -> Reply:
    values = lua.ScriptCaller(client).execute([call]).or_raise()[0]
    assert all(isinstance(value, int) for value in values)
    reply: Reply = reply_of(call, values)
    return reply


def references(client: RedisClient, keys: SessionKeys, *, start: int, limit: int) -> Reply:
    return answer(client, scripts.quality.profile_references(keys, start=start, limit=limit))


def measured(client: RedisClient, *payloads: str) -> Reply:
    return answer(client, scripts.quality.profile_messages(KEYS, payloads=payloads))


def judged(client: RedisClient, payloads: list[str], packet_ids: Iterable[int]) -> Reply:
    return answer(
        client,
        scripts.quality.profile_contents(
            payloads=payloads, client_id="meter-7", default_ttl_s=60, packet_ids=[*packet_ids]
        ),
    )


@pytest.mark.parametrize("client_id", HOSTILE_IDS)
def test_references_are_answered_as_serials_and_packet_ids(client: RedisClient, client_id: str) -> None:
    queue = Queue(client=client, client_id=client_id)
    queue.fill(3)
    keys = session_keys(client_id)
    command(client, "HSET", keys.session, "saved_last_packet_id", "3")
    assert references(client, keys, start=1, limit=2) == {
        "references": 3,
        "wrong_types": 0,
        "without_expiry": 3,
        "last_packet_id": 3,
        "saved": 1,
        "newest_packet_id": 3,
        "page": ({"serial": 1_002, "packet_id": 2}, {"serial": 1_003, "packet_id": 3}),
    }


def test_references_that_are_none_are_told_apart(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="meter-7")
    for score, member in (
        (1, "{meter-8}_messages_1"),
        (2, queue.payload("07")),
        (3, queue.payload(70_000)),
        ("4.5", queue.payload(4)),
        (-5, queue.payload(5)),
        ("inf", queue.payload(6)),
    ):
        command(client, "ZADD", KEYS.messages, score, member)
    command(client, "SET", KEYS.last_packet_id, "07")
    found = references(client, KEYS, start=0, limit=1_000)
    assert (found.references, found.wrong_types, found.without_expiry) == (6, 0, 2)
    assert (found.last_packet_id, found.saved, found.newest_packet_id) == (-2, 0, 6)
    assert found.page == ((-1, 5), (1, -1), (2, -2), (3, 70_000), (-1, 4), (-1, 6))


def test_session_without_keys_is_answered_as_such(client: RedisClient) -> None:
    assert references(client, KEYS, start=0, limit=10) == {
        "references": 0,
        "wrong_types": 0,
        "without_expiry": 0,
        "last_packet_id": -1,
        "saved": 0,
        "newest_packet_id": -1,
    }


def test_messages_are_measured_and_not_read(client: RedisClient) -> None:
    until = now_ms() + 60_000
    keys = [f"{KEYS.messages}_{packet_id}" for packet_id in range(1, 6)]
    command(client, "SET", keys[0], "12345", "PXAT", until)
    command(client, "SET", keys[1], "")
    command(client, "RPUSH", keys[2], "x")
    command(client, "ZADD", KEYS.messages, 4, keys[3])
    # The fifth was confirmed since its reference was read: it has not expired.
    assert measured(client, *keys).records == ((until, 5), (-1, 0), (-1, -1), (-2, 0), (-3, 0))
    command(client, "DEL", KEYS.messages)
    command(client, "SET", KEYS.messages, "no set any more")
    assert measured(client, keys[3]).records == ((-3, 0),)


MESSAGE = {
    "clientId": "meter-7", "topicName": "t", "time": 1_000_000, "qos": 2, "packetId": 1, "packetType": "PUBLISH",
    "payload": "eA==", "msgExpiryInterval": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        ({}, 0),
        ({"topic": "t", "topicName": None}, 0),
        ({"packetType": "PUBREL", "payload": None}, 0),
        ({"userProperties": {"props": [{"k": "a", "v": "b"}]}, "subscriptionIds": []}, 0),
        ({"payload": None}, 1),
        ({"time": "now"}, 1),
        ({"time": 1.5}, 1),
        ({"msgExpiryInterval": "long"}, 1),
        ({"topicName": None}, 1),
        ({"packetId": 2}, 2),
        ({"clientId": None}, 2),
        ({"clientId": "meter-8", "qos": -1}, 6),
        ({"qos": 0}, 8),
        ({"packetType": "PUBREL", "qos": 1}, 16),
        ({"packetType": "PINGREQ"}, 16),
    ],
)
def test_contents_are_judged_in_the_server(client: RedisClient, change: dict[str, Any], faults: int) -> None:
    key = f"{KEYS.messages}_1"
    fields = {name: value for name, value in (MESSAGE | change).items() if value is not None}
    command(client, "SET", key, json.dumps(fields))
    (found,) = judged(client, [key], [1]).records
    assert found.faults == faults
    assert (found.fingerprint == 0) == (faults == 1)


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "null", "7", "\x00", '{"clientId":' * 2_000])
def test_record_that_is_no_message_is_unreadable(client: RedisClient, text: str) -> None:
    key = f"{KEYS.messages}_1"
    command(client, "SET", key, text)
    assert judged(client, [key, f"{key}2"], [1, 12]).records == ((1, 0), (0, 0))


@pytest.mark.parametrize(
    ("interval_s", "longest_s"),
    [(3_600, 3_600), (None, 60), (0, 0), (-1, 2**32 - 1), (2**31 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1)],
)
def test_life_is_too_long_a_minute_after_its_end(client: RedisClient, interval_s: int | None, longest_s: int) -> None:
    key = f"{KEYS.messages}_1"
    time_ms = now_ms()
    fields = MESSAGE | {"time": time_ms, "msgExpiryInterval": interval_s}
    end = time_ms + 1_000 * longest_s
    for until, faults in ((end + 60_000, 0), (end + 60_001, 32)):
        command(client, "SET", key, json.dumps(fields), "PXAT", until)
        assert judged(client, [key], [1]).records[0].faults == faults


def test_fingerprints_are_equal_for_equal_messages_only(client: RedisClient) -> None:
    changes: list[dict[str, Any]] = [{}, {"packetId": 2}, {"topicName": "u"}, {"time": 1}, {"payload": "eQ=="}]
    keys = [f"{KEYS.messages}_{number}" for number in range(len(changes))]
    for key, change in zip(keys, changes, strict=True):
        command(client, "SET", key, json.dumps(MESSAGE | change))
    first, second, *others = (each.fingerprint for each in judged(client, keys, range(len(changes))).records)
    assert first == second
    assert len({first, *others}) == 4


def test_orphan_is_a_message_without_reference(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="meter-7")
    queue.fill(2)
    command(client, "ZREM", queue.messages, queue.payload(1))
    command(client, "PERSIST", queue.payload(1))
    call = scripts.sessions.find_orphans(KEYS, payloads=[queue.payload(packet_id) for packet_id in (1, 2, 3)])
    assert answer(client, call).expiries == (-1, -2, -2)
    command(client, "SET", queue.messages, "no set")
    never, until, missing = reply_of(call, lua.ScriptCaller(client).call(*call)).expiries
    assert (never, until > 0, missing) == (-1, True, -2)


@pytest.mark.parametrize(
    "call",
    [
        scripts.quality.profile_references(KEYS, start=0, limit=10),
        scripts.quality.profile_messages(KEYS, payloads=[f"{KEYS.messages}_{packet_id}" for packet_id in (1, 9)]),
        scripts.quality.profile_contents(
            payloads=[f"{KEYS.messages}_1"], client_id="meter-7", default_ttl_s=60, packet_ids=[1]
        ),
    ],
    ids=lambda call: call.script.name,
)
def test_script_touches_its_declared_keys_only(client: RedisClient, call: lua.Call) -> None:
    Queue(client=client, client_id="meter-7").fill(2)
    with limited(client, [str(key) for key in call.keys]) as user:
        assert answer(user, call) == answer(client, call)


@pytest.mark.parametrize(
    ("name", "keys", "args"),
    [
        ("profile_references", [*KEYS], [0]),
        ("profile_references", [*KEYS], [-1, 10]),
        ("profile_references", [*KEYS], [0, 0]),
        ("profile_references", [*KEYS], [0, 1_001]),
        ("profile_references", [KEYS.messages], [0, 10]),
        ("profile_messages", [KEYS.messages], []),
        ("profile_messages", [KEYS.messages] * 2, [1]),
        ("profile_messages", [KEYS.messages] * 1_002, []),
        ("profile_contents", [KEYS.messages], ["meter-7", 60]),
        ("profile_contents", [KEYS.messages], ["meter-7", 0, 1]),
        ("profile_contents", [KEYS.messages] * 501, ["meter-7", 60, *range(501)]),
    ],
)
def test_wrong_call_is_refused(client: RedisClient, name: str, keys: list[str], args: list[lua.Value]) -> None:
    with pytest.raises(UsageError):
        lua.ScriptCaller(client).call(lua.load(f"quality/{name}"), keys, args)
