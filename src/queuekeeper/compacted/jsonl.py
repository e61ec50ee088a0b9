"""Messages of compacted queues as JSON Lines: what a file is appended from, and what a consumer's output is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from queuekeeper.compacted.model import Append, Properties, plain_properties, property_pairs
from queuekeeper.compacted.operations import BYTES_PER_CALL
from queuekeeper.compacted.records import stored_bytes
from queuekeeper.compacted.reports import CompactedMessage, RewindReport, VerifyReport
from queuekeeper.errors import QueuekeeperError, RefusedError
from queuekeeper.jsonl import attributes, decoded, encoded, read_lines
from queuekeeper.portions import portions

if TYPE_CHECKING:
    from queuekeeper.compacted.queue import CompactedQueues

LINES_PER_APPEND = 200
"""As many as a queue stores as a whole or not at all."""

_APPENDED = frozenset(
    {
        "content_type", "expected_sequence", "key", "key_encoding", "properties", "published_ms", "tombstone", "value",
        "value_encoding",
    }
)  # fmt: skip
_TOLD = frozenset({"appended_ms", "is_readable", "property_count", "redelivered", "sequence", "value_bytes"})
"""What a message has besides, and a line that was written of one: passed over when it is read."""


@dataclass(frozen=True, kw_only=True)
class AppendLinesReport:
    """Outcomes of the lines of a file.

    :param appended: lines that were stored.
    :param replayed: lines that had been stored before, by the same producer under the same number.
    :param replaced: lines that took the place of a value.
    :param evicted: messages removed because the queue was full.
    :param evicted_unacked: those of them that had not been acknowledged.
    :param last_sequence: number of the last line; none when there was none, or when it is not known any more.
    :param live: keys of the queue now; none when there was no line.
    :param next_number: for the producer's next append; none without a producer.
    """

    client_id: str
    appended: int
    replayed: int
    replaced: int
    evicted: int
    evicted_unacked: int
    last_sequence: int | None
    live: int | None
    next_number: int | None


def message_facts(message: CompactedMessage, *, content: bool) -> dict[str, Any]:
    """Return a message by its fields; value and properties only when asked for."""
    facts: dict[str, Any] = {
        "sequence": message.sequence,
        **encoded("key", message.key),
        **attributes(message, "appended_ms published_ms tombstone redelivered is_readable content_type"),
        "value_bytes": len(message.value),
        "property_count": len(property_pairs(message.properties)),
    }
    if content:
        facts["properties"] = plain_properties(message.properties)
        if not message.tombstone:
            facts |= encoded("value", message.value)
    return facts


def message_line(message: CompactedMessage, *, content: bool) -> bytes:
    """Return the line of a message, with its line end."""
    return orjson.dumps(message_facts(message, content=content), option=orjson.OPT_APPEND_NEWLINE)


def rewind_facts(client_id: str, report: RewindReport) -> dict[str, Any]:
    """Return what a rewind did by its fields; the fence is its consumer's alone."""
    facts = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "fence"}
    return {"client_id": client_id} | facts


def verify_facts(report: VerifyReport) -> dict[str, Any]:
    """Return what a verification says by its fields, with keys that are text."""
    return {
        **attributes(report, "client_id checked healthy found"),
        "violations": [
            {"rule": each.rule, **({} if each.key is None else encoded("key", each.key)), "sequence": each.sequence}
            for each in report.violations
        ],
    }


def read_entries(lines: Iterable[bytes]) -> Iterator[Append]:
    """Read entries to append, line by line; empty ones are passed over.

    :raises UsageError: naming the number of the line and what is wrong with it, never its content.
    """
    return read_lines(lines, _append, member="key", known=_APPENDED | _TOLD, purpose="appended")


def _append(given: dict[str, Any]) -> Append:
    if given.get("is_readable") is False:
        raise ValueError("its value could not be read, and is none to append")
    tombstone = given.get("tombstone", False)
    # A line that was written without content must not become an empty value.
    if ("value" in given) is (tombstone is True):
        raise ValueError("it must have a value, or be a tombstone")
    return Append(
        key=decoded("key", given),
        value=b"" if tombstone is True else decoded("value", given),
        tombstone=tombstone,
        properties=_properties(given.get("properties", {})),
        content_type=given.get("content_type"),
        published_ms=given.get("published_ms"),
        expected_sequence=given.get("expected_sequence"),
    )


def _properties(given: Any) -> Any:
    """Return properties that are written as pairs, where a name comes several times, or as they are."""
    if not isinstance(given, list):
        return given
    if not all(isinstance(pair, list) and [type(text) for text in pair] == [str, str] for pair in given):
        raise ValueError("its properties are neither an object nor pairs of a name and a text")
    return Properties(given)


def _batches(entries: Iterator[Append]) -> Iterator[list[Append]]:
    """Yield what is appended at once; where a sequence is expected, no more than is stored as a whole."""
    while batch := list(islice(entries, LINES_PER_APPEND)):
        if any(entry.expected_sequence is not None for entry in batch):
            yield from portions(batch, size=stored_bytes, most=BYTES_PER_CALL)
        else:
            yield batch


def append_lines(
    queues: CompactedQueues,
    client_id: str,
    lines: Iterable[bytes],
    *,
    producer: str | None = None,
    number: int | None = None,
) -> AppendLinesReport:
    """Append the lines of a file, 200 at a time, or 1 MB; memory is bounded by 200.

    :param producer: who numbers the appends, so that the file can be appended again after a failure.
    :param number: of the first 200 lines; the next ones have the next number.
    :raises RefusedError: when the producer has gone on behind the file's last number.
    :raises QueuekeeperError: as :meth:`CompactedQueues.append` does; it says how many lines are stored.
    """
    entries = read_entries(lines)
    done = appended = replaced = evicted = evicted_unacked = 0
    last_sequence: int | None = None
    live: int | None = None
    forgotten = False
    try:
        for batch in _batches(entries):
            report = queues.append(client_id, batch, producer=producer, number=number)
            done += len(batch)
            if not (report.is_replay or report.is_forgotten):
                appended += len(batch)
            replaced += sum(each is not None for each in report.replaced)
            evicted += report.evicted
            evicted_unacked += report.evicted_unacked
            last_sequence, live = report.last_sequence, report.live
            forgotten = report.is_forgotten
            number = None if number is None else number + 1
    except QueuekeeperError as error:
        if done:
            raise error.reworded(f"{error}; at least the {done:,} lines before are stored") from error
        raise
    if forgotten:
        raise gone_on(producer)
    return AppendLinesReport(
        client_id=client_id,
        appended=appended,
        replayed=done - appended,
        replaced=replaced,
        evicted=evicted,
        evicted_unacked=evicted_unacked,
        last_sequence=last_sequence,
        live=live,
        next_number=number,
    )


def gone_on(producer: str | None) -> RefusedError:
    """Return the exception for a number below the producer's last: the queue no longer knows that append."""
    return RefusedError(
        f"producer {producer!r} has appended under a greater number since, and nothing was stored now: give the number "
        "behind its last one"
    )
