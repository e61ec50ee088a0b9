"""Names, messages, options and rules of fan-out queues, checked before anything is sent to the server."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from queuekeeper.checks import check_choice, check_fields, check_instant, check_integer, check_text
from queuekeeper.clock import DAY_MS
from queuekeeper.errors import InvalidLife, InvalidName, PayloadTooLarge, UsageError
from queuekeeper.quick_init import quick_init

MAX_NAME = 255
"""Largest number of characters in the name of a queue or consumer."""

MAX_TEXT_BYTES = 65_535
"""Largest number of bytes in a content type, order key, deduplication id, header name or header value."""

MAX_HEADERS = 128
MAX_BODY_BYTES = 268_435_455
"""Largest ``max_body_bytes``; a value in Redis has at most 512 MB."""

MAX_MS = 10 * 365 * DAY_MS
"""Longest life, lease, delay or retention: ten years."""

MAX_LANES = 64
MAX_CLAIM = 1_000
"""Largest number of messages in one claim, and of ids in one call."""

MAX_PAGE = 1_000
DEFAULT_PAGE = 100
DEFAULT_WORKERS = 8
DEFAULT_MAX_STALLS = 3
DEFAULT_LEASE_MS = 30_000
DEFAULT_FINDINGS = 100
_SEPARATORS = frozenset(":{}")
SUSPECT_STALLS = 2
"""Stalls from which on a message is worked on alone, since it may be the reason why its workers die."""


class Start(StrEnum):
    """Earlier messages that a new consumer gets, besides all that are published after it has registered."""

    NEW = "new"  # none
    HELD = "held"  # messages that the queue holds, since no consumer was registered
    RETAINED = "retained"  # every message that the queue still has, for whichever consumer


class Mode(StrEnum):
    """Order in which a consumer gets its messages."""

    FIFO = "fifo"  # handed out in order, to any number of workers; a message that failed comes later
    ORDERED = "ordered"  # one at a time per lane; the next follows when it is done or dead


class WhenFailed(StrEnum):
    """What an ordered consumer does after a message has become a dead letter."""

    SKIP = "skip"  # go on with the next message
    HALT = "halt"  # pause until it is resumed


class WhenFull(StrEnum):
    """What a publish does when a consumer has ``max_length`` messages."""

    REJECT = "reject"  # no consumer gets the message; the error names the full one
    DROP_OLDEST = "drop_oldest"  # the full consumer loses its oldest waiting message, which is counted


class WhenNobody(StrEnum):
    """What a publish does when no consumer is registered."""

    HOLD = "hold"  # hold the message for a consumer that adopts it
    REFUSE = "refuse"  # refuse the message


@dataclass(frozen=True, kw_only=True)
class FanoutRules:
    """Limits that are checked before anything is sent to the server.

    :param max_body_bytes: largest body of a message in bytes, 1 MiB by default.
    :raises UsageError: naming parameter, value and rule.
    """

    max_body_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("max_body_bytes", self.max_body_bytes, 1, MAX_BODY_BYTES)


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How a queue behaves towards publishers.

    :param when_nobody: what a publish does while no consumer is registered; by default the queue holds the message.
    :param max_held: largest number of messages that the queue holds, 100,000 by default; further ones are refused.
    :param deduplication_ms: time in ms for which a deduplication id is remembered, a day by default; a message can set
        a shorter time.
    :raises UsageError: naming parameter, value and rule.
    """

    when_nobody: WhenNobody = WhenNobody.HOLD
    max_held: int = 100_000
    deduplication_ms: int = DAY_MS

    def __post_init__(self) -> None:
        check_choice("when_nobody", self.when_nobody, WhenNobody)
        check_integer("max_held", self.max_held, 1, 2**31 - 1)
        check_integer("deduplication_ms", self.deduplication_ms, 1, MAX_MS)


@dataclass(frozen=True, kw_only=True)
class ConsumerOptions:
    """How a consumer gets its messages.

    :param mode: order of its messages, FIFO by default; it can change only while no message waits or is under lease.
    :param when_failed: what an ordered consumer does after a message has become a dead letter; by default it goes on.
    :param lanes: number of lanes of an ordered consumer, 1 by default. Each hands out one message at a time; messages
        with the same order key are in the same lane. It can change when ``mode`` can.
    :param max_length: largest number of messages that may wait in a lane; ``None``, the default, sets no limit.
    :param when_full: what a publish does when ``max_length`` is reached; by default it is refused.
    :param dead_retention_ms: least time in ms for which a dead letter is kept, 7 days by default.
    :param idle_expiry_ms: time in ms without a sign of life after which upkeep may remove the consumer; ``None``, the
        default, means never.
    :raises UsageError: naming parameter, value and rule.
    """

    mode: Mode = Mode.FIFO
    when_failed: WhenFailed = WhenFailed.SKIP
    lanes: int = 1
    max_length: int | None = None
    when_full: WhenFull = WhenFull.REJECT
    dead_retention_ms: int = 7 * DAY_MS
    idle_expiry_ms: int | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, Mode)
        check_choice("when_failed", self.when_failed, WhenFailed)
        check_choice("when_full", self.when_full, WhenFull)
        check_integer("lanes", self.lanes, 1, MAX_LANES)
        if self.lanes > 1 and self.mode is not Mode.ORDERED:
            raise UsageError(f"lanes is {self.lanes}: only an ordered consumer has more than one")
        if self.max_length is not None:
            check_integer("max_length", self.max_length, 1, 2**31 - 1)
        check_integer("dead_retention_ms", self.dead_retention_ms, 1, MAX_MS)
        if self.idle_expiry_ms is not None:
            check_integer("idle_expiry_ms", self.idle_expiry_ms, 1, MAX_MS)


