"""Messages of fan-out queues as JSON Lines, in files to publish and in the output of a consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from queuekeeper.clock import DAY_MS
from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.fanout.model import NewMessage
from queuekeeper.fanout.producer import FanoutProducer
from queuekeeper.fanout.reports import DeadLetter, FanoutMessage, VerifyReport
from queuekeeper.jsonl import attributes, decoded, encoded, read_lines
from queuekeeper.wording import number_of

if TYPE_CHECKING:
    from queuekeeper.fanout.queue import FanoutQueues

LINES_PER_PUBLISH = 100

_PUBLISHED = frozenset(
    {
        "body", "body_encoding", "content_type", "deduplication_id", "delay_ms", "due_at", "headers", "order_key",
        "ttl_ms",
    }
)  # fmt: skip
_TOLD = frozenset({"attempt", "body_bytes", "expires_at_ms", "header_count", "id", "published_ms", "stalls"})
"""Other fields that the line of a message may have; they are ignored when it is read."""


@dataclass(frozen=True, kw_only=True)
class PublishLinesReport:
    """Result of publishing the lines of a file.

    :param published: number of messages that were published.
    :param duplicates: number of messages that were published before, with the same deduplication id.
    :param held: number of published messages that the queue holds, since no consumer is registered.
    :param dropped: number of messages that full consumers have lost.
    :param last_id: id of the last message; ``None`` when there was no line.
    """

    queue: str
    published: int
    duplicates: int
    held: int
    dropped: int
    last_id: int | None


def message_facts(message: FanoutMessage, *, content: bool) -> dict[str, Any]:
    """Return the fields of a message, with body and headers if ``content`` is true."""
    facts: dict[str, Any] = {
        **attributes(message, "id published_ms expires_at_ms attempt stalls content_type order_key"),
        "body_bytes": len(message.body),
        "header_count": len(message.headers),
    }
    if content:
        facts["headers"] = dict(message.headers)
        facts |= encoded("body", message.body)
    return facts


def message_line(message: FanoutMessage, *, content: bool) -> bytes:
    """Return the JSON line of a message."""
    return orjson.dumps(message_facts(message, content=content), option=orjson.OPT_APPEND_NEWLINE)


def letter_facts(letter: DeadLetter, *, content: bool) -> dict[str, Any]:
    """Return the fields of a dead letter, with body and headers of its message if ``content`` is true."""
    message = None if letter.message is None else message_facts(letter.message, content=content)
    return {**attributes(letter, "id died_ms reason attempts stalls"), "message": message}


def verify_facts(queue: str, report: VerifyReport) -> dict[str, Any]:
    """Return the fields of a verification as values of JSON."""
    return {
        "queue": queue,
        **attributes(report, "checked healthy found"),
        "counts": {problem.value: count for problem, count in report.counts.items()},
        "findings": [attributes(each, "problem id consumer found expected") for each in report.findings],
    }


def read_messages(
    lines: Iterable[bytes], *, ttl_ms: int = DAY_MS, deduplicate_as: str | None = None
) -> Iterator[NewMessage]:
    """Read messages to publish, line by line; empty lines are ignored.

    :param ttl_ms: life in ms of messages whose line has no ``ttl_ms``, a day by default.
    :param deduplicate_as: makes deduplication ids, with the number of the message, for messages without one.
    :raises UsageError: naming the number of the line and what is wrong with it, never its content.
    """
    # Refuse a wrong ttl_ms even if there is no line.
    NewMessage(body=b"", ttl_ms=ttl_ms)

    def make(given: dict[str, Any]) -> NewMessage:
        if not isinstance(given.get("headers", {}), dict):
            raise UsageError("headers must be an object")
        return NewMessage(
            body=decoded("body", given),
            content_type=given.get("content_type"),
            order_key=given.get("order_key"),
            ttl_ms=given.get("ttl_ms", ttl_ms),
            deduplication_id=given.get("deduplication_id"),
            headers=given.get("headers", {}),
            delay_ms=given.get("delay_ms"),
            due_at=_read_instant(given.get("due_at")),
        )

    found = read_lines(lines, make, member="body", known=_PUBLISHED | _TOLD, purpose="published")
    for number, message in enumerate(found, start=1):
        if deduplicate_as is None or message.deduplication_id is not None:
            yield message
        else:
            yield replace(message, deduplication_id=f"{deduplicate_as}:{number}")


def _read_instant(given: Any) -> datetime | None:
    try:
        return None if given is None else datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise UsageError("due_at must be an instant such as 2026-11-22T09:00:00+01:00") from None


def publish_lines(
    queues: FanoutQueues,
    queue: str,
    lines: Iterable[bytes],
    *,
    to: str | None = None,
    ttl_ms: int = DAY_MS,
    deduplicate_as: str | None = None,
) -> PublishLinesReport:
    """Publish the lines of a file in order, 100 at a time; at most 100 messages are in memory.

    :param to: consumer that alone gets the messages; all consumers when absent.
    :param ttl_ms: life in ms of messages whose line has no ``ttl_ms``, a day by default.
    :param deduplicate_as: makes deduplication ids, with the number of the message; the file can then be published again
        after a failure.
    :raises QueuekeeperError: as :meth:`FanoutProducer.publish_many`, with the number of messages that are published.
    """
    producer = FanoutProducer(queues)
    messages = read_messages(lines, ttl_ms=ttl_ms, deduplicate_as=deduplicate_as)
    published = duplicates = held = dropped = 0
    last_id: int | None = None
    try:
        while batch := list(islice(messages, LINES_PER_PUBLISH)):
            for report in producer.publish_many(queue, batch, to=to):
                if report.error is not None:
                    raise report.error
                duplicates += report.duplicate
                published += not report.duplicate
                held += report.held and not report.duplicate
                dropped += report.dropped
                last_id = report.id
    except QueuekeeperError as error:
        done = published + duplicates
        if done:
            raise error.reworded(f"{error}; at least the {number_of(done, 'message')} before are published") from error
        raise
    return PublishLinesReport(
        queue=queue, published=published, duplicates=duplicates, held=held, dropped=dropped, last_id=last_id
    )
