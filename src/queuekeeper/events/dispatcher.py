"""The dispatcher: it polls when events were published, and quarantines slow conditions, which would delay all others.

Several dispatchers may run: one polls at a time, and another takes over when it ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queuekeeper.checks import check_all_seconds, checked
from queuekeeper.errors import ServerUnavailable, UsageError
from queuekeeper.events.consumption import Recovery
from queuekeeper.events.model import LockTimeout, StatementTimeout, TransientRefusal
from queuekeeper.events.operations import TRIAL_S, TRIALS, EventOperations, Query
from queuekeeper.events.service import AsyncEventService, EventService, Open
from queuekeeper.operation import Operation, awaited, blocking
from queuekeeper.postgres import address_of
from queuekeeper.service.steps import Stop, Wait
from queuekeeper.text_form import shows

LONGEST_POLL_S = 86_400.0
"""Longest time limit of a poll in seconds: a day."""

LOCK_SHARE = 4
"""A condition may wait for locks for its time limit divided by this; a longer wait does not count as slow."""

BUSY_MATCHES = 500
"""Matches of a poll from which on the pause is ``busy_pause_s``."""

PLAIN_CONDITION = "TRUE"
"""Condition that takes no time; if it is slow too, the server is slow."""

STANDBY_PAUSE_S = 1.0
"""Longest pause in seconds while another dispatcher polls."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchRules:
    """How a dispatcher works.

    :param poll_interval_s: seconds after which to poll without a notification, up to 86,400. A scheduled event can be
        late by this time.
    :param pause_s: least seconds from a poll for published events to the next, 0.01 by default; events that are
        published meanwhile are dispatched together. A poll that only looks whether there are more does not count.
    :param busy_pause_s: least seconds between two polls after a poll with 500 matches or more, 0.04 by default. With
        fewer matches the pause is between ``pause_s`` and this. A poll, and the reads after it, cost about as much for
        ten events as for hundreds. A value below ``pause_s`` has no effect.
    :param statement_timeout_s: seconds after which the server cancels a poll; then conditions are tried one by one.
    :param condition_timeout_s: seconds that one condition may take for the newest events, when it is tried alone after
        a poll that took too long; at most ``statement_timeout_s``. ``subscribe`` accepts conditions that take up to a
        second, so a shorter time quarantines some that it has accepted.
    :raises UsageError: when a number is out of range.
    """

    poll_interval_s: float = 1.0
    pause_s: float = 0.01
    busy_pause_s: float = 0.04
    statement_timeout_s: float = 10.0
    condition_timeout_s: float = TRIAL_S

    def __post_init__(self) -> None:
        check_all_seconds(self, "poll_interval_s")
        check_all_seconds(self, "pause_s", "busy_pause_s", least=0)
        check_all_seconds(self, "statement_timeout_s", "condition_timeout_s")
        if self.condition_timeout_s > self.statement_timeout_s:
            raise UsageError(
                f"condition_timeout_s is {self.condition_timeout_s}: one condition cannot have more time than a poll, "
                f"which has {self.statement_timeout_s}"
            )

    def pause_after(self, matches: int) -> float:
        """Return the pause in seconds after a poll with this number of matches."""
        return self.pause_s + max(0.0, self.busy_pause_s - self.pause_s) * min(1.0, matches / BUSY_MATCHES)


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchReport:
    """Result of a dispatcher.

    :param polls: number of polls that succeeded.
    :param matches: number of matches; each is one event for one subscription.
    :param quarantined: ids of the subscriptions that it put into quarantine, for a condition that is slow or fails.
    """

    polls: int
    matches: int
    quarantined: tuple[str, ...]


