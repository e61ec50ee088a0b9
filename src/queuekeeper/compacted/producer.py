"""Appending for many tasks at once: what arrives together is stored together, each call with its own result.

A batch whose answer was lost is sent again under the same number, and is stored once. The module ``batches`` decides
how batches gather.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from queuekeeper.batches import Batches
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

MAX_PENDING = 10_000
RETRY_FOR_S = 30.0


class Appended(NamedTuple):
    """Where a value is.

    :param sequence: its number; greater than those of all that the queue took before.
    :param replaced: number of the value that it took the place of; none when the key had none, or when it is not
        known because the answer was lost.
    """

    sequence: int
    replaced: int | None


@dataclass(eq=False, repr=False)
class Deliveries:
    """Numbers appends and repeats those whose answer was lost; what producers of both kinds share.

    :param name: of the producer.
    :param number: of its next append, greater than all that it has used before.
    """

    operations: CompactedOperations
    _: KW_ONLY
    name: str
    number: int
    retry_for_s: float
    now_s: Callable[[], float]

    def deliver(self, client_id: str, appends: Sequence[Append]) -> Operation[AppendReport]:
        """Store values under the next number, however often that has to be asked for."""
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
                f"producer {self.name!r} had an append for {client_id!r} with number {number} or more before: nothing "
                "was stored. Let one producer at a time use the name, with a greater first_number"
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
    """Appends for blocking callers; threads may share it, and take turns.

    :param name: under which its appends are numbered; a random one if left out. No two producers may use a name at
        the same time.
    :param first_number: greater than all that the name has used before; microseconds since 1970 if left out.
    :param retry_for_s: how long an append is repeated whose answer was lost, before its error is raised.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: CompactedQueues,
        *,
        name: str | None = None,
        first_number: int | None = None,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self.operations = _deliveries(queues.operations, name, first_number, retry_for_s)
        self._queues = queues
        self._turn = threading.Lock()

    @checked
    def append(self, client_id: str, append: Append) -> Appended:
        """Store a value; errors are those of :meth:`append_many`."""
        report = self.append_many(client_id, [append])
        return _result(report, 0)

    def append_many(self, client_id: str, appends: Sequence[Append]) -> AppendReport:
        """Store values in order: up to 200 and 1 MB of them all or none.

        :raises QueueFull: when the queue has reached its limits; nothing was stored.
        :raises SequenceConflict: when a key's value has not the number that was expected; nothing was stored.
        :raises StoreFull: when Redis has no memory left; nothing was stored.
        :raises ServerUnavailable: when there was no answer: it is unknown whether they were stored.
        :raises RefusedError: when the name has used a greater number before; nothing was stored.
        """
        with self._turn:
            return self._deliver(client_id, appends)

    _deliver = blocking(Deliveries.deliver)


@shows(queues="_queues")
class AsyncCompactedProducer(AsyncAnswersByQueues, AsyncClosing):
    """Appends of many tasks to many queues; to be used in one event loop, best with ``async with``.

    Values for one queue are stored in the order in which ``append`` was called. A queue has one batch under way.

    :param name: as of :class:`CompactedProducer`, and ``first_number`` and ``retry_for_s`` too.
    :param max_pending: values accepted and not yet stored; further calls wait until there is room.
    :param max_queues: queues with a batch under way at once; the others wait for their turn.
    :raises UsageError: naming parameter, value and rule.
    """

    @checked
    def __init__(
        self,
        queues: AsyncCompactedQueues,
        *,
        name: str | None = None,
        first_number: int | None = None,
        retry_for_s: float = RETRY_FOR_S,
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
        """Store a value and return when it is stored; what is wrong with others does not touch it.

        A call that is cancelled takes its value back if it has not been sent yet.

        :raises RefusedError: when the producer is closed; else errors are those of
            :meth:`CompactedProducer.append_many`.
        """
        check_client_id(client_id)
        # What the rules of a queue allow is known to the queues, which say so when it is stored.
        check_entry("append", append, MAX_VALUE_BYTES)
        return await self._batches.put(client_id, append)

    async def close(self) -> None:
        """Take nothing more, and return when every call has its result; those that wait for room still get in."""
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
            # One of them is the reason. The others have nothing to do with it.
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
    """Cut a batch where a condition is on a key that comes before in the same part.

    Conditions of one append are on what was there before all of it, and those of two calls are not.
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
