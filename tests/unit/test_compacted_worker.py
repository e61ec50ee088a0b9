"""Workers of compacted queues wait for their turn, and for a server that has answered before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest

from queuekeeper.clock import Backoff
from queuekeeper.compacted import consumption, handlers
from queuekeeper.compacted.handlers import CompactedWorker
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.errors import QueueBusy, ServerUnavailable, StaleEpoch

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumption, "BEGIN_S", 0.0)
    monkeypatch.setattr(handlers, "SERVER_BACKOFF", Backoff(first_s=0.001, longest_s=0.001))


class Queues(AsyncCompactedQueues):
    """A server that refuses every subscription, each in its way; the last one stops the worker."""

    def __init__(self, *refusals: Exception) -> None:
        self.operations = CompactedOperations()
        self.refusals = list(refusals)
        self.end: Callable[[], None] = lambda: None

    async def answer(self, step: Any) -> Any:
        error = self.refusals.pop(0)
        if not self.refusals:
            self.end()
        raise error


def run(queues: Queues) -> None:
    async def main() -> None:
        worker = CompactedWorker(queues, "meter-1", print)
        queues.end = worker.stop
        await worker.run()

    asyncio.run(main())


@pytest.mark.parametrize("first", [QueueBusy(), StaleEpoch()])
def test_worker_that_waits_for_its_turn_waits_for_the_server_too(first: Exception) -> None:
    queues = Queues(first, ServerUnavailable(), ServerUnavailable(), QueueBusy(), ServerUnavailable())
    run(queues)
    assert queues.refusals == []


def test_server_that_has_never_answered_ends_a_worker() -> None:
    queues = Queues(ServerUnavailable(), QueueBusy())
    with pytest.raises(ServerUnavailable):
        run(queues)
    assert len(queues.refusals) == 1


class Consumer:
    """Has the queue, and loses it with the server."""

    made: Iterator[Any]

    def __init__(self, *_: Any, **__: Any) -> None:
        self._do = next(self.made)

    async def __aenter__(self) -> Self:
        if isinstance(self._do, Exception):
            raise self._do
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        self._do()
        raise ServerUnavailable

    def stop(self) -> None:
        pass


def test_worker_that_has_worked_waits_for_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        worker = CompactedWorker(Queues(), "meter-1", print)
        Consumer.made = iter([list, ServerUnavailable(), worker.stop])
        monkeypatch.setattr(handlers, "AsyncCompactedConsumer", Consumer)
        await worker.run()
        assert list(Consumer.made) == []

    asyncio.run(main())
