"""The operations of the event broker, as steps with statements of ``sql/events/queries``.

The functions of ``sql/events`` decide which subscriptions get an event and which events a cursor may pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, TypeAlias, TypeVar, cast

from queuekeeper.checks import check_instant, check_integer, check_seconds
from queuekeeper.errors import RefusedError, UsageError
from queuekeeper.events.model import (
    MAX_DELAY_MS,
    MAX_EVENTS_PER_CALL,
    MAX_PAGE,
    DeadLetter,
    Delivery,
    Event,
    Interest,
    NewEvent,
    Page,
    PageItem,
    ReleaseReport,
    StatementTimeout,
    Subscription,
    SubscriptionView,
    check_event,
    check_events,
    check_group,
    json_of,
)
from queuekeeper.operation import Operation, errors_name
from queuekeeper.portions import portions

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Any]
"""Rows with named columns; a row of one column is a plain tuple."""
T = TypeVar("T")

EVENTS_PER_STATEMENT = 1_000
"""Events of one publish statement: longer statements are not faster, and delay others."""

TRIAL_S = 1.0
"""Seconds that a condition may take for the newest events; a subscription with a slower one is not stored."""

TRIALS = 3
"""Trials of a condition, all of which must be slow: a busy server may be slow once."""

TRIAL_TIMEOUT_S = 10.0
"""Seconds that checking and trying a condition may take. The trial stops after the event at which a condition has taken
too long; only this limit ends one that takes for ever on a single event."""

BYTES_PER_COPY = 16 * 2**20
"""Bytes of events, as text, that are copied into one event. A jsonb value of PostgreSQL holds 256 MiB, and a short
number takes eight times its digits in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """Step: a statement of ``sql/events/queries`` with its parameters; the answer is its rows, with named columns."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """Step: statements in one transaction; the answer is a list with the rows of each."""

    queries: tuple[Query, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Step: a COPY into a table and a statement, in one transaction; the answer is the number of copied rows.

    :param name: statement of ``sql/events/queries`` that copies from the client.
    :param after: statement after the COPY.
    """

    name: str
    rows: Iterable[Row] = field(repr=False)
    after: Query


