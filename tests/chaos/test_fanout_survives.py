"""Fan-out queues with consumers that are killed, on servers that are killed, filled and resharded, and with many names.

Each test keeps books: every message that was published is worked on by every consumer, none is lost, none is there
twice because its publish was repeated, and what is worked on again is so because somebody died with it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from queuekeeper import redis_async
from queuekeeper.embedded import RedisServer
from queuekeeper.errors import ServerUnavailable, StoreFull
from queuekeeper.fanout.consumer import AsyncFanoutConsumer, FanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.handlers import Handler, RetryRules
from queuekeeper.fanout.model import ConsumerOptions, Mode, NewMessage, Start
from queuekeeper.fanout.producer import AsyncFanoutProducer, FanoutProducer
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.fanout.reports import FanoutMessage
from queuekeeper.redis_client import connect
from tests.chaos.fanout_load import FIFO, LEASE_MS, ORDERED, fanout_load
from tests.chaos.session_load import clients_of, met_a_moving_slot
from tests.chaos.support import set_maxmemory, until
from tests.cluster_slots import slot_of
from tests.conftest import ONE_SERVER_EACH
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.chaos

Q = "orders"
PROCESSES = 4
WORKERS = 3
KILLS = 12
CONSUMERS = 500

# Processes that serve two names each, in threads or in an event loop, and note what they do. All are forked from one
# that has loaded everything, and does what it is told.
SERVICE = """
import asyncio, os, random, signal, sys, time
from queuekeeper import redis_async, redis_client
from queuekeeper.fanout.consumer import (AsyncFanoutConsumer, FanoutConsumer)
from queuekeeper.fanout.consumption import (WorkRules)
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues

url, log, queue, workers, lease_ms, max_stalls, *names = sys.argv[1:]
rules = WorkRules(
    workers=int(workers), prefetch=2, lease_ms=int(lease_ms), max_stalls=int(max_stalls), look_s=0.5
)
file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(*words):
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())

def begin(message):
    note("got", names.index(message.consumer), message.id)
    if message.body == b"poison":
        note("died", names.index(message.consumer), message.id)
        os.kill(os.getpid(), signal.SIGKILL)

def end(message):
    note("done", names.index(message.consumer), message.id)

def work(message):
    begin(message)
    time.sleep(random.random() / 100)
    end(message)

async def work_async(message):
    begin(message)
    await asyncio.sleep(random.random() / 100)
    end(message)

async def serve(url):
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with await redis_async.connect(url) as caller:
        queues = AsyncFanoutQueues(caller)
        async with (
            AsyncFanoutConsumer(queues, queue, work_async, consumer=names[0], rules=rules, register=False),
            AsyncFanoutConsumer(queues, queue, work_async, consumer=names[1], rules=rules, register=False),
        ):
            note("ready", 0, 0)
            await stopped.wait()

def serve_in_threads(url):
    with redis_client.connect(url) as client:
        queues = FanoutQueues(client)
        first, second = (
            FanoutConsumer(queues, queue, work, consumer=name, rules=rules, register=False) for name in names
        )
        signal.signal(signal.SIGTERM, lambda *_: first.stop())
        with second:
            note("ready", 0, 0)
            first.run()

alive = []
for line in sys.stdin:
    what = line.strip()
    if what in ("threads", "asyncio"):
        alive.append(os.fork())
        if alive[-1] == 0:
            asyncio.run(serve(url)) if what == "asyncio" else serve_in_threads(url)
            os._exit(0)
        answer = alive[-1]
    elif what == "end":
        for pid in alive:
            os.kill(pid, signal.SIGTERM)
        answer = [os.waitpid(alive.pop(), 0)[1] for _ in list(alive)]
    else:
        pid = alive.pop(int(what))
        os.kill(pid, signal.SIGKILL)
        answer = os.waitpid(pid, 0)
    print(answer, flush=True)
for pid in alive:
    os.kill(pid, signal.SIGKILL)
