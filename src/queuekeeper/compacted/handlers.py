"""A handler that works on the messages of a compacted queue, one after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from queuekeeper.checks import checked
from queuekeeper.clock import HANDLER_BACKOFF, SERVER_BACKOFF
from queuekeeper.compacted.consumer import AsyncCompactedConsumer, ConsumerRules
from queuekeeper.compacted.model import CompactedMessage
from queuekeeper.compacted.queue import AsyncCompactedQueues
from queuekeeper.errors import QueueBusy, ServerUnavailable, StaleEpoch
from queuekeeper.operation import finished, is_coroutine_function
from queuekeeper.service.aio import stopped_by_signals
from queuekeeper.text_form import shows

Work: TypeAlias = Callable[[CompactedMessage], Any]
"""Works on a message: a coroutine function in the event loop, any other in a thread. It fails when it raises. What it
returns is awaited where it can be."""

_log = logging.getLogger(__name__)


@shows(queues="_queues", client_id="_client_id")
class CompactedWorker:
    """Has a handler work on the messages of a queue, in order, until it is stopped.

    ::

        await CompactedWorker(queues, "device-1", show).run()

    A message that the handler fails on comes to it again, after a pause that grows, before any later one, until it is
    skipped or the queue is lost. A value that was appended meanwhile comes after it. While another consumer holds the
    queue, the worker waits for its turn: of several workers one works, and another goes on where it stopped. A server
    that has answered once is waited for.

    :param work: see :data:`Work`.
    :param rules: of the consumer; by default a queue is not taken from another. ``start`` holds for the first time that
        the worker has the queue.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self, queues: AsyncCompactedQueues, client_id: str, work: Work, *, rules: ConsumerRules | None = None
    ) -> None:
        self._queues = queues
        self._client_id = client_id
        self._work = work
        self._rules = rules or ConsumerRules(takeover=False)
        self._stopped = asyncio.Event()
        self._has_answered = False

    def stop(self) -> None:
        """End when the handler has done what it is at; call it in the event loop."""
        self._stopped.set()

    async def run(self) -> None:
        """Work until :meth:`stop` or, in the main thread, the first SIGTERM or Ctrl-C.

        :raises ServerUnavailable: when the server cannot be reached at first; later on it is waited for.
        :raises UnreadableRecord: when a message's record was damaged, as the rules have it.
        """
        attempt = 0
        with stopped_by_signals(self.stop):
            while not self._stopped.is_set():
                try:
                    await self._consume()
                except (QueueBusy, StaleEpoch) as error:
                    self._has_answered = True
                    _log.info("the worker waits for the queue: %s", error)
                except ServerUnavailable as error:
                    if not self._has_answered:
                        raise
                    _log.warning("the worker waits for the server: %s", error)
                else:
                    attempt = 0
                    continue
                await self._pause(SERVER_BACKOFF.after(attempt))
                attempt += 1

    async def _consume(self) -> None:
        consumer = AsyncCompactedConsumer(self._queues, self._client_id, rules=self._rules)
        async with consumer:
            self._has_answered = True
            # Whoever has had the queue goes on where it stood, and does not begin again.
            self._rules = replace(self._rules, start=None)
            ending = asyncio.ensure_future(self._stopped.wait())
            ending.add_done_callback(lambda _: consumer.stop())
            try:
                async for message in consumer:
                    if await self._is_done(message, consumer.operations.holds):
                        await consumer.ack(message)
                    elif self._stopped.is_set():
                        break
            finally:
                ending.cancel()

    async def _is_done(self, message: CompactedMessage, is_held: Callable[[CompactedMessage], bool]) -> bool:
        """Have the handler work on a message until it has done it.

        :returns: false when the worker was stopped before, or the message is not its own any more: somebody has skipped
            it, or has the queue, or has moved its cursor.
        """
        attempt = 0
        while True:
            try:
                await self._do(message)
            except (Exception, asyncio.CancelledError):
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                attempt += 1
                pause_s = HANDLER_BACKOFF.after(attempt - 1)
                _log.warning(
                    "message %d of the queue of %r: attempt %d failed; the next one begins in %g s",
                    *(message.sequence, self._client_id, attempt, pause_s),
                    exc_info=True,
                )
                await self._pause(pause_s)
                if self._stopped.is_set() or not is_held(message):
                    return False
            else:
                return True

    async def _do(self, message: CompactedMessage) -> None:
        if is_coroutine_function(self._work):
            await self._work(message)
            return
        # A function that only makes a coroutine has not worked yet.
        await finished(await asyncio.to_thread(self._work, message))

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
