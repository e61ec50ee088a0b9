"""Consuming a queue message by message: subscribing, fetching, acknowledging, waiting.

A consumer subscribes as the queue's only one, holds a window of messages, and waits to be woken when there are none;
a wake-up that was lost costs at most the time between two heartbeats. A server that is away is waited for, and what
was in flight comes again, flagged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from copy import copy
from typing import Any, Self

from queuekeeper.checks import check_seconds, check_text, checked
from queuekeeper.compacted.consumption import ConsumerRules, Consumption
from queuekeeper.compacted.model import MAX_TEXT_BYTES
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.compacted.reports import CompactedMessage
from queuekeeper.errors import RefusedError, ServerUnavailable
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import AnswersByQueues, Pause, awaited, blocking
from queuekeeper.text_form import shows

WAKE_S = 3_600.0
LISTEN_S = 1.0
"""How long a blocking consumer waits at a time before it looks whether it was stopped."""

GRACE_S = 5.0
"""How long the end may take when the server does not answer."""

RUNS_ONCE = "a consumer runs once: make another one"

_log = logging.getLogger(__name__)


@shows(queues="_queues", client_id="operations.client_id", session="operations.session")
class CompactedConsumer(AnswersByQueues):
    """Consumes a queue in blocking code, in one thread.

    ::

        with CompactedConsumer(queues, "device-1") as consumer:
            for message in consumer:
                work_on(message)
                consumer.ack(message)

    Every message comes at least once, in order, and only the newest value of a key. Between two messages the work may
    take as long as the lease; after that another consumer may take the queue without force.

    :param auto_ack: a message is acknowledged when the next one is asked for, or the block ends without an error.
    :param session: name for others to see; unique, and made up if left out.
    :param idle_timeout_s: the iteration ends when nothing has come for so long; none to wait for ever.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: CompactedQueues,
        client_id: str,
        *,
        rules: ConsumerRules | None = None,
        auto_ack: bool = False,
        session: str | None = None,
        idle_timeout_s: float | None = None,
    ) -> None:
        if idle_timeout_s is not None:
            check_seconds("idle_timeout_s", idle_timeout_s, least=0)
        self.operations = _consumption(
            queues.operations, client_id, rules=rules, session=session, settled=self._on_settled
        )
        self._queues = queues
        self._auto_ack = auto_ack
        self._idle_timeout_s = idle_timeout_s
        self._counted: dict[int, bool] = {}
        self._last: CompactedMessage | None = None
        self._runs = self._over = False

    def __enter__(self) -> Self:
        if self._runs or self._over:
            raise RefusedError(RUNS_ONCE)
        self._begin()
        self._runs = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._runs, self._over = False, True
        self.operations.stopping = True
        if kind is None:
            self._ack_last()
        self._end()

    def __iter__(self) -> Iterator[CompactedMessage]:
        return self

    def __next__(self) -> CompactedMessage:
        """Return the next message, when there is one.

        :raises StaleEpoch: when the queue was lost and is not to be taken back.
        :raises UnreadableRecord: when its record was damaged, as the rules have it.
        :raises RefusedError: when all messages of the window wait for their acknowledgement, or outside of ``with``.
        """
        if not self._runs:
            raise RefusedError("the consumer does not run: use it in a with block")
        state = self.operations
        self._ack_last()
        idle_since_s = time.monotonic()
        while not state.stopping:
            # Also while messages are ready: work on all of them may take longer than the lease.
            if state.ready and state.heartbeat_in_s:
                self._last = state.take()
                return self._last
            if state.has_work:
                try:
                    self._turn()
                except ServerUnavailable:
                    break
                continue
            if not state.room:
                raise RefusedError(
                    f"messages of the queue of {state.client_id!r} wait to be acknowledged: no other can come before"
                )
            listen_s = min(LISTEN_S, state.heartbeat_in_s)
            if self._idle_timeout_s is not None:
                left_s = idle_since_s + self._idle_timeout_s - time.monotonic()
                if left_s <= 0:
                    break
                listen_s = min(listen_s, left_s)
            try:
                woken = self._queues.await_wake(state.client_id, timeout_s=listen_s)
            except ServerUnavailable:
                # A wake-up may have been lost with the connection.
                time.sleep(listen_s)
                woken = True
            if woken:
                state.wake()
        raise StopIteration

    @checked
    def ack(self, message: CompactedMessage) -> bool:
        """Acknowledge a message; on return the server knows.

        :returns: false when it is not held any more: it was acknowledged before, or comes again as the queue was lost.
        :raises ServerUnavailable: when the server is away and the consumer was stopped.
        """
        if not self.operations.acknowledge(message, soon=True):
            return False
        self._counted.clear()
        while message.sequence not in self._counted:
            self._turn()
        return self._counted[message.sequence]

    def stop(self) -> None:
        """End the iteration within a second or so; may be called in another thread and in a signal handler."""
        self.operations.stopping = True

    def _ack_last(self) -> None:
        if self._auto_ack and self._last is not None:
            self.operations.acknowledge(self._last, soon=False)
        self._last = None

    def _on_settled(self, message: CompactedMessage, counted: bool) -> None:
        self._counted[message.sequence] = counted

    _begin = blocking(Consumption.begin)
    _turn = blocking(Consumption.turn)
    _end = blocking(Consumption.end)


