"""Decides the fate of every row, on Arrow's columns, from rows in the order of their queues.

A *row* is a message of ``device_publish_msg`` or a session of ``device_session_ctx`` (``kind`` tells which). Rows of a
client lie together, its newest message first and its session last. The rules, in order of precedence (``docs/adr``,
0004):

============  ================================================================================
quarantined   a column breaks a rule; the row is kept aside with its reason
expired       its life was over at the plan's instant
quarantined   a newer live message of the client has the same packet id (``packet_id_duplicate``)
trimmed       more than ``limit`` newer live messages of the client exist
copied        everything else
============  ================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from queuekeeper.errors import RefusedError
from queuekeeper.keyspace import MAX_PACKET_ID
from queuekeeper.migration.offline.transforms import MESSAGE, SESSION
from queuekeeper.migration.preflight import REINDEX
from queuekeeper.sessions.judge import MAX_SERIAL, Reason

COLUMNS = {"fate": "string", "last_packet_id": "int", "last_serial": "bigint"}
"""What is added to each row or replaced in it, with Spark's types.

``fate`` is ``copied``, ``expired``, ``trimmed`` or ``quarantined``, and ``session`` for session rows.
``last_packet_id`` is the packet id given out last on a session row, and on a message row the same if the client has no
session row; the import passes those that wait. ``last_serial`` is likewise the serial given out last.
"""

_FATES = pa.array([SESSION, "quarantined", "expired", "trimmed", "copied"])
_UNFIT = pa.array([Reason.CLIENT_ID_EMPTY.value, Reason.CLIENT_ID_SCATTERED.value])

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(kw_only=True)
class _Queue:
    """What the rest of a client's rows depend on, when its rows go on in the next batch.

    :param kept: live messages so far.
    :param packet_ids: which packet ids the live messages so far have.
    :param newest: serial and packet id of the newest sound message; none so far if there was none.
    """

    client_id: str
    serial: int | None
    kept: int
    packet_ids: Mask
    newest: tuple[int, int] | None


def decided(batches: Iterator[pa.RecordBatch], *, limit: int, as_of_ms: int) -> Iterator[pa.RecordBatch]:
    """Add each row's fate and the values that the import needs.

    :param batches: rows judged where they were read (:mod:`queuekeeper.migration.offline.judging`), in the order above.
    :param limit: messages that a session may keep.
    :param as_of_ms: instant of the plan, at which messages are judged live or expired.
    :raises RefusedError: when the rows are not in that order.
    """
    order = _Order()
    queue: _Queue | None = None
    for batch in batches:
        if batch.num_rows:
            rows = _Rows.of(batch, queue, as_of_ms=as_of_ms)
            order.check(rows, queue)
            yield rows.decided(limit)
            queue = rows.rest()


def sent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep what the import sends: the copied messages, and the sessions that the target can have."""
    for batch in batches:
        wanted = pc.is_in(batch.column("fate"), pa.array(["copied", SESSION]))
        fits = pc.invert(pc.is_in(batch.column("reason"), _UNFIT))
        yield batch.filter(pc.and_(wanted, fits))


