"""Key names and hash slots: equal to the server's for any id, and cohorts that cut the slots without a gap."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from queuekeeper.embedded import RedisCluster
from queuekeeper.errors import UsageError
from queuekeeper.keyspace import (
    SLOTS,
    check_prefix,
    client_id_of_tag,
    client_slot,
    cohorts,
    compacted_keys,
    compacted_registry_key,
    compacted_registry_keys,
    fanout_consumer_keys,
    fanout_keys,
    hash_slot,
    hash_tag,
    parse_cohorts,
    payload_key,
    session_keys,
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
    assert slots == {client_slot(client_id)}


@given(key=st.one_of(st.binary(max_size=40), st.text(alphabet="{}ab", max_size=12).map(str.encode)))
@settings(max_examples=300)
def test_slot_of_any_key_is_the_one_that_the_server_computes(server: Any, key: bytes) -> None:
    assert hash_slot(key) == server.execute_command("CLUSTER KEYSLOT", key)


@given(client_id=CLIENT_IDS)
def test_tag_leads_back_to_its_client_id(client_id: str) -> None:
    tag = hash_tag(client_id)
    assert client_id_of_tag(tag) == client_id
    assert not tag.startswith("}")


@given(first=CLIENT_IDS, second=CLIENT_IDS)
def test_two_clients_never_share_a_tag(first: str, second: str) -> None:
    assert (hash_tag(first) == hash_tag(second)) == (first == second)


@pytest.mark.parametrize(
    ("client_id", "tag"),
    [
        ("meter", "meter"),
        ("}x", "%7Dx"),
        ("%7Dx", "%257Dx"),
        ("{x}", "{x}"),
        ("a}b", "a}b"),
        ("}", "%7D"),
        ("%", "%25"),
    ],
)
def test_only_a_first_brace_or_percent_sign_is_encoded(client_id: str, tag: str) -> None:
    assert hash_tag(client_id) == tag


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
    assert {hash_slot(key) for key in keys} == {client_slot(queue)}
    assert len(set(keys)) == len(keys)


def test_fanout_names_are_those_that_the_table_of_keys_shows() -> None:
    assert fanout_keys("q")[:2] == ("fanout:{q}:state", "fanout:{q}:options")
    own = fanout_consumer_keys("}q", "mailer", lanes=2, prefix="p:")
    assert own.details == "p:fanout:{%7Dq}:consumer:mailer:details"
    assert own.ready == ("p:fanout:{%7Dq}:consumer:mailer:ready", "p:fanout:{%7Dq}:consumer:mailer:ready:1")


def test_empty_client_id_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^client id is empty: a session without an id cannot be stored$"):
        session_keys("")


@pytest.mark.parametrize("prefix", ["{", "}", "a{b}"])
def test_prefix_with_a_brace_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError, match="holds a brace: all clients would land in one hash slot"):
        check_prefix(prefix)


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
