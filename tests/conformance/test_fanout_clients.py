"""Producers and consumers of fan-out queues, in threads and in asyncio, on real servers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuekeeper import redis_client
from queuekeeper.errors import (
    PayloadTooLarge,
    QueueFull,
    RefusedError,
    Rejected,
    ServerUnavailable,
    StoreFull,
    UnknownConsumer,
    UnknownQueue,
    UsageError,
)
from queuekeeper.fanout.consumer import AsyncFanoutConsumer, FanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.handlers import Handler, Middleware, RetryRules, handler
from queuekeeper.fanout.model import ConsumerOptions, FanoutRules, Mode, NewMessage
from queuekeeper.fanout.producer import AsyncFanoutProducer, FanoutProducer
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.fanout.records import read_json
from queuekeeper.fanout.reports import FanoutMessage, PublishReport
from queuekeeper.keyspace import fanout_keys
from queuekeeper.redis_async import connect as connect_async
from tests.conformance.cutting_proxy import CuttingProxy
from tests.conformance.fanout_clients import Clients, until
from tests.conformance.watching import Watching
from tests.conftest import nightly
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.conformance

Q = "orders"
A, B = "billing", "shipping"
NEVER_S = 3_600.0
ORDERED = ConsumerOptions(mode=Mode.ORDERED)


@pytest.fixture(params=["valkey-threads", "cluster-asyncio", *nightly("redis-asyncio")])
def clients(request: pytest.FixtureRequest) -> Iterator[Clients]:
    where, _, how = request.param.partition("-")
    if where == "cluster":
        url = request.getfixturevalue("redis_cluster_url")
    else:
        server = request.getfixturevalue("redis_servers")(where)
        with server.client() as client:
            client.flushall()
        url = server.url
    found = Clients(url, awaited=how == "asyncio")
    yield found
    found.close()


class Books:
    """A handler that notes what it got."""

    def __init__(self) -> None:
        self.got: list[FanoutMessage] = []

    def __call__(self, message: FanoutMessage) -> None:
        self.got.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.got]


def messages(count: int, **fields: Any) -> list[NewMessage]:
    return [NewMessage(body=b"%d" % number, **fields) for number in range(1, count + 1)]


def is_done(clients: Clients) -> bool:
    """Whether nobody owes an ack for anything."""
    return clients.queues.size(Q) == 0


# Producing.


@pytest.mark.parametrize("awaited", [False, True])
def test_message_whose_answer_was_lost_is_sent_again_and_is_one(valkey_url: str, awaited: bool) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(CuttingProxy(valkey_url))
        clients = Clients(valkey_url, awaited=awaited)
        stack.callback(clients.close)
        clients.queues.register(Q, consumer=A)
        producer = clients.producer(url=proxy.url)
        producer.publish(Q, NewMessage(body=b"first"))
        proxy.cuts = 1
        report = producer.publish(Q, NewMessage(body=b"second"))
        assert proxy.cuts == 0
        assert (report.consumers, report.duplicate) == (1, False)
        assert [message.body for message in clients.queues.peek(Q, consumer=A)] == [b"first", b"second"]
        proxy.cuts = 1
        reports = producer.publish_many(Q, messages(150))
        assert [report.id for report in reports] == list(range(3, 153))
        assert clients.queues.size(Q) == 152


def test_messages_are_named_by_those_who_want_to(clients: Clients) -> None:
    clients.queues.register(Q, consumer=A)
    producer = clients.producer()
    reports = [producer.publish(Q, NewMessage(body=b"", deduplication_id="mine")) for _ in range(2)]
    assert [report.duplicate for report in reports] == [False, True]
    assert reports[0].id == reports[1].id
    others = [producer.publish(Q, NewMessage(body=b"same")) for _ in range(2)]
    assert others[0].id != others[1].id


def test_json_for_one_consumer_comes_out_as_it_went_in(clients: Clients) -> None:
    for consumer in (A, B):
        clients.queues.register(Q, consumer=consumer)
    report = clients.producer().publish_json(Q, {"paid": [1, "ö"]}, to=B, headers={"trace": "7"})
    assert report.consumers == 1
    assert clients.queues.peek(Q, consumer=A) == ()
    [message] = clients.queues.peek(Q, consumer=B)
    assert (read_json(message), message.headers) == ({"paid": [1, "ö"]}, {"trace": "7"})
    with pytest.raises(UsageError, match="value is not JSON"):
        clients.producer().publish_json(Q, object())


def test_message_that_fails_leaves_those_before_it_published(clients: Clients) -> None:
    clients.queues.register(Q, consumer=A, options=ConsumerOptions(max_length=2))
    producer = clients.producer()
    reports = producer.publish_many(Q, messages(4))
    assert [report.id for report in reports] == [1, 2, None, None]
    assert isinstance(reports[2].error, QueueFull)
    with pytest.raises(QueueFull, match=A):
        producer.publish(Q, NewMessage(body=b"late"))
    with pytest.raises(UnknownConsumer):
        producer.publish(Q, NewMessage(body=b""), to="nobody")


def test_lost_answer_is_an_error_when_the_time_to_repeat_is_over(valkey_url: str) -> None:
    with CuttingProxy(valkey_url) as proxy, redis_client.connect(proxy.url) as client:
        producer = FanoutProducer(FanoutQueues(client), retry_for_s=0)
        producer.publish(Q, NewMessage(body=b""))
        proxy.cuts = 1
        with pytest.raises(ServerUnavailable):
            producer.publish(Q, NewMessage(body=b""))


def test_refusal_of_a_full_server_does_not_say_that_a_message_with_a_lost_answer_is_not_there(valkey_url: str) -> None:
    with redis_client.connect(valkey_url) as client:
        queues = FanoutQueues(client)
        producer = FanoutProducer(queues)
        answers: list[Exception] = []
        original = queues.answer

        def answer(step: Any) -> Any:
            found = original(step)
            if answers:
                raise answers.pop(0)
            return found

        queues.answer = answer  # type: ignore[method-assign]
        producer.publish(Q, NewMessage(body=b"0"))
        answers[:] = [ServerUnavailable("lost"), StoreFull()]
        assert not producer.publish(Q, NewMessage(body=b"1")).duplicate
        answers[:] = [StoreFull()]
        with pytest.raises(StoreFull):
            producer.publish(Q, NewMessage(body=b"2"))
        producer = FanoutProducer(queues, retry_for_s=0.01)
        answers[:] = [ServerUnavailable("lost")] + [StoreFull() for _ in range(9)]
        with pytest.raises(ServerUnavailable):
            producer.publish(Q, NewMessage(body=b"3"))


def test_receiver_that_is_gone_does_not_say_that_a_message_with_a_lost_answer_was_never_published(
    valkey_url: str,
) -> None:
    with redis_client.connect(valkey_url) as client:
        queues = FanoutQueues(client)
        for consumer in (A, B):
            queues.register(Q, consumer=consumer)
        producer = FanoutProducer(queues)
        lost = [ServerUnavailable("lost")]
        original = queues.answer

        def answer(step: Any) -> Any:
            found = original(step)
            if lost and step[0].script.name == "fanout/publish":
                error = lost.pop()
                queues.unregister(Q, consumer=B)
                raise error
            return found

        queues.answer = answer  # type: ignore[method-assign]
        with pytest.raises(ServerUnavailable):
            producer.publish(Q, NewMessage(body=b""), to=B)
        with pytest.raises(UnknownConsumer):
            producer.publish(Q, NewMessage(body=b""), to=B)


def test_many_tasks_publish_together_in_order_and_what_is_wrong_with_one_is_its_own(valkey_url: str) -> None:
    async def main() -> None:
        async with await connect_async(valkey_url) as caller:
            queues = AsyncFanoutQueues(caller, rules=FanoutRules(max_body_bytes=10))
            calls: list[str] = []
            original = queues.answer

            async def answer(step: Any) -> Any:
                calls.extend(call.script.name for call in step)
                return await original(step)

            queues.answer = answer  # type: ignore[method-assign]
            await queues.register(Q, consumer=A, options=ConsumerOptions(max_length=503))
            await queues.register("other", consumer=A)
            async with AsyncFanoutProducer(queues, max_pending=400) as producer:
                tasks = [asyncio.create_task(producer.publish(Q, message)) for message in messages(500)]
                aside = [asyncio.create_task(producer.publish("other", message)) for message in messages(20)]
                reports = await asyncio.gather(*tasks, *aside)
                assert [report.id for report in reports] == [*range(1, 501), *range(1, 21)]
                assert calls.count("fanout/publish") < 100, "they were published together"
                results = await asyncio.gather(
                    producer.publish(Q, NewMessage(body=b"a")),
                    producer.publish(Q, NewMessage(body=b"x" * 11)),
                    producer.publish(Q, NewMessage(body=b"b")),
                    producer.publish(Q, NewMessage(body=b""), to="nobody"),
                    producer.publish(Q, NewMessage(body=b"c")),
                    producer.publish(Q, NewMessage(body=b"d")),
                    return_exceptions=True,
                )
                assert [result.id if isinstance(result, PublishReport) else type(result) for result in results] == [
                    501, PayloadTooLarge, 502, UnknownConsumer, 503, QueueFull,
                ]  # fmt: skip
            with pytest.raises(RefusedError, match="the producer is closed"):
                await producer.publish(Q, NewMessage(body=b""))
            for options, words in (
                ({"retry_for_s": -1}, "retry_for_s is -1"),
                ({"max_pending": 0}, "max_pending is 0"),
                ({"max_queues": 0}, "max_queues is 0"),
            ):
                with pytest.raises(UsageError, match=words):
                    AsyncFanoutProducer(queues, **options)  # type: ignore[arg-type]

    asyncio.run(main())


# Consuming.


def test_every_message_is_worked_on_once_at_a_consumer_that_registers_itself(clients: Clients) -> None:
    producer = clients.producer()
    books, other = Books(), Books()
    with clients.consuming(Q, books, consumer=A), clients.consuming(Q, other, consumer=B, rules={"prefetch": 50}):
        producer.publish_many(Q, messages(200))
        until(lambda: len(books.got) + len(other.got) >= 400 and is_done(clients), what="all messages are done")
    assert sorted(books.bodies) == sorted(other.bodies) == sorted(message.body for message in messages(200))
    assert clients.queues.verify(Q).healthy


def test_handlers_work_at_the_same_time_here_and_in_other_processes_of_the_name(clients: Clients) -> None:
    together = threading.Barrier(5)

    def work(message: FanoutMessage) -> None:
        together.wait(PATIENCE_S)

    with (
        clients.consuming(Q, work, consumer=A, rules={"workers": 3}),
        clients.consuming(Q, work, consumer=A, rules={"workers": 2}),
    ):
        clients.producer().publish_many(Q, messages(5))
        until(lambda: is_done(clients), what="five handlers were at work at once")


def test_message_is_woken_for_and_a_retry_comes_when_it_is_due_though_nobody_looks(clients: Clients) -> None:
    books = Books()

    def work(message: FanoutMessage) -> None:
        books(message)
        if message.attempt == 1 and message.body == b"again":
            raise OSError("not now")

    rules = RetryRules(first_delay_ms=300, jitter=0)
    with clients.consuming(Q, Handler(work=work, rules=rules), consumer=A, rules={"look_s": NEVER_S}):
        producer = clients.producer()
        for number in range(1, 6):
            producer.publish(Q, NewMessage(body=b"%d" % number))
            until(lambda: len(books.got) == number, what="the wake-up")  # noqa: B023
        began_s = time.monotonic()
        producer.publish(Q, NewMessage(body=b"again"))
        until(lambda: is_done(clients), what="the retry")
        assert 0.3 <= time.monotonic() - began_s < PATIENCE_S
    assert books.bodies == [b"1", b"2", b"3", b"4", b"5", b"again", b"again"]


def test_message_for_later_comes_when_it_is_due_though_nobody_looks(clients: Clients) -> None:
    books = Books()
    with clients.consuming(Q, books, consumer=A, rules={"look_s": NEVER_S, "workers": 1}):
        producer = clients.producer()
        began_s = time.monotonic()
        later = [NewMessage(body=b"later", delay_ms=300), NewMessage(body=b"sooner", delay_ms=100)]
        producer.publish_many(Q, [*later, NewMessage(body=b"now")])
        until(lambda: is_done(clients), what="all three")
        # The server's clock may have been in the midst of a millisecond.
        assert time.monotonic() - began_s >= 0.299
        producer.publish_json(Q, "at an instant", due_at=datetime.now(UTC) + timedelta(milliseconds=100))
        until(lambda: is_done(clients), what="the last one")
    assert books.bodies == [b"now", b"sooner", b"later", b'"at an instant"']


class Watcher(Watching, Middleware):
    """Looks on, and names a message by its attempt."""


def test_failures_are_retried_then_dead_and_those_who_look_on_hear_of_all(clients: Clients) -> None:
    @handler(max_attempts=3, first_delay_ms=1, dead_on=(Rejected, KeyError))
    def work(message: FanoutMessage) -> None:
        if message.body == b"bad":
            raise Rejected("never")
        if message.body == b"late" and message.attempt == 2:
            return
        raise ValueError("no")

    for body, told, reason in (
        (b"poison", [("before", attempt) for attempt in (1, 2, 3)], "ValueError: no"),
        (b"bad", [("before", 1)], "Rejected: never"),
        (b"late", [("before", 1), ("before", 2)], None),
    ):
        watcher = Watcher()
        with clients.consuming(Q, work, consumer=A, middleware=[watcher]):
            clients.producer().publish(Q, NewMessage(body=body))
            until(lambda: clients.queues.size(Q, consumer=A) == 0, what="the end of it")
        assert [one for one in watcher.told if one[0] == "before"] == told
        letters = clients.queues.list_dead(Q, consumer=A).letters
        assert [(letter.reason, letter.attempts) for letter in letters] == ([(reason, len(told))] if reason else [])
        errors = [one for one in watcher.told if len(one) == 3]
        finals = [is_final for _, _, is_final in errors]
        if reason:
            assert finals == [False] * (len(told) - 1) + [True]
            clients.queues.purge_dead(Q, consumer=A)
        else:
            assert finals == [False]
            assert watcher.told[-1] == ("after", 2)


def test_handler_that_lets_a_cancellation_of_its_own_out_has_failed(clients: Clients) -> None:
    books = Books()

    def work(message: FanoutMessage) -> None:
        books(message)
        raise asyncio.CancelledError

    with clients.consuming(Q, Handler(work=work, rules=RetryRules(max_attempts=3, first_delay_ms=1)), consumer=A):
        clients.producer().publish_many(Q, messages(1))
        until(lambda: clients.queues.size(Q, consumer=A) == 0, what="the end of it")
    assert [message.attempt for message in books.got] == [1, 2, 3]
    [letter] = clients.queues.list_dead(Q, consumer=A).letters
    assert (letter.reason, letter.attempts) == ("CancelledError", 3)


def test_lease_is_renewed_for_as_long_as_a_handler_works(clients: Clients) -> None:
    books = Books()
    release = threading.Event()

    def work(message: FanoutMessage) -> None:
        books(message)
        assert release.wait(PATIENCE_S)

    def deadline_ms() -> int:
        [view] = clients.queues.inspect(Q).consumers
        return view.next_deadline_ms or 0

    with clients.consuming(Q, work, consumer=A, rules={"workers": 1, "prefetch": 1, "lease_ms": 2_000}):
        clients.producer().publish_many(Q, messages(2))
        until(lambda: books.got and clients.queues.inspect(Q).consumers[0].leased == 2, what="the lease of both")
        first_ms = deadline_ms()
        until(lambda: deadline_ms() > first_ms + 2_000, what="the lease outlives itself")
        assert clients.queues.claim(Q, consumer=A).messages == ()
        release.set()
        until(lambda: is_done(clients), what="the acks")
    assert [(message.body, message.attempt, message.stalls) for message in books.got] == [(b"1", 1, 0), (b"2", 1, 0)]


def test_ordered_consumer_gets_one_message_at_a_time_in_order_whatever_fails(clients: Clients) -> None:
    books = Books()
    at_work = threading.Semaphore(1)

    def work(message: FanoutMessage) -> None:
        assert at_work.acquire(blocking=False), "two at a time"
        books(message)
        at_work.release()
        if int(message.body) % 4 == 0 and message.attempt < 3:
            raise ValueError("not yet")

    found = Handler(work=work, rules=RetryRules(first_delay_ms=5, max_attempts=5))
    with clients.consuming(Q, found, consumer=A, options=ORDERED), clients.consuming(Q, found, consumer=A):
        clients.producer().publish_many(Q, messages(12))
        until(lambda: is_done(clients), what="all messages")
    wanted = [number for number in range(1, 13) for _ in range(3 if number % 4 == 0 else 1)]
    assert [int(body) for body in books.bodies] == wanted


def test_lanes_keep_the_order_of_a_key_and_go_on_side_by_side(clients: Clients) -> None:
    books = Books()
    together = threading.Barrier(2)
    lock = threading.Lock()
    seen: set[str] = set()

    def work(message: FanoutMessage) -> None:
        assert message.order_key is not None
        with lock:
            is_first = message.order_key not in seen
            seen.add(message.order_key)
        if is_first:
            together.wait(PATIENCE_S)
        books(message)

    options = ConsumerOptions(mode=Mode.ORDERED, lanes=64)
    with clients.consuming(Q, work, consumer=A, options=options, rules={"look_s": NEVER_S}):
        keys = ("one", "two")
        clients.producer().publish_many(
            Q, [NewMessage(body=b"%d" % number, order_key=keys[number % 2]) for number in range(40)]
        )
        until(lambda: is_done(clients), what="both lanes")
    for key in keys:
        numbers = [int(message.body) for message in books.got if message.order_key == key]
        assert numbers == sorted(numbers)
        assert len(numbers) == 20


def test_stop_gives_back_what_was_not_begun_and_waits_for_what_was(clients: Clients) -> None:
    books = Books()
    release = threading.Event()

    def work(message: FanoutMessage) -> None:
        books(message)
        assert release.wait(PATIENCE_S)

    with clients.consuming(Q, work, consumer=A, rules={"workers": 2, "prefetch": 8}) as stop:
        clients.queues.pause(Q)
        clients.producer().publish_many(Q, messages(10))
        clients.queues.resume(Q)
        until(lambda: len(books.got) == 2 and clients.queues.inspect(Q).consumers[0].leased == 10, what="the claim")
        stop()
        until(lambda: clients.queues.inspect(Q).consumers[0].ready == 8, what="the return")
        assert clients.queues.inspect(Q).consumers[0].leased == 2
        release.set()
    [view] = clients.queues.inspect(Q).consumers
    assert (view.ready, view.leased, view.counters["acked"]) == (8, 0, 2)
    again = clients.queues.claim(Q, consumer=A, count=10).messages
    assert [(message.body, message.attempt) for message in again] == [(b"%d" % n, 1) for n in range(3, 11)]


def test_stop_does_not_wait_for_ever(clients: Clients) -> None:
    books = Books()
    release = threading.Event()

    def work(message: FanoutMessage) -> None:
        books(message)
        release.wait(PATIENCE_S)

    try:
        with clients.consuming(Q, work, consumer=A, rules={"grace_s": 0.05}):
            clients.producer().publish(Q, NewMessage(body=b"stuck"))
            until(lambda: books.got, what="the handler")
        [view] = clients.queues.inspect(Q).consumers
        # A task can be cancelled, so that its message goes to others; a thread works on.
        assert (view.ready, view.leased) == ((1, 0) if clients.awaited else (0, 1))
    finally:
        release.set()


STUCK = """
import sys, threading
from queuekeeper import redis_client
from queuekeeper.fanout.consumer import (FanoutConsumer)
from queuekeeper.fanout.consumption import (WorkRules)
from queuekeeper.fanout.queue import FanoutQueues

