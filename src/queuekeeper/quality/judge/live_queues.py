"""Serves suites that read queues from the server when they run: sums, turns, and recording of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.quality.profile.model import TURNS
from queuekeeper.redis_client import RedisClient
from queuekeeper.sql_statements import statement

PARTS = 64
"""Number of parts of the queues; a fast run reads one part."""

KEEP_RUNS = 10
"""Number of full runs whose rows are kept."""

KEEP_FAST_RUNS = 2 * TURNS
"""Number of fast runs whose rows are kept: each queue's last two readings, which are compared."""


@dataclass(frozen=True, kw_only=True)
class QueueReading:
    """What a run reads of the queues of one kind.

    :param part: part of the queues to read; ``None`` reads all. Both go through the names of all keys.
    :param pace: called with the number of calls and of entries that came back; may wait.
    """

    client: RedisClient
    quality_run_id: str
    prefix: str
    now_ms: int
    hash_key: bytes
    part: int | None = None
    pace: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class QueueSums:
    """Sums over the queues that were read."""

    queues: int
    messages: int


_STATEMENTS = {
    "compacted": ("quality/delete_compacted_profiles", "quality/load_compacted_profiles"),
    "fanout": ("quality/delete_fanout_profiles", "quality/load_fanout_profiles"),
}


def part_of_turn(turn: int) -> int:
    """Return the part of the queues that a fast run reads; the turns of a day read all parts."""
    return turn * PARTS // TURNS


def save_rows(
    connection: Connection,
    suite: Literal["compacted", "fanout"],
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    quality_run_id: str,
    messages: Callable[[Mapping[str, Any]], int | None],
) -> QueueSums:
    """Record the rows of a run in place of those of an earlier try, and return their sums.

    :param messages: returns the number of messages of a queue's row, and ``None`` for any other row.
    """
    queues = total = 0
    with translated_errors(connection), connection.transaction(), connection.cursor() as cursor:
        # This also deletes the rows of old runs.
        old = {"suite": suite, "keep_runs": KEEP_RUNS, "keep_fast_runs": KEEP_FAST_RUNS}
        delete, load = _STATEMENTS[suite]
        cursor.execute(statement(delete), {"quality_run_id": quality_run_id, **old})
        with cursor.copy(statement(load)) as copy:
            for row in rows:
                copy.write_row([quality_run_id, *(row[name] for name in columns)])
                if (of_queue := messages(row)) is not None:
                    queues, total = queues + 1, total + of_queue
    return QueueSums(queues=queues, messages=total)