class Dispatching:
    """The work of a dispatcher, as an operation.

    :cvar late: whether work still runs after a stop; always false, since a dispatcher begins no work.
    :param once: whether to dispatch the events that are stored, then end.
    :param began: called when the dispatcher serves.
    :param now_s: monotonic clock in seconds.
    """

    late = False

    def __init__(
        self, rules: DispatchRules, *, once: bool, began: Callable[[], None], now_s: Callable[[], float]
    ) -> None:
        self.events = EventOperations()
        self._rules = rules
        self._once = once
        self._began = began
        self._now_s = now_s
        self._timeout_s = rules.statement_timeout_s
        self._stops = False
        self._polls = self._matches = 0
        self._quarantined: list[str] = []
        self._polled_at: Any = None

    def run(self) -> Operation[DispatchReport]:
        """Dispatch until told to stop.

        :raises ServerUnavailable: when the server cannot be reached at the start, or with ``once``; otherwise the
            dispatcher waits for it.
        :raises TransientRefusal: with ``once``, when the server refuses; otherwise the dispatcher tries again.
        """
        recovery = Recovery("dispatcher", now_s=self._now_s)
        while not self._stops:
            try:
                yield Open()
                yield from self._limit(self._timeout_s)
                yield Query(name="listen_events")
                recovery.note_service()
                self._began()
                yield from self._serve()
                break
            except (ServerUnavailable, TransientRefusal) as error:
                if self._once:
                    raise
                yield from self._rest(recovery.pause_after(error))
        return DispatchReport(polls=self._polls, matches=self._matches, quarantined=tuple(self._quarantined))

    def _serve(self) -> Operation[None]:
        rested_s = self._now_s()
        while not self._stops:
            pause_s = yield from self._poll()
            if pause_s is not None:
                yield from self._rest(pause_s)
                rested_s = self._now_s()
            elif self._once:
                return
            elif (yield from self._wait(self._rules.poll_interval_s)):
                # At once after a quiet time; notifications of events that match nothing do not hurry the polls.
                yield from self._rest(rested_s - self._now_s())
                rested_s = self._now_s() + self._rules.pause_s

    def _poll(self) -> Operation[float | None]:
        """Dispatch one chunk; return the pause before the next, ``None`` when there is nothing to dispatch."""
        pause_s = 0.0 if self._once else self._rules.pause_s
        try:
            matches = yield from self.events.poll()
        except StatementTimeout as error:
            _log.warning("dispatcher: a poll took longer than %.1f s (%s)", self._timeout_s, error)
            yield from self._find_slow_conditions()
            return pause_s
        self._polls += 1
        self._matches += matches
        if self._timeout_s > self._rules.statement_timeout_s:
            self._timeout_s = self._rules.statement_timeout_s
            yield from self._limit(self._timeout_s)
        if matches:
            return 0.0 if self._once else self._rules.pause_after(matches)
        if not (yield Query(name="window_is_open"))[0][0]:
            return None
        # This poll found nothing in an open window, so another dispatcher is polling.
        before = self._polled_at
        self._polled_at = (yield Query(name="last_poll"))[0][0]
        return min(self._rules.poll_interval_s, STANDBY_PAUSE_S) if self._polled_at == before else pause_s

    def _find_slow_conditions(self) -> Operation[None]:
        """Try conditions one by one, and quarantine those that take too long or fail."""
        yield from self._limit(self._rules.condition_timeout_s)
        yield from self._limit_lock_waits(self._rules.condition_timeout_s / LOCK_SHARE)
        before = len(self._quarantined)
        try:
            yield from self._try_conditions()
        except (StatementTimeout, LockTimeout) as error:
            _log.warning("dispatcher: no condition is quarantined, as the server is slow or a lock is held: %s", error)
        yield from self._limit_lock_waits(None)
        if len(self._quarantined) == before:
            # The server is slow, or all conditions together: late events are better than none.
            self._timeout_s = min(LONGEST_POLL_S, 2 * self._timeout_s)
            _log.warning("dispatcher: no single condition is slow; a poll may now take %.1f s", self._timeout_s)
        yield from self._limit(self._timeout_s)

    def _try_conditions(self) -> Operation[None]:
        """Quarantine conditions that are slow or fail while :data:`PLAIN_CONDITION` does neither.

        :raises StatementTimeout: when :data:`PLAIN_CONDITION` is slow too.
        :raises LockTimeout: when another session holds a lock.
        """
        yield from self._try_plain_condition()
        for condition in (yield from self.events.conditions()):
            if condition == PLAIN_CONDITION:
                continue
            reason = yield from self._reason_against(condition)
            if reason is None:
                continue
            # A lock or load may have come during the trial.
            yield from self._try_plain_condition()
            quarantined = yield from self.events.quarantine_condition(condition, reason=reason)
            self._quarantined += quarantined
            _log.error(
                "dispatcher: condition %r of %d subscriptions is in quarantine: %s",
                *(condition, len(quarantined), reason),
            )

    def _reason_against(self, condition: str) -> Operation[str | None]:
        for _ in range(TRIALS):
            try:
                return (yield from self._try(condition))
            except StatementTimeout as error:
                words = str(error)
        return f"it takes too long for the latest events, {TRIALS} times in a row: {words}"

    def _try_plain_condition(self) -> Operation[None]:
        reason = yield from self._try(PLAIN_CONDITION)
        if reason is not None:
            raise StatementTimeout(f"condition {PLAIN_CONDITION} fails too: {reason}")

    def _try(self, condition: str) -> Operation[str | None]:
        return (yield from self.events.check_condition(condition, max_duration_s=self._rules.condition_timeout_s))

    def _limit_lock_waits(self, timeout_s: float | None) -> Operation[None]:
        timeout_ms = None if timeout_s is None else max(1, round(timeout_s * 1_000))
        yield Query(name="limit_lock_waits", parameters={"timeout_ms": timeout_ms})

    def _limit(self, timeout_s: float) -> Operation[None]:
        yield Query(name="limit_statements", parameters={"timeout_ms": round(timeout_s * 1_000)})

    def _wait(self, timeout_s: float, *, notifiable: bool = True) -> Operation[bool]:
        happened = yield Wait(timeout_s=timeout_s, notifiable=notifiable)
        self._stops |= any(isinstance(message, Stop) for message in happened.told)
        return bool(happened.notified)

    def _rest(self, pause_s: float) -> Operation[None]:
        """Pause until the time is over or a stop comes; notifications, perhaps hundreds per second, do not end it."""
        until_s = self._now_s() + pause_s
        yield from self._wait(0.0, notifiable=False)
        while not self._stops and (left_s := until_s - self._now_s()) > 0:
            yield from self._wait(left_s, notifiable=False)


