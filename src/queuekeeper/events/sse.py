"""Server-sent events: streams of events for browsers, which continue after a lost connection.

A web framework answers a request with :data:`HEADERS`, or with :data:`NO_RESUME`, and writes the chunks of the stream.
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
    # A proxy that buffers the answer would delay every event.
    "x-accel-buffering": "no",
}
"""Headers of the answer to a request for a stream."""

NO_RESUME = 204
"""Status of the answer when :class:`~queuekeeper.events.model.ResumeRefused` is raised. The browser then stops
reconnecting, and the page has to load its state again and open a new stream."""

POSITION = "position"
"""Name of an event without content, which gives a browser the place from which its stream continues."""

Serialiser: TypeAlias = Callable[[Event], str | None]
"""Function that returns the data of an event; ``None`` or a ``UsageError``, which is logged, leaves the event out."""

L = TypeVar("L", Listener, AsyncListener)

_log = logging.getLogger(__name__)


def payload_json(event: Event) -> str:
    """Return an event's payload as JSON."""
    return json_of("payload", event.payload)


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRules:
    """How streams are resumed and kept alive.

    :param replay_events: largest number of events that a reader may have missed when its stream is resumed, 1,000 by
        default; 0 means that streams are not resumed.
    :param replay_s: greatest age in seconds of the last event that a reader got, 300 by default; an older stream is not
        resumed. A subscription without a reader is removed after twice this time.
    :param keep_alive_s: seconds without events after which a comment is sent, 15 by default, so that a lost connection
        is noticed.
    :param retry_ms: time in ms after which the browser reconnects when the stream has broken, 250 by default.
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
    """Makes the chunks of a stream, with each event once.

    :param replayed: events that the reader has missed.
    :param position: id of the event from which the stream continues; ``None`` if there are replayed events.
    """

    rules: StreamRules
    serialise: Serialiser
    _: KW_ONLY
    replayed: Sequence[Event]
    position: str | None
    subscription_id: str

    def __post_init__(self) -> None:
        # An event that was dispatched after the listener began and before the replay comes from both.
        self._seen = {event.id for event in self.replayed}

    def opening(self) -> bytes:
        """Return the first chunk: the pause before a reconnect, missed events and the position."""
        lines = [f"retry: {self.rules.retry_ms}\n\n".encode()]
        lines += (self._chunk(event) for event in self.replayed)
        if self.position is not None:
            lines.append(self._format(POSITION, "{}", self.position))
        return b"".join(lines)

    def chunk(self, delivery: Delivery | None) -> bytes:
        """Return the chunk of a delivery; without one, a comment that keeps the stream alive."""
        if delivery is None:
            return b":\n\n"
        return b"".join(self._chunk(event) for event in delivery.events if event.id not in self._seen)

    def closing(self, error: QueuekeeperError) -> bytes:
        """Return the last chunk after an error; the browser will reconnect."""
        return self._format("error", json_of("message", {"message": str(error)}), None)

    def _chunk(self, event: Event) -> bytes:
        try:
            data = self.serialise(event)
        except UsageError as error:
            # A raised error would end every stream that gets the event, also after a reconnect.
            _log.error("stream of subscription %s: event %s is left out: %s", self.subscription_id, event.id, error)
            return b""
        if data is None:
            return b""
        return self._format(event.topic, data, event.id if self.rules.replay_events else None)

    def _format(self, name: str, data: str, event_id: str | None) -> bytes:
        # A line end would begin another field, so that a publisher could forge events.
        name = " ".join(name.splitlines())
        body = "".join(f"data: {line}\n" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
        first = ""
        if event_id is not None:
            first = f"id: {Place(event_id=event_id, subscription_id=self.subscription_id)}\n"
        return f"{first}event: {name}\n{body}\n".encode()


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The place of a reader in a stream: the last event that it got, and the subscription."""

    event_id: str
    subscription_id: str

    def __str__(self) -> str:
        return f"{self.event_id}-{self.subscription_id}"


def place_of(last_event_id: str | None, *, rules: StreamRules, now: datetime) -> Place | None:
    """Return the place in a request's ``Last-Event-ID``; ``None`` without one.

    :raises ResumeRefused: when the place is too old or not valid, or streams are not resumed.
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
    """Read the events that a reader has missed, and return the writer of its stream.

    :param place: place of the reader; ``None`` for a new stream.
    :param began_id: id from before the listener began: a stream that continues there misses nothing.
    :raises ResumeRefused: when the subscription was removed meanwhile, or the reader has missed too many events.
    """
    replayed: Sequence[Event] = ()
    if place is not None:
        if place.subscription_id != subscription.subscription_id:
            raise ResumeRefused("the subscription was removed meanwhile: the missed events are not known")
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
    """The stream of one reader: iterate over it and write each chunk; call ``close`` when the reader has left."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield self._writer.opening()
            while True:
                delivery = self._listener.get(timeout_s=self._rules.keep_alive_s)
                if delivery is None and self._listener.ended:
                    return
                # An empty chunk would end the HTTP answer.
                if chunk := self._writer.chunk(delivery):
                    yield chunk
        except QueuekeeperError as error:
            yield self._writer.closing(error)
        finally:
            self.close()


@shows(subscription="_listener.subscription_id")
class AsyncEventStream(_Stream[AsyncListener]):
    """The stream of one reader, for asyncio: iterate over it with ``async for``, as over :class:`EventStream`."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            yield self._writer.opening()
            while True:
                delivery = await self._listener.get(timeout_s=self._rules.keep_alive_s)
                if delivery is None and self._listener.ended:
                    return
                # An empty chunk would end the HTTP answer.
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
    """Open a stream of events, from now on or from the place where its reader has stopped.

    No other process may use the consumer's group: one consumer of a group reads, and only its listeners get events.

    :param last_event_id: header ``Last-Event-ID`` of the request, if it has one.
    :param rules: how the stream is resumed and kept alive; defaults when absent.
    :param serialise: returns the data of an event; its payload as JSON by default.
    :raises ResumeRefused: when the stream cannot be resumed; answer with :data:`NO_RESUME`.
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
    """Return an interest whose subscription lives twice as long as its reader may be away."""
    return replace(interest, expires_after=timedelta(seconds=2 * rules.replay_s))
