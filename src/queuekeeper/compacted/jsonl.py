"""Messages of compacted queues as JSON Lines: write messages as lines, and append the lines of a file."""

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
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.compacted.queue import CompactedQueues

LINES_PER_APPEND = 200
"""Lines of a file that are appended together, which the queue stores whole or not at all."""

_APPENDED = frozenset(
    {
        "content_type", "expected_sequence", "key", "key_encoding", "properties", "published_ms", "tombstone", "value",
        "value_encoding",
    }
)  # fmt: skip
_TOLD = frozenset({"appended_ms", "is_readable", "property_count", "redelivered", "sequence", "value_bytes"})
"""Fields of a written message that an append does not need; ignored when a line is read."""


@dataclass(frozen=True, kw_only=True)
class AppendLinesReport:
    """Result of appending the lines of a file.

    :param appended: lines stored.
    :param replayed: lines not stored, because the same producer had stored them under the same number before.
    :param replaced: lines that replaced the value of a key.
    :param evicted: messages removed because the queue was full.
    :param evicted_unacked: evicted messages that were not acknowledged.
    :param last_sequence: sequence number of the last line; none when the file has no lines.
    :param live: number of keys in the queue after the last append; none when the file has no lines or the last ones
        were replayed.
    :param next_number: number for the producer's next append; none without a producer.
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
    """Return the fields of a message as JSON values.

    :param content: also return value and properties.
    """
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
    """Return the fields of a rewind's result as JSON values, without the fence, which is only for the consumer."""
    facts = {each.name: getattr(report, each.name) for each in fields(report) if each.name != "fence"}
    return {"client_id": client_id} | facts


def verify_facts(report: VerifyReport) -> dict[str, Any]:
    """Return the fields of a verification's result as JSON values."""
    return {
        **attributes(report, "client_id checked healthy found"),
        "violations": [
            {"rule": each.rule, **({} if each.key is None else encoded("key", each.key)), "sequence": each.sequence}
            for each in report.violations
        ],
    }


def read_entries(lines: Iterable[bytes]) -> Iterator[Append]:
    """Read entries to append from lines; empty lines are ignored.

    :raises UsageError: naming the number of the line and its error, never its content.
    """
    return read_lines(lines, _append, member="key", known=_APPENDED | _TOLD, purpose="appended")


def _append(given: dict[str, Any]) -> Append:
    if given.get("is_readable") is False:
        raise ValueError("is_readable is false: the value of a damaged message cannot be appended")
    tombstone = given.get("tombstone", False)
    # A line that was written without its value must not become an empty value.
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
    """Return properties from an object, or from a list of pairs, which may contain a name several times."""
    if not isinstance(given, list):
        return given
    if not all(isinstance(pair, list) and [type(text) for text in pair] == [str, str] for pair in given):
        raise ValueError("its properties are neither an object nor pairs of a name and a text")
    return Properties(given)


def _batches(entries: Iterator[Append]) -> Iterator[list[Append]]:
    """Cut entries into appends of 200; those with an ``expected_sequence`` also by size, so that none is cut later."""
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
    """Append the lines of a file, 200 at a time; no more of them are in memory.

    :param producer: name under which the appends are numbered, so that the file can be appended again after a failure.
    :param number: number of the append of the first 200 lines; each further append has the next number.
    :raises RefusedError: when the producer has used a number greater than the file's last one.
    :raises QueuekeeperError: errors of :meth:`CompactedQueues.append`, with the number of lines stored before.
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
            raise error.reworded(f"{error}; at least the {number_of(done, 'line')} before are stored") from error
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
    """Return the exception for a number below the producer's last one, whose append the queue no longer knows."""
    return RefusedError(
        f"producer {producer!r} has appended under a greater number since, and nothing was stored now: give a number "
        "above its last one"
    )
