"""Reads compacted queues for their suite in bounded steps: one row of numbers per queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from queuekeeper.compacted.model import Retention, RetentionPolicy
from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.compacted.reports import QueueView
from queuekeeper.errors import ScriptError, UsageError
from queuekeeper.identity import client_hash
from queuekeeper.keyspace import COMPACTED_REGISTRIES, client_slot, compacted_registry_key
from queuekeeper.maintenance.compacted.model import PartHeartbeat
from queuekeeper.maintenance.compacted.registry import Registry, scan_queues
from queuekeeper.postgres import Connection
from queuekeeper.quality.judge.live_queues import QueueReading, QueueSums, save_rows
from queuekeeper.redis_client import address_of, redis_errors

_PAGE = 200
_COLUMNS = (
    "client_id", "client_hash", "incarnation", "epoch", "sequence", "sent", "acked", "rewinds", "live", "tombstones",
    "lag", "in_flight", "size_bytes", "lost_unacked", "oldest_undelivered_s", "oldest_unacked_s", "missing_values",
    "orphan_values", "stale_values", "index_faults", "cursor_faults", "wrong_bytes", "unreadable", "registered",
    "overdue_s", "heartbeat_s",
)  # fmt: skip
_FAULTS = {
    "missing_value": "missing_values",
    "dangling_value": "orphan_values",
    "wrong_sequence": "stale_values",
    "sent_too_high": "cursor_faults",
    "acked_too_high": "cursor_faults",
    "acked_behind": "cursor_faults",
    "stray_in_flight": "cursor_faults",
    "wrong_bytes": "wrong_bytes",
}
"""Rule of ``CompactedQueues.verify`` -> column; every other rule counts as a fault of an index."""

_NOTHING = dict.fromkeys((*_FAULTS.values(), "index_faults"), 0)


def profile_compacted_queues(connection: Connection, reading: QueueReading) -> QueueSums:
    """Record one row of numbers per queue; the rows of an earlier try are replaced."""
    return save_rows(
        connection,
        "compacted",
        _COLUMNS,
        _Reader(reading).rows(),
        quality_run_id=reading.quality_run_id,
        messages=lambda row: int(row["live"]),
    )


class _Reader:
    def __init__(self, reading: QueueReading) -> None:
        self._reading = reading
        self._client: Any = reading.client
        self._queues = CompactedQueues(self._client, reading.prefix, clock=lambda: reading.now_ms)
        registry = Registry(self._client, reading.prefix)
        self._beats = [registry.heartbeat(part) for part in range(COMPACTED_REGISTRIES)]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row per queue; SCAN also finds queues that no registry lists."""
        seen: set[str] = set()
        for page in scan_queues(self._client, prefix=self._reading.prefix):
            for client_id in page:
                if client_id not in seen and self._reading.part in (
                    None,
                    client_slot(client_id) % COMPACTED_REGISTRIES,
                ):
                    seen.add(client_id)
                    row = self._row(client_id)
                    if row is not None:
                        yield row

    def _row(self, client_id: str) -> dict[str, Any] | None:
        """Return the row of a queue, or ``None`` when the queue was removed meanwhile."""
        registry_key = compacted_registry_key(client_id, prefix=self._reading.prefix)
        with redis_errors(address_of(self._client)):
            registered = self._client.zscore(registry_key, client_id) is not None
        beat = self._beats[client_slot(client_id) % COMPACTED_REGISTRIES]
        row: dict[str, Any] = {
            # A text in PostgreSQL cannot hold zero characters.
            "client_id": client_id.replace("\0", "\\0"),
            "client_hash": client_hash(client_id, key=self._reading.hash_key),
            "registered": int(registered),
        }
        try:
            view = self._queues.inspect(client_id)
            report = self._queues.verify(client_id)
            overdue_s = self._overdue_s(client_id, view, beat)
        except (ScriptError, UsageError):
            view, report, overdue_s = QueueView(client_id=client_id, exists=True, incarnation=0), None, 0.0
        if not view.exists:
            return None
        self._reading.pace(1 if report is None else 1 + report.checked)
        violations = () if report is None else report.violations
        counted = Counter(_FAULTS.get(each.rule, "index_faults") for each in violations)
        made_ms = (view.incarnation or 0) // 1_000
        return (
            row
            | _NOTHING
            | counted
            | {
                "incarnation": view.incarnation or 0,
                "epoch": view.epoch,
                "sequence": view.sequence,
                "sent": view.sent,
                "acked": view.acked,
                "rewinds": view.counters.get("rewinds", 0),
                "live": view.live,
                "tombstones": view.tombstones,
                "lag": view.lag,
                "in_flight": view.in_flight,
                "size_bytes": view.size_bytes,
                "lost_unacked": view.counters.get("expired_unacked", 0) + view.counters.get("evicted_unacked", 0),
                "oldest_undelivered_s": _seconds(view.oldest_undelivered_age_ms),
                "oldest_unacked_s": _seconds(view.oldest_unacked_age_ms),
                "unreadable": int(report is None),
                "overdue_s": overdue_s,
                "heartbeat_s": max(0, self._reading.now_ms - (made_ms if beat is None else beat.finished_ms)) / 1_000,
            }
        )

    def _overdue_s(self, client_id: str, view: QueueView, beat: PartHeartbeat | None) -> float:
        """Return for how many seconds the oldest due message has been due, by the rules of the last collection."""
        after_sequence, more = 0, True
        while more:
            page = self._queues.find_due(
                client_id,
                retention=Retention() if beat is None else beat.retention,
                after_sequence=after_sequence,
                limit=_PAGE,
                now_ms=self._reading.now_ms,
            )
            self._reading.pace(1 + len(page.rows))
            if page.rows:
                rules, row = page.retention, page.rows[0]
                early = row.tombstone and row.acked
                life_ms = min(rules.tombstone_ms, rules.retention_ms) if early else rules.retention_ms
                due_ms = row.appended_ms + life_ms
                if early or rules.policy is RetentionPolicy.ACKED_ONLY:
                    # The message may have become due only when it was acknowledged.
                    due_ms = max(due_ms, view.acked_ms or 0)
                return max(0, self._reading.now_ms - due_ms) / 1_000
            after_sequence, more = page.next_after_sequence, page.more
        return 0.0


def _seconds(age_ms: int | None) -> float | None:
    return None if age_ms is None else age_ms / 1_000
