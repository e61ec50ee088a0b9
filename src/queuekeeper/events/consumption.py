"""The work of a consumer of events, as one operation: read ahead, call handlers, retry, store the cursor."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from queuekeeper.clock import Backoff
from queuekeeper.errors import RefusedError, ServerUnavailable, UsageError
from queuekeeper.events.handlers import (
    Assignment,
    BufferedListener,
    Failure,
    Outcome,
    ReadAhead,
    ReliableHandler,
)
from queuekeeper.events.model import (
    Delivery,
    Event,
    Interest,
    PageItem,
    ReadRules,
    StatementTimeout,
    Subscription,
    TransientRefusal,
    check_group,
    retry_of,
)
from queuekeeper.events.operations import TRIALS, EventOperations, Query
from queuekeeper.events.service import Open
from queuekeeper.operation import Operation
from queuekeeper.service.handlers import reason_of
from queuekeeper.service.steps import Begin, Ended, Stop, Wait
from queuekeeper.wording import number_of

T = TypeVar("T")

RECONNECT = Backoff(first_s=0.1, longest_s=10.0)
"""Pauses between tries after the server has failed or refused."""

SIGNS_IN_A_LIFE = 3
"""Signs of life of a subscription within its ``expires_after``, so that one may be late."""

LEAST_SIGN_OF_LIFE_S = 0.1
"""Shortest time in seconds between two signs of life, however short ``expires_after`` is."""

MAX_REASON_CHARACTERS = 2_000
NAMED_EVENTS = 10
"""Largest number of events that a line of the log names; it counts the others."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Message: carry out an operation on the consumer's connection.

    :param operation: makes the operation; called again if the connection breaks meanwhile.
    :param future: gets the result.
    """

    operation: Callable[[], Operation[Any]]
    future: Any


@dataclass(frozen=True, slots=True)
class Left:
    """Message: a listener was closed."""

    listener: BufferedListener


class Recovery:
    """Chooses the pause of a service after the server has failed or refused.

    After a lost connection the pauses grow until a connection serves again. A refusal may last long, so after refusals
    the pauses grow until a connection has served for 10 s, the longest pause.

    :param who: name of the service in the log.
    :param now_s: monotonic clock in seconds.
    """

    def __init__(self, who: str, *, now_s: Callable[[], float]) -> None:
        self._who = who
        self._now_s = now_s
        self._serves_since_s: float | None = None
        self._lost = self._refused = 0

    def note_service(self) -> None:
        """Note that a connection serves."""
        self._serves_since_s = self._now_s()
        self._lost = 0

    @property
    def has_served(self) -> bool:
        """Whether any connection has served."""
        return self._serves_since_s is not None

    def pause_after(self, error: ServerUnavailable | TransientRefusal) -> float:
        """Log the error and return the pause in seconds.

        :raises ServerUnavailable: the error, when no connection has served yet.
        """
        if isinstance(error, ServerUnavailable):
            if not self.has_served:
                raise error
            pause_s = RECONNECT.after(self._lost)
            self._lost += 1
        else:
            if self._serves_since_s is not None and self._now_s() - self._serves_since_s >= RECONNECT.longest_s:
                self._refused = 0
            pause_s = RECONNECT.after(self._refused)
            self._refused += 1
        _log.warning("%s: %s; the next try follows in %.1f s", self._who, error, pause_s)
        return pause_s


class Consumption:
    """The work of a consumer, as an operation.

    The connection owns the group from the first read on, until it is lost. Then events after the stored cursor are
    delivered again, to the next connection that reads.

    :param attempt: makes the function of an attempt.
    :param began: called when the consumer serves.
    :param now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        *,
        group_id: str,
        rules: ReadRules,
        attempt: Callable[[Assignment], Callable[[], Any]],
        began: Callable[[], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        check_group(group_id)
        self.group_id = group_id
        self.rules = rules
        self.events = EventOperations()
        self.handlers: dict[str, ReliableHandler] = {}
        self.listeners: list[tuple[BufferedListener, Interest]] = []
        self._attempt = attempt
        self._began = began
        self._now_s = now_s
        self._ahead = ReadAhead(rules.pages_ahead)
        self._cursor: str | None = None
        self._asked: deque[Asked] = deque()
        self._ended: deque[Ended] = deque()
        self._late_trials = 0
        self._stop_at_s: float | None = None
        self._sign_of_life_at_s = 0.0

    def run(self) -> Operation[None]:
        """Serve until told to stop.

        :raises ServerUnavailable: when the server cannot be reached at the start; later the consumer waits for it.
        :raises StatementTimeout: when a condition takes too long at the start, in each of :data:`TRIALS` tries.
        """
        recovery = Recovery(f"group {self.group_id}", now_s=self._now_s)
        while True:
            try:
                yield Open()
                yield from self._begin()
                recovery.note_service()
                self._began()
                yield from self._serve()
            except (ServerUnavailable, TransientRefusal) as error:
                self._abandon()
                if self._stop_at_s is not None:
                    _log.warning("group %s: %s; it stops, and unfinished events come again", self.group_id, error)
                    return
                if self._late_trials == TRIALS and not recovery.has_served:
                    raise
                yield from self._rest(recovery.pause_after(error))
            else:
                return

    def _begin(self) -> Operation[None]:
        yield Query(name="pin_reader")
        try:
            yield from self._subscribe()
        except StatementTimeout:
            self._late_trials += 1
            raise
        yield Query(name="listen_dispatched")

    def _subscribe(self) -> Operation[None]:
        """Make sure that all subscriptions exist, also those that were removed meanwhile."""
        for handler in self.handlers.values():
            found = yield from self._assert_subscription(handler.interest)
            handler.subscription_id = found.subscription_id
        for listener, interest in self.listeners:
            found = yield from self._assert_subscription(interest)
            listener.subscription_id = found.subscription_id
        self._sign_of_life_at_s = self._next_sign_of_life_s()

    def _next_sign_of_life_s(self) -> float:
        """Return the time of the next sign of life; each subscription gets several before it would expire."""
        interests = [handler.interest for handler in self.handlers.values()] + [one for _, one in self.listeners]
        lives_s = [one.expires_after.total_seconds() for one in interests if one.expires_after is not None]
        pauses_s = [max(LEAST_SIGN_OF_LIFE_S, life_s / SIGNS_IN_A_LIFE) for life_s in lives_s]
        return self._now_s() + min([self.rules.sign_of_life_s, *pauses_s])

    def _assert_subscription(self, interest: Interest) -> Operation[Subscription]:
        found = yield from self.events.subscribe(self.group_id, interest)
        if found.quarantined_at is not None:
            _log.error(
                "group %s: subscription %s gets nothing, since it is in quarantine, from %s on: %s; correct its "
                "condition and release it (queuekeeper events subscriptions --release %s)",
                *(self.group_id, found.subscription_id, found.quarantined_at.isoformat(timespec="seconds")),
                *(found.quarantine_reason, found.subscription_id),
            )
        return found

    def _abandon(self) -> None:
        """Forget the deliveries of the lost connection; they are read again from the stored cursor."""
        self._ahead.abandon()
        self._ended.clear()
        self._cursor = None
        for handler in self.handlers.values():
            handler.queue.clear()
            handler.resume_at_s = 0.0

    def _serve(self) -> Operation[None]:
        read_at_s = self._now_s()
        while True:
            yield from self._carry_out()
            yield from self._settle()
            yield from self._start()
            now_s = self._now_s()
            if self._stop_at_s is not None and (now_s >= self._stop_at_s or not self._moving(now_s)):
                yield from self.events.release_group(self.group_id)
                return
            if now_s >= self._sign_of_life_at_s:
                # After a stop, too: handlers may need longer than a subscription lives.
                yield from self._give_sign_of_life()
            if self._stop_at_s is None and now_s >= read_at_s and not self._ahead.full:
                if (yield from self._read()):
                    continue
                read_at_s = self._now_s() + self.rules.poll_interval_s
            if (yield from self._wait(self._wake_at_s(read_at_s))):
                read_at_s = self._now_s()

    def _moving(self, now_s: float) -> bool:
        """Return whether a handler is running or may begin; one that pauses after a failure does not count."""
        return any(
            handler.busy is not None or (handler.queue and now_s >= handler.resume_at_s)
            for handler in self.handlers.values()
        )

    def _wake_at_s(self, read_at_s: float) -> float:
        instants = [handler.resume_at_s for handler in self.handlers.values() if handler.queue and not handler.busy]
        if self._stop_at_s is not None:
            instants.append(self._stop_at_s)
        elif not self._ahead.full:
            instants.append(read_at_s)
        return min([self._sign_of_life_at_s, *instants])

    def _wait(self, until_s: float) -> Operation[bool]:
        """Wait for messages and take them; return whether the server sent a notification."""
        happened = yield Wait(timeout_s=max(0.0, until_s - self._now_s()))
        for message in happened.told:
            if isinstance(message, Ended):
                self._ended.append(message)
                message.token.handler.busy = None
            elif isinstance(message, Asked):
                self._asked.append(message)
            elif isinstance(message, Left):
                self.listeners = [one for one in self.listeners if one[0] is not message.listener]
            elif self._stop_at_s is None:
                assert isinstance(message, Stop)
                self._stop_at_s = self._now_s() + self.rules.grace_s
        return bool(happened.notified)

    def _rest(self, pause_s: float) -> Operation[None]:
        until_s = self._now_s() + pause_s
        while self._stop_at_s is None and self._now_s() < until_s:
            yield from self._wait(until_s)

    # Operations that callers ask for

    def _carry_out(self) -> Operation[None]:
        while self._asked:
            asked = self._asked[0]
            if asked.future.cancelled():
                self._asked.popleft()
                continue
            try:
                result = yield from asked.operation()
            except ServerUnavailable:
                # The operation is made again on the next connection.
                raise
            except Exception as error:
                self._asked.popleft()
                _resolve(asked.future, error=error)
            else:
                self._asked.popleft()
                _resolve(asked.future, result=result)

    def add_handler(self, handler: ReliableHandler) -> Operation[str]:
        """Subscribe for a handler, which gets events that are read from now on."""
        found = yield from self._assert_subscription(handler.interest)
        handler.subscription_id = found.subscription_id
        self.admit(handler)
        self._sign_of_life_at_s = min(self._sign_of_life_at_s, self._next_sign_of_life_s())
        return found.subscription_id

    def admit(self, handler: ReliableHandler) -> None:
        """Add a handler.

        :raises UsageError: when there is a handler of its name.
        """
        if handler.name in self.handlers:
            raise UsageError(f"this consumer has a handler {handler.name!r} already: retries find handlers by name")
        self.handlers[handler.name] = handler

    @property
    def late(self) -> bool:
        """Whether handlers are still running."""
        return any(handler.busy is not None for handler in self.handlers.values())

    def end(self, error: BaseException | None, told: Iterable[Any]) -> None:
        """End all listeners and fail all operations that wait.

        :param error: reason why the consumer has ended; ``None`` after a stop.
        :param told: messages that were not taken.
        """
        self._asked.extend(message for message in told if isinstance(message, Asked))
        for listener, _ in self.listeners:
            listener.end(error if isinstance(error, Exception) else None)
        refusal = error if isinstance(error, Exception) else RefusedError("the consumer has stopped")
        for asked in self._asked:
            _resolve(asked.future, error=refusal)

    def add_listener(
        self, interest: Interest, make: Callable[[str], BufferedListener]
    ) -> Operation[tuple[Any, Subscription]]:
        """Subscribe for a listener, which gets events that are read from now on."""
        found = yield from self._assert_subscription(interest)
        listener = make(found.subscription_id)
        self.listeners.append((listener, interest))
        self._sign_of_life_at_s = min(self._sign_of_life_at_s, self._next_sign_of_life_s())
        return listener, found

    def unsubscribe(self, subscription_id: str) -> Operation[bool]:
        """Remove a subscription with its handlers and listeners; return whether it existed."""
        removed = yield from self.events.unsubscribe([subscription_id])
        for name in [name for name, one in self.handlers.items() if one.subscription_id == subscription_id]:
            handler = self.handlers.pop(name)
            while handler.queue:
                handler.queue.popleft().checkpoint.unfinished -= 1
        for listener, _ in [one for one in self.listeners if one[0].subscription_id == subscription_id]:
            listener.end(RefusedError(f"subscription {subscription_id} was removed"))
            self.listeners = [one for one in self.listeners if one[0] is not listener]
        return bool(removed)

    def _give_sign_of_life(self) -> Operation[None]:
        ids = {handler.subscription_id for handler in self.handlers.values()}
        ids |= {listener.subscription_id for listener, _ in self.listeners}
        marked = yield from self.events.mark_active(sorted(ids))
        self._sign_of_life_at_s = self._next_sign_of_life_s()
        if marked < len(ids):
            gone = len(ids) - marked
            _log.warning("group %s: %d subscriptions had been removed and are made anew", self.group_id, gone)
            yield from self._subscribe()

    # Reading

    def _read(self) -> Operation[bool]:
        """Read a page and queue its deliveries for handlers and listeners; return whether there was a page."""
        page = yield from self.events.read(self.group_id, cursor=self._cursor, limit=self.rules.page)
        if page.next_cursor is None:
            return False
        addressed = yield from self._sort(page.items)
        checkpoint = self._ahead.add(page.next_cursor)
        self._cursor = page.next_cursor
        for delivery, name in addressed:
            if name is None:
                for listener, _ in list(self.listeners):
                    if listener.subscription_id == delivery.subscription_id:
                        listener.put(delivery)
            takers = [
                handler
                for handler in self.handlers.values()
                if handler.subscription_id == delivery.subscription_id and name in {None, handler.name}
            ]
            for handler in takers:
                checkpoint.unfinished += 1
                handler.queue.append(Assignment(handler, delivery, checkpoint))
            if name is not None and not takers:
                _log.error("group %s: no handler is named %r, so its retry becomes dead letters", self.group_id, name)
                reason = "the consumer had no handler of this name when the retry came"
                yield from self._fail(delivery, handler=name, reason=reason)
        return True

    def _sort(self, items: Sequence[PageItem]) -> Operation[list[tuple[Delivery, str | None]]]:
        """Return the deliveries of a page, each with the name of its handler if it is a retry, else ``None``."""
        ordinary: dict[str, list[Event]] = {}
        retries: list[tuple[Delivery, str | None]] = []
        for item in items:
            retry = retry_of(item.event)
            for subscription_id in item.subscription_ids:
                if retry is None:
                    ordinary.setdefault(subscription_id, []).append(item.event)
                    continue
                # A retry of a client written for PGMB holds ids only.
                events = retry.events or (yield from self.events.find(retry.event_ids))
                if not events:
                    self._note_lost(retry.event_ids, handler=retry.handler, what="copy")
                delivery = Delivery(
                    subscription_id=subscription_id, events=events, attempt=retry.attempt, retry_id=item.event.id
                )
                if events:
                    retries.append((delivery, retry.handler))
        first = [(Delivery(subscription_id=one, events=tuple(events)), None) for one, events in ordinary.items()]
        return [*first, *retries]

    # Working

    def _start(self) -> Operation[None]:
        now_s = self._now_s()
        for handler in self.handlers.values():
            assignment = handler.next_assignment(now_s)
            if assignment is not None:
                yield Begin(work=self._attempt(assignment), token=assignment)

    def _settle(self) -> Operation[None]:
        """Conclude the attempts that have ended, and store the cursor up to the first unfinished page."""
        while self._ended:
            ended = self._ended[0]
            if not ended.token.checkpoint.void:
                yield from self._conclude(ended.token, ended)
            self._ended.popleft()
        cursor = self._ahead.take_finished()
        if cursor is not None:
            yield from self.events.set_cursor(self.group_id, cursor, release=False)

    def _conclude(self, assignment: Assignment, ended: Ended) -> Operation[None]:
        handler = assignment.handler
        if ended.error is not None:
            # The splitter has failed, so the whole delivery has.
            outcome = Outcome(failures=(Failure(delivery=assignment.delivery, error=ended.error),))
        else:
            outcome = ended.result
        again: list[Failure] = []
        for failure in outcome.failures:
            delivery, error = failure.delivery, failure.error
            retries_s = handler.rules.retries_s
            _log.warning(
                "group %s: handler %r failed on %s, attempt %d",
                *(self.group_id, handler.name, number_of(len(delivery.events), "event"), delivery.attempt),
                exc_info=error,
            )
            if handler.rules.is_final(delivery, error):
                yield from self._fail(delivery, handler=handler.name, reason=_reason(error))
            elif retries_s is not None:
                pause_s = retries_s[delivery.attempt - 1]
                kept = yield from self.events.retry(delivery, handler=handler.name, delay_s=pause_s)
                if not kept:
                    self._note_lost([event.id for event in delivery.events], handler=handler.name, what="retry")
            else:
                again.append(failure)
        left = [*(failure.delivery for failure in again), *outcome.left]
        if left and self.handlers.get(handler.name) is handler:
            handler.put_back(assignment, again, outcome.left, now_s=self._now_s())
            return
        assignment.checkpoint.unfinished -= 1
        if left:
            # The handler was removed while it was running: nothing retries these events.
            self._note_lost([event.id for one in left for event in one.events], handler=handler.name, what="handler")

    def _fail(self, delivery: Delivery, *, handler: str, reason: str) -> Operation[None]:
        """Make dead letters of a delivery, and log the events of which none was kept."""
        ids = sorted({event.id for event in delivery.events})
        kept = yield from self.events.fail(delivery, handler=handler, reason=reason)
        if kept < len(ids):
            self._note_lost(ids, handler=handler, what="dead letter", kept=kept)

    def _note_lost(self, event_ids: Sequence[str], *, handler: str, what: str, kept: int = 0) -> None:
        """Log events that are lost, since an override of retention or the removal of their subscription took them."""
        _log.error(
            "group %s: handler %r does not get %d of %d events again: there is no %s for them, as they are no longer "
            "stored or their subscription or handler was removed; events %s",
            *(self.group_id, handler, len(event_ids) - kept, len(event_ids), what, _named(event_ids)),
        )


def _named(event_ids: Sequence[str]) -> str:
    more = len(event_ids) - NAMED_EVENTS
    return ", ".join(event_ids[:NAMED_EVENTS]) + (f" and {more} more" if more > 0 else "")


def _reason(error: BaseException) -> str:
    # PostgreSQL stores neither NUL nor half a character.
    return reason_of(error).replace("\0", " ")[:MAX_REASON_CHARACTERS].encode(errors="replace").decode()


def _resolve(future: Any, *, result: Any = None, error: Exception | None = None) -> None:
    """Set the result of a future, unless its waiter has gone."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
