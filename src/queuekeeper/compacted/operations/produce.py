"""Operation of producers: append entries, each of which replaces the value of its key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from queuekeeper import lua
from queuekeeper.checks import check_integer, check_text
from queuekeeper.compacted.model import MAX_SEQUENCE, MAX_TEXT_BYTES, Append, check_appends
from queuekeeper.compacted.operations.common import BYTES_PER_CALL, ENTRIES_PER_CALL, CommonOperations, parts_of
from queuekeeper.compacted.records import digest_of, record_of
from queuekeeper.compacted.reports import AppendReport
from queuekeeper.errors import UsageError
from queuekeeper.lua.scripts import compacted as scripts
from queuekeeper.operation import Operation


class ProduceOperations(CommonOperations):
    """Append."""

    def append(
        self, client_id: str, appends: Sequence[Append], *, producer: str | None = None, number: int | None = None
    ) -> Operation[AppendReport]:
        """Store values at the end of the queue; each replaces the value of its key.

        Up to 200 entries and 1 MB are stored together or not at all. A larger append is cut into such parts; if one of
        them fails, the parts before it are stored. An append with an ``expected_sequence`` is never cut: if it is
        larger, it is refused, and nothing is stored.

        :param producer: name under which appends are numbered. If a reply is lost, repeat the append with the same
            number and entries, which stores nothing twice. The numbers of a producer grow, and it appends to a queue
            one append at a time.
        :param number: number of the append, 0 or more.
        :raises QueueFull: when the queue has reached its limits and ``when_full`` is ``reject``.
        :raises SequenceConflict: when the value of a key does not have the expected number.
        :raises NumberReused: when the producer's last append had the same number and other entries.
        :raises StoreFull: when Redis has no memory left.
        :raises UsageError: when an append with an ``expected_sequence`` has more than 200 entries or 1 MB.
        """
        check_appends(appends, self._rules)
        if (producer is None) != (number is None):
            raise UsageError("producer and number go together: name both or neither")
        if producer is not None:
            check_text("producer", producer, most_bytes=MAX_TEXT_BYTES, filled=True)
            check_integer("number", number, 0, MAX_SEQUENCE, "greater than the producer's numbers before")
        keys = self._keys(client_id)
        rows = map(_entry, appends)
        # A single entry, which is the frequent case, needs no cutting.
        parts: Iterable[list[lua.Value]] = parts_of(rows) if len(appends) > 1 else map(list, rows)
        if len(appends) > 1 and any(append.expected_sequence is not None for append in appends):
            parts = list(islice(parts, 2))
            if len(parts) > 1:
                raise UsageError(
                    f"an append of {len(appends):,} entries is stored in parts, and some of them have an "
                    f"expected_sequence, which needs it stored whole: append up to {ENTRIES_PER_CALL} entries "
                    f"and {BYTES_PER_CALL:,} bytes at once, or those with an expected_sequence by themselves"
                )
        was_known = yield from self._note(client_id, "new")
        reports: list[AppendReport] = []
        for part, entries in enumerate(parts):
            # Each part is an append of its own to the script, which recognises a repeated part.
            name = "" if producer is None else f"{producer}\0{part}" if part else producer
            # The digest of its entries tells a repeated part from another one under the same number.
            numbered = "" if number is None else f"{number}:{digest_of(entries)}"
            call = scripts.append(
                keys,
                max_keys=self._rules.max_keys,
                max_bytes=self._rules.max_bytes,
                policy=self._rules.when_full,
                producer=name,
                number=numbered,
                now=self._now(),
                entries=entries,
            )
            replies = (yield [call]).or_raise()
            report, is_first = _append_report(call.script.read(replies[0]), len(entries) // 4, replies.replicated[0])
            if was_known and is_first:
                # The queue was lost since it was put into the collector's registry, which may be lost, too.
                self._noted.forget(client_id)
                was_known = yield from self._note(client_id, "new")
            reports.append(report)
            if report.is_forgotten:
                # The producer has used a greater number: the next parts would be stored after it, out of order.
                break
        return reports[0] if len(reports) == 1 else _together(reports)


def _entry(append: Append) -> tuple[lua.Value, ...]:
    """Return the arguments of a script for an entry."""
    expected = append.expected_sequence
    return append.key, record_of(append), int(append.tombstone), "" if expected is None else expected


def _append_report(reply: Any, count: int, replicated: bool | None) -> tuple[AppendReport, bool]:
    """Return the report of an append, and whether it was the first append to the queue."""
    if reply.word == "forgotten":
        return AppendReport(sequences=(), replaced=(), live=None, is_replay=True, is_forgotten=True), False
    if reply.word == "replayed":
        sequences = tuple(range(reply.first_sequence, reply.last_sequence + 1))
        return AppendReport(sequences=sequences, replaced=(), live=None, is_replay=True), False
    first = int(reply.first_sequence)
    report = AppendReport(
        sequences=tuple(range(first, first + count)),
        replaced=tuple(int(sequence) or None for sequence in reply.replaced),
        live=int(reply.live),
        evicted=int(reply.evicted),
        evicted_unacked=int(reply.evicted_unacked),
        is_consumed=reply.is_consumed == b"1",
        replicated=replicated,
    )
    return report, reply.is_first == b"1"


def _together(reports: Sequence[AppendReport]) -> AppendReport:
    """Return the report of an append from the reports of its parts."""
    is_forgotten = any(report.is_forgotten for report in reports)
    is_known = not any(report.is_replay for report in reports)
    written = [report for report in reports if not report.is_replay]
    return AppendReport(
        sequences=() if is_forgotten else tuple(number for report in reports for number in report.sequences),
        replaced=tuple(number for report in reports for number in report.replaced) if is_known else (),
        live=written[-1].live if written else None,
        evicted=sum(report.evicted for report in reports),
        evicted_unacked=sum(report.evicted_unacked for report in reports),
        is_consumed=any(report.is_consumed for report in reports),
        is_replay=not written,
        is_forgotten=is_forgotten,
        replicated=all(report.replicated for report in written)
        if written and written[0].replicated is not None
        else None,
    )
