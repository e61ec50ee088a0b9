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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from queuekeeper.checks import check_fields, check_integer, check_seconds, check_text, checked
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.compacted.model import (
    FETCH_BYTES,
    MAX_LEASE_MS,
    MAX_TEXT_BYTES,
    MAX_VALUE_BYTES,
    MAX_WINDOW,
    CompactedMessage,
    Fence,
    Position,
    Refill,
    chosen,
)
from queuekeeper.compacted.operations import CompactedOperations
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.errors import QueueBusy, RefusedError, ServerUnavailable, StaleEpoch, UnreadableRecord
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import AnswersByQueues, Operation, Pause, awaited, blocking
from queuekeeper.text_form import shows

WAKE_S = 3_600.0
LISTEN_S = 1.0
"""How long a blocking consumer waits at a time before it looks whether it was stopped."""

TAKE_BACK_S = 1.0
"""How long a queue is left to the consumer that took it, by one that wants it back."""

GRACE_S = 5.0
"""How long the end may take when the server does not answer."""

BEGIN_S = 10.0
"""How long a server that is away is waited for before the queue is held for the first time."""

RUNS_ONCE = "a consumer runs once: make another one"

_log = logging.getLogger(__name__)


class Resubscribe(StrEnum):
    """What a consumer does that has lost its queue: to another consumer, or because somebody moved the cursor."""

    NEVER = "never"  # ends with StaleEpoch
    UNLESS_TAKEN = "unless_taken"  # goes on after a rewind; ends with StaleEpoch when another consumer holds the queue
    ALWAYS = "always"  # takes the queue back


class WhenUnreadable(StrEnum):
    """What a consumer does with a message whose record was damaged."""

    STOP = "stop"  # ends with UnreadableRecord; the message stays in flight until it is appended anew or skipped
    HAND_OUT = "hand_out"  # hands it out with is_readable False and what is stored as its value


@dataclass(frozen=True, kw_only=True)
class ConsumerRules:
    """How a queue is consumed.

    :param window: most messages in flight.
    :param refill: when new messages come: when all are acknowledged, or as far as the window has room.
    :param max_bytes: of values in one fetch; a larger one comes alone.
    :param lease_ms: how long the queue is held without a heartbeat.
    :param heartbeat_ms: time between two heartbeats, each of which looks for messages too; less than the lease.
    :param takeover: also while another consumer holds the queue.
    :param resubscribe: what to do when the queue was lost.
    :param start: where to begin; none for where the consumer before ended.
    :param unreadable: what to do with a message whose record was damaged.
    :raises UsageError: naming parameter, value and rule.
    """

    window: int = 5
    refill: Refill = Refill.ON_EMPTY
    max_bytes: int = FETCH_BYTES
    lease_ms: int = 60_000
    heartbeat_ms: int = 30_000
    takeover: bool = True
    resubscribe: Resubscribe = Resubscribe.UNLESS_TAKEN
    start: Position | None = None
    unreadable: WhenUnreadable = WhenUnreadable.STOP

    def __post_init__(self) -> None:
        check_fields(self, "takeover", "start")
        check_integer("window", self.window, 1, MAX_WINDOW, "messages in flight")
        check_integer("max_bytes", self.max_bytes, 1, MAX_VALUE_BYTES, "one message comes whatever its size")
        check_integer("lease_ms", self.lease_ms, 2, MAX_LEASE_MS, "at most a day")
        check_integer("heartbeat_ms", self.heartbeat_ms, 1, self.lease_ms - 1, "less than lease_ms")
        object.__setattr__(self, "refill", chosen(Refill, "refill", self.refill))
        object.__setattr__(self, "resubscribe", chosen(Resubscribe, "resubscribe", self.resubscribe))
        object.__setattr__(self, "unreadable", chosen(WhenUnreadable, "unreadable", self.unreadable))


