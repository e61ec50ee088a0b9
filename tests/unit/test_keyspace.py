"""Key names and hash slots: equal to the server's for any id, and cohorts that cut the slots without a gap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import ScatteredClient, UsageError
from queuekeeper.keyspace import (
    SLOTS,
    check_client_id,
    check_prefix,
    check_served,
    client_slot,
    cohorts,
    compacted_client_id,
    compacted_keys,
    compacted_registry_key,
    compacted_registry_keys,
    earlier_tag,
    encoded_client_id,
    fanout_consumer_keys,
    fanout_keys,
    fanout_queue_of,
    hash_slot,
    is_scattered,
    key_owner,
    parse_cohorts,
    payload_key,
    safe_counter,
    session_keys,
    split_session_key,
)
from queuekeeper.redis_client import connect, nodes

pytestmark = pytest.mark.unit

CLIENT_IDS = st.one_of(
    st.text(alphabet=st.sampled_from("{}%7DB25ab*?[]\\ \n😀é"), min_size=1, max_size=20),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255),
)


@pytest.fixture(scope="module")
def server(redis_cluster: RedisCluster) -> Any:
    """A node of a cluster, which knows the slot of any key."""
    redis_cluster.start()
    with connect(redis_cluster.url) as client:
        yield nodes(client)[0][1]


@given(client_id=CLIENT_IDS)
@settings(max_examples=300)
def test_all_keys_of_a_client_are_in_the_slot_that_the_server_computes(server: Any, client_id: str) -> None:
    keys = [*session_keys(client_id), payload_key(client_id, 1), *session_keys(client_id, prefix="tbmq:")]
    keys += [*compacted_keys(client_id), *compacted_keys(client_id, prefix="p:")]
    slots = {server.execute_command("CLUSTER KEYSLOT", key) for key in keys}
    assert (slots == {client_slot(client_id)}) == (not is_scattered(client_id))


@given(client_id=CLIENT_IDS)
def test_key_begins_with_the_id_in_braces_as_tbmq_writes_it(client_id: str) -> None:
    stem = f"{{{client_id}}}"
    assert session_keys(client_id)[:2] == (f"{stem}_messages", f"{stem}_last_packet_id")
    assert payload_key(client_id, 7) == f"{stem}_messages_7"
    assert fanout_keys(client_id, prefix="p:").state == f"p:fanout:{stem}:state"
    assert compacted_keys(client_id, prefix="p:").state == f"p:compacted:{stem}:state"


@given(client_id=CLIENT_IDS, prefix=st.sampled_from(["", "tenant:"]))
def test_key_leads_back_to_its_client(client_id: str, prefix: str) -> None:
    stem = f"{prefix}{{{client_id}}}".encode()
    keys = {
        "messages": session_keys(client_id, prefix=prefix).messages,
        "payload": payload_key(client_id, 65_535, prefix=prefix),
        "last_packet_id": session_keys(client_id, prefix=prefix).last_packet_id,
        "session": session_keys(client_id, prefix=prefix).session,
    }
    for kind, key in keys.items():
        assert split_session_key(key.encode(), prefix=prefix.encode()) == (stem, kind)
        assert key_owner(key) == stem
    assert fanout_queue_of(fanout_keys(client_id, prefix=prefix).state, prefix=prefix) == client_id
    assert compacted_client_id(compacted_keys(client_id, prefix=prefix).state, prefix=prefix) == client_id


@given(first=CLIENT_IDS, second=CLIENT_IDS)
def test_two_clients_never_share_a_key(first: str, second: str) -> None:
    names = [{*session_keys(each), payload_key(each, 1), *compacted_keys(each)} for each in (first, second)]
    assert (names[0] == names[1]) == (first == second)
    assert first == second or not names[0] & names[1]


@given(client_id=CLIENT_IDS)
def test_what_a_cluster_cannot_serve_is_refused_by_its_keys(client_id: str) -> None:
    calls = [session_keys(client_id), tuple(compacted_keys(client_id, prefix="p:")), tuple(fanout_keys(client_id))]
    for keys in calls:
        check_served(keys[:1])
        if is_scattered(client_id):
            with pytest.raises(ScatteredClient, match="begins with a closing brace: its keys lie in several slots"):
                check_served(keys)
        else:
            check_served(keys)


def test_refusal_of_a_cluster_names_the_id_and_the_next_step() -> None:
    with pytest.raises(ScatteredClient) as refused:
        check_served([key.encode() for key in session_keys("}x{y}", prefix="p:")])
    assert str(refused.value) == (
        "id '}x{y}' begins with a closing brace: its keys lie in several slots, and a cluster serves no script that "
        "needs two of them. Connect under another id, or use a single server"
    )


@pytest.mark.parametrize(
    ("client_id", "words"),
    [
        ("", r"^client id is empty: a session without an id cannot be stored$"),
        ("a\0b", r"^client id holds a zero character, which MQTT forbids .*: 'a\\x00b'; connect the device under"),
        ("a\ud800", r"^client id holds half a surrogate pair, which MQTT forbids"),
        ("é" * 32_768, r"^client id has 65536 bytes: MQTT carries at most 65535"),
        (b"bytes", r"^client id is b'bytes': it must be text$"),
        (None, r"^client id is None: it must be text$"),
    ],
)
def test_id_that_mqtt_cannot_carry_is_refused(client_id: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_client_id(client_id)


@given(client_id=CLIENT_IDS)
def test_id_that_mqtt_carries_is_accepted(client_id: str) -> None:
    if "\0" not in client_id:
        check_client_id(client_id)
    check_client_id("}" * 65_535)


@pytest.mark.parametrize(
    ("client_id", "tag"), [("}x", "%7Dx"), ("%7Dx", "%257Dx"), ("}", "%7D"), ("%", "%25"), ("a%b", None), ("", None)]
)
def test_tags_of_earlier_builds_are_known(client_id: str, tag: str | None) -> None:
    assert earlier_tag(client_id) == tag
    assert tag is None or encoded_client_id(tag) == client_id
    assert encoded_client_id("%7d") is None


@given(key=st.one_of(st.binary(max_size=40), st.text(alphabet="{}ab", max_size=12).map(str.encode)))
@settings(max_examples=300)
def test_slot_of_any_key_is_the_one_that_the_server_computes(server: Any, key: bytes) -> None:
    assert hash_slot(key) == server.execute_command("CLUSTER KEYSLOT", key)


def test_names_are_those_that_tbmq_reads() -> None:
    assert session_keys("m", prefix="p:") == ("p:{m}_messages", "p:{m}_last_packet_id", "p:{m}_session")
    assert payload_key("m", 65_535) == "{m}_messages_65535"


def test_names_of_a_compacted_queue_differ_and_are_those_of_the_guide() -> None:
    keys = compacted_keys("m", prefix="p:")
    assert keys.state == "p:compacted:{m}:state"
    assert keys.in_flight == "p:compacted:{m}:in_flight"
    assert len(set(keys)) == len(keys) == 8


@given(client_id=CLIENT_IDS)
def test_compacted_queue_is_noted_in_one_of_the_registries(client_id: str) -> None:
    registries = compacted_registry_keys(prefix="p:")
    assert len(set(registries)) == 64
    assert registries[7] == "p:compacted:due:07"
    assert compacted_registry_key(client_id, prefix="p:") == registries[client_slot(client_id) % 64]


@given(queue=CLIENT_IDS)
def test_all_keys_of_a_fanout_queue_are_in_one_slot(queue: str) -> None:
    own = fanout_consumer_keys(queue, "mailer", lanes=3, prefix="p:")
    keys = [*fanout_keys(queue, prefix="p:"), *own[:-1], *own.ready]
    assert ({hash_slot(key) for key in keys} == {client_slot(queue)}) == (not is_scattered(queue))
    assert len(set(keys)) == len(keys)


def test_fanout_names_are_those_that_the_table_of_keys_shows() -> None:
    assert fanout_keys("q")[:2] == ("fanout:{q}:state", "fanout:{q}:options")
    own = fanout_consumer_keys("%q", "mailer", lanes=2, prefix="p:")
    assert own.details == "p:fanout:{%q}:consumer:mailer:details"
    assert own.ready == ("p:fanout:{%q}:consumer:mailer:ready", "p:fanout:{%q}:consumer:mailer:ready:1")


@pytest.mark.parametrize(
    ("counter", "waiting", "safe"),
    [
        (None, [], None),
        (7, [], 7),
        (None, [1, 2, 3], 3),
        (1, range(1, 9), 8),  # behind the newest
        (65_533, [65_534, 2, 5], 5),  # across the end of the round, with gaps
        (5, [6, 7, 5], 7),  # 6 and 7 wait since an earlier round
        (65_534, [65_535, 1, 3, 65_534], 1),
        (9, [1, 2, 3], 9),  # later ones were confirmed
        (32_767, [65_534], 65_534),
        (32_766, [65_534], 32_766),  # half a round: as far before as behind
        (20_000, [*range(20_001, 65_536), *range(1, 7)], 6),  # also past the newest
        (5, [n for n in range(1, 65_536) if n != 4], 3),
        (5, range(1, 65_536), 5),  # none is free
        (None, range(1, 65_536), 65_535),
    ],
)
def test_counter_moves_past_the_packet_ids_that_a_broker_would_give_out_twice(
    counter: int | None, waiting: Sequence[int], safe: int | None
) -> None:
    assert safe_counter(counter, waiting) == safe


def test_empty_client_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^client id is empty: a session without an id cannot be stored$"):
        session_keys("")


@pytest.mark.parametrize("prefix", ["{", "}", "a{b}"])
def test_prefix_with_a_brace_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="holds a brace: all clients would land in one hash slot"):
        check_prefix(prefix)


def test_prefix_that_no_key_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="holds half a surrogate pair"):
        check_prefix("\ud800")


@given(
    count=st.integers(1, SLOTS),
    cuts=st.lists(st.integers(1, SLOTS - 1), unique=True, max_size=8),
)
def test_cohorts_cover_every_slot_once_and_never_span_two_shards(count: int, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), SLOTS]
    shards = [(edges[n], edges[n + 1] - 1, f"host:{n}") for n in range(len(edges) - 1)]
    found = cohorts(count=count, shards=shards)
    assert [cohort.cohort for cohort in found] == list(range(len(found)))
    expected = 0
    for cohort in found:
        assert cohort.slot_first == expected
        assert cohort.slot_last >= cohort.slot_first
        assert any(a <= cohort.slot_first and cohort.slot_last <= b and cohort.shard == at for a, b, at in shards)
        expected = cohort.slot_last + 1
    assert expected == SLOTS
    # Rounding and the rule of at least one cohort per range add at most one per range.
    assert abs(len(found) - count) <= len(shards)


def test_cohorts_of_one_server_are_as_many_as_asked_for_and_even() -> None:
    found = cohorts(count=96, shards=[(0, SLOTS - 1, "host:1")])
    sizes = {cohort.slot_last - cohort.slot_first + 1 for cohort in found}
    assert len(found) == 96
    assert sizes == {170, 171}


@pytest.mark.parametrize("count", [0, -1, SLOTS + 1])
def test_cohort_count_out_of_range_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match=rf"^cohort count {count} is out of range: 1 to 16384$"):
        cohorts(count=count, shards=[(0, SLOTS - 1, "host:1")])


@pytest.mark.parametrize(
    ("shards", "slot"),
    [
        ([(1, SLOTS - 1, "a:1")], 1 - 1),
        ([(0, 99, "a:1"), (101, SLOTS - 1, "b:1")], 100),
        ([(0, 100, "a:1"), (100, SLOTS - 1, "b:1")], 101),
        ([(0, SLOTS - 2, "a:1")], SLOTS - 1),
        ([], 0),
    ],
)
def test_slots_without_a_server_are_refused(shards: list[tuple[int, int, str]], slot: int) -> None:
    with pytest.raises(UsageError, match=f"^the cluster does not serve slot {slot}: repair it before migrating"):
        cohorts(count=4, shards=shards)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("all", list(range(8))),
        (" all ", list(range(8))),
        ("0", [0]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("7, 1 , 1-2", [1, 2, 7]),
        ("7-7", [7]),
    ],
)
def test_choice_of_cohorts_is_read(text: str, chosen: list[int]) -> None:
    assert parse_cohorts(text, count=8) == chosen


@pytest.mark.parametrize("text", ["", ",", "one", "1-", "-1", "1..2", "0,,1", "ALL", "1 2"])
def test_choice_of_cohorts_that_does_not_parse_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"do not parse: write 'all' or numbers and ranges such as '0-3,7'$"):
        parse_cohorts(text, count=8)


@pytest.mark.parametrize("text", ["8", "0-8", "5-3", "99999999999999999999"])
def test_cohort_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is out of range: this plan has cohorts 0 to 7$"):
        parse_cohorts(text, count=8)