@errors_name(group_id="group", subscription_id="subscription")
class EventOperations:
    """The operations of the event broker."""

    def publish(self, events: Sequence[NewEvent]) -> Operation[tuple[str, ...]]:
        """Publish up to 10,000 events, all or none, and wake the dispatcher.

        :returns: their ids, in order.
        :raises UsageError: when there are more, or JSON cannot hold one.
        """
        return (yield from self._publish("publish", events, {}))

    def send(self, subscription_id: str, events: Sequence[NewEvent]) -> Operation[tuple[str, ...]]:
        """Publish events for one subscription, whatever its condition; otherwise like :meth:`publish`.

        :raises RefusedError: when there is no such subscription.
        """
        return (yield from self._publish("send", events, {"subscription_id": subscription_id}))

    def _publish(self, name: str, events: Sequence[NewEvent], more: dict[str, Any]) -> Operation[tuple[str, ...]]:
        check_events(events)
        if not events:
            return ()
        if len(events) > MAX_EVENTS_PER_CALL:
            raise UsageError(
                f"{len(events):,} events are too many for one call, which takes {MAX_EVENTS_PER_CALL:,}: "
                "publish more of them by publish_many"
            )
        queries = [
            Query(name=name, parameters=_columns(events[start : start + EVENTS_PER_STATEMENT], first=start + 1) | more)
            for start in range(0, len(events), EVENTS_PER_STATEMENT)
        ]
        if len(queries) == 1:
            answers = [(yield queries[0])]
        else:
            answers = yield Statements(queries=tuple(queries))
        return tuple(row[0] for rows in answers for row in rows)

    def publish_many(self, events: Iterable[NewEvent], *, subscription_id: str | None = None) -> Operation[int]:
        """Publish any number of events by COPY, the fastest way, all or none.

        :param events: events, which are read while they are sent and need not fit in memory.
        :param subscription_id: subscription that alone gets them; all that match when absent.
        :returns: number of events.
        :raises RefusedError: when there is no such subscription.
        """
        check_events(events)
        if subscription_id is not None:
            rows: Rows = yield Query(name="has_subscription", parameters={"subscription_id": subscription_id})
            if not rows[0][0]:
                raise RefusedError(f"there is no subscription {subscription_id}: it may have expired, subscribe again")
        published: int = yield Copy(
            name="copy_events", rows=_rows(events, 1, subscription_id), after=Query(name="notify_events")
        )
        return published

    def schedule(
        self,
        event: NewEvent,
        *,
        due_at: datetime | None = None,
        delay_ms: int | None = None,
        subscription_id: str | None = None,
    ) -> Operation[str]:
        """Publish an event later.

        :param due_at: instant, with a time zone, at which the event is due.
        :param delay_ms: time in ms from now until the event is due, by the server's clock, up to ten years; instead of
            ``due_at``.
        :param subscription_id: subscription that alone gets the event; all that match when absent.
        :returns: id of the event.
        :raises UsageError: when both or none of ``due_at`` and ``delay_ms`` are given, or the instant has no time zone.
        :raises RefusedError: when there is no such subscription.
        """
        if (due_at is None) is (delay_ms is None):
            raise UsageError("due_at and delay_ms say when the event is due: name one of them")
        if due_at is not None:
            check_instant("due_at", due_at)
        if delay_ms is not None:
            check_integer("delay_ms", delay_ms, 0, MAX_DELAY_MS, "ten years at most")
        parameters = _columns([event]) | {"due_at": due_at, "delay_ms": delay_ms, "subscription_id": subscription_id}
        rows: Rows = yield Query(name="schedule_event", parameters=parameters)
        return str(rows[0][0])

    def subscribe(self, group_id: str, interest: Interest) -> Operation[Subscription]:
        """Create a subscription of a group, or prolong its equal one if it would expire sooner.

        :returns: the subscription; if it is in quarantine, it stays there.
        :raises UsageError: when the condition is not allowed.
        :raises StatementTimeout: when the condition took longer than a second for the newest events, in the quicker of
            two trials, or than :data:`TRIAL_TIMEOUT_S` in all. Nothing was stored, and the call may be repeated.
        """
        check_group(group_id)
        queries = (
            Query(name="limit_trial", parameters={"timeout_ms": round(TRIAL_TIMEOUT_S * 1_000)}),
            Query(name="assert_group", parameters={"group_id": group_id}),
            Query(
                name="assert_subscription",
                parameters={
                    "group_id": group_id,
                    "condition": interest.condition,
                    "params": json_of("params", dict(interest.params)),
                    "expires_after": interest.expires_after,
                },
            ),
            Query(name="end_trial"),
        )
        try:
            _, _, rows, _ = yield Statements(queries=queries)
        except StatementTimeout as error:
            raise StatementTimeout(
                f"condition {interest.condition!r} was not tried on the latest events within {TRIAL_TIMEOUT_S:g} s, "
                "or the limits of server and connection: make it cheaper, or try again when the server is less busy "
                f"({error})"
            ) from error
        subscription_id, created_at = rows[0]
        quarantine: Rows = yield Query(name="subscription_quarantine", parameters={"subscription_id": subscription_id})
        quarantined_at, reason = quarantine[0] if quarantine else (None, None)
        return Subscription(
            subscription_id=subscription_id,
            created_at=created_at,
            quarantined_at=quarantined_at,
            quarantine_reason=reason,
        )

    def unsubscribe(self, subscription_ids: Sequence[str]) -> Operation[int]:
        """Remove subscriptions.

        :returns: number of those that existed.
        """
        rows: Rows = yield Query(name="delete_subscriptions", parameters={"ids": list(subscription_ids)})
        return len(rows)

    def mark_active(self, subscription_ids: Sequence[str]) -> Operation[int]:
        """Note that subscriptions are in use, so that they do not expire.

        :returns: number of those that exist.
        """
        rows: Rows = yield Query(name="mark_subscriptions_active", parameters={"ids": list(subscription_ids)})
        return len(rows)

    def read(
        self, group_id: str, *, cursor: str | None = None, limit: int = 1_000, peek: bool = False
    ) -> Operation[Page]:
        """Read the next events of a group. The connection then owns the group until it releases it.

        :param cursor: cursor to read from; the group's stored cursor when absent.
        :param limit: largest number of events, 1,000 by default, at most 10,000.
        :param peek: whether to read without taking ownership, even while another connection owns the group.
        """
        check_group(group_id)
        check_integer("limit", limit, 1, MAX_PAGE)
        parameters = {"group_id": group_id, "cursor": cursor, "limit": limit, "peek": peek}
        rows: Rows = yield Query(name="read_next_events", parameters=parameters)
        return Page(
            items=tuple([PageItem(event=_event(row), subscription_ids=tuple(row.subscription_ids)) for row in rows]),
            next_cursor=str(rows[0].next_cursor) if rows else None,
        )

    def has_group(self, group_id: str) -> Operation[bool]:
        """Return whether the group exists."""
        check_group(group_id)
        rows: Rows = yield Query(name="has_group", parameters={"group_id": group_id})
        return bool(rows[0][0])

    def set_cursor(self, group_id: str, cursor: str, *, release: bool) -> Operation[None]:
        """Store the cursor of a group.

        :param release: whether the connection gives up the ownership of the group.
        """
        check_group(group_id)
        parameters = {"group_id": group_id, "cursor": cursor, "release": release}
        yield Query(name="set_group_cursor", parameters=parameters)

    def release_group(self, group_id: str) -> Operation[None]:
        """Give up the ownership of a group, if this connection has it."""
        yield Query(name="release_group_lock", parameters={"group_id": group_id})

    def replay(
        self, group_id: str, subscription_id: str, *, after_event_id: str, limit: int = 1_000
    ) -> Operation[tuple[Event, ...]]:
        """Read again the events that a subscription got after an event. The call changes nothing.

        :param limit: largest number of events, 1,000 by default, at most 10,000.
        :raises RefusedError: when there are more than ``limit``.
        """
        check_integer("limit", limit, 1, MAX_PAGE)
        rows: Rows = yield Query(
            name="replay_events",
            parameters={
                "group_id": group_id,
                "subscription_id": subscription_id,
                "after_event_id": after_event_id,
                "limit": limit,
            },
        )
        return tuple(_event(row) for row in rows)

    def latest_event_id(self) -> Operation[str]:
        """Return the id of an event that would be published now."""
        rows: Rows = yield Query(name="latest_event_id")
        return str(rows[0][0])

    def poll(self) -> Operation[int]:
        """Dispatch one chunk of events to their subscriptions; none while another session polls.

        :returns: number of matches.
        :raises StatementTimeout: when the poll took longer than the ``statement_timeout`` of the connection.
        """
        rows: Rows = yield Query(name="poll_for_events")
        return int(rows[0][0])

    def find(self, event_ids: Sequence[str]) -> Operation[tuple[Event, ...]]:
        """Read events by their ids; events that are no longer stored are left out."""
        rows: Rows = yield Query(name="read_events", parameters={"ids": list(event_ids)})
        return tuple(_event(row) for row in rows)

    def retry(self, delivery: Delivery, *, handler: str, delay_s: float) -> Operation[bool]:
        """Schedule a retry: one handler gets a delivery again, later. Its events are copied, so retention keeps them.

        :param delivery: delivery that the handler got; a large one comes again in parts.
        :param delay_s: seconds until the retry.
        :returns: whether there is a retry; there is none when the events or their subscription are no longer stored.
        """
        more = {"retry_number": delivery.attempt, "delay_s": delay_s}
        answers = yield from _together("schedule_retry", [_delivery(one, handler) | more for one in _parts(delivery)])
        return any(rows[0][0] is not None for rows in answers)

    def fail(self, delivery: Delivery, *, handler: str, reason: str) -> Operation[int]:
        """Keep copies of a delivery's events as dead letters.

        :returns: number of dead letters; 0 when the subscription was removed.
        """
        more = {"reason": reason, "attempts": delivery.attempt}
        answers = yield from _together("fail_events", [_delivery(one, handler) | more for one in _parts(delivery)])
        return sum(int(rows[0][0]) for rows in answers if rows)

    def dead_letters(
        self, *, group_id: str | None = None, after: int = 0, limit: int = 100
    ) -> Operation[tuple[DeadLetter, ...]]:
        """List events that a handler has given up, and why.

        The oldest come first. Dead letters that were replayed are left out.

        :param group_id: id of the group; all groups when absent.
        :param after: number of the dead letter after which to list: the last one of the page before.
        :param limit: largest number of dead letters, 100 by default.
        """
        check_integer("limit", limit, 1, MAX_PAGE)
        parameters = {"group_id": group_id, "after": after, "limit": limit}
        rows: Rows = yield Query(name="dead_letters", parameters=parameters)
        return tuple(_record(DeadLetter, row, event=_event(row)) for row in rows)

    def replay_dead_letters(
        self, dead_letter_ids: Sequence[int], *, subscription_id: str | None = None
    ) -> Operation[int]:
        """Deliver dead letters again to the handlers that gave them up, with attempts at zero.

        :param subscription_id: subscription to deliver them to, if theirs was removed.
        :returns: number of replayed dead letters, without those that were replayed before.
        """
        sizes: Rows = yield Query(name="dead_letter_sizes", parameters={"ids": list(dead_letter_ids)})
        calls = [
            {"ids": [number for number, _ in part], "subscription_id": subscription_id}
            for part in portions(sizes, size=lambda row: int(row.bytes), most=BYTES_PER_COPY)
        ]
        answers = yield from _together("replay_dead_letters", calls)
        return sum(int(rows[0][0]) for rows in answers)

    def subscriptions(self, *, group_id: str | None = None) -> Operation[tuple[SubscriptionView, ...]]:
        """List the subscriptions of one group, or of all groups when ``group_id`` is absent."""
        rows: Rows = yield Query(name="subscriptions", parameters={"group_id": group_id})
        return tuple(_record(SubscriptionView, row) for row in rows)

    def conditions(self) -> Operation[tuple[str, ...]]:
        """List the conditions that a poll evaluates."""
        rows: Rows = yield Query(name="live_conditions")
        return tuple(row[0] for row in rows)

    def check_condition(self, condition: str, *, max_duration_s: float = TRIAL_S) -> Operation[str | None]:
        """Try a condition on recent events.

        :param max_duration_s: seconds that it may take, 0.001 or more; 1, the limit of ``subscribe``, by default.
        :returns: why the condition is not allowed or fails; ``None`` if it is right.
        :raises StatementTimeout: when it took longer, or longer than the ``statement_timeout`` of the connection.
        """
        check_seconds("max_duration_s", max_duration_s)
        given = {"condition": condition, "max_duration_ms": round(max_duration_s * 1_000)}
        rows: Rows = yield Query(name="check_condition", parameters=given)
        return None if rows[0][0] is None else str(rows[0][0])

    def quarantine_condition(self, condition: str, *, reason: str) -> Operation[tuple[str, ...]]:
        """Put all subscriptions with a condition into quarantine.

        :returns: ids of the subscriptions that were not in quarantine before.
        """
        rows: Rows = yield Query(name="quarantine_condition", parameters={"condition": condition, "reason": reason})
        return tuple(row[0] for row in rows)

    def release_subscription(self, subscription_id: str) -> Operation[ReleaseReport]:
        """Release a subscription from quarantine, and dispatch the events that it has missed.

        :raises UsageError: when there is no such subscription.
        """
        rows: Rows = yield Query(name="release_subscription", parameters={"subscription_id": subscription_id})
        return ReleaseReport(redelivered=rows[0].redelivered, failed_event_ids=tuple(rows[0].failed_event_ids))