class Consumption:
    """What a consumer holds and what it has to do next; both kinds of consumers carry out its operations.

    :ivar ready: messages that were fetched and not yet handed out.
    :ivar stopping: it is to end: nothing more is fetched, and a server that is away is not waited for.
    :param settled: called with a message and whether its acknowledgement has counted.
    """

    def __init__(
        self,
        operations: CompactedOperations,
        client_id: str,
        *,
        rules: ConsumerRules,
        session: str,
        now_s: Callable[[], float],
        settled: Callable[[CompactedMessage, bool], None] = lambda message, counted: None,
    ) -> None:
        self.client_id = client_id
        self.session = session
        self.rules = rules
        self.ready: deque[CompactedMessage] = deque()
        self.stopping = False
        self._operations = operations
        self._now_s = now_s
        self._settled = settled
        self._fence: Fence | None = None
        # Delivered under this fence and not acknowledged, by sequence number, handed out or not.
        self._held: dict[int, CompactedMessage] = {}
        self._acks: dict[int, CompactedMessage] = {}
        self._acks_wait = True
        # There may be something to fetch; all in flight is to come again; it is still coming.
        self._look = self._redeliver = self._resending = False
        # What has come again so far, to be compared with what is held; none while nothing is compared.
        self._again: set[int] | None = None
        self._heartbeat_at_s = 0.0

    @property
    def room(self) -> int:
        """How many messages may be fetched now."""
        room = self.rules.window - len(self._held) + len(self._acks)
        in_turn = self._resending or self.rules.refill is Refill.SLIDING or len(self._held) == len(self._acks)
        return max(0, room) if in_turn else 0

    @property
    def _limit(self) -> int:
        if self.stopping:
            return 0
        # All that is in flight is asked for, to be compared with what is held.
        return self.rules.window if self._redeliver or self._again is not None else self.room

    @property
    def heartbeat_in_s(self) -> float:
        """Time until the next heartbeat."""
        return max(0.0, self._heartbeat_at_s - self._now_s())

    @property
    def has_work(self) -> bool:
        """Whether there is something to ask the server now."""
        acks = bool(self._acks) and not (self._acks_wait and self.ready)
        return acks or (self._look and self._limit > 0) or self.heartbeat_in_s == 0

    @property
    def listens(self) -> bool:
        """Whether a wake-up would tell anything new."""
        return not self._look and not self.stopping

    def wake(self) -> None:
        """Take note of a wake-up: there may be something to fetch."""
        self._look = True
        if not self.room:
            # It may have been meant for a consumer that has the queue now. A heartbeat tells, and wakes that one.
            self._heartbeat_at_s = self._now_s()

    def holds(self, message: CompactedMessage) -> bool:
        """Return whether a message can be acknowledged: it was not, nor skipped, nor was the queue lost since."""
        return self._held.get(message.sequence) is message and message.sequence not in self._acks

    def take(self) -> CompactedMessage:
        """Hand out the next message that is ready.

        :raises UnreadableRecord: when it cannot be read, and that is to end the consumer.
        """
        message = self.ready[0]
        if not message.is_readable and self.rules.unreadable is WhenUnreadable.STOP:
            raise UnreadableRecord(
                f"message {message.sequence} of the queue of {self.client_id!r}, with key {message.key!r}, cannot be "
                "read and stays in flight: append the key anew, skip the number, or consume with "
                f"unreadable={WhenUnreadable.HAND_OUT}"
            )
        return self.ready.popleft()

    def acknowledge(self, message: CompactedMessage, *, soon: bool) -> bool:
        """Take note of an acknowledgement.

        :param soon: with the next call of the server; else when what is ready has been handed out.
        :returns: false when the message is not held any more.
        """
        if not self.holds(message):
            return False
        self._acks_wait = self._acks_wait and not soon
        self._acks[message.sequence] = message
        return True

    def begin(self) -> Operation[None]:
        """Subscribe; a server that is away is waited for, but not for long."""
        give_up_at_s = self._now_s() + BEGIN_S
        attempt = 0
        while True:
            try:
                yield from self._subscribe(takeover=self.rules.takeover, start=self.rules.start)
            except ServerUnavailable:
                if self.stopping or self._now_s() >= give_up_at_s:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def turn(self) -> Operation[None]:
        """Do what there is to do, in one call of the server if it can be; a server that is away is waited for.

        :raises StaleEpoch: when the queue was lost and is not to be taken back.
        :raises ServerUnavailable: when the server is away and the consumer is to end.
        """
        attempt = 0
        while True:
            try:
                if self._fence is None:
                    yield from self._take_back()
                yield from self._step()
            except StaleEpoch as error:
                yield from self._lose(error)
            except ServerUnavailable:
                # Messages of an answer that was lost are in flight, and nobody has them.
                self._redeliver = self._look = True
                if self.stopping:
                    raise
                yield Pause(SERVER_BACKOFF.after(attempt))
                attempt += 1
            else:
                return

    def end(self) -> Operation[None]:
        """Send what was acknowledged and give the queue up; what is in flight stays so, for the next consumer."""
        if self._fence is None:
            return
        try:
            if self._acks:
                yield from self._send_acks(self._fence)
            yield from self._operations.release(self.client_id, fence=self._fence)
        except (StaleEpoch, ServerUnavailable) as error:
            _log.warning("queue of %r: the consumer %s ended without a word: %s", self.client_id, self.session, error)
        finally:
            self.forget()

    def _step(self) -> Operation[None]:
        fence = self._fence
        assert fence is not None
        if self.heartbeat_in_s == 0:
            heartbeat = yield from self._operations.heartbeat(self.client_id, fence=fence, lease_ms=self.rules.lease_ms)
            self._heartbeat_at_s = self._now_s() + self.rules.heartbeat_ms / 1_000
            if heartbeat.in_flight < len(self._held):
                # An operator has skipped some of what is held.
                self._redeliver = True
            if heartbeat.lag or self._redeliver:
                self._look = True
        limit = self._limit
        if self._look and limit:
            yield from self._fetch(fence, limit)
        elif self._acks:
            yield from self._send_acks(fence)

    def _fetch(self, fence: Fence, limit: int) -> Operation[None]:
        if self._redeliver:
            self._again = set()
        # A server that has lost its newest writes may have given a number anew: what is held is compared first.
        acks = dict(self._acks) if self._again is None else {}
        fetched = yield from self._operations.fetch(
            self.client_id,
            fence=fence,
            limit=limit,
            window=self.rules.window,
            max_bytes=self.rules.max_bytes,
            refill=self.rules.refill,
            redeliver=self._redeliver,
            acks=tuple(acks),
        )
        self._settle(acks)
        # One call begins the redelivery; those after it go on with it.
        self._redeliver, self._resending = False, fetched.more_to_resend
        for message in fetched.messages:
            self._hold(message)
        if self._again is not None:
            self._again.update(message.sequence for message in fetched.messages)
            if not self._resending:
                self._keep(self._again)
                self._again = None
        self._look = self._resending or fetched.lag > 0

    def _hold(self, message: CompactedMessage) -> None:
        """Take a message over, unless it is held already and was not lost."""
        held = self._held.get(message.sequence)
        if held is not None:
            if (held.key, held.appended_ms) == (message.key, message.appended_ms):
                return
            # After a failover the number is another message's. An acknowledgement of the old one must not be its own.
            if self._acks.pop(message.sequence, None) is not None:
                self._settled(held, False)
            with suppress(ValueError):
                self.ready.remove(held)
        self._held[message.sequence] = message
        self.ready.append(message)

    def _keep(self, in_flight: set[int]) -> None:
        """Let go of what is held and not in flight: it was skipped, or overwritten since."""
        kept = in_flight | self._acks.keys()
        self._held = {sequence: message for sequence, message in self._held.items() if sequence in kept}
        self.ready = deque(message for message in self.ready if message.sequence in self._held)

    def _send_acks(self, fence: Fence) -> Operation[None]:
        acks = dict(self._acks)
        yield from self._operations.ack(self.client_id, fence=fence, sequences=tuple(acks))
        self._settle(acks)

    def _settle(self, acks: dict[int, CompactedMessage]) -> None:
        for sequence, message in acks.items():
            del self._acks[sequence]
            self._held.pop(sequence, None)
            self._settled(message, True)
        self._acks_wait = True

    def _subscribe(self, *, takeover: bool, start: Position | None) -> Operation[None]:
        subscription = yield from self._operations.subscribe(
            self.client_id, session=self.session, takeover=takeover, lease_ms=self.rules.lease_ms, start=start
        )
        self._fence = subscription.fence
        self._heartbeat_at_s = self._now_s() + self.rules.heartbeat_ms / 1_000
        self._look = self._resending = True
        self._redeliver, self._again = False, None

    def _lose(self, error: StaleEpoch) -> Operation[None]:
        """Let go of a queue that is another's now, or whose cursor was moved."""
        fence = self._fence
        if fence is None:
            raise error
        self.forget()
        with suppress(ServerUnavailable):
            # A wake-up that was taken while waiting may have been meant for the consumer that has the queue now.
            yield from self._operations.release(self.client_id, fence=fence)
        if self.stopping or self.rules.resubscribe is Resubscribe.NEVER:
            raise error

    def _take_back(self) -> Operation[None]:
        try:
            yield from self._subscribe(takeover=False, start=None)
        except QueueBusy as error:
            if self.rules.resubscribe is not Resubscribe.ALWAYS:
                raise StaleEpoch(f"the queue of {self.client_id!r} was lost: {error}") from None
            # Two consumers that take a queue from each other must still come to their work.
            yield Pause(TAKE_BACK_S)
            yield from self._subscribe(takeover=True, start=None)

    def forget(self) -> None:
        """Let go of the queue and of all that is held, without a word to the server."""
        self._fence = None
        acks, self._acks = self._acks, {}
        self._held.clear()
        self.ready.clear()
        for message in acks.values():
            self._settled(message, False)


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