@shows(queues="_queues", client_id="operations.client_id", session="operations.session")
class AsyncCompactedConsumer:
    """The same for asyncio: several tasks may work on messages, and acknowledge them in any order.

    ::

        async with AsyncCompactedConsumer(queues, "device-1") as consumer:
            async for message in consumer:
                await work_on(message)
                await consumer.ack(message)

    Heartbeats are sent however long the work takes.

    :param auto_ack: a message is acknowledged when the next one is asked for, or the block ends without an error.
    :param session: name for others to see; unique, and made up if left out.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncCompactedQueues,
        client_id: str,
        *,
        rules: ConsumerRules | None = None,
        auto_ack: bool = False,
        session: str | None = None,
    ) -> None:
        self.operations = _consumption(
            queues.operations, client_id, rules=rules, session=session, settled=self._on_settled
        )
        self._queues = queues
        self._auto_ack = auto_ack
        self._last: CompactedMessage | None = None
        self._bell = asyncio.Event()
        self._filled = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._leaving = False

    async def answer(self, step: Any) -> Any:
        """Carry out a step."""
        if isinstance(step, Pause):
            with suppress(TimeoutError):
                async with asyncio.timeout(step.seconds):
                    while not self.operations.stopping:
                        await self._rung()
            return None
        return await self._queues.answer(step)

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise RefusedError(RUNS_ONCE)
        await self._begin()
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._task is not None
        if kind is None:
            self._ack_last()
        self._leaving = True
        self.stop()
        try:
            async with asyncio.timeout(GRACE_S):
                await asyncio.wait([self._task])
                await self._end()
        except TimeoutError:
            _log.warning("queue of %r: the server did not let the consumer go in time", self.operations.client_id)
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._fail_waiting(RefusedError("the consumer has ended: nobody knows whether the acknowledgement counted"))
            self.operations.forget()

    def __aiter__(self) -> AsyncIterator[CompactedMessage]:
        return self

    async def __anext__(self) -> CompactedMessage:
        """Return the next message, when there is one.

        :raises StaleEpoch: when the queue was lost and is not to be taken back.
        :raises UnreadableRecord: when its record was damaged, as the rules have it.
        :raises RefusedError: outside of ``async with``.
        """
        if self._task is None:
            raise RefusedError("the consumer does not run: use it in an async with block")
        self._ack_last()
        state = self.operations
        while not state.ready and not state.stopping:
            if self._error is not None:
                raise self._error
            if self._task.done():
                raise StopAsyncIteration
            self._filled.clear()
            self._bell.set()
            await self._filled.wait()
        if state.stopping:
            raise StopAsyncIteration
        message = state.take()
        if self._auto_ack:
            self._last = message
        return message

    @checked
    async def ack(self, message: CompactedMessage) -> bool:
        """Acknowledge a message; on return the server knows, and acknowledgements of other tasks went along.

        It may be called after :meth:`stop`, until the block is left.

        :returns: false when it is not held any more: it was acknowledged before, or comes again as the queue was lost.
        :raises QueuekeeperError: what has ended the consumer before the server knew.
        """
        if not self.ack_soon(message):
            return False
        if self._error is not None:
            raise copy(self._error)
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[message.sequence] = future
        return await future

    @checked
    def ack_soon(self, message: CompactedMessage) -> bool:
        """Acknowledge a message with the next call of the server, without waiting for it.

        :returns: as :meth:`ack`, as far as is known here.
        """
        noted = self.operations.acknowledge(message, soon=True)
        self._bell.set()
        return noted

    def stop(self) -> None:
        """End the iteration; messages at work can be acknowledged until leaving the block gives the queue up."""
        self.operations.stopping = True
        self._bell.set()
        self._filled.set()

    def _ack_last(self) -> None:
        if self._last is not None:
            self.operations.acknowledge(self._last, soon=False)
        self._last = None

    def _on_settled(self, message: CompactedMessage, counted: bool) -> None:
        future = self._waiting.pop(message.sequence, None)
        if future is not None and not future.done():
            future.set_result(counted)

    async def _run(self) -> None:
        """Fetch, acknowledge and wait until the block is left or the queue is lost."""
        state = self.operations
        waking: asyncio.Task[bool] | None = None
        try:
            while not self._leaving:
                if state.has_work:
                    await self._turn()
                    self._filled.set()
                    continue
                if waking is None and state.listens:
                    waking = asyncio.create_task(self._await_wake())
                    waking.add_done_callback(lambda _: self._bell.set())
                with suppress(TimeoutError):
                    async with asyncio.timeout(state.heartbeat_in_s):
                        await self._rung()
                if waking is not None and waking.done():
                    if waking.result():
                        state.wake()
                    waking = None
        except Exception as error:
            self._error = error
            self._fail_waiting(error)
        finally:
            if waking is not None:
                waking.cancel()
                await asyncio.gather(waking, return_exceptions=True)
            self._filled.set()

    def _fail_waiting(self, error: Exception) -> None:
        """Tell all who wait for an acknowledgement that it will not be confirmed any more."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(copy(error))
        self._waiting.clear()

    async def _await_wake(self) -> bool:
        try:
            return await self._queues.await_wake(self.operations.client_id, timeout_s=WAKE_S)
        except ServerUnavailable:
            # A wake-up may have been lost with the connection.
            await asyncio.sleep(LISTEN_S)
            return True

    async def _rung(self) -> None:
        await self._bell.wait()
        self._bell.clear()

    _begin = awaited(Consumption.begin)
    _turn = awaited(Consumption.turn)
    _end = awaited(Consumption.end)


def _consumption(
    operations: CompactedOperations, client_id: str, *, rules: ConsumerRules | None, session: str | None, **options: Any
) -> Consumption:
    check_client_id(client_id)
    if session is None:
        session = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    check_text("session", session, most_bytes=MAX_TEXT_BYTES, filled=True)
    return Consumption(
        operations, client_id, rules=rules or ConsumerRules(), session=session, now_s=time.monotonic, **options
    )