def _together(name: str, calls: Sequence[dict[str, Any]]) -> Operation[list[Rows]]:
    """Execute a statement with each set of parameters, in one transaction."""
    queries = tuple(Query(name=name, parameters=parameters) for parameters in calls)
    if len(queries) == 1:
        return [(yield queries[0])]
    answers: list[Rows] = yield Statements(queries=queries)
    return answers


def _parts(delivery: Delivery) -> Iterator[Delivery]:
    """Cut a delivery into parts whose events fit into :data:`BYTES_PER_COPY`."""
    if len(delivery.events) <= 1:
        yield delivery
        return
    for events in portions(delivery.events, size=_bytes, most=BYTES_PER_COPY):
        yield replace(delivery, events=tuple(events))


def _bytes(event: Event) -> int:
    try:
        return sum(len(json.dumps(content, ensure_ascii=False).encode()) for content in (event.payload, event.metadata))
    except (ValueError, RecursionError):
        # PostgreSQL stores values that Python cannot write, such as very deep ones: such an event is a part by itself.
        return BYTES_PER_COPY


def _columns(events: Sequence[NewEvent], *, first: int = 1) -> dict[str, Any]:
    """Return events as arrays for a statement.

    :param first: place of the first event in the call.
    """
    if {*map(type, events)} == {NewEvent}:
        try:
            return {
                "topics": [event.topic for event in events],
                "payloads": [json_of("payload", event.payload) for event in events],
                "metadatas": [
                    None if event.metadata is None else json_of("metadata", event.metadata) for event in events
                ],
            }
        except UsageError:
            pass
    # An event may be wrong: check one by one, so that the error has its place.
    topics, payloads, metadatas = map(list, zip(*_rows(events, first), strict=True))
    return {"topics": topics, "payloads": payloads, "metadatas": metadatas}


def _rows(events: Iterable[NewEvent], first: int, *rest: Any) -> Iterator[Row]:
    """Yield topic, payload and metadata of each event, then ``rest``; ``first`` is the place of the first event."""
    for number, event in enumerate(events, first):
        if type(event) is not NewEvent:
            check_event(event, number)
        try:
            metadata = None if event.metadata is None else json_of("metadata", event.metadata)
            row = event.topic, json_of("payload", event.payload), metadata
        except UsageError as error:
            raise UsageError(f"{error} (event {number} of the call)") from None
        yield row + rest


def _record(made: type[T], row: Any, **given: Any) -> T:
    """Return a record with the given fields; its other fields are the columns of the same names."""
    names = [each.name for each in fields(cast(Any, made)) if each.name not in given]
    return made(**given, **{name: getattr(row, name) for name in names})


def _event(row: Any) -> Event:
    return Event(id=row.event_id, topic=row.topic, payload=row.payload, metadata=row.metadata)


def _delivery(delivery: Delivery, handler: str) -> dict[str, Any]:
    return {
        "subscription_id": delivery.subscription_id,
        "ids": [event.id for event in delivery.events],
        "handler": handler,
        "retry_id": delivery.retry_id,
    }
