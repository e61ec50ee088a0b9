"""What suites share that read a server's queues themselves when they are judged: sums, turns, rows on record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from queuekeeper.postgres import Connection, translated_errors
from queuekeeper.quality.profile_model import TURNS

PARTS = 64
"""A fast judgement reads one of so many parts of the queues."""

KEEP_RUNS = 10
"""The rows of so many judgements are kept."""


@dataclass(frozen=True, kw_only=True)
class QueueSums:
    """Sums over the queues that were read."""

    queues: int
    messages: int


def part_of_turn(turn: int) -> int:
    """Return which part of the queues a fast judgement reads; the turns of a day go through all of them."""
    return turn * PARTS // TURNS


def save_rows(
    connection: Connection,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    quality_run_id: str,
    delete: LiteralString,
    load: LiteralString,
) -> None:
    """Put the rows of a judgement on record, in the place of those of an earlier try.

    :param delete: statement that removes what an earlier try has left, and old judgements.
    :param load: statement that takes the rows in.
    """
    with translated_errors(connection), connection.transaction(), connection.cursor() as cursor:
        cursor.execute(delete, {"quality_run_id": quality_run_id, "keep_runs": KEEP_RUNS})
        with cursor.copy(load) as copy:
            for row in rows:
                copy.write_row([quality_run_id, *(row[name] for name in columns)])