"""


class Service:
    """Processes that share two consumers' names; every other one works in threads."""

    def __init__(self, url: str, log: Path, *, lease_ms: int = LEASE_MS, max_stalls: int = 1_000) -> None:
        self._log = log
        rules = map(str, (WORKERS, lease_ms, max_stalls))
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVICE, url, str(log), Q, *rules, FIFO, ORDERED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._begun = 0

    def _tell(self, what: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def begin(self) -> None:
        """Start another process, and wait until it is ready."""
        self._tell(("threads", "asyncio")[self._begun % 2])
        self._begun += 1
        until(lambda: [what for what, *_ in self.notes()].count("ready") == self._begun, what="a process is ready")

    def kill(self, position: int) -> None:
        """Kill one of them."""
        assert self._tell(str(position))

    def end(self) -> str:
        """End all in good order; return their exit codes."""
        return self._tell("end")

    def close(self) -> None:
        """Leave none behind."""
        # At the end of its input it kills those that are left.
        self._process.communicate(timeout=PATIENCE_S)

    def notes(self) -> list[tuple[str, str, int]]:
        """Return what they have noted, in order: what, whose, message."""
        lines = self._log.read_text("utf-8").splitlines() if self._log.exists() else []
        words = [line.split() for line in lines]
        return [(what, (FIFO, ORDERED)[int(name)], int(message_id)) for what, name, message_id in words]


def test_killed_processes_lose_no_message_and_keep_the_order_of_ordered_consumers(
    valkey_url: str, tmp_path: Path, dice: random.Random
) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(connect(valkey_url))
        queues = FanoutQueues(client)
        queues.register(Q, consumer=FIFO)
        queues.register(Q, consumer=ORDERED, options=ConsumerOptions(mode=Mode.ORDERED))
        producer = FanoutProducer(queues)
        service = Service(valkey_url, tmp_path / "notes")
        stack.callback(service.close)
        for _ in range(PROCESSES):
            service.begin()
        published: list[int] = []
        for _ in range(KILLS):
            reports = producer.publish_many(Q, [NewMessage(body=b"") for _ in range(50)])
            published += [report.id for report in reports if report.id is not None]
            seen = len(service.notes()) + dice.randint(1, 40)
            until(lambda: len(service.notes()) >= seen, what="they work")  # noqa: B023
            service.kill(dice.randrange(PROCESSES))
            service.begin()
        until(lambda: queues.size(Q) == 0, what="all messages are done")
        assert service.end() == str([0] * PROCESSES)
        view = queues.inspect(Q)
        assert [(one.ready, one.leased, one.delayed, one.dead) for one in view.consumers] == [(0, 0, 0, 0)] * 2
        assert queues.verify(Q).healthy
    assert len(published) == 50 * KILLS
    notes = service.notes()
    again = {}
    for consumer, most in ((FIFO, WORKERS), (ORDERED, 1)):
        done = {message_id for what, name, message_id in notes if (what, name) == ("done", consumer)}
        assert done == set(published), "lost"
        got = Counter(message_id for what, name, message_id in notes if (what, name) == ("got", consumer))
        again[consumer] = got.total() - len(got)
        assert again[consumer] <= KILLS * most, "worked on again though nobody died with it"
    in_order = [message_id for what, name, message_id in notes if (what, name) == ("got", ORDERED)]
    assert in_order == sorted(in_order)
    print(f"{len(published)} messages, {KILLS} kills, worked on again: {again}")


def test_message_that_kills_its_workers_is_set_aside_and_takes_no_others_along(valkey_url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        queues = FanoutQueues(stack.enter_context(connect(valkey_url)))
        for consumer in (FIFO, ORDERED):
            queues.register(Q, consumer=consumer)
        service = Service(valkey_url, tmp_path / "notes", lease_ms=1_000, max_stalls=3)
        stack.callback(service.close)
        bodies = [b"", b"", b"poison", *[b""] * 17]
        queues.publish(Q, [NewMessage(body=body) for body in bodies], to=FIFO)
        for deaths in range(1, 5):
            service.begin()
            until(lambda: [what for what, *_ in service.notes()].count("died") == deaths, what="it dies")  # noqa: B023
            service.kill(0)
        service.begin()
        until(lambda: queues.size(Q, consumer=FIFO) == 0, what="all others are done")
        assert service.end() == "[0]"
        page = queues.list_dead(Q, consumer=FIFO)
    assert [(letter.id, letter.reason, letter.stalls) for letter in page.letters] == [(3, "stalled", 4)]
    notes = service.notes()
    assert {one for what, _, one in notes if what == "done"} == set(range(1, 21)) - {3}
    print(f"worked on again: {sum(what == 'got' for what, *_ in notes) - 20}")


@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_killed_server_has_every_message_that_was_answered_when_it_flushes_always(
    redis_server_factory: Callable[..., RedisServer], flavour: str, dice: random.Random
) -> None:
    server = redis_server_factory(flavour=flavour, appendfsync="always")

    async def run() -> None:
        async with fanout_load(server.url, dice, names=["a", "b"]) as load:
            async with load.running():
                for _ in range(2):
                    await load.proceeds()
                    await asyncio.to_thread(server.kill)
                    await asyncio.to_thread(server.start)
                await load.proceeds()
            await load.settle()

    asyncio.run(run())


def test_resharding_loses_nothing_while_messages_are_published_and_worked_on(
    redis_cluster_url: str, dice: random.Random
) -> None:
    names = ["{brace} first", "смарт-😀", "orders"]
    with clients_of(redis_cluster_url) as nodes:
        for node in nodes:
            node.config_resetstat()

    met = partial(met_a_moving_slot, redis_cluster_url, refused={"MOVED", "TRYAGAIN"})

    def reshard() -> None:
        for name in names:
            with slot_of(redis_cluster_url, name) as slot:
                # A queue has many keys: its scripts meet a slot that has some of them.
                assert slot.move(keys_at_once=1) >= 5
                slot.move()

    async def run() -> None:
        async with fanout_load(redis_cluster_url, dice, names=names) as load:
            async with load.running():
                await load.proceeds()
                for _ in range(10):
                    await asyncio.to_thread(reshard)
                    # Chance decides what the calls of a load meet.
                    if await asyncio.to_thread(met):
                        break
                await load.proceeds()
            await load.settle()

    asyncio.run(run())
    assert met(), "the load did not meet a moving slot"


@pytest.mark.parametrize("flavour", ONE_SERVER_EACH)
def test_full_server_refuses_messages_before_any_effect_and_lets_consumers_make_room(
    redis_server_factory: Callable[..., RedisServer], flavour: str
) -> None:
    server = redis_server_factory(flavour=flavour)
    with server.client() as client, connect(server.url) as connection:
        queues = FanoutQueues(connection)
        for consumer, mode in ((FIFO, Mode.FIFO), (ORDERED, Mode.ORDERED)):
            queues.register(Q, consumer=consumer, options=ConsumerOptions(mode=mode))
        producer = FanoutProducer(queues)
        producer.publish_many(Q, [NewMessage(body=b"x" * 1_000) for _ in range(100)])
        before = {key: client.dump(key) for key in client.scan_iter()}
        set_maxmemory(server, room_bytes=-1_000_000_000)
        for to in (None, FIFO):
            with pytest.raises(StoreFull):
                producer.publish(Q, NewMessage(body=b"late"), to=to)
        assert {key: client.dump(key) for key in client.scan_iter()} == before

        got: list[tuple[str, int, int]] = []

        def work(message: FanoutMessage) -> None:
            got.append((message.consumer, message.id, message.attempt))
            if message.id % 10 == 0 and message.attempt == 1:
                raise RuntimeError("once")

        # They start on the full server, too.
        rules = RetryRules(first_delay_ms=1)
        with (
            FanoutConsumer(queues, Q, Handler(work=work, rules=rules), consumer=FIFO),
            FanoutConsumer(queues, Q, Handler(work=work, rules=rules), consumer=ORDERED),
        ):
            until(lambda: queues.size(Q) == 0, what="all messages are done")
        wanted = [(number, attempt) for number in range(1, 101) for attempt in ((1, 2) if number % 10 == 0 else (1,))]
        assert [(message_id, attempt) for name, message_id, attempt in got if name == ORDERED] == wanted
        assert sorted((message_id, attempt) for name, message_id, attempt in got if name == FIFO) == wanted

        set_maxmemory(server, room_bytes=None)
        report = producer.publish(Q, NewMessage(body=b"late"))
        assert (report.id, report.consumers) == (101, 2)
        assert queues.verify(Q).healthy


def test_consumer_that_a_full_server_let_only_half_begin_gets_what_was_there_before_when_there_is_room(
    redis_server_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queuekeeper.fanout.consumption.REGISTER_S", 0.05)
    server = redis_server_factory(flavour="valkey")
    got: list[int] = []

    def work(message: FanoutMessage) -> None:
        got.append(message.id)

    with connect(server.url) as connection, connect(server.url) as lost:
        queues, cut = FanoutQueues(connection), FanoutQueues(lost)
        queues.publish(Q, [NewMessage(body=b"") for _ in range(10)])
        original = cut.answer

        def answer(step: Any) -> Any:
            if any(call.script.name == "fanout/adopt" for call in step):
                raise ServerUnavailable("cut off")
            return original(step)

        monkeypatch.setattr(cut, "answer", answer)
        with pytest.raises(ServerUnavailable):
            cut.register(Q, consumer=FIFO, start=Start.HELD)
        set_maxmemory(server, room_bytes=-1_000_000_000)
        with FanoutConsumer(queues, Q, work, consumer=FIFO, start=Start.HELD) as consumer:
            assert queues.inspect(Q).consumers[0].adopting
            set_maxmemory(server, room_bytes=None)
            until(lambda: queues.size(Q) == 0 and len(got) == 10, what="what was held")
            assert consumer.registration is not None
            assert consumer.registration.adopted == 10
    assert sorted(got) == list(range(1, 11))


# By day: tests/lua/test_fanout_publish.py.
@pytest.mark.nightly
def test_each_of_500_consumers_gets_every_message(valkey_url: str) -> None:
    got: Counter[tuple[str, int]] = Counter()
    names = [f"consumer {number}" for number in range(CONSUMERS)]

    async def work(message: FanoutMessage) -> None:
        got[message.consumer, message.id] += 1

    async def run() -> None:
        async with await redis_async.connect(valkey_url) as caller:
            queues = AsyncFanoutQueues(caller)
            rules = WorkRules(look_s=60.0)
            consumers = [AsyncFanoutConsumer(queues, Q, work, consumer=name, rules=rules) for name in names]
            tasks = [asyncio.create_task(consumer.run()) for consumer in consumers]
            give_up_at_s = time.monotonic() + PATIENCE_S
            while any(consumer.registration is None for consumer in consumers):
                assert time.monotonic() < give_up_at_s, "they do not come to register"
                await asyncio.sleep(0.05)
            async with AsyncFanoutProducer(queues) as producer:
                published = [await producer.publish(Q, NewMessage(body=b"to all")) for _ in range(5)]
                published += await asyncio.gather(
                    *(producer.publish(Q, NewMessage(body=b"to all at once")) for _ in range(5))
                )
            assert {report.consumers for report in published} == {CONSUMERS}
            while await queues.size(Q):
                assert time.monotonic() < give_up_at_s, "they do not come to the end"
                await asyncio.sleep(0.05)
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*tasks)
            assert set(got) == {(name, report.id) for name in names for report in published}
            assert set(got.values()) == {1}

    asyncio.run(run())
