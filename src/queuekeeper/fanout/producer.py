"""Producers of fan-out queues: they repeat a publish without an answer, and its messages are still stored once.

Each message without a deduplication id gets one, by which the queue recognises a repetition. The module ``batches``
makes batches of what many tasks publish.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from queuekeeper import lua
from queuekeeper.batches import MAX_PENDING, Batches
from queuekeeper.checks import check_integer, check_seconds, checked
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.closing import AsyncClosing
from queuekeeper.errors import (
    MembershipChanged,
    QueuekeeperError,
    ServerUnavailable,
    StoreFull,
    UnknownConsumer,
    UnknownQueue,
)
from queuekeeper.fanout.model import MAX_MS, NewMessage, check_consumer, check_queue
from queuekeeper.fanout.operations import BYTES_PER_CALL, MESSAGES_PER_CALL, FanoutOperations
from queuekeeper.fanout.queue import AsyncFanoutQueues, FanoutQueues
from queuekeeper.fanout.records import json_message
from queuekeeper.fanout.reports import PublishReport
from queuekeeper.operation import AnswersByQueues, AsyncAnswersByQueues, Operation, Pause, awaited, blocking
from queuekeeper.text_form import shows

REMEMBERED_MS = 600_000
"""Time in ms for which the queue remembers an id made here after the last repetition.

Nobody else uses the id, and a call that is still in flight ends long before.
"""


def _new_id() -> str:
    return uuid.uuid4().hex


class Deliveries:
    """Gives messages ids and repeats publishes without an answer; both classes of producers use it.

    :param new_id: makes deduplication ids.
    """

    def __init__(
        self,
        operations: FanoutOperations,
        *,
        retry_for_s: float,
        new_id: Callable[[], str],
        now_s: Callable[[], float],
    ) -> None:
        check_seconds("retry_for_s", retry_for_s, least=0)
        self._operations = operations
        self._retry_for_s = retry_for_s
        self._new_id = new_id
        self._now_s = now_s

    def named(self, message: NewMessage) -> NewMessage:
        """Return a message with a deduplication id."""
        if message.deduplication_id is not None:
            return message
        remembered_ms = int(min(MAX_MS, REMEMBERED_MS + 1_000 * self._retry_for_s))
        return replace(message, deduplication_id=self._new_id(), deduplication_ms=remembered_ms)

    def publish(
        self, queue: str, messages: Sequence[NewMessage], *, to: str | None = None
    ) -> Operation[list[PublishReport]]:
        """Publish messages in order, with repetitions."""
        named = [self.named(message) for message in messages]
        reports = yield from self.deliver(queue, named, to=to)
        return [
            _as_asked(report, message) if report.error is None else report
            for report, message in zip(reports, messages, strict=True)
        ]

    def deliver(self, queue: str, named: Sequence[NewMessage], *, to: str | None) -> Operation[list[PublishReport]]:
        """Publish messages that have deduplication ids."""
        reports: list[PublishReport] = []
        give_up_at_s = self._now_s() + self._retry_for_s
        attempt = 0
        # Set while it is unknown whether the next message was published.
        lost: ServerUnavailable | None = None
        while len(reports) < len(named):
            error: QueuekeeperError | None
            try:
                found = yield from self._operations.publish(queue, named[len(reports) :], to=to)
            except QueuekeeperError as raised:
                error = raised
            else:
                published = [report for report in found if report.error is None]
                reports += published
                lost = None if published else lost
                error = next((report.error for report in found if report.error is not None), None)
            if error is None:
                continue
            lost = error if isinstance(error, ServerUnavailable) else lost
            # These errors do not say whether the queue has the message already: a full server refuses before it looks,
            # and so does a queue whose consumers have changed.
            is_open = isinstance(error, ServerUnavailable | StoreFull | MembershipChanged)
            is_gone = isinstance(error, UnknownConsumer | UnknownQueue)
            wait_s = SERVER_BACKOFF.after(attempt)
            if lost is None or not is_open or self._now_s() + wait_s > give_up_at_s:
                final = lost if lost is not None and (is_open or is_gone) else error
                if not reports:
                    raise final
                return [*reports, *[PublishReport(error=final)] * (len(named) - len(reports))]
            yield Pause(wait_s)
            attempt += 1
        return reports


def _as_asked(report: PublishReport, asked: NewMessage) -> PublishReport:
    """Return a report that does not count our own repetitions as duplicates."""
    return report if asked.deduplication_id is not None else replace(report, duplicate=False)


@shows(queues="_queues")
class FanoutProducer(AnswersByQueues):
    """Publishes for blocking callers; threads may share it.

    Each message without a deduplication id gets one. The queue remembers that id, which costs memory, for ten minutes
    longer than ``retry_for_s``.

    :param retry_for_s: time in seconds for which a publish without an answer is repeated, 30 by default.
    :param new_id: makes deduplication ids, which no two producers may share; random ids by default.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self, queues: FanoutQueues, *, retry_for_s: float = lua.RETRY_FOR_S, new_id: Callable[[], str] = _new_id
    ) -> None:
        self.operations = Deliveries(queues.operations, retry_for_s=retry_for_s, new_id=new_id, now_s=time.monotonic)
        self._queues = queues

    @checked
    def publish(self, queue: str, message: NewMessage, *, to: str | None = None) -> PublishReport:
        """Publish a message to all consumers, or to the consumer ``to``; errors are those of :meth:`publish_many`."""
        return self.publish_many(queue, [message], to=to)[0]

    @checked
    def publish_json(self, queue: str, value: Any, *, to: str | None = None, **fields: Any) -> PublishReport:
        """Publish a value as JSON.

        :param fields: the other fields of :class:`~queuekeeper.fanout.model.NewMessage`.
        """
        return self.publish(queue, json_message(value, **fields), to=to)

    publish_many = blocking(Deliveries.publish)


