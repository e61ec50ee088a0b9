"""Producers: number appends and repeat them after lost replies. The asyncio form stores the values of many tasks.

A batch whose reply was lost is sent again under the same number, and is stored once. The module ``batches`` puts the
values of many tasks into batches; each task gets the result of its own value.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from queuekeeper import lua
from queuekeeper.batches import MAX_PENDING, Batches
from queuekeeper.checks import check_integer, check_seconds, check_text, checked
from queuekeeper.clock import SERVER_BACKOFF
from queuekeeper.closing import AsyncClosing
from queuekeeper.compacted.model import MAX_SEQUENCE, MAX_TEXT_BYTES, MAX_VALUE_BYTES, Append, check_entry
from queuekeeper.compacted.operations import BYTES_PER_CALL, ENTRIES_PER_CALL, CompactedOperations
from queuekeeper.compacted.queue import AsyncCompactedQueues, CompactedQueues
from queuekeeper.compacted.records import stored_bytes
from queuekeeper.compacted.reports import AppendReport
from queuekeeper.errors import NumberReused, QueueFull, RefusedError, SequenceConflict, ServerUnavailable, UsageError
from queuekeeper.keyspace import check_client_id
from queuekeeper.operation import AnswersByQueues, AsyncAnswersByQueues, Operation, Pause, awaited, blocking
from queuekeeper.text_form import shows


class Appended(NamedTuple):
    """Result of storing one value.

    :param sequence: sequence number of the value; greater than all earlier ones of the queue.
    :param replaced: sequence number of the value that it replaced; none when the key had no value, or when the number
        is unknown because a reply was lost.
    """

    sequence: int
    replaced: int | None


@dataclass(eq=False, repr=False)
class Deliveries:
    """Numbers appends, and repeats those whose reply was lost, for the blocking and the asyncio producer.

    :param name: name of the producer.
    :param number: number of its next append, greater than all that the name has used before.
    :param retry_for_s: how long an append whose reply was lost is repeated.
    """

    operations: CompactedOperations
    _: KW_ONLY
    name: str
    number: int
    retry_for_s: float
    now_s: Callable[[], float]

    def deliver(self, client_id: str, appends: Sequence[Append]) -> Operation[AppendReport]:
        """Store values under the next number; repeat that after lost replies."""
        number = self.number
        self.number += 1
        give_up_at_s = self.now_s() + self.retry_for_s
        attempt = 0
        while True:
            try:
                report = yield from self.operations.append(client_id, appends, producer=self.name, number=number)
            except NumberReused:
                report = None
                break
            except ServerUnavailable:
                wait_s = SERVER_BACKOFF.after(attempt)
                if self.now_s() + wait_s > give_up_at_s:
                    raise
                yield Pause(wait_s)
                attempt += 1
            else:
                break
        if report is None or report.is_forgotten or (report.is_replay and attempt == 0):
            raise RefusedError(
                f"producer {self.name!r} has appended to the queue of {client_id!r} with number {number} or a greater "
                "one before: nothing was stored. Use each name in one producer at a time, with a greater first_number"
            )
        return report


def _deliveries(
    operations: CompactedOperations, name: str | None, first_number: int | None, retry_for_s: float
) -> Deliveries:
    if name is not None:
        check_text("producer", name, most_bytes=MAX_TEXT_BYTES, filled=True)
    if first_number is not None:
        check_integer("first_number", first_number, 0, MAX_SEQUENCE // 2, "later appends have greater numbers")
    check_seconds("retry_for_s", retry_for_s, least=0)
    return Deliveries(
        operations,
        name=name or uuid.uuid4().hex,
        number=time.time_ns() // 1_000 if first_number is None else first_number,
        retry_for_s=retry_for_s,
        now_s=time.monotonic,
    )


@shows(queues="_queues")
class CompactedProducer(AnswersByQueues):
    """Appends for blocking callers; threads may share a producer, which does one append at a time.

    :param name: name of the producer; random by default. Only one producer at a time may use a name.
    :param first_number: number of the first append, greater than all that the name has used before; by default the
        microseconds since 1970.
    :param retry_for_s: how long an append whose reply was lost is repeated before its error is raised, in seconds.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: CompactedQueues,
        *,
        name: str | None = None,
        first_number: int | None = None,
        retry_for_s: float = lua.RETRY_FOR_S,
    ) -> None:
        self.operations = _deliveries(queues.operations, name, first_number, retry_for_s)
        self._queues = queues
        self._turn = threading.Lock()

    @checked
    def append(self, client_id: str, append: Append) -> Appended:
        """Store a value; raises the errors of :meth:`append_many`."""
        report = self.append_many(client_id, [append])
        return _result(report, 0)

    def append_many(self, client_id: str, appends: Sequence[Append]) -> AppendReport:
        """Store values in order. Up to 200 values and 1 MB are stored together or not at all.

        :raises QueueFull: when the queue has reached its limits; nothing was stored.
        :raises SequenceConflict: when the value of a key does not have the expected number; nothing was stored.
        :raises StoreFull: when Redis has no memory left; nothing was stored.
        :raises ServerUnavailable: when the server did not answer; the values may have been stored.
        :raises RefusedError: when the name has used this number or a greater one before; nothing was stored.
        """
        with self._turn:
            return self._deliver(client_id, appends)

    _deliver = blocking(Deliveries.deliver)


