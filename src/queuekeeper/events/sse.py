"""Server-sent events: a listener's events as the lines that a browser reads, and the way back in after a lost link.

A web framework answers a request with ``status`` and writes the chunks of the stream. Nothing here knows one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeAlias, TypeVar

from queuekeeper.checks import check_all_seconds, check_integer, checked
from queuekeeper.errors import QueuekeeperError, RefusedError, ServerUnavailable, UsageError
from queuekeeper.events.consumer import AsyncEventConsumer, EventConsumer
from queuekeeper.events.handlers import AsyncListener, Listener
from queuekeeper.events.model import (
    Delivery,
    Event,
    Interest,
    ResumeRefused,
    Subscription,
    instant_of,
    json_of,
)
from queuekeeper.events.operations import EventOperations
from queuekeeper.operation import Operation
from queuekeeper.text_form import shows

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache, no-transform",
    # A proxy that gathers the answer would hold every event back.
    "x-accel-buffering": "no",
}
"""Of the answer to a request for a stream."""

NO_RESUME = 204
"""Status of the answer when :class:`~queuekeeper.events.model.ResumeRefused` is raised: a browser that gets it stops
asking, so the page has to load its state afresh and open a new stream."""

POSITION = "position"
"""Event without content that tells a browser where it is, before anything else has happened."""

Serialiser: TypeAlias = Callable[[Event], str | None]
"""Returns what the browser gets as data; none, or a ``UsageError``, which is logged, leaves the event out."""

L = TypeVar("L", Listener, AsyncListener)

_log = logging.getLogger(__name__)


def payload_json(event: Event) -> str:
    """Return an event's payload as JSON."""
    return json_of("payload", event.payload)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRules:
    """How streams are resumed and kept.

    :param replay_events: events that a reader may have missed at most; with 0 there is no way back in.
    :param replay_s: age in seconds of the last event that a reader may go on from. A subscription without a reader
        lives twice as long.
    :param keep_alive_s: pause after which an empty comment is sent, so that a dead link is noticed.
    :param retry_ms: time after which a browser asks again when the stream has broken.
    :raises UsageError: when a number is out of range.
    """

    replay_events: int = 1_000
    replay_s: float = 300.0
    keep_alive_s: float = 15.0
    retry_ms: int = 250

    def __post_init__(self) -> None:
        check_integer("replay_events", self.replay_events, 0, 10_000)
        check_all_seconds(self, "replay_s", "keep_alive_s")
        check_integer("retry_ms", self.retry_ms, 1, 3_600_000)


