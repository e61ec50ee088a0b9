"""Hashes that are read page by page: what stays is read, also when the server starts again between two pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from planted_queues import PackedQueue, faults, profiled
from script_replies import reply_of

from queuekeeper.compacted.model import Append
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.fanout.model import NewMessage, Start
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.keyspace import compacted_keys, fanout_keys, packed_keys
from queuekeeper.lua import ScriptCaller
from queuekeeper.lua.scripts import packed as scripts
from queuekeeper.maintenance.remedies.model import RemedyParameters
from queuekeeper.maintenance.remedies.queues import named_queues
from queuekeeper.redis_client import RedisClient, connect
from queuekeeper.sessions.pages import Layout
from queuekeeper.sessions.redis_store import RedisSessionStore
from tests.remedies_world import RemedyPlan, plan_remedy

pytestmark = pytest.mark.lua

C = "meter-7"
PLACES = range(1, 6_000, 10)
MANY = 3_000
FEW = 900


@pytest.fixture
def client(own_server: Any) -> Iterator[RedisClient]:
    with connect(own_server.url) as found:
        yield found


def plant_sparse(client: RedisClient) -> PackedQueue:
    """Plant a session that has far more places than messages, and more of those than a page."""
    queue = PackedQueue(client=client, client_id=C)
    for number, serial in enumerate(PLACES, start=1):
        queue.put(serial, number)
    queue.settle(ids=len(PLACES))
    return queue


@contextmanager
def started_again(server: Any, script: str, *arguments: str) -> Iterator[None]:
    """Stop the server and start it again behind the first page that a script reads, with some arguments."""
    execute = ScriptCaller.execute
    met: list[bool] = []

    def execute_and_stop(self: Any, calls: Sequence[Any]) -> Any:
        replies = execute(self, calls)
        if not met and calls[0].script.name == script and {*arguments} <= {*calls[0].args}:
            met.append(True)
            server.stop()
            server.start()
        return replies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptCaller, "execute", execute_and_stop)
        yield
    assert met


def test_hash_is_read_from_its_beginning_when_another_process_answers(own_server: Any, client: RedisClient) -> None:
    plant_sparse(client)

    def page(cursor: bytes) -> Any:
        call = scripts.list_serials(packed_keys(C), cursor=cursor, count=100)
        return reply_of(call, ScriptCaller(client).call(*call))

    first = page(b"0")
    second = page(first.cursor)
    assert not {*first.serials} & {*second.serials}
    own_server.stop()
    own_server.start()

    assert page(second.cursor) == page(b"0")


def test_session_is_fetched_whole_and_no_packet_id_is_given_twice(own_server: Any, client: RedisClient) -> None:
    plant_sparse(client)
    store = RedisSessionStore(client, layout=Layout.PACKED)
    with started_again(own_server, "packed/list_serials"):
        page = store.fetch_pending(C, limit=1_000)
    assert [each.serial for each in page.messages] == list(PLACES)
    assert store.set_last_packet_id(C, packet_id=65_535, expected=len(PLACES))
    with started_again(own_server, "packed/list_serials"):
        assert store.reserve_packet_ids(C, count=2) == (len(PLACES) + 1, len(PLACES) + 2)


def test_profile_counts_each_message_once_and_finds_no_fault(own_server: Any, client: RedisClient) -> None:
    plant_sparse(client)
    (before,) = profiled(client).values()

    with started_again(own_server, "quality/profile_packed"):
        (row,) = profiled(client).values()

    assert (row["messages"], faults(row)) == (len(PLACES), faults(before))


def test_remedy_works_the_state_out_from_all_messages(own_server: Any, client: RedisClient) -> None:
    plant_sparse(client).say(others=5)

    def planned() -> RemedyPlan:
        queues = named_queues([C], key=b"test key of hashes")
        return plan_remedy(client, remedy="repair_state", queues=queues, parameters=RemedyParameters())

    with started_again(own_server, "quality/profile_packed"):
        plan = planned()

    assert (plan.effects, plan.refusals) == (planned().effects, {})


def test_new_consumer_gets_all_earlier_messages(own_server: Any, client: RedisClient) -> None:
    queues = FanoutQueues(client)
    queues.register("orders", consumer="billing")
    for _ in range(MANY // 500):
        queues.publish("orders", [NewMessage(body=b"x") for _ in range(500)])

    with started_again(own_server, "fanout/list_ids"):
        queues.register("orders", consumer="shipping", start=Start.RETAINED)

    assert {each.consumer: each.ready for each in queues.inspect("orders").consumers} == {
        "billing": MANY,
        "shipping": MANY,
    }


def test_fanout_queue_is_verified_whole(own_server: Any, client: RedisClient) -> None:
    anything: Any = client
    queues = FanoutQueues(client)
    queues.register("orders", consumer="billing")
    for _ in range(MANY // 500):
        queues.publish("orders", [NewMessage(body=b"x") for _ in range(500)])
    anything.hset(fanout_keys("orders").references, mapping={str(number): 2 for number in range(1, MANY + 1)})

    with started_again(own_server, "fanout/list_ids"):
        report = queues.verify("orders")

    assert (report.checked, sum(report.counts.values())) == (MANY, MANY)


def test_compacted_queue_is_verified_whole_and_each_fault_is_counted_once(own_server: Any, client: RedisClient) -> None:
    anything: Any = client
    queues = CompactedQueues(client)
    queues.append(C, [Append(key=b"k", value=b"x")])
    dangling = {b"dangling-%d" % number: b"%d 0 x" % number for number in range(1, FEW + 1)}
    anything.hset(compacted_keys(C).values, mapping=dangling)
    before = queues.verify(C)

    with started_again(own_server, "compacted/verify", "values"):
        report = queues.verify(C)

    assert {each.key for each in report.violations if each.rule == "dangling_value"} == {*dangling}
    assert (report.checked, report.found) == (before.checked, before.found)