began = threading.Event()

def work(message):
    began.set()
    threading.Event().wait()

with redis_client.connect(sys.argv[1]) as client:
    rules = WorkRules(grace_s=0.05)
    with FanoutConsumer(FanoutQueues(client), sys.argv[2], work, consumer=sys.argv[3], rules=rules):
        assert began.wait(900)
print("ended")
"""


def test_process_ends_though_a_handler_never_does(valkey_url: str) -> None:
    with redis_client.connect(valkey_url) as client:
        queues = FanoutQueues(client)
        queues.register(Q, consumer=A)
        queues.publish(Q, messages(1))
    ended = subprocess.run(
        [sys.executable, "-c", STUCK, valkey_url, Q, A], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ended.stdout == "ended\n"


def test_task_that_does_without_its_cancellation_keeps_no_consumer_from_ending(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("fanout.consumption", "service.aio"):
        monkeypatch.setattr(f"queuekeeper.{place}.END_S", 0.1)

    async def main() -> None:
        began, release = asyncio.Event(), asyncio.Event()

        async def work(message: FanoutMessage) -> None:
            began.set()
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()

        async with await connect_async(valkey_url) as caller:
            queues = AsyncFanoutQueues(caller)
            consumer = AsyncFanoutConsumer(queues, Q, work, consumer=A, rules=WorkRules(grace_s=0.05))
            run = asyncio.create_task(consumer.run())
            while consumer.registration is None:
                await asyncio.sleep(0.01)
            await queues.publish(Q, messages(1))
            await began.wait()
            consumer.stop()
            try:
                await asyncio.wait_for(asyncio.shield(run), PATIENCE_S)
            finally:
                release.set()

    asyncio.run(main())


def test_paused_consumer_goes_on_when_it_is_resumed(clients: Clients) -> None:
    books = Books()
    clients.queues.register(Q, consumer=A)
    clients.queues.pause(Q, consumer=A)
    with clients.consuming(Q, books, consumer=A, register=False, rules={"look_s": NEVER_S}):
        clients.producer().publish_many(Q, messages(3))
        until(lambda: clients.queues.inspect(Q).consumers[0].ready == 3, what="the messages")
        assert books.got == []
        clients.queues.resume(Q, consumer=A)
        until(lambda: is_done(clients), what="the consumer goes on")


def test_consumer_that_somebody_unregisters_ends_with_an_error(clients: Clients) -> None:
    clients.queues.register(Q, consumer=B)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(clients.consume, Q, Books(), consumer=A, rules={"look_s": 0.05})
        until(lambda: len(clients.queues.inspect(Q).consumers) == 2, what="it registers")
        clients.queues.unregister(Q, consumer=A, force=True)
        with pytest.raises(UnknownConsumer):
            end.result(PATIENCE_S)
    with pytest.raises(UnknownConsumer), clients.consuming(Q, Books(), consumer=A, register=False):
        pass
    with pytest.raises(UnknownQueue), clients.consuming("none", Books(), consumer=A, register=False):
        pass


def test_message_that_nobody_can_read_takes_no_others_with_it_when_the_connection_is_lost(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with redis_client.connect(valkey_url) as client:
        queues = FanoutQueues(client)
        queues.register(Q, consumer=A)
        queues.publish(Q, messages(3))
        payloads: Any = client
        payloads.hset(fanout_keys(Q).messages, 2, b"1:9999999999999:0:odd")
        original = queues.answer

        def answer(step: Any) -> Any:
            if step[0].script.name == "fanout/nack":
                raise ServerUnavailable("lost")
            return original(step)

        monkeypatch.setattr(queues, "answer", answer)
        claimed = queues.claim(Q, consumer=A, count=3)
        assert ([message.id for message in claimed.messages], claimed.dead) == ([1, 3], 0)


@pytest.mark.parametrize("awaited", [False, True])
def test_lost_answers_lose_no_message(valkey_url: str, awaited: bool) -> None:
    books = Books()
    with ExitStack() as stack:
        proxy = stack.enter_context(CuttingProxy(valkey_url))
        found = Clients(valkey_url, awaited=awaited)
        stack.callback(found.close)
        producer = found.producer()
        rules = {"lease_ms": 500, "max_stalls": 100, "look_s": 0.2, "workers": 4}
        with found.consuming(Q, books, consumer=A, url=proxy.url, rules=rules):
            for turn in range(5):
                proxy.cuts = 1
                producer.publish_many(Q, messages(20))
                until(lambda: is_done(found), what=f"all messages of turn {turn}")
    assert {(message.id) for message in books.got} == set(range(1, 101))


def test_server_that_is_not_there_at_first_is_an_error() -> None:
    with pytest.raises(ServerUnavailable), redis_client.connect("redis://127.0.0.1:1") as client:
        FanoutConsumer(FanoutQueues(client), Q, Books(), consumer=A).run()


def test_consumer_runs_once_and_bad_options_are_refused(valkey_url: str) -> None:
    async def work(message: FanoutMessage) -> None: ...

    class Callable:
        async def __call__(self, message: FanoutMessage) -> None: ...

    with redis_client.connect(valkey_url) as client:
        queues = FanoutQueues(client)
        with FanoutConsumer(queues, Q, Books(), consumer=A) as consumer:
            assert consumer.registration is not None
            assert consumer.registration.created
            with pytest.raises(RefusedError, match="runs once"):
                consumer.run()
        for wrong in (work, Callable(), Handler(work=work)):
            with pytest.raises(UsageError, match="coroutine function"):
                FanoutConsumer(queues, Q, wrong, consumer=A)
    for options, words in (
        ({"workers": 0}, "workers is 0"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"lease_ms": 1}, "lease_ms is 1"),
        ({"max_stalls": -1}, "max_stalls is -1"),
        ({"look_s": 0}, "look_s is 0"),
        ({"grace_s": float("nan")}, "grace_s is nan"),
    ):
        with pytest.raises(UsageError, match=words):
            WorkRules(**options)


def test_delays_grow_to_their_cap_and_chance_only_shortens_them() -> None:
    rules = RetryRules(first_delay_ms=100, factor=3, max_delay_ms=2_000, jitter=0.5)
    assert [rules.delay_ms(attempt, draw=lambda: 0.0) for attempt in (1, 2, 3, 4, 10**6)] == [
        100, 300, 900, 2_000, 2_000,
    ]  # fmt: skip
    assert [rules.delay_ms(attempt, draw=lambda: 1.0) for attempt in (1, 4)] == [50, 1_000]
    assert RetryRules(first_delay_ms=0).delay_ms(7, draw=lambda: 0.5) == 0
    for options, words in (
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"first_delay_ms": -1}, "first_delay_ms is -1"),
        ({"max_delay_ms": 999}, "max_delay_ms is 999"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"dead_on": (KeyboardInterrupt,)}, "dead_on holds"),
    ):
        with pytest.raises(UsageError, match=words):
            RetryRules(**options)
