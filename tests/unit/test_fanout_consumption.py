"""A consumer of a fan-out queue in moments that no server can be brought to: its steps are answered by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from queuekeeper.errors import RefusedError, ServerUnavailable, StoreFull
from queuekeeper.fanout.consumption import REGISTER_S, TOUCH_S, Consumption, WorkRules
from queuekeeper.fanout.model import Start
from queuekeeper.fanout.reports import AckReport, Claimed, FanoutMessage
from queuekeeper.service.handlers import BlockingCalls
from queuekeeper.service.steps import END_S, Begin, Ended, Happened, Stop, Wait

pytestmark = pytest.mark.unit


class Server:
    """Stands for a store: each operation is one step, which names it."""

    def __getattr__(self, name: str) -> Any:
        def operation(queue: str, **given: Any) -> Any:
            return (yield name, given)

        return operation


class Hand:
    """Answers the steps of a consumer."""

    def __init__(self, *, adopted: Exception | None = None, **rules: Any) -> None:
        self.now_s = 0.0
        server: Any = Server()
        self.run = Consumption(
            server, "orders", lambda message: None, consumer="billing", rules=WorkRules(**rules), options=None,
            start=Start.NEW, register=False, middleware=(), draw=lambda: 0.0, began=lambda: None,
            calls=BlockingCalls, listen=lambda timeout_s: timeout_s,
            now_s=lambda: self.now_s,
        ).run()  # fmt: skip
        self.step = next(self.run)
        self.answer("touch", 0)
        self.answer("adopt", 0 if adopted is None else adopted)

    def answer(self, name: str, reply: Any) -> dict[str, Any]:
        """Answer the step, which must have this name; return what it was given."""
        found, given = self.step
        assert found == name
        self._go_on(reply)
        return dict(given)

    def begin(self) -> Begin:
        """Begin with a message, as the step must want."""
        step = self.step
        assert isinstance(step, Begin)
        assert step.token is not None
        self._go_on(None)
        return step

    def listen(self) -> None:
        """Listen, as the step must want."""
        assert isinstance(self.step, Begin)
        assert self.step.token is None
        self._go_on(None)

    def tell(self, *told: Any, after_s: float = 0.0) -> None:
        """Let time pass, and end the wait, as the step must want."""
        assert isinstance(self.step, Wait)
        self.now_s += after_s
        self._go_on(Happened(told=told, notified=False))

    def _go_on(self, reply: Any) -> None:
        self.step = self.run.throw(reply) if isinstance(reply, Exception) else self.run.send(reply)


def claimed(*ids: int, stalls: int = 0) -> Claimed:
    messages = tuple(
        FanoutMessage(
            queue="orders", consumer="billing", id=one, body=b"", content_type=None, headers={}, order_key=None,
            published_ms=0, attempt=1, stalls=stalls, expires_at_ms=10**12,
        )
        for one in ids
    )  # fmt: skip
    return Claimed(messages=messages, token=f"token{ids}", deadline_ms=30_000, wait_until_ms=None)


def test_wake_up_that_comes_when_there_is_no_room_is_remembered_until_there_is() -> None:
    hand = Hand(workers=1, look_s=5.0)
    hand.answer("claim", claimed())
    hand.listen()
    hand.tell(after_s=5.0)
    hand.answer("claim", claimed(1))
    token = hand.begin().token
    hand.tell(Ended(token=None, result=True))
    # Whoever else waits has been woken, too.
    assert isinstance(hand.step, Wait)
    hand.tell(Ended(token=token))
    hand.answer("ack", AckReport(acked=1, stale=0, freed=1))
    hand.answer("claim", claimed(2))
    hand.begin()


def test_consumer_shows_itself_while_nothing_comes_however_seldom_it_looks() -> None:
    hand = Hand(look_s=3_600.0)
    hand.answer("claim", claimed())
    hand.listen()
    for _ in range(3):
        assert isinstance(hand.step, Wait)
        assert hand.step.timeout_s == TOUCH_S
        hand.tell(after_s=TOUCH_S)
        hand.answer("touch", 0)


def test_error_that_ends_a_consumer_waits_for_handlers_and_what_they_have_done_is_acknowledged() -> None:
    hand = Hand(workers=2, prefetch=2)
    hand.answer("claim", claimed(1, 2))
    first, second = (hand.begin().token for _ in range(2))
    hand.listen()
    hand.tell(after_s=5.0)
    hand.answer("claim", RefusedError("the server takes no writes"))
    hand.tell(Ended(token=first))
    assert hand.answer("ack", AckReport(acked=1, stale=0, freed=1))["ids"] == [1]
    hand.tell(Ended(token=second, error=ValueError("no")))
    with pytest.raises(RefusedError, match="takes no writes"):
        hand.answer("nack", RefusedError("this neither"))


def test_end_does_not_wait_for_ever_for_a_server_that_is_away(caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand(workers=1, prefetch=1, grace_s=30.0)
    hand.answer("claim", claimed(1, 2))
    held = hand.begin().token
    hand.tell(Stop())
    hand.answer("return_claimed", ServerUnavailable("away"))
    hand.tell(Ended(token=held), after_s=1.0)

    def wait_in_vain() -> None:
        while True:
            if isinstance(hand.step, Wait):
                hand.tell(after_s=0.5)
            else:
                hand.answer("ack", ServerUnavailable("away"))

    with caplog.at_level(logging.WARNING), pytest.raises(StopIteration):
        wait_in_vain()
    assert END_S <= hand.now_s <= END_S + 3
    assert "ended with 2 messages" in caplog.text


def test_message_whose_lease_was_lost_is_not_begun_and_the_others_are(caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand(workers=1, prefetch=2, lease_ms=10_000)
    hand.answer("claim", claimed(1, 2, 3))
    held = hand.begin().token
    hand.tell(after_s=5.0)
    with caplog.at_level(logging.WARNING):
        given = hand.answer("extend", type("Report", (), {"stale": (2,), "deadline_ms": 0}))
    assert sorted(given["ids"]) == [1, 2, 3]
    assert "has lost the leases of 1 message;" in caplog.text
    hand.answer("claim", claimed())
    hand.listen()
    hand.tell(Ended(token=held))
    given = hand.answer("ack", AckReport(acked=1, stale=0, freed=1))
    assert given["ids"] == [1]
    assert hand.begin().token.message.id == 3


def test_message_that_may_end_its_worker_is_worked_on_while_nothing_else_is() -> None:
    hand = Hand(workers=4)
    hand.answer("claim", claimed(1, 2))
    first, second = (hand.begin().token for _ in range(2))
    hand.listen()
    hand.tell(Ended(token=None, result=True))
    hand.answer("claim", claimed(3, stalls=2))
    # It is not begun, and nothing is claimed, while others are at work.
    hand.tell(Ended(token=first), after_s=6.0)
    hand.answer("ack", AckReport(acked=1, stale=0, freed=1))
    hand.tell(Ended(token=second))
    hand.answer("ack", AckReport(acked=1, stale=0, freed=1))
    alone = hand.begin().token
    assert alone.message.id == 3
    hand.tell(after_s=6.0)
    assert isinstance(hand.step, Wait)
    hand.tell(Ended(token=alone))
    hand.answer("ack", AckReport(acked=1, stale=0, freed=1))
    assert hand.answer("claim", claimed(4, 5))["count"] == 4
    assert [hand.begin().token.message.id for _ in range(2)] == [4, 5]


def test_registration_that_somebody_left_half_done_is_ended_when_a_full_server_has_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        hand = Hand(adopted=StoreFull("no memory"))
    assert "is not wholly registered yet" in caplog.text
    hand.answer("claim", claimed())
    hand.listen()
    hand.tell(after_s=REGISTER_S)
    hand.answer("touch", 0)
    hand.answer("adopt", 3)
    hand.answer("claim", claimed(1))
    assert hand.begin().token.message.id == 1
