"""A fan-out queue under load in processes that write down what they do, and are killed, as their server is."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from itertools import count, takewhile
from pathlib import Path

from queuekeeper import redis_client
from queuekeeper.errors import QueuekeeperError, ServerUnavailable
from queuekeeper.fanout.consumer import FanoutConsumer
from queuekeeper.fanout.consumption import WorkRules
from queuekeeper.fanout.model import ConsumerOptions, Mode, NewMessage
from queuekeeper.fanout.queue import FanoutQueues
from queuekeeper.fanout.reports import FanoutMessage
from tests.chaos.fanout_load import FIFO, ORDERED
from tests.chaos.support import until
from tests.chaos.trace_recorder import record_scripts
from tests.chaos.traced_processes import READY, TracedOnRedis, stop_by_signal

Q = "orders"
VISITOR = "comes and goes"
"""A consumer that claims nothing."""

LEASE_MS = 500
WORKERS = 2
_MOST_WAITING = 12
_SLOW = 0.04
_WORK_S = {FIFO: 0.2, ORDERED: 0.02}
_NO_SERVER_S = 0.05


def publish(url: str, folder: Path, seed: int) -> None:
    """Register the consumers, publish to them, and let another one come and go, until a signal ends the process."""
    record_scripts(folder, "publisher", FanoutQueues)
    dice, stopped = random.Random(seed), stop_by_signal()
    with redis_client.connect(url) as client:
        queues = FanoutQueues(client)
        print(READY, flush=True)
        for turn in takewhile(lambda _: not stopped.is_set(), count()):
            try:
                queues.register(Q, consumer=FIFO)
                queues.register(Q, consumer=ORDERED, options=ConsumerOptions(mode=Mode.ORDERED))
                if turn % 8 == 3:
                    queues.register(Q, consumer=VISITOR)
                elif turn % 8 == 7:
                    queues.unregister(Q, consumer=VISITOR)
                queues.publish(Q, [NewMessage(body=b"") for _ in range(dice.randint(1, 6))])
                queues.size(Q)
                while _most_waiting(queues) > _MOST_WAITING and not stopped.is_set():
                    time.sleep(dice.random() / 5)
            except ServerUnavailable:
                time.sleep(_NO_SERVER_S)
            except QueuekeeperError:
                # The visitor is not there, or has come or gone a moment ago.
                continue


def work(url: str, folder: Path, seed: int) -> None:
    """Work for both consumers, until a signal ends the process."""
    record_scripts(folder, "worker", FanoutQueues)
    dice, stopped = random.Random(seed), stop_by_signal()

    def handle(message: FanoutMessage) -> None:
        # Now and then for longer than half of a lease, which is then extended.
        time.sleep(LEASE_MS / 1_500 if dice.random() < _SLOW else dice.random() * _WORK_S[message.consumer])

    rules = WorkRules(workers=WORKERS, prefetch=2, lease_ms=LEASE_MS, max_stalls=1_000, look_s=0.2)
    with redis_client.connect(url) as client, ExitStack() as stack:
        for name in (FIFO, ORDERED):
            consumer = FanoutConsumer(FanoutQueues(client), Q, handle, consumer=name, rules=rules, register=False)
            stack.enter_context(consumer)
        print(READY, flush=True)
        stopped.wait()


def _most_waiting(queues: FanoutQueues) -> int:
    return max(queues.size(Q, consumer=name) for name in (FIFO, ORDERED))


class TracedFanout(TracedOnRedis):
    """A queue with a publisher and some workers, each in a process of its own."""

    def run(self, strikes: Iterable[str]) -> None:
        """Load the queue, strike one after the other, then let the workers come to the end."""
        with ExitStack() as stack:
            publisher = self.begin(publish, stack)
            until(self._has_begun, what="something is published")
            workers = [self.begin(work, stack) for _ in range(2)]
            for strike in self.struck(strikes):
                if strike == "publisher":
                    self.kill(publisher)
                    publisher = self.begin(publish, stack)
                else:
                    victim = workers.pop(self.dice.randrange(len(workers)))
                    self.kill(victim) if strike == "worker" else victim.end()
                    workers.append(self.begin(work, stack))
            publisher.end()
            with redis_client.connect(self.url) as client:
                queues = FanoutQueues(client)
                with suppress(QueuekeeperError):
                    until(lambda: _most_waiting(queues) == 0, what="all messages are done")
            for worker in workers:
                worker.end()

    def _has_begun(self) -> bool:
        return any(b'"publish"' in path.read_bytes() for path in self.folder.glob("steps-publisher-*"))
