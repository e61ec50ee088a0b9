"""Names of keys: each one is shown though slots move, or the server starts again, while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from lua_sessions import command

from queuekeeper import redis_names
from queuekeeper.clock import Backoff
from queuekeeper.errors import ServerUnavailable
from queuekeeper.keyspace import compacted_registry_keys, hash_slot
from queuekeeper.maintenance.compacted.registry import Registry
from queuekeeper.redis_client import connect, nodes
from queuekeeper.redis_names import ALL_SLOTS, Names, in_place
from tests.cluster_slots import Slot

pytestmark = pytest.mark.lua

KEYS = 50
MANY = 3_000


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_names, "_REST", Backoff(first_s=0.001, longest_s=0.001))


@pytest.fixture
def cluster(redis_cluster_url: str) -> Iterator[redis.RedisCluster]:
    with connect(redis_cluster_url) as client:
        assert isinstance(client, redis.RedisCluster)
        yield client


def held_by(cluster: redis.RedisCluster, place: int) -> str:
    """Return a tag whose slot the first or the last master by address holds."""
    address = nodes(cluster)[place][0]
    holders = cluster.nodes_manager.slots_cache
    tags = (f"meter-{number}" for number in range(1_000))
    return next(tag for tag in tags if holders[hash_slot(f"{{{tag}}}")][0].name == address)


def fill(cluster: redis.RedisCluster, tag: str) -> set[bytes]:
    """Write keys of one slot, and one of another; return the names of all."""
    names = [f"{{{tag}}}:{number}" for number in range(KEYS)] + ["elsewhere"]
    anything: Any = cluster
    for name in names:
        anything.set(name, "x")
    return {name.encode() for name in names}


def filled(cluster: redis.RedisCluster, place: int) -> tuple[set[bytes], Slot]:
    """Write keys of a slot of the first or the last master by address; return the names of all, and the slot."""
    tag = held_by(cluster, place)
    return fill(cluster, tag), Slot(cluster, tag)


def at_pages(*acts: Callable[[], object] | None) -> Callable[[], int]:
    """Return what says the size of a page, and does something before each of the first pages is asked for."""
    left = iter(acts)

    def count() -> int:
        act = next(left, None)
        if act is not None:
            act()
        return 1_000

    return count


def read(names: Names) -> set[bytes]:
    return {name for page in names.all_pages() for name in page.names}


def test_slot_that_moves_to_a_master_that_was_read_is_read_there(cluster: redis.RedisCluster) -> None:
    planted, slot = filled(cluster, -1)
    try:
        assert read(Names(cluster, "*", count=at_pages(None, slot.move))) == planted
    finally:
        slot.move()


def test_slot_that_was_with_another_master_for_a_while_is_read_again(cluster: redis.RedisCluster) -> None:
    planted, slot = filled(cluster, 0)
    slot.target = slot.masters[-1]
    # Away while its holder is read, and back before the other one is.
    assert read(Names(cluster, "*", count=at_pages(slot.move, None, slot.move))) == planted


def test_slot_whose_move_has_begun_is_read_until_it_has_ended(cluster: redis.RedisCluster) -> None:
    planted, slot = filled(cluster, -1)

    def begin() -> None:
        slot.begin()
        slot.move_keys(*sorted(planted - {b"elsewhere"})[:20])

    try:
        # Three pages of the first reading, then of those who still hold something that moved.
        assert read(Names(cluster, "*", count=at_pages(None, begin, None, slot.move))) == planted
    finally:
        slot.move()


def test_slot_that_moves_each_time_is_named_and_what_may_be_missing_is_no_result(
    cluster: redis.RedisCluster,
) -> None:
    planted, slot = filled(cluster, 0)

    def there_and_back() -> None:
        slot.move()
        slot.move()

    names = Names(cluster, "*", slots=frozenset({slot.number}), count=at_pages(*[there_and_back] * 50))
    with pytest.raises(ServerUnavailable, match=rf"^hash slots {slot.number} were moved, .* Repeat this when no slots"):
        read(names)
    assert names.unsettled == {slot.number}
    assert read(Names(cluster, "*", slots=frozenset({slot.number}))) == planted - {b"elsewhere"}


def test_reading_goes_on_behind_its_last_page_only_where_nothing_has_come_to_the_master(
    cluster: redis.RedisCluster,
) -> None:
    _, slot = filled(cluster, 0)
    slots = frozenset({slot.number})
    (page,) = Names(cluster, "*", slots=slots).pages()
    assert len(page.names) == KEYS
    assert list(Names(cluster, "*", slots=slots).pages(page.cursor)) == []
    slot.move()
    slot.move()
    (again,) = Names(cluster, "*", slots=slots).pages(page.cursor)
    assert sorted(again.names) == sorted(page.names)


def test_key_is_read_from_its_beginning_where_it_has_moved(cluster: redis.RedisCluster) -> None:
    tag = held_by(cluster, 0)
    key, anything = f"{{{tag}}}", cluster
    command(cluster, "SADD", key, *range(2_000))
    slot = Slot(cluster, tag)
    acts: list[Callable[[], object]] = [slot.move]

    def pages() -> Iterator[list[bytes]]:
        cursor = None
        while cursor != 0:
            found: Any = anything.sscan(key, cursor or 0, count=500)
            cursor, members = found
            yield members
            if acts:
                acts.pop()()

    try:
        seen = [member for page in in_place(cluster, key, pages) for member in page]
    finally:
        slot.move()
    assert set(seen) == {b"%d" % number for number in range(2_000)}
    assert len(seen) > 2_000


def start_again(server: Any) -> None:
    server.kill()
    server.start()


def test_names_are_read_again_when_the_server_was_started_again(own_server: Any) -> None:
    with connect(own_server.url) as client:
        anything: Any = client
        anything.mset({f"key-{number}": "x" for number in range(MANY)})

        assert len(read(Names(client, "*", count=at_pages(None, lambda: start_again(own_server))))) == MANY

        once = Names(client, "*", count=at_pages(None, lambda: start_again(own_server)), readings=1)
        assert len(list(once.pages())) > 1
        assert once.unsettled == ALL_SLOTS


def test_registry_is_read_again_when_the_server_was_started_again(own_server: Any) -> None:
    with connect(own_server.url) as client:
        anything: Any = client
        anything.zadd(compacted_registry_keys()[0], {f"meter-{number}": 1 for number in range(MANY)})

        steps = list(Registry(client, "").every(0, count=at_pages(None, lambda: start_again(own_server))))

    names = [name for step in steps for name, _ in step]
    assert (len(names), len({*names})) == (MANY, MANY)