@quick_init
@dataclass(frozen=True, kw_only=True)
class NewMessage:
    """A message to publish, at once or for later.

    A message for later goes to the consumers that are registered when it is published. They get it when it is due,
    behind the messages that wait then, also those of its order key. A message that is due in the past is due at once.

    :param body: payload.
    :param content_type: MIME type of the payload, such as application/json.
    :param order_key: an ordered consumer with several lanes keeps messages with the same key in order.
    :param ttl_ms: time in ms after which the message expires, a day by default. It begins when the message is
        published, or due.
    :param deduplication_id: identifies the message: a second publish with the same id stores nothing.
    :param deduplication_ms: time in ms for which the queue remembers the deduplication id, at most that of
        ``QueueOptions``, which is the default.
    :param headers: names and values, both text.
    :param delay_ms: time from the publish until consumers get the message, by the server's clock.
    :param due_at: instant, with a time zone, from which on consumers get the message; instead of ``delay_ms``.
    :raises UsageError: naming field, value and rule; ``InvalidLife`` when ``ttl_ms`` is 0 or less.
    """

    body: bytes = field(repr=False)
    content_type: str | None = None
    order_key: str | None = None
    ttl_ms: int = DAY_MS
    deduplication_id: str | None = None
    deduplication_ms: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    delay_ms: int | None = None
    due_at: datetime | None = None

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            raise UsageError(f"body is a {type(self.body).__name__}: it must be bytes")
        if type(self.ttl_ms) is int and self.ttl_ms < 1:
            raise InvalidLife(f"ttl_ms is {self.ttl_ms}: a message must have a life of 1 ms or more")
        check_integer("ttl_ms", self.ttl_ms, 1, MAX_MS)
        for name, value in (
            ("content_type", self.content_type),
            ("order_key", self.order_key),
            ("deduplication_id", self.deduplication_id),
        ):
            if value is not None:
                check_text(name, value, most_bytes=MAX_TEXT_BYTES)
        if self.deduplication_ms is not None:
            check_integer("deduplication_ms", self.deduplication_ms, 1, MAX_MS)
        if self.delay_ms is not None:
            check_integer("delay_ms", self.delay_ms, 0, MAX_MS)
        if self.due_at is not None:
            check_instant("due_at", self.due_at)
            if self.delay_ms is not None:
                raise UsageError("delay_ms and due_at both say when the message is due: name one of them")
        if self.deduplication_id == "":
            raise UsageError("deduplication_id is empty: give the message an id, or leave it out")
        headers: Any = self.headers
        if type(headers) is not dict and not isinstance(headers, Mapping):
            check_fields(self, "headers")
        if len(self.headers) > MAX_HEADERS:
            raise UsageError(f"headers has {len(self.headers)} entries: at most {MAX_HEADERS}")
        for name, value in self.headers.items():
            check_text("header name", name, most_bytes=MAX_TEXT_BYTES)
            check_text(f"header {name!r}", value, most_bytes=MAX_TEXT_BYTES)


def _check_name(kind: str, name: Any, *, separators: frozenset[str] = frozenset()) -> None:
    """Refuse a value that cannot be a name.

    :param kind: ``queue`` or ``consumer``.
    :param separators: characters that separate the parts of a key.
    :raises InvalidName: naming the value and the rule.
    """
    if type(name) is not str:
        raise InvalidName(f"name of the {kind} is {name!r}: it must be text")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"name of the {kind} has {len(name)} characters: 1 to {MAX_NAME}")
    # Printable text has no control characters or surrogates; nearly all names end here.
    if name.isprintable() and separators.isdisjoint(name):
        return
    for character in name:
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: no control characters or surrogates")
        if character in separators:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: it separates parts of a key")


def check_queue(queue: Any) -> None:
    """Refuse a value that cannot be the name of a queue.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("queue", queue)


def check_consumer(consumer: Any) -> None:
    """Refuse a value that cannot be the name of a consumer.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("consumer", consumer, separators=_SEPARATORS)


def check_body(message: NewMessage, rules: FanoutRules) -> None:
    """Refuse a message whose body is too large.

    :raises PayloadTooLarge: naming its size and the limit.
    """
    if len(message.body) > rules.max_body_bytes:
        raise PayloadTooLarge(f"body has {len(message.body)} bytes: at most {rules.max_body_bytes}")