@shows(queues="_queues")
class AsyncCompactedProducer(AsyncAnswersByQueues, AsyncClosing):
    """Appends values of many tasks to many queues, in one event loop; use it with ``async with``, or close it.

    Values for one queue are stored in the order in which ``append`` was called, one batch at a time.

    :param name: see :class:`CompactedProducer`, also for ``first_number`` and ``retry_for_s``.
    :param max_pending: most values accepted and not yet stored; further calls wait.
    :param max_queues: most queues to which batches are sent at once; other queues wait.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncCompactedQueues,
        *,
        name: str | None = None,
        first_number: int | None = None,
        retry_for_s: float = lua.RETRY_FOR_S,
        max_pending: int = MAX_PENDING,
        max_queues: int = 1_000,
    ) -> None:
        check_integer("max_pending", max_pending, 1, 10_000_000, "they are held in memory")
        check_integer("max_queues", max_queues, 1, 1_000_000, "each is a task")
        self.operations = _deliveries(queues.operations, name, first_number, retry_for_s)
        self._queues = queues
        self._batches: Batches[str, Append, Appended] = Batches(
            self._store,
            size=stored_bytes,
            most=ENTRIES_PER_CALL,
            most_bytes=BYTES_PER_CALL // 2,
            max_pending=max_pending,
            max_queues=max_queues,
        )

    async def append(self, client_id: str, append: Append) -> Appended:
        """Store a value, and return when it is stored; also raises the errors of :meth:`CompactedProducer.append_many`.

        An invalid value of another task does not affect the call. A cancelled call does not store its value, unless it
        was sent already.

        :raises RefusedError: when the producer is closed.
        """
        check_client_id(client_id)
        # The limits of the queue's rules are checked when the value is stored.
        check_entry("append", append, MAX_VALUE_BYTES)
        return await self._batches.put(client_id, append)

    async def close(self) -> None:
        """Refuse further calls, and return when all earlier calls have their results."""
        await self._batches.close()

    async def _store(self, client_id: str, appends: Sequence[Append]) -> list[Appended | Exception]:
        results: list[Appended | Exception] = []
        for part in _parts(appends):
            try:
                results += await self._store_part(client_id, part)
            except Exception as error:
                results += [error] * len(part)
        return results

    async def _store_part(self, client_id: str, appends: Sequence[Append]) -> list[Appended | Exception]:
        try:
            report = await self._deliver(client_id, appends)
        except (QueueFull, SequenceConflict, UsageError) as error:
            if len(appends) == 1:
                return [error]
            # One value caused the error: store each by itself, so that the others do not fail.
            results: list[Appended | Exception] = []
            for append in appends:
                try:
                    results += await self._store_part(client_id, [append])
                except Exception as its_own:
                    results.append(its_own)
            return results
        return [_result(report, position) for position in range(len(appends))]

    _deliver = awaited(Deliveries.deliver)


def _parts(appends: Sequence[Append]) -> Iterator[Sequence[Append]]:
    """Cut a batch before each entry that has a condition on a key that occurs earlier in the same part.

    All conditions of one append refer to the values before it; a later call's condition refers to the earlier call's
    value.
    """
    start, keys = 0, set[bytes]()
    for at, append in enumerate(appends):
        if append.expected_sequence is not None and append.key in keys:
            yield appends[start:at]
            start, keys = at, set()
        keys.add(append.key)
    yield appends[start:]


def _result(report: AppendReport, position: int) -> Appended:
    return Appended(report.sequences[position], report.replaced[position] if report.replaced else None)