@shows(queues="_queues")
class AsyncFanoutProducer(AsyncAnswersByQueues, AsyncClosing):
    """Publishes for the tasks of one event loop, best with ``async with``.

    Messages that tasks publish at the same time are sent in batches, in the order of the calls of ``publish``.

    :param retry_for_s: as for :class:`FanoutProducer`, like ``new_id``.
    :param max_pending: largest number of messages that are accepted and not yet published, 10,000 by default; further
        calls wait for room.
    :param max_queues: largest number of queues to which batches are sent at once, 1,000 by default; others wait.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncFanoutQueues,
        *,
        retry_for_s: float = lua.RETRY_FOR_S,
        new_id: Callable[[], str] = _new_id,
        max_pending: int = MAX_PENDING,
        max_queues: int = 1_000,
    ) -> None:
        check_integer("max_pending", max_pending, 1, 10_000_000)
        check_integer("max_queues", max_queues, 1, 1_000_000)
        self.operations = Deliveries(queues.operations, retry_for_s=retry_for_s, new_id=new_id, now_s=time.monotonic)
        self._queues = queues
        self._batches: Batches[tuple[str, str | None], NewMessage, PublishReport] = Batches(
            self._store,
            size=lambda message: len(message.body),
            most=MESSAGES_PER_CALL,
            most_bytes=BYTES_PER_CALL,
            max_pending=max_pending,
            max_queues=max_queues,
        )

    @checked
    async def publish(self, queue: str, message: NewMessage, *, to: str | None = None) -> PublishReport:
        """Publish a message and return when it is published; errors of other messages do not affect it.

        The message of a cancelled call is not sent, unless it has been sent already.

        :raises RefusedError: when the producer is closed; other errors are those of
            :meth:`FanoutProducer.publish_many`.
        """
        check_queue(queue)
        if to is not None:
            check_consumer(to)
        report = await self._batches.put((queue, to), self.operations.named(message))
        return _as_asked(report, message)

    @checked
    async def publish_json(self, queue: str, value: Any, *, to: str | None = None, **fields: Any) -> PublishReport:
        """Publish a value as JSON, as :meth:`FanoutProducer.publish_json` does."""
        return await self.publish(queue, json_message(value, **fields), to=to)

    publish_many = awaited(Deliveries.publish)

    async def close(self) -> None:
        """Refuse new calls, and return when every call, also one that waits for room, has its result."""
        await self._batches.close()

    async def _store(
        self, where: tuple[str, str | None], messages: Sequence[NewMessage]
    ) -> list[PublishReport | Exception]:
        queue, to = where
        results: list[PublishReport | Exception] = []
        most = len(messages)
        while len(results) < len(messages):
            part = messages[len(results) : len(results) + most]
            try:
                reports = await self._deliver(queue, part, to=to)
            except ServerUnavailable as lost:
                results += [lost] * (len(messages) - len(results))
            except QueuekeeperError as refused:
                if len(part) == 1:
                    results.append(refused)
                # One message is the reason: each is sent by itself, so that the others are published.
                most = 1
            else:
                published = [report for report in reports if report.error is None]
                results += published
                error = reports[-1].error
                if isinstance(error, ServerUnavailable):
                    results += [error] * (len(messages) - len(results))
                elif error is not None:
                    # The first message that failed is sent again by itself; those after it have not been sent.
                    most = 1
        return results

    _deliver = awaited(Deliveries.deliver)
