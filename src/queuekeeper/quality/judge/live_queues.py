"""What suites share that read a server's queues themselves when they are judged: sums, turns, rows on record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from queuekeeper.postgres import Connection, statement, translated_errors
from queuekeeper.quality.profile.model import TURNS

PARTS = 64
"""A fast judgement reads one of so many parts of the queues."""

KEEP_RUNS = 10
"""The rows of so many judgements are kept."""


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
    """Return which part of the queues a fast judgement reads; the turns of a day go through all of them."""
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
    """Put the rows of a judgement on record, in the place of those of an earlier try, and return their sums.

    :param messages: how many a queue has; none for a row that is no queue's.
    """
    queues = total = 0
    with translated_errors(connection), connection.transaction(), connection.cursor() as cursor:
        # Also what is left of old judgements.
        old = {"quality_run_id": quality_run_id, "keep_runs": KEEP_RUNS}
        delete, load = _STATEMENTS[suite]
        cursor.execute(statement(delete), old)
        with cursor.copy(statement(load)) as copy:
            for row in rows:
                copy.write_row([quality_run_id, *(row[name] for name in columns)])
                if (of_queue := messages(row)) is not None:
                    queues, total = queues + 1, total + of_queue
    return QueueSums(queues=queues, messages=total)
