"""Reads fan-out queues for their suite in bounded steps: one row per queue and one per consumer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from queuekeeper.errors import ServerUnavailable
from queuekeeper.fanout.reports import ConsumerView, Finding, Problem, QueueView
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import fanout_consumer_keys, fanout_part
from queuekeeper.maintenance.fanout.queues import QUEUE_ERRORS, PacedFanoutQueues, find_queues
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.live_queues import QueueReading, QueueSums, save_rows
from queuekeeper.redis_client import address_of, redis_errors

_FINDINGS = 100_000
"""Largest number of faults that are counted in a queue."""

_FAULTS = (
    "missing_payloads", "lost_references", "orphan_payloads", "wrong_counts", "wrong_expiries", "doubled",
    "left_notes", "lost_leases",
)  # fmt: skip
_COLUMNS = (
    "queue", "consumer", "client_hash", "messages", "dead_letters", *_FAULTS, "forsaken_s", "expired_s",
    "dead_overdue_s", "overdue_s", "lease_left_s", "unreadable",
)  # fmt: skip
_COLUMN_OF = {
    Problem.MISSING_PAYLOAD: "missing_payloads",
    Problem.WRONG_EXPIRY: "wrong_expiries",
    Problem.DOUBLED: "doubled",
    Problem.LEFT_NOTES: "left_notes",
    Problem.LOST_LEASE: "lost_leases",
}
_HEALTHY = dict.fromkeys(_COLUMNS[3:], 0)


def profile_fanout_queues(connection: Connection, reading: QueueReading) -> QueueSums:
    """Record one row of numbers per queue and per consumer; the rows of an earlier try are replaced."""
    reader, queues = _Reader(reading), find_queues(reading.client, prefix=reading.prefix)
    return save_rows(
        connection,
        "fanout",
        _COLUMNS,
        (row for queue in queues if reading.part in (None, fanout_part(queue)) for row in reader.rows(queue)),
        quality_run_id=reading.quality_run_id,
        messages=lambda row: None if row["consumer"] else int(row["messages"]),
    )


class _Reader:
    def __init__(self, reading: QueueReading) -> None:
        self._reading = reading
        self._client: Any = reading.client
        self._queues = PacedFanoutQueues(self._client, reading.prefix, clock=lambda: reading.now_ms, pace=reading.pace)

    def rows(self, queue: str) -> list[dict[str, Any]]:
        """Return the rows of a queue and of its consumers; empty when the queue was removed meanwhile."""
        try:
            view = self._queues.inspect(queue)
            if not view.exists:
                return []
            faults = _faults(self._queues.verify(queue, findings=_FINDINGS).findings)
            own = [self._of_consumer(queue, each) for each in view.consumers]
        except QUEUE_ERRORS as error:
            if isinstance(error, ServerUnavailable):
                raise
            return [self._row(queue, "", {"unreadable": 1})]
        rows = [self._row(queue, "", self._of_queue(view) | faults[None])]
        for consumer, found in zip(view.consumers, own, strict=True):
            rows.append(self._row(queue, consumer.consumer, found | faults[consumer.consumer]))
        return rows

    def _row(self, queue: str, consumer: str, found: dict[str, Any]) -> dict[str, Any]:
        return {
            **_HEALTHY,
            # A text in PostgreSQL cannot hold zero characters, which names from other programs may contain.
            "queue": queue.replace("\0", "\\0"),
            "consumer": consumer,
            "client_hash": client_hash(queue, key=self._reading.hash_key),
            **found,
        }

    def _of_queue(self, view: QueueView) -> dict[str, Any]:
        return {
            "messages": view.messages,
            "dead_letters": sum(each.dead for each in view.consumers),
            "expired_s": self._since_s(view.next_expiry_ms),
        }

    def _of_consumer(self, queue: str, view: ConsumerView) -> dict[str, Any]:
        waiting = view.ready + view.leased + view.delayed
        kept_ms = 0 if view.options is None else view.options.dead_retention_ms
        dead_due_ms = None if view.oldest_dead_ms is None else view.oldest_dead_ms + kept_ms
        return {
            "messages": waiting,
            "dead_letters": view.dead,
            "forsaken_s": self._since_s(view.last_seen_ms) if waiting else 0,
            "dead_overdue_s": self._since_s(dead_due_ms),
            "overdue_s": self._since_s(view.next_deadline_ms),
            "lease_left_s": self._lease_left_s(queue, view) if view.leased else 0,
        }

    def _lease_left_s(self, queue: str, view: ConsumerView) -> float:
        """Return in how many seconds the last lease ends."""
        key = fanout_consumer_keys(queue, view.consumer, prefix=self._reading.prefix).leases
        with redis_errors(address_of(self._client)):
            found = self._client.zrange(key, 0, 0, desc=True, withscores=True)
        return max(0.0, *(deadline_ms - self._reading.now_ms for _, deadline_ms in found)) / 1_000 if found else 0.0

    def _since_s(self, instant_ms: int | None) -> float:
        return 0.0 if instant_ms is None else max(0, self._reading.now_ms - instant_ms) / 1_000


def _faults(findings: Sequence[Finding]) -> dict[str | None, dict[str, int]]:
    """Return faults by consumer and column; the key ``None`` holds the faults of the queue itself."""
    found: dict[str | None, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_FAULTS, 0))
    for finding in findings:
        if finding.problem in _COLUMN_OF:
            column, count = _COLUMN_OF[finding.problem], 1
        else:
            # More consumers owe an ack than hold the message: it was taken from some and never returned to them.
            lost = (finding.found or 0) - (finding.expected or 0)
            if lost > 0:
                column, count = "lost_references", lost
            elif finding.problem is Problem.UNREFERENCED_PAYLOAD:
                column, count = "orphan_payloads", 1
            else:
                column, count = "wrong_counts", 1
        found[finding.consumer][column] += count
    return found
