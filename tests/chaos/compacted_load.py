"""A load on compacted queues that keeps books: what producers were told is there, and consumers got it in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from queuekeeper import redis_async
from queuekeeper.compacted.model import Append, Fence, Retention, RetentionPolicy
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.errors import ServerUnavailable
from tests.patience import PATIENCE_S

PRODUCERS = ("one", "two")
WINDOW = 20
_PAUSE_S = 0.01
_KEYS = 12
_DELETED = 0.1


class Entry(NamedTuple):
    """What an append has stored."""

    key: bytes
    value: bytes
    tombstone: bool


@dataclass
class Books:
    """What is known of one queue.

    :ivar appended: sequence number -> entry, of every append that was answered.
    :ivar received: the same of what the consumer got.
    :ivar acked: sequence numbers whose acknowledgement was answered.
    :ivar last_new: greatest number that came for the first time.
    :ivar producing: producers that are at work.
    """

    client_id: str
    appended: dict[int, Entry] = field(default_factory=dict)
    received: dict[int, Entry] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    last_new: int = 0
    producing: int = len(PRODUCERS)
    redelivered: int = 0
    replayed: int = 0
    repeated: int = 0

    def append(self, sequences: Sequence[int], appends: Sequence[Append]) -> None:
        """Note what a producer was told."""
        for sequence, one in zip(sequences, appends, strict=True):
            assert sequence not in self.appended, f"{sequence} was given out twice"
            self.appended[sequence] = Entry(one.key, one.value, one.tombstone)

    def receive(self, message: CompactedMessage) -> None:
        """Note what came: new messages in order and once, others flagged, nothing that was acknowledged."""
        sequence = message.sequence
        assert sequence not in self.acked, f"{sequence} was acknowledged and comes again"
        if message.redelivered:
            self.redelivered += 1
        else:
            assert sequence > self.last_new, f"{sequence} comes after {self.last_new}"
            self.last_new = sequence
        entry = Entry(message.key, message.value, message.tombstone)
        assert self.received.setdefault(sequence, entry) == entry, f"{sequence} was another message before"

    def newest(self) -> dict[bytes, int]:
        """Return the number of each key's last value."""
        return {entry.key: sequence for sequence, entry in sorted(self.appended.items())}


