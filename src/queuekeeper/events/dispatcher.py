"""The service that dispatches: polls when something was published, and keeps one slow condition from stopping all.

Several may run; one polls at a time, and the others step in when it is gone.
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
"""Most time that a poll ever gets."""

LOCK_SHARE = 4
"""Part of a condition's time that waiting for a lock may take: who waits so long is not slow, but held up."""

BUSY_MATCHES = 500
"""Matches of a poll after which a dispatcher pauses for longest."""

PLAIN_CONDITION = "TRUE"
"""Condition that costs nothing."""

STANDBY_PAUSE_S = 1.0
"""Longest pause of a dispatcher while another one works."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchRules:
    """How a dispatcher works.

    :param poll_interval_s: seconds after which to poll even without a notification, up to 86,400; what is due is
        noticed by then.
    :param pause_s: least time between two polls: what is published meanwhile is dispatched at once, as one chunk.
    :param busy_pause_s: what that time grows to, the more a poll finds: a poll, and what each consumer does after it,
        costs about as much for ten events as for hundreds. Never shorter than ``pause_s``.
    :param statement_timeout_s: seconds after which the server cancels a poll; then conditions are tried one by one.
    :param condition_timeout_s: seconds that one condition may take for the newest events when it is tried alone, after
        a poll that took too long; at most ``statement_timeout_s``. A subscription is stored only when that takes a
        second at most, so less than one second finds conditions slow that ``subscribe`` has let in.
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
        """Return the pause after a poll that made so many matches."""
        return self.pause_s + max(0.0, self.busy_pause_s - self.pause_s) * min(1.0, matches / BUSY_MATCHES)


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchReport:
    """What a dispatcher has done.

    :param polls: polls that ended well.
    :param matches: events times the subscriptions that got them.
    :param quarantined: subscriptions put in quarantine for a slow condition.
    """

    polls: int
    matches: int
    quarantined: tuple[str, ...]


class Dispatching:
    """What a dispatcher does, as an operation.

    :cvar late: whether work is at it that has had its time; it starts none.
    :param once: dispatch what is there, then end.
    :param began: called when it serves.
    :param now_s: a clock that never goes back.
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

        :raises ServerUnavailable: when the server cannot be reached at first; later on it is waited for.
        :raises TransientRefusal: when a server that is reached cannot do it and ``once`` is set; else it is waited for.
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
        while not self._stops:
            pause_s = yield from self._poll()
            if pause_s is not None:
                yield from self._rest(pause_s)
            elif self._once:
                return
            elif (yield from self._wait(self._rules.poll_interval_s)):
                # What is published during the pause is dispatched in one go.
                yield from self._rest(self._rules.pause_s)

    def _poll(self) -> Operation[float | None]:
        """Dispatch one chunk; return the pause before the next, none when there is nothing more to dispatch."""
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
        # A poll that leaves a part of its window says so; this one has not, so another dispatcher is at it.
        before = self._polled_at
        self._polled_at = (yield Query(name="last_poll"))[0][0]
        return min(self._rules.poll_interval_s, STANDBY_PAUSE_S) if self._polled_at == before else pause_s

    def _find_slow_conditions(self) -> Operation[None]:
        """Try conditions one by one; what takes too long or fails is evaluated no more."""
        yield from self._limit(self._rules.condition_timeout_s)
        yield from self._limit_lock_waits(self._rules.condition_timeout_s / LOCK_SHARE)
        before = len(self._quarantined)
        try:
            yield from self._try_conditions()
        except (StatementTimeout, LockTimeout) as error:
            _log.warning("dispatcher: no condition is to blame, as the server itself is held up: %s", error)
        yield from self._limit_lock_waits(None)
        if len(self._quarantined) == before:
            # All together are slow, or the server is: dispatching late is better than not at all.
            self._timeout_s = min(LONGEST_POLL_S, 2 * self._timeout_s)
            _log.warning("dispatcher: no single condition is slow; polls have %.1f s now", self._timeout_s)
        yield from self._limit(self._timeout_s)

    def _try_conditions(self) -> Operation[None]:
        """Put conditions into quarantine that are slow or fail while one that costs nothing does not.

        :raises StatementTimeout: when that one is slow too.
        :raises LockTimeout: when somebody holds a lock.
        """
        yield from self._try_plain_condition()
        for condition in (yield from self.events.conditions()):
            if condition == PLAIN_CONDITION:
                continue
            reason = yield from self._reason_against(condition)
            if reason is None:
                continue
            # The lock or the load may have come while it was tried.
            yield from self._try_plain_condition()
            quarantined = yield from self.events.quarantine_condition(condition, reason=reason)
            self._quarantined += quarantined
            _log.error(
                "dispatcher: condition %r is evaluated no more, for %d subscriptions: %s",
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
            raise StatementTimeout(f"condition {PLAIN_CONDITION} does not do either: {reason}")

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
        """Pause; what is notified meanwhile, hundreds of times a second perhaps, would wake it for nothing."""
        until_s = self._now_s() + pause_s
        yield from self._wait(0.0, notifiable=False)
        while not self._stops and (left_s := until_s - self._now_s()) > 0:
            yield from self._wait(left_s, notifiable=False)


@shows(server=lambda dispatcher: address_of(dispatcher._url))
class Dispatcher(EventService[DispatchReport]):
    """Dispatches in the thread that calls ``run``, which returns a :class:`DispatchReport`.

    :param url: of the database.
    :param once: dispatch what is there, then end.
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
    """The same for asyncio.

    :param url: of the database.
    """

    @checked
    def __init__(self, url: str, *, rules: DispatchRules | None = None, once: bool = False) -> None:
        super().__init__(url, noun="dispatcher")
        self.operations: Dispatching = Dispatching(
            rules or DispatchRules(), once=once, began=self._begins.set, now_s=time.monotonic
        )

    _serve = awaited(Dispatching.run)
