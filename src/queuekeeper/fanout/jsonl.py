"""Messages of fan-out queues as JSON Lines: what a file is published from, and what a consumer's output is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from queuekeeper.errors import QueuekeeperError, UsageError
from queuekeeper.fanout.model import DAY_MS, NewMessage
from queuekeeper.fanout.producer import FanoutProducer
from queuekeeper.fanout.reports import DeadLetter, FanoutMessage, VerifyReport
from queuekeeper.jsonl import attributes, decoded, encoded, read_lines

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
"""What a message has besides, and a line that was written of one: passed over when it is read."""


@dataclass(frozen=True, kw_only=True)
class PublishLinesReport:
    """Outcomes of the lines of a file.

    :param published: lines that are messages now.
    :param duplicates: lines that had been published before, under the same deduplication id.
    :param held: those of the first that nobody is registered for yet.
    :param dropped: messages that full consumers have lost for them.
    :param last_id: of the last line's message; none when there was no line.
    """

    queue: str
    published: int
    duplicates: int
    held: int
    dropped: int
    last_id: int | None


def message_facts(message: FanoutMessage, *, content: bool) -> dict[str, Any]:
    """Return a message by its fields; body and headers only when asked for."""
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
    """Return the line of a message, with its line end."""
    return orjson.dumps(message_facts(message, content=content), option=orjson.OPT_APPEND_NEWLINE)


def letter_facts(letter: DeadLetter, *, content: bool) -> dict[str, Any]:
    """Return a dead letter by its fields; what its message holds only when asked for."""
    message = None if letter.message is None else message_facts(letter.message, content=content)
    return {**attributes(letter, "id died_ms reason attempts stalls"), "message": message}


def verify_facts(queue: str, report: VerifyReport) -> dict[str, Any]:
    """Return what a verification says by its fields, with keys that are text."""
    return {
        "queue": queue,
        **attributes(report, "checked healthy found"),
        "counts": {problem.value: count for problem, count in report.counts.items()},
        "findings": [attributes(each, "problem id consumer found expected") for each in report.findings],
    }


def read_messages(
    lines: Iterable[bytes], *, ttl_ms: int = DAY_MS, deduplicate_as: str | None = None
) -> Iterator[NewMessage]:
    """Read messages to publish, line by line; empty lines are passed over.

    :param ttl_ms: of lines that have none of their own.
    :param deduplicate_as: makes deduplication ids with the number of the message, for those that have none.
    :raises UsageError: naming the number of the line and what is wrong with it, never its content.
    """
    # A life is refused by the first line that would have it; here it is refused without one, too.
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
    """Publish the lines of a file, 100 at a time, in order; memory is bounded by 100.

    :param to: a consumer, for it alone.
    :param ttl_ms: of lines that have none of their own.
    :param deduplicate_as: name of the file, so that it can be published again after a failure.
    :raises QueuekeeperError: as :meth:`FanoutProducer.publish_many` does; it says how many lines are published.
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
            raise error.reworded(f"{error}; at least the {done:,} messages before are published") from error
        raise
    return PublishLinesReport(
        queue=queue, published=published, duplicates=duplicates, held=held, dropped=dropped, last_id=last_id
    )