class _Order:
    """Holds rows to the order that the rules rest on, whoever has sorted them."""

    def __init__(self) -> None:
        self._ended: set[str] = set()

    def check(self, rows: _Rows, before: _Queue | None) -> None:
        continued = before is not None and rows.clients[0] == before.client_id
        begun = rows.clients[1:] if continued else rows.clients
        if before is not None and not continued:
            self._ended.add(before.client_id)
        if len(set(begun)) < len(begun) or not self._ended.isdisjoint(begun):
            raise RefusedError(f"rows of one client do not lie together: {REINDEX}")
        self._ended.update(rows.clients[:-1])
        serial, same = rows.serial, rows.run[1:] == rows.run[:-1]
        message = rows.is_message
        wrong = same & (~message[:-1] | (message[1:] & (serial[1:] >= serial[:-1])))
        if continued and before is not None:
            wrong = np.append(wrong, before.serial is None or (message[0] and serial[0] >= before.serial))
        if wrong.any():
            raise RefusedError(f"messages of one client do not come newest first: {REINDEX}")


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """A batch taken apart.

    :param clients: each run's client id.
    :param starts: where each run of one client begins.
    :param run: number of each row's run.
    :param live: sound messages that live at the plan's instant.
    :param newer: those of them that have a newer one with the same packet id.
    :param newest: serial and packet id of the newest sound message so far, by row; what they are without one
        (``has_newest``) means nothing.
    """

    batch: pa.RecordBatch
    queue: _Queue | None
    clients: list[str]
    starts: Numbers
    run: Numbers
    serial: Numbers
    packet_id: Numbers
    is_message: Mask
    sound: Mask
    live: Mask
    newer: Mask
    newest: tuple[Numbers, Numbers]
    has_newest: Mask

    @classmethod
    def of(cls, batch: pa.RecordBatch, before: _Queue | None, *, as_of_ms: int) -> _Rows:
        runs = pc.run_end_encode(batch.column("client_id"))
        clients, ends = runs.values.to_pylist(), runs.run_ends.to_numpy().astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]])
        run = np.repeat(np.arange(len(ends)), ends - starts)
        queue = before if before is not None and before.client_id == clients[0] else None
        serial, packet_id = _numbers(batch.column("serial_number")), _numbers(batch.column("packet_id"))
        is_message = _mask(pc.equal(batch.column("kind"), MESSAGE))
        sound = is_message & _mask(pc.is_null(batch.column("reason")))
        live = sound & _mask(pc.greater(batch.column("expires_at_ms"), as_of_ms))
        rows = np.arange(len(run))
        first_sound = np.minimum.reduceat(np.where(sound, rows, len(rows)), starts)[run]
        has_newest = first_sound <= rows
        at = np.where(has_newest, first_sound, 0)
        newest = serial[at], packet_id[at]
        if queue is not None and queue.newest is not None:
            for values, value in zip(newest, queue.newest, strict=True):
                values[run == 0] = value
            has_newest = has_newest | (run == 0)
        return cls(
            batch=batch, queue=queue, clients=clients, starts=starts, run=run, serial=serial, packet_id=packet_id,
            is_message=is_message, sound=sound, live=live, newer=_newer(live, run, packet_id, queue), newest=newest,
            has_newest=has_newest,
        )  # fmt: skip

    def decided(self, limit: int) -> pa.RecordBatch:
        """Return the batch with what was decided."""
        kept = self.live & ~self.newer
        reason = self.batch.column("reason")
        if self.newer.any():
            reason = pc.if_else(pa.array(self.newer), Reason.PACKET_ID_DUPLICATE.value, reason)
        rules = [~self.is_message, ~_mask(pc.is_null(reason)), ~self.live, self._rank(kept) > limit]
        fate = _FATES.take(pa.array(np.select(rules, range(len(rules)), len(rules))))
        last_packet_id, last_serial = self._last()
        names = [name for name in self.batch.schema.names if name not in {"reason", "last_packet_id"}]
        columns: dict[str, Any] = {name: self.batch.column(name) for name in names}
        given = {"reason": reason, "fate": fate, "last_packet_id": last_packet_id, "last_serial": last_serial}
        return pa.RecordBatch.from_pydict(columns | given)

    def rest(self) -> _Queue:
        """Return what the last client's rows in the next batch depend on."""
        last = int(self.starts[-1])
        begun = self.queue if last == 0 else None
        kept = (self.live & ~self.newer)[last:]
        packet_ids = np.zeros(MAX_PACKET_ID + 1, np.bool_) if begun is None else begun.packet_ids
        packet_ids[self.packet_id[last:][self.live[last:]]] = True
        return _Queue(
            client_id=self.clients[-1],
            serial=int(self.serial[-1]) if self.is_message[-1] else None,
            kept=int(kept.sum()) + (0 if begun is None else begun.kept),
            packet_ids=packet_ids,
            newest=(int(self.newest[0][-1]), int(self.newest[1][-1])) if self.has_newest[-1] else None,
        )

    def _rank(self, kept: Mask) -> Numbers:
        """Return how many messages of the client would stay with the newest ones up to each row."""
        total = np.cumsum(kept)
        before = np.concatenate([[0], total])[self.starts]
        if self.queue is not None:
            before[0] -= self.queue.kept
        rank: Numbers = total - before[self.run]
        return rank

    def _last(self) -> tuple[pa.Array, pa.Array]:
        """Return packet id and serial given out last: the session's, unless a stored message is newer.

        TBMQ 1.x writes counter and messages in separate transactions, so either may be ahead. Online migrations decide
        the same in ``sessions.snapshot.last_given``; ``keyspace.safe_counter`` skips packet ids in use.
        """
        serial, packet_id = self.newest
        counter, noted = self.batch.column("last_packet_id"), self.batch.column("last_serial_number")
        counters, serials = _numbers(counter), _numbers(noted, null=-1)
        behind = self.has_newest & (serial > serials)
        own = ~self.is_message & ~behind & (counters >= 1) & (counters <= MAX_PACKET_ID)
        last_packet_id = pa.array(np.where(own, counters, packet_id), pa.int32(), mask=~(own | self.has_newest))
        known = ~self.is_message & (serials >= 0) & (serials <= MAX_SERIAL)
        greatest = np.maximum(np.where(known, serials, -1), np.where(self.has_newest, serial, -1))
        return last_packet_id, pa.array(greatest, pa.int64(), mask=~(known | self.has_newest))


def _newer(live: Mask, run: Numbers, packet_id: Numbers, queue: _Queue | None) -> Mask:
    """Return which live messages have a newer live one of their client with the same packet id."""
    at = np.flatnonzero(live)
    _, first = np.unique(run[at] * (MAX_PACKET_ID + 1) + packet_id[at], return_index=True)
    newer = live.copy()
    newer[at[first]] = False
    if queue is not None:
        newer |= live & (run == 0) & queue.packet_ids[np.where(live, packet_id, 0)]
    return newer


def _mask(values: pa.Array) -> Mask:
    found: Mask = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return found


def _numbers(values: pa.Array, *, null: int = 0) -> Numbers:
    found: Numbers = pc.fill_null(pc.cast(values, pa.int64()), null).to_numpy(zero_copy_only=False)
    return found
