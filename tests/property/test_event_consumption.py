"""Whatever fails and whenever the connection breaks, a consumer gives every event to every handler, in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekeeper.errors import ServerUnavailable
from queuekeeper.events.consumption import Asked, Consumption
from queuekeeper.events.handlers import Assignment, ReliableHandler, RetryRules, blocking_attempt
from queuekeeper.events.model import Delivery, Interest, ReadRules
from queuekeeper.events.operations import Query, Statements
from queuekeeper.events.service import Open
from queuekeeper.service.steps import Begin, Ended, Happened, Stop, Wait

pytestmark = pytest.mark.property

SUBSCRIPTION_ID = "su1"
CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)


class EventRow(NamedTuple):
    """What a server answers of an event that is read."""

    event_id: str
    topic: str
    payload: Any
    metadata: Any
    subscription_ids: list[str]
    next_cursor: str


@dataclass
class Server:
    """A broker in memory: what was dispatched, what is due, the stored cursor, and who owns the group."""

    events: int
    cursor: int = 0
    connected: bool = False
    dispatched: list[tuple[str, str, Any]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatched = [(f"pm{number:022x}", "orders", number) for number in range(self.events)]

    def answer(self, query: Query | Statements) -> list[Any]:
        if not self.connected:
            raise ServerUnavailable("the connection broke")
        if isinstance(query, Statements):
            return [self.answer(each) for each in query.queries]
        known = {"limit_trial", "end_trial"} | {
            "pin_reader",
            "listen_dispatched",
            "assert_group",
            "mark_subscriptions_active",
            "release_group_lock",
        }
        if query.name in known:
            return [(SUBSCRIPTION_ID,)]
        found: list[Any] = getattr(self, query.name)(**query.parameters)
        return found

    def assert_subscription(self, **_: Any) -> list[Any]:
        return [(SUBSCRIPTION_ID, CREATED_AT)]

    def subscription_quarantine(self, **_: Any) -> list[Any]:
        return [(None, None)]

    def read_next_events(self, *, group_id: str, cursor: str | None, limit: int, peek: bool) -> list[Any]:
        del group_id, peek
        start = self.cursor if cursor is None else int(cursor)
        page = self.dispatched[start : start + limit]
        return [EventRow(*event, None, [SUBSCRIPTION_ID], str(start + len(page))) for event in page]

    def set_group_cursor(self, *, group_id: str, cursor: str, release: bool) -> list[Any]:
        del group_id, release
        self.cursor = int(cursor)
        self.stored.append(self.cursor)
        return [(None,)]

    def delete_subscriptions(self, **_: Any) -> list[Any]:
        return [(1,)]

    def schedule_retry(self, *, ids: list[str], retry_number: int, handler: str, **_: Any) -> list[Any]:
        copies = [{"id": one, "topic": "orders", "payload": int(one[2:], 16), "metadata": None} for one in ids]
        payload = {"ids": ids, "retryNumber": retry_number, "handlerName": handler, "events": copies}
        self.dispatched.append((f"pm{len(self.dispatched):022x}", "pgmb-retry", payload))
        return [("pm",)]

    def fail_events(self, *, ids: list[str], **_: Any) -> list[Any]:
        self.dead += [int(one[2:], 16) for one in ids]
        return [(len(ids),)]


@dataclass
class Log:
    """A handler: what it has done, and what it has seen."""

    fails: Callable[[], bool]
    done: list[int] = field(default_factory=list)

    def __call__(self, delivery: Delivery) -> None:
        if self.fails():
            raise ValueError("no luck")
        self.done += [event.payload for event in delivery.events]


class World:
    """Runs a consumption: chance decides when work ends, fails, and when the connection breaks."""

    def __init__(self, data: st.DataObject, *, events: int, page: int, pages_ahead: int) -> None:
        self._data = data
        self.server = Server(events)
        self.now_s = 0.0
        self.troubles = 30
        self._running: list[Begin] = []
        self._consumption = Consumption(
            group_id="group",
            rules=ReadRules(page=page, pages_ahead=pages_ahead),
            attempt=self._attempt,
            began=lambda: None,
            now_s=lambda: self.now_s,
        )
        self.most_ahead = 0
        self.in_order, self.with_retries = Log(self.trouble), Log(self.trouble)
        for work, name, retries_s in ((self.in_order, "order", None), (self.with_retries, "retries", (1.0, 1.0))):
            self._consumption.admit(
                ReliableHandler(work=work, name=name, interest=Interest(), rules=RetryRules(retries_s=retries_s))
            )

    @staticmethod
    def _attempt(assignment: Assignment) -> Callable[[], Any]:
        return blocking_attempt(assignment)

    def trouble(self) -> bool:
        """Return whether something goes wrong; it does not go on for ever."""
        if self.troubles and self._data.draw(st.integers(0, 3)) == 0:
            self.troubles -= 1
            return True
        return False

    def run(self) -> None:
        operation = self._consumption.run()
        step = next(operation)
        while True:
            try:
                try:
                    answer = self._answer(step)
                except ServerUnavailable as error:
                    step = operation.throw(error)
                else:
                    step = operation.send(answer)
            except StopIteration:
                return

    def _answer(self, step: Any) -> Any:
        if isinstance(step, Open):
            self.server.connected = True
            return None
        if isinstance(step, Begin):
            assert all(one.token.handler is not step.token.handler for one in self._running), "one delivery at a time"
            self._running.append(step)
            return None
        if isinstance(step, Wait):
            return self._wait(step.timeout_s)
        # The first connection must stand, as a wrong address is told at once.
        if self.server.stored and self.server.connected and self.trouble():
            self.server.connected = False
        return self.server.answer(step)

    def _wait(self, timeout_s: float) -> Happened:
        told: list[Any] = []
        if self._running and not self._data.draw(st.booleans()):
            start = self._running.pop(self._data.draw(st.integers(0, len(self._running) - 1)))
            told.append(Ended(token=start.token, result=start.work()))
        elif not self._running and self.finished():
            told.append(Stop())
        else:
            self.now_s += max(timeout_s, 0.01)
        return Happened(told=tuple(told), notified=False)

    def finished(self) -> bool:
        """Return whether everything was read and stored as read."""
        return self.server.cursor == len(self.server.dispatched)


@given(data=st.data(), events=st.integers(1, 12), page=st.integers(1, 5), pages_ahead=st.integers(1, 4))
def test_every_handler_gets_every_event_and_order_is_kept(
    data: st.DataObject, events: int, page: int, pages_ahead: int
) -> None:
    world = World(data, events=events, page=page, pages_ahead=pages_ahead)
    world.run()

    everything = list(range(events))
    assert list(dict.fromkeys(world.in_order.done)) == everything
    assert set(world.with_retries.done) | set(world.server.dead) == set(everything)
    assert world.server.stored == sorted(world.server.stored)
    assert world.finished()


@given(data=st.data(), events=st.integers(1, 12), page=st.integers(1, 5), pages_ahead=st.integers(1, 4))
def test_nothing_is_repeated_while_nothing_fails(data: st.DataObject, events: int, page: int, pages_ahead: int) -> None:
    world = World(data, events=events, page=page, pages_ahead=pages_ahead)
    world.troubles = 0
    world.run()

    assert world.in_order.done == world.with_retries.done == list(range(events))
    assert world.server.dead == []


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_handler_fails_on_after_its_removal_keeps_nobody_from_going_on(
    parts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a page ahead at most: were the first one never finished, no other would be read."""
    server = Server(events=2 * parts)
    consumption = Consumption(
        group_id="group",
        rules=ReadRules(page=parts, pages_ahead=1),
        attempt=blocking_attempt,
        began=lambda: None,
        now_s=float,
    )

    def fail(delivery: Delivery) -> None:
        raise ValueError(delivery.events[0].id)

    def each(delivery: Delivery) -> list[Delivery]:
        return [replace(delivery, events=(event,)) for event in delivery.events]

    consumption.admit(ReliableHandler(work=fail, name="removed", interest=Interest(), split=each))
    removal: Future[bool] = Future()

    def answer(step: Any) -> Any:
        if isinstance(step, Open):
            server.connected = True
        if isinstance(step, Begin):
            begun.append(step)
        if not isinstance(step, Wait):
            return server.answer(step) if isinstance(step, Query | Statements) else None
        if not removal.done():
            return Happened(
                told=(Asked(operation=lambda: consumption.unsubscribe(SUBSCRIPTION_ID), future=removal),),
                notified=False,
            )
        if begun:
            one = begun.pop()
            return Happened(told=(Ended(token=one.token, result=one.work()),), notified=False)
        return Happened(told=(Stop(),), notified=False)

    begun: list[Begin] = []
    operation = consumption.run()
    step = next(operation)
    try:
        while True:
            step = operation.send(answer(step))
    except StopIteration:
        pass

    assert removal.result()
    assert server.stored == [parts, 2 * parts]
    (lost,) = [record.getMessage() for record in caplog.records if "there is no handler" in record.getMessage()]
    assert f"{parts} of {parts} events" in lost
    assert all(f"pm{number:022x}" in lost for number in range(parts))
