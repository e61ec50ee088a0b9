"""Events, subscriptions, deliveries, rules and errors of the event broker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from queuekeeper.checks import check_all_seconds, check_fields, check_integers, check_text
from queuekeeper.clock import EPOCH
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.jsonl import holds, json_bytes
from queuekeeper.quick_init import quick_init

MAX_TOPIC_CHARACTERS = 255
MAX_GROUP_CHARACTERS = 48
MAX_ID_CHARACTERS = 24
MAX_EVENTS_PER_CALL = 10_000
"""Largest number of events that ``publish`` takes; ``publish_many`` takes any number."""

MAX_DELAY_MS = 10 * 365 * 86_400_000

MAX_PAGE = 10_000
"""Largest number of events that one read returns."""

MAX_RETRIES = 100

TOPIC_CONDITION = "s.params @> jsonb_build_object('topics',ARRAY[e.topic])"
"""Condition of all subscriptions by topic. It is one text for all topics, so that an index finds the matches, and the
text that clients written for PGMB use."""

RETRY_TOPIC = "pgmb-retry"
"""Topic of events that make one handler get other events again."""

EVENT_PREFIX, SUBSCRIPTION_PREFIX = "pm", "su"
_TIME_DIGITS = 13


class FellBehind(RefusedError):
    """The reader of a listener is too slow: its buffer was full, and it got no later events."""


class ResumeRefused(RefusedError):
    """A stream cannot continue where its reader stopped."""


class TransientRefusal(RefusedError):
    """The server refused a statement for a reason that may pass, such as a deadlock; nothing was stored."""


class StatementTimeout(TransientRefusal):
    """The server ended a statement that took too long; nothing was stored."""


class LockTimeout(TransientRefusal):
    """The server ended a statement that waited too long for a lock; nothing was stored."""


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event to publish.

    :param topic: topic, up to 255 characters.
    :param payload: value that JSON can hold.
    :param metadata: value that JSON can hold; ``None``, the default, stores no metadata.
    :raises UsageError: when the topic is empty or longer than 255 characters.
    """

    topic: str
    payload: Any = field(repr=False)
    metadata: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_text("topic", self.topic, most_characters=MAX_TOPIC_CHARACTERS, filled=True)


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """An event as it was published.

    :param id: grows with the time of publishing: 2 letters, 13 hexadecimal digits of microseconds, 9 of a counter.
    """

    id: str
    topic: str
    payload: Any = field(repr=False)
    metadata: Any = field(default=None, repr=False)

    @property
    def published_at(self) -> datetime:
        """Instant of the publish, by the server's clock."""
        return instant_of(self.id)


