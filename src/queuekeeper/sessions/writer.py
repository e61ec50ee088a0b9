"""Saves single messages of many publishers in batches.

Messages are not delayed: those that have arrived are sent at the next turn of the event loop. The next batch gathers
while they are being saved, so batches grow with the load.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from copy import copy
from typing import NamedTuple, TypeAlias

from queuekeeper.batches import MAX_PENDING, take_batch
from queuekeeper.checks import check_integer, check_text
from queuekeeper.clock import Backoff
from queuekeeper.closing import AsyncClosing, Users
from queuekeeper.errors import QueuekeeperError, RefusedError, ServerUnavailable, UsageError
from queuekeeper.keyspace import check_client_id
from queuekeeper.sessions.judge import MAX_TEXT_BYTES
from queuekeeper.sessions.model import NewMessage, SessionSave
from queuekeeper.sessions.parts import BYTES_PER_SAVE, MESSAGES_PER_SAVE
from queuekeeper.sessions.redis_store import AsyncRedisSessionStore
from queuekeeper.sessions.reports import Refusal, SaveReport
from queuekeeper.sessions.router import AsyncSessionRouter
from queuekeeper.text_form import shows

SESSIONS_PER_FLUSH = 128
FLUSHES = 2
"""Concurrent flushes: one is built while the server works on the other. If a flush took all waiting messages, client
and server would work by turns."""

ATTEMPTS = 6
BACKOFF = Backoff(first_s=0.1, longest_s=1.6)
"""Seconds to wait before a batch is sent again; about 3 s in total."""


class Stored(NamedTuple):
    """Packet id and serial of a stored message.

    :ivar replicated: whether the requested number of replicas has the message; none when none was requested.
    """

    serial: int
    packet_id: int
    replicated: bool | None = None


class MessageRefused(RefusedError):
    """A message was not stored.

    :ivar refusal: the reason.
    """

    def __init__(self, client_id: str, refusal: Refusal) -> None:
        super().__init__(f"the message for {client_id!r} was not stored: {refusal.value.replace('_', ' ')}")
        self.client_id = client_id
        self.refusal = refusal


_Waiting: TypeAlias = "deque[tuple[NewMessage, asyncio.Future[Stored], int]]"
"""Messages, each with what its caller waits for and its size in bytes."""


class _Batch(NamedTuple):
    """A batch of one session that is being saved."""

    save: SessionSave
    futures: tuple[asyncio.Future[Stored], ...]


@shows(store="_store", source="_source")
class SessionWriter(AsyncClosing):
    """Saves messages of many tasks through one store; use it in one event loop, preferably with ``async with``.

    Messages for one session are stored in the order of the calls of ``save``, one batch at a time.

    :param store: store in Redis, or a router.
    :param max_pending: most messages accepted and not yet stored; further calls wait until there is room.
    :param source: name under which this writer numbers its batches; no two writers may use a name at the same time.
        With a source, a batch whose reply was lost is sent again and stored once. Without one the error is raised, and
        the messages may or may not be stored.
    :param first_offset: number of the first batch, greater than all numbers that the source has used before, such as
        the microseconds since 1970. Required with ``source``.
    :raises UsageError: for a number out of range, or only one of source and offset.
    """

    def __init__(
        self,
        store: AsyncRedisSessionStore | AsyncSessionRouter,
        *,
        max_pending: int = MAX_PENDING,
        source: str | None = None,
        first_offset: int | None = None,
    ) -> None:
        check_integer("max_pending", max_pending, 1, 10_000_000, "they are held in memory")
        if (source is None) != (first_offset is None):
            raise UsageError("source and first_offset go together: name both or neither")
        if source is not None:
            check_text("source", source, most_bytes=MAX_TEXT_BYTES, filled=True)
            check_integer("first_offset", first_offset, 0, 2**52, "later batches have greater numbers")
        self._store = store
        self._source = source
        self._offset = first_offset or 0
        self._room = asyncio.Semaphore(max_pending)
        # Messages by session: of sessions without a batch that is being saved, and of the others.
        self._ready: OrderedDict[str, _Waiting] = OrderedDict()
        self._held: dict[str, _Waiting] = {}
        self._under_way: dict[str, _Batch] = {}
        self._flushes = 0
        self._starts_soon = False
        # Callers without a result, and batches: all callers of a batch that is being saved may have been cancelled.
        self._users = Users()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def save(self, client_id: str, message: NewMessage) -> Stored:
        """Store a message, and return when it is stored.

        Cancelling a call withdraws its message, unless it has been sent.

        :raises MessageRefused: when the message has expired or its expiry interval is out of range.
        :raises UsageError: when the message is larger than the store's rules allow, or the client id is invalid.
        :raises RefusedError: when the writer is closed.
        :raises QueuekeeperError: as the store's ``save_messages`` reports it for the session.
        """
        if self._closed:
            raise RefusedError("the writer is closed: it takes no more messages")
        check_client_id(client_id)
        size_bytes = self._store.operations.check_payload(client_id, message)
        self._users.enter()
        try:
            await self._room.acquire()
            try:
                future: asyncio.Future[Stored] = asyncio.get_running_loop().create_future()
                waiting = self._held if client_id in self._under_way else self._ready
                found = waiting.get(client_id)
                if found is None:
                    waiting[client_id] = deque([(message, future, size_bytes)])
                else:
                    found.append((message, future, size_bytes))
                if not self._starts_soon:
                    self._start_soon()
                return await future
            finally:
                self._room.release()
        finally:
            self._users.leave()

    async def flush(self) -> None:
        """Wait until all messages accepted so far are stored or have failed; each call of ``save`` has the result."""
        futures = [future for batch in self._under_way.values() for future in batch.futures]
        for waiting in (self._ready, self._held):
            futures += (future for messages in waiting.values() for _, future, _ in messages)
        if futures:
            await asyncio.wait(futures)

    async def close(self) -> None:
        """Refuse new messages, and wait until every call has its result; calls that wait for room are still served."""
        self._closed = True
        await self._users.gone()

    def _start_soon(self) -> None:
        if self._ready and self._flushes < FLUSHES:
            self._starts_soon = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starts_soon = False
        while self._ready and self._flushes < FLUSHES:
            batches = self._take()
            if batches:
                self._flushes += 1
                self._run(batches, attempt=1)

    def _take(self) -> list[_Batch]:
        """Return the next batches, and mark their sessions as being saved."""
        batches: list[_Batch] = []
        for _ in range(min(SESSIONS_PER_FLUSH, len(self._ready))):
            client_id, waiting = self._ready.popitem(last=False)
            taken = take_batch(waiting, most=MESSAGES_PER_SAVE, most_bytes=BYTES_PER_SAVE)
            if not taken:
                continue
            if waiting:
                self._held[client_id] = waiting
            offset = None
            if self._source is not None:
                offset = self._offset
                self._offset += 1
            messages, futures, sizes = zip(*taken, strict=True)
            save = SessionSave.checked(
                client_id=client_id, messages=messages, sizes_bytes=sizes, source=self._source, offset=offset
            )
            batch = self._under_way[client_id] = _Batch(save, futures)
            batches.append(batch)
        return batches

    def _run(self, batches: list[_Batch], *, attempt: int) -> None:
        task = asyncio.get_running_loop().create_task(self._send(batches, attempt))
        self._tasks.add(task)
        self._users.enter()
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._users.leave)

    async def _send(self, batches: list[_Batch], attempt: int) -> None:
        """Send batches once; another task sends those again whose result is unknown."""
        lost: list[_Batch] = []
        try:
            if attempt > 1:
                await asyncio.sleep(BACKOFF.after(attempt - 2))
            reports = await self._store.save_messages([batch.save for batch in batches])
            for batch, report in zip(batches, reports, strict=True):
                again = isinstance(report.error, ServerUnavailable) and self._source is not None
                if again and attempt < ATTEMPTS:
                    lost.append(batch)
                else:
                    self._settle(batch, report, repeated=attempt > 1)
        except BaseException as error:
            lost.clear()
            for batch in batches:
                self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
        finally:
            # Batches that are sent again do not delay the others.
            if attempt == 1:
                self._flushes -= 1
            if lost:
                self._run(lost, attempt=attempt + 1)
            if not self._starts_soon:
                self._start_soon()

    def _settle(self, batch: _Batch, report: SaveReport, *, repeated: bool) -> None:
        """Give each call of a batch its result."""
        error: QueuekeeperError | None = report.error
        if error is None and report.forgotten and repeated:
            error = RefusedError(
                f"the batch for {report.client_id!r}, or one with a greater number, is stored, but its reply was lost "
                "and the session has moved since, so its packet ids are unknown here: fetch the session"
            )
        elif error is None and (report.forgotten or (report.replayed and not repeated)):
            error = RefusedError(
                f"source {self._source!r} has saved a batch for {report.client_id!r} with number {batch.save.offset} "
                "or a greater one before: nothing was stored. Use each name in one writer at a time, with a greater "
                "first_offset"
            )
        if error is not None:
            self._fail(batch, error)
            return
        for position, future in enumerate(batch.futures):
            if future.done():
                continue
            serial, packet_id = report.serials[position], report.packet_ids[position]
            if serial is None or packet_id is None:
                future.set_exception(MessageRefused(report.client_id, report.refused[position]))
            else:
                future.set_result(Stored(serial, packet_id, report.replicated))
        self._finish(batch)

    def _fail(self, batch: _Batch, error: BaseException) -> None:
        for future in batch.futures:
            if not future.done():
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                else:
                    # Each call raises its own exception, with its own traceback.
                    future.set_exception(copy(error))
        self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        client_id = batch.save.client_id
        if self._under_way.get(client_id) is batch:
            del self._under_way[client_id]
            held = self._held.pop(client_id, None)
            if held is not None:
                self._ready[client_id] = held
