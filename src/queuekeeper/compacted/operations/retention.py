"""Operations of the collector: find messages that are due, remove them, restore them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queuekeeper import lua
from queuekeeper.checks import check_integer
from queuekeeper.compacted.model import MAX_PAGE, MAX_SEQUENCE, PRODUCER_MS, Retention
from queuekeeper.compacted.operations.common import (
    ROWS_PER_CALL,
    CommonOperations,
    ask,
    check_retention,
    or_none,
    parts_of,
    retention_of,
)
from queuekeeper.compacted.reports import CollectReport, DuePage, DueRow, RestoreReport
from queuekeeper.errors import UsageError
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation
from queuekeeper.portions import portions

DUE_BYTES_PER_CALL = 262_144
"""Most bytes of keys and values that one call finds or removes, so that it blocks the server for at most 2 ms."""


class RetentionOperations(CommonOperations):
    """Find what is due, collect, restore."""

    def find_due(
        self,
        client_id: str,
        *,
        retention: Retention,
        override: bool = False,
        after_sequence: int = 0,
        limit: int = 100,
        with_values: bool = False,
        now_ms: int | None = None,
    ) -> Operation[DuePage]:
        """Return a page of the messages that retention would remove, oldest first, and change nothing.

        :param retention: retention for a queue that has none of its own.
        :param override: use ``retention`` even if the queue has its own.
        :param after_sequence: ``next_after_sequence`` of the page before, for a caller that does not collect between
            pages; 0 to begin with the oldest message.
        :param limit: most messages to read, due or not, at most 500.
        :param with_values: also return the stored values, which :meth:`restore` needs.
        :param now_ms: time in milliseconds since 1970; none for the server's time.
        """
        check_integer("after_sequence", after_sequence, 0, MAX_SEQUENCE, "from the page before, or 0")
        check_integer("limit", limit, 1, MAX_PAGE, "rows of a page")
        check_retention(retention)
        reply = yield from ask(
            scripts.find_due(
                self._keys(client_id),
                policy=retention.policy,
                retention_ms=retention.retention_ms,
                tombstone_ms=retention.tombstone_ms,
                override=int(override),
                after_sequence=after_sequence,
                limit=limit,
                with_values=int(with_values),
                max_bytes=DUE_BYTES_PER_CALL,
                now=self._now(now_ms),
            )
        )
        return DuePage(
            rows=tuple(
                DueRow(
                    key=row.key,
                    sequence=row.sequence,
                    appended_ms=row.ms,
                    tombstone=bool(row.is_tombstone),
                    size_bytes=row.bytes,
                    acked=bool(row.is_acked),
                    stored=row.value if with_values else None,
                )
                for row in reply.rows
            ),
            retention=retention_of(reply.policy, reply.retention_ms, reply.tombstone_ms),
            more=bool(reply.more),
            next_after_sequence=reply.next_after_sequence,
            looked_at=reply.looked_at,
            next_due_ms=or_none(reply.next_due_ms),
        )

    def collect(
        self,
        client_id: str,
        *,
        retention: Retention,
        rows: Sequence[DueRow],
        override: bool = False,
        producer_ms: int = PRODUCER_MS,
        now_ms: int | None = None,
    ) -> Operation[CollectReport]:
        """Remove those messages of :meth:`find_due` that are still due and whose key has no newer value.

        :param rows: messages to remove; may be empty.
        :param producer_ms: how long after its last append a producer can repeat it, 7 days by default.
        """
        check_integer("producer_ms", producer_ms, 0, MAX_SEQUENCE, "an age in milliseconds")
        check_retention(retention)
        keys = self._keys(client_id)
        collected = unacked = tombstones = size_bytes = kept = producers = live = 0
        next_due_ms: int | None = None
        stayed: list[int] = []
        for part in _removable(rows):
            reply = yield from ask(
                scripts.collect(
                    keys,
                    policy=retention.policy,
                    retention_ms=retention.retention_ms,
                    tombstone_ms=retention.tombstone_ms,
                    override=int(override),
                    producer_ms=producer_ms,
                    now=self._now(now_ms),
                    rows=(text for row in part for text in (row.key, row.sequence)),
                )
            )
            collected += reply.deleted
            unacked += reply.unacked
            tombstones += reply.tombstones
            size_bytes += reply.bytes
            kept += reply.kept
            producers += reply.producers
            live, next_due_ms = reply.live, or_none(reply.next_due_ms)
            stayed += reply.stayed
        return CollectReport(
            collected=collected,
            kept=kept,
            kept_sequences=tuple(stayed),
            unacked=unacked,
            tombstones=tombstones,
            size_bytes=size_bytes,
            producers=producers,
            live=live,
            next_due_ms=next_due_ms,
        )

    def restore(
        self, client_id: str, *, rows: Sequence[DueRow], incarnation: int | None = None
    ) -> Operation[RestoreReport]:
        """Restore collected messages whose key has no value now.

        :param rows: collected rows, with their values.
        :param incarnation: incarnation of the queue from which they were collected; none to restore into any.
        :raises UnknownQueue: when the queue does not exist.
        :raises StaleEpoch: when the queue has been dropped and made again since.
        """
        keys = self._keys(client_id)
        values: list[tuple[lua.Value, ...]] = []
        for row in rows:
            if row.stored is None:
                raise UsageError(f"row {row.sequence} has no value: find rows to restore by find_due with with_values")
            values.append((row.key, row.sequence, row.appended_ms, row.stored))
        restored = present = refused = to_deliver = 0
        for part in parts_of(values, most=ROWS_PER_CALL):
            call = scripts.restore(keys, incarnation="" if incarnation is None else incarnation, rows=part)
            reply = yield from ask(call)
            restored += reply.restored
            present += reply.present
            refused += reply.refused
            to_deliver += reply.to_deliver
        if restored:
            # Restored messages may be due earlier than the collector's next visit of the queue.
            yield from self._note(client_id, "earlier")
        return RestoreReport(restored=restored, present=present, refused=refused, to_deliver=to_deliver)


def _removable(rows: Sequence[DueRow]) -> Iterator[Sequence[DueRow]]:
    """Cut rows into parts that one call may remove, by number and size; no rows give one empty part."""
    yield from portions(rows, size=lambda row: row.size_bytes, most=DUE_BYTES_PER_CALL, most_items=ROWS_PER_CALL)
    if not rows:
        yield []