@quick_init
@dataclass(frozen=True, kw_only=True, slots=True)
class PageItem:
    """An event that a group reads, and the group's subscriptions that get it."""

    event: Event
    subscription_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The events that a group reads next, in the order of dispatch.

    :param next_cursor: cursor of the next page; ``None`` when there is nothing to read, or another connection owns the
        group.
    """

    items: tuple[PageItem, ...]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Interest:
    """The events that a consumer wants. Equal interests of a group share one subscription.

    :param condition: SQL expression over an event ``e`` and the subscription ``s``; ``TRUE``, every event, by default.
    :param params: names and values that the condition reads as ``s.params``.
    :param expires_after: time without a sign of life of its consumers after which the subscription is removed;
        ``None``, the default, means never.
    """

    condition: str = "TRUE"
    params: Mapping[str, Any] = field(default_factory=dict)
    expires_after: timedelta | None = None

    def __post_init__(self) -> None:
        check_text("condition", self.condition, filled=True)
        if not isinstance(self.params, Mapping):
            raise UsageError(f"params is a {type(self.params).__name__}: it must be an object, {{name: value}}")
        check_fields(self, "expires_after")
        if self.expires_after is not None and self.expires_after <= timedelta(0):
            raise UsageError(f"expires_after is {self.expires_after}: it must be longer than 0")

    @classmethod
    def topics(cls, *topics: str, expires_after: timedelta | None = None) -> Interest:
        """Return the interest in the events of some topics.

        :raises UsageError: when no topic is given, or one is not valid.
        """
        if not topics:
            raise UsageError("no topic is named: name one or more, or take every event by Interest()")
        for topic in topics:
            check_text("topic", topic, most_characters=MAX_TOPIC_CHARACTERS, filled=True)
        named = {"topics": sorted(set(topics))}
        return cls(condition=TOPIC_CONDITION, params=named, expires_after=expires_after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """A subscription.

    :param created_at: instant of its creation; it gets no events that were dispatched before.
    :param quarantined_at: instant from which on it gets no events, because its condition has failed; it gets them when
        it is released. ``None`` when it is not in quarantine.
    """

    subscription_id: str
    created_at: datetime
    quarantined_at: datetime | None
    quarantine_reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SubscriptionView:
    """A subscription with all that the broker stores about it.

    :param last_active_at: instant of the last sign of life of its consumers.
    :param expires_after_s: time in seconds without a sign of life after which it is removed; ``None`` means never.
    :param quarantined_at: instant from which on it gets no events, because its condition has failed; ``None`` when it
        is not in quarantine.
    """

    subscription_id: str
    group_id: str
    condition: str
    params: Mapping[str, Any]
    created_at: datetime
    last_active_at: datetime
    expires_after_s: float | None
    quarantined_at: datetime | None
    quarantine_reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseReport:
    """Result of the release of a subscription from quarantine.

    :param redelivered: number of missed events that it gets now.
    :param failed_event_ids: ids of events that it does not get, since its condition fails on them.
    """

    redelivered: int
    failed_event_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """Events of one subscription that a handler gets at once, in the order of dispatch.

    :param attempt: number of the attempt, from 1.
    :param retry_id: id of the event that announced the retry, if this is a retry by such an event.
    """

    subscription_id: str
    events: tuple[Event, ...]
    attempt: int = 1
    retry_id: str | None = None


Splitter: TypeAlias = Callable[[Delivery], Iterable[Delivery]]
"""Cuts a delivery into parts, each of its events into one at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Retry:
    """Content of an event that makes a handler get other events again.

    :param handler: name of the handler.
    :param attempt: number of the attempt that follows, from 1.
    :param event_ids: ids of the other events.
    :param events: copies of them; empty when only their ids were kept.
    """

    handler: str
    attempt: int
    event_ids: tuple[str, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLetter:
    """Copy of an event that a handler has given up, with the reason."""

    dead_letter_id: int
    event: Event
    group_id: str
    subscription_id: str
    handler: str
    reason: str
    attempts: int
    died_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRules:
    """How a consumer reads.

    :param page: largest number of events in one read, 1,000 by default, at most 10,000.
    :param pages_ahead: largest number of pages that were read and are not finished, 10 by default; fast handlers can be
        so far ahead of the slowest one.
    :param poll_interval_s: seconds after which the consumer reads without a notification, 1 by default.
    :param sign_of_life_s: longest time in seconds between two signs of life of its subscriptions, 60 by default. Each
        subscription gets three within its ``expires_after``.
    :param listener_events: largest number of events that wait for the reader of a listener, 10,000 by default.
    :param grace_s: seconds that a stop waits until handlers have finished what was read, 30 by default.
    :raises UsageError: when a number is out of range.
    """

    page: int = 1_000
    pages_ahead: int = 10
    poll_interval_s: float = 1.0
    sign_of_life_s: float = 60.0
    listener_events: int = 10_000
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        check_integers(self, page=(1, MAX_PAGE), pages_ahead=(1, 1_000), listener_events=(1, 10_000_000))
        check_all_seconds(self, "poll_interval_s", "sign_of_life_s")
        check_all_seconds(self, "grace_s", least=0)


def retry_of(event: Event) -> Retry | None:
    """Return the content of a retry event; ``None`` for any other event.

    Anybody may publish to the topic of retries, so every field is checked.
    """
    payload = event.payload
    if event.topic != RETRY_TOPIC or not isinstance(payload, dict):
        return None
    handler, number = payload.get("handlerName"), payload.get("retryNumber")
    ids, copies = payload.get("ids"), payload.get("events")
    if not _is_text(handler, MAX_TOPIC_CHARACTERS) or type(number) is not int or not 0 <= number <= MAX_RETRIES:
        return None
    if not isinstance(ids, list) or not all(_is_text(one, MAX_ID_CHARACTERS) for one in ids):
        return None
    events: tuple[Event, ...] = ()
    if isinstance(copies, list):
        for copy in copies:
            if not isinstance(copy, dict) or not _is_text(copy.get("id"), MAX_ID_CHARACTERS):
                return None
            if not _is_text(copy.get("topic"), MAX_TOPIC_CHARACTERS):
                return None
        events = tuple(
            Event(id=one["id"], topic=one["topic"], payload=one.get("payload"), metadata=one.get("metadata"))
            for one in copies
        )
    return Retry(handler=str(handler), attempt=number + 1, event_ids=tuple(ids), events=events)


def _is_text(value: Any, most: int) -> bool:
    return isinstance(value, str) and 0 < len(value) <= most


def instant_of(event_id: str) -> datetime:
    """Return the instant in an event's or subscription's id.

    :raises UsageError: when it is not such an id.
    """
    digits = event_id[2 : 2 + _TIME_DIGITS]
    prefix = event_id[:2]
    if prefix not in {EVENT_PREFIX, SUBSCRIPTION_PREFIX} or len(digits) < _TIME_DIGITS or not event_id.isascii():
        raise UsageError(f"{event_id[:40]!r} is not an id of the event broker: they begin with pm or su")
    try:
        if not event_id[2:].isalnum() or len(event_id) > MAX_ID_CHARACTERS:
            raise ValueError
        return EPOCH + timedelta(microseconds=int(digits, 16))
    except (ValueError, OverflowError):
        raise UsageError(f"{event_id[:40]!r} is not an id of the event broker: it holds no instant") from None


_BACKSLASH = ord("\\")


def json_of(name: str, value: Any) -> str:
    """Return a value as JSON for PostgreSQL, with all digits of its integers.

    :raises UsageError: when JSON cannot hold it, or it holds a zero character.
    """
    text = json_bytes(name, value, wide_integers=True)
    # Search the value only if its JSON seems to hold an escaped zero character. Most JSON holds no backslash, and a
    # search for one byte takes a tenth of the time.
    if _BACKSLASH in text and b"\\u0000" in text and holds(value, _has_zero):
        raise UsageError(
            f"{name} holds a zero character (U+0000), which PostgreSQL does not store: remove it, or encode the text"
        )
    return text.decode()


def _has_zero(value: Any) -> bool:
    return isinstance(value, str) and "\0" in value


def check_events(events: Any) -> None:
    """Refuse a value that is not a collection of events; :func:`check_event` checks each event later.

    :raises UsageError: naming the value.
    """
    if type(events) in (list, tuple):
        return
    if isinstance(events, NewEvent):
        raise UsageError(f"events is one event, of topic {_shown(events.topic)}: put it into a list")
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise UsageError(
            f"events is {_shown(events)}: it must be a list of events, such as [NewEvent(topic=..., payload=...)]"
        )


def check_event(event: Any, number: int) -> None:
    """Refuse a value that is not an event.

    :param number: its place in the call, from 1.
    :raises UsageError: naming the place, but not the value, which may be a payload.
    """
    if not isinstance(event, NewEvent):
        raise UsageError(
            f"events holds a {type(event).__name__} at place {number}: each must be a NewEvent(topic=..., payload=...)"
        )


def _shown(value: Any) -> str:
    """Return a value as errors show it: the beginning of a text, the type of any other value."""
    return repr(value[:40]) if isinstance(value, str) else "nothing" if value is None else f"a {type(value).__name__}"


def check_group(group_id: Any) -> None:
    """Refuse a value that is not the id of a group."""
    check_text("group id", group_id, most_characters=MAX_GROUP_CHARACTERS, filled=True)
