"""A load on fan-out queues that keeps books: what was published is one message, and every consumer gets it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from queuekeeper import redis_async
from queuekeeper.fanout.consumer import AsyncFanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.handlers import Handler, RetryRules
from queuekeeper.fanout.model import ConsumerOptions, Mode, NewMessage
from queuekeeper.fanout.producer import AsyncFanoutProducer
from queuekeeper.fanout.queue import AsyncFanoutQueues
from queuekeeper.fanout.reports import FanoutMessage
from tests.patience import PATIENCE_S

LEASE_MS = 2_000
FIFO, ORDERED = "any order", "in order"
PRODUCERS = ("one", "two")
_FAILED = 0.05
_PAUSE_S = 0.01
_MOST_BEHIND = 20


@dataclass
class Books:
    """What is known of one queue.

    :ivar published: body -> id, of every publish that was answered.
    :ivar got: consumer -> id and body of each message that a handler has begun with.
    :ivar done: consumer -> ids that a handler has finished.
    """

    queue: str
    published: dict[bytes, int] = field(default_factory=dict)
    got: dict[str, list[tuple[int, bytes]]] = field(default_factory=lambda: {FIFO: [], ORDERED: []})
    done: dict[str, set[int]] = field(default_factory=lambda: {FIFO: set(), ORDERED: set()})

    @property
    def repeated(self) -> int:
        """How many attempts there were beyond the first."""
        return sum(len(got) - len(set(got)) for got in self.got.values())


class Load:
    """Two producers for each queue, and two consumers with two processes each; now and then a handler fails."""

    def __init__(self, queues: AsyncFanoutQueues, dice: random.Random, *, names: Sequence[str]) -> None:
        self.queues = queues
        self.books = [Books(name) for name in names]
        self._dice = dice
        self._stopped = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the queues during the block, then let the consumers come to the end."""
        async with AsyncExitStack() as stack:
            for books in self.books:
                for consumer, mode in ((FIFO, Mode.FIFO), (ORDERED, Mode.ORDERED)) * 2:
                    await stack.enter_async_context(
                        AsyncFanoutConsumer(
                            self.queues,
                            books.queue,
                            Handler(
                                work=self._handler(books, consumer),
                                rules=RetryRules(first_delay_ms=1, max_delay_ms=20, max_attempts=None),
                            ),
                            consumer=consumer,
                            options=ConsumerOptions(mode=mode),
                            rules=WorkRules(workers=4, prefetch=4, lease_ms=LEASE_MS, max_stalls=1_000, look_s=1),
                        )
                    )
            producer = await stack.enter_async_context(AsyncFanoutProducer(self.queues))
            async with asyncio.TaskGroup() as group:
                for books in self.books:
                    for name in PRODUCERS:
                        group.create_task(self._produce(producer, books, name))
                try:
                    yield
                finally:
                    self._stopped.set()
            for books in self.books:
                await _until(
                    lambda: all(done >= set(books.published.values()) for done in books.done.values()),  # noqa: B023
                    what="the consumers get to the end",
                )
                give_up_at_s = time.monotonic() + PATIENCE_S
                while await self.queues.size(books.queue):
                    assert time.monotonic() < give_up_at_s, "the last acks are missing"
                    await asyncio.sleep(0.02)

    async def proceeds(self, *, messages: int = 50) -> None:
        """Return when so many more messages of every queue were published, and worked on."""
        wanted = [
            (books, len(books.published) + messages, [(one, len(one) + messages) for one in books.done.values()])
            for books in self.books
        ]
        await _until(
            lambda: all(
                len(books.published) >= published and all(len(one) >= done for one, done in all_done)
                for books, published, all_done in wanted
            ),
            what="the load goes on",
        )

    async def settle(self) -> None:
        """Compare what was got with what was published."""
        for books in self.books:
            ids = set(books.published.values())
            assert len(ids) == len(books.published)
            for got in books.got.values():
                # None is lost, none is there twice, and none is there that nobody knows of.
                assert set(got) == {(message_id, body) for body, message_id in books.published.items()}
            in_order = [message_id for message_id, _ in books.got[ORDERED]]
            assert in_order == sorted(in_order)
            view = await self.queues.inspect(books.queue)
            assert [(one.ready, one.leased, one.delayed, one.dead) for one in view.consumers] == [(0, 0, 0, 0)] * 2
            assert view.counters["published"] == len(books.published)
            assert (await self.queues.verify(books.queue)).healthy
        print(self)

    def __str__(self) -> str:
        published = sum(len(books.published) for books in self.books)
        return f"published {published}, attempts beyond the first {sum(books.repeated for books in self.books)}"

    def _handler(self, books: Books, consumer: str) -> Callable[[FanoutMessage], asyncio.Future[None]]:
        async def work(message: FanoutMessage) -> None:
            books.got[consumer].append((message.id, message.body))
            await asyncio.sleep(self._dice.random() * _PAUSE_S)
            if self._dice.random() < _FAILED:
                raise RuntimeError("a handler fails now and then")
            books.done[consumer].add(message.id)

        return lambda message: asyncio.ensure_future(work(message))

    async def _produce(self, producer: AsyncFanoutProducer, books: Books, name: str) -> None:
        number = last = 0
        while not self._stopped.is_set():
            bodies = [f"{name} {number + each}".encode() for each in range(self._dice.randint(1, 8))]
            number += len(bodies)
            reports = await asyncio.gather(*(producer.publish(books.queue, NewMessage(body=body)) for body in bodies))
            for body, report in zip(bodies, reports, strict=True):
                assert report.id is not None
                assert report.id > last, "a message was put before an earlier one"
                books.published[body] = last = report.id
            await asyncio.sleep(_PAUSE_S)
            while len(books.published) > len(books.done[ORDERED]) + _MOST_BEHIND:
                await asyncio.sleep(_PAUSE_S)


async def _until(condition: Callable[[], bool], *, what: str) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at_s, f"in vain waited for: {what}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def fanout_load(url: str, dice: random.Random, *, names: Sequence[str]) -> AsyncIterator[Load]:
    """Open queues and load them."""
    async with await redis_async.connect(url) as caller:
        yield Load(AsyncFanoutQueues(caller), dice, names=names)