@dataclass(eq=False, repr=False)
class StreamWriter:
    """Turns events into chunks, each of them once.

    :param replayed: what the reader has missed.
    :param position: where it is, if it has missed nothing.
    """

    rules: StreamRules
    serialise: Serialiser
    _: KW_ONLY
    replayed: Sequence[Event]
    position: str | None
    subscription_id: str

    def __post_init__(self) -> None:
        # What was dispatched between listening and replaying comes on both ways.
        self._seen = {event.id for event in self.replayed}

    def opening(self) -> bytes:
        """Return what the reader gets first."""
        lines = [f"retry: {self.rules.retry_ms}\n\n".encode()]
        lines += (self._chunk(event) for event in self.replayed)
        if self.position is not None:
            lines.append(self._format(POSITION, "{}", self.position))
        return b"".join(lines)

    def chunk(self, delivery: Delivery | None) -> bytes:
        """Return what the reader gets of a delivery; of none, a sign of life."""
        if delivery is None:
            return b":\n\n"
        return b"".join(self._chunk(event) for event in delivery.events if event.id not in self._seen)

    def closing(self, error: QueuekeeperError) -> bytes:
        """Return what the reader gets when the stream ends before its time; it will ask again."""
        return self._format("error", json_of("message", {"message": str(error)}), None)

    def _chunk(self, event: Event) -> bytes:
        try:
            data = self.serialise(event)
        except UsageError as error:
            # It would end every stream that comes to it, for good.
            _log.error("stream of subscription %s: event %s is left out: %s", self.subscription_id, event.id, error)
            return b""
        if data is None:
            return b""
        return self._format(event.topic, data, event.id if self.rules.replay_events else None)

    def _format(self, name: str, data: str, event_id: str | None) -> bytes:
        # A line end would begin another field, and so let a publisher forge events.
        name = " ".join(name.splitlines())
        body = "".join(f"data: {line}\n" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
        first = ""
        if event_id is not None:
            first = f"id: {Place(event_id=event_id, subscription_id=self.subscription_id)}\n"
        return f"{first}event: {name}\n{body}\n".encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a reader of a stream is: behind an event, in a subscription that may have been made anew since."""

    event_id: str
    subscription_id: str

    def __str__(self) -> str:
        return f"{self.event_id}-{self.subscription_id}"


def place_of(last_event_id: str | None, *, rules: StreamRules, now: datetime) -> Place | None:
    """Return the place that a request names, if it names one.

    :raises ResumeRefused: when it is too old or no place at all, or streams are not resumed.
    """
    if last_event_id is None:
        return None
    if not rules.replay_events:
        raise ResumeRefused("this stream cannot be resumed: open it without Last-Event-ID")
    event_id, _, subscription_id = last_event_id.partition("-")
    try:
        left_at = instant_of(event_id)
    except UsageError as error:
        raise ResumeRefused(f"Last-Event-ID: {error}") from None
    if left_at < now - timedelta(seconds=rules.replay_s):
        raise ResumeRefused(
            f"Last-Event-ID is of {left_at:%Y-%m-%d %H:%M:%S} UTC: events are replayed for {rules.replay_s:g} s only"
        )
    return Place(event_id=event_id, subscription_id=subscription_id)


def opened_stream(
    events: EventOperations,
    subscription: Subscription,
    place: Place | None,
    began_id: str,
    *,
    group_id: str,
    rules: StreamRules,
    serialise: Serialiser,
) -> Operation[StreamWriter]:
    """Find what a reader has missed, and return the writer that sends it first.

    :param began_id: id of an instant before the listener began: a reader that continues there misses nothing.
    :raises ResumeRefused: when the subscription is another one than before, or too much was missed.
    """
    replayed: Sequence[Event] = ()
    if place is not None:
        if place.subscription_id != subscription.subscription_id:
            raise ResumeRefused("the subscription was removed meanwhile: what its reader has missed is not known")
        try:
            replayed = yield from events.replay(
                group_id, place.subscription_id, after_event_id=place.event_id, limit=rules.replay_events
            )
        except ServerUnavailable:
            raise
        except RefusedError as error:
            raise ResumeRefused(str(error)) from error
    position = None
    if not replayed and rules.replay_events:
        position = began_id if place is None else place.event_id
    return StreamWriter(
        rules, serialise, replayed=replayed, position=position, subscription_id=subscription.subscription_id
    )


class _Stream(Generic[L]):
    def __init__(self, listener: L, writer: StreamWriter, rules: StreamRules) -> None:
        self._listener: L = listener
        self._writer = writer
        self._rules = rules

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


@shows(subscription="_listener.subscription_id")
class EventStream(_Stream[Listener]):
    """One reader's stream: iterate over it, and write each chunk; ``close`` when the reader has left."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield self._writer.opening()
            while True:
                delivery = self._listener.get(timeout_s=self._rules.keep_alive_s)
                if delivery is None and self._listener.ended:
                    return
                # An empty chunk would end an HTTP answer.
                if chunk := self._writer.chunk(delivery):
                    yield chunk
        except QueuekeeperError as error:
            yield self._writer.closing(error)
        finally:
            self.close()


@shows(subscription="_listener.subscription_id")
class AsyncEventStream(_Stream[AsyncListener]):
    """The same for asyncio."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            yield self._writer.opening()
            while True:
                delivery = await self._listener.get(timeout_s=self._rules.keep_alive_s)
                if delivery is None and self._listener.ended:
                    return
                # An empty chunk would end an HTTP answer.
                if chunk := self._writer.chunk(delivery):
                    yield chunk
        except QueuekeeperError as error:
            yield self._writer.closing(error)
        finally:
            self.close()


@checked
def open_stream(
    consumer: EventConsumer,
    interest: Interest,
    *,
    last_event_id: str | None = None,
    rules: StreamRules | None = None,
    serialise: Serialiser = payload_json,
) -> EventStream:
    """Open a stream of events, from now on or from where a reader has stopped.

    The group must be this process's own: of several consumers one reads, and only its listeners hear.

    :param last_event_id: header ``Last-Event-ID`` of the request.
    :raises ResumeRefused: when the stream cannot go on there; answer with :data:`NO_RESUME`.
    """
    rules = rules or StreamRules()
    place = place_of(last_event_id, rules=rules, now=datetime.now(UTC))
    events = consumer.operations.events
    began_id = consumer._ask(events.latest_event_id)
    listener, subscription = consumer.listen_to(_lasting(interest, rules))
    try:
        writer = consumer._ask(
            lambda: opened_stream(
                *(events, subscription, place, began_id), group_id=consumer.group_id, rules=rules, serialise=serialise
            )
        )
    except BaseException:
        listener.close()
        raise
    return EventStream(listener, writer, rules)


@checked
async def open_stream_async(
    consumer: AsyncEventConsumer,
    interest: Interest,
    *,
    last_event_id: str | None = None,
    rules: StreamRules | None = None,
    serialise: Serialiser = payload_json,
) -> AsyncEventStream:
    """Open a stream of events for asyncio, as :func:`open_stream` does."""
    rules = rules or StreamRules()
    place = place_of(last_event_id, rules=rules, now=datetime.now(UTC))
    events = consumer.operations.events
    began_id = await consumer._ask(events.latest_event_id)
    listener, subscription = await consumer.listen_to(_lasting(interest, rules))
    try:
        writer = await consumer._ask(
            lambda: opened_stream(
                *(events, subscription, place, began_id), group_id=consumer.group_id, rules=rules, serialise=serialise
            )
        )
    except BaseException:
        listener.close()
        raise
    return AsyncEventStream(listener, writer, rules)


def _lasting(interest: Interest, rules: StreamRules) -> Interest:
    """Return an interest whose subscription outlives the time in which its reader may come back."""
    return replace(interest, expires_after=timedelta(seconds=2 * rules.replay_s))
