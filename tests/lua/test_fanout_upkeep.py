"""Upkeep of fan-out queues: consumers that leave, what is shown, what is set right, and a server without memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from limited_user import called_with_its_keys
from lua_fanout import IN_ORDER, NOW_MS, REAPED, Queue, options, taken
from lua_sessions import HOSTILE_IDS, command

from queuekeeper import lua
from queuekeeper.errors import (
    ConsumerLeaving,
    HasLeases,
    ListsTooLong,
    MembershipChanged,
    StoreFull,
    UnknownConsumer,
    UsageError,
)
from queuekeeper.keyspace import is_scattered
from queuekeeper.redis_client import RedisClient, connect
from tests.cluster_slots import slot_of
from tests.conftest import REDIS_FLAVOURS

pytestmark = pytest.mark.lua


@pytest.fixture
def queue(single: RedisClient) -> Queue:
    """A queue with two consumers and five messages for both."""
    found = Queue(client=single)
    found.register("a")
    found.register("b")
    found.publish("1", "2", "3", "4", "5")
    return found


def test_consumer_leaves_page_by_page_and_gets_nothing_more_from_the_first_on(queue: Queue) -> None:
    queue.claim("b", "w", count=4, lease_ms=10)
    queue.nack("b", 1, token="w", delay_ms=10)
    queue.nack("b", 2, token="w", max_attempts=1)
    queue.claim("a", count=5)
    queue.ack("a", 1, 2, 3, 4, 5)
    queue.now = NOW_MS + 10

    assert queue.unregister("b", limit=2) == {"released": 2, "freed": 2, "more": 1}
    leaving = dict(queue.members)
    with pytest.raises(MembershipChanged):
        queue.publish("6")
    with pytest.raises(UnknownConsumer):
        queue.claim("b")
    with pytest.raises(ConsumerLeaving):
        queue.register("b")
    queue.refresh()
    assert queue.publish("6").messages == ((b"6", 1, 0),)
    queue.members = leaving
    assert queue.unregister("b", limit=2) == {"released": 2, "freed": 2, "more": 1}
    assert queue.unregister("b", limit=2) == {"released": 1, "freed": 1, "more": 0}

    own = queue.of("b")
    assert queue.client.exists(own.leases, own.delayed, own.dead, own.details, own.wakes, *own.ready) == 0
    assert queue.client.zrange(queue.keys.consumers, 0, -1) == [b"a"]
    assert queue.client.hkeys(queue.keys.messages) == [b"6"]
    with pytest.raises(UnknownConsumer):
        queue.unregister("b")
    assert queue.register("b").created == 1


def test_removal_that_goes_on_leaves_a_consumer_that_has_registered_anew(queue: Queue) -> None:
    assert queue.unregister("b", limit=2).more == 1
    while queue.unregister("b", limit=2, begun=True).more:
        pass
    with pytest.raises(UnknownConsumer):
        queue.unregister("b", begun=True)
    queue.register("b", options("ordered", lanes=2))
    queue.publish("6")

    with pytest.raises(UnknownConsumer):
        queue.unregister("b", begun=True)
    assert queue.claim("b").records == [b"6"]


def test_consumer_at_work_is_not_removed_unless_it_is_forced(queue: Queue) -> None:
    queue.claim("b", count=2)
    with pytest.raises(HasLeases, match="consumer b"):
        queue.unregister("b")
    assert queue.list_consumers().membership == queue.membership

    assert queue.unregister("b", force=True) == {"released": 5, "freed": 0, "more": 0}
    assert queue.ack("b", 1) == {"acked": 0, "freed": 0, "stale": (b"1",)}
    assert queue.client.exists(queue.of("b").details) == 0


def test_consumer_that_was_seen_since_is_not_removed_as_idle(queue: Queue) -> None:
    queue.now = NOW_MS + 100
    assert queue.touch("b") == NOW_MS + 100

    assert queue.unregister("b", unseen_since_ms=NOW_MS + 100) == {
        "word": "seen",
        "last_seen_ms": b"%d" % (NOW_MS + 100),
    }
    assert queue.list_consumers().membership == queue.membership
    assert queue.unregister("a", unseen_since_ms=NOW_MS + 1) == {"released": 5, "freed": 0, "more": 0}


def test_queue_and_consumers_are_described(queue: Queue) -> None:
    queue.publish("6", deduplication_ids=["d"], to="b")
    queue.claim("b", count=3, lease_ms=10)
    queue.nack("b", 2, delay_ms=500)
    queue.nack("b", 3, max_attempts=1)
    queue.now = NOW_MS + 10

    told = queue.inspect()
    state = dict(told.fields)
    assert told.pick("messages", "references", "held", "deduplications") == (6, 6, 0, 1)
    assert told.next_expiry_ms == NOW_MS + 86_400_000
    assert {name: state[name] for name in (b"membership", b"members", b"published", b"dead")} == {
        b"membership": b"%d" % queue.membership, b"members": b"2", b"published": b"6", b"dead": b"1"
    }  # fmt: skip
    assert int(state[b"bytes"]) == sum(map(len, queue.client.hvals(queue.keys.messages)))

    found = queue.inspect_consumer("b")
    assert {name: found[name] for name in ("leased", "overdue", "delayed", "dead", "sampled", "only_holder")} == {
        "leased": 1, "overdue": 1, "delayed": 1, "dead": 1, "sampled": 3, "only_holder": 1
    }  # fmt: skip
    assert (found["deadline_ms"], found["due_ms"], found["oldest_dead_ms"]) == (NOW_MS + 10, NOW_MS + 500, NOW_MS)
    assert found["lanes"] == [(3, NOW_MS, b"")]
    assert found["fields"][b"claimed"] == b"3"
    assert queue.inspect_consumer("b", sample=1)["sampled"] == 1
    unknown = Queue(client=queue.client, name="unknown")
    assert unknown.inspect().pick("fields", "messages") == ((), 0)


def test_peek_shows_what_waits_and_changes_nothing(queue: Queue) -> None:
    queue.claim("a")
    queue.nack("a", 1)
    queue.client.hdel(queue.keys.messages, "3")

    seen = queue.peek("a", offset=1, limit=4)

    assert [message.id for message in seen.messages] == [b"3", b"4", b"5", b"1"]
    lost, _, _, failed = seen.messages
    assert lost.message == b""
    assert (failed.id, failed.attempts, failed.stalls) == (b"1", 1, 0)
    assert failed.message.split(b":", 3)[3] == b"1"
    assert queue.peek("a", offset=1, limit=4) == seen


def test_ids_of_any_key_are_listed_in_pages(queue: Queue) -> None:
    queue.claim("a", count=2)
    queue.nack("a", 2, max_attempts=1)
    own = queue.of("a")

    assert queue.list_ids(own.ready[0], limit=2) == {"cursor": b"2", "ids": (b"3", b"4")}
    assert queue.list_ids(own.ready[0], cursor=2, limit=2) == {"cursor": b"0", "ids": (b"5",)}
    assert queue.list_ids(own.leases) == {"cursor": b"0", "ids": (b"1",)}
    for key, ids in ((queue.keys.references, [b"1", b"2", b"3", b"4", b"5"]), (own.details, [b"1", b"2", b"2"])):
        listed = queue.list_ids(key)
        assert (listed.cursor, sorted(listed.ids)) == (b"0", ids)
    assert queue.list_ids(own.delayed) == {"cursor": b"0"}


def test_verify_tells_where_an_id_is_and_repair_leaves_what_is_right(queue: Queue) -> None:
    queue.claim("a", count=3)
    queue.nack("a", 2, delay_ms=10)
    queue.nack("a", 3, max_attempts=1)

    assert queue.verify(1, 2, 3, 4, 9) == {
        1: (1, 2, 1, "1l 2g"),
        2: (1, 2, 1, "1d 2g"),
        3: (1, 2, 1, "1x 2g"),
        4: (1, 2, 1, "1r 2g"),
        9: (0, -1, 0, ""),
    }
    before = {key: queue.client.dump(key) for key in queue.client.scan_iter()}
    assert queue.repair(1, 2, 3, 4, 5, 9) == IN_ORDER | {"looked_at": 6}
    assert {key: queue.client.dump(key) for key in queue.client.scan_iter()} == before


def test_repair_sets_right_what_does_not_fit_together(queue: Queue) -> None:
    client, keys, own = queue.client, queue.keys, queue.of("a")
    queue.publish("6", "7", "8")
    queue.pull("b")
    queue.claim("a", count=2)
    client.hset(own.details, "1", "1 0 0 -")
    client.hset(keys.references, "2", "7")
    client.hdel(keys.messages, "3")
    client.lrem(own.ready[0], 0, "4")
    client.lrem(queue.of("b").ready[0], 0, "4")
    client.zadd(own.dead, {"5": 1})
    client.hset(own.details, mapping={"99": "1 0 0 -", "e99": "why"})
    client.zrem(keys.expiries, "6")
    client.hset(keys.references, "98", "1")
    client.zadd(keys.expiries, {"98": 1})
    assert queue.verify(1, 3, 4, 5, 99) == {
        1: (1, 2, 1, "1u 2r"),
        3: (0, 2, 1, "1r 2r"),
        4: (1, 2, 1, ""),
        5: (1, 2, 1, "1xr 2r"),
        99: (0, -1, 0, "1n"),
    }

    assert queue.repair(1, 2, 3, 4, 5, 6, 98, 99) == IN_ORDER | {
        "looked_at": 8,
        "missing": 2,
        "freed": 1,
        "recounted": 3,
        "leases": 1,
        "doubled": 1,
        "notes": 1,
        "expiries": 3,
    }

    assert queue.repair(1, 2, 3, 4, 5, 6, 98, 99) == IN_ORDER | {"looked_at": 8}
    assert queue.claim("a", "w2", count=9).ids == [1, 5, 6, 7, 8]
    assert queue.ack("a", 2) == {"acked": 1, "freed": 0}
    assert queue.claim("b", count=9).ids == [1, 2, 5, 6, 7, 8]
    assert int(client.hget(keys.state, "bytes") or 0) > 0
    assert client.hkeys(keys.references) == client.hkeys(keys.messages) == [b"1", b"2", b"5", b"6", b"7", b"8"]


@pytest.mark.slow
def test_verify_and_repair_know_the_membership_and_stop_when_lists_are_long(queue: Queue) -> None:
    assert queue.pull("a") == queue.pull("b") == 0
    queue.client.rpush(queue.of("a").ready[0], *range(1_000, 251_000))
    assert list(queue.verify(1, 2, 3, 4, 5)) == [1, 2, 3]
    assert queue.repair(1, 2, 3, 4, 5).looked_at == 3
    queue.client.rpush(queue.keys.held, *range(1_000, 751_000))
    for ask in (queue.verify, queue.repair):
        with pytest.raises(ListsTooLong, match="lists of 1000010 ids"):
            ask(1)
    queue.client.delete(queue.keys.held)
    with pytest.raises(UsageError, match="do not fit together"):
        queue.verify(1, 1)
    queue.membership = 9
    with pytest.raises(MembershipChanged):
        queue.verify(1)
    with pytest.raises(MembershipChanged):
        queue.repair(1)


def test_repair_that_names_some_consumers_counts_the_others_unless_the_count_has_changed(queue: Queue) -> None:
    client, keys = queue.client, queue.keys
    client.hset(keys.references, mapping={"1": "7", "2": "7"})
    for consumer in ("a", "b"):
        queue.pull(consumer)
        client.lrem(queue.of(consumer).ready[0], 0, "3")
    del queue.members["b"]

    assert queue.repair(1, 3, elsewhere="-", told=7) == IN_ORDER | {"looked_at": 2}
    assert queue.repair(1, elsewhere=1, told=7).recounted == 1
    assert queue.repair(2, elsewhere=1, told=6).recounted == 0
    assert queue.repair(3, elsewhere=1, told=2).pick("freed", "recounted") == (0, 1)
    assert queue.repair(3, elsewhere=0, told=1).freed == 1
    assert client.hmget(keys.references, "1", "2", "3") == [b"2", b"7", None]


def test_full_server_refuses_publishes_before_any_effect_and_lets_consumers_free_memory(own_server: Any) -> None:
    with connect(own_server.url) as client:
        queue = Queue(client=client)
        queue.register("a")
        queue.register("o", options("ordered"))
        queue.publish(*map(str, range(1, 10)))
        queue.claim("a", "old", count=2, lease_ms=10)
        command(client, "CONFIG SET", "maxmemory", 1)
        command(client, "CONFIG SET", "maxmemory-policy", "noeviction")
        queue.now = NOW_MS + 10
        before = {key: client.dump(key) for key in client.scan_iter()}

        refusals: list[Callable[[], Any]] = [
            lambda: queue.publish("x"),
            lambda: queue.register("c"),
            lambda: queue.adopt("a"),
        ]
        for refused in refusals:
            with pytest.raises(StoreFull):
                refused()
        assert {key: client.dump(key) for key in client.scan_iter()} == before

        # A lower bound makes room, so it can be set when there is none; a longer memory would need some.
        queue.configure("a", options(max_length=3, when_full="drop_oldest"))
        assert "3 drop_oldest" in str(queue.list_consumers())
        queue.configure("a", options())
        assert queue.configure_queue() == 1
        assert queue.reap("a").requeued == 2
        assert queue.claim("a", count=5).ids == [1, 2, 3, 4, 5]
        assert queue.ack("a", 1) == {"acked": 1, "freed": 0}
        assert queue.nack("a", 2, max_attempts=1) == {"word": "dead", "attempts": 2}
        assert queue.nack("a", 3, delay_ms=10).word == "retried"
        assert queue.extend("a", 4) == {"deadline_ms": b"%d" % (NOW_MS + 30_010)}
        assert queue.return_claimed("a", 5) == {"returned": 1}
        assert queue.retry_dead("a", 2) == {"retried": 1}
        assert queue.claim("o").ids == [1]
        assert queue.ack("o", 1) == {"acked": 1, "freed": 1}
        assert queue.purge("o") == {"released": 8, "freed": 0, "more": 0}
        assert queue.pause() == queue.resume() == 1
        assert queue.touch("a") == NOW_MS + 10
        assert queue.repair(4).looked_at == 1
        assert queue.unregister("a", force=True) == {"released": 8, "freed": 8, "more": 0}
        assert client.exists(queue.keys.messages) == 0


LAST_ONES: dict[str, Callable[[Queue], Any]] = {
    "claim": lambda queue: queue.claim("a", "w2", count=9).ids == [3, 4, 2],
    "reap": lambda queue: queue.reap("a").pick(*REAPED) == (1, 0, 0, 0, 2, 0),
    "reap to the dead letters": lambda queue: queue.reap("a", max_stalls=0).pick(*REAPED) == (0, 1, 0, 0, 2, 0),
    "ack": lambda queue: queue.ack("a", 3) == {"acked": 1, "freed": 1},
    "nack": lambda queue: queue.nack("a", 3, delay_ms=5).word == "retried",
    "return_claimed": lambda queue: queue.return_claimed("a", 3) == {"returned": 1},
    "retry_dead": lambda queue: queue.retry_dead("a", 1, 7) == {"retried": 1, "missing": (b"7",)},
    "purge_dead": lambda queue: queue.purge_dead("a") == {"purged": 1, "freed": 1, "more": 0},
    "purge": lambda queue: queue.purge("a") == {"released": 2, "freed": 2, "more": 0},
    "purge_held": lambda queue: queue.purge_held() == {"released": 1, "freed": 1, "more": 0},
    "cancel": lambda queue: queue.cancel(6) == 1,
    "expire": lambda queue: queue.at(NOW_MS * 2).expire().pick("expired", "more", "held_at") == (5, 0, 0),
    "publish": lambda queue: (
        queue.publish("x", "y", deduplication_ids=["d", "e"]) == taken(6, 7, consumers=1, dropped=2)
    ),
    "unregister": lambda queue: queue.unregister("a", force=True) == {"released": 4, "freed": 4, "more": 0},
    "repair": lambda queue: (
        queue.repair(1, 2, 3, 4, 5, 9)
        == IN_ORDER | {"looked_at": 6, "missing": 5, "freed": 1, "recounted": 5, "expiries": 5}
    ),
}


@pytest.mark.parametrize("act", LAST_ONES)
def test_script_that_empties_keys_ends_well_while_the_cluster_moves_the_slot(redis_cluster_url: str, act: str) -> None:
    with connect(redis_cluster_url) as client:
        queue = Queue(client=client)
        queue.register("a", options(max_length=1, when_full="drop_oldest"))
        keys = queue.keys
        for record in "1234":
            queue.publish(record)
            queue.claim("a", lease_ms=10)
        queue.nack("a", 1, max_attempts=1)
        queue.nack("a", 2, delay_ms=10)
        queue.return_claimed("a", 4)
        client.hset(keys.messages, "5", f"{NOW_MS}:{NOW_MS * 2}:0:held")
        client.hset(keys.references, "5", "1")
        client.hset(keys.state, "next_id", "6")
        client.zadd(keys.expiries, {"5": NOW_MS * 2})
        client.rpush(keys.held, "5")
        client.xadd(keys.log, {"m": "1"}, id="1-0")
        client.zadd(keys.cursors, {"another": 1})
        client.hset(keys.deduplications, "d0", "0 1")
        client.zadd(keys.remembered, {"d0": 1})
        if act == "repair":
            # One that nobody owes an ack for, and five whose messages are gone.
            client.hset(keys.messages, "9", "0:0:0:")
            client.hdel(keys.messages, "1", "2", "3", "4", "5")
        if act == "cancel":
            queue.configure("a", options())
            queue.publish("6", due=["+99"])
        queue.now = NOW_MS + 10
        with slot_of(redis_cluster_url, queue.name) as slot:
            # A cluster runs a script there as long as all of its keys are.
            slot.begin()
            try:
                assert LAST_ONES[act](queue)
            finally:
                for node in (slot.source, slot.target):
                    command(node, "CLUSTER SETSLOT", slot.number, "STABLE")


FANOUT_SCRIPTS = [name for name in lua.names() if name.startswith("fanout/")]


class RecordingQueue(Queue):
    """A queue that knows which scripts have been called."""

    called: list[lua.Call]

    def run(self, call: lua.Call) -> Any:
        self.called.append(call)
        return super().run(call)


class LimitedQueue(RecordingQueue):
    """A queue whose every call is made by a user that may touch the declared keys only."""

    def run(self, call: lua.Call) -> Any:
        self.called.append(call)
        return called_with_its_keys(self.client, call)


def call_every_script(queue: RecordingQueue) -> None:
    """Use a queue from its first message to its last consumer."""
    queue.called = []
    queue.configure_queue()
    queue.publish("1", "2", deduplication_ids=["d", ""])
    queue.register("a", options(max_length=9, when_full="drop_oldest"), start="held")
    assert queue.adopt("a") == {"adopted": 2, "more": 0}
    queue.register("o", options("ordered", lanes=2))
    assert queue.publish(*"345678901", order_hashes=range(9)).dropped == 2
    assert queue.claim("a", count=5, lease_ms=10).ids == [3, 4, 5, 6, 7]
    assert queue.claim("o", "o1", count=2).ids == [3, 4]
    queue.touch("a")
    assert queue.extend("a", 3, 4, lease_ms=5).stale == ()
    assert queue.ack("a", 5) == {"acked": 1, "freed": 0}
    assert queue.nack("a", 6, max_attempts=1) == {"word": "dead", "attempts": 1}
    assert queue.nack("o", 4, token="o1", delay_ms=10).word == "retried"
    assert queue.return_claimed("a", 7) == {"returned": 1}
    queue.now = NOW_MS + 10
    assert queue.claim("a", "a2", lease_ms=10, max_stalls=0).dead == 2
    queue.now = NOW_MS + 20
    assert queue.reap("a").requeued == 1
    assert queue.list_dead("a").total == 3
    assert queue.retry_dead("a", 6) == {"retried": 1}
    assert queue.purge_dead("a").purged == 2
    assert (queue.pull("o"), queue.take_over(dry_run=True).consumers) == (0, ())
    assert queue.configure("o", options("ordered", lanes=2, max_length=5)) == queue.list_consumers().membership
    assert (queue.pause("a"), queue.resume("a"), queue.pause(), queue.resume()) == (1, 1, 1, 1)
    assert len(queue.peek("a").messages) == 6
    queue.inspect()
    assert queue.inspect_consumer("o")["leased"] == 1
    queue.list_consumers()
    queue.list_ids(queue.keys.references)
    assert queue.verify(3)[3].has_expiry == 1
    assert queue.repair(3, 4) == IN_ORDER | {"looked_at": 2}
    assert queue.purge("a").more == 0
    assert queue.unregister("o", force=True).more == 0
    queue.refresh()
    assert queue.unregister("a") == {"released": 0, "freed": 0, "more": 0}
    queue.refresh()
    queue.publish("2", "3", ttl_ms=5)
    queue.now = NOW_MS + 25
    assert queue.expire(limit=1).pick("expired", "more", "held_at") == (1, 1, 0)
    assert queue.purge_held() == {"released": 2, "freed": 1, "more": 0}
    first = int(queue.publish("later", due=["+5"]).messages[0].id)
    queue.register("b", options("ordered", lanes=2), start="held")
    assert queue.adopt("b") == {"adopted": 1, "more": 0}
    queue.publish("later too", "now", order_hashes=[1, 1], due=["+5", ""])
    assert queue.claim("b", "b1", count=9).ids == [first + 2]
    assert queue.cancel(first + 1) == 1
    queue.now = NOW_MS + 30
    assert queue.reap("b").requeued == 0
    assert queue.claim("b", "b2", count=9).ids == [first]
    assert {call.script.name for call in queue.called} == set(FANOUT_SCRIPTS)


@pytest.mark.parametrize("redis_url", REDIS_FLAVOURS, indirect=True)
def test_scripts_touch_their_declared_keys_only(single: RedisClient) -> None:
    call_every_script(LimitedQueue(client=single, name="glob*?[a-z]^\\ {x}"))


@pytest.mark.parametrize("name", [each for each in HOSTILE_IDS if not is_scattered(each)])
def test_scripts_find_all_keys_of_a_queue_in_one_slot(redis_cluster_url: str, name: str) -> None:
    with connect(redis_cluster_url) as client:
        call_every_script(RecordingQueue(client=client, name=name))


LAST_KEY_MAY_BE_NONE = {f"fanout/{verb}" for verb in ("cancel", "publish", "repair", "resume", "verify")}


@pytest.mark.parametrize("name", FANOUT_SCRIPTS)
def test_a_call_with_too_few_keys_is_refused_in_our_words(client: RedisClient, name: str) -> None:
    queue = RecordingQueue(client=client, name="q")
    call_every_script(queue)
    call = next(call for call in queue.called if call.script.name == name)
    needed = len(call.script.keys) - (name in LAST_KEY_MAY_BE_NONE)
    before = client.dbsize()

    for count in range(needed):
        with pytest.raises(redis.ResponseError, match=r"^INVALID .*\bkeys?\b"):
            client.eval(call.script.source, count, *call.keys[:count], *call.args)
    assert client.dbsize() == before
