"""A compacted queue under load in processes that write down what they do, and are killed, as their server is."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from queuekeeper import redis_client
from queuekeeper.compacted.consumer import CompactedConsumer
from queuekeeper.compacted.consumption import ConsumerRules
from queuekeeper.compacted.model import Append, Position, Refill, Retention, RetentionPolicy
from queuekeeper.compacted.producer import CompactedProducer
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.errors import ServerUnavailable, StaleEpoch, UnknownQueue
from tests.chaos.trace_recorder import record_scripts
from tests.chaos.traced_processes import READY, TracedOnRedis, stop_by_signal
from tests.patience import PATIENCE_S

Q = "device"
WINDOW = 6
KEEP_MS = 150
ENTRIES = 3
"""Most entries of one append."""

_KEYS = 8
_DELETED = 0.15
_REWOUND = 0.05
_LOST = 0.03
_RULES = ConsumerRules(window=WINDOW, refill=Refill.SLIDING, heartbeat_ms=300, lease_ms=10_000)
_RETENTION = Retention(policy=RetentionPolicy.ACKED_ONLY, retention_ms=KEEP_MS, tombstone_ms=KEEP_MS)
_NO_SERVER_S = 0.05

T = TypeVar("T")


def produce(url: str, folder: Path, seed: int) -> None:
    """Append to keys that others append to, too, until a signal ends the process."""
    dice, stopped = random.Random(seed), stop_by_signal()
    _lose_replies(dice)
    record_scripts(folder, "producer", CompactedQueues)
    numbers = iter(range(1_000_000))

    def entry() -> Append:
        key = b"%d" % dice.randrange(_KEYS)
        if dice.random() < _DELETED:
            return Append(key=key, tombstone=True)
        return Append(key=key, value=f"{producer.operations.name} {next(numbers)}".encode())

    with redis_client.connect(url) as client:
        producer = CompactedProducer(_queues(client), retry_for_s=PATIENCE_S)
        print(READY, flush=True)
        while not stopped.is_set():
            producer.append_many(Q, [entry() for _ in range(dice.randint(1, ENTRIES))])
            time.sleep(dice.random() * 0.08)


def consume(url: str, folder: Path, seed: int) -> None:
    """Take the queue, and acknowledge in any order, until a signal ends the process or another consumer comes."""
    dice, stopped = random.Random(seed), stop_by_signal()
    _lose_replies(dice)
    record_scripts(folder, "consumer", CompactedQueues)
    held: list[CompactedMessage] = []

    def acknowledge_one() -> None:
        message = held.pop(dice.randrange(len(held)))
        if dice.random() < 0.3:
            # With the next call.
            consumer.operations.acknowledge(message, soon=False)
        else:
            consumer.ack(message)

    with redis_client.connect(url) as client, suppress(StaleEpoch):
        consumer = CompactedConsumer(_queues(client), Q, rules=_RULES, idle_timeout_s=0.1)
        with consumer:
            print(READY, flush=True)
            while not stopped.is_set():
                for message in consumer:
                    held.append(message)
                    time.sleep(dice.random() * 0.02)
                    while held and (len(held) >= WINDOW - 1 or dice.random() < 0.6):
                        acknowledge_one()
                    if stopped.is_set():
                        break
                while held:
                    acknowledge_one()
    print("replaced" if not stopped.is_set() else "ended", flush=True)


def look_after(url: str, folder: Path, seed: int) -> None:
    """Collect, look, and now and then rewind, until a signal ends the process."""
    dice, stopped = random.Random(seed), stop_by_signal()
    _lose_replies(dice)
    record_scripts(folder, "collector", CompactedQueues)

    def repeated(call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except ServerUnavailable:
                time.sleep(_NO_SERVER_S)

    with redis_client.connect(url) as client:
        queues = _queues(client)
        print(READY, flush=True)
        while not stopped.is_set():
            due = repeated(partial(queues.find_due, Q, retention=_RETENTION))
            if due.rows:
                # Somebody else may do something meanwhile.
                time.sleep(dice.random() * 0.3)
                repeated(partial(queues.collect, Q, retention=_RETENTION, rows=due.rows))
            repeated(partial(queues.peek, Q, limit=_KEYS + 1))
            repeated(partial(queues.inspect, Q))
            if dice.random() < _REWOUND:
                with suppress(ServerUnavailable, UnknownQueue):
                    queues.rewind(Q, to=Position.earliest())
            time.sleep(dice.random() * 0.1)


def _lose_replies(dice: random.Random) -> None:
    """Let this process now and then not hear what the server has carried out."""
    answer = CompactedQueues.answer

    def answered(queues: CompactedQueues, step: Any) -> Any:
        replies = answer(queues, step)
        if dice.random() < _LOST:
            raise ServerUnavailable("the reply is lost")
        return replies

    CompactedQueues.answer = answered  # type: ignore[method-assign, assignment]


def _queues(client: redis_client.RedisClient) -> CompactedQueues:
    """Return queues that say with each call what time it is, so that a trace has it."""
    return CompactedQueues(client, clock=lambda: time.time_ns() // 1_000_000)


class TracedCompacted(TracedOnRedis):
    """A queue with two producers, a consumer and a collector, each in a process of its own."""

    def run(self, strikes: Iterable[str]) -> None:
        """Load the queue, strike one after the other, then let the consumer come to the end."""
        with ExitStack() as stack:
            producers = [self.begin(produce, stack) for _ in range(2)]
            consumer, collector = self.begin(consume, stack), self.begin(look_after, stack)
            for strike in self.struck(strikes):
                if strike == "producer":
                    self.kill(producers.pop(0))
                    producers.append(self.begin(produce, stack))
                elif strike == "collector":
                    self.kill(collector)
                    collector = self.begin(look_after, stack)
                elif strike == "consumer":
                    self.kill(consumer)
                    consumer = self.begin(consume, stack)
                else:
                    replaced, consumer = consumer, self.begin(consume, stack)
                    assert replaced.wait(PATIENCE_S) == 0, replaced.text
            for each in [*producers, consumer, collector]:
                each.end()
