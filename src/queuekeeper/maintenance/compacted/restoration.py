"""Restores messages that a collection of compacted queues has removed, from the undo files of its shares.

A line of a file names the rows to be removed, and a later line those that stayed. Keys that later collections removed
are left alone; their undo files name them. The queue's counters tell whether anything else was removed since: by a
purge, by a full queue, or by a collection whose file is missing. Then it is unknown which keys were removed on purpose,
and no row of the line is restored.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from queuekeeper.compacted.queue import CompactedQueues
from queuekeeper.compacted.reports import DueRow, QueueView, RestoreReport
from queuekeeper.errors import RefusedError, ScriptError, UsageError
from queuekeeper.jobs.model import World
from queuekeeper.jobs.undo import read_undo_file, undo_paths_of
from queuekeeper.maintenance.compacted.model import KIND, CollectionParameters, Restoration

ROWS_PER_STEP = 100
"""Rows per call; finding and removing that many takes a server about a millisecond each, also in a queue of 200,000."""


def undo_mark(view: QueueView) -> dict[str, Any]:
    """Return the fields of an undo file's line that identify the queue and count what was removed from it before."""

    def counted(*names: str) -> int:
        return sum(view.counters.get(name, 0) for name in names)

    return {
        "client_id": view.client_id,
        "incarnation": view.incarnation,
        "collected": counted("expired", "tombstones_collected"),
        "removed": counted("evicted", "purged"),
    }


def restore_collected(
    queues: CompactedQueues, world: World[CollectionParameters], *, run_id: str, files: Sequence[Path]
) -> Restoration:
    """Restore messages whose key has no value now, each at its old place in the order.

    Restored messages keep their age, so the next collection removes them again unless the queue has another retention
    by then.

    :param queues: store of the queues; in a dry run its scripts decide in the same way and only count.
    :param files: undo files of the run. Undo files of later collections are looked for in the same folder.
    :raises RefusedError: when the run kept no values.
    """
    for path in files:
        header, _ = read_undo_file(path, kind=KIND)
        if not header["values"]:
            raise RefusedError(f"run {run_id} kept no values: {path} only lists what was removed")
    histories = _histories(files, files[0].parent)
    for (client_id, _), history in histories.items():
        # An unreadable queue gets nothing back and does not stop the other queues.
        world.pace(1)
        with suppress(ScriptError, UsageError):
            history.judge(undo_mark(queues.inspect(client_id)))
    restored = kept = only_after_rewind = 0
    # A killed run may have noted a row twice; it is restored once.
    known: set[tuple[str, int, int]] = set()
    for path in files:
        for number, line in _row_lines(path):
            batch = histories[_queue(line)].batches[path, number]
            rows = [_row(each) for each in line["rows"]]
            wanted = [row for row in rows if batch.takes_back(row) and (*_queue(line), row.sequence) not in known]
            known.update((*_queue(line), row.sequence) for row in wanted)
            kept += len(rows) - len(wanted)
            for acked in (False, True):
                for some in world.batches((row for row in wanted if row.acked is acked), ROWS_PER_STEP):
                    world.pace(len(some))
                    report = _restore(queues, line, some)
                    restored += report.restored
                    kept += report.present + report.refused
                    only_after_rewind += 0 if acked else report.restored - report.to_deliver
    return Restoration(
        maintenance_run_id=run_id,
        dry_run=world.counts_only,
        files=len(files),
        restored=restored,
        kept=kept,
        only_after_rewind=only_after_rewind,
    )


# --- inside ----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Batch:
    """What later lines need to know of a line of rows.

    :ivar collected: messages that collections had removed from the queue before.
    :ivar removed: messages that others had removed from the queue before.
    :ivar keys: digest of each key by the number of its row.
    :ivar kept: numbers of the rows that stayed; none when the collector was killed before it noted them.
    :ivar left_alone: digests of keys that are not restored; none when no key is restored.
    """

    collected: int
    removed: int
    keys: dict[int, bytes]
    kept: frozenset[int] | None = None
    left_alone: set[bytes] | None = None

    def takes_back(self, row: DueRow) -> bool:
        """Return whether this line removed a row, and no later line removed its key."""
        stayed = self.kept is not None and row.sequence in self.kept
        return not stayed and self.left_alone is not None and _digest(row.key) not in self.left_alone


@dataclass
class _History:
    """All lines of rows of one queue, by file and number."""

    incarnation: int
    batches: dict[tuple[Path, int], _Batch] = field(default_factory=dict)

    def judge(self, now: Mapping[str, Any]) -> None:
        """Find the lines that can be undone.

        :param now: mark of the queue at present.
        """
        if now["incarnation"] != self.incarnation:
            # The queue was dropped since, with all its messages.
            return
        least = most = 0
        named: set[bytes] = set()
        # A stable sort keeps the order of rows that a killed run has noted twice.
        for batch in sorted(self.batches.values(), key=lambda each: each.collected)[::-1]:
            rows = len(batch.keys)
            least += 0 if batch.kept is None else rows - len(batch.kept)
            most += rows - len(batch.kept or ())
            if now["removed"] == batch.removed and least <= now["collected"] - batch.collected <= most:
                batch.left_alone = named.intersection(batch.keys.values())
            named.update(key for sequence, key in batch.keys.items() if sequence not in (batch.kept or ()))


def _histories(paths: Iterable[Path], directory: Path) -> dict[tuple[str, int], _History]:
    """Return the lines in the undo files of all collections about the queues that the given files name."""
    histories = {
        queue: _History(queue[1]) for path in paths for _, line in _row_lines(path) for queue in [_queue(line)]
    }
    for path in undo_paths_of(directory, kind=KIND):
        last: dict[tuple[str, int], _Batch] = {}
        for number, line in enumerate(read_undo_file(path)[1]):
            queue = _queue(line)
            if queue not in histories:
                continue
            if "kept" in line:
                last[queue].kept = frozenset(line["kept"])
                continue
            last[queue] = _Batch(
                collected=line["collected"],
                removed=line["removed"],
                keys={row["sequence"]: _digest(b64decode(row["key"])) for row in line["rows"]},
            )
            histories[queue].batches[path, number] = last[queue]
    return histories


def _row_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the lines of a file that name rows, with their numbers."""
    return ((number, line) for number, line in enumerate(read_undo_file(path)[1]) if "rows" in line)


def _queue(line: Mapping[str, Any]) -> tuple[str, int]:
    return line["client_id"], line["incarnation"]


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=8).digest()


def _restore(queues: CompactedQueues, line: Mapping[str, Any], rows: list[DueRow]) -> RestoreReport:
    with suppress(ScriptError, UsageError):
        return queues.restore(line["client_id"], rows=rows, incarnation=line["incarnation"])
    # A queue that was just dropped or is unreadable does not keep others from being restored.
    return RestoreReport(restored=0, present=len(rows), refused=0, to_deliver=0)


def _row(line: Mapping[str, Any]) -> DueRow:
    return DueRow(
        key=b64decode(line["key"]),
        sequence=line["sequence"],
        appended_ms=line["appended_ms"],
        tombstone=line["tombstone"],
        size_bytes=line["size_bytes"],
        acked=line["acked"],
        stored=b64decode(line["stored"]),
    )
