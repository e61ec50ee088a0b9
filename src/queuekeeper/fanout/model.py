"""What fan-out queues take, and what is refused before a server is asked."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from queuekeeper.checks import check_choice, check_fields, check_instant, check_integer, check_text
from queuekeeper.errors import InvalidLife, InvalidName, PayloadTooLarge, UsageError
from queuekeeper.quick_init import quick_init

DAY_MS = 86_400_000
MAX_NAME = 255
"""Most characters of a queue's or consumer's name."""

MAX_TEXT_BYTES = 65_535
"""Longest content type, order key, deduplication id, and name or value of a header."""

MAX_HEADERS = 128
MAX_BODY_BYTES = 268_435_455
"""Most that rules may allow; a value of Redis has at most 512 MB."""

MAX_MS = 10 * 365 * DAY_MS
"""Longest life, lease, delay or retention."""

MAX_LANES = 64
MAX_CLAIM = 1_000
"""Most messages of one claim, and most ids of one call."""

MAX_PAGE = 1_000
DEFAULT_PAGE = 100
DEFAULT_MAX_STALLS = 3
DEFAULT_LEASE_MS = 30_000
DEFAULT_FINDINGS = 100
_SEPARATORS = frozenset(":{}")
SUSPECT_STALLS = 2
"""A message whose lease ran out so often may be what ends its workers, and is worked on alone."""


class Start(StrEnum):
    """What a consumer that registers gets besides what is published from then on."""

    NEW = "new"  # nothing
    HELD = "held"  # what was published while nobody was registered
    RETAINED = "retained"  # every message that the queue still has, for whomever it was


class Mode(StrEnum):
    """Whether messages of a consumer may be worked on at the same time."""

    FIFO = "fifo"  # handed out in order, to as many workers as ask; a failed one comes later
    ORDERED = "ordered"  # one at a time per lane, and none before its predecessor is done or given up


class WhenFailed(StrEnum):
    """What becomes of an ordered consumer when a message has failed too often."""

    SKIP = "skip"  # it goes to the dead letters, and the next one follows
    HALT = "halt"  # it goes to the dead letters, and the consumer is paused until somebody resumes it


class WhenFull(StrEnum):
    """What a publish does when a consumer has as many messages as it may."""

    REJECT = "reject"  # nobody gets the message; the error names the consumer
    DROP_OLDEST = "drop_oldest"  # this consumer loses its oldest waiting message, counted


class WhenNobody(StrEnum):
    """What a publish does when no consumer is registered."""

    HOLD = "hold"  # keep the message for a consumer that adopts it
    REFUSE = "refuse"  # nothing is stored


@dataclass(frozen=True, kw_only=True)
class FanoutRules:
    """Bounds that a caller keeps; the server is not asked about what breaks them.

    :param max_body_bytes: larger payloads are refused before anything is written.
    :raises UsageError: naming parameter, value and rule.
    """

    max_body_bytes: int = 1_048_576

    def __post_init__(self) -> None:
        check_integer("max_body_bytes", self.max_body_bytes, 1, MAX_BODY_BYTES)


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """How a queue behaves towards publishers.

    :param max_held: most messages that are held while nobody is registered; a publish is refused beyond them.
    :param deduplication_ms: how long a deduplication id is remembered, unless its message asks for less.
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
    """How a consumer is served.

    :param lanes: parts of an ordered consumer that are worked on at the same time; messages with the same order key
        are in the same lane. It can only be changed while nothing waits.
    :param max_length: most messages that may wait, in each lane; none for no bound.
    :param dead_retention_ms: how long a dead letter is kept at least.
    :param idle_expiry_ms: the consumer may be removed when it was not seen for so long; none for never.
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

    One that is for later goes to the consumers that are registered when it is published, and nobody gets it before its
    time; then it is next behind what waits, also among messages of its order key. An instant that has passed means at
    once.

    :param content_type: MIME type of the payload, such as application/json.
    :param order_key: messages with the same one are kept in order, also by ordered consumers with several lanes.
    :param ttl_ms: time after which the message expires. It begins when the message is published, or due.
    :param delay_ms: time for which nobody gets the message yet, by the server's clock.
    :param due_at: the same as an instant with a time zone; one of the two.
    :param deduplication_id: a second publish with the same id stores nothing.
    :param deduplication_ms: how long the queue remembers that id; none for as long as its options say, and no longer.
    :raises UsageError: naming field, value and rule; ``InvalidLife`` for a life of 0 or less.
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
            raise UsageError("deduplication_id is empty: name the message, or take none")
        headers: Any = self.headers
        if type(headers) is not dict and not isinstance(headers, Mapping):
            check_fields(self, "headers")
        if len(self.headers) > MAX_HEADERS:
            raise UsageError(f"headers has {len(self.headers)} entries: at most {MAX_HEADERS}")
        for name, value in self.headers.items():
            check_text("header name", name, most_bytes=MAX_TEXT_BYTES)
            check_text(f"header {name!r}", value, most_bytes=MAX_TEXT_BYTES)


def _check_name(kind: str, name: Any, *, separators: frozenset[str] = frozenset()) -> None:
    """Refuse what cannot be a name.

    :param kind: ``queue`` or ``consumer``.
    :param separators: characters that the keys of the queue need for themselves.
    :raises InvalidName: naming the value and the rule.
    """
    if type(name) is not str:
        raise InvalidName(f"name of the {kind} is {name!r}: it must be text")
    if not 1 <= len(name) <= MAX_NAME:
        raise InvalidName(f"name of the {kind} has {len(name)} characters: 1 to {MAX_NAME}")
    # What is printable holds none of these, and nearly every name is.
    if name.isprintable() and separators.isdisjoint(name):
        return
    for character in name:
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: no control characters or surrogates")
        if character in separators:
            raise InvalidName(f"name of the {kind} {name!r} holds {character!r}: it separates parts of a key")


def check_queue(queue: Any) -> None:
    """Refuse what cannot be the name of a queue.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("queue", queue)


def check_consumer(consumer: Any) -> None:
    """Refuse what cannot be the name of a consumer.

    :raises InvalidName: naming the value and the rule.
    """
    _check_name("consumer", consumer, separators=_SEPARATORS)


def check_body(message: NewMessage, rules: FanoutRules) -> None:
    """Refuse a payload that the rules do not allow.

    :raises PayloadTooLarge: naming its size and the bound.
    """
    if len(message.body) > rules.max_body_bytes:
        raise PayloadTooLarge(f"body has {len(message.body)} bytes: at most {rules.max_body_bytes}")