@shows(server=lambda dispatcher: address_of(dispatcher._url))
class Dispatcher(EventService[DispatchReport]):
    """Dispatches in the thread that calls ``run``, which returns a :class:`DispatchReport`.

    :param url: URL of the database.
    :param once: whether to dispatch the events that are stored, then end.
    """

    @checked
    def __init__(self, url: str, *, rules: DispatchRules | None = None, once: bool = False) -> None:
        super().__init__(url, noun="dispatcher", threads=1)
        self.operations: Dispatching = Dispatching(
            rules or DispatchRules(), once=once, began=self._begins.set, now_s=time.monotonic
        )

    _serve = blocking(Dispatching.run)


@shows(server=lambda dispatcher: address_of(dispatcher._url))
class AsyncDispatcher(AsyncEventService[DispatchReport]):
    """:class:`Dispatcher` for asyncio.

    :param url: URL of the database; the other parameters are those of :class:`Dispatcher`.
    """

    @checked
    def __init__(self, url: str, *, rules: DispatchRules | None = None, once: bool = False) -> None:
        super().__init__(url, noun="dispatcher")
        self.operations: Dispatching = Dispatching(
            rules or DispatchRules(), once=once, began=self._begins.set, now_s=time.monotonic
        )

    _serve = awaited(Dispatching.run)