class Load:
    """Two producers and a consumer for each queue, until it is stopped; what a lost server did not answer is repeated.

    :param collects: whether what was acknowledged is collected all the while.
    """

    def __init__(
        self, queues: AsyncCompactedQueues, dice: random.Random, *, clients: Sequence[str], collects: bool = False
    ) -> None:
        self.queues = queues
        self.books = [Books(client_id) for client_id in clients]
        self.collected = 0
        self.unavailable = 0
        self._dice = dice
        self._collects = collects
        self._stopped = asyncio.Event()
        self._numbers = dict.fromkeys([(client_id, producer) for client_id in clients for producer in PRODUCERS], 0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the queues during the block, then let the consumers come to the end."""
        async with asyncio.TaskGroup() as group:
            for books in self.books:
                group.create_task(self._consume(books))
                if self._collects:
                    group.create_task(self._collect(books))
                for producer in PRODUCERS:
                    group.create_task(self._produce(books, producer))
            try:
                yield
            finally:
                self._stopped.set()

    async def proceeds(self, *, messages: int = 50) -> None:
        """Return when so many more messages of every queue were received."""
        wanted = [(books, len(books.appended) + messages, len(books.received) + messages) for books in self.books]
        give_up_at = time.monotonic() + PATIENCE_S
        while any(
            len(each.appended) < appended or len(each.received) < received for each, appended, received in wanted
        ):
            assert time.monotonic() < give_up_at, "the load stands still"
            await asyncio.sleep(0.02)

    async def settle(self) -> None:
        """Compare all that is in the queues with the books."""
        for books in self.books:
            view = await self.queues.inspect(books.client_id)
            # No append that was answered is lost, none was stored twice, and no number stands for two.
            assert books.appended.keys() == set(range(1, view.sequence + 1))
            assert all(books.appended[sequence] == entry for sequence, entry in books.received.items())
            newest = books.newest()
            assert set(newest.values()) <= books.received.keys(), "the last value of a key was not received"
            assert (view.acked, view.lag, view.in_flight) == (view.sequence, 0, 0)
            found = await self.queues.peek(books.client_id, limit=500)
            there = {message.key: message.sequence for message in found}
            assert [message.sequence for message in found] == sorted(there.values())
            assert there == newest if not self._collects else there.items() <= newest.items()
            report = await self.queues.verify(books.client_id)
            assert report.found == 0, report
        print(self)

    def __str__(self) -> str:
        def total(of: Callable[[Books], int]) -> int:
            return sum(map(of, self.books))

        return (
            f"appended {total(lambda one: len(one.appended))}, received {total(lambda one: len(one.received))}, "
            f"redelivered {total(lambda one: one.redelivered)}, appends repeated {total(lambda one: one.repeated)}, "
            f"of which stored before {total(lambda one: one.replayed)}, calls without an answer {self.unavailable}, "
            f"collected {self.collected}"
        )

    async def _produce(self, books: Books, producer: str) -> None:
        last = 0
        while not self._stopped.is_set():
            number = self._numbers[books.client_id, producer]
            self._numbers[books.client_id, producer] += 1
            appends = [self._append(f"{producer} {number} {entry}") for entry in range(self._dice.randint(1, 8))]

            async def attempt(appends: list[Append] = appends, number: int = number) -> Any:
                return await self.queues.append(books.client_id, appends, producer=producer, number=number)

            report, repeated = await self._repeated(attempt)
            books.repeated += repeated
            books.replayed += report.is_replay
            assert not report.is_forgotten
            assert report.sequences[0] > last, "an append was put before an earlier one"
            last = report.sequences[-1]
            books.append(report.sequences, appends)
            await asyncio.sleep(_PAUSE_S)
        books.producing -= 1

    def _append(self, text: str) -> Append:
        # Half of the keys are the other producer's too.
        producer = self._dice.choice((text.split(maxsplit=1)[0], "both"))
        deleted = self._dice.random() < _DELETED
        key = f"{producer}/{self._dice.randrange(_KEYS)}".encode()
        return Append(key=key, value=b"" if deleted else text.encode(), tombstone=deleted)

    async def _subscribe(self, books: Books) -> Fence:
        subscription, _ = await self._repeated(lambda: self.queues.subscribe(books.client_id, session="load"))
        fence: Fence = subscription.fence
        return fence

    async def _consume(self, books: Books) -> None:
        fence = await self._subscribe(books)
        acks: list[int] = []
        while True:
            is_last = not books.producing
            try:
                fetched = await self.queues.fetch(
                    books.client_id, fence=fence, limit=WINDOW, window=WINDOW, acks=tuple(acks)
                )
                books.acked.update(acks)
                for message in fetched.messages:
                    books.receive(message)
                acks = [message.sequence for message in fetched.messages]
                self._dice.shuffle(acks)
                at_once = acks[: self._dice.randint(0, len(acks))]
                if at_once:
                    await self.queues.ack(books.client_id, fence=fence, sequences=at_once)
                    books.acked.update(at_once)
                    acks = acks[len(at_once) :]
            except ServerUnavailable:
                # Nobody knows what of it has happened. What is in flight comes again, flagged.
                self.unavailable += 1
                acks = []
                fence = await self._subscribe(books)
                continue
            if not fetched.messages:
                if is_last and fetched.lag == 0 and fetched.in_flight == 0:
                    return
                await asyncio.sleep(_PAUSE_S)

    async def _collect(self, books: Books) -> None:
        retention = Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=0, tombstone_ms=0)
        while not self._stopped.is_set():
            due, _ = await self._repeated(lambda: self.queues.find_due(books.client_id, retention=retention))
            if due.rows:
                report, _ = await self._repeated(
                    partial(self.queues.collect, books.client_id, retention=retention, rows=due.rows)
                )
                self.collected += report.collected
            await asyncio.sleep(_PAUSE_S)

    async def _repeated(self, attempt: Callable[[], Awaitable[Any]]) -> tuple[Any, int]:
        """Repeat what a lost server has not answered; return the answer, and how often it was repeated."""
        give_up_at = time.monotonic() + PATIENCE_S
        repeated = 0
        while True:
            try:
                return await attempt(), repeated
            except ServerUnavailable:
                if time.monotonic() > give_up_at:
                    raise
            self.unavailable += 1
            repeated += 1
            await asyncio.sleep(0.05)


@asynccontextmanager
async def compacted_load(url: str, dice: random.Random, **options: Any) -> AsyncIterator[Load]:
    """Open a store and load it.

    :param options: of :class:`Load`.
    """
    async with await redis_async.connect(url) as caller:
        yield Load(AsyncCompactedQueues(caller), dice, **options)
