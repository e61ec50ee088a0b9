"""A profile of a snapshot has the rows that the profile of the server has at that instant, whatever the queues hold."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from lua_sessions import now_ms
from planted_queues import (
    CONTENTS,
    PARAMETERS,
    PackedQueue,
    Queue,
    plant,
    plant_healthy,
    plant_healthy_packed,
    save,
    scanned,
)

from queuekeeper import lua
from queuekeeper.clock import Pace
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import Cohort, packed_keys, session_keys
from queuekeeper.quality.profile import snapshot_scan
from queuekeeper.quality.profile.model import ProfileParameters
from queuekeeper.quality.profile.queue_reader import QueueReader
from queuekeeper.quality.profile.scan import Scanner
from queuekeeper.quality.profile.snapshot_answers import SnapshotKey
from queuekeeper.rdb.snapshot import Snapshot
from queuekeeper.redis_client import RedisClient
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore

pytestmark = pytest.mark.lua

NO_PACE = Pace(lambda: None)


def rows_of(caller: Any, batches: list[pa.RecordBatch], parameters: ProfileParameters) -> list[dict[str, Any]]:
    reader = QueueReader(
        caller, parameters=parameters, shards=[""] * 12, hash_key=b"key", pace=NO_PACE, orphan_pause_s=0
    )
    rows = [row for batch in reader.read(iter(batches)) for row in batch.to_pylist()]
    # The hours of a window have no order.
    return [row | {"hours": row["hours"] and sorted(row["hours"], key=lambda hour: hour["hour_ms"])} for row in rows]


def of_server(client: RedisClient, parameters: ProfileParameters) -> list[dict[str, Any]]:
    _, batches = scanned(client, parameters)
    return rows_of(lua.ScriptCaller(client), batches, parameters)


def scanner_of(cohorts: Sequence[Cohort], parameters: ProfileParameters, *, is_cluster: bool) -> Scanner:
    """Return a scanner of one task."""
    return Scanner(
        prefix=parameters.key_prefix, slot_firsts=tuple(each.slot_first for each in cohorts),
        labels=(0,) * len(cohorts), sample_percent=parameters.sample_percent, is_cluster=is_cluster, key_share=0.0,
        pace=NO_PACE,
    )  # fmt: skip


def of_snapshot(client: Any, parameters: ProfileParameters) -> list[dict[str, Any]]:
    cohorts, _ = scanned(client, parameters)
    client.save()
    seconds, micros = client.time()
    as_of_ms = 1_000 * seconds + micros // 1_000
    scanner = scanner_of(cohorts, parameters, is_cluster=False)
    with Path(client.config_get("dir")["dir"], "dump.rdb").open("rb") as file:
        keys = snapshot_scan.session_keys_of(
            Snapshot(file, name="dump.rdb"), prefix=parameters.key_prefix, database=0, contents=parameters.contents,
            now_ms=as_of_ms,
        )  # fmt: skip
        packages = list(snapshot_scan.packages(keys, scanner))
    caller, batches = snapshot_scan.unpackaged(iter(packages), scanner, paths=[Path("dump.rdb")], now_ms=as_of_ms)
    return rows_of(caller, list(batches), parameters)


def assert_same(client: RedisClient, parameters: ProfileParameters, *, clients: int) -> list[dict[str, Any]]:
    found, expected = of_snapshot(client, parameters), of_server(client, parameters)
    for row, other in zip(found, expected, strict=True):
        assert row == other, row["client_id"]
    assert len({row["client_id"] for row in found}) >= clients
    return found


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("layout", Layout)
def test_each_planted_fault_is_seen_in_the_snapshot(single: RedisClient, layout: Layout, contents: bool) -> None:
    plant(single, layout)
    assert_same(single, replace(PARAMETERS, contents=contents), clients=10)


def test_healthy_queues_are_the_same_in_the_snapshot(single: RedisClient) -> None:
    plant_healthy(single)
    plant_healthy_packed(single)
    assert_same(single, CONTENTS, clients=10)


def test_a_prefix_a_sample_and_other_keys_are_heeded(single: Any) -> None:
    parameters = replace(CONTENTS, key_prefix="here:", sample_percent=40)
    for number in range(60):
        Queue(client=single, client_id=f"client {number}", prefix="here:").fill(2)
        Queue(client=single, client_id=f"other {number}").fill(2)
    single.set(b"here:{\xff}_last_packet_id", "1")
    single.rpush("here:{odd}_messages_}_x", "no queue's")
    single.xadd("here:{stream}_entries", {"a": "b"})
    rows = assert_same(single, parameters, clients=10)
    assert len(rows) < 60


def test_a_long_queue_and_both_layouts_are_the_same_in_the_snapshot(single: RedisClient) -> None:
    Queue(client=single, client_id="long").fill(1_300)
    PackedQueue(client=single, client_id="packed").fill(350)
    for layout in Layout:
        RedisSessionStore(single, layout=layout).save_messages([save("both", count=3)])
    rows = assert_same(single, CONTENTS, clients=3)
    assert {row["client_id"]: row["live"] for row in rows} == {"long": 1_300, "packed": 350, "both": 3}
    assert [row["in_both_layouts"] for row in rows if row["client_id"] == "both"] == [None, 2]


def test_two_files_with_keys_of_one_slot_are_refused(single: RedisClient) -> None:
    for client_id in ("a", "b"):
        Queue(client=single, client_id=client_id).fill(2)
    cohorts, _ = scanned(single, PARAMETERS)
    scanner = scanner_of(cohorts, PARAMETERS, is_cluster=True)
    # The keys of a client of such an id are spread over the masters, so that they may be in two files.
    shared, *files = (
        [SnapshotKey(f"{{{client_id}}}_messages_{number}".encode(), "string", -1, 5) for number in (1, 2)]
        for client_id in ("}x", "a", "b", "a")
    )
    paths = [Path("a.rdb"), Path("b.rdb"), Path("replica-of-a.rdb")]

    def read(*numbers: int) -> list[pa.RecordBatch]:
        packages = [
            package
            for number in numbers
            for package in snapshot_scan.packages(iter(files[number] + shared), scanner, file=number)
        ]
        return list(snapshot_scan.unpackaged(iter(packages), scanner, paths=paths, now_ms=0)[1])

    assert [row["client_id"] for batch in read(0, 1) for row in batch.to_pylist()] == ["a", "b", "}x", "}x"]
    with pytest.raises(UsageError, match=r"a\.rdb and replica-of-a\.rdb both have keys of slot 15495: name one file"):
        read(0, 1, 2)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (b'"\\ud800"', False), (b'"\\uDFFF"', False), (b'"\\ud83d\\u0041"', False), (b'"\\ud83dx"', False),
        (b'"\\ud83d\\ude00"', True), (b'"\\\\ud800"', True), (b'"\\\\\\ud800"', False),
        (b'"\0"', False), (b'"\\u0000"', True), (b'"\xff"', True),
    ],
)  # fmt: skip
def test_text_that_the_server_cannot_read_cannot_be_read_in_the_snapshot(
    single: Any, text: bytes, is_read: bool
) -> None:
    queue = Queue(client=single, client_id="tbmq")
    queue.fill(1)
    [key] = [name for name in single.keys("*") if b"_messages_" in name]
    single.set(key, single.get(key).replace(b"{", b'{"contentType": ' + text + b", ", 1), keepttl=True)
    packed = PackedQueue(client=single, client_id="packed")
    packed.fill(1)
    [serial] = [name for name in single.hkeys(packed.key) if name.isdigit()]
    record = single.hget(packed.key, serial)
    size, (topic_bytes,) = int.from_bytes(record[11:15], "big"), struct.unpack_from(">H", record, 24)
    at = 15 + 11 + topic_bytes + (4 if record[23] & 8 else 0)
    rest = b'{"contentType": ' + text + b"}"
    changed = record[:11] + (at - 15 + len(rest)).to_bytes(4, "big") + record[15:at] + rest + record[15 + size :]
    single.hset(packed.key, serial, changed)

    rows = assert_same(single, CONTENTS, clients=2)

    assert {row["client_id"]: row["unreadable"] for row in rows} == {"tbmq": not is_read, "packed": not is_read}


# --- generated ---------------------------------------------------------------------------------------------------


ODD: tuple[Any, ...] = (
    None, True, False, "", "x", "PUBREL", 0, -1, 1, 2, 3, 1.5, 2**31 - 1, -(2**31), 2**60, 1e300, [], {}, [1],
    "\x00", "é",
)  # fmt: skip
RAW = (
    b"", b"{}", b"[]", b"null", b"no JSON", b'{"a": ', b"{} x", b'{"topicName": "\xff", "time": 1}', b"[" * 30,
    b'"text"', b'{"a": NaN}',
)  # fmt: skip
MEMBERS = ("01", "x", "", "0", "65536", "999999999", "1000000000", "-1", " 1", "1_2")
SCORES = (0, -1, 1.5, 7, 7, 2**53, 2**53 + 2, math.inf, -math.inf, 1e17)
COUNTERS = ("", "0", "5", "65535", "65536", "05", "-1", "x", "1.0", "99999999999999999999")
OWNERS: tuple[dict[str, str], ...] = (
    {},
    {"owner": "redis"},
    {"owner": "postgres"},
    {"owner": "fenced"},
    {"import": "3"},
    {"import": "done"},
)
NAMES = ("01", "-1", "x", "", "9007199254740992", "9007199254740993", "99999999999999999", "q:1", "other")
ENDS = (math.nan, math.inf, -1.0, 0.0, 1e300, 2.0**53, 1_000.5)


def payload(random: Random, client_id: str, packet_id: int, at_ms: int) -> bytes:
    """Return a record as TBMQ writes it, or one with something odd about it."""
    fields: dict[str, Any] = {
        "clientId": client_id, "topicName": random.choice(["a", "b", "c"]), "time": at_ms, "qos": random.choice([1, 2]),
        "packetId": packet_id, "packetType": "PUBLISH", "payload": "eA==", "msgExpiryInterval": 3_600,
    }  # fmt: skip
    if random.random() < 0.4:
        fields[random.choice([*fields, "topic"])] = random.choice(ODD)
    if random.random() < 0.2:
        del fields[random.choice(list(fields))]
    text = json.dumps(fields, ensure_ascii=random.random() < 0.5).encode()
    return random.choice(RAW) if random.random() < 0.1 else text


def plant_tbmqs(pipe: Any, random: Random, client_id: str, at_ms: int) -> None:
    keys = session_keys(client_id)
    for packet_id in random.sample(range(1, 40), random.randint(0, 8)):
        key = f"{keys.messages}_{packet_id}"
        chance = random.random()
        if chance < 0.8:
            end_ms = at_ms + random.choice([1_000_000, 3_600_000, 3_650_000, 4_000_000_000])
            pipe.set(key, payload(random, client_id, packet_id, at_ms), pxat=end_ms if random.random() < 0.8 else None)
        elif chance < 0.87:
            pipe.hset(key, "a", "b")
        if random.random() < 0.85:
            pipe.zadd(keys.messages, {key: random.choice([packet_id, *SCORES])})
    if random.random() < 0.3:
        pipe.zadd(keys.messages, {f"{keys.messages}_{random.choice(MEMBERS)}": random.choice(SCORES)})
        pipe.zadd(keys.messages, {random.choice(["foreign", "", keys.messages]): 3})
        pipe.set(f"{keys.messages}_{random.choice(MEMBERS)}", "a payload of no packet id, or an orphan")
    if random.random() < 0.7:
        pipe.set(keys.last_packet_id, random.choice([*COUNTERS, random.randint(1, 40)]))
    elif random.random() < 0.3:
        pipe.rpush(keys.last_packet_id, "no string")
    if random.random() < 0.5:
        pipe.hset(keys.session, mapping={"epoch": "1", **random.choice(OWNERS)})
        if random.random() < 0.5:
            pipe.hset(keys.session, "saved_last_packet_id", "1")
    elif random.random() < 0.1:
        pipe.set(keys.session, "no hash")
    for key in (keys.messages, keys.last_packet_id, keys.session):
        if random.random() < 0.3:
            pipe.pexpireat(key, at_ms + 9_000_000)


def plant_packed(client: Any, random: Random, client_id: str) -> None:
    key = packed_keys(client_id).session
    if random.random() < 0.1:
        client.set(key, "no hash")
        return
    queue = PackedQueue(client=client, client_id=client_id)
    queue.fill(random.randint(1, 8))
    for serial in [name for name in client.hkeys(key) if name.isdigit()]:
        if random.random() < 0.3:
            record = bytearray(client.hget(key, serial))
            if random.random() < 0.5:
                record[random.randrange(len(record))] ^= random.randint(1, 255)
            if random.random() < 0.3:
                record[2:10] = struct.pack(">d", random.choice(ENDS))
            if random.random() < 0.2:
                del record[random.randrange(len(record)) :]
            client.hset(key, serial, bytes(record))
    if random.random() < 0.3:
        client.hset(key, random.choice(NAMES), client.hget(key, serial))
    if random.random() < 0.3:
        queue.say(
            **{random.choice(["last", "ids", "bound", "free", "head", "others", "largest"]): random.randint(0, 9)}
        )
    if random.random() < 0.1:
        client.hset(key, "s", random.choice([b"", b"short", struct.pack(">17d", *[math.nan] * 17)]))
    if random.random() < 0.3:
        client.hset(key, mapping=random.choice(OWNERS[1:]))
    if random.random() < 0.3:
        client.pexpireat(key, now_ms() + 9_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_generated_queues_are_the_same_in_the_snapshot(single: Any, seed: int) -> None:
    random = Random(seed)
    for number in range(150):
        client_id = random.choice(["client {}", "{{{}}}x", "}}{}", "ü{}", "%7D{}"]).format(number)
        chance = random.random()
        if chance < 0.7:
            with single.pipeline() as pipe:
                plant_tbmqs(pipe, random, client_id, now_ms())
                pipe.execute()
        if chance > 0.55:
            plant_packed(single, random, client_id)
    rows = assert_same(single, replace(CONTENTS, contents=seed > 0), clients=100)

    seen = {name for row in rows for name, value in row.items() if value}
    assert seen >= {"foreign_references", "orphans", "wrong_type_keys", "state_faults", "in_both_layouts", "dead"}
    assert seen >= {"bad_serials", "counter_invalid", "tied_serials", "unreadable", "without_ttl"}
    assert seed == 0 or seen >= {"mismatched", "ttl_too_long", "bad_qos", "bad_packet_types", "duplicate_messages"}
