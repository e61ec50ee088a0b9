"""A queue's profile, from SCAN to the row, without Spark: faults are seen as themselves, healthy queues are clean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from limited_user import user_of
from planted_queues import (
    CONTENTS,
    HEALTHY,
    HEALTHY_PACKED,
    LIMIT,
    MESSAGES,
    OF_LAYOUT,
    PARAMETERS,
    PackedQueue,
    Queue,
    client_of,
    expected,
    faults,
    plant,
    plant_healthy,
    plant_healthy_packed,
    profiled,
    save,
    scanned,
)

from queuekeeper import lua
from queuekeeper.clock import Pace
from queuekeeper.errors import RefusedError
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import client_slot, packed_keys
from queuekeeper.quality.profile import queue_reader
from queuekeeper.quality.profile.model import ProfileParameters, in_sample
from queuekeeper.quality.profile.preflight import check_profiled
from queuekeeper.quality.profile.queue_reader import QueueReader
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.model import Ack
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.cluster_slots import slot_of

pytestmark = pytest.mark.lua

# The least that a profile without contents needs; GET is for the counters only.
RULES = (
    "+info +client|setname +cluster|nodes +cluster|slots +cluster|shards +command +ping +select +scan +time +dbsize "
    "+type +zcard +zrange +zmscore +hexists +pexpiretime +strlen +script|load +evalsha (+get ~*_last_packet_id)"
)


@pytest.mark.parametrize("layout", Layout)
def test_each_fault_is_seen_as_itself(client: RedisClient, layout: Layout) -> None:
    plant(client, layout)
    rows = profiled(client, CONTENTS)
    planted = OF_LAYOUT[layout]
    found = {name: faults(rows[client_of(name, layout)]) for name in planted}
    assert found == expected(client, layout)
    assert rows.keys() == {client_of(name, layout) for name in planted}
    assert {row["layout"] for row in rows.values()} == {layout}

    blind = profiled(client)
    for name, each in planted.items():
        assert faults(blind[client_of(name, layout)]) == ({} if each.contents else expected(client, layout)[name]), name


def test_healthy_packed_sessions_are_clean(client: RedisClient) -> None:
    plant_healthy_packed(client)
    rows = profiled(client, CONTENTS)
    assert rows.keys() == set(HEALTHY_PACKED)
    found = {name: seen for name, row in rows.items() if (seen := faults(row))}
    # What was acknowledged or put aside leaves a gap, and nothing more.
    assert found == {"saved": {"serial_gaps": 1}, "put aside": {"serial_gaps": 1}, "sparse": {"serial_gaps": 4_999_998}}


def test_client_with_a_session_in_each_layout_has_a_row_for_each(client: RedisClient) -> None:
    Queue(client=client, client_id="moving").fill(3)
    PackedQueue(client=client, client_id="moving").fill(2)
    RedisSessionStore(client, layout=Layout.PACKED).set_owner("moving", epoch=1, owner="postgres")
    assert [(row["client_id"], row["layout"], row["live"], faults(row)) for row in every_row(client)] == [
        ("moving", Layout.TBMQ, 3, {}),
        ("moving", Layout.PACKED, 2, {}),
    ]


def every_row(client: RedisClient) -> list[dict[str, Any]]:
    """Return all rows of a profile; a client may have two."""
    _, batches = scanned(client, PARAMETERS)
    reader = QueueReader(
        lua.ScriptCaller(client), parameters=CONTENTS, shards=[""] * 12, hash_key=b"key", pace=Pace(lambda: None)
    )
    return [row for batch in reader.read(iter(batches)) for row in batch.to_pylist()]


def in_both_layouts(client: RedisClient) -> dict[str, int]:
    """Return the clients that the profile finds in both layouts."""
    return {row["client_id"]: row["in_both_layouts"] for row in every_row(client) if row["in_both_layouts"]}


def test_client_whose_sessions_take_messages_in_both_layouts_is_found(client: RedisClient) -> None:
    tbmq, packed = (RedisSessionStore(client, layout=layout) for layout in (Layout.TBMQ, Layout.PACKED))
    for client_id in ("both", "emptied", "{in}middle"):
        for store in (tbmq, packed):
            store.save_messages([save(client_id, count=2)])
    tbmq.ack("emptied", [Ack(packet_id=1), Ack(packet_id=2)])
    # A session that TBMQ has stored has no fields of ours.
    Queue(client=client, client_id="vendor's").fill(2)
    packed.save_messages([save("vendor's", count=2)])
    tbmq.save_messages([save("only one", count=2)])
    packed.save_messages([save("the other", count=2)])
    assert in_both_layouts(client) == {"both": 2, "emptied": 1, "{in}middle": 2, "vendor's": 2}


def test_client_that_moves_between_the_layouts_is_in_one_of_them_at_every_step(client: RedisClient) -> None:
    source, target = (RedisSessionStore(client, layout=layout) for layout in (Layout.TBMQ, Layout.PACKED))
    source.save_messages([save("moving", count=2)])
    target.apply_snapshot("moving", source.read_snapshot("moving"), epoch=1, driver=0)
    assert in_both_layouts(client) == {}
    for epoch, store, owner, mirrored in (
        (2, target, "postgres", False),
        (2, source, "fenced", True),
        (3, source, "postgres", False),
        (3, target, "redis", True),
        (4, target, "fenced", True),
        (4, source, "postgres", False),
        (5, target, "postgres", False),
        (5, source, "redis", False),
    ):
        store.set_owner("moving", epoch=epoch, owner=owner, mirrored=mirrored)
        assert in_both_layouts(client) == {}, (epoch, owner)
    # Somebody removes what the target says of its owner, as an older backup would.
    any_client: Any = client
    any_client.hdel(packed_keys("moving").session, "owner", "epoch")
    assert in_both_layouts(client) == {"moving": 2}


def test_both_layouts_of_a_client_are_read_together_however_many_clients_there_are(
    client: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_reader, "_QUEUES_PER_WINDOW", 3)
    names = [f"meter-{number}" for number in range(8)]
    for layout in Layout:
        RedisSessionStore(client, layout=layout).save_messages([save(name, count=1) for name in names])
    assert in_both_layouts(client) == dict.fromkeys(names, 2)


def test_healthy_queues_are_clean(client: RedisClient) -> None:
    plant_healthy(client)
    rows = profiled(client, CONTENTS)
    assert rows.keys() == set(HEALTHY)
    # An acknowledged message leaves a gap, and nothing more.
    assert {name: found for name, row in rows.items() if (found := faults(row))} == {"saved": {"serial_gaps": 1}}


def test_row_says_what_is_there(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="meter-7")
    queue.fill(3)
    queue.put(4, 1_004, payload=bytes(900))
    row = profiled(client)["meter-7"]
    any_client: Any = client
    sizes = [any_client.strlen(queue.payload(packet_id)) for packet_id in (1, 2, 3, 4)]
    ends = [any_client.pexpiretime(queue.payload(packet_id)) for packet_id in (1, 2, 3, 4)]
    assert (
        row
        | {
            "client_hash": client_hash("meter-7", key=b"key"),
            "slot": client_slot("meter-7"),
            "messages": 4,
            "live": 4,
            "lowest_serial": 1_001.0,
            "highest_serial": 1_004.0,
            "last_packet_id": 4,
            "payload_bytes": sum(sizes),
            "largest_bytes": max(sizes),
            "earliest_expires_at_ms": min(ends),
            "latest_expires_at_ms": max(ends),
        }
        == row
    )
    assert sum(hour["messages"] for hour in row["hours"]) == 4
    assert sum(hour["payload_bytes"] for hour in row["hours"]) == sum(sizes)


def test_long_queue_is_judged_across_its_pages(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="long")
    queue.fill(1_203)
    any_client: Any = client
    # The 500th and the 501st reference stand on different pages: a tie, and a step back.
    any_client.zadd(queue.messages, {queue.payload(500): 1_501})
    any_client.zadd(queue.messages, {queue.payload(1_001): 2_000.1, queue.payload(1_000): 2_001})
    row = profiled(client, replace(PARAMETERS, limit=2_000))["long"]
    assert (row["messages"], row["live"], row["tied_serials"], row["bad_serials"]) == (1_203, 1_203, 2, 1)


def test_only_keys_with_the_prefix_are_read(client: RedisClient) -> None:
    plant_healthy(client, prefix="a*:")
    plant(client)
    rows = profiled(client, replace(PARAMETERS, key_prefix="a*:"))
    assert rows.keys() == set(HEALTHY)
    assert profiled(client, replace(PARAMETERS, key_prefix="b:")) == {}


def test_queues_are_found_where_their_slots_have_gone(redis_cluster_url: str) -> None:
    with connect(redis_cluster_url) as client, slot_of(redis_cluster_url, "moving") as slot:
        Queue(client=client, client_id="moving").fill()
        Queue(client=client, client_id="staying").fill()
        _, batches = scanned(client, PARAMETERS)
        slot.move()
        try:
            reader = QueueReader(
                lua.ScriptCaller(client),
                parameters=CONTENTS,
                shards=[""] * 12,
                hash_key=b"key",
                pace=Pace(lambda: None),
            )
            rows = [row for batch in reader.read(iter(batches)) for row in batch.to_pylist()]
        finally:
            slot.move()
    assert {row["client_id"]: (row["live"], faults(row)) for row in rows} == {
        "moving": (MESSAGES, {}),
        "staying": (MESSAGES, {}),
    }


def test_sample_is_of_the_slots_that_belong_to_it(client: RedisClient) -> None:
    names = {f"meter-{number}" for number in range(40)}
    for name in names:
        Queue(client=client, client_id=name).fill()
    _, batches = scanned(client, replace(PARAMETERS, sample_percent=30))

    found = {row["client_id"] for batch in batches for row in batch.to_pylist()}
    assert found == {name for name in names if in_sample(client_slot(name), percent=30)}
    assert 0 < len(found) < len(names)


def test_what_scan_shows_twice_counts_once_and_what_is_gone_is_no_orphan(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="meter-7")
    queue.fill()
    all_cohorts, batches = scanned(client, PARAMETERS)
    any_client: Any = client
    any_client.zrem(queue.messages, queue.payload(1))
    any_client.delete(queue.payload(1))
    any_client.zrem(queue.messages, queue.payload(2))
    (row,) = read_twice(client, batches, shards=[cohort.shard for cohort in all_cohorts])
    assert (row["messages"], row["live"], row["orphans"]) == (3, 3, 1)


def test_messages_of_an_id_whose_keys_are_not_read_together_count_once_when_scan_shows_them_twice(
    client: RedisClient,
) -> None:
    any_client: Any = client
    any_client.mset({"{}_messages_1": "{}", "{}_messages_2": "{}"})
    all_cohorts, batches = scanned(client, PARAMETERS)

    (row,) = read_twice(client, batches, shards=[cohort.shard for cohort in all_cohorts])
    assert (row["client_id"], row["bad_tag"], row["messages"], row["live"]) == ("", True, 2, 2)


def read_twice(client: RedisClient, batches: list[Any], *, shards: list[str]) -> list[dict[str, Any]]:
    """Return the rows of what SCAN has shown, when it shows all of it twice."""
    reader = QueueReader(
        lua.ScriptCaller(client), parameters=PARAMETERS, shards=shards, hash_key=b"key", pace=Pace(lambda: None)
    )
    shown = [batch for batch in batches for _ in range(2)]
    return [row for batch in reader.read(iter(shown)) for row in batch.to_pylist()]


@pytest.mark.parametrize("parameters", [PARAMETERS, CONTENTS], ids=["numbers", "contents"])
def test_profile_keeps_its_pace_from_scan_to_contents(client: RedisClient, parameters: ProfileParameters) -> None:
    RedisSessionStore(client).save_messages([save("long", count=700)])
    amounts: list[float] = []

    class Noted(Pace):
        def __call__(self, amount: float) -> None:
            amounts.append(amount)

    assert profiled(client, parameters, pace=Noted(lambda: None))["long"]["live"] == 700
    # Pages of references have 500 of them; messages and contents, which cost more, come in smaller parts.
    assert max(amounts) < 200
    # Each reference counts once, however many steps it takes.
    assert sum(amounts) == pytest.approx(700, rel=0.02)


def test_user_without_get_profiles_all_but_contents_and_can_read_no_payload(client: RedisClient) -> None:
    plant_healthy(client)
    with user_of(client, "~*", *RULES.split()) as user:
        check_profiled(user, parameters=PARAMETERS)
        assert profiled(user) == profiled(client)
        with pytest.raises(RefusedError, match=r"does not allow user limited .*: ACL SETUSER limited \+get$"):
            check_profiled(user, parameters=CONTENTS)
        queue = Queue(client=client, client_id="saved")
        any_user: Any = user
        with pytest.raises(Exception, match="permission"):
            any_user.get(queue.payload(1))
        with pytest.raises(Exception, match="permission"):
            any_user.set(queue.counter, 7)


@pytest.mark.parametrize("missing", ["+pexpiretime", "+strlen", "+zrange", "(+get ~*_last_packet_id)", "+scan"])
def test_missing_permission_is_named_with_its_rule(client: RedisClient, missing: str) -> None:
    with user_of(client, "~*", *RULES.replace(missing, "").split()) as user, pytest.raises(RefusedError) as raised:
        check_profiled(user, parameters=PARAMETERS)
    assert f"ACL SETUSER limited {missing}" in str(raised.value)


def test_limit_is_about_live_messages(client: RedisClient) -> None:
    queue = Queue(client=client, client_id="full")
    queue.fill(LIMIT + 2)
    any_client: Any = client
    any_client.delete(queue.payload(1))
    row = profiled(client)["full"]
    assert (row["over_limit"], row["dead"], row["dead_crowding"]) == (1, 1, 1)


def test_what_is_no_packed_record_has_no_duplicate_packet_id_in_any_session(client: RedisClient) -> None:
    for client_id in ("a", "b", "damaged", "torn", "y", "z"):
        PackedQueue(client=client, client_id=client_id).fill(2)
    for client_id in ("damaged", "torn"):
        client.hset(packed_keys(client_id).session, mapping={"900": b"x", "901": b"y"})
    rows = profiled(client)
    assert {client_id: row["duplicate_packet_ids"] for client_id, row in rows.items()} == dict.fromkeys(rows, 0)
    assert {client_id for client_id, row in rows.items() if row["unreadable"]} == {"damaged", "torn"}
